/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a quantisation: checks, the plan, one decoder layer after the other, the comparison with the original. */
#include "lib/deploy/compress/ptq_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/system.h"
#include "lib/base/work.h"

/* ---- parts of the model ---- */

int64_t ptq_layer_of(const Model *model, const char *path) {
    const char *names = model->config.family->names->layers, *dot = strrchr(names, '.'), *layers = dot ? dot + 1 : names;
    const size_t n = strlen(layers);
    for (const char *at = strstr(path, layers); at; at = strstr(at + 1, layers))
        if ((at == path || at[-1] == '.') && at[n] == '.' && at[n + 1] >= '0' && at[n + 1] <= '9') return strtoll(at + n + 1, NULL, 10);
    return -1;
}

int ptq_block_of(const Model *model, const Linear *linear, const Sublayer **sublayer) {
    for (int64_t l = 0; l < model->config.num_hidden_layers; l++)
        for (int i = 0; i < model->layers[l].n_sublayers; i++) {
            const Sublayer *its = &model->layers[l].sublayers[i];
            const uintptr_t block = (uintptr_t)its->block, place = (uintptr_t)linear;
            if (place < block || place >= block + its->kind->bytes) continue;
            if (sublayer) *sublayer = its;
            return its->kind == &block_attention ? 0 : its->kind == &block_gated_mlp || its->kind == &block_mlp ? 1 : -1;
        }
    return -1;
}

Grid ptq_grid(const Ptq *ptq, const Linear *linear) {
    const PtqConfig *config = ptq->config;
    const bool int8 = ptq->method->rounds_inputs;
    return (Grid){.kind = int8                ? GRID_INT8
                          : config->symmetric ? GRID_SYMMETRIC
                                              : GRID_ASYMMETRIC,
                  .bits = int8 ? 8 : config->bits,
                  .group = int8 || ptq->report->group == 0 ? linear->in : ptq->report->group,
                  .scales = ptq->scales};
}

/* Routers and layers of all experts together stay as stored. */
static bool is_chosen(const Ptq *ptq, const Linear *linear) {
    const PtqConfig *config = ptq->config;
    if (linear->copies || (linear->only_named && !linear->together) || ptq_layer_of(ptq->model, linear->path) < 0) return false;
    return config->n_skip == 0 || !module_matches(linear->path, config->skip, config->n_skip);
}

/* ---- checks ---- */

/* The folder that the output will be in: "." without a slash in its name. NULL: out of memory. */
static const char *parent_of(Arena *arena, const char *path) {
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    return n == 0 ? "." : arena_strndup(arena, path, n);
}

/* Only a model directory is ever replaced, and never one that something of this run is in. */
static Status check_output(const Ptq *ptq) {
    const PtqConfig *config = ptq->config;
    const char *parent = parent_of(ptq->arena, config->output), *settings = path_join(ptq->arena, config->output, "config.json");
    if (!parent || !settings) return ST_RESOURCE;
    if (file_exists(config->output)) return status_fail(ST_CONFIG, "output '%s' is a file", config->output);
    if (path_inside(parent, config->model)) return status_fail(ST_CONFIG, "output '%s' is inside the model", config->output);
    if (!dir_exists(config->output)) return ST_OK;
    if (path_inside(config->output, config->model)) return status_fail(ST_CONFIG, "output '%s' is the model itself", config->output);
    if (path_inside(config->model, config->output)) return status_fail(ST_CONFIG, "output '%s' has the model in it", config->output);
    if (!config->force) {
        status_fail(ST_CONFIG, "output '%s' is there already", config->output);
        return status_hint(ST_CONFIG, "choose another one, or --force, which keeps the old one as NAME.1");
    }
    if (path_inside(".", config->output)) return status_fail(ST_CONFIG, "output '%s' cannot be replaced: the program runs in it", config->output);
    return file_exists(settings) ? ST_OK : status_fail(ST_CONFIG, "output '%s' is there already and is no model: it is not replaced", config->output);
}

