/* SPDX-License-Identifier: Apache-2.0 */
/* A child process that answers requests line by line. */
#include "lib/child/child.h"
#include "lib/base/answers.h"
#include "lib/base/file.h"
#include "lib/child/sandbox.h"
#include "lib/base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { READ_SIZE = 1 << 16, LAST_WORDS = 900, LONGEST_LINE = 256 << 20 };
enum { IN, OUT, ERR, PIPES };
enum { MAX_CHILDREN = 64, SIGNALLED = 128, MOST_SIGNALS = 64 };
enum { LOOK_EVERY = 100 }; /* milliseconds; a signal may reach another thread, or come just before the wait */

struct Child {
    pid_t pid;
    int fds[PIPES];        /* our ends; -1 when closed */
    Str name, out, err;    /* out: read but not requested yet; err: the end of its stderr */
    bool shell;            /* its exit code above 128 is a signal, as shells report it */
    bool ended, no_memory; /* no_memory: for its output */
    siginfo_t end;
    /* The current request: */
    bool busy, broken; /* broken: it reads no more input */
    const char *text;
    size_t len, sent, n_lines;
    size_t seen, lines; /* of the answer: bytes searched, line ends found */
    double seconds, until;
};

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* `ours` is not inherited by started programs, and reading or writing it never blocks. */
static bool make_pipe(int *ours, int *theirs, bool we_write) {
    int fds[2];
    if (pipe(fds) != 0) return false;
    *ours = fds[we_write];
    *theirs = fds[!we_write];
    fcntl(*ours, F_SETFD, FD_CLOEXEC);
    fcntl(*theirs, F_SETFD, FD_CLOEXEC);
    fcntl(*ours, F_SETFL, fcntl(*ours, F_GETFL) | O_NONBLOCK);
    return true;
}

/* The child gets its own process group: an interrupt from the keyboard reaches only us, and whatever the child starts can be killed with it. Signals
 * that we ignore have their default action there. */
static int spawn(Child *child, char *const *argv, int theirs[PIPES]) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults, none;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGTERM);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    for (int i = 0; i < PIPES; i++) posix_spawn_file_actions_adddup2(&actions, theirs[i], i);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setsigmask(&attributes, &none);
    int error = posix_spawnp(&child->pid, argv[0], &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

static void free_child(Child *child) {
    for (int i = 0; i < PIPES; i++) close_fd(&child->fds[i]);
    str_release(&child->name);
    str_release(&child->out);
    str_release(&child->err);
    free(child);
}

static Status base_child_start(Child *child, const char *const *argv, size_t n, const ChildLimits *limits) {
    int theirs[PIPES] = {-1, -1, -1}, error = 0;
    char **arguments = calloc(n + 1, sizeof *arguments);
    if (!arguments) return status_errno(ENOMEM, "cannot start '%s'", argv[0]);
    for (size_t i = 0; i < n; i++) arguments[i] = (char *)(uintptr_t)argv[i];
    for (int i = 0; i < PIPES && !error; i++)
        if (!make_pipe(&child->fds[i], &theirs[i], i == IN)) error = errno;
    Status status = ST_OK;
    if (!error && limits)
        status = sandbox_start(argv, n, theirs, limits, &child->pid, &child->shell);
    else if (!error)
        error = spawn(child, arguments, theirs);
    for (int i = 0; i < PIPES; i++) close_fd(&theirs[i]);
    free(arguments);
    return error ? status_errno(error, "cannot start program '%s'", argv[0]) : status;
}

Status child_start(const char *const *argv, size_t n, const ChildLimits *limits, Child **out) {
    ASSERT(n > 0, "%zu words are no program", n);
    *out = NULL;
    Child *child = calloc(1, sizeof *child);
    if (!child) return status_errno(ENOMEM, "cannot start '%s'", argv[0]);
    for (int i = 0; i < PIPES; i++) child->fds[i] = -1;
    str_append(&child->name, argv[0]);
    Status status = base_child_start(child, argv, n, limits);
    if (status == ST_OK)
        *out = child;
    else
        free_child(child);
    return status;
}

/* ---- requests and answers ---- */

/* Reads what is available. Without memory the bytes stay in the pipe. */
static void read_some(Child *child, int *fd, Str *text) {
    child->no_memory = !str_reserve(text, READ_SIZE);
    if (child->no_memory) return;
    ssize_t got = read(*fd, text->data + text->len, READ_SIZE);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) close_fd(fd);
    if (got > 0) text->len += (size_t)got;
    text->data[text->len] = '\0';
}

