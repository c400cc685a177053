/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the tabular methods of Sutton & Barto, "Reinforcement Learning", 2nd edition: tables and tiles, epsilon-soft behaviour, step sizes,
 * the memory of an episode, eligibility traces, and the loop that passes on steps S, A, R, S' one at a time.
 *
 *     static void q_learning_learn(Learner *learner, const Step *step) {            // the whole of Q-learning
 *         Tabular *t = learner->self;
 *         learn_toward(t, &t->Q, step->S, step->A, step->R + step->gamma * value_best(t, step->S_next));
 *     }
 *     static Status q_learning_open(Learner *learner) { return tabular_open(learner, sizeof(Tabular), ACTION_VALUES); }
 *     const Algorithm algorithm_q_learning = {.name = "q_learning", .open = q_learning_open, .learn = q_learning_learn, OF_A_TABLE, ...};
 *
 * A state is represented by its features: the row of a table, or one tile of each tiling; q(s,a) is the sum of their weights. Copies of the
 * environment step together and then update the same table one after the other; with one copy everything happens in the textbook's order. All random
 * choices of an update are drawn in order from one key, so a resumed run makes the same choices.
 */
#ifndef TUNE_TABLE_H
#define TUNE_TABLE_H

#include "rl/learn/learner.h"

/* ---- states as features ---- */

enum { TILE_DIMENSIONS = 8 };
/* Maps an observation to `active` of `n` features. */
typedef struct Features {
    int64_t n;
    int active; /* features per observation; 1: a table row */
    int size;   /* numbers in an observation */
    /* tiles of one tiling in each dimension, including the extra one for its shift; all 0: the observation is the row number */
    int64_t tiles[TILE_DIMENSIONS];
    double low[TILE_DIMENSIONS], scale[TILE_DIMENSIONS]; /* of each dimension: tiles per unit above `low` */
} Features;
/* Makes features from the observation space and rl.tilings, rl.tiles, rl.tile_low, rl.tile_high. ST_CONFIG: tilings of numbered states, missing
 * bounds, too many tiles.
 */
Status features_open(const Recipe *recipe, const Env *env, Features *features);
/* Writes the features S (active) of an observation (size). */
void features_of(const Features *features, const double *observation, int32_t *S);

/* ---- values ---- */

/* A function of states (A = 1) or of states and actions. */
typedef struct Values {
    int64_t n, A;
    int active;
    double *w;           /* (n, A) */
    double *visits;      /* (n, A): number of updates of each entry; NULL where no schedule needs it */
    const bool *allowed; /* (n, A): for action values, whether the state has the action; NULL: all */
} Values;
static inline bool values_allow(const Values *values, const int32_t *S, int64_t A) {
    return !values->allowed || values->allowed[S[0] * values->A + A];
}

/* One step of one copy, in the textbook's letters. */
typedef struct Step {
    int64_t copy;
    const int32_t *S, *S_next; /* features */
    int64_t A;
    double R;
    /* rl.gamma, or 0 when the process terminated. After truncation the episode would have continued, so the value of its last state counts. */
    double gamma;
    bool ended; /* terminated or truncated: the copy's next step belongs to another episode */
    double b;   /* probability with which A was chosen */
} Step;

/* How alpha or epsilon changes during a run (rl.alpha_schedule, rl.epsilon_schedule). */
typedef enum Schedule {
    CONSTANT,
    LINEAR,      /* linear in the steps of the run, from start to end */
    EXPONENTIAL, /* the same for its logarithm */
    VISITS,      /* 1 / number of visits of the state and action, this one included */
    HARMONIC     /* start * h / (h + number of visits before), with h of rl.alpha_visits or rl.epsilon_visits */
} Schedule;

/* The first member of every tabular algorithm's struct. */
typedef struct Tabular {
    const Recipe *recipe;
    Schedule alpha_schedule, epsilon_schedule;
    Features features;
    int64_t A, copies;
    Values Q;                     /* action values, or V (A = 1) when a given policy is evaluated */
    Values *Q2;                   /* the behaviour policy uses Q + Q2; NULL: Q */
    double *pi;                   /* (n, A): a given behaviour policy; NULL: epsilon-soft on the values */
    double *judged;               /* (n, A): a given policy whose values are learned; NULL: the behaviour policy or the optimal one */
    double alpha, epsilon, gamma; /* of this update */
    int32_t *S, *S_next;          /* (copies, active) */
    double *actions;              /* (copies): the next actions; below 0: not chosen yet */
    double *b;                    /* (copies): probability with which it was chosen */
    double *q;                    /* (A): scratch for the values of one state */
    RngKey key;
    uint64_t draws;   /* draws in this update so far */
    double error_sum; /* sum of squared errors in this update */
    int64_t errors;
} Tabular;

