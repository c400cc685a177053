/* SPDX-License-Identifier: Apache-2.0 */
/* The methods, and what they have in common: scales of inputs, errors, corrections of biases. */
#include "lib/deploy/compress/ptq_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/system.h"
#include "lib/deploy/compress/bias.h"
#include "lib/deploy/compress/int8.h"
#include "lib/model/convert.h"

static bool is_method(const Ptq *ptq, const char *name) { return strcmp(ptq->method->name, name) == 0; }

static WeightGroup group_of(const PtqInputs *inputs) {
    WeightGroup group = {.n = inputs->n, .in = inputs->sums.in};
    for (int m = 0; m < inputs->n; m++) {
        group.weights[m] = inputs->matrices[m]->weight;
        group.outs[m] = inputs->matrices[m]->linear->out;
    }
    return group;
}

/* When all rows were seen. */
static Status make_products(const Ptq *ptq, PtqInputs *inputs, Arena *arena) {
    const Model *model = ptq->model;
    input_sums_finish(&inputs->sums);
    input_sums_finish(&inputs->held);
    if (inputs->sums.gram) TRY(gram_products_new(arena, model->device, model->compute, &inputs->sums, &inputs->gram));
    if (inputs->held.gram) return gram_products_new(arena, model->device, model->compute, &inputs->held, &inputs->held_gram);
    inputs->held_gram = inputs->gram;
    return ST_OK;
}

static bool has_products(const PtqInputs *inputs) { return inputs->gram.gram || inputs->held_gram.gram; }

/* The tokens that errors are measured on: a sample for ranges has more. */
static InputSample error_sample(const PtqInputs *inputs) {
    InputSample sample = inputs->held_sample.n > 0 ? inputs->held_sample : inputs->sample;
    sample.n = MIN(sample.n, (int64_t)PTQ_ERROR_TOKENS);
    return sample;
}

/* ---- where scales of inputs go ---- */

static Status check_scales(const Ptq *ptq, const PtqMatrix *matrix) {
    for (int64_t i = 0; i < matrix->codes.out * matrix->codes.n_groups; i++)
        if (!isfinite(matrix->codes.scales[i]))
            return status_hint(status_fail(ST_INPUT, "'%s' row %lld has values too large for scales in %s", matrix->linear->path,
                                           (long long)(i / matrix->codes.n_groups), dtype_name(ptq->scales)),
                               "convert the model to bf16 or f32 first");
    return ST_OK;
}

typedef struct FoldRows {
    PtqMatrix *matrix; /* rows first .. first + in - 1 make the input, one each */
    int64_t first;
} FoldRows;

/* The values are rounded to the stored dtype, and `scales` become what the rounded ones stand for. */
static void fold_norm(Ptq *ptq, const Norm *norm, double *scales) {
    const int64_t n = tensor_count(norm->weight);
    const double offset = ptq->model->config.norm_offset;
    const StoredTensor *stored = norm->weight->name ? weight_file_find(ptq->model->files, norm->weight->name) : NULL;
    for (int64_t i = 0; i < n; i++) {
        const double before = tensor_get(norm->weight, i) + offset;
        double after = before / scales[i] - offset;
        if (stored && (stored->dtype == DT_BF16 || stored->dtype == DT_F16)) {
            uint16_t rounded;
            convert_elements(&after, DT_F64, &rounded, stored->dtype, 1);
            convert_elements(&rounded, stored->dtype, &after, DT_F64, 1);
        }
        tensor_set(norm->weight, i, after);
        if (before != 0 && after + offset != 0) scales[i] = before / (after + offset);
        if (norm->bias) tensor_set(norm->bias, i, tensor_get(norm->bias, i) / scales[i]);
    }
}

