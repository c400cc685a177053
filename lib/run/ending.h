/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ended, and what to do now. A run that ends without a result writes stopped.json. A run was killed if it has neither finished.json nor
 * stopped.json and no process has locked it.
 *
 *     Ending ending;
 *     TRY(ending_read("runs/a", arena, &ending));
 *     if (ending_is_failure(&ending)) ending_describe_next_action(&ending, &text);
 */
#ifndef TUNE_ENDING_H
#define TUNE_ENDING_H

#include "lib/run/run.h"

typedef enum RunEnd {
    END_UNKNOWN,     /* not finished, and nothing more is known, e.g. on a file system without locks */
    END_FINISHED,    /* finished.json exists */
    END_GOES_ON,     /* a process is training in it */
    END_INTERRUPTED, /* by Ctrl-C or a signal that requests it; a checkpoint was saved */
    END_ERROR,       /* stopped.json has the error */
    END_KILLED,      /* no process trains in it and no file says why: it was killed */
} RunEnd;
/* What to do after a failed run. */
typedef enum NextAction {
    NEXT_RESUME,  /* --resume, without changes */
    NEXT_FIX,     /* first mend what the error names; --resume alone would fail in the same way */
    NEXT_NEW_RUN, /* another run with other settings: --resume would compute the same numbers again */
} NextAction;
typedef struct Ending {
    RunEnd end;
    NextAction next_action;
    const char *error, *hint; /* as recorded; "" = none */
    const char *resume;       /* the full command that resumes; NULL: unknown */
    bool answers;             /* a run of tune data synth: it has no steps, and continues after the answers that its teacher gave */
    int64_t step, saved_step; /* the last step in metrics.jsonl, 0 = none; the newest checkpoint's, -1 = none */
} Ending;

/* What to do after a failure with this status. fixable: the same run can continue after a change of keys. */
NextAction next_action_after(Status status, bool fixable);
/* Reads how the run in `dir` ended. Damaged files count as missing. Texts are in `arena`. ST_RESOURCE. */
Status ending_read(const char *dir, Arena *arena, Ending *ending);
bool ending_is_failure(const Ending *ending); /* it ended without a result */
/* For programs: "finished", "running", "interrupted", "failed", "killed" or "unfinished". */
const char *ending_name(RunEnd end);
void ending_describe(const Ending *ending, Str *text); /* what happened: "ended by an error after step 3: ..." */
/* What to do, in a sentence or two; nothing for a run that is running or finished. */
void ending_describe_next_action(const Ending *ending, Str *text);
/* Writes stopped.json with the text of this thread's failure, which stays; hint NULL: the failure's own. */
Status ending_write(const char *path, Status status, const char *hint, NextAction next_action, const char *resume);

#endif
