/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a sandboxed program sees: the system and the program's own files, read-only, and empty folders that it may write to. */
#include "lib/child/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#endif

static const char *const system_folders[] = {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix", "/gnu"};
/* Folders of a program's prefix (the parent of bin or shims) that interpreters and their managers read. */
static const char *const prefix_parts[] = {"bin",      "shims",   "lib",      "lib64",   "libexec",   "include",
                                           "versions", "version", "installs", "plugins", "pyvenv.cfg"};
static const char *const shared_folders[] = {"/", "/tmp", "/var/tmp", "/dev/shm", "/var", "/run", "/home", "/proc", "/sys", "/dev"};
enum { DEEPEST = 16 };

extern char **environ;

/* Looks a variable up as the started program would receive it; no other variable has an effect here. */
const char *view_variable(const char *name) {
    size_t n = strlen(name);
    for (char **at = environ; *at; at++)
        if (strncmp(*at, name, n) == 0 && (*at)[n] == '=') return *at + n + 1;
    return NULL;
}

/* ---- planning, before the process is made ---- */

static bool is_within(const char *path, const char *folder) {
    size_t n = strlen(folder);
    while (n > 0 && folder[n - 1] == '/') n--;
    return strncmp(path, folder, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool is_system(const View *view, const char *path) {
    if (view->home && is_within(path, view->home)) return false;
    for (size_t i = 0; i < COUNT_OF(system_folders); i++)
        if (is_within(path, system_folders[i])) return true;
    return false;
}

/* A folder with much that the program does not need: the home folder, its parents, folders that many programs share, the run's folder. */
static bool is_too_wide(const View *view, const char *folder) {
    for (size_t i = 0; i < COUNT_OF(shared_folders); i++)
        if (strcmp(folder, shared_folders[i]) == 0) return true;
    if (view->home && is_within(view->home, folder)) return true;
    return view->hidden && is_within(folder, view->hidden);
}

static void sandbox_view_put(View *view, int kind, const char *source, const char *path, bool folder) {
    for (size_t i = 0; i < view->n; i++)
        if (view->entries[i].kind == (unsigned)kind && strcmp(view->entries[i].path, path) == 0) return;
    view->full |= view->n == VIEW_MOST;
    if (view->full) return;
    ViewEntry *entry = &view->entries[view->n];
    *entry = (ViewEntry){.kind = (unsigned)kind, .source = source ? strdup(source) : NULL, .path = strdup(path), .folder = folder};
    if (entry->path && (entry->source || !source))
        view->n++;
    else
        view->full = true;
}

static void put_folder(View *view, const char *folder) {
    char real[PATH_MAX];
    if (realpath(folder, real) && !is_too_wide(view, real) && !(is_system(view, real) && is_system(view, folder)))
        sandbox_view_put(view, VIEW_FOLDER, real, folder, true);
}

static void folder_of(const char *path, char folder[PATH_MAX]) {
    size_t n = (size_t)(strrchr(path, '/') - path);
    snprintf(folder, PATH_MAX, "%.*s", n == 0 ? 1 : (int)n, path);
}

static bool make_absolute(const View *view, const char *path, char absolute[PATH_MAX]) {
    int n = path[0] == '/' ? snprintf(absolute, PATH_MAX, "%s", path) : snprintf(absolute, PATH_MAX, "%s/%s", view->folder, path);
    return n < PATH_MAX;
}

/* Adds a file with its folder, so that the program finds neighbouring files, under the path that is used and the real path. */
static bool put_path(View *view, const char *path) {
    char absolute[PATH_MAX], real[PATH_MAX], folder[PATH_MAX];
    struct stat info;
    if (!make_absolute(view, path, absolute) || !realpath(absolute, real) || stat(real, &info) != 0) return false;
    if (S_ISDIR(info.st_mode)) {
        put_folder(view, absolute);
        put_folder(view, real);
        return true;
    }
    if (!S_ISREG(info.st_mode)) return false;
    const char *names[] = {absolute, real};
    for (int i = 0; i < 2; i++) {
        folder_of(names[i], folder);
        put_folder(view, folder);
        if (!is_system(view, names[i])) sandbox_view_put(view, VIEW_FILE, real, names[i], false); /* in case its folder is too wide */
    }
    return true;
}

/* Adds the libraries in the prefix of bin/NAME. */
static void put_prefix(View *view, const char *program) {
    char folder[PATH_MAX], prefix[PATH_MAX], part[PATH_MAX + 32];
    struct stat info;
    folder_of(program, folder);
    const char *name = strrchr(folder, '/') + 1;
    if (is_system(view, folder) || (strcmp(name, "bin") != 0 && strcmp(name, "shims") != 0)) return;
    folder_of(folder, prefix);
    if (view->home && strcmp(prefix, view->home) == 0) return;
    for (size_t i = 0; i < COUNT_OF(prefix_parts); i++) {
        snprintf(part, sizeof part, "%s/%s", prefix, prefix_parts[i]);
        if (strlen(part) >= PATH_MAX || stat(part, &info) != 0) continue;
        if (S_ISDIR(info.st_mode))
            put_folder(view, part);
        else
            sandbox_view_put(view, VIEW_FILE, part, part, false);
    }
}

static bool find_program(const View *view, const char *name, char found[PATH_MAX]) {
    const char *path = view_variable("PATH");
    struct stat info;
    if (strchr(name, '/')) return make_absolute(view, name, found) && access(found, X_OK) == 0;
    for (const char *at = path ? path : "/usr/local/bin:/usr/bin:/bin"; *at; at += *at == ':') {
        char folder[PATH_MAX];
        size_t n = strcspn(at, ":");
        bool fits = snprintf(folder, sizeof folder, "%.*s/%s", n ? (int)n : 1, n ? at : ".", name) < PATH_MAX;
        at += n;
        if (fits && make_absolute(view, folder, found) && stat(found, &info) == 0 && S_ISREG(info.st_mode) && access(found, X_OK) == 0) return true;
    }
    return false;
}

static void put_program(View *view, const char *path, int depth);

/* #!/usr/bin/env python3, #!/home/me/bin/python */
static void put_interpreter(View *view, const char *program, int depth) {
    char line[512], found[PATH_MAX], *rest;
    int fd = open(program, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;
    if (fd >= 0) close(fd);
    if (n < 3 || line[0] != '#' || line[1] != '!') return;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    for (char *word = strtok_r(line + 2, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest))
        if (find_program(view, word, found)) put_program(view, found, depth);
}

/* Adds a program and each link on the way to the file. */
static void put_program(View *view, const char *path, int depth) {
    char now[PATH_MAX], target[PATH_MAX], next[PATH_MAX * 2], folder[PATH_MAX];
    snprintf(now, sizeof now, "%s", path);
    for (; depth < DEEPEST; depth++) {
        put_prefix(view, now);
        if (!is_system(view, now)) put_path(view, now);
        ssize_t n = readlink(now, target, sizeof target - 1);
        if (n < 0) break;
        target[n] = '\0';
        folder_of(now, folder);
        if (target[0] == '/')
            snprintf(next, sizeof next, "%s", target);
        else
            snprintf(next, sizeof next, "%s/%s", folder, target);
        if (strlen(next) >= PATH_MAX) break;
        memcpy(now, next, strlen(next) + 1);
    }
    if (depth >= DEEPEST) return;
    if (realpath(path, now)) put_prefix(view, now);
    put_interpreter(view, path, depth + 1);
}

/* Adds a file, NAME=FILE, or a program that this one starts. */
static void put_argument(View *view, const char *word) {
    const char *value = strchr(word, '=');
    char found[PATH_MAX];
    if (strlen(word) >= PATH_MAX || put_path(view, word)) return;
    if (value && value[1] && put_path(view, value + 1)) return;
    if (*word && !strchr(word, '/') && find_program(view, word, found)) put_program(view, found, 0);
}

static char *real_name(const char *path) {
    char *real = path && *path ? realpath(path, NULL) : NULL;
    return real && strcmp(real, "/") != 0 ? real : (free(real), NULL);
}

/* Hides the run's folder under each name by which a bound folder shows it. */
static void hide_run(View *view) {
    for (size_t i = 0, n = view->n; view->hidden && i < n; i++) {
        char path[PATH_MAX];
        const ViewEntry *entry = &view->entries[i];
        if (!entry->source || !entry->folder || !is_within(view->hidden, entry->source)) continue;
        if (snprintf(path, sizeof path, "%s%s", entry->path, view->hidden + strlen(entry->source)) < PATH_MAX)
            sandbox_view_put(view, VIEW_HIDE_RUN, NULL, path, true);
    }
}

Status view_plan(View *view, const char *const *argv, size_t n, const ChildLimits *limits) {
    char real[PATH_MAX], found[PATH_MAX];
    *view = (View){.home = real_name(view_variable("HOME")), .hidden = real_name(limits->hidden), .folder = getcwd(NULL, 0)};
    if (!view->folder) return status_errno(errno, "cannot start program '%s'", argv[0]);
    if (!find_program(view, argv[0], found)) return status_errno(errno == EACCES ? EACCES : ENOENT, "cannot start program '%s'", argv[0]);
    view->program = strdup(found);
    for (size_t i = 0; i < COUNT_OF(system_folders); i++)
        if (realpath(system_folders[i], real)) sandbox_view_put(view, VIEW_SYSTEM, real, system_folders[i], true);
    if (view->home) sandbox_view_put(view, VIEW_HIDE_HOME, NULL, view->home, true);
    put_program(view, found, 0);
    for (size_t i = 1; i < n; i++) put_argument(view, argv[i]);
    for (size_t i = 0; i < limits->n_readable; i++)
        if (!put_path(view, limits->readable[i])) return status_errno(ENOENT, "cannot show '%s' to program '%s'", limits->readable[i], argv[0]);
    hide_run(view);
    if (!view->full && view->program) return ST_OK;
    return status_fail(ST_RESOURCE, "cannot start program '%s': its command names more than %d files and folders", argv[0], VIEW_MOST);
}

void view_free(View *view) {
    for (size_t i = 0; i < view->n; i++) {
        free(view->entries[i].source);
        free(view->entries[i].path);
    }
    free(view->program);
    free(view->home);
    free(view->hidden);
    free(view->folder);
}

/* ---- in the started process: nothing here may allocate memory, since another thread may have held the allocator's lock ---- */

#ifdef __linux__

#define OLD "/.old"
enum { SET_ATTRIBUTES = 442, RECURSIVE = 0x8000 };
typedef struct Attributes {
    uint64_t set, clear, propagation, user;
} Attributes;
enum { READ_ONLY = 1, NO_SUID = 2 };

static int make_folders(const char *path) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof part) return ENAMETOOLONG;
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST && access(part, F_OK) != 0) return errno;
    }
    return 0;
}

