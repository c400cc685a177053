/* SPDX-License-Identifier: Apache-2.0 */
/* Reinforcement learning on one abstraction: a gridworld, CartPole and a language model are the same kind of thing. This header defines the shapes
 * that all of it shares; solvers, environments and algorithms are in files of their own.
 *
 *     V(s) = max_a sum_{s'} P(s'|s,a) (R(s,a,s') + gamma V(s'))            // an Mdp is solved exactly
 *     for (t = 0; t < batch.T; t++) ... batch.rewards[t * batch.B + b]     // anything else is sampled into a Trajectory
 */
#ifndef TUNE_RL_H
#define TUNE_RL_H

#include "data/data.h"

/* A finite Markov decision process <S, A, P, R, gamma>, sparse: the outcomes of (s, a) are entries begin[s * n_actions + a] .. begin[s * n_actions +
 * a + 1] - 1. An action without outcomes does not exist in that state and is never chosen. Every live state has at least one action. */
typedef struct Mdp {
    int32_t n_states, n_actions;
    double gamma;
    int64_t *begin;      /* n_states x n_actions + 1 */
    int32_t *next;       /* the next state */
    double *probability; /* of that outcome; they sum to 1 for each (s, a) */
    double *reward;
    bool *ends;     /* per entry: the episode ends with this outcome and the value of `next` is not used; NULL: only terminal states end it */
    bool *terminal; /* per state: value 0, no transitions out of it */
} Mdp;
static inline bool mdp_has(const Mdp *mdp, int64_t state, int64_t action) {
    int64_t row = state * mdp->n_actions + action;
    return mdp->begin[row] < mdp->begin[row + 1];
}

/* Sampled experience: T steps of B copies of an environment, or of B completions of at most T tokens. All arrays are (T, B); row t of copy b is entry
 * t * B + b. `terminated` (the process ended, the next state is worth 0) and `truncated` (sampling stopped, the next state keeps its value) are
 * separate flags. */
typedef struct Trajectory {
    int64_t T, B;
    double *obs; /* (T, B, obs_size); NULL for text, whose observation is the tokens so far */
    int64_t obs_size;
    int32_t *actions;
    double *logprobs; /* log-probabilities of the actions under the policy that chose them, in nats */
    double *values;   /* V of the state before the action */
    double *rewards;
    bool *terminated, *truncated;
    bool *valid; /* false after the end of a shorter episode or completion */
} Trajectory;

#endif
