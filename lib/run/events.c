/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event file: records in TFRecord frames, each a protocol buffer `Event` (tensorflow/core/util/event.proto, summary.proto).
 *
 * It is generated from metrics.jsonl alone. When a run is resumed, the file is rewritten from the truncated metrics, so no step is in it twice,
 * whenever the run was killed. The event file itself is never read. */
#include "lib/base/json.h"
#include "lib/run/events.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- records ---- */

uint32_t events_crc(const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void append_little_endian(Str *out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) str_append_char(out, (char)(uint8_t)(value >> (8 * i)));
}

/* The checksum of data that may contain checksums is masked: rotated by 15 bits, plus a constant. */
static void append_masked_crc(Str *out, const char *bytes, size_t size) {
    uint32_t crc = events_crc(bytes, size);
    append_little_endian(out, ((crc >> 15) | (crc << 17)) + 0xa282ead8u, 4);
}

static void append_record(Str *out, const Str *event) {
    size_t start = out->len;
    append_little_endian(out, event->len, 8);
    append_masked_crc(out, out->data + start, 8);
    str_append_n(out, str_text(event), event->len);
    append_masked_crc(out, str_text(event), event->len);
}

/* ---- protocol buffers ---- */

enum WireType { WIRE_VARINT = 0, WIRE_8_BYTES = 1, WIRE_LENGTH = 2, WIRE_4_BYTES = 5 };
enum EventField { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

static void append_varint(Str *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) str_append_char(out, (char)(uint8_t)(value | 0x80));
    str_append_char(out, (char)value);
}

static void append_key(Str *out, int field, enum WireType type) { append_varint(out, (uint64_t)field << 3 | type); }

static void append_int(Str *out, int field, int64_t value) {
    append_key(out, field, WIRE_VARINT);
    append_varint(out, (uint64_t)value);
}

static void append_real(Str *out, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    append_key(out, field, WIRE_8_BYTES);
    append_little_endian(out, bits, 8);
}

static void append_float(Str *out, int field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    append_key(out, field, WIRE_4_BYTES);
    append_little_endian(out, bits, 4);
}

static void append_bytes(Str *out, int field, const char *bytes, size_t size) {
    append_key(out, field, WIRE_LENGTH);
    append_varint(out, size);
    str_append_n(out, bytes, size);
}

/* ---- events ---- */

static void append_version(Str *out, double time) {
    static const char version[] = "brain.Event:2"; /* from version 2 on, TensorBoard reads session logs */
    Str event = {0};
    append_real(&event, EVENT_WALL_TIME, time);
    append_bytes(&event, EVENT_FILE_VERSION, version, strlen(version));
    append_record(out, &event);
    str_release(&event);
}

static void append_start(Str *out, double time, int64_t step) {
    Str event = {0}, session = {0};
    append_int(&session, SESSION_STATUS, SESSION_START);
    append_real(&event, EVENT_WALL_TIME, time);
    append_int(&event, EVENT_STEP, step);
    append_bytes(&event, EVENT_SESSION_LOG, str_text(&session), session.len);
    append_record(out, &event);
    str_release(&session);
    str_release(&event);
}

static void append_scalar(Str *summary, const char *tag, double number) {
    Str value = {0};
    append_bytes(&value, VALUE_TAG, tag, strlen(tag));
    append_float(&value, VALUE_SIMPLE, (float)number);
    append_bytes(summary, SUMMARY_VALUE, str_text(&value), value.len);
    str_release(&value);
}

/* `step` and `seconds` are the event's own step and time. */
static void append_metrics(Str *out, const json_t *metrics, double began) {
    Str event = {0}, summary = {0};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)metrics, key, value) {
        if (json_is_number(value) && strcmp(key, "step") != 0 && strcmp(key, "seconds") != 0) append_scalar(&summary, key, json_number_value(value));
    }
    append_real(&event, EVENT_WALL_TIME, began + json_number_value(json_object_get(metrics, "seconds")));
    append_int(&event, EVENT_STEP, json_integer_value(json_object_get(metrics, "step")));
    append_bytes(&event, EVENT_SUMMARY, str_text(&summary), summary.len);
    append_record(out, &event);
    str_release(&summary);
    str_release(&event);
}

