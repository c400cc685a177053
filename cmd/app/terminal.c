/* SPDX-License-Identifier: Apache-2.0 */
/* Output: results on stdout, progress and messages on stderr. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/base/visible.h"
#include "lib/base/work.h"
#include "cmd/app/terminal.h"
#include "cmd/app/app.h"
#include "cmd/app/curve.h"

enum { CURVE_ROWS = 6, MAX_LINE = 512 };

/* The live block at the bottom of the terminal: `rows_drawn` lines of a table and a curve, then the progress line, which has the cursor. */
static bool quiet, muted, live, shown;
static char progress[MAX_LINE], working[MAX_LINE];             /* `working` is shown instead of `progress` unless it is empty */
static ProgressTimer step_pace = {.at_once = true}, work_pace; /* of the live line on a terminal */
static ProgressTimer line_pace = {.at_once = true};            /* of whole lines on a pipe */
static Curve *curve;
static Str table;
static int rows_drawn, columns_drawn;

void set_quiet(bool on) { quiet = on; }
void set_silent(bool on) { muted = on; }

/* ---- echo of typed text ---- */

static struct termios typed; /* the settings before echo_off */
static volatile sig_atomic_t echo_is_off;

void echo_off(void) {
    if (echo_is_off || tcgetattr(STDIN_FILENO, &typed) != 0) return;
    struct termios silent = typed;
    silent.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    echo_is_off = tcsetattr(STDIN_FILENO, TCSANOW, &silent) == 0;
}

void echo_on(void) {
    if (echo_is_off) tcsetattr(STDIN_FILENO, TCSANOW, &typed);
    echo_is_off = 0;
}

/* ---- results ---- */

/* errno of the first failed write to stdout; 0: none failed. If the reader of a pipe has closed it, the command ends as if interrupted, so that it
 * leaves no half-written files. */
static int output_error;

static void output_failed(void) {
    if (output_error) return;
    output_error = errno;
    if (output_error == EPIPE) interrupt_request();
}

/* Results wait in this buffer until they are written. stdio would lose them if a signal interrupts a write or a disk is full for a while. */
static char held[8 << 10];
static size_t n_held;

static void write_out(const char *text, size_t len) {
    while (len > 0) {
        ssize_t done = write(STDOUT_FILENO, text, len);
        if (done < 0 && errno == EINTR && !interrupt_requested()) continue; /* but an interrupt ends the wait for a full pipe */
        if (done < 0) {
            output_failed();
            return;
        }
        text += done;
        len -= (size_t)done;
    }
}

void show_result(void) {
    write_out(held, n_held);
    n_held = 0;
}

void write_numbers(JsonWriter *w, const char *key, const double *values, int64_t n) {
    jw_array(w, key);
    for (int64_t i = 0; i < n; i++) jw_double(w, NULL, values[i]);
    jw_end_array(w);
}

const char *short_number(double value, char out[32]) { return format_number(value, 4, out); }

/* Control characters in texts of others must not reach the terminal (visible.h). All texts go through print_text and print_plain; only our own
 * escape sequences go through print_raw. */
static Visible printed; /* state of a character that print_text has received in part */

static bool is_terminal(int fd) {
    static int known[STDERR_FILENO + 1]; /* 0: not asked yet; 1: no; 2: yes */
    if (!known[fd]) known[fd] = isatty(fd) ? 2 : 1;
    return known[fd] == 2;
}

/* Once memory has run out, texts may be incomplete: nothing more is printed, and end_result reports it. */
static bool texts_complete(void) {
    if (memory_is_short()) output_error = output_error ? output_error : memory_error();
    return !memory_is_short();
}

/* Appends to the buffer; on a terminal every complete line is shown at once. */
void print_raw(const char *text, size_t len) {
    if (muted || !texts_complete() || output_error) return;
    if (len > sizeof held - n_held) show_result();
    if (len > sizeof held) {
        write_out(text, len);
        return;
    }
    memcpy(held + n_held, text, len);
    n_held += len;
    if (is_terminal(STDOUT_FILENO) && memchr(text, '\n', len)) show_result();
}

void print_text(const char *text, size_t len) {
    Str clean = {0};
    if (is_terminal(STDOUT_FILENO)) visible_append(&clean, &printed, text, len);
    if (is_terminal(STDOUT_FILENO))
        print_raw(str_text(&clean), clean.len);
    else
        print_raw(text, len);
    str_release(&clean);
}

