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
#include <sys/stat.h>
#include <unistd.h>

/* Makes one folder; one that stands there already is fine. 0 or an errno. */
static int make_one(const char *path) {
    if (mkdir(path, 0777) == 0) return 0;
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

Status dir_could_make(const char *path) {
    if (!path) return ST_RESOURCE;
    Str above = {0};
    struct stat info;
    str_append(&above, *path ? path : ".");
    while (above.data && stat(str_text(&above), &info) != 0 && errno == ENOENT) {
        char *slash = strrchr(above.data, '/');
        if (slash && slash > above.data)
            *slash = '\0';
        else if (strcmp(above.data, ".") == 0 || slash)
            break;
        else
            str_clear(&above), str_append(&above, ".");
    }
    int error = stat(str_text(&above), &info) != 0 ? errno : !S_ISDIR(info.st_mode) ? ENOTDIR : access(str_text(&above), W_OK) != 0 ? errno : 0;
    str_release(&above);
    return error == 0 ? ST_OK : status_unwritable(error, "cannot make folder '%s'", path);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

/* 0, or an errno. */
static int remove_tree(const char *path) { return nftw(path, remove_entry, 32, FTW_DEPTH | FTW_PHYS) == 0 ? 0 : errno; }

Status dir_remove(const char *path) {
    if (!path) return ST_RESOURCE;
    TRY(memory_check(ST_OK)); /* the path may lack its end */
    struct stat info;
    if (lstat(path, &info) != 0) return errno == ENOENT ? ST_OK : status_errno(errno, "cannot remove '%s'", path);
    if (!S_ISDIR(info.st_mode)) return status_fail(ST_INPUT, "cannot remove '%s': not a folder", path);
    int error = remove_tree(path);
    return error == 0 ? ST_OK : status_errno(error, "cannot remove '%s'", path);
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
    DIR *dir = opendir(path);
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

/* ---- out of the way ---- */

bool path_inside(const char *path, const char *dir) {
    char *inner = path ? realpath(path, NULL) : NULL, *outer = dir ? realpath(dir, NULL) : NULL;
    size_t len = outer ? strlen(outer) : 0;
    while (len > 1 && outer[len - 1] == '/') len--;
    bool inside = inner && outer && strncmp(inner, outer, len) == 0 && (len == 1 || inner[len] == '\0' || inner[len] == '/');
    free(inner);
    free(outer);
    return inside;
}

/* The name to be renamed: without slashes at its end, and what is meant by a link, "." and "..". */
static Status plain_name(const char *path, bool *link, Str *name) {
    struct stat info;
    str_append(name, path);
    while (name->len > 1 && name->data[name->len - 1] == '/') name->data[--name->len] = '\0';
    if (lstat(str_text(name), &info) != 0) return status_errno(errno, "cannot rename '%s'", path);
    const char *last = path_name(str_text(name));
    *link = S_ISLNK(info.st_mode);
    if (!*link && strcmp(last, ".") != 0 && strcmp(last, "..") != 0) return ST_OK;
    char *real = realpath(path, NULL);
    if (!real) return status_errno(errno, "cannot rename '%s'", path);
    str_clear(name);
    str_append(name, real);
    free(real);
    return ST_OK;
}

/* To a name that nothing has. 0, or an errno: EEXIST where there is something. */
static int rename_to_free(const char *from, const char *to) {
    struct stat info;
#ifdef RENAME_NOREPLACE
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
#endif
    if (lstat(to, &info) == 0) return EEXIST;
    return rename(from, to) == 0 ? 0 : errno == ENOTEMPTY || errno == ENOTDIR ? EEXIST : errno;
}

Status path_set_aside(const char *path, Str *kept) {
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

/* ---- a folder that appears whole ---- */

/* What a process that was killed left: half of a folder goes; what was about to be replaced, and has not been, comes back. */
static Status clear_up(const char *made, const char *dir, const char *old) {
    struct stat info;
    if (stat(dir, &info) != 0 && lstat(dir, &info) == 0) return status_fail(ST_INPUT, "cannot write '%s': a link that leads nowhere", dir);
    TRY(dir_remove(made));
    if (dir_exists(old) && !dir_exists(dir)) return dir_rename(old, dir);
    return dir_remove(old);
}

/* The same where what is there gets a free name, and keeps it. */
static Status put_beside(const char *made, const char *dir, Str *kept) {
    size_t begin = kept->len;
    if (dir_exists(dir)) TRY(path_set_aside(dir, kept));
    Status status = dir_rename(made, dir);
    if (status == ST_OK || kept->len == begin) return status;
    if (rename(kept->data + begin, dir) == 0) kept->data[kept->len = begin] = '\0';
    return status;
}

/* Puts `made` where `dir` is to be; what is there waits in `old`, and comes back where that fails. */
static Status put_in_place(const char *made, const char *dir, const char *old) {
    bool replaces = dir_exists(dir);
    if (replaces) TRY(dir_rename(dir, old));
    Status status = dir_rename(made, dir);
    if (status != ST_OK && replaces) rename(old, dir);
    if (status != ST_OK || !replaces) return status;
    int error = remove_tree(old);
    if (error != 0) log_message(LOG_WARNING, "'%s' is written, but what it replaces stays as '%s': %s", dir, old, strerror(error));
    return ST_OK;
}

Status dir_build(const char *dir, Status (*write)(void *context, const char *made), void *context) {
    return dir_build_beside(dir, write, context, NULL);
}

Status dir_build_beside(const char *dir, Status (*write)(void *context, const char *made), void *context, Str *kept) {
    if (!dir) return ST_RESOURCE;
    char *real = realpath(dir, NULL); /* what a link leads to is replaced, not the link */
    if (real) dir = real;
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--; /* or the folder beside it would be in it */
    Str path = {0}, made = {0}, old = {0};
    str_append_n(&path, dir, len);
    const char *name = path_name(str_text(&path));
    int above = (int)(name - str_text(&path));
    str_printf(&made, "%.*s.%s.tune-partial", above, dir, name);
    str_printf(&old, "%.*s.%s.tune-old", above, dir, name);
    Status status = dir_could_make(dir);
    if (status == ST_OK) status = clear_up(str_text(&made), str_text(&path), str_text(&old));
    if (status == ST_OK) status = dir_make(str_text(&made));
    if (status == ST_OK) status = write(context, str_text(&made));
    status = memory_check(status);
    if (status == ST_OK && kept)
        status = put_beside(str_text(&made), str_text(&path), kept);
    else if (status == ST_OK)
        status = put_in_place(str_text(&made), str_text(&path), str_text(&old));
    if (status != ST_OK) remove_tree(str_text(&made)); /* says nothing: the failure keeps its words */
    str_release(&path);
    str_release(&made);
    str_release(&old);
    free(real);
    return status;
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
