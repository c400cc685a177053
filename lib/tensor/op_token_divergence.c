/* SPDX-License-Identifier: Apache-2.0 */
/* token_divergence: the loss of distillation. A block of rows at a time is multiplied by both heads; the gradient of its logits times the student's
 * head is the slope of the loss, so that the backward pass of the hidden states needs no further product. The gradient of a trained head is added
 * while the logits of a block are there, if the gradients of the losses are known; else the backward pass computes these logits again. */
#include "lib/tensor/tensor.h"

#include <math.h>

enum { HIDDEN, HEAD };
typedef struct Saved {
    DivergenceArgs args;
    const Tensor *rows, *targets, *selected, *teacher, *teacher_head;
    Divergences results;
    Tensor *slope; /* (P, C): gradient of each loss with respect to its hidden row */
    bool head_added;
} Saved;

/* Rows of a block: both tables of logits together take at most this many elements, but a product needs some rows to be fast. */
enum { BLOCK_ELEMENTS = 1 << 24, LEAST_ROWS = 16, MOST_ROWS = 512 };

static int64_t block_rows(int64_t n, int64_t n_vocab) {
    int64_t most = BLOCK_ELEMENTS / (2 * n_vocab);
    return MIN(n, MAX(LEAST_ROWS, MIN(most, MOST_ROWS)));
}

static int64_t common_tokens(const Tensor *head, const Tensor *teacher_head, const DivergenceArgs *args) {
    return MIN(tensor_rows(head), teacher_head ? tensor_rows(teacher_head) : args->top_vocab);
}

/* Scratch memory of one block. */
typedef struct Block {
    Tensor *student, *teacher, *norms; /* logits, the teacher's if there is one; their log-sum-exps are not used */
    Tensor *gradient;                  /* the student's, in the dtype of products */
} Block;

static Block block_new(Tape *tape, const Tensor *selected, bool taught, int64_t n, int64_t n_vocab) {
    int64_t shape[2] = {block_rows(n, n_vocab), n_vocab};
    Block block = {.student = tape_scratch(tape, tape_residual(tape), 2, shape),
                   .teacher = taught ? tape_scratch(tape, tape_residual(tape), 2, shape) : NULL};
    block.norms = tape_scratch(tape, DT_F64, 1, shape);
    block.gradient = selected->dtype == tape_residual(tape) ? block.student : tape_scratch(tape, selected->dtype, 2, shape);
    return block;
}

static Tensor first_rows(const Tensor *matrix, int64_t n) { return matrix_rows(matrix, 0, n); }

/* The teacher's logits of rows begin..end-1, in `logits`. */
static void teacher_logits(const Device *device, const Saved *saved, const Block *block, int64_t begin, int64_t end, Tensor *logits) {
    Tensor hidden = matrix_rows(saved->teacher, begin, end), norms = tensor_part(block->norms, 0, end - begin),
           some = first_rows(saved->teacher_head, tensor_width(logits));
    device->token_logits(&(LogprobArgs){.softcap = saved->args.teacher_softcap, .temperature = saved->args.teacher_scaling}, &hidden,
                         tensor_rows(&some) == tensor_rows(saved->teacher_head) ? saved->teacher_head : &some, logits, &norms);
}

/* Computes rows begin..end-1 of the results, and the gradient of their logits. */
static void block_run(const Device *device, const Saved *saved, const Tensor *head, const Block *block, int64_t begin, int64_t end) {
    int64_t n = end - begin, n_vocab = tensor_width(block->student);
    DivergenceArgs args = saved->args;
    Tensor student = first_rows(block->student, n), teacher, gradient = first_rows(block->gradient, n), norms = tensor_part(block->norms, 0, n),
           hidden = matrix_rows(saved->selected, begin, end), some = first_rows(head, n_vocab), top_ids, top_logprobs,
           targets = tensor_part(saved->targets, begin, n), loss = tensor_part(saved->results.loss, begin, n),
           divergence = tensor_part(saved->results.divergence, begin, n), logprob = tensor_part(saved->results.logprob, begin, n),
           agreement = tensor_part(saved->results.agreement, begin, n);
    device->token_logits(&(LogprobArgs){.softcap = saved->args.softcap, .temperature = saved->args.scaling}, &hidden,
                         n_vocab == tensor_rows(head) ? head : &some, &student, &norms);
    if (block->teacher) {
        teacher = first_rows(block->teacher, n);
        teacher_logits(device, saved, block, begin, end, &teacher);
    } else {
        top_ids = matrix_rows(args.top_ids, begin, end);
        top_logprobs = matrix_rows(args.top_logprobs, begin, end);
        args.top_ids = &top_ids;
        args.top_logprobs = &top_logprobs;
    }
    device->divergence(&args, &student, block->teacher ? &teacher : NULL, &targets, &(Divergences){&loss, &divergence, &logprob, &agreement});
    if (block->gradient != block->student) device->copy(&student, &gradient);
}

