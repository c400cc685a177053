/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a run, around its steps. */
#include "lib/train/lengthen_plan.h"

#include <math.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/memory.h"
#include "lib/recipe/rejected.h"
#include "lib/run/report.h"
#include "lib/train/trained_model.h"
#include "lib/train/training_loop.h"

typedef struct Training {
    const TrainingKind *kind;
    void *context;
    const Recipe *const *recipe;
    const TrainingConfig *config;
    RunOptions options;
    RunPlan plan;
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

/* Tells all ranks whether the run was finished before. */
static Status agree_on_end(Training *t) {
    bool finished = t->finished;
    if (comm_size(t->config->comm) == 1) return ST_OK;
    TRY(comm_broadcast(t->config->comm, COMM_CONTROL, "end of the run", 0, &finished, sizeof finished));
    t->finished = finished;
    return ST_OK;
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
    else if (t->options.say)
        t->options.say("%s", str_text(&text));
    str_release(&text);
}

/* Checks what the output already contains. A dry run also shows the plan of a finished run. */
static Status training_check_output(Training *t) {
    const RunOptions *options = &t->options;
    if (options->absent) return ST_OK;
    if (options->dry_run && !(options->resume && (*t->recipe)->output)) return ST_OK;
    TRY(run_check(*t->recipe, run_mode(options), &t->finished));
    if (options->resume) TRY(lengthen_read(&t->longer, *t->recipe));
    if (t->longer.before || options->dry_run) t->finished = false;
    return ST_OK;
}

/* Ranks wait until the first one has written the base that all of them open. */
static Status prepare_base(const Training *t) {
    char written = 0;
    if (t->options.dry_run || (*t->recipe)->model_quantize == MODEL_QUANTIZE_NONE) return ST_OK;
    if (!t->options.absent) TRY(trained_base_prepare(*t->recipe));
    return comm_broadcast(t->config->comm, COMM_CONTROL, "quantised base", 0, &written, sizeof written);
}

/* Opens model and rows, and plans memory and length. */
static Status training_prepare(Training *t) {
    RunPlan *plan = &t->plan;
    warn_of_rate(*t->recipe);
    TRY(prepare_base(t));
    TRY(t->kind->open(t->context, plan));
    TRY(plan->status);
    if (t->longer.before) TRY(lengthen_plan(&t->longer, *t->recipe, t->kind, t->context));
    if (t->longer.idle) return ST_OK;
    if (t->config->on_plan) t->config->on_plan(t->config->context, plan);
    if (t->longer.before) tell_length(t);
    tell_rejected(*t->recipe, NULL);
    return train_memory_check(*t->recipe, &plan->memory);
}

/* Writes the plan to log.txt and started.json; a resumed run keeps its first started.json. */
static Status record_plan(const Training *t) {
    const RunPlan *plan = &t->plan;
    JsonWriter w;
    for (size_t i = 0; i < plan->n_lines; i++) run_note(t->run, "%s", plan->lines[i].text);
    if (!run_started_begin(t->run, *t->recipe, t->options.command, &w)) return ST_OK;
    run_plan_write(plan, PLAN_RECORD, &w);
    return run_started_end(t->run, &w);
}

/* The files that are known before the first step. */
static Status write_start(const Training *t) {
    TRY(record_plan(t));
    TRY(rejected_write((*t->recipe)->rejected, run_dir(t->run)));
    tell_rejected(*t->recipe, t->run);
    return t->kind->has_template ? trained_template_keep(*t->recipe, t->run) : ST_OK;
}

/* ---- the result ---- */

static void expect_result(const TrainingKind *kind, TrainResult *result) {
    *result = (TrainResult){.numbers.n = 0};
    for (const char *const *name = kind->results; *name; name++) metric_set(&result->numbers, *name, (double)NAN);
}

/* The result of a finished run. ST_INPUT: it lacks the number of steps. */
static Status read_result(const Training *t, TrainResult *result) {
    json_t *summary;
    int64_t steps;
    TRY(run_summary(t->run, &summary));
    Status status = json_get_int(summary, "finished.json", t->kind->results[0], &steps);
    for (const char *const *name = t->kind->results; *name && status == ST_OK; name++) {
        const json_t *value = json_object_get(summary, *name);
        if (json_is_integer(value))
            metric_count(&result->numbers, *name, json_integer_value(value));
        else
            metric_set(&result->numbers, *name, json_real_of(summary, *name));
    }
    result->early_stopped = json_is_true(json_object_get(summary, "early_stopped"));
    json_decref(summary);
    return status;
}

static Status refuse_ranks(const Training *t) {
    const int ranks = comm_size(t->config->comm);
    if (ranks == 1 || t->kind->over_ranks) return ST_OK;
    status_fail(ST_CONFIG, "this kind of training runs in one process, not in %d", ranks);
    return status_hint(ST_CONFIG, "start it without mpirun or srun; --threads sets the threads of the process");
}

/* A finished run needs neither model nor rows; an occupied directory is refused before they are loaded. */
static Status training_execute(Training *t, TrainResult *result) {
    TRY(refuse_ranks(t));
    TRY(training_check_output(t));
    TRY(agree_on_end(t));
    if (!t->finished) TRY(training_prepare(t));
    if (t->options.dry_run) return ST_OK;
    TRY(run_open_longer(*t->recipe, run_mode(&t->options), t->longer.before && !t->longer.idle ? &t->longer : NULL, &t->run));
    run_say_backup(t->run, &t->options);
    run_resume_by(t->run, t->options.resume_command);
    t->finished = run_finished(t->run); /* perhaps by another process meanwhile */
    TRY(agree_on_end(t));
    result->already_finished = t->finished;
    if (t->finished) return run_finished(t->run) ? read_result(t, result) : ST_OK;
    if (run_writes(t->run)) TRY(write_start(t));
    TRY(training_loop(t->kind, t->context, *t->recipe, t->config, t->run));
    return read_result(t, result);
}

Status training_run(const TrainingKind *kind, void *context, const Recipe *const *recipe, const TrainingConfig *config, TrainResult *result) {
    Training training = {.kind = kind, .context = context, .recipe = recipe, .config = config, .options = config->options};
    training.options.absent |= comm_rank(config->comm) > 0;
    expect_result(kind, result);
    training.plan.arena = arena_new(0);
    Status status = training.plan.arena ? training_execute(&training, result) : status_fail(ST_RESOURCE, "out of memory for the run");
    status = memory_check(status);
    if (status != ST_OK) comm_fail(config->comm, status); /* before the memory of messages is freed */
    kind->release(context);
    status = memory_check(status);
    if (status != ST_OK) memory_clear_failure(); /* the failure is reported; the files below record it and must be written */
    if (training.run && status != ST_OK) status = run_mark_stopped(training.run, status);
    if (training.run && run_writes(training.run) && !(training.finished && run_reported(training.run)))
        status = report_run(training.run, kind->reader, status);
    run_close(training.run);
    lengthen_release(&training.longer);
    arena_free(training.plan.arena);
    return status;
}
