/* SPDX-License-Identifier: Apache-2.0 */
/* expert_linears: linear layers of experts, each applied to the slots of its expert: y_s = W_e x_s + bias_e + scale * B_e (A_e x_s). All products of
 * a layer are one call of the device's matmul, so that threads go from expert to expert without a barrier. An expert without slots is not read.
 *
 * The rows of an expert are consecutive, so its product has no padding; and a row's bits do not depend on the other rows. Rows of tokens are gathered
 * into memory that lives until the op ends, and gathered again for the backward pass. */
#include "lib/tensor/tensor.h"

#include <string.h>

enum { AT_ONCE = 8 }; /* products in one call */

/* ---- one expert's part of a layer ---- */

/* A matrix (rows, cols) number `e` of a tensor of several, or of its gradient. */
static Tensor matrix_of(const Tensor *all, int64_t e, int64_t rows, int64_t cols) {
    Tensor part = tensor_part(all, e * rows * cols, rows * cols);
    part.n_dims = 2;
    part.shape[0] = rows;
    part.shape[1] = cols;
    return part;
}

static Tensor vector_of(const Tensor *all, int64_t e, int64_t n) { return tensor_part(all, e * n, n); }
/* The matrices of a stack of codes are (out, in). */
static bool is_in_out(const ExpertLinear *layer, int64_t e) {
    return layer->whole ? layer->whole->in_out && layer->whole->dtype != DT_PACKED : layer->each[e]->in_out;
}
static int64_t first_slot(const Routing *routing, int64_t e) { return e ? routing->ends[e - 1] : 0; }

/* The stored shape of a weight, (rows, cols). */
static Tensor weight_of(const ExpertLinear *layer, const Tensor *all, int64_t e) {
    if (layer->whole && all->dtype == DT_PACKED) return packed_matrix(all, e);
    bool in_out = is_in_out(layer, e);
    return matrix_of(all, layer->whole ? e : 0, in_out ? layer->in : layer->out, in_out ? layer->out : layer->in);
}

static Tensor expert_weight(const ExpertLinear *layer, int64_t e) { return weight_of(layer, layer->whole ? layer->whole : layer->each[e], e); }

/* The factors of expert e's branch; a->elements NULL: it has none. */
typedef struct Factors {
    Tensor *all_a, *all_b; /* parameters that contain them */
    int64_t rank;
    double scale;
    int64_t at;    /* number of the expert in the parameters */
    int64_t row_b; /* where its rows of B begin */
} Factors;

static Factors factors_of(const ExpertLinear *layer, const ExpertLora *lora, int64_t e) {
    int64_t rows = lora && lora->rows ? lora->rows : layer->out;
    if (lora && lora->a) return (Factors){lora->a, lora->b, tensor_width(lora->b), lora->scale, e, e * rows + lora->first};
    const LoraBranch *branch = lora ? lora->each[e] : NULL;
    return branch ? (Factors){branch->a, branch->b, tensor_width(branch->b), branch->scale, 0, 0} : (Factors){0};
}

static Tensor factor_a(const ExpertLinear *layer, const Factors *factors, const Tensor *all) {
    return matrix_of(all, factors->at, factors->rank, layer->in);
}
static Tensor factor_b(const ExpertLinear *layer, const Factors *factors, const Tensor *all) {
    return matrix_rows(all, factors->row_b, factors->row_b + layer->out);
}

static int64_t widest_rank(const ExpertLinear *layer, const ExpertLora *lora, int64_t n_experts) {
    int64_t widest = 0;
    for (int64_t e = 0; lora && e < n_experts; e++) widest = MAX(widest, factors_of(layer, lora, e).rank);
    return widest;
}

/* The inner values of the slots from `slot` on, (n, rank), in memory for the widest rank. */
static Tensor inner_of(const Tensor *inner, int64_t slot, int64_t n, int64_t rank) {
    Tensor part = tensor_part(inner, slot * tensor_width(inner), n * rank);
    part.n_dims = 2;
    part.shape[0] = n;
    part.shape[1] = rank;
    return part;
}

