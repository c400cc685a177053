/* SPDX-License-Identifier: Apache-2.0 */
/* Experience replay: a ring of transitions, windows of n steps that feed it, and a sum tree over priorities. */
#include "lib/base/system.h"
#include "rl/learn/replay.h"

#include <math.h>
#include <string.h>

/* Added to an error, so that a transition with error 0 can still be drawn. */
#define LEAST_ERROR 1e-6

/* ---- memory ---- */

static int64_t leaves_for(int64_t capacity) {
    int64_t leaves = 1;
    while (leaves < capacity) leaves *= 2;
    return leaves;
}

/* Adds rows x each bytes to *sum; false on overflow. */
static bool add_bytes(size_t *sum, int64_t rows, size_t each) {
    size_t bytes;
    return size_mul((size_t)rows, each, &bytes) && size_add(*sum, bytes, sum);
}

bool replay_bytes(const ReplayConfig *c, size_t *bytes) {
    size_t obs_bytes = (size_t)c->observation_size * sizeof(float), action_bytes = (size_t)c->action_size * sizeof(float), window;
    *bytes = 0;
    return add_bytes(bytes, c->capacity, 2 * obs_bytes + action_bytes + 2 * sizeof(double)) &&
           size_mul((size_t)c->n_step, obs_bytes + action_bytes + sizeof(double), &window) &&
           add_bytes(bytes, c->copies, window + 2 * sizeof(int64_t)) &&
           (!c->prioritised || (c->capacity <= INT64_MAX / 4 && add_bytes(bytes, 2 * leaves_for(c->capacity), sizeof(double))));
}

static Status check_memory(const ReplayConfig *config) {
    size_t bytes;
    uint64_t available = memory_available();
    if (replay_bytes(config, &bytes) && bytes <= available) return ST_OK;
    status_fail(ST_RESOURCE, "'rl.buffer_size' %lld does not fit: %.1f GB are left, and one transition takes about %zu bytes",
                (long long)config->capacity, (double)available / 1e9,
                (size_t)(2 * config->observation_size + config->action_size) * sizeof(float) + (config->prioritised ? 4 : 2) * sizeof(double));
    return status_hint(ST_RESOURCE, "lower rl.buffer_size");
}

/* Zeroed, since checkpoints contain all of it. */
static float *floats(Arena *arena, int64_t n) { return arena_zero(arena, (size_t)n * sizeof(float)); }
static double *doubles(Arena *arena, int64_t n) { return arena_zero(arena, (size_t)n * sizeof(double)); }
static int64_t *counts(Arena *arena, int64_t n) { return arena_zero(arena, (size_t)n * sizeof(int64_t)); }

Status replay_init(Replay *r, const ReplayConfig *config, Arena *arena) {
    ASSERT(config->capacity > 0 && config->n_step > 0 && config->copies > 0, "replay of nothing");
    *r = (Replay){.config = *config, .largest = 1};
    TRY(check_memory(config));
    int64_t capacity = config->capacity, copies = config->copies, window = copies * config->n_step, obs_size = config->observation_size,
            action_size = config->action_size;
    if (!(r->observations = floats(arena, capacity * obs_size)) || !(r->next_observations = floats(arena, capacity * obs_size)) ||
        !(r->actions = floats(arena, capacity * action_size)) || !(r->rewards = doubles(arena, capacity)) ||
        !(r->discounts = doubles(arena, capacity)) || !(r->window_observations = floats(arena, window * obs_size)) ||
        !(r->window_actions = floats(arena, window * action_size)) || !(r->window_rewards = doubles(arena, window)) ||
        !(r->window_begin = counts(arena, copies)) || !(r->window_length = counts(arena, copies)))
        return ST_RESOURCE;
    if (!config->prioritised) return ST_OK;
    r->leaves = leaves_for(capacity);
    r->sums = doubles(arena, 2 * r->leaves);
    return r->sums ? ST_OK : ST_RESOURCE;
}

