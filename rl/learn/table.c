/* SPDX-License-Identifier: Apache-2.0 */
/* Tabular learning: behaviour, step sizes, the loop, and the saved state. */
#include "lib/base/log.h"
#include "rl/learn/table.h"

#include <math.h>
#include <string.h>

/* ---- values ---- */

double value_of(const Values *values, const int32_t *S, int64_t A) {
    double sum = values->w[S[0] * values->A + A];
    for (int i = 1; i < values->active; i++) sum += values->w[S[i] * values->A + A];
    return sum;
}

/* The values of all actions: a pointer to the table's row, or sums in `q`; minus infinity where the state does not have the action. */
static const double *values_at(const Values *values, const int32_t *S, double *q) {
    const int64_t n = values->A;
    if (values->active == 1 && !values->allowed) return values->w + S[0] * n;
    for (int64_t a = 0; a < n; a++) q[a] = values_allow(values, S, a) ? value_of(values, S, a) : -(double)INFINITY;
    return q;
}

static int64_t best_of(const double *q, int64_t n) {
    int64_t best = 0;
    for (int64_t a = 1; a < n; a++)
        if (q[a] > q[best]) best = a;
    return best;
}

int64_t best_action(const Values *values, const int32_t *S, double *q) { return best_of(values_at(values, S, q), values->A); }

double value_best(Tabular *t, const int32_t *S) {
    const double *q = values_at(&t->Q, S, t->q);
    return q[best_of(q, t->Q.A)];
}

/* ---- schedules ---- */

/* From start to end over the first fraction of the run, linearly or exponentially. */
static double scheduled(const Learner *learner, Schedule schedule, double start, double end, double share) {
    if (schedule == EXPONENTIAL) return exp(learner_linear(learner, log(start), log(end), share));
    return learner_linear(learner, start, end, share);
}

static double visits_of(const Values *values, const int32_t *S) {
    double sum = 0;
    for (int64_t a = 0; a < values->A; a++) sum += values->visits[S[0] * values->A + a];
    return sum;
}

static double epsilon_at(const Tabular *t, const int32_t *S) {
    const Recipe *recipe = t->recipe;
    if (t->epsilon_schedule != HARMONIC) return t->epsilon;
    double visits = visits_of(&t->Q, S) + (t->Q2 ? visits_of(t->Q2, S) : 0);
    return fmax(recipe->rl_epsilon_end, recipe->rl_epsilon_start * recipe->rl_epsilon_visits / (recipe->rl_epsilon_visits + visits));
}

double step_size(Tabular *t, Values *values, const int32_t *S, int64_t A) {
    double before = values->visits ? values->visits[S[0] * values->A + A]++ : 0, half = t->recipe->rl_alpha_visits;
    if (t->alpha_schedule == VISITS) return 1 / (before + 1);
    if (t->alpha_schedule == HARMONIC) return t->alpha * half / (half + before);
    return t->alpha;
}

static void set_schedules(Learner *learner) {
    Tabular *t = learner->self;
    const Recipe *recipe = t->recipe;
    double alpha = t->alpha_schedule == LINEAR ? learner_linear(learner, recipe->rl_alpha, recipe->rl_alpha_end, 1) : recipe->rl_alpha;
    t->alpha = alpha / t->features.active;
    t->epsilon = scheduled(learner, t->epsilon_schedule, recipe->rl_epsilon_start, recipe->rl_epsilon_end, recipe->rl_epsilon_fraction);
}

/* ---- learning ---- */

/* An epsilon-soft policy gives epsilon / n to every action and shares the rest among the best ones, which have equal values. */
double value_expected(Tabular *t, const int32_t *S) {
    const double *q = values_at(&t->Q, S, t->q);
    double sum = 0, epsilon = epsilon_at(t, S);
    int64_t n = 0;
    for (int64_t a = 0; a < t->Q.A; a++) {
        if (!values_allow(&t->Q, S, a)) continue;
        sum += q[a];
        n++;
    }
    return (1 - epsilon) * q[best_of(q, t->Q.A)] + epsilon * sum / (double)n;
}