/* ---- products in joint calls ---- */

typedef struct Calls {
    const Device *device;
    int n;
    Matmul list[AT_ONCE];
    Tensor a[AT_ONCE], b[AT_ONCE], c[AT_ONCE], more_b[AT_ONCE], down[AT_ONCE], low[AT_ONCE], addend[AT_ONCE];
} Calls;

static void calls_flush(Calls *calls) {
    if (calls->n) calls->device->matmul(calls->list);
    calls->n = 0;
}

/* Adds C = alpha op(A) op(B) + beta C. The caller may add terms to the product that it gets, with the tensors of the same index. */
static Matmul *calls_add(Calls *calls, Tensor a, bool transpose_a, Tensor b, bool transpose_b, double alpha, double beta, Tensor c) {
    if (calls->n == AT_ONCE) calls_flush(calls);
    int i = calls->n++;
    calls->a[i] = a;
    calls->b[i] = b;
    calls->c[i] = c;
    calls->list[i] = (Matmul){.a = &calls->a[i],
                              .b = &calls->b[i],
                              .c = &calls->c[i],
                              .transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .alpha = alpha,
                              .beta = beta};
    if (i > 0) calls->list[i - 1].next = &calls->list[i];
    return &calls->list[i];
}

/* + scale * (A down) more_b: the low-rank branch of the newest product, whose inner values are a result. */
static void calls_branch(Calls *calls, Tensor down, bool transpose_down, double down_alpha, Tensor low, Tensor more_b, bool transpose_more,
                         double more_alpha) {
    int i = calls->n - 1;
    Matmul *product = &calls->list[i];
    calls->down[i] = down;
    calls->low[i] = low;
    calls->more_b[i] = more_b;
    product->down = &calls->down[i];
    product->transpose_down = transpose_down;
    product->down_alpha = down_alpha;
    product->low = &calls->low[i];
    product->more_a = &calls->low[i];
    product->more_b = &calls->more_b[i];
    product->transpose_more_b = transpose_more;
    product->more_alpha = more_alpha;
}

/* ---- dropout: each expert's branch has a mask of its own ---- */

static double dropout_of(const ExpertLora *lora, int64_t e) { return lora && lora->each && lora->each[e] ? lora->each[e]->dropout : 0; }

static bool has_dropout(const ExpertLinear *layer, int64_t n_experts) {
    bool found = false;
    for (int64_t e = 0; e < n_experts && !found; e++) found = dropout_of(layer->lora, e) > 0;
    return found;
}

/* y = the slots' rows of x through the masks, + beta * y, for experts with a branch. */
static void drop_slots(Tape *tape, const ExpertLinear *layer, const Routing *routing, const Tensor *x, double beta, const Tensor *y) {
    for (int64_t e = 0; e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        const LoraBranch *branch = begin < end && layer->lora->each ? layer->lora->each[e] : NULL;
        if (!branch) continue;
        Tensor from = matrix_rows(x, begin, end), to = matrix_rows(y, begin, end), rows = tensor_part(routing->rows, begin, end - begin);
        tape_device(tape)->dropout_rows(&from, &rows, branch->dropout, branch->key, branch->first_draw, beta, &to);
    }
}

/* ---- branches of some tokens ---- */

/* Slots of expert e whose tokens are begin..end-1; slots of an expert are in order of tokens. */
static void slots_between(const Routing *routing, int64_t e, int64_t begin, int64_t end, int64_t *from, int64_t *to) {
    *from = first_slot(routing, e);
    while (*from < routing->ends[e] && routing->tokens[*from] < begin) ++*from;
    *to = *from;
    while (*to < routing->ends[e] && routing->tokens[*to] < end) ++*to;
}

/* Memory for the branches of all experts and all lists, in the step's arena: as much in a plan as in a step. */
typedef struct TokenBranch {
    RowBranch rows;
    Tensor down, b, low;
} TokenBranch;

