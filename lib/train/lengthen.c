/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that are made longer: what they go on from, whether the result is that of a run which was so long from the start, and the record of it. */
#include "lib/train/lengthen.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char record_name[] = "extended.json";

/* ---- what there is ---- */

Status lengthen_look(Lengthening *longer, const Recipe *recipe) {
    const char *path = path_join(recipe->arena, recipe->output, "recipe.yaml");
    if (!path) return recipe->output ? ST_RESOURCE : ST_OK;
    if (!file_exists(path)) return ST_OK;
    TRY(recipe_read(path, NULL, 0, &longer->before));
    recipe_as_before(longer->before);
    if (recipe_other_length(recipe, longer->before)) return ST_OK;
    recipe_free(longer->before);
    longer->before = NULL;
    return ST_OK;
}

void lengthen_release(Lengthening *longer) {
    if (longer->before) recipe_free(longer->before);
    str_release(&longer->differs);
}

static Status read_count(const char *path, const char *name, int64_t *count) {
    json_t *json;
    TRY(json_read_file(path, &json));
    Status status = json_get_int(json, path, name, count);
    json_decref(json);
    return status;
}

/* A run that ended of itself would have ended there with any length. */
static Status check_early(const Recipe *recipe, const char *finished) {
    json_t *json;
    TRY(json_read_file(finished, &json));
    bool early = json_is_true(json_object_get(json, "early_stopped"));
    json_decref(json);
    if (!early) return ST_OK;
    status_fail(ST_CONFIG, "the run in '%s' stopped early after evaluations without improvement: more steps change nothing", recipe->output);
    return status_hint(ST_CONFIG, "another train.early_stopping makes another run: choose another output, or --force");
}

static Status find_done(Lengthening *longer, const Recipe *recipe, int64_t newest) {
    Arena *arena = recipe->arena;
    const char *finished = path_join(arena, recipe->output, "finished.json");
    if (!finished) return ST_RESOURCE;
    longer->finished = file_exists(finished);
    if (longer->finished) {
        TRY(check_early(recipe, finished));
        return read_count(finished, longer->counter ? longer->counter : "steps", &longer->done);
    }
    if (newest < 0) return ST_OK;
    const char *state = arena_printf(arena, "%s/checkpoints/step-%lld/state.json", recipe->output, (long long)newest);
    return state ? read_count(state, longer->counter ? longer->counter : "step", &longer->done) : ST_RESOURCE;
}

/* Steps of an environment come in batches, so a run may have done some more than it was to. */
static Status check_length(Lengthening *longer, const Recipe *recipe) {
    const RunLength *was = &longer->was, *is = &longer->is;
    longer->idle = longer->finished && is->steps >= was->steps && is->steps <= longer->done;
    if (is->steps >= longer->done || is->steps >= was->steps) return ST_OK;
    status_fail(ST_CONFIG, "cannot resume '%s': it has done %lld step%s, and is to have %lld", recipe->output, (long long)longer->done,
                plural(longer->done), (long long)is->steps);
    return status_hint(ST_CONFIG, "a run gets no shorter than it is: name more steps, choose another output, or begin anew with --force");
}

static Status check_checkpoint(const Lengthening *longer, const Recipe *recipe, int64_t newest) {
    if (!longer->finished || longer->idle || newest >= 0) return ST_OK;
    status_fail(ST_INPUT, "cannot make the run in '%s' longer: it has no checkpoint in '%s/checkpoints', from which it would go on", recipe->output,
                recipe->output);
    return status_hint(ST_INPUT, "train.save_last: true keeps that of the end; begin anew with --force%s",
                       recipe->has_lora ? ", or train the adapter further in another output: model.adapter" : "");
}

/* ---- what it goes on from ---- */

/* Steps of the schedule from the first on, `most` at most, that have the same learning rate with both lengths. */
static int64_t agreeing(const ScheduleConfig *was, const ScheduleConfig *is, int64_t most) {
    int64_t k = 0;
    while (k < most && schedule_factor(was, k) == schedule_factor(is, k)) k++;
    return k;
}

static void say_schedule(Lengthening *longer, const Recipe *recipe, const ScheduleConfig *was, const ScheduleConfig *is, int64_t k) {
    bool share = recipe->train_warmup_steps > 0 && recipe->train_warmup_steps < 1;
    str_printf(
        &longer->differs,
        "the learning rate of 'train.lr_scheduler: %s'%s over %lld step%s is not that over %lld: in step %lld it was %.3g and would have been %.3g",
        recipe->train_lr_scheduler, share ? " with a warmup that is a share of all steps" : "", (long long)was->total_steps, plural(was->total_steps),
        (long long)is->total_steps, (long long)k + 1, recipe->train_learning_rate * schedule_factor(was, k),
        recipe->train_learning_rate * schedule_factor(is, k));
}