void note_error(Tabular *t, double error) {
    t->error_sum += error * error;
    t->errors++;
}

void learn_toward(Tabular *t, Values *values, const int32_t *S, int64_t A, double target) {
    double error = target - value_of(values, S, A), change = step_size(t, values, S, A) * error;
    for (int i = 0; i < values->active; i++) values->w[S[i] * values->A + A] += change;
    note_error(t, error);
}

/* ---- behaviour ---- */

double draw(Tabular *t) { return rng_uniform(t->key, t->draws++); }

typedef struct Choice {
    int64_t A;
    double b;
} Choice; /* an action and the probability with which it was chosen */

/* The action at which the cumulative probability exceeds u; rounding never selects an action with probability 0. */
static Choice choose_from(const double *pi, int64_t n, double u) {
    int64_t possible = 0;
    for (int64_t a = 0; a < n; a++) {
        if (!(pi[a] > 0)) continue;
        possible = a;
        if (u < pi[a]) break;
        u -= pi[a];
    }
    return (Choice){possible, pi[possible]};
}

/* One random number decides: below epsilon it selects among all actions, else among the best ones, so that ties are split evenly. */
static Choice choose_soft(const double *q, int64_t n, double epsilon, double u) {
    double best = q[best_of(q, n)];
    int64_t ties = 0, choices = 0, a = 0;
    for (int64_t i = 0; i < n; i++) {
        ties += q[i] == best;
        choices += q[i] != -(double)INFINITY;
    }
    if (ties == 0) { /* NaN is not equal to itself: the values have diverged, and the run ends after this update */
        while (a < n - 1 && q[a] == -(double)INFINITY) a++;
        return (Choice){a, 1};
    }
    if (u < epsilon) {
        int64_t left = MIN((int64_t)(u / epsilon * (double)choices), choices - 1);
        while (q[a] == -(double)INFINITY || left-- > 0) a++;
    } else {
        int64_t left = MIN((int64_t)((u - epsilon) / (1 - epsilon) * (double)ties), ties - 1);
        while (q[a] != best || left-- > 0) a++;
    }
    return (Choice){a, epsilon / (double)choices + (q[a] == best ? (1 - epsilon) / (double)ties : 0)};
}

static const double *preferences(const Tabular *t, const int32_t *S, double *q) {
    const double *first = values_at(&t->Q, S, q);
    if (!t->Q2) return first;
    for (int64_t a = 0; a < t->A; a++) q[a] = values_allow(&t->Q, S, a) ? value_of(&t->Q, S, a) + value_of(t->Q2, S, a) : -(double)INFINITY;
    return q;
}

static Choice table_choose(Tabular *t, const int32_t *S, double u) {
    if (t->pi) return choose_from(t->pi + S[0] * t->A, t->A, u);
    return choose_soft(preferences(t, S, t->q), t->A, epsilon_at(t, S), u);
}

int64_t next_action(Tabular *t, const Step *step) {
    Choice choice = table_choose(t, step->S_next, draw(t));
    if (!step->ended) t->actions[step->copy] = (double)choice.A;
    return choice.A;
}

/* ---- the loop ---- */

static int32_t *row(int32_t *S, const Tabular *t, int64_t copy) { return S + copy * t->features.active; }

static void table_observe(const Tabular *t, const double *observations, int64_t copy, int32_t *S) {
    features_of(&t->features, observations + copy * t->features.size, S);
}

static void choose_missing(Tabular *t) {
    for (int64_t copy = 0; copy < t->copies; copy++) {
        if (t->actions[copy] >= 0) continue;
        Choice choice = table_choose(t, row(t->S, t, copy), draw(t));
        t->actions[copy] = (double)choice.A;
        t->b[copy] = choice.b;
    }
}