static const RowBranch *token_branches(const ExpertLinear *layer, const Routing *routing, int64_t e, const Tensor *inner, TokenBranch *memory) {
    const RowBranch *first = NULL;
    RowBranch *last = NULL;
    int64_t begin = first_slot(routing, e), from, to;
    for (const ExpertLora *lora = layer->lora; lora; lora = lora->next, memory++) {
        Factors factors = factors_of(layer, lora, e);
        slots_between(routing, e, lora->begin, lora->end, &from, &to);
        if (!factors.all_a || from == to) continue;
        memory->down = factor_a(layer, &factors, factors.all_a);
        memory->b = factor_b(layer, &factors, factors.all_b);
        memory->low = inner_of(inner, from, to - from, factors.rank);
        memory->rows = (RowBranch){
            .begin = from - begin, .end = to - begin, .down = &memory->down, .b = &memory->b, .alpha = factors.scale, .low = &memory->low};
        if (last) last->next = &memory->rows;
        if (!first) first = &memory->rows;
        last = &memory->rows;
    }
    return first;
}

static int64_t n_lists(const ExpertLinear *layer) {
    int64_t n = 0;
    for (const ExpertLora *lora = layer->lora; lora; lora = lora->next) n++;
    return n;
}

static bool by_tokens(const ExpertLinear *layer) { return layer->lora && layer->lora->end > 0; }

/* ---- forward ---- */

/* One layer of a node, and what the backward pass needs of it. */
typedef struct ExpertNode {
    bool by_token;
    Routing routing;
    int n;
    ExpertLinear layers[EXPERT_LINEARS_MOST];
    ExpertLora loras[EXPERT_LINEARS_MOST];
} ExpertNode;

/* have_inner: the inner values are there already. */
static void layer_products(Calls *calls, const ExpertLinear *layer, const Routing *routing, const Tensor *x, const Tensor *inner, bool have_inner,
                           TokenBranch *branches, Tensor *y) {
    for (int64_t e = 0; e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        if (begin == end) continue;
        Matmul *product =
            calls_add(calls, matrix_rows(x, begin, end), false, expert_weight(layer, e), !is_in_out(layer, e), 1, 0, matrix_rows(y, begin, end));
        int i = calls->n - 1;
        if (layer->bias) {
            calls->addend[i] = vector_of(layer->bias, e, layer->out);
            product->addend = &calls->addend[i];
            product->beta = 1;
        }
        Factors factors = branches ? (Factors){0} : factors_of(layer, layer->lora, e);
        if (branches) product->branches = token_branches(layer, routing, e, inner, branches + e * n_lists(layer));
        if (!factors.all_a) continue;
        calls_branch(calls, factor_a(layer, &factors, factors.all_a), true, 1, inner_of(inner, begin, end - begin, factors.rank),
                     factor_b(layer, &factors, factors.all_b), true, factors.scale);
        if (have_inner) product->down = product->low = NULL;
    }
}

/* Only the inner values, for a layer whose results were kept. */
static void inner_products(Calls *calls, const ExpertLinear *layer, const Routing *routing, const Tensor *x, const Tensor *inner) {
    for (int64_t e = 0; e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        Factors factors = factors_of(layer, layer->lora, e);
        if (begin == end || !factors.all_a) continue;
        calls_add(calls, matrix_rows(x, begin, end), false, factor_a(layer, &factors, factors.all_a), true, 1, 0,
                  inner_of(inner, begin, end - begin, factors.rank));
    }
}

/* The input of the products: x, or the rows of the slots' tokens in `gathered`. NULL after a failure. */
static const Tensor *slot_rows(Tape *tape, const ExpertNode *node, Tensor *x, Tensor **gathered) {
    if (!node->by_token) return x;
    *gathered = tape_header(tape, tape_compute(tape), 2, (int64_t[]){tensor_count(node->routing.rows), tensor_width(x)});
    if (!*gathered || !tape_temp(tape, *gathered)) return NULL;
    tape_device(tape)->gather_rows(x, node->routing.rows, *gathered);
    return *gathered;
}

