/* SPDX-License-Identifier: Apache-2.0 */
/* Curves as SVG. The drawing is stretched to the page's width. Text and line widths must not be stretched: text is HTML outside the drawing, and
 * lines are marked as non-scaling. A long run is drawn by the minimum and maximum of each column, so that the page stays small and no spike is
 * lost, with a moving mean on top. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/run/report_parts.h"

enum { COLUMNS = 400, MEANS = 250, SMOOTH_FROM = 60, TICKS = 6 };

typedef struct Axis {
    double low, high, step;
} Axis;

/* ---- numbers ---- */

void append_number(Str *out, double value) {
    str_append(out, isnan(value) ? "\xE2\x80\x93" : format_number(value, fabs(value) < 1e-3 ? 3 : 4, (char[32]){0}));
}

/* Uses as many digits as neighbouring ticks need. */
static void append_tick(Str *out, const Axis *axis, double value) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    double largest = MAX(fabs(axis->low), fabs(axis->high)), unit = 1;
    const char *name = "";
    if (fabs(value) < axis->step / 1000) value = 0;
    if (value == 0) {
        str_append_char(out, '0');
        return;
    }
    if (largest < 0.01 || largest >= 1e15) { /* 1.5e-4 */
        double exponent = floor(log10(fabs(value)) + 1e-9);
        str_printf(out, "%.3ge%.0f", value / pow(10, exponent), exponent);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(units) && unit == 1 && largest >= 1e4; i++)
        if (largest >= units[i].unit) {
            unit = units[i].unit;
            name = units[i].name;
        }
    double decimals = ceil(-log10(axis->step / unit) - 1e-9);
    str_printf(out, "%.*f%s", (int)fmin(fmax(decimals, 0), 9), value / unit, name);
}

/* ---- axes ---- */

static double nice_step(double range, int ticks) {
    double raw = range / ticks, power = pow(10, floor(log10(raw))), share = raw / power;
    return power * (share <= 1.0001 ? 1 : share <= 2.0001 ? 2 : share <= 5.0001 ? 5 : 10);
}

/* An axis around low..high with ends at ticks; it starts at zero if that is near. */
static Axis value_axis(double low, double high) {
    if (low >= 0 && low < 0.4 * high) low = 0;
    if (high - low < 1e-9 * MAX(fabs(low), fabs(high)) || high == low) { /* constant values: adds a margin */
        double room = high == 0 ? 1 : 0.1 * fabs(high);
        low -= low == 0 ? 0 : room;
        high += room;
    }
    double step = nice_step(high - low, TICKS - 1);
    return (Axis){step * floor(low / step + 1e-6), step * ceil(high / step - 1e-6), step};
}

static Axis step_axis(const Chart *chart) {
    double low = (double)INFINITY, high = -(double)INFINITY;
    for (size_t i = 0; i < chart->n_lines; i++) {
        const Series *series = chart->lines[i].series;
        if (series->n == 0) continue;
        low = fmin(low, series->points[0].x);
        high = fmax(high, series->points[series->n - 1].x);
    }
    if (low < 0.1 * high) low = 0;
    if (low == high) {
        double room = MAX(1, 1e-3 * fabs(low));
        low -= room;
        high += room;
    }
    return (Axis){low, high, MAX(nice_step(high - low, TICKS), 1)};
}

typedef struct Spread {
    double low, high;
    size_t above;
} Spread;

/* The range that shows a curve: a few values far above all others are left out and counted. */
static bool spread_of(const Series *series, Spread *spread) {
    size_t n;
    double *values = series_sorted(series, &n);
    bool known = n > 0;
    if (known) {
        double usual = values[(size_t)(0.98 * (double)(n - 1))], low = values[0], limit = usual + 1.5 * (usual - low);
        *spread = (Spread){low, values[n - 1], 0};
        if (n >= SMOOTH_FROM && values[n - 1] > limit && usual > low) {
            spread->high = usual + 0.3 * (usual - low);
            while (spread->above < n && values[n - 1 - spread->above] > spread->high) spread->above++;
        }
    }
    free(values);
    return known;
}

/* The i-th tick of an axis; false after the last. */
static bool tick_at(const Axis *axis, int i, double *value) {
    double first = axis->step * ceil(axis->low / axis->step - 1e-6);
    *value = first + i * axis->step;
    return i <= 2 * TICKS && *value <= axis->high + 1e-6 * axis->step;
}

