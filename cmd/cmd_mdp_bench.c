/* tune mdp bench: sweeps and solutions of a random world beside what the machine's memory can do. */
#include <math.h>
#include <string.h>

#include "cmd/cmd_mdp.h"
#include "rl/mdp_form.h"

typedef struct Shape { int64_t states, actions, successors; double gamma, tolerance; } Shape;

/* Successors anywhere, equal rows, rewards 0 to 1. */
static Status make_world(const Shape *shape, Arena *arena, Mdp *mdp) {
    int64_t rows = shape->states * shape->actions;
    size_t entries = (size_t)(rows * shape->successors);
    *mdp = (Mdp){.n_states = (int32_t)shape->states, .n_actions = (int32_t)shape->actions, .gamma = shape->gamma, .begin = arena_alloc(arena, ((size_t)rows + 1) * sizeof(int64_t)),
                 .next = arena_alloc(arena, entries * sizeof(int32_t)), .probability = arena_alloc(arena, entries * sizeof(double)), .reward = arena_alloc(arena, entries * sizeof(double)),
                 .terminal = arena_zero(arena, (size_t)shape->states)};
    if (!mdp->begin || !mdp->next || !mdp->probability || !mdp->reward || !mdp->terminal) return ST_RESOURCE;
    RngKey key = rng_key(1, RNG_TEST, 0);
    mdp->begin[rows] = (int64_t)entries;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0, reward = rng_uniform(key, (uint64_t)row);
        int64_t begin = mdp->begin[row] = row * shape->successors;
        for (int64_t k = begin; k < begin + shape->successors; k++) {
            uint32_t random[4];
            rng_block(key, (uint64_t)(rows + k), random);
            mdp->next[k] = (int32_t)((uint64_t)random[0] * (uint64_t)shape->states >> 32);
            mdp->reward[k] = reward;
            sum += mdp->probability[k] = 1e-3 + random[1] * 0x1p-32;
        }
        for (int64_t k = begin; k < begin + shape->successors; k++) mdp->probability[k] /= sum;
    }
    return ST_OK;
}

static void print_row(const Command *command, const char *work, double seconds, int64_t iterations, double gbs, double share, double bound) {
    if (!command->json) {
        print_result("%-12s %10.4f %10lld %12.1f", work, seconds, (long long)iterations, (double)iterations / seconds);
        if (gbs > 0) print_result(" %10.1f %9.0f%%", gbs, 100 * share);
        else print_result(" %10s %10s", "", "");
        if (isfinite(bound)) print_result(" %10.1e", bound);
        print_result("\n");
        return;
    }
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "work", work);
    jw_double(&w, "seconds", seconds);
    jw_int(&w, "iterations", iterations);
    jw_double(&w, "iterations_per_second", (double)iterations / seconds);
    jw_double(&w, "gbytes_per_second", gbs > 0 ? gbs : (double)NAN);
    jw_double(&w, "memory_share", gbs > 0 ? share : (double)NAN);
    jw_double(&w, "bound", bound);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

/* What one sweep must read and write: entries, expected rewards, both vectors. */
static double sweep_bytes(const Mdp *mdp) {
    double rows = (double)mdp->n_states * mdp->n_actions;
    return (double)mdp->begin[(int64_t)rows] * 12 + rows * 8 + (double)mdp->n_states * 16;
}

/* Nothing but reading the probabilities: what a sweep can be compared with. */
static double read_entries(const Mdp *mdp) {
    enum { BLOCK = 1 << 15 };
    int64_t n = mdp->begin[(int64_t)mdp->n_states * mdp->n_actions];
    double sum = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : sum)
    for (int64_t first = 0; first < n; first += BLOCK) {
        double lanes[16] = {0};
        for (int64_t k = first; k + 16 <= MIN(n, first + BLOCK); k += 16)
            for (int i = 0; i < 16; i++) lanes[i] += mdp->probability[k + i];
        for (int i = 0; i < 16; i++) sum += lanes[i];
    }
    return sum;
}

