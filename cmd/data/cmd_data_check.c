/* SPDX-License-Identifier: Apache-2.0 */
/* tune data check: shows a recipe's rows as training sees them, and warns of faults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/app.h"
#include "cmd/app/terminal.h"
#include "cmd/common/recipe_command.h"
#include "cmd/common/results.h"
#include "cmd/data/cmd_data.h"
#include "data/branches.h"
#include "data/check/check.h"
#include "lib/recipe/rejected.h"
#include "rl/offline/offline_rows.h"
#include "rl/pairs/preference.h"
#include "rl/text/prompts.h"
#include "rl/text/text_algorithm.h"

typedef struct Check {
    int64_t n_rows;
    const char *html;
    Recipe *recipe;
    RecipeRows rows;
    DataCheck found;
    Pairs *pairs; /* as the run reads them; NULL if it does not learn from preferences */
} Check;

/* ---- the tokens of a row with their text ---- */

typedef void TokenCallback(void *context, int32_t id, bool trained, bool special, const char *text, size_t len);

/* Calls `call` for each token. A character that spans several tokens is given with the last of them. Without a tokenizer, the text of a token is
 * its number. */
static Status each_token_of(const RecipeRows *rows, const Ids *ids, const Ids *labels, TokenCallback *call, void *context) {
    TextStream stream;
    Str text = {0};
    Status status = ST_OK;
    if (rows->tokenizer) stream_init(&stream, rows->tokenizer, false);
    for (size_t t = 0; t < ids->n && status == ST_OK; t++) {
        str_clear(&text);
        if (!rows->tokenizer)
            str_printf(&text, "%s%d", t ? " " : "", (int)ids->data[t]);
        else
            status = stream_push(&stream, ids->data[t], &text);
        if (rows->tokenizer && status == ST_OK && t + 1 == ids->n) status = stream_finish(&stream, &text);
        if (status == ST_OK)
            call(context, ids->data[t], labels->data[t] != LABEL_NONE, rows->tokenizer && tokenizer_is_special(rows->tokenizer, ids->data[t]),
                 str_text(&text), text.len);
    }
    if (rows->tokenizer) stream_release(&stream);
    str_release(&text);
    return status;
}

/* The same for text k of a row, all tokens that the model sees. */
static Status each_token(const RecipeRows *rows, const Dataset *dataset, size_t row, int32_t k, TokenCallback *call, void *context) {
    const Example example = dataset_example(dataset, row);
    Ids ids = {0}, labels = {0};
    example_text(&example, k, &ids, &labels);
    Status status = each_token_of(rows, &ids, &labels, call, context);
    ids_release(&ids);
    ids_release(&labels);
    return status;
}

static int32_t texts_of(const RecipeRows *rows, size_t row) {
    const Example example = dataset_example(rows->train, row);
    return example_texts(&example);
}

/* ---- the terminal ---- */

typedef struct Marks {
    const char *open, *close, *line_end, *bar;
} Marks;
static const Marks utf8_marks = {"«", "»", "⏎", "█"}, ascii_marks = {"<<", ">>", "\\n", "#"};
static const Marks *marks(void) { return terminal_is_utf8() ? &utf8_marks : &ascii_marks; }

typedef struct Paint {
    bool colour, trained;
} Paint;

/* Trained text is green, or between « and » without colours. Special tokens and line ends are marked. */
static void paint_token(void *context, int32_t id, bool trained, bool special, const char *text, size_t len) {
    Paint *paint = context;
    (void)id;
    if (!paint->colour && trained != paint->trained) print_result("%s", trained ? marks()->open : marks()->close);
    paint->trained = trained;
    char paints[16];
    if (paint->colour) print_raw(paints, (size_t)snprintf(paints, sizeof paints, "\033[%s%sm", trained ? "32;1" : "2", special ? ";7" : ""));
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\n')
            print_result("%s\n", marks()->line_end);
        else
            print_text(text[i] ? &text[i] : "?", 1);
    }
    if (paint->colour) print_raw("\033[0m", 4);
}

