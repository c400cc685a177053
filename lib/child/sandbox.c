/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a program that is not trusted. The new process is the first of its process namespace: when it ends, everything that it started ends too. It
 * prepares itself with system calls only, then executes the program or a shell that waits for it. */
#include "lib/child/sandbox.h"
#include "lib/base/log.h"
#include "lib/base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

enum { NOBODY = 65534, MOST_PROCESSES = 256, MOST_FILES = 256, TALK = 3, COMPLAINTS = 9, MOST_VARIABLES = 24 };
static const uint64_t FILE_BYTES = 256ULL << 20; /* of one file; also the size of /tmp and of /dev/shm */

/* A shell that reaps orphans, as the first process of a namespace must. Its own messages about signals are discarded. */
static const char wait_for_it[] = "\"$@\" 2>&9 9>&-; exit $?";

/* The variables that a program needs to run at all: no keys, no sockets of agents, nothing of the desktop. */
static const char *const variables[] = {"PATH",           "LANG",        "LANGUAGE",        "LC_ALL",          "LC_CTYPE",
                                        "LC_NUMERIC",     "TZ",          "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PYTHONPATH",
                                        "PYTHONHASHSEED", "VIRTUAL_ENV", "CONDA_PREFIX"};

static const char *part_words(SandboxPart part) {
    static const char *const words[] = {
#define PART(name, words, advice) words,
#include "lib/child/sandbox.def"
#undef PART
    };
    return words[part];
}

static const char *part_advice(SandboxPart part) {
    static const char *const advices[] = {
#define PART(name, words, advice) advice,
#include "lib/child/sandbox.def"
#undef PART
    };
    return advices[part];
}

typedef struct Sandbox {
    View view;
    const ChildLimits *limits;
    const char *name;
    const int *theirs;
    char **argv, *environment[MOST_VARIABLES];
    unsigned long spaces; /* flags of clone */
    int talk;             /* the child's end */
    unsigned missing;
} Sandbox;

/* Codes that the started process reports. The last one before it executes the program is PARTS, with the missing parts. */
enum { AT_START = PARTS + 1, AT_LIMITS };
typedef struct Word {
    int at, error;
    unsigned missing;
} Word;

static Status sandbox_refuse(const char *name, SandboxPart part, int error) {
    status_fail(ST_RESOURCE, "cannot start program '%s' in a sandbox: this system refuses %s: %s", name, part_words(part), strerror(error));
    return status_hint(ST_RESOURCE, "%s; or write `sandbox: best_effort`, which continues without it", part_advice(part));
}

/* Warns once for each part. */
static void warn_of_missing(unsigned missing) {
    static unsigned told;
    Str names = {0};
    unsigned news = missing & ~told;
    told |= missing;
    for (int i = 0; i < PARTS; i++)
        if (news & (1U << i)) str_printf(&names, "%s%s", names.len ? "; " : "", part_words((SandboxPart)i));
    if (news) log_message(LOG_WARNING, "sandbox: best_effort: this system refuses %s; the programs run without it", str_text(&names));
    str_release(&names);
}

#ifdef __linux__

/* ---- in the started process: only system calls. C library wrappers that synchronise with its other threads would wait for ever. ---- */

static NORETURN void leave(const Sandbox *s, int at, int error) {
    Word word = {at, error, s->missing};
    while (write(s->talk, &word, sizeof word) < 0 && errno == EINTR) continue;
    while (true) syscall(SYS_exit_group, 127);
}

/* The system refused a part: the process ends, or goes on without it with best_effort. */
static void sandbox_refused(Sandbox *s, SandboxPart part, int error) {
    if (!s->limits->best_effort) leave(s, (int)part, error);
    s->missing |= 1U << part;
}

static bool limit(int what, uint64_t most) {
    struct rlimit old, wanted = {(rlim_t)most, (rlim_t)most};
    if (most == 0 || getrlimit(what, &old) != 0) return true;
    if (old.rlim_max != RLIM_INFINITY && wanted.rlim_max > old.rlim_max) wanted.rlim_cur = wanted.rlim_max = old.rlim_max;
    return setrlimit(what, &wanted) == 0;
}

static void take_descriptors(Sandbox *s) {
    int talk = fcntl(s->talk, F_DUPFD, COMPLAINTS + 1), end[3];
    if (talk < 0) leave(s, AT_START, errno);
    s->talk = talk;
    for (int i = 0; i < 3; i++)
        if ((end[i] = fcntl(s->theirs[i], F_DUPFD, COMPLAINTS + 1)) < 0) leave(s, AT_START, errno);
    for (int i = 0; i < 3; i++)
        if (dup2(end[i], i) < 0) leave(s, AT_START, errno);
    if (dup2(talk, TALK) < 0) leave(s, AT_START, errno);
    s->talk = TALK;
    fcntl(TALK, F_SETFD, FD_CLOEXEC);
    if (syscall(436, TALK + 1, ~0U, 0) == 0) return; /* close_range */
    for (int fd = TALK + 1; fd < 65536; fd++) close(fd);
}

