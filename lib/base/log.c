/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the library for the program's user, and the request to stop. */
#include "lib/base/log.h"
#include "lib/base/str.h"
#include "lib/base/system.h"

#include <stdatomic.h>
#include <stdio.h>

static struct {
    LogSink *sink, *record;
    void *context, *record_context;
    LogLevel highest;
} log_target;
static atomic_bool interrupted; /* set by a signal in one thread, read by all */

void log_set_sink(LogSink *sink, void *context, LogLevel highest) {
    log_target.sink = sink;
    log_target.context = context;
    log_target.highest = highest;
}

void log_set_record(LogSink *record, void *context) {
    log_target.record = record;
    log_target.record_context = context;
}

bool log_is_enabled(LogLevel level) { return log_target.sink && level <= log_target.highest; }

void log_message(LogLevel level, const char *format, ...) {
    bool recorded = level <= LOG_WARNING && log_target.record;
    if (!recorded && !log_is_enabled(level)) return;
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_keep_one_line(text, sizeof text);
    if (recorded) log_target.record(log_target.record_context, level, text);
    if (log_is_enabled(level)) log_target.sink(log_target.context, level, text);
}

void interrupt_request(void) { interrupted = true; }
void interrupt_clear(void) { interrupted = false; }
bool interrupt_requested(void) { return interrupted; }
