/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the report: a run read from its directory, charts, HTML. */
#ifndef TUNE_REPORT_PARTS_H
#define TUNE_REPORT_PARTS_H

#include "lib/base/file.h"
#include "lib/run/ending.h"
#include "lib/run/report.h"

/* ---- reading a run (report_read.c) ---- */

typedef struct Point {
    double x, y;
} Point; /* y NaN: a gap in the line */
typedef struct Series {
    char *name;
    Point *points;
    size_t n, cap;
} Series; /* x: step, increasing */
typedef struct Setting {
    const char *key, *value, *help;
    bool is_default;
} Setting; /* help NULL: a key of another version */
typedef struct RunRecord {
    Arena *arena;
    const char *dir, *name;
    json_t *started, *finished, *extended, *plan; /* NULL: not there */
    Series *series;
    size_t n_series;
    Setting *settings;
    size_t n_settings;
    const char *program;         /* the program that made the run; NULL = unknown */
    json_t *samples;             /* a list of objects */
    json_t *loads;               /* of experts, in the last line that has them; NULL: none */
    const MetricsReader *reader; /* NULL: only the page reads the metrics */
    void *reading;               /* the reader's */
    char **warnings;
    size_t n_warnings;
    Str log; /* the end of log.txt */
    RunNumbers numbers;
    Ending ending;
} RunRecord;
Status record_read(const char *dir, const MetricsReader *reader, RunRecord *record);
void record_release(RunRecord *record);
const Series *record_series(const RunRecord *record, const char *name); /* NULL when there is none */
const char *record_setting(const RunRecord *record, const char *key);   /* NULL when there is none */
double series_end(const Series *series, bool first);                    /* the first known value, or the last; NaN when there is none, or no series */
/* The known values, sorted; the caller frees them. NULL and 0: none, or no memory. */
double *series_sorted(const Series *series, size_t *n);

/* The page of n runs (report.c). */
void report_page(RunRecord *runs, size_t n, Str *html);
/* The reason why a run ended without a result, its last steps, and what to do; nothing for other runs (report_ending.c). */
void report_ending(const RunRecord *run, Str *html);
/* Appends a metric's title from report_curves.def, or else its name in words. */
void report_metric_name(const char *key, Str *out);
/* The load of each expert in the last step; nothing for models without experts (report_loads.c). */
void report_loads(const RunRecord *run, Str *html);
/* A run's samples with their heading; nothing when there are none (report_samples.c). */
void report_samples(const RunRecord *run, Str *html);

/* ---- charts (report_chart.c) ---- */

enum { CHART_COLOURS = 8 };
typedef struct ChartLine {
    const Series *series;
    const char *label;
    int colour;
    bool dots, smooth;
} ChartLine; /* dots: marks each point */
typedef struct Chart {
    const char *title, *unit;
    const ChartLine *lines;
    size_t n_lines;
    bool wide;
} Chart;
/* Writes a <figure>; nothing when no line has a point. */
void chart_write(const Chart *chart, Str *html);
/* A number for people: 4 digits, as a power of ten if it is long. */
void append_number(Str *out, double value);

/* ---- HTML (report_html.c) ---- */

extern const char report_style[], report_script[];
void html_text(Str *out, const char *text); /* escaped; invalid bytes become U+FFFD */
void html_text_n(Str *out, const char *text, size_t len);
/* <tag>text</tag>; `tag` may include attributes after a blank. */
void html_element(Str *out, const char *tag, const char *text);

#endif
