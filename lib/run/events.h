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
    double began;     /* unix time at which the run began, pauses left out */
} Events;

/* Writes a new event file to `dir` with all of metrics.jsonl; with `replace` it replaces existing ones: its name sorts after theirs, and its first
 * event restarts all steps, so that an open TensorBoard drops the steps that the metrics lost. `path` is in `arena`. ST_RESOURCE, ST_INPUT. */
Status events_open(Events *events, Arena *arena, const char *dir, const char *metrics_path, bool replace);
/* Appends a line of metrics.jsonl in one write, so that a killed process leaves only complete records. The event's time is `began` plus the line's
 * `seconds`. */
Status events_add(const Events *events, const char *json_line);

/* CRC-32C (Castagnoli), as record files use it before masking. */
uint32_t events_crc(const void *bytes, size_t size);

#endif
