/* SPDX-License-Identifier: Apache-2.0 */
/* tune data filter: keeps the rows that are worth training on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/app/hub.h"
#include "cmd/common/recipe_command.h"
#include "cmd/common/open.h"
#include "cmd/common/results.h"
#include "cmd/data/cmd_data.h"
#include "data/synth/synth.h"
#include "rl/reward/reward.h"

enum { AT_A_TIME = 1024 };
#define NOT_GIVEN INT64_MIN

typedef struct FilterJob {
    const char *output, *rejected, *recipe_file, *model, *adapter, *compute, *as, *quality, *share;
    ChatChoice chat;
    TextList seeds, quotas;
    bool only;
    int64_t select;                  /* 0: all */
    const char *values[FILTER_MOST]; /* option values of the filters, in the order of --help */
    const Command *command;
    OpenedModel opened;
    Filters *filters;
    Recipe *recipe;
    RewardSet *rewards; /* of the recipe */
    const Yaml *base;   /* changes of the recipe's preset to the default filters; NULL: none */
    Yaml *map;          /* the filters that the options name */
    ResultFile kept, ledger;
    Arena *texts; /* texts of the rows of the current batch */
    FilterRow rows[AT_A_TIME];
    FilterVerdict verdicts[AT_A_TIME];
    json_t *held[AT_A_TIME];
    size_t n;
    /* --select: all rows kept so far */
    SelectPool *pool;
    int64_t selected;
} FilterJob;

/* ---- options ---- */

static Status set_entry(Arena *arena, Yaml *map, const char *key, int line, Yaml *node) {
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->keys[i], key) == 0) return map->items[i] = node, ST_OK;
    size_t n = map->n;
    const char **keys = arena_alloc(arena, (n + 1) * sizeof *keys);
    int *lines = arena_alloc(arena, (n + 1) * sizeof *lines);
    Yaml **items = arena_alloc(arena, (n + 1) * sizeof *items);
    if (!keys || !lines || !items) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) keys[i] = map->keys[i], lines[i] = map->key_lines[i], items[i] = map->items[i];
    keys[n] = key, lines[n] = line, items[n] = node;
    map->keys = keys, map->key_lines = lines, map->items = items, map->n = n + 1;
    return ST_OK;
}

/* Whether an option's text is the value itself, such as a regular expression with brackets. Anything else is YAML, including true and false, which
 * switch a filter. */
static bool is_plain(const FilterHelp *help, const char *text) {
    static const char *const words[] = {"true", "false", "null", "~"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strcmp(text, words[i]) == 0) return false;
    return help->takes_text && text[0] != '{';
}

static Status add_option(FilterJob *job, const FilterHelp *help, const char *text) {
    Yaml *node;
    if (is_plain(help, text)) {
        if (!(node = arena_zero(job->command->arena, sizeof *node))) return ST_RESOURCE;
        *node = (Yaml){.kind = YAML_SCALAR, .text = text, .quoted = true};
    } else {
        Status status = yaml_read_text(text, strlen(text), help->name, job->command->arena, &node);
        if (status != ST_OK) return status_fail(ST_USAGE, "cannot read the value of filter '%s': '%s'", help->name, text);
        yaml_forget_lines(node);
    }
    return set_entry(job->command->arena, job->map, help->name, 0, node);
}

/* ---- filters and rewards of a recipe of tune data synth ---- */