Status replay_check(const Replay *r) {
    const ReplayConfig *c = &r->config;
    bool fine = r->size >= 0 && r->size <= c->capacity && r->next >= 0 && r->next < c->capacity && (r->size == c->capacity || r->next == r->size);
    for (int64_t copy = 0; copy < c->copies; copy++)
        fine = fine && r->window_begin[copy] >= 0 && r->window_begin[copy] < c->n_step && r->window_length[copy] >= 0 &&
               r->window_length[copy] < c->n_step;
    return fine ? ST_OK
                : status_fail(ST_INPUT, "the checkpoint's replay is damaged: %lld transitions, capacity %lld", (long long)r->size,
                              (long long)c->capacity);
}

static void state_windows(Replay *r, StateList *states) {
    const ReplayConfig *c = &r->config;
    int64_t window = c->copies * c->n_step;
    state_f32(states, "replay/window_observations", r->window_observations, window * c->observation_size);
    state_f32(states, "replay/window_actions", r->window_actions, window * c->action_size);
    state_f64(states, "replay/window_rewards", r->window_rewards, window);
    state_bytes(states, "replay/window_begin", r->window_begin, (size_t)c->copies * sizeof *r->window_begin);
    state_bytes(states, "replay/window_length", r->window_length, (size_t)c->copies * sizeof *r->window_length);
}

void replay_list_state(Replay *r, StateList *states) {
    const ReplayConfig *c = &r->config;
    state_f32(states, "replay/observations", r->observations, c->capacity * c->observation_size);
    state_f32(states, "replay/next_observations", r->next_observations, c->capacity * c->observation_size);
    state_f32(states, "replay/actions", r->actions, c->capacity * c->action_size);
    state_f64(states, "replay/rewards", r->rewards, c->capacity);
    state_f64(states, "replay/discounts", r->discounts, c->capacity);
    state_windows(r, states);
    state_count(states, "replay_size", &r->size);
    state_count(states, "replay_next", &r->next);
    if (!c->prioritised) return;
    state_f64(states, "replay/sums", r->sums, 2 * r->leaves);
    state_real(states, "replay_largest", &r->largest);
}

/* ---- the tree of sums ---- */

static void set_priority(Replay *r, int64_t row, double priority) {
    int64_t node = r->leaves + row;
    r->sums[node] = priority;
    while (node /= 2) r->sums[node] = r->sums[2 * node] + r->sums[2 * node + 1];
}

/* The row at which the cumulative priority exceeds `mass`; rounding never selects a row with priority 0. */
static int64_t find_row(const Replay *r, double mass) {
    int64_t node = 1;
    while (node < r->leaves) {
        node *= 2;
        if (mass < r->sums[node] || !(r->sums[node + 1] > 0)) continue;
        mass -= r->sums[node++];
    }
    return node - r->leaves;
}

/* ---- storing ---- */

static void to_floats(const double *values, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = (float)values[i];
}

static void to_doubles(const float *values, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) out[i] = (double)values[i];
}

void replay_begin_step(Replay *r, const double *observations, const double *actions) {
    const ReplayConfig *c = &r->config;
    for (int64_t copy = 0; copy < c->copies; copy++) {
        int64_t slot = copy * c->n_step + (r->window_begin[copy] + r->window_length[copy]) % c->n_step;
        to_floats(observations + copy * c->observation_size, c->observation_size, r->window_observations + slot * c->observation_size);
        to_floats(actions + copy * c->action_size, c->action_size, r->window_actions + slot * c->action_size);
    }
}

