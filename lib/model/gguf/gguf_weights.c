/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a GGUF file as those of a Hugging Face checkpoint. */
#include "lib/model/convert.h"
#include "lib/model/family.h"
#include "lib/model/gguf/gguf_model.h"
#include "lib/tensor/quant/quant.h"

#include <stdlib.h>
#include <string.h>

/* ---- types ---- */

static bool plain_type(uint32_t type, DType *dtype, const char **text) {
    static const struct {
        uint32_t type;
        DType dtype;
        const char *text;
    } plain[] = {{0, DT_F32, "F32"}, {1, DT_F16, "F16"}, {28, DT_F64, "F64"}, {30, DT_BF16, "BF16"}};
    for (size_t i = 0; i < COUNT_OF(plain); i++) {
        if (plain[i].type != type) continue;
        *dtype = plain[i].dtype;
        *text = plain[i].text;
        return true;
    }
    const QuantFormat *format = quant_format_of_ggml(type);
    if (!format) return false;
    *dtype = format->dtype;
    *text = format->name;
    return true;
}

static Status unknown_type(const GgufTensor *tensor, const char *path) {
    static const struct {
        uint32_t type;
        const char *name, *help;
    } known[] = {
#define TYPE(type, name, help) {type, name, help},
#include "lib/model/gguf/gguf_types.def"
#undef TYPE
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if (known[i].type != tensor->type) continue;
        status_fail(ST_INPUT, "tensor '%s' in '%s' has type %u (%s), which is not supported", tensor->name, path, tensor->type, known[i].name);
        return status_hint(ST_INPUT, "%s", known[i].help);
    }
    return status_fail(ST_INPUT, "tensor '%s' in '%s' has an unknown type %u", tensor->name, path, tensor->type);
}

/* ---- places ---- */

typedef struct GgufReading {
    WeightFile *file;
    const Gguf *gguf;
    const GgufArch *arch;
    const ModelFamily *family;
    const Mapping *mappings; /* of the gguf's files */
    const char *const *paths;
    int64_t heads, kv_heads;
    int64_t n_layers; /* layers that are read; 0: all */
} GgufReading;

/* dtype, bytes and place of the tensor's data. */
static Status tensor_place(const GgufTensor *tensor, const char *path, const Mapping *mapping, StoredTensor *stored) {
    stored->known = plain_type(tensor->type, &stored->dtype, &stored->dtype_text);
    if (!stored->known) return unknown_type(tensor, path);
    stored->n_dims = tensor->n_dims;
    for (int i = 0; i < tensor->n_dims; i++) stored->shape[i] = tensor->shape[i];
    stored->count = tensor->count;
    int64_t row = tensor->n_dims ? tensor->shape[tensor->n_dims - 1] : 1;
    if (row % dtype_block(stored->dtype) != 0 || !dtype_bytes_fit(stored->dtype, tensor->n_dims, tensor->shape, &stored->bytes))
        return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': rows of %lld elements are no whole blocks of %s", tensor->name, path,
                           (long long)row, stored->dtype_text);
    if (stored->bytes > mapping->size - (size_t)tensor->offset) {
        status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': %zu bytes of %s from byte %llu on, the file has %zu", tensor->name, path,
                    stored->bytes, stored->dtype_text, (unsigned long long)tensor->offset, mapping->size);
        return status_hint(ST_INPUT, "the file is cut off or was changed: copy or download it again, and compare its size with the original's");
    }
    stored->data = mapping->data + tensor->offset;
    return ST_OK;
}

static int by_address(const void *left, const void *right) {
    const StoredTensor *a = *(const StoredTensor *const *)left, *b = *(const StoredTensor *const *)right;
    return (a->data > b->data) - (a->data < b->data);
}

/* Where the tensor's bytes begin in its file. */
static size_t file_offset(const GgufReading *reading, const StoredTensor *tensor) {
    size_t file = 0;
    while (reading->paths[file] != tensor->file) file++;
    return (size_t)(tensor->data - reading->mappings[file].data);
}

