/* SPDX-License-Identifier: Apache-2.0 */
/* Merging: one list of tensors to write; each is the base's tensor plus the deltas of the adapters, computed in blocks of rows. */
#include "lib/base/log.h"
#include "lib/base/sha256.h"
#include "lib/base/system.h"
#include "sft/merge_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/adapter.h"
#include "lib/model/safetensors.h"
#include "lib/text/chat.h"

enum { BLOCK_ELEMENTS = 1 << 20 };

static size_t head_module(const Merge *merge) { return merge->base->n_modules - 1; }

const char *merge_target(const MergeConfig *config) { return config->onto ? config->onto : config->base; }

Tensor *module_tensor(const Model *model, size_t module, bool bias) { return bias ? *model->modules[module].bias : *model->modules[module].weight; }

/* ---- tensors that an adapter changes ---- */

bool module_change(const Model *model, size_t module, int64_t expert, LoraBranch *branch, Tensor parts[2]) {
    const Linear *linear = model->modules[module].linear;
    return linear && linear_change(linear, expert, branch, parts);
}

Tensor *module_magnitude(const Model *model, size_t module) {
    const Linear *linear = model->modules[module].linear;
    return linear && linear->lora ? linear->lora->magnitude : NULL;
}

int64_t module_experts(const Model *model, size_t module) {
    const Linear *linear = model->modules[module].linear;
    return linear && linear->copies ? linear->copies : 1;
}

const Tensor *module_saved(const Model *model, size_t module, bool bias) {
    const Tensor *tensor = module_tensor(model, module, bias);
    for (size_t i = 0; i < model->params.n; i++)
        if (model->params.items[i].tensor == tensor) return model->params.items[i].role == PARAM_SAVED ? tensor : NULL;
    return NULL;
}

static bool is_changed(const Merge *merge, size_t module, bool bias) {
    LoraBranch branch;
    Tensor parts[2];
    for (size_t i = 0; i < merge->config->n_adapters; i++)
        if ((!bias && module_change(merge->adapted[i], module, 0, &branch, parts)) || module_saved(merge->adapted[i], module, bias)) return true;
    return false;
}

/* ---- the list of tensors ---- */

static bool find_module(const Merge *merge, const Tensor *tensor, Job *job) {
    const Model *base = merge->base;
    for (job->module = 0; job->module < base->n_modules; job->module++)
        for (int bias = 0; bias < 2; bias++) {
            job->bias = bias;
            if ((!bias || base->modules[job->module].bias) && module_tensor(base, job->module, bias) == tensor) return true;
        }
    return false;
}

static Status add_job(Merge *merge, Job job) {
    Job *to = &merge->jobs[merge->n_jobs];
    *to = job;
    to->place = merge->n_jobs;
    to->result = &merge->result->tensors[merge->n_jobs++];
    *to->result =
        (MergedTensor){.name = arena_strdup(merge->result->arena, job.name), .changed = !job.passthrough && is_changed(merge, job.module, job.bias)};
    merge->result->n_changed += to->result->changed;
    return to->result->name ? ST_OK : ST_RESOURCE;
}

static const char *weight_name(const Merge *merge, size_t module) {
    return arena_printf(merge->arena, "%s.weight", merge->base->modules[module].path);
}

static bool is_carried(const Model *model, const StoredTensor *stored) {
    for (size_t i = 0; i < model->n_passthrough; i++)
        if (model->passthrough[i] == stored) return true;
    return false;
}

/* Tensors without a use (old buffers, a second copy of a tied head) are left out, as save_pretrained does. */
static Status add_stored(Merge *merge, const StoredTensor *stored, size_t file) {
    const Param *param = params_find(&merge->base->params, stored->name);
    Job job = {.name = stored->name, .file = file};
    if (is_carried(merge->base, stored)) {
        job.passthrough = stored;
        return add_job(merge, job);
    }
    if (!param || !find_module(merge, param->tensor, &job)) return ST_OK;
    job.dtype = merge->config->convert        ? merge->config->dtype
                : stored_is_quantised(stored) ? merge->base->config.stored_dtype
                : stored->dtype == DT_F64     ? DT_F32
                                              : stored->dtype;
    if (!merge->untie || job.module != 0) return add_job(merge, job);
    job.name = weight_name(merge, 0);
    Job head = job;
    head.module = head_module(merge);
    head.name = weight_name(merge, head.module);
    if (!job.name || !head.name) return ST_RESOURCE;
    TRY(add_job(merge, job));
    return add_job(merge, head);
}

