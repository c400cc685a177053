/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: libraries pass them to the sink that the program sets; they never print. */
#ifndef TUNE_LOG_H
#define TUNE_LOG_H

#include "lib/base/base.h"

/* LOG_RANK: a warning of what this process alone has met; the ranks that are silent otherwise print it too. */
typedef enum LogLevel { LOG_RANK, LOG_WARNING, LOG_INFO } LogLevel;
typedef void LogSink(void *context, LogLevel level, const char *text);
void log_set_sink(LogSink *sink, void *context, LogLevel highest); /* the program sets this once */
void log_set_record(LogSink *record, void *context);               /* receives every warning as well, in addition to the sink; NULL = none */
void log_message(LogLevel level, const char *format, ...) PRINTF_LIKE(2, 3);
bool log_is_enabled(LogLevel level);

#endif
