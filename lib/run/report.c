/* SPDX-License-Identifier: Apache-2.0 */
/* The page: key numbers, curves, data with the mask, samples, speed and memory, settings. */
#include "lib/run/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/run/report_parts.h"

/* ---- helpers ---- */

static const char *text_in(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) ? json_string_value(value) : NULL;
}

/* 1234567 -> 1 234 567 with thin spaces. */
static void append_count(Str *out, double value) {
    char digits[32];
    if (!(fabs(value) < 1e15)) {
        append_number(out, value);
        return;
    }
    int len = snprintf(digits, sizeof digits, "%.0f", value);
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0 && digits[i - 1] != '-') str_append(out, "\xE2\x80\xAF");
        str_append_char(out, digits[i]);
    }
}

static void PRINTF_LIKE(4, 5) report_tile(Str *html, const char *label, const Str *value, const char *format, ...) {
    char below[256];
    va_list args;
    va_start(args, format);
    vsnprintf(below, sizeof below, format, args);
    va_end(args);
    str_append(html, "<div class=\"tile\">");
    html_element(html, "span", label);
    html_element(html, "b", str_text(value));
    html_element(html, "span", below);
    str_append(html, "</div>\n");
}

static void cell(Str *html, const Str *text) { html_element(html, "td class=\"n\"", str_text(text)); }

static void cell_number(Str *html, double value) {
    Str text = {0};
    append_number(&text, value);
    cell(html, &text);
    str_release(&text);
}

static void cell_count(Str *html, double value) {
    Str text = {0};
    append_count(&text, value);
    cell(html, &text);
    str_release(&text);
}