/* The score of a reward model whose base is a language model without one: it follows all other tensors. */
static Status add_new_score(Merge *merge) {
    const MergeConfig *config = merge->config;
    Job job = {.module = head_module(merge),
               .file = merge->base->files->n_files - 1,
               .dtype = config->convert ? config->dtype : merge->base->config.stored_dtype};
    job.name = weight_name(merge, job.module);
    return job.name ? add_job(merge, job) : ST_RESOURCE;
}

static size_t job_element(const Job *job) {
    if (!job->passthrough) return dtype_bytes(job->dtype, 1);
    return job->passthrough->count > 0 ? job->passthrough->bytes / (size_t)job->passthrough->count : 1;
}

/* Within a file tensors with larger elements come first, so that every tensor is aligned for readers that map the file; otherwise in the base's
 * order. */
static int by_place(const void *left, const void *right) {
    const Job *a = left, *b = right;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (job_element(a) != job_element(b)) return job_element(a) > job_element(b) ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static Status list_jobs(Merge *merge) {
    const WeightFile *files = merge->base->files;
    bool tied = merge->base->head == merge->base->embed;
    merge->untie = tied && (is_changed(merge, 0, false) || is_changed(merge, head_module(merge), false));
    merge->jobs = arena_alloc(merge->arena, (files->n + 1) * sizeof *merge->jobs);
    merge->result->tensors = arena_alloc(merge->result->arena, (files->n + 1) * sizeof *merge->result->tensors);
    if (!merge->jobs || !merge->result->tensors) return ST_RESOURCE;
    for (size_t f = 0; f < files->n_files; f++)
        for (size_t i = 0; i < files->n; i++)
            if (files->tensors[i].file == files->files[f]) TRY(add_stored(merge, &files->tensors[i], f));
    if (merge->scores && !merge->base->config.scores) TRY(add_new_score(merge));
    merge->result->n = merge->n_jobs;
    qsort(merge->jobs, merge->n_jobs, sizeof *merge->jobs, by_place);
    return ST_OK;
}

/* ---- the sum ---- */

/* Adds rows first .. first + n - 1 of `scale` B A (of its transpose for weights that are stored (in, out)) to the block's change, from row `at` of
 * the block on. */
static Status add_lora(const LoraBranch *lora, bool in_out, double scale, int64_t first, int64_t n, int64_t at, Block *block) {
    int64_t rank = lora->a->shape[0], in = lora->a->shape[1];
    float *change = block->change + at * block->cols;
    if (in_out) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t r = 0; r < rank; r++) block->left[i * rank + r] = (float)tensor_get(lora->a, r * in + first + i);
    } else {
        TRY(tensor_download(lora->b, first * rank, n * rank, block->left));
    }
    block->factors->shape[0] = n;
    block->factors->shape[1] = rank;
    Tensor delta = matrix_rows(block->delta, at, at + n);
    TRY(tensor_upload(block->factors, 0, n * rank, block->left));
    TRY(tensor_upload(&delta, 0, n * block->cols, change));
    tensor_device(block->delta)
        ->matmul(&(Matmul){
            .a = block->factors, .b = in_out ? lora->b : lora->a, .c = &delta, .transpose_b = in_out, .alpha = scale * lora->scale, .beta = 1});
    return tensor_download(&delta, 0, n * block->cols, change);
}