static void take_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool readable(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Root owns too much, and no limit of processes applies to it. First it is tried whether the other user may read the needed files. */
static void become_nobody(Sandbox *s) {
    int error = 0;
    const int keep = -1;
    for (int i = 0; i < 3; i++)
        if (fchown(i, NOBODY, NOBODY) != 0) errno = 0; /* so that /dev/stdin can be opened by name */
    if (syscall(SYS_setresuid, keep, NOBODY, keep) != 0) error = errno;
    for (size_t i = 0; i < s->view.n && !error; i++)
        if (s->view.entries[i].kind == VIEW_FILE && !readable(s->view.entries[i].path)) error = errno;
    if (!error && access(s->view.program, F_OK) != 0) error = errno;
    if (syscall(SYS_setresuid, keep, 0, keep) != 0 && !error) error = errno;
    if (!error && (syscall(SYS_setgroups, 0, NULL) != 0 || syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY) != 0 ||
                   syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) != 0))
        error = errno;
    if (error) sandbox_refused(s, PART_OTHER_USER, error);
}

static int try_process(void) {
    pid_t pid = vfork(); /* it shares our memory, however large, and allocates none */
    if (pid == 0) syscall(SYS_exit_group, 0);
    if (pid < 0) return errno;
    while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) continue;
    return 0;
}

/* The system counts processes per user, newer kernels per user of a namespace, and does not count root. So whether the limit works is tried out. */
static void limit_processes(Sandbox *s) {
    struct rlimit old, one;
    int error = 0;
    if (getrlimit(RLIMIT_NPROC, &old) != 0) leave(s, AT_LIMITS, errno);
    one = (struct rlimit){1, old.rlim_max};
    if (setrlimit(RLIMIT_NPROC, &one) != 0) leave(s, AT_LIMITS, errno);
    if (try_process() == 0) error = EPERM;
    one.rlim_cur = MIN(old.rlim_max, (rlim_t)MOST_PROCESSES);
    if (setrlimit(RLIMIT_NPROC, &one) != 0) leave(s, AT_LIMITS, errno);
    if (!error) error = try_process();
    if (!error) {
        limit(RLIMIT_NPROC, MOST_PROCESSES);
        return;
    }
    setrlimit(RLIMIT_NPROC, &old);
    sandbox_refused(s, PART_PROCESSES, error);
}

static void drop_powers(Sandbox *s) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(SYS_capset, &head, none) != 0) leave(s, AT_START, errno);
    const ChildLimits *l = s->limits;
    if (!limit(RLIMIT_CPU, l->cpu_seconds) || !limit(RLIMIT_FSIZE, FILE_BYTES) || !limit(RLIMIT_NOFILE, MOST_FILES)) leave(s, AT_LIMITS, errno);
    struct rlimit no_core = {0, 0};
    if (setrlimit(RLIMIT_CORE, &no_core) != 0) leave(s, AT_LIMITS, errno);
}

/* Ends this process when its parent ends for any reason. The parent may have ended before the request. */
static void tie(Sandbox *s) {
    struct pollfd talk = {.fd = TALK, .events = POLLIN};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) leave(s, AT_START, errno);
    if (poll(&talk, 1, 0) > 0 && (talk.revents & (POLLHUP | POLLERR))) leave(s, AT_START, EPIPE);
}

static void show_complaints_to(int fd) {
    int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (dup2(STDERR_FILENO, fd) < 0 || nothing < 0) return;
    dup2(nothing, STDERR_FILENO);
    close(nothing);
}

static NORETURN void become(Sandbox *s) {
    char mapped;
    SandboxPart part;
    take_signals();
    setsid();
    take_descriptors(s);
    while (read(s->talk, &mapped, 1) < 0 && errno == EINTR) continue;
    if (mapped == 'x') sandbox_refused(s, PART_OTHER_USER, EPERM);
    if (s->spaces & CLONE_NEWNS) {
        int error = view_enter(&s->view, FILE_BYTES, s->limits->best_effort, &s->missing, &part);
        if (error) leave(s, (int)part, error);
    }
    if (s->spaces & CLONE_NEWUTS && syscall(SYS_sethostname, "sandbox", 7) != 0) errno = 0;
    if (mapped == 'a') become_nobody(s);
    drop_powers(s);
    limit_processes(s);
    tie(s);
    bool shell = strcmp(s->argv[0], "/bin/sh") == 0 && s->argv[2] == wait_for_it;
    int error = filter_enter();
    if (error) sandbox_refused(s, PART_FILTER, error);
    if (shell) show_complaints_to(COMPLAINTS);
    if (!limit(RLIMIT_AS, s->limits->memory_bytes)) leave(s, AT_LIMITS, errno); /* last: the stack may be beyond the limit and then cannot grow */
    Word word = {PARTS, 0, s->missing};
    while (write(s->talk, &word, sizeof word) < 0 && errno == EINTR) continue;
    execve(shell ? "/bin/sh" : s->view.program, s->argv, s->environment);
    leave(s, AT_START, errno);
}

