/* A program that runs beside this one and is asked in lines. */
#include "lib/base/base.h"

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

struct Child {
    pid_t pid;
    int fds[PIPES];      /* our ends; -1 when closed */
    Str name, out, err;  /* out: what was read and not asked for yet; err: the end of what it said on stderr */
    bool ended;
    siginfo_t end;
};

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* `ours` stays with us when programs are started, and reading or writing it never blocks. */
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

/* A group of its own: an interrupt from the keyboard is for us, and what it starts can be ended with it. Signals that we ignore are as usual there. */
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

static Status start(Child *child, const char *const *argv, size_t n) {
    int theirs[PIPES] = {-1, -1, -1}, error = 0;
    char **arguments = calloc(n + 1, sizeof *arguments);
    if (!arguments) return status_errno(ENOMEM, "cannot start '%s'", argv[0]);
    for (size_t i = 0; i < n; i++) arguments[i] = (char *)(uintptr_t)argv[i];
    for (int i = 0; i < PIPES && !error; i++)
        if (!make_pipe(&child->fds[i], &theirs[i], i == IN)) error = errno;
    if (!error) error = spawn(child, arguments, theirs);
    for (int i = 0; i < PIPES; i++) close_fd(&theirs[i]);
    free(arguments);
    return error ? status_errno(error, "cannot start program '%s'", argv[0]) : ST_OK;
}

Status child_start(const char *const *argv, size_t n, Child **out) {
    ASSERT(n > 0, "%zu words are no program", n);
    *out = NULL;
    Child *child = calloc(1, sizeof *child);
    if (!child) return status_errno(ENOMEM, "cannot start '%s'", argv[0]);
    for (int i = 0; i < PIPES; i++) child->fds[i] = -1;
    str_append(&child->name, argv[0]);
    Status status = start(child, argv, n);
    if (status == ST_OK) *out = child;
    else free_child(child);
    return status;
}

/* ---- talking ---- */

/* Reads what is there; false at the end. */
static bool read_some(int *fd, Str *text) {
    char bytes[READ_SIZE];
    ssize_t got = read(*fd, bytes, sizeof bytes);
    if (got > 0) {
        if (!str_reserve(text, (size_t)got)) return false;
        str_append_n(text, bytes, (size_t)got);
        return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    close_fd(fd);
    return false;
}

static void hear_complaints(Child *child) {
    for (size_t before = SIZE_MAX; child->fds[ERR] >= 0 && child->err.len != before;) { /* all that is there now */
        before = child->err.len;
        read_some(&child->fds[ERR], &child->err);
    }
    if (child->err.len <= LAST_WORDS) return;
    memmove(child->err.data, child->err.data + child->err.len - LAST_WORDS, LAST_WORDS + 1);
    child->err.len = LAST_WORDS;
}

const char *child_last_words(const Child *child) { return str_text(&child->err); }

static void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* Waits until it has ended, at most so long. It stays a zombie, so that its number is nobody else's. */
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
    hear_complaints(child);
    if (!ended) return status_fail(ST_RESOURCE, "program '%s' closed its output", name);
    if (child->end.si_code != CLD_EXITED) return status_fail(ST_RESOURCE, "program '%s' was ended by signal %d", name, child->end.si_status);
    return status_fail(ST_RESOURCE, "program '%s' ended with exit code %d", name, child->end.si_status);
}

static bool write_some(Child *child, const char *text, size_t len, size_t *sent) {
    ssize_t done = write(child->fds[IN], text + *sent, len - *sent);
    if (done > 0) *sent += (size_t)done;
    return done >= 0 || errno == EAGAIN || errno == EINTR;
}

/* Length of the first n lines with their ends; 0: they are not all here. `seen` and `lines`: what earlier calls looked through. */
static size_t length_of_lines(const Str *text, size_t n, size_t *seen, size_t *lines) {
    for (; *seen < text->len; ++*seen)
        if (text->data[*seen] == '\n' && ++*lines == n) return *seen + 1;
    return 0;
}

Status child_ask(Child *child, const char *text, size_t len, size_t n_lines, double seconds, Str *reply) {
    double until = clock_seconds() + seconds;
    size_t sent = 0, seen = 0, lines = 0, length = 0;
    while (sent < len || (!(length = length_of_lines(&child->out, n_lines, &seen, &lines)))) {
        double left = until - clock_seconds();
        if (left <= 0) return status_fail(ST_RESOURCE, "program '%s' gave no answer within %g s", str_text(&child->name), seconds);
        if (child->out.len > LONGEST_LINE) return status_fail(ST_INPUT, "program '%s' answers with more than %d MiB", str_text(&child->name), LONGEST_LINE >> 20);
        struct pollfd polled[PIPES] = {
            {.fd = sent < len ? child->fds[IN] : -1, .events = POLLOUT}, {.fd = child->fds[OUT], .events = POLLIN}, {.fd = child->fds[ERR], .events = POLLIN},
        };
        if (child->fds[OUT] < 0) return has_died(child);
        if (poll(polled, PIPES, (int)MIN(left * 1000 + 1, 60000)) < 0 && errno != EINTR) return status_errno(errno, "cannot wait for program '%s'", str_text(&child->name));
        if (polled[ERR].revents) hear_complaints(child);
        if (polled[IN].revents && !write_some(child, text, len, &sent)) return has_died(child);
        if (polled[OUT].revents && !read_some(&child->fds[OUT], &child->out)) continue; /* it may have answered before it ended */
    }
    str_append_n(reply, child->out.data, length);
    memmove(child->out.data, child->out.data + length, child->out.len - length + 1);
    child->out.len -= length;
    return ST_OK;
}

/* Records no failure: it is called where one may be on its way. */
void child_stop(Child *child, const char *farewell, double patience) {
    if (!child) return;
    size_t sent = 0;
    if (farewell && !child->ended) write_some(child, farewell, strlen(farewell), &sent);
    close_fd(&child->fds[IN]);
    double until = clock_seconds() + patience;
    while (!has_ended(child, 0.01) && clock_seconds() < until) { /* it may want to say more before it goes */
        hear_complaints(child);
        str_clear(&child->out);
        if (child->fds[OUT] >= 0) read_some(&child->fds[OUT], &child->out);
    }
    kill(-child->pid, SIGKILL); /* and what it left behind */
    while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) continue;
    free_child(child);
}
