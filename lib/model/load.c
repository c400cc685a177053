/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a model from a directory: puts the checkpoint's tensors into the slots of its modules. */
#include "lib/base/log.h"
#include "lib/base/work.h"
#include "lib/comm/host_memory.h"
#include "lib/model/convert.h"
#include "lib/model/experts/experts.h"
#include "lib/model/parts.h"
#include "lib/model/quantized/quantise.h"
#include "lib/model/scalar_head.h"
#include "lib/model/text_part.h"

#include <stdlib.h>
#include <string.h>

/* ---- finding and checking tensors ---- */

typedef struct Loader {
    Model *model;
    const ModelOptions *options;
    bool *used;
    bool together; /* with other processes of this machine */
} Loader;

const StoredTensor *stored_find(const Model *model, const char *path, const char *kind) {
    const char *prefix = model->config.family->names->prefix;
    Str name = {0};
    str_printf(&name, "%s%s%s", path, kind ? "." : "", kind ? kind : "");
    const StoredTensor *stored = weight_file_find(model->files, str_text(&name));
    if (!stored && text_starts_with(str_text(&name), prefix)) stored = weight_file_find(model->files, str_text(&name) + strlen(prefix));
    str_release(&name);
    return stored;
}

static void describe_shape(Str *text, int n_dims, const int64_t *shape) {
    str_append(text, "(");
    for (int i = 0; i < n_dims; i++) str_printf(text, "%s%lld", i ? "," : "", (long long)shape[i]);
    str_append(text, ")");
}

Status stored_check(const StoredTensor *stored, int n_dims, const int64_t *shape) {
    if (!stored->known || stored->dtype == DT_I32)
        return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': dtype %s is not supported for weights", stored->name, stored->file,
                           stored->dtype_text);
    bool same = stored->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) same = stored->shape[i] == shape[i];
    if (same) return ST_OK;
    Str have = {0}, want = {0};
    describe_shape(&have, stored->n_dims, stored->shape);
    describe_shape(&want, n_dims, shape);
    status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': shape %s, expected %s", stored->name, stored->file, str_text(&have), str_text(&want));
    bool turned = n_dims == 2 && stored->n_dims == 2 && stored->shape[0] == shape[1] && stored->shape[1] == shape[0];
    if (turned) status_hint(ST_INPUT, "its rows and columns are exchanged");
    str_release(&have);
    str_release(&want);
    return ST_INPUT;
}

static Status not_finite(const char *name, const char *file, int64_t at) {
    return status_fail(ST_INPUT, "tensor '%s' in '%s' holds a NaN or an infinity at element %lld", name, file, (long long)at);
}

/* Of a tensor with bytes of its own in the file: where the element, or the block that has its scale, begins. */
static Status stored_not_finite(const Model *model, const StoredTensor *stored, int64_t at) {
    const Mapping *mapping = stored->data ? model_mapping(model, stored->data) : NULL;
    if (!mapping) return not_finite(stored->name, stored->file, at);
    const int64_t block = dtype_block(stored->dtype);
    return status_fail(ST_INPUT, "tensor '%s' in '%s' holds a NaN or an infinity at element %lld, byte %zu of the file", stored->name, stored->file,
                       (long long)at, (size_t)(stored->data - mapping->data) + dtype_bytes(stored->dtype, at / block * block));
}

Status tensor_check_finite(const Tensor *tensor, const char *name, const char *file) {
    int64_t at = tensor_find_nonfinite(tensor);
    return at < 0 ? ST_OK : not_finite(name, file, at);
}

const Mapping *model_mapping(const Model *model, const void *data) { return model->files ? weight_file_mapping(model->files, data) : NULL; }

void model_drop_pages(const Model *model, const void *data, size_t bytes) {
    const Mapping *mapping = model_mapping(model, data);
    size_t begin = mapping ? (size_t)((const uint8_t *)data - mapping->data) : 0;
    if (mapping) file_drop_pages(mapping, begin, begin + bytes);
}

