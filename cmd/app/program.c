/* SPDX-License-Identifier: Apache-2.0 */
/* Common to both programs: catches signals, runs the command, and reports a failure as one line, a hint and an exit code. */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "cmd/app/app.h"
#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"
#include "cmd/app/profile.h"

/* The first interrupt is a request: the command saves and ends. A second one ends the program at once. Signals within SAME_SIGNAL_MS count as one
 * interrupt: timeout(1) signals its child and then the child's process group. */
enum { SAME_SIGNAL_MS = 1000 };
static atomic_int asked_by; /* the signal that asked; SIGTERM and the like take precedence over Ctrl-C */

static void on_signal(int number) {
    static atomic_llong asked_at;
    static const char last_words[] = ": error: interrupted again, ended without saving\n";
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long ms = (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (!interrupt_requested() || number != SIGINT) atomic_store(&asked_by, number);
    if (!interrupt_requested()) {
        atomic_store(&asked_at, ms);
        interrupt_request();
    } else if (ms - atomic_load(&asked_at) > SAME_SIGNAL_MS) {
        echo_on();
        ssize_t written = write(STDERR_FILENO, program_name, strlen(program_name));
        if (written > 0) written = write(STDERR_FILENO, last_words, sizeof last_words - 1);
        (void)written;
        _exit(128 + number);
    }
}

bool interrupt_cancel(void) {
    int ctrl_c = SIGINT;
    if (!interrupt_requested() || !atomic_compare_exchange_strong(&asked_by, &ctrl_c, 0)) return false;
    interrupt_clear();
    return true;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL); /* under nohup it stays ignored */
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write: a child program may be started again; for stdout see end_result */
    signal(SIGXFSZ, SIG_IGN); /* the file size limit is a failed write, too */
    file_handle_truncation();
}

/* OpenMP reads how its threads wait only at program start, so the program sets the variables and re-executes itself. Variables that the user has
 * set are kept. With OpenMP's default (long spinning), a waiting thread keeps the thread it waits for off a processor whenever other programs run:
 * small training steps took 20 times as long. Without spinning, waking takes too long: 50 us in a virtual machine, more than the matrix products
 * of one decoded token. Spinning for about 0.1 ms avoids both. */
void threads_wait_passively(char **argv) {
#ifdef __linux__
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")) return;
    /* execv returns only if it fails; then the threads spin */
    if (setenv("GOMP_SPINCOUNT", "2000", 1) == 0 && setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
#else
    (void)argv;
#endif
}

/* If stdin, stdout or stderr is closed, the next file that is opened would get its number and receive messages. Opens them so that reading gives
 * end of file and writing still fails. */
static void keep_standard_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
}

int program_run(int argc, char **argv, CommandMain *run) {
    keep_standard_streams();
    catch_signals();
    ranks_begin();
    Status status = run(argc, argv);
    if (status == ST_OK) status = file_check_truncation();
    status = memory_check(status);
    end_live_line();
    profile_end();
    status = ranks_end(end_result(status));
    if (status != ST_OK && ranks_print()) {
        show_message("%s: error: %s", program_name, *status_text() ? status_text() : status_meaning(status));
        if (*status_hint_text()) show_message("hint: %s", status_hint_text());
    }
    ranks_close(status);
    return status_exit_code(status);
}
