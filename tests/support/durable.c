/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/durable.h"
#include "lib/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 4096 };
typedef struct Known {
    ino_t number;
    off_t size; /* bytes that are synced */
    bool named;
} Known;
static Known known[MOST];
static size_t n_known;
static const char *last;
static int above;
static char lost[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Known *durable_find(ino_t number) {
    for (size_t i = 0; i < n_known; i++)
        if (known[i].number == number) return &known[i];
    if (n_known == MOST) return &known[0];
    known[n_known] = (Known){.number = number};
    return &known[n_known++];
}

static void note_folder(int fd) {
    struct stat info;
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, "..") != 0 && fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && strcmp(entry->d_name, ".") != 0)
            durable_find(info.st_ino)->named = true;
    if (dir) closedir(dir);
}

int fsync(int fd) {
    struct stat info = {0};
    pthread_mutex_lock(&lock);
    if (last && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
        note_folder(fd);
    else if (last && S_ISREG(info.st_mode))
        durable_find(info.st_ino)->size = info.st_size;
    pthread_mutex_unlock(&lock);
    return (int)syscall(SYS_fsync, fd);
}

static int durable_look(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)kind, (void)where;
    const Known *file = durable_find(info->st_ino);
    size_t used = strlen(lost);
    if (strstr(path, ".tmp-") || (file->named && (!S_ISREG(info->st_mode) || file->size >= info->st_size))) return 0;
    snprintf(lost + used, sizeof lost - used, "%s ", path);
    return 0;
}

int rename(const char *from, const char *to) {
    struct stat info;
    pthread_mutex_lock(&lock);
    if (last && lstat(from, &info) == 0) durable_find(info.st_ino)->named = false;
    if (last && strcmp(path_name(to), last) == 0) {
        char folder[1024];
        snprintf(folder, sizeof folder, "%.*s", (int)(path_name(to) - to - 1), to);
        for (int i = 0; i < above; i++) *strrchr(folder, '/') = '\0';
        lost[0] = '\0';
        nftw(folder, durable_look, 16, FTW_PHYS);
    }
    pthread_mutex_unlock(&lock);
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

void durable_begin(const char *name, int folders) {
    n_known = 0;
    durable_again(name, folders);
}

void durable_again(const char *name, int folders) {
    last = name;
    above = folders;
    snprintf(lost, sizeof lost, "never");
}

const char *durable_lost(void) {
    last = NULL;
    return lost;
}
