/* What people and scripts see: results on stdout, progress on stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cmd/cmd.h"

enum { CURVE_ROWS = 6, MAX_LINE = 512 };

/* What stands at the bottom of the terminal: `rows_drawn` lines of a curve or a table and, where the cursor is, the line of progress. */
static bool quiet, live, shown;
static double last_shown = -1;
static char progress[MAX_LINE];
static Curve *curve;
static Str table;
static int rows_drawn, columns_drawn;

void set_quiet(bool on) { quiet = on; }

void print_result(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
}

void print_text(const char *text, size_t len) { fwrite(text, 1, len, stdout); }

/* ---- the terminal ---- */

static void terminal_size(int *columns, int *rows) {
    struct winsize size;
    *columns = 80;
    *rows = 24;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return;
    *columns = size.ws_col;
    *rows = size.ws_row;
}

bool speaks_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strstr(value, "UTF-8") || strstr(value, "utf8") || strstr(value, "UTF8") || strstr(value, "utf-8");
    }
    return false;
}

static bool moves_cursor(void) {
    const char *term = getenv("TERM");
    return term && *term && strcmp(term, "dumb") != 0;
}

/* ---- the live block ---- */

/* Goes back to its first line and clears what is below. A terminal that became narrower has wrapped the lines in its own way: then they stay, and a
 * new block begins. */
static void erase_block(void) {
    int columns, rows;
    if (!live) return;
    terminal_size(&columns, &rows);
    if (rows_drawn == 0) fputs("\r\033[K", stderr);
    else if (columns < columns_drawn || rows <= rows_drawn) fputc('\n', stderr);
    else fprintf(stderr, "\r\033[%dA\033[J", rows_drawn);
    live = false;
    rows_drawn = 0;
}

/* Its lines, each cut to what fits beside the cursor. */
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
    if (curve && curve->n > 1 && moves_cursor() && columns >= 40 && rows >= 2 * CURVE_ROWS)
        curve_write(curve, columns - 1, CURVE_ROWS, speaks_utf8(), &text);
    size_t room = (size_t)MAX(columns - 1, 1), len = strlen(progress), table_rows = 0;
    for (size_t i = 0; i < table.len; i++) table_rows += table.data[i] == '\n';
    if (moves_cursor() && table_rows + 2 < (size_t)rows) append_table(&text, room);
    for (size_t i = 0; i < text.len; i++) rows_drawn += text.data[i] == '\n';
    str_append_n(&text, progress, len > room ? utf8_whole_prefix(progress, room) : len);
    fputs(str_text(&text), stderr);
    fflush(stderr);
    str_release(&text);
    columns_drawn = columns;
    live = shown = true;
}

void end_live_line(void) {
    if (live && !shown) draw_block();
    if (live) fputc('\n', stderr);
    live = false;
    rows_drawn = 0;
    progress[0] = '\0';
    free(curve);
    curve = NULL;
    str_release(&table);
}

void show_table(const char *text) {
    if (quiet || !isatty(STDERR_FILENO)) return;
    str_clear(&table);
    str_append(&table, text);
}

void show_curve(double value) {
    if (quiet || !isatty(STDERR_FILENO)) return;
    if (!curve) curve = calloc(1, sizeof *curve);
    if (curve) curve_add(curve, value);
}

void show_progress(const char *format, ...) {
    if (quiet) return;
    bool terminal = isatty(STDERR_FILENO);
    double now = clock_seconds();
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(progress, sizeof progress, format, arguments);
    va_end(arguments);
    shown = false;
    if (now - last_shown < (terminal ? 0.1 : 1.0) && last_shown >= 0) return;
    last_shown = now;
    if (terminal) draw_block();
    else fprintf(stderr, "%s\n", progress);
}

/* ---- whole lines, above it ---- */

static void print_line(const char *format, va_list arguments) {
    bool again = live && (curve || table.len);
    erase_block();
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
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