static void learn_from_copy(Learner *learner, int64_t copy) {
    Tabular *t = learner->self;
    const Env *env = learner->env;
    bool ended = env->terminated[copy] || env->truncated[copy];
    int32_t *S = row(t->S, t, copy), *S_next = row(t->S_next, t, copy);
    table_observe(t, ended ? env->final_observations : env->observations, copy, S_next);
    Step step = {
        .copy = copy,
        .S = S,
        .A = (int64_t)t->actions[copy],
        .R = env->rewards[copy],
        .S_next = S_next,
        .gamma = env->terminated[copy] ? 0 : t->gamma,
        .ended = ended,
        .b = t->b[copy],
    };
    t->actions[copy] = -1;
    learner->algorithm->learn(learner, &step);
    if (ended)
        table_observe(t, env->observations, copy, S);
    else
        memcpy(S, S_next, (size_t)t->features.active * sizeof *S);
}

Status tabular_update(Learner *learner) {
    Tabular *t = learner->self;
    set_schedules(learner);
    t->key = learner_key(learner, RNG_EXPLORE, 0);
    t->draws = 0;
    t->error_sum = 0;
    t->errors = 0;
    for (int64_t copy = 0; copy < t->copies; copy++) table_observe(t, learner->env->observations, copy, row(t->S, t, copy));
    for (int64_t i = 0; i < t->recipe->rl_num_steps; i++) {
        choose_missing(t);
        TRY(learner_step(learner, t->actions));
        for (int64_t copy = 0; copy < t->copies; copy++) learn_from_copy(learner, copy);
    }
    if (!t->pi && !t->judged && t->epsilon_schedule != HARMONIC) learner_metric(learner, "epsilon", t->epsilon);
    if (t->alpha_schedule == LINEAR) learner_metric(learner, "alpha", t->alpha);
    learner_metric(learner, "td_error", t->errors ? sqrt(t->error_sum / (double)t->errors) : 0);
    return ST_OK;
}

Status tabular_act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions) {
    Tabular *t = learner->self;
    for (int64_t i = 0; i < n; i++) {
        int32_t *S = t->S_next;
        table_observe(t, observations, i, S);
        double u = rng_uniform(key, (uint64_t)i);
        if (greedy && t->judged)
            actions[i] = (double)choose_from(t->judged + S[0] * t->A, t->A, u).A;
        else if (greedy)
            actions[i] = (double)best_of(preferences(t, S, t->q), t->A);
        else
            actions[i] = (double)table_choose(t, S, u).A;
    }
    return ST_OK;
}

/* ---- opening ---- */

static const Schedule alpha_schedules[] = {[RL_ALPHA_SCHEDULE_CONSTANT] = CONSTANT,
                                           [RL_ALPHA_SCHEDULE_LINEAR] = LINEAR,
                                           [RL_ALPHA_SCHEDULE_VISITS] = VISITS,
                                           [RL_ALPHA_SCHEDULE_HARMONIC] = HARMONIC};
static const Schedule epsilon_schedules[] = {
    [RL_EPSILON_SCHEDULE_LINEAR] = LINEAR, [RL_EPSILON_SCHEDULE_EXPONENTIAL] = EXPONENTIAL, [RL_EPSILON_SCHEDULE_HARMONIC] = HARMONIC};

static Status check_schedules(const Tabular *t) {
    const Recipe *recipe = t->recipe;
    bool counts = t->alpha_schedule >= VISITS || t->epsilon_schedule >= VISITS;
    if (counts && t->features.active > 1)
        return status_fail(ST_CONFIG, "'%s' counts visits of numbered states, but tiles have none",
                           t->alpha_schedule >= VISITS ? "rl.alpha_schedule" : "rl.epsilon_schedule");
    if (t->epsilon_schedule == EXPONENTIAL && !(recipe->rl_epsilon_start > 0 && recipe->rl_epsilon_end > 0))
        return status_fail(ST_CONFIG, "'rl.epsilon_schedule: exponential' never reaches 0: 'rl.epsilon_start' and 'rl.epsilon_end' must be above 0");
    return ST_OK;
}

