/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers with names, in the order in which they were first set: what a step measured, and the result of a run.
 *
 *     Metrics metrics = {.n = 0};
 *     metric_set(&metrics, "loss", 2.5);
 *     metric_count(&metrics, "tokens", 812);
 *     metrics_write(&w, &metrics, "eval_");    // "eval_loss": 2.5, "eval_tokens": 812
 */
#ifndef TUNE_METRICS_H
#define TUNE_METRICS_H

#include "lib/base/arena.h"
#include "lib/base/json.h"

enum { METRICS_MAX = 128 };
typedef struct Metric {
    const char *name; /* a string constant, or in an arena that lives as long as the list */
    double value;
    bool whole;
} Metric;
typedef struct Metrics {
    Metric items[METRICS_MAX];
    size_t n;
    const char *list_name; /* one list of numbers; NULL: none */
    const double *list;
    size_t n_list;
} Metrics;
void metric_set(Metrics *metrics, const char *name, double value);    /* NaN: unknown, null in files */
void metric_count(Metrics *metrics, const char *name, int64_t value); /* the same, written as an integer */
/* A list of numbers, borrowed: written with the others, and not kept in state.json. At most one. */
void metric_list(Metrics *metrics, const char *name, const double *values, size_t n);
double metric_get(const Metrics *metrics, const char *name); /* NaN when it is not set */
/* Adds all numbers to the open object of `w`, each name after `prefix`. */
void metrics_write(JsonWriter *w, const Metrics *metrics, const char *prefix);
/* The same list as JSON, in order: [[name, value, whole], ...]. The caller decrefs it; NULL without memory. */
json_t *metrics_to_json(const Metrics *metrics);
/* Sets what such a list has; names are copied into the arena. ST_INPUT for an entry without a name; ST_RESOURCE. */
Status metrics_from_json(const json_t *list, Arena *arena, Metrics *metrics);

#endif