/* what: ", rejected" for the rejected answer of a pair, else "" */
static Status print_row(const Check *check, const Dataset *dataset, size_t i, const char *what) {
    const Example example = dataset_example(dataset, i);
    bool colour = screen_has_colour();
    int32_t n_texts = example_texts(&example);
    Str where = {0};
    dataset_where(dataset, i, &where);
    print_result("\n%s%s: %d token%s", str_text(&where), what, (int)example.n, plural(example.n));
    if (!check->rows.prompts) print_result(", %d trained", (int)example.trained);
    if (n_texts > 1) print_result(", in %d texts", (int)n_texts);
    if (colour || check->rows.prompts)
        print_result("\n");
    else
        print_result(" (in %s %s)\n", marks()->open, marks()->close);
    str_release(&where);
    for (int32_t k = 0; k < n_texts; k++) {
        Paint paint = {.colour = colour};
        if (n_texts > 1) print_result("-- %d of %d\n", (int)k + 1, (int)n_texts);
        TRY(each_token(&check->rows, dataset, i, k, paint_token, &paint));
        print_result("%s\n", !colour && paint.trained ? marks()->close : "");
    }
    return ST_OK;
}

/* The index of the row with the rejected answer of training row `i`; n if it was dropped. Rows are in the order of files and lines. */
static size_t rejected_row(const RecipeRows *rows, size_t i) {
    const Example wanted = dataset_example(rows->train, i);
    for (size_t k = 0; k < rows->rejected->n; k++) {
        const Example example = dataset_example(rows->rejected, k);
        if (example.file == wanted.file && example.line == wanted.line) return k;
    }
    return rows->rejected->n;
}

static Status print_sample(const Check *check) {
    const RecipeRows *rows = &check->rows;
    for (size_t i = 0; i < MIN(rows->train->n, (size_t)check->n_rows); i++) {
        TRY(print_row(check, rows->train, i, ""));
        size_t other = rows->rejected ? rejected_row(rows, i) : 0;
        if (rows->rejected && other < rows->rejected->n) TRY(print_row(check, rows->rejected, other, ", rejected"));
    }
    return ST_OK;
}

static int64_t largest_bar(const DataCheck *found) {
    int64_t most = 1;
    for (int i = 0; i < CHECK_BARS; i++) most = MAX(most, found->bars[i]);
    return most;
}

static int last_bar(const DataCheck *found) {
    int last = CHECK_BARS - 1;
    while (last > 0 && found->bars[last] == 0) last--;
    return last;
}

static void print_lengths(const Check *check) {
    enum { WIDTH = 50 };
    const DataCheck *found = &check->found;
    print_result("tokens a row");
    for (int i = 0; i < CHECK_SHARES; i++) {
        if (check_shares[i] == 0)
            print_result("  least %lld", (long long)found->percentiles[i]);
        else if (check_shares[i] == 100)
            print_result("  most %lld", (long long)found->percentiles[i]);
        else
            print_result("  %d%% %lld", check_shares[i], (long long)found->percentiles[i]);
    }
    print_result("  (data.max_length %lld)\n", (long long)check->recipe->data_max_length);
    for (int i = 0; i <= last_bar(found); i++) {
        int64_t n = (found->bars[i] * WIDTH + largest_bar(found) - 1) / largest_bar(found);
        print_result("  %6lld ", (long long)(found->bar_width * i));
        for (int64_t k = 0; k < n; k++) print_result("%s", marks()->bar);
        print_result(" %lld\n", (long long)found->bars[i]);
    }
}

static void print_line(void *context, const char *text) {
    (void)context;
    print_result("%s\n", text);
}

static int64_t count_dropped(const Check *check) {
    const DataCounts *train = &check->rows.train->counts;
    int64_t n = 0;
    for (int i = 0; check->pairs && i < PAIR_DROPS; i++) n += check->pairs->dropped[i];
    return check->pairs ? n : train->dropped_long + train->dropped_untrained;
}

