/* SPDX-License-Identifier: Apache-2.0 */
/* Quantises weights. A weight is replaced by the tensors that store it, in memory; the readers of quantised directories join them again, so that a
 * model that is quantised while it is loaded and one from a directory have the same values. */
#include "lib/model/quantized/quantise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "lib/base/work.h"
#include "lib/model/parts.h"
#include "lib/model/quantized/quantized.h"
#include "lib/model/safetensors.h"
#include "lib/tensor/quant/quant.h"

/* The tensors of a quantised model: those that store its weights, and the others as they were. */
typedef struct Quantising {
    Model *model;
    const Quantise *how;
    StoredTensor *tensors;
    size_t n, cap;
    json_t *settings; /* quantization_config */
} Quantising;

/* Bytes of a file that is copied or hashed whose pages are in memory at once. */
static const size_t MOST_RESIDENT = (size_t)4 << 20;

static bool is_form(const Quantise *how, const char *form) { return strcmp(how->form, form) == 0; }

/* ---- checks ---- */

static Status quantised_already(const Model *model, const Quantise *how) {
    for (size_t i = 0; i < model->files->n; i++) {
        const StoredTensor *stored = &model->files->tensors[i];
        if (!stored_is_quantised(stored)) continue;
        status_fail(ST_CONFIG, "'model.quantize: %s' of a base that is quantised already: tensor '%s' in '%s' is %s", how->form, stored->name,
                    stored->file, stored->dtype_text);
        return status_hint(ST_CONFIG, "the base is %s; leave model.quantize out", stored->dtype_text);
    }
    return ST_OK;
}

static Status check_names(const Model *model, const Quantise *how) {
    for (size_t k = 0; k < how->n_modules; k++) {
        bool found = false;
        for (size_t i = 0; i < model->n_linears && !found; i++) found = module_matches(model->linears[i]->path, &how->modules[k], 1);
        if (found) continue;
        const char *names[MAX_KINDS];
        size_t n = linear_kinds(model, names, COUNT_OF(names));
        Str list = {0};
        for (size_t i = 0; i < n; i++) str_printf(&list, "%s%s", i ? ", " : "", names[i]);
        status_fail(ST_CONFIG, "'%s' of model.quantize_modules matches no linear layer in '%s'", how->modules[k], model->dir);
        status_hint(ST_CONFIG, "there are %s; embeddings, head and norms stay as stored", str_text(&list));
        str_release(&list);
        return ST_CONFIG;
    }
    return ST_OK;
}

static Status check_how(const Model *model, const Quantise *how) {
    const bool four = is_form(how, "nf4") || is_form(how, "fp4");
    if (!four && !is_form(how, "int8") && !quant_format_named(how->form)) return status_fail(ST_CONFIG, "there is no quantised form '%s'", how->form);
    if (four && (how->block < 32 || how->block > 4096 || (how->block & (how->block - 1)) != 0)) {
        status_fail(ST_CONFIG, "'model.quantize_block' is %lld", (long long)how->block);
        return status_hint(ST_CONFIG, "bitsandbytes has blocks of 32, 64, 128, 256, 512, 1024, 2048 and 4096");
    }
    if (model->config.in_out_weights) {
        status_fail(ST_CONFIG, "'model.quantize' of '%s': weights of %s are stored (in, out), and only those stored (out, in) can be quantised",
                    model->dir, model->config.model_type);
        return status_hint(ST_CONFIG, "take a GGUF file of the model as model.path");
    }
    TRY(quantised_already(model, how));
    return check_names(model, how);
}

/* ---- one weight ---- */

/* Adds a tensor with memory for its bytes. NULL: out of memory. */
static StoredTensor *add_tensor(Quantising *work, const StoredTensor *weight, const char *name, const char *dtype, int n_dims, const int64_t *shape,
                                int64_t element) {
    Arena *arena = work->model->files->arena;
    if (arena_array_grow(arena, &work->tensors, &work->cap, work->n + 1, sizeof *work->tensors) != ST_OK) return NULL;
    StoredTensor *tensor = &work->tensors[work->n++];
    *tensor = (StoredTensor){.name = name, .dtype_text = dtype, .known = strcmp(dtype, "F32") == 0, .dtype = DT_F32, .n_dims = n_dims, .count = 1};
    for (int i = 0; i < n_dims; i++) {
        tensor->shape[i] = shape[i];
        tensor->count *= shape[i];
    }
    tensor->file = weight->file;
    tensor->bytes = (size_t)(tensor->count * element);
    tensor->data = arena_zero(arena, tensor->bytes);
    return name && tensor->data ? tensor : NULL;
}

