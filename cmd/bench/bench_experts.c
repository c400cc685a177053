/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench experts: the products of a layer of experts in the shape of Qwen3-30B-A3B, next to those of a dense layer with as many operations; and
 * the weights that decoding reads, next to the bandwidth of the memory. */
#include <stdlib.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"
#include "lib/base/system.h"

enum { EXPERTS = 128, TOP_K = 8, HIDDEN = 2048, INNER = 768, STEPS = 3, DECODED = 64, GATE = 0, UP, DOWN, PARTS };
static const double WEIGHTS = (double)PARTS * INNER * HIDDEN; /* of an expert */

typedef struct Layers {
    Runtime runtime;
    Tape *tape;
    Tensor *each[PARTS][EXPERTS], *dense[PARTS]; /* gate and up: (inner, hidden), down: (hidden, inner) */
    Tensor *x, *logits;
    double *seeds;
    int64_t tokens;
} Layers;

/* Seconds and operations of products. */
typedef struct Rate {
    double seconds, flops;
} Rate;

/* ---- making the layers ---- */

static Tensor *random_tensor(Arena *arena, Runtime runtime, DType dtype, int64_t rows, int64_t cols, double size, uint64_t stream) {
    enum { PIECE = 1 << 16 };
    Tensor *tensor = tensor_new(arena, runtime.device, dtype, 2, (int64_t[]){rows, cols});
    double *values = tensor ? malloc(PIECE * sizeof *values) : NULL;
    for (int64_t i = 0; values && i < PIECE; i++) values[i] = size * (2 * rng_uniform(rng_key(1, RNG_TEST, stream), (uint64_t)i) - 1);
    for (int64_t at = 0; values && at < rows * cols; at += PIECE) tensor_write_part(tensor, at, MIN(rows * cols - at, (int64_t)PIECE), values);
    free(values);
    return values ? tensor : NULL;
}

/* Weights are stored in bf16, as published. */
static Status make_layers(Arena *arena, Layers *layers) {
    bool made = true;
    for (int p = 0; p < PARTS && made; p++) {
        int64_t inner = p == DOWN ? HIDDEN : INNER, in = p == DOWN ? INNER : HIDDEN;
        for (int e = 0; e < EXPERTS && made; e++)
            made = (layers->each[p][e] = random_tensor(arena, layers->runtime, DT_BF16, inner, in, 0.02, (uint64_t)p)) != NULL;
        layers->dense[p] =
            random_tensor(arena, layers->runtime, DT_BF16, p == DOWN ? HIDDEN : TOP_K * INNER, p == DOWN ? TOP_K * INNER : HIDDEN, 0.02, (uint64_t)p);
        made = made && layers->dense[p];
        if (made) layers->dense[p]->storage->constant = true;
    }
    return made ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %d experts", (int)EXPERTS);
}

static Status make_inputs(Arena *arena, Layers *layers, int64_t tokens, uint64_t stream) {
    layers->tokens = tokens;
    layers->x = random_tensor(arena, layers->runtime, layers->runtime.compute, tokens, HIDDEN, 1, 100);
    layers->logits = tensor_new(arena, layers->runtime.device, DT_F32, 2, (int64_t[]){tokens, EXPERTS});
    layers->seeds = arena_alloc(arena, (size_t)(tokens * HIDDEN) * sizeof *layers->seeds);
    if (!layers->x || !layers->logits || !layers->seeds) return status_fail(ST_RESOURCE, "out of memory for %lld tokens", (long long)tokens);
    for (int64_t i = 0; i < tokens * EXPERTS; i++) tensor_set(layers->logits, i, rng_normal(rng_key(1, RNG_TEST, stream), (uint64_t)i));
    for (int64_t i = 0; i < tokens * HIDDEN; i++) layers->seeds[i] = 1e-3;
    layers->x->needs_grad = true;
    layers->x->grad = tensor_new(arena, layers->runtime.device, layers->x->dtype, 2, layers->x->shape);
    return layers->x->grad ? ST_OK : ST_RESOURCE;
}

/* ---- one pass ---- */

static Tensor *dense_forward(Layers *layers) {
    Tensor *both[2];
    op_linears(layers->tape, layers->x, (const LinearArgs[]){{layers->dense[GATE], NULL, NULL}, {layers->dense[UP], NULL, NULL}}, 2, both);
    Tensor *h = op_activation_passing(layers->tape, ACT_SILU, both[0], both[1]);
    return op_linear(layers->tape, h, layers->dense[DOWN], NULL, NULL, NULL);
}

static Tensor *experts_forward(Layers *layers) {
    const RouterArgs args = {.n_experts = EXPERTS, .top_k = TOP_K, .normalise = true, .scale = 1};
    ExpertLinear parts[PARTS];
    Tensor *both[2], *y;
    for (int p = 0; p < PARTS; p++)
        parts[p] = (ExpertLinear){.in = p == DOWN ? INNER : HIDDEN, .out = p == DOWN ? HIDDEN : INNER, .each = layers->each[p]};
    Routing routing = op_router(layers->tape, layers->logits, NULL, &args, NULL);
    op_expert_linears(layers->tape, layers->x, true, &routing, parts, 2, both);
    Tensor *h = op_activation_passing(layers->tape, ACT_SILU, both[0], both[1]);
    op_expert_linears(layers->tape, h, false, &routing, &parts[DOWN], 1, &y);
    return op_expert_sum(layers->tape, y, &routing, NULL);
}

