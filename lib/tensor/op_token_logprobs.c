/* SPDX-License-Identifier: Apache-2.0 */
/* token_logprobs: the only source of log-probabilities. Only the requested rows are multiplied by the head, and their logits exist one tile at a
 * time.
 *
 * Backward, with p the probabilities of a row: dhidden = dlogprob (W_target - sum_v p_v W_v) / temperature. The factor of dlogprob is known in the
 * forward pass, which computes it while it has the logits. dW is a product of p and hidden over all rows, which needs dlogprob first. For a trained
 * head, p of a few thousand rows is kept if the tape keeps everything; otherwise, and for gradients of entropy and mean, the logits are computed
 * again. */
#include "lib/tensor/tensor.h"

enum { HIDDEN, HEAD };
enum { LOGPROB, ENTROPY, MEAN };
typedef struct Saved {
    LogprobArgs args;
    const Tensor *rows, *targets, *selected;
    LogprobResults results;
} Saved;

/* Without soft-cap, a head's gradient needs only probabilities. If only the head is trained, the general method is used. */
static bool by_slope(const LogprobArgs *args, const Tensor *hidden, const Tensor *head) {
    return hidden->needs_grad && (args->only_logprob || (!args->entropy && !args->mean)) && (!head->needs_grad || args->softcap == 0);
}

/* Number of rows whose probabilities are kept: whole blocks that take no more memory than the head's weights, gradient and moments in f32; none if
 * the products would need them in another dtype. Never fewer for more rows, so that the plan of the largest batch covers all. */
static int64_t rows_kept(const Tape *tape, const Tensor *hidden, int64_t n) {
    enum { HEAD_BYTES = 16 };
    int64_t most = HEAD_BYTES * tensor_width(hidden) / (int64_t)dtype_size(hidden->dtype) / LOGPROB_BLOCK * LOGPROB_BLOCK;
    if (tape_checkpointing(tape) != CHECKPOINT_NONE || tape_device(tape)->product_dtype(hidden->dtype) != hidden->dtype) return 0;
    return MIN(n <= LOGPROB_BLOCK ? n : n / LOGPROB_BLOCK * LOGPROB_BLOCK, most);
}

static Tensor *grad_of(const Tensor *tensor) { return tensor ? tensor->grad : NULL; }

static void token_logprobs_backward(Tape *tape, Node *node) {
    const Device *device = tape_device(tape);
    const Saved *saved = node->attributes;
    const LogprobResults *results = &saved->results;
    TokenLogprobs grads = {grad_of(node->outputs[LOGPROB]), grad_of(node->outputs[ENTROPY]), grad_of(node->outputs[MEAN])};
    double beta, head_beta;
    Tensor *dhidden = tape_grad(tape, node->inputs[HIDDEN], &beta);
    Tensor *dhead = tape_grad(tape, node->inputs[HEAD], &head_beta);
    Tensor *dselected = dhidden ? tape_scratch(tape, dhidden->dtype, 2, saved->selected->shape) : NULL;
    if (tape_status(tape) != ST_OK) return;
    ASSERT(!results->dlogp_dhidden || (!grads.entropy && !grads.mean), "gradients of an entropy or mean that was to be read only");
    if (results->dlogp_dhidden) device->scale_rows(results->dlogp_dhidden, grads.logprob, dselected);
    if (dhead || !results->dlogp_dhidden)
        device->token_logprobs_backward(&saved->args, saved->selected, node->inputs[HEAD], saved->targets, results, &grads,
                                        results->dlogp_dhidden ? NULL : dselected, head_beta, dhead);
    if (!dhidden) return;
    if (beta == 0) device->fill(dhidden, 0);
    device->scatter_add_rows(dselected, saved->rows, dhidden);
}

