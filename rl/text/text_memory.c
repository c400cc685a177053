/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the memory of a run on text before its first step: runs the largest pass on the meta device and adds the memory of sampling.
 */
#include <stdlib.h>

#include "lib/train/train.h"
#include "rl/text/text_run.h"

/* A batch of rollouts in which every prompt and completion has the maximum length. */
typedef struct Largest {
    TextRl *rl;
    int64_t pass_tokens; /* from the recipe, or the default */
    int64_t completion;  /* tokens */
    PromptRow prompt;
    Experience experience;
    double *zeros;   /* one for each requested row */
    size_t sampling; /* bytes of sampling and scoring in addition to training */
} Largest;

static Status largest_new(const TextRl *rl, Largest *largest) {
    const Recipe *r = rl->recipe;
    int64_t prompt = rl->turns.env ? 1 : rl->prompts.longest, completion = rl->turns.env ? r->data_max_length - 1 : r->generate_max_new_tokens;
    Experience *e = &largest->experience;
    *e = (Experience){.n_groups = r->rl_prompts_per_step, .group_size = r->rl_num_generations, .n = r->rl_prompts_per_step * r->rl_num_generations};
    e->n_tokens = e->n * completion + largest->pass_tokens;
    largest->completion = completion;
    e->prompts = malloc((size_t)e->n_groups * sizeof *e->prompts);
    e->begin = malloc(((size_t)e->n + 1) * sizeof *e->begin);
    e->ended = calloc((size_t)e->n, sizeof *e->ended);
    e->ids = calloc((size_t)e->n_tokens, sizeof *e->ids);
    largest->zeros = calloc((size_t)(e->n_tokens + e->n), sizeof *largest->zeros);
    largest->prompt.ids = (Ids){calloc((size_t)prompt, sizeof(int32_t)), (size_t)prompt, (size_t)prompt};
    if (!e->prompts || !e->begin || !e->ended || !e->ids || !largest->zeros || !largest->prompt.ids.data)
        return status_fail(ST_RESOURCE, "out of memory for the plan of a step");
    for (int64_t g = 0; g < e->n_groups; g++) e->prompts[g] = &largest->prompt;
    return ST_OK;
}

static void largest_release(Largest *largest) {
    Experience *e = &largest->experience;
    free(e->prompts);
    free(e->begin);
    free(e->ended);
    free(e->ids);
    free(largest->zeros);
    ids_release(&largest->prompt.ids);
}

/* Number of sequences of a pass. If more are left, the pass has the maximum number of tokens, since shorter sequences would fill it: its last
 * sequence is lengthened. */
static int64_t text_memory_fill(const TextPass *pass, Largest *largest) {
    Experience *e = &largest->experience;
    for (int64_t i = 0; i <= e->n; i++) e->begin[i] = i * largest->completion;
    int64_t n = text_pass_fit(pass, e, 0, e->n), room = pass->max_tokens - text_pass_rows(e, 0, n);
    for (int64_t i = n; n < e->n && room > 0 && i <= e->n; i++) e->begin[i] += room;
    return n;
}

/* A pass without gradients, of the reference or of the old policy: with checkpointing it uses other parts of the tape's memory than a pass with a
 * backward part. */
static Status text_memory_forward_only(const TextRl *rl, TextPass *pass, const Experience *e, int64_t n, double *zeros) {
    if (!rl->reference && !rl->value && text_steps_per_rollout(rl) == 1) return ST_OK;
    tape_record(pass->tape, false);
    Status status = text_pass_forward(pass, rl->model, e, 0, n, &(TextResults){.logprobs = zeros});
    tape_record(pass->tape, true);
    return status;
}

static size_t at_once_in_evaluation(const TextRl *rl, const Largest *largest) { return MIN((size_t)largest->experience.n, rl->eval.n); }

