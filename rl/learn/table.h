/* SPDX-License-Identifier: Apache-2.0 */
/* What the methods of the textbook share that learn values step by step (Sutton & Barto, "Reinforcement Learning", 2nd edition): tables and tiles,
 * epsilon-soft behaviour, step sizes, what is remembered of an episode, eligibility traces, and the loop that hands over one step S, A, R, S' after
 * the other.
 *
 *     static void q_learning_learn(Learner *learner, const Step *step) {            // the whole of Q-learning
 *         Tabular *t = learner->self;
 *         learn_toward(t, &t->Q, step->S, step->A, step->R + step->gamma * value_best(t, step->S_next));
 *     }
 *     static Status q_learning_open(Learner *learner) { return tabular_open(learner, sizeof(Tabular), ACTION_VALUES); }
 *     const Algorithm algorithm_q_learning = {.name = "q_learning", .open = q_learning_open, .learn = q_learning_learn, OF_A_TABLE, ...};
 *
 * A state is its features: the row of a table, or one tile of each tiling; q(s,a) is the sum of their weights. Copies of the environment step
 * together and learn one after the other into the same table; with one copy everything happens in the textbook's order. All random choices of an
 * update are drawn in order from one key, so a resumed run makes the same ones.
 */
#ifndef TUNE_TABLE_H
#define TUNE_TABLE_H

#include "rl/learn/learner.h"

/* ---- states as features ---- */

enum { TILE_DIMENSIONS = 8 };
/* Which of `n` features an observation has: always `active` of them. */
typedef struct Features {
    int64_t n;
    int active; /* 1: rows of a table */
    int size;   /* numbers in an observation */
    /* Of one tiling in each dimension, with the one that its shift adds; all 0: the observation is the number of the row */
    int64_t tiles[TILE_DIMENSIONS];
    double low[TILE_DIMENSIONS], scale[TILE_DIMENSIONS]; /* of each dimension: tiles per unit above `low` */
} Features;
/* From the observation's space and rl.tilings, rl.tiles, rl.tile_low, rl.tile_high. ST_CONFIG: tilings of numbered states, no bounds, too many tiles.
 */
Status features_open(const Recipe *recipe, const Env *env, Features *features);
/* observation: (size); S: (active). */
void features_of(const Features *features, const double *observation, int32_t *S);

/* ---- values ---- */

/* A function of states (A = 1) or of states and actions. */
typedef struct Values {
    int64_t n, A;
    int active;
    double *w;           /* (n, A) */
    double *visits;      /* (n, A): updates of each entry; NULL where no schedule asks for them */
    const bool *allowed; /* (n, A): of action values, whether the state has the action; NULL: all of them */
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
    /* rl.gamma; 0 when the process terminated: nothing follows. A truncated episode would have gone on, so the value of its last state counts. */
    double gamma;
    bool ended; /* terminated or truncated: the copy's next step belongs to another episode */
    double b;   /* probability with which A was chosen */
} Step;

typedef enum Schedule { CONSTANT, LINEAR, EXPONENTIAL, VISITS, HARMONIC } Schedule;

/* What every algorithm's own struct begins with. */
typedef struct Tabular {
    const Recipe *recipe;
    Schedule alpha_schedule, epsilon_schedule;
    Features features;
    int64_t A, copies;
    Values Q;                     /* action values, or V (A = 1) where a given policy is judged */
    Values *Q2;                   /* behaviour goes by Q + Q2; NULL: by Q */
    double *pi;                   /* (n, A): the given policy that it behaves by; NULL: epsilon-soft on the values */
    double *judged;               /* (n, A): the given policy whose values are learned; NULL: its own, or the best */
    double alpha, epsilon, gamma; /* of this update */
    int32_t *S, *S_next;          /* (copies, active) */
    double *actions;              /* (copies): what is done next; below 0: not chosen yet */
    double *b;                    /* (copies): with which probability it was chosen */
    double *q;                    /* (A): room for the values of one state */
    RngKey key;
    uint64_t draws;   /* of this update so far */
    double error_sum; /* of squares, in this update */
    int64_t errors;
} Tabular;

typedef enum LearnedValues { ACTION_VALUES, STATE_VALUES } LearnedValues;
/* Makes learner->self, `size` bytes that begin with a Tabular. ST_CONFIG: a policy file that does not fit, tiles that can't be. */
Status tabular_open(Learner *learner, size_t size, LearnedValues learned);
/* The table's parts of an Algorithm. */
#define OF_A_TABLE .tabular = true, .discrete = true, .update = tabular_update, .act = tabular_act, .values = tabular_values
Status tabular_update(Learner *learner); /* rl.num_steps steps of every copy, each handed to Algorithm.learn */
Status tabular_act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions);
void tabular_policy(Learner *learner, StateList *states); /* what of the tables is in policy.safetensors; a checkpoint has all of them */
void tabular_list_state(Learner *learner, StateList *states);
/* NaN where no episode comes to; the exact ones are the given policy's, or the best */
bool tabular_values(Learner *learner, double *learned, double *exact);