/* The rows are quantised already: their scales take the factors. */
static Status fold_rows(Ptq *ptq, const FoldRows *rows, int64_t n, const double *scales) {
    const PtqMatrix *matrix = rows->matrix;
    const Codes *codes = &matrix->codes;
    Tensor *bias = matrix->linear->bias;
    double *values = arena_alloc(ptq->work_arena, (size_t)(codes->out * codes->in) * sizeof *values);
    if (!values) return ST_RESOURCE;
    for (int64_t r = 0; r < n; r++) {
        const int64_t row = rows->first + r;
        for (int64_t g = 0; g < codes->n_groups; g++) {
            double *scale = &codes->scales[row * codes->n_groups + g];
            *scale = scale_rounded(ptq->scales, *scale / scales[r]);
        }
        if (matrix->bias) matrix->bias[row] /= scales[r];
        if (bias) tensor_set(bias, row, tensor_get(bias, row) / scales[r]);
    }
    codes_values(codes, values);
    tensor_write(matrix->linear->weight, values);
    return check_scales(ptq, matrix);
}

/* The rows that make the input of a block's last layer: `up` of a gated feed-forward block, or `v` if each head has its own values. */
static bool rows_before(const Ptq *ptq, const PtqInputs *inputs, FoldRows *rows) {
    const ModelConfig *c = &ptq->model->config;
    const PtqInputs *before = inputs > ptq->inputs ? inputs - 1 : NULL;
    if (!before || before->sublayer != inputs->sublayer || before->n != before->n_readers || before->n == 0) return false;
    const int64_t in = inputs->sums.in, last_out = before->matrices[before->n - 1]->linear->out;
    const bool gated = inputs->sublayer->kind == &block_gated_mlp, heads = inputs->sublayer->kind == &block_attention;
    if (!gated && !(heads && c->num_attention_heads == c->num_key_value_heads && !c->layer_kv)) return false;
    *rows = (FoldRows){before->matrices[before->n - 1], last_out - in}; /* up, and v, are last, also in one weight with the others */
    return last_out == in || before->n == 1;
}

/* Why the input cannot have scales; NULL: it can. rows->matrix NULL: they go into the norm. */
static const char *no_place(const Ptq *ptq, const PtqInputs *inputs, FoldRows *rows) {
    const Sublayer *sublayer = inputs->sublayer;
    *rows = (FoldRows){0};
    if (inputs->n != inputs->n_readers) return "a layer that is not quantised reads them too";
    if (!sublayer || (sublayer->kind != &block_attention && sublayer->kind != &block_gated_mlp && sublayer->kind != &block_mlp))
        return "other parts of the block may read them too";
    if (inputs->first) return sublayer->input_norm.weight ? NULL : "there is no norm before them";
    if (is_method(ptq, "int8")) return "they do not come from a norm";
    return rows_before(ptq, inputs, rows) ? NULL : "nothing before them can take the scales";
}

/* ---- scales of inputs ---- */

/* inputs: of the original model, as in find_smooth. */
static Status find_awq(Ptq *ptq, PtqInputs *inputs, double *scales, bool *better) {
    const WeightGroup group = group_of(inputs);
    const Grid grid = ptq_grid(ptq, inputs->matrices[0]->linear);
    AwqSearch search;
    double with, without, *ones = arena_alloc(ptq->work_arena, (size_t)group.in * sizeof *ones);
    if (!ones) return ST_RESOURCE;
    for (int64_t i = 0; i < group.in; i++) ones[i] = 1;
    TRY(make_products(ptq, inputs, ptq->work_arena));
    TRY(awq_scales(&group, &grid, &inputs->sums, &inputs->gram, true, scales, &search));
    TRY(awq_error(&group, &grid, &inputs->held_gram, scales, &with));
    TRY(awq_error(&group, &grid, &inputs->held_gram, ones, &without));
    inputs->ratio = (double)search.best / AWQ_RATIOS;
    *better = with <= without;
    return ST_OK;
}

