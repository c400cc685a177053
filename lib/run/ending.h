/* SPDX-License-Identifier: Apache-2.0 */
/* How a run ended, and what to do now. A run that ends without its result writes stopped.json; one that had no time for that is told by what is
 * missing.
 *
 *     Ending ending;
 *     TRY(ending_read("runs/a", arena, &ending));
 *     if (ending_is_death(&ending)) ending_advise(&ending, &text);
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
    END_SILENT,      /* no process trains there, and no file says why: it was killed */
} RunEnd;
/* What helps after that. */
typedef enum Remedy {
    REMEDY_RESUME, /* --resume, as it is */
    REMEDY_MEND,   /* what the error names first; --resume alone would fail the same way */
    REMEDY_ANEW,   /* --resume computes the same numbers again: another run, by other settings */
} Remedy;
typedef struct Ending {
    RunEnd end;
    Remedy remedy;
    const char *error, *hint; /* as they were said; "" = none */
    const char *resume;       /* the whole command that goes on; NULL: not known */
    bool answers;             /* a run of tune data synth: it has no steps, and goes on from what its teacher has answered */
    int64_t step, saved_step; /* the last one in metrics.jsonl, 0 = none; of the newest checkpoint, -1 = none */
} Ending;

/* What helps after a failure with this status. mendable: a changed key lets the same run go on. */
Remedy remedy_of(Status status, bool mendable);
/* Nothing in the directory is trusted: what is broken is as if it were missing. Texts are in `arena`. ST_RESOURCE. */
Status ending_read(const char *dir, Arena *arena, Ending *ending);
bool ending_is_death(const Ending *ending);            /* it ended without its result */
const char *ending_word(RunEnd end);                   /* for programs: "finished", "running", "interrupted", "failed", "killed", "unfinished" */
void ending_describe(const Ending *ending, Str *text); /* what happened: "ended by an error after step 3: ..." */
void ending_advise(const Ending *ending, Str *text);   /* what to do, in a sentence or two; nothing where it goes on or is finished */
/* stopped.json. The words are those of the failure `status` in this thread, which stays; hint NULL: its own. */
Status ending_write(const char *path, Status status, const char *hint, Remedy remedy, const char *resume);

#endif
