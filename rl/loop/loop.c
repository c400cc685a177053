/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of runs that generate their own data: an interrupted and resumed run produces the same bytes as an uninterrupted one. */
#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "rl/loop/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "rl/loop/rl_doctor.h"
#include "lib/run/run_parts.h"

/* ---- the listed state ---- */

void state_tensor(StateList *states, const char *name, Tensor *tensor) {
    if (states->status != ST_OK) return;
    if (states->n == states->cap) {
        size_t cap = states->cap ? 2 * states->cap : 32;
        CheckpointItem *items = arena_alloc(states->arena, cap * sizeof *items);
        if (!items) {
            states->status = ST_RESOURCE;
            return;
        }
        if (states->n) memcpy(items, states->items, states->n * sizeof *items);
        states->items = items;
        states->cap = cap;
    }
    const char *kept = arena_strdup(states->arena, name);
    if (!tensor || !kept)
        states->status = ST_RESOURCE;
    else
        states->items[states->n++] = (CheckpointItem){.name = kept, .tensor = tensor};
}

static void state_array(StateList *states, const char *name, DType dtype, void *values, int64_t n) {
    if (n > 0) state_tensor(states, name, tensor_of_host(states->arena, dtype, n, values));
}

void state_f64(StateList *states, const char *name, double *values, int64_t n) { state_array(states, name, DT_F64, values, n); }

void state_f32(StateList *states, const char *name, float *values, int64_t n) { state_array(states, name, DT_F32, values, n); }

void state_bytes(StateList *states, const char *name, void *bytes, size_t n) {
    ASSERT(n % 4 == 0, "%zu bytes of '%s' are no multiple of 4", n, name);
    state_array(states, name, DT_I32, bytes, (int64_t)(n / 4));
}

void state_count(StateList *states, const char *name, int64_t *value) {
    ASSERT(states->n_counts < STATE_NUMBERS, "more than %d counts", STATE_NUMBERS);
    states->counts[states->n_counts++] = (StateCount){name, value};
}

void state_real(StateList *states, const char *name, double *value) {
    ASSERT(states->n_reals < STATE_NUMBERS, "more than %d numbers", STATE_NUMBERS);
    states->reals[states->n_reals++] = (StateReal){name, value};
}

void state_weights(StateList *states, const Params *params) {
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained) state_tensor(states, params->items[i].name, params->items[i].tensor);
}

void state_optimizer(StateList *states, const Params *params) {
    for (size_t i = 0; i < params->n; i++)
        for (int s = 0; s < OPTIMIZER_MAX_STATES; s++) {
            const Param *param = &params->items[i];
            const char *name = param->state[s] ? arena_printf(states->arena, "state%d/%s", s, param->name) : NULL;
            if (name)
                state_tensor(states, name, param->state[s]);
            else if (param->state[s])
                states->status = ST_RESOURCE;
        }
}

/* ---- checkpoints ---- */

/* A copy of a complete step in memory, for tasks with step_may_fail. */
typedef struct Copy {
    unsigned char *bytes; /* all tensors, concatenated; NULL: no copy was made */
    int64_t counts[STATE_NUMBERS];
    double reals[STATE_NUMBERS];
    int64_t step;
    uint64_t metrics_bytes;
    double made, seconds; /* when the copy was made, and how long that took */
} Copy;

typedef struct Loop {
    const TrainingConfig *config;
    const Recipe *recipe;
    Run *run;
    const LoopTask *task;
    Arena *arena;
    StateList states;
    RankCheckpoint checkpoint;
    bool agreed; /* all ranks end here */
    Copy copy;
    Metrics pending;          /* metrics of a step that has learned but is not evaluated yet */
    bool evaluating;          /* `pending` is set: it belongs to step number step - 1 */
    bool torn;                /* a failed step has left the listed state half updated */
    int64_t step, saved_step; /* steps learned; step of the newest checkpoint, -1 = none */
    double began, seconds_before;
    int64_t began_count; /* of the task's counter, when this process began */
    RlDoctor *doctor;
} Loop;

static int64_t count_of(const Loop *loop) { return loop->task->counter ? *loop->task->counter : loop->step; }

static bool loop_done(const Loop *loop) { return count_of(loop) >= loop->task->total; }

static double elapsed(const Loop *loop) { return loop->seconds_before + (clock_seconds() - loop->began); }