static Status check_overlaps(const GgufReading *reading, const StoredTensor *tensors, size_t n) {
    const StoredTensor **sorted = arena_alloc(reading->gguf->arena, (n + 1) * sizeof *sorted);
    if (!sorted) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) sorted[i] = &tensors[i];
    qsort(sorted, n, sizeof *sorted, by_address);
    for (size_t i = 1; i < n; i++)
        if (sorted[i]->bytes && sorted[i - 1]->data + sorted[i - 1]->bytes > sorted[i]->data)
            return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': its bytes, from byte %zu of the file on, overlap those of '%s'",
                               sorted[i]->name, sorted[i]->file, file_offset(reading, sorted[i]), sorted[i - 1]->name);
    return ST_OK;
}

/* ---- names ---- */

typedef enum GgufPart {
    PART_EMBED,
    PART_POSITIONS,
    PART_FINAL_NORM,
    PART_HEAD,
    PART_INPUT_NORM,     /* before attention */
    PART_ATTENTION_NORM, /* of the output of attention */
    PART_POST_NORM,      /* before the feed-forward */
    PART_MLP_NORM,       /* of the output of the feed-forward */
    PART_Q_NORM,
    PART_K_NORM,
    PART_Q_A_NORM, /* these two: of latent attention */
    PART_KV_A_NORM,
    PART_Q_A, /* these four too */
    PART_Q_B,
    PART_KV_A,
    PART_KV_B,
    PART_SINKS, /* this one and the next: their Hugging Face names have no ".weight" or ".bias" */
    PART_CHOICE_BIAS,
    PART_Q,
    PART_K,
    PART_V,
    PART_QKV,
    PART_O,
    PART_GATE,
    PART_UP,
    PART_GATE_UP, /* both in one, gate first */
    PART_DOWN,
    PART_ROUTER,
    PART_SHARED_GATE,
    PART_SHARED_UP,
    PART_SHARED_DOWN,
    PART_EXPERTS_GATE, /* these three: of all experts, in one tensor */
    PART_EXPERTS_UP,
    PART_EXPERTS_DOWN,
} GgufPart;

static const char *attention_part(const SublayerForm *sublayer, GgufPart part) {
    const AttentionForm *form = sublayer->form;
    switch (part) {
    case PART_INPUT_NORM: return sublayer->input_norm;
    case PART_ATTENTION_NORM: return sublayer->output_norm;
    case PART_Q_NORM: return form->q_norm;
    case PART_K_NORM: return form->k_norm;
    case PART_Q: return form->q;
    case PART_K: return form->k;
    case PART_V: return form->v;
    case PART_QKV: return form->qkv;
    case PART_O: return form->o;
    case PART_SINKS: return form->sinks;
    default: return NULL;
    }
}

static const char *latent_part(const SublayerForm *sublayer, GgufPart part) {
    const LatentForm *form = sublayer->form;
    switch (part) {
    case PART_INPUT_NORM: return sublayer->input_norm;
    case PART_ATTENTION_NORM: return sublayer->output_norm;
    case PART_Q: return form->q;
    case PART_Q_A: return form->q_a;
    case PART_Q_A_NORM: return form->q_norm;
    case PART_Q_B: return form->q_b;
    case PART_KV_A: return form->kv_a;
    case PART_KV_A_NORM: return form->kv_norm;
    case PART_KV_B: return form->kv_b;
    case PART_O: return form->o;
    default: return NULL;
    }
}

static const char *feed_forward_part(const SublayerForm *sublayer, GgufPart part) {
    bool gated = sublayer->kind == &block_gated_mlp;
    const GatedMlpForm *form = gated ? sublayer->form : NULL;
    const MlpForm *plain = gated ? NULL : sublayer->form;
    switch (part) {
    case PART_POST_NORM: return sublayer->input_norm;
    case PART_MLP_NORM: return sublayer->output_norm;
    case PART_GATE: return gated ? form->gate : NULL;
    case PART_UP: return gated ? form->up : plain->up;
    case PART_GATE_UP: return gated ? form->gate_up : NULL;
    case PART_DOWN: return gated ? form->down : plain->down;
    default: return NULL;
    }
}

