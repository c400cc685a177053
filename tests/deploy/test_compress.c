/* SPDX-License-Identifier: Apache-2.0 */
/* Post-training quantisation: codes, scales, ranges and corrections of one layer, and whole models, against golden values in double. */
#include "tests/support/check.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/deploy/compress/awq.h"
#include "lib/deploy/compress/bias.h"
#include "lib/deploy/compress/gptq.h"
#include "lib/deploy/compress/int8.h"
#include "lib/deploy/compress/ptq.h"
#include "tests/support/model_run.h"

/* ---- one layer ---- */

typedef struct Layer {
    WeightFile *file;
    json_t *facts;
    Arena *arena;
    InputSums sums;
    GramProducts gram;
    const double *weight, *second, *x; /* (24, 64), (12, 64), (160, 64) */
} Layer;
enum { OUT = 24, SECOND = 12, IN = 64, TOKENS = 160, EVAL = 33 };

static const StoredTensor *tensor_of(const WeightFile *file, const char *name) {
    const StoredTensor *tensor = weight_file_find(file, name);
    if (!tensor) fail_msg("no '%s'", name);
    return tensor;
}

static double *doubles_of(const Layer *layer, const char *name) {
    const StoredTensor *tensor = tensor_of(layer->file, name);
    double *values = arena_alloc(layer->arena, (size_t)tensor->count * sizeof *values);
    for (int64_t i = 0; i < tensor->count; i++) values[i] = stored_get(tensor, i);
    return values;
}

static bool layer_open(Layer *layer) {
    char path[512], facts[512];
    if (!shared_path("golden/deploy/ptq/layer.safetensors", path, sizeof path) || !shared_path("golden/deploy/ptq/layer.json", facts, sizeof facts))
        return false;
    *layer = (Layer){.arena = arena_new(0)};
    check_ok(weight_file_open(path, &layer->file));
    check_ok(json_read_file(facts, &layer->facts));
    layer->weight = doubles_of(layer, "W");
    layer->second = doubles_of(layer, "W2");
    layer->x = doubles_of(layer, "X");
    check_ok(input_sums_new(layer->arena, IN, true, &layer->sums));
    input_sums_add_values(&layer->sums, layer->x, TOKENS);
    input_sums_finish(&layer->sums);
    check_ok(gram_products_new(layer->arena, device_reference(), DT_F64, &layer->sums, &layer->gram));
    return true;
}

static void layer_close(Layer *layer) {
    weight_file_close(layer->file);
    json_decref(layer->facts);
    arena_free(layer->arena);
}

static const char *part(const char *name, const char *what) {
    static char full[100];
    snprintf(full, sizeof full, "%s.%s", name, what);
    return full;
}

static void check_codes(const Layer *layer, const char *name, const Codes *codes) {
    const StoredTensor *q = weight_file_find(layer->file, part(name, "q"));
    for (int64_t i = 0; q && i < q->count; i++)
        if (codes->codes[i] != q->data[i]) fail_msg("%s: code %lld is %d, not %d", name, (long long)i, codes->codes[i], q->data[i]);
    check_close_f64(name, codes->scales, doubles_of(layer, part(name, "scale")), (size_t)(codes->out * codes->n_groups), 0, 1e-9);
    const double *zeros = doubles_of(layer, part(name, "zero"));
    for (int64_t i = 0; i < codes->out * codes->n_groups; i++) assert_int_equal(codes->zeros[i], (int)zeros[i]);
}

typedef struct Setting {
    const char *name;
    int bits;
    int64_t group;
    GridKind kind;
    bool act_order, fixed;
} Setting;

static Grid grid_of(const Setting *setting) {
    return (Grid){.kind = setting->kind, .bits = setting->bits, .group = setting->group ? setting->group : IN, .scales = DT_F64};
}

/* The relative error of outputs on X_eval. */
static double eval_error(const Layer *layer, const double *values) {
    const double *x = doubles_of(layer, "X_eval");
    double squares = 0, errors = 0;
    for (int t = 0; t < EVAL; t++)
        for (int o = 0; o < OUT; o++) {
            double y = 0, change = 0;
            for (int i = 0; i < IN; i++) {
                y += x[t * IN + i] * layer->weight[o * IN + i];
                change += x[t * IN + i] * (layer->weight[o * IN + i] - values[o * IN + i]);
            }
            squares += y * y;
            errors += change * change;
        }
    return sqrt(errors / squares);
}

