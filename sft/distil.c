/* SPDX-License-Identifier: Apache-2.0 */
/* The teacher of tune sft: opening it, its pass over a batch, and what is reported. */
#include "sft/distil.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"

struct Distil {
    Model *teacher;
    DivergenceArgs args;
    double sums[DISTIL_NUMBERS]; /* of a step: divergence, cross-entropy, weights of tokens */
    /* of a batch */
    double *values;
    int64_t cap_values;
};

/* ---- opening ---- */

static DivergenceArgs args_of(const Recipe *recipe, const Model *student, const Model *teacher) {
    static const DivergenceKind kinds[] = {[DISTIL_LOSS_KL] = DIVERGENCE_KL,
                                           [DISTIL_LOSS_REVERSE_KL] = DIVERGENCE_REVERSE_KL,
                                           [DISTIL_LOSS_JSD] = DIVERGENCE_JSD,
                                           [DISTIL_LOSS_TOP_K] = DIVERGENCE_TOP_K};
    return (DivergenceArgs){.kind = kinds[recipe->distil_loss],
                            .temperature = recipe->distil_temperature,
                            .alpha = recipe->distil_alpha,
                            .beta = recipe->distil_beta,
                            .squared = recipe->distil_times_temperature_squared,
                            .top_k = (int)recipe->distil_top_k,
                            .softcap = student->logprob.softcap,
                            .teacher_softcap = teacher->logprob.softcap,
                            .scaling = student->logprob.temperature,
                            .teacher_scaling = teacher->logprob.temperature};
}

/* Keys that have no effect: without a teacher, with this loss, or on a student's loss. */
static Status check_keys(const Recipe *recipe) {
    static const char *const keys[] = {"distil.loss",  "distil.beta", "distil.temperature", "distil.times_temperature_squared", "distil.alpha",
                                       "distil.top_k", NULL};
    if (!recipe->distil_teacher) {
        for (size_t i = 0; keys[i]; i++) TRY(recipe_unread(recipe, keys[i], "name a teacher", "does nothing without 'distil.teacher'"));
        return ST_OK;
    }
    if (recipe->distil_loss != DISTIL_LOSS_JSD) TRY(recipe_unread(recipe, "distil.beta", "leave it out", "is read by 'distil.loss: jsd' alone"));
    if (recipe->distil_loss != DISTIL_LOSS_TOP_K) TRY(recipe_unread(recipe, "distil.top_k", "leave it out", "is read by 'distil.loss: top_k' alone"));
    TRY(recipe_unread(recipe, "train.loss", "leave it out", "does nothing with 'distil.teacher'"));
    return recipe_unread(recipe, "train.label_smoothing", "leave it out", "does nothing with 'distil.teacher'");
}

static Status no_such_teaching(Status status) {
    return status_hint(status, "a teacher of other tokens can still answer the prompts (tune data synth); train on its answers with tune sft");
}

/* The first token that the two models have under another id, or that only one of them has. */
static Status compare_tokens(const Tokenizer *student, const Tokenizer *teacher, const char *dir) {
    int32_t n = MIN(tokenizer_vocab_size(student), tokenizer_vocab_size(teacher));
    for (int32_t id = 0; id < n; id++) {
        const char *ours = tokenizer_token(student, id), *theirs = tokenizer_token(teacher, id);
        if ((!ours && !theirs) || (ours && theirs && strcmp(ours, theirs) == 0)) continue;
        status_fail(ST_CONFIG, "'distil.teacher': token %d is '%s' in '%s', '%s' in the student", (int)id, theirs ? theirs : "(none)", dir,
                    ours ? ours : "(none)");
        return no_such_teaching(ST_CONFIG);
    }
    return ST_OK;
}

/* Rows of the head beyond the tokenizer, and tokens that one side added, may differ. */
static Status check_vocabulary(const Trainer *trainer, const RecipeRows *rows, const Model *teacher) {
    const char *dir = trainer->recipe->distil_teacher;
    int64_t ours = trainer->model->config.vocab_size, theirs = teacher->config.vocab_size;
    Tokenizer *tokenizer = NULL;
    TRY(tokenizer_load_if_any(dir, &tokenizer));
    Status status = ST_OK;
    if (tokenizer && rows->tokenizer)
        status = compare_tokens(rows->tokenizer, tokenizer, dir);
    else if (ours != theirs)
        status = no_such_teaching(status_fail(ST_CONFIG, "'distil.teacher': '%s' has %lld tokens, the student %lld, and a tokenizer is missing", dir,
                                              (long long)theirs, (long long)ours));
    tokenizer_free(tokenizer);
    for (size_t i = 0; status == ST_OK && theirs < ours && i < rows->train->n; i++) {
        Example example = dataset_example(rows->train, i);
        Ids ids = {.data = (int32_t *)(uintptr_t)example.ids, .n = (size_t)example.n};
        status = ids_check(&ids, theirs);
        if (status == ST_OK) continue;
        Str where = {0};
        dataset_where(rows->train, i, &where);
        status = status_prefix(status, "%s, for the teacher '%s'", str_text(&where), dir);
        str_release(&where);
    }
    return status;
}