static bool in_pairs(const Check *check) { return check->pairs && !check->pairs->alone; }

/* The rows that the run learns from. */
static int64_t count_rows(const Check *check) { return check->pairs ? (int64_t)check->pairs->n : check->rows.train->counts.rows; }

static int64_t count_cut(const Check *check) { return check->pairs ? check->pairs->cut : check->rows.train->counts.cut; }

static Status print_screen(const Check *check) {
    const DataCounts *train = &check->rows.train->counts;
    data_files_report(check->rows.train, print_line, NULL);
    if (check->rows.train->plain_as) print_result("plain texts: %s\n", check->rows.train->plain_as);
    data_turns_report(&check->rows.train->counts, "data.train", print_line, NULL);
    if (check->rows.eval) data_turns_report(&check->rows.eval->counts, "data.eval", print_line, NULL);
    if (check->rows.prompts)
        print_result("prompts %lld, tokens %lld\n", (long long)train->rows, (long long)train->tokens);
    else
        print_result("%s%lld%s tokens %lld, trained %lld (%.1f %%)\n", in_pairs(check) ? "pairs " : "rows ", (long long)count_rows(check),
                     in_pairs(check) ? "; chosen answers:" : ",", (long long)train->tokens, (long long)train->trained_tokens,
                     train->tokens ? 100 * (double)train->trained_tokens / (double)train->tokens : 0);
    if (check->rows.rejected)
        print_result("rejected answers: tokens %lld, trained %lld\n", (long long)check->rows.rejected->counts.tokens,
                     (long long)check->rows.rejected->counts.trained_tokens);
    print_result("dropped %lld, cut %lld, duplicates %lld, near-duplicates %lld", (long long)count_dropped(check), (long long)count_cut(check),
                 (long long)train->duplicates, (long long)check->found.near_duplicates);
    if ((size_t)check->found.compared < check->rows.train->n) print_result(" among the first %lld rows", (long long)check->found.compared);
    print_result("\n");
    if (check->rows.eval && check->rows.prompts)
        print_result("held out: %lld prompt%s\n", (long long)check->rows.eval->counts.rows, plural(check->rows.eval->counts.rows));
    else if (check->rows.eval)
        print_result("held out: %lld row%s, %lld trained token%s\n", (long long)check->rows.eval->counts.rows, plural(check->rows.eval->counts.rows),
                     (long long)check->rows.eval->counts.trained_tokens, plural(check->rows.eval->counts.trained_tokens));
    print_lengths(check);
    for (size_t i = 0; i < check->found.n_warnings; i++) print_result("warning: %s\n", check->found.warnings[i]);
    if (check->found.n_warnings == 0) print_result("nothing odd\n");
    return print_sample(check);
}

/* ---- JSON ---- */

typedef struct TokenLists {
    JsonWriter ids, trained, tokens;
} TokenLists;

static void list_token(void *context, int32_t id, bool trained, bool special, const char *text, size_t len) {
    TokenLists *lists = context;
    (void)special;
    jw_int(&lists->ids, NULL, id);
    jw_int(&lists->trained, NULL, trained);
    jw_string_n(&lists->tokens, NULL, text, len);
}

/* Finds the row number, from 0, of the first `n` examples within their files. An example knows only its line, so the rows before it are counted by
 * reading. Examples are in the order of files and lines, so each file is read once. */
typedef struct Numbering {
    const Dataset *dataset;
    size_t next, n, rows;
    uint32_t file;
    size_t *numbers;
} Numbering;

static Status number_row(void *context, const Row *row) {
    Numbering *of = context;
    Example example = dataset_example(of->dataset, of->next);
    if (example.line == row->line) {
        of->numbers[of->next++] = of->rows;
        if (of->next < of->n) example = dataset_example(of->dataset, of->next);
    }
    of->rows++;
    bool more = of->next < of->n && example.file == of->file;
    return more ? ST_OK : status_fail(ST_INTERRUPTED, "found"); /* all found: stops reading */
}

