/* SPDX-License-Identifier: Apache-2.0 */
/* tune score --save: asks a teacher about each token of a recipe's rows, row by row, and keeps its likeliest tokens. */
#include "cmd/model/score_save.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/common/open.h"
#include "cmd/common/recipe_command.h"
#include "cmd/common/results.h"
#include "data/check/check.h"
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "lib/infer/top_file.h"

static bool names_rows(const char *path) { return file_exists(path) && !text_ends_with(path, ".yaml") && !text_ends_with(path, ".yml"); }

/* A recipe as tune sft takes it; or for a file of rows one that names them and the model. */
static Status recipe_of_arguments(const Command *command, Recipe **recipe) {
    Command rest = *command;
    const char *model = command->arguments[0], *rows = command->arguments[1];
    rest.n_arguments--;
    memmove(rest.arguments, rest.arguments + 1, rest.n_arguments * sizeof *rest.arguments);
    if (!names_rows(rows)) return command_recipe(&rest, recipe);
    Str path = {0}, data = {0};
    str_append(&path, "model.path=");
    str_append_yaml(&path, model);
    str_append(&data, "data.train=");
    str_append_yaml(&data, rows);
    const char *overrides[COUNT_OF(rest.arguments) + 1] = {str_text(&path), str_text(&data)};
    for (size_t i = 1; i < rest.n_arguments; i++) overrides[i + 1] = rest.arguments[i];
    Status status = recipe_read(NULL, overrides, rest.n_arguments + 1, recipe);
    str_release(&path);
    str_release(&data);
    return status;
}

/* The file must have the very tokens that will be trained. */
static Status check_rows(const Recipe *recipe, const RecipeRows *rows, const OpenedModel *teacher) {
    int32_t id = rows->tokenizer && teacher->tokenizer ? tokenizer_difference(rows->tokenizer, teacher->tokenizer) : -1;
    if (id >= 0) {
        const char *ours = tokenizer_token(rows->tokenizer, id), *theirs = tokenizer_token(teacher->tokenizer, id);
        return status_fail(ST_CONFIG, "token %d is '%s' in the model that scores, '%s' in '%s', whose rows these are", (int)id,
                           theirs ? theirs : "(none)", ours ? ours : "(none)", recipe->model_path);
    }
    if (rows->chat && !recipe->data_now && rows->train->counts.conversations > 0 && chat_writes_date(rows->chat))
        return status_hint(status_fail(ST_CONFIG, "the chat template writes the date, so rows of another day have other tokens"),
                           "set data.now, here and for the training");
    for (size_t i = 0; i < rows->train->n; i++) {
        if (dataset_example(rows->train, i).n_branches <= 1) continue;
        Str where = {0};
        dataset_where(rows->train, i, &where);
        status_fail(ST_INPUT, "%s is trained turn by turn, as several texts", str_text(&where));
        str_release(&where);
        return status_hint(ST_INPUT, "set data.turns=whole, here and for the training");
    }
    return ST_OK;
}

/* Sums over all tokens but the first of each row. */
typedef struct SavedSums {
    double loss, mass;
    int64_t tokens;
} SavedSums;

static Status save_row(const Model *model, const Example *example, int64_t k, TopWriter *writer, SavedSums *sums) {
    const size_t n = (size_t)example->n;
    TokenLogprob *top = malloc(n * (size_t)k * sizeof *top);
    ScoreRow row = {example->ids, n, malloc(n * sizeof *row.logprobs)};
    Status status = top && row.logprobs ? score_top(model, &row, k, top) : status_fail(ST_RESOURCE, "out of memory for a row of %zu tokens", n);
    for (size_t t = 1; t < n && status == ST_OK; t++) {
        if (!isfinite(row.logprobs[t])) status = status_fail(ST_NUMERIC, "the log-probability of token %zu is not finite", t + 1);
        sums->loss -= row.logprobs[t];
        sums->tokens++;
        for (int64_t i = 0; i < k; i++) sums->mass += exp(top[(int64_t)t * k + i].logprob);
    }
    if (status == ST_OK) top_writer_add(writer, row.ids, n, top);
    free(row.logprobs);
    free(top);
    return status;
}