/* Rows of a weight that is put together from several tensors. */
static Status joined_copy(const StoredTensor *stored, int64_t at, int64_t n, Tensor *tensor) {
    size_t bytes = dtype_bytes(tensor->dtype, n);
    void *buffer = tensor_device(tensor)->host_memory ? NULL : malloc(bytes);
    if (!buffer && !tensor_device(tensor)->host_memory) return status_fail(ST_RESOURCE, "no memory for rows of tensor '%s'", stored->name);
    void *rows = tensor_stage(tensor, at, &n, buffer, bytes);
    Status status = stored_read(stored, at, n, tensor->dtype, rows);
    if (status == ST_OK) status = tensor_upload(tensor, at, n, rows);
    free(buffer);
    return status;
}

/* A new tensor, in memory that the ranks of a machine have once if `shared`. *filled: it has its values. */
static Tensor *copy_new(const Model *model, bool shared, DType dtype, int n_dims, const int64_t *shape, bool *filled) {
    size_t bytes;
    *filled = shared && !host_memory_fills(model->shared);
    if (!shared) return tensor_new(model->arena, model->device, dtype, n_dims, shape);
    void *values = dtype_bytes_fit(dtype, n_dims, shape, &bytes) ? host_memory_take(model->shared, bytes) : NULL;
    return values ? tensor_shared(model->arena, model->device, dtype, n_dims, shape, values) : NULL;
}

/* Makes a copy in `dtype`. Each piece of a matrix is released to the file before the next one is read, so that a matrix as large as the rest of the
 * model is never in memory twice. On a device that plans the copy gets no values. */
static Status stored_copy(const Model *model, const StoredTensor *stored, bool shared, DType dtype, int n_dims, const int64_t *shape,
                          Tensor **tensor) {
    const int64_t width = n_dims > 1 ? shape[n_dims - 1] : 1, most = MAX((1 << 22) / width, 1) * width; /* whole rows */
    bool filled;
    *tensor = copy_new(model, shared, dtype, n_dims, shape, &filled);
    if (!*tensor) return status_prefix(ST_RESOURCE, "tensor '%s'", stored->name);
    (*tensor)->name = arena_strdup(model->arena, stored->name);
    for (int64_t at = 0; at < stored->count && !model->device->planned && !filled; at += most) {
        int64_t n = MIN(most, stored->count - at);
        const uint8_t *from = stored->data ? stored->data + dtype_bytes(stored->dtype, at) : NULL;
        TRY(from ? tensor_convert(*tensor, at, from, stored->dtype, n) : joined_copy(stored, at, n, *tensor));
        if (n_dims > 1 && from) model_drop_pages(model, from, dtype_bytes(stored->dtype, n));
    }
    return ST_OK;
}

/* Checks a weight in the mapped file for NaN and infinities, piece by piece, and releases each piece before the next one. */
static Status check_streamed(const Model *model, const Tensor *weight, const StoredTensor *stored) {
    const int64_t count = tensor_count(weight), most = 1 << 22;
    for (int64_t at = 0; at < count; at += most) {
        Tensor piece = tensor_part(weight, at, MIN(most, count - at));
        int64_t found = tensor_find_nonfinite(&piece);
        if (found >= 0) return stored_not_finite(model, stored, at + found);
        if (weight->storage->kind == STORAGE_MAPPED) model_drop_pages(model, stored->data + dtype_bytes(stored->dtype, at), tensor_bytes(&piece));
    }
    return ST_OK;
}

static Status check_whole(const Model *model, const Tensor *weight, const StoredTensor *stored) {
    const int64_t found = tensor_find_nonfinite(weight);
    return found < 0 ? ST_OK : stored_not_finite(model, stored, found);
}

/* Products read this weight in its stored form every time. A mapped file has small pages, whose address translation takes a third of the time of a
 * decoded token; private memory has huge pages. */
static bool read_in_place(const Model *model, const StoredTensor *stored, const int64_t *shape) {
    const Device *device = model->device->planned ? model->device->planned : model->device;
    return device->packed_bytes(shape[0], shape[1], stored->dtype, model->compute, true) == 0;
}