static Status number_bad(void *context, const Row *row) {
    (void)row;
    ((Numbering *)context)->rows++;
    return ST_OK;
}

static Status number_rows(const Dataset *dataset, size_t n, size_t *numbers) {
    Numbering of = {.dataset = dataset, .n = n, .numbers = numbers};
    while (of.next < n) {
        size_t before = of.next;
        of.file = dataset_example(dataset, before).file;
        of.rows = 0;
        const DataFile *file = &dataset->files[of.file];
        RowsConfig how = {.separator = dataset->sources[file->source].separator, .widen = true, .bad = number_bad};
        Status status = rows_read_as(file->path, &how, number_row, &of);
        if (of.next > before && (of.next == n || dataset_example(dataset, of.next).file != of.file)) continue;
        return status != ST_OK ? status : status_fail(ST_INPUT, "'%s' changed while it was read", file->path);
    }
    return ST_OK;
}

/* Appends text k of a row as JSON, with its number if the row has several texts. answer: "chosen" or "rejected" of a pair, else NULL. */
static Status write_text(const Check *check, const Dataset *dataset, size_t row, int32_t k, size_t number, const char *answer, Str *out) {
    TokenLists lists = {0};
    JsonWriter *all[] = {&lists.ids, &lists.trained, &lists.tokens};
    static const char *const names[] = {"ids", "trained", "tokens"};
    const Example example = dataset_example(dataset, row);
    int32_t n_texts = example_texts(&example);
    for (int i = 0; i < 3; i++) jw_array(all[i], NULL);
    Status status = each_token(&check->rows, dataset, row, k, list_token, &lists);
    str_printf(out, "%s{\"row\": %zu, \"file\": ", out->len ? ", " : "", number);
    const char *path = dataset->files[example.file].path;
    str_append_json(out, path, strlen(path));
    str_printf(out, ", \"line\": %u", (unsigned)example.line);
    if (answer) str_printf(out, ", \"answer\": \"%s\"", answer);
    if (n_texts > 1) str_printf(out, ", \"text\": %d, \"texts\": %d", (int)k + 1, (int)n_texts);
    for (int i = 0; i < 3; i++) {
        jw_end_array(all[i]);
        str_printf(out, ", \"%s\": %s", names[i], str_text(&all[i]->text));
        jw_release(all[i]);
    }
    str_append(out, "}");
    return status;
}

static Status write_row(const Check *check, size_t row, size_t number, Str *out) {
    const RecipeRows *rows = &check->rows;
    bool pair = rows->pairs && rows->rejected;
    size_t other = pair ? rejected_row(rows, row) : 0;
    for (int32_t k = 0; k < texts_of(rows, row); k++) TRY(write_text(check, rows->train, row, k, number, pair ? "chosen" : NULL, out));
    return pair && other < rows->rejected->n ? write_text(check, rows->rejected, other, 0, number, "rejected", out) : ST_OK;
}

static void write_head(const Check *check, JsonWriter *w) {
    const DataCounts *train = &check->rows.train->counts;
    const DataCheck *found = &check->found;
    jw_string(w, "format", check->rows.train->format);
    jw_string(w, "plain_as", check->rows.train->plain_as);
    jw_int(w, "rows", count_rows(check));
    jw_int(w, "tokens", train->tokens);
    jw_int(w, "trained_tokens", train->trained_tokens);
    if (check->rows.rejected) jw_int(w, "rejected_tokens", check->rows.rejected->counts.tokens);
    if (check->rows.rejected) jw_int(w, "rejected_trained_tokens", check->rows.rejected->counts.trained_tokens);
    if (check->recipe->rejected) jw_int(w, "rejected_rows", check->recipe->rejected->n);
    jw_int(w, "dropped", count_dropped(check));
    jw_int(w, "cut", count_cut(check));
    jw_int(w, "turned", train->turned);
    jw_int(w, "turns", train->turns);
    jw_int(w, "duplicates", train->duplicates);
    jw_int(w, "near_duplicates", found->near_duplicates);
    jw_int(w, "compared_rows", found->compared);
    jw_int(w, "eval_rows", check->rows.eval ? check->rows.eval->counts.rows : 0);
    jw_int(w, "overlapping_eval_rows", found->overlapping_eval);
    jw_object(w, "lengths");
    for (int i = 0; i < CHECK_SHARES; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", check_shares[i]);
        jw_int(w, name, found->percentiles[i]);
    }
    jw_end_object(w);
    jw_array(w, "warnings");
    for (size_t i = 0; i < found->n_warnings; i++) jw_string(w, NULL, found->warnings[i]);
    jw_end_array(w);
}

