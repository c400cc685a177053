/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench mdp: measures sweeps over an MDP against reading the same memory at the same time, and the time of its solutions. */
#include <math.h>
#include <time.h>

#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/mdp/cmd_mdp.h"
#include "rl/mdp/mdp_form.h"

typedef struct Shape {
    int64_t states, actions, successors;
    double gamma, tolerance;
} Shape;

/* Makes a random MDP: rows of equal length, random successors, rewards from 0 to 1. */
static Status make_world(const Shape *shape, Arena *arena, Mdp *mdp) {
    int64_t rows = shape->states * shape->actions;
    size_t entries = (size_t)(rows * shape->successors);
    *mdp = (Mdp){.n_states = (int32_t)shape->states,
                 .n_actions = (int32_t)shape->actions,
                 .gamma = shape->gamma,
                 .begin = arena_alloc(arena, ((size_t)rows + 1) * sizeof(int64_t)),
                 .next = arena_alloc(arena, entries * sizeof(int32_t)),
                 .probability = arena_alloc(arena, entries * sizeof(double)),
                 .reward = arena_alloc(arena, entries * sizeof(double)),
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

/* One line of the result; NaN: not measured. */
typedef struct MdpRow {
    const char *work;
    double seconds, cpu_seconds;
    int64_t iterations;
    double gbs, share, share_one, bound, value;
} MdpRow;

static void print_row(const Command *command, const MdpRow *m) {
    if (!command->json) {
        print_result("%-8s %10.5f %10.5f %10lld", m->work, m->seconds, m->cpu_seconds, (long long)m->iterations);
        if (isfinite(m->gbs)) print_result(" %9.1f", m->gbs);
        if (isfinite(m->share)) print_result(" %9.0f%% %9.0f%%", 100 * m->share, 100 * m->share_one);
        if (isfinite(m->bound)) print_result(" %9s %10s %10s %10.1e %14.6f", "", "", "", m->bound, m->value);
        print_result("\n");
        return;
    }
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "work", m->work);
    jw_double(&w, "seconds", m->seconds);
    jw_double(&w, "cpu_seconds", m->cpu_seconds);
    jw_int(&w, "iterations", m->iterations);
    jw_double(&w, "gbytes_per_second", m->gbs);
    jw_double(&w, "memory_share", m->share);
    jw_double(&w, "memory_share_one_stream", m->share_one);
    jw_double(&w, "bound", m->bound);
    jw_double(&w, "value", m->value);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

enum { ENTRY_BYTES = 12, ROW_BYTES = 8, STATE_BYTES = 16 };

/* The bytes that any sweep must read and write, each counted once: entries, expected rewards, both vectors. Repeated reads, mainly of values, do
 * not count. */
static double sweep_bytes(const Mdp *mdp) {
    double rows = (double)mdp->n_states * mdp->n_actions;
    return (double)mdp->begin[(int64_t)rows] * ENTRY_BYTES + rows * ROW_BYTES + (double)mdp->n_states * STATE_BYTES;
}

#if defined(__GNUC__)
#define FETCH_AHEAD(address) __builtin_prefetch(address, 0, 2)
#else
#define FETCH_AHEAD(address) (void)(address)
#endif

enum { LANES = 8 }; /* few enough to stay in registers; in memory they cost an eighth of the speed */

/* Reads both arrays of the entries as fast as possible, with prefetching: two streams a thread, which memory serves faster than one. */
static double read_entries(const Mdp *mdp) {
    enum { BLOCK = 1 << 15, AHEAD = 512 /* entries */ };
    int64_t n = mdp->begin[(int64_t)mdp->n_states * mdp->n_actions], all = 0;
    double sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum, all)
    for (int64_t first = 0; first < n; first += BLOCK) {
        double lanes[LANES] = {0};
        int32_t bits[LANES] = {0};
        int64_t end = MIN(n, first + BLOCK), k = first;
        for (; k + LANES <= end; k += LANES) {
            FETCH_AHEAD(mdp->probability + k + AHEAD);
            if (k % (2 * LANES) == 0) FETCH_AHEAD(mdp->next + k + AHEAD);
            for (int i = 0; i < LANES; i++) lanes[i] += mdp->probability[k + i];
            for (int i = 0; i < LANES; i++) bits[i] |= mdp->next[k + i];
        }
        for (; k < end; k++) lanes[0] += mdp->probability[k];
        for (int i = 0; i < LANES; i++) {
            sum += lanes[i];
            all += bits[i];
        }
    }
    return sum + (double)all;
}

/* Reads the probabilities only: one stream a thread. */
static double read_probabilities(const Mdp *mdp) {
    enum { BLOCK = 1 << 15 };
    int64_t n = mdp->begin[(int64_t)mdp->n_states * mdp->n_actions];
    double sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t first = 0; first < n; first += BLOCK) {
        double lanes[LANES] = {0};
        int64_t end = MIN(n, first + BLOCK), k = first;
        for (; k + LANES <= end; k += LANES)
            for (int i = 0; i < LANES; i++) lanes[i] += mdp->probability[k + i];
        for (; k < end; k++) lanes[0] += mdp->probability[k];
        for (int i = 0; i < LANES; i++) sum += lanes[i];
    }
    return sum;
}

