/* SPDX-License-Identifier: Apache-2.0 */
/* router: scores of all experts, the choice of some for each token, and their weights. The choice has no gradient; the weights have.
 *
 * The number of slots is tokens times top_k, whatever the choice: so the memory of a step is known before it runs. */
#include "lib/tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

/* ---- the choice of a token ---- */

/* Index of the largest of n scores that are not in `taken`, the first of equals. NaN is never larger. */
static int64_t best_of(const double *scores, int64_t n, const int32_t *taken, int64_t n_taken) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        if (best >= 0 && !(scores[i] > scores[best])) continue;
        bool free = true;
        for (int64_t t = 0; t < n_taken && free; t++) free = taken[t] != i;
        if (free) best = i;
    }
    return best;
}

static double group_score(const RouterArgs *args, const double *scores, int64_t size) {
    int32_t first = (int32_t)best_of(scores, size, NULL, 0);
    return args->group_pairs && size > 1 ? scores[first] + scores[best_of(scores, size, &first, 1)] : scores[first];
}

/* Removes the experts of all groups but the best. `marks`: memory for top_groups numbers. */
static void groups_choose(const RouterArgs *args, double *scores, int32_t *marks) {
    int64_t size = args->n_experts / args->n_groups;
    for (int64_t t = 0; t < args->top_groups; t++) {
        int64_t best = -1;
        double most = 0;
        for (int64_t g = 0; g < args->n_groups; g++) {
            bool free = true;
            for (int64_t i = 0; i < t && free; i++) free = marks[i] != g;
            double score = free ? group_score(args, scores + g * size, size) : 0;
            if (free && (best < 0 || score > most)) best = g, most = score;
        }
        marks[t] = (int32_t)best;
    }
    for (int64_t e = 0; e < args->n_experts; e++) {
        bool kept = false;
        for (int64_t t = 0; t < args->top_groups && !kept; t++) kept = marks[t] == e / size;
        if (!kept) scores[e] = -(double)INFINITY;
    }
}

void router_choose(const RouterArgs *args, double *scores, int32_t *chosen) {
    if (args->n_groups > 1) groups_choose(args, scores, chosen); /* top_groups is at most top_k */
    for (int64_t j = 0; j < args->top_k; j++) chosen[j] = (int32_t)best_of(scores, args->n_experts, chosen, j);
}

/* ---- slots ---- */

/* Counts the slots of each expert and puts them in order; false: out of memory. A device that plans has no choices: then nearly all slots belong to
 * one expert, whose product is the largest that can occur. */
static bool slots_sort(Tape *tape, const Tensor *chosen, Routing *routing) {
    Arena *arena = tape_arena(tape);
    int64_t n = tensor_count(chosen), n_experts = routing->n_experts;
    int32_t *experts = arena_alloc(arena, (size_t)(3 * n + 1) * sizeof *experts), *tokens = experts + n, *places = tokens + n;
    int64_t *ends = arena_zero(arena, (size_t)(n_experts + 1) * sizeof *ends);
    routing->rows = tensor_new(arena, tape_device(tape), DT_I32, 1, &n);
    routing->places = tensor_new(arena, tape_device(tape), DT_I32, 1, &n);
    if (!experts || !ends || !routing->rows || !routing->places || tensor_download(chosen, 0, n, experts) != ST_OK) return false;
    if (!device_computes(tape_device(tape)) && n > 0) experts[n - 1] = (int32_t)(n_experts - 1);
    for (int64_t i = 0; i < n; i++) ends[experts[i] + 1]++;
    for (int64_t e = 0; e < n_experts; e++) ends[e + 1] += ends[e];
    for (int64_t i = 0; i < n; i++) { /* ends[e] grows from the beginning of an expert's slots to their end */
        int64_t slot = ends[experts[i]]++;
        tokens[slot] = (int32_t)(i / routing->top_k);
        places[slot] = (int32_t)i;
    }
    routing->tokens = tokens;
    routing->ends = ends;
    return tensor_upload(routing->rows, 0, n, tokens) == ST_OK && tensor_upload(routing->places, 0, n, places) == ST_OK;
}

/* Counts the slots of each expert, and sums its shares of the tokens' scores. */
static Status load_add(const Routing *routing, const Tensor *scores, RouterLoad *load) {
    int64_t n_experts = routing->n_experts;
    double buffer[1024], *token = n_experts <= (int64_t)COUNT_OF(buffer) ? buffer : malloc((size_t)n_experts * sizeof *token);
    ASSERT(load->n_parts > 0 && load->ends[load->n_parts - 1] == routing->n_tokens, "%lld parts of %lld tokens", (long long)load->n_parts,
           (long long)routing->n_tokens);
    if (!token) return status_fail(ST_RESOURCE, "out of memory for the load of experts");
    for (int64_t e = 0, slot = 0; e < n_experts; e++)
        for (int64_t part = 0; slot < routing->ends[e]; slot++) { /* an expert's slots are in order of tokens */
            while (routing->tokens[slot] >= load->ends[part]) part++;
            load->counts[part * n_experts + e]++;
        }
    for (int64_t t = 0, part = 0; t < routing->n_tokens; t++) {
        double sum = 0;
        while (t >= load->ends[part]) part++;
        tensor_read_part(scores, t * n_experts, n_experts, token);
        for (int64_t e = 0; e < n_experts; e++) sum += token[e];
        for (int64_t e = 0; e < n_experts; e++) load->scores[part * n_experts + e] += token[e] / sum;
    }
    if (token != buffer) free(token);
    return ST_OK;
}

