/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ended, and what to do now. A run that ends without its result writes stopped.json; one that had no time for that is told by what is
 * missing.
 *
 *     Ending ending;
 *     TRY(ending_read("runs/a", arena, &ending));
 *     if (ending_is_failure(&ending)) ending_describe_next_action(&ending, &text);
 */
#ifndef TUNE_ENDING_H
#define TUNE_ENDING_H

#include "lib/run/run.h"

typedef enum RunEnd {
    END_UNKNOWN,     /* not finished; nothing says more, as on a file system without locks */
    END_FINISHED,    /* finished.json */
    END_GOES_ON,     /* a process trains there */
    END_INTERRUPTED, /* by Ctrl-C or a signal that asks; a checkpoint was saved */
    END_ERROR,       /* stopped.json has its words */
    END_KILLED,      /* no process trains there, and no file says why: it was killed */
} RunEnd;
/* What helps after that. */
typedef enum NextAction {
    NEXT_RESUME,  /* --resume, as it is */
    NEXT_FIX,     /* what the error names first; --resume alone would fail the same way */
    NEXT_NEW_RUN, /* --resume computes the same numbers again: another run, by other settings */
} NextAction;
typedef struct Ending {
    RunEnd end;
    NextAction next_action;
    const char *error, *hint; /* as they were said; "" = none */
    const char *resume;       /* the whole command that goes on; NULL: not known */
    bool answers;             /* a run of tune data synth: it has no steps, and goes on from what its teacher has answered */
    int64_t step, saved_step; /* the last one in metrics.jsonl, 0 = none; of the newest checkpoint, -1 = none */
} Ending;

/* What helps after a failure with this status. mendable: a changed key lets the same run go on. */
NextAction next_action_after(Status status, bool fixable);
/* Nothing in the directory is trusted: what is broken is as if it were missing. Texts are in `arena`. ST_RESOURCE. */
Status ending_read(const char *dir, Arena *arena, Ending *ending);
bool ending_is_failure(const Ending *ending);          /* it ended without its result */
const char *ending_name(RunEnd end);                   /* for programs: "finished", "running", "interrupted", "failed", "killed", "unfinished" */
void ending_describe(const Ending *ending, Str *text); /* what happened: "ended by an error after step 3: ..." */
void ending_describe_next_action(const Ending *ending, Str *text); /* what to do, in a sentence or two; nothing where it goes on or is finished */
/* stopped.json. The words are those of the failure `status` in this thread, which stays; hint NULL: its own. */
Status ending_write(const char *path, Status status, const char *hint, NextAction next_action, const char *resume);

#endif