static void head_of(Str *html, const char *title) {
    str_append(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>");
    html_element(html, "title", title);
    str_printf(html, "<style>\n%s</style></head>\n<body><main>\n", report_style);
}

static void foot_of(Str *html) {
    str_append(html, "<footer>Made by tune report from run directories alone; this page loads nothing.</footer>\n</main>\n");
    str_printf(html, "<script>\n%s</script></body></html>\n", report_script);
}

/* ---- key numbers ---- */

static const char *state_of(const RunRecord *run, Str *text) {
    static const char *const words[] = {"not finished", "finished", "running", "interrupted", "ended by an error", "killed"};
    const RunNumbers *numbers = &run->numbers;
    if (numbers->finished) {
        str_append(text, json_is_true(json_object_get(run->finished, "early_stopped")) ? "stopped early" : "finished");
        return "done";
    }
    str_printf(text, "%s: step %lld", words[run->ending.end], (long long)numbers->steps);
    if (numbers->planned_steps > 0) str_printf(text, " of %lld", (long long)numbers->planned_steps);
    return run->ending.end == END_ERROR || run->ending.end == END_KILLED ? "dead" : "open";
}

static void write_state(const RunRecord *run, Str *html) {
    Str text = {0};
    const char *class = state_of(run, &text);
    str_printf(html, "<span class=\"state %s\">", class);
    html_text(html, str_text(&text));
    str_append(html, "</span>");
    str_release(&text);
}

static void loss_tiles(const RunRecord *run, Str *html) {
    const RunNumbers *numbers = &run->numbers;
    Str value = {0}, below = {0};
    if (isnan(numbers->last_loss) && isnan(numbers->eval_loss)) return;
    append_number(&value, numbers->last_loss);
    append_number(&below, numbers->first_loss);
    report_tile(html, "training loss", &value, "last step; first %s", str_text(&below));
    if (!isnan(numbers->eval_loss)) {
        str_clear(&value);
        str_clear(&below);
        append_number(&value, numbers->eval_loss);
        str_append(&below, "best ");
        append_number(&below, numbers->best_eval_loss);
        report_tile(html, "held-out loss", &value, "%s", str_text(&below));
    }
    str_release(&value);
    str_release(&below);
}

/* For runs that learn from rewards. */
static void reward_tile(const RunRecord *run, Str *html) {
    const Series *reward = record_series(run, "reward");
    double first = series_end(reward, true), last = series_end(reward, false), best = (double)NAN;
    Str value = {0}, below = {0};
    if (isnan(last)) return;
    for (size_t i = 0; i < reward->n; i++) best = fmax(best, reward->points[i].y);
    append_number(&value, last);
    str_append(&below, "first ");
    append_number(&below, first);
    str_append(&below, ", best ");
    append_number(&below, best);
    report_tile(html, "reward, last step", &value, "%s", str_text(&below));
    str_release(&value);
    str_release(&below);
}

static void work_tiles(const RunRecord *run, Str *html) {
    const RunNumbers *numbers = &run->numbers;
    const Series *epochs = record_series(run, "epoch");
    char words[32];
    Str value = {0}, below = {0};
    append_count(&value, (double)numbers->steps);
    if (epochs && epochs->n) {
        append_number(&below, epochs->points[epochs->n - 1].y);
        str_append(&below, " epochs");
    }
    report_tile(html, "steps", &value, "%s", str_text(&below));
    if (numbers->tokens_per_second > 0) {
        str_clear(&value);
        append_count(&value, numbers->tokens_per_second);
        report_tile(html, "tokens a second", &value, "%s%s", isnan(numbers->seconds) ? "median" : "median, for ",
                    isnan(numbers->seconds) ? "" : format_seconds(numbers->seconds, words));
    }
    double parameters = json_real_of(run->started, "parameters"), trained = json_real_of(run->started, "trained_parameters");
    if (parameters > 0) {
        str_clear(&value);
        str_clear(&below);
        append_count(&value, trained);
        str_append(&below, "of ");
        append_count(&below, parameters);
        str_printf(&below, " (%.2g %%)", 100 * trained / parameters);
        report_tile(html, "trained parameters", &value, "%s", str_text(&below));
    }
    str_release(&value);
    str_release(&below);
}

static void time_tile(const RunRecord *run, Str *html) {
    double planned = run->numbers.planned_step_seconds, taken = run->numbers.step_seconds;
    Str value = {0};
    if (planned > 0 && taken > 0) {
        str_printf(&value, "%.3g s", taken);
        report_tile(html, "a step, median", &value, "planned %.3g s", planned);
    }
    str_release(&value);
}

static void memory_tile(const RunRecord *run, Str *html) {
    double planned = json_real_of(json_object_get(run->started, "memory"), "total");
    int64_t peak = run->numbers.peak_rss_bytes;
    char words[32];
    Str value = {0};
    if (peak >= 0 || planned > 0) str_append(&value, format_bytes(peak >= 0 ? (double)peak : planned, words));
    if (peak >= 0 && planned > 0)
        report_tile(html, "memory at its peak", &value, "planned %s", format_bytes(planned, words));
    else if (value.len > 0)
        report_tile(html, peak >= 0 ? "memory at its peak" : "memory, planned", &value, "resident size");
    str_release(&value);
}

static void write_warnings(const RunRecord *runs, size_t n, Str *html) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += runs[i].n_warnings;
    if (total == 0) return;
    str_append(html, "<div class=\"warnings\"><b>Warnings</b><ul>");
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < runs[i].n_warnings; k++) {
            str_append(html, "<li>");
            if (n > 1) {
                html_element(html, "b", runs[i].name);
                str_append(html, ": ");
            }
            html_text(html, runs[i].warnings[k]);
            str_append(html, "</li>");
        }
    str_append(html, "</ul></div>\n");
}

/* ---- curves ---- */

typedef struct Curve {
    const char *key, *title, *unit;
    bool wide, plain;
} Curve; /* plain: not noisy, so that no mean is drawn over it */
static const Curve known_curves[] = {
#define CURVE(key, title, unit, wide, plain) {#key, title, unit, wide, plain},
#include "lib/run/report_curves.def"
#undef CURVE
};
static const char *const not_drawn[] = {"step", "seconds", "epoch", "tokens", "loss_tokens", "eval_tokens"};

static const Curve *known_curve(const char *key) {
    for (size_t i = 0; i < COUNT_OF(known_curves); i++)
        if (strcmp(known_curves[i].key, key) == 0) return &known_curves[i];
    return NULL;
}

static void append_in_words(const char *key, Str *out) {
    size_t begin = out->len, len = strcspn(key, "/");
    str_append_n(out, key, len);
    for (size_t i = begin; i < out->len; i++)
        if (out->data[i] == '_') out->data[i] = ' ';
    if (begin < out->len && out->data[begin] >= 'a' && out->data[begin] <= 'z') out->data[begin] += 'A' - 'a';
    if (key[len]) str_printf(out, " of %s", key + len + 1); /* a name of the user's, as in reward/my_judge */
}