/* Adds what rows begin..end-1 give to the gradient of the head's first rows. upstream: (P), the gradients of the losses. */
static void add_head(const Device *device, const Saved *saved, const Block *block, const Tensor *upstream, int64_t begin, int64_t end,
                     Tensor *dhead) {
    Tensor gradient = first_rows(block->gradient, end - begin), some = tensor_part(upstream, begin, end - begin),
           hidden = matrix_rows(saved->selected, begin, end);
    device->scale_rows(&gradient, &some, &gradient);
    device->matmul(&(Matmul){.a = &gradient, .transpose_a = true, .b = &hidden, .c = dhead, .alpha = 1, .beta = 1});
}

static void token_divergence_backward(Tape *tape, Node *node) {
    const Device *device = tape_device(tape);
    const Saved *saved = node->attributes;
    const Tensor *head = node->inputs[HEAD], *loss = saved->results.loss;
    double beta, head_beta;
    Tensor *dhidden = tape_grad(tape, node->inputs[HIDDEN], &beta),
           *dhead = saved->head_added ? NULL : tape_grad(tape, node->inputs[HEAD], &head_beta);
    Tensor *dselected = dhidden ? tape_scratch(tape, dhidden->dtype, 2, saved->selected->shape) : NULL;
    Block block = {0};
    int64_t n = tensor_count(loss), n_vocab = common_tokens(head, saved->teacher_head, &saved->args), most = block_rows(n, n_vocab);
    if (dhead) block = block_new(tape, saved->selected, saved->teacher != NULL, n, n_vocab);
    if (tape_status(tape) != ST_OK) return;
    if (dhidden) {
        device->scale_rows(saved->slope, loss->grad, dselected);
        if (beta == 0) device->fill(dhidden, 0);
        device->scatter_add_rows(dselected, saved->rows, dhidden);
    }
    if (!dhead) return;
    if (head_beta == 0) device->fill(dhead, 0);
    Tensor changed = first_rows(dhead, n_vocab);
    for (int64_t begin = 0; begin < n; begin += most) {
        int64_t end = MIN(begin + most, n);
        block_run(device, saved, head, &block, begin, end);
        add_head(device, saved, &block, loss->grad, begin, end, &changed);
    }
}

Divergences op_token_divergence(Tape *tape, Tensor *hidden, Tensor *head, const Tensor *teacher, const Tensor *teacher_head, const Tensor *rows,
                                const Tensor *targets, const DivergenceArgs *args) {
    const bool taught = !args->top_ids;
    if (!hidden || !head || (taught && (!teacher || !teacher_head)) || !rows || !targets) return (Divergences){0};
    const Device *device = tape_device(tape);
    int64_t n = tensor_count(rows), n_vocab = common_tokens(head, teacher_head, args), most = block_rows(n, n_vocab);
    DType dtype = tape_residual(tape);
    Divergences results = {tape_tensor(tape, dtype, 1, &n), tape_tensor(tape, dtype, 1, &n), tape_tensor(tape, dtype, 1, &n),
                           tape_tensor(tape, dtype, 1, &n)};
    Tensor *selected = tape_tensor(tape, hidden->dtype, 2, (int64_t[]){n, tensor_width(hidden)}),
           *other = taught ? tape_tensor(tape, teacher->dtype, 2, (int64_t[]){n, tensor_width(teacher)}) : NULL,
           *slope = tape_recording(tape) && hidden->needs_grad ? tape_tensor(tape, dtype, 2, (int64_t[]){n, tensor_width(hidden)}) : NULL;
    double beta = 0;
    const bool add = args->upstream && tape_recording(tape);
    Tensor *upstream = add ? tape_tensor(tape, dtype, 1, &n) : NULL, *dhead = add ? tape_grad(tape, head, &beta) : NULL,
           changed = dhead ? first_rows(dhead, n_vocab) : (Tensor){0};
    if (tape_status(tape) != ST_OK) return (Divergences){0};
    Saved saved = {*args, rows, targets, selected, other, teacher_head, results, slope, add};
    Block block = block_new(tape, selected, taught, n, n_vocab);
    if (tape_status(tape) != ST_OK) return (Divergences){0};
    if (upstream && device_computes(device)) tensor_write(upstream, args->upstream);
    if (dhead && beta == 0) device->fill(dhead, 0);
    device->gather_rows(hidden, rows, selected);
    if (taught) device->gather_rows(teacher, rows, other);
    for (int64_t begin = 0; begin < n; begin += most) {
        int64_t end = MIN(begin + most, n);
        block_run(device, &saved, head, &block, begin, end);
        Tensor gradient = first_rows(block.gradient, end - begin), part = slope ? matrix_rows(slope, begin, end) : (Tensor){0},
               some = first_rows(head, n_vocab);
        if (slope) device->matmul(&(Matmul){.a = &gradient, .b = n_vocab == tensor_rows(head) ? head : &some, .c = &part, .alpha = 1, .beta = 0});
        if (dhead) add_head(device, &saved, &block, upstream, begin, end, &changed);
    }
    Tensor *outputs[] = {results.loss, results.divergence, results.logprob, results.agreement};
    tape_push(tape, "token_divergence", token_divergence_backward, (Tensor *[]){hidden, head}, 2, outputs, 4, &saved, sizeof saved);
    if (add) tensor_seed_grad(tape, results.loss, args->upstream);
    return results;
}

