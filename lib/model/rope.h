/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions: the angles of a batch, with every scaling of config.json. */
#ifndef TUNE_ROPE_H
#define TUNE_ROPE_H

#include "lib/model/config.h"

/* Angles for positions 0..: fills inv_freq (dims / 2) and the factor on cos and sin. dims: how many numbers of a head are rotated. seq_len: for
 * scaling by length. Source: transformers' modeling_rope_utils. */
int64_t rope_dims(const RopeConfig *rope, int64_t head_dim);
bool rope_by_length(const RopeConfig *rope);
void rope_frequencies(const RopeConfig *rope, int64_t dims, int64_t max_position_embeddings, int64_t seq_len, double *inv_freq,
                      double *attention_factor);

/* Tokens of the longest sequence that contains segment `s`: the length for scaling by length. */
int64_t tree_length(const Layout *layout, int32_t s);
/* cos and sin of every token's angles, times the scaling's factor: (N, dims / 2) each. Those of queries are the same tensors unless queries are
 * scaled by their position. */
typedef struct RopeTables {
    Tensor *cosine, *sine, *query_cosine, *query_sine;
} RopeTables;
Status rope_tables(const ModelConfig *config, const RopeConfig *rope, const Layout *layout, Arena *arena, const Device *device, DType dtype,
                   RopeTables *tables);

#endif
