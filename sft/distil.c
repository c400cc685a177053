/* SPDX-License-Identifier: Apache-2.0 */
/* The teacher of tune sft: opening it, its pass over a batch, and what is reported. */
#include "sft/distil_parts.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/recipe/keys.h"
#include "lib/train/distil_teacher.h"

/* ---- opening ---- */

static DivergenceArgs args_of(const Recipe *recipe, const Model *student, const Distil *distil) {
    const Model *teacher = distil->teacher;
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
                            .top_vocab = distil->file ? MIN(top_file_shape(distil->file).vocab, student->config.vocab_size) : 0,
                            .softcap = student->logprob.softcap,
                            .teacher_softcap = teacher ? teacher->logprob.softcap : 0,
                            .scaling = student->logprob.temperature,
                            .teacher_scaling = teacher ? teacher->logprob.temperature : 1};
}

/* Section generate says how a teacher answers. In a file it may be for another command. */
static Status check_generate(const Recipe *recipe) {
    for (size_t i = 0; i < n_recipe_keys; i++)
        if (strcmp(recipe_keys[i].section, "generate") == 0 && recipe->lines[i] == 0)
            TRY(recipe_unread(recipe, recipe_keys[i].dotted, "leave it out", "does nothing without 'distil.loss: sequence'"));
    return ST_OK;
}

/* Keys that have no effect: without a teacher, with this loss, or on a student's loss. */
static Status check_keys(const Recipe *recipe) {
    if (!recipe->distil_teacher && recipe->has_distil)
        return status_hint(status_fail(ST_CONFIG, "section 'distil' names no teacher: 'distil.teacher' is missing"),
                           "name a model directory, a .gguf file or a file of tune score --save; without a teacher: distil=null");
    if (!recipe->distil_teacher) return check_generate(recipe);
    if (recipe->distil_loss == DISTIL_LOSS_SEQUENCE) return ST_OK; /* distil_answer checks its own */
    TRY(check_generate(recipe));
    if (recipe->distil_loss != DISTIL_LOSS_JSD) TRY(recipe_unread(recipe, "distil.beta", "leave it out", "is read by 'distil.loss: jsd' alone"));
    if (recipe->distil_loss != DISTIL_LOSS_TOP_K) TRY(recipe_unread(recipe, "distil.top_k", "leave it out", "is read by 'distil.loss: top_k' alone"));
    TRY(recipe_unread(recipe, "train.loss", "leave it out", "does nothing with 'distil.teacher'"));
    return recipe_unread(recipe, "train.label_smoothing", "leave it out", "does nothing with 'distil.teacher'");
}

/* A row's ids that the teacher's vocabulary lacks. */
static Status check_ids(const Trainer *trainer, const RecipeRows *rows, const Model *teacher) {
    const int64_t theirs = teacher->config.vocab_size;
    for (size_t i = 0; theirs < trainer->model->config.vocab_size && i < rows->train->n; i++) {
        Example example = dataset_example(rows->train, i);
        Ids ids = {.data = (int32_t *)(uintptr_t)example.ids, .n = (size_t)example.n};
        Status status = ids_check(&ids, theirs);
        if (status == ST_OK) continue;
        Str where = {0};
        dataset_where(rows->train, i, &where);
        status_prefix(status, "%s, for the teacher '%s'", str_text(&where), trainer->recipe->distil_teacher);
        str_release(&where);
        return status;
    }
    return ST_OK;
}

static Status open_teacher(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil *distil) {
    const Recipe *recipe = trainer->recipe;
    TRY(distil_teacher_open(recipe, trainer->comm, rows->tokenizer, trainer->model, &distil->teacher));
    TRY(check_ids(trainer, rows, distil->teacher));
    trainer->beside += model_memory(distil->teacher, false).packed;
    trainer_input(trainer, "distil.teacher", model_fingerprint(distil->teacher));
    TRY(distil_open_inner(trainer, distil));
    distil_teacher_say(recipe, distil->teacher, plan);
    return ST_OK;
}

static Status open_distil(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil *distil) {
    distil->rows = rows->train;
    TRY((distil_teacher_is_file(trainer->recipe->distil_teacher) ? distil_open_file : open_teacher)(trainer, rows, plan, distil));
    distil->args = args_of(trainer->recipe, trainer->model, distil);
    return ST_OK;
}

Status distil_open(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil **out) {
    *out = NULL;
    TRY(check_keys(trainer->recipe));
    if (!trainer->recipe->distil_teacher || trainer->recipe->distil_loss == DISTIL_LOSS_SEQUENCE) return ST_OK;
    Distil *distil = calloc(1, sizeof *distil);
    if (!distil) return status_fail(ST_RESOURCE, "out of memory for the teacher");
    Status status = open_distil(trainer, rows, plan, distil);
    if (status == ST_OK)
        *out = distil;
    else
        distil_close(distil);
    return status;
}

