/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench mlp: the time of acting with and training of a tiny network: a policy with two hidden layers of 64 and tanh, as is usual for
 * CartPole. */
#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"

#include "lib/nn/nn.h"

enum { INPUTS = 4, OUTPUTS = 2, HIDDEN = 64, CHUNKS = 200, CHUNKS_PER_SECOND = 2000 };

typedef struct Tiny {
    Mlp mlp;
    Params params;
    OptimizerConfig optimizer;
    Tape *tape;
    Tensor *x;
    double *seeds;
    int64_t step;
} Tiny;

static void act(Tiny *tiny) {
    tape_reset(tiny->tape);
    mlp_forward(&tiny->mlp, tiny->tape, tiny->x);
}

static void mlp_update(Tiny *tiny) {
    tape_reset(tiny->tape);
    tensor_seed_grad(tiny->tape, mlp_forward(&tiny->mlp, tiny->tape, tiny->x), tiny->seeds);
    tape_backward(tiny->tape);
    double norm = params_grad_norm(&tiny->params);
    optimizer_step(&tiny->optimizer, &tiny->params, clip_scale(norm, 0.5), 1e-4, ++tiny->step);
    params_zero_grad(&tiny->params);
}

/* Seconds of one call, in the best of many short chunks, since other programs disturb some of them. */
static double seconds_of(Tiny *tiny, void (*work)(Tiny *)) {
    double best = 1;
    int64_t calls = 1;
    for (int chunk = 0; chunk < CHUNKS && !interrupt_requested(); chunk++) {
        double began = clock_seconds();
        for (int64_t i = 0; i < calls; i++) work(tiny);
        best = MIN(best, (clock_seconds() - began) / (double)calls);
        calls = MAX((int64_t)(1.0 / CHUNKS_PER_SECOND / best), (int64_t)1);
    }
    return best;
}

static void print_case(const Command *command, const CpuSpeed *speed, const char *work, int64_t rows, double seconds, double operations) {
    double gflops = operations / seconds * 1e-9;
    if (command->json)
        print_result("{\"work\":\"%s\",\"rows\":%lld,\"microseconds\":%.3f,\"gflops\":%.2f,\"peak_share\":%.3f}\n", work, (long long)rows,
                     1e6 * seconds, gflops, gflops / speed->gflops_f32);
    else
        print_result("%-8s %6lld %12.2f %10.1f %9.0f%%\n", work, (long long)rows, 1e6 * seconds, gflops, 100 * gflops / speed->gflops_f32);
}

static Status run_cases(const Command *command, Tiny *tiny) {
    static const struct {
        const char *name;
        void (*work)(Tiny *);
        int64_t rows;
    } cases[] = {{"act", act, 4},
                 {"act", act, 8},
                 {"act", act, 64},
                 {"act", act, 128},
                 {"act", act, 2048},
                 {"update", mlp_update, 64},
                 {"update", mlp_update, 128},
                 {"update", mlp_update, 2048}};
    static const int64_t hidden[] = {HIDDEN, HIDDEN};
    const MlpConfig config = {
        .in = INPUTS, .out = OUTPUTS, .n_hidden = 2, .hidden = hidden, .activation = ACT_TANH, .hidden_gain = 1.4, .out_gain = 0.01};
    tiny->optimizer = (OptimizerConfig){.name = "adamw", .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-5};
    TRY(mlp_init(&tiny->mlp, &config, "policy", true, 1, 0, DT_F32, tape_device(tiny->tape), command->arena, &tiny->params));
    TRY(optimizer_init(&tiny->optimizer, &tiny->params, command->arena));
    CpuSpeed speed;
    TRY(cpu_measure_speed(&speed));
    double weights = INPUTS * HIDDEN + HIDDEN * HIDDEN + HIDDEN * OUTPUTS, first = INPUTS * HIDDEN; /* no gradient goes to the observations */
    if (!command->json) print_result("%-8s %6s %12s %10s %10s\n", "work", "rows", "microseconds", "GF/s", "of peak");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t rows = cases[i].rows;
        tiny->x = tensor_new(command->arena, tape_device(tiny->tape), DT_F32, 2, (int64_t[]){rows, INPUTS});
        tiny->seeds = arena_zero(command->arena, (size_t)(rows * OUTPUTS) * sizeof *tiny->seeds);
        if (!tiny->x || !tiny->seeds) return ST_RESOURCE;
        for (int64_t j = 0; j < rows * INPUTS; j++) tensor_set(tiny->x, j, rng_normal(rng_key(1, RNG_TEST, 0), (uint64_t)j));
        for (int64_t j = 0; j < rows * OUTPUTS; j++) tiny->seeds[j] = 0.01 * rng_normal(rng_key(1, RNG_TEST, 1), (uint64_t)j);
        tape_record(tiny->tape, cases[i].work == mlp_update);
        double operations = 2 * (double)rows * (cases[i].work == mlp_update ? 3 * weights - first : weights);
        double seconds = seconds_of(tiny, cases[i].work);
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        print_case(command, &speed, cases[i].name, rows, seconds, operations);
        TRY(tape_status(tiny->tape));
    }
    return ST_OK;
}

Status bench_mlp(const Command *command) {
    Tiny tiny = {.tape = tape_new(runtime_choose(NULL).device, DT_F32, 0)};
    Status status = tiny.tape ? run_cases(command, &tiny) : status_fail(ST_RESOURCE, "out of memory for the tape");
    tape_free(tiny.tape);
    params_release(&tiny.params);
    return status;
}
