/* SPDX-License-Identifier: Apache-2.0 */
/* tune generate: a model answers prompts. */
#include <math.h>
#include <string.h>

#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/common/dealt.h"
#include "cmd/common/sampling.h"
#include "cmd/common/rounding.h"
#include "cmd/common/rows.h"
#include "cmd/common/results.h"
#include "rl/offline/ilql_heads.h"

typedef struct Generate {
    const char *adapter, *compute, *input, *output, *as;
    Rounding rounding;
    TextList prompts;
    ChatChoice chat;
    GenerateConfig config;
    TextList stop, biases;
    int64_t seed;
    const char *json_schema, *regex, *grammar;
    bool json_object;
    double ilql;                /* BETA; NaN: not given */
    const Tokenizer *tokenizer; /* NULL: the model has none */
    bool raw;                   /* --prompt is text to continue, even if the model has a chat template */
    bool plain;                 /* one prompt from the command line: its answer streams to stdout as text */
    const TokenRows *rows;
    ResultFile result;
    Str own; /* lines of another rank than 0, on which rank 0 waits */
    size_t done, all;
    ContextCount beyond; /* lengths of prompts with their answers, known when the answers have ended */
} Generate;

/* Another rank may have failed meanwhile. */
static Status look_at_ranks(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)context, (void)prompt, (void)sample, (void)id, (void)logprob, (void)text;
    return dealt_poll();
}

static Status stream_text(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)context, (void)prompt, (void)sample, (void)id, (void)logprob;
    print_text(text, strlen(text));
    return ST_OK;
}

/* Writes the rendered prompt as text. */
static void write_prompt(JsonWriter *w, const Tokenizer *tokenizer, const Ids *ids) {
    Str text = {0};
    if (tokenizer_decode(tokenizer, ids->data, ids->n, false, &text) == ST_OK)
        jw_string_n(w, "prompt", str_text(&text), text.len);
    else
        jw_null(w, "prompt");
    str_release(&text);
}

static void write_ids(JsonWriter *w, const char *key, const Ids *ids) {
    jw_array(w, key);
    for (size_t i = 0; i < ids->n; i++) jw_int(w, NULL, ids->data[i]);
    jw_end_array(w);
}

/* For each position the most likely tokens. */
static void write_top(JsonWriter *w, const Completion *c, size_t n_top) {
    jw_array(w, "top_logprobs");
    for (size_t i = 0; i < c->ids.n; i++) {
        jw_array(w, NULL);
        for (size_t k = 0; k < n_top && c->top[i * n_top + k].id >= 0; k++) {
            jw_object(w, NULL);
            jw_int(w, "id", c->top[i * n_top + k].id);
            jw_double(w, "logprob", c->top[i * n_top + k].logprob);
            jw_end_object(w);
        }
        jw_end_array(w);
    }
    jw_end_array(w);
}

static const TokenRow *row_of(const Generate *job, const Completion *c) {
    return &job->rows->items[dealt_first(job->rows->n, dealt_rank()) + c->prompt];
}

static void write_row(JsonWriter *w, const Generate *job, const Completion *c) {
    const TokenRow *row = row_of(job, c);
    const json_t *prompt = json_object_get(row->json, json_object_get(row->json, "prompt") ? "prompt" : "text");
    jw_object(w, NULL);
    if (json_is_string(prompt) || !job->tokenizer)
        jw_string(w, "prompt", json_string_value(prompt));
    else
        write_prompt(w, job->tokenizer, &row->ids);
    if (job->prompts.n > 0) write_ids(w, "prompt_ids", &row->ids);
    if (job->tokenizer)
        jw_string_n(w, "completion", str_text(&c->text), c->text.len);
    else
        jw_null(w, "completion");
    write_ids(w, "completion_ids", &c->ids);
    write_numbers(w, "logprobs", c->logprobs, (int64_t)c->ids.n);
    if (job->config.n_top > 0) write_top(w, c, (size_t)job->config.n_top);
    jw_string(w, "finish_reason", c->finish == FINISH_STOP ? "stop" : "length");
    rounding_write(w, &job->rounding);
    jw_end_object(w);
}