static Status open_teacher(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil *distil) {
    const Recipe *recipe = trainer->recipe;
    ModelOptions options = {.device = trainer->model->device, .compute = trainer->model->compute};
    char parameters[32], bytes[32];
    TRY(model_load(recipe->distil_teacher, &options, &distil->teacher));
    TRY(check_vocabulary(trainer, rows, distil->teacher));
    distil->args = args_of(recipe, trainer->model, distil->teacher);
    ModelMemory memory = model_memory(distil->teacher, false);
    trainer->beside += memory.packed;
    trainer_input(trainer, "distil.teacher", model_fingerprint(distil->teacher));
    format_number((double)params_count(&distil->teacher->params, false), 4, parameters);
    run_plan_say(plan, "teacher: %s, %s parameters, %s", recipe->distil_teacher, parameters,
                 format_bytes((double)(memory.mapped + memory.weights + memory.packed), bytes));
    return ST_OK;
}

Status distil_open(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil **out) {
    *out = NULL;
    TRY(check_keys(trainer->recipe));
    if (!trainer->recipe->distil_teacher) return ST_OK;
    Distil *distil = calloc(1, sizeof *distil);
    if (!distil) return status_fail(ST_RESOURCE, "out of memory for the teacher");
    Status status = open_teacher(trainer, rows, plan, distil);
    if (status == ST_OK)
        *out = distil;
    else
        distil_close(distil);
    return status;
}

void distil_close(Distil *distil) {
    if (!distil) return;
    model_free(distil->teacher);
    free(distil->values);
    free(distil);
}

/* ---- a batch ---- */

Status distil_forward(Distil *distil, const Model *student, Tape *tape, const Batch *batch, Divergences *d) {
    const Device *device = tape_device(tape);
    int64_t n = batch->n_targets;
    ModelBatch plain = batch->model; /* the teacher gets no noise and no dropout, and its routers are others */
    plain.loads = NULL;
    plain.noise = (EmbedNoise){0};
    plain.step = (StepContext){0};
    Tensor *rows = tensor_view(tape_arena(tape), device, DT_I32, 1, &n, batch->rows);
    Tensor *targets = tensor_view(tape_arena(tape), device, DT_I32, 1, &n, batch->targets);
    if (!rows || !targets) return ST_RESOURCE;
    tape_record(tape, false);
    Tensor *teacher = model_forward(distil->teacher, tape, &plain);
    tape_record(tape, true);
    Tensor *hidden = model_forward(student, tape, &batch->model);
    *d = op_token_divergence(tape, hidden, student->head, teacher, distil->teacher->head, rows, targets, &distil->args);
    return tape_status(tape);
}

Status distil_count(Distil *distil, const Divergences *d, const Batch *batch, LossSums *sums) {
    int64_t n = batch->n_targets;
    if (n > distil->cap_values) TRY(array_resize(&distil->values, (size_t)n, sizeof *distil->values, "trained tokens"));
    distil->cap_values = MAX(distil->cap_values, n);
    const Tensor *const from[] = {d->loss, d->divergence, d->logprob};
    double totals[3] = {0}, count = 0;
    for (int k = 0; k < 3; k++) {
        tensor_read(from[k], distil->values);
        for (int64_t i = 0; i < n; i++) totals[k] += batch->weights[i] * distil->values[i];
    }
    for (int64_t i = 0; i < n; i++) count += batch->weights[i];
    sums->loss_sum += totals[0];
    sums->count += count;
    distil->sums[0] += totals[1];
    distil->sums[1] -= totals[2];
    distil->sums[2] += count;
    return ST_OK;
}

double *distil_numbers(Distil *distil) { return distil->sums; }

void distil_metrics(const Distil *distil, Metrics *metrics) {
    metric_set(metrics, "divergence", distil->sums[0] / distil->sums[2]);
    metric_set(metrics, "cross_entropy", distil->sums[1] / distil->sums[2]);
}