static void check_error(const Layer *layer, const char *name, const double *values) {
    check_close(eval_error(layer, values), golden_value(golden_at(layer->facts, name), "relative_output_error"), 1e-8);
}

TEST(nearest_codes) {
    static const Setting settings[] = {{.name = "rtn4g", .bits = 4, .group = 16, .kind = GRID_ASYMMETRIC},
                                       {.name = "rtn4g-sym", .bits = 4, .group = 16, .kind = GRID_SYMMETRIC},
                                       {.name = "rtn8", .bits = 8, .group = 0, .kind = GRID_SYMMETRIC},
                                       {.name = "rtn3", .bits = 3, .group = 0, .kind = GRID_ASYMMETRIC}};
    Layer layer;
    if (!layer_open(&layer)) skip();
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const Grid grid = grid_of(&settings[i]);
        Codes codes;
        double values[OUT * IN];
        check_ok(codes_new(layer.arena, &grid, OUT, IN, &codes));
        codes_round(&grid, layer.weight, &codes);
        check_codes(&layer, settings[i].name, &codes);
        codes_values(&codes, values);
        check_error(&layer, settings[i].name, values);
    }
    layer_close(&layer);
}

TEST(columns_in_turn) {
    static const Setting settings[] = {{.name = "gptq4g", .bits = 4, .group = 16, .kind = GRID_ASYMMETRIC},
                                       {.name = "gptq4g-sym", .bits = 4, .group = 16, .kind = GRID_SYMMETRIC},
                                       {.name = "gptq4g-static", .bits = 4, .group = 16, .kind = GRID_SYMMETRIC, .fixed = true},
                                       {.name = "gptq4g-actorder", .bits = 4, .group = 16, .kind = GRID_SYMMETRIC, .act_order = true},
                                       {.name = "gptq3", .bits = 3, .group = 0, .kind = GRID_ASYMMETRIC},
                                       {.name = "gptq3-actorder", .bits = 3, .group = 0, .kind = GRID_ASYMMETRIC, .act_order = true},
                                       {.name = "gptq8", .bits = 8, .group = 0, .kind = GRID_SYMMETRIC}};
    Layer layer;
    if (!layer_open(&layer)) skip();
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const Grid grid = grid_of(&settings[i]);
        double weight[OUT * IN], values[OUT * IN], loss;
        GptqFactor factor;
        Codes codes;
        memcpy(weight, layer.weight, sizeof weight);
        check_ok(codes_new(layer.arena, &grid, OUT, IN, &codes));
        check_ok(gptq_factor(&layer.sums, 0.01, settings[i].act_order, "'W'", layer.arena, &factor));
        assert_int_equal(factor.n_dead, 1);
        assert_true(factor.dead[50]);
        check_ok(gptq_round(&factor, &grid, settings[i].fixed, weight, &codes, &loss));
        check_codes(&layer, settings[i].name, &codes);
        const double want = golden_value(golden_at(layer.facts, settings[i].name), "loss");
        check_close(loss, want, 1e-9 * want);
        codes_values(&codes, values);
        check_error(&layer, settings[i].name, values);
    }
    layer_close(&layer);
}