/* Alpha is chosen on the sample, and compared with no scales on the rows held back. */
static Status find_smooth(Ptq *ptq, PtqInputs *inputs, double *scales, bool *better) {
    const Runtime *runtime = &ptq->config->runtime;
    const WeightGroup group = group_of(inputs);
    const Grid grid = ptq_grid(ptq, inputs->matrices[0]->linear);
    const InputSample *sample = &inputs->sample, held = error_sample(inputs);
    const int64_t tokens = MIN(sample->n, held.n);
    double least = 0, error, without, *ones = arena_alloc(ptq->work_arena, (size_t)group.in * sizeof *ones);
    if (!ones) return ST_RESOURCE;
    for (int64_t i = 0; i < group.in; i++) ones[i] = 1;
    inputs->ratio = ptq->config->alpha;
    for (int step = 3; step <= 9 && isnan(ptq->config->alpha); step++) {
        smooth_scales(&group, inputs->sums.abs_max, step / 10.0, scales);
        TRY(int8_error(runtime, &group, &grid, sample->x, tokens, scales, &error));
        if (step == 3 || error < least) least = error, inputs->ratio = step / 10.0;
    }
    smooth_scales(&group, inputs->sums.abs_max, inputs->ratio, scales);
    TRY(int8_error(runtime, &group, &grid, held.x, held.n, scales, &error));
    TRY(int8_error(runtime, &group, &grid, held.x, held.n, ones, &without));
    *better = error <= without;
    return ST_OK;
}

static void tell_no_place(const PtqInputs *inputs, const char *why) {
    for (int m = 0; m < inputs->n; m++) inputs->matrices[m]->report->ratio = (double)NAN;
    log_message(LOG_INFO, "the inputs of '%s' get no scales: %s", inputs->matrices[0]->linear->path, why);
}

static Status scale_input(Ptq *ptq, PtqInputs *inputs) {
    FoldRows rows;
    bool better;
    const char *why = no_place(ptq, inputs, &rows);
    if (why) {
        tell_no_place(inputs, why);
        return ST_OK;
    }
    double *scales = arena_alloc(ptq->inputs_arena, (size_t)inputs->sums.in * sizeof *scales);
    if (!scales) return ST_RESOURCE;
    PtqInputs *plain = &ptq->plain[inputs - ptq->inputs];
    TRY(is_method(ptq, "awq") ? find_awq(ptq, plain, scales, &better) : find_smooth(ptq, plain, scales, &better));
    inputs->ratio = plain->ratio;
    arena_reset(ptq->work_arena); /* the search's products are not needed any more */
    if (!better && ptq->config->fallback) {
        inputs->ratio = (double)NAN;
        for (int m = 0; m < inputs->n; m++) inputs->matrices[m]->report->fell_back = true;
        return ST_OK;
    }
    for (int m = 0; m < inputs->n; m++) inputs->matrices[m]->report->worse = !better;
    if (rows.matrix)
        TRY(fold_rows(ptq, &rows, inputs->sums.in, scales));
    else
        fold_norm(ptq, &inputs->sublayer->input_norm, scales);
    inputs->columns = scales;
    for (int m = 0; m < inputs->n; m++) {
        inputs->matrices[m]->columns = scales;
        inputs->matrices[m]->report->ratio = inputs->ratio;
    }
    return ST_OK;
}

/* ---- methods ---- */

/* The weight with scaled columns, in memory of the work on it. NULL: out of memory. */
static double *scaled_weight(Ptq *ptq, const PtqMatrix *matrix) {
    const int64_t in = matrix->linear->in, count = matrix->linear->out * in;
    double *scaled = arena_alloc(ptq->work_arena, (size_t)count * sizeof *scaled);
    for (int64_t at = 0; at < count && scaled; at++) scaled[at] = matrix->weight[at] * (matrix->columns ? matrix->columns[at % in] : 1);
    return scaled;
}

static Status round_nearest(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix) {
    (void)inputs;
    const Grid grid = ptq_grid(ptq, matrix->linear);
    const double *scaled = scaled_weight(ptq, matrix);
    if (!scaled) return ST_RESOURCE;
    codes_round(&grid, scaled, &matrix->codes);
    return ST_OK;
}
const PtqMethod ptq_rtn = {.name = "rtn", .round = round_nearest};

static Status prepare_gptq(Ptq *ptq, PtqInputs *inputs) {
    Str what = {0};
    for (int m = 0; m < inputs->n; m++) str_printf(&what, "%s'%s'", m ? ", " : "", inputs->matrices[m]->linear->path);
    Status status = gptq_factor(&inputs->sums, ptq->config->damp, ptq->config->act_order, str_text(&what), ptq->inputs_arena, &inputs->factor);
    str_release(&what);
    return status;
}

