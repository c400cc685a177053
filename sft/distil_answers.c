/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a teacher as rows for its student. */
#include "sft/distil_answers.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/check/check.h"
#include "lib/base/file.h"
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "lib/infer/infer.h"
#include "lib/train/distil_teacher.h"
#include "lib/train/train.h"
#include "lib/recipe/keys.h"

typedef struct Answering {
    const Recipe *recipe;
    Comm *comm; /* ranks divide the prompts */
    Model *teacher;
    RecipeRows theirs, ours; /* the prompts, in the tokens of teacher and student */
    bool same_tokens;        /* the answer's ids are the student's */
    Prompt *prompts;         /* n of them; ours_at: the row of `ours` with the same prompt */
    size_t *ours_at, n, done;
    size_t first, end; /* the prompts of this rank */
    FileWriter file;   /* of rank 0 */
    Str lines;         /* of another rank: its answers */
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
    const ModelOptions options = {.device = config->runtime.device, .compute = config->runtime.compute, .comm = recipe_sharing(recipe, a->comm)};
    TRY(model_config_read(recipe->model_path, recipe->arena, &student));
    TRY(model_load(recipe->distil_teacher, &options, &a->teacher));
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

static void write_answer(Answering *a, const Example *prompt, const Ids *answer, const Completion *completion) {
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
    str_append_char(&w.text, '\n');
    if (comm_rank(a->comm) == 0)
        writer_write(&a->file, str_text(&w.text), w.text.len);
    else
        str_append_n(&a->lines, str_text(&w.text), w.text.len);
    jw_release(&w);
}

static Status take_answer(void *context, const Completion *completion) {
    Answering *a = context;
    Example prompt = dataset_example(a->ours.train, a->ours_at[a->first + completion->prompt]);
    Ids ids = {0};
    work_at("the teacher's answers", a->done++, (a->end - a->first) * (size_t)a->recipe->generate_n);
    Status status = completion->finish == FINISH_FAILED ? completion->status : answer_ids(a, completion, &ids);
    if (status == ST_OK && ids.n > 0) write_answer(a, &prompt, &ids, completion);
    ids_release(&ids);
    return status;
}

/* Another rank may have failed meanwhile, and hears that this one works. */
static Status look_at_ranks(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)prompt, (void)sample, (void)id, (void)logprob, (void)text;
    return comm_check(((const Answering *)context)->comm);
}