/* Names of parts of single experts have '*' for the expert's number. */
static const char *experts_part(const SublayerForm *sublayer, GgufPart part) {
    const ExpertsForm *form = sublayer->form;
    switch (part) {
    case PART_POST_NORM: return sublayer->input_norm;
    case PART_MLP_NORM: return sublayer->output_norm;
    case PART_ROUTER: return form->router;
    case PART_CHOICE_BIAS: return form->choice_bias;
    case PART_SHARED_GATE: return form->shared_gate;
    case PART_SHARED_UP: return form->shared_up;
    case PART_SHARED_DOWN: return form->shared_down;
    case PART_EXPERTS_GATE: return form->gate;
    case PART_EXPERTS_UP: return form->up;
    case PART_EXPERTS_DOWN: return form->down;
    default: return NULL;
    }
}

static const char *part_of_layer(const LayerForm *layer, GgufPart part) {
    for (int i = 0; i < MOST_SUBLAYERS && layer->sublayers[i].kind; i++) {
        const SublayerForm *sublayer = &layer->sublayers[i];
        const char *name = NULL;
        if (sublayer->kind == &block_attention) name = attention_part(sublayer, part);
        if (sublayer->kind == &block_latent_attention) name = latent_part(sublayer, part);
        if (sublayer->kind == &block_gated_mlp || sublayer->kind == &block_mlp) name = feed_forward_part(sublayer, part);
        if (sublayer->kind == &block_experts) name = experts_part(sublayer, part);
        if (name) return name;
    }
    return NULL;
}

/* The Hugging Face name of a part, within its layer if it is in one; NULL: the family has no such part. */
static const char *part_of_family(const ModelFamily *family, GgufPart part) {
    if (part == PART_EMBED) return family->names->embed;
    if (part == PART_POSITIONS) return family->names->positions;
    if (part == PART_FINAL_NORM) return family->names->final_norm;
    if (part == PART_HEAD) return family->names->head;
    static const LayerForm dense = {{{.kind = &block_gated_mlp, .form = &llama_mlp}}}; /* the feed-forward of layers before those with experts */
    const char *name = part_of_layer(family->layer, part);
    return name || !part_of_layer(family->layer, PART_ROUTER) ? name : part_of_layer(&dense, part);
}

static const struct PartName {
    const char *name;
    GgufPart part;
    bool in_layer;
} part_names[] = {
#define NAME(name, part, in_layer) {name, part, in_layer},
#include "lib/model/gguf/gguf_names.def"
#undef NAME
};

/* "blk.12.attn_q" -> "attn_q" and 12; the layer is -1 outside of layers. False: neither. */
static bool split_layer(const char *name, size_t len, const char **rest, size_t *rest_len, long *layer) {
    *rest = name;
    *rest_len = len;
    *layer = -1;
    if (!text_starts_with(name, "blk.")) return true;
    size_t digits = strspn(name + 4, "0123456789");
    if (digits == 0 || digits > 6 || name[4 + digits] != '.' || (name[4] == '0' && digits > 1)) return false;
    *layer = strtol(name + 4, NULL, 10);
    *rest = name + 5 + digits;
    *rest_len = len - 5 - digits;
    return true;
}

/* The part that a tensor is, with its Hugging Face name; the name stays the file's own if it is none. */
static Status rename_tensor(const GgufReading *reading, const char *own, const char **name, const struct PartName **found) {
    static const char *const kinds[] = {".weight", ".bias"};
    const char *layers = reading->family->names->layers, *rest;
    size_t len = strlen(own), rest_len;
    long layer;
    *name = own;
    *found = NULL;
    for (int k = 0; k < 2; k++) {
        if (!text_ends_with(own, kinds[k]) || !split_layer(own, len - strlen(kinds[k]), &rest, &rest_len, &layer)) continue;
        for (size_t i = 0; i < COUNT_OF(part_names) && !*found; i++) {
            const struct PartName *part = &part_names[i];
            bool same = strlen(part->name) == rest_len && strncmp(part->name, rest, rest_len) == 0;
            const char *of_family = same && part->in_layer == (layer >= 0) ? part_of_family(reading->family, part->part) : NULL;
            if (!of_family) continue;
            const char *end = part->part == PART_SINKS || part->part == PART_CHOICE_BIAS ? "" : kinds[k];
            *found = part;
            *name = layer < 0 ? arena_printf(reading->file->arena, "%s%s", of_family, end)
                              : arena_printf(reading->file->arena, "%s.%ld.%s%s", layers, layer, of_family, end);
        }
    }
    if (!*found) *name = arena_strdup(reading->file->arena, own);
    return *name ? ST_OK : ST_RESOURCE;
}