static Status print_json(const Check *check) {
    JsonWriter w = {0};
    Str sample = {0};
    size_t n = MIN(check->rows.train->n, (size_t)check->n_rows), *numbers = calloc(n + 1, sizeof *numbers);
    Status status = numbers ? number_rows(check->rows.train, n, numbers) : status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    jw_object(&w, NULL);
    write_head(check, &w);
    jw_end_object(&w);
    for (size_t i = 0; i < n && status == ST_OK; i++) status = write_row(check, i, numbers[i], &sample);
    free(numbers);
    /* the object without its closing brace, then the sample */
    if (status == ST_OK) print_result("%.*s, \"sample\": [%s]}\n", (int)(w.text.len - 1), str_text(&w.text), str_text(&sample));
    jw_release(&w);
    str_release(&sample);
    return status;
}

/* ---- a page ---- */

static const char page_style[] =
    "<style>:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--line:#d0d7de;--on:#0b6e3b;--onbg:#d7f5e1;--bar:#2f6fb5;--warn:#8a5300;--warnbg:#fff3d6}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--paper:#0f1419;--line:#30363d;--on:#7ee2a8;--onbg:#12351f;--bar:#5b9bdc;--warn:#f0c36d;--warnbg:#3a2c0c}}"
    "body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:right}th{font-weight:400;color:var(--soft);text-align:left}"
    ".warn{background:var(--warnbg);color:var(--warn);padding:.4rem .7rem;border-radius:.4rem;margin:.4rem 0}"
    ".row{white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.6 ui-monospace,monospace;border:1px solid var(--line);border-radius:.4rem;padding:.7rem;color:var(--soft)}"
    ".t{background:var(--onbg);color:var(--on)}.s{outline:1px solid currentColor;border-radius:.2rem;font-size:.85em}.bar{fill:var(--bar)}svg text{fill:var(--ink);font:13px system-ui,sans-serif}</style>";

static void append_html(Str *out, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '&')
            str_append(out, "&amp;");
        else if (c == '<')
            str_append(out, "&lt;");
        else if (c == '>')
            str_append(out, "&gt;");
        else if (c == '"')
            str_append(out, "&quot;");
        else if (c == '\0')
            str_append(out, "\xEF\xBF\xBD");
        else
            str_append_char(out, c);
    }
}

static void page_token(void *context, int32_t id, bool trained, bool special, const char *text, size_t len) {
    Str *out = context;
    (void)id;
    if (trained || special) str_printf(out, "<span class=\"%s%s%s\">", trained ? "t" : "", trained && special ? " " : "", special ? "s" : "");
    append_html(out, text, len);
    if (trained || special) str_append(out, "</span>");
}

static void page_bars(const DataCheck *found, Str *out) {
    int n = last_bar(found) + 1;
    str_printf(out, "<svg viewBox=\"0 0 640 %d\" role=\"img\" aria-label=\"rows by their number of tokens\" style=\"width:100%%;max-width:40rem\">",
               n * 24);
    for (int i = 0; i < n; i++) {
        double width = 460.0 * (double)found->bars[i] / (double)largest_bar(found);
        str_printf(
            out,
            "<text x=\"70\" y=\"%d\" text-anchor=\"end\">%lld+</text><rect class=\"bar\" x=\"80\" y=\"%d\" width=\"%.1f\" height=\"18\" rx=\"2\"/><text x=\"%.1f\" y=\"%d\">%lld</text>",
            i * 24 + 17, (long long)(found->bar_width * i), i * 24 + 3, width, 86 + width, i * 24 + 17, (long long)found->bars[i]);
    }
    str_append(out, "</svg>");
}

