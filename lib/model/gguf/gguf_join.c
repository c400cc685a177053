/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that a GGUF file divides in another way than a checkpoint.
 *
 * gpt-oss: ffn_gate_exps and ffn_up_exps (experts, out, in) are the even and odd columns of gate_up_proj (experts, in, 2 out), and ffn_down_exps
 * is down_proj transposed; their biases likewise. Latent attention: attn_k_b (heads, rank, nope) and attn_v_b (heads, v, rank) are the rows of
 * kv_b_proj, the first of them transposed. */
#include "lib/model/gguf/gguf_model.h"
#include "lib/model/convert.h"
#include "lib/model/quantized/quantized.h"

#include <string.h>

enum { PIECE = 256 }; /* values of a row that are dequantised together */

/* Elements first .. first + n - 1 of a flattened tensor of the file. */
static void elements_read(const StoredTensor *tensor, int64_t first, int64_t n, float *values) {
    if (dtype_is_quantised(tensor->dtype))
        codes_read(tensor->dtype, tensor->data, first, n, false, values);
    else
        convert_elements(tensor->data + dtype_bytes(tensor->dtype, first), tensor->dtype, values, DT_F32, (size_t)n);
}

/* ---- gpt-oss: matrices of all experts ---- */

/* Up to two tensors (experts, out, in) as one weight (experts, in, n * out), whose column n o + k is row o of tensor k. */
typedef struct Turned {
    StoredTensor tensors[2];
    int64_t n, experts, out, in;
} Turned;

static void turned_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Turned *t = parts;
    const int64_t width = t->n * t->out;
    float piece[PIECE];
    for (int64_t row = first, n; row < first + rows; row += n) {
        const int64_t e = row / t->in, i = row % t->in;
        n = MIN(MIN(first + rows - row, t->in - i), (int64_t)PIECE);
        for (int64_t o = 0; o < width; o++) {
            elements_read(&t->tensors[o % t->n], (e * t->out + o / t->n) * t->in + i, n, piece);
            for (int64_t k = 0; k < n; k++) values[(row - first + k) * width + o] = piece[k];
        }
    }
}

typedef struct TurnedStack {
    Packing packing;
    const Turned *parts;
} TurnedStack;
/* An expert's weight, (n * out, in): rows as the file has them. */
typedef struct TurnedMatrix {
    Packing packing;
    const Turned *parts;
    int64_t expert;
} TurnedMatrix;

/* Whole rows together, parts of rows element by element. */
static void read_turned_stack(const Packing *packing, int64_t first, int64_t n, float *values) {
    const Turned *t = ((const TurnedStack *)packing)->parts;
    const int64_t width = t->n * t->out;
    for (int64_t done; n > 0; first += done, n -= done, values += done) {
        const int64_t row = first / width, o = first % width;
        done = o == 0 && n >= width ? n / width * width : MIN(n, width - o);
        if (o == 0 && n >= width) turned_rows(t, row, done / width, values);
        for (int64_t k = 0; k < done && !(o == 0 && n >= width); k++)
            elements_read(&t->tensors[(o + k) % t->n], (row / t->in * t->out + (o + k) / t->n) * t->in + row % t->in, 1, values + k);
    }
}

static void read_turned_matrix(const Packing *packing, int64_t first, int64_t n, float *values) {
    const TurnedMatrix *m = (const TurnedMatrix *)packing;
    const Turned *t = m->parts;
    for (int64_t done; n > 0; first += done, n -= done, values += done) {
        const int64_t row = first / t->in, i = first % t->in;
        done = MIN(n, t->in - i);
        elements_read(&t->tensors[row % t->n], (m->expert * t->out + row / t->n) * t->in + i, done, values);
    }
}

static Status pack_turned(const void *parts, const CodeRoom *room, Packing **packing) {
    const Turned *t = parts;
    TurnedStack *stack = arena_alloc(room->arena, sizeof *stack);
    TurnedMatrix *matrices = arena_alloc(room->arena, (size_t)t->experts * sizeof *matrices);
    const Packing **list = arena_alloc(room->arena, (size_t)t->experts * sizeof *list);
    size_t bytes = 0;
    if (!stack || !matrices || !list) return ST_RESOURCE;
    for (int64_t k = 0; k < t->n; k++) bytes += t->tensors[k].bytes;
    for (int64_t e = 0; e < t->experts; e++) {
        matrices[e] = (TurnedMatrix){{.name = "gguf", .bytes = bytes / (size_t)t->experts, .read = read_turned_matrix}, t, e};
        list[e] = &matrices[e].packing;
    }
    *stack = (TurnedStack){{.name = "gguf", .bytes = bytes, .read = read_turned_stack, .matrices = list}, t};
    *packing = &stack->packing;
    return ST_OK;
}