TokenLogprobs op_token_logprobs(Tape *tape, Tensor *hidden, Tensor *head, const Tensor *rows, const Tensor *targets, const LogprobArgs *args) {
    if (!hidden || !head || !rows || !targets) return (TokenLogprobs){0};
    int64_t n = tensor_count(rows), selected_shape[2] = {n, tensor_width(hidden)};
    DType dtype = tape_residual(tape);
    Tensor *selected = tape_tensor(tape, hidden->dtype, 2, selected_shape);
    LogprobResults results = {.logprob = tape_tensor(tape, dtype, 1, &n),
                              .entropy = args->entropy ? tape_tensor(tape, dtype, 1, &n) : NULL,
                              .mean = args->mean ? tape_tensor(tape, dtype, 1, &n) : NULL,
                              .logsumexp = tape_tensor(tape, dtype, 1, &n)};
    if (tape_recording(tape) && by_slope(args, hidden, head)) {
        int64_t kept = head->needs_grad ? rows_kept(tape, hidden, n) : 0;
        results.dlogp_dhidden = tape_tensor(tape, dtype, 2, selected_shape);
        if (head->needs_grad) results.reference = tape_tensor(tape, dtype, 1, &n);
        if (kept > 0) results.weights = tape_tensor(tape, hidden->dtype, 2, (int64_t[]){kept, tensor_rows(head)});
    }
    if (tape_status(tape) != ST_OK) return (TokenLogprobs){0};
    tape_device(tape)->gather_rows(hidden, rows, selected);
    tape_device(tape)->token_logprobs(args, selected, head, targets, &results);
    Tensor *outputs[3] = {results.logprob, results.entropy, results.mean};
    tape_push(tape, "token_logprobs", token_logprobs_backward, (Tensor *[]){hidden, head}, 2, outputs, 3,
              &(Saved){*args, rows, targets, selected, results}, sizeof(Saved));
    return (TokenLogprobs){results.logprob, results.entropy, results.mean};
}

OpCost op_token_logprobs_cost(const Node *node, bool backward) {
    const Tensor *hidden = node->inputs[HIDDEN], *head = node->inputs[HEAD];
    const LogprobResults *results = &((const Saved *)node->attributes)->results;
    int64_t n = tensor_count(node->outputs[LOGPROB]);
    double product = 2 * (double)n * (double)tensor_count(head),
           selected = (double)(n * tensor_width(hidden)) * (double)dtype_bytes(hidden->dtype, 1);
    double bytes = (double)tensor_bytes(head) + selected + (double)tensor_bytes(node->outputs[LOGPROB]),
           dhead = head->needs_grad ? (double)tensor_bytes(head) : 0;
    double kept = results->weights ? (double)tensor_bytes(results->weights) : 0,
           again = results->weights ? 1 - (double)tensor_rows(results->weights) / (double)n : 1;
    if (results->dlogp_dhidden) {
        double slope = (double)(n * tensor_width(hidden)) * (double)dtype_size(node->outputs[LOGPROB]->dtype);
        if (!backward) return (OpCost){2 * product, bytes + slope + kept};
        return head->needs_grad ? (OpCost){(1 + again) * product, again * bytes + slope + 2 * selected + kept + dhead}
                                : (OpCost){0, slope + selected};
    }
    if (!backward) return (OpCost){product, bytes};
    return (OpCost){(1 + hidden->needs_grad + head->needs_grad) * product, bytes + hidden->needs_grad * selected + dhead};
}

/* 0: plain, head frozen; 1: head trained; 2: soft-cap, temperature and a trained head; 3: entropy and mean with all of these; 4: soft-cap and
 * temperature, head frozen; 5: the same with entropy and mean; 6: temperature and a trained head. */
const int op_token_logprobs_variants = 7;

void op_token_logprobs_example(OpExample *example) {
    int variant = example->variant;
    LogprobArgs args = {.softcap = variant >= 2 && variant < 6 ? 2 : 0,
                        .temperature = variant >= 2 ? 0.7 : 1,
                        .entropy = variant == 3 || variant == 5,
                        .mean = variant == 3 || variant == 5};
    Tensor *hidden = example_input(example, true, true, 2, (int64_t[]){6, 5});
    Tensor *head = example_input(example, false, (variant >= 1 && variant <= 3) || variant == 6, 2, (int64_t[]){11, 5});
    Tensor *rows = example_ids(example, 4, (int32_t[]){0, 2, 3, 5}), *targets = example_ids(example, 4, (int32_t[]){10, 0, 7, 7});
    TokenLogprobs p = op_token_logprobs(example->tape, hidden, head, rows, targets, &args);
    example_output(example, p.logprob);
    if (p.entropy) example_output(example, p.entropy);
    if (p.mean) example_output(example, p.mean);
}