static void page_number(Str *out, const char *name, int64_t n) { str_printf(out, "<tr><th>%s</th><td>%lld</td></tr>", name, (long long)n); }

/* what: as in print_row */
static Status page_row(const Check *check, const Dataset *dataset, size_t i, const char *what, Str *out) {
    const Example example = dataset_example(dataset, i);
    Status status = ST_OK;
    Str where = {0};
    dataset_where(dataset, i, &where);
    str_append(out, "<p>");
    append_html(out, str_text(&where), where.len);
    str_printf(out, "%s</p>", what);
    for (int32_t k = 0; k < example_texts(&example) && status == ST_OK; k++) {
        str_append(out, "<div class=\"row\">");
        status = each_token(&check->rows, dataset, i, k, page_token, out);
        str_append(out, "</div>");
    }
    str_release(&where);
    return status;
}

static Status write_page(const Check *check) {
    const DataCounts *train = &check->rows.train->counts;
    Str out = {0};
    Status status = ST_OK;
    str_printf(
        &out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>rows of a recipe</title>%s<h1>What will be %s</h1><table>",
        page_style, check->rows.prompts ? "asked" : "trained");
    page_number(&out, in_pairs(check) ? "pairs" : "rows", count_rows(check));
    page_number(&out, "tokens", train->tokens);
    if (!check->rows.prompts) page_number(&out, "trained tokens", train->trained_tokens);
    page_number(&out, "dropped", count_dropped(check));
    page_number(&out, "cut", count_cut(check));
    if (train->turned) page_number(&out, "conversations trained turn by turn", train->turned);
    if (train->turned) page_number(&out, "their answers", train->turns);
    page_number(&out, "duplicates", train->duplicates);
    page_number(&out, "near-duplicates", check->found.near_duplicates);
    page_number(&out, "rows compared for them", check->found.compared);
    str_append(&out, "</table>");
    if (check->rows.train->plain_as) str_printf(&out, "<p>Plain texts: %s.</p>", check->rows.train->plain_as);
    for (size_t i = 0; i < check->found.n_warnings; i++) {
        str_append(&out, "<p class=\"warn\">");
        append_html(&out, check->found.warnings[i], strlen(check->found.warnings[i]));
        str_append(&out, "</p>");
    }
    str_append(&out, "<h2>Tokens a row</h2>");
    page_bars(&check->found, &out);
    str_append(&out, check->rows.prompts ? "<h2>The first prompts</h2>" : "<h2>The first rows: what is trained is marked</h2>");
    for (size_t i = 0; i < MIN(check->rows.train->n, (size_t)check->n_rows) && status == ST_OK; i++) {
        size_t other = check->rows.rejected ? rejected_row(&check->rows, i) : 0;
        status = page_row(check, check->rows.train, i, "", &out);
        if (status == ST_OK && check->rows.rejected && other < check->rows.rejected->n)
            status = page_row(check, check->rows.rejected, other, ", rejected", &out);
    }
    str_append(&out, "</html>\n");
    if (status == ST_OK) status = file_write_all(check->html, str_text(&out), out.len);
    str_release(&out);
    if (status == ST_OK) show_line("wrote %s", check->html);
    return status;
}

/* ---- the command ---- */

/* The same decision as tune rl's: an algorithm for text that samples answers and scores them. */
static bool learns_from_prompts(const Recipe *recipe) {
    return (recipe->has_rl || recipe->reward) && !recipe->has_synth && !recipe->rl_env && text_algorithm_find(recipe->rl_algorithm) &&
           !preference_algorithm(recipe->rl_algorithm);
}

