/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a teacher as rows for its student. */
#include "sft/distil_answers.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/check/check.h"
#include "lib/base/work.h"
#include "lib/infer/infer.h"
#include "lib/train/train.h"
#include "lib/recipe/keys.h"

typedef struct Answering {
    const Recipe *recipe;
    Model *teacher;
    RecipeRows theirs, ours; /* the prompts, in the tokens of teacher and student */
    bool same_tokens;        /* the answer's ids are the student's */
    Prompt *prompts;         /* n of them; ours_at: the row of `ours` with the same prompt */
    size_t *ours_at, n, done;
    FileWriter file;
} Answering;

/* The recipe for reading prompts in the tokens of the model in `dir`. Nothing is said about keys that prompts do not need. */
static Status read_prompts(const Recipe *recipe, const char *dir, const ModelConfig *config, const char *day, RecipeRows *rows) {
    Recipe only = *recipe;
    only.given = arena_zero(recipe->arena, n_recipe_keys * sizeof *only.given);
    if (!only.given) return ST_RESOURCE;
    only.model_path = dir;
    only.data_eval = only.eval_data = NULL;
    only.data_eval_split = 0;
    if (dir != recipe->model_path) only.model_chat_template = NULL;
    return recipe_prompts_open(&only, config, day, rows);
}

/* Both lists are in the order of the files; a row that is too long in the tokens of one model is missing there. */
static Status join_rows(Answering *a) {
    const Dataset *theirs = a->theirs.train, *ours = a->ours.train;
    a->prompts = malloc((theirs->n + 1) * sizeof *a->prompts);
    a->ours_at = malloc((theirs->n + 1) * sizeof *a->ours_at);
    if (!a->prompts || !a->ours_at) return status_fail(ST_RESOURCE, "out of memory for %zu prompts", theirs->n);
    for (size_t i = 0, j = 0; i < theirs->n && j < ours->n;) {
        Example one = dataset_example(theirs, i), other = dataset_example(ours, j);
        if (one.file == other.file && one.line == other.line) {
            a->prompts[a->n] = (Prompt){.ids = one.ids, .n = (size_t)one.n, .number = a->n};
            a->ours_at[a->n++] = j;
        }
        bool behind = one.file < other.file || (one.file == other.file && one.line <= other.line);
        bool ahead = other.file < one.file || (one.file == other.file && other.line <= one.line);
        i += behind;
        j += ahead;
    }
    return a->n > 0 ? ST_OK : status_fail(ST_INPUT, "'data.train' has no prompt that fits into data.max_length");
}

static Status open_answering(Answering *a, const TrainingConfig *config, const char *day) {
    const Recipe *recipe = a->recipe;
    ModelConfig student;
    TRY(model_config_read(recipe->model_path, recipe->arena, &student));
    TRY(model_load(
        recipe->distil_teacher,
        &(ModelOptions){.device = config->runtime.device, .compute = config->runtime.compute, .comm = recipe_sharing(recipe, config->comm)},
        &a->teacher));
    TRY(read_prompts(recipe, recipe->distil_teacher, &a->teacher->config, day, &a->theirs));
    TRY(read_prompts(recipe, recipe->model_path, &student, day, &a->ours));
    const Tokenizer *one = a->theirs.tokenizer, *other = a->ours.tokenizer;
    if (!one != !other) return status_fail(ST_INPUT, "one of '%s' and '%s' has no tokenizer", recipe->distil_teacher, recipe->model_path);
    a->same_tokens = !one || (tokenizer_vocab_size(one) == tokenizer_vocab_size(other) && tokenizer_difference(one, other) < 0);
    return join_rows(a);
}

/* ---- the file ---- */