static Status check_settings(const PtqConfig *config, const PtqMethod *method) {
    const bool bias = config->bias_correction && strcmp(config->bias_correction, "none") != 0;
    if (!method) return status_fail(ST_USAGE, "there is no method '%s'", config->method);
    if (!ptq_format_named(config->format)) return status_fail(ST_USAGE, "there is no format '%s'", config->format);
    if (method->rounds_inputs ? config->bits != 8 : config->bits != 2 && config->bits != 3 && config->bits != 4 && config->bits != 8) {
        status_fail(ST_USAGE, "%s cannot make weights of %d bits", config->method, config->bits);
        return status_hint(ST_USAGE, method->rounds_inputs ? "int8 has 8 bits" : "bits are 2, 3, 4 or 8");
    }
    if (config->n_rows > 0 || !(method->needs_rows || bias)) return ST_OK;
    status_fail(ST_USAGE, "%s needs calibration rows", bias && !method->needs_rows ? "a correction of biases" : config->method);
    return status_hint(ST_USAGE, "name them with --rows FILE");
}

static Status check_base(const Model *model) {
    if (model->config.scores) return status_fail(ST_CONFIG, "'%s' is a reward model: only language models can be quantised", model->dir);
    if (model->config.in_out_weights)
        return status_fail(ST_CONFIG, "weights of %s are stored (in, out), which no format here holds", model->config.model_type);
    for (size_t i = 0; i < model->files->n; i++) {
        const StoredTensor *stored = &model->files->tensors[i];
        if (!stored_is_quantised(stored)) continue;
        status_fail(ST_USAGE, "'%s' is quantised already; quantising twice adds both errors", stored->name);
        return status_hint(ST_USAGE, "start from the original");
    }
    return ST_OK;
}

static Status check_skip(const Ptq *ptq) {
    for (size_t k = 0; k < ptq->config->n_skip; k++) {
        bool found = strcmp(ptq->config->skip[k], "lm_head") == 0; /* the head always stays as it is */
        for (size_t i = 0; i < ptq->model->n_linears && !found; i++) found = module_matches(ptq->model->linears[i]->path, &ptq->config->skip[k], 1);
        if (!found) return status_fail(ST_USAGE, "'%s' of --skip matches no linear layer of '%s'", ptq->config->skip[k], ptq->model->dir);
    }
    return ST_OK;
}

/* The first chosen layer whose rows this group does not divide; NULL: it divides all. */
static const Linear *undivided(const Ptq *ptq, int64_t group) {
    for (size_t i = 0; i < ptq->model->n_linears; i++)
        if (is_chosen(ptq, ptq->model->linears[i]) && ptq->model->linears[i]->in % group != 0) return ptq->model->linears[i];
    return NULL;
}

static Status choose_group(Ptq *ptq) {
    const int64_t asked = ptq->config->group;
    static const int64_t usual[] = {128, 64, 32};
    int64_t fits = 0;
    for (size_t i = 0; i < COUNT_OF(usual) && fits == 0; i++)
        if (!undivided(ptq, usual[i])) fits = usual[i];
    ptq->report->group = asked == PTQ_GROUP_AUTO ? fits : asked == PTQ_GROUP_ROW ? 0 : asked;
    if (ptq->method->rounds_inputs) ptq->report->group = 0;
    if (asked < PTQ_GROUP_ROW) return status_fail(ST_USAGE, "groups of %lld inputs", (long long)asked);
    const Linear *odd = ptq->report->group > 0 ? undivided(ptq, ptq->report->group) : NULL;
    if (!odd) return ST_OK;
    status_fail(ST_USAGE, "groups of %lld inputs do not divide the %lld inputs of '%s'", (long long)asked, (long long)odd->in, odd->path);
    return fits ? status_hint(ST_USAGE, "--group %lld does, and -1 is a whole row", (long long)fits)
                : status_hint(ST_USAGE, "--group -1 is a whole row");
}