static Status read_recipe(FilterJob *job) {
    TRY(recipe_read(job->recipe_file, NULL, 0, &job->recipe));
    TRY(recipe_models_find(job->recipe));
    const Yaml *filters = job->recipe->synth_filters;
    if (!job->recipe->has_synth)
        return status_hint(status_fail(ST_CONFIG, "'%s' has no section 'synth'", job->recipe_file),
                           "such as synth: {preset: few_shot, filters: {rouge_l: 0.7}}");
    TRY(synth_preset_filters(job->recipe, job->command->arena, &job->base));
    if (filters && filters->kind != YAML_MAP)
        return status_fail(ST_CONFIG, "wrong value for 'synth.filters' in '%s' line %d: expected a map", job->recipe_file, filters->line);
    for (size_t i = 0; filters && i < filters->n; i++)
        TRY(set_entry(job->command->arena, job->map, filters->keys[i], filters->key_lines[i], filters->items[i]));
    if (!job->recipe->reward) return ST_OK;
    return rewards_open(job->recipe->reward, job->recipe_file,
                        &(RewardOptions){.max_new_tokens = job->recipe->generate_max_new_tokens, .secret = secret_from_environment}, &job->rewards);
}

/* ---- opening ---- */

static Status open_filters(FilterJob *job) {
    FilterHelp help;
    job->map = arena_zero(job->command->arena, sizeof *job->map);
    if (!job->map) return ST_RESOURCE;
    job->map->kind = YAML_MAP;
    if (job->recipe_file) TRY(read_recipe(job));
    for (size_t i = 0; filter_help_at(i, &help); i++)
        if (job->values[i]) TRY(add_option(job, &help, job->values[i]));
    if (job->model) TRY(open_model(job->model, job->adapter, job->compute, &job->chat, &job->opened));
    if (chat_has_template(job->opened.chat)) TRY(chat_choice_check(&job->chat, job->opened.chat));
    FilterConfig config = {.base = job->base,
                           .filters = job->map,
                           .only = job->only,
                           .file = job->recipe_file,
                           .model = job->opened.model,
                           .tokenizer = job->opened.tokenizer,
                           .chat = job->opened.chat,
                           .as = job->as,
                           .system = job->chat.system ? job->chat.system : job->opened.system};
    if (job->rewards) config.reward = (FilterScorer){filter_rewards, job->rewards};
    Status status = filters_open(&config, &job->filters);
    if (status == ST_CONFIG && !job->recipe_file) return ST_USAGE;
    for (size_t i = 0; status == ST_OK && i < job->seeds.n; i++) status = filters_remember_file(job->filters, FILTER_BOTH, job->seeds.items[i]);
    return status;
}

/* ---- rows ---- */

/* The score of the filter that --quality names; NaN if there is none. */
static double measured_by(const FilterJob *job, const FilterVerdict *verdict) {
    for (size_t i = 0; job->quality && filters_at(job->filters, i); i++)
        if (strcmp(filters_at(job->filters, i)->name, job->quality) == 0) return verdict->scores[i];
    return (double)NAN;
}

static Status add_candidate(FilterJob *job, const FilterRow *row, const FilterVerdict *verdict) {
    double quality;
    TRY(select_quality(row, job->quality, measured_by(job, verdict), &quality));
    return select_pool_add(job->pool, row, quality);
}

static Status write_row(FilterJob *job, size_t r, Str *line) {
    str_clear(line);
    if (job->verdicts[r].kept) {
        if (job->select) return add_candidate(job, &job->rows[r], &job->verdicts[r]);
        filter_row_write(&job->rows[r], line);
        if (job->output || !job->command->json) return result_line(&job->kept, line);
    } else if (job->rejected) {
        filter_write_rejected(&job->rows[r], &job->verdicts[r], line);
        return result_line(&job->ledger, line);
    }
    return ST_OK;
}

/* Filters the rows of the current batch and releases them. */
static Status flush(FilterJob *job) {
    Str line = {0};
    Status status = filters_run(job->filters, FILTER_BOTH, job->rows, job->n, job->verdicts);
    for (size_t r = 0; status == ST_OK && r < job->n; r++) status = write_row(job, r, &line);
    for (size_t r = 0; r < job->n; r++) json_decref(job->held[r]);
    str_release(&line);
    job->n = 0;
    arena_reset(job->texts);
    FilterCounts counts = filters_counts(job->filters, FILTER_BOTH);
    if (status == ST_OK) work_at("filtering rows", (uint64_t)counts.rows, 0);
    return status;
}