typedef struct Timer {
    double start, cpu_start, best, cpu_best;
} Timer; /* keeps the best of many runs, since other programs can only slow a run down */

static void timer_start(Timer *timer) {
    timer->start = clock_seconds();
    timer->cpu_start = (double)clock() / CLOCKS_PER_SEC;
}

static void timer_stop(Timer *timer) {
    double seconds = clock_seconds() - timer->start, cpu = (double)clock() / CLOCKS_PER_SEC - timer->cpu_start;
    if (timer->best == 0 || seconds < timer->best) timer->best = seconds;
    if (timer->cpu_best == 0 || cpu < timer->cpu_best) timer->cpu_best = cpu;
}

#define IN_MEMORY 67108864.0 /* an MDP of more bytes than this does not fit into a cache, so that memory bandwidth is the limit */

/* Sweeps and reads alternate, so that both are measured under the same load. */
static Status bench_sweeps(const Command *command, const NamedMdp *world, Arena *arena) {
    enum { ROUNDS = 60 };
    const Mdp *mdp = &world->mdp;
    MdpForm form;
    TRY(mdp_form_make(world, false, arena, &form));
    if (form_gains_by_tiles(&form, near_cache_bytes())) TRY(form_tile(&form)); /* as value iteration does */
    double *V = form_vector(&form, arena), *other = form_vector(&form, arena), sum = 0;
    if (!V || !other) return ST_RESOURCE;
    Timer one_stream = {0}, read = {0}, sweep = {0};
    for (int round = 0; round < ROUNDS; round++) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        timer_start(&sweep);
        form_sweep(&form, (Sweep){.V = V, .new_V = other});
        timer_stop(&sweep);
        timer_start(&read);
        sum += read_entries(mdp);
        timer_stop(&read);
        timer_start(&one_stream);
        sum += read_probabilities(mdp);
        timer_stop(&one_stream);
        double *keep = V;
        V = other;
        other = keep;
    }
    if (!(sum > 0)) return status_fail(ST_NUMERIC, "probabilities sum to %g", sum);
    double entries = (double)mdp->begin[form.n_rows], bytes = sweep_bytes(mdp), nan = (double)NAN;
    struct {
        const char *work;
        double bytes;
        const Timer *timer;
    } rows[] = {{"read 1", entries * sizeof(double), &one_stream}, {"read 2", entries * ENTRY_BYTES, &read}, {"sweep", bytes, &sweep}};
    double one = rows[0].bytes / one_stream.best / 1e9, two = rows[1].bytes / read.best / 1e9;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double gbs = rows[i].bytes / rows[i].timer->best / 1e9;
        bool counts = bytes >= IN_MEMORY;
        print_row(command, &(MdpRow){rows[i].work, rows[i].timer->best, rows[i].timer->cpu_best, 1, gbs, counts ? gbs / two : nan,
                                     counts ? gbs / one : nan, nan, nan});
    }
    return ST_OK;
}

