/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines: the table of each stage, and its simulation. A stage does its operations in the table's order; an operation waits for its input. */
#include <math.h>
#include <string.h>

#include "lib/plan/plan_cost.h"

const char *const plan_pipe_names[N_PIPES] = {
#define PIPE(constant, name, help) name,
#include "lib/plan/pipes.def"
#undef PIPE
};
const char *const plan_pipe_helps[N_PIPES] = {
#define PIPE(constant, name, help) help,
#include "lib/plan/pipes.def"
#undef PIPE
};

double plan_pipe_bubble(double stages, double micro, double chunks) { return (stages - 1) / (chunks * micro + stages - 1); }

double plan_pipe_ideal_speedup(double stages, double micro) { return stages * micro / (micro + stages - 1); }

/* Again: forward once more before the backward pass (gpipe). Weight: the gradients of weights, where they are apart. */
typedef enum OperationKind { FORWARD, BACKWARD, AGAIN, WEIGHT } OperationKind;
typedef struct Operation {
    OperationKind kind;
    int64_t micro, chunk;
} Operation;
typedef struct StageTable {
    Operation *operations;
    int64_t n, next; /* next: the first that is not done */
    double free;     /* when the stage is free */
    double kept, most, busy;
    double link[2]; /* when the link to the next stage is free, and the one to the stage before: one message at a time */
} StageTable;

static void append(StageTable *table, OperationKind kind, int64_t micro, int64_t chunk) {
    table->operations[table->n++] = (Operation){kind, micro, chunk};
}

/* ---- tables ---- */

static void fill_flushed(StageTable *table, const PlanPipe *pipe, bool again) {
    for (int64_t k = 0; k < pipe->micro; k++) append(table, FORWARD, k, 0);
    for (int64_t k = 0; k < pipe->micro; k++) {
        if (again) append(table, AGAIN, k, 0);
        append(table, BACKWARD, k, 0);
    }
}

static void fill_naive(StageTable *table, const PlanPipe *pipe) {
    for (int64_t k = 0; k < pipe->micro; k++) {
        append(table, FORWARD, k, 0);
        append(table, BACKWARD, k, 0);
    }
}

/* After `warm` forward passes, forward and backward in turns. The number of an operation gives micro-batch and chunk. */
static void fill_turns(StageTable *table, const PlanPipe *pipe, int64_t warm, bool backward_first) {
    const int64_t p = pipe->stages, v = pipe->chunks, all = pipe->micro * v;
    int64_t forward = 0, backward = 0;
#define MICRO(j) (v == 1 ? (j) : (j) / (p * v) * p + (j) % p)
#define CHUNK(j) (v == 1 ? 0 : (j) % (p * v) / p)
    for (; forward < warm; forward++) append(table, FORWARD, MICRO(forward), CHUNK(forward));
    for (; backward < all; backward++) {
        for (int turn = 0; turn < 2; turn++) {
            if ((turn == 0) == backward_first)
                append(table, BACKWARD, MICRO(backward), v - 1 - CHUNK(backward));
            else if (forward < all)
                append(table, FORWARD, MICRO(forward), CHUNK(forward)), forward++;
        }
    }
#undef MICRO
#undef CHUNK
}

/* The table of 1f1b with gradients of weights apart: stage i delays i of them (arXiv 2401.10241, H1). */
static void fill_zero_bubble(StageTable *table, const PlanPipe *pipe, int64_t stage) {
    const int64_t warm = MIN(pipe->stages - 1 - stage, pipe->micro);
    int64_t forward = 0, weights = 0;
    for (; forward < warm; forward++) append(table, FORWARD, forward, 0);
    for (int64_t k = 0; k < pipe->micro; k++) {
        if (forward < pipe->micro) append(table, FORWARD, forward++, 0);
        append(table, BACKWARD, k, 0);
        if (k - weights >= stage) append(table, WEIGHT, weights++, 0);
    }
    while (weights < pipe->micro) append(table, WEIGHT, weights++, 0);
}

