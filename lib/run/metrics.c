/* SPDX-License-Identifier: Apache-2.0 */
/* See metrics.h. */
#include "lib/run/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void metric_put(Metrics *metrics, Metric metric) {
    size_t i = 0;
    while (i < metrics->n && strcmp(metrics->items[i].name, metric.name) != 0) i++;
    ASSERT(i < METRICS_MAX, "more than %d metrics", METRICS_MAX);
    metrics->items[i] = metric;
    metrics->n = MAX(metrics->n, i + 1);
}

void metric_set(Metrics *metrics, const char *name, double value) { metric_put(metrics, (Metric){name, value, false}); }

void metric_count(Metrics *metrics, const char *name, int64_t value) { metric_put(metrics, (Metric){name, (double)value, true}); }

void metric_list(Metrics *metrics, const char *name, const double *values, size_t n) {
    metrics->list_name = name;
    metrics->list = values;
    metrics->n_list = n;
}

double metric_get(const Metrics *metrics, const char *name) {
    for (size_t i = 0; i < metrics->n; i++)
        if (strcmp(metrics->items[i].name, name) == 0) return metrics->items[i].value;
    return (double)NAN;
}

void metrics_write(JsonWriter *w, const Metrics *metrics, const char *prefix) {
    for (const Metric *metric = metrics->items; metric < metrics->items + metrics->n; metric++) {
        char prefixed[128];
        const char *name = metric->name; /* of any length; the few with a prefix are constants */
        if (*prefix) {
            snprintf(prefixed, sizeof prefixed, "%s%s", prefix, name);
            name = prefixed;
        }
        if (metric->whole && !isnan(metric->value))
            jw_int(w, name, (int64_t)metric->value);
        else
            jw_double(w, name, metric->value);
    }
    if (!metrics->list_name || *prefix) return;
    jw_array(w, metrics->list_name);
    for (size_t i = 0; i < metrics->n_list; i++) jw_double(w, NULL, metrics->list[i]);
    jw_end_array(w);
}

json_t *metrics_to_json(const Metrics *metrics) {
    json_t *list = json_array();
    for (size_t i = 0; i < metrics->n; i++)
        json_array_append_new(
            list, json_pack("[s, o, b]", metrics->items[i].name, json_real_or_null(metrics->items[i].value), (int)metrics->items[i].whole));
    return list;
}

Status metrics_from_json(const json_t *list, Arena *arena, Metrics *metrics) {
    for (size_t i = 0; i < json_array_size(list) && i < METRICS_MAX; i++) {
        const json_t *entry = json_array_get(list, i), *value = json_array_get(entry, 1);
        const char *name = json_string_value(json_array_get(entry, 0)), *kept = name ? arena_strdup(arena, name) : NULL;
        if (!kept) return name ? ST_RESOURCE : status_fail(ST_INPUT, "'state.json' has a metric without a name");
        metric_put(metrics, (Metric){kept, json_is_number(value) ? json_number_value(value) : (double)NAN, json_is_true(json_array_get(entry, 2))});
    }
    return ST_OK;
}