/* A result in preparation. */
typedef struct ExpertResult {
    Tensor *y, *inner;
    bool have_y, have_inner;
    TokenBranch *branches;
} ExpertResult;

static bool result_begin(Tape *tape, const ExpertLinear *layer, const Routing *routing, ExpertResult *result) {
    int64_t n = routing->n_tokens * routing->top_k, rank = 0;
    *result = (ExpertResult){.have_inner = true};
    for (const ExpertLora *lora = layer->lora; lora; lora = lora->next) rank = MAX(rank, widest_rank(layer, lora, routing->n_experts));
    if (rank) result->inner = tape_result(tape, tape_compute(tape), 2, (int64_t[]){n, rank}, &result->have_inner);
    if (layer->in >= layer->out) /* as op_linear: long sums are kept, long rows are computed again */
        result->y = tape_result(tape, tape_compute(tape), 2, (int64_t[]){n, layer->out}, &result->have_y);
    else
        result->y = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){n, layer->out});
    if (!result->y || (rank && !result->inner)) return false;
    if (!by_tokens(layer)) return true;
    ASSERT(!tape_needs_backward(tape), "a backward pass of branches of some tokens of %lld", (long long)routing->n_tokens);
    result->branches = arena_zero(tape_arena(tape), (size_t)(routing->n_experts * n_lists(layer)) * sizeof *result->branches);
    return result->branches || tape_fail(tape, ST_RESOURCE, "out of memory for the branches of experts");
}

static bool is_trained(const ExpertLinear *layer, int64_t n_experts) {
    bool trained = (layer->whole && layer->whole->needs_grad) || (layer->bias && layer->bias->needs_grad);
    for (int64_t e = 0; e < n_experts && !trained; e++) {
        Factors factors = factors_of(layer, layer->lora, e);
        trained = (layer->each && layer->each[e]->needs_grad) || (factors.all_a && (factors.all_a->needs_grad || factors.all_b->needs_grad));
    }
    return trained;
}

static void experts_backward(Tape *tape, Node *node);

/* The inner values of a layer with dropout. */
static void dropped_inner(Tape *tape, const ExpertLinear *layer, const Routing *routing, const Tensor *rows, const Tensor *inner) {
    Tensor *dropped = tape_header(tape, rows->dtype, 2, rows->shape);
    Calls calls = {.device = tape_device(tape)};
    if (!dropped || !tape_temp(tape, dropped)) return;
    drop_slots(tape, layer, routing, rows, 0, dropped);
    inner_products(&calls, layer, routing, dropped, inner);
    calls_flush(&calls);
    tape_temp_free(tape, dropped);
}

static void experts_run(Tape *tape, const ExpertNode *node, Tensor *x, const ExpertResult *results) {
    bool computes = false;
    Tensor *gathered = NULL;
    for (int i = 0; i < node->n; i++) computes |= !results[i].have_y || !results[i].have_inner;
    if (!computes) return;
    recompute_run(tape, x);
    const Tensor *rows = tape_status(tape) == ST_OK ? slot_rows(tape, node, x, &gathered) : NULL;
    Calls calls = {.device = tape_device(tape)};
    for (int i = 0; rows && i < node->n; i++) {
        const ExpertLinear *layer = &node->layers[i];
        const bool dropped = has_dropout(layer, node->routing.n_experts);
        if (dropped && !results[i].have_inner) dropped_inner(tape, layer, &node->routing, rows, results[i].inner);
        if (!results[i].have_y)
            layer_products(&calls, layer, &node->routing, rows, results[i].inner, dropped, results[i].branches, results[i].y);
        else if (!results[i].have_inner && !dropped)
            inner_products(&calls, layer, &node->routing, rows, results[i].inner);
    }
    calls_flush(&calls);
    if (gathered) tape_temp_free(tape, gathered);
    recompute_end(tape, x);
}