void report_metric_name(const char *key, Str *out) {
    static const char correlation[] = "reward_correlation/", held_out[] = "eval_";
    const Curve *curve = known_curve(key);
    const char *pair = text_starts_with(key, correlation) ? key + strlen(correlation) : NULL, *colon = pair ? strchr(pair, ':') : NULL;
    if (curve)
        str_append(out, curve->title);
    else if (colon)
        str_printf(out, "Correlation of the rewards %.*s and %s", (int)(colon - pair), pair, colon + 1);
    else if (text_starts_with(key, held_out)) {
        str_append(out, "Held out: ");
        report_metric_name(key + strlen(held_out), out);
    } else
        append_in_words(key, out);
}

static bool is_drawn(const char *key) {
    for (size_t i = 0; i < COUNT_OF(not_drawn); i++)
        if (strcmp(not_drawn[i], key) == 0) return false;
    return true;
}

/* Removes rounding errors around 0: a policy gradient's loss starts at 0. */
static double without_noise(double value) { return fabs(value) < 1e-12 ? 0 : value; }

/* A curve with a constant value is shown as a number. */
static bool is_constant(const RunRecord *runs, size_t n, const Curve *curve, double *value) {
    size_t points = 0;
    for (size_t i = 0; i < n; i++) {
        const Series *series = record_series(&runs[i], curve->key);
        for (size_t k = 0; series && k < series->n; k++) {
            double y = without_noise(series->points[k].y);
            if (isnan(y)) continue;
            if (points++ == 0) *value = y;
            if (y != *value) return false;
        }
    }
    return points > 1;
}

/* Draws one curve for every run that has it. `constant` gets the name and value of constant ones. */
static void draw_curve(const RunRecord *runs, size_t n, const Curve *curve, Str *constant, Str *html) {
    double value;
    if (is_constant(runs, n, curve, &value)) {
        str_printf(constant, "%s%s ", constant->len ? ", " : "", curve->title);
        append_number(constant, value);
        return;
    }
    ChartLine *lines = calloc(n, sizeof *lines);
    Chart chart = {.title = curve->title, .unit = curve->unit, .lines = lines, .wide = curve->wide};
    for (size_t i = 0; i < n && lines; i++) {
        const Series *series = record_series(&runs[i], curve->key);
        if (series)
            lines[chart.n_lines++] =
                (ChartLine){series, runs[i].name, (int)(i % CHART_COLOURS), text_starts_with(curve->key, "eval_"), !curve->plain};
    }
    chart_write(&chart, html);
    free(lines);
}

static void draw_losses(const RunRecord *run, Str *constant, Str *html) {
    const Series *loss = record_series(run, "loss"), *eval = record_series(run, "eval_loss");
    ChartLine lines[2];
    if (!loss != !eval) { /* only one of the two exists */
        draw_curve(run, 1, known_curve(loss ? "loss" : "eval_loss"), constant, html);
        return;
    }
    Chart chart = {.title = "Loss", .unit = "by step", .lines = lines, .wide = true};
    if (loss) lines[chart.n_lines++] = (ChartLine){loss, "training, of each step before its update", 0, false, true};
    if (eval) lines[chart.n_lines++] = (ChartLine){eval, "held out", 1, true, false};
    chart_write(&chart, html);
}

/* Draws metrics without a name here, in the order in which the first run wrote them. */
static void draw_others(const RunRecord *runs, size_t n, Str *constant, Str *html) {
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < runs[r].n_series; i++) {
            const char *key = runs[r].series[i].name;
            bool drawn = !is_drawn(key) || known_curve(key);
            for (size_t before = 0; before < r && !drawn; before++) drawn = record_series(&runs[before], key) != NULL;
            if (drawn) continue;
            Str title = {0};
            report_metric_name(key, &title);
            draw_curve(runs, n, &(Curve){key, str_text(&title), "", false, text_starts_with(key, "eval_")}, constant, html);
            str_release(&title);
        }
}