/* Rows begin..end-1 of chosen experts, which have one dimension. */
static Tensor chosen_rows(const Tensor *chosen, int64_t top_k, int64_t begin, int64_t end) {
    return tensor_part(chosen, begin * top_k, (end - begin) * top_k);
}

/* Each part of the tokens with its own addition to the gradients of scores. */
static void balanced_backward(Tape *tape, const Node *node, const RouterArgs *args, const RouterLoad *load, double beta, const Tensor *dlogits) {
    Tensor *balance = tape_scratch(tape, tape_residual(tape), 1, &args->n_experts);
    const Tensor *dweights = node->outputs[0]->grad;
    for (int64_t part = 0, begin = 0; balance && part < load->n_parts; begin = load->ends[part++]) {
        int64_t end = load->ends[part];
        Tensor scores = matrix_rows(node->saved[0], begin, end), chosen = chosen_rows(node->saved[1], args->top_k, begin, end),
               weights = matrix_rows(dweights, begin, end), logits = matrix_rows(dlogits, begin, end);
        tensor_write(balance, load->balance + part * args->n_experts);
        tape_device(tape)->route_backward(args, &scores, &chosen, &weights, balance, beta, &logits);
    }
}

typedef struct RouterNode {
    RouterArgs args;
    const RouterLoad *load;
} RouterNode;

static void router_backward(Tape *tape, Node *node) {
    const RouterNode *router = node->attributes;
    const RouterLoad *load = router->load;
    double beta;
    Tensor *dlogits = tape_grad(tape, node->inputs[0], &beta);
    if (dlogits && load && load->balance && device_computes(tape_device(tape)))
        balanced_backward(tape, node, &router->args, load, beta, dlogits);
    else if (dlogits)
        tape_device(tape)->route_backward(&router->args, node->saved[0], node->saved[1], node->outputs[0]->grad, NULL, beta, dlogits);
}

Routing op_router(Tape *tape, Tensor *logits, const Tensor *bias, const RouterArgs *args, RouterLoad *load) {
    if (!logits) return (Routing){0};
    int64_t n = tensor_rows(logits), n_slots = n * args->top_k;
    ASSERT(tensor_width(logits) == args->n_experts && args->top_k >= 1 && args->top_k <= args->n_experts, "%lld logits for %lld of %lld experts",
           (long long)tensor_width(logits), (long long)args->top_k, (long long)args->n_experts);
    ASSERT(args->n_groups <= 1 || (args->n_experts % args->n_groups == 0 && args->top_groups >= 1 && args->top_groups <= args->top_k &&
                                   args->top_groups <= args->n_groups && args->top_k <= args->n_experts / args->n_groups * args->top_groups),
           "%lld of %lld groups of %lld experts", (long long)args->top_groups, (long long)args->n_groups, (long long)args->n_experts);
    Routing routing = {.n_tokens = n, .n_experts = args->n_experts, .top_k = args->top_k};
    Tensor *scores = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){n, args->n_experts});
    Tensor *weights = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){n, args->top_k});
    if (!scores || !weights) return (Routing){0};
    Tensor *chosen = tensor_new(tape_arena(tape), tape_device(tape), DT_I32, 1, &n_slots);
    if (chosen) tape_device(tape)->route(args, logits, bias, scores, chosen, weights);
    if (!chosen || !slots_sort(tape, chosen, &routing)) {
        tape_fail(tape, ST_RESOURCE, "out of memory for the choice of experts");
        return (Routing){0};
    }
    if (load && !tape_repeats(tape) && device_computes(tape_device(tape)) && load_add(&routing, scores, load) != ST_OK) {
        tape_fail(tape, ST_RESOURCE, "out of memory for the load of experts");
        return (Routing){0};
    }
    const RouterNode attributes = {*args, load};
    Node *node = tape_push(tape, "router", router_backward, &logits, 1, &weights, 1, &attributes, sizeof attributes);
    if (node) {
        node->saved[0] = scores;
        node->saved[1] = chosen;
    }
    routing.weights = weights;
    return routing;
}

OpCost op_router_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* Softmax: 0: plain, 1: normalised, 2: groups by their best. Sigmoid: 3: with a bias, 4: normalised, scaled, groups by pairs. */
const int op_router_variants = 5;

void op_router_example(OpExample *example) {
    int v = example->variant;
    const RouterArgs args = {.kind = v < 3 ? ROUTER_SOFTMAX : ROUTER_SIGMOID,
                             .n_experts = 8,
                             .top_k = 3,
                             .n_groups = v == 2 || v == 4 ? 4 : 1,
                             .top_groups = v == 2 || v == 4 ? 2 : 1,
                             .group_pairs = v == 4,
                             .normalise = v == 1 || v == 4,
                             .eps = 1e-6,
                             .scale = v == 4 ? 1.7 : 1};
    Tensor *logits = example_input(example, true, true, 2, (int64_t[]){6, 8});
    Tensor *bias = v >= 3 ? example_input(example, false, false, 1, (int64_t[]){8}) : NULL;
    if (logits && (v < 3 || bias)) example_output(example, op_router(example->tape, logits, bias, &args, NULL).weights);
}