/* Values of quantised weights become what products compute with. Values that are read once, for merging, are not rounded. */
static DType dequantised_dtype(const Loader *loader, const StoredTensor *stored) {
    DType compute = loader->model->compute;
    if (strcmp(stored->dtype_text, "MXFP4") == 0 && compute != DT_F64) return DT_BF16; /* which has all of its values */
    return loader->options->streamed && compute == DT_BF16 ? DT_F32 : compute;
}

static Status quantised_whole(const StoredTensor *stored) {
    status_fail(ST_CONFIG, "full fine-tuning of quantised weights: tensor '%s' in '%s' is %s", stored->name, stored->file, stored->dtype_text);
    return status_hint(ST_CONFIG, "add a lora section to the recipe, or take the model that the file was made from");
}

/* Products and lookups of rows read codes. */
static bool keeps_codes(const Loader *loader, const StoredTensor *stored, const Module *module) {
    const Model *model = loader->model;
    bool readable = module->linear || module->weight == &model->head || module->weight == &model->embed || module->weight == &model->position_embed;
    return readable && (module->n_dims == 2 || stored->packs_in_place) && stored_is_quantised(stored) && (!stored->read || stored->pack) &&
           !loader->options->dequantize && (model->device->host_memory || model->device->planned);
}

/* A weight that stays as it is stored. Products read it in place, so it becomes a copy in private memory (read_in_place), if it is not there. */
static Status load_codes(const Loader *loader, const StoredTensor *stored, const Module *module, Tensor **tensor) {
    const Model *model = loader->model;
    const Mapping *mapping = model_mapping(model, stored->data);
    Packing *packing;
    if (stored->pack) {
        HostMemory *shared = stored->packs_in_place ? NULL : model->shared;
        TRY(stored->pack(stored->parts, &(CodeRoom){model->arena, shared}, &packing));
        *tensor = tensor_packed(model->arena, model->device, module->n_dims, module->shape, packing);
        if (!*tensor || !((*tensor)->name = arena_strdup(model->arena, stored->name))) return ST_RESOURCE;
        if (!stored->packs_in_place) {
            if (shared) (*tensor)->storage->kind = STORAGE_SHARED;
            model_drop_pages(model, stored->codes, stored->codes_bytes);
        } else if (model_mapping(model, stored->codes)) {
            (*tensor)->storage->kind = STORAGE_MAPPED;
            file_watch_truncation(model_mapping(model, stored->codes));
        }
    } else if (mapping && !loader->options->streamed && !loader->together && !module->sparse) {
        TRY(stored_copy(model, stored, false, stored->dtype, module->n_dims, module->shape, tensor));
    } else {
        *tensor = mapping ? tensor_mapped(model->arena, model->device, stored->dtype, module->n_dims, module->shape, stored->data)
                          : tensor_view(model->arena, model->device, stored->dtype, module->n_dims, module->shape, (void *)(uintptr_t)stored->data);
        if (!*tensor || !((*tensor)->name = arena_strdup(model->arena, stored->name))) return ST_RESOURCE;
        if (mapping) file_watch_truncation(mapping);
    }
    (*tensor)->storage->rounds = dequantised_dtype(loader, stored) == DT_BF16;
    return ST_OK;
}

/* Matrices that are packed for products stay in the mapped file. A weight becomes a copy if products read it in place, or if it is trained, small,
 * misaligned, or of a dtype without kernels; and all of them if the device has memory of its own. */