TEST(scaled_columns) {
    Layer layer;
    if (!layer_open(&layer)) skip();
    const Grid grid = {.kind = GRID_ASYMMETRIC, .bits = 4, .group = 16, .scales = DT_F64};
    const WeightGroup group = {.n = 2, .in = IN, .weights = {layer.weight, layer.second}, .outs = {OUT, SECOND}};
    for (int plain = 0; plain < 2; plain++) {
        const char *name = plain ? "awq-plain" : "awq";
        const json_t *facts = golden_at(layer.facts, name);
        double scales[IN], errors[AWQ_RATIOS];
        AwqSearch search;
        check_ok(awq_scales(&group, &grid, &layer.sums, &layer.gram, !plain, scales, &search));
        golden_numbers(golden_at(facts, "error_by_ratio"), errors, AWQ_RATIOS);
        check_close((double)search.best / AWQ_RATIOS, golden_value(facts, "best_ratio"), 1e-12);
        check_close_f64(name, search.errors, errors, AWQ_RATIOS, 0, 1e-5);
        check_close_f64(name, scales, doubles_of(&layer, part(name, "scale_in")), IN, 0, 1e-6);
        if (plain) continue;
        double scaled[OUT * IN], bounds[OUT * 4], values[OUT * IN];
        for (int i = 0; i < OUT * IN; i++) scaled[i] = layer.weight[i] * scales[i % IN];
        check_ok(awq_clips(scaled, OUT, &grid, &layer.sums, scales, bounds));
        check_close_f64("bounds", bounds, doubles_of(&layer, "awq.clip_max"), COUNT_OF(bounds), 0, 1e-6);
        for (int cut = 0; cut < 2; cut++) {
            Codes codes;
            if (cut) awq_clip(scaled, OUT, IN, 16, bounds);
            check_ok(codes_new(layer.arena, &grid, OUT, IN, &codes));
            codes_round(&grid, scaled, &codes);
            codes_values(&codes, values);
            for (int i = 0; i < OUT * IN; i++) values[i] /= scales[i % IN];
            check_error(&layer, cut ? "awq-clip" : "awq", values);
        }
    }
    layer_close(&layer);
}

/* The layer's outputs with weights and inputs of 8 bits. */
static void check_int8(const Layer *layer, const char *name, const double *scales) {
    const Grid grid = {.kind = GRID_INT8, .bits = 8, .group = IN, .scales = DT_F64};
    const double *x = doubles_of(layer, "X_eval"), *want = doubles_of(layer, part(name, "y"));
    const StoredTensor *q = tensor_of(layer->file, part(name, "w_q")), *xq = tensor_of(layer->file, part(name, "x_q"));
    const double *x_scale = doubles_of(layer, part(name, "x_scale"));
    double scaled[OUT * IN], rounded[OUT * IN], y[EVAL * OUT] = {0};
    Codes codes;
    for (int i = 0; i < OUT * IN; i++) scaled[i] = layer->weight[i] * scales[i % IN];
    check_ok(codes_new(layer->arena, &grid, OUT, IN, &codes));
    codes_round(&grid, scaled, &codes);
    check_close_f64(name, codes.scales, doubles_of(layer, part(name, "w_scale")), OUT, 0, 1e-9);
    for (int i = 0; i < OUT * IN; i++) assert_int_equal(codes.codes[i] - 128, (int8_t)q->data[i]);
    codes_values(&codes, rounded);
    for (int t = 0; t < EVAL; t++) {
        double row[IN];
        for (int i = 0; i < IN; i++) row[i] = x[t * IN + i] / scales[i];
        round_activations(row, IN, 0);
        for (int i = 0; i < IN; i++) check_close(row[i], x_scale[t] * (int8_t)xq->data[t * IN + i], 1e-9);
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < IN; i++) y[t * OUT + o] += row[i] * rounded[o * IN + i];
    }
    check_close_f64(name, y, want, COUNT_OF(y), 1e-9, 1e-9);
}

TEST(eight_bits) {
    Layer layer;
    if (!layer_open(&layer)) skip();
    const WeightGroup group = {.n = 2, .in = IN, .weights = {layer.weight, layer.second}, .outs = {OUT, SECOND}};
    static const char *const names[] = {"smooth0.5", "smooth0.8"};
    for (int k = 0; k < 2; k++) {
        double scales[IN];
        smooth_scales(&group, layer.sums.abs_max, k ? 0.8 : 0.5, scales);
        check_close_f64(names[k], scales, doubles_of(&layer, part(names[k], "s")), IN, 0, 1e-6);
        check_int8(&layer, names[k], scales);
    }
    layer_close(&layer);
}