/* ---- order and values ---- */

/* Rows of q and k: pairs of neighbours, as the file has them, become pairs (i, i + half). */
static Status unpermute(const GgufReading *reading, int64_t heads, StoredTensor *tensor) {
    int64_t rows = tensor->shape[0], dim = heads > 0 ? rows / heads : 0;
    if (heads <= 0 || rows % heads != 0 || dim % 2 != 0)
        return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': its %lld rows are no pairs of %lld heads", tensor->name, tensor->file,
                           (long long)rows, (long long)heads);
    size_t row = tensor->bytes / (size_t)MAX(rows, 1);
    uint8_t *data = arena_alloc(reading->file->arena, MAX(tensor->bytes, (size_t)1));
    if (!data) return status_prefix(ST_RESOURCE, "tensor '%s'", tensor->name);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < dim; i++) {
            int64_t to = h * dim + i % 2 * (dim / 2) + i / 2;
            memcpy(data + (size_t)to * row, tensor->data + (size_t)(h * dim + i) * row, row);
        }
    tensor->data = data;
    return ST_OK;
}

static Status as_floats(Arena *arena, const StoredTensor *tensor, float **values) {
    *values = arena_alloc(arena, MAX((size_t)tensor->count, (size_t)1) * sizeof **values);
    if (!*values) return status_prefix(ST_RESOURCE, "tensor '%s'", tensor->name);
    convert_elements(tensor->data, tensor->dtype, *values, DT_F32, (size_t)tensor->count);
    return ST_OK;
}

static void becomes_floats(StoredTensor *tensor, const float *values) {
    tensor->data = (const uint8_t *)values;
    tensor->dtype = DT_F32;
    tensor->dtype_text = "F32";
    tensor->bytes = (size_t)tensor->count * sizeof *values;
}

/* The file stores the sums of weights of norms and 1. */
static Status subtract(const GgufReading *reading, float number, StoredTensor *tensor) {
    float *values;
    TRY(as_floats(reading->file->arena, tensor, &values));
    for (int64_t i = 0; i < tensor->count; i++) values[i] -= number;
    becomes_floats(tensor, values);
    return ST_OK;
}

/* From (out, in) to (in, out). */
static Status transpose(const GgufReading *reading, StoredTensor *tensor) {
    float *from, *to = arena_alloc(reading->file->arena, MAX((size_t)tensor->count, (size_t)1) * sizeof *to);
    int64_t out = tensor->shape[0], in = tensor->shape[1];
    if (!to) return status_prefix(ST_RESOURCE, "tensor '%s'", tensor->name);
    TRY(as_floats(reading->gguf->arena, tensor, &from));
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) to[i * out + o] = from[o * in + i];
    tensor->shape[0] = in;
    tensor->shape[1] = out;
    becomes_floats(tensor, to);
    return ST_OK;
}

static bool is_norm(GgufPart part) {
    return part == PART_FINAL_NORM || part == PART_INPUT_NORM || part == PART_ATTENTION_NORM || part == PART_POST_NORM || part == PART_MLP_NORM ||
           part == PART_Q_NORM || part == PART_K_NORM || part == PART_Q_A_NORM || part == PART_KV_A_NORM;
}