static Status round_gptq(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix) {
    if (!inputs) return round_nearest(ptq, inputs, matrix);
    const Grid grid = ptq_grid(ptq, matrix->linear);
    double *rest = scaled_weight(ptq, matrix);
    if (!rest) return ST_RESOURCE;
    matrix->report->damp = inputs->factor.damp;
    return gptq_round(&inputs->factor, &grid, false, rest, &matrix->codes, &matrix->report->loss);
}
const PtqMethod ptq_gptq = {.name = "gptq", .needs_rows = true, .prepare = prepare_gptq, .round = round_gptq};

/* Queries and keys meet in a product of their own, so their values are not cut. */
static bool is_cut(const Ptq *ptq, const PtqInputs *inputs, const PtqMatrix *matrix) {
    if (ptq->config->no_clip) return false;
    if (inputs->sublayer->kind != &block_attention || !inputs->first) return true;
    return inputs->n == 3 && matrix == inputs->matrices[2];
}

static Status round_awq(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix) {
    if (!inputs || !inputs->sublayer || !is_cut(ptq, inputs, matrix)) return round_nearest(ptq, inputs, matrix);
    const Grid grid = ptq_grid(ptq, matrix->linear);
    const int64_t out = matrix->linear->out, in = matrix->linear->in;
    double *scaled = scaled_weight(ptq, matrix), *ones = arena_alloc(ptq->work_arena, (size_t)in * sizeof *ones),
           *bounds = arena_alloc(ptq->work_arena, (size_t)(out * in / grid.group) * sizeof *bounds);
    if (!scaled || !ones || !bounds) return ST_RESOURCE;
    for (int64_t i = 0; i < in; i++) ones[i] = 1;
    TRY(awq_clips(scaled, out, &grid, &inputs->sums, matrix->columns ? matrix->columns : ones, bounds));
    awq_clip(scaled, out, in, grid.group, bounds);
    codes_round(&grid, scaled, &matrix->codes);
    return ST_OK;
}
const PtqMethod ptq_awq = {.name = "awq", .needs_rows = true, .scales_inputs = true, .prepare = scale_input, .round = round_awq};

static RangeKind range_kind(const char *name) {
    static const char *const names[] = {"absmax", "percentile", "mse", "entropy"};
    for (int i = 0; i < (int)COUNT_OF(names); i++)
        if (strcmp(names[i], name) == 0) return (RangeKind)i;
    return RANGE_ABSMAX;
}

/* The range of the inputs after they were scaled: of all tokens for absmax, else of the sample. */
static Status find_bound(Ptq *ptq, const PtqInputs *inputs, double *bound) {
    const RangeKind kind = range_kind(ptq->config->calibrate);
    const int64_t in = inputs->sums.in;
    *bound = 0;
    for (int64_t i = 0; i < in && kind == RANGE_ABSMAX; i++)
        *bound = MAX(*bound, inputs->sums.abs_max[i] / (inputs->columns ? inputs->columns[i] : 1));
    if (kind == RANGE_ABSMAX) return ST_OK;
    const int64_t count = inputs->sample.n * in;
    float *scaled = arena_alloc(ptq->work_arena, (size_t)count * sizeof *scaled);
    if (!scaled) return ST_RESOURCE;
    for (int64_t at = 0; at < count; at++) scaled[at] = (float)((double)inputs->sample.x[at] / (inputs->columns ? inputs->columns[at % in] : 1));
    return activation_range(kind, scaled, count, 99.99, bound);
}

static Status round_int8(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix) {
    if (inputs && ptq->config->calibrate) {
        if (matrix == inputs->matrices[0])
            TRY(find_bound(ptq, inputs, &matrix->report->bound));
        else
            matrix->report->bound = inputs->matrices[0]->report->bound;
        arena_reset(ptq->work_arena);
        if (!(matrix->report->bound > 0)) {
            log_message(LOG_WARNING, "the inputs of '%s' are 0 in all calibration rows: they get the range 1", matrix->linear->path);
            matrix->report->bound = 1;
        }
    }
    return round_nearest(ptq, inputs, matrix);
}