static Status take_row(void *context, const Row *row) {
    FilterJob *job = context;
    FilterRow *read = &job->rows[job->n];
    Status status = filter_row_read(row->json, job->texts, read);
    if (status != ST_OK) return status_prefix(status, "'%s' %s %zu", row->file, row->unit, row->line);
    if (!read->id && !(read->id = arena_printf(job->texts, "%s %s %zu", row->file, row->unit, row->line))) return ST_RESOURCE;
    if (row->text.data) {
        read->text = (Slice){arena_strndup(job->texts, row->text.data, row->text.len), row->text.len};
        if (!read->text.data) return ST_RESOURCE;
    }
    job->held[job->n++] = json_incref(row->json);
    return job->n == AT_A_TIME ? flush(job) : ST_OK;
}

static Status read_file(FilterJob *job, const char *pattern) {
    const char **paths;
    size_t n;
    TRY(rows_expand(pattern, job->command->arena, &paths, &n));
    RowsConfig how = {.widen = !job->rewards}; /* rewards see the numbers of rows; else only their texts are needed */
    for (size_t i = 0; i < n; i++) TRY(rows_read_as(paths[i], &how, take_row, job));
    return ST_OK;
}

/* ---- --select ---- */

static Status read_quotas(const FilterJob *job, SelectQuota *quotas) {
    for (size_t i = 0; i < job->quotas.n; i++) {
        const char *text = job->quotas.items[i], *equals = strrchr(text, '=');
        char *end;
        quotas[i].rows = equals ? strtoll(equals + 1, &end, 10) : 0;
        if (!equals || equals == text || !equals[1] || *end || quotas[i].rows < 0) return status_fail(ST_USAGE, "--quota is TYPE=N, not '%s'", text);
        if (!(quotas[i].task_type = arena_strndup(job->command->arena, text, (size_t)(equals - text)))) return ST_RESOURCE;
    }
    return ST_OK;
}

/* Writes a chosen row to the output, any other row to --rejected. */
static Status write_chosen(void *context, const char *text, bool chosen) {
    FilterJob *job = context;
    Str line = {.data = (char *)(uintptr_t)text, .len = strlen(text)};
    if (chosen) return job->output || !job->command->json ? result_line(&job->kept, &line) : ST_OK;
    if (!job->rejected) return ST_OK;
    Str rejected = {0};
    str_printf(&rejected, "{\"row\": %s, \"reason\": \"select\", \"what\": \"beyond the budget\", \"score\": null, \"nearest\": null}", text);
    Status status = result_line(&job->ledger, &rejected);
    str_release(&rejected);
    return status;
}

static Status choose_rows(FilterJob *job) {
    SelectQuota *quotas = arena_alloc(job->command->arena, (job->quotas.n + 1) * sizeof *quotas);
    if (!quotas) return ST_RESOURCE;
    TRY(read_quotas(job, quotas));
    return select_pool_choose(job->pool, &(SelectConfig){.n = job->select, .share = job->share, .quotas = quotas, .n_quotas = job->quotas.n},
                              write_chosen, job, &job->selected);
}

/* ---- results ---- */

static void print_json(const FilterJob *job) {
    FilterCounts counts = filters_counts(job->filters, FILTER_BOTH);
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "rows", counts.rows);
    jw_int(&w, "kept", job->select ? job->selected : counts.kept);
    jw_object(&w, "rejected");
    for (size_t i = 0; filters_at(job->filters, i); i++) jw_int(&w, filters_at(job->filters, i)->name, filters_at(job->filters, i)->rejected);
    if (job->select) jw_int(&w, "select", counts.kept - job->selected);
    jw_end_object(&w);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

