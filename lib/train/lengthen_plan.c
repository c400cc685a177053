/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that are made longer: the checkpoint to continue from, and whether the result equals that of a run with the new length from the start. */
#include "lib/train/lengthen_plan.h"

#include "lib/run/checkpoint.h"
#include "lib/train/train.h"

#include <stdio.h>

/* ---- the run so far ---- */

static Status read_count(const char *path, const char *name, int64_t *count) {
    json_t *json;
    TRY(json_read_file(path, &json));
    Status status = json_get_int(json, path, name, count);
    json_decref(json);
    return status;
}

/* A run that stopped early would have stopped there with any length. */
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

/* Steps of an environment come in batches, so a run may have done a few more than its length. */
static Status check_length(Lengthening *longer, const Recipe *recipe) {
    const RunLength *was = &longer->was, *is = &longer->is;
    longer->idle = longer->finished && is->steps >= was->steps && is->steps <= longer->done;
    if (is->steps >= longer->done || is->steps >= was->steps) return ST_OK;
    status_fail(ST_CONFIG, "cannot resume '%s': it has done %lld step%s, more than the %lld asked for", recipe->output, (long long)longer->done,
                plural(longer->done), (long long)is->steps);
    return status_hint(ST_CONFIG, "a run cannot become shorter: ask for more steps, choose another output, or begin anew with --force");
}

static Status check_checkpoint(const Lengthening *longer, const Recipe *recipe, int64_t newest) {
    if (!longer->finished || longer->idle || newest >= 0) return ST_OK;
    status_fail(ST_INPUT, "cannot make the run in '%s' longer: it has no checkpoint in '%s/checkpoints' to continue from", recipe->output,
                recipe->output);
    return status_hint(ST_INPUT, "train.save_last: true saves one at the end; begin anew with --force%s",
                       recipe->has_lora ? ", or train the adapter further in another output: model.adapter" : "");
}

/* ---- the checkpoint to continue from ---- */

/* The number of first steps, up to `most`, that have the same learning rate with both lengths. */
static int64_t agreeing(const ScheduleConfig *was, const ScheduleConfig *is, int64_t most) {
    int64_t k = 0;
    while (k < most && schedule_factor(was, k) == schedule_factor(is, k)) k++;
    return k;
}

static void say_schedule(Lengthening *longer, const Recipe *recipe, const ScheduleConfig *was, const ScheduleConfig *is, int64_t k) {
    bool share = recipe->train_warmup_steps > 0 && recipe->train_warmup_steps < 1;
    str_printf(
        &longer->differs,
        "the learning rate of 'train.lr_scheduler: %s'%s over %lld step%s differs from that over %lld: in step %lld it was %.3g and would have been %.3g",
        recipe->train_lr_scheduler, share ? " with a warmup that is a fraction of all steps" : "", (long long)was->total_steps,
        plural(was->total_steps), (long long)is->total_steps, (long long)k + 1, recipe->train_learning_rate * schedule_factor(was, k),
        recipe->train_learning_rate * schedule_factor(is, k));
}

/* The newest checkpoint that a run of the new length would also have; otherwise the newest one. */
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