void op_expert_linears(Tape *tape, Tensor *x, bool by_token, const Routing *routing, const ExpertLinear *layers, int n, Tensor **y) {
    ExpertResult results[EXPERT_LINEARS_MOST] = {0};
    ASSERT(n <= EXPERT_LINEARS_MOST, "%d linear layers of experts at once", n);
    for (int i = 0; i < n; i++) y[i] = NULL;
    if (!x || !routing->weights) return;
    ExpertNode attributes = {.by_token = by_token, .routing = *routing, .n = n};
    Tensor trained = {.needs_grad = false}, *outputs[EXPERT_LINEARS_MOST];
    for (int i = 0; i < n; i++) {
        ASSERT(tensor_width(x) == layers[i].in && tensor_rows(x) == routing->n_tokens * (by_token ? 1 : routing->top_k),
               "experts of width %lld with %lld rows of %lld", (long long)layers[i].in, (long long)tensor_rows(x), (long long)tensor_width(x));
        attributes.layers[i] = layers[i];
        if (layers[i].lora) attributes.loras[i] = *layers[i].lora;
        if (!result_begin(tape, &layers[i], routing, &results[i])) return;
        trained.needs_grad |= is_trained(&layers[i], routing->n_experts);
        outputs[i] = results[i].y;
    }
    experts_run(tape, &attributes, x, results);
    Node *node = tape_push(tape, "expert_linears", experts_backward, (Tensor *[]){x, &trained}, 2, outputs, n, &attributes, sizeof attributes);
    if (node) {
        ExpertNode *copy = node->attributes;
        node->inputs[1] = NULL;
        for (int i = 0; i < n; i++) {
            node->saved[i] = results[i].inner;
            if (layers[i].lora) copy->layers[i].lora = &copy->loras[i];
        }
    }
    for (int i = 0; i < n && tape_status(tape) == ST_OK; i++) y[i] = outputs[i];
}

/* ---- backward ---- */

/* The gradient of factors or biases of all experts: zeros instead of old values, so that every expert adds. */
static Tensor *grad_zeroed(Tape *tape, Tensor *parameter) {
    double beta;
    Tensor *grad = tape_grad(tape, parameter, &beta);
    if (grad && beta == 0) tape_device(tape)->fill(grad, 0);
    return grad;
}

/* Adds to dx what comes through the masks of the branches. */
static void masked_backward(Tape *tape, const ExpertLinear *layer, const Routing *routing, const Tensor *dinner, Tensor *dx) {
    Tensor *masked = tape_scratch(tape, dx->dtype, 2, dx->shape);
    Calls calls = {.device = tape_device(tape)};
    for (int64_t e = 0; masked && e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        Factors factors = factors_of(layer, layer->lora, e);
        if (begin < end && factors.all_a)
            calls_add(&calls, inner_of(dinner, begin, end - begin, factors.rank), false, factor_a(layer, &factors, factors.all_a), false, 1, 0,
                      matrix_rows(masked, begin, end));
    }
    calls_flush(&calls);
    if (masked) drop_slots(tape, layer, routing, masked, 1, dx);
}

/* dx of all slots, and the branches' inner gradients. */
static void input_backward(Tape *tape, const ExpertLinear *layer, const Routing *routing, const Tensor *dy, const Tensor *dinner, double beta,
                           Tensor *dx) {
    const bool dropped = has_dropout(layer, routing->n_experts);
    Calls calls = {.device = tape_device(tape)};
    for (int64_t e = 0; e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        Factors factors = factors_of(layer, layer->lora, e);
        if (begin == end || (!dx && !factors.all_a)) continue;
        Tensor rows = matrix_rows(dy, begin, end), inner = {0};
        if (factors.all_a) inner = inner_of(dinner, begin, end - begin, factors.rank);
        if (factors.all_a && (!dx || dropped))
            calls_add(&calls, rows, false, factor_b(layer, &factors, factors.all_b), false, factors.scale, 0, inner);
        if (!dx) continue;
        calls_add(&calls, rows, false, expert_weight(layer, e), is_in_out(layer, e), 1, beta, matrix_rows(dx, begin, end));
        if (factors.all_a && !dropped)
            calls_branch(&calls, factor_b(layer, &factors, factors.all_b), false, factors.scale, inner, factor_a(layer, &factors, factors.all_a),
                         false, 1);
    }
    calls_flush(&calls);
    if (dropped && dx) masked_backward(tape, layer, routing, dinner, dx);
}

