/* SPDX-License-Identifier: Apache-2.0 */
/* Shows long texts on a terminal through a pager: $PAGER, else less if it is installed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cmd/app/terminal.h"

static bool in_path(const char *program) {
    const char *path = getenv("PATH");
    char file[4096];
    while (path && *path) {
        size_t len = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)len, path, program);
        if (access(file, X_OK) == 0) return true;
        path += len + (path[len] == ':');
    }
    return false;
}

/* The command of the pager; NULL if PAGER is set but empty, if the terminal cannot move its cursor, or if less is not installed. */
static const char *pager(void) {
    const char *said = getenv("PAGER");
    if (!screen_redraws() || !isatty(STDIN_FILENO)) return NULL;
    if (said) return *said && strcmp(said, "cat") != 0 ? said : NULL;
    return in_path("less") ? "less -FRX" : NULL;
}

static bool is_longer(const char *text, size_t len) {
    struct winsize size = {0};
    size_t lines = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return false;
    for (size_t i = 0; i < len; i++) lines += text[i] == '\n';
    return lines >= size.ws_row;
}

void page_text(const char *text, size_t len) {
    const char *program = is_longer(text, len) ? pager() : NULL;
    if (program) show_result();
    FILE *pipe = program ? popen(program, "w") : NULL;
    if (!pipe) {
        print_text(text, len);
        return;
    }
    fwrite(text, 1, len, pipe); /* a failed write is no error: the user left the pager early */
    if (pclose(pipe) == 127 << 8) print_text(text, len);
}
