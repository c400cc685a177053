/* SPDX-License-Identifier: Apache-2.0 */
/* Whether something is there. A disk that does not answer is no "no". */
#include "lib/base/file.h"
#include "lib/base/memory.h"

#include <stdlib.h>
#include <sys/stat.h>

/* These say that there is nothing which could be used under that name. */
static bool is_answer(int error) {
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM || error == ELOOP || error == ENAMETOOLONG;
}

int file_stat(const char *path, struct stat *info) {
    int code = UNTIL_DONE(stat(path, info));
    if (code != 0 && !is_answer(errno)) memory_no_answer(errno, path);
    return code;
}

int file_lstat(const char *path, struct stat *info) {
    int code = UNTIL_DONE(lstat(path, info));
    if (code != 0 && !is_answer(errno)) memory_no_answer(errno, path);
    return code;
}

char *path_real(const char *path) {
    char *real;
    do real = realpath(path, NULL);
    while (!real && errno == EINTR);
    if (!real && !is_answer(errno)) memory_no_answer(errno, path);
    return real;
}

bool file_exists(const char *path) {
    struct stat info;
    return path && file_stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool dir_exists(const char *path) {
    struct stat info;
    return path && file_stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool same_folder(const char *a, const char *b) {
    struct stat one, other;
    return dir_exists(a) && dir_exists(b) && file_stat(a, &one) == 0 && file_stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}