/* Families whose config.json can add biases to layers that have none by default. Source: the configurations of transformers. */
static void choose_biases(Ptq *ptq) {
    static const char *const attention[] = {"llama", "granite", "smollm3", "qwen3", "olmo2", "gemma2"}, *const both[] = {"llama", "granite",
                                                                                                                         "smollm3"};
    const char *kind = ptq->config->bias_correction, *family = ptq->model->config.model_type;
    if (!kind || strcmp(kind, "none") == 0 || ptq->model->config.wrapper) return;
    for (size_t i = 0; i < COUNT_OF(attention); i++) ptq->adds_bias[0] |= strcmp(family, attention[i]) == 0;
    for (size_t i = 0; i < COUNT_OF(both); i++) ptq->adds_bias[1] |= strcmp(family, both[i]) == 0;
}

static DType scale_dtype(const Model *model) {
    const DType stored = model->config.stored_dtype;
    return stored == DT_BF16 || stored == DT_F16 ? stored : DT_F32;
}

static int same_ids(const IdRow *a, const IdRow *b) { return a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0; }

static void tell_of_rows(const PtqConfig *config) {
    enum { FEW_TOKENS = 4096 };
    int64_t tokens = 0, equal = 0;
    for (size_t r = 0; r < config->n_rows; r++) {
        bool found = false;
        for (size_t k = 0; k < r && !found; k++) found = same_ids(&config->rows[k], &config->rows[r]);
        equal += found;
        tokens += (int64_t)config->rows[r].n;
    }
    if (config->n_rows > 0 && tokens < FEW_TOKENS)
        log_message(LOG_WARNING, "%lld calibration tokens are few: with fewer than %d the result depends on which they are", (long long)tokens,
                    FEW_TOKENS);
    if (equal > 0)
        log_message(LOG_WARNING, "%lld of %zu calibration rows %s equal to an earlier one, and %s nothing", (long long)equal, config->n_rows,
                    equal == 1 ? "is" : "are", equal == 1 ? "adds" : "add");
}

