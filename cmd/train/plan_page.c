/* SPDX-License-Identifier: Apache-2.0 */
/* The page of tune plan: layouts, bars of memory and time by part, and the curve over ranks. */
#include <math.h>
#include <stdio.h>

#include "cmd/app/app.h"
#include "cmd/train/plan_command.h"
#include "lib/run/report_parts.h"

static void tile(Str *html, const char *value, const char *name) {
    str_append(html, "<div class=\"tile\">");
    html_element(html, "b", value);
    html_element(html, "span", name);
    str_append(html, "</div>\n");
}

static void tiles(const PlanCommand *plan, const PlanLayout *best, Str *html) {
    char text[64];
    str_append(html, "<div class=\"tiles\">\n");
    tile(html, format_seconds(best->step_seconds, text), "a step");
    snprintf(text, sizeof text, "%.2f GB", best->peak_bytes / 1e9);
    tile(html, text, "memory of a rank");
    snprintf(text, sizeof text, "%s", NUMBER(plan_step_tokens(&plan->task.run) / best->step_seconds));
    tile(html, text, "tokens a second");
    double seconds = plan_run_seconds(plan, best), energy = plan_run_energy(plan, best), cost = plan_run_cost(plan, best);
    if (!isnan(seconds)) tile(html, format_seconds(seconds, text), "the run");
    if (!isnan(energy)) {
        snprintf(text, sizeof text, "%s kWh", NUMBER(energy / 3.6e6));
        tile(html, text, "energy");
    }
    if (!isnan(cost)) tile(html, NUMBER(cost), "cost");
    str_append(html, "</div>\n");
}

/* The parts of a layout as an array. offset: of its memory or seconds. */
static const double *parts_of(const PlanLayout *layout, size_t offset) { return (const double *)(const void *)((const char *)layout + offset); }

/* Parts of one layout as a bar, with widths as shares of `full`. */
static void bar(const double *values, size_t n, double full, Str *html) {
    str_append(html, "<div class=\"bar\">");
    for (size_t i = 0; i < n; i++)
        if (values[i] > 0) str_printf(html, "<i class=\"c%zu\" style=\"width:%.2f%%\"></i>", i % CHART_COLOURS, 100 * values[i] / full);
    str_append(html, "</div>");
}

static void legend(const PlanPart *parts, size_t n, const PlanSearch *search, size_t offset, Str *html) {
    str_append(html, "<div class=\"legend\">");
    for (size_t i = 0; i < n; i++) {
        bool used = false;
        for (size_t k = 0; k < search->n_best; k++) used |= parts_of(&search->best[k], offset)[i] > 0;
        if (!used) continue;
        str_printf(html, "<span><i class=\"key c%zu\"></i>", i % CHART_COLOURS);
        html_text(html, parts[i].title);
        str_append(html, "</span>");
    }
    str_append(html, "</div>\n");
}

/* A table of the layouts, each with its bar: of memory or of time. */
static void bars(const PlanSearch *search, const char *title, const PlanPart *parts, size_t n, size_t offset, Str *html) {
    double full = 0;
    for (size_t k = 0; k < search->n_best; k++) {
        const double *values = parts_of(&search->best[k], offset);
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += values[i];
        full = fmax(full, sum);
    }
    html_element(html, "h2", title);
    legend(parts, n, search, offset, html);
    str_append(html, "<div class=\"scroll\"><table>\n");
    for (size_t k = 0; k < search->n_best; k++) {
        const PlanLayout *layout = &search->best[k];
        Str text = {0};
        plan_describe_layout(layout, &text);
        str_append(html, "<tr>");
        html_element(html, "td", str_text(&text));
        str_printf(html, "<td class=\"n\">%.2f GB</td><td class=\"n\">%s</td><td style=\"width:45%%\">", layout->peak_bytes / 1e9,
                   format_seconds(layout->step_seconds, (char[32]){0}));
        bar(parts_of(layout, offset), n, full, html);
        str_append(html, "</td></tr>\n");
        str_release(&text);
    }
    str_append(html, "</table></div>\n");
}

static void failures(const PlanSearch *search, Str *html) {
    if (search->n_reasons == 0) return;
    html_element(html, "h2", "Layouts that fail");
    str_append(html, "<div class=\"scroll\"><table><tr><th class=\"n\">layouts</th><th>why, for the first of them</th></tr>\n");
    for (size_t i = 0; i < search->n_reasons; i++) {
        str_printf(html, "<tr><td class=\"n\">%zu</td>", search->reasons[i].n);
        html_element(html, "td", search->reasons[i].why);
        str_append(html, "</tr>\n");
    }
    str_append(html, "</table></div>\n");
}

