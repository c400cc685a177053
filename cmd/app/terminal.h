/* SPDX-License-Identifier: Apache-2.0 */
/* What people and scripts see: results on stdout, progress and warnings on stderr. */
#ifndef TUNE_TERMINAL_H
#define TUNE_TERMINAL_H

#include "lib/base/json.h"
#include "lib/base/work.h"

/* stdout: results only. That it could not be written is kept until the end; once its reader has gone (a closed pipe), work ends as if
 * interrupted. */
void print_result(const char *format, ...) PRINTF_LIKE(1, 2);
void print_text(const char *text, size_t len); /* what would steer a terminal is shown there; a pipe gets the bytes */
void print_raw(const char *text, size_t len);  /* what we steer it with */
void page_text(const char *text, size_t len);  /* by a pager where it is longer than the terminal that it goes to */
void show_result(void);                        /* flushes: what was printed so far can be read */
/* Once, by program_run: flushes, and says what came of writing. ST_RESOURCE for a full disk and the like; a closed pipe ends the program by SIGPIPE,
 * without a word, unless something else went wrong before. */
Status end_result(Status status);
/* The terminal shows no longer what is typed, which waits for its reader; until echo_on, which a signal's handler may call. Nothing where stdin is
 * none. */
void echo_off(void);
void echo_on(void);
int screen_width(void);       /* columns of stdout's terminal; 0 where it is none */
bool screen_redraws(void);    /* stdout is a terminal whose cursor moves: not TERM=dumb */
bool screen_has_colour(void); /* the same, and colours are wanted: no NO_COLOR */
/* A number for people: 13310 and not 1.331e+04, else four digits. */
const char *short_number(double value, char out[32]);
/* stderr: a live line on a terminal that can redraw it, plain lines otherwise; nothing with --quiet. */
/* Replaces the live line. On a pipe the first one is a line, then one in 10 seconds, after a minute one a minute. */
void show_progress(const char *format, ...) PRINTF_LIKE(1, 2);
void show_work(void *context, const Work *work);              /* a WorkSink: long work, once it has taken 2 seconds, at the pace of work.h */
void show_line(const char *format, ...) PRINTF_LIKE(1, 2);    /* takes the live line's place, prints a whole line */
void show_message(const char *format, ...) PRINTF_LIKE(1, 2); /* the same, --quiet or not: warnings */
void show_warning(void *context, const char *text);           /* as such a message; context is not looked at, so that it can be a callback */
void show_curve(double value);                                /* adds a value to the curve above the live line; on a terminal only */
/* lines, each with its end, above the live line, as it is drawn next; on a terminal only */
void show_table(const char *text);
void end_live_line(void);    /* what stands there stays, the next line begins below it */
bool terminal_is_utf8(void); /* the locale; where it says nothing, true */
void set_quiet(bool on);

void write_numbers(JsonWriter *w, const char *key, const double *values, int64_t n); /* an array */

#endif
