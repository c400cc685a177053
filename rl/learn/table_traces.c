/* SPDX-License-Identifier: Apache-2.0 */
/* Eligibility traces: the share of each weight in the current error (Sutton & Barto 12). A trace includes the step size at the time of the visit (as
 * in van Seijen et al. 2016). If step sizes fall with the number of visits, a rarely visited state would otherwise update the other states with its
 * own large step size. */
#include "rl/learn/table.h"

#include <math.h>

/* Relative to the newest trace: smaller ones are below its rounding error and have no effect. */
#define FORGOTTEN 0x1p-53

Status traces_open(Learner *learner, Traces *traces) {
    const Tabular *t = learner->self;
    size_t n, bytes;
    *traces = (Traces){.n = t->Q.n * t->Q.A};
    if (!size_mul((size_t)t->copies, (size_t)traces->n, &n) || !size_mul(n, sizeof(double), &bytes))
        return status_fail(ST_RESOURCE, "traces of %lld copies do not fit into memory", (long long)t->copies);
    traces->z = arena_zero(learner->arena, bytes);
    traces->list = arena_zero(learner->arena, n * sizeof *traces->list);
    traces->listed = arena_zero(learner->arena, (size_t)t->copies * sizeof *traces->listed);
    traces->old = arena_zero(learner->arena, (size_t)t->copies * sizeof *traces->old);
    return traces->z && traces->list && traces->listed && traces->old ? ST_OK : ST_RESOURCE;
}

void traces_list_state(const Traces *traces, const Tabular *t, StateList *states) {
    if (traces->n == 0) return;
    state_f64(states, "traces/z", traces->z, t->copies * traces->n);
    state_bytes(states, "traces/list", traces->list, (size_t)(t->copies * traces->n) * sizeof *traces->list);
    state_bytes(states, "traces/listed", traces->listed, (size_t)t->copies * sizeof *traces->listed);
    state_f64(states, "traces/old", traces->old, t->copies);
}

/* z += x, or the equivalent for rl.traces. */
static void table_traces_grow(const Traces *traces, const Values *values, const Step *step, int64_t A, bool replacing, double x) {
    double *z = traces->z + step->copy * traces->n;
    int32_t *list = traces->list + step->copy * traces->n, *listed = &traces->listed[step->copy];
    for (int i = 0; i < values->active; i++) {
        int64_t k = step->S[i] * values->A + A;
        if (z[k] == 0) list[(*listed)++] = (int32_t)k;
        z[k] = replacing ? x : z[k] + x;
    }
}

/* w += error z; z *= decay; drops traces that have faded from the list. */
static void learn_and_decay(const Traces *traces, Values *values, int64_t copy, double error, double decay, double faded) {
    double *z = traces->z + copy * traces->n;
    int32_t *list = traces->list + copy * traces->n, kept = 0;
    for (int32_t i = 0; i < traces->listed[copy]; i++) {
        int32_t k = list[i];
        values->w[k] += error * z[k];
        z[k] *= decay;
        if (fabs(z[k]) <= faded)
            z[k] = 0;
        else
            list[kept++] = k;
    }
    traces->listed[copy] = kept;
}

void traces_learn(Tabular *t, Traces *traces, Values *values, const Step *step, int64_t A, double next) {
    bool online = t->recipe->rl_traces == RL_TRACES_TRUE_ONLINE, replacing = t->recipe->rl_traces == RL_TRACES_REPLACING;
    double alpha = step_size(t, values, step->S, A), decay = step->ended ? 0 : t->gamma * t->recipe->rl_lambda;
    double value = value_of(values, step->S, A), error = step->R + step->gamma * next - value, late = 0, x = 1;
    if (online) {
        bool begins = traces->listed[step->copy] == 0;
        const double *z = traces->z + step->copy * traces->n;
        for (int i = 0; i < values->active; i++) x -= z[step->S[i] * values->A + A];
        late = begins ? 0 : value - traces->old[step->copy];
        traces->old[step->copy] = next;
    }
    table_traces_grow(traces, values, step, A, replacing, alpha * x);
    for (int i = 0; i < values->active; i++) values->w[step->S[i] * values->A + A] -= alpha * late;
    learn_and_decay(traces, values, step->copy, error + late, decay, FORGOTTEN * alpha);
    note_error(t, error);
}