static void *bytes_of(const StoredTensor *tensor) { return (void *)(uintptr_t)tensor->data; }

/* Elements at..at+n-1 as floats; false if one is not finite. */
static bool read_finite(const StoredTensor *weight, int64_t at, int64_t n, float *values) {
    bool finite = stored_read(weight, at, n, DT_F32, values) == ST_OK;
    for (int64_t i = 0; i < n && finite; i++) finite = isfinite(values[i]);
    return finite;
}

/* What a loop over pieces of a weight does with one. */
typedef struct Piece {
    const Quantising *work;
    const StoredTensor *weight;
    const QuantFormat *format;
    uint8_t *codes;
    float *scales;
} Piece;

static void four_piece(const Piece *piece, int64_t at, int64_t n, const float *values) {
    const Quantise *how = piece->work->how;
    four_bit_write(is_form(how, "nf4") ? FOUR_BIT_NF4 : FOUR_BIT_FP4, values, n, how->block, piece->codes + at / 2, piece->scales + at / how->block);
}

static void int8_piece(const Piece *piece, int64_t at, int64_t n, const float *values) {
    piece->scales[at / n] = int8_row_write(values, n, (int8_t *)piece->codes + at);
}

static void block_piece(const Piece *piece, int64_t at, int64_t n, const float *values) {
    piece->format->write(values, n, NULL, piece->codes + (size_t)(at / piece->format->block) * (size_t)piece->format->bytes);
}

/* Pieces of `step` elements; only the last may be shorter. */
static Status each_piece(const Piece *piece, int64_t step, void (*quantise)(const Piece *piece, int64_t at, int64_t n, const float *values)) {
    const StoredTensor *weight = piece->weight;
    bool full = false, odd = false;
#pragma omp parallel for schedule(dynamic) reduction(|| : full, odd)
    for (int64_t at = 0; at < weight->count; at += step) {
        const int64_t n = MIN(step, weight->count - at);
        float *values = malloc((size_t)n * sizeof *values);
        bool finite = values && read_finite(weight, at, n, values);
        if (finite) quantise(piece, at, n, values);
        full = full || !values;
        odd = odd || (values && !finite);
        free(values);
    }
    if (full) return status_fail(ST_RESOURCE, "no memory to quantise tensor '%s'", weight->name);
    return odd ? status_fail(ST_INPUT, "tensor '%s' in '%s' holds a NaN or an infinity", weight->name, weight->file) : ST_OK;
}

static const char *part_name(const Quantising *work, const StoredTensor *weight, const char *part) {
    return arena_printf(work->model->files->arena, "%s.%s", weight->name, part);
}

static const char *torch_dtype(const StoredTensor *weight) {
    return weight->dtype == DT_BF16 ? "bfloat16" : weight->dtype == DT_F16 ? "float16" : "float32";
}