static json_t *state_to_json(const Loop *loop) {
    const StateList *states = &loop->states;
    json_t *json =
        json_pack("{s:I, s:f, s:o}", "step", (json_int_t)loop->step, "seconds", elapsed(loop), "inputs", run_inputs_to_json(loop->task->inputs));
    if (!json) return NULL;
    for (size_t i = 0; i < states->n_counts; i++) json_object_set_new(json, states->counts[i].name, json_integer(*states->counts[i].value));
    for (size_t i = 0; i < states->n_reals; i++) json_object_set_new(json, states->reals[i].name, json_real_or_null(*states->reals[i].value));
    if (loop->evaluating) json_object_set_new(json, "judging", metrics_to_json(&loop->pending));
    return json;
}

static Status state_from_json(Loop *loop, const json_t *json) {
    static const char where[] = "state.json";
    const StateList *states = &loop->states;
    TRY(run_check_inputs(loop->run, loop->task->inputs, json));
    TRY(json_get_int(json, where, "step", &loop->step));
    TRY(json_get_double(json, where, "seconds", &loop->seconds_before));
    for (size_t i = 0; i < states->n_counts; i++) TRY(json_get_int(json, where, states->counts[i].name, states->counts[i].value));
    for (size_t i = 0; i < states->n_reals; i++) {
        *states->reals[i].value = (double)NAN; /* null means NaN */
        TRY(json_get_double(json, where, states->reals[i].name, states->reals[i].value));
    }
    const json_t *pending = json_object_get(json, "judging");
    loop->evaluating = pending != NULL;
    return metrics_from_json(pending, loop->arena, &loop->pending);
}

static Status save_checkpoint(Loop *loop) {
    if (loop->saved_step == loop->step) return ST_OK;
    json_t *json = state_to_json(loop);
    if (!json) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    loop->checkpoint.items = loop->states.items;
    loop->checkpoint.n = loop->states.n;
    Status status = rank_checkpoint_save(&loop->checkpoint, loop->step, json, loop->recipe->train_keep_checkpoints);
    json_decref(json);
    if (status == ST_OK) loop->saved_step = loop->step;
    return status;
}

static Status load_checkpoint(Loop *loop) {
    int64_t step;
    json_t *json;
    loop->checkpoint.items = loop->states.items;
    loop->checkpoint.n = loop->states.n;
    TRY(rank_checkpoint_load(&loop->checkpoint, &step, &json));
    if (step < 0) return ST_OK;
    Status status = state_from_json(loop, json);
    json_decref(json);
    loop->saved_step = step;
    if (status == ST_OK && loop->task->resumed) status = loop->task->resumed(loop->task->context);
    if (status == ST_OK) run_log(loop->run, "resumed from the checkpoint of step %lld", (long long)step);
    return status;
}