/* "FOLDER/answers-HASH.jsonl": next to the run, so that runs with the same answers share it. */
static Status name_answers(const Answering *a, const char **path) {
    const Recipe *r = a->recipe;
    Str key = {0};
    str_printf(&key, "%016llx %016llx %016llx %lld %.17g %lld %.17g %.17g %.17g %d %lld %lld", (unsigned long long)model_fingerprint(a->teacher),
               (unsigned long long)dataset_fingerprint(a->theirs.train), (unsigned long long)dataset_fingerprint(a->ours.train),
               (long long)r->generate_max_new_tokens, r->generate_temperature, (long long)r->generate_top_k, r->generate_top_p, r->generate_min_p,
               r->generate_repetition_penalty, r->generate_greedy, (long long)r->generate_n, (long long)r->seed);
    for (size_t i = 0; i < r->generate_stop.n; i++) str_printf(&key, " %s", r->generate_stop.items[i]);
    uint64_t hash = XXH3_64bits(str_text(&key), key.len);
    str_release(&key);
    size_t end = r->output ? strlen(r->output) : 0;
    while (end > 0 && r->output[end - 1] == '/') end--;
    while (end > 0 && r->output[end - 1] != '/') end--;
    *path = arena_printf(r->arena, "%.*sanswers-%016llx.jsonl", (int)end, r->output ? r->output : "", (unsigned long long)hash);
    return *path ? ST_OK : ST_RESOURCE;
}

/* The answer in the student's tokens, with the token that ends it. */
static Status answer_ids(const Answering *a, const Completion *completion, Ids *ids) {
    if (a->same_tokens) {
        ids_append(ids, completion->ids.data, completion->ids.n);
        return ST_OK;
    }
    TRY(tokenizer_encode(a->ours.tokenizer, str_text(&completion->text), completion->text.len, TOKENIZE_LITERAL, ids));
    int32_t turn = a->ours.train->counts.conversations > 0 && a->ours.chat ? chat_end_of_turn(a->ours.chat) : -1,
            end = turn >= 0 ? turn : tokenizer_eos(a->ours.tokenizer);
    if (completion->finish == FINISH_STOP && end >= 0) ids_push(ids, end);
    return ST_OK;
}

static void write_answer(FileWriter *file, const Example *prompt, const Ids *answer, const Completion *completion) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_array(&w, "input_ids");
    for (int32_t t = 0; t < prompt->n; t++) jw_int(&w, NULL, prompt->ids[t]);
    for (size_t t = 0; t < answer->n; t++) jw_int(&w, NULL, answer->data[t]);
    jw_end_array(&w);
    jw_array(&w, "labels");
    for (int32_t t = 0; t < prompt->n; t++) jw_int(&w, NULL, LABEL_NONE);
    for (size_t t = 0; t < answer->n; t++) jw_int(&w, NULL, answer->data[t]);
    jw_end_array(&w);
    jw_string(&w, "answer", str_text(&completion->text)); /* for people */
    jw_bool(&w, "cut", completion->finish == FINISH_LENGTH);
    jw_end_object(&w);
    writer_write(file, str_text(&w.text), w.text.len);
    writer_write(file, "\n", 1);
    jw_release(&w);
}

static Status take_answer(void *context, const Completion *completion) {
    Answering *a = context;
    Example prompt = dataset_example(a->ours.train, a->ours_at[completion->prompt]);
    Ids ids = {0};
    work_at("the teacher's answers", a->done++, a->n * (size_t)a->recipe->generate_n);
    Status status = completion->finish == FINISH_FAILED ? completion->status : answer_ids(a, completion, &ids);
    if (status == ST_OK && ids.n > 0) write_answer(&a->file, &prompt, &ids, completion);
    ids_release(&ids);
    return status;
}

