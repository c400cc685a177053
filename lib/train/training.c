/* What all kinds of training have in common around their steps. */
#include "lib/train/training.h"

#include "lib/train/report.h"

/* Unless the run has one: a resumed run keeps what it began with. */
static Status write_started(const Training *t, const TrainMemory *memory, const Run *run) {
    JsonWriter w;
    if (!run_started_begin(run, *t->recipe, t->command, &w)) return ST_OK;
    t->started(t->context, &w);
    if (memory->total > 0) train_memory_write(&w, memory);
    return run_started_end(run, &w);
}

/* Model and rows, and what they make known. */
static Status prepare(const Training *t, TrainMemory *memory) {
    TRY(t->open(t->context, memory));
    t->tell(t->context, memory);
    return trainer_check_memory(*t->recipe, memory);
}

/* A finished run needs neither model nor rows; a directory that is taken is refused before they are loaded. */
static Status go(const Training *t, Run **run, bool *finished) {
    TrainMemory memory = {0};
    if (!t->dry_run) TRY(run_check(*t->recipe, t->resume, finished));
    if (!*finished) TRY(prepare(t, &memory));
    if (t->dry_run) return ST_OK;
    TRY(run_open(*t->recipe, t->resume, run));
    *finished = run_finished(*run); /* perhaps by another process in the meantime */
    if (*finished) return t->recall(t->context, *run);
    TRY(write_started(t, &memory, *run));
    return t->train(t->context, *run);
}

Status training_run(const Training *training) {
    Run *run = NULL;
    bool finished = false;
    Status status = go(training, &run, &finished);
    training->release(training->context);
    if (run && !finished) status = report_run(run, status);
    run_close(run);
    return status;
}