static void bias_backward(Tape *tape, const ExpertLinear *layer, const Routing *routing, const Tensor *dy) {
    Tensor *dbias = layer->bias ? grad_zeroed(tape, layer->bias) : NULL;
    for (int64_t e = 0; dbias && e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        if (begin == end) continue;
        Tensor rows = matrix_rows(dy, begin, end), part = vector_of(dbias, e, layer->out);
        tape_device(tape)->bias_backward(&rows, &part);
    }
}

static void weights_backward(Tape *tape, const ExpertLinear *layer, const Routing *routing, const Tensor *x, const Tensor *dy) {
    Calls calls = {.device = tape_device(tape)};
    double beta = 0;
    Tensor *whole = layer->whole ? tape_grad(tape, layer->whole, &beta) : NULL;
    for (int64_t e = 0; e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        Tensor *grad = layer->whole ? whole : begin < end ? tape_grad(tape, layer->each[e], &beta) : NULL;
        if (!grad) continue;
        Tensor part = weight_of(layer, grad, e);
        if (begin == end) {
            if (beta == 0) tape_device(tape)->fill(&part, 0);
            continue;
        }
        Tensor in = matrix_rows(x, begin, end), out = matrix_rows(dy, begin, end);
        bool in_out = is_in_out(layer, e);
        calls_add(&calls, in_out ? in : out, true, in_out ? out : in, false, 1, beta, part);
    }
    calls_flush(&calls);
}

static void expert_factors_backward(Tape *tape, const ExpertLinear *layer, const Routing *routing, const Tensor *x, const Tensor *dy,
                                    const Tensor *inner, const Tensor *dinner) {
    const ExpertLora *lora = layer->lora;
    Calls calls = {.device = tape_device(tape)};
    Tensor *dropped = has_dropout(layer, routing->n_experts) ? tape_scratch(tape, x->dtype, 2, x->shape) : NULL;
    if (tape_status(tape) != ST_OK) return;
    if (dropped) {
        drop_slots(tape, layer, routing, x, 0, dropped);
        x = dropped;
    }
    Tensor *all_a = lora->a ? grad_zeroed(tape, lora->a) : NULL, *all_b = lora->b ? grad_zeroed(tape, lora->b) : NULL;
    for (int64_t e = 0; e < routing->n_experts; e++) {
        int64_t begin = first_slot(routing, e), end = routing->ends[e];
        Factors factors = factors_of(layer, lora, e);
        if (begin == end || !factors.all_a) continue;
        double beta_a = 1, beta_b = 1;
        Tensor *da = lora->a ? all_a : tape_grad(tape, factors.all_a, &beta_a), *db = lora->a ? all_b : tape_grad(tape, factors.all_b, &beta_b);
        if (db)
            calls_add(&calls, matrix_rows(dy, begin, end), true, inner_of(inner, begin, end - begin, factors.rank), false, factors.scale, beta_b,
                      factor_b(layer, &factors, db));
        if (da)
            calls_add(&calls, inner_of(dinner, begin, end - begin, factors.rank), true, matrix_rows(x, begin, end), false, 1, beta_a,
                      factor_a(layer, &factors, da));
    }
    calls_flush(&calls);
}

/* The gradient of x from that of its slots: `dslots` is dx itself unless x has the rows of tokens. */
static Tensor *dslots_begin(Tape *tape, const ExpertNode *attributes, Tensor *x, Tensor **gathered, double *beta) {
    *beta = 0;
    if (!x->needs_grad) return NULL;
    if (!attributes->by_token) return tape_grad(tape, x, beta);
    *gathered = tape_header(tape, x->dtype, 2, (int64_t[]){tensor_count(attributes->routing.rows), tensor_width(x)});
    return *gathered && tape_temp(tape, *gathered) ? *gathered : NULL;
}

