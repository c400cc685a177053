/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a run: an interrupted and resumed run produces the same bytes as an uninterrupted one. */
#include "lib/train/training_loop.h"

#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/run/run_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* A copy of a complete step in memory, for runs with step_may_fail. */
typedef struct Copy {
    unsigned char *bytes; /* all tensors, concatenated; NULL: no copy was made */
    int64_t counts[STATE_NUMBERS];
    double reals[STATE_NUMBERS];
    int64_t step;
    uint64_t metrics_bytes;
    double made, seconds; /* when the copy was made, and how long that took */
} Copy;

typedef struct Loop {
    const TrainingKind *kind;
    void *context;
    const TrainingConfig *config;
    const Recipe *recipe;
    Run *run;
    RunSteps steps;
    Arena *arena;
    StateList states;
    RankCheckpoint checkpoint;
    bool agreed; /* all ranks end here */
    Copy copy;
    Metrics pending;          /* of the newest step */
    double step_seconds;      /* that it took */
    bool evaluating;          /* step number step - 1 has learned, and its evaluation is due */
    bool torn;                /* a failed step has left the listed state half updated */
    int64_t step, saved_step; /* steps learned; step of the newest checkpoint, -1 = none */
    double began, seconds_before;
    int64_t began_count; /* of RunSteps.done, when this process began */
} Loop;

static int64_t count_of(const Loop *loop) { return loop->steps.done ? *loop->steps.done : loop->step; }

static bool loop_done(const Loop *loop) { return count_of(loop) >= loop->steps.total; }

static double elapsed(const Loop *loop) { return loop->seconds_before + (clock_seconds() - loop->began); }

/* ---- checkpoints ---- */

static bool evaluation_due(const Loop *loop) {
    const TrainingKind *kind = loop->kind;
    return kind->evaluate && (!kind->evaluates || kind->evaluates(loop->context, loop->step));
}

static json_t *state_to_json(const Loop *loop) {
    json_t *json =
        json_pack("{s:I, s:f, s:o}", "step", (json_int_t)loop->step, "seconds", elapsed(loop), "inputs", run_inputs_to_json(loop->steps.inputs));
    if (!json) return NULL;
    state_numbers_write(&loop->states, json);
    if (loop->kind->evaluates_apart)
        json_object_set_new(json, "evaluation_due", json_boolean(loop->evaluating));
    else if (loop->evaluating)
        json_object_set_new(json, "judging", metrics_to_json(&loop->pending));
    return json;
}

static Status state_from_json(Loop *loop, const json_t *json) {
    static const char where[] = "state.json";
    TRY(run_check_inputs(loop->run, loop->steps.inputs, json));
    TRY(json_get_int(json, where, "step", &loop->step));
    TRY(json_get_double(json, where, "seconds", &loop->seconds_before));
    TRY(state_numbers_read(&loop->states, json));
    if (loop->kind->evaluates_apart) {
        TRY(json_get_bool(json, where, "evaluation_due", &loop->evaluating));
        loop->evaluating &= evaluation_due(loop); /* a run that was to end with this step and is longer now may not evaluate after it */
        return ST_OK;
    }
    const json_t *pending = json_object_get(json, "judging");
    loop->evaluating = pending != NULL;
    return metrics_from_json(pending, loop->arena, &loop->pending);
}

static Status save_checkpoint(Loop *loop) {
    if (loop->saved_step == loop->step) return ST_OK;
    json_t *json = state_to_json(loop);
    if (!json) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = rank_checkpoint_save(&loop->checkpoint, loop->step, json, loop->recipe->train_keep_checkpoints);
    json_decref(json);
    if (status == ST_OK) loop->saved_step = loop->step;
    return status;
}

static Status load_checkpoint(Loop *loop) {
    int64_t step;
    json_t *json;
    TRY(rank_checkpoint_load(&loop->checkpoint, &step, &json));
    if (step < 0) return ST_OK;
    Status status = state_from_json(loop, json);
    json_decref(json);
    loop->saved_step = step;
    if (status == ST_OK && loop->kind->resumed) status = loop->kind->resumed(loop->context, loop->step);
    if (status == ST_OK) run_log(loop->run, "resumed from the checkpoint of step %lld", (long long)step);
    return status;
}

static Status loop_interrupted(Loop *loop) {
    TRY(save_checkpoint(loop));
    return run_interrupted(loop->run, loop->step);
}

