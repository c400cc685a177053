/* SPDX-License-Identifier: Apache-2.0 */
/* Products of heads with their rows of a weight: for latent attention, whose queries and results pass the weight of keys and values instead of these
 * themselves. Rows of all tokens are put together head by head, so that each head is one product. */
#include "lib/tensor/tensor.h"

/* Row numbers of a matrix (outer x inner, width) for another order, inner first. */
static Tensor *turned_rows(Tape *tape, int64_t outer, int64_t inner) {
    int64_t n = outer * inner;
    Tensor *rows = tensor_new(tape_arena(tape), tape_device(tape), DT_I32, 1, &n);
    int32_t *list = arena_alloc(tape_arena(tape), (size_t)(n + 1) * sizeof *list);
    for (int64_t i = 0; list && i < n; i++) list[i] = (int32_t)(i % outer * inner + i / outer);
    if (rows && list && tensor_upload(rows, 0, n, list) == ST_OK) return rows;
    return tape_fail(tape, ST_RESOURCE, "out of memory for the order of heads");
}

/* Rows begin..end-1 of one head, with a branch or without. */
static void head_product(Tape *tape, const HeadProducts *args, int64_t head, const LoraBranch *lora, int64_t begin, int64_t end, const Tensor *x,
                         Tensor *y) {
    int64_t n = tensor_rows(x) / args->n_heads, row = head * args->rows + args->first;
    if (begin == end) return;
    Tensor a = matrix_rows(x, head * n + begin, head * n + end), c = matrix_rows(y, head * n + begin, head * n + end),
           b = matrix_rows(args->weight, row, row + args->count), factor, *low = NULL;
    b.storage = &(Storage){.device = tape_device(tape)}; /* a packed copy is of the whole weight */
    Matmul product = {.a = &a, .b = &b, .c = &c, .transpose_b = args->transposed, .alpha = 1};
    if (lora) {
        if (!(low = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){end - begin, tensor_width(lora->b)}))) return;
        factor = matrix_rows(lora->b, row, row + args->count);
        product.down = args->transposed ? lora->a : &factor;
        product.transpose_down = args->transposed;
        product.down_alpha = 1;
        product.more_a = product.low = low;
        product.more_b = args->transposed ? &factor : lora->a;
        product.transpose_more_b = args->transposed;
        product.more_alpha = lora->scale;
    }
    tape_device(tape)->matmul(&product);
}

/* All rows of one head: in parts where each branch is of some rows. */
static void head_run(Tape *tape, const HeadProducts *args, int64_t head, const Tensor *x, Tensor *y) {
    int64_t n = tensor_rows(x) / args->n_heads, at = 0;
    const LoraBranch *lora = args->lora;
    if (lora && lora->end == 0) {
        head_product(tape, args, head, lora, 0, n, x, y);
        return;
    }
    for (; lora; at = lora->end, lora = lora->next) {
        head_product(tape, args, head, NULL, at, lora->begin, x, y);
        head_product(tape, args, head, lora, lora->begin, lora->end, x, y);
    }
    head_product(tape, args, head, NULL, at, n, x, y);
}

Tensor *head_products(Tape *tape, const Tensor *x, const HeadProducts *args) {
    if (!x || tape_status(tape) != ST_OK) return NULL;
    const Device *device = tape_device(tape);
    int64_t n = tensor_rows(x), H = args->n_heads, k = tensor_width(args->weight), in = args->transposed ? k : args->count,
            out = args->transposed ? args->count : k;
    ASSERT(tensor_width(x) == H * in && !tape_needs_backward(tape), "%lld columns for %lld heads of %lld", (long long)tensor_width(x), (long long)H,
           (long long)in);
    Tensor *by_head = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){H * n, in}),
           *results = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){H * n, out}),
           *y = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){n, H * out});
    Tensor *to = turned_rows(tape, n, H), *back = turned_rows(tape, H, n);
    if (!by_head || !results || !y || !to || !back) return NULL;
    Tensor *units = tape_reshape(tape, x, 2, (int64_t[]){n * H, in}), *y_units = tape_reshape(tape, y, 2, (int64_t[]){n * H, out});
    if (!units || !y_units) return NULL;
    device->gather_rows(units, to, by_head);
    for (int64_t h = 0; h < H && tape_status(tape) == ST_OK; h++) head_run(tape, args, h, by_head, results);
    device->gather_rows(results, back, y_units);
    return tape_status(tape) == ST_OK ? y : NULL;
}
