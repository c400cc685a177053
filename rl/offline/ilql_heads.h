/* SPDX-License-Identifier: Apache-2.0 */
/* Q and V heads on a language model's hidden states, for implicit Q-learning on tokens: each has two linear layers with a ReLU between, in f32
 * whatever the type of the activations. There are two Q heads, each with a slowly updated target copy; the smaller target Q is used.
 *
 *     TRY(ilql_heads_add(model, width, seed, true, &heads));
 *     Tensor *hidden = model_forward(model, tape, &batch);
 *     Tensor *q = ilql_head_forward(tape, &heads.q[0], hidden, rows);      // (P, V): Q(s, .) of the state at each of these rows
 *
 * On disk (ilql_heads.safetensors, F32): q1.0.weight (W, C), q1.2.weight (V, W), the same of q2, target_q1, target_q2, and v.0.weight (W, C),
 * v.2.weight (1, W): Q(s, .) = W2 relu(W0 h).
 */
#ifndef TUNE_ILQL_HEADS_H
#define TUNE_ILQL_HEADS_H

#include "lib/infer/infer.h"
#include "lib/train/state_list.h"

typedef struct IlqlHead {
    Tensor *up, *down; /* (W, C), (out, W) */
} IlqlHead;
typedef struct IlqlHeads {
    IlqlHead q[2], target[2], v;
} IlqlHeads;

/* Makes heads of inner width W (0: twice the hidden size) in the model's arena. trained: Q and V are parameters of the model (PARAM_CHECKPOINT_ONLY);
 * their first layers start at random and their second layers at zero, so that all values are 0 at first. ST_RESOURCE. */
Status ilql_heads_add(Model *model, int64_t width, uint64_t seed, bool trained, IlqlHeads *heads);
/* rows: i32 (P) -> (P, out). NULL after a failure, which is recorded on the tape. */
Tensor *ilql_head_forward(Tape *tape, const IlqlHead *head, Tensor *hidden, const Tensor *rows);
/* target = (1 - tau) target + tau q. */
void ilql_heads_follow(IlqlHeads *heads, double tau);
/* Lists the target copies; the other heads are parameters of the model. */
void ilql_heads_list_state(const IlqlHeads *heads, StateList *states);
Status ilql_heads_save(const IlqlHeads *heads, const char *path);
/* Loads heads for inference, with the file's width. ST_INPUT: no such file, or shapes of another model. */
Status ilql_heads_load(Model *model, const char *path, IlqlHeads *heads);

/* Decoding adds beta x (min of the target Q heads - V), beta times the advantage of the token, to its logit. Source: arXiv 2206.11871, section
 * 4.3. */
typedef struct IlqlBias {
    const IlqlHeads *heads;
    double beta;
} IlqlBias;
/* A LogitBias (infer.h); context: an IlqlBias. */
Tensor *ilql_logit_bias(void *context, Tape *tape, Tensor *hidden, const Tensor *rows);

#endif
