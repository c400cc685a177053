/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is not trusted, attacked from inside: this test itself, called with --attack. */
#include "lib/child/child.h"
#include "lib/base/log.h"
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

/* ---- the child: receives the name of an action to try, and answers with its errno; 0: it succeeded ---- */

static int open_for(const char *path, int how) {
    int fd = open(path, how, 0644);
    if (fd < 0) return errno;
    close(fd);
    return 0;
}

static int connect_to(const char *path) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) return errno;
    snprintf(name.sun_path, sizeof name.sun_path, "%.100s", path);
    return connect(fd, (struct sockaddr *)&name, sizeof name) == 0 ? 0 : errno;
}

static int make_socket(int family) { return socket(family, SOCK_STREAM, 0) < 0 ? errno : 0; }

static int make_pair(int type) {
    int pair[2];
    return socketpair(AF_UNIX, type, 0, pair) == 0 ? 0 : errno;
}

/* How many processes there may be; they wait until the end of all. */
static int bomb(void) {
    int n = 0;
    for (; n < 1000; n++) {
        pid_t pid = fork();
        if (pid < 0) break;
        while (pid == 0) pause();
    }
    kill(-1, SIGKILL); /* all but ourselves and the first */
    while (waitpid(-1, NULL, 0) > 0) continue;
    return n;
}

static int stay(const char *name) {
    if (fork() != 0) return 0;
    setsid();
    if (fork() != 0) _exit(0);
    execl("/bin/sh", name, "-c", "sleep 60; exit 0", (char *)NULL);
    _exit(1);
}

static int sandbox_grow(const char *path) {
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    return fd >= 0 && ftruncate(fd, (off_t)1 << 30) == 0 ? 0 : errno;
}

static int open_many(void) {
    int n = 0;
    while (n < 5000 && dup(0) >= 0) n++;
    for (int fd = 3; fd < 5000; fd++) close(fd);
    return n;
}

static int with(long answer) { return answer < 0 ? errno : 0; }

static int count_processes(void) {
    int n = 0;
    for (int pid = 1; pid < 300; pid++) n += kill(pid, 0) == 0 || errno == EPERM;
    return n;
}

static int attack(const char *name, const char *word) {
    char memory[8];
    if (!strcmp(name, "read")) return open_for(word, O_RDONLY);
    if (!strcmp(name, "write")) return open_for(word, O_WRONLY | O_CREAT);
    if (!strcmp(name, "connect")) return connect_to(word);
    if (!strcmp(name, "socket")) return make_socket(atoi(word));
    if (!strcmp(name, "pair")) return make_pair(atoi(word));
    if (!strcmp(name, "variable")) return getenv(word) ? 0 : ENOENT;
    if (!strcmp(name, "kill")) return with(kill(atoi(word), 0));
    if (!strcmp(name, "trace")) return with(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    if (!strcmp(name, "peek")) {
        struct iovec mine = {memory, sizeof memory}, theirs = {memory, sizeof memory};
        return with(syscall(SYS_process_vm_readv, getppid(), &mine, 1, &theirs, 1, 0));
    }
    if (!strcmp(name, "keys")) return with(syscall(SYS_keyctl, 0, -3, 0));
    if (!strcmp(name, "ring")) return with(syscall(425, 1, memory));
    if (!strcmp(name, "space")) return with(unshare(CLONE_NEWUSER));
    if (!strcmp(name, "clone3")) return with(syscall(435, NULL, 0));
    if (!strcmp(name, "mount")) return with(mount("none", "/tmp", "tmpfs", 0, NULL));
    if (!strcmp(name, "bomb")) return bomb();
    if (!strcmp(name, "stay")) return stay(word);
    if (!strcmp(name, "grow")) return sandbox_grow(word);
    if (!strcmp(name, "open")) return open_many();
    if (!strcmp(name, "user")) return (int)getuid();
    if (!strcmp(name, "processes")) return count_processes();
    if (!strcmp(name, "end")) _exit(atoi(word));
    if (!strcmp(name, "signal")) raise(atoi(word));
    return -1;
}

static int sandbox_answer(void) {
    char line[1024], name[32], word[900];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %899s", name, word) != 2) return 9;
        printf("%d\n", attack(name, word));
        fflush(stdout);
    }
    return 0;
}

/* ---- this side ---- */

static const char *self;
static char project[80], home[80], run[96], secret[96], record[96], server[96], metrics[112];