Status values_new(Learner *learner, int64_t A, Values *values) {
    const Tabular *t = learner->self;
    size_t n = (size_t)(t->features.n * A);
    *values = (Values){.n = t->features.n, .A = A, .active = t->features.active, .w = arena_alloc(learner->arena, n * sizeof *values->w)};
    if (t->alpha_schedule >= VISITS || t->epsilon_schedule >= VISITS) {
        values->visits = arena_zero(learner->arena, n * sizeof *values->visits);
        if (!values->visits) return ST_RESOURCE;
    }
    if (!values->w) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) values->w[i] = t->recipe->rl_initial_value / t->features.active;
    if (A == t->A) values->allowed = learner->env->action.allowed;
    return ST_OK;
}

/* A policy file has an entry for each numbered state; "uniform" fits any environment. For an environment without a known world, states and actions
 * have no names and none is terminal. */
Status given_policy_read(Learner *learner, double **pi) {
    const Tabular *t = learner->self;
    const char *name = t->recipe->rl_policy ? t->recipe->rl_policy : "uniform";
    if (learner->world && t->features.tiles[0] == 0) return mdp_policy_read(name, learner->world, learner->arena, pi);
    if (t->features.tiles[0] > 0 && strcmp(name, "uniform") != 0)
        return status_fail(ST_CONFIG, "'rl.policy' is a file with an entry for each state, but tiles have no numbered states");
    NamedMdp unknown = {
        .mdp = {.n_states = (int32_t)t->features.n, .n_actions = (int32_t)t->A, .terminal = arena_alloc(learner->arena, (size_t)t->features.n)}};
    if (!unknown.mdp.terminal) return ST_RESOURCE;
    memset(unknown.mdp.terminal, true, (size_t)t->features.n);
    return mdp_policy_read(name, &unknown, learner->arena, pi);
}

Status need_numbered_states(const Learner *learner, const char *what) {
    const Tabular *t = learner->self;
    if (t->features.active == 1) return ST_OK;
    status_fail(ST_CONFIG, "'%s' needs state numbers, but %d tilings give a state %d", what, t->features.active, t->features.active);
    return status_hint(ST_CONFIG, "use rl.tilings: 1, or td, sarsa or q_learning");
}

Status tabular_open(Learner *learner, size_t size, LearnedValues learned) {
    const Env *env = learner->env;
    const Recipe *recipe = learner->recipe;
    Tabular *t = learner->self = arena_zero(learner->arena, size);
    if (!t) return ST_RESOURCE;
    t->recipe = recipe;
    t->A = env->action.n;
    t->copies = env->copies;
    t->gamma = recipe->rl_gamma;
    t->alpha_schedule = alpha_schedules[recipe->rl_alpha_schedule];
    t->epsilon_schedule = epsilon_schedules[recipe->rl_epsilon_schedule];
    t->epsilon = recipe->rl_epsilon_end;
    TRY(features_open(recipe, env, &t->features));
    TRY(check_schedules(t));
    size_t copies = (size_t)t->copies, active = (size_t)t->features.active;
    t->S = arena_zero(learner->arena, copies * active * sizeof *t->S);
    t->S_next = arena_zero(learner->arena, copies * active * sizeof *t->S_next);
    t->actions = arena_zero(learner->arena, copies * sizeof *t->actions);
    t->b = arena_zero(learner->arena, copies * sizeof *t->b);
    t->q = arena_zero(learner->arena, (size_t)t->A * sizeof *t->q);
    if (!t->S || !t->S_next || !t->actions || !t->b || !t->q) return ST_RESOURCE;
    for (size_t copy = 0; copy < copies; copy++) t->actions[copy] = -1;
    TRY(values_new(learner, learned == STATE_VALUES ? 1 : t->A, &t->Q));
    if (learned == ACTION_VALUES) return ST_OK;
    TRY(given_policy_read(learner, &t->pi));
    t->judged = t->pi;
    return ST_OK;
}

/* ---- one step, n steps or traces ---- */