/* ---- latent attention ---- */

typedef struct Latent {
    StoredTensor k, v;
    int64_t nope, value, rank; /* rows of a head, and their length */
} Latent;

static void latent_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Latent *l = parts;
    float piece[PIECE];
    for (int64_t row = first, n; row < first + rows; row += n) {
        const int64_t head = row / (l->nope + l->value), j = row % (l->nope + l->value);
        float *to = values + (row - first) * l->rank;
        n = MIN(MIN(first + rows - row, (j < l->nope ? l->nope : l->nope + l->value) - j), (int64_t)PIECE);
        if (j >= l->nope) elements_read(&l->v, (head * l->value + j - l->nope) * l->rank, n * l->rank, to);
        for (int64_t r = 0; j < l->nope && r < l->rank; r++) {
            elements_read(&l->k, (head * l->rank + r) * l->nope + j, n, piece);
            for (int64_t k = 0; k < n; k++) to[k * l->rank + r] = piece[k];
        }
    }
}

/* ---- joining ---- */

static Status join_misfit(const StoredTensor *tensor, const char *what) {
    return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': %s", tensor->name, tensor->file, what);
}

/* The last weight that was added, if no part of it is quantised, becomes values in memory, of the dtype of its parts. */
static Status settle(Joining *joining, const StoredTensor *parts, size_t n) {
    StoredTensor *weight = &joining->joined[joining->n_joined - 1];
    DType dtype = parts[0].dtype;
    const char *text = parts[0].dtype_text;
    for (size_t i = 0; i < n; i++) {
        if (dtype_is_quantised(parts[i].dtype)) return ST_OK;
        if (parts[i].dtype == parts[0].dtype && dtype != DT_F64) continue;
        dtype = DT_F32;
        text = "F32";
    }
    void *data = joining_alloc(joining, dtype_bytes(dtype, weight->count));
    if (!data) return ST_RESOURCE;
    TRY(stored_read(weight, 0, weight->count, dtype, data));
    weight->dtype = dtype;
    weight->dtype_text = text;
    weight->data = data;
    weight->bytes = dtype_bytes(dtype, weight->count);
    weight->read = NULL;
    weight->pack = NULL;
    return ST_OK;
}

/* "model.layers.12.mlp.experts.down_proj" for "blk.12" and the part "mlp.experts.down_proj". */
static const char *checkpoint_name(const Joining *joining, const char *block, const char *part, const char *end) {
    const ModelFamily *family = joining->context;
    return arena_printf(joining->file->arena, "%s.%s.%s%s", family->names->layers, block + strlen("blk."), part, end);
}

/* Takes the tensors block.FIRST.kind and, if there is a second one, block.SECOND.kind. A bias has the two dimensions of a weight with one input. */
static Status join_turned(Joining *joining, const char *block, const char *first, const char *second, const char *part, bool bias) {
    const char *names[] = {first, second}, *kind = bias ? "bias" : "weight";
    const int dims = bias ? 2 : 3;
    if (!text_starts_with(block, "blk.")) return ST_OK;
    const char *name = checkpoint_name(joining, block, part, bias ? "_bias" : "");
    Turned *t = joining_alloc(joining, sizeof *t);
    if (!t || !name) return ST_RESOURCE;
    for (; t->n < 2 && names[t->n]; t->n++) {
        const char *place = arena_printf(joining->file->arena, "%s.%s", block, names[t->n]);
        if (!place) return ST_RESOURCE;
        const StoredTensor *tensor = joining_find(joining, place, kind);
        if (!tensor) return status_fail(ST_INPUT, "tensor '%s.%s' is missing in '%s'", place, kind, joining->dir);
        t->tensors[t->n] = *tensor;
        if (tensor->n_dims != dims || tensor->count == 0) return join_misfit(tensor, "it does not have the dimensions of all experts");
        for (int d = 0; d < dims; d++)
            if (tensor->shape[d] != t->tensors[0].shape[d]) return join_misfit(tensor, "its shape is not that of the other part of the layer");
    }
    t->experts = t->tensors[0].shape[0];
    t->out = t->tensors[0].shape[1];
    t->in = bias ? 1 : t->tensors[0].shape[2];
    const int64_t turned[] = {t->experts, t->in, t->n * t->out}, biases[] = {t->experts, t->n * t->out};
    TRY(joining_add(joining, name, dims, bias ? biases : turned, t->tensors[0].dtype_text, &t->tensors[0], second ? t->tensors[1].bytes : 0,
                    turned_rows, bias ? NULL : pack_turned, t));
    joining->joined[joining->n_joined - 1].packs_in_place = !bias;
    return settle(joining, t->tensors, (size_t)t->n);
}