static Status test_sandbox_start(bool best_effort, Child **child) {
    char library[512]; /* ours, two folders above */
    snprintf(library, sizeof library, "%.*s/../..", (int)(strrchr(self, '/') - self), self);
    const char *readable[] = {project, library};
    const char *argv[] = {self, "--attack"};
    ChildLimits limits = {.best_effort = best_effort, .cpu_seconds = 60, .hidden = run, .readable = readable, .n_readable = 2};
    return child_start(argv, 2, &limits, child);
}

static int sandbox_ask(Child *child, const char *name, const char *word) {
    Str line = {0}, reply = {0};
    str_printf(&line, "%s %s\n", name, word);
    check_ok(child_request(child, line.data, line.len, 1, 30, &reply));
    int number = atoi(reply.data);
    str_release(&line);
    str_release(&reply);
    return number;
}

/* Processes of the machine with this word as their name. */
static int count_named(const char *name) {
    int n = 0;
    Str command = {0};
    str_printf(&command, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^%s$'", name);
    FILE *pipe = popen(command.data, "r");
    assert_non_null(pipe);
    if (fscanf(pipe, "%d", &n) != 1) n = -1;
    pclose(pipe);
    str_release(&command);
    return n;
}

static bool comes_to(const char *name, int n) {
    for (int i = 0; i < 1000; i++) {
        if (count_named(name) == n) return true;
        usleep(20000);
    }
    return false;
}

static void check_attacks(Child *child) {
    enum { ANY = -1 }; /* refused for whatever reason */
    char made[64], parent[32], environment[64];
    snprintf(made, sizeof made, "/tmp/tune-sandbox-%ld", (long)getpid());
    snprintf(parent, sizeof parent, "%ld", (long)getpid());
    snprintf(environment, sizeof environment, "/proc/%ld/environ", (long)getpid());
    const struct {
        const char *name, *word;
        int answer;
    } cases[] = {
        {"connect", server, EPERM},
        {"socket", "1", EPERM},
        {"socket", "16", EPERM},
        {"socket", "40", EPERM},
        {"socket", "2", 0},
        {"pair", "1", 0},
        {"pair", "2", EPERM},
        {"variable", "TEST_KEY", ENOENT},
        {"variable", "PATH", 0},
        {"read", environment, ENOENT},
        {"read", secret, ENOENT},
        {"read", record, 0},
        {"read", metrics, ENOENT},

        {"write", record, EROFS},
        {"write", metrics, ANY},
        {"write", "/etc/passwd", ANY},
        {"write", "/usr/x", ANY},
        {"write", "/x", ANY},
        {"write", made, 0},
        {"write", "/dev/null", 0},
        {"kill", parent, ESRCH},
        {"trace", "-", EPERM},
        {"peek", "-", EPERM},
        {"keys", "-", EPERM},
        {"ring", "-", EPERM},
        {"space", "-", EPERM},
        {"clone3", "-", ENOSYS},
        {"mount", "-", EPERM},
        {"grow", "/tmp/big", EFBIG},
        {"read", "/var/run", ENOENT},
        {"write", secret, ANY},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int got = sandbox_ask(child, cases[i].name, cases[i].word);
        if (cases[i].answer == ANY ? got == 0 : got != cases[i].answer)
            fail_msg("%s %s: %d (%s), expected %d (%s)", cases[i].name, cases[i].word, got, strerror(got), cases[i].answer,
                     strerror(cases[i].answer));
    }
    assert_int_not_equal(sandbox_ask(child, "user", "-"), 0);
    assert_in_range(sandbox_ask(child, "processes", "-"), 1, 3);
    assert_in_range(sandbox_ask(child, "open", "-"), 200, 256);
    assert_in_range(sandbox_ask(child, "bomb", "-"), 100, 256);
    assert_false(file_exists(made));
}

/* Applies the whole sandbox. Prints the part that the system refuses and returns false. */
static bool hold(void) {
    char name[64];
    Child *child;
    Status status = test_sandbox_start(false, &child);
    if (status == ST_RESOURCE && strstr(status_text(), "this system refuses")) {
        print_message("skipped: %s (%s)\n", status_text(), status_hint_text());
        check_contains(status_hint_text(), "best_effort");
        return false;
    }
    check_ok(status);
    check_attacks(child);
    snprintf(name, sizeof name, "stays-%ld", (long)getpid());
    assert_int_equal(sandbox_ask(child, "stay", name), 0);
    assert_true(comes_to(name, 1));
    child_stop(child, NULL, 0);
    assert_true(comes_to(name, 0));
    Str reply = {0};
    check_ok(test_sandbox_start(false, &child));
    check_status(child_request(child, "end 7\n", 6, 1, 10, &reply), ST_RESOURCE);
    check_text("ended with exit code 7");
    child_stop(child, NULL, 0);
    check_ok(test_sandbox_start(false, &child));
    check_status(child_request(child, "signal 9\n", 9, 1, 10, &reply), ST_RESOURCE);
    check_text("was ended by signal 9");
    child_stop(child, NULL, 0);
    str_release(&reply);
    return true;
}

TEST(nothing_gets_out) {
    if (!hold()) skip();
}

/* Runs this program again in a child process, as `user` if that is not NULL. Returns its exit code; 2: the system refuses a part. */
static int in_a_process(const char *name, const char *user) {
    int end = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, "--alone", name, test_folder, user, (char *)NULL);
        _exit(3);
    }
    assert_true(pid > 0 && waitpid(pid, &end, 0) == pid);
    return WIFEXITED(end) ? WEXITSTATUS(end) : -WTERMSIG(end);
}