OpCost op_token_divergence_cost(const Node *node, bool backward) {
    const Tensor *hidden = node->inputs[HIDDEN], *head = node->inputs[HEAD];
    const Saved *saved = node->attributes;
    const Tensor *teacher_head = saved->teacher_head;
    double n = (double)tensor_count(saved->results.loss), tokens = (double)common_tokens(head, teacher_head, &saved->args),
           product = 2 * n * tokens * (double)tensor_width(head), other = teacher_head ? 2 * n * tokens * (double)tensor_width(teacher_head) : 0,
           heads = (double)tensor_bytes(head) + (teacher_head ? (double)tensor_bytes(teacher_head) : 0),
           selected = (double)tensor_bytes(saved->selected);
    const bool later = head->needs_grad && !saved->head_added, now = head->needs_grad && saved->head_added;
    if (!backward)
        return (OpCost){product + other + (saved->slope ? product : 0) + (now ? product : 0),
                        heads + 2 * selected + (now ? (double)tensor_bytes(head) : 0)};
    return (OpCost){later ? 2 * product + other : 0, (later ? heads + (double)tensor_bytes(head) : 0) + 2 * selected * (double)hidden->needs_grad};
}

/* Kinds 0 to 3 with a trained head; 4: a mix with cross-entropy, temperature, soft-cap and scaling; 5: a frozen head, fewer tokens of the teacher;
 * 6: stored likeliest tokens instead of a teacher. */
const int op_token_divergence_variants = 7;

void op_token_divergence_example(OpExample *example) {
    int variant = example->variant;
    const double half = log(0.5), third = log(0.3), fifth = log(0.2),
                 logprobs[] = {half, third, fifth, third, fifth, half, half, fifth, third, third, half, fifth};
    DivergenceArgs args = {.kind = variant < 4 ? (DivergenceKind)variant : DIVERGENCE_KL,
                           .temperature = 1,
                           .alpha = 1,
                           .beta = 0.3,
                           .top_k = 4,
                           .scaling = 1,
                           .teacher_scaling = 1};
    if (variant == 4)
        args = (DivergenceArgs){.kind = DIVERGENCE_JSD,
                                .temperature = 1.7,
                                .alpha = 0.6,
                                .beta = 0.5,
                                .squared = true,
                                .softcap = 2,
                                .scaling = 1.6,
                                .teacher_scaling = 0.7};
    Tensor *hidden = example_input(example, true, true, 2, (int64_t[]){6, 5});
    Tensor *head = example_input(example, false, variant != 5, 2, (int64_t[]){11, 5});
    Tensor *teacher = NULL, *teacher_head = NULL;
    if (variant < 6) {
        teacher = example_input(example, true, false, 2, (int64_t[]){6, 7});
        teacher_head = example_input(example, false, false, 2, (int64_t[]){variant == 5 ? 9 : 11, 7});
    } else {
        args.kind = DIVERGENCE_TOP_K;
        args.alpha = 0.6;
        args.top_vocab = 10;
        args.top_ids = tensor_reshape(example->arena, example_ids(example, 8, (int32_t[]){8, 1, 0, 3, 2, 5, 9, 4}), 2, (int64_t[]){4, 2});
        example->given[example->n_inputs] = logprobs;
        args.top_logprobs = example_input(example, false, false, 2, (int64_t[]){4, 3});
    }
    Tensor *rows = example_ids(example, 4, (int32_t[]){0, 2, 3, 5}), *targets = example_ids(example, 4, (int32_t[]){8, 0, 7, 7});
    example_output(example, op_token_divergence(example->tape, hidden, head, teacher, teacher_head, rows, targets, &args).loss);
}