/* Prints the run's warnings about rows that it drops, or that lack the columns of its rewards, for training and evaluation prompts. */
static Status try_prompts(const Recipe *recipe, const ModelConfig *config, const Chat *chat, const Tokenizer *tokenizer, RewardSet *rewards) {
    const char *keys[] = {"data.train", NULL};
    YamlNode nodes[] = {recipe->data_train, recipe_eval_rows(recipe, &keys[1])};
    Status status = ST_OK;
    for (size_t i = 0; i < COUNT_OF(nodes) && nodes[i] && status == ST_OK; i++) {
        PromptSet set = {0};
        status = prompts_read(nodes[i], keys[i], recipe, config, chat, tokenizer, &set);
        if (status == ST_OK) status = prompts_check(&set, rewards, recipe->rejected);
        prompts_free(&set);
    }
    return status;
}

/* Reads the prompts twice: as the run does, for its warnings; then as examples, to count and show them. */
static Status open_prompts(const Recipe *recipe, const ModelConfig *config, RecipeRows *rows) {
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    RewardSet *rewards = NULL;
    const RewardOptions options = {.max_new_tokens = recipe->generate_max_new_tokens, .check_only = true};
    Status status = recipe->reward ? rewards_open(recipe->reward, recipe->path, &options, &rewards) : ST_OK;
    if (status == ST_OK) status = tokenizer_load_if_any(recipe->model_path, &tokenizer);
    if (status == ST_OK) status = chat_open_recipe(recipe, tokenizer, &chat);
    if (status == ST_OK) status = try_prompts(recipe, config, chat, tokenizer, rewards);
    chat_close(chat);
    tokenizer_free(tokenizer);
    rewards_close(rewards);
    RejectedMark mark = rejected_mark(recipe->rejected); /* the second reading must not list rejected rows again */
    if (status == ST_OK) status = recipe_prompts_open(recipe, config, NULL, rows);
    rejected_rewind(recipe->rejected, mark);
    return status;
}

static bool learns_offline(const Recipe *recipe) { return recipe->has_rl && !recipe->rl_env && strcmp(recipe->rl_algorithm, "ilql") == 0; }

/* Reads the rows twice: as the run does, with their rewards; then as examples. */
static Status open_offline(const Recipe *recipe, const ModelConfig *config, RecipeRows *rows) {
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    OfflineRows read = {0};
    Status status = tokenizer_load_if_any(recipe->model_path, &tokenizer);
    if (status == ST_OK) status = chat_open_recipe(recipe, tokenizer, &chat);
    if (status == ST_OK) status = offline_rows_read(recipe, config, chat, tokenizer, &read);
    offline_rows_free(&read);
    chat_close(chat);
    tokenizer_free(tokenizer);
    RejectedMark mark = rejected_mark(recipe->rejected);
    if (status == ST_OK) status = recipe_rows_open(recipe, config, NULL, rows);
    rejected_rewind(recipe->rejected, mark);
    return status;
}

/* Reads the pairs twice: as the run does, for its warnings about dropped rows; then each answer as an example. */
static Status open_pairs(Check *check, const ModelConfig *config) {
    const Recipe *recipe = check->recipe;
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    PreferenceConfig settings;
    const PreferenceLoss *loss;
    TRY(preference_configure(recipe, preference_algorithm(recipe->rl_algorithm), &settings, &loss));
    Status status = tokenizer_load_if_any(recipe->model_path, &tokenizer);
    if (status == ST_OK) status = chat_open_recipe(recipe, tokenizer, &chat);
    PairSource source = {.model = config, .tokenizer = tokenizer, .chat = chat, .unpaired = !loss, .reader = recipe->rl_algorithm};
    if (status == ST_OK) status = pairs_load(recipe, "data.train", recipe->data_train, &source, &check->pairs);
    chat_close(chat);
    tokenizer_free(tokenizer);
    RejectedMark mark = rejected_mark(recipe->rejected);
    if (status == ST_OK) status = recipe_pairs_open(recipe, config, NULL, &check->rows);
    rejected_rewind(recipe->rejected, mark);
    return status;
}

