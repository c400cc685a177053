/* SPDX-License-Identifier: Apache-2.0 */
/* Q and V heads on a language model's hidden states, for implicit Q-learning on tokens: each is two linear layers with a ReLU between, f32 whatever
 * the activations are. There are two Q heads, each with a target copy that follows slowly; the smaller of the two counts.
 *
 *     TRY(ilql_heads_add(model, width, seed, true, &heads));
 *     Tensor *hidden = model_forward(model, tape, &batch);
 *     Tensor *q = ilql_head_forward(tape, &heads.q[0], hidden, rows);      // (P, V): Q(s, .) of the state behind each of these rows
 *
 * On disk (ilql_heads.safetensors, F32): q1.0.weight (W, C), q1.2.weight (V, W), the same of q2, target_q1, target_q2, and v.0.weight (W, C),
 * v.2.weight (1, W): Q(s, .) = W2 relu(W0 h).
 */
#ifndef TUNE_ILQL_HEADS_H
#define TUNE_ILQL_HEADS_H

#include "lib/infer/infer.h"
#include "rl/loop/loop.h"

typedef struct IlqlHead {
    Tensor *up, *down;
} IlqlHead; /* (W, C), (out, W) */
typedef struct IlqlHeads {
    IlqlHead q[2], target[2], v;
} IlqlHeads;

/* Heads of inner width W (0: twice the hidden size) in the model's arena. trained: Q and V are parameters of the model (PARAM_CHECKPOINT_ONLY), which
 * begin at random below and at zero above, so that all values are 0 at first. ST_RESOURCE. */
Status ilql_heads_add(Model *model, int64_t width, uint64_t seed, bool trained, IlqlHeads *heads);
/* rows: i32 (P) -> (P, out). NULL after a failure, which is on the tape. */
Tensor *ilql_head_forward(Tape *tape, const IlqlHead *head, Tensor *hidden, const Tensor *rows);
/* target = (1 - tau) target + tau q. */
void ilql_heads_follow(IlqlHeads *heads, double tau);
/* The target copies into checkpoints; the others go with the model's parameters. */
void ilql_heads_list_state(IlqlHeads *heads, StateList *states);
Status ilql_heads_save(const IlqlHeads *heads, const char *path);
/* Heads for use, with the width that the file has. ST_INPUT: no such file, another model's shapes. */
Status ilql_heads_load(Model *model, const char *path, IlqlHeads *heads);

/* Decoding: what is added to a token's logit is beta x (min of the target Q heads - V), the advantage of the token. Source: arXiv 2206.11871,
 * section 4.3. */
typedef struct IlqlBias {
    const IlqlHeads *heads;
    double beta;
} IlqlBias;
/* An LogitBias (infer.h); context: an IlqlBias. */
Tensor *ilql_logit_bias(void *context, Tape *tape, Tensor *hidden, const Tensor *rows);

#endif