static Status prepare_int8(Ptq *ptq, PtqInputs *inputs) { return ptq->config->alpha <= 0 ? ST_OK : scale_input(ptq, inputs); }
const PtqMethod ptq_int8 = {
    .name = "int8", .needs_rows = true, .scales_inputs = true, .rounds_inputs = true, .prepare = prepare_int8, .round = round_int8};

static const PtqMethod *const methods[] = {
#define PTQ(name, help) &ptq_##name,
#include "lib/deploy/compress/ptq.def"
#undef PTQ
};

const PtqMethod *ptq_method_named(const char *name) {
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (strcmp(methods[i]->name, name) == 0) return methods[i];
    return NULL;
}

/* ---- what it cost ---- */

/* The rounded weight for the unscaled input: (out, in). */
static void unscaled_values(const PtqMatrix *matrix, const Codes *codes, double *values) {
    const int64_t in = codes->in;
    codes_values(codes, values);
    for (int64_t at = 0; at < codes->out * in && matrix->columns; at++) values[at] /= matrix->columns[at % in];
}

/* The relative error of the outputs with these codes. room: (out, in). */
static Status relative_error(const PtqInputs *inputs, const PtqMatrix *matrix, const Codes *codes, bool scaled, double whole, double *room,
                             double *error) {
    const int64_t count = codes->out * codes->in;
    if (scaled)
        unscaled_values(matrix, codes, room);
    else
        codes_values(codes, room);
    for (int64_t at = 0; at < count; at++) room[at] = matrix->weight[at] - room[at];
    TRY(gram_total(&inputs->held_gram, room, codes->out, error));
    *error = whole > 0 ? sqrt(*error / whole) : 0;
    return ST_OK;
}

/* With rounded inputs, which the scales are for. */
static Status measure_int8(const Ptq *ptq, const PtqInputs *inputs, PtqMatrix *matrix) {
    const Runtime *runtime = &ptq->config->runtime;
    const Grid grid = ptq_grid(ptq, matrix->linear);
    const int64_t in = matrix->linear->in;
    const InputSample sample = error_sample(inputs);
    const WeightGroup one = {.n = 1, .in = in, .weights = {matrix->weight}, .outs = {matrix->linear->out}};
    PtqLayer *report = matrix->report;
    double *ones = arena_alloc(ptq->work_arena, (size_t)in * sizeof *ones);
    if (!ones) return ST_RESOURCE;
    for (int64_t i = 0; i < in; i++) ones[i] = 1;
    TRY(int8_error(runtime, &one, &grid, sample.x, sample.n, matrix->columns ? matrix->columns : ones, &report->error));
    TRY(int8_error(runtime, &one, &grid, sample.x, sample.n, ones, &report->rtn_error));
    report->error = sqrt(report->error);
    report->rtn_error = sqrt(report->rtn_error);
    return ST_OK;
}

static Status measure(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix) {
    if (ptq->method->rounds_inputs) return measure_int8(ptq, inputs, matrix);
    const Grid grid = ptq_grid(ptq, matrix->linear);
    const int64_t out = matrix->linear->out, in = matrix->linear->in;
    PtqLayer *report = matrix->report;
    double whole, *room = arena_alloc(ptq->work_arena, (size_t)(out * in) * sizeof *room);
    Codes nearest;
    if (!room) return ST_RESOURCE;
    TRY(gram_total(&inputs->held_gram, matrix->weight, out, &whole));
    TRY(relative_error(inputs, matrix, &matrix->codes, true, whole, room, &report->error));
    TRY(codes_new(ptq->work_arena, &grid, out, in, &nearest));
    codes_round(&grid, matrix->weight, &nearest);
    TRY(relative_error(inputs, matrix, &nearest, false, whole, room, &report->rtn_error));
    if (!is_method(ptq, "gptq") || report->error <= report->rtn_error) return ST_OK;
    if (!ptq->config->fallback) {
        report->worse = true;
        return ST_OK;
    }
    memcpy(matrix->codes.codes, nearest.codes, (size_t)(out * in));
    memcpy(matrix->codes.scales, nearest.scales, (size_t)(out * nearest.n_groups) * sizeof *nearest.scales);
    memcpy(matrix->codes.zeros, nearest.zeros, (size_t)(out * nearest.n_groups) * sizeof *nearest.zeros);
    report->error = report->rtn_error;
    report->fell_back = true;
    return ST_OK;
}