/* Speed-up over ranks: planned, and by both laws. */
static void curve(const PlanSearch *search, Str *html) {
    enum { LINES = 3 };
    static const char *const labels[LINES] = {"planned", "Amdahl", "Gustafson"};
    Point points[LINES][PLAN_CURVE];
    Series series[LINES];
    ChartLine lines[LINES];
    if (search->n_curve < 2) return;
    for (size_t i = 0; i < search->n_curve; i++) {
        double n = search->curve_ranks[i];
        points[0][i] = (Point){n, search->curve_seconds[0] / search->curve_seconds[i]};
        points[1][i] = (Point){n, speedup_amdahl(search->divided, n)};
        points[2][i] = (Point){n, speedup_gustafson(search->divided, n)};
    }
    for (int k = 0; k < LINES; k++) {
        series[k] = (Series){.points = points[k], .n = search->n_curve};
        lines[k] = (ChartLine){.series = &series[k], .label = labels[k], .colour = k, .dots = true};
    }
    char unit[64];
    snprintf(unit, sizeof unit, "times one rank; %.4f of a step divides", search->divided);
    str_append(html, "<div class=\"charts\">\n");
    chart_write(&(Chart){.title = "Speed-up by ranks, memory aside", .unit = unit, .lines = lines, .n_lines = LINES, .wide = true}, html);
    str_append(html, "</div>\n");
}

static void roofline(const PlanSearch *search, Str *html) {
    html_element(html, "h2", "Roofline of a step, without layout");
    str_append(
        html,
        "<div class=\"scroll\"><table><tr><th>op</th><th class=\"n\">operations</th><th class=\"n\">bytes</th><th class=\"n\">time</th><th>bound by</th></tr>\n");
    for (size_t i = 0; i < search->n_ops; i++) {
        const PlanOp *op = &search->ops[i];
        str_append(html, "<tr>");
        html_element(html, "td", op->name);
        str_printf(html, "<td class=\"n\">%.3f T</td><td class=\"n\">%.2f GB</td><td class=\"n\">%.4f s</td><td>%s</td></tr>\n", op->work / 1e12,
                   op->bytes / 1e9, op->seconds, op->bound_by_memory ? "memory" : "products");
    }
    str_append(html, "</table></div>\n");
}

static void write_page(const PlanCommand *plan, Str *html) {
    const PlanSearch *search = &plan->search;
    const PlanTask *task = &plan->task;
    str_append(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>");
    Str title = {0};
    str_printf(&title, "Plan of %s on %s", task->model.model_type, task->machine.name);
    html_element(html, "title", str_text(&title));
    str_clear(&title);
    str_printf(html, "<style>\n%s</style></head>\n<body><main>\n<h1>", report_style);
    str_printf(&title, "%s, %.4g billion parameters, on %lld x %lld x %s", task->model.model_type, plan_parameters(&task->model) / 1e9,
               (long long)task->machines, (long long)task->machine.per_machine, task->machine.title);
    html_text(html, str_text(&title));
    str_append(html, "</h1>\n<p>");
    str_clear(&title);
    str_printf(&title, "%s: %lld rows x %lld, %s tokens a step. The fastest layout: ", plan->kind, (long long)task->run.rows,
               (long long)task->run.accumulation, NUMBER(plan_step_tokens(&task->run)));
    plan_describe_layout(&search->best[0], &title);
    html_text(html, str_text(&title));
    str_append(html, ".</p>\n");
    str_release(&title);
    tiles(plan, &search->best[0], html);
    bars(search, "Memory of the rank that needs most", plan_memory_parts, N_MEMORY_PARTS, offsetof(PlanLayout, memory), html);
    bars(search, "Time of a step", plan_second_parts, N_SECOND_PARTS, offsetof(PlanLayout, seconds), html);
    curve(search, html);
    roofline(search, html);
    failures(search, html);
    str_printf(html, "<footer>Made by tune plan %s; this page loads nothing.</footer>\n</main>\n</body></html>\n", tune_version);
}

Status plan_write_page(const PlanCommand *plan, const char *path) {
    Str html = {0};
    if (plan->search.n_best == 0) return ST_OK;
    write_page(plan, &html);
    Status status = file_write_all(path, str_text(&html), html.len);
    str_release(&html);
    return status;
}
