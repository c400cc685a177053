/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a training on rows, and plans its steps and memory. */
#include "lib/train/trainer_parts.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/train/rank_inputs.h"
#include "lib/train/train.h"
#include "lib/train/trained_model.h"

void trainer_input(Trainer *trainer, const char *key, uint64_t fingerprint) {
    int i = 0;
    while (i < TASK_MAX_INPUTS && trainer->inputs[i].key) i++;
    ASSERT(i < TASK_MAX_INPUTS, "more than %d inputs", TASK_MAX_INPUTS);
    trainer->inputs[i] = (TaskInput){key, fingerprint};
}

/* ---- opening ---- */

static Status total_of(Trainer *trainer, const Recipe *recipe, int64_t *steps) {
    *steps = recipe->train_max_steps;
    return *steps < 0 ? data_plan_total(&trainer->order, recipe->train_epochs, steps) : ST_OK;
}

/* How lanes and ranks divide a step. */
static Status plan_division(Trainer *trainer) {
    const Recipe *recipe = trainer->recipe;
    const int64_t batches = recipe->train_gradient_accumulation_steps;
    const ShardKind shard = recipe_shard(recipe);
    bool rounds = shard >= SHARDS_GRADIENTS && !recipe->has_lora; /* the gradients of an adapter are small */
    trainer->lanes = lanes_of(rounds ? "leaves" : recipe->parallel_lanes, batches, recipe->has_lora, trainer->ranks);
    if (trainer->objective->whole_batches) trainer->lanes.cuts = 1;
    trainer->division = recipe_division(recipe, trainer->comm);
    trainer->division.n_lanes = trainer->lanes.n;
    trainer->division.fewer = trainer->lanes.leaves;
    trainer->division.n_rounds = rounds ? batches : 0;
    trainer->division.divided = shard >= SHARDS_OPTIMIZER;
    trainer->division.n_models = 1;
    trainer->division.params[0] = &trainer->model->params;
    return accumulator_divide(&trainer->division);
}

static Status plan_steps(Trainer *trainer) {
    const Recipe *recipe = trainer->recipe;
    DataOrder order = {.dataset = trainer->train, .seed = (uint64_t)recipe->seed, .shuffle = recipe->data_shuffle};
    data_plan_init(&trainer->order, &order, recipe->train_batch_size, recipe->train_batch_tokens, recipe->train_gradient_accumulation_steps);
    trainer->loaded = -1;
    trainer->batch_ends = malloc((size_t)recipe->train_gradient_accumulation_steps * sizeof *trainer->batch_ends);
    if (!trainer->batch_ends) return status_fail(ST_RESOURCE, "out of memory for the batches of a step");
    TRY(plan_division(trainer));
    TRY(total_of(trainer, recipe, &trainer->total_steps));
    TRY(recipe_check_steps(recipe, trainer->total_steps));
    return trainer->objective->check ? trainer->objective->check(trainer) : ST_OK;
}

static Status plan_trainer_memory(Trainer *trainer, TrainMemory *memory) {
    MemoryTask task = {.recipe = trainer->recipe,
                       .model = trainer->model,
                       .tape = trainer->tape,
                       .lanes = accumulator_lane_bytes(&trainer->division, 0),
                       .messages = accumulator_message_bytes(&trainer->division, 0),
                       .comm = trainer->comm,
                       .context = trainer,
                       .beside = &trainer->beside,
                       .largest = rows_largest,
                       .split = trainer->objective->whole_batches ? NULL : rows_split};
    TRY(train_memory_plan(&task, trainer->config->options.resume ? trainer->recipe->output : NULL, memory));
    memory->before = trainer->before;
    memory->total = MAX(memory->total, memory->before);
    return rows_lend(trainer) ? ST_OK : params_own_grads(&trainer->model->params, trainer->model->arena);
}

/* Without a number of lanes, more ranks than lanes have a lane each. */
static void say_lanes(const Trainer *trainer, RunPlan *plan) {
    const Recipe *recipe = trainer->recipe;
    Lanes alone = lanes_of(recipe->parallel_lanes, recipe->train_gradient_accumulation_steps, recipe->has_lora, 1);
    char bytes[32];
    if (trainer->division.n_rounds || alone.n >= trainer->lanes.n) return;
    AccumulatorConfig division = trainer->division;
    division.comm = NULL;
    run_plan_say(plan, "bits depend on the number of ranks; parallel.lanes=%lld makes them independent, for %s more in one process",
                 (long long)trainer->lanes.n, format_bytes((double)accumulator_lane_bytes(&division, 0), bytes));
}