static void write_curves(const RunRecord *runs, size_t n, Str *html) {
    size_t points = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < runs[i].n_series; k++) points += runs[i].series[k].n;
    str_append(html, "<h2>Curves</h2>\n");
    if (points == 0) {
        str_append(html, "<p class=\"soft\">No step has been logged yet.</p>\n");
        return;
    }
    Str constant = {0};
    str_append(html, "<div class=\"charts\">\n");
    draw_curve(runs, n, known_curve("reward"), &constant, html);
    if (n == 1) draw_losses(runs, &constant, html);
    for (size_t i = 0; i < COUNT_OF(known_curves); i++) {
        const char *key = known_curves[i].key;
        bool is_loss = strcmp(key, "loss") == 0 || strcmp(key, "eval_loss") == 0, is_reward = strcmp(key, "reward") == 0;
        if (!is_reward && (n > 1 || !is_loss)) draw_curve(runs, n, &known_curves[i], &constant, html);
    }
    draw_others(runs, n, &constant, html);
    str_append(html, "</div>\n");
    if (constant.len > 0) {
        str_append(html, "<p class=\"soft\">The same in every step: ");
        html_text(html, str_text(&constant));
        str_append(html, ".</p>\n");
    }
    str_release(&constant);
}

/* ---- data ---- */

static const struct {
    const char *key, *text;
    bool always;
} data_rows[] = {
    {"rows", "rows", true},
    {"tokens", "tokens", true},
    {"trained_tokens", "trained tokens", true},
    {"dropped_long", "dropped: too long", true},
    {"cut", "cut to data.max_length", true},
    {"dropped_untrained", "dropped: nothing trained was left", false},
    {"untrained", "without a trained token", false},
    {"duplicates", "the same as an earlier row", true},
    {"remapped", "prompt ends inside a token", false},
    {"no_eos", "without an end", false},
    {"weighted", "with a weight of their own", false},
    {"turned", "conversations trained turn by turn", false},
    {"turns", "their answers", false},
    {"lost_turns", "answers left out: too long", false},
};

static void write_counts(const json_t *started, Str *html) {
    const json_t *train = json_object_get(started, "train"), *eval = json_object_get(started, "eval");
    str_append(html, "<div class=\"scroll\"><table><tr><th></th><th class=\"n\">training</th>");
    if (eval) str_append(html, "<th class=\"n\">held out</th>");
    str_append(html, "</tr>");
    for (size_t i = 0; i < COUNT_OF(data_rows); i++) {
        double n = json_real_of(train, data_rows[i].key), m = json_real_of(eval, data_rows[i].key);
        if (!data_rows[i].always && !(n > 0) && !(m > 0)) continue;
        str_append(html, "<tr>");
        html_element(html, "td", data_rows[i].text);
        cell_count(html, n);
        if (eval) cell_count(html, m);
        str_append(html, "</tr>");
    }
    str_append(html, "</table></div>\n");
}

static void write_share(const json_t *train, Str *html) {
    double tokens = json_real_of(train, "tokens"), trained = json_real_of(train, "trained_tokens");
    if (!(tokens > 0) || !(trained >= 0 && trained <= tokens)) return;
    str_printf(html, "<p>%.3g %% of the tokens carry loss, the others are context.</p><div class=\"bar c0\"><i style=\"width:%.2f%%\"></i></div>\n",
               100 * trained / tokens, 100 * trained / tokens);
}

/* Shows white space and invisible characters. */
static void write_token_text(const char *text, Str *html) {
    if (!*text) str_append(html, "\xE2\x97\x8C");
    for (const char *at = text; *at;) {
        size_t plain = strcspn(at, "\n\r\t");
        html_text_n(html, at, plain);
        at += plain;
        if (*at == '\n') str_append(html, "\xE2\x86\xB5\n");
        if (*at == '\r') str_append(html, "\xE2\x90\x8D");
        if (*at == '\t') str_append(html, "\xE2\x87\xA5\t");
        at += *at != '\0';
    }
}

static void write_token(const json_t *row, size_t i, Str *html) {
    const json_t *token = json_array_get(json_object_get(row, "tokens"), i), *id = json_array_get(json_object_get(row, "ids"), i);
    bool on = json_integer_value(json_array_get(json_object_get(row, "trained"), i)) != 0;
    bool special = json_integer_value(json_array_get(json_object_get(row, "special"), i)) != 0;
    str_printf(html, "<i%s title=\"%lld\">",
               on && special ? " class=\"on sp\""
               : on          ? " class=\"on\""
               : special     ? " class=\"sp\""
                             : "",
               (long long)json_integer_value(id));
    if (json_is_string(token))
        write_token_text(json_string_value(token), html);
    else
        str_printf(html, "%lld ", (long long)json_integer_value(id));
    str_append(html, "</i>");
}