/* Sampling memory of a rollout, or of an evaluation, which has as many prompts at once as a rollout has completions and no shared prompts. */
static size_t sampling_bytes(const TextRl *rl, const Largest *largest) {
    GenerateConfig sampling = text_sampling(rl, 0);
    if (rl->turns.env) sampling.n = 1; /* episodes do not share prompts */
    int64_t longest = rl->turns.env ? rl->recipe->data_max_length - sampling.max_new_tokens : (int64_t)largest->prompt.ids.n;
    size_t rollout = generate_bytes(rl->model, (size_t)(largest->experience.n / sampling.n), (size_t)MAX(longest, 1), &sampling);
    if (rl->teacher_sampling)
        rollout += generate_bytes(rl->teacher, (size_t)(largest->experience.n / sampling.n), (size_t)MAX(longest, 1), &sampling);
    if (rl->eval.n == 0) return rollout;
    sampling.n = 1;
    return MAX(rollout, generate_bytes(rl->model, at_once_in_evaluation(rl, largest), (size_t)MAX(rl->eval.longest, 1), &sampling));
}

/* Reward models keep the activations of their largest pass, like training. */
static Status judging_bytes(const TextRl *rl, const Largest *largest, size_t *bytes) {
    const Experience *e = &largest->experience;
    size_t evaluation = 0;
    *bytes = 0;
    if (!rl->rewards) return ST_OK;
    TRY(rewards_bytes(rl->rewards, &(RewardShape){largest->prompt.ids.n, (size_t)largest->completion, (size_t)e->n, (size_t)e->group_size}, bytes));
    if (rl->eval.n > 0)
        TRY(rewards_bytes(rl->rewards, &(RewardShape){(size_t)rl->eval.longest, (size_t)largest->completion, at_once_in_evaluation(rl, largest), 1},
                          &evaluation));
    *bytes = MAX(*bytes, evaluation);
    return ST_OK;
}

/* The pass of an algorithm that is `taught`. */
static Status taught_pass(const TextRl *rl, TextPass *pass, const Experience *e, int64_t n, const double *zeros) {
    Divergences d;
    DivergenceArgs args = rl->taught;
    args.upstream = zeros;
    Status status = text_pass_taught(pass, rl->model, rl->teacher, e, 0, n, &args, &d);
    if (status == ST_OK) status = tape_backward(pass->tape);
    text_pass_release(pass);
    return status;
}

/* Forward and backward of one pass: of the policy with its value head, then of a separate value model. */
static Status passes(Largest *largest, Tape *meta) {
    const TextRl *rl = largest->rl;
    const Experience *e = &largest->experience;
    double *zeros = largest->zeros;
    bool own = rl->value && rl->value->own, head = rl->value && !own;
    TextPass pass = {.tape = meta, .temperature = rl->pass.temperature, .max_tokens = rl->pass.max_tokens, .value_head = rl->pass.value_head};
    int64_t n = text_memory_fill(&pass, largest);
    TextResults results = {.logprobs = zeros,
                           .entropies = zeros,
                           .values = head ? zeros : NULL,
                           .final_values = head ? zeros : NULL,
                           .entropies_trained = rl->loss.ent_coef != 0};
    if (rl->algorithm->taught) return taught_pass(rl, &pass, e, n, zeros);
    Status status = text_memory_forward_only(rl, &pass, e, n, zeros);
    if (status == ST_OK) status = text_pass_forward(&pass, rl->model, e, 0, n, &results);
    if (status == ST_OK)
        status = text_pass_backward(
            &pass, &(TextGradients){.logprobs = zeros, .entropies = rl->loss.ent_coef != 0 ? zeros : NULL, .values = head ? zeros : NULL});
    if (status == ST_OK && own) status = text_pass_forward(&pass, rl->value->model, e, 0, n, &(TextResults){.values = zeros, .final_values = zeros});
    if (status == ST_OK && own) status = text_pass_backward(&pass, &(TextGradients){.values = zeros});
    text_pass_release(&pass);
    return status;
}

/* Code and tables that sampling and rewards touch on first use, measured on tiny models. */
enum { SAMPLING_FIRST_TIME = 3 << 19 };