static Status bench_method(const Command *command, const NamedMdp *world, const char *method, double tolerance) {
    enum { ROUNDS = 5, ENOUGH = 1 }; /* at least that many rounds and seconds */
    Timer timer = {0};
    double start = clock_seconds();
    MdpSolution solution = {0};
    Arena *arena = arena_new(0);
    Status status = arena ? ST_OK : ST_RESOURCE;
    for (int round = 0; (round < ROUNDS || clock_seconds() - start < ENOUGH) && status == ST_OK; round++) {
        arena_reset(arena);
        timer_start(&timer);
        status = mdp_solve(&world->mdp, &(MdpOptions){.method = method, .tolerance = tolerance, .world = world}, arena, &solution);
        timer_stop(&timer);
    }
    if (status == ST_OK)
        print_row(command, &(MdpRow){method, timer.best, timer.cpu_best, solution.iterations, (double)NAN, (double)NAN, (double)NAN, solution.bound,
                                     solution.V[0]});
    arena_free(arena);
    return status;
}

static Status bench(const Command *command, const NamedMdp *world, double tolerance) {
    static const char *const methods[] = {"vi", "mpi"};
    const Mdp *mdp = &world->mdp;
    if (!command->json) {
        print_result("%d states x %d actions, %lld entries, gamma %g\n", (int)mdp->n_states, (int)mdp->n_actions,
                     (long long)mdp->begin[(int64_t)mdp->n_states * mdp->n_actions], mdp->gamma);
        print_result("a sweep counts %d bytes an entry, %d a row and %d a state, each once: %.4g MB\n", ENTRY_BYTES, ROW_BYTES, STATE_BYTES,
                     sweep_bytes(mdp) / 1e6);
        print_result("%-8s %10s %10s %10s %9s %10s %10s %10s %14s\n", "work", "seconds", "cpu", "iterations", "GB/s", "of read 2", "of read 1",
                     "bound", "V of state 0");
    }
    Arena *arena = arena_new(0);
    Status status = arena ? bench_sweeps(command, world, arena) : ST_RESOURCE;
    arena_free(arena);
    for (size_t m = 0; m < COUNT_OF(methods) && status == ST_OK; m++) status = bench_method(command, world, methods[m], tolerance);
    return status;
}

/* Measures the MDP named in the arguments, or a random one. */
static Status bench_world(const Command *command, void *context) {
    const Shape *shape = context;
    TRY(command_needs(command, 0, 1));
    if (command->n_arguments > 0) {
        NamedMdp *world;
        MdpQuestion question = {.gamma = shape->gamma, .tolerance = (double)NAN};
        TRY(mdp_question_open(command->arguments[0], &question, &world));
        Status status = bench(command, world, shape->tolerance);
        named_mdp_free(world);
        return status;
    }
    NamedMdp world = {0};
    Shape random = *shape;
    if (isnan(random.gamma)) random.gamma = 0.95;
    if (!(random.gamma >= 0 && random.gamma < 1)) return status_fail(ST_USAGE, "--gamma must be from 0 to below 1, not %g", random.gamma);
    if (shape->states < 1 || shape->states > INT32_MAX || shape->actions < 1 || shape->actions > 10000 || shape->successors < 1 ||
        shape->successors > 10000)
        return status_fail(ST_USAGE, "--states, --actions and --successors must be 1 or more, the last two at most 10000");
    TRY(make_world(&random, command->arena, &world.mdp));
    return bench(command, &world, shape->tolerance);
}

Status bench_mdp(int argc, char **argv) {
    Shape shape = {.states = 1000000, .actions = 4, .successors = 8, .gamma = (double)NAN, .tolerance = 1e-6};
    Command command = {
        .arguments_help = "[FILE|ENV]",
        .help =
            "Measures sweeps of value iteration over an MDP, alternating with plain reads of the same memory, and solutions to a certified bound. Each figure is the best of several runs.\n"
            "'read 1' reads the probabilities, one stream a thread; 'read 2' reads all entries, two streams a thread, which memory serves faster. No share is given for an MDP that fits into a cache.\n"
            "Without FILE or ENV the MDP is random: rows of equal length with random successors.\n    tune-bench mdp --states 200000",
    };
    const Option options[] = {
        {"--states", OPTION_INT, &shape.states, "N", "states of the random MDP (1000000)"},
        {"--actions", OPTION_INT, &shape.actions, "N", "its actions (4)"},
        {"--successors", OPTION_INT, &shape.successors, "N", "outcomes of each action (8)"},
        {"--gamma", OPTION_REAL, &shape.gamma, "G", "discount (0.95, or the MDP's own)"},
        {"--tolerance", OPTION_REAL, &shape.tolerance, "X", "largest certified bound (1e-6)"},
        {0},
    };
    return command_main(&command, argc, argv, options, bench_world, &shape);
}
