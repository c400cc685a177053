/* What people and scripts see: results on stdout, progress on stderr. */
#include <stdio.h>
#include <unistd.h>

#include "cmd/cmd.h"

static bool quiet, live;
static double last_shown = -1;

void set_quiet(bool on) { quiet = on; }

void print_result(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
}

void print_text(const char *text, size_t len) { fwrite(text, 1, len, stdout); }

void end_live_line(void) {
    if (live) fputc('\n', stderr);
    live = false;
}

void show_progress(const char *format, ...) {
    if (quiet) return;
    bool terminal = isatty(STDERR_FILENO);
    double now = clock_seconds();
    if (now - last_shown < (terminal ? 0.1 : 1.0) && last_shown >= 0) return;
    last_shown = now;
    va_list arguments;
    va_start(arguments, format);
    if (terminal) fputs("\r\033[K", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (!terminal) fputc('\n', stderr);
    live = terminal;
    fflush(stderr);
}

static void print_line(const char *format, va_list arguments) {
    if (live) fputs("\r\033[K", stderr);
    live = false;
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
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