/* ---- paths, in thousandths of the drawing ---- */

typedef struct Frame {
    Axis x, y;
} Frame;
typedef struct Pen {
    Str *out;
    const Frame *frame;
    bool down;
} Pen;

static void append_coordinate(Str *out, double value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.2f", value);
    size_t len = strlen(digits);
    while (digits[len - 1] == '0') len--;
    if (digits[len - 1] == '.') len--;
    str_append_n(out, digits, len);
}

static void pen_to(Pen *pen, Point point) {
    const Frame *frame = pen->frame;
    if (isnan(point.y)) {
        pen->down = false;
        return;
    }
    str_append_char(pen->out, pen->down ? ' ' : 'M');
    append_coordinate(pen->out, 1000 * (point.x - frame->x.low) / (frame->x.high - frame->x.low));
    str_append_char(pen->out, ',');
    append_coordinate(pen->out, fmin(fmax(1000 * (frame->y.high - point.y) / (frame->y.high - frame->y.low), -2000), 3000));
    pen->down = true;
}

/* The first, smallest, largest and last point, in their order. */
static void draw_column(Pen *pen, const Point *points, size_t n) {
    size_t least = 0, greatest = 0;
    for (size_t i = 1; i < n; i++) {
        if (!(points[i].y >= points[least].y)) least = isnan(points[i].y) ? least : i;
        if (!(points[i].y <= points[greatest].y)) greatest = isnan(points[i].y) ? greatest : i;
    }
    size_t order[] = {0, MIN(least, greatest), MAX(least, greatest), n - 1};
    for (size_t k = 0; k < COUNT_OF(order); k++)
        if (k == 0 || order[k] != order[k - 1]) pen_to(pen, points[order[k]]);
}

static void draw_series(Str *out, const Frame *frame, const Series *series) {
    Pen pen = {out, frame, false};
    if (series->n <= 2 * COLUMNS) {
        for (size_t i = 0; i < series->n; i++) pen_to(&pen, series->points[i]);
        return;
    }
    for (size_t column = 0; column < COLUMNS; column++) {
        size_t from = series->n * column / COLUMNS, to = series->n * (column + 1) / COLUMNS;
        draw_column(&pen, series->points + from, to - from);
    }
}

/* The mean of a window at each of MEANS positions. */
static void draw_means(Str *out, const Frame *frame, const Series *series, size_t window) {
    Pen pen = {out, frame, false};
    size_t n = MIN(series->n, (size_t)MEANS), from = 0, to = 0, counted = 0;
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
        size_t at = n == 1 ? 0 : k * (series->n - 1) / (n - 1), low = at > window / 2 ? at - window / 2 : 0,
               high = MIN(at + window / 2 + 1, series->n);
        for (; to < high; to++)
            if (!isnan(series->points[to].y)) sum += series->points[to].y, counted++;
        for (; from < low; from++)
            if (!isnan(series->points[from].y)) sum -= series->points[from].y, counted--;
        if (counted > 0) pen_to(&pen, (Point){series->points[at].x, sum / (double)counted});
    }
}

/* A point is a line of length zero with round ends, which stays round when the drawing is stretched. */
static void draw_dots(Str *out, const Frame *frame, const Series *series) {
    for (size_t i = 0; i < series->n; i++) {
        Pen pen = {out, frame, false};
        pen_to(&pen, series->points[i]);
        if (pen.down) str_append(out, "h0");
    }
}

/* ---- the figure ---- */

static size_t window_of(const ChartLine *line) { return line->smooth && line->series->n >= SMOOTH_FROM ? MAX(line->series->n / 40, (size_t)5) : 0; }

static void write_line(const ChartLine *line, const Frame *frame, Str *html) {
    size_t window = window_of(line);
    bool lone = line->series->n == 1, dots = (line->dots && line->series->n <= 60) || lone;
    str_printf(html, "<path class=\"l c%d%s\" d=\"", line->colour, window ? " raw" : "");
    draw_series(html, frame, line->series);
    str_append(html, "\"/>");
    if (window) {
        str_printf(html, "<path class=\"l c%d\" d=\"", line->colour);
        draw_means(html, frame, line->series, window);
        str_append(html, "\"/>");
    }
    if (!dots) return;
    str_printf(html, "<path class=\"dots c%d\" d=\"", line->colour);
    draw_dots(html, frame, line->series);
    str_append(html, "\"/>");
}