static Status load_values(const Loader *loader, const StoredTensor *stored, const Module *module, Tensor **tensor) {
    Model *model = loader->model;
    const int n_dims = module->n_dims;
    const int64_t *shape = module->shape;
    DType wide = model->compute == DT_F64 ? DT_F64 : DT_F32;
    bool quantised = stored_is_quantised(stored), all = loader->options->train_all && !module->fixed,
         has_file = model->device->host_memory || model->device->planned;
    bool copied = quantised || !has_file || all || n_dims == 1 || (stored->dtype == DT_F64 && wide != DT_F64) ||
                  (uintptr_t)stored->data % dtype_bytes(stored->dtype, 1) != 0 ||
                  (!loader->options->streamed && !loader->together && !module->sparse && read_in_place(model, stored, shape));
    if (copied) {
        DType dtype = all || n_dims == 1 || stored->dtype == DT_F64 ? wide : quantised ? dequantised_dtype(loader, stored) : stored->dtype;
        return stored_copy(model, stored, model->shared && !all && n_dims > 1, dtype, n_dims, shape, tensor);
    }
    *tensor = tensor_mapped(model->arena, model->device, stored->dtype, n_dims, shape, stored->data);
    if (!*tensor || !((*tensor)->name = arena_strdup(model->arena, stored->name))) return ST_RESOURCE;
    if (model_mapping(model, stored->data)) file_watch_truncation(model_mapping(model, stored->data));
    return ST_OK;
}

/* Another rank has written it, and checked it. */
static bool is_filled(const Model *model, const Tensor *weight) {
    return weight->storage->kind == STORAGE_SHARED && !host_memory_fills(model->shared);
}

static Status load_weight(Loader *loader, const StoredTensor *stored, const Module *module, Tensor **tensor) {
    Model *model = loader->model;
    TRY(stored_check(stored, module->n_dims, module->shape));
    loader->used[stored - model->files->tensors] = true;
    bool all = loader->options->train_all && !module->fixed;
    if (stored_is_quantised(stored) && all) return quantised_whole(stored);
    if (keeps_codes(loader, stored, module))
        TRY(load_codes(loader, stored, module, tensor));
    else
        TRY(load_values(loader, stored, module, tensor));
    const bool left = module->sparse && (*tensor)->storage->kind == STORAGE_MAPPED; /* the step reads the experts that it needs */
    if (!loader->options->skip_nan_check && loader->options->streamed && (*tensor)->dtype != DT_PACKED)
        TRY(check_streamed(model, *tensor, stored));
    else if (!loader->options->skip_nan_check && !left && !is_filled(model, *tensor))
        TRY(check_whole(model, *tensor, stored));
    Param *param = params_add(&model->params, (*tensor)->name, *tensor, PARAM_BASE);
    if (!param) return ST_RESOURCE;
    if (all) return loader->options->lends ? params_train_lent(param, model->arena) : params_train(param, model->arena);
    (*tensor)->storage->constant = !module->sparse; /* a packed copy would be as large as all experts */
    return ST_OK;
}

/* Names of tensors found in place of a missing one: a checkpoint may have one tensor where several parts are expected, or the reverse. */
static Status hint_beside(const Model *model, const char *path) {
    const char *dot = strrchr(path, '.');
    size_t n = dot ? (size_t)(dot - path) + 1 : 0, found = 0;
    Str names = {0};
    for (size_t i = 0; i < model->files->n && n && found < 12; i++) {
        const StoredTensor *stored = &model->files->tensors[i];
        if (strncmp(stored->name, path, n) == 0) str_printf(&names, "%s%s", found++ ? ", " : "", stored->name + n);
    }
    if (found)
        status_hint(ST_INPUT, "its tensors of '%.*s': %s", (int)n - 1, path, str_text(&names));
    else
        status_hint(ST_INPUT, "config.json and the weights may be of different models");
    str_release(&names);
    return ST_INPUT;
}

static Status missing(const Model *model, const char *path, const char *kind, int n_dims, const int64_t *shape) {
    Str want = {0};
    describe_shape(&want, n_dims, shape);
    status_fail(ST_INPUT, "tensor '%s%s%s' is missing in '%s': shape %s is expected", path, kind ? "." : "", kind ? kind : "", model->dir,
                str_text(&want));
    str_release(&want);
    return hint_beside(model, path);
}

