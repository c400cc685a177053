/* token_logprobs: the one door to log-probabilities. Only the rows that are asked for reach the head, and their logits exist tile by tile.
 *
 * Backward, with p the probabilities of a row: dhidden = dlogprob (W_target - sum_v p_v W_v) / temperature. What dlogprob is multiplied by is known in the forward pass, and made there while
 * the logits are at hand; only for a trained head, or gradients of entropy and mean, are they computed again. */
#include "lib/tensor/tensor.h"

enum { HIDDEN, HEAD };
enum { LOGPROB, ENTROPY, MEAN };
enum { SELECTED, LOGSUMEXP, SLOPE };
typedef struct Saved { LogprobArgs args; const Tensor *rows, *targets; } Saved;

static bool by_slope(const LogprobArgs *args, const Tensor *hidden, const Tensor *head) {
    return hidden->needs_grad && !head->needs_grad && (args->only_logprob || (!args->entropy && !args->mean));
}

static const Tensor *grad_of(const Tensor *tensor) { return tensor ? tensor->grad : NULL; }

static void token_logprobs_backward(Tape *tape, Node *node) {
    const Device *device = tape_device(tape);
    const Saved *saved = node->attributes;
    const Tensor *selected = node->saved[SELECTED];
    double beta, head_beta;
    Tensor *dhidden = tape_grad(tape, node->inputs[HIDDEN], &beta);
    Tensor *dhead = tape_grad(tape, node->inputs[HEAD], &head_beta);
    Tensor *dselected = dhidden ? tape_scratch(tape, dhidden->dtype, 2, selected->shape) : NULL;
    if (tape_status(tape) != ST_OK) return;
    if (node->saved[SLOPE]) {
        ASSERT(!grad_of(node->outputs[ENTROPY]) && !grad_of(node->outputs[MEAN]), "gradients of an entropy or mean that was to be read only");
        device->scale_rows(node->saved[SLOPE], grad_of(node->outputs[LOGPROB]), dselected);
    } else {
        device->token_logprobs_backward(&saved->args, selected, node->inputs[HEAD], saved->targets, node->saved[LOGSUMEXP], node->outputs[ENTROPY], grad_of(node->outputs[LOGPROB]),
                                        grad_of(node->outputs[ENTROPY]), grad_of(node->outputs[MEAN]), dselected, head_beta, dhead);
    }
    if (!dhidden) return;
    if (beta == 0) device->fill(dhidden, 0);
    device->scatter_add_rows(dselected, saved->rows, dhidden);
}

TokenLogprobs op_token_logprobs(Tape *tape, Tensor *hidden, Tensor *head, const Tensor *rows, const Tensor *targets, const LogprobArgs *args) {
    TokenLogprobs result = {0};
    if (!hidden || !head || !rows || !targets) return result;
    int64_t n = tensor_count(rows), selected_shape[2] = {n, tensor_width(hidden)};
    DType dtype = tape_residual(tape);
    Tensor *outputs[3] = {tape_tensor(tape, dtype, 1, &n), args->entropy ? tape_tensor(tape, dtype, 1, &n) : NULL, args->mean ? tape_tensor(tape, dtype, 1, &n) : NULL};
    Tensor *selected = tape_tensor(tape, hidden->dtype, 2, selected_shape), *logsumexp = tape_tensor(tape, dtype, 1, &n);
    Tensor *slope = tape_recording(tape) && by_slope(args, hidden, head) ? tape_tensor(tape, dtype, 2, selected_shape) : NULL;
    if (tape_status(tape) != ST_OK) return result;
    tape_device(tape)->gather_rows(hidden, rows, selected);
    tape_device(tape)->token_logprobs(args, selected, head, targets, outputs[LOGPROB], outputs[ENTROPY], outputs[MEAN], logsumexp, slope);
    Node *node = tape_push(tape, "token_logprobs", token_logprobs_backward, (Tensor *[]){hidden, head}, 2, outputs, 3, &(Saved){*args, rows, targets}, sizeof(Saved));
    if (node) {
        node->saved[SELECTED] = selected;
        node->saved[LOGSUMEXP] = logsumexp;
        node->saved[SLOPE] = slope;
    }
    return (TokenLogprobs){outputs[LOGPROB], outputs[ENTROPY], outputs[MEAN]};
}

OpCost op_token_logprobs_cost(const Node *node, bool backward) {
    const Tensor *hidden = node->inputs[HIDDEN], *head = node->inputs[HEAD];
    int64_t n = tensor_count(node->outputs[LOGPROB]);
    double product = 2 * (double)n * (double)tensor_count(head), selected = (double)(n * tensor_width(hidden)) * (double)dtype_size(hidden->dtype);
    double bytes = (double)tensor_bytes(head) + selected + (double)tensor_bytes(node->outputs[LOGPROB]);
    double slope = (double)(n * tensor_width(hidden)) * (double)dtype_size(node->outputs[LOGPROB]->dtype);
    if (by_slope(&((const Saved *)node->attributes)->args, hidden, head)) return backward ? (OpCost){0, slope + selected} : (OpCost){2 * product, bytes + slope};
    if (!backward) return (OpCost){product, bytes};
    return (OpCost){(1 + hidden->needs_grad + head->needs_grad) * product, bytes + hidden->needs_grad * selected + head->needs_grad * (double)tensor_bytes(head)};
}

/* 0: plain, head frozen; 1: head trained; 2: soft-cap, temperature and a trained head; 3: entropy and mean with all of these; 4: soft-cap and temperature, head frozen; 5: the same with
 * entropy and mean. */
const int op_token_logprobs_variants = 6;

void op_token_logprobs_example(OpExample *example) {
    int variant = example->variant;
    LogprobArgs args = {.softcap = variant >= 2 ? 2 : 0, .temperature = variant >= 2 ? 0.7 : 1, .entropy = variant == 3 || variant == 5, .mean = variant == 3 || variant == 5};
    Tensor *hidden = example_input(example, true, true, 2, (int64_t[]){6, 5});
    Tensor *head = example_input(example, false, variant >= 1 && variant <= 3, 2, (int64_t[]){11, 5});
    Tensor *rows = example_ids(example, 4, (int32_t[]){0, 2, 3, 5}), *targets = example_ids(example, 4, (int32_t[]){10, 0, 7, 7});
    TokenLogprobs p = op_token_logprobs(example->tape, hidden, head, rows, targets, &args);
    example_output(example, p.logprob);
    if (p.entropy) example_output(example, p.entropy);
    if (p.mean) example_output(example, p.mean);
}