/* ---- the file ---- */

/* TensorBoard's own rule; it includes temporary files of a killed process */
static bool is_event_file(const char *name) { return strstr(name, ".tfevents.") != NULL; }

/* The time in the newest event file's name, seconds; 0 = there is none. */
static int64_t newest_time(char **names, size_t n) {
    int64_t newest = 0;
    for (size_t i = 0; i < n; i++) {
        long long time;
        if (sscanf(names[i], "events.out.tfevents.%18lld", &time) == 1) newest = MAX(newest, time);
    }
    return newest;
}

/* Training time so far, from the last line of the metrics. */
static Status seconds_so_far(const char *metrics_path, double *seconds) {
    Lines lines;
    Slice line;
    *seconds = 0;
    if (!file_exists(metrics_path)) return ST_OK;
    TRY(lines_open(&lines, metrics_path));
    while (lines_next(&lines, &line)) {
        json_t *json;
        if (json_read_text(line.data, line.len, "metrics.jsonl", &json) != ST_OK) continue;
        *seconds = MAX(*seconds, json_number_value(json_object_get(json, "seconds")));
        json_decref(json);
    }
    return lines_close(&lines);
}

static Status copy_metrics(FileWriter *writer, const char *metrics_path, double began) {
    Lines lines;
    Slice line;
    if (!file_exists(metrics_path)) return ST_OK;
    TRY(lines_open(&lines, metrics_path));
    Str record = {0};
    while (lines_next(&lines, &line)) {
        json_t *json;
        if (json_read_text(line.data, line.len, "metrics.jsonl", &json) != ST_OK) continue;
        str_clear(&record);
        append_metrics(&record, json, began);
        writer_write(writer, str_text(&record), record.len);
        json_decref(json);
    }
    str_release(&record);
    return lines_close(&lines);
}

static Status remove_file(const char *path) {
    if (!path) return ST_RESOURCE;
    return UNTIL_DONE(unlink(path)) == 0 || errno == ENOENT ? ST_OK : status_errno(errno, "cannot remove '%s'", path);
}

static Status write_file(const Events *events, const char *metrics_path, bool again, double now) {
    FileWriter writer;
    Str head = {0};
    TRY(writer_open(&writer, events->path));
    append_version(&head, now);
    if (again) append_start(&head, now, 0);
    writer_write(&writer, str_text(&head), head.len);
    str_release(&head);
    Status status = copy_metrics(&writer, metrics_path, events->began);
    if (status == ST_OK) return writer_commit(&writer);
    writer_abandon(&writer);
    return status;
}

Status events_open(Events *events, Arena *arena, const char *dir, const char *metrics_path, bool replace) {
    char **names, host[256] = "localhost";
    size_t n;
    struct timespec now;
    double seconds;
    gethostname(host, sizeof host - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    TRY(dir_list(dir, arena, &names, &n));
    TRY(seconds_so_far(metrics_path, &seconds));
    int64_t newest = newest_time(names, n);
    events->began = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - seconds;
    events->path =
        arena_printf(arena, "%s/events.out.tfevents.%010lld.%s.%d", dir, (long long)MAX((int64_t)now.tv_sec, newest + 1), host, (int)getpid());
    if (!events->path) return ST_RESOURCE;
    TRY(write_file(events, metrics_path, replace && newest > 0, events->began + seconds));
    for (size_t i = 0; i < n && replace; i++)
        if (is_event_file(names[i])) TRY(remove_file(path_join(arena, dir, names[i])));
    return ST_OK;
}

Status events_add(const Events *events, const char *json_line) {
    json_t *json;
    TRY(json_read_text(json_line, strlen(json_line), "metrics.jsonl", &json));
    Str record = {0};
    append_metrics(&record, json, events->began);
    Status status = file_append(events->path, str_text(&record), record.len);
    str_release(&record);
    json_decref(json);
    return status;
}