/* ---- biases ---- */

static Status correct_bias(Ptq *ptq, const PtqInputs *inputs, PtqMatrix *matrix) {
    const Linear *linear = matrix->linear;
    const char *kind = ptq->config->bias_correction;
    const int64_t out = linear->out, in = linear->in;
    const int block = ptq_block_of(ptq->model, linear, NULL);
    if (!kind || strcmp(kind, "none") == 0) return ST_OK;
    if (!linear->bias && (block < 0 || !ptq->adds_bias[block])) {
        ptq->report->uncorrected++;
        return ST_OK;
    }
    double *rounded = arena_alloc(ptq->work_arena, (size_t)(out * in) * sizeof *rounded),
           *gamma = arena_alloc(ptq->work_arena, (size_t)out * sizeof *gamma), *beta = arena_alloc(ptq->work_arena, (size_t)out * sizeof *beta);
    matrix->bias = arena_zero(ptq->layer_arena, (size_t)out * sizeof *matrix->bias);
    if (!rounded || !gamma || !beta || !matrix->bias) return ST_RESOURCE;
    if (linear->bias) tensor_read(linear->bias, matrix->bias);
    unscaled_values(matrix, &matrix->codes, rounded);
    matrix->report->corrected = true;
    if (strcmp(kind, "mean") == 0) {
        bias_by_mean(matrix->weight, rounded, out, &inputs->sums, matrix->bias);
        return ST_OK;
    }
    TRY(bias_by_variance(matrix->weight, rounded, out, &inputs->sums, &inputs->gram, matrix->bias, gamma, beta));
    for (int64_t i = 0; i < out * matrix->codes.n_groups; i++)
        matrix->codes.scales[i] = scale_rounded(ptq->scales, matrix->codes.scales[i] * gamma[i / matrix->codes.n_groups]);
    memcpy(matrix->bias, beta, (size_t)out * sizeof *beta);
    return ST_OK;
}

/* ---- one weight ---- */

/* The model computes with the rounded values from now on, until the decoder layer is written. */
static Status put_into_model(Ptq *ptq, PtqMatrix *matrix) {
    const Model *model = ptq->model;
    Linear *linear = matrix->linear;
    const DType wide = model->compute == DT_F64 ? DT_F64 : DT_F32;
    double *values = arena_alloc(ptq->work_arena, (size_t)(linear->out * linear->in) * sizeof *values);
    Tensor *weight = tensor_new(ptq->layer_arena, model->device, wide, 2, (int64_t[]){linear->out, linear->in}), *bias = linear->bias;
    if (matrix->bias) bias = tensor_new(ptq->layer_arena, model->device, wide, 1, &linear->out);
    if (!values || !weight || (matrix->bias && !bias)) return ST_RESOURCE;
    codes_values(&matrix->codes, values);
    tensor_write(weight, values);
    if (matrix->bias) tensor_write(bias, matrix->bias);
    linear->weight = weight;
    linear->bias = bias;
    matrix->done = true;
    return ST_OK;
}

Status ptq_quantise(Ptq *ptq, PtqInputs *inputs, PtqMatrix *matrix) {
    PtqLayer *report = matrix->report;
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted, nothing was written");
    arena_reset(ptq->work_arena);
    if (inputs && !has_products(inputs)) TRY(make_products(ptq, inputs, ptq->inputs_arena));
    if (inputs && ptq->method->prepare && matrix == inputs->matrices[0]) TRY(ptq->method->prepare(ptq, inputs));
    arena_reset(ptq->work_arena);
    TRY(ptq->method->round(ptq, inputs, matrix));
    report->by_rows = inputs != NULL;
    for (int64_t i = 0; inputs && i < inputs->sums.in; i++) report->dead += inputs->sums.abs_max[i] == 0;
    arena_reset(ptq->work_arena);
    if (inputs) TRY(measure(ptq, inputs, matrix));
    TRY(check_scales(ptq, matrix));
    arena_reset(ptq->work_arena);
    if (inputs) TRY(correct_bias(ptq, inputs, matrix));
    arena_reset(ptq->work_arena);
    return put_into_model(ptq, matrix);
}
