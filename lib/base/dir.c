/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and paths. */
#include "lib/base/file.h"
#include "lib/base/log.h"

#include <dirent.h>
#include <errno.h>
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
    while (stat(str_text(&above), &info) != 0 && errno == ENOENT) {
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

/* ---- a folder that appears whole ---- */

/* What a process that was killed left: half of a folder goes; what was about to be replaced, and has not been, comes back. */
static Status clear_up(const char *made, const char *dir, const char *old) {
    struct stat info;
    if (stat(dir, &info) != 0 && lstat(dir, &info) == 0) return status_fail(ST_INPUT, "cannot write '%s': a link that leads nowhere", dir);
    TRY(dir_remove(made));
    if (dir_exists(old) && !dir_exists(dir)) return dir_rename(old, dir);
    return dir_remove(old);
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
    if (status == ST_OK) status = put_in_place(str_text(&made), str_text(&path), str_text(&old));
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