static Status print_completion(void *context, const Completion *c) {
    Generate *job = context;
    job->done++;
    context_add(&job->beyond, (int64_t)(row_of(job, c)->ids.n + c->ids.n));
    if (job->plain) {
        if (job->config.n > 1) print_text(str_text(&c->text), c->text.len);
        print_text("\n", 1);
        return ST_OK;
    }
    JsonWriter w = {0};
    Status status = ST_OK;
    write_row(&w, job, c);
    if (dealt_rank() == 0)
        status = result_line(&job->result, &w.text);
    else
        str_append_n(&job->own, str_text(&w.text), w.text.len), str_append_char(&job->own, '\n');
    jw_release(&w);
    show_progress("%zu/%zu completions", job->done, job->all);
    return status;
}

static Status cmd_generate_check(const Generate *job) {
    const GenerateConfig *c = &job->config;
    TRY(check_sampling(c));
    if (c->n < 1 || c->n >= 1 << 16) return status_fail(ST_USAGE, "-n must be 1 to 65535, not %lld", (long long)c->n);
    if (c->max_batch < 0) return status_fail(ST_USAGE, "--max-batch must be 0 or more, not %lld", (long long)c->max_batch);
    if ((job->prompts.n > 0) == (job->input != NULL)) return status_fail(ST_USAGE, "tune generate needs either --prompt TEXT or --input ROWS.jsonl");
    if ((job->json_schema != NULL) + job->json_object + (job->regex != NULL) + (job->grammar != NULL) > 1)
        return status_fail(ST_USAGE, "--json-schema, --json-object, --regex and --grammar exclude each other");
    if (job->as && job->prompts.n > 0) return status_fail(ST_USAGE, "--as is for --input: --prompt uses the chat template, or is text with --raw");
    if (job->raw && job->input) return status_fail(ST_USAGE, "--raw is for --prompt: rows {\"prompt\": TEXT} are always used unchanged");
    if (job->raw && chat_choice_first(&job->chat))
        return status_fail(ST_USAGE, "%s does nothing with --raw, which uses no chat template", chat_choice_first(&job->chat));
    return ST_OK;
}

/* *asks: whether --prompt is a user's message in the model's chat template, as in training, rather than text to continue. */
static Status choose_form(const Generate *job, const Chat *chat, bool *asks) {
    const char *option = chat_choice_first(&job->chat);
    *asks = job->prompts.n > 0 && !job->raw && chat_has_template(chat);
    if (*asks) return chat_choice_check(&job->chat, chat);
    if (job->prompts.n == 0 || !option) return ST_OK;
    status_fail(ST_USAGE, "%s does nothing: the model has no chat template, so the prompt is used unchanged", option);
    return status_hint(ST_USAGE, "use --chat-template chatml, llama3, alpaca, plain, or a file");
}

static Status prompt_row(const OpenedModel *opened, const DataConfig *asked, const char *text, TokenRow *row) {
    row->json = asked->chat ? json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", text) : json_pack("{s:s}", "prompt", text);
    if (!row->json) return status_fail(ST_INPUT, "the prompt is not valid UTF-8");
    return asked->chat ? row_question(row->json, asked, opened->tokenizer, &row->ids)
                       : encode_prompt(opened->tokenizer, text, strlen(text), &row->ids);
}

