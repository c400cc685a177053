/* SPDX-License-Identifier: Apache-2.0 */
/* Output: results on stdout, progress and warnings on stderr. */
#ifndef TUNE_TERMINAL_H
#define TUNE_TERMINAL_H

#include "lib/base/json.h"
#include "lib/base/work.h"

/* stdout: results only. A failed write is remembered until end_result. When the reader has closed the pipe, the command ends as if interrupted. */
void print_result(const char *format, ...) PRINTF_LIKE(1, 2);
void print_text(const char *text, size_t len); /* a terminal gets control characters in visible form; a pipe gets the bytes unchanged */
void print_raw(const char *text, size_t len);  /* our own escape sequences */
void page_text(const char *text, size_t len);  /* uses a pager if stdout is a terminal with fewer lines than the text */
void show_result(void);                        /* flushes stdout */
/* Called once, by program_run: flushes and reports failed writes. Returns `status` if it is a failure or all was written; else ST_RESOURCE (a full
 * disk and the like). If the pipe was closed, the program ends by SIGPIPE without a message, unless something else has failed before. */
Status end_result(Status status);
/* Between echo_off and echo_on the terminal does not show what is typed; the text waits to be read. A signal handler may call echo_on. They do
 * nothing if stdin is not a terminal. */
void echo_off(void);
void echo_on(void);
int screen_width(void);       /* columns of stdout; 0 if it is not a terminal */
bool screen_redraws(void);    /* stdout is a terminal that can move its cursor (not TERM=dumb) */
bool screen_has_colour(void); /* the same, and NO_COLOR is not set */
/* Formats a number with four digits, large ones as 13310 and not 1.331e+04. Returns `out`. */
const char *short_number(double value, char out[32]);
/* stderr: a live line if it is a terminal that can move its cursor, else plain lines; nothing with --quiet. */
/* Replaces the live line. On a pipe, prints the first line at once, then one every 10 seconds, after a minute one a minute. */
void show_progress(const char *format, ...) PRINTF_LIKE(1, 2);
void show_work(void *context, const Work *work);              /* a WorkSink: shows work that has taken more than 2 seconds */
void show_line(const char *format, ...) PRINTF_LIKE(1, 2);    /* prints a whole line above the live line */
void show_message(const char *format, ...) PRINTF_LIKE(1, 2); /* the same even with --quiet, for warnings */
void show_warning(void *context, const char *text);           /* show_message as a callback; ignores context */
void show_curve(double value);                                /* adds a value to the curve above the live line; on a terminal only */
/* Sets the lines (each with '\n') above the live line, shown when it is drawn next; on a terminal only. */
void show_table(const char *text);
void end_live_line(void);    /* leaves the live block as it is; the next output begins below it */
bool terminal_is_utf8(void); /* by the locale; true if none is set */
void set_quiet(bool on);
void set_silent(bool on); /* prints nothing at all, neither results nor messages: for a process next to one that prints */

void write_numbers(JsonWriter *w, const char *key, const double *values, int64_t n); /* writes an array */

#endif