static Status interrupted(Loop *loop) {
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
    for (size_t i = 0; i < loop->states.n; i++) {
        const CheckpointItem *item = &loop->states.items[i];
        if (item->tensor->dtype == DT_I32 || tensor_find_nonfinite(item->tensor) < 0) continue;
        status_fail(ST_NUMERIC, "'%s' holds a NaN or an infinity after step %lld", item->name, (long long)loop->step);
        return status_hint(ST_NUMERIC, "lower the step size (train.learning_rate, rl.alpha)");
    }
    return ST_OK;
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
    if (!loop->task->step_may_fail) return;
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

/* ---- failures of the task ---- */

/* The listed state is unchanged since before the failed step, or is restored from the copy. Numbers that are not finite are never saved, and nothing
 * is saved when nothing was learned. */
static Status save_whole_step(void *context) {
    Loop *loop = context;
    if (loop->torn && loop->task->step_may_fail && loop->copy.bytes &&
        loop->copy.step > loop->saved_step) { /* there is no copy before the end of the first step */
        TRY(take_copy(loop));
        loop->torn = false;
    }
    if (loop->torn || loop->step == 0) return ST_OK;
    TRY(check_kept(loop));
    return save_checkpoint(loop);
}

static Status failed(Loop *loop, Status status) {
    if (!loop->agreed) (void)comm_fail(loop->config->comm, status); /* an interruption, too: others then leave in the same call */
    loop->checkpoint.comm = NULL;                                   /* other ranks may not answer any more */
    if (status == ST_INTERRUPTED && (!loop->torn || !loop->task->step_may_fail)) return interrupted(loop);
    return status == ST_NUMERIC ? status : run_failed(loop->run, status, save_whole_step, loop, &loop->saved_step);
}

/* ---- the doctor ---- */

static void warn(const Loop *loop, const char *when, const RlWarning *finding) {
    run_warn(loop->run, "%s%s; %s", when, finding->text, finding->hint);
}

/* Findings in this line of metrics: reported once, and rarely again. */
static void look_at(const Loop *loop, const Metrics *metrics) {
    RlWarning finding;
    for (size_t i = 0; i < metrics->n; i++)
        if (rl_doctor_add(loop->doctor, loop->step, metrics->items[i].name, metrics->items[i].value, &finding)) warn(loop, "", &finding);
}

/* A resumed run gives the doctor the lines before the checkpoint; their findings were reported then. */
static Status look_back(const Loop *loop) {
    const char *path = run_path(loop->run, "metrics.jsonl");
    Lines lines;
    Slice line;
    if (!path || loop->step == 0 || !file_exists(path)) return path ? ST_OK : ST_RESOURCE;
    TRY(lines_open(&lines, path));
    while (lines_next(&lines, &line)) {
        json_t *json = NULL;
        if (json_read_text(line.data, line.len, path, &json) == ST_OK) rl_doctor_read(loop->doctor, json);
        json_decref(json);
    }
    return lines_close(&lines);
}

/* Findings that are still true at the end, and the number of steps without a signal. */
static json_t *last_words(const Loop *loop) {
    json_t *all = json_array();
    RlWarning finding;
    bool silent = rl_doctor_no_signal(loop->doctor, &finding);
    if (silent) {
        warn(loop, "at the end: ", &finding);
        json_array_append_new(all, json_string(finding.text));
    }
    for (size_t i = 0; rl_doctor_warning(loop->doctor, i, &finding); i++) {
        bool same =
            silent && (strcmp(finding.rule, "zero_variance") == 0 || strcmp(finding.rule, "untrained") == 0); /* reported by rl_doctor_no_signal */
        if (!finding.holds) continue;
        if (finding.first_step < loop->step && !same) warn(loop, "at the end: ", &finding);
        json_array_append_new(all, json_string(finding.text));
    }
    return all;
}

/* ---- steps ---- */

static double per_second(const Loop *loop, const Metrics *metrics, double seconds) {
    return loop->task->rate ? metric_get(metrics, loop->task->rate) / fmax(seconds, 1e-9) : 0;
}

static Status write_metrics(const Loop *loop, const Metrics *metrics, double seconds) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "step", loop->step);
    metrics_write(&w, metrics, "");
    if (loop->task->rate_kept) {
        char name[64];
        snprintf(name, sizeof name, "%s_per_second", loop->task->rate);
        jw_double(&w, name, per_second(loop, metrics, seconds));
    }
    jw_double(&w, "seconds", elapsed(loop));
    jw_end_object(&w);
    Status status = run_metric(loop->run, str_text(&w.text));
    jw_release(&w);
    return status;
}

static void loop_report(const Loop *loop, const Metrics *metrics, double seconds) {
    const LoopTask *task = loop->task;
    const TrainingConfig *config = loop->config;
    int64_t count = count_of(loop);
    double each = (clock_seconds() - loop->began) / fmax((double)(count - loop->began_count), 1);
    Progress progress = {.step = count,
                         .total = task->total,
                         .metrics = metrics,
                         .shown = task->shown,
                         .rate = task->rate,
                         .per_second = per_second(loop, metrics, seconds),
                         .seconds_left = each * fmax((double)(task->total - count), 0)};
    if (!config->on_progress) return;
    config->on_progress(config->context, &progress);
    double evaluated = task->evaluated ? metric_get(metrics, task->evaluated) : (double)NAN;
    if (isnan(evaluated)) return;
    Metrics evaluation = {.n = 0};
    metric_set(&evaluation, task->shown->metric, evaluated);
    progress.metrics = &evaluation;
    progress.evaluation = true;
    config->on_progress(config->context, &progress);
}

static Status loop_learn(Loop *loop) {
    const LoopTask *task = loop->task;
    Metrics *metrics = &loop->pending;
    *metrics = (Metrics){.n = 0};
    if (task->gather) TRY(task->gather(task->context, loop->step, metrics));
    TRY(memory_check(ST_OK));
    loop->torn = true;
    TRY(task->step(task->context, loop->step, metrics));
    TRY(memory_check(ST_OK)); /* an allocation that failed may have left the step incomplete */
    loop->torn = false;
    loop->step++;
    loop->evaluating = task->evaluate != NULL;
    return check_metrics(loop, metrics);
}

static Status loop_evaluate(Loop *loop) {
    const LoopTask *task = loop->task;
    Metrics metrics = loop->pending; /* a copy: after a failure the pending metrics are unchanged */
    TRY(task->evaluate(task->context, loop->step - 1, &metrics));
    TRY(memory_check(ST_OK));
    loop->pending = metrics;
    loop->evaluating = false;
    return check_metrics(loop, &metrics);
}