/* The newest checkpoint that a run of the new length would have had too; else the newest. */
static Status lengthen_choose(Lengthening *longer, const Recipe *recipe, const char *checkpoints, int64_t newest) {
    longer->from = newest;
    if (newest <= 0 || longer->is.schedule_steps == 0) return ST_OK;
    ScheduleConfig was = recipe_schedule_over(longer->before, longer->was.schedule_steps),
                   is = recipe_schedule_over(recipe, longer->is.schedule_steps);
    int64_t rate = longer->is.schedule_rate, agree = agreeing(&was, &is, newest * rate), earlier = -1;
    if (agree == newest * rate) return ST_OK;
    if (agree >= rate) TRY(checkpoint_find_up_to(checkpoints, agree / rate, &earlier));
    if (earlier > 0)
        longer->from = earlier;
    else
        say_schedule(longer, recipe, &was, &is, agree);
    return ST_OK;
}

Status lengthen_plan(Lengthening *longer, const Recipe *recipe, const TrainingKind *kind, void *context) {
    const char *checkpoints = path_join(recipe->arena, recipe->output, "checkpoints");
    int64_t newest;
    if (!checkpoints) return ST_RESOURCE;
    longer->counter = kind->counter;
    TRY(kind->length(context, longer->before, &longer->was));
    TRY(kind->length(context, recipe, &longer->is));
    TRY(checkpoint_find(checkpoints, &newest));
    TRY(find_done(longer, recipe, newest));
    TRY(check_length(longer, recipe));
    TRY(check_checkpoint(longer, recipe, newest));
    TRY(lengthen_choose(longer, recipe, checkpoints, newest));
    return longer->from >= 0 && !longer->idle && kind->lengthen ? kind->lengthen(context, longer->before, &longer->differs) : ST_OK;
}

void lengthen_describe(const Lengthening *longer, Str *text) {
    const char *what = longer->counter ? " of the environment" : "";
    long long steps = (long long)longer->is.steps;
    if (longer->from < 0) {
        str_printf(text, "the run has no checkpoint yet and begins at step 0, with %lld step%s%s", steps, plural(steps), what);
        return;
    }
    str_printf(text, "the run was to have %lld step%s%s and goes on from the checkpoint of step %lld until it has %lld", (long long)longer->was.steps,
               plural(longer->was.steps), what, (long long)longer->from, steps);
    if (longer->differs.len == 0)
        str_append(text, "; the result is that of a run which had been so long from the start, to the same bytes");
    else
        str_printf(text, ", which is not what a run would give that had been so long from the start: %s", str_text(&longer->differs));
}

/* ---- the record ---- */

static json_t *read_record(const Run *run) {
    const char *path = run_path(run, record_name);
    json_t *json = NULL;
    if (path && file_exists(path) && json_read_file(path, &json) == ST_OK && json_is_array(json_object_get(json, "extensions"))) return json;
    json_decref(json);
    return json_pack("{s:[]}", "extensions");
}

bool lengthen_knows(const Run *run, uint64_t recipe) {
    json_t *json = read_record(run);
    const json_t *list = json_object_get(json, "extensions");
    bool known = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(list, i), "recipe"));
        known |= text && strtoull(text, NULL, 16) == recipe;
    }
    json_decref(json);
    return known;
}

static json_t *entry_of(const Lengthening *longer, const char *text) {
    char recipe[20];
    snprintf(recipe, sizeof recipe, "%016llx", (unsigned long long)recipe_fingerprint(longer->before));
    json_t *entry = json_pack("{s:s, s:I, s:I, s:b, s:s}", "recipe", recipe, "from", (json_int_t)longer->from, "before",
                              (json_int_t)longer->was.steps, "same", (int)(longer->differs.len == 0), "text", text);
    if (entry) json_object_set_new(entry, longer->counter ? longer->counter : "steps", json_integer(longer->is.steps));
    return entry;
}

static Status write_record(const Lengthening *longer, const Run *run, const char *text) {
    json_t *json = read_record(run), *entry = entry_of(longer, text);
    char *written = NULL;
    Str line = {0};
    if (json && entry && json_array_append(json_object_get(json, "extensions"), entry) == 0) written = json_text(json, JSON_INDENT(2));
    if (written) str_printf(&line, "%s\n", written);
    Status status = written ? file_write_all(run_path(run, record_name), str_text(&line), line.len)
                            : status_fail(ST_RESOURCE, "out of memory for '%s'", record_name);
    free(written);
    json_decref(json);
    json_decref(entry);
    str_release(&line);
    return status;
}

static Status forget_end(const Run *run) {
    const char *path = run_path(run, "finished.json");
    if (!path) return ST_RESOURCE;
    if (unlink(path) != 0) return errno == ENOENT ? ST_OK : status_errno(errno, "cannot remove '%s'", path);
    return dir_sync(run_dir(run));
}

/* In this order a process that is killed in between leaves a run that the same command goes on with: as one of the old length, or of the new. */
Status lengthen_apply(const Lengthening *longer, Run *run, const Recipe *recipe) {
    Str text = {0};
    lengthen_describe(longer, &text);
    Status status = write_record(longer, run, str_text(&text));
    if (status == ST_OK && longer->from >= 0) status = checkpoint_remove_after(run, longer->from);
    if (status == ST_OK) status = forget_end(run);
    if (status == ST_OK) status = run_write_recipe(run, recipe);
    if (status == ST_OK) run_note(run, "%s", str_text(&text));
    str_release(&text);
    return status;
}
