/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and paths. */
#include "lib/base/file.h"
#include "lib/base/log.h"
#include "lib/base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Syncs the entry of `path` in its parent folder. A parent that may be searched but not opened cannot be synced: the system then writes in its own
 * order. */
static int sync_name(const char *path) {
    Str above = {0};
    const char *name = path_name(path);
    str_append_n(&above, path, (size_t)(name - path));
    int fd = UNTIL_DONE(open(above.len ? str_text(&above) : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    str_release(&above);
    if (fd < 0) return 0;
    int error = file_sync(fd) == 0 || errno == EINVAL ? 0 : errno;
    close(fd);
    return error;
}

/* Makes one folder; an existing one is fine. Returns 0 or an errno. */
static int make_one(const char *path) {
    if (UNTIL_DONE(mkdir(path, 0777)) == 0) return sync_name(path);
    int error = errno;
    return dir_exists(path) ? 0 : error;
}

Status dir_make(const char *path) {
    if (!path) return ST_RESOURCE;
    Str copy = {0};
    str_append(&copy, path);
    int error = 0;
    for (size_t i = 1; i < copy.len && error == 0; i++) {
        if (copy.data[i] != '/') continue;
        copy.data[i] = '\0';
        error = make_one(copy.data);
        copy.data[i] = '/';
    }
    if (error == 0) error = make_one(str_text(&copy));
    str_release(&copy);
    return error == 0 ? ST_OK : status_unwritable(error, "cannot make folder '%s'", path);
}

Status dir_check_creatable(const char *path) {
    if (!path) return ST_RESOURCE;
    Str above = {0};
    struct stat info;
    str_append(&above, *path ? path : ".");
    while (above.data && file_stat(str_text(&above), &info) != 0 && errno == ENOENT) {
        char *slash = strrchr(above.data, '/');
        if (slash && slash > above.data)
            *slash = '\0';
        else if (strcmp(above.data, ".") == 0 || slash)
            break;
        else
            str_clear(&above), str_append(&above, ".");
    }
    int error = file_stat(str_text(&above), &info) != 0 ? errno : !S_ISDIR(info.st_mode) ? ENOTDIR : access(str_text(&above), W_OK) != 0 ? errno : 0;
    str_release(&above);
    return error == 0 ? ST_OK : status_unwritable(error, "cannot make folder '%s'", path);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return UNTIL_DONE(remove(path));
}

/* 0, or an errno. */
static int remove_tree(const char *path) { return nftw(path, remove_entry, 32, FTW_DEPTH | FTW_PHYS) == 0 ? 0 : errno; }

Status dir_remove(const char *path) {
    if (!path) return ST_RESOURCE;
    TRY(memory_check(ST_OK)); /* the path may be truncated */
    struct stat info;
    if (file_lstat(path, &info) != 0) return errno == ENOENT ? ST_OK : status_errno(errno, "cannot remove '%s'", path);
    if (!S_ISDIR(info.st_mode)) return status_fail(ST_INPUT, "cannot remove '%s': not a folder", path);
    int error = remove_tree(path);
    return error == 0 ? ST_OK : status_errno(error, "cannot remove '%s'", path);
}

/* Entries other than files and folders are skipped: some cannot be opened. */
static int sync_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)kind, (void)where;
    if (!S_ISREG(info->st_mode) && !S_ISDIR(info->st_mode)) return 0;
    int fd = UNTIL_DONE(open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd < 0) return errno == EACCES || errno == ENOENT || errno == ELOOP ? 0 : errno;
    int error = file_sync(fd) == 0 || errno == EINVAL ? 0 : errno;
    close(fd);
    return error;
}

