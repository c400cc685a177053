/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules of transformers' optimization.py: a factor on the peak learning rate for each step. */
#include "lib/nn/nn.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static double at_least_one(int64_t n) { return n > 1 ? (double)n : 1; }

static bool warming_up(const ScheduleConfig *c, int64_t k, double *factor) {
    if (k >= c->warmup_steps) return false;
    *factor = (double)k / at_least_one(c->warmup_steps);
    return true;
}

/* 0 at the end of the warmup, 1 at the last step. */
static double progress_at(const ScheduleConfig *c, int64_t k) {
    return (double)(k - c->warmup_steps) / at_least_one(c->total_steps - c->warmup_steps);
}

static double cycles_or(const ScheduleConfig *c, double cycles) { return c->num_cycles > 0 ? c->num_cycles : cycles; }

static double factor_constant(const ScheduleConfig *c, int64_t k) {
    double factor;
    return warming_up(c, k, &factor) ? factor : 1;
}

static double factor_linear(const ScheduleConfig *c, int64_t k) {
    double factor;
    if (warming_up(c, k, &factor)) return factor;
    return fmax(0, (double)(c->total_steps - k) / at_least_one(c->total_steps - c->warmup_steps));
}

static double factor_cosine(const ScheduleConfig *c, int64_t k) {
    double factor;
    if (warming_up(c, k, &factor)) return factor;
    return fmax(0, 0.5 * (1 + cos(PI * cycles_or(c, 0.5) * 2 * progress_at(c, k))));
}

static double factor_cosine_with_min_lr(const ScheduleConfig *c, int64_t k) {
    double factor;
    if (warming_up(c, k, &factor)) return factor;
    factor = 0.5 * (1 + cos(PI * cycles_or(c, 0.5) * 2 * progress_at(c, k)));
    return fmax(0, factor * (1 - c->min_lr_ratio) + c->min_lr_ratio);
}

static double factor_cosine_with_restarts(const ScheduleConfig *c, int64_t k) {
    double factor;
    if (warming_up(c, k, &factor)) return factor;
    double progress = progress_at(c, k);
    return progress >= 1 ? 0 : fmax(0, 0.5 * (1 + cos(PI * fmod(cycles_or(c, 1) * progress, 1))));
}

static double factor_polynomial(const ScheduleConfig *c, int64_t k) {
    double factor;
    if (warming_up(c, k, &factor)) return factor;
    if (k > c->total_steps) return c->lr_end_ratio;
    double remaining = 1 - (double)(k - c->warmup_steps) / at_least_one(c->total_steps - c->warmup_steps);
    return (1 - c->lr_end_ratio) * pow(remaining, c->power > 0 ? c->power : 1) + c->lr_end_ratio;
}

static double factor_inverse_sqrt(const ScheduleConfig *c, int64_t k) {
    double factor;
    if (warming_up(c, k, &factor)) return factor;
    int64_t timescale = c->timescale > 0 ? c->timescale : c->warmup_steps > 0 ? c->warmup_steps : 10000;
    return 1 / sqrt((double)(k + timescale - c->warmup_steps) / (double)timescale);
}

/* Warmup, a stable phase, then half a cosine over the last decay_steps; everything above the floor. */
static double factor_wsd(const ScheduleConfig *c, int64_t k) {
    int64_t decay = c->decay_steps > 0 ? c->decay_steps : c->total_steps / 10, decay_from = c->total_steps - decay;
    double factor;
    if (warming_up(c, k, &factor)) return factor * (1 - c->min_lr_ratio) + c->min_lr_ratio;
    if (k < decay_from) return 1;
    if (k >= c->total_steps) return c->min_lr_ratio;
    /* a decay longer than the steps after the warmup would have begun before its end */
    double progress = (double)(k - decay_from) / at_least_one(decay);
    return fmax(0, 0.5 * (1 + cos(PI * cycles_or(c, 0.5) * 2 * progress)) * (1 - c->min_lr_ratio) + c->min_lr_ratio);
}

typedef struct Schedule {
    const char *name, *keys;
    double (*factor)(const ScheduleConfig *config, int64_t k);
} Schedule;
static const Schedule schedules[] = {
#define SCHEDULE(name, keys) {#name, keys, factor_##name},
#include "lib/nn/schedules.def"
#undef SCHEDULE
};

const char *schedule_at(size_t i, const char **keys) {
    if (i >= COUNT_OF(schedules)) return NULL;
    *keys = schedules[i].keys;
    return schedules[i].name;
}

static const Schedule *schedule_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(schedules); i++)
        if (strcmp(schedules[i].name, name) == 0) return &schedules[i];
    return NULL;
}

double schedule_factor(const ScheduleConfig *config, int64_t k) {
    const Schedule *schedule = schedule_find(config->name);
    ASSERT(schedule, "schedule '%s' was not checked", config->name);
    return schedule->factor(config, k);
}

Status schedule_check(const ScheduleConfig *config) {
    if (!schedule_find(config->name)) {
        const char *names[COUNT_OF(schedules)];
        for (size_t i = 0; i < COUNT_OF(schedules); i++) names[i] = schedules[i].name;
        status_fail(ST_CONFIG, "unknown schedule '%s'", config->name);
        return status_hint_nearest(ST_CONFIG, config->name, names, COUNT_OF(names), NULL);
    }
    if (config->warmup_steps < 0 || config->total_steps < 0)
        return status_fail(ST_CONFIG, "schedule '%s' over %lld steps with a warmup of %lld", config->name, (long long)config->total_steps,
                           (long long)config->warmup_steps);
    return ST_OK;
}