TEST(nothing_gets_out_as_another_user) {
    int end = geteuid() == 0 ? in_a_process("hold", "65534") : 2;
    if (end == 2) {
        print_message("skipped: only root becomes another user, and the system must let that one have a sandbox\n");
        skip();
    }
    assert_int_equal(end, 0);
}

/* The program that uses it is killed: what was started ends with it. */
static bool start_and_die(void) {
    Child *child;
    char name[64];
    snprintf(name, sizeof name, "orphan-%ld", (long)getppid());
    if (test_sandbox_start(false, &child) != ST_OK) return false;
    sandbox_ask(child, "stay", name);
    assert_true(comes_to(name, 1));
    kill(getpid(), SIGKILL);
    return true;
}

TEST(nothing_outlives_a_program_that_is_killed) {
    char name[64];
    int end = in_a_process("start_and_die", "0");
    if (end == 2) skip();
    assert_int_equal(end, -SIGKILL);
    snprintf(name, sizeof name, "orphan-%ld", (long)getpid());
    assert_true(comes_to(name, 0));
}

/* ---- a system that refuses, as containers do ---- */

static char said[2048];
static int warnings;
static void sandbox_keep(void *context, LogLevel level, const char *text) {
    (void)context, (void)level;
    warnings++;
    snprintf(said, sizeof said, "%s", text);
}

