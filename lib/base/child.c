/* SPDX-License-Identifier: Apache-2.0 */
/* A program that runs beside this one and is asked in lines. */
#include "lib/base/child.h"
#include "lib/base/file.h"
#include "lib/base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/prctl.h>
#endif

extern char **environ;

enum { READ_SIZE = 1 << 16, LAST_WORDS = 900, LONGEST_LINE = 256 << 20 };
enum { IN, OUT, ERR, PIPES };
enum { MAX_CHILDREN = 64, MOST_PROCESSES = 256 };
enum { LOOK_EVERY = 100 }; /* milliseconds: a signal may come to another thread, or before the wait begins */

struct Child {
    pid_t pid;
    int fds[PIPES];        /* our ends; -1 when closed */
    Str name, out, err;    /* out: what was read and not asked for yet; err: the end of what it said on stderr */
    bool ended, no_memory; /* no_memory: for what it says */
    siginfo_t end;
    /* What it was asked: */
    bool busy, broken; /* broken: it takes no more */
    const char *text;
    size_t len, sent, n_lines;
    size_t seen, lines; /* of the answer: bytes looked through, ends of lines found */
    double seconds, until;
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

/* A group of its own: an interrupt from the keyboard is for us, and what it starts can be ended with it. Signals that we ignore are as usual there.
 */
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

/* What the started process says when a step of its preparation fails. */
typedef struct Fault {
    enum { AT_PIPES, AT_LIMITS, AT_NETWORK, AT_PROGRAM } at;
    int error;
} Fault;

static bool limit(int what, uint64_t most) {
    struct rlimit old, wanted = {(rlim_t)most, (rlim_t)most};
    if (most == 0 || getrlimit(what, &old) != 0) return true;
    if (old.rlim_max != RLIM_INFINITY && wanted.rlim_max > old.rlim_max) wanted.rlim_cur = wanted.rlim_max = old.rlim_max;
    return setrlimit(what, &wanted) == 0;
}

#ifdef __linux__
static void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, text, strlen(text)) < 0) errno = 0; /* without its map the process is nobody there, which is enough */
    close(fd);
}

/* A network with nothing in it. In a user namespace of its own anybody may have one, and what a root process could do outside is gone as well. */
static bool leave_network(void) {
    char map[64];
    uid_t user = getuid();
    gid_t group = getgid();
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return unshare(CLONE_NEWNET) == 0;
    write_text("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%lu %lu 1", (unsigned long)user, (unsigned long)user);
    write_text("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "%lu %lu 1", (unsigned long)group, (unsigned long)group);
    write_text("/proc/self/gid_map", map);
    return limit(RLIMIT_NPROC, MOST_PROCESSES); /* counted within the namespace */
}
#else
static bool leave_network(void) {
    errno = ENOSYS;
    return false;
}
#endif

/* In the forked process: becomes the program, or says why not. */
static Fault become(char *const *argv, const int theirs[PIPES], int report, const ChildLimits *limits) {
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 0; i < PIPES; i++)
        if (dup2(theirs[i], i) < 0) return (Fault){AT_PIPES, errno};
    for (int fd = PIPES; fd < 4096; fd++)
        if (fd != report) close(fd);
    if (limits->no_network && !leave_network()) return (Fault){AT_NETWORK, errno};
    if (!limit(RLIMIT_AS, limits->memory_bytes) || !limit(RLIMIT_CPU, limits->cpu_seconds)) return (Fault){AT_LIMITS, errno};
    execvp(argv[0], argv);
    return (Fault){AT_PROGRAM, errno};
}

/* As spawn, with limits, which posix_spawn does not know. */
static Status fork_limited(Child *child, char *const *argv, int theirs[PIPES], const ChildLimits *limits) {
    int report[2];
    Fault fault = {AT_PROGRAM, 0};
    if (pipe(report) != 0) return status_errno(errno, "cannot start program '%s'", argv[0]);
    fcntl(report[0], F_SETFD, FD_CLOEXEC);
    fcntl(report[1], F_SETFD, FD_CLOEXEC);
    child->pid = fork();
    if (child->pid == 0) {
        fault = become(argv, theirs, report[1], limits);
        while (write(report[1], &fault, sizeof fault) < 0 && errno == EINTR) continue;
        raise(SIGKILL);
    }
    int error = child->pid < 0 ? errno : 0;
    close(report[1]);
    ssize_t got = 0;
    while (!error && (got = read(report[0], &fault, sizeof fault)) < 0 && errno == EINTR) continue;
    close(report[0]);
    if (error) return status_errno(error, "cannot start program '%s'", argv[0]);
    if (got != sizeof fault) return ST_OK;
    while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) continue;
    if (fault.at != AT_NETWORK)
        return status_errno(fault.error, fault.at == AT_LIMITS ? "cannot limit program '%s'" : "cannot start program '%s'", argv[0]);
    status_fail(ST_RESOURCE, "cannot start program '%s' without network: %s", argv[0], strerror(fault.error));
    return status_hint(
        ST_RESOURCE,
        "this system lets no process leave the network (user namespaces are off, or it is a container); without `sandbox` the program runs unconfined");
}

static void free_child(Child *child) {
    for (int i = 0; i < PIPES; i++) close_fd(&child->fds[i]);
    str_release(&child->name);
    str_release(&child->out);
    str_release(&child->err);
    free(child);
}