/* The oldest step of a copy's window becomes a transition to `next`. */
static void store_oldest(Replay *r, int64_t copy, const double *next, bool terminated) {
    const ReplayConfig *c = &r->config;
    int64_t row = r->next, first = copy * c->n_step, begin = r->window_begin[copy], slot = first + begin;
    size_t obs_size = (size_t)c->observation_size, action_size = (size_t)c->action_size;
    double sum = 0, discount = 1;
    for (int64_t k = 0; k < r->window_length[copy]; k++, discount *= c->gamma) sum += discount * r->window_rewards[first + (begin + k) % c->n_step];
    memcpy(r->observations + (size_t)row * obs_size, r->window_observations + (size_t)slot * obs_size, obs_size * sizeof(float));
    memcpy(r->actions + (size_t)row * action_size, r->window_actions + (size_t)slot * action_size, action_size * sizeof(float));
    to_floats(next, c->observation_size, r->next_observations + (size_t)row * obs_size);
    r->rewards[row] = sum;
    r->discounts[row] = terminated ? 0 : discount;
    if (r->sums) set_priority(r, row, r->largest);
    r->next = (row + 1) % c->capacity;
    r->size = MIN(r->size + 1, c->capacity);
    r->window_begin[copy] = (begin + 1) % c->n_step;
    r->window_length[copy]--;
}

void replay_end_step(Replay *r, const Env *env) {
    const ReplayConfig *c = &r->config;
    for (int64_t copy = 0; copy < c->copies; copy++) {
        bool ended = env->terminated[copy] || env->truncated[copy];
        const double *next = (ended ? env->final_observations : env->observations) + copy * c->observation_size;
        int64_t *length = &r->window_length[copy];
        r->window_rewards[copy * c->n_step + (r->window_begin[copy] + *length) % c->n_step] = env->rewards[copy];
        ++*length;
        while (*length == c->n_step || (ended && *length > 0)) store_oldest(r, copy, next, env->terminated[copy]);
    }
}

/* ---- drawing ---- */

Status replay_batch_init(ReplayBatch *b, int64_t n, const ReplayConfig *c, Arena *arena) {
    *b = (ReplayBatch){.n = n};
    return (b->rows = counts(arena, n)) && (b->observations = doubles(arena, n * c->observation_size)) &&
                   (b->actions = doubles(arena, n * c->action_size)) && (b->rewards = doubles(arena, n)) &&
                   (b->next_observations = doubles(arena, n * c->observation_size)) && (b->discounts = doubles(arena, n)) &&
                   (b->weights = doubles(arena, n))
               ? ST_OK
               : ST_RESOURCE;
}

static void draw_rows(const Replay *r, RngKey key, double beta, ReplayBatch *b) {
    double part = r->sums[1] / (double)b->n, largest = 0;
    for (int64_t i = 0; i < b->n; i++) {
        b->rows[i] = find_row(r, ((double)i + rng_uniform(key, (uint64_t)i)) * part);
        b->weights[i] = pow((double)r->size * r->sums[r->leaves + b->rows[i]] / r->sums[1], -beta);
        largest = fmax(largest, b->weights[i]);
    }
    for (int64_t i = 0; i < b->n; i++) b->weights[i] /= largest;
}

void replay_sample(const Replay *r, RngKey key, double beta, ReplayBatch *b) {
    const ReplayConfig *c = &r->config;
    ASSERT(r->size > 0, "nothing to draw from");
    if (r->sums) draw_rows(r, key, beta, b);
    for (int64_t i = 0; i < b->n; i++) {
        int64_t row = r->sums ? b->rows[i] : (int64_t)rng_below(key, (uint64_t)i, (uint64_t)r->size);
        b->rows[i] = row;
        to_doubles(r->observations + row * c->observation_size, c->observation_size, b->observations + i * c->observation_size);
        to_doubles(r->actions + row * c->action_size, c->action_size, b->actions + i * c->action_size);
        to_doubles(r->next_observations + row * c->observation_size, c->observation_size, b->next_observations + i * c->observation_size);
        b->rewards[i] = r->rewards[row];
        b->discounts[i] = r->discounts[row];
        if (!r->sums) b->weights[i] = 1;
    }
}

void replay_prioritise(Replay *r, const ReplayBatch *b, const double *errors) {
    if (!r->sums) return;
    for (int64_t i = 0; i < b->n; i++) {
        double priority = pow(fabs(errors[i]) + LEAST_ERROR, r->config.alpha);
        r->largest = fmax(r->largest, priority);
        set_priority(r, b->rows[i], priority);
    }
}
