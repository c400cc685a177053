/* SPDX-License-Identifier: Apache-2.0 */
/* The run's TensorBoard event file: a mirror of metrics.jsonl.
 *
 *     TRY(events_open(&events, arena, "runs/a", "runs/a/metrics.jsonl"));
 *     TRY(events_add(&events, "{\"step\": 1, \"loss\": 2.5, \"seconds\": 0.1}"));   // one record: every number of the line under its own name
 */
#ifndef TUNE_EVENTS_H
#define TUNE_EVENTS_H

#include "lib/base/file.h"

typedef struct Events {
    const char *path; /* NULL: none */
    double began;     /* unix time at which the run's first second began, pauses left out */
} Events;

/* A new event file below `dir` with all that metrics.jsonl holds; with `replace` in place of those that were there. Its name then sorts behind theirs
 * and it begins with "all steps start over", so that a TensorBoard that looks on forgets what the metrics were cut back by. `path` is in `arena`.
 * ST_RESOURCE, ST_INPUT. */
Status events_open(Events *events, Arena *arena, const char *dir, const char *metrics_path, bool replace);
/* Appends a line of metrics.jsonl in one write, so that a killed process leaves whole records. Its time is `seconds` after the beginning. */
Status events_add(const Events *events, const char *json_line);

/* CRC-32C (Castagnoli), as record files have it before masking. */
uint32_t events_crc(const void *bytes, size_t size);

#endif
