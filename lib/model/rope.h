/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions: the angles of a batch, with every scaling of config.json. */
#ifndef TUNE_ROPE_H
#define TUNE_ROPE_H

#include "lib/model/config.h"

int64_t rope_dims(const RopeConfig *rope, int64_t head_dim); /* how many numbers of a head are rotated */
bool rope_by_length(const RopeConfig *rope);                 /* whether the frequencies depend on the length of the sequence */
/* Fills inv_freq (dims / 2), so that the angle of pair i at position p is p * inv_freq[i], and *attention_factor, the factor of cos and sin. dims: of
 * rope_dims. seq_len: tokens of the sequence, read if rope_by_length. Source: transformers' modeling_rope_utils. */
void rope_frequencies(const RopeConfig *rope, int64_t dims, int64_t max_position_embeddings, int64_t seq_len, double *inv_freq,
                      double *attention_factor);

/* Tokens of the longest sequence that contains segment `s`: seq_len of rope_frequencies. */
int64_t tree_length(const Layout *layout, int32_t s);
/* cos and sin of every token's angles, times the factor of rope_frequencies: (N, dims / 2) each. Those of queries are the same tensors unless queries
 * are scaled by their position (RopeConfig.query_beta). */
typedef struct RopeTables {
    Tensor *cosine, *sine, *query_cosine, *query_sine;
} RopeTables;
/* Makes the tables in `arena`. ST_RESOURCE. */
Status rope_tables(const ModelConfig *config, const RopeConfig *rope, const Layout *layout, Arena *arena, const Device *device, DType dtype,
                   RopeTables *tables);

#endif