static Status load_module(Loader *loader, const Module *module) {
    const char *kind = module->bare ? NULL : "weight";
    const StoredTensor *weight = stored_find(loader->model, module->path, kind);
    if (!weight) return missing(loader->model, module->path, kind, module->n_dims, module->shape);
    TRY(load_weight(loader, weight, module, module->weight));
    (*module->weight)->in_out = module->in_out;
    if (!module->bias) return ST_OK;
    const StoredTensor *bias = stored_find(loader->model, module->path, "bias");
    if (!bias) return missing(loader->model, module->path, "bias", 1, &module->bias_width);
    return load_weight(loader, bias, &(Module){.n_dims = 1, .shape = {module->bias_width}}, module->bias);
}

/* A tied head is the embedding. Checkpoints may have both, or only the head; if the two differ they are not tied, whatever config.json says, as in
 * transformers. */
static bool head_is_tied(Loader *loader, const Module *embed, const Module *head) {
    Model *model = loader->model;
    if (!model->config.tie_word_embeddings) return false;
    const StoredTensor *e = stored_find(model, embed->path, "weight"), *h = stored_find(model, head->path, "weight");
    if (!e || !h) return true;
    if (e->dtype == h->dtype && e->data && h->data && e->bytes == h->bytes && memcmp(e->data, h->data, e->bytes) == 0) {
        loader->used[h - model->files->tensors] = true;
        return true;
    }
    log_message(LOG_WARNING, "'%s' says that the head is tied to the embedding, but their weights differ: they are treated as separate", model->dir);
    model->config.tie_word_embeddings = false;
    return false;
}

static Status no_place(const StoredTensor *first, size_t n_left) {
    status_fail(ST_INPUT, "tensor '%s' in '%s' has no place in the model that config.json describes", first->name, first->file);
    return n_left > 1 ? status_hint(ST_INPUT, "and %zu more: config.json and the weights may be of different models", n_left - 1)
                      : status_hint(ST_INPUT, "config.json and the weights may be of different models");
}

/* A tensor that the decoder does not use is carried along if its kind is known, left out if it has no use, and otherwise an error. */
static Status sort_surplus(const Loader *loader) {
    Model *model = loader->model;
    const PartNames *names = model->config.family->names;
    size_t n_ignored = 0, n_left = 0;
    while (n_ignored < COUNT_OF(names->ignored) && names->ignored[n_ignored]) n_ignored++;
    const StoredTensor *first = NULL;
    model->passthrough = arena_alloc(model->arena, (model->files->n + 1) * sizeof *model->passthrough);
    if (!model->passthrough) return ST_RESOURCE;
    for (size_t i = 0; i < model->files->n; i++) {
        const StoredTensor *stored = &model->files->tensors[i];
        if (loader->used[i]) continue;
        bool passthrough = text_is_passthrough(&model->config, stored->name);
        if (passthrough && stored_is_quantised(stored)) continue; /* what is saved has floats only */
        if (passthrough) {
            model->passthrough[model->n_passthrough++] = stored;
            if (model_mapping(model, stored->data)) file_watch_truncation(model_mapping(model, stored->data));
        } else if (!module_matches(stored->name, names->ignored, n_ignored)) {
            if (!first) first = stored;
            n_left++;
        }
    }
    text_warn_of_layers(model);
    return first ? no_place(first, n_left) : ST_OK;
}

/* Creates a score unless the checkpoint has one. A language model's head is ignored. */
static Status load_score(Loader *loader, const Module *score, const Module *head) {
    Model *model = loader->model;
    const StoredTensor *unused = stored_find(model, head->path, "weight");
    if (unused) loader->used[unused - model->files->tensors] = true;
    if (model->config.scores) return load_module(loader, score);
    return scalar_head_add(model,
                           &(ScalarHeadConfig){.name = score->path,
                                               .role = PARAM_BASE,
                                               .deviation = model->config.initializer_range,
                                               .seed = loader->options->seed,
                                               .trained = loader->options->train_all},
                           &model->score);
}