static void write_mask(const json_t *started, Str *html) {
    const json_t *sample = json_object_get(started, "sample");
    if (json_array_size(sample) == 0) return;
    str_append(
        html,
        "<h3>What is trained in the first rows</h3><div class=\"legend\"><span><span class=\"tokens\"><i class=\"on\">trained</i></span></span>"
        "<span><span class=\"tokens\"><i>context</i></span></span><span><span class=\"tokens\"><i class=\"sp\">special token</i></span></span></div>\n");
    for (size_t r = 0; r < json_array_size(sample); r++) {
        const json_t *row = json_array_get(sample, r), *ids = json_object_get(row, "ids");
        double length = json_real_of(row, "length");
        str_append(html, "<h3>");
        html_text(html, text_in(row, "where") ? text_in(row, "where") : "a row");
        str_append(html, "</h3><div class=\"tokens\">");
        for (size_t i = 0; i < json_array_size(ids); i++) write_token(row, i, html);
        if (length > (double)json_array_size(ids))
            str_printf(html, "<span class=\"soft\"> \xE2\x80\xA6 %.0f more</span>", length - (double)json_array_size(ids));
        str_append(html, "</div>\n");
    }
}

static void write_data(const RunRecord *run, Str *html) {
    const json_t *train = json_object_get(run->started, "train");
    if (!train) return;
    str_append(html, "<h2>Data</h2>\n<div class=\"columns\"><div>");
    write_counts(run->started, html);
    str_append(html, "</div><div><p>Format <b>");
    html_text(html, text_in(run->started, "format") ? text_in(run->started, "format") : "not known");
    str_append(html, "</b>");
    if (text_in(run->started, "plain_as")) {
        str_append(html, ", ");
        html_text(html, text_in(run->started, "plain_as"));
    }
    str_append(html, ", from <code>");
    html_text(html, record_setting(run, "data.train") ? record_setting(run, "data.train") : "?");
    str_append(html, "</code></p>");
    write_share(train, html);
    str_append(html, "</div></div>\n");
    write_mask(run->started, html);
}

/* ---- memory, settings, log ---- */

static void write_memory(const RunRecord *run, Str *html) {
    static const struct {
        const char *key, *text;
    } parts[] = {{"activations", "activations"}, {"mapped", "mapped weights"},    {"weights", "weights"},
                 {"packed", "packed weights"},   {"gradients", "gradients"},      {"optimizer", "optimiser"},
                 {"best", "best weights"},       {"program", "program and rows"}, {"sampling", "sampling"}};
    const json_t *memory = json_object_get(run->started, "memory");
    double total = json_real_of(memory, "total"), sum = 0;
    char words[32];
    for (size_t i = 0; i < COUNT_OF(parts); i++) sum += fmax(json_real_of(memory, parts[i].key), 0);
    if (!(total > 0) || !(sum > 0)) return;
    str_append(html, "<h2>Memory</h2>\n");
    html_element(html, "p",
                 run->numbers.peak_rss_bytes >= 0 ? "Planned from shapes alone before the first step, and measured at the end."
                                                  : "Planned from shapes alone before the first step.");
    str_append(html, "<div class=\"bar\">");
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        str_printf(html, "<i class=\"c%zu\" style=\"width:%.2f%%\"></i>", i % CHART_COLOURS, 100 * fmax(json_real_of(memory, parts[i].key), 0) / sum);
    str_append(html, "</div><div class=\"legend\">");
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        double bytes = json_real_of(memory, parts[i].key);
        if (bytes > 0) str_printf(html, "<span><i class=\"key c%zu\"></i>%s %s</span>", i % CHART_COLOURS, parts[i].text, format_bytes(bytes, words));
    }
    str_append(html, "</div>");
    str_printf(html, "<p>Planned: <b>%s</b>", format_bytes(total, words));
    if (run->numbers.peak_rss_bytes >= 0) str_printf(html, ", at its peak: <b>%s</b>", format_bytes((double)run->numbers.peak_rss_bytes, words));
    str_append(html, ".</p>\n");
}

static void write_setting(const Setting *setting, Str *html) {
    str_append(html, "<tr><td class=\"k\"><code>");
    html_text(html, setting->key);
    str_append(html, "</code></td><td><code>");
    html_text(html, setting->value);
    str_append(html, "</code>");
    if (setting->help) html_element(html, "small", setting->help);
    str_append(html, "</td></tr>");
}