static void check_range(const Layer *layer, RangeKind kind, const char *tensor, double percentile, double want) {
    const StoredTensor *x = tensor_of(layer->file, tensor);
    float *values = arena_alloc(layer->arena, (size_t)x->count * sizeof *values);
    double bound;
    for (int64_t i = 0; i < x->count; i++) values[i] = (float)stored_get(x, i);
    check_ok(activation_range(kind, values, x->count, percentile, &bound));
    check_close(bound, want, 1e-6 * want);
}

TEST(ranges_of_activations) {
    Layer layer;
    if (!layer_open(&layer)) skip();
    static const char *const names[] = {"static-activations-absmax", "static-activations-percentile_99.9", "static-activations-mse",
                                        "static-activations-entropy"};
    static const char *const keys[] = {"absmax", "percentile_99.99", "mse", "entropy"};
    for (int k = 0; k < 4; k++) {
        check_range(&layer, (RangeKind)k, "X", 99.9, golden_value(golden_at(layer.facts, names[k]), "bound"));
        check_range(&layer, (RangeKind)k, "histogram.x", 99.99, golden_value(golden_at(layer.facts, "histogram"), keys[k]));
    }
    layer_close(&layer);
}

TEST(corrected_biases) {
    Layer layer;
    if (!layer_open(&layer)) skip();
    const Grid grid = {.kind = GRID_ASYMMETRIC, .bits = 3, .group = IN, .scales = DT_F64};
    double values[OUT * IN], gamma[OUT], beta[OUT], bias[OUT] = {0};
    Codes codes;
    check_ok(codes_new(layer.arena, &grid, OUT, IN, &codes));
    codes_round(&grid, layer.weight, &codes);
    codes_values(&codes, values);
    check_ok(bias_by_variance(layer.weight, values, OUT, &layer.sums, &layer.gram, bias, gamma, beta)); /* its beta is of a layer without bias */
    memcpy(bias, doubles_of(&layer, "bias"), sizeof bias);
    bias_by_mean(layer.weight, values, OUT, &layer.sums, bias);
    check_close_f64("mean", bias, doubles_of(&layer, "bias_correction.bias"), OUT, 1e-9, 1e-9);
    check_close_f64("gamma", gamma, doubles_of(&layer, "mean_var.gamma"), OUT, 1e-9, 1e-9);
    check_close_f64("beta", beta, doubles_of(&layer, "mean_var.beta"), OUT, 1e-9, 1e-9);
    layer_close(&layer);
}

/* Sums with nothing but zeros in the diagonal's place of a row are not positive definite, whatever the damping. */
TEST(singular_inputs) {
    Arena *arena = arena_new(0);
    InputSums sums;
    GptqFactor factor;
    check_ok(input_sums_new(arena, 2, true, &sums));
    sums.tokens = 1;
    sums.gram[0] = sums.gram[3] = 1;
    sums.gram[1] = sums.gram[2] = -1.05; /* no sum of squares: as rounding can make it */
    check_ok(gptq_factor(&sums, 0.01, false, "'a'", arena, &factor));
    check_close(factor.damp, 0.1, 1e-12);
    sums.gram[1] = sums.gram[2] = -3;
    check_status(gptq_factor(&sums, 0.01, false, "'a'", arena, &factor), ST_NUMERIC);
    check_text("not positive definite");
    arena_free(arena);
}

/* ---- wide layers, whose columns and sums are computed in blocks ---- */

enum { WIDE = 300, WIDE_OUT = 70, WIDE_TOKENS = 340 };