static void dslots_end(Tape *tape, const ExpertNode *attributes, Tensor *x, Tensor *gathered) {
    double beta;
    Tensor *dx = tape_grad(tape, x, &beta);
    if (dx && beta == 0) tape_device(tape)->fill(dx, 0);
    if (dx) tape_device(tape)->scatter_add_rows(gathered, attributes->routing.rows, dx);
    tape_temp_free(tape, gathered);
}

static void experts_backward(Tape *tape, Node *node) {
    const ExpertNode *attributes = node->attributes;
    const Routing *routing = &attributes->routing;
    Tensor *x = node->inputs[0], *gathered = NULL, *dgathered = NULL, *dinner[EXPERT_LINEARS_MOST] = {0};
    bool trained = false;
    double beta;
    Tensor *dslots = dslots_begin(tape, attributes, x, &dgathered, &beta);
    for (int i = 0; i < attributes->n && tape_status(tape) == ST_OK; i++) {
        const ExpertLinear *layer = &attributes->layers[i];
        const Tensor *dy = node->outputs[i]->grad;
        trained |= is_trained(layer, routing->n_experts);
        if (!dy) continue;
        if (node->saved[i] && !(dinner[i] = tape_scratch(tape, node->saved[i]->dtype, 2, node->saved[i]->shape))) return;
        input_backward(tape, layer, routing, dy, dinner[i], beta, dslots);
        beta = 1;
        bias_backward(tape, layer, routing, dy);
    }
    if (tape_status(tape) != ST_OK) return;
    if (dgathered) dslots_end(tape, attributes, x, dgathered);
    recompute_backward(tape, x, node->op);
    const Tensor *rows = trained && tape_status(tape) == ST_OK ? slot_rows(tape, attributes, x, &gathered) : NULL;
    for (int i = 0; rows && i < attributes->n; i++) {
        const Tensor *dy = node->outputs[i]->grad;
        if (!dy) continue;
        weights_backward(tape, &attributes->layers[i], routing, rows, dy);
        if (attributes->layers[i].lora) expert_factors_backward(tape, &attributes->layers[i], routing, rows, dy, node->saved[i], dinner[i]);
    }
    if (gathered) tape_temp_free(tape, gathered);
    recompute_end(tape, x);
}

/* Products of all slots, by the widest rank; the weights of each expert with slots count as read once. */
OpCost op_expert_linears_cost(const Node *node, bool backward) {
    const ExpertNode *attributes = node->attributes;
    OpCost cost = {.bytes = node_bytes(node, backward)};
    double slots = (double)tensor_count(attributes->routing.rows), used = 0;
    for (int64_t e = 0; e < attributes->routing.n_experts; e++) used += first_slot(&attributes->routing, e) < attributes->routing.ends[e];
    for (int i = 0; i < attributes->n; i++) {
        const ExpertLinear *layer = &attributes->layers[i];
        double in = (double)layer->in, out = (double)layer->out, rank = (double)widest_rank(layer, layer->lora, attributes->routing.n_experts),
               full = 2 * slots * in * out, low = 2 * slots * rank * (in + out);
        bool weights = is_trained(layer, attributes->routing.n_experts);
        cost.flops += !backward ? full + low : node->inputs[0]->needs_grad * (full + low) + (weights ? rank > 0 ? low : full : 0);
        cost.bytes += layer->whole ? (double)tensor_bytes(layer->whole) / (double)attributes->routing.n_experts * used
                                   : (double)tensor_bytes(layer->each[0]) * used;
    }
    return cost;
}

/* Weights in one tensor: 0: frozen, 1: trained, with biases, 2: (in, out), trained, 3: (in, out), frozen, branches of all experts. A tensor for each:
 * 4: trained, 5: frozen, branches of some. 6: two layers of the tokens' rows with branches. 7: of a lazy activation, trained. 8, 9: as 5 with
 * dropout, 9: of the tokens' rows. */
