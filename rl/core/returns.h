/* SPDX-License-Identifier: Apache-2.0 */
/* Returns: what a step was followed by, discounted, with values in place of what was not seen. Every function works on a Trajectory's (T, B) arrays
 * and treats its ends alike: behind a terminated step there is nothing (0; also when it was truncated in the same step), behind a truncated one there
 * is the value of its final observation, behind the last row there is last_values. Entries that are not `valid` are passed over, as if they were not
 * there: padding behind a completion, tokens that an environment wrote into it. Their results are 0.
 *
 *     Bootstrap behind = {.final_values = final_values, .last_values = last_values};
 *     returns_gae(&batch, behind, 0.99, 0.95, advantages, returns);
 *
 * Completions of different lengths need no padding: all tokens one after the other are a Trajectory of one copy (B = 1) with `terminated` or
 * `truncated` at each completion's last token.
 *
 * gamma and lambda are in [0, 1]. A Trajectory's valid, terminated and truncated may be NULL: all valid, none ended. Results are (T, B) and must not
 * overlap what is read.
 */
#ifndef TUNE_RETURNS_H
#define TUNE_RETURNS_H

#include "rl/core/rl.h"

typedef struct Bootstrap {
    /* (T, B): V of the final observation, read where a step is truncated; NULL: 0, a time limit is then an end like any other */
    const double *final_values;
    const double *last_values; /* (B): V of the observation behind the last row, for copies whose episode goes on; NULL: 0 */
} Bootstrap;

/* G_t = r_t + gamma G_{t+1}: Monte Carlo. Values in the Trajectory are not needed. */
void returns_discounted(const Trajectory *trajectory, Bootstrap behind, double gamma, double *returns);
/* G_t = r_t + gamma r_{t+1} + ... + gamma^n V(s_{t+n}), shorter where the episode ends before. n from 1; 1 is the target of TD(0). */
void returns_n_step(const Trajectory *trajectory, Bootstrap behind, double gamma, int64_t n, double *returns);
/* G_t = r_t + gamma ((1 - lambda) V(s_{t+1}) + lambda G_{t+1}): 0 is TD(0), 1 is Monte Carlo. Source: Sutton and Barto, section 12.1. */
void returns_td_lambda(const Trajectory *trajectory, Bootstrap behind, double gamma, double lambda, double *returns);
/* A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V(s_{t+1}) - V(s_t); returns = A + V (the returns of TD(lambda)), may be NULL. Source:
 * arXiv 1506.02438, section 3. */
void returns_gae(const Trajectory *trajectory, Bootstrap behind, double gamma, double lambda, double *advantages, double *returns);
/* V-trace. The trajectory's logprobs are the behaviour's, `target_logprobs` (T, B) those of the policy that learns; with w = exp(target - behaviour),
 * rho = min(rho_bar, w), c = lambda min(c_bar, w): v_t = V_t + rho_t (r_t + gamma V_{t+1} - V_t) + gamma c_t (v_{t+1} - V_{t+1}), targets of the
 * value; advantages = rho_t (r_t + gamma v_{t+1} - V_t) for the policy gradient. log w is kept within +-20. Source: arXiv 1802.01561, section 4.1. */
void returns_vtrace(const Trajectory *trajectory, Bootstrap behind, const double *target_logprobs, double gamma, double lambda, double rho_bar,
                    double c_bar, double *targets, double *advantages);

#endif