static const ExpertsForm *experts_of(const ModelFamily *family) {
    for (int i = 0; i < MOST_SUBLAYERS && family->layer->sublayers[i].kind; i++)
        if (family->layer->sublayers[i].kind == &block_experts) return family->layer->sublayers[i].form;
    return NULL;
}

static const LatentForm *latent_of(const ModelFamily *family) {
    for (int i = 0; i < MOST_SUBLAYERS && family->layer->sublayers[i].kind; i++)
        if (family->layer->sublayers[i].kind == &block_latent_attention) return family->layer->sublayers[i].form;
    return NULL;
}

static Status join_gate_up(Joining *joining, const char *block) {
    return join_turned(joining, block, "ffn_gate_exps", "ffn_up_exps", experts_of(joining->context)->gate_up_together, false);
}
static Status join_gate_up_bias(Joining *joining, const char *block) {
    return join_turned(joining, block, "ffn_gate_exps", "ffn_up_exps", experts_of(joining->context)->gate_up_together, true);
}
static Status join_down(Joining *joining, const char *block) {
    return join_turned(joining, block, "ffn_down_exps", NULL, experts_of(joining->context)->down_together, false);
}
static Status join_down_bias(Joining *joining, const char *block) {
    return join_turned(joining, block, "ffn_down_exps", NULL, experts_of(joining->context)->down_together, true);
}

/* A file may have the undivided matrix as well. */
static Status join_latent(Joining *joining, const char *block) {
    if (!text_starts_with(block, "blk.")) return ST_OK;
    const char *name = checkpoint_name(joining, block, latent_of(joining->context)->kv_b, ".weight");
    Latent *l = joining_alloc(joining, sizeof *l);
    if (!l || !name) return ST_RESOURCE;
    const StoredTensor *k = joining_find(joining, block, "attn_k_b.weight"), *v = joining_find(joining, block, "attn_v_b.weight");
    if (weight_file_find(joining->file, name)) return ST_OK;
    if (!v) return status_fail(ST_INPUT, "tensor '%s.attn_v_b.weight' is missing in '%s'", block, joining->dir);
    if (k->n_dims != 3 || k->count == 0) return join_misfit(k, "it does not have the dimensions of all heads");
    if (v->n_dims != 3 || v->count == 0 || v->shape[0] != k->shape[0] || v->shape[2] != k->shape[1])
        return join_misfit(v, "its shape does not fit that of the keys");
    *l = (Latent){*k, *v, k->shape[2], v->shape[1], k->shape[1]};
    const int64_t shape[] = {k->shape[0] * (l->nope + l->value), l->rank};
    TRY(joining_add(joining, name, 2, shape, k->dtype_text, k, v->bytes, latent_rows, NULL, l));
    return settle(joining, (const StoredTensor[]){*k, *v}, 2);
}

static Status join_all(Joining *joining) {
    const ExpertsForm *experts = experts_of(joining->context);
    if (experts && experts->in_out) {
        TRY(joining_each(joining, ".ffn_gate_exps.weight", join_gate_up));
        TRY(joining_each(joining, ".ffn_gate_exps.bias", join_gate_up_bias));
        TRY(joining_each(joining, ".ffn_down_exps.weight", join_down));
        TRY(joining_each(joining, ".ffn_down_exps.bias", join_down_bias));
    }
    return latent_of(joining->context) ? joining_each(joining, ".attn_k_b.weight", join_latent) : ST_OK;
}

Status gguf_join(WeightFile *file, const ModelFamily *family, const char *path) {
    const ExpertsForm *experts = experts_of(family);
    if (!latent_of(family) && !(experts && experts->in_out)) return ST_OK;
    return joining_run(file, path, NULL, family, join_all);
}