/* Warns if ranks have nothing to do in steps of the first epoch. */
static Status say_idle(Trainer *trainer, RunPlan *plan, int64_t steps) {
    int64_t idle = 0;
    char text[256];
    for (int64_t step = 0; trainer->ranks > 1 && step < steps; step++) {
        PlanStep at;
        TRY(data_plan_step(&trainer->order, step, &at));
        const int64_t leaves = at.n_batches * trainer->lanes.cuts;
        idle += accumulator_idle(&trainer->division, leaves, lanes_in(&trainer->lanes, leaves));
    }
    if (idle == 0) return ST_OK;
    snprintf(
        text, sizeof text,
        "ranks have nothing to do in %lld of %lld rank-steps: give each at least one micro-batch (train.gradient_accumulation_steps) and one lane "
        "(parallel.lanes)",
        (long long)idle, (long long)(steps * trainer->ranks));
    run_plan_warn(plan, text);
    return ST_OK;
}

/* What is known of the steps, after what the objective said of the rows. */
static Status say_steps(Trainer *trainer, RunPlan *plan) {
    PlanStep first;
    size_t n;
    char number[32];
    TRY(data_plan_step(&trainer->order, 0, &first));
    TRY(data_plan_largest(&trainer->order, trainer->total_steps, &trainer->examples, &n));
    int64_t tokens = dataset_tokens(trainer->train, trainer->examples, n), steps = trainer->total_steps;
    run_plan_count(plan, PLAN_BOTH, "steps", steps);
    run_plan_real(plan, PLAN_RECORD, "steps_per_epoch", (double)first.epoch_steps);
    run_plan_count(plan, PLAN_RECORD, "largest_step_tokens", tokens);
    run_plan_count(plan, PLAN_RECORD, "lanes", trainer->lanes.n);
    run_plan_count(plan, PLAN_PRINT, "largest_batch_tokens", tokens);
    run_plan_model(plan, trainer->recipe, trainer->model, "");
    say_lanes(trainer, plan);
    run_plan_ranks(plan, trainer->recipe, trainer->comm);
    TRY(say_idle(trainer, plan, MIN(steps, first.epoch_steps)));
    run_plan_say(plan, "plan: %lld step%s, %s an epoch, largest batch %lld token%s", (long long)steps, plural(steps),
                 format_number((double)first.epoch_steps, 4, number), (long long)tokens, plural(tokens));
    return ST_OK;
}

Status trainer_open(void *context, RunPlan *plan) {
    Trainer *trainer = context;
    const Objective *objective = trainer->objective;
    if (objective->before) TRY(objective->before(trainer));
    const ModelUse use = {.scores = objective->scores, .divides = true, .comm = trainer->comm};
    TRY(trained_model_open_as(trainer->recipe, trainer->config->runtime, &use, &trainer->model));
    trainer->tape = tape_new(trainer->model->device, trainer->model->compute, 0);
    if (!trainer->tape) return status_fail(ST_RESOURCE, "out of memory for the tape");
    trainer_input(trainer, "model.path", model_fingerprint(trainer->model));
    TRY(objective->open(trainer, plan));
    TRY(rank_inputs_agree(trainer->comm, trainer->recipe, trainer->inputs));
    TRY(plan_steps(trainer));
    TRY(plan_trainer_memory(trainer, &plan->memory));
    return say_steps(trainer, plan);
}

/* ---- length and end ---- */

Status trainer_length(void *context, const Recipe *recipe, RunLength *length) {
    TRY(total_of(context, recipe, &length->steps));
    length->schedule_steps = length->steps;
    length->schedule_rate = 1;
    return ST_OK;
}

void trainer_close(Trainer *trainer) {
    data_plan_release(&trainer->order);
    free(trainer->rows);
    free(trainer->batch_ends);
    free(trainer->examples);
    tape_free(trainer->tape);
    if (trainer->model) model_free(trainer->model);
}
