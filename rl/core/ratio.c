/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/ratio.h"

double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

double log_ratio(double a, double b) { return clamp(a - b, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT); }

double log_sigmoid(double x) { return x > 0 ? -log1p(exp(-x)) : x - log1p(exp(x)); }

double sigmoid(double x) { return x > 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }
