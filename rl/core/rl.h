/* SPDX-License-Identifier: Apache-2.0 */
/* Reinforcement learning on one abstraction: a gridworld, CartPole and a language model are the same kind of thing. This header fixes the shapes that
 * all of it shares; solvers, environments and algorithms come with their own files.
 *
 *     V(s) = max_a sum_{s'} P(s'|s,a) (R(s,a,s') + gamma V(s'))            // an Mdp is solved exactly
 *     for (t = 0; t < batch.T; t++) ... batch.rewards[t * batch.B + b]     // anything else is sampled into a Trajectory
 */
#ifndef TUNE_RL_H
#define TUNE_RL_H

#include "data/data.h"

/* A finite Markov decision process <S, A, P, R, gamma>, sparse: the outcomes of (s, a) are entries begin[s * n_actions + a] .. begin[s * n_actions +
 * a + 1] - 1. A live state does not have the actions without outcomes: nothing chooses them. It has at least one. */
typedef struct Mdp {
    int32_t n_states, n_actions;
    double gamma;
    int64_t *begin;      /* n_states x n_actions + 1 */
    int32_t *next;       /* state that follows */
    double *probability; /* of that outcome; each (s, a) sums to 1 */
    double *reward;
    bool *ends;     /* per entry: the episode ends with this outcome, no value is taken from `next`; NULL: only terminal states end it */
    bool *terminal; /* per state: value 0, no way on */
} Mdp;
static inline bool mdp_has(const Mdp *mdp, int64_t state, int64_t action) {
    int64_t row = state * mdp->n_actions + action;
    return mdp->begin[row] < mdp->begin[row + 1];
}

/* What was seen and done: T steps of B copies of an environment, or of B completions of at most T tokens. All arrays (T, B); row t of copy b is entry
 * t * B + b. `terminated` (the process ended: no value behind it) and `truncated` (we stopped looking: the value behind it counts) are kept apart. */
typedef struct Trajectory {
    int64_t T, B;
    double *obs; /* (T, B, obs_size); NULL for text, whose observation is the tokens so far */
    int64_t obs_size;
    int32_t *actions;
    double *logprobs; /* of the actions under the policy that chose them, nats */
    double *values;   /* V of the state before the action */
    double *rewards;
    bool *terminated, *truncated;
    bool *valid; /* false behind the end of a shorter episode or completion */
} Trajectory;

#endif