static Status load_tensors(Loader *loader) {
    Model *model = loader->model;
    const Module *embed = &model->modules[0], *last = &model->modules[model->n_modules - 1];
    const Module words = {.path = part_path(model, model->config.family->names->head),
                          .weight = &model->head,
                          .n_dims = 2,
                          .shape = {model->config.vocab_size, model->config.hidden_size}},
                 *score = loader->options->scores ? last : NULL;
    const Module *head = score ? &words : last;
    bool tied = head_is_tied(loader, embed, head);
    for (size_t i = 0; i < model->n_modules; i++) {
        const Module *module = &model->modules[i];
        work_at("loading the model, tensors", i, model->n_modules);
        if (module == score) {
            TRY(load_score(loader, score, head));
        } else if (module == head && tied) {
            model->head = model->embed;
        } else if (module == embed && tied && !stored_find(model, embed->path, "weight")) {
            Module from_head = *head;
            from_head.weight = &model->embed;
            TRY(load_module(loader, &from_head));
        } else {
            TRY(load_module(loader, module));
        }
    }
    work_end("loading the model, tensors");
    return sort_surplus(loader);
}

static Status not_a_language_model(const Model *model) {
    status_fail(ST_INPUT, "'%s' is a reward model (%s): it has a score instead of a head over the vocabulary", model->dir,
                model->config.architecture);
    return status_hint(ST_INPUT, "it judges answers: name it in the reward of a recipe for tune rl, as { type: model, model: DIR }");
}

static int64_t count_weights(const Model *model) {
    int64_t count = 0;
    for (size_t i = 0; i < model->n_modules; i++) {
        const Module *module = &model->modules[i];
        bool tied = i + 1 == model->n_modules && model->config.tie_word_embeddings && module->weight == &model->head;
        if (!tied) count += module_count(module) + (module->bias ? module->bias_width : 0);
    }
    return count;
}

/* What ModelOptions.dequantize costs. */
static void tell_of_values(const Model *model) {
    size_t stored = 0, values = 0;
    char before[32], after[32];
    for (size_t i = 0; i < model->params.n; i++) {
        const Tensor *tensor = model->params.items[i].tensor;
        const StoredTensor *its = tensor->name ? weight_file_find(model->files, tensor->name) : NULL;
        if (!its || !stored_is_quantised(its)) continue;
        stored += its->bytes;
        values += tensor_bytes(tensor);
    }
    if (values > 0)
        log_message(LOG_INFO, "the quantised weights of '%s' are dequantised: %s of memory instead of %s", model->dir,
                    format_bytes((double)values, after), format_bytes((double)stored, before));
}

static Status open_modules(Model *model, bool scores) {
    TRY(weight_file_open(model->dir, &model->files));
    if (model->config.wrapper) TRY(text_names_find(&model->config, model->files, model->dir));
    if (model->config.experts.n) TRY(experts_find(&model->config, model->files));
    return model_build(model, scores);
}

/* ---- with other ranks ---- */

/* Ranks of one machine read weights in the mapped file, or have those that are converted in common memory, which the first of them fills. */
static Status begin_together(Loader *loader) {
    Model *model = loader->model;
    Comm *comm = loader->options->comm;
    int which;
    loader->together = comm_host_ranks(comm, &which) > 1;
    const bool shares = model->device->host_memory && !model->device->planned && !loader->options->train_all && !loader->options->apart;
    return shares ? host_memory_new(comm, &model->shared) : ST_OK;
}

static void *take_shared(void *memory, size_t bytes) { return host_memory_take(memory, bytes); }

/* What the library for products would pack at its first product is packed for all. */
static Status end_together(const Model *model, bool backward) {
    const PackMemory memory = {take_shared, model->shared, !host_memory_fills(model->shared)};
    for (size_t i = 0; i <= model->n_linears; i++) {
        const Tensor *weight = i < model->n_linears ? model->linears[i]->weight : model->head;
        if (weight && weight->storage->constant && model->device->pack)
            TRY(model->device->pack(weight, model->compute, backward && i < model->n_linears, &memory));
    }
    return host_memory_end(model->shared);
}