static int make_file(const char *path) {
    char folder[PATH_MAX];
    size_t n = (size_t)(strrchr(path, '/') - path);
    if (n >= sizeof folder) return ENAMETOOLONG;
    memcpy(folder, path, n);
    folder[n] = '\0';
    int error = n ? make_folders(folder) : 0;
    if (error) return error;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return access(path, F_OK) == 0 ? 0 : errno;
    close(fd);
    return 0;
}

static int bind(const char *source, const char *path, bool folder) {
    char old[PATH_MAX + sizeof OLD];
    size_t n = strlen(source);
    memcpy(old, OLD, sizeof OLD - 1);
    memcpy(old + sizeof OLD - 1, source, n + 1);
    int error = folder ? make_folders(path) : make_file(path);
    if (error) return error;
    return mount(old, path, NULL, MS_BIND | MS_REC, NULL) == 0 ? 0 : errno;
}

/* For systems that cannot do the whole tree in one call: mounts below a bound folder stay as they are. */
static void bind_read_only(const char *path) {
    struct statfs info;
    if (statfs(path, &info) != 0) return;
    unsigned long kept = (unsigned long)info.f_flags & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME | MS_RELATIME);
    if (mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | kept, NULL) != 0) errno = 0; /* the part is reported as missing anyway */
}

