/* SPDX-License-Identifier: Apache-2.0 */
/* The one place where log-probabilities become ratios. A difference of log-probabilities is kept within +-20 before it is an exponent (as verl and
 * OpenRLHF do it), so finite and minus infinite log-probabilities never give infinities; NaN stays NaN, for a run that diverged to be seen.
 */
#ifndef TUNE_RATIO_H
#define TUNE_RATIO_H

#define LOG_RATIO_LIMIT 20.0

/* x within low..high; NaN stays NaN. */
double clamp(double x, double low, double high);
/* a - b within +-LOG_RATIO_LIMIT; a and b may be minus infinity, not both. */
double log_ratio(double a, double b);
/* Logarithm of the sigmoid, exact at both ends; its slope is sigmoid(-x). */
double log_sigmoid(double x);
double sigmoid(double x);

#endif