static Status save_rows(const Model *model, const Dataset *rows, int64_t k, TopWriter *writer, SavedSums *sums) {
    Status status = ST_OK;
    for (size_t i = 0; i < rows->n && status == ST_OK; i++) {
        Example example = dataset_example(rows, i);
        work_at("scoring rows", i, rows->n);
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : save_row(model, &example, k, writer, sums);
        if (status == ST_OK || status == ST_INTERRUPTED) continue;
        Str where = {0};
        dataset_where(rows, i, &where);
        status_prefix(status, "%s", str_text(&where));
        str_release(&where);
    }
    work_end("scoring rows");
    return status;
}

static void print_saved(const Command *command, const ScoreSave *job, const TopShape *shape, const SavedSums *sums) {
    const double tokens = (double)MAX(sums->tokens, 1);
    if (!command->json) {
        print_result("%s: %lld rows, %lld tokens; the %lld likeliest have %.2f %% of the probability; cross-entropy %.4f\n", job->path,
                     (long long)shape->n_rows, (long long)shape->n_tokens, (long long)shape->k, 100 * sums->mass / tokens, sums->loss / tokens);
        return;
    }
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "output", job->path);
    jw_int(&w, "rows", shape->n_rows);
    jw_int(&w, "tokens", shape->n_tokens);
    jw_int(&w, "top_k", shape->k);
    jw_double(&w, "probability", sums->mass / tokens);
    jw_double(&w, "cross_entropy", sums->loss / tokens);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static Status save_dataset(const Command *command, const ScoreSave *job, const Model *model, const Dataset *rows) {
    TopShape shape = {.k = job->top_k,
                      .vocab = model->config.vocab_size,
                      .n_rows = (int64_t)rows->n,
                      .dtype = job->dtype && strcmp(job->dtype, "f32") == 0 ? DT_F32 : DT_F16};
    for (size_t i = 0; i < rows->n; i++) shape.n_tokens += dataset_example(rows, i).n;
    TopWriter *writer;
    SavedSums sums = {0};
    TRY(top_writer_open(job->path, &shape, &writer));
    TRY(top_writer_close(writer, save_rows(model, rows, job->top_k, writer, &sums)));
    print_saved(command, job, &shape, &sums);
    return ST_OK;
}

static Status save_recipe(const Command *command, const ScoreSave *job, const Recipe *recipe) {
    OpenedModel teacher;
    RecipeRows rows = {0};
    if (!recipe->data_train) return status_fail(ST_CONFIG, "'data.train' is missing: it names the rows");
    TRY(open_model(command->arguments[0], job->adapter, job->compute, NULL, &teacher));
    Status status = ST_OK;
    if (job->top_k >= teacher.model->config.vocab_size)
        status = status_fail(ST_USAGE, "--top-k %lld is not below the model's %lld tokens", (long long)job->top_k,
                             (long long)teacher.model->config.vocab_size);
    if (status == ST_OK) status = recipe_rows_open(recipe, &teacher.model->config, NULL, &rows);
    if (status == ST_OK) status = check_rows(recipe, &rows, &teacher);
    if (status == ST_OK) status = save_dataset(command, job, teacher.model, rows.train);
    recipe_rows_close(&rows);
    close_model(&teacher);
    return status;
}

Status score_save(const Command *command, const ScoreSave *job) {
    Recipe *recipe;
    const char *inputs[] = {command->arguments[0], command->arguments[1], job->adapter};
    if (job->top_k < 1 || job->top_k > 1024) return status_fail(ST_USAGE, "--top-k %lld is not between 1 and 1024", (long long)job->top_k);
    if (job->dtype && strcmp(job->dtype, "f16") != 0 && strcmp(job->dtype, "f32") != 0)
        return status_fail(ST_USAGE, "--save-dtype '%s' is not f16 or f32", job->dtype);
    TRY(check_output(job->path, inputs, COUNT_OF(inputs)));
    TRY(recipe_of_arguments(command, &recipe));
    Status status = save_recipe(command, job, recipe);
    recipe_free(recipe);
    return status;
}