/* Saves the checkpoint from which a longer run continues as if this one had not ended. For tasks with `evaluate` it is saved before the evaluation,
 * since the last step may have an extra one. */
static void save_end(Loop *loop) {
    if (!loop->recipe->train_save_last || !loop_done(loop) || check_kept(loop) != ST_OK) return;
    if (save_checkpoint(loop) != ST_OK) run_warn(loop->run, "%s; without it the run cannot be made longer", status_text());
}

/* The rest of a step that was interrupted between learning and evaluation. */
static Status one_step(Loop *loop) {
    const Metrics *metrics = &loop->pending;
    double began = clock_seconds();
    if (!loop->evaluating) TRY(loop_learn(loop));
    if (loop->evaluating) {
        save_end(loop);
        TRY(loop_evaluate(loop));
    }
    double seconds = clock_seconds() - began;
    if (loop->step % loop->recipe->train_log_every == 0 || loop_done(loop)) {
        TRY(write_metrics(loop, metrics, seconds));
        look_at(loop, metrics);
    }
    loop_report(loop, metrics, seconds);
    make_copy(loop);
    return ST_OK;
}

/* Whether one of the ranks was interrupted. */
static Status interrupt_agreed(const Loop *loop, bool *ends) {
    Comm *comm = loop->config->comm;
    bool mine = interrupt_requested();
    *ends = mine;
    if (comm_size(comm) == 1) return ST_OK;
    bool *all = malloc((size_t)comm_size(comm));
    Status status = all ? comm_gather_small(comm, "vote of a step", &mine, sizeof mine, all) : status_fail(ST_RESOURCE, "out of memory for a vote");
    for (int r = 0; status == ST_OK && r < comm_size(comm); r++) *ends |= all[r];
    free(all);
    return status;
}

static Status steps(Loop *loop) {
    int64_t every = loop->recipe->train_save_every;
    while (loop->evaluating || !loop_done(loop)) {
        bool ends;
        TRY(interrupt_agreed(loop, &ends));
        loop->agreed = ends;
        if (ends) return status_fail(ST_INTERRUPTED, "interrupted");
        TRY(one_step(loop));
        if (every > 0 && loop->step % every == 0) {
            TRY(check_kept(loop)); /* never save a checkpoint with NaN: every resume would fail */
            TRY(save_checkpoint(loop));
        }
    }
    save_end(loop); /* for tasks without `evaluate`; others have saved it already */
    return ST_OK;
}

static Status loop_finish(Loop *loop) {
    TRY(check_kept(loop));
    Status status = run_writes(loop->run) ? loop->task->finish(loop->task->context, loop->run) : ST_OK;
    if (status == ST_NUMERIC) /* train.save_dtype cannot represent a weight: --resume with another type may */
        return run_failed(loop->run, status, save_whole_step, loop, &loop->saved_step);
    TRY(status);
    json_t *summary = json_pack("{s:I, s:f, s:I, s:o}", "steps", (json_int_t)loop->step, "seconds", elapsed(loop), "peak_rss_bytes",
                                (json_int_t)memory_peak(), "warnings", last_words(loop));
    json_t *more = summary && loop->task->summary ? loop->task->summary(loop->task->context) : NULL;
    if (more) json_object_update(summary, more);
    json_decref(more);
    status = summary ? run_mark_finished(loop->run, summary) : status_fail(ST_RESOURCE, "out of memory for the run's summary");
    json_decref(summary);
    return status;
}

static Status run_all(Loop *loop) {
    loop->task->list_state(loop->task->context, &loop->states);
    TRY(loop->states.status);
    TRY(load_checkpoint(loop));
    TRY(look_back(loop));
    loop->began = clock_seconds();
    loop->began_count = count_of(loop);
    Status status = steps(loop);
    if (status == ST_OK) status = loop_finish(loop);
    return status == ST_OK ? ST_OK : failed(loop, status);
}

Status loop_run(const TrainingConfig *config, const Recipe *recipe, Run *run, const LoopTask *task) {
    Loop loop = {.config = config, .recipe = recipe, .run = run, .task = task, .arena = arena_new(0), .saved_step = -1, .doctor = rl_doctor_new()};
    loop.checkpoint = (RankCheckpoint){.comm = config->comm, .run = run};
    loop.states.arena = loop.arena;
    Status status = loop.arena && loop.doctor ? run_all(&loop) : status_fail(ST_RESOURCE, "out of memory for the run");
    rl_doctor_free(loop.doctor);
    free(loop.copy.bytes);
    arena_free(loop.arena);
    return status;
}