static void hear_complaints(Child *child) {
    for (size_t before = SIZE_MAX; child->fds[ERR] >= 0 && child->err.len != before;) { /* all that is available */
        before = child->err.len;
        read_some(child, &child->fds[ERR], &child->err);
    }
    if (child->err.len <= LAST_WORDS) return;
    memmove(child->err.data, child->err.data + child->err.len - LAST_WORDS, LAST_WORDS + 1);
    child->err.len = LAST_WORDS;
}

Slice child_last_line(const Child *child) {
    const char *words = child ? str_text(&child->err) : "";
    size_t end = strlen(words);
    while (end > 0 && strchr("\r\n \t", words[end - 1])) end--;
    size_t begin = end;
    while (begin > 0 && words[begin - 1] != '\n') begin--;
    return (Slice){words + begin, end - begin};
}

Status child_add_last_line(const Child *child, Status status) {
    Slice line = child_last_line(child);
    return line.len ? status_hint(status, "its last message: %.*s", (int)MIN(line.len, (size_t)1000), line.data) : status;
}

static void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* Waits up to so many seconds for it to end. It stays a zombie, so that its process number is not reused. */
static bool has_ended(Child *child, double seconds) {
    double until = clock_seconds() + seconds;
    while (!child->ended) {
        child->end.si_pid = 0;
        if (waitid(P_PID, (id_t)child->pid, &child->end, WEXITED | WNOHANG | WNOWAIT) == 0) child->ended = child->end.si_pid == child->pid;
        if (child->ended || clock_seconds() >= until) break;
        nap(0.002);
    }
    return child->ended;
}

static Status has_died(Child *child) {
    bool ended = has_ended(child, 1);
    const char *name = str_text(&child->name);
    int code = child->end.si_status;
    hear_complaints(child);
    if (!ended) return status_fail(ST_RESOURCE, "program '%s' closed its output", name);
    bool by_signal = child->end.si_code != CLD_EXITED;
    if (!by_signal && child->shell && code > SIGNALLED && code <= SIGNALLED + MOST_SIGNALS) {
        by_signal = true;
        code -= SIGNALLED;
    }
    return status_fail(ST_RESOURCE, by_signal ? "program '%s' was ended by signal %d" : "program '%s' ended with exit code %d", name, code);
}

static bool write_some(Child *child, const char *text, size_t len, size_t *sent) {
    ssize_t done = write(child->fds[IN], text + *sent, len - *sent);
    if (done > 0) *sent += (size_t)done;
    return done >= 0 || errno == EAGAIN || errno == EINTR;
}

/* Length of the first n lines with their ends; 0: not all are there yet. `seen` and `lines`: what earlier calls searched. */
static size_t length_of_lines(const Str *text, size_t n, size_t *seen, size_t *lines) {
    while (*lines < n && *seen < text->len) *lines += text->data[(*seen)++] == '\n';
    return *lines == n ? *seen : 0;
}

/* True, with the status, when the request is answered or has failed. */
static bool settled(Child *child, Str *reply, Status *status) {
    const char *name = str_text(&child->name);
    size_t length = length_of_lines(&child->out, child->n_lines, &child->seen, &child->lines);
    *status = ST_OK;
    if (child->sent == child->len && length > 0) {
        str_append_n(reply, child->out.data, length);
        memmove(child->out.data, child->out.data + length, child->out.len - length + 1);
        child->out.len -= length;
    } else if (child->no_memory) {
        *status = status_errno(ENOMEM, "cannot take the answer of program '%s'", name);
    } else if (child->fds[OUT] < 0 || child->broken) {
        *status = has_died(child);
    } else if (clock_seconds() >= child->until) {
        hear_complaints(child);
        *status = status_fail(ST_RESOURCE, "program '%s' gave no answer within %g s", name, child->seconds);
    } else if (child->out.len > LONGEST_LINE) {
        *status = status_fail(ST_INPUT, "program '%s' answers with more than %d MiB", name, LONGEST_LINE >> 20);
    } else {
        return false;
    }
    child->busy = false;
    return true;
}

/* Reads and writes the descriptors that `polled` says are ready. */
static void go_on(Child *child, const struct pollfd polled[PIPES]) {
    if (polled[ERR].revents) hear_complaints(child);
    if (polled[OUT].revents) read_some(child, &child->fds[OUT], &child->out);
    if (polled[IN].revents && child->sent < child->len && !write_some(child, child->text, child->len, &child->sent))
        child->broken = polled[OUT].revents == 0; /* it may have answered before it ended */
}

static void pipes_of(const Child *child, struct pollfd polled[PIPES]) {
    for (int k = 0; k < PIPES; k++)
        polled[k] = (struct pollfd){.fd = k == IN && child->sent == child->len ? -1 : child->fds[k], .events = k == IN ? POLLOUT : POLLIN};
}