/* The same for all rows of the block, which may be of several experts. */
static Status add_changes(const Model *adapted, size_t module, bool in_out, double scale, Block *block) {
    LoraBranch lora;
    Tensor parts[2];
    int64_t n_experts = module_experts(adapted, module), each = tensor_rows(module_tensor(adapted, module, false)) / n_experts,
            end = block->first + block->n;
    for (int64_t row = block->first, n; row < end; row += n) {
        n = MIN(end, (row / each + 1) * each) - row;
        if (module_change(adapted, module, row / each, &lora, parts)) TRY(add_lora(&lora, in_out, scale, row % each, n, row - block->first, block));
    }
    return ST_OK;
}

static Status add_saved(const Tensor *saved, double weight, int64_t first, Block *block) {
    float buffer[2048];
    for (int64_t at = 0, n; at < block->n * block->cols; at += n) {
        n = block->n * block->cols - at;
        const float *trained = tensor_piece(saved, first + at, &n, buffer, sizeof buffer), *base = block->base + at;
        float *change = block->change + at;
        if (!trained) return ST_RESOURCE;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) change[i] += (float)(weight * ((double)trained[i] - (double)base[i]));
    }
    return ST_OK;
}

Status block_new(const Merge *merge, Arena *arena, size_t module, int64_t rows, int64_t cols, Block *block) {
    int64_t n = MAX(1, MIN(rows, BLOCK_ELEMENTS / MAX(cols, 1))), rank = 1;
    for (size_t i = 0; i < merge->config->n_adapters; i++) {
        LoraBranch lora;
        Tensor parts[2];
        if (module_change(merge->adapted[i], module, 0, &lora, parts)) rank = MAX(rank, lora.a->shape[0]);
    }
    *block = (Block){.cols = cols, .n = n};
    block->base = arena_alloc(arena, (size_t)(n * cols) * sizeof(float));
    block->left = arena_alloc(arena, (size_t)(n * rank) * sizeof(float));
    block->rows = arena_alloc(arena, (size_t)n * sizeof *block->rows);
    block->change = arena_zero(arena, (size_t)(n * cols) * sizeof(float));
    if (!block->base || !block->left || !block->rows || !block->change) return ST_RESOURCE;
    block->factors = tensor_view(arena, merge->base->device, DT_F32, 2, (int64_t[]){n, rank}, block->left);
    block->delta = tensor_view(arena, merge->base->device, DT_F32, 2, (int64_t[]){n, cols}, block->change);
    return block->factors && block->delta ? ST_OK : ST_RESOURCE;
}

/* The change from W to magnitude / norm * (W + scale B A), whose scale B A is in block->change. */
static void scale_by_magnitude(const Tensor *magnitude, bool in_out, Block *block) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < block->n; r++)
        for (int64_t c = 0; c < block->cols; c++) {
            const int64_t o = in_out ? c : block->first + r, i = r * block->cols + c;
            const double factor = block->norms[o] == 0 ? 0 : tensor_get(magnitude, o) / block->norms[o];
            block->change[i] = (float)((factor - 1) * (double)block->base[i] + factor * (double)block->change[i]);
        }
}

Status block_find_norms(const Merge *merge, size_t module, Arena *arena, Block *block) {
    const Tensor *magnitude = module_magnitude(merge->adapted[0], module);
    if (!magnitude) return ST_OK;
    const Tensor *weight = module_tensor(merge->base, module, false);
    const int64_t rows = tensor_rows(weight), step = block->n;
    double *squares = arena_zero(arena, (size_t)tensor_count(magnitude) * sizeof *squares);
    if (!squares) return ST_RESOURCE;
    for (int64_t first = 0; first < rows; first += step) {
        TRY(block_fill(merge, module, false, first, MIN(step, rows - first), block));
        for (int64_t i = 0; i < block->n * block->cols; i++) {
            double sum = (double)block->base[i] + (double)block->change[i];
            squares[weight->in_out ? i % block->cols : first + i / block->cols] += sum * sum;
        }
    }
    for (int64_t o = 0; o < tensor_count(magnitude); o++) squares[o] = sqrt(squares[o]);
    block->norms = squares;
    block->n = step;
    return ST_OK;
}