Status steps_open(Learner *learner, LearnedValues learned) {
    const Recipe *recipe = learner->recipe;
    TRY(tabular_open(learner, sizeof(Steps), learned));
    Steps *self = learner->self;
    if (recipe->rl_n_step > 1 && recipe->rl_lambda > 0)
        return status_hint(status_fail(ST_CONFIG, "'rl.n_step' and 'rl.lambda' do not go together"),
                           "use returns of n steps, or traces that decay by lambda: leave one out");
    if (recipe->rl_traces != RL_TRACES_ACCUMULATING && !(recipe->rl_lambda > 0))
        return status_hint(status_fail(ST_CONFIG, "'rl.traces' does nothing without 'rl.lambda'"), "0.8 to 0.95 are usual");
    if (recipe->rl_lambda > 0) return traces_open(learner, &self->traces);
    return recipe->rl_n_step > 1 ? memory_open(learner, recipe->rl_n_step, &self->memory) : ST_OK;
}

void steps_learn(Learner *learner, const Step *step, int64_t A, int64_t A_next) {
    Steps *self = learner->self;
    Tabular *t = &self->t;
    double next = value_of(&t->Q, step->S_next, A_next);
    if (t->recipe->rl_lambda > 0)
        traces_learn(t, &self->traces, &t->Q, step, A, next);
    else if (t->recipe->rl_n_step > 1)
        memory_learn_n_step(t, &self->memory, &t->Q, t->recipe->rl_n_step, step, A_next);
    else
        learn_toward(t, &t->Q, step->S, A, step->R + step->gamma * next);
}

void steps_list_state(Learner *learner, StateList *states) {
    const Steps *self = learner->self;
    tabular_list_state(learner, states);
    memory_list_state(&self->memory, &self->t, states);
    traces_list_state(&self->traces, &self->t, states);
}

/* ---- saved state and reported values ---- */

void values_list_state(StateList *states, const char *name, const Values *values) { state_f64(states, name, values->w, values->n * values->A); }

void values_list_visits(StateList *states, const char *name, const Values *values) {
    if (values->visits) state_f64(states, name, values->visits, values->n * values->A);
}

void tabular_policy(Learner *learner, StateList *states) {
    const Tabular *t = learner->self;
    values_list_state(states, t->pi ? "V" : "Q", &t->Q);
}

void tabular_list_state(Learner *learner, StateList *states) {
    const Tabular *t = learner->self;
    values_list_visits(states, "visits", &t->Q);
    state_f64(states, "actions", t->actions, t->copies);
}

static double learned_value(const Tabular *t, int64_t s) {
    const double *q = t->Q.w + s * t->Q.A;
    double sum = 0;
    if (t->Q.A == 1) return q[0];
    for (int64_t a = 0; a < t->A; a++) {
        t->q[a] = t->Q2 ? (q[a] + t->Q2->w[s * t->A + a]) / 2 : q[a];
        if (t->Q.allowed && !t->Q.allowed[s * t->A + a]) t->q[a] = -(double)INFINITY;
    }
    if (!t->judged) return t->q[best_of(t->q, t->A)];
    for (int64_t a = 0; a < t->A; a++) sum += t->judged[s * t->A + a] * q[a];
    return sum;
}

bool tabular_values(Learner *learner, double *learned, double *exact) {
    Tabular *t = learner->self;
    const NamedMdp *world = learner->world;
    if (!world || t->features.tiles[0] > 0) return false;
    Mdp mdp = world->mdp;
    MdpSolution solution;
    bool *reachable = arena_zero(learner->arena, (size_t)mdp.n_states);
    mdp.gamma = t->gamma;
    if (!reachable || mdp_reachable(world, reachable) != ST_OK) return false;
    Status status = t->judged ? mdp_evaluate(&mdp, t->judged, &(MdpOptions){.world = world}, learner->arena, &solution)
                              : mdp_solve(&mdp, &(MdpOptions){.world = world}, learner->arena, &solution);
    for (int32_t s = 0; s < mdp.n_states && status == ST_OK; s++) {
        exact[s] = solution.V[s];
        learned[s] = reachable[s] && !mdp.terminal[s] ? learned_value(t, s) : (double)NAN;
    }
    if (status != ST_OK)
        log_message(LOG_WARNING, "no exact values to compare with: %s%s%s", status_text(), status_hint_text()[0] ? "; " : "", status_hint_text());
    return status == ST_OK;
}
