/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of a synthesis run: dataset_card.md and report.html, made from rows.jsonl, rejected.jsonl and the summary. */
#include "data/synth/synth_parts.h"
#include "lib/run/report_parts.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BARS = 16, PAIRS_SHOWN = 20, SAMPLES = 12, REJECTED_SHOWN = 3 };

/* A histogram with bars of equal width; the last bar also counts all larger numbers. */
typedef struct Histogram {
    double width;
    int64_t bars[BARS], n;
    double sum;
} Histogram;
typedef struct Pair {
    char *text;
    int64_t n;
} Pair; /* "write letter" */
typedef struct Page {
    const Synth *s;
    const json_t *summary;
    Histogram prompts, answers, likeness; /* words, words, ROUGE-L of the most similar row */
    char **pairs;                         /* one for each row, sorted at the end */
    size_t n_pairs;
    Pair *common; /* PAIRS_SHOWN or fewer */
    size_t n_common, n_different;
} Page;

/* The settings that determine the rows: a resumed run makes the same ones. */
static void append_command(const Synth *s, Str *text) {
    static const char option[] = " --resume";
    const char *command = s->config->options.command, *at = command ? strstr(command, option) : NULL;
    if (at && at[sizeof option - 1] && at[sizeof option - 1] != ' ') at = NULL;
    if (at) str_append_n(text, command, (size_t)(at - command));
    if (command) str_append(text, at ? at + sizeof option - 1 : command);
}

/* ---- numbers ---- */

static void histogram_add(Histogram *h, double value) {
    if (isnan(value)) return;
    int bar = (int)fmin(fmax(value / h->width, 0), BARS - 1);
    h->bars[bar]++;
    h->n++;
    h->sum += value;
}

static int64_t count_words(const char *text) {
    int64_t n = 0;
    for (bool in = false; *text; text++) {
        bool blank = isspace((unsigned char)*text);
        n += !blank && !in;
        in = !blank;
    }
    return n;
}

/* A width such that the bars cover twice the mean: 1, 2 or 5 times a power of ten. */
static double nice_width(double mean) {
    double wanted = fmax(2.5 * mean / BARS, 1), power = pow(10, floor(log10(wanted)));
    for (double step = 1; step <= 5; step += step == 1 ? 1 : 3)
        if (step * power >= wanted) return step * power;
    return 10 * power;
}

static void measure_lengths(Page *page) {
    const Synth *s = page->s;
    double prompts = 0, answers = 0;
    for (size_t i = 0; i < s->n_rows; i++) prompts += (double)count_words(s->rows[i].prompt), answers += (double)count_words(s->rows[i].output);
    page->prompts.width = nice_width(prompts / (double)MAX(s->n_rows, 1));
    page->answers.width = nice_width(answers / (double)MAX(s->n_rows, 1));
    page->likeness.width = 1.0 / BARS;
    for (size_t i = 0; i < s->n_rows; i++) {
        histogram_add(&page->prompts, (double)count_words(s->rows[i].prompt));
        histogram_add(&page->answers, (double)count_words(s->rows[i].output));
    }
}

/* ---- verbs and their objects ---- */