/* The number of the layers that vLLM joins into one, as qkv_proj and gate_up_proj; -1: it joins this one with no other. */
static int joined_number(const char *path) {
    static const char *const joined[][3] = {{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj", ""}};
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    for (int number = 0; number < (int)COUNT_OF(joined); number++)
        for (int i = 0; i < 3; i++)
            if (strcmp(name, joined[number][i]) == 0) return number;
    return -1;
}

static void tell_of_skipped(const PtqReport *report) {
    for (size_t i = 1; i < report->n_layers; i++) {
        const PtqLayer *before = &report->layers[i - 1], *layer = &report->layers[i];
        if (before->layer != layer->layer || before->quantised == layer->quantised || joined_number(layer->path) < 0 ||
            joined_number(before->path) != joined_number(layer->path))
            continue;
        log_message(LOG_WARNING, "of '%s' and '%s' only one is quantised: vLLM joins them, and refuses such a model", before->path, layer->path);
        return;
    }
}

/* ---- the plan ---- */

static Status list_layers(Ptq *ptq) {
    PtqReport *report = ptq->report;
    report->n_layers = ptq->model->n_linears;
    report->layers = arena_zero(report->arena, (report->n_layers + 1) * sizeof *report->layers);
    if (!report->layers) return ST_RESOURCE;
    double bits = 0, weights = 0;
    const double none = (double)NAN;
    for (size_t i = 0; i < report->n_layers; i++) {
        const Linear *linear = ptq->model->linears[i];
        report->layers[i] = (PtqLayer){.path = arena_strdup(report->arena, linear->path),
                                       .layer = ptq_layer_of(ptq->model, linear->path),
                                       .quantised = is_chosen(ptq, linear),
                                       .damp = none,
                                       .loss = none,
                                       .ratio = none,
                                       .bound = none,
                                       .error = none,
                                       .rtn_error = none};
        if (!report->layers[i].path) return ST_RESOURCE;
        if (!report->layers[i].quantised) continue;
        const Grid grid = ptq_grid(ptq, linear);
        const double count = (double)(linear->out * linear->in), zeros = grid.kind == GRID_ASYMMETRIC || ptq->format->keeps_zeros ? grid.bits : 0;
        bits += count * (grid.bits + ((double)dtype_bytes(ptq->scales, 1) * 8 + zeros) / (double)grid.group);
        weights += count;
        report->n_quantised++;
    }
    report->bits = weights > 0 ? bits / weights : 0;
    report->tied = ptq->model->head == ptq->model->embed;
    return report->n_quantised > 0 ? ST_OK : status_fail(ST_USAGE, "no linear layer of '%s' is left to quantise", ptq->model->dir);
}

/* ---- a decoder layer ---- */

static Status open_matrix(Ptq *ptq, size_t i) {
    Linear *linear = ptq->model->linears[i];
    PtqMatrix *matrix = &ptq->matrices[ptq->n_matrices++];
    const Grid grid = ptq_grid(ptq, linear);
    *matrix = (PtqMatrix){.linear = linear,
                          .report = &ptq->report->layers[i],
                          .stored = weight_file_find(ptq->model->files, linear->weight->name),
                          .weight = arena_alloc(ptq->layer_arena, (size_t)(linear->out * linear->in) * sizeof(double)),
                          .weight_before = linear->weight,
                          .bias_before = linear->bias};
    if (!matrix->weight) return ST_RESOURCE;
    tensor_read(linear->weight, matrix->weight);
    if (matrix->stored) model_drop_pages(ptq->model, matrix->stored->data, matrix->stored->bytes);
    return codes_new(ptq->layer_arena, &grid, linear->out, linear->in, &matrix->codes);
}

static Status open_layer(Ptq *ptq, int64_t layer) {
    ptq->layer = layer;
    ptq->n_matrices = 0;
    ptq->n_inputs = ptq->n_plain = 0;
    ptq->matrices = arena_alloc(ptq->layer_arena, (ptq->model->n_linears + 1) * sizeof *ptq->matrices);
    if (!ptq->matrices) return ST_RESOURCE;
    for (size_t i = 0; i < ptq->report->n_layers; i++)
        if (ptq->report->layers[i].layer == layer && ptq->report->layers[i].quantised) TRY(open_matrix(ptq, i));
    return ST_OK;
}

static void close_layer(Ptq *ptq) {
    for (size_t i = 0; i < ptq->n_matrices; i++) {
        ptq->matrices[i].linear->weight = ptq->matrices[i].weight_before;
        ptq->matrices[i].linear->bias = ptq->matrices[i].bias_before;
    }
    ptq->n_matrices = 0;
    arena_reset(ptq->layer_arena);
    arena_reset(ptq->inputs_arena);
}

static Status quantise_inputs(Ptq *ptq, PtqInputs *inputs) {
    for (int m = 0; m < inputs->n; m++)
        if (!inputs->matrices[m]->done) TRY(ptq_quantise(ptq, inputs, inputs->matrices[m]));
    return ST_OK;
}

static Status quantise_unseen(Ptq *ptq, bool experts) {
    for (size_t i = 0; i < ptq->n_matrices; i++)
        if (!ptq->matrices[i].done && (!experts || ptq->matrices[i].linear->together)) TRY(ptq_quantise(ptq, NULL, &ptq->matrices[i]));
    return ST_OK;
}

/* Products of the layer one after the other: the inputs of each are made by what is quantised already. */
static Status quantise_in_turn(Ptq *ptq) {
    for (int call = 0;; call++) {
        bool reached;
        TRY(ptq_pass(ptq, call, &reached));
        if (!reached) return ST_OK;
        TRY(quantise_inputs(ptq, &ptq->inputs[call]));
        arena_reset(ptq->inputs_arena);
    }
}

static Status quantise_layer(Ptq *ptq, int64_t layer) {
    TRY(open_layer(ptq, layer));
    if (ptq->n_batches > 0) {
        bool reached;
        if (ptq->method->scales_inputs) TRY(ptq_pass(ptq, PTQ_PLAIN, &reached));
        TRY(quantise_unseen(ptq, true)); /* experts */
        TRY(quantise_in_turn(ptq));
    }
    TRY(quantise_unseen(ptq, false));
    return ptq_write_until(ptq, layer);
}

static Status quantise_layers(Ptq *ptq) {
    const int64_t n = ptq->model->config.num_hidden_layers;
    for (int64_t layer = 0; layer < n; layer++) {
        work_at("quantising, layers", (uint64_t)layer, (uint64_t)n);
        Status status = quantise_layer(ptq, layer);
        close_layer(ptq);
        TRY(status);
        if (ptq->config->on_layer) ptq->config->on_layer(ptq->config->context, ptq->report, layer + 1);
    }
    work_end("quantising, layers");
    return ptq_write_until(ptq, INT64_MAX);
}

static void tell_of_layers(const Ptq *ptq) {
    const PtqReport *report = ptq->report;
    size_t unseen = 0, dead = 0, together = 0, worse = 0;
    for (size_t i = 0; i < report->n_layers; i++) {
        unseen += report->layers[i].quantised && !report->layers[i].by_rows;
        dead += report->layers[i].dead > 0;
        worse += report->layers[i].worse;
        together += ptq->model->linears[i]->copies > 0;
    }
    if (together > 0) log_message(LOG_WARNING, "%zu weights of all experts together stay as they are", together);
    if (unseen > 0 && ptq->method->needs_rows)
        log_message(LOG_WARNING, "%zu layers, whose inputs calibration does not see, are rounded to nearest", unseen);
    if (worse > 0)
        log_message(
            LOG_WARNING,
            "%s is worse than rounding to nearest in %zu of %zu layers, on rows held back; --fallback keeps the better one, and more rows may help",
            ptq->method->name, worse, report->n_quantised);
    if (dead > 0) log_message(LOG_WARNING, "%zu layers have inputs that are 0 in all calibration rows; quantize.json has their numbers", dead);
    if (report->uncorrected > 0)
        log_message(LOG_WARNING, "%zu layers have no bias, and config.json of %s cannot give them one: they are not corrected", report->uncorrected,
                    ptq->model->config.model_type);
}

/* ---- the comparison ---- */

static Tensor *see_rounding(void *context, Tape *tape, const Linear *const *linears, int n, Tensor *x) {
    const Ptq *ptq = context;
    const PtqLayer *layer = &ptq->report->layers[linears[0]->index];
    (void)n;
    return layer->quantised ? ptq_rounded_inputs(tape, x, layer->bound > 0 ? layer->bound : 0) : x;
}

static Status compare_models(Ptq *ptq, const char *made) {
    const PtqConfig *config = ptq->config;
    const ModelOptions options = {
        .device = config->runtime.device, .compute = config->runtime.compute == DT_F64 ? DT_F64 : DT_F32, .skip_nan_check = true};
    const LinearWatch watch = {ptq, see_rounding};
    Model *original, *changed = NULL;
    TRY(model_load(config->model, &options, &original));
    Status status = model_load(made, &options, &changed);
    if (status == ST_OK)
        status =
            models_compare(original, changed, ptq->method->rounds_inputs ? &watch : NULL, config->eval, config->n_eval, &ptq->report->comparison);
    model_free(changed);
    model_free(original);
    TRY(status);
    ptq->report->evaluated = true;
    if (!(config->max_kl > 0) || ptq->report->comparison.kl <= config->max_kl) return ST_OK;
    status_fail(ST_NUMERIC, "the result is too far from the original: KL %.4g nats, not at most %g; nothing was written", ptq->report->comparison.kl,
                config->max_kl);
    return status_hint(ST_NUMERIC, "more bits, smaller groups, --method gptq or more calibration rows bring it closer");
}

/* ---- from start to end ---- */

static Status write_report(const Ptq *ptq, const char *made) {
    JsonWriter w = {0};
    const char *path = path_join(ptq->arena, made, "quantize.json");
    if (!path) return ST_RESOURCE;
    ptq_write_json(ptq->config, ptq->report, &w);
    str_append(&w.text, "\n");
    Status status = file_write_all(path, str_text(&w.text), w.text.len);
    jw_release(&w);
    return status;
}

static void release_work(Ptq *ptq) {
    Arena **arenas[] = {&ptq->work_arena, &ptq->inputs_arena, &ptq->layer_arena};
    ptq_rows_end(ptq);
    for (size_t i = 0; i < COUNT_OF(arenas); i++) {
        arena_free(*arenas[i]);
        *arenas[i] = NULL;
    }
}

static Status write_output(void *context, const char *made) {
    Ptq *ptq = context;
    TRY(check_output(ptq)); /* another process may have created it meanwhile */
    TRY(ptq_write_begin(ptq, made));
    Status status = quantise_layers(ptq);
    if (status != ST_OK) {
        safetensors_abandon(ptq->writer);
        return status;
    }
    TRY(ptq_write_end(ptq, made));
    tell_of_layers(ptq);
    release_work(ptq); /* the comparison needs memory of its own */
    if (ptq->config->n_eval > 0) TRY(compare_models(ptq, made));
    return write_report(ptq, made);
}

static Status open_base(Ptq *ptq) {
    const PtqConfig *config = ptq->config;
    TRY(model_load(config->model, &(ModelOptions){.device = config->runtime.device, .compute = config->runtime.compute, .streamed = true},
                   &ptq->model));
    TRY(check_base(ptq->model));
    TRY(check_skip(ptq));
    ptq->biases = scale_dtype(ptq->model);
    ptq->scales = ptq->format->half_scales ? DT_F16 : ptq->biases;
    TRY(choose_group(ptq));
    choose_biases(ptq);
    if (config->n_rows == 0 || ptq->model->n_shared == 0) return ST_OK;
    status_fail(ST_USAGE, "layers of %s read results of earlier ones: calibration does not run them one by one", ptq->model->config.model_type);
    return status_hint(ST_USAGE, "--method rtn without --rows needs no calibration");
}

/* What the method needs from the system, before the first pass. */
static Status load_library(const Ptq *ptq) {
    const OpenBlas *blas;
    if (strcmp(ptq->method->name, "gptq") != 0) return ST_OK;
    for (size_t i = 0; i < ptq->report->n_layers; i++)
        if (ptq->report->layers[i].quantised) TRY(gptq_load(ptq->model->linears[i]->in, &blas));
    return ST_OK;
}

static Status run_ptq(Ptq *ptq) {
    Str kept = {0};
    TRY(check_settings(ptq->config, ptq->method));
    TRY(check_output(ptq));
    ptq->resident = (size_t)memory_resident();
    TRY(open_base(ptq));
    TRY(list_layers(ptq));
    if (ptq->format->check) TRY(ptq->format->check(ptq));
    tell_of_skipped(ptq->report);
    tell_of_rows(ptq->config);
    if (ptq->config->n_rows > 0) {
        TRY(load_library(ptq));
        TRY(ptq_rows_begin(ptq));
    }
    TRY(ptq_plan(ptq));
    if (ptq->config->on_plan) ptq->config->on_plan(ptq->config->context, ptq->report);
    Status status = dir_build_with_backup(ptq->config->output, write_output, ptq, &kept);
    if (status == ST_OK && kept.len > 0 && !(ptq->report->kept = arena_strdup(ptq->report->arena, str_text(&kept)))) status = ST_RESOURCE;
    str_release(&kept);
    return status;
}

Status ptq_run(const PtqConfig *config, PtqReport **report) {
    Ptq ptq = {.config = config,
               .method = ptq_method_named(config->method),
               .format = ptq_format_named(config->format),
               .arena = arena_new(0),
               .layer_arena = arena_new(0),
               .inputs_arena = arena_new(0),
               .work_arena = arena_new(0),
               .report = calloc(1, sizeof *ptq.report)};
    *report = NULL;
    if (ptq.report) ptq.report->arena = arena_new(0);
    const bool there = ptq.arena && ptq.layer_arena && ptq.inputs_arena && ptq.work_arena && ptq.report && ptq.report->arena;
    Status status = there ? run_ptq(&ptq) : status_fail(ST_RESOURCE, "out of memory");
    work_end("quantising, layers");
    release_work(&ptq);
    json_decref(ptq.settings);
    model_free(ptq.model);
    arena_free(ptq.arena);
    if (status == ST_OK)
        *report = ptq.report;
    else
        ptq_free(ptq.report);
    return status;
}

void ptq_free(PtqReport *report) {
    if (!report) return;
    arena_free(report->arena);
    free(report);
}
