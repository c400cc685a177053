/* SPDX-License-Identifier: Apache-2.0 */
/* The latest failure of a thread: one sentence and one line of advice. */
#include "lib/base/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static _Thread_local Failure failure;

static const struct {
    int exit_code;
    const char *meaning;
} status_table[] = {
#define STATUS(name, exit_code, meaning) {exit_code, meaning},
#include "lib/base/status.def"
#undef STATUS
};

Status status_fail(Status code, const char *format, ...) {
    char text[sizeof failure.text]; /* an argument may be the old text */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_keep_one_line(text, sizeof text);
    memcpy(failure.text, text, sizeof text);
    failure.hint[0] = '\0';
    return code;
}

Status status_hint(Status code, const char *format, ...) {
    char hint[sizeof failure.hint];
    va_list args;
    va_start(args, format);
    vsnprintf(hint, sizeof hint, format, args);
    va_end(args);
    text_keep_one_line(hint, sizeof hint);
    memcpy(failure.hint, hint, sizeof hint);
    return code;
}

Status status_prefix(Status code, const char *format, ...) {
    char what[sizeof failure.text], text[2 * sizeof failure.text + 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    text_keep_one_line(what, sizeof what);
    snprintf(text, sizeof text, "%s: %s", what, failure.text);
    text[sizeof failure.text - 1] = '\0';
    memcpy(failure.text, text, sizeof failure.text);
    return code;
}

/* The code for an errno and the advice for it, NULL when there is none. */
static Status errno_status(int error, const char **hint) {
    *hint = NULL;
    switch (error) {
    case ENOSPC:
    case EDQUOT: *hint = "free some space or choose a folder on another disk"; return ST_RESOURCE;
    case EROFS: *hint = "choose a folder that can be written to"; return ST_RESOURCE;
    case EFBIG: *hint = "the file system or a limit (ulimit -f) allows no larger file"; return ST_RESOURCE;
    case ENOMEM: *hint = "free some memory"; return ST_RESOURCE;
    case EMFILE:
    case ENFILE: *hint = "raise the limit of open files (ulimit -n)"; return ST_RESOURCE;
    case EIO: return ST_RESOURCE;
    default: return ST_INPUT;
    }
}

Status status_errno(int error, const char *format, ...) {
    char what[sizeof failure.text / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const char *hint;
    Status code = errno_status(error, &hint);
    status_fail(code, "%s: %s", what, strerror(error));
    return hint ? status_hint(code, "%s", hint) : code;
}

Status status_unwritable(int error, const char *format, ...) {
    char what[sizeof failure.text / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    status_errno(error, "%s", what);
    if (error == ENOTDIR || error == EEXIST) return status_hint(ST_RESOURCE, "a part of the path is a file, not a folder: choose another path");
    if (error == EACCES || error == EPERM || error == ENOENT) return status_hint(ST_RESOURCE, "choose a folder that can be written to");
    return ST_RESOURCE;
}

void failure_save(Failure *kept, Status status) {
    *kept = failure;
    kept->status = status;
}

Status failure_restore(const Failure *kept) {
    if (kept->status != ST_OK) failure = *kept;
    return kept->status;
}

const char *status_text(void) { return failure.text; }
const char *status_hint_text(void) { return failure.hint; }
int status_exit_code(Status code) { return status_table[code].exit_code; }
const char *status_meaning(Status code) { return status_table[code].meaning; }