/* ---- in the calling process ---- */

static const struct {
    SandboxPart part;
    unsigned long flag;
} spaces[] = {{PART_USERS, CLONE_NEWUSER}, {PART_PIDS, CLONE_NEWPID}, {PART_NETWORK, CLONE_NEWNET},
              {PART_MOUNTS, CLONE_NEWNS},  {PART_IPC, CLONE_NEWIPC},  {PART_UTS, CLONE_NEWUTS}};

enum { STACK = 256 << 10 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OWN_MEMORY 1
#endif
#endif

/* The process shares our memory until it executes the program, because copying the page tables of a large model takes long. It runs on its own stack
 * and makes only system calls. A sanitizer's per-thread data cannot be shared. */
static pid_t clone_process(unsigned long flags, int (*work)(void *), void *argument, char *stack) {
#ifdef OWN_MEMORY
    (void)stack;
    pid_t pid = (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) work(argument);
    return pid;
#else
    return clone(work, stack + STACK, (int)(flags | CLONE_VM | SIGCHLD), argument);
#endif
}

static int become_it(void *sandbox) { become(sandbox); }

static int end_at_once(void *nothing) {
    (void)nothing;
    syscall(SYS_exit_group, 0);
    return 0;
}

static int probe(unsigned long flags, char *stack) {
    pid_t pid = clone_process(flags, end_at_once, NULL, stack);
    if (pid < 0) return errno;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
    return 0;
}

/* After a refusal: finds which namespace was refused and which are available. Root needs no user namespace for the others. */
static int find_spaces(Sandbox *s, char *stack, SandboxPart *first) {
    unsigned long had = 0;
    int why = 0, users = probe(CLONE_NEWUSER, stack);
    if (users == 0) had = CLONE_NEWUSER;
    for (size_t i = 1; i < COUNT_OF(spaces); i++) {
        int error = probe(had | spaces[i].flag, stack);
        if (error == 0) {
            had |= spaces[i].flag;
            continue;
        }
        if (!why) *first = spaces[i].part;
        why = why ? why : error;
        s->missing |= 1U << spaces[i].part;
    }
    s->spaces = had;
    if (users == 0 || (geteuid() == 0 && why == 0)) return why;
    *first = PART_USERS;
    s->missing |= 1U << PART_USERS;
    return users;
}

static bool write_file(pid_t pid, const char *name, const char *text, size_t n) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool good = write(fd, text, n) == (ssize_t)n;
    close(fd);
    return good;
}

/* Maps every user to itself, which only root may do, and which is useful only where there is another user to become. */
static bool map_all(pid_t pid, const char *name, const char *ours, bool write_it) {
    unsigned long inside, outside, count;
    bool known = false;
    Str text = {0};
    FILE *file = fopen(ours, "re");
    while (file && fscanf(file, "%lu %lu %lu", &inside, &outside, &count) == 3) {
        known |= NOBODY >= inside && NOBODY - inside < count;
        str_printf(&text, "%lu %lu %lu\n", inside, inside, count);
    }
    if (file) fclose(file);
    bool good = known && (!write_it || write_file(pid, name, text.data, text.len));
    str_release(&text);
    return good;
}

static bool map_one(pid_t pid, const char *name, unsigned long id) {
    char text[64];
    int n = snprintf(text, sizeof text, "%lu %lu 1\n", id == 0 ? (unsigned long)NOBODY : id, id);
    return write_file(pid, name, text, (size_t)n);
}

/* 'a': it is root and can become another user; 'o': it has one mapped user; 'x': it has no user there. */
static char map_users(pid_t pid, bool own_space) {
    static const char users[] = "/proc/self/uid_map", groups[] = "/proc/self/gid_map";
    if (!own_space) return geteuid() == 0 ? 'a' : 'o';
    if (geteuid() == 0 && map_all(pid, "uid_map", users, false) && map_all(pid, "gid_map", groups, true) && map_all(pid, "uid_map", users, true))
        return 'a';
    write_file(pid, "setgroups", "deny", 4);
    return map_one(pid, "gid_map", getegid()) && map_one(pid, "uid_map", geteuid()) ? 'o' : 'x';
}