/* One more table like Q. */
Status values_new(Learner *learner, int64_t A, Values *values);
void values_list_state(StateList *states, const char *name, const Values *values);  /* its weights: part of a policy */
void values_list_visits(StateList *states, const char *name, const Values *values); /* part of what is kept beside it */
double value_of(const Values *values, const int32_t *S, int64_t A);
double value_best(Tabular *t, const int32_t *S);                        /* max over actions */
double value_expected(Tabular *t, const int32_t *S);                    /* mean over the policy; the state's own value where a policy is judged */
int64_t best_action(const Values *values, const int32_t *S, double *q); /* the lowest of the best; q: room for A numbers */
/* value(S,A) += alpha (target - value(S,A)), shared evenly by the features. */
void learn_toward(Tabular *t, Values *values, const int32_t *S, int64_t A, double target);
void note_error(Tabular *t, double error); /* for the metric td_error */
/* The step size of the next update of (S,A), which is counted as one of its visits. */
double step_size(Tabular *t, Values *values, const int32_t *S, int64_t A);
/* The action that follows S', chosen now and done in the copy's next step. Where the episode is over it is only imagined. */
int64_t next_action(Tabular *t, const Step *step);
double draw(Tabular *t); /* uniform in [0,1) */

/* ST_CONFIG where a state is more than one feature; `what`: that which needs the number of a state. */
Status need_numbered_states(const Learner *learner, const char *what);
/* The policy that rl.policy names, (n, A). */
Status given_policy_read(Learner *learner, double **pi);

/* ---- what is remembered of each copy's episode ---- */

typedef struct Memory {
    int64_t capacity; /* steps of a copy */
    int active;
    int32_t *S; /* (copies, capacity, active) */
    int32_t *A; /* (copies, capacity), as the others: time t of the episode is entry t mod capacity */
    double *R, *b;
    int64_t *T; /* (copies): steps so far */
} Memory;
/* In the learner's arena. ST_RESOURCE, also where copies x capacity is more than memory addresses. */
Status memory_open(Learner *learner, int64_t capacity, Memory *memory);
void memory_list_state(const Memory *memory, const Tabular *t, StateList *states);
void memory_add(Memory *memory, const Step *step);
size_t memory_at(const Memory *memory, int64_t copy, int64_t time); /* the entry of A, R and b */
const int32_t *memory_state(const Memory *memory, int64_t copy, int64_t time);
/* Learns from the return of n steps that began n steps ago, and where the episode ended from all that are left. What follows S' is worth values(S',
 * A_next), when anything follows. */
void memory_learn_n_step(Tabular *t, Memory *memory, Values *values, int64_t n, const Step *step, int64_t A_next);
/* Puts the returns G of each remembered step in the place of the rewards. `next`: the value of what follows the last one, `step`. */
void memory_returns(const Tabular *t, Memory *memory, const Step *step, double next);

/* ---- eligibility traces ---- */

typedef struct Traces {
    int64_t n;       /* features x actions */
    double *z;       /* (copies, n): with each state's step size of the time when it was visited in it */
    int32_t *list;   /* (copies, n): where z is not 0 */
    int32_t *listed; /* (copies): how many */
    double *old;     /* (copies), true online: the value of S as it was before the last update */
} Traces;
Status traces_open(Learner *learner, Traces *traces); /* as memory_open */
void traces_list_state(const Traces *traces, const Tabular *t, StateList *states);
/* One step of TD(lambda) or Sarsa(lambda): values(S,A) and all before it move by the error R + gamma next - value(S,A), next: the value of what
 * follows (S' or S',A'). rl.traces says how the trace grows: accumulating, replacing, or true online (van Seijen & Sutton 2014; Sutton & Barto 12.5).
 */
void traces_learn(Tabular *t, Traces *traces, Values *values, const Step *step, int64_t A, double next);

/* ---- one step, n steps or traces, as rl.n_step and rl.lambda want ---- */

typedef struct Steps {
    Tabular t;
    Memory memory;
    Traces traces;
} Steps;                                                    /* learner->self of the functions below */
Status steps_open(Learner *learner, LearnedValues learned); /* ST_CONFIG for both at once, and for rl.traces without rl.lambda */
void steps_list_state(Learner *learner, StateList *states);
/* Q(S,A), and with steps or traces what came before, learn from R and Q(S',A_next). */
void steps_learn(Learner *learner, const Step *step, int64_t A, int64_t A_next);

#endif
