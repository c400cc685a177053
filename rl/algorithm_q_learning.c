/* Q-learning: Q(s,a) += alpha (r + gamma max_a' Q(s',a') - Q(s,a)), behaving epsilon-greedily. Source: Watkins 1989; Sutton & Barto 6.5. */
#include "rl/learner.h"

typedef struct QLearning {
    int64_t S, A;
    double *Q, *actions;   /* (S, A); (copies) */
    int64_t *states;       /* (copies): before the step */
} QLearning;

static int64_t greedy_action(const QLearning *q, int64_t state) {
    int64_t best = 0;
    for (int64_t a = 1; a < q->A; a++)
        if (q->Q[state * q->A + a] > q->Q[state * q->A + best]) best = a;
    return best;
}

static Status act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions) {
    const QLearning *q = learner->self;
    const Recipe *recipe = learner->recipe;
    double epsilon = greedy ? 0 : learner_linear(learner, recipe->rl_epsilon_start, recipe->rl_epsilon_end, recipe->rl_epsilon_fraction);
    for (int64_t i = 0; i < n; i++) {
        bool explores = rng_uniform(key, (uint64_t)(2 * i)) < epsilon;
        actions[i] = (double)(explores ? (int64_t)rng_below(key, (uint64_t)(2 * i + 1), (uint64_t)q->A) : greedy_action(q, (int64_t)observations[i]));
    }
    return ST_OK;
}

static Status update(Learner *learner) {
    QLearning *q = learner->self;
    Env *env = learner->env;
    const Recipe *recipe = learner->recipe;
    for (int64_t t = 0; t < recipe->rl_num_steps; t++) {
        for (int64_t copy = 0; copy < env->copies; copy++) q->states[copy] = (int64_t)env->observations[copy];
        TRY(act(learner, env->observations, env->copies, false, learner_key(learner, RNG_EXPLORE, (uint64_t)t), q->actions));
        TRY(learner_step(learner, q->actions));
        for (int64_t copy = 0; copy < env->copies; copy++) {
            bool ended = env->terminated[copy] || env->truncated[copy];
            int64_t next = (int64_t)(ended ? env->final_observations : env->observations)[copy];
            double *value = &q->Q[q->states[copy] * q->A + (int64_t)q->actions[copy]];
            double target = env->rewards[copy] + (env->terminated[copy] ? 0 : recipe->rl_gamma * q->Q[next * q->A + greedy_action(q, next)]);
            *value += recipe->rl_alpha * (target - *value);
        }
    }
    return ST_OK;
}

static Status open(Learner *learner) {
    const Env *env = learner->env;
    QLearning *q = learner->self = arena_zero(learner->arena, sizeof *q);
    if (!q) return ST_RESOURCE;
    *q = (QLearning){.S = env->observation.n, .A = env->action.n};
    q->Q = arena_zero(learner->arena, (size_t)(q->S * q->A) * sizeof *q->Q);
    q->actions = arena_zero(learner->arena, (size_t)env->copies * sizeof *q->actions);
    q->states = arena_zero(learner->arena, (size_t)env->copies * sizeof *q->states);
    return q->Q && q->actions && q->states ? ST_OK : ST_RESOURCE;
}

static void policy(Learner *learner, Keeper *keeper) {
    QLearning *q = learner->self;
    keep_f64(keeper, "Q", q->Q, q->S * q->A);
}

const Algorithm algorithm_q_learning = {
    .name = "q_learning", .help = "Q-learning on a table (Watkins 1989)", .tabular = true, .discrete = true, .open = open, .update = update, .act = act, .policy = policy,
};