static Status sandbox_hear(Sandbox *s, int talk, pid_t pid) {
    Word word, last = {AT_START, EPIPE, 0};
    while (true) {
        ssize_t got = read(talk, &word, sizeof word);
        if (got < 0 && errno == EINTR) continue;
        if (got != sizeof word) break;
        last = word;
    }
    if (last.at == PARTS) {
        warn_of_missing(s->missing | last.missing);
        return ST_OK;
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
    if (last.at < PARTS) return sandbox_refuse(s->name, (SandboxPart)last.at, last.error);
    return status_errno(last.error, last.at == AT_LIMITS ? "cannot limit program '%s'" : "cannot start program '%s'", s->name);
}

static Status start_on(Sandbox *s, char *stack, pid_t *pid) {
    int talk[2];
    SandboxPart part = PART_USERS;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) != 0) return status_errno(errno, "cannot start program '%s'", s->name);
    for (size_t i = 0; i < COUNT_OF(spaces); i++) s->spaces |= spaces[i].flag;
    s->talk = talk[1];
    *pid = clone_process(s->spaces, become_it, s, stack);
    if (*pid < 0) {
        int error = find_spaces(s, stack, &part);
        if (!error || s->limits->best_effort) *pid = clone_process(s->spaces, become_it, s, stack);
        if (*pid < 0) {
            close(talk[0]);
            close(talk[1]);
            return sandbox_refuse(s->name, part, error ? error : errno);
        }
    }
    close(talk[1]);
    char mapped = map_users(*pid, s->spaces & CLONE_NEWUSER);
    if (write(talk[0], &mapped, 1) != 1) mapped = 0; /* the process has ended, which the report will show */
    Status status = sandbox_hear(s, talk[0], *pid);
    close(talk[0]);
    if (status == ST_OK) write_file(*pid, "oom_score_adj", "1000", 4); /* when memory is short, the program is killed first */
    return status;
}

/* Signals are blocked meanwhile, since the new process shares errno with this thread. A change of user in it would disable our core dumps. */
static Status base_sandbox_start(Sandbox *s, pid_t *pid) {
    sigset_t all, before;
    int dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
    char *stack = malloc(STACK);
    if (!stack) return status_errno(ENOMEM, "cannot start program '%s'", s->name);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Status status = start_on(s, stack, pid);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (dumpable == 1) prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    free(stack);
    return status;
}

static bool make_environment(Sandbox *s) {
    Str text = {0};
    size_t n = 0;
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        const char *value = view_variable(variables[i]);
        if (!value) continue;
        str_clear(&text);
        str_printf(&text, "%s=%s", variables[i], value);
        if (!(s->environment[n++] = strdup(str_text(&text)))) break;
    }
    str_release(&text);
    bool good = n == 0 || s->environment[n - 1];
    return good && (s->environment[n++] = strdup("HOME=/tmp")) && (s->environment[n++] = strdup("TMPDIR=/tmp"));
}

Status sandbox_start(const char *const *argv, size_t n, const int theirs[3], const ChildLimits *limits, pid_t *pid, bool *shell) {
    const char *const waiting[] = {"/bin/sh", "-c", wait_for_it, "sh"};
    Sandbox s = {.limits = limits, .name = argv[0], .theirs = theirs};
    *shell = access("/bin/sh", X_OK) == 0;
    size_t more = *shell ? COUNT_OF(waiting) : 0;
    Status status = view_plan(&s.view, argv, n, limits);
    s.argv = calloc(n + more + 1, sizeof *s.argv);
    if (status == ST_OK && (!s.argv || !make_environment(&s))) status = status_errno(ENOMEM, "cannot start program '%s'", argv[0]);
    if (status == ST_OK) {
        for (size_t i = 0; i < more; i++) s.argv[i] = (char *)(uintptr_t)waiting[i];
        for (size_t i = 0; i < n; i++) s.argv[more + i] = (char *)(uintptr_t)argv[i];
        if (*shell) s.argv[more] = s.view.program;
        status = base_sandbox_start(&s, pid);
    }
    for (size_t i = 0; i < MOST_VARIABLES; i++) free(s.environment[i]);
    free(s.argv);
    view_free(&s.view);
    return status;
}

#else

Status sandbox_start(const char *const *argv, size_t n, const int theirs[3], const ChildLimits *limits, pid_t *pid, bool *shell) {
    (void)n, (void)theirs, (void)limits, (void)pid, (void)shell, (void)part_advice, (void)warn_of_missing, (void)variables, (void)wait_for_it;
    return sandbox_refuse(argv[0], PART_USERS, ENOSYS);
}
#endif