static Status to_checkpoint(const GgufReading *reading, const struct PartName *name, StoredTensor *tensor) {
    bool linear = name->in_layer && !is_norm(name->part), matrix = tensor->n_dims == 2;
    if (reading->arch->permuted && tensor->n_dims > 0 && (name->part == PART_Q || name->part == PART_K))
        return unpermute(reading, name->part == PART_Q ? reading->heads : reading->kv_heads, tensor);
    if (reading->arch->norms != 0 && is_norm(name->part)) return subtract(reading, reading->arch->norms, tensor);
    if (strcmp(reading->arch->name, "gpt2") == 0 && linear && matrix) return transpose(reading, tensor);
    return ST_OK;
}

/* ---- all of them ---- */

static const ModelFamily *family_of(const char *model_type) {
    static const ModelFamily *const families[] = {
#define FAMILY(name) &family_##name,
#include "lib/model/models.def"
#undef FAMILY
    };
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (strcmp(families[i]->model_type, model_type) == 0) return families[i];
    return NULL;
}

/* A whole number, or a list of equal ones, of which the first counts here. */
static Status read_heads(const Gguf *gguf, const GgufArch *arch, const char *key, int64_t *number) {
    const char *full = arena_printf(gguf->arena, "%s.%s", arch->name, key);
    if (!full) return ST_RESOURCE;
    const GgufValue *value = gguf_find(gguf, full);
    if (!value || !value->list) return gguf_int(gguf, full, number);
    double first = gguf_number_at(value, 0);
    *number = first >= 1 && first <= INT32_MAX ? (int64_t)first : 0;
    return ST_OK;
}

/* The tensors of a checkpoint so far. */
typedef struct TensorList {
    StoredTensor *items;
    size_t n, cap;
} TensorList;

static Status list_add(const GgufReading *reading, TensorList *list, const StoredTensor *stored) {
    TRY(arena_array_grow(reading->gguf->arena, &list->items, &list->cap, list->n + 1, sizeof *list->items));
    list->items[list->n++] = *stored;
    return ST_OK;
}

/* A tensor for each expert: a part of the stack's bytes. */
static Status add_experts(const GgufReading *reading, const StoredTensor *stack, TensorList *list) {
    enum { MOST_EXPERTS = 65536 };
    const char *star = strchr(stack->name, '*');
    if (stack->n_dims != 3 || stack->count == 0 || stack->shape[0] > MOST_EXPERTS)
        return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': it is no stack of at most %d matrices", stack->name, stack->file,
                           MOST_EXPERTS);
    StoredTensor one = *stack;
    one.n_dims = 2;
    one.shape[0] = stack->shape[1];
    one.shape[1] = stack->shape[2];
    one.count = stack->count / stack->shape[0];
    one.bytes = stack->bytes / (size_t)stack->shape[0];
    for (int64_t e = 0; e < stack->shape[0]; e++, one.data += one.bytes) {
        one.name = arena_printf(reading->file->arena, "%.*s%lld%s", (int)(star - stack->name), stack->name, (long long)e, star + 1);
        if (!one.name) return ST_RESOURCE;
        TRY(list_add(reading, list, &one));
    }
    return ST_OK;
}

static Status add_tensor(const GgufReading *reading, const GgufTensor *tensor, StoredTensor stored, TensorList *list) {
    const struct PartName *part;
    TRY(rename_tensor(reading, tensor->name, &stored.name, &part));
    if (part && part->part >= PART_EXPERTS_GATE) return add_experts(reading, &stored, list);
    if (part) TRY(to_checkpoint(reading, part, &stored));
    return list_add(reading, list, &stored);
}

/* Tensors that gguf_config_json puts into config.json, and those of layers that predict further tokens. */
static bool is_left_out(const GgufReading *reading, const char *name) {
    const char *rest;
    size_t rest_len;
    long layer;
    if (reading->n_layers > 0 && split_layer(name, strlen(name), &rest, &rest_len, &layer) && layer >= reading->n_layers) return true;
    return strcmp(name, "rope_freqs.weight") == 0 || strcmp(name, "rope_factors_long.weight") == 0 || strcmp(name, "rope_factors_short.weight") == 0;
}