static void write_settings_table(const RunRecord *run, bool defaults, Str *html) {
    str_append(html, "<div class=\"scroll\"><table>");
    for (size_t i = 0; i < run->n_settings; i++)
        if (run->settings[i].is_default == defaults) write_setting(&run->settings[i], html);
    str_append(html, "</table></div>\n");
}

static void write_settings(const RunRecord *run, Str *html) {
    size_t defaults = 0;
    if (run->n_settings == 0) return;
    for (size_t i = 0; i < run->n_settings; i++) defaults += run->settings[i].is_default;
    str_append(html, "<h2>Settings</h2>\n");
    if (defaults < run->n_settings) write_settings_table(run, false, html);
    if (defaults == 0) return;
    str_printf(html, "<details><summary>%zu more with default values</summary>", defaults);
    write_settings_table(run, true, html);
    str_append(html, "</details>\n");
}

static void write_log(const RunRecord *run, Str *html) {
    if (run->log.len == 0) return;
    str_append(html, "<details><summary>The end of log.txt</summary><pre>");
    html_text_n(html, str_text(&run->log), run->log.len);
    str_append(html, "</pre></details>\n");
}

/* ---- one run ---- */

static void write_single(const RunRecord *run, Str *html) {
    const char *command = text_in(run->started, "command");
    head_of(html, run->name);
    str_append(html, "<h1>");
    html_text(html, run->name);
    write_state(run, html);
    str_append(html, "</h1><p class=\"path\">");
    html_text(html, run->dir);
    if (run->program) {
        str_append(html, " \xC2\xB7 ");
        html_text(html, run->program);
    }
    if (text_in(run->started, "compute")) {
        str_append(html, " \xC2\xB7 products in ");
        html_text(html, text_in(run->started, "compute"));
    }
    if (text_in(run->started, "teacher")) {
        str_append(html, " \xC2\xB7 teacher ");
        html_text(html, text_in(run->started, "teacher"));
    }
    str_append(html, "</p>\n");
    if (command) html_element(html, "code class=\"command\"", command);
    report_ending(run, html);
    write_warnings(run, 1, html);
    str_append(html, "<div class=\"tiles\">\n");
    reward_tile(run, html);
    loss_tiles(run, html);
    work_tiles(run, html);
    memory_tile(run, html);
    time_tile(run, html);
    str_append(html, "</div>\n");
    write_curves(run, 1, html);
    write_data(run, html);
    if (text_in(run->started, "use")) {
        str_append(html, "<h2>In transformers</h2>\n");
        html_element(html, "pre", text_in(run->started, "use"));
    }
    report_samples(run, html);
    report_loads(run, html);
    write_memory(run, html);
    write_settings(run, html);
    write_log(run, html);
    foot_of(html);
}

/* ---- several runs ---- */

static void write_results(const RunRecord *runs, size_t n, Str *html) {
    str_append(
        html,
        "<div class=\"scroll\"><table class=\"results\"><tr><th>run</th><th class=\"n\">steps</th><th class=\"n\">first loss</th><th class=\"n\">last loss</th>"
        "<th class=\"n\">held out</th><th class=\"n\">best held out</th><th class=\"n\">first reward</th><th class=\"n\">last reward</th><th class=\"n\">tokens/s</th><th class=\"n\">time</th><th class=\"n\">peak memory</th><th>state</th></tr>");
    for (size_t i = 0; i < n; i++) {
        const RunNumbers *numbers = &runs[i].numbers;
        char words[32];
        Str state = {0};
        str_printf(html, "<tr><td class=\"k\"><i class=\"key c%zu\"></i>", i % CHART_COLOURS);
        html_text(html, runs[i].name);
        str_append(html, "</td>");
        cell_count(html, (double)numbers->steps);
        cell_number(html, numbers->first_loss);
        cell_number(html, numbers->last_loss);
        cell_number(html, numbers->eval_loss);
        cell_number(html, numbers->best_eval_loss);
        cell_number(html, series_end(record_series(&runs[i], "reward"), true));
        cell_number(html, series_end(record_series(&runs[i], "reward"), false));
        cell_number(html, numbers->tokens_per_second);
        html_element(html, "td class=\"n\"", isnan(numbers->seconds) ? "\xE2\x80\x93" : format_seconds(numbers->seconds, words));
        html_element(html, "td class=\"n\"", numbers->peak_rss_bytes < 0 ? "\xE2\x80\x93" : format_bytes((double)numbers->peak_rss_bytes, words));
        state_of(&runs[i], &state);
        html_element(html, "td", str_text(&state));
        str_append(html, "</tr>");
        str_release(&state);
    }
    str_append(html, "</table></div>\n");
}