static Status add_four_state(Quantising *work, const StoredTensor *weight, bool nested, float offset) {
    const Quantise *how = work->how;
    Str text = {0}, part = {0};
    str_printf(&text, "{\"quant_type\": \"%s\", \"blocksize\": %lld, \"dtype\": \"%s\", \"shape\": [%lld, %lld]", how->form, (long long)how->block,
               torch_dtype(weight), (long long)weight->shape[0], (long long)weight->shape[1]);
    if (nested)
        str_printf(&text, ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %.17g", FOUR_BIT_NESTED, (double)offset);
    str_append(&text, "}");
    str_printf(&part, "quant_state.bitsandbytes__%s", how->form);
    const StoredTensor *state = add_tensor(work, weight, part_name(work, weight, str_text(&part)), "U8", 1, (const int64_t[]){(int64_t)text.len}, 1);
    if (state) memcpy(bytes_of(state), str_text(&text), text.len);
    str_release(&part);
    str_release(&text);
    return state ? ST_OK : ST_RESOURCE;
}

static Status add_floats(Quantising *work, const StoredTensor *weight, const char *part, const float *values, int64_t n) {
    const StoredTensor *tensor = add_tensor(work, weight, part_name(work, weight, part), "F32", 1, &n, sizeof *values);
    if (!tensor) return ST_RESOURCE;
    memcpy(bytes_of(tensor), values, (size_t)n * sizeof *values);
    return ST_OK;
}

static Status add_nested(Quantising *work, const StoredTensor *weight, const float *absmax, int64_t n_blocks, float *offset) {
    float map[256];
    const int64_t n_nested = (n_blocks + FOUR_BIT_NESTED - 1) / FOUR_BIT_NESTED;
    const StoredTensor *codes = add_tensor(work, weight, part_name(work, weight, "absmax"), "U8", 1, &n_blocks, 1);
    uint8_t *code_bytes = codes ? bytes_of(codes) : NULL; /* the next tensor may move the list */
    const StoredTensor *scales =
        codes ? add_tensor(work, weight, part_name(work, weight, "nested_absmax"), "F32", 1, &n_nested, sizeof(float)) : NULL;
    if (!scales) return ST_RESOURCE;
    four_bit_nest(absmax, n_blocks, code_bytes, bytes_of(scales), offset);
    dynamic_map(map);
    return add_floats(work, weight, "nested_quant_map", map, COUNT_OF(map));
}

static Status add_four(Quantising *work, const StoredTensor *weight) {
    enum { STEP = 1 << 16 }; /* a multiple of every block */
    const Quantise *how = work->how;
    const int64_t n_blocks = (weight->count + how->block - 1) / how->block;
    const StoredTensor *codes = add_tensor(work, weight, weight->name, "U8", 2, (const int64_t[]){(weight->count + 1) / 2, 1}, 1);
    float *absmax = arena_alloc(work->model->files->arena, (size_t)n_blocks * sizeof *absmax), offset = 0;
    if (!codes || !absmax) return ST_RESOURCE;
    TRY(each_piece(&(Piece){.work = work, .weight = weight, .codes = bytes_of(codes), .scales = absmax}, STEP, four_piece));
    TRY(add_floats(work, weight, "quant_map", four_bit_map(is_form(how, "nf4") ? FOUR_BIT_NF4 : FOUR_BIT_FP4), 16));
    TRY(how->nested ? add_nested(work, weight, absmax, n_blocks, &offset) : add_floats(work, weight, "absmax", absmax, n_blocks));
    return add_four_state(work, weight, how->nested, offset);
}

static Status add_int8(Quantising *work, const StoredTensor *weight) {
    const char *module = arena_strndup(work->model->files->arena, weight->name, strlen(weight->name) - strlen(".weight"));
    const StoredTensor *codes = module ? add_tensor(work, weight, weight->name, "I8", 2, weight->shape, 1) : NULL;
    uint8_t *code_bytes = codes ? bytes_of(codes) : NULL;
    const StoredTensor *scales =
        codes ? add_tensor(work, weight, arena_printf(work->model->files->arena, "%s.SCB", module), "F32", 1, weight->shape, sizeof(float)) : NULL;
    float *absmax = scales ? bytes_of(scales) : NULL;
    const StoredTensor *format =
        scales ? add_tensor(work, weight, arena_printf(work->model->files->arena, "%s.weight_format", module), "U8", 0, NULL, 1) : NULL; /* 0: rows */
    if (!format) return ST_RESOURCE;
    return each_piece(&(Piece){.work = work, .weight = weight, .codes = code_bytes, .scales = absmax}, weight->shape[1], int8_piece);
}

/* The format for rows of this width; NULL: the weight stays as it is. Source of the replacements: llama-quant.cpp of llama.cpp. */
static const QuantFormat *format_for(const char *form, int64_t width) {
    static const char *const instead[][2] = {{"q2_k", "q4_0"}, {"q3_k", "q4_0"}, {"q4_k", "q5_0"},
                                             {"q5_k", "q5_1"}, {"q6_k", "q8_0"}, {"iq4_xs", "iq4_nl"}};
    const QuantFormat *format = quant_format_named(form);
    for (size_t i = 0; i < COUNT_OF(instead) && width % format->block != 0; i++)
        if (strcmp(instead[i][0], form) == 0) format = quant_format_named(instead[i][1]);
    return width % format->block == 0 ? format : NULL;
}

static Status add_unchanged(Quantising *work, const StoredTensor *stored) {
    TRY(arena_array_grow(work->model->files->arena, &work->tensors, &work->cap, work->n + 1, sizeof *work->tensors));
    work->tensors[work->n++] = *stored;
    return ST_OK;
}

static Status add_blocks(Quantising *work, const StoredTensor *weight) {
    const QuantFormat *format = format_for(work->how->form, weight->shape[1]);
    if (!format) return add_unchanged(work, weight);
    const int64_t row = weight->shape[1] / format->block * format->bytes;
    const StoredTensor *codes = add_tensor(work, weight, weight->name, "U8", 2, (const int64_t[]){weight->shape[0], row}, 1);
    if (!codes) return ST_RESOURCE;
    json_object_set_new(json_object_get(work->settings, "types"), weight->name, json_string(format->name));
    return each_piece(&(Piece){.work = work, .weight = weight, .format = format, .codes = bytes_of(codes)}, weight->shape[1], block_piece);
}

/* ---- all weights ---- */

/* The chosen linear layer whose weight this is, or NULL. */
static const Module *chosen_module(const Model *model, const Quantise *how, const StoredTensor *stored) {
    for (size_t i = 0; i < model->n_modules; i++) {
        const Module *module = &model->modules[i];
        if (!module->linear || stored_find(model, module->path, "weight") != stored) continue;
        return how->n_modules == 0 || module_matches(module->path, how->modules, how->n_modules) ? module : NULL;
    }
    return NULL;
}

static Status add_stored(Quantising *work, const StoredTensor *stored) {
    const Module *module = chosen_module(work->model, work->how, stored);
    if (!module) return add_unchanged(work, stored);
    TRY(stored_check(stored, module->n_dims, module->shape));
    if (is_form(work->how, "nf4") || is_form(work->how, "fp4")) return add_four(work, stored);
    return is_form(work->how, "int8") ? add_int8(work, stored) : add_blocks(work, stored);
}

/* What transformers expects of bitsandbytes' directories. */
static json_t *settings_of(const Model *model, const Quantise *how) {
    if (quant_format_named(how->form)) return json_pack("{s:s, s:{}}", "quant_method", "ggml", "types");
    const bool four = !is_form(how, "int8");
    json_t *skipped = how->n_modules ? json_array() : json_null();
    for (size_t i = 0; i < model->n_linears && how->n_modules; i++)
        if (!module_matches(model->linears[i]->path, how->modules, how->n_modules))
            json_array_append_new(skipped, json_string(model->linears[i]->path));
    if (how->n_modules) json_array_append_new(skipped, json_string(model->modules[model->n_modules - 1].path));
    return json_pack("{s:s, s:b, s:b, s:s, s:b, s:s, s:s, s:o}", "quant_method", "bitsandbytes", "load_in_4bit", four, "load_in_8bit", !four,
                     "bnb_4bit_quant_type", four ? how->form : "fp4", "bnb_4bit_use_double_quant", four && how->nested, "bnb_4bit_compute_dtype",
                     "bfloat16", "bnb_4bit_quant_storage", "uint8", "llm_int8_skip_modules", skipped);
}

/* Fills work->tensors and work->settings, which the caller releases. */
static Status quantise_all(Quantising *work) {
    const WeightFile *files = work->model->files;
    TRY(check_how(work->model, work->how));
    work->settings = settings_of(work->model, work->how);
    if (!work->settings) return status_fail(ST_RESOURCE, "out of memory for quantization_config");
    for (size_t i = 0; i < files->n; i++) {
        work_at("quantising the model, tensors", i, files->n);
        TRY(add_stored(work, &files->tensors[i]));
        model_drop_pages(work->model, files->tensors[i].data, files->tensors[i].bytes); /* the original never counts as memory of the run */
    }
    work_end("quantising the model, tensors");
    return ST_OK;
}

static Status quantise_replace(Quantising *work) {
    WeightFile *files = work->model->files;
    TRY(quantise_all(work));
    files->tensors = work->tensors;
    files->n = work->n;
    return quantized_join_as(files, work->model->dir, work->settings);
}

Status quantise_model(Model *model, const Quantise *how) {
    Quantising work = {.model = model, .how = how};
    Status status = quantise_replace(&work);
    json_decref(work.settings);
    return status;
}

/* ---- a directory ---- */

static size_t element_bytes(const StoredTensor *tensor) { return tensor->count > 0 ? tensor->bytes / (size_t)tensor->count : 1; }

/* Larger elements first, so that each tensor is aligned for readers that map the file. */
static int by_element(const void *left, const void *right) {
    const StoredTensor *a = left, *b = right;
    if (element_bytes(a) != element_bytes(b)) return element_bytes(a) > element_bytes(b) ? -1 : 1;
    return strcmp(a->name, b->name);
}

static Status write_weights(const Quantising *work, const char *path) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    qsort(work->tensors, work->n, sizeof *work->tensors, by_element);
    for (size_t i = 0; i < work->n; i++) safetensors_declare_as(writer, &work->tensors[i]);
    for (size_t i = 0; i < work->n && !safetensors_failed(writer); i++) {
        const StoredTensor *tensor = &work->tensors[i];
        for (size_t at = 0, n; at < tensor->bytes; at += n) {
            n = MIN(tensor->bytes - at, MOST_RESIDENT);
            safetensors_write(writer, tensor->data + at, n);
            model_drop_pages(work->model, tensor->data + at, n);
        }
    }
    return safetensors_commit(writer);
}