/* One line of the summary, on stderr if the rows go to stdout. */
static void print_line(const FilterJob *job, const char *name, int64_t n, int64_t rows) {
    double share = rows ? 100 * (double)n / (double)rows : 0;
    if (job->output)
        print_result("%-18s %10lld %6.1f %%\n", name, (long long)n, share);
    else
        show_line("%-18s %10lld %6.1f %%", name, (long long)n, share);
}

static void print_table(const FilterJob *job) {
    FilterCounts counts = filters_counts(job->filters, FILTER_BOTH);
    for (size_t i = 0; filters_at(job->filters, i); i++)
        print_line(job, filters_at(job->filters, i)->name, filters_at(job->filters, i)->rejected, counts.rows);
    if (job->select) print_line(job, "select", counts.kept - job->selected, counts.rows);
    print_line(job, "kept", job->select ? job->selected : counts.kept, counts.rows);
    print_line(job, "rows", counts.rows, counts.rows);
}

static Status filter_files(FilterJob *job) {
    Status status = ST_OK;
    for (size_t i = 0; status == ST_OK && i < job->command->n_arguments; i++) status = read_file(job, job->command->arguments[i]);
    if (status == ST_OK) status = flush(job);
    if (status == ST_OK && filters_counts(job->filters, FILTER_BOTH).rows == 0)
        status = status_fail(ST_INPUT, "'%s' has no rows", job->command->arguments[0]);
    if (status == ST_OK && job->select) status = choose_rows(job);
    for (size_t r = 0; r < job->n; r++) json_decref(job->held[r]);
    return status;
}

static Status check_options(const FilterJob *job) {
    if (job->select != NOT_GIVEN && job->select < 1) return status_fail(ST_USAGE, "--select must be 1 or more, not %lld", (long long)job->select);
    if (job->select == NOT_GIVEN && (job->quality || job->share || job->quotas.n))
        return status_fail(ST_USAGE, "--quality, --share and --quota need --select");
    const char *chat = chat_choice_first(&job->chat), *idle = job->adapter ? "--adapter" : job->compute ? "--compute" : job->as ? "--as" : chat;
    return idle && !job->model ? status_fail(ST_USAGE, "%s needs --model", idle) : ST_OK;
}

/* Checks that no output overwrites an input. Values of filters may be input files, too. */
static Status check_outputs(const FilterJob *job) {
    const char *const outputs[] = {job->output, job->rejected}, *const others[] = {job->recipe_file, job->model, job->adapter};
    for (size_t i = 0; i < COUNT_OF(outputs); i++) {
        TRY(check_output(outputs[i], job->command->arguments, job->command->n_arguments));
        TRY(check_output(outputs[i], job->seeds.items, job->seeds.n));
        TRY(check_output(outputs[i], job->values, COUNT_OF(job->values)));
        TRY(check_output(outputs[i], others, COUNT_OF(others)));
    }
    return ST_OK;
}

static Status cmd_data_filter_run(FilterJob *job) {
    TRY(command_needs(job->command, 1, COUNT_OF(job->command->arguments)));
    TRY(check_options(job));
    TRY(check_outputs(job));
    job->select = MAX(job->select, 0);
    TRY(select_pool_new(&job->pool));
    TRY(open_filters(job));
    TRY(result_open(&job->kept, job->output));
    Status status = result_open(&job->ledger, job->rejected);
    if (status == ST_OK) status = filter_files(job);
    if (status == ST_OK) status = result_flush(&job->ledger); /* both files appear, or neither */
    status = result_close(&job->kept, status);
    status = result_close(&job->ledger, status);
    TRY(status);
    if (job->command->json)
        print_json(job);
    else
        print_table(job);
    return ST_OK;
}

static void cmd_data_filter_release(FilterJob *job) {
    filters_close(job->filters);
    rewards_close(job->rewards);
    recipe_free(job->recipe);
    close_model(&job->opened);
    arena_free(job->texts);
    select_pool_free(job->pool);
    free(job);
}