static Status check_metrics(const Loop *loop, const Metrics *metrics) {
    for (size_t i = 0; i < metrics->n; i++)
        if (isinf(metrics->items[i].value)) {
            status_fail(ST_NUMERIC, "'%s' is infinite in step %lld", metrics->items[i].name, (long long)loop->step);
            return status_hint(ST_NUMERIC, "lower the step size (train.learning_rate, rl.alpha)");
        }
    return ST_OK;
}

static Status check_kept(const Loop *loop) {
    const CheckpointItem *item = state_nonfinite(&loop->states);
    if (!item) return ST_OK;
    status_fail(ST_NUMERIC, "'%s' holds a NaN or an infinity after step %lld", item->name, (long long)loop->step);
    return status_hint(ST_NUMERIC, "lower the step size (train.learning_rate, rl.alpha)");
}

/* ---- a complete step in memory ---- */

/* A copy of up to so many bytes is made after every step; a larger one when the last copy took at most this fraction of the time since */
enum { COPY_SMALL = 1 << 20, COPY_SHARE = 50 };

static Status copy_tensors(const StateList *states, unsigned char *bytes, bool back) {
    for (size_t i = 0; i < states->n; i++) {
        Tensor *tensor = states->items[i].tensor;
        TRY((back ? tensor_upload(tensor, 0, tensor_count(tensor), bytes) : tensor_download(tensor, 0, tensor_count(tensor), bytes)));
        bytes += tensor_bytes(tensor);
    }
    return ST_OK;
}

/* Without the copy, the run falls back to its older checkpoints. */
static void make_copy(Loop *loop) {
    const StateList *states = &loop->states;
    Copy *copy = &loop->copy;
    struct stat info;
    double began = clock_seconds();
    size_t size = 1;
    if (!loop->steps.step_may_fail) return;
    bool writes = run_writes(loop->run), metrics = writes && file_stat(loop->run->metrics_path, &info) == 0;
    if (writes && !metrics && errno != ENOENT) return; /* taken back, it would be cut to nothing */
    for (size_t i = 0; i < states->n; i++) size += tensor_bytes(states->items[i].tensor);
    if (size > COPY_SMALL && copy->bytes && began - copy->made < COPY_SHARE * copy->seconds) return;
    if (!copy->bytes && !(copy->bytes = malloc(size))) return;
    if (copy_tensors(states, copy->bytes, false) != ST_OK) {
        free(copy->bytes);
        copy->bytes = NULL;
        return;
    }
    for (size_t i = 0; i < states->n_counts; i++) copy->counts[i] = *states->counts[i].value;
    for (size_t i = 0; i < states->n_reals; i++) copy->reals[i] = *states->reals[i].value;
    copy->step = loop->step;
    copy->metrics_bytes = metrics ? (uint64_t)info.st_size : 0;
    copy->made = clock_seconds();
    copy->seconds = copy->made - began;
}

static Status take_copy(Loop *loop) {
    const StateList *states = &loop->states;
    const Copy *copy = &loop->copy;
    TRY(copy_tensors(states, copy->bytes, true));
    for (size_t i = 0; i < states->n_counts; i++) *states->counts[i].value = copy->counts[i];
    for (size_t i = 0; i < states->n_reals; i++) *states->reals[i].value = copy->reals[i];
    loop->step = copy->step;
    return run_cut_metrics(loop->run, copy->metrics_bytes);
}

/* ---- failures ---- */

/* The listed state is unchanged since before the failed step, or is restored from the copy. Numbers that are not finite are never saved, and nothing
 * is saved when nothing was learned. */
static Status save_whole_step(void *context) {
    Loop *loop = context;
    if (loop->torn && loop->steps.step_may_fail && loop->copy.bytes &&
        loop->copy.step > loop->saved_step) { /* there is no copy before the end of the first step */
        TRY(take_copy(loop));
        loop->torn = false;
    }
    bool partial = loop->states.divided && comm_size(loop->checkpoint.comm) < comm_size(loop->config->comm); /* other ranks have the rest */
    if (loop->torn || loop->step == 0 || partial) return ST_OK;
    TRY(check_kept(loop));
    return save_checkpoint(loop);
}

static Status loop_failed(Loop *loop, Status status) {
    if (!loop->agreed && !(loop->kind->agrees && status == ST_INTERRUPTED)) {
        (void)comm_fail(loop->config->comm, status); /* an interruption, too: others then leave in the same call */
        loop->checkpoint.comm = NULL;                /* other ranks may not answer any more */
    }
    if (status == ST_INTERRUPTED && (!loop->torn || !loop->steps.step_may_fail)) return loop_interrupted(loop);
    return status == ST_NUMERIC ? status : run_failed(loop->run, status, save_whole_step, loop, &loop->saved_step);
}