Status block_fill(const Merge *merge, size_t module, bool bias, int64_t first, int64_t n, Block *block) {
    const Tensor *tensor = module_tensor(merge->base, module, bias);
    int64_t at = first * block->cols;
    int worst = ST_OK;
    block->first = first;
    block->n = n;
    block->delta->shape[0] = n;
    memset(block->change, 0, (size_t)(n * block->cols) * sizeof *block->change);
#pragma omp parallel for schedule(static) reduction(max : worst)
    for (int64_t i = 0; i < n; i++) {
        int converted = (int)tensor_floats(tensor, at + i * block->cols, block->cols, block->base + i * block->cols);
        worst = MAX(worst, converted);
    }
    Status status = (Status)worst;
    for (size_t k = 0; k < merge->config->n_adapters && status == ST_OK; k++) {
        double weight = merge->config->adapters[k].weight;
        const Tensor *saved = module_saved(merge->adapted[k], module, bias);
        if (saved) status = add_saved(saved, weight, at, block);
        if (!bias && status == ST_OK) status = add_changes(merge->adapted[k], module, tensor->in_out, weight, block);
        if (!bias && status == ST_OK && block->norms) scale_by_magnitude(module_magnitude(merge->adapted[k], module), tensor->in_out, block);
    }
    return status;
}

/* base + delta in f32, rounded once to the stored dtype. Returns the largest distance from the sum; infinite if a value exceeds the dtype's range. */
static double block_round(Block *block, DType dtype, uint8_t *stored) {
    double error = 0;
    size_t cols = (size_t)block->cols;
#pragma omp parallel for schedule(static) reduction(max : error)
    for (int64_t r = 0; r < block->n; r++) {
        RoundingLoss row = {0};
        const float *values = block->base + r * block->cols, *delta = block->change + r * block->cols;
        for (size_t i = 0; i < cols;) {
            float sums[ROUNDING_PIECE];
            size_t n = MIN(cols - i, COUNT_OF(sums));
            for (size_t j = 0; j < n; j++) sums[j] = values[i + j] + delta[i + j];
            double distance = round_sums(sums, values + i, delta + i, n, dtype, stored + dtype_bytes(dtype, r * block->cols + (int64_t)i), &row);
            error = MAX(error, distance);
            i += n;
        }
        block->rows[r] = row;
    }
    return error;
}

/* Copies the bytes unchanged, piece by piece: only one piece of the mapped file is in memory at a time. */
static void copy_bytes(const Model *model, const void *data, size_t bytes, SafetensorsWriter *writer) {
    const size_t most = (size_t)8 << 20;
    for (size_t at = 0; at < bytes; at += most) {
        const uint8_t *piece = (const uint8_t *)data + at;
        safetensors_write(writer, piece, MIN(most, bytes - at));
        model_drop_pages(model, piece, MIN(most, bytes - at));
    }
}

/* What the file has of a tensor of the base; NULL: it is new. */
static const StoredTensor *stored_of(const Merge *merge, const Tensor *tensor) {
    return tensor->name ? weight_file_find(merge->base->files, tensor->name) : NULL;
}

static Status write_job(Merge *merge, const Job *job, SafetensorsWriter *writer) {
    if (job->passthrough) {
        copy_bytes(merge->base, job->passthrough->data, job->passthrough->bytes, writer);
        return ST_OK;
    }
    const Tensor *tensor = module_tensor(merge->base, job->module, job->bias);
    int64_t cols = tensor_width(tensor), rows = tensor_rows(tensor);
    const StoredTensor *file = stored_of(merge, tensor);
    if (!job->result->changed && tensor->dtype == job->dtype) {
        if (file && !stored_is_quantised(file) && file->dtype == job->dtype)
            copy_bytes(merge->base, file->data, file->bytes, writer);
        else
            safetensors_write_tensor(writer, tensor, job->dtype);
        return ST_OK;
    }
    Arena *arena = arena_new(0);
    if (!arena) return status_fail(ST_RESOURCE, "out of memory for '%s'", job->name);
    Block block;
    Status status = block_new(merge, arena, job->module, rows, cols, &block);
    if (status == ST_OK && job->result->changed && !job->bias) status = block_find_norms(merge, job->module, arena, &block);
    int64_t step = block.n;
    uint8_t *stored = status == ST_OK ? arena_alloc(arena, dtype_bytes(job->dtype, step * cols)) : NULL;
    if (!stored) status = ST_RESOURCE;
    for (int64_t first = 0; status == ST_OK && first < rows; first += step) {
        status = block_fill(merge, job->module, job->bias, first, MIN(step, rows - first), &block);
        if (status != ST_OK) break;
        job->result->error = MAX(job->result->error, block_round(&block, job->dtype, stored));
        for (int64_t r = 0; r < block.n && job->result->changed; r++) rounding_add(&merge->loss, &block.rows[r]);
        safetensors_write(writer, stored, dtype_bytes(job->dtype, block.n * cols));
        if (isfinite(job->result->error)) continue;
        status = status_fail(ST_NUMERIC, "a merged value of tensor '%s' does not fit into %s", job->name, dtype_name(job->dtype));
        status_hint(status, "f32 and bf16 hold larger values");
    }
    arena_free(arena);
    return status;
}

