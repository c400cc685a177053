/* Where a policy spends its time in the long run. */
#include "rl/mdp_form.h"

#include <math.h>
#include <string.h>

/* The chain goes on at the start when an episode ends. One step of it, half of the time standing still: that way a periodic chain comes to rest too, at the same shares. */
static void step(const Mdp *process, const double *start, const double *x, double *y) {
    double again = 0;
    memset(y, 0, (size_t)process->n_states * sizeof *y);
    for (int32_t s = 0; s < process->n_states; s++) {
        if (x[s] == 0) continue;
        double total = 0;
        for (int64_t k = process->begin[s]; k < process->begin[s + 1]; k++) total += process->probability[k];
        for (int64_t k = process->begin[s]; k < process->begin[s + 1]; k++) {
            double moved = x[s] * process->probability[k] / total;
            if ((process->done && process->done[k]) || process->terminal[process->next[k]]) again += moved;
            else y[process->next[k]] += moved;
        }
    }
    for (int32_t s = 0; s < process->n_states; s++) y[s] = 0.5 * (y[s] + again * start[s]) + 0.5 * x[s];
}

static double distance(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t s = 0; s < n; s++) sum += fabs(x[s] - y[s]);
    return sum;
}

/* `memory`: steps of the chain are doubled while it is small enough to hold all its powers: x P^(2^k) in k products, which even a slow chain needs no more than 60 of. */
static void square(const double *P, double *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) out[i * n + j] = 0;
        for (int64_t k = 0; k < n; k++) {
            double p = P[i * n + k];
            for (int64_t j = 0; j < n && p != 0; j++) out[i * n + j] += p * P[k * n + j];
        }
        for (int64_t j = 0; j < n; j++) sum += out[i * n + j];
        for (int64_t j = 0; j < n; j++) out[i * n + j] /= sum; /* rounding would double, too */
    }
}

static Status by_squaring(const Mdp *process, const double *start, Arena *arena, double *share) {
    int64_t n = process->n_states;
    double *P = arena_zero(arena, (size_t)(n * n) * sizeof *P), *out = arena_alloc(arena, (size_t)(n * n) * sizeof *out), *x = arena_zero(arena, (size_t)n * sizeof *x);
    if (!P || !out || !x) return ST_RESOURCE;
    for (int64_t s = 0; s < n; s++) {
        x[s] = 1;
        if (process->terminal[s]) memcpy(P + s * n, start, (size_t)n * sizeof *P);
        else step(process, start, x, P + s * n);
        x[s] = 0;
    }
    for (int i = 0; i < 60; i++) {
        square(P, out, n);
        double moved = 0;
        for (int64_t s = 0; s < n; s++) moved = fmax(moved, distance(P + s * n, out + s * n, n));
        double *keep = P;
        P = out;
        out = keep;
        if (moved < 1e-15 * (double)n) break;
    }
    memset(share, 0, (size_t)n * sizeof *share);
    for (int64_t s = 0; s < n; s++)
        for (int64_t t = 0; t < n && start[s] > 0; t++) share[t] += start[s] * P[s * n + t];
    return ST_OK;
}

static Status by_steps(const Mdp *process, const double *start, Arena *arena, double *share) {
    enum { LIMIT = 1000000 };
    double *next = arena_alloc(arena, (size_t)process->n_states * sizeof *next), moved = (double)INFINITY;
    if (!next) return ST_RESOURCE;
    memcpy(share, start, (size_t)process->n_states * sizeof *share);
    for (int64_t i = 0; i < LIMIT && moved > 1e-14; i++) {
        step(process, start, share, next);
        moved = distance(share, next, process->n_states);
        memcpy(share, next, (size_t)process->n_states * sizeof *share);
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    }
    return moved <= 1e-14 ? ST_OK : status_fail(ST_NUMERIC, "the shares of time are still moving after %d steps", LIMIT);
}

static Status stationary(const NamedMdp *world, const double *policy, Arena *scratch, double *share) {
    enum { SMALL = 300 };
    const Mdp *mdp = &world->mdp;
    Mdp process;
    int64_t n = mdp->n_states;
    TRY(mdp_under_policy(mdp, policy, world, scratch, &process));
    double *start = arena_zero(scratch, (size_t)n * sizeof *start), sum = 0;
    if (!start) return ST_RESOURCE;
    for (int64_t s = 0; s < n; s++) sum += start[s] = mdp->terminal[s] ? 0 : world->start ? world->start[s] : 1;
    if (!(sum > 0)) return status_fail(ST_INPUT, "every state to start in is terminal");
    for (int64_t s = 0; s < n; s++) start[s] /= sum;
    return n <= SMALL ? by_squaring(&process, start, scratch, share) : by_steps(&process, start, scratch, share);
}

Status mdp_stationary(const NamedMdp *world, const double *policy, double *share) {
    Arena *scratch = arena_new(0);
    if (!scratch) return ST_RESOURCE;
    Status status = stationary(world, policy, scratch, share);
    arena_free(scratch);
    return status;
}
