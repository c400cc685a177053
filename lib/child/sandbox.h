/* SPDX-License-Identifier: Apache-2.0 */
/* How child.c starts a program that is not trusted. docs/rewards.md says what the sandbox guarantees and what it does not. */
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

/* ---- the files that the program sees: sandbox_view.c ---- */

enum { VIEW_MOST = 96 };
typedef struct ViewEntry {
    enum { VIEW_SYSTEM, VIEW_HIDE_HOME, VIEW_FOLDER, VIEW_HIDE_RUN, VIEW_FILE, VIEW_KINDS } kind;
    char *source, *path; /* source: the real path, without links; NULL for hidden entries */
    bool folder;
} ViewEntry;
typedef struct View {
    ViewEntry entries[VIEW_MOST];
    size_t n;
    char *program, *home, *hidden, *folder; /* folder: the working folder */
    bool full;
} View;
/* Lists the files that the program needs: itself, its interpreter, files that its arguments name, `readable`. ST_INPUT: there is no such program. The
 * caller calls view_free. */
Status view_plan(View *view, const char *const *argv, size_t n, const ChildLimits *limits);
void view_free(View *view);
const char *view_variable(const char *name); /* the value of an environment variable that programs receive; NULL: not set */
/* Called in the started process, in its own mount namespace; makes only system calls. Returns 0, or the error with *part, the part that failed. */
int view_enter(const View *view, uint64_t bytes, bool best_effort, unsigned *missing, SandboxPart *part);

/* ---- the system calls that the program may make: sandbox_filter.c ---- */

int filter_enter(void); /* 0 or the error */

/* ---- the whole sandbox: sandbox.c ---- */

/* theirs: descriptors that become the program's stdin, stdout and stderr. *shell: a shell waits for the program, so a signal is reported as exit code
 * 128 + signal. */
Status sandbox_start(const char *const *argv, size_t n, const int theirs[3], const ChildLimits *limits, pid_t *pid, bool *shell);

#endif