/* ---- files ---- */

static Status write_jobs(Merge *merge, size_t file, SafetensorsWriter *writer) {
    for (size_t i = 0; i < merge->n_jobs; i++) {
        const Job *job = &merge->jobs[i];
        if (job->file != file) continue;
        const Tensor *tensor = job->passthrough ? NULL : module_tensor(merge->base, job->module, job->bias);
        if (job->passthrough)
            safetensors_declare_as(writer, job->passthrough);
        else
            safetensors_declare(writer, job->name, job->dtype, tensor->n_dims, tensor->shape);
    }
    for (size_t i = 0; i < merge->n_jobs && !safetensors_failed(writer); i++) {
        const Job *job = &merge->jobs[i];
        if (job->file != file) continue;
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted, nothing was written");
        TRY(write_job(merge, job, writer));
        const StoredTensor *read = job->passthrough ? NULL : stored_of(merge, module_tensor(merge->base, job->module, job->bias));
        if (read) model_drop_pages(merge->base, read->data ? read->data : read->codes, read->data ? read->bytes : read->codes_bytes);
        merge->n_written++;
        if (merge->config->on_tensor) merge->config->on_tensor(merge->config->context, merge->n_written, merge->n_jobs);
    }
    return ST_OK;
}

/* The name of a file of the base; GGUF files get names of safetensors. */
static const char *file_name(const Merge *merge, size_t file) {
    const WeightFile *files = merge->base->files;
    if (!text_ends_with(files->files[file], ".gguf")) return path_name(files->files[file]);
    return files->n_files == 1 ? "model.safetensors" : arena_printf(merge->arena, "model-%05zu-of-%05zu.safetensors", file + 1, files->n_files);
}

static Status write_file(Merge *merge, size_t file) {
    const char *path = path_join(merge->arena, merge->made, file_name(merge, file));
    if (!path) return ST_RESOURCE;
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    Status status = write_jobs(merge, file, writer);
    if (status == ST_OK) return safetensors_commit(writer);
    safetensors_abandon(writer);
    return status;
}

static uint64_t all_bytes(const Merge *merge) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < merge->n_jobs; i++) {
        const Job *job = &merge->jobs[i];
        bytes +=
            job->passthrough ? job->passthrough->bytes : dtype_bytes(job->dtype, tensor_count(module_tensor(merge->base, job->module, job->bias)));
    }
    return bytes;
}

static Status write_index(const Merge *merge) {
    IndexedTensor *tensors = arena_alloc(merge->arena, merge->n_jobs * sizeof *tensors);
    if (!tensors) return ST_RESOURCE;
    for (size_t i = 0; i < merge->n_jobs; i++) {
        tensors[i] = (IndexedTensor){merge->jobs[i].name, file_name(merge, merge->jobs[i].file)};
        if (!tensors[i].file) return ST_RESOURCE;
    }
    return safetensors_write_index(merge->made, tensors, merge->n_jobs, all_bytes(merge));
}