static void fill(StageTable *table, const PlanPipe *pipe, int64_t stage) {
    const int64_t p = pipe->stages, m = pipe->micro, v = pipe->chunks;
    switch (pipe->kind) {
    case PIPE_NAIVE: fill_naive(table, pipe); return;
    case PIPE_F_THEN_B: fill_flushed(table, pipe, false); return;
    case PIPE_GPIPE: fill_flushed(table, pipe, true); return;
    case PIPE_1F1B: fill_turns(table, pipe, MIN(p - 1 - stage, m), false); return;
    case PIPE_INTERLEAVED: fill_turns(table, pipe, m == p ? m * v : MIN(m * v, 2 * (p - 1 - stage) + (v - 1) * p), false); return;
    case PIPE_ZERO_BUBBLE: fill_zero_bubble(table, pipe, stage); return;
    case PIPE_PIPEDREAM: fill_turns(table, pipe, MIN(p - stage, m), true); return;
    case N_PIPES: return;
    }
}

/* ---- simulation ---- */

typedef struct Simulation {
    const PlanPipe *pipe;
    StageTable *tables;
    double *forward_end, *forward_there, *backward_there; /* per virtual stage and micro-batch; there: at the neighbour. NaN: not yet */
} Simulation;

static double seconds_of(const PlanPipe *pipe, int64_t stage, OperationKind kind) {
    double backward = pipe->backward[stage] / (double)pipe->chunks, weight = pipe->kind != PIPE_ZERO_BUBBLE ? 0
                                                                             : pipe->weight                 ? pipe->weight[stage]
                                                                                                            : backward / 2;
    if (kind == BACKWARD) return backward - weight;
    return kind == WEIGHT ? weight : pipe->forward[stage] / (double)pipe->chunks;
}

/* When the operation's input is there; NaN: not known yet. */
static double input_of(const Simulation *simulation, int64_t stage, const Operation *operation) {
    const PlanPipe *pipe = simulation->pipe;
    const int64_t m = pipe->micro, at = operation->chunk * pipe->stages + stage, last = pipe->chunks * pipe->stages - 1;
    if (operation->kind == FORWARD) return at == 0 ? 0 : simulation->forward_there[(at - 1) * m + operation->micro];
    if (operation->kind != BACKWARD) return 0;
    return at == last ? simulation->forward_end[at * m + operation->micro] : simulation->backward_there[(at + 1) * m + operation->micro];
}

/* Activations are kept from a forward pass until the last operation that reads them; gpipe keeps those of the micro-batch at work. */
static void count_kept(StageTable *table, const PlanPipe *pipe, OperationKind kind) {
    const OperationKind opens = pipe->kind == PIPE_GPIPE ? AGAIN : FORWARD, closes = pipe->kind == PIPE_ZERO_BUBBLE ? WEIGHT : BACKWARD;
    if (kind == opens) table->kept += 1 / (double)pipe->chunks;
    table->most = fmax(table->most, table->kept);
    if (kind == closes) table->kept -= 1 / (double)pipe->chunks;
}

/* Sends what the stage has just computed; returns when it is there. */
static double send_result(const Simulation *simulation, StageTable *table, int direction) {
    const double transfer = simulation->pipe->stages > 1 ? simulation->pipe->transfer : 0;
    table->link[direction] = fmax(table->link[direction], table->free) + transfer;
    return table->link[direction];
}