/* ---- metrics and progress ---- */

static double per_second(const Loop *loop) {
    return loop->kind->rate ? metric_get(&loop->pending, loop->kind->rate) / fmax(loop->step_seconds, 1e-9) : 0;
}

static Status write_line(const Loop *loop, const Metrics *metrics, const char *prefix) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "step", loop->step);
    metrics_write(&w, metrics, prefix);
    if (loop->kind->rate_kept) {
        char name[64];
        snprintf(name, sizeof name, "%s_per_second", loop->kind->rate);
        jw_double(&w, name, per_second(loop));
    }
    jw_double(&w, "seconds", elapsed(loop));
    jw_end_object(&w);
    Status status = run_metric(loop->run, str_text(&w.text));
    jw_release(&w);
    return status;
}

static void loop_report(const Loop *loop, const Metrics *metrics, bool evaluation) {
    const TrainingConfig *config = loop->config;
    int64_t count = count_of(loop), total = loop->steps.total;
    double each = (clock_seconds() - loop->began) / fmax((double)(count - loop->began_count), 1);
    if (!config->on_progress) return;
    config->on_progress(config->context, &(Progress){.step = count,
                                                     .total = total,
                                                     .metrics = metrics,
                                                     .evaluation = evaluation,
                                                     .shown = loop->kind->shown,
                                                     .rate = loop->kind->rate,
                                                     .per_second = per_second(loop),
                                                     .seconds_left = each * fmax((double)(total - count), 0),
                                                     .memory = loop->kind->memory_shown ? memory_peak() : 0});
}

/* What an evaluation has added to the metrics of its step. */
static void loop_report_evaluated(const Loop *loop) {
    double value = loop->kind->evaluated ? metric_get(&loop->pending, loop->kind->evaluated) : (double)NAN;
    Metrics evaluation = {.n = 0};
    if (isnan(value)) return;
    metric_set(&evaluation, loop->kind->shown->metric, value);
    loop_report(loop, &evaluation, true);
}

static Status record_step(const Loop *loop) {
    if (loop->step % loop->recipe->train_log_every == 0 || loop_done(loop)) {
        TRY(write_line(loop, &loop->pending, ""));
        if (loop->kind->recorded) loop->kind->recorded(loop->context, loop->step, &loop->pending);
    }
    loop_report(loop, &loop->pending, false);
    if (!loop->kind->evaluates_apart) loop_report_evaluated(loop);
    return ST_OK;
}

/* ---- steps ---- */

static bool save_due(const Loop *loop) {
    int64_t every = loop->recipe->train_save_every;
    return every > 0 && loop->step > 0 && loop->step % every == 0;
}

/* Never saves a NaN: every resume would fail. */
static Status save_finite(Loop *loop) {
    TRY(check_kept(loop));
    return save_checkpoint(loop);
}

/* Saves the checkpoint from which a longer run continues as if this one had not ended: before the evaluation, since the last step may have an extra
 * one. A full disk loses only this checkpoint. */
static Status save_end(Loop *loop) {
    if (!loop_done(loop)) return ST_OK;
    if (save_due(loop)) return save_finite(loop);
    if (!loop->recipe->train_save_last || check_kept(loop) != ST_OK) return ST_OK;
    if (save_checkpoint(loop) != ST_OK) run_warn(loop->run, "%s; without it the run cannot be made longer", status_text());
    return ST_OK;
}

static Status loop_learn(Loop *loop) {
    const TrainingKind *kind = loop->kind;
    Metrics *metrics = &loop->pending;
    double began = clock_seconds();
    *metrics = (Metrics){.n = 0};
    if (kind->gather) TRY(kind->gather(loop->context, loop->step, metrics));
    TRY(memory_check(ST_OK));
    loop->torn = true;
    TRY(kind->step(loop->context, loop->step, metrics));
    TRY(memory_check(ST_OK)); /* an allocation that failed may have left the step incomplete */
    loop->torn = false;
    loop->step++;
    loop->evaluating = evaluation_due(loop);
    loop->step_seconds = clock_seconds() - began;
    TRY(check_metrics(loop, metrics));
    return kind->evaluates_apart ? record_step(loop) : ST_OK;
}