static Status write_settings(const Quantising *work, const char *made, Arena *arena) {
    const char *path = path_join(arena, made, "config.json");
    json_t *json;
    if (!path) return ST_RESOURCE;
    const StoredTensor *embed = stored_find(work->model, work->model->modules[0].path, "weight");
    const DType dtype = embed ? embed->dtype : work->model->files->tensors[0].dtype;
    TRY(model_copy_config(work->model->dir, made, dtype, false, NULL));
    TRY(json_read_config(path, true, &json));
    json_object_set(json, "quantization_config", work->settings);
    Status status = config_write(json, dtype, path);
    json_decref(json);
    return status;
}

static Status write_directory(void *context, const char *made) {
    Quantising *work = context;
    Arena *arena = work->model->arena;
    TRY(write_settings(work, made, arena));
    TRY(model_copy_files(work->model->dir, made));
    const char *path = path_join(arena, made, "model.safetensors");
    return path ? write_weights(work, path) : ST_RESOURCE;
}

Status quantise_save(const char *from, const Quantise *how, const char *to) {
    Quantising work = {.how = how};
    TRY(model_outline(from, &work.model));
    Status status = quantise_all(&work);
    if (status == ST_OK) status = dir_build(to, write_directory, &work);
    json_decref(work.settings);
    model_free(work.model);
    return status;
}