/* Does what the stage can do now; true if that was anything. */
static bool stage_advance(Simulation *simulation, int64_t stage) {
    StageTable *table = &simulation->tables[stage];
    const int64_t first = table->next;
    for (; table->next < table->n; table->next++) {
        const Operation *operation = &table->operations[table->next];
        double input = input_of(simulation, stage, operation), seconds = seconds_of(simulation->pipe, stage, operation->kind);
        if (isnan(input)) break;
        table->free = fmax(table->free, input) + seconds;
        table->busy += seconds;
        count_kept(table, simulation->pipe, operation->kind);
        int64_t at = (operation->chunk * simulation->pipe->stages + stage) * simulation->pipe->micro + operation->micro;
        if (operation->kind == FORWARD) simulation->forward_end[at] = table->free, simulation->forward_there[at] = send_result(simulation, table, 0);
        if (operation->kind == BACKWARD) simulation->backward_there[at] = send_result(simulation, table, 1);
    }
    return table->next > first;
}

static Status pipe_check(const PlanPipe *pipe) {
    const long long p = pipe->stages, m = pipe->micro, v = pipe->chunks;
    if (p < 1 || m < 1 || v < 1) return status_fail(ST_CONFIG, "a pipeline of %lld stages, %lld micro-batches and %lld chunks", p, m, v);
    if (pipe->kind != PIPE_INTERLEAVED && v > 1) return status_fail(ST_CONFIG, "schedule %s has no chunks", plan_pipe_names[pipe->kind]);
    if (v > 1 && m % p != 0) return status_fail(ST_CONFIG, "interleaved: %lld micro-batches are no multiple of %lld stages", m, p);
    return ST_OK;
}

static Status simulation_begin(const PlanPipe *pipe, Arena *arena, Simulation *simulation) {
    size_t ends = (size_t)(pipe->stages * pipe->chunks * pipe->micro), operations = 3 * (size_t)(pipe->micro * pipe->chunks);
    *simulation = (Simulation){.pipe = pipe,
                               .tables = arena_zero(arena, (size_t)pipe->stages * sizeof(StageTable)),
                               .forward_end = arena_alloc(arena, ends * sizeof(double)),
                               .forward_there = arena_alloc(arena, ends * sizeof(double)),
                               .backward_there = arena_alloc(arena, ends * sizeof(double))};
    if (!simulation->tables || !simulation->forward_end || !simulation->forward_there || !simulation->backward_there) return ST_RESOURCE;
    for (size_t i = 0; i < ends; i++) simulation->forward_end[i] = simulation->forward_there[i] = simulation->backward_there[i] = (double)NAN;
    for (int64_t i = 0; i < pipe->stages; i++) {
        StageTable *table = &simulation->tables[i];
        table->operations = arena_alloc(arena, operations * sizeof *table->operations);
        if (!table->operations) return ST_RESOURCE;
        fill(table, pipe, i);
    }
    return ST_OK;
}

Status plan_pipe_simulate(const PlanPipe *pipe, Arena *arena, PlanPipeResult *result) {
    Simulation simulation;
    TRY(pipe_check(pipe));
    *result = (PlanPipeResult){.kept = arena_alloc(arena, (size_t)pipe->stages * sizeof(double)),
                               .inputs = pipe->kind == PIPE_GPIPE ? (double)pipe->micro : 0};
    if (!result->kept) return ST_RESOURCE;
    ArenaMark mark = arena_mark(arena);
    Status status = simulation_begin(pipe, arena, &simulation);
    for (bool moved = status == ST_OK; moved;) {
        moved = false;
        for (int64_t i = 0; i < pipe->stages; i++) moved |= stage_advance(&simulation, i);
    }
    double busy = 0;
    for (int64_t i = 0; status == ST_OK && i < pipe->stages; i++) {
        const StageTable *table = &simulation.tables[i];
        ASSERT(table->next == table->n, "stage %lld of schedule %s waits for ever at operation %lld of %lld", (long long)i,
               plan_pipe_names[pipe->kind], (long long)table->next, (long long)table->n);
        result->makespan = fmax(result->makespan, table->free);
        result->kept[i] = table->most;
        busy += table->busy;
    }
    if (result->makespan > 0) result->bubble = 1 - busy / ((double)pipe->stages * result->makespan);
    arena_rewind(arena, mark);
    return status;
}