Status model_load_weights(Model *model, const ModelOptions *options) {
    if (model->config.scores && !options->scores) return not_a_language_model(model);
    model->logprob = (LogprobArgs){.softcap = model->config.final_softcap, .temperature = model->config.logits_scaling};
    TRY(open_modules(model, options->scores));
    if (options->quantise) TRY(quantise_model(model, options->quantise));
    if (options->admit) TRY(options->admit(options->context, count_weights(model)));
    Loader loader = {model, options, arena_zero(model->arena, model->files->n + 1), false};
    if (!loader.used) return ST_RESOURCE;
    TRY(begin_together(&loader));
    TRY(load_tensors(&loader));
    if (model->shared) TRY(end_together(model, options->backward));
    if (options->dequantize) tell_of_values(model);
    const StoredTensor *embed = stored_find(model, model->modules[0].path, "weight");
    if (!embed) embed = stored_find(model, part_path(model, model->config.family->names->head), "weight");
    model->config.stored_dtype = stored_is_quantised(embed) ? DT_BF16 : embed->dtype;
    return ST_OK;
}

static Status read_config(Model *model, const char *dir) {
    model->dir = arena_strdup(model->arena, dir);
    return model->dir ? model_config_read(dir, model->arena, &model->config) : ST_RESOURCE;
}

static Status load_into(Model *model, const char *dir, const ModelOptions *options) {
    TRY(read_config(model, dir));
    return model_load_weights(model, options);
}

static Status new_model(const char *dir, const Device *device, DType compute, Model **model) {
    *model = calloc(1, sizeof **model);
    if (!*model || !((*model)->arena = arena_new(0))) {
        free(*model);
        *model = NULL;
        return status_fail(ST_RESOURCE, "out of memory for the model in '%s'", dir);
    }
    (*model)->device = device;
    (*model)->compute = compute;
    return ST_OK;
}

static Status or_free(Status status, Model **model) {
    if (status == ST_OK) return ST_OK;
    model_free(*model);
    *model = NULL;
    return status;
}

Status model_load(const char *dir, const ModelOptions *options, Model **model) {
    profile_lap(NULL);
    TRY(new_model(dir, options->device, options->compute, model));
    Status status = or_free(load_into(*model, dir, options), model);
    profile_lap("load");
    return status;
}

Status model_outline(const char *dir, Model **model) {
    TRY(new_model(dir, NULL, DT_F32, model));
    Status status = read_config(*model, dir);
    return or_free(status == ST_OK ? open_modules(*model, (*model)->config.scores) : status, model);
}

void model_free(Model *model) {
    if (!model) return;
    for (size_t i = 0; i < model->params.n; i++) tensor_unpack(model->params.items[i].tensor);
    params_release(&model->params);
    weight_file_close(model->files);
    host_memory_free(model->shared);
    arena_free(model->arena);
    free(model);
}

ModelMemory model_memory(const Model *model, bool backward) {
    ModelMemory memory = {0};
    for (size_t i = 0; i < model->params.n; i++) {
        const Param *param = &model->params.items[i];
        const Tensor *tensor = param->tensor;
        size_t bytes = tensor_bytes(tensor);
        if (tensor->storage->kind == STORAGE_MAPPED)
            memory.mapped += bytes;
        else if (tensor->storage->kind == STORAGE_SHARED)
            memory.shared += bytes;
        else
            memory.weights += bytes;
        if (param->trained && !tensor->grad->lent) memory.gradients += bytes;
    }
    for (size_t i = 0; i <= model->n_linears; i++) {
        const Tensor *weight = i < model->n_linears ? model->linears[i]->weight : model->head;
        bool both = backward && i < model->n_linears; /* the backward pass reads the head's rows in their stored form */
        if (weight && weight->storage->constant)
            memory.packed += model->device->packed_bytes(weight->shape[0], weight->shape[1], weight->dtype, model->compute, both);
    }
    if (model->shared) { /* end_together */
        memory.shared += memory.packed;
        memory.packed = 0;
    }
    return memory;
}