static Status start(Child *child, const char *const *argv, size_t n, const ChildLimits *limits) {
    int theirs[PIPES] = {-1, -1, -1}, error = 0;
    char **arguments = calloc(n + 1, sizeof *arguments);
    if (!arguments) return status_errno(ENOMEM, "cannot start '%s'", argv[0]);
    for (size_t i = 0; i < n; i++) arguments[i] = (char *)(uintptr_t)argv[i];
    for (int i = 0; i < PIPES && !error; i++)
        if (!make_pipe(&child->fds[i], &theirs[i], i == IN)) error = errno;
    Status status = ST_OK;
    if (!error && limits)
        status = fork_limited(child, arguments, theirs, limits);
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
    Status status = start(child, argv, n, limits);
    if (status == ST_OK)
        *out = child;
    else
        free_child(child);
    return status;
}

/* ---- talking ---- */

/* Reads what is there. Without memory for it nothing is taken out of the pipe. */
static void read_some(Child *child, int *fd, Str *text) {
    child->no_memory = !str_reserve(text, READ_SIZE);
    if (child->no_memory) return;
    ssize_t got = read(*fd, text->data + text->len, READ_SIZE);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) close_fd(fd);
    if (got > 0) text->len += (size_t)got;
    text->data[text->len] = '\0';
}

static void hear_complaints(Child *child) {
    for (size_t before = SIZE_MAX; child->fds[ERR] >= 0 && child->err.len != before;) { /* all that is there now */
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
    return line.len ? status_hint(status, "it said at last: %.*s", (int)MIN(line.len, (size_t)1000), line.data) : status;
}

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
    while (*lines < n && *seen < text->len) *lines += text->data[(*seen)++] == '\n';
    return *lines == n ? *seen : 0;
}

/* What was begun is answered, or has failed: true, with the status. */
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

/* Reads and writes what `polled` says is ready. */
static void go_on(Child *child, const struct pollfd polled[PIPES]) {
    if (polled[ERR].revents) hear_complaints(child);
    if (polled[OUT].revents) read_some(child, &child->fds[OUT], &child->out);
    if (polled[IN].revents && child->sent < child->len && !write_some(child, child->text, child->len, &child->sent))
        child->broken = polled[OUT].revents == 0; /* it may have answered before it ended */
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

Status children_next(Child *const *children, size_t n, size_t *which, Str *reply) {
    struct pollfd polled[MAX_CHILDREN][PIPES];
    ASSERT(n <= MAX_CHILDREN, "%zu programs", n);
    while (true) {
        double until = 0;
        *which = n;
        for (size_t i = 0; i < n; i++) {
            Child *child = children[i];
            Status status;
            for (int k = 0; k < PIPES; k++) polled[i][k] = (struct pollfd){.fd = -1};
            if (!child || !child->busy) continue;
            *which = i;
            if (settled(child, reply, &status)) return status;
            until = until == 0 ? child->until : MIN(until, child->until);
            for (int k = 0; k < PIPES; k++)
                polled[i][k] = (struct pollfd){.fd = k == IN && child->sent == child->len ? -1 : child->fds[k], .events = k == IN ? POLLOUT : POLLIN};
        }
        if (*which == n) return ST_OK;
        if (interrupt_requested())
            return status_fail(ST_INTERRUPTED, "interrupted while waiting for program '%s'", str_text(&children[*which]->name));
        double left = MAX(until - clock_seconds(), 0);
        if (poll(&polled[0][0], (nfds_t)(n * PIPES), (int)MIN(left * 1000 + 1, LOOK_EVERY)) < 0) {
            if (errno != EINTR) return status_errno(errno, "cannot wait for program '%s'", str_text(&children[*which]->name));
            continue;
        }
        for (size_t i = 0; i < n; i++)
            if (children[i] && children[i]->busy) go_on(children[i], polled[i]);
    }
}

Status child_ask(Child *child, const char *text, size_t len, size_t n_lines, double seconds, Str *reply) {
    size_t which;
    child_begin(child, text, len, n_lines, seconds);
    return children_next(&child, 1, &which, reply);
}

bool child_has_ended(const Child *child) { return child->ended; }

Slice child_unasked(Child *child) {
    for (size_t before = SIZE_MAX; child->fds[OUT] >= 0 && child->out.len != before && child->out.len <= LONGEST_LINE;) {
        before = child->out.len;
        read_some(child, &child->fds[OUT], &child->out);
    }
    return (Slice){str_text(&child->out), child->out.len};
}

/* Records no failure: it is called where one may be on its way. */
void child_stop(Child *child, const char *farewell, double patience) {
    if (!child) return;
    size_t sent = 0;
    if (child->busy) patience = 0; /* interrupted: what it is at may take for ever */
    if (farewell && !child->ended) write_some(child, farewell, strlen(farewell), &sent);
    close_fd(&child->fds[IN]);
    double until = clock_seconds() + patience;
    while (!has_ended(child, 0.01) && clock_seconds() < until) { /* it may want to say more before it goes */
        hear_complaints(child);
        str_clear(&child->out);
        if (child->fds[OUT] >= 0) read_some(child, &child->fds[OUT], &child->out);
    }
    kill(-child->pid, SIGKILL); /* and what it left behind */
    while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) continue;
    free_child(child);
}