static Status prompt_rows(const Generate *job, const OpenedModel *opened, TokenRows *rows) {
    bool asks;
    TRY(choose_form(job, opened->chat, &asks));
    const DataConfig asked = {.system = job->chat.system ? job->chat.system : opened->system, .chat = asks ? opened->chat : NULL};
    if (!opened->tokenizer) {
        status_fail(ST_INPUT, "the model directory has no tokenizer");
        return status_hint(ST_INPUT,
                           "copy tokenizer.json of the model, or of its base, into it; or use --input with rows of token ids, {\"ids\": [...]}");
    }
    for (size_t i = 0; i < job->prompts.n; i++) {
        TRY(array_grow(&rows->items, &rows->cap, rows->n + 1, sizeof *rows->items, "prompts"));
        rows->items[rows->n] = (TokenRow){0};
        TRY(prompt_row(opened, &asked, job->prompts.items[i], &rows->items[rows->n++]));
    }
    if (asks) show_line("the prompt is a message in the model's chat template; --raw gives the text unchanged");
    return ST_OK;
}

static Status write_lines(void *context, const char *text, size_t len) {
    Generate *job = context;
    for (const char *end = text + len, *line = text, *next; line < end; line = next + 1) {
        next = memchr(line, '\n', (size_t)(end - line));
        Str one = {.data = (char *)(uintptr_t)line, .len = (size_t)(next - line)};
        TRY(result_line(&job->result, &one));
        show_progress("%zu/%zu completions", ++job->done, job->all);
    }
    return ST_OK;
}

/* Adds what the other ranks counted. */
static Status share_lengths(ContextCount *count, Arena *arena) {
    ContextCount mine = *count, *all = arena_alloc(arena, (size_t)dealt_ranks() * sizeof *all);
    if (!all) return ST_RESOURCE;
    TRY(dealt_words("lengths of completions", &mine, sizeof mine, all));
    for (int rank = 0; rank < dealt_ranks(); rank++) {
        if (rank == dealt_rank()) continue;
        count->n += all[rank].n;
        count->longest = MAX(count->longest, all[rank].longest);
    }
    return ST_OK;
}

/* Rank 0 writes its own completions as they come, then those of the others. */
static Status answer_all(Generate *job, const OpenedModel *opened, const Prompt *prompts, size_t n, Arena *arena) {
    const size_t first = dealt_first(n, dealt_rank()), end = dealt_first(n, dealt_rank() + 1);
    OnToken *watch = job->plain && job->config.n == 1 ? stream_text : dealt_ranks() > 1 ? look_at_ranks : NULL;
    if (first < end) TRY(generate(opened->model, opened->tokenizer, prompts + first, end - first, &job->config, watch, print_completion, job));
    TRY(dealt_texts(&job->own, write_lines, job));
    return share_lengths(&job->beyond, arena);
}

static Status run_prompts(Generate *job, const OpenedModel *opened, const TokenRows *rows, Arena *arena) {
    Prompt *prompts = arena_alloc(arena, rows->n * sizeof *prompts);
    if (!prompts) return ST_RESOURCE;
    for (size_t i = 0; i < rows->n; i++) prompts[i] = (Prompt){rows->items[i].ids.data, rows->items[i].ids.n, i};
    job->rows = rows;
    job->all = rows->n * (size_t)job->config.n;
    job->beyond = context_count(&opened->model->config);
    Str text = {0};
    TRY(dealt_check(opened->model, token_rows_hash(rows)));
    if (dealt_rank() == 0) TRY(result_open(&job->result, job->output));
    Status status = answer_all(job, opened, prompts, rows->n, arena);
    if (context_describe(&job->beyond, "prompt with its completion is", "prompts with their completions are", &text))
        show_warning(NULL, str_text(&text));
    str_release(&text);
    str_release(&job->own);
    return dealt_rank() == 0 ? result_close(&job->result, status) : status;
}

/* What the answers follow. */
typedef struct Following {
    Grammar *grammar;
    TokenBytes *tokens;
    Constraint *constraint;
} Following;

static Status read_schema(const char *path, Grammar **grammar) {
    json_t *schema;
    TRY(json_read_file(path, &schema));
    Status status = grammar_json_schema(schema, grammar);
    json_decref(schema);
    return status == ST_OK ? ST_OK : status_prefix(status, "cannot use '%s'", path);
}