static Rate profiled_rate(const char *op, bool backward) {
    const ProfileRow *rows;
    size_t n = profile_rows(&rows);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].name, op) && rows[i].backward == backward) return (Rate){rows[i].seconds, rows[i].cost.flops};
    return (Rate){0};
}

/* The best of some steps, after one that is not timed. */
static Status measure_pass(Layers *layers, Tensor *(*forward)(Layers *), const char *op, Rate rates[2]) {
    for (int i = 0; i <= STEPS; i++) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        profile_start();
        tape_reset(layers->tape);
        tensor_seed_grad(layers->tape, forward(layers), layers->seeds);
        TRY(tape_backward(layers->tape));
        profile_stop();
        for (int backward = 0; backward < 2; backward++) {
            Rate rate = profiled_rate(op, backward);
            if (i == 1 || (i > 1 && rate.seconds < rates[backward].seconds)) rates[backward] = rate;
        }
    }
    return ST_OK;
}

/* Bytes of weights per second that single tokens read, each with experts of its own, in products of the layer. */
static Status measure_decoding(Arena *arena, Layers *layers, double *gbs) {
    double seconds = 0;
    tape_record(layers->tape, false);
    for (int i = 0; i <= DECODED; i++) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        TRY(make_inputs(arena, layers, 1, 200 + (uint64_t)i));
        tape_reset(layers->tape);
        profile_start();
        experts_forward(layers);
        TRY(tape_status(layers->tape));
        profile_stop();
        if (i > 0) seconds += profiled_rate("expert_linears", false).seconds;
    }
    *gbs = 1e-9 * DECODED * TOP_K * WEIGHTS * 2 / seconds;
    return ST_OK;
}

/* ---- the report ---- */

static double gflops(Rate rate) { return 1e-9 * rate.flops / rate.seconds; }

static void print_rates(const Command *command, const Layers *layers, int64_t tokens, const Rate dense[2], const Rate experts[2], double read,
                        double memory) {
    if (command->json) {
        print_result("{\"tokens\":%lld,\"compute\":\"%s\",\"dense_gflops\":[%.2f,%.2f],\"experts_gflops\":[%.2f,%.2f],\"share\":[%.3f,%.3f],"
                     "\"decode_gbytes_per_second\":%.2f,\"read_gbytes_per_second\":%.2f}\n",
                     (long long)tokens, dtype_name(layers->runtime.compute), gflops(dense[0]), gflops(dense[1]), gflops(experts[0]),
                     gflops(experts[1]), gflops(experts[0]) / gflops(dense[0]), gflops(experts[1]) / gflops(dense[1]), read, memory);
        return;
    }
    print_result("%d experts of %d x %d, %d for each of %lld tokens, %s\n", (int)EXPERTS, (int)HIDDEN, (int)INNER, (int)TOP_K, (long long)tokens,
                 dtype_name(layers->runtime.compute));
    print_result("%-9s %14s %14s %9s\n", "products", "dense, GF/s", "experts, GF/s", "share");
    for (int backward = 0; backward < 2; backward++)
        print_result("%-9s %14.1f %14.1f %8.0f%%\n", backward ? "backward" : "forward", gflops(dense[backward]), gflops(experts[backward]),
                     100 * gflops(experts[backward]) / gflops(dense[backward]));
    print_result("decoding reads %.2f GB/s of weights, %.0f %% of the memory's %.2f\n", read, 100 * read / memory, memory);
}

static Status measure_experts(const Command *command, int64_t tokens, Layers *layers) {
    Rate dense[2], experts[2];
    double read, before, after;
    TRY(make_layers(command->arena, layers));
    TRY(make_inputs(command->arena, layers, tokens, 101));
    TRY(measure_pass(layers, dense_forward, "linear", dense));
    TRY(measure_pass(layers, experts_forward, "expert_linears", experts));
    TRY(cpu_measure_reading(&before));
    TRY(measure_decoding(command->arena, layers, &read));
    TRY(cpu_measure_reading(&after));
    print_rates(command, layers, tokens, dense, experts, read, (before + after) / 2);
    return ST_OK;
}

Status bench_experts(const Command *command) {
    char *end = NULL;
    int64_t tokens = command->n_arguments > 1 ? strtoll(command->arguments[1], &end, 10) : 2048;
    if ((end && *end) || tokens < 1 || tokens > 1 << 20)
        return status_fail(ST_USAGE, "'%s' is no number of tokens from 1 to %d", command->arguments[1], 1 << 20);
    Runtime runtime = runtime_choose(NULL);
    Layers layers = {.runtime = runtime, .tape = tape_new(runtime.device, runtime.compute, 0)};
    Status status = layers.tape ? measure_experts(command, tokens, &layers) : status_fail(ST_RESOURCE, "out of memory for the tape");
    tape_free(layers.tape);
    for (int p = 0; p < PARTS; p++)
        if (layers.dense[p]) tensor_unpack(layers.dense[p]);
    return status;
}