/* A run without the key is older than the key: it behaved like today's default. */
static bool differs(const RunRecord *runs, size_t n, const Setting *setting) {
    for (size_t i = 0; i < n; i++) {
        const char *value = record_setting(&runs[i], setting->key);
        if (value ? strcmp(value, setting->value) != 0 : !setting->is_default) return true;
    }
    return false;
}

static bool seen_before(const RunRecord *runs, size_t r, const char *key) {
    for (size_t i = 0; i < r; i++)
        if (record_setting(&runs[i], key)) return true;
    return false;
}

static void write_differences(const RunRecord *runs, size_t n, Str *html) {
    Str rows = {0};
    for (size_t r = 0; r < n; r++)
        for (size_t k = 0; k < runs[r].n_settings; k++) {
            const char *key = runs[r].settings[k].key;
            if (seen_before(runs, r, key) || !differs(runs, n, &runs[r].settings[k]) || strcmp(key, "output") == 0) continue;
            str_append(&rows, "<tr><td class=\"k\"><code>");
            html_text(&rows, key);
            str_append(&rows, "</code></td>");
            for (size_t i = 0; i < n; i++) {
                const char *value = record_setting(&runs[i], key);
                str_append(&rows, "<td><code>");
                html_text(&rows, value ? value : "\xE2\x80\x93");
                str_append(&rows, "</code></td>");
            }
            str_append(&rows, "</tr>");
        }
    str_append(html, "<h2>Settings that differ</h2>\n");
    if (rows.len == 0) {
        str_append(html, "<p class=\"soft\">None but the output.</p>\n");
    } else {
        str_append(html, "<div class=\"scroll\"><table class=\"differences\"><tr><th></th>");
        for (size_t i = 0; i < n; i++) {
            str_printf(html, "<th><i class=\"key c%zu\"></i>", i % CHART_COLOURS);
            html_text(html, runs[i].name);
            str_append(html, "</th>");
        }
        str_append(html, "</tr>");
        str_append_n(html, str_text(&rows), rows.len);
        str_append(html, "</table></div>\n");
    }
    str_release(&rows);
}

static void write_several(const RunRecord *runs, size_t n, Str *html) {
    head_of(html, "Comparison of runs");
    str_printf(html, "<h1>Comparison of %zu runs</h1><p class=\"path\">", n);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) str_append(html, " \xC2\xB7 ");
        html_text(html, runs[i].dir);
    }
    str_append(html, "</p>\n");
    write_results(runs, n, html);
    write_warnings(runs, n, html);
    write_differences(runs, n, html);
    write_curves(runs, n, html);
    foot_of(html);
}

/* Runs of the same name are distinguished by their paths. */
static void name_apart(RunRecord *runs, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k && strcmp(path_name(runs[i].name), path_name(runs[k].name)) == 0) runs[i].name = runs[i].dir;
}

void report_page(RunRecord *runs, size_t n, Str *html) {
    if (n > 1) name_apart(runs, n);
    if (n == 1)
        write_single(runs, html);
    else
        write_several(runs, n, html);
}

Status report_write(const char *const *dirs, size_t n, const char *path, const MetricsReader *reader, RunNumbers *numbers) {
    RunRecord *runs = calloc(MAX(n, (size_t)1), sizeof *runs);
    Status status = runs ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu runs", n);
    for (size_t i = 0; i < n && status == ST_OK; i++) status = record_read(dirs[i], reader, &runs[i]);
    if (status == ST_OK) {
        Str html = {0};
        report_page(runs, n, &html);
        status = file_write_all(path, str_text(&html), html.len);
        str_release(&html);
    }
    for (size_t i = 0; i < n && runs; i++) {
        if (numbers) numbers[i] = runs[i].numbers;
        record_release(&runs[i]);
    }
    free(runs);
    return status;
}

Status report_run(Run *run, const MetricsReader *reader, Status status) {
    Failure failure;
    failure_save(&failure, status);
    const char *dir = run_dir(run), *path = run_path(run, "report.html");
    if (path && report_write(&dir, 1, path, reader, NULL) != ST_OK) run_warn(run, "no report.html: %s", status_text());
    return failure_restore(&failure);
}