static double *drawn(Arena *arena, uint64_t stream, size_t n) {
    double *values = arena_alloc(arena, n * sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = rng_uniform(rng_key(7, RNG_TEST, stream), i) - 0.5;
    return values;
}

static InputSums wide_sums(Arena *arena) {
    InputSums sums;
    const double *x = drawn(arena, 1, WIDE * WIDE_TOKENS);
    check_ok(input_sums_new(arena, WIDE, true, &sums));
    input_sums_add_values(&sums, x, WIDE_TOKENS);
    input_sums_finish(&sums);
    return sums;
}

TEST(sums_in_blocks) {
    Arena *arena = arena_new(0), *scratch = arena_new(0);
    const InputSums want = wide_sums(arena);
    InputSums sums;
    Tensor *x = tensor_new(arena, device_cpu(), DT_F32, 2, (int64_t[]){WIDE_TOKENS, WIDE});
    tensor_write(x, drawn(arena, 1, WIDE * WIDE_TOKENS));
    check_ok(input_sums_new(arena, WIDE, true, &sums));
    check_ok(input_sums_add(&sums, x, scratch));
    input_sums_finish(&sums);
    check_close_f64("gram", sums.gram, want.gram, WIDE * WIDE, 1e-4, 1e-5);
    check_close_f64("sum", sums.sum, want.sum, WIDE, 1e-4, 1e-5);
    check_close_f64("abs_max", sums.abs_max, want.abs_max, WIDE, 1e-6, 0);
    assert_int_equal(sums.tokens, WIDE_TOKENS);
    arena_free(scratch);
    arena_free(arena);
}

/* U^T U H = 1 */
static void check_factor(const InputSums *sums, const GptqFactor *factor, Arena *arena) {
    double *h = arena_alloc(arena, WIDE * WIDE * sizeof *h), mean = 0;
    for (int i = 0; i < WIDE; i++) mean += 2.0 / WIDE_TOKENS * sums->gram[i * WIDE + i] / WIDE;
    for (int i = 0; i < WIDE; i++)
        for (int j = 0; j < WIDE; j++)
            h[i * WIDE + j] = 2.0 / WIDE_TOKENS * sums->gram[factor->order[i] * WIDE + factor->order[j]] + (i == j ? factor->damp * mean : 0);
    for (int i = 0; i < WIDE; i += 37) { /* row i of U^T U H */
        double row[WIDE] = {0}, one[WIDE] = {0};
        for (int j = 0; j < WIDE; j++)
            for (int k = 0; k <= MIN(i, j); k++) row[j] += factor->upper[k * WIDE + i] * factor->upper[k * WIDE + j];
        for (int j = 0; j < WIDE; j++)
            for (int k = 0; k < WIDE; k++) one[j] += row[k] * h[k * WIDE + j];
        for (int j = 0; j < WIDE; j++) check_close(one[j], i == j, 1e-9);
    }
}

/* Column by column over whole rows, as the algorithm is written. */
static void round_plainly(const GptqFactor *factor, const Grid *grid, bool fixed, const double *weight, Codes *codes) {
    for (int64_t o = 0; o < WIDE_OUT; o++) {
        double rest[WIDE];
        for (int64_t p = 0; p < WIDE; p++) rest[p] = weight[o * WIDE + factor->order[p]];
        for (int64_t p = 0; p < WIDE; p++) {
            const int64_t input = factor->order[p], at = o * codes->n_groups + input / grid->group;
            if (fixed)
                grid_of_values(grid, weight + o * WIDE + input / grid->group * grid->group, grid->group, &codes->scales[at], &codes->zeros[at]);
            else if (p % grid->group == 0)
                grid_of_values(grid, rest + p, grid->group, &codes->scales[at], &codes->zeros[at]);
            const int code = grid_code(grid, rest[p], codes->scales[at], codes->zeros[at]);
            const double error = (rest[p] - codes->scales[at] * (code - codes->zeros[at])) / factor->upper[p * WIDE + p];
            codes->codes[o * WIDE + input] = (uint8_t)code;
            for (int64_t k = p + 1; k < WIDE; k++) rest[k] -= error * factor->upper[p * WIDE + k];
        }
    }
}

/* A value in the middle of two codes may get the other one, and changes those after it. */
TEST(columns_in_blocks) {
    static const int64_t groups[] = {WIDE, 100, 60, 20, 20};
    Arena *arena = arena_new(0);
    const InputSums sums = wide_sums(arena);
    for (size_t k = 0; k < COUNT_OF(groups); k++) {
        const bool ordered = k == 4;
        const Grid grid = {.kind = GRID_ASYMMETRIC, .bits = 4, .group = groups[k], .scales = DT_F64};
        double *weight = drawn(arena, 2, WIDE_OUT * WIDE), loss;
        GptqFactor factor;
        Codes codes, want;
        int64_t equal = 0;
        check_ok(gptq_factor(&sums, 0.01, ordered, "'W'", arena, &factor));
        check_factor(&sums, &factor, arena);
        check_ok(codes_new(arena, &grid, WIDE_OUT, WIDE, &codes));
        check_ok(codes_new(arena, &grid, WIDE_OUT, WIDE, &want));
        round_plainly(&factor, &grid, ordered, weight, &want);
        check_ok(gptq_round(&factor, &grid, false, weight, &codes, &loss));
        for (int64_t i = 0; i < WIDE_OUT * WIDE; i++) equal += codes.codes[i] == want.codes[i];
        assert_true((double)equal > 0.995 * WIDE_OUT * WIDE);
        if (ordered) check_close_f64("scales", codes.scales, want.scales, (size_t)(WIDE_OUT * codes.n_groups), 0, 1e-12);
    }
    arena_free(arena);
}

/* The bits are those of one thread. */
TEST(columns_with_other_threads) {
    const Grid grid = {.kind = GRID_ASYMMETRIC, .bits = 4, .group = 60, .scales = DT_F64};
    const int before = omp_get_max_threads();
    Arena *arena = arena_new(0);
    const InputSums sums = wide_sums(arena);
    GptqFactor factors[3];
    Codes codes[3];
    double losses[3];
    for (int k = 0; k < 3; k++) {
        omp_set_num_threads(k + 1);
        check_ok(gptq_factor(&sums, 0.01, true, "'W'", arena, &factors[k]));
        check_ok(codes_new(arena, &grid, WIDE_OUT, WIDE, &codes[k]));
        check_ok(gptq_round(&factors[k], &grid, false, drawn(arena, 2, WIDE_OUT * WIDE), &codes[k], &losses[k]));
        assert_memory_equal(factors[k].upper, factors[0].upper, WIDE * WIDE * sizeof(double));
        assert_memory_equal(codes[k].codes, codes[0].codes, WIDE_OUT * WIDE);
        assert_memory_equal(codes[k].scales, codes[0].scales, (size_t)(WIDE_OUT * codes[0].n_groups) * sizeof(double));
        assert_memory_equal(&losses[k], &losses[0], sizeof losses[0]);
    }
    omp_set_num_threads(before);
    arena_free(arena);
}

/* ---- whole models ---- */

typedef struct Rows {
    WeightFile *file, *expected;
    IdRow rows[6], eval[2];
    int32_t ids[8][64];
} Rows;

static IdRow row_of(const WeightFile *file, const char *name, int32_t *ids) {
    const StoredTensor *tensor = tensor_of(file, name);
    assert_true(tensor->count <= 64);
    for (int64_t i = 0; i < tensor->count; i++) ids[i] = (int32_t)stored_get(tensor, i);
    return (IdRow){ids, (size_t)tensor->count};
}

static bool rows_open(Rows *rows) {
    char path[512], expected[512];
    if (!shared_path("golden/deploy/ptq/model.safetensors", path, sizeof path) ||
        !shared_path("golden/models/llama/expected.safetensors", expected, sizeof expected))
        return false;
    check_ok(weight_file_open(path, &rows->file));
    check_ok(weight_file_open(expected, &rows->expected));
    for (int i = 0; i < 8; i++) {
        char name[40];
        snprintf(name, sizeof name, i < 6 ? "calibration%d" : "seq%d.input_ids", i < 6 ? i : i - 6);
        *(i < 6 ? &rows->rows[i] : &rows->eval[i - 6]) = row_of(i < 6 ? rows->file : rows->expected, name, rows->ids[i]);
    }
    return true;
}

static void rows_close(Rows *rows) {
    weight_file_close(rows->file);
    weight_file_close(rows->expected);
}

static PtqConfig config_of(const Rows *rows, const char *model, const char *output, const char *method) {
    return (PtqConfig){.model = model,
                       .output = output,
                       .force = true,
                       .method = method,
                       .bits = strcmp(method, "int8") == 0 ? 8 : 4,
                       .group = 16,
                       .symmetric = true,
                       .no_clip = true,
                       .damp = 0.01,
                       .rows = rows->rows,
                       .n_rows = 6,
                       .eval = rows->eval,
                       .n_eval = 2,
                       .runtime = {device_reference(), DT_F64}};
}

/* Logits of the written directory, in double from its values. */
static void check_logits(const Rows *rows, const char *dir, const char *name) {
    ModelRun run;
    model_run_open(&run, dir, device_reference(), DT_F64);
    for (int s = 0; s < 2; s++) {
        char full[60];
        size_t count;
        snprintf(full, sizeof full, "%s.seq%d.logits", name, s);
        memcpy(run.ids, rows->eval[s].ids, rows->eval[s].n * sizeof *run.ids);
        model_run_ids(&run, (int64_t)rows->eval[s].n);
        double *logits = model_run_logits(&run, &count);
        check_stored(full, logits, rows->file, full, 5e-5);
        free(logits);
    }
    model_run_close(&run);
}

static uint32_t word_of(const StoredTensor *tensor, int64_t i) {
    uint32_t word;
    memcpy(&word, tensor->data + 4 * i, 4);
    return word;
}

/* The least value of a symmetric group lies exactly between two codes, and which of them it gets depends on the last bit of sums. So the first
 * product of the first layer has equal codes, up to such values, and later ones, which see its errors, do not. */
static void check_packed(const Rows *rows, const char *dir) {
    char path[600], name[200];
    WeightFile *written;
    int n = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    check_ok(weight_file_open(path, &written));
    for (size_t k = 0; k < rows->file->n; k++) {
        const StoredTensor *want = &rows->file->tensors[k];
        const size_t length = strlen(want->name);
        if (strncmp(want->name, "gptq.", 5) != 0 || strcmp(want->name + length - 2, ".q") != 0) continue;
        snprintf(name, sizeof name, "%.*s.weight_packed", (int)length - 7, want->name + 5);
        const StoredTensor *packed = tensor_of(written, name);
        int64_t equal = 0;
        for (int64_t i = 0; i < want->count; i++) equal += (word_of(packed, i / 8) >> (i % 8 * 4) & 15) == want->data[i];
        if (strncmp(name, "model.layers.0.self_attn.q", 26) == 0 || strncmp(name, "model.layers.0.self_attn.v", 26) == 0)
            assert_int_equal(equal, want->count);
        if (strncmp(name, "model.layers.0.self_attn.k", 26) == 0) assert_true((double)equal >= 0.995 * (double)want->count);
        n++;
    }
    assert_int_equal(n, 21);
    weight_file_close(written);
}

/* The error of a ratio depends on such values too: of nine inputs, two have a neighbouring ratio. */
static void check_ratios(const json_t *facts, const PtqReport *report) {
    const json_t *ratios = golden_at(golden_at(facts, "awq"), "ratios");
    int equal = 0, n = 0;
    for (size_t k = 0; k < report->n_layers; k++) {
        const PtqLayer *layer = &report->layers[k];
        const json_t *want = json_object_get(ratios, layer->path + strlen("model.layers."));
        if (!want) continue;
        check_close(layer->ratio, json_real_value(want), 0.05 + 1e-9);
        equal += fabs(layer->ratio - json_real_value(want)) < 1e-9;
        n++;
    }
    assert_int_equal(n, 9);
    assert_true(equal >= 7);
}

static void check_whole(const Rows *rows, const json_t *facts, const char *name, const char *method, double alpha) {
    char base[512];
    const char *dir = temp_file(test_folder, "whole");
    const json_t *want = golden_at(facts, name);
    assert_true(shared_path("golden/models/llama", base, sizeof base));
    PtqConfig config = config_of(rows, base, dir, method);
    const bool exact = strcmp(method, "rtn") == 0 || strcmp(method, "int8") == 0;
    PtqReport *report;
    config.alpha = alpha;
    check_ok(ptq_run(&config, &report));
    const double kl = golden_value(want, "kl_base_to_this"), loss = golden_value(want, "loss");
    check_close(report->comparison.kl, kl, (exact ? 1e-6 : 0.1) * kl);
    check_close(report->comparison.loss, loss, (exact ? 1e-6 : 0.02) * loss);
    if (strcmp(name, "rtn") == 0) check_logits(rows, dir, name);
    if (strcmp(name, "gptq") == 0) check_packed(rows, dir);
    if (strcmp(name, "awq") == 0) check_ratios(facts, report);
    ptq_free(report);
}

TEST(whole_models) {
    char base[512];
    Rows rows;
    json_t *facts = golden_open("deploy/ptq/model.json");
    if (!facts || !rows_open(&rows) || !shared_path("golden/models/llama", base, sizeof base)) skip();
    check_whole(&rows, facts, "gptq", "gptq", 0);
    check_whole(&rows, facts, "w8a8-smooth0.5", "int8", 0.5);
    if (ALL_OR_FEW(true, false)) {
        check_whole(&rows, facts, "rtn", "rtn", 0);
        check_whole(&rows, facts, "awq", "awq", 0);
        check_whole(&rows, facts, "w8a8-smooth0.0", "int8", 0);
    }
    rows_close(&rows);
    json_decref(facts);
}

/* What is read from a directory of any number of bits is what was rounded. */
static void check_written(const char *base, const char *format, int bits, bool symmetric) {
    const char *dir = temp_file(test_folder, "bits");
    const ModelOptions options = {.device = device_reference(), .compute = DT_F64, .dequantize = true};
    const bool gptq = strcmp(format, "gptq") == 0;
    const Grid grid = {.kind = symmetric ? GRID_SYMMETRIC : GRID_ASYMMETRIC, .bits = bits, .group = 16, .scales = gptq ? DT_F16 : DT_F64};
    const PtqConfig config = {.model = base,
                              .output = dir,
                              .force = true,
                              .method = "rtn",
                              .format = format,
                              .bits = bits,
                              .group = 16,
                              .symmetric = symmetric,
                              .runtime = {device_reference(), DT_F64}};
    Model *original, *written;
    PtqReport *report;
    check_ok(ptq_run(&config, &report));
    check_close(report->bits, bits + ((gptq ? 16 : 32) + (gptq || !symmetric ? bits : 0)) / 16.0, 1e-12);
    ptq_free(report);
    check_ok(model_load(base, &options, &original));
    check_ok(model_load(dir, &options, &written));
    for (size_t i = 0; i < original->n_linears; i++) {
        const int64_t out = original->linears[i]->out, in = original->linears[i]->in;
        Arena *arena = arena_new(0);
        double *weight = arena_alloc(arena, (size_t)(out * in) * sizeof *weight), *got = arena_alloc(arena, (size_t)(out * in) * sizeof *got);
        Codes codes;
        tensor_read(original->linears[i]->weight, weight);
        tensor_read(written->linears[i]->weight, got);
        check_ok(codes_new(arena, &grid, out, in, &codes));
        codes_round(&grid, weight, &codes);
        codes_values(&codes, weight);
        check_close_f64(original->linears[i]->path, got, weight, (size_t)(out * in), 0, 1e-6);
        arena_free(arena);
    }
    model_free(written);
    model_free(original);
}

#define SMALL                                                                                                         \
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 40, \"hidden_size\": 64," \
    " \"intermediate_size\": 160, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"  \
    " \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true}"

TEST(written_bits) {
    static const int bits[] = {2, 3, 4, 8};
    char base[600];
    snprintf(base, sizeof base, "%s", temp_file(test_folder, "small"));
    check_ok(model_write_random(base, SMALL, DT_F32, 3, 0.05));
    for (size_t k = 0; k < 2 * COUNT_OF(bits); k++) {
        check_written(base, "ct", bits[k / 2], k % 2);
        check_written(base, "gptq", bits[k / 2], k % 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nearest_codes),         cmocka_unit_test(columns_in_turn),
        cmocka_unit_test(scaled_columns),        cmocka_unit_test(eight_bits),
        cmocka_unit_test(ranges_of_activations), cmocka_unit_test(corrected_biases),
        cmocka_unit_test(singular_inputs),       cmocka_unit_test(sums_in_blocks),
        cmocka_unit_test(columns_in_blocks),     cmocka_unit_test(columns_with_other_threads),
        cmocka_unit_test(whole_models),          cmocka_unit_test(written_bits),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