typedef enum LearnedValues { ACTION_VALUES, STATE_VALUES } LearnedValues;
/* Makes learner->self, `size` bytes that begin with a Tabular. ST_CONFIG: a policy file that does not match, or impossible tiles. */
Status tabular_open(Learner *learner, size_t size, LearnedValues learned);
/* Fields of Algorithm that all tabular algorithms share. */
#define OF_A_TABLE .tabular = true, .discrete = true, .update = tabular_update, .act = tabular_act, .values = tabular_values
Status tabular_update(Learner *learner); /* rl.num_steps steps of every copy, each handed to Algorithm.learn */
Status tabular_act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions);
void tabular_policy(Learner *learner, StateList *states); /* lists the tables in policy.safetensors; checkpoints contain all tables */
void tabular_list_state(Learner *learner, StateList *states);
/* learned: NaN for states that no episode reaches; exact: values of the given policy, or the optimal ones */
bool tabular_values(Learner *learner, double *learned, double *exact);

/* Makes another table like Q. */
Status values_new(Learner *learner, int64_t A, Values *values);
void values_list_state(StateList *states, const char *name, const Values *values);  /* lists the weights: part of the policy */
void values_list_visits(StateList *states, const char *name, const Values *values); /* lists the visits: part of the other saved state */
double value_of(const Values *values, const int32_t *S, int64_t A);
double value_best(Tabular *t, const int32_t *S);                        /* max over actions */
double value_expected(Tabular *t, const int32_t *S);                    /* mean over the policy; V when a policy is evaluated */
int64_t best_action(const Values *values, const int32_t *S, double *q); /* the lowest-numbered best action; q: scratch, (A) */
/* value(S,A) += alpha (target - value(S,A)), divided equally among the features. */
void learn_toward(Tabular *t, Values *values, const int32_t *S, int64_t A, double target);
void note_error(Tabular *t, double error); /* for the metric td_error */
/* Returns the step size of the next update of (S,A) and counts it as a visit. */
double step_size(Tabular *t, Values *values, const int32_t *S, int64_t A);
/* Chooses the action in S', which the copy's next step takes. If the episode is over the action is used in the update only. */
int64_t next_action(Tabular *t, const Step *step);
double draw(Tabular *t); /* uniform in [0,1) */

/* ST_CONFIG when states are not numbered (several features per state); `what` names the option that needs numbered states. */
Status need_numbered_states(const Learner *learner, const char *what);
/* Reads the policy that rl.policy names, (n, A). */
Status given_policy_read(Learner *learner, double **pi);

/* ---- the memory of each copy's episode ---- */

typedef struct Memory {
    int64_t capacity; /* steps per copy */
    int active;
    int32_t *S; /* (copies, capacity, active) */
    int32_t *A; /* (copies, capacity), like R and b: time t of the episode is entry t mod capacity */
    double *R, *b;
    int64_t *T; /* (copies): steps so far */
} Memory;
/* Allocates in the learner's arena. ST_RESOURCE, also when copies x capacity overflows. */
Status memory_open(Learner *learner, int64_t capacity, Memory *memory);
void memory_list_state(const Memory *memory, const Tabular *t, StateList *states);
void memory_add(Memory *memory, const Step *step);
size_t memory_at(const Memory *memory, int64_t copy, int64_t time); /* index into A, R and b */
const int32_t *memory_state(const Memory *memory, int64_t copy, int64_t time);
/* Learns from the n-step return that began n steps ago and, if the episode ended, from all remaining shorter ones. The return bootstraps from
 * values(S', A_next) unless the process terminated. */
void memory_learn_n_step(Tabular *t, Memory *memory, Values *values, int64_t n, const Step *step, int64_t A_next);
/* Replaces the reward of each remembered step by its return G. `next`: the value of the state after the last one, `step`. */
void memory_returns(const Tabular *t, Memory *memory, const Step *step, double next);

/* ---- eligibility traces ---- */

typedef struct Traces {
    int64_t n;       /* features x actions */
    double *z;       /* (copies, n): traces, multiplied by the step size at the time of the visit */
    int32_t *list;   /* (copies, n): indices where z is not 0 */
    int32_t *listed; /* (copies): length of each list */
    double *old;     /* (copies), true online: the value of S before the last update */
} Traces;
Status traces_open(Learner *learner, Traces *traces); /* fails as memory_open does */
void traces_list_state(const Traces *traces, const Tabular *t, StateList *states);
/* One step of TD(lambda) or Sarsa(lambda): updates values(S,A) and all earlier ones by the error R + gamma next - value(S,A); next: the value of S'
 * or of (S',A'). rl.traces selects the kind of trace: accumulating, replacing, or true online (van Seijen & Sutton 2014; Sutton & Barto 12.5).
 */
void traces_learn(Tabular *t, Traces *traces, Values *values, const Step *step, int64_t A, double next);

/* ---- one step, n steps or traces, according to rl.n_step and rl.lambda ---- */

typedef struct Steps {
    Tabular t;
    Memory memory;
    Traces traces;
} Steps;                                                    /* learner->self of the functions below */
Status steps_open(Learner *learner, LearnedValues learned); /* ST_CONFIG for rl.n_step with rl.lambda, and for rl.traces without rl.lambda */
void steps_list_state(Learner *learner, StateList *states);
/* Updates Q(S,A), and with n steps or traces the earlier pairs, from R and Q(S',A_next). */
void steps_learn(Learner *learner, const Step *step, int64_t A, int64_t A_next);

#endif