/* The model gets the template that an adapter was trained with: that of the first adapter that has one. */
static Status write_template(const Merge *merge) {
    const MergeConfig *config = merge->config;
    ChatTemplate *base, *own;
    TRY(chat_template_load(merge_target(config), NULL, NULL, &base));
    Slice before = base ? chat_template_source(base, false) : (Slice){0};
    Status status = ST_OK;
    bool found = false;
    for (size_t k = 0; k < config->n_adapters && status == ST_OK && !found; k++) {
        status = chat_template_load(merge_target(config), config->adapters[k].dir, NULL, &own);
        if (status != ST_OK || !own) continue;
        Slice source = chat_template_source(own, false);
        found = source.len != before.len || memcmp(source.data, before.data, source.len) != 0;
        if (found) status = chat_template_save(own, merge->made);
        chat_template_free(own);
    }
    chat_template_free(base);
    return status;
}

static Status write_directory(Merge *merge) {
    const WeightFile *files = merge->base->files;
    for (size_t f = 0; f < files->n_files; f++) TRY(write_file(merge, f));
    if (files->n_files > 1 || strcmp(file_name(merge, 0), "model.safetensors") != 0) TRY(write_index(merge));
    TRY(model_copy_files(merge_target(merge->config), merge->made));
    TRY(write_template(merge));
    DType dtype = merge->config->convert ? merge->config->dtype : merge->base->config.stored_dtype;
    return model_copy_config(merge_target(merge->config), merge->made, dtype,
                             (merge->base->head && merge->base->head != merge->base->embed) || merge->untie,
                             merge->base->score ? merge->base->config.family->class_name : NULL);
}

/* ---- from start to end ---- */

/* Only a model directory is ever replaced: --force with a wrong path must not delete a user's files. */
static Status check_output(const Merge *merge) {
    const MergeConfig *config = merge->config;
    if (file_exists(config->output)) return status_fail(ST_CONFIG, "output '%s' is a file", config->output);
    if (!dir_exists(config->output)) return ST_OK;
    bool input = same_folder(config->output, config->base) || (config->onto && same_folder(config->output, config->onto));
    for (size_t i = 0; i < config->n_adapters; i++) input |= same_folder(config->output, config->adapters[i].dir);
    if (input) return status_fail(ST_CONFIG, "output '%s' is one of the inputs", config->output);
    if (!config->force) {
        status_fail(ST_CONFIG, "output '%s' is there already", config->output);
        return status_hint(ST_CONFIG, "choose another one, or --force, which keeps the old one as NAME.1");
    }
    if (path_inside(".", config->output)) return status_fail(ST_CONFIG, "output '%s' cannot be replaced: the program runs in it", config->output);
    const char *settings = path_join(merge->arena, config->output, "config.json");
    if (!settings) return ST_RESOURCE;
    return file_exists(settings) ? ST_OK : status_fail(ST_CONFIG, "output '%s' is there already and is no model: it is not replaced", config->output);
}

/* Whether one of the adapters is a reward model's. */
static Status find_scores(Merge *merge) {
    ModelConfig base;
    TRY(model_config_read(merge_target(merge->config), merge->arena, &base));
    merge->scores = base.scores;
    for (size_t i = 0; i < merge->config->n_adapters; i++) {
        LoraConfig lora;
        TRY(adapter_config_read(merge->config->adapters[i].dir, merge->arena, &lora));
        merge->scores |= module_matches("score", lora.saved, lora.n_saved);
    }
    return ST_OK;
}

/* A sum with another adapter, or a part of the change, is not DoRA any more. */
static Status check_dora(const Merge *merge) {
    const MergeConfig *config = merge->config;
    for (size_t i = 0; i < config->n_adapters; i++) {
        if (!merge->adapted[i]->lora.use_dora || (config->n_adapters == 1 && config->adapters[i].weight == 1)) continue;
        status_fail(ST_CONFIG, "the adapter in '%s' is DoRA: it is merged alone, with weight 1", config->adapters[i].dir);
        return status_hint(ST_CONFIG, "merge it first, and other adapters into the result");
    }
    return ST_OK;
}

