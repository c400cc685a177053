/* SPDX-License-Identifier: Apache-2.0 */
/* For a run that ended without a result: the reason, its last steps, and what to do. */
#include <math.h>
#include <string.h>

#include "lib/run/report_parts.h"

enum { LAST_STEPS = 5, LAST_METRICS = 6 };

/* The metrics that explain an ending best, shown if the run has them. */
static const char *const told[] = {"loss", "reward", "eval_loss", "grad_norm", "learning_rate", "kl", "entropy", "episode_return", "td_error"};

/* A series' value at a step: the last one, as an evaluation repeats the line. NaN: none. */
static double value_at(const Series *series, double step) {
    for (size_t i = series->n; i > 0 && series->points[i - 1].x >= step; i--)
        if (series->points[i - 1].x == step) return series->points[i - 1].y;
    return (double)NAN;
}

/* The last steps of all series, newest first. */
static size_t last_steps(const RunRecord *run, double steps[LAST_STEPS]) {
    size_t n = 0;
    double below = (double)INFINITY;
    for (; n < LAST_STEPS; n++) {
        double newest = -1;
        for (size_t s = 0; s < run->n_series; s++) {
            const Series *series = &run->series[s];
            size_t at = series->n;
            while (at > 0 && series->points[at - 1].x >= below) at--;
            if (at > 0) newest = fmax(newest, series->points[at - 1].x);
        }
        if (newest < 0) break;
        steps[n] = below = newest;
    }
    return n;
}

/* Whether it has a value in one of these steps. */
static bool is_known(const Series *series, const double *steps, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isnan(value_at(series, steps[i]))) return true;
    return false;
}

static void write_steps(const RunRecord *run, Str *html) {
    double steps[LAST_STEPS];
    const Series *shown[LAST_METRICS];
    size_t n = last_steps(run, steps), n_shown = 0;
    for (size_t i = 0; i < COUNT_OF(told) && n_shown < LAST_METRICS; i++) {
        const Series *series = record_series(run, told[i]);
        bool silent = strcmp(told[i], "loss") == 0 && record_series(run, "reward"); /* the loss of a policy gradient is not informative */
        if (series && !silent && is_known(series, steps, n)) shown[n_shown++] = series;
    }
    if (n == 0 || n_shown == 0) return;
    str_append(html, "<h3>The last steps</h3><div class=\"scroll\"><table><tr><th class=\"n\">Step</th>");
    for (size_t k = 0; k < n_shown; k++) {
        Str name = {0};
        report_metric_name(shown[k]->name, &name);
        html_element(html, "th class=\"n\"", str_text(&name));
        str_release(&name);
    }
    str_append(html, "</tr>");
    for (size_t i = n; i > 0; i--) {
        str_printf(html, "<tr><td class=\"n\">%.0f</td>", steps[i - 1]);
        for (size_t k = 0; k < n_shown; k++) {
            str_append(html, "<td class=\"n\">");
            append_number(html, value_at(shown[k], steps[i - 1]));
            str_append(html, "</td>");
        }
        str_append(html, "</tr>");
    }
    str_append(html, "</table></div>");
}

void report_ending(const RunRecord *run, Str *html) {
    const Ending *ending = &run->ending;
    Str text = {0};
    if (!ending_is_failure(ending)) return;
    ending_describe(ending, &text);
    str_append(html, "<div class=\"died\"><h3>How it ended</h3>");
    html_element(html, "p", str_text(&text));
    if (ending->end == END_ERROR && *ending->hint) {
        str_append(html, "<p>Hint: ");
        html_text(html, ending->hint);
        str_append(html, "</p>");
    }
    write_steps(run, html);
    str_clear(&text);
    ending_describe_next_action(ending, &text);
    str_append(html, "<h3>What to do</h3>");
    html_element(html, "p", str_text(&text));
    str_append(html, "</div>\n");
    str_release(&text);
}
