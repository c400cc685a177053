/* SPDX-License-Identifier: Apache-2.0 */
/* The one place where log-probabilities become ratios. A difference of log-probabilities is clamped to +-20 before exponentiation (as in verl and
 * OpenRLHF), so finite and minus infinite log-probabilities never give infinities. NaN stays NaN, so that a run that diverged is noticed.
 */
#ifndef TUNE_RATIO_H
#define TUNE_RATIO_H

#define LOG_RATIO_LIMIT 20.0

/* x clamped to low..high; NaN stays NaN. */
double clamp(double x, double low, double high);
/* a - b clamped to +-LOG_RATIO_LIMIT; a or b may be minus infinity, but not both. */
double log_ratio(double a, double b);
/* Logarithm of the sigmoid, accurate at both ends; its derivative is sigmoid(-x). */
double log_sigmoid(double x);
double sigmoid(double x);

#endif