/* Tells when an adapter was trained on other values than it is merged into. */
static Status check_base(const Merge *merge) {
    const MergeConfig *config = merge->config;
    char own[SHA256_TEXT] = "";
    for (size_t i = 0; i < config->n_adapters && !config->onto; i++) {
        const char *base, *digest;
        TRY(adapter_base_digest(config->adapters[i].dir, merge->arena, &base, &digest));
        if (digest[0] && !own[0]) TRY(model_base_digest(merge->base, own));
        if (digest[0] && strcmp(digest, own) != 0)
            log_message(LOG_WARNING,
                        "the adapter in '%s' was trained on other weights than those in '%s' (tune_base): the result computes something else; it was "
                        "trained on '%s', and tune merge %s ... --onto %s prints by how much",
                        config->adapters[i].dir, config->base, base, base, config->base);
    }
    return ST_OK;
}

static Status load_all(Merge *merge) {
    const MergeConfig *config = merge->config;
    ModelOptions options = {.device = config->runtime.device, .compute = config->runtime.compute, .streamed = true};
    TRY(find_scores(merge));
    options.scores = merge->scores;
    merge->adapted = arena_zero(merge->arena, (config->n_adapters + 1) * sizeof *merge->adapted);
    if (!merge->adapted) return ST_RESOURCE;
    TRY(model_load(merge_target(config), &options, &merge->base));
    /* the base has no score, so only the adapters give one */
    if (merge->scores && !merge->base->config.scores) tensor_device(merge->base->score)->fill(merge->base->score, 0);
    options.skip_nan_check = true; /* one message is enough */
    for (size_t i = 0; i < config->n_adapters; i++) {
        TRY(model_load(merge_target(config), &options, &merge->adapted[i]));
        TRY(adapter_load(merge->adapted[i], config->adapters[i].dir, false));
    }
    TRY(check_base(merge));
    return check_dora(merge);
}

static Status write_output(void *context, const char *made) {
    Merge *merge = context;
    merge->made = made;
    TRY(check_output(merge)); /* another process may have created it meanwhile */
    TRY(dir_check_space(made, all_bytes(merge)));
    TRY(write_directory(merge));
    merge->result->quantised = weight_file_is_quantised(merge->base->files);
    if (merge->result->quantised) TRY(merge_requantise(merge));
    merge->result->proved = merge->config->prove || merge->config->onto || merge->result->quantised;
    return merge->result->proved ? merge_prove(merge) : ST_OK;
}

static Status merge_build(Merge *merge) {
    Str kept = {0};
    Status status = dir_build_with_backup(merge->config->output, write_output, merge, &kept);
    if (status == ST_OK && kept.len > 0) {
        merge->result->kept = arena_strdup(merge->result->arena, str_text(&kept));
        if (!merge->result->kept) status = ST_RESOURCE;
    }
    str_release(&kept);
    return status;
}

static Status sft_merge_run(Merge *merge) {
    TRY(check_output(merge));
    TRY(load_all(merge));
    TRY(list_jobs(merge));
    TRY(merge_build(merge));
    merge->result->delta_lost = rounding_lost(&merge->loss);
    merge->result->unmoved = rounding_unmoved(&merge->loss);
    return ST_OK;
}

Status merge_run(const MergeConfig *config, MergeResult **result) {
    Merge merge = {.config = config, .arena = arena_new(0)};
    *result = NULL;
    merge.result = calloc(1, sizeof *merge.result);
    if (merge.result) merge.result->arena = arena_new(0);
    Status status = merge.arena && merge.result && merge.result->arena ? sft_merge_run(&merge) : status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; merge.adapted && i < config->n_adapters; i++) model_free(merge.adapted[i]);
    model_free(merge.base);
    arena_free(merge.arena);
    if (status != ST_OK) {
        merge_free(merge.result);
        return status;
    }
    for (size_t i = 0; i < merge.result->n; i++)
        if (!merge.result->worst || merge.result->tensors[i].error > merge.result->worst->error) merge.result->worst = &merge.result->tensors[i];
    merge.result->scores = merge.scores;
    *result = merge.result;
    return ST_OK;
}

void merge_free(MergeResult *result) {
    if (!result) return;
    arena_free(result->arena);
    free(result);
}