static Status loop_evaluate(Loop *loop) {
    const bool apart = loop->kind->evaluates_apart;
    double began = clock_seconds();
    TRY(save_end(loop));
    Metrics metrics = {.n = 0};
    if (!apart) metrics = loop->pending; /* a copy: after a failure the pending metrics are unchanged */
    TRY(loop->kind->evaluate(loop->context, loop->step - 1, &metrics));
    TRY(memory_check(ST_OK));
    loop->evaluating = false;
    if (apart) {
        TRY(write_line(loop, &metrics, "eval_"));
        loop_report(loop, &metrics, true);
        return ST_OK;
    }
    loop->pending = metrics;
    loop->step_seconds += clock_seconds() - began;
    return check_metrics(loop, &metrics);
}

/* Also the rest of a step that was interrupted between learning and evaluation. */
static Status one_step(Loop *loop) {
    if (!loop->evaluating) TRY(loop_learn(loop));
    if (loop->evaluating) TRY(loop_evaluate(loop));
    if (!loop->kind->evaluates_apart) TRY(record_step(loop));
    make_copy(loop);
    return ST_OK;
}

/* ST_INTERRUPTED if one of the ranks was interrupted. */
static Status loop_vote(Loop *loop) {
    Comm *comm = loop->config->comm;
    bool mine = interrupt_requested(), ends = mine;
    if (comm_size(comm) > 1) {
        bool *all = malloc((size_t)comm_size(comm));
        Status status =
            all ? comm_gather_small(comm, "vote of a step", &mine, sizeof mine, all) : status_fail(ST_RESOURCE, "out of memory for a vote");
        for (int r = 0; status == ST_OK && r < comm_size(comm); r++) ends |= all[r];
        free(all);
        TRY(status);
    }
    loop->agreed = ends;
    return ends ? status_fail(ST_INTERRUPTED, "interrupted") : ST_OK;
}

static bool loop_ended(const Loop *loop) { return loop_done(loop) || (loop->kind->stopped && loop->kind->stopped(loop->context)); }

static Status loop_steps(Loop *loop) {
    while (loop->evaluating || !loop_ended(loop)) {
        if (!loop->kind->agrees) TRY(loop_vote(loop));
        TRY(one_step(loop));
        if (save_due(loop)) TRY(save_finite(loop));
    }
    return save_end(loop); /* for runs without an evaluation; others have saved it already */
}

static Status loop_finish(Loop *loop) {
    const TrainingKind *kind = loop->kind;
    TRY(check_kept(loop));
    Status status = run_writes(loop->run) ? kind->finish(loop->context, loop->run) : ST_OK;
    if (status == ST_NUMERIC) /* train.save_dtype cannot represent a weight: --resume with another type may */
        return run_failed(loop->run, status, save_whole_step, loop, &loop->saved_step);
    TRY(status);
    json_t *summary =
        json_pack("{s:I, s:f, s:I}", "steps", (json_int_t)loop->step, "seconds", elapsed(loop), "peak_rss_bytes", (json_int_t)memory_peak());
    json_t *more = summary ? kind->summary(loop->context, loop->step) : NULL;
    if (more && json_object_update(summary, more) == 0)
        status = run_mark_finished(loop->run, summary);
    else
        status = status_fail(ST_RESOURCE, "out of memory for the run's summary");
    json_decref(more);
    json_decref(summary);
    return status;
}

/* Lists the state, and reads the checkpoint. */
static Status loop_begin(Loop *loop) {
    TRY(loop->kind->begin(loop->context, loop->run, &loop->steps));
    loop->checkpoint = (RankCheckpoint){.comm = loop->config->comm, .shards = loop->steps.shards, .run = loop->run};
    loop->states = (StateList){.arena = loop->arena, .checkpoint = &loop->checkpoint};
    loop->kind->list_state(loop->context, &loop->states);
    TRY(loop->states.status);
    loop->checkpoint.items = loop->states.items;
    loop->checkpoint.n = loop->states.n;
    return load_checkpoint(loop);
}

static Status loop_run(Loop *loop) {
    TRY(loop_begin(loop));
    loop->began = clock_seconds();
    loop->began_count = count_of(loop);
    Status status = loop_steps(loop);
    if (status == ST_OK) status = loop_finish(loop);
    return status == ST_OK ? ST_OK : loop_failed(loop, status);
}

Status training_loop(const TrainingKind *kind, void *context, const Recipe *recipe, const TrainingConfig *config, Run *run) {
    Loop loop = {.kind = kind, .context = context, .config = config, .recipe = recipe, .run = run, .arena = arena_new(0), .saved_step = -1};
    Status status = loop.arena ? loop_run(&loop) : status_fail(ST_RESOURCE, "out of memory for the run");
    free(loop.copy.bytes);
    arena_free(loop.arena);
    return status;
}
