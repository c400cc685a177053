/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of each copy's episode and their returns (Sutton & Barto 5 and 7). */
#include "rl/learn/table.h"

Status memory_open(Learner *learner, int64_t capacity, Memory *m) {
    const Tabular *t = learner->self;
    size_t steps, bytes;
    *m = (Memory){.capacity = capacity, .active = t->features.active};
    if (!size_mul((size_t)t->copies, (size_t)capacity, &steps) || !size_mul(steps, (size_t)m->active * sizeof(double), &bytes))
        return status_fail(ST_RESOURCE, "%lld steps of %lld copies do not fit into memory", (long long)capacity, (long long)t->copies);
    m->S = arena_zero(learner->arena, steps * (size_t)m->active * sizeof *m->S);
    m->A = arena_zero(learner->arena, steps * sizeof *m->A);
    m->R = arena_zero(learner->arena, steps * sizeof *m->R);
    m->b = arena_zero(learner->arena, steps * sizeof *m->b);
    m->T = arena_zero(learner->arena, (size_t)t->copies * sizeof *m->T);
    return m->S && m->A && m->R && m->b && m->T ? ST_OK : ST_RESOURCE;
}

void memory_list_state(const Memory *m, const Tabular *t, StateList *states) {
    int64_t steps = t->copies * m->capacity;
    if (steps == 0) return;
    state_bytes(states, "memory/S", m->S, (size_t)(steps * m->active) * sizeof *m->S);
    state_bytes(states, "memory/A", m->A, (size_t)steps * sizeof *m->A);
    state_f64(states, "memory/R", m->R, steps);
    state_f64(states, "memory/b", m->b, steps);
    state_bytes(states, "memory/T", m->T, (size_t)t->copies * sizeof *m->T);
}

size_t memory_at(const Memory *m, int64_t copy, int64_t time) { return (size_t)(copy * m->capacity + time % m->capacity); }

const int32_t *memory_state(const Memory *m, int64_t copy, int64_t time) { return m->S + memory_at(m, copy, time) * (size_t)m->active; }

void memory_add(Memory *m, const Step *step) {
    size_t at = memory_at(m, step->copy, m->T[step->copy]++);
    for (int i = 0; i < m->active; i++) m->S[at * (size_t)m->active + (size_t)i] = step->S[i];
    m->A[at] = (int32_t)step->A;
    m->R[at] = step->R;
    m->b[at] = step->b;
}

/* R + gamma R + ... + gamma^n next, for the steps from `time` on. */
static double return_from(const Tabular *t, const Memory *m, const Step *step, int64_t time, double next) {
    int64_t last = m->T[step->copy] - 1;
    double G = m->R[memory_at(m, step->copy, last)] + step->gamma * next;
    for (int64_t i = last - 1; i >= time; i--) G = m->R[memory_at(m, step->copy, i)] + t->gamma * G;
    return G;
}

void memory_learn_n_step(Tabular *t, Memory *m, Values *values, int64_t n, const Step *step, int64_t A_next) {
    int64_t *T = &m->T[step->copy];
    memory_add(m, step);
    for (int64_t time = MAX(*T - n, 0); time < (step->ended ? *T : *T - n + 1); time++) {
        double G = return_from(t, m, step, time, value_of(values, step->S_next, A_next));
        learn_toward(t, values, memory_state(m, step->copy, time), values->A == 1 ? 0 : m->A[memory_at(m, step->copy, time)], G);
    }
    if (step->ended) *T = 0;
}

void memory_returns(const Tabular *t, Memory *m, const Step *step, double next) {
    double G = next, gamma = step->gamma;
    for (int64_t i = m->T[step->copy] - 1; i >= 0; i--, gamma = t->gamma) {
        double *R = &m->R[memory_at(m, step->copy, i)];
        *R = G = *R + gamma * G;
    }
}