static bool is_one_of(const char *word, const char *const *list) {
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

/* The next word in lower case; false at the end. */
static bool next_word(const char **at, char out[32]) {
    size_t n = 0;
    while (**at && !isalpha((unsigned char)**at)) (*at)++;
    for (; isalpha((unsigned char)**at) || (n && **at == '\'' && isalpha((unsigned char)(*at)[1])); (*at)++)
        if (n < 31) out[n++] = (char)tolower((unsigned char)**at);
    out[n] = '\0';
    return n > 0;
}

/* The first word that is no polite phrase, and the first later word that may be its object. This is no parser, but shows whether all rows ask for the
 * same. */
static char *verb_and_noun(const char *instruction) {
    static const char *const polite[] = {"please", "can", "could", "would", "you", "i", "want", "need", "to", "kindly", "help", "me", "us", NULL};
    static const char *const between[] = {"a",     "an",   "the",   "this", "these", "those",  "that", "following", "given", "of",  "for",
                                          "me",    "us",   "to",    "in",   "on",    "my",     "your", "some",      "all",   "one", "two",
                                          "three", "new",  "short", "good", "best",  "simple", "and",  "is",        "are",   "i",   "you",
                                          "it",    "with", "from",  "by",   "at",    "as",     "do",   "does",      NULL};
    char verb[32], noun[32];
    bool found = false;
    while ((found = next_word(&instruction, verb)) && is_one_of(verb, polite)) {}
    if (!found) return NULL;
    while ((found = next_word(&instruction, noun)) && is_one_of(noun, between)) {}
    Str text = {0};
    str_printf(&text, "%s%s%s", verb, found ? " " : "", found ? noun : "");
    return text.data;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static int by_count(const void *a, const void *b) {
    const Pair *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : strcmp(x->text, y->text);
}

static Status count_pairs(Page *page) {
    const Synth *s = page->s;
    page->pairs = calloc(MAX(s->n_rows, 1), sizeof *page->pairs);
    page->common = calloc(MAX(s->n_rows, 1), sizeof *page->common);
    if (!page->pairs || !page->common) return status_fail(ST_RESOURCE, "out of memory for the report");
    for (size_t i = 0; i < s->n_rows; i++) {
        char *pair = verb_and_noun(s->rows[i].instruction);
        if (pair) page->pairs[page->n_pairs++] = pair;
    }
    if (page->n_pairs) qsort(page->pairs, page->n_pairs, sizeof *page->pairs, by_text);
    for (size_t i = 0; i < page->n_pairs; i++) {
        if (i == 0 || strcmp(page->pairs[i], page->pairs[i - 1]) != 0) page->common[page->n_different++] = (Pair){page->pairs[i], 0};
        page->common[page->n_different - 1].n++;
    }
    if (page->n_different) qsort(page->common, page->n_different, sizeof *page->common, by_count);
    page->n_common = MIN(page->n_different, (size_t)PAIRS_SHOWN);
    return ST_OK;
}

/* ---- from the run directory ---- */

static Status read_likeness(void *context, const Row *row) {
    Page *page = context;
    const json_t *score = json_object_get(json_object_get(json_object_get(row->json, "provenance"), "scores"), "rouge_l");
    if (score) histogram_add(&page->likeness, json_number_value(score));
    return ST_OK;
}

/* ---- HTML ---- */

static void add_bar(Str *out, const char *name, double n, double most) {
    str_append(out, "<tr><td class=\"k\">");
    html_text(out, name);
    str_printf(out, "</td><td style=\"width:100%%\"><div class=\"bar c0\"><i style=\"width:%.2f%%\"></i></div></td><td class=\"n\">%.10g</td></tr>\n",
               most > 0 ? 100 * n / most : 0, n);
}

static void add_histogram(Str *out, const char *title, const char *unit, const Histogram *h) {
    int64_t most = 0;
    int last = 0;
    if (h->n == 0) return;
    for (int i = 0; i < BARS; i++) {
        most = MAX(most, h->bars[i]);
        if (h->bars[i]) last = i;
    }
    str_printf(out, "<div><h3>%s</h3><p class=\"soft\">mean %s %s</p><table>", title, NUMBER(h->sum / (double)h->n), unit);
    for (int i = 0; i <= last; i++) {
        Str name = {0};
        str_printf(&name, i == BARS - 1 ? "%s and more" : "%s to %s", NUMBER(i * h->width), NUMBER((i + 1) * h->width));
        add_bar(out, str_text(&name), (double)h->bars[i], (double)most);
        str_release(&name);
    }
    str_append(out, "</table></div>\n");
}

static void add_counts(Str *out, const char *title, const json_t *counts) {
    const char *name;
    json_t *value;
    double most = 0;
    if (json_object_size(counts) == 0) return;
    json_object_foreach((json_t *)counts, name, value) most = fmax(most, json_number_value(value));
    str_printf(out, "<div><h3>%s</h3><table>", title);
    json_object_foreach((json_t *)counts, name, value) add_bar(out, name, json_number_value(value), most);
    str_append(out, "</table></div>\n");
}

/* For stages and task types: how many were made, and how many were used further. */
static void add_shares(Str *out, const char *title, const json_t *counts, const char *made_name) {
    const char *name;
    json_t *value;
    str_printf(out, "<div><h3>%s</h3><table><tr><th></th><th class=\"n\">%s</th><th class=\"n\">kept</th><th class=\"n\">share</th></tr>", title,
               made_name);
    json_object_foreach((json_t *)counts, name, value) {
        double made = json_number_value(json_object_get(value, "made")), kept = json_number_value(json_object_get(value, "kept"));
        str_append(out, "<tr><td>");
        html_text(out, name);
        str_printf(out, "</td><td class=\"n\">%.10g</td><td class=\"n\">%.10g</td><td class=\"n\">%.3g %%</td></tr>\n", made, kept,
                   made > 0 ? 100 * kept / made : 0);
    }
    str_append(out, "</table></div>\n");
}

static void add_tile(Str *out, const char *name, const char *value) {
    str_append(out, "<div class=\"tile\"><span>");
    html_text(out, name);
    str_append(out, "</span><b>");
    html_text(out, value);
    str_append(out, "</b></div>");
}

static double synth_page_number(const Page *page, const char *key) { return json_number_value(json_object_get(page->summary, key)); }

static void add_tiles(const Page *page, Str *out) {
    char seconds[32];
    const struct {
        const char *name;
        double value;
        const char *unit;
    } tiles[] = {
        {"rows", synth_page_number(page, "rows"), ""},
        {"candidates", synth_page_number(page, "candidates"), ""},
        {"kept", 100 * synth_page_number(page, "acceptance"), " %"},
        {"requests", synth_page_number(page, "requests"), ""},
        {"tokens answered", synth_page_number(page, "tokens"), ""},
        {"cost", synth_page_number(page, "cost"), ""},
    };
    str_append(out, "<div class=\"tiles\">");
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        Str text = {0};
        str_printf(&text, "%s%s", NUMBER(tiles[i].value), tiles[i].unit);
        if (tiles[i].value == floor(tiles[i].value)) str_clear(&text), str_printf(&text, "%.0f%s", tiles[i].value, tiles[i].unit);
        add_tile(out, tiles[i].name, str_text(&text));
        str_release(&text);
    }
    add_tile(out, "time", format_seconds(synth_page_number(page, "seconds"), seconds));
    str_append(out, "</div>\n");
}

static void add_pairs(const Page *page, Str *out) {
    if (page->n_common == 0) return;
    str_printf(
        out,
        "<div><h3>What is asked for</h3><p class=\"soft\">%zu different pair%s of a verb and a noun among %zu instruction%s; the commonest:</p><table>",
        page->n_different, plural((int64_t)page->n_different), page->n_pairs, plural((int64_t)page->n_pairs));
    for (size_t i = 0; i < page->n_common; i++) add_bar(out, page->common[i].text, (double)page->common[i].n, (double)page->common[0].n);
    str_append(out, "</table></div>\n");
}

static void add_samples(const Page *page, Str *out) {
    const Synth *s = page->s;
    size_t n = MIN(s->n_rows, (size_t)SAMPLES);
    str_append(out, "<h2>Rows</h2>\n<table><tr><th>type</th><th>prompt</th><th>answer</th></tr>");
    for (size_t i = 0; i < n; i++) {
        const SynthRow *row = &s->rows[i * s->n_rows / n];
        const char *texts[] = {row->type, row->prompt, row->output};
        str_append(out, "<tr>");
        for (size_t k = 0; k < COUNT_OF(texts); k++) {
            size_t len = strlen(texts[k]), shown = len > 800 ? utf8_whole_prefix(texts[k], 800) : len;
            str_append(out, k ? "<td style=\"white-space:pre-wrap\">" : "<td>");
            html_text_n(out, texts[k], shown);
            str_append(out, shown < len ? "...</td>" : "</td>");
        }
        str_append(out, "</tr>\n");
    }
    str_append(out, "</table>\n");
}

/* The first few rejected rows of each reason. */
typedef struct Ledger {
    const Page *page;
    Str *out;
    int64_t *shown;
} Ledger;

static const char *asked(const json_t *row) {
    const char *text = json_string_value(json_object_get(row, "instruction"));
    if (!text) text = json_string_value(json_object_get(row, "prompt"));
    const json_t *messages = json_object_get(row, "messages") ? json_object_get(row, "messages") : json_object_get(row, "prompt"), *message;
    size_t i;
    if (!text) json_array_foreach(messages, i, message) {
            const char *role = json_string_value(json_object_get(message, "role"));
            if (role && strcmp(role, "user") == 0) text = json_string_value(json_object_get(message, "content"));
        }
    return text ? text : "";
}

static Status show_rejected(void *context, const Row *row) {
    Ledger *ledger = context;
    const Synth *s = ledger->page->s;
    const char *reason = json_string_value(json_object_get(row->json, "reason")), *text = asked(json_object_get(row->json, "row"));
    const char *nearest = json_string_value(json_object_get(json_object_get(row->json, "nearest"), "text"));
    size_t i = 0;
    while (reason && i < s->counts.n_reasons && strcmp(s->counts.reasons[i].name, reason) != 0) i++;
    if (!reason || i == s->counts.n_reasons || ledger->shown[i]++ >= REJECTED_SHOWN) return ST_OK;
    str_append(ledger->out, "<tr><td class=\"k\">");
    html_text(ledger->out, reason);
    str_append(ledger->out, "</td><td style=\"white-space:pre-wrap\">");
    html_text_n(ledger->out, text, strlen(text) > 400 ? utf8_whole_prefix(text, 400) : strlen(text));
    if (nearest) {
        str_append(ledger->out, "<small>nearest: ");
        html_text_n(ledger->out, nearest, strlen(nearest) > 200 ? utf8_whole_prefix(nearest, 200) : strlen(nearest));
        str_append(ledger->out, "</small>");
    }
    str_append(ledger->out, "</td></tr>\n");
    return ST_OK;
}

static Status add_rejected(const Page *page, Str *out) {
    const Synth *s = page->s;
    if (s->counts.rejected == 0) return ST_OK;
    Ledger ledger = {page, out, calloc(MAX(s->counts.n_reasons, 1), sizeof *ledger.shown)};
    str_append(out, "<h2>What was rejected</h2>\n<table>");
    Status status = ledger.shown ? rows_read(run_path(s->run, "rejected.jsonl"), show_rejected, &ledger)
                                 : status_fail(ST_RESOURCE, "out of memory for the report");
    str_append(out, "</table>\n");
    free(ledger.shown);
    return status;
}

static Status write_page(const Page *page) {
    const Synth *s = page->s;
    Str out = {0};
    str_append(
        &out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>");
    html_text(&out, s->recipe->output);
    str_printf(&out, "</title><style>\n%s</style></head>\n<body><main>\n<h1>", report_style);
    html_text(&out, s->recipe->output);
    str_append(&out, "</h1>\n<p class=\"path\">");
    html_text(&out, s->preset->name);
    str_append(&out, ": ");
    html_text(&out, s->preset->help);
    str_append(&out, "</p>\n");
    Str command = {0};
    append_command(s, &command);
    if (command.len > 0) html_element(&out, "code class=\"command\"", str_text(&command));
    str_release(&command);
    add_tiles(page, &out);
    str_append(&out, "<h2>How many, and why not more</h2>\n<div class=\"columns\">");
    add_shares(&out, "Task types", json_object_get(page->summary, "task_types"), "candidates");
    add_shares(&out, "Stages", json_object_get(page->summary, "stages"), "answers");
    add_counts(&out, "Reasons for rejection", json_object_get(page->summary, "rejected"));
    str_append(&out, "</div>\n<h2>What the rows are like</h2>\n<div class=\"columns\">");
    add_histogram(&out, "Words of a prompt", "words", &page->prompts);
    add_histogram(&out, "Words of an answer", "words", &page->answers);
    add_pairs(page, &out);
    add_histogram(&out, "Likeness to the nearest seed or row (ROUGE-L)", "", &page->likeness);
    str_append(&out, "</div>\n");
    add_samples(page, &out);
    Status status = add_rejected(page, &out);
    str_append(&out, "</main></body></html>\n");
    if (status == ST_OK) status = file_write_all(run_path(s->run, "report.html"), str_text(&out), out.len);
    str_release(&out);
    return status;
}

/* ---- the card ---- */

static void card_table(Str *out, const char *head, const json_t *counts) {
    const char *name;
    json_t *value;
    str_append(out, head);
    json_object_foreach((json_t *)counts, name, value) {
        if (json_is_object(value))
            str_printf(out, "| %s | %lld | %lld |\n", name, (long long)json_integer_value(json_object_get(value, "made")),
                       (long long)json_integer_value(json_object_get(value, "kept")));
        else
            str_printf(out, "| %s | %lld |\n", name, (long long)json_integer_value(value));
    }
    str_append(out, "\n");
}

static void card_teacher(Str *out, const char *what, const TeacherConfig *c) {
    str_printf(out, "- %s: `%s`%s%s\n", what, c->replay ? c->replay : c->model,
               c->url      ? ", a server"
               : c->replay ? ", a log that was replayed"
                           : "",
               c->base ? ", continuing texts" : "");
    if (c->adapter) str_printf(out, "- adapter of the %s: `%s`\n", what, c->adapter);
    json_t *values = teacher_kwargs(c);
    char *text = values ? json_text(values, 0) : NULL;
    if (text) str_printf(out, "- its chat template gets `%s`\n", text);
    free(text);
    json_decref(values);
}

static Status write_card(const Page *page) {
    const Synth *s = page->s;
    Str out = {0};
    str_printf(&out, "# %s\n\nSynthetic rows, made by `tune data synth` with the preset `%s`: %s. Not checked by people.\n\n",
               path_name(s->recipe->output), s->preset->name, s->preset->help);
    Str command = {0};
    append_command(s, &command);
    if (command.len > 0) str_printf(&out, "    %s\n\n", str_text(&command));
    str_release(&command);
    str_printf(&out, "- rows: %zu of %lld asked for, in `rows.jsonl` (format `%s`)\n", s->n_rows, (long long)s->recipe->synth_num_rows,
               synth_format_text(s->recipe->synth_format));
    if (json_object_get(page->summary, "selected"))
        str_printf(&out, "- chosen of them: %lld, in `selected.jsonl`: the best and most different ones\n",
                   (long long)synth_page_number(page, "selected"));
    str_printf(&out, "- candidates: %lld, of which %.3g %% were kept; the others are in `rejected.jsonl`, each with its reason\n",
               (long long)s->counts.made, 100 * synth_page_number(page, "acceptance"));
    if (s->recipe->synth_seeds) str_printf(&out, "- seeds: %zu, from `%s`\n", s->seeds.n, s->recipe->synth_seeds);
    card_teacher(&out, "teacher", &s->teacher_config);
    if (s->judge) card_teacher(&out, "judge", &s->judge_config);
    str_printf(&out, "- requests: %lld, with %lld token%s asked and %lld answered; all in `requests.jsonl`\n", (long long)s->counts.requests,
               (long long)s->counts.prompt_tokens, plural(s->counts.prompt_tokens), (long long)s->counts.tokens);
    str_printf(&out, "- seed of all random choices: %lld; each row's `provenance` says what it was made from\n\n", (long long)s->recipe->seed);
    if (s->exhausted && (int64_t)s->n_rows < s->recipe->synth_num_rows)
        str_append(&out, "The seeds gave no more to ask, so there are fewer rows than were asked for.\n\n");
    card_table(&out, "| task type | candidates | kept |\n|---|---|---|\n", json_object_get(page->summary, "task_types"));
    card_table(&out, "| stage | answers | went on |\n|---|---|---|\n", json_object_get(page->summary, "stages"));
    if (s->counts.n_reasons) card_table(&out, "| rejected for | rows |\n|---|---|\n", json_object_get(page->summary, "rejected"));
    str_printf(&out, "Prompts have %s words on average, answers %s. %zu different pair%s of a verb and a noun are asked for in %zu instruction%s",
               format_number(page->prompts.sum / (double)MAX(page->prompts.n, 1), 3, (char[32]){0}),
               format_number(page->answers.sum / (double)MAX(page->answers.n, 1), 3, (char[32]){0}), page->n_different,
               plural((int64_t)page->n_different), page->n_pairs, plural((int64_t)page->n_pairs));
    for (size_t i = 0; i < MIN(page->n_common, 5); i++)
        str_printf(&out, "%s%s (%lld)", i ? ", " : ": ", page->common[i].text, (long long)page->common[i].n);
    str_append(&out, ".\n");
    Status status = file_write_all(run_path(s->run, "dataset_card.md"), str_text(&out), out.len);
    str_release(&out);
    return status;
}

Status synth_pages_write(const Synth *s, const json_t *summary) {
    Page page = {.s = s, .summary = summary};
    measure_lengths(&page);
    Status status = count_pairs(&page);
    if (status == ST_OK) status = rows_read(run_path(s->run, "rows.jsonl"), read_likeness, &page);
    if (status == ST_OK) status = write_card(&page);
    if (status == ST_OK) status = write_page(&page);
    for (size_t i = 0; i < page.n_pairs; i++) free(page.pairs[i]);
    free(page.pairs);
    free(page.common);
    return status;
}