static Status bench_sweeps(const Command *command, const Mdp *mdp, double memory_gbs) {
    enum { ROUNDS = 30 };
    NamedMdp world = {.mdp = *mdp};
    Arena *arena = arena_new(0);
    MdpForm form;
    Status status = arena ? mdp_form_make(&world, false, arena, &form) : ST_RESOURCE;
    double *V = status == ST_OK ? form_vector(&form, arena) : NULL, *other = status == ST_OK ? form_vector(&form, arena) : NULL, best = (double)INFINITY, read = (double)INFINITY;
    if (status == ST_OK && (!V || !other)) status = ST_RESOURCE;
    for (int round = 0; round < ROUNDS && status == ST_OK && !interrupt_requested(); round++) { /* in turns, the best of each: others use the memory as well */
        double start = clock_seconds();
        form_sweep(&form, (Sweep){.V = V, .new_V = other});
        best = fmin(best, clock_seconds() - start);
        start = clock_seconds();
        double sum = read_entries(mdp);
        read = fmin(read, clock_seconds() - start);
        double *keep = V;
        V = other;
        other = keep;
        if (!(sum > 0)) status = status_fail(ST_NUMERIC, "probabilities sum to %g", sum);
    }
    double entries = (double)mdp->begin[(int64_t)mdp->n_states * mdp->n_actions], peak = fmax(memory_gbs, entries * sizeof(double) / read / 1e9), gbs = sweep_bytes(mdp) / best / 1e9;
    if (status == ST_OK) print_row(command, "read", read, 1, peak, 1, (double)INFINITY);
    if (status == ST_OK) print_row(command, "sweep", best, 1, gbs, gbs / peak, (double)INFINITY);
    arena_free(arena);
    return status;
}

static Status bench(const Command *command, const Shape *shape) {
    static const char *const methods[] = {"vi", "mpi"};
    Mdp mdp;
    CpuSpeed speed;
    if (shape->states < 1 || shape->states > INT32_MAX || shape->actions < 1 || shape->actions > 10000 || shape->successors < 1 || shape->successors > 10000)
        return status_fail(ST_USAGE, "--states, --actions and --successors are 1 or more, the last two at most 10000");
    TRY(make_world(shape, command->arena, &mdp));
    TRY(cpu_measure_speed(&speed));
    if (!command->json) {
        print_result("%lld states x %lld actions x %lld successors, gamma %g; memory reads %.1f GB/s\n", (long long)shape->states, (long long)shape->actions, (long long)shape->successors, shape->gamma,
                     speed.memory_gbs);
        print_result("%-12s %10s %10s %12s %10s %10s %10s\n", "work", "seconds", "iterations", "per second", "GB/s", "of memory", "bound");
    }
    TRY(bench_sweeps(command, &mdp, speed.memory_gbs));
    for (size_t m = 0; m < COUNT_OF(methods); m++) {
        Arena *arena = arena_new(0);
        if (!arena) return ST_RESOURCE;
        MdpSolution solution;
        double start = clock_seconds();
        Status status = mdp_solve(&mdp, &(MdpOptions){.method = methods[m], .tolerance = shape->tolerance}, arena, &solution);
        if (status == ST_OK) print_row(command, methods[m], clock_seconds() - start, solution.iterations, 0, 0, solution.bound);
        arena_free(arena);
        TRY(status);
    }
    return ST_OK;
}

Status cmd_mdp_bench(int argc, char **argv) {
    Shape shape = {.states = 1000000, .actions = 4, .successors = 8, .gamma = 0.95, .tolerance = 1e-6};
    Command command = {
        .arguments_help = "",
        .help = "Measures sweeps of value iteration over a random world, and solutions of it to a certified bound.\n    tune mdp bench --states 200000",
    };
    const Option options[] = {
        {"--states", OPTION_INT, &shape.states, "N", "states (1000000)"},
        {"--actions", OPTION_INT, &shape.actions, "N", "actions (4)"},
        {"--successors", OPTION_INT, &shape.successors, "N", "outcomes of each action (8)"},
        {"--gamma", OPTION_REAL, &shape.gamma, "G", "discount (0.95)"},
        {"--tolerance", OPTION_REAL, &shape.tolerance, "X", "largest certified bound (1e-6)"},
        {0},
    };
    bool done;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = command_needs(&command, 0, 0);
    if (status == ST_OK && !done && !(shape.gamma >= 0 && shape.gamma < 1)) status = status_fail(ST_USAGE, "--gamma is from 0 to below 1 here, not %g", shape.gamma);
    if (status == ST_OK && !done) status = bench(&command, &shape);
    arena_free(command.arena);
    return status;
}