static void write_grid(const Frame *frame, Str *html) {
    str_append(html, "<path class=\"grid\" d=\"");
    double y;
    for (int i = 0; tick_at(&frame->y, i, &y); i++) {
        str_append(html, "M0,");
        append_coordinate(html, 1000 * (frame->y.high - y) / (frame->y.high - frame->y.low));
        str_append(html, "H1000");
    }
    str_append(html, "\"/>");
}

static void write_labels(const Frame *frame, Str *html) {
    const Axis *x = &frame->x, *y = &frame->y;
    double value;
    str_append(html, "<div class=\"ys\">");
    for (int i = 0; tick_at(y, i, &value); i++) {
        str_printf(html, "<span style=\"bottom:%.2f%%\">", 100 * (value - y->low) / (y->high - y->low));
        append_tick(html, y, value);
        str_append(html, "</span>");
    }
    str_append(html, "</div><div class=\"xs\">");
    for (int i = 0; tick_at(x, i, &value); i++) {
        str_printf(html, "<span%s style=\"left:%.2f%%\">", i % 2 ? " class=\"odd\"" : "", 100 * (value - x->low) / (x->high - x->low));
        append_tick(html, x, value);
        str_append(html, "</span>");
    }
    str_append(html, "</div>");
}

static void write_legend(const Chart *chart, size_t above, Str *html) {
    size_t window = 0;
    for (size_t i = 0; i < chart->n_lines; i++) window = MAX(window, window_of(&chart->lines[i]));
    if (chart->n_lines == 1 && !window && !above) return;
    str_append(html, "<div class=\"legend\">");
    for (size_t i = 0; i < chart->n_lines && chart->n_lines > 1; i++) {
        str_printf(html, "<span><i class=\"key c%d\"></i>", chart->lines[i].colour);
        html_text(html, chart->lines[i].label);
        str_append(html, "</span>");
    }
    if (window) str_printf(html, "<span class=\"soft\">pale: as logged; strong: mean over %zu values</span>", window);
    if (above) str_printf(html, "<span class=\"soft\">%zu %s above the drawing</span>", above, above == 1 ? "value" : "values");
    str_append(html, "</div>");
}

static bool frame_of(const Chart *chart, Frame *frame, size_t *above) {
    double low = (double)INFINITY, high = -(double)INFINITY;
    *above = 0;
    for (size_t i = 0; i < chart->n_lines; i++) {
        Spread spread;
        if (!spread_of(chart->lines[i].series, &spread)) continue;
        low = fmin(low, spread.low);
        high = fmax(high, spread.high);
    }
    if (low > high) return false;
    frame->y = value_axis(low, high);
    frame->x = step_axis(chart);
    for (size_t i = 0; i < chart->n_lines; i++)
        for (size_t k = 0; k < chart->lines[i].series->n; k++) *above += chart->lines[i].series->points[k].y > frame->y.high;
    return true;
}

void chart_write(const Chart *chart, Str *html) {
    Frame frame;
    size_t above;
    if (!frame_of(chart, &frame, &above)) return;
    str_printf(html, "<figure class=\"chart%s\" data-x0=\"%.17g\" data-x1=\"%.17g\" data-y0=\"%.17g\" data-y1=\"%.17g\"><figcaption><b>",
               chart->wide ? " wide" : "", frame.x.low, frame.x.high, frame.y.low, frame.y.high);
    html_text(html, chart->title);
    str_append(html, "</b> <span>");
    html_text(html, chart->unit);
    str_append(html, "</span></figcaption>");
    write_legend(chart, above, html);
    str_append(html, "<div class=\"plot\">");
    write_labels(&frame, html);
    str_append(html, "<div class=\"area\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"");
    html_text(html, chart->title);
    str_append(html, " by step\">");
    write_grid(&frame, html);
    for (size_t i = 0; i < chart->n_lines; i++) {
        str_append(html, "<g data-name=\"");
        html_text(html, chart->n_lines > 1 ? chart->lines[i].label : "");
        str_append(html, "\">");
        write_line(&chart->lines[i], &frame, html);
        str_append(html, "</g>");
    }
    str_append(html, "</svg></div></div></figure>\n");
}