static Status add_all(WeightFile *file, Gguf *gguf, const Mapping *mappings, const char *const *paths) {
    GgufReading reading = {.file = file, .gguf = gguf, .mappings = mappings, .paths = paths};
    TRY(gguf_arch_find(gguf, &reading.arch));
    reading.family = family_of(reading.arch->model_type);
    ASSERT(reading.family, "no family '%s'", reading.arch->model_type);
    TRY(read_heads(gguf, reading.arch, "attention.head_count", &reading.heads));
    reading.kv_heads = reading.heads;
    TRY(read_heads(gguf, reading.arch, "attention.head_count_kv", &reading.kv_heads));
    int64_t extra;
    size_t n = 0;
    TRY(gguf_prediction_layers(gguf, reading.arch, &reading.n_layers, &extra));
    if (extra == 0) reading.n_layers = 0;
    for (size_t i = 0; i < gguf->n_tensors; i++) n += !is_left_out(&reading, gguf->tensors[i].name);
    StoredTensor *places = arena_zero(gguf->arena, (n + 1) * sizeof *places);
    TensorList list = {0};
    if (!places) return ST_RESOURCE;
    n = 0;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        const GgufTensor *tensor = &gguf->tensors[i];
        if (is_left_out(&reading, tensor->name)) continue;
        places[n] = (StoredTensor){.name = tensor->name, .file = paths[tensor->file]};
        TRY(tensor_place(tensor, paths[tensor->file], &mappings[tensor->file], &places[n++]));
    }
    TRY(check_overlaps(&reading, places, n));
    n = 0;
    for (size_t i = 0; i < gguf->n_tensors; i++)
        if (!is_left_out(&reading, gguf->tensors[i].name)) TRY(add_tensor(&reading, &gguf->tensors[i], places[n++], &list));
    StoredTensor *stored = weight_file_add(file, list.n);
    if (!stored) return ST_RESOURCE;
    if (list.n) memcpy(stored, list.items, list.n * sizeof *stored);
    return gguf_join(file, reading.family, gguf->files[0].path);
}

static Status map_all(WeightFile *file, Gguf *gguf) {
    Mapping *mappings = arena_alloc(gguf->arena, gguf->n_files * sizeof *mappings);
    const char **paths = arena_alloc(file->arena, gguf->n_files * sizeof *paths);
    if (!mappings || !paths) return ST_RESOURCE;
    for (size_t i = 0; i < gguf->n_files; i++) {
        paths[i] = arena_strdup(file->arena, gguf->files[i].path);
        if (!paths[i]) return ST_RESOURCE;
        TRY(weight_file_map(file, paths[i], &mappings[i]));
        if (mappings[i].size != gguf->files[i].mapping.size) return status_fail(ST_INPUT, "'%s' was changed while it was read", paths[i]);
    }
    return add_all(file, gguf, mappings, paths);
}

Status gguf_weights_open(WeightFile *file, const char *path) {
    Gguf *gguf;
    TRY(gguf_open(path, &gguf));
    Status status = map_all(file, gguf);
    gguf_close(gguf);
    return status;
}

Status gguf_weights_parse(WeightFile *file, const void *bytes, size_t size, const char *path) {
    Gguf *gguf;
    const Mapping mapping = {bytes, size};
    const char **paths = arena_alloc(file->arena, sizeof *paths);
    if (!paths || !(paths[0] = arena_strdup(file->arena, path))) return ST_RESOURCE;
    TRY(gguf_parse(bytes, size, path, &gguf));
    Status status = add_all(file, gguf, &mapping, paths);
    gguf_close(gguf);
    return status;
}

/* ---- single tensors ---- */

const GgufTensor *gguf_tensor_find(const Gguf *gguf, const char *name) {
    for (size_t i = 0; i < gguf->n_tensors; i++)
        if (strcmp(gguf->tensors[i].name, name) == 0) return &gguf->tensors[i];
    return NULL;
}

Status gguf_tensor_floats(const Gguf *gguf, const GgufTensor *tensor, Arena *arena, float **values) {
    const GgufFile *file = &gguf->files[tensor->file];
    StoredTensor stored = {.name = tensor->name};
    TRY(tensor_place(tensor, file->path, &file->mapping, &stored));
    return as_floats(arena, &stored, values);
}