static Status read_gbnf(const char *path, Grammar **grammar) {
    enum { LONGEST = 1 << 20 };
    Str text = {0};
    TRY(file_read(path, LONGEST, &text));
    Status status = grammar_gbnf(str_text(&text), text.len, grammar);
    str_release(&text);
    return status == ST_OK ? ST_OK : status_prefix(status, "cannot use '%s'", path);
}

static Status following_open(Following *f, const Generate *job) {
    if (!job->json_schema && !job->json_object && !job->regex && !job->grammar) return ST_OK;
    if (!job->tokenizer) return status_fail(ST_INPUT, "a constraint needs a tokenizer, and the model directory has none");
    if (job->json_schema)
        TRY(read_schema(job->json_schema, &f->grammar));
    else if (job->grammar)
        TRY(read_gbnf(job->grammar, &f->grammar));
    else
        TRY(job->regex ? grammar_regex(job->regex, strlen(job->regex), &f->grammar) : grammar_json_object(&f->grammar));
    TRY(token_bytes_new(job->tokenizer, &f->tokens));
    return constraint_new(f->grammar, f->tokens, &f->constraint);
}

static void following_release(Following *f) {
    constraint_free(f->constraint);
    token_bytes_free(f->tokens);
    grammar_free(f->grammar);
}

/* Opens ilql_heads.safetensors of a run directory: either the named directory itself, or the parent of the named adapter or model. */
static Status open_heads(const Command *command, const Generate *job, Model *model, IlqlHeads *heads) {
    const char *dir = job->adapter ? job->adapter : command->arguments[0];
    const char *path = arena_printf(command->arena, "%s/../ilql_heads.safetensors", dir), *run = path_join(command->arena, dir, "recipe.yaml");
    if (run && file_exists(run)) path = path_join(command->arena, dir, "ilql_heads.safetensors");
    if (!path || !run) return ST_RESOURCE;
    if (file_exists(path)) return ilql_heads_load(model, path, heads);
    status_fail(ST_INPUT, "no Q heads for '%s': '%s' is missing", dir, path);
    return status_hint(ST_INPUT, "--ilql needs the adapter or model of a run with rl.algorithm: ilql");
}

static Status cmd_generate_run(const Command *command, void *context) {
    Generate *job = context;
    OpenedModel opened;
    IlqlHeads heads;
    IlqlBias advice = {&heads, job->ilql};
    TokenRows rows = {0};
    Following following = {0};
    TRY(command_needs(command, 1, 1));
    TRY(cmd_generate_check(job));
    TRY(read_biases(&job->biases, command->arena, &job->config.sample));
    const char *inputs[] = {command->arguments[0], job->input, job->adapter};
    TRY(check_output(job->output, inputs, COUNT_OF(inputs)));
    TRY(open_model_dealt(command->arguments[0], job->adapter, job->compute, &job->chat, &opened));
    job->config.seed = (uint64_t)job->seed;
    job->config.n_stop = job->stop.n;
    job->config.stop = job->stop.items;
    int32_t end_of_turn = chat_end_of_turn(opened.chat);
    job->config.stop_ids = &end_of_turn;
    job->config.n_stop_ids = end_of_turn >= 0;
    job->tokenizer = opened.tokenizer;
    job->plain = job->prompts.n == 1 && !job->output && !command->json;
    Status status = rounding_choose(command, &opened, !job->plain, &job->rounding);
    if (status == ST_OK && !isnan(job->ilql)) status = open_heads(command, job, opened.model, &heads);
    if (!isnan(job->ilql)) {
        job->config.logit_bias = ilql_logit_bias;
        job->config.logit_bias_context = &advice;
    }
    if (status == ST_OK) status = following_open(&following, job);
    job->config.constraint = following.constraint;
    if (status == ST_OK)
        status = job->input ? token_rows_read(job->input, &opened, &(DataConfig){.system = job->chat.system, .as = job->as}, true, &rows)
                            : prompt_rows(job, &opened, &rows);
    if (status == ST_OK) status = run_prompts(job, &opened, &rows, command->arena);
    token_rows_release(&rows);
    following_release(&following);
    close_model(&opened);
    return status;
}

