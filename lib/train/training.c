/* SPDX-License-Identifier: Apache-2.0 */
/* The steps around training that all kinds of training share. */
#include "lib/train/lengthen_plan.h"

#include <string.h>

#include "lib/base/log.h"
#include "lib/base/memory.h"
#include "lib/recipe/rejected.h"
#include "lib/run/report.h"
#include "lib/train/trained_model.h"

typedef struct Training {
    const TrainingKind *kind;
    void *context;
    const Recipe *const *recipe;
    const TrainingOptions *options;
    TrainMemory memory;
    Run *run;
    bool finished; /* by an earlier process */
    Lengthening longer;
} Training;

/* Without a `lora` section every weight is trained, which is often a mistake; `lora: null` states the intention. */
static void warn_of_rate(const Recipe *recipe) {
    static const double high = 1e-4;
    if (!recipe->model_path || recipe->has_lora || recipe->lora_declined || recipe->train_learning_rate <= high ||
        strcmp(recipe->train_optimizer, "sgd") == 0)
        return;
    log_message(
        LOG_WARNING,
        "train.learning_rate %g is high where every weight is trained, as without a 'lora' section: 1e-5 to 5e-5 is usual there; was an adapter "
        "meant? lora.rank=16 lora.alpha=32 makes one, lora=null confirms that every weight is meant",
        recipe->train_learning_rate);
}

/* Shown on the terminal before there is a run, then in the run's log. */
static void tell_rejected(const Recipe *recipe, Run *run) {
    Str text = {0};
    if (rejected_describe(recipe->rejected, &text)) {
        if (run)
            run_note(run, "%s: rejected.jsonl", str_text(&text));
        else
            log_message(LOG_WARNING, "%s", str_text(&text));
    }
    str_release(&text);
}

static void tell_length(const Training *t) {
    const Lengthening *longer = &t->longer;
    Str text = {0};
    lengthen_describe(longer, &text);
    if (longer->differs.len > 0)
        log_message(LOG_WARNING, "%s", str_text(&text));
    else if (t->options->say)
        t->options->say("%s", str_text(&text));
    str_release(&text);
}

/* Checks what the output already contains. A dry run also shows the plan of a finished run. */
static Status training_check_output(Training *t) {
    const TrainingOptions *options = t->options;
    if (options->dry_run && !(options->resume && (*t->recipe)->output)) return ST_OK;
    TRY(run_check(*t->recipe, training_run_mode(options), &t->finished));
    if (options->resume) TRY(lengthen_read(&t->longer, *t->recipe));
    if (t->longer.before || options->dry_run) t->finished = false;
    return ST_OK;
}

/* Opens model and rows, and plans memory and length. */
static Status training_prepare(Training *t) {
    warn_of_rate(*t->recipe);
    TRY(t->kind->open(t->context, &t->memory));
    if (t->longer.before) TRY(lengthen_plan(&t->longer, *t->recipe, t->kind, t->context));
    if (t->longer.idle) return ST_OK;
    t->kind->report_plan(t->context, &t->memory);
    if (t->longer.before) tell_length(t);
    tell_rejected(*t->recipe, NULL);
    return trainer_check_memory(*t->recipe, &t->memory);
}

/* Writes started.json unless the run has one: a resumed run keeps its first. */
static Status write_started(const Training *t) {
    JsonWriter w;
    if (!run_started_begin(t->run, *t->recipe, t->options->command, &w)) return ST_OK;
    t->kind->started(t->context, &w);
    if (t->memory.total > 0) train_memory_write(&w, &t->memory);
    return run_started_end(t->run, &w);
}

/* A finished run needs neither model nor rows; an occupied directory is refused before they are loaded. */
static Status training_execute(Training *t) {
    TRY(training_check_output(t));
    if (!t->finished) TRY(training_prepare(t));
    if (t->options->dry_run) return ST_OK;
    TRY(run_open_longer(*t->recipe, training_run_mode(t->options), t->longer.before && !t->longer.idle ? &t->longer : NULL, &t->run));
    training_report_backup(t->options, t->run);
    run_resume_by(t->run, t->options->resume_command);
    t->finished = run_finished(t->run); /* perhaps by another process meanwhile */
    if (t->finished) return t->kind->load_result(t->context, t->run);
    TRY(write_started(t));
    TRY(rejected_write((*t->recipe)->rejected, run_dir(t->run)));
    tell_rejected(*t->recipe, t->run);
    if (t->kind->has_template) TRY(trained_template_keep(*t->recipe, t->run));
    return t->kind->train(t->context, t->run);
}

void training_report_backup(const TrainingOptions *options, const Run *run) {
    const char *kept = run_backup_path(run);
    if (kept && options->say) options->say("the run that was in '%s' is kept in '%s'", run_dir(run), kept);
}

Status training_run(const TrainingKind *kind, void *context, const Recipe *const *recipe, const TrainingOptions *options) {
    Training training = {.kind = kind, .context = context, .recipe = recipe, .options = options};
    Status status = training_execute(&training);
    kind->release(context);
    status = memory_check(status);
    if (status != ST_OK) memory_clear_failure(); /* the failure is reported; the files below record it and must be written */
    if (training.run && status != ST_OK) status = run_mark_stopped(training.run, status);
    if (training.run && !(training.finished && run_reported(training.run))) status = report_run(training.run, kind->reader, status);
    run_close(training.run);
    lengthen_release(&training.longer);
    return status;
}