static Status open_rows(Check *check, const ModelConfig *config) {
    const Recipe *recipe = check->recipe;
    if (learns_from_prompts(recipe)) return open_prompts(recipe, config, &check->rows);
    if (learns_offline(recipe)) return open_offline(recipe, config, &check->rows);
    if (recipe->has_rl && !recipe->rl_env && preference_algorithm(recipe->rl_algorithm)) return open_pairs(check, config);
    TRY(recipe_rows_open(recipe, config, NULL, &check->rows));
    RejectedMark mark = rejected_mark(recipe->rejected);
    Status status = recipe_rejected_open(recipe, config, &check->rows); /* the rejected answers, for tune reward; tune sft does not read them */
    rejected_rewind(recipe->rejected, mark);
    if (status != ST_INPUT) return status;
    data_check_warn(&check->found, "rejected answers: %s", status_text());
    return ST_OK;
}

static void note_pairs(void *context, const char *text) { data_check_warn(context, "%s", text); }

static Status check_rows(const Command *command, Check *check, Arena *arena) {
    ModelConfig config = {0};
    if (!check->recipe->model_path) return status_hint(status_fail(ST_CONFIG, "'model.path' is missing"), "name a Hugging Face model directory");
    TRY(model_config_read(check->recipe->model_path, arena, &config)); /* the weights are not read */
    TRY(open_rows(check, &config));
    Str rejected = {0};
    if (rejected_describe(check->recipe->rejected, &rejected)) data_check_warn(&check->found, "%s", str_text(&rejected));
    str_release(&rejected);
    if (check->pairs) pairs_report(check->pairs, check->recipe, "data.train", note_pairs, &check->found);
    TRY(data_check(&check->rows, &config, &check->found));
    TRY(command->json ? print_json(check) : print_screen(check));
    if (check->html) TRY(write_page(check));
    if (!check->found.wrong) return ST_OK;
    status_fail(ST_INPUT, "the model would learn nothing useful from these rows");
    return status_hint(ST_INPUT, "the warnings say why");
}

static Status check_recipe(const Command *command, void *context) {
    Check *check = context;
    if (command->n_arguments == 0) return status_hint(status_fail(ST_USAGE, "tune data check needs a RECIPE"), "tune data check --help explains it");
    if (check->n_rows < 0) return status_fail(ST_USAGE, "--rows must be 0 or more, not %lld", (long long)check->n_rows);
    TRY(check_page(check->html));
    TRY(command_recipe(command, &check->recipe));
    check->recipe->program = tune_program;
    use_threads(command->threads ? command->threads : check->recipe->threads);
    Arena *arena = arena_new(0);
    Status status = arena ? check_rows(command, check, arena) : status_fail(ST_RESOURCE, "out of memory");
    data_check_release(&check->found);
    pairs_free(check->pairs);
    recipe_rows_close(&check->rows);
    recipe_free(check->recipe);
    arena_free(arena);
    return status;
}

Status cmd_data_check(int argc, char **argv) {
    Check check = {.n_rows = 3};
    static const char *const sections[] = {"", "model", "data", NULL};
    Command command = {
        .arguments_help = "RECIPE [KEY=VALUE ...]",
        .sections = sections,
        .help =
            "Shows what training would see: rows, tokens, lengths, rows that are dropped, cut or duplicate, and the first rows with every trained token marked. Warns about answers whose end token is "
            "never trained, a double BOS, a template whose tokens the tokenizer does not know, near-duplicate rows, and evaluation rows that are also in the training data. The exit code is 4 if the model would learn "
            "nothing useful from the rows. The model's weights are not needed. For a recipe that learns by rewards it shows the prompts as they are asked, and whether the rows have the columns that the rewards need.\n"
            "    tune data check recipes/demo/sft.yaml --rows 5",
    };
    const Option options[] = {
        {"--rows", OPTION_INT, &check.n_rows, "N", "number of rows to show (3)"},
        {"--html", OPTION_TEXT, &check.html, "FILE", "also write it as an HTML page"},
        {0},
    };
    return command_main(&command, argc, argv, options, check_recipe, &check);
}