/* stop: the token that ends a turn, or -1; valid as long as the result. */
static GenerateConfig answer_config(const Answering *a, const int32_t *stop) {
    const Recipe *r = a->recipe;
    return (GenerateConfig){.sample = {.greedy = r->generate_greedy,
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
                            .n_stop_ids = *stop >= 0,
                            .stop_ids = stop};
}

/* Bytes of an id in a line, and of the text of a token */
enum { ID_TEXT = 7, TOKEN_TEXT = 4 };

/* Resident bytes while the teacher answers: its weights, the program, sampling. */
static size_t answering_bytes(const Answering *a) {
    const int32_t stop = -1;
    const GenerateConfig config = answer_config(a, &stop);
    const ModelMemory teacher = model_memory(a->teacher, false);
    const size_t loaded = teacher.mapped + teacher.shared + teacher.weights, resident = (size_t)memory_resident();
    const size_t ranks = (size_t)comm_size(a->comm);
    size_t longest = 1;
    for (size_t i = 0; i < a->n; i++) longest = MAX(longest, a->prompts[i].n);
    const size_t each = (a->n + ranks - 1) / ranks;
    /* Each rank keeps its answers as text until rank 0 has them: ids of a row twice, and the answer */
    const size_t row = 2 * ID_TEXT * (longest + (size_t)config.max_new_tokens) + TOKEN_TEXT * (size_t)config.max_new_tokens;
    const size_t lines = ranks > 1 ? each * (size_t)config.n * row : 0;
    return MAX(resident, loaded) + teacher.packed + generate_bytes(a->teacher, each, longest, &config) + lines;
}

/* Answers the prompts of this rank. */
static Status answer_own(Answering *a) {
    const int32_t stop = a->theirs.chat ? chat_end_of_turn(a->theirs.chat) : -1;
    const GenerateConfig config = answer_config(a, &stop);
    const size_t rank = (size_t)comm_rank(a->comm), ranks = (size_t)comm_size(a->comm);
    a->first = rank * a->n / ranks;
    a->end = (rank + 1) * a->n / ranks;
    if (a->first == a->end) return ST_OK;
    Status status = generate(a->teacher, a->theirs.tokenizer, a->prompts + a->first, a->end - a->first, &config, ranks > 1 ? look_at_ranks : NULL,
                             take_answer, a);
    work_end("the teacher's answers");
    return status;
}

/* Rank 0 writes the answers of another rank. */
static Status take_lines(Answering *a, int rank) {
    uint64_t len;
    TRY(comm_receive(a->comm, COMM_RESULTS, "length of answers", rank, &len, sizeof len));
    char *text = malloc((size_t)len + 1);
    Status status = text ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the answers of rank %d", rank);
    if (status == ST_OK) status = comm_receive(a->comm, COMM_RESULTS, "answers", rank, text, (size_t)len);
    if (status == ST_OK && len > 0) writer_write(&a->file, text, (size_t)len);
    free(text);
    return status;
}

static Status give_lines(Answering *a) {
    const uint64_t len = a->lines.len;
    TRY(comm_send(a->comm, COMM_RESULTS, "length of answers", 0, &len, sizeof len));
    return comm_send(a->comm, COMM_RESULTS, "answers", 0, str_text(&a->lines), a->lines.len);
}

/* Rank 0 writes the file: the answers of all ranks, in the order of the prompts. */
static Status make_answers(Answering *a, const char *path) {
    if (comm_rank(a->comm) > 0) {
        TRY(answer_own(a));
        return give_lines(a);
    }
    TRY(writer_open(&a->file, path));
    Status status = answer_own(a);
    for (int rank = 1; rank < comm_size(a->comm) && status == ST_OK; rank++) status = take_lines(a, rank);
    if (status == ST_OK) return writer_commit(&a->file);
    writer_abandon(&a->file);
    return status;
}

/* ---- ranks ---- */

static Status ranks_agree_on_prompts(const Answering *a) {
    CommFact facts[] = {{"distil.teacher", "", ST_INPUT}, {"data.train", "", ST_INPUT}, {"data.train, or tokenizer", "", ST_INPUT}};
    if (comm_size(a->comm) == 1) return ST_OK;
    comm_fact_hash(&facts[0], model_fingerprint(a->teacher));
    comm_fact_hash(&facts[1], dataset_fingerprint(a->theirs.train));
    comm_fact_hash(&facts[2], dataset_fingerprint(a->ours.train));
    Status status = comm_agree(a->comm, facts, COUNT_OF(facts));
    if (status == ST_INPUT) status_hint(status, "the files have the same names on all hosts, but other contents: copy them again");
    return status;
}

enum { PIECE = 1 << 20 };

/* Copies the file of rank 0 to all; `file` NULL: this rank does not write it. */
static Status copy_pieces(Comm *comm, const Mapping *source, uint64_t size, FileWriter *file) {
    char *piece = malloc(PIECE);
    Status status = piece ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the teacher's answers");
    for (uint64_t at = 0; at < size && status == ST_OK; at += PIECE) {
        const size_t n = (size_t)MIN(size - at, (uint64_t)PIECE);
        if (source) memcpy(piece, source->data + at, n);
        status = comm_broadcast(comm, COMM_RESULTS, "answers", 0, piece, n);
        if (status == ST_OK && file) writer_write(file, piece, n);
    }
    free(piece);
    return status;
}

/* Whether this rank writes the file on its machine: it is the first there that lacks it. */
static bool writes_copy(const Comm *comm, const bool *lacks) {
    const int self = comm_rank(comm);
    for (int rank = 0; rank < self; rank++)
        if (lacks[rank] && strcmp(comm_host(comm, rank), comm_host(comm, self)) == 0) return false;
    return lacks[self];
}

static Status copy_file(Comm *comm, const char *path, bool writes) {
    FileWriter file;
    Mapping source = {0};
    if (comm_rank(comm) == 0) TRY(file_map(path, &source));
    uint64_t size = source.size;
    Status status = comm_broadcast(comm, COMM_RESULTS, "length of answers", 0, &size, sizeof size);
    if (status == ST_OK && writes) status = writer_open(&file, path);
    const bool opened = status == ST_OK && writes;
    if (status == ST_OK) status = copy_pieces(comm, comm_rank(comm) == 0 ? &source : NULL, size, opened ? &file : NULL);
    if (opened && status == ST_OK) status = writer_commit(&file);
    if (opened && status != ST_OK) writer_abandon(&file);
    if (comm_rank(comm) == 0) file_unmap(&source);
    return status;
}

/* Machines whose folders are not those of rank 0 get a copy of its file. */
static Status share_answers(Comm *comm, const char *path) {
    bool there = true, any = false;
    if (comm_size(comm) == 1) return ST_OK;
    TRY(comm_broadcast(comm, COMM_CONTROL, "end of the answers", 0, &there, sizeof there)); /* rank 0 has written them */
    bool lacks = !file_exists(path), *all = malloc((size_t)comm_size(comm) * sizeof *all);
    Status status =
        all ? comm_gather_small(comm, "files of answers", &lacks, sizeof lacks, all) : status_fail(ST_RESOURCE, "out of memory for ranks");
    for (int rank = 0; status == ST_OK && rank < comm_size(comm); rank++) any |= all[rank];
    if (status == ST_OK && any) status = copy_file(comm, path, writes_copy(comm, all));
    if (status == ST_OK && any) status = comm_gather_small(comm, "copies of answers", &lacks, sizeof lacks, all); /* they are written */
    free(all);
    return status;
}

/* Whether the answers need not be made: rank 0 has them, and in a dry run, which copies nothing, all ranks. */
static Status look_for_answers(const Answering *a, const char *path, bool dry_run, bool *there) {
    const size_t ranks = (size_t)comm_size(a->comm);
    const bool mine = file_exists(path);
    bool *all = malloc(ranks * sizeof *all);
    Status status = all ? comm_gather_small(a->comm, "whether there are answers", &mine, sizeof mine, all)
                        : status_fail(ST_RESOURCE, "out of memory for %zu ranks", ranks);
    *there = status == ST_OK && all[0];
    for (size_t r = 0; *there && dry_run && r < ranks; r++) *there = all[r];
    free(all);
    return status;
}

static Status find_or_make(Answering *a, const TrainingConfig *config, DistilAnswers *answers) {
    const char *day;
    TRY(recipe_day(a->recipe, config->options.resume, &day));
    TRY(open_answering(a, config, day));
    TRY(ranks_agree_on_prompts(a));
    TRY(name_answers(a, &answers->path));
    bool made;
    TRY(look_for_answers(a, answers->path, config->options.dry_run, &made));
    if (!made) answers->memory = answering_bytes(a);
    if (!made && config->options.dry_run) return ST_OK;
    if (!made) TRY(make_answers(a, answers->path));
    TRY(share_answers(a->comm, answers->path));
    answers->made = true;
    return ST_OK;
}

/* ---- the recipe ---- */

static Status check_keys(const Recipe *recipe) {
    static const char *const others[] = {"distil.beta",   "distil.temperature", "distil.times_temperature_squared", "distil.alpha", "distil.top_k",
                                         "distil.hidden", "distil.attention"};
    for (size_t i = 0; i < COUNT_OF(others); i++) TRY(recipe_unread(recipe, others[i], "leave it out", "does nothing with 'distil.loss: sequence'"));
    if (!distil_teacher_is_file(recipe->distil_teacher)) return ST_OK;
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
    Answering a = {.recipe = recipe, .comm = config->comm};
    Status status = find_or_make(&a, config, answers);
    if (a.teacher) model_free(a.teacher);
    recipe_rows_close(&a.theirs);
    recipe_rows_close(&a.ours);
    free(a.prompts);
    free(a.ours_at);
    str_release(&a.lines);
    if (status != ST_OK || !answers->made) return status;
    return take_rows(recipe, answers);
}