void print_result(const char *format, ...) {
    va_list arguments;
    Str text = {0};
    va_start(arguments, format);
    str_vprintf(&text, format, arguments);
    va_end(arguments);
    print_text(str_text(&text), text.len);
    str_release(&text);
}

/* Prints a whole line on stderr. */
static void print_plain(const char *text) {
    Str clean = {0};
    if (is_terminal(STDERR_FILENO)) visible_text(&clean, text);
    fprintf(stderr, "%s\n", is_terminal(STDERR_FILENO) ? str_text(&clean) : text);
    str_release(&clean);
}

Status end_result(Status status) {
    Str rest = {0};
    visible_end(&rest, &printed);
    if (rest.len > 0) print_raw(str_text(&rest), rest.len);
    str_release(&rest);
    show_result();
    if (output_error == EPIPE && (status == ST_OK || status == ST_INTERRUPTED)) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    if (output_error == 0 || status != ST_OK) return status;
    status_errno(output_error, "cannot write to standard output");
    return ST_RESOURCE;
}

/* ---- the terminal ---- */

static int lines_of(int fd, int *columns) {
    struct winsize size = {0};
    int known = ioctl(fd, TIOCGWINSZ, &size);
    *columns = known == 0 && size.ws_col > 0 ? size.ws_col : 80;
    return known == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

static void terminal_size(int *columns, int *rows) { *rows = lines_of(STDERR_FILENO, columns); }

int screen_width(void) {
    int columns;
    if (!isatty(STDOUT_FILENO)) return 0;
    const char *said = getenv("COLUMNS");
    long asked = said ? strtol(said, NULL, 10) : 0;
    if (asked > 0) return (int)MIN(asked, 10000);
    lines_of(STDOUT_FILENO, &columns);
    return columns;
}

/* By the locale's name alone: even a locale that is not installed tells what the terminal shows. */
bool terminal_is_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);
        if (!value || !*value) continue;
        const char *charset = strchr(value, '.');
        if (!charset) return strcmp(value, "C") != 0 && strcmp(value, "POSIX") != 0;
        return strncasecmp(charset, ".utf-8", 6) == 0 || strncasecmp(charset, ".utf8", 5) == 0;
    }
    return true;
}

static bool moves_cursor(int fd) {
    const char *term = getenv("TERM");
    return term && *term && strcmp(term, "dumb") != 0 && isatty(fd);
}

bool screen_redraws(void) { return moves_cursor(STDOUT_FILENO); }

bool screen_has_colour(void) {
    const char *plain = getenv("NO_COLOR");
    return moves_cursor(STDOUT_FILENO) && !(plain && *plain);
}

/* ---- the live block ---- */

/* Moves the cursor to the first line of the block and clears from there. If the terminal has become narrower, it has wrapped the lines and their
 * number is unknown: then the old block stays and a new one begins below. */
static void erase_block(void) {
    int columns, rows;
    if (!live) return;
    terminal_size(&columns, &rows);
    if (rows_drawn == 0)
        fputs("\r\033[K", stderr);
    else if (columns < columns_drawn || rows <= rows_drawn)
        fputc('\n', stderr);
    else
        fprintf(stderr, "\r\033[%dA\033[J", rows_drawn);
    live = false;
    rows_drawn = 0;
}

/* The lines of the table, each cut to `room` bytes. */
static void append_table(Str *out, size_t room) {
    for (const char *line = str_text(&table); *line;) {
        size_t len = strcspn(line, "\n");
        str_append_n(out, line, len > room ? utf8_whole_prefix(line, room) : len);
        str_append_char(out, '\n');
        line += len + (line[len] == '\n');
    }
}

static void draw_block(void) {
    int columns, rows;
    Str text = {0};
    erase_block();
    terminal_size(&columns, &rows);
    if (curve && curve->n > 1 && columns >= 40 && rows >= 2 * CURVE_ROWS) curve_write(curve, columns - 1, CURVE_ROWS, terminal_is_utf8(), &text);
    Str shown_line = {0};
    visible_text(&shown_line, *working ? working : progress);
    const char *line = str_text(&shown_line);
    size_t room = (size_t)MAX(columns - 1, 1), len = strlen(line), table_rows = 0;
    for (size_t i = 0; i < table.len; i++) table_rows += table.data[i] == '\n';
    if (table_rows + 2 < (size_t)rows) append_table(&text, room);
    for (size_t i = 0; i < text.len; i++) rows_drawn += text.data[i] == '\n';
    str_append_n(&text, line, len > room ? utf8_whole_prefix(line, room) : len);
    fputs(str_text(&text), stderr);
    fflush(stderr);
    str_release(&text);
    str_release(&shown_line);
    columns_drawn = columns;
    live = shown = true;
}