Status cmd_generate(int argc, char **argv) {
    Generate job = {.seed = 42,
                    .ilql = (double)NAN,
                    .config = {.max_new_tokens = 128, .n = 1, .sample = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}}};
    Command command = {
        .over_ranks = true,
        .arguments_help = "MODEL (--prompt TEXT ... | --input ROWS.jsonl)",
        .help =
            "Answers prompts. Writes text on stdout, or with --input, -o or --json one row per completion: "
            "{\"prompt\", \"completion\", \"completion_ids\", \"logprobs\", \"finish_reason\": \"stop\"|\"length\"}. Rows are {\"prompt\": ...}, {\"messages\": [...]}, {\"ids\": [...]} "
            "or whole training rows, whose answer is left out. The default is at most 128 new tokens at temperature 1.\n"
            "If the model has a chat template, --prompt is the user's message in it; with --raw, or without a template, the model continues the text. "
            "With --prompt, rows also have \"prompt_ids\", with --top-logprobs \"top_logprobs\": for each position [{\"id\", \"logprob\"}, ...] "
            "of the model's distribution before temperature, penalties and filters.\n"
            "The result of a row depends on the seed and the row's number only, not on the other rows.\n"
            "    tune generate models/smollm2 --prompt 'The capital of France is' --greedy --max-new-tokens 8",
    };
    const Option options[] = {
        {"--prompt", OPTION_LIST, &job.prompts, "TEXT", "a prompt; repeatable, several prompts give rows"},
        {"--raw", OPTION_FLAG, &job.raw, NULL, "the prompt is text to continue, without the chat template"},
        {"--input", OPTION_TEXT, &job.input, "FILE", "rows of prompts: .jsonl, .json, .csv, .tsv, .txt, .parquet"},
        {"-o", OPTION_TEXT, &job.output, "FILE", "write rows to FILE instead of stdout"},
        {"--adapter", OPTION_TEXT, &job.adapter, "DIR", "PEFT adapter to use"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of matrix products"},
        ACTIVATIONS_OPTION(job.rounding),
        CHAT_OPTIONS(job.chat),
        AS_OPTION(job),
        {"-n", OPTION_INT, &job.config.n, "N", "completions per prompt (1)"},
        {"--n", OPTION_INT, &job.config.n, "N", "the same as -n"},
        SAMPLING_OPTIONS(job.config, job.stop),
        REPORT_OPTIONS(job.config, job.biases),
        {"--json-schema", OPTION_TEXT, &job.json_schema, "FILE", "answers are JSON that the JSON Schema in FILE accepts"},
        {"--json-object", OPTION_FLAG, &job.json_object, NULL, "answers are JSON objects"},
        {"--regex", OPTION_TEXT, &job.regex, "PATTERN", "answers match the regular expression from beginning to end"},
        {"--grammar", OPTION_TEXT, &job.grammar, "FILE", "answers follow the grammar, in GBNF as llama.cpp has it"},
        {"--ignore-eos", OPTION_FLAG, &job.config.ignore_eos, NULL, "continue after the end-of-text token"},
        {"--max-batch", OPTION_INT, &job.config.max_batch, "N", "sequences at a time; 0 = as many as fit into memory, at most 32"},
        {"--ilql", OPTION_REAL, &job.ilql, "BETA",
         "add BETA x advantage to the logits, from the Q and V heads that a run of tune rl with ilql has saved"},
        {"--seed", OPTION_INT, &job.seed, "N", "seed of the random choices (42)"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_generate_run, &job);
}