/* Makes an option for each filter; its name has dashes instead of underscores. */
static void filter_options(FilterJob *job, Option *options, char (*names)[32]) {
    FilterHelp help;
    size_t n = 0;
    for (; filter_help_at(n, &help); n++) {
        size_t len = 2;
        names[n][0] = names[n][1] = '-';
        for (const char *c = help.name; *c && len + 1 < sizeof names[n]; c++) names[n][len++] = *c == '_' ? '-' : *c;
        names[n][len] = '\0';
        options[n] = (Option){names[n], OPTION_TEXT, &job->values[n], help.argument, help.help};
    }
    options[n] = (Option){0};
}

Status cmd_data_filter(int argc, char **argv) {
    FilterJob *job = calloc(1, sizeof *job);
    if (!job) return status_fail(ST_RESOURCE, "out of memory");
    Str help = {0};
    Command command = {.arguments_help = "FILE ..."};
    str_append(
        &help,
        "Writes the rows that pass every filter, as JSON lines in their order, and counts the others by reason. On by default: empty, length, refusal, exact, rouge_l. The value of a filter's option is its "
        "number or list, `true`, `false`, or `{option: value, ...}`. Rows may have any format with text. Similarity filters compare a row with --seeds and with the rows kept before it.\n"
        "    tune data filter rows.jsonl -o clean.jsonl --rejected rejected.jsonl --minhash 0.8 --words '{min: 4, max: 150}' --refusal false\n"
        "    tune data filter rows.jsonl -o train.jsonl --decontaminate test.jsonl --select 5000 --quality judge\n\nfilters and their options:\n");
    filters_write_help(&help);
    help.data[--help.len] = '\0';
    command.help = str_text(&help);
    const Option own[] = {
        {"-o", OPTION_TEXT, &job->output, "FILE", "write rows to FILE instead of stdout"},
        {"--rejected", OPTION_TEXT, &job->rejected, "FILE", "write the rejected rows to FILE, each with reason, score and nearest row"},
        {"--recipe", OPTION_TEXT, &job->recipe_file, "FILE",
         "use the filters of a recipe as tune data synth does (its preset's and synth.filters), and its rewards for the filter reward; options override them"},
        {"--seeds", OPTION_LIST, &job->seeds, "FILE", "rows that all others must differ from; repeatable"},
        {"--only", OPTION_FLAG, &job->only, NULL, "use only the filters that are named"},
        {"--select", OPTION_INT, &job->select, "N",
         "keep only the N best and most different rows that pass: greedily the largest quality x (1 - cosine to the nearest chosen row)"},
        {"--quality", OPTION_TEXT, &job->quality, "NAME", "column or filter whose number is the quality (all rows equal)"},
        {"--share", OPTION_TEXT, &job->share, "even|proportional|none", "how N is divided among the values of task_type (even)"},
        {"--quota", OPTION_LIST, &job->quotas, "TYPE=N", "number of rows of one task_type; repeatable"},
        {"--model", OPTION_TEXT, &job->model, "DIR", "model for the filters logprob and ifd"},
        {"--adapter", OPTION_TEXT, &job->adapter, "DIR", "PEFT adapter of that model"},
        {"--compute", OPTION_TEXT, &job->compute, "auto|f32|bf16", "precision of matrix products"},
        {"--as", OPTION_TEXT, &job->as, "auto|chat|text", "how that model reads rows of plain text, like data.as (auto)"},
        CHAT_OPTIONS(job->chat),
    };
    Option options[COUNT_OF(own) + FILTER_MOST + 1];
    char names[FILTER_MOST][32];
    memcpy(options, own, sizeof own);
    filter_options(job, options + COUNT_OF(own), names);
    job->command = &command;
    job->select = NOT_GIVEN;
    job->texts = arena_new(0);
    bool done = false;
    Status status = job->texts ? command_parse(&command, argc, argv, options, &done) : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && !done) status = cmd_data_filter_run(job);
    cmd_data_filter_release(job);
    str_release(&help);
    arena_free(command.arena);
    return status;
}