const int op_expert_linears_variants = 10;

enum { E = 3, K = 2, N = 4, IN = 4, OUT = 3, RANK = 2 };

static Routing example_routing(OpExample *example) {
    Tensor *logits = example_input(example, true, false, 2, (int64_t[]){N, E});
    return op_router(example->tape, logits, NULL, &(RouterArgs){.n_experts = E, .top_k = K, .scale = 1}, NULL);
}

static bool example_lora(OpExample *example, ExpertLora *lora) {
    *lora = (ExpertLora){.scale = 1.5};
    lora->a = example_input(example, false, true, 2, (int64_t[]){E * RANK, IN});
    lora->b = example_input(example, false, true, 2, (int64_t[]){E * OUT, RANK});
    return lora->a && lora->b;
}

/* A tensor for each expert; the second one has no branch. The lists live as long as the step. */
static bool example_each(OpExample *example, bool trained, double dropout, ExpertLinear *layer) {
    Arena *arena = example->arena;
    Tensor **each = arena_zero(arena, E * sizeof *each);
    LoraBranch *branches = arena_zero(arena, E * sizeof *branches);
    const LoraBranch **list = arena_zero(arena, E * sizeof *list);
    ExpertLora *lora = arena_zero(arena, sizeof *lora);
    if (!each || !branches || !list || !lora) return false;
    for (int e = 0; e < E; e++) {
        if (!(each[e] = example_input(example, false, trained, 2, (int64_t[]){OUT, IN}))) return false;
        if (trained || e == 1) continue;
        branches[e] = (LoraBranch){.scale = 0.7,
                                   .dropout = dropout,
                                   .key = rng_key(example->seed, RNG_DROPOUT, (uint64_t)e),
                                   .first_draw = 5,
                                   .a = example_input(example, false, true, 2, (int64_t[]){e + 1, IN}),
                                   .b = example_input(example, false, true, 2, (int64_t[]){OUT, e + 1})};
        if (!branches[e].a || !branches[e].b) return false;
        list[e] = &branches[e];
    }
    lora->each = list;
    layer->each = each;
    layer->lora = trained ? NULL : lora;
    return true;
}

void op_expert_linears_example(OpExample *example) {
    int v = example->variant, n = v == 6 ? 2 : 1;
    bool in_out = v == 2 || v == 3, by_token = v < 4 || v == 6 || v == 9, trained = v == 1 || v == 2 || v == 4 || v == 7;
    Routing routing = example_routing(example);
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){by_token ? N : N * K, IN}), *y[EXPERT_LINEARS_MOST] = {0};
    ExpertLinear layers[EXPERT_LINEARS_MOST];
    ExpertLora loras[EXPERT_LINEARS_MOST];
    for (int i = 0; i < n; i++) {
        ExpertLinear *layer = &layers[i];
        *layer = (ExpertLinear){.in = IN, .out = OUT};
        if (v == 4 || v == 5 || v >= 8) {
            if (!example_each(example, trained, v >= 8 ? 0.4 : 0, layer)) return;
            continue;
        }
        layer->whole = example_input(example, false, trained, 3, (int64_t[]){E, in_out ? IN : OUT, in_out ? OUT : IN});
        if (!layer->whole) return;
        layer->whole->in_out = in_out;
        if (v == 1 && !(layer->bias = example_input(example, false, true, 2, (int64_t[]){E, OUT}))) return;
        if ((v == 3 || v == 6) && !example_lora(example, &loras[i])) return;
        if (v == 3 || v == 6) layer->lora = &loras[i];
    }
    if (v == 7) x = op_activation_passing(example->tape, ACT_SILU, x, NULL);
    op_expert_linears(example->tape, x, by_token, &routing, layers, n, y);
    for (int i = 0; i < n; i++) example_output(example, y[i]);
}