static void end_work(void) {
    progress_ended(&work_pace);
    if (!*working) return;
    working[0] = '\0';
    if (live && (*progress || curve || table.len))
        draw_block();
    else
        erase_block();
}

void end_live_line(void) {
    end_work();
    if (live && !shown) draw_block();
    if (live) fputc('\n', stderr);
    live = false;
    rows_drawn = 0;
    progress[0] = working[0] = '\0';
    free(curve);
    curve = NULL;
    str_release(&table);
}

void show_table(const char *text) {
    if (quiet || muted || !moves_cursor(STDERR_FILENO)) return;
    str_clear(&table);
    visible_text(&table, text);
}

void show_curve(double value) {
    if (quiet || muted || !moves_cursor(STDERR_FILENO)) return;
    if (!curve) curve = calloc(1, sizeof *curve);
    if (curve) curve_add(curve, value);
}

void show_progress(const char *format, ...) {
    if (quiet || muted) return;
    bool terminal = moves_cursor(STDERR_FILENO);
    double now = clock_seconds();
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(progress, sizeof progress, format, arguments);
    va_end(arguments);
    shown = false;
    bool first = !step_pace.shown, due = progress_due(&step_pace, now, true);
    work_pace = (ProgressTimer){0}; /* long work is timed from the last step on */
    if (!terminal) due = progress_due(&line_pace, now, false) || first;
    if (!due) return;
    if (terminal)
        draw_block();
    else
        print_plain(progress);
}

/* ---- long work ---- */

static void describe_work(const Work *work, double seconds, Str *text) {
    char done[32], total[32], left[32];
    bool known = work->total > 0 && work->done <= work->total;
    if (work->bytes) {
        format_bytes((double)work->done, done);
        format_bytes((double)work->total, total);
    } else {
        snprintf(done, sizeof done, "%llu", (unsigned long long)work->done);
        snprintf(total, sizeof total, "%llu", (unsigned long long)work->total);
    }
    str_append(text, work->what);
    if (known)
        str_printf(text, ": %s of %s", done, total);
    else if (work->done > 0)
        str_printf(text, ": %s", done);
    if (known && work->done > 0)
        str_printf(text, ", %s left", format_seconds(seconds * (double)(work->total - work->done) / (double)work->done, left));
}

void show_work(void *context, const Work *work) {
    static const char *what;
    static double began;
    (void)context;
    if (quiet || muted) return;
    if (!work->what) {
        end_work();
        what = NULL;
        return;
    }
    bool terminal = moves_cursor(STDERR_FILENO);
    double now = clock_seconds();
    if (!what || strcmp(what, work->what) != 0) began = now;
    what = work->what;
    if (!progress_due(&work_pace, now, true) || (!terminal && !progress_due(&line_pace, now, false))) return;
    Str text = {0};
    describe_work(work, now - began, &text);
    snprintf(working, sizeof working, "%s", str_text(&text));
    str_release(&text);
    if (terminal)
        draw_block();
    else
        print_plain(working);
}

/* ---- whole lines, above the live block ---- */

static void print_line(const char *format, va_list arguments) {
    if (muted) return;
    bool again = live && (curve || table.len || *working);
    erase_block();
    va_list counted;
    va_copy(counted, arguments);
    int len = vsnprintf(NULL, 0, format, counted);
    va_end(counted);
    char *text = len >= 0 ? malloc((size_t)len + 1) : NULL;
    if (text) {
        vsnprintf(text, (size_t)len + 1, format, arguments);
        print_plain(text);
    } else { /* no memory, which may be just what the message says */
        char words[1024];
        vsnprintf(words, sizeof words, format, arguments);
        text_keep_one_line(words, sizeof words);
        fprintf(stderr, "%s\n", words);
    }
    free(text);
    if (again) draw_block();
}

void show_line(const char *format, ...) {
    if (quiet) return;
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
}

void show_message(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
}

void show_warning(void *context, const char *text) {
    (void)context;
    show_message("%s: warning: %s", program_name, text);
}