Status dir_sync_tree(const char *path) {
    if (!path) return ST_RESOURCE;
    int error = nftw(path, sync_entry, 32, FTW_DEPTH | FTW_PHYS);
    if (error < 0) error = errno;
    return error == 0 ? ST_OK : status_unwritable(error, "cannot sync folder '%s'", path);
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static Status names_add(char ***names, size_t *count, size_t *room, char *name) {
    if (!name) return ST_RESOURCE;
    TRY(array_grow(names, room, *count + 1, sizeof **names, "names of a folder"));
    (*names)[(*count)++] = name;
    return ST_OK;
}

Status dir_list(const char *path, Arena *arena, char ***names, size_t *count) {
    *names = NULL;
    *count = 0;
    if (!path) return ST_RESOURCE;
    DIR *dir;
    do dir = opendir(path);
    while (!dir && errno == EINTR);
    if (!dir) return status_errno(errno, "cannot open folder '%s'", path);
    Status status = ST_OK;
    char **found = NULL;
    size_t n = 0, room = 0;
    for (struct dirent *entry; status == ST_OK && (errno = 0, entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = names_add(&found, &n, &room, arena_strdup(arena, entry->d_name));
    }
    if (status == ST_OK && errno != 0) status = status_errno(errno, "cannot read folder '%s'", path);
    closedir(dir);
    if (status == ST_OK && !(*names = arena_alloc(arena, n * sizeof **names))) status = ST_RESOURCE;
    if (status == ST_OK && n > 0) {
        qsort(found, n, sizeof *found, compare_names);
        memcpy(*names, found, n * sizeof *found);
        *count = n;
    }
    free(found);
    return status;
}

/* ---- backups ---- */

bool path_inside(const char *path, const char *dir) {
    char *inner = path ? path_real(path) : NULL, *outer = dir ? path_real(dir) : NULL;
    size_t len = outer ? strlen(outer) : 0;
    while (len > 1 && outer[len - 1] == '/') len--;
    bool inside = inner && outer && strncmp(inner, outer, len) == 0 && (len == 1 || inner[len] == '\0' || inner[len] == '/');
    free(inner);
    free(outer);
    return inside;
}

/* The name to rename: without trailing slashes, and with a link, "." or ".." resolved. */
static Status plain_name(const char *path, bool *link, Str *name) {
    struct stat info;
    str_append(name, path);
    while (name->len > 1 && name->data[name->len - 1] == '/') name->data[--name->len] = '\0';
    if (file_lstat(str_text(name), &info) != 0) return status_errno(errno, "cannot rename '%s'", path);
    const char *last = path_name(str_text(name));
    *link = S_ISLNK(info.st_mode);
    if (!*link && strcmp(last, ".") != 0 && strcmp(last, "..") != 0) return ST_OK;
    char *real = path_real(path);
    if (!real) return status_errno(errno, "cannot rename '%s'", path);
    str_clear(name);
    str_append(name, real);
    free(real);
    return ST_OK;
}

/* Renames to a name that does not exist. Returns 0 or an errno: EEXIST when it does. */
static int rename_to_free(const char *from, const char *to) {
    struct stat info;
#ifdef RENAME_NOREPLACE
    if (UNTIL_DONE(renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE)) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
#endif
    if (file_lstat(to, &info) == 0) return EEXIST;
    return UNTIL_DONE(rename(from, to)) == 0 ? 0 : errno == ENOTEMPTY || errno == ENOTDIR ? EEXIST : errno;
}

Status path_backup(const char *path, Str *kept) {
    Str name = {0};
    size_t begin = kept->len;
    bool link = false;
    int error = EEXIST;
    if (!path) return ST_RESOURCE;
    if (path_inside(".", path))
        return status_hint(status_fail(ST_CONFIG, "cannot rename '%s': the program runs in it", path), "start it in another folder");
    Status status = plain_name(path, &link, &name);
    for (int64_t n = 1; status == ST_OK && error == EEXIST; n++) {
        if (n > 1) kept->data[kept->len = begin] = '\0';
        str_printf(kept, "%s.%lld", str_text(&name), (long long)n);
        error = rename_to_free(str_text(&name), kept->data + begin);
    }
    if (status == ST_OK && error != 0) status = status_unwritable(error, "cannot rename '%s' to '%s'", path, kept->data + begin);
    if (status == ST_OK && link) status = dir_make(str_text(&name));
    if (status == ST_OK) status = dir_sync_above(str_text(&name));
    str_release(&name);
    return status;
}

/* ---- folders that are built atomically ---- */

/* Repairs what a killed process left: a half-built folder is deleted; an old folder that was moved away and not replaced is moved back. */
static Status clear_up(const char *made, const char *dir, const char *old) {
    struct stat info;
    if (file_stat(dir, &info) != 0 && file_lstat(dir, &info) == 0)
        return status_fail(ST_INPUT, "cannot write '%s': the target of the link is missing", dir);
    TRY(dir_remove(made));
    if (dir_exists(old) && !dir_exists(dir)) return dir_rename(old, dir);
    return dir_remove(old);
}

/* Moves `made` to `dir`; an existing folder is kept under a free name. */
static Status put_beside(const char *made, const char *dir, Str *kept) {
    size_t begin = kept->len;
    if (dir_exists(dir)) TRY(path_backup(dir, kept));
    Status status = dir_rename(made, dir);
    if (status == ST_OK || kept->len == begin) return status;
    if (UNTIL_DONE(rename(kept->data + begin, dir)) == 0) kept->data[kept->len = begin] = '\0';
    return status;
}

/* Moves `made` to `dir`; an existing folder waits as `old` and is moved back when that fails. */
static Status put_in_place(const char *made, const char *dir, const char *old) {
    bool replaces = dir_exists(dir);
    if (replaces) TRY(dir_rename(dir, old));
    Status status = dir_rename(made, dir);
    if (status != ST_OK && replaces) (void)UNTIL_DONE(rename(old, dir));
    if (status != ST_OK || !replaces) return status;
    int error = remove_tree(old);
    if (error != 0) log_message(LOG_WARNING, "'%s' is written, but the old folder remains as '%s': %s", dir, old, strerror(error));
    return ST_OK;
}

Status dir_build(const char *dir, Status (*write)(void *context, const char *made), void *context) {
    return dir_build_with_backup(dir, write, context, NULL);
}

/* Locks a file in the same parent while the folder is built, so that this process owns the temporary names. *lock is -1 when another process has the
 * lock. The loop repeats when the previous owner has deleted the file in the meantime. */
static Status take_lock(const char *dir, const char *path, int *lock) {
    struct stat info;
    for (;;) {
        *lock = UNTIL_DONE(open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
        if (*lock < 0) return status_unwritable(errno, "cannot write '%s'", path);
        bool taken = UNTIL_DONE(flock(*lock, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK; /* some file systems have no locks */
        if (!taken && (fstat(*lock, &info) != 0 || info.st_nlink > 0)) return ST_OK;
        close(*lock);
        *lock = -1;
        if (!taken) continue;
        status_fail(ST_CONFIG, "another process is writing '%s'", dir);
        return status_hint(ST_CONFIG, "wait for it, or choose another output");
    }
}

typedef struct Building {
    Str above, path, made, old, lock;
} Building;

static void name_all(Building *b, const char *dir) {
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--; /* otherwise the lock file would be inside the folder */
    str_append_n(&b->path, dir, len);
    const char *name = path_name(str_text(&b->path));
    str_append_n(&b->above, dir, (size_t)(name - str_text(&b->path)));
    str_printf(&b->made, "%s.%s.tune-partial", str_text(&b->above), name);
    str_printf(&b->old, "%s.%s.tune-old", str_text(&b->above), name);
    str_printf(&b->lock, "%s.%s.tune-lock", str_text(&b->above), name);
}

static void release_names(Building *b) {
    str_release(&b->above);
    str_release(&b->path);
    str_release(&b->made);
    str_release(&b->old);
    str_release(&b->lock);
}

/* The parent folder is created if it is missing. */
static Status lock_building(const char *dir, const Building *b, int *lock) {
    if (b->above.len) TRY(dir_make(str_text(&b->above)));
    return take_lock(dir, str_text(&b->lock), lock);
}

static void unlock_building(const Building *b, int lock) {
    if (lock < 0) return;
    (void)UNTIL_DONE(unlink(str_text(&b->lock)));
    close(lock);
}

Status dir_alone(const char *dir, Status (*work)(void *context), void *context) {
    if (!dir) return ST_RESOURCE;
    char *real = realpath(dir, NULL);
    Building b = {0};
    int lock = -1;
    name_all(&b, real ? real : dir);
    Status status = lock_building(dir, &b, &lock);
    if (status == ST_OK) status = work(context);
    unlock_building(&b, lock);
    release_names(&b);
    free(real);
    return status;
}

static Status base_dir_build(const Building *b, Status (*write)(void *context, const char *made), void *context, Str *kept) {
    const char *path = str_text(&b->path), *made = str_text(&b->made), *old = str_text(&b->old);
    Status status = clear_up(made, path, old);
    if (status == ST_OK) status = dir_make(made);
    if (status == ST_OK) status = write(context, made);
    status = memory_check(status);
    if (status == ST_OK) status = kept ? put_beside(made, path, kept) : put_in_place(made, path, old);
    if (status != ST_OK) remove_tree(made); /* records nothing: the failure keeps its text */
    return status;
}

Status dir_build_with_backup(const char *dir, Status (*write)(void *context, const char *made), void *context, Str *kept) {
    if (!dir) return ST_RESOURCE;
    char *real = path_real(dir); /* what a link leads to is replaced, not the link */
    Building b = {0};
    int lock = -1;
    name_all(&b, real ? real : dir);
    Status status = dir_check_creatable(dir);
    if (status == ST_OK) status = lock_building(dir, &b, &lock);
    if (status == ST_OK) status = base_dir_build(&b, write, context, kept);
    unlock_building(&b, lock);
    release_names(&b);
    free(real);
    return status;
}

Status dir_check_space(const char *path, uint64_t bytes) {
    struct statvfs disk;
    if (!path) return ST_RESOURCE;
    if (UNTIL_DONE(statvfs(path, &disk)) != 0 || disk.f_blocks == 0) return ST_OK; /* some file systems do not say */
    double room = (double)disk.f_bavail * (double)disk.f_frsize;
    if ((double)bytes <= room) return ST_OK;
    char needs[32], has[32];
    status_fail(ST_RESOURCE, "not enough disk space: %s are needed, %s are free", format_bytes((double)bytes, needs), format_bytes(room, has));
    return status_hint(ST_RESOURCE, "free some space or choose a folder on another disk");
}

char *path_join(Arena *arena, const char *dir, const char *name) {
    if (!dir || !name) return NULL;
    if (name[0] == '/' || dir[0] == '\0') return arena_strdup(arena, name);
    return arena_printf(arena, "%s%s%s", dir, text_ends_with(dir, "/") ? "" : "/", name);
}

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