static Status make_answers(Answering *a, const char *path) {
    const Recipe *r = a->recipe;
    int32_t stop = a->theirs.chat ? chat_end_of_turn(a->theirs.chat) : -1;
    GenerateConfig config = {.sample = {.greedy = r->generate_greedy,
                                        .temperature = r->generate_temperature,
                                        .top_k = r->generate_top_k,
                                        .top_p = r->generate_top_p,
                                        .min_p = r->generate_min_p,
                                        .repetition_penalty = r->generate_repetition_penalty,
                                        .typical_p = 1},
                             .max_new_tokens = r->generate_max_new_tokens,
                             .n = r->generate_n,
                             .seed = rng_u64(rng_key((uint64_t)r->seed, RNG_SAMPLE, 0), 0),
                             .n_stop = r->generate_stop.n,
                             .stop = r->generate_stop.items,
                             .n_stop_ids = stop >= 0,
                             .stop_ids = &stop};
    TRY(writer_open(&a->file, path));
    Status status = generate(a->teacher, a->theirs.tokenizer, a->prompts, a->n, &config, NULL, take_answer, a);
    work_end("the teacher's answers");
    if (status == ST_OK) return writer_commit(&a->file);
    writer_abandon(&a->file);
    return status;
}

static Status find_or_make(Answering *a, const TrainingConfig *config, DistilAnswers *answers) {
    const char *day;
    TRY(recipe_day(a->recipe, config->options.resume, &day));
    TRY(open_answering(a, config, day));
    TRY(name_answers(a, &answers->path));
    answers->made = file_exists(answers->path);
    if (answers->made || config->options.dry_run) return ST_OK;
    if (comm_size(config->comm) > 1)
        return status_hint(status_fail(ST_CONFIG, "'%s' is missing: the teacher's answers are made by one process", answers->path),
                           "start the run once without the launcher, and interrupt it after the answers");
    TRY(make_answers(a, answers->path));
    answers->made = true;
    return ST_OK;
}

/* ---- the recipe ---- */

static Status check_keys(const Recipe *recipe) {
    static const char *const others[] = {"distil.beta",   "distil.temperature", "distil.times_temperature_squared", "distil.alpha", "distil.top_k",
                                         "distil.hidden", "distil.attention"};
    for (size_t i = 0; i < COUNT_OF(others); i++) TRY(recipe_unread(recipe, others[i], "leave it out", "does nothing with 'distil.loss: sequence'"));
    if (!file_exists(recipe->distil_teacher) || dir_exists(recipe->distil_teacher) || text_ends_with(recipe->distil_teacher, ".gguf")) return ST_OK;
    return status_hint(status_fail(ST_CONFIG, "'distil.loss: sequence' needs a teacher that answers, but '%s' is a file", recipe->distil_teacher),
                       "name a model");
}

/* data.train: {path: FILE, format: ids}. Keys that only other rows need are not reported as without effect. */
static Status take_rows(const Recipe *recipe, DistilAnswers *answers) {
    Str text = {0};
    Yaml *rows;
    str_append(&text, "path: ");
    str_append_yaml(&text, answers->path);
    str_append(&text, "\nformat: ids\n");
    Status status = yaml_read_text(str_text(&text), text.len, "the teacher's answers", recipe->arena, &rows);
    str_release(&text);
    TRY(status);
    answers->recipe = *recipe;
    answers->recipe.data_train = rows;
    answers->recipe.given = arena_zero(recipe->arena, n_recipe_keys * sizeof *recipe->given);
    return answers->recipe.given ? ST_OK : ST_RESOURCE;
}

Status distil_answer(const Recipe *recipe, const TrainingConfig *config, DistilAnswers *answers) {
    *answers = (DistilAnswers){.wanted = recipe->distil_teacher && recipe->distil_loss == DISTIL_LOSS_SEQUENCE};
    if (!answers->wanted) return ST_OK;
    TRY(check_keys(recipe));
    Answering a = {.recipe = recipe};
    Status status = find_or_make(&a, config, answers);
    if (a.teacher) model_free(a.teacher);
    recipe_rows_close(&a.theirs);
    recipe_rows_close(&a.ours);
    free(a.prompts);
    free(a.ours_at);
    if (status != ST_OK || !answers->made) return status;
    return take_rows(recipe, answers);
}