static int bind_all(const View *view) {
    for (int kind = 0; kind < VIEW_KINDS; kind++)
        for (size_t i = 0; i < view->n; i++) {
            const ViewEntry *entry = &view->entries[i];
            struct stat info;
            int error = 0;
            if (entry->kind != (unsigned)kind) continue;
            if (entry->kind == VIEW_FILE && access(entry->path, F_OK) == 0) continue;
            if (entry->source)
                error = bind(entry->source, entry->path, entry->folder);
            else if (stat(entry->path, &info) == 0 && mount("tmpfs", entry->path, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") != 0)
                error = errno;
            if (error) return error;
        }
    return 0;
}

/* Creates the harmless devices, and links to the open descriptors. Some containers refuse a process file system; then the links are missing. */
static int make_devices(const char *size) {
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    static const char *const links[][2] = {
        {"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"}};
    int error = make_folders("/dev/shm");
    for (size_t i = 0; i < COUNT_OF(devices) && !error; i++) error = bind(devices[i], devices[i], false);
    for (size_t i = 0; i < COUNT_OF(links) && !error; i++)
        if (symlink(links[i][0], links[i][1]) != 0) error = errno;
    if (!error && mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, size) != 0) error = errno;
    if (!error) error = make_folders("/proc");
    if (!error && mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0) errno = 0;
    return error;
}

static int turn_root(void) {
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID, "size=4m,mode=755") != 0 ||
        chdir("/tmp") != 0 || mkdir(&OLD[1], 0755) != 0 || syscall(SYS_pivot_root, ".", &OLD[1]) != 0 || chdir("/") != 0)
        return errno;
    return 0;
}