/* No new namespaces by clone, and no mounts with an old one: what the filter of a container says. */
static bool refuse_calls(uint32_t flags, uint32_t call) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flags, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {COUNT_OF(code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

static bool goes_on_without(const char *part, const char *advice) {
    Child *child;
    check_status(test_sandbox_start(false, &child), ST_RESOURCE);
    check_text("this system refuses");
    check_text(part);
    check_contains(status_hint_text(), advice);
    check_contains(status_hint_text(), "`sandbox: best_effort`");
    log_set_sink(sandbox_keep, NULL, LOG_WARNING);
    for (int i = 0; i < (strcmp(part, "user namespaces") == 0 ? 2 : 1); i++) { /* the second is told nothing */
        check_ok(test_sandbox_start(true, &child));
        assert_int_equal(sandbox_ask(child, "socket", "1"), EPERM); /* parts that need no permission still work */
        assert_int_equal(sandbox_ask(child, "trace", "-"), EPERM);
        assert_int_equal(sandbox_ask(child, "variable", "TEST_KEY"), ENOENT);
        assert_int_equal(sandbox_ask(child, "grow", "/dev/shm/tune-test-grows"), EFBIG);
        child_stop(child, NULL, 0);
    }
    unlink("/dev/shm/tune-test-grows");
    assert_int_equal(warnings, 1);
    check_contains(said, part);
    return true;
}

static bool without_namespaces(void) { return refuse_calls(0x7e020000, 0xffff) && goes_on_without("user namespaces", "seccomp=unconfined"); }
static bool without_network(void) { return refuse_calls(CLONE_NEWNET, 0xffff) && goes_on_without("network namespaces", "user.max_net_namespaces"); }
static bool without_mounts(void) { return refuse_calls(0, SYS_mount) && goes_on_without("a view of the files of its own", "apparmor"); }
static bool without_mount_setattr(void) { return refuse_calls(0, 442) && goes_on_without("a read-only view of the files", "Linux 5.12"); }

/* Root needs no user namespace for the others. */
static bool root_without_users(void) {
    Child *child;
    if (!refuse_calls(CLONE_NEWUSER, 0xffff) || test_sandbox_start(false, &child) != ST_OK) return false;
    check_attacks(child);
    child_stop(child, NULL, 0);
    return true;
}

TEST(root_holds_it_without_a_user_namespace) {
    int end = geteuid() == 0 ? in_a_process("root_without_users", "0") : 2;
    if (end == 2) {
        print_message("skipped: only root with CAP_SYS_ADMIN can make the other namespaces alone\n");
        skip();
    }
    assert_int_equal(end, 0);
}

TEST(what_is_refused_is_named) {
    static const char *const systems[] = {"without_namespaces", "without_network", "without_mounts", "without_mount_setattr"};
    Child *child;
    Status status = test_sandbox_start(false, &child);
    if (status == ST_OK) child_stop(child, NULL, 0);
    for (size_t i = 0; i < COUNT_OF(systems); i++) {
        if (status != ST_OK && i > 0) skip(); /* this one refuses other parts */
        int end = in_a_process(systems[i], "0");
        if (end == 2) skip();
        assert_int_equal(end, 0);
    }
}

/* ---- the house of the attacked ---- */

static void write_to(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void name_files(void) {
    snprintf(project, sizeof project, "%s/project", test_folder);
    snprintf(home, sizeof home, "%s/home", test_folder);
    snprintf(run, sizeof run, "%s/run", project);
    snprintf(secret, sizeof secret, "%s/secret", home);
    snprintf(record, sizeof record, "%s/rows.jsonl", project);
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", run);
    snprintf(server, sizeof server, "%s/server", project);
}

static int set_up(void **state) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (test_folder_make(state) != 0) return -1;
    chmod(test_folder, 0755);
    name_files();
    mkdir(home, 0755);
    mkdir(project, 0755);
    mkdir(run, 0755);
    write_to(secret, "x");
    write_to(record, "x");
    write_to(metrics, "x");
    chmod(metrics, 0666);
    chmod(record, 0666);
    setenv("HOME", home, 1);
    setenv("TEST_KEY", "sk-secret-of-the-user", 1);
    snprintf(name.sun_path, sizeof name.sun_path, "%.100s", server);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && chmod(server, 0777) == 0 && listen(fd, 4) == 0 ? 0 : -1;
}

static const struct {
    const char *name;
    bool (*work)(void);
} parts[] = {{"hold", hold},
             {"start_and_die", start_and_die},
             {"root_without_users", root_without_users},
             {"without_namespaces", without_namespaces},
             {"without_network", without_network},
             {"without_mounts", without_mounts},
             {"without_mount_setattr", without_mount_setattr}};
static size_t part;
static bool refused;
TEST(alone) { refused = !parts[part].work(); }

static int run_alone(const char *name, const char *folder, const char *number) {
    uid_t user = (uid_t)atoi(number);
    if (user && (setgroups(0, NULL) != 0 || setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)) return 3;
    if (user) prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* as after the start of a program */
    snprintf(test_folder, sizeof test_folder, "%s", folder);
    name_files();
    while (strcmp(parts[part].name, name) != 0) part++;
    const struct CMUnitTest tests[] = {{parts[part].name, alone, NULL, NULL, NULL}};
    return cmocka_run_group_tests(tests, NULL, NULL) != 0 ? 1 : refused ? 2 : 0;
}

int main(int argc, char **argv) {
    if (argc > 4 && strcmp(argv[1], "--alone") == 0) {
        self = argv[0];
        signal(SIGPIPE, SIG_IGN);
        return run_alone(argv[2], argv[3], argv[4]);
    }
    if (argc > 1 && strcmp(argv[1], "--attack") == 0) return sandbox_answer();
    self = argv[0];
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_gets_out),
        cmocka_unit_test(nothing_gets_out_as_another_user),
        cmocka_unit_test(nothing_outlives_a_program_that_is_killed),
        cmocka_unit_test(root_holds_it_without_a_user_namespace),
        cmocka_unit_test(what_is_refused_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, test_folder_remove);
}

#else

TEST(other_systems_have_no_sandbox) {
    const char *argv[] = {"cat"};
    ChildLimits limits = {0};
    Child *child;
    check_status(child_start(argv, 1, &limits, &child), ST_RESOURCE);
    check_text("this system refuses");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_systems_have_no_sandbox)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
