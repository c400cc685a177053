/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary frequencies and their scalings, after transformers' modeling_rope_utils. Everything in double. */
#include "lib/model/rope.h"

#include <math.h>

static const double TWO_PI = 6.28318530717958647692;

/* Long wavelengths are stretched by `factor`, short ones stay, and those in between are interpolated. */
static double llama3_frequency(const RopeConfig *rope, double frequency) {
    double original = (double)rope->original_max_position_embeddings, wavelength = TWO_PI / frequency;
    if (wavelength < original / rope->high_freq_factor) return frequency;
    if (wavelength > original / rope->low_freq_factor) return frequency / rope->factor;
    double smooth = (original / wavelength - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* The pair that rotates `rotations` times over the original context. */
static double yarn_dim(const RopeConfig *rope, double rotations, int64_t head_dim) {
    return (double)head_dim * log((double)rope->original_max_position_embeddings / (rotations * TWO_PI)) / (2 * log(rope->rope_theta));
}

static double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

static double yarn_attention_factor(const RopeConfig *rope) {
    if (rope->attention_factor > 0) return rope->attention_factor;
    if (rope->mscale != 0 && rope->mscale_all_dim != 0)
        return yarn_mscale(rope->factor, rope->mscale) / yarn_mscale(rope->factor, rope->mscale_all_dim);
    return yarn_mscale(rope->factor, 1);
}

static void yarn_frequencies(const RopeConfig *rope, int64_t head_dim, double *inv_freq) {
    double low = yarn_dim(rope, rope->beta_fast, head_dim), high = yarn_dim(rope, rope->beta_slow, head_dim);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)head_dim - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        inv_freq[i] = inv_freq[i] / rope->factor * ramp + inv_freq[i] * (1 - ramp);
    }
}

static double longrope_attention_factor(const RopeConfig *rope) {
    if (rope->attention_factor > 0) return rope->attention_factor;
    return rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log((double)rope->original_max_position_embeddings));
}

int64_t rope_dims(const RopeConfig *rope, int64_t head_dim) { return rope->partial == 0 ? head_dim : (int64_t)((double)head_dim * rope->partial); }

bool rope_by_length(const RopeConfig *rope) { return rope->type == ROPE_DYNAMIC || rope->type == ROPE_LONGROPE; }

void rope_frequencies(const RopeConfig *rope, int64_t dims, int64_t max_position_embeddings, int64_t seq_len, double *inv_freq,
                      double *attention_factor) {
    double theta = rope->rope_theta, d = (double)dims, limit = (double)max_position_embeddings;
    const double *divisors = rope->factors[seq_len > rope->original_max_position_embeddings];
    if (rope->type == ROPE_DYNAMIC && seq_len > max_position_embeddings)
        theta *= pow(rope->factor * (double)seq_len / limit - (rope->factor - 1), d / (d - 2));
    for (int64_t i = 0; i < dims / 2; i++) {
        inv_freq[i] = pow(theta, -2 * (double)i / d);
        if (rope->type == ROPE_LINEAR) inv_freq[i] /= rope->factor;
        if (rope->type == ROPE_LLAMA3) inv_freq[i] = llama3_frequency(rope, inv_freq[i]);
        if (rope->type == ROPE_LONGROPE) inv_freq[i] /= divisors[i];
    }
    *attention_factor = rope->type == ROPE_YARN ? yarn_attention_factor(rope) : rope->type == ROPE_LONGROPE ? longrope_attention_factor(rope) : 1;
    if (rope->type == ROPE_YARN) yarn_frequencies(rope, dims, inv_freq);
}

int64_t tree_length(const Layout *layout, int32_t s) {
    int32_t root = s;
    while (layout->segments[root].parent >= 0) root = layout->segments[root].parent;
    int64_t longest = layout->lengths ? layout->lengths[root] : 0;
    for (int32_t i = root; i < layout->n_segments; i++) {
        int32_t up = i;
        while (up > root) up = layout->segments[up].parent;
        const Segment *segment = &layout->segments[i];
        if (up == root) longest = MAX(longest, layout_offset(layout->segments, i) + segment->end - segment->begin);
    }
    return longest;
}

/* Contexts longer than the original need sharper attention: arXiv 2501.19399, in Llama 4's form. */
static double query_scale(const RopeConfig *rope, int64_t position) {
    return 1 + rope->query_beta * log(1 + floor((double)position / (double)rope->original_max_position_embeddings));
}

static bool new_tables(const RopeConfig *rope, Arena *arena, const Device *device, DType dtype, const int64_t shape[2], RopeTables *tables) {
    tables->cosine = tables->query_cosine = tensor_new(arena, device, dtype, 2, shape);
    tables->sine = tables->query_sine = tensor_new(arena, device, dtype, 2, shape);
    if (rope->query_beta != 0) {
        tables->query_cosine = tensor_new(arena, device, dtype, 2, shape);
        tables->query_sine = tensor_new(arena, device, dtype, 2, shape);
    }
    return tables->cosine && tables->sine && tables->query_cosine && tables->query_sine;
}

/* Writes cos and sin of one token's angles; factors: of keys and of queries. */
static void write_angles(const RopeConfig *rope, int64_t row, int64_t half, int64_t position, const double *inv_freq, const double factors[2],
                         RopeTables *tables) {
    enum { PAIRS = 64 };
    Tensor *const to[2][2] = {{tables->cosine, tables->sine}, {tables->query_cosine, tables->query_sine}};
    for (int64_t at = 0, n; at < half; at += n) {
        double cosine[PAIRS], sine[PAIRS], values[PAIRS];
        n = MIN((int64_t)PAIRS, half - at);
        for (int64_t i = 0; i < n; i++) {
            cosine[i] = cos((double)position * inv_freq[at + i]);
            sine[i] = sin((double)position * inv_freq[at + i]);
        }
        for (int t = 0; t < (rope->query_beta != 0 ? 2 : 1); t++)
            for (int k = 0; k < 2; k++) {
                for (int64_t i = 0; i < n; i++) values[i] = factors[t] * (k == 0 ? cosine : sine)[i];
                tensor_write_part(to[t][k], row * half + at, n, values);
            }
    }
}

Status rope_tables(const ModelConfig *config, const RopeConfig *rope, const Layout *layout, Arena *arena, const Device *device, DType dtype,
                   RopeTables *tables) {
    const int64_t dims = rope_dims(rope, config->head_dim), half = dims / 2, limit = config->max_position_embeddings;
    double *inv_freq = arena_alloc(arena, (size_t)half * sizeof *inv_freq), factor;
    if (!new_tables(rope, arena, device, dtype, (int64_t[]){layout->n_tokens, half}, tables) || !inv_freq) return ST_RESOURCE;
    bool by_length = rope_by_length(rope);
    if (!by_length) rope_frequencies(rope, dims, limit, 0, inv_freq, &factor);
    for (int32_t s = 0; s < layout->n_segments; s++) {
        const Segment *segment = &layout->segments[s];
        if (by_length) rope_frequencies(rope, dims, limit, tree_length(layout, s), inv_freq, &factor);
        int64_t position = layout_offset(layout->segments, s);
        for (int64_t row = segment->begin; row < segment->end; row++, position++) {
            double scale = rope->query_beta != 0 ? factor * query_scale(rope, position) : factor;
            write_angles(rope, row, half, position, inv_freq, (const double[]){factor, scale}, tables);
        }
    }
    return ST_OK;
}
