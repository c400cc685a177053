/* SPDX-License-Identifier: Apache-2.0 */
/* How child.c starts a program that is not trusted. docs/rewards.md says what holds and what does not. */
#ifndef TUNE_SANDBOX_H
#define TUNE_SANDBOX_H

#include "lib/child/child.h"

#include <sys/types.h>

typedef enum SandboxPart {
#define PART(name, words, advice) name,
#include "lib/child/sandbox.def"
#undef PART
    PARTS
} SandboxPart;

/* ---- the files that it sees: sandbox_view.c ---- */

enum { VIEW_MOST = 96 };
typedef struct ViewEntry {
    enum { VIEW_SYSTEM, VIEW_HIDE_HOME, VIEW_FOLDER, VIEW_HIDE_RUN, VIEW_FILE, VIEW_KINDS } kind;
    char *source, *path; /* source: without links; NULL for what is hidden */
    bool folder;
} ViewEntry;
typedef struct View {
    ViewEntry entries[VIEW_MOST];
    size_t n;
    char *program, *home, *hidden, *folder; /* folder: where we are */
    bool full;
} View;
/* Which files the program needs: itself, its interpreter, files that its arguments name, `readable`. ST_INPUT: there is no such program. */
Status view_plan(View *view, const char *const *argv, size_t n, const ChildLimits *limits);
void view_free(View *view);
const char *view_variable(const char *name); /* of the environment that programs are handed; NULL: not there */
/* In the started process, which has a mount namespace of its own: 0, or the error and the part that failed. Only system calls. */
int view_enter(const View *view, uint64_t bytes, bool best_effort, unsigned *missing, SandboxPart *part);

/* ---- the system calls that it may make: sandbox_filter.c ---- */

int filter_enter(void); /* 0 or the error */

/* ---- all of it: sandbox.c ---- */

/* theirs: descriptors that become its stdin, stdout, stderr. *shell: its end is told by a shell, as exit code 128 + signal. */
Status sandbox_start(const char *const *argv, size_t n, const int theirs[3], const ChildLimits *limits, pid_t *pid, bool *shell);

#endif