void distil_close(Distil *distil) {
    if (!distil) return;
    if (distil->teacher) model_free(distil->teacher);
    top_file_close(distil->file);
    free(distil->places);
    free(distil->ids);
    free(distil->logprobs);
    free(distil->values);
    free(distil->weights);
    free(distil);
}

/* ---- a batch ---- */

void distil_begin(Distil *distil, const size_t *rows, size_t n) {
    distil->all_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        Example example = dataset_example(distil->rows, rows[i]);
        if (example.trained > 0) distil->all_tokens += example.weight * example.n;
    }
}

/* The teacher gets no noise and no dropout, and its routers are others. */
static TeacherStates ask_teacher(const Distil *distil, Tape *tape, const Batch *batch) {
    TeacherStates states = {0};
    if (!distil->teacher) return states;
    ModelBatch plain = batch->model;
    plain.loads = NULL;
    plain.noise = (EmbedNoise){0};
    plain.step = (StepContext){0};
    if (distil->attention > 0) plain.shown = &states.shown;
    tape_record(tape, false);
    states.hidden = model_forward(distil->teacher, tape, &plain);
    tape_record(tape, true);
    return states;
}

/* Writes the gradient of each token's loss to distil->values. */
static Status write_upstream(Distil *distil, const Pass *pass, const Batch *batch) {
    const int64_t n = batch->n_targets;
    if (n > distil->cap_values) TRY(array_resize(&distil->values, (size_t)n, sizeof *distil->values, "trained tokens"));
    distil->cap_values = MAX(distil->cap_values, n);
    for (int64_t i = 0; i < n; i++) distil->values[i] = batch->weights[i] / pass->divisor;
    return ST_OK;
}

/* Adds the losses of the batch's tokens to the sums. */
static void count_tokens(Distil *distil, const Divergences *d, const Pass *pass, const Batch *batch, LossSums *sums) {
    const int64_t n = batch->n_targets;
    const Tensor *const from[] = {d->loss, d->divergence, d->logprob, d->agreement};
    double totals[COUNT_OF(from)] = {0}, count = 0;
    for (size_t k = 0; k < COUNT_OF(from) && device_computes(tape_device(pass->tape)); k++) {
        tensor_read(from[k], distil->values);
        for (int64_t i = 0; i < n; i++) totals[k] += batch->weights[i] * distil->values[i];
    }
    for (int64_t i = 0; i < n; i++) count += batch->weights[i];
    sums->loss_sum += totals[0];
    sums->count += count;
    distil->sums[SUM_DIVERGENCE] += totals[1];
    distil->sums[SUM_CROSS_ENTROPY] -= totals[2];
    distil->sums[SUM_AGREEMENT] += totals[3];
    distil->sums[SUM_WEIGHTS] += count;
}

Status distil_batch(Distil *distil, const Model *student, const Pass *pass, const Batch *batch, LossSums *sums) {
    Tape *tape = pass->tape;
    const Device *device = tape_device(tape);
    int64_t n = batch->n_targets;
    DivergenceArgs *args = tape_copy(tape, &distil->args, sizeof distil->args);
    if (!args) return ST_RESOURCE;
    if (distil->file) TRY(distil_read_file(distil, pass, batch, args));
    Tensor *rows = tensor_view(tape_arena(tape), device, DT_I32, 1, &n, batch->rows);
    Tensor *targets = tensor_view(tape_arena(tape), device, DT_I32, 1, &n, batch->targets);
    if (!rows || !targets) return ST_RESOURCE;
    TeacherStates teacher = ask_teacher(distil, tape, batch);
    ShownAttention shown = {0};
    ModelBatch model_batch = batch->model;
    if (distil->attention > 0) model_batch.shown = &shown;
    Tensor *hidden = model_forward(student, tape, &model_batch);
    const Tensor *head = distil->teacher ? distil->teacher->head : NULL;
    TRY(write_upstream(distil, pass, batch));
    args->upstream = distil->values;
    Divergences d = op_token_divergence(tape, hidden, student->head, teacher.hidden, head, rows, targets, args);
    TRY(tape_status(tape));
    count_tokens(distil, &d, pass, batch, sums);
    return distil_add_inner(distil, pass, hidden, &shown, &teacher, sums);
}

double *distil_numbers(Distil *distil, size_t *n) {
    *n = DISTIL_NUMBERS;
    return distil->sums;
}

void distil_metrics(const Distil *distil, Metrics *metrics) {
    const double *sums = distil->sums;
    metric_set(metrics, "divergence", sums[SUM_DIVERGENCE] / sums[SUM_WEIGHTS]);
    metric_set(metrics, "cross_entropy", sums[SUM_CROSS_ENTROPY] / sums[SUM_WEIGHTS]);
    metric_set(metrics, "agreement", sums[SUM_AGREEMENT] / sums[SUM_WEIGHTS]);
    if (distil->hidden > 0) metric_set(metrics, "hidden_distance", sums[SUM_HIDDEN] / distil->all_tokens);
    if (distil->attention > 0) metric_set(metrics, "attention_divergence", sums[SUM_ATTENTION] / distil->all_tokens);
}
