/* SPDX-License-Identifier: Apache-2.0 */
/* Returns: the discounted sum of the rewards that follow a step, with an estimated value in place of rewards that were not observed. Every function
 * works on a Trajectory's (T, B) arrays and handles the end of an episode in the same way. The state after a terminated step is worth 0 (also if the
 * step was truncated as well), the state after a truncated step is worth the value of its final observation, and the state after the last row is
 * worth last_values. Entries that are not `valid` are skipped: padding after a completion, tokens that an environment inserted. Their results are 0.
 *
 *     Bootstrap bootstrap = {.final_values = final_values, .last_values = last_values};
 *     returns_gae(&batch, bootstrap, 0.99, 0.95, advantages, returns);
 *
 * Completions of different lengths need no padding: concatenated, they are a Trajectory of one copy (B = 1) with `terminated` or `truncated` set at
 * each completion's last token.
 *
 * gamma and lambda are in [0, 1]. A Trajectory's valid, terminated and truncated may be NULL: all valid, none ended. Results are (T, B) and must not
 * overlap the inputs.
 */
#ifndef TUNE_RETURNS_H
#define TUNE_RETURNS_H

#include "rl/core/rl.h"

typedef struct Bootstrap {
    /* (T, B): V of the final observation, read where a step is truncated; NULL: 0, so that a time limit counts as termination */
    const double *final_values;
    const double *last_values; /* (B): V of the observation after the last row, for copies whose episode continues; NULL: 0 */
} Bootstrap;

/* G_t = r_t + gamma G_{t+1}: Monte Carlo. Does not read trajectory->values. */
void returns_discounted(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, double *returns);
/* G_t = r_t + gamma r_{t+1} + ... + gamma^n V(s_{t+n}), with fewer steps where the episode ends earlier. n >= 1; n = 1 is the target of TD(0). */
void returns_n_step(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, int64_t n, double *returns);
/* G_t = r_t + gamma ((1 - lambda) V(s_{t+1}) + lambda G_{t+1}): 0 is TD(0), 1 is Monte Carlo. Source: Sutton and Barto, section 12.1. */
void returns_td_lambda(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, double lambda, double *returns);
/* A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V(s_{t+1}) - V(s_t); returns = A + V (the returns of TD(lambda)); returns may be NULL.
 * Source: arXiv 1506.02438, section 3. */
void returns_gae(const Trajectory *trajectory, Bootstrap bootstrap, double gamma, double lambda, double *advantages, double *returns);
/* V-trace. trajectory->logprobs are the behaviour policy's, `target_logprobs` (T, B) those of the policy being trained. With w = exp(target -
 * behaviour), rho = min(rho_bar, w), c = lambda min(c_bar, w): v_t = V_t + rho_t (r_t + gamma V_{t+1} - V_t) + gamma c_t (v_{t+1} - V_{t+1}) are the
 * value targets, and advantages = rho_t (r_t + gamma v_{t+1} - V_t) are for the policy gradient. log w is clamped to +-20. Source: arXiv 1802.01561,
 * section 4.1. */
void returns_vtrace(const Trajectory *trajectory, Bootstrap bootstrap, const double *target_logprobs, double gamma, double lambda, double rho_bar,
                    double c_bar, double *targets, double *advantages);

#endif
