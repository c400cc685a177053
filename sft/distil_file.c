/* SPDX-License-Identifier: Apache-2.0 */
/* A teacher's stored log-probabilities: a step reads those of its trained tokens, and no teacher is in memory. */
#include <stdlib.h>

#include "lib/base/file.h"
#include "sft/distil_parts.h"

/* The file has the teacher's likeliest tokens at temperature 1. */
static Status check_stored(const Recipe *recipe, const TopShape *shape) {
    const char *path = recipe->distil_teacher;
    if (recipe->distil_loss != DISTIL_LOSS_TOP_K)
        return status_hint(status_fail(ST_CONFIG, "'distil.loss: %s' needs the teacher's whole distribution, but '%s' has the likeliest %lld tokens",
                                       distil_loss_text(recipe->distil_loss), path, (long long)shape->k),
                           "set distil.loss=top_k, or name the model itself");
    if (recipe->distil_temperature != 1)
        return status_hint(
            status_fail(ST_CONFIG, "'distil.temperature' is %g, but '%s' has log-probabilities at temperature 1", recipe->distil_temperature, path),
            "leave it out, or name the model itself");
    if (recipe->distil_hidden > 0 || recipe->distil_attention > 0)
        return status_hint(status_fail(ST_CONFIG, "'distil.%s' needs the teacher's model, but '%s' has log-probabilities",
                                       recipe->distil_hidden > 0 ? "hidden" : "attention", path),
                           "leave it out, or name the model itself");
    if (recipe->distil_top_k <= shape->k) return ST_OK;
    status_fail(ST_CONFIG, "'distil.top_k' is %lld, but '%s' has %lld tokens of each place", (long long)recipe->distil_top_k, path,
                (long long)shape->k);
    return status_hint(ST_CONFIG, "set distil.top_k=%lld, or make the file with tune score --top-k %lld", (long long)shape->k,
                       (long long)recipe->distil_top_k);
}

/* Another tokenizer, template, truncation or other rows give other tokens. */
static Status find_rows(const Recipe *recipe, const Dataset *rows, Distil *distil) {
    distil->places = malloc((rows->n + 1) * sizeof *distil->places);
    if (!distil->places) return status_fail(ST_RESOURCE, "out of memory for the places of %zu rows", rows->n);
    for (size_t i = 0; i < rows->n; i++) {
        Example example = dataset_example(rows, i);
        distil->places[i] = example.n_branches > 1 ? -1 : top_file_find(distil->file, example.ids, (size_t)example.n);
        if (distil->places[i] >= 0) continue;
        Str where = {0};
        dataset_where(rows, i, &where);
        status_fail(ST_INPUT, "'%s' has no log-probabilities of the %d tokens of %s", recipe->distil_teacher, (int)example.n, str_text(&where));
        str_release(&where);
        if (example.n_branches > 1) return status_hint(ST_INPUT, "a row that is trained turn by turn has several texts: set data.turns=whole");
        return status_hint(ST_INPUT,
                           "the file is of other rows, or was made with another tokenizer, template or data.max_length: run tune score "
                           "MODEL RECIPE --top-k %lld --save FILE with this recipe",
                           (long long)recipe->distil_top_k);
    }
    return ST_OK;
}

Status distil_open_file(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil *distil) {
    const Recipe *recipe = trainer->recipe;
    Status status = top_file_open(recipe->distil_teacher, &distil->file);
    if (status != ST_OK)
        return status_hint_text()[0] ? status : status_hint(status, "a teacher is a model directory, a .gguf file or a file of tune score --save");
    TopShape shape = top_file_shape(distil->file);
    TRY(check_stored(recipe, &shape));
    TRY(find_rows(recipe, rows->train, distil));
    distil->ids = malloc((size_t)recipe->distil_top_k * sizeof *distil->ids);
    distil->logprobs = malloc((size_t)(recipe->distil_top_k + 1) * sizeof *distil->logprobs);
    if (!distil->ids || !distil->logprobs) return status_fail(ST_RESOURCE, "out of memory for the teacher's tokens");
    trainer_input(trainer, "distil.teacher", top_file_fingerprint(distil->file));
    run_plan_text(plan, PLAN_BOTH, "teacher", recipe->distil_teacher);
    run_plan_say(plan, "teacher: %s, the %lld likeliest of %lld tokens at %lld places", recipe->distil_teacher, (long long)shape.k,
                 (long long)shape.vocab, (long long)shape.n_tokens);
    return ST_OK;
}

Status distil_read_file(Distil *distil, const Pass *pass, const Batch *batch, DivergenceArgs *args) {
    const int64_t k = args->top_k;
    Arena *arena = tape_arena(pass->tape);
    const Device *device = tape_device(pass->tape);
    Tensor *ids = tensor_new(arena, device, DT_I32, 2, (int64_t[]){batch->n_targets, k}),
           *logprobs = tensor_new(arena, device, DT_F32, 2, (int64_t[]){batch->n_targets, k + 1});
    if (!ids || !logprobs) return ST_RESOURCE;
    int64_t at = 0;
    for (size_t i = 0; i < pass->n && device_computes(device); i++) {
        Example example = dataset_example(distil->rows, pass->rows[i]);
        const int64_t place = distil->places[pass->rows[i]];
        for (int32_t r = 0; r < example.n_runs; r++)
            for (int32_t t = example.runs[r].begin; t < example.runs[r].end; t++, at++) {
                TRY(top_file_read(distil->file, place + t, k, args->top_vocab, distil->ids, distil->logprobs));
                TRY(tensor_upload(ids, at * k, k, distil->ids));
                TRY(tensor_upload(logprobs, at * (k + 1), k + 1, distil->logprobs));
            }
        top_file_drop(distil->file, place, example.n);
    }
    args->top_ids = ids;
    args->top_logprobs = logprobs;
    return ST_OK;
}