/* Includes entropies and values, so that the scratch memory of all kernels is counted. */
static Status text_memory_step(void *context, Tape *meta) {
    Largest *largest = context;
    const AccumulatorConfig *division = &largest->rl->update.division;
    const TapeWatch *watch = NULL;
    size_t judging;
    Arena *arena = arena_new(0);
    Status status = arena ? accumulator_plan_begin(division, arena, &watch) : ST_RESOURCE;
    tape_watch(meta, watch);
    if (status == ST_OK) status = passes(largest, meta);
    tape_watch(meta, NULL);
    accumulator_plan_end(division);
    arena_free(arena);
    TRY(status);
    TRY(judging_bytes(largest->rl, largest, &judging));
    const Model *teacher = largest->rl->teacher;
    largest->sampling = SAMPLING_FIRST_TIME + sampling_bytes(largest->rl, largest) + judging + (teacher ? model_memory(teacher, false).packed : 0);
    return ST_OK;
}

static void text_memory_split(void *context, int64_t most_tokens) {
    Largest *largest = context;
    largest->rl->pass.max_tokens = most_tokens > 0 ? MIN(most_tokens, largest->pass_tokens) : largest->pass_tokens;
}

/* The most passes of an optimiser step. A pass has at least as many sequences as fit of the longest ones, each with a prompt of its own; with
 * train.max_memory perhaps one. */
static int64_t most_passes(const TextRl *rl, const Largest *largest) {
    const Recipe *r = rl->recipe;
    int64_t groups = (r->rl_prompts_per_step + r->rl_num_minibatches - 1) / r->rl_num_minibatches, least = rl->algorithm->paired ? 2 : 1;
    int64_t fit = r->train_max_memory ? 0 : largest->pass_tokens / ((int64_t)largest->prompt.ids.n + largest->completion);
    int64_t sequences = groups * (rl->algorithm->paired ? 2 : r->rl_num_generations), each = MAX(fit - fit % least, least);
    return (sequences + each - 1) / each;
}

static Status plan_division(TextRl *rl, int64_t n_passes) {
    const bool own = rl->value && rl->value->own;
    ShardKind shard;
    TRY(text_divides(rl, &shard));
    rl->update.division = recipe_division(rl->recipe, rl->comm);
    rl->update.division.fewer = true;
    rl->update.division.n_rounds = shard >= SHARDS_GRADIENTS && !rl->recipe->has_lora ? n_passes : 0;
    rl->update.division.divided = shard >= SHARDS_OPTIMIZER;
    rl->update.division.n_models = own ? 2 : 1;
    rl->update.division.params[0] = &rl->model->params;
    rl->update.division.params[1] = own ? &rl->value->model->params : NULL;
    rl->update.most_passes = n_passes;
    rl->update.division.n_lanes = text_lanes(rl, n_passes);
    return accumulator_divide(&rl->update.division);
}

static Status plan_text_memory(TextRl *rl, Largest *largest, TrainMemory *memory) {
    bool own = rl->value && rl->value->own;
    TRY(plan_division(rl, most_passes(rl, largest)));
    MemoryTask task = {.recipe = rl->recipe,
                       .model = rl->model,
                       .tape = rl->pass.tape,
                       .lanes = accumulator_lane_bytes(&rl->update.division, 0),
                       .messages = accumulator_message_bytes(&rl->update.division, 0),
                       .comm = rl->config->comm,
                       .context = largest,
                       .largest = text_memory_step,
                       .split = text_memory_split,
                       .beside = &largest->sampling};
    TRY(train_memory_plan(&task, rl->config->options.resume ? rl->recipe->output : NULL, memory));
    size_t values = own ? optimizer_bytes(&rl->update.stepper.optimizer, &rl->value->model->params) : 0;
    size_t sums = own ? accumulator_lane_bytes(&rl->update.division, 1) + accumulator_message_bytes(&rl->update.division, 1) : 0;
    memory->rollout = largest->sampling;
    memory->lanes += sums;
    memory->total += sums;
    memory->optimizer += values; /* which is allocated already */
    memory->baseline -= MIN(values, memory->baseline);
    return ST_OK;
}

Status text_memory(TextRl *rl, TrainMemory *memory) {
    Largest largest = {.rl = rl, .pass_tokens = rl->pass.max_tokens};
    Status status = largest_new(rl, &largest);
    if (status == ST_OK) status = plan_text_memory(rl, &largest, memory);
    largest_release(&largest);
    return status;
}
