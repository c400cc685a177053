/* SPDX-License-Identifier: Apache-2.0 */
/* Samples on the page: single ones, or the completions of a prompt as a card with the best and the worst first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/run/report_parts.h"

enum { LONGEST_TEXT = 6000 };

/* Texts unchanged, messages and other values as JSON. */
static void write_value(const json_t *value, Str *html) {
    char *dump = json_is_string(value) ? NULL : json_text(value, JSON_ENCODE_ANY | JSON_INDENT(1));
    const char *text = json_is_string(value) ? json_string_value(value) : dump ? dump : "";
    size_t len = strlen(text), shown = len > LONGEST_TEXT ? utf8_whole_prefix(text, LONGEST_TEXT) : len;
    html_text_n(html, text, shown);
    if (shown < len) str_append(html, " \xE2\x80\xA6");
    if (len == 0) html_element(html, "span class=\"soft\"", "(empty)");
    free(dump);
}

static void write_box(const json_t *value, const char *class, Str *html) {
    str_printf(html, "<div class=\"text%s\">", class);
    write_value(value, html);
    str_append(html, "</div>");
}

static void write_step(const json_t *sample, Str *html) {
    const json_t *step = json_object_get(sample, "step");
    if (json_is_integer(step)) str_printf(html, "<h3>Step %lld</h3>", (long long)json_integer_value(step));
}

static void write_single(const json_t *sample, Str *html) {
    const json_t *prompt = json_object_get(sample, "prompt"), *completion = json_object_get(sample, "completion");
    write_step(sample, html);
    if (prompt) write_box(prompt, "", html);
    if (completion) write_box(completion, " answer", html);
    if (!prompt && !completion) write_box(sample, "", html);
    str_append_char(html, '\n');
}

/* ---- the completions of one prompt ---- */

static bool is_better(const json_t *a, const json_t *b) {
    double first = json_real_of(a, "reward"), second = json_real_of(b, "reward");
    return first > second || (isnan(second) && !isnan(first));
}

/* Best first; equal ones keep the file's order. */
static void sort_by_reward(const json_t **group, size_t n) {
    for (size_t i = 1; i < n; i++) {
        const json_t *sample = group[i];
        size_t at = i;
        for (; at > 0 && is_better(sample, group[at - 1]); at--) group[at] = group[at - 1];
        group[at] = sample;
    }
}

static void append_named(Str *text, const char *name, double value) {
    if (isnan(value)) return;
    str_printf(text, "%s%s ", text->len ? " \xC2\xB7 " : "", name);
    append_number(text, value);
}

static void write_completion(const json_t *sample, const char *label, const char *class, Str *html) {
    const char *reason = json_string_value(json_object_get(sample, "finish_reason"));
    Str badge = {0};
    str_append(&badge, label);
    append_named(&badge, "reward", json_real_of(sample, "reward"));
    append_named(&badge, "advantage", json_real_of(sample, "advantage"));
    if (reason && strcmp(reason, "length") == 0) str_printf(&badge, "%scut off", badge.len ? " \xC2\xB7 " : "");
    str_printf(html, "<div class=\"text answer%s\">", class);
    html_element(html, "div class=\"badge\"", str_text(&badge));
    write_value(json_object_get(sample, "completion"), html);
    str_append(html, "</div>");
    str_release(&badge);
}

/* Writes n >= 2 sorted completions. If all have the same reward, none is marked as best. */
static void write_card(const json_t **group, size_t n, Str *html) {
    double best = json_real_of(group[0], "reward"), worst = json_real_of(group[n - 1], "reward");
    bool differ = best > worst;
    str_append(html, "<div class=\"card\">");
    write_step(group[0], html);
    write_box(json_object_get(group[0], "prompt"), "", html);
    if (!differ)
        str_printf(html, "<p class=\"soft\">%zu completion%s, which all earn the same: nothing is learned from their differences.</p>", n,
                   plural((int64_t)n));
    write_completion(group[0], differ ? "best" : "", differ ? " best" : "", html);
    if (differ) write_completion(group[n - 1], "worst", " worst", html);
    size_t begin = 1, end = n - differ;
    if (begin < end) {
        str_printf(html, "<details><summary>%zu more%s</summary>", end - begin, differ ? " in between" : "");
        for (size_t i = begin; i < end; i++) write_completion(group[i], "", "", html);
        str_append(html, "</details>");
    }
    str_append(html, "</div>\n");
}

static bool same_prompt(const json_t *a, const json_t *b) {
    const json_t *prompt = json_object_get(a, "prompt");
    return prompt && json_object_get(a, "completion") && json_object_get(b, "completion") && json_equal(prompt, json_object_get(b, "prompt")) &&
           json_equal(json_object_get(a, "step"), json_object_get(b, "step"));
}

/* The number of samples before `end` that belong to one prompt. */
static size_t group_before(const json_t *samples, size_t end) {
    size_t n = 1;
    while (n < end && same_prompt(json_array_get(samples, end - 1), json_array_get(samples, end - 1 - n))) n++;
    return n;
}

void report_samples(const RunRecord *run, Str *html) {
    size_t all = json_array_size(run->samples);
    const json_t **group = all ? calloc(all, sizeof *group) : NULL;
    if (!group) return;
    str_append(html, "<h2>Samples</h2>\n");
    for (size_t end = all, n; end > 0; end -= n) { /* the newest first */
        n = group_before(run->samples, end);
        for (size_t i = 0; i < n; i++) group[i] = json_array_get(run->samples, end - n + i);
        if (n == 1)
            write_single(group[0], html);
        else {
            sort_by_reward(group, n);
            write_card(group, n, html);
        }
    }
    free(group);
}