/* ---- its name ---- */

static uint64_t hash_text(const char *text, uint64_t seed) { return XXH3_64bits_withSeed(text, strlen(text) + 1, seed); }

/* The other files that the directory has copies of. */
static uint64_t hash_copies(const char *from, Arena *arena, uint64_t hash) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *path = path_join(arena, from, names[i]);
        Mapping mapping;
        if (!path || !file_exists(path) || file_map(path, &mapping) != ST_OK) continue;
        hash = XXH3_64bits_withSeed(mapping.data, mapping.size, hash);
        file_unmap(&mapping);
    }
    return hash;
}

/* The pages of the file are released piece by piece: they are not memory of the run. */
static uint64_t hash_mapping(const Mapping *mapping, uint64_t seed) {
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_64bits_reset_withSeed(state, seed) != XXH_OK) { /* no memory for the state */
        XXH3_freeState(state);
        return XXH3_64bits_withSeed(mapping->data, mapping->size, seed);
    }
    for (size_t at = 0; at < mapping->size; at += MOST_RESIDENT) {
        const size_t end = MIN(at + MOST_RESIDENT, mapping->size);
        XXH3_64bits_update(state, mapping->data + at, end - at);
        file_drop_pages(mapping, at, end);
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

Status quantise_name(const char *from, const Quantise *how, Arena *arena, const char **name) {
    WeightFile *files;
    TRY(weight_file_open(from, &files));
    uint64_t hash = hash_text(how->form, hash_copies(from, arena, 0));
    for (size_t i = 0; i < files->n_files; i++) hash = hash_mapping(&files->mappings[i], hash);
    weight_file_close(files);
    const bool four = strcmp(how->form, "nf4") == 0 || strcmp(how->form, "fp4") == 0;
    const int64_t more[2] = {four && how->nested, four ? how->block : 0};
    hash = XXH3_64bits_withSeed(more, sizeof more, hash);
    for (size_t i = 0; i < how->n_modules; i++) hash = hash_text(how->modules[i], hash);
    size_t end = strlen(from);
    while (end > 1 && from[end - 1] == '/') end--;
    const char *path = arena_strndup(arena, from, end), *last = path ? path_name(path) : NULL;
    bool plain = last && last[0] != '.' && last[0] != '/';
    *name = last ? arena_printf(arena, "%s-%s-%016llx", plain ? last : "base", how->form, (unsigned long long)hash) : NULL;
    return *name ? ST_OK : ST_RESOURCE;
}