static int protect(const View *view, bool best_effort, unsigned *missing, SandboxPart *part) {
    static const char *const open_folders[] = {"/tmp", "/dev/shm", "/proc"};
    Attributes all = {.set = READ_ONLY | NO_SUID}, open = {.clear = READ_ONLY};
    if (umount2(OLD, MNT_DETACH) != 0 || rmdir(OLD) != 0) return errno;
    if (syscall(SET_ATTRIBUTES, AT_FDCWD, "/", RECURSIVE, &all, sizeof all) == 0) {
        for (size_t i = 0; i < COUNT_OF(open_folders); i++) /* /proc may not be mounted */
            if (syscall(SET_ATTRIBUTES, AT_FDCWD, open_folders[i], 0, &open, sizeof open) != 0 && i < 2) return errno;
        return 0;
    }
    *part = PART_READ_ONLY;
    if (!best_effort) return errno;
    *missing |= 1U << PART_READ_ONLY;
    for (size_t i = 0; i < view->n; i++) bind_read_only(view->entries[i].path);
    bind_read_only("/");
    return 0;
}

int view_enter(const View *view, uint64_t bytes, bool best_effort, unsigned *missing, SandboxPart *part) {
    char size[64];
    snprintf(size, sizeof size, "size=%llu,nr_inodes=65536,mode=1777", (unsigned long long)bytes);
    *part = PART_VIEW;
    umask(022);
    int error = turn_root();
    if (error && best_effort) {
        *missing |= 1U << PART_VIEW;
        if (umount2("/tmp", MNT_DETACH) != 0) errno = 0; /* /tmp may not have been mounted yet */
        return chdir(view->folder) == 0 ? 0 : errno;
    }
    if (error) return error;
    error = make_folders("/tmp");
    if (!error && mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, size) != 0) error = errno;
    if (!error) error = make_devices(size);
    if (!error) error = bind_all(view);
    if (!error) error = make_folders(view->folder);
    if (!error) error = protect(view, best_effort, missing, part);
    if (!error && chdir(view->folder) != 0 && chdir("/tmp") != 0) error = errno;
    return error;
}

#else
int view_enter(const View *view, uint64_t bytes, bool best_effort, unsigned *missing, SandboxPart *part) {
    (void)view, (void)bytes, (void)best_effort, (void)missing;
    *part = PART_VIEW;
    return ENOSYS;
}
#endif