void child_begin(Child *child, const char *text, size_t len, size_t n_lines, double seconds) {
    ASSERT(!child->busy, "program '%s' has not answered yet", str_text(&child->name));
    child->text = text;
    child->len = len;
    child->n_lines = n_lines;
    child->sent = child->seen = child->lines = 0;
    child->seconds = seconds;
    child->until = clock_seconds() + seconds;
    child->busy = true;
}

/* Whether the unread output of all of them exceeds the limit; *which: the one with the most. */
static bool said_too_much(Child *const *children, size_t n, size_t *which) {
    size_t all = 0, most = 0, at = n;
    for (size_t i = 0; i < n; i++) {
        if (!children[i]) continue;
        all += children[i]->out.len;
        if (children[i]->busy && children[i]->out.len > most) most = children[at = i]->out.len;
    }
    if (all <= answers_most() || at == n) return false;
    children[ *which = at]->busy = false;
    return true;
}

Status children_next(Child *const *children, size_t n, size_t *which, Str *reply) {
    struct pollfd polled[MAX_CHILDREN * PIPES]; /* those of child i from i * PIPES on */
    ASSERT(n <= MAX_CHILDREN, "%zu programs", n);
    while (true) {
        double until = 0;
        *which = n;
        for (size_t i = 0; i < n; i++) {
            Child *child = children[i];
            Status status;
            for (int k = 0; k < PIPES; k++) polled[i * PIPES + (size_t)k] = (struct pollfd){.fd = -1};
            if (!child || !child->busy) continue;
            *which = i;
            if (settled(child, reply, &status)) return status;
            until = until == 0 ? child->until : MIN(until, child->until);
            pipes_of(child, &polled[i * PIPES]);
        }
        if (*which == n) return ST_OK;
        if (said_too_much(children, n, which)) return answers_too_much("program", str_text(&children[*which]->name));
        if (interrupt_requested())
            return status_fail(ST_INTERRUPTED, "interrupted while waiting for program '%s'", str_text(&children[*which]->name));
        double left = MAX(until - clock_seconds(), 0);
        if (poll(polled, (nfds_t)(n * PIPES), (int)MIN(left * 1000 + 1, LOOK_EVERY)) < 0) {
            if (errno != EINTR) return status_errno(errno, "cannot wait for program '%s'", str_text(&children[*which]->name));
            continue;
        }
        for (size_t i = 0; i < n; i++)
            if (children[i] && children[i]->busy) go_on(children[i], &polled[i * PIPES]);
    }
}

Status child_poll(Child *child, bool *answered, Str *reply) {
    struct pollfd polled[PIPES];
    size_t which;
    Status status;
    ASSERT(child->busy, "program '%s' was asked nothing", str_text(&child->name));
    pipes_of(child, polled);
    while (poll(polled, PIPES, 0) > 0) {
        go_on(child, polled);
        if (child->broken || child->no_memory || child->out.len > LONGEST_LINE) break;
        pipes_of(child, polled);
    }
    *answered = true;
    if (said_too_much(&child, 1, &which)) return answers_too_much("program", str_text(&child->name));
    *answered = settled(child, reply, &status);
    return *answered ? status : ST_OK;
}

Status child_request(Child *child, const char *text, size_t len, size_t n_lines, double seconds, Str *reply) {
    size_t which;
    child_begin(child, text, len, n_lines, seconds);
    return children_next(&child, 1, &which, reply);
}

bool child_has_ended(const Child *child) { return child->ended; }

Slice child_unrequested(Child *child) {
    for (size_t before = SIZE_MAX; child->fds[OUT] >= 0 && child->out.len != before && child->out.len <= LONGEST_LINE;) {
        before = child->out.len;
        read_some(child, &child->fds[OUT], &child->out);
    }
    return (Slice){str_text(&child->out), child->out.len};
}

/* Records no failure, since it may be called while one is being returned. */
void child_stop(Child *child, const char *last_message, double patience) {
    if (!child) return;
    size_t sent = 0;
    if (child->busy) patience = 0; /* interrupted: its current request may never end */
    if (last_message && !child->ended) write_some(child, last_message, strlen(last_message), &sent);
    close_fd(&child->fds[IN]);
    double until = clock_seconds() + patience;
    while (!has_ended(child, 0.01) && clock_seconds() < until) { /* it may write more before it ends */
        hear_complaints(child);
        str_clear(&child->out);
        if (child->fds[OUT] >= 0) read_some(child, &child->fds[OUT], &child->out);
    }
    kill(-child->pid, SIGKILL); /* and every process that it left running */
    while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) continue;
    free_child(child);
}
