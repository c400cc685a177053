/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a run directory for its report. Its files are not trusted: damaged parts are counted and left out. */
#include "lib/base/log.h"
#include "lib/run/report_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/recipe/keys.h"

enum { MAX_SERIES = 256, MAX_SAMPLES = 64, MAX_WARNINGS = 100 };
#define LOG_TAIL ((size_t)16 << 10)
#define LARGEST_NUMBER 1e100 /* keeps differences and squares of plotted values finite */

static const char *file_in(const RunRecord *record, const char *name) { return path_join(record->arena, record->dir, name); }

/* ---- warnings ---- */

static void add_warning(RunRecord *record, const char *text) {
    if (record->n_warnings == MAX_WARNINGS) return;
    char *copy = arena_strdup(record->arena, text);
    if (copy) record->warnings[record->n_warnings++] = copy;
}

static void PRINTF_LIKE(2, 3) found_broken(RunRecord *record, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log_message(LOG_WARNING, "'%s': %s", record->dir, line);
    add_warning(record, line);
}

/* ---- metrics ---- */

const Series *record_series(const RunRecord *record, const char *name) {
    for (size_t i = 0; i < record->n_series; i++)
        if (strcmp(record->series[i].name, name) == 0) return &record->series[i];
    return NULL;
}

static Series *series_for(RunRecord *record, const char *name) {
    const Series *known = record_series(record, name);
    if (known) return &record->series[known - record->series];
    if (record->n_series == MAX_SERIES) return NULL;
    Series *series = &record->series[record->n_series];
    *series = (Series){.name = arena_strdup(record->arena, name)};
    if (!series->name) return NULL;
    record->n_series++;
    return series;
}

static Status add_point(Series *series, double x, double y) {
    TRY(array_grow(&series->points, &series->cap, series->n + 1, sizeof *series->points, "points of a curve"));
    series->points[series->n++] = (Point){x, y};
    return ST_OK;
}

/* Adds one line: an object whose step is not before the previous line's. */
static Status add_metrics(RunRecord *record, const json_t *line, bool *good) {
    const json_t *step = json_object_get(line, "step");
    const char *key;
    json_t *value;
    *good = json_is_integer(step) && json_integer_value(step) >= record->numbers.steps;
    if (!*good) return ST_OK;
    record->numbers.steps = json_integer_value(step);
    if (record->reader) record->reader->read(record->reading, line);
    json_object_foreach((json_t *)(uintptr_t)line, key, value) {
        if (strcmp(key, "expert_load") == 0 && json_is_array(value)) {
            json_decref(record->loads);
            record->loads = json_incref(value);
        }
        if (value == step || (!json_is_number(value) && !json_is_null(value))) continue;
        double number = json_is_null(value) ? (double)NAN : json_number_value(value);
        Series *series = series_for(record, key);
        if (series) TRY(add_point(series, (double)record->numbers.steps, fabs(number) <= LARGEST_NUMBER ? number : (double)NAN));
    }
    return ST_OK;
}

static Status read_metrics(RunRecord *record) {
    const char *path = file_in(record, "metrics.jsonl");
    bool any = record->ending.end == END_FINISHED || record->ending.saved_step > 0;
    if (!file_exists(path)) {
        if (any || record->ending.end == END_UNKNOWN) found_broken(record, "metrics.jsonl is missing: there is nothing to draw");
        return ST_OK;
    }
    Lines lines;
    Slice line;
    TRY(lines_open(&lines, path));
    Status status = ST_OK;
    while (status == ST_OK && lines_next(&lines, &line)) {
        json_t *json = NULL;
        Status read = json_read_text(line.data, line.len, path, &json);
        bool good = read == ST_OK;
        if (good) status = add_metrics(record, json, &good);
        if (read == ST_RESOURCE) status = read;
        record->numbers.broken_lines += !good;
        json_decref(json);
    }
    size_t broken = record->numbers.broken_lines;
    if (record->n_series == MAX_SERIES)
        found_broken(record, "metrics.jsonl has more than %d different numbers: only the first are drawn", MAX_SERIES);
    Status closed = lines_close(&lines);
    if (status == ST_OK && broken > 0)
        found_broken(record, "%zu %s of metrics.jsonl left out: no JSON object, or a step out of order", broken, broken == 1 ? "line" : "lines");
    return status == ST_OK ? closed : status;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double *series_sorted(const Series *series, size_t *n) {
    double *values = series && series->n ? malloc(series->n * sizeof *values) : NULL;
    *n = 0;
    if (!values) return NULL;
    for (size_t i = 0; i < series->n; i++)
        if (!isnan(series->points[i].y)) values[(*n)++] = series->points[i].y;
    qsort(values, *n, sizeof *values, compare_doubles);
    return values;
}

/* NaN when empty. */
static double series_median(const Series *series) {
    size_t n;
    double *values = series_sorted(series, &n), median = n ? values[n / 2] : (double)NAN;
    free(values);
    return median;
}

/* Median of the seconds of a step, from the seconds since the start. */
static double median_step(const Series *seconds) {
    Series steps = {0};
    for (size_t i = 1; seconds && i < seconds->n; i++) {
        double n = seconds->points[i].x - seconds->points[i - 1].x;
        if (n > 0 && add_point(&steps, seconds->points[i].x, (seconds->points[i].y - seconds->points[i - 1].y) / n) != ST_OK) break;
    }
    double median = series_median(&steps);
    free(steps.points);
    return median;
}

double series_end(const Series *series, bool first) {
    for (size_t i = 0; series && i < series->n; i++) {
        double y = series->points[first ? i : series->n - 1 - i].y;
        if (!isnan(y)) return y;
    }
    return (double)NAN;
}

/* ---- the other files ---- */

/* *object is NULL if there is no such file, or no object in it. ST_RESOURCE: the file is whole, perhaps, and could not be read. */
static Status read_object(RunRecord *record, const char *name, json_t **object) {
    const char *path = file_in(record, name);
    json_t *json = NULL;
    *object = NULL;
    if (!file_exists(path)) return ST_OK;
    Status status = json_read_file(path, &json);
    if (status == ST_OK && json_is_object(json)) {
        *object = json;
        return ST_OK;
    }
    json_decref(json);
    if (status == ST_RESOURCE) return status;
    found_broken(record, "%s is left out: it holds no JSON object", name);
    return ST_OK;
}

static void append_yaml_text(const Yaml *node, Str *out) {
    if (node->kind == YAML_NULL) str_append(out, "null");
    if (node->kind == YAML_SCALAR) str_append(out, node->text);
    if (node->kind != YAML_LIST && node->kind != YAML_MAP) return;
    str_append_char(out, node->kind == YAML_LIST ? '[' : '{');
    for (size_t i = 0; i < node->n; i++) {
        if (i > 0) str_append(out, ", ");
        if (node->keys) str_printf(out, "%s: ", node->keys[i]);
        append_yaml_text(node->items[i], out);
    }
    str_append_char(out, node->kind == YAML_LIST ? ']' : '}');
}

/* Whether two texts are the same setting: 2e-4 and 0.0002, all-linear and [all-linear]. */
static bool same_value(const char *value, const char *other) {
    char *end, *other_end;
    double number = strtod(value, &end), other_number = strtod(other, &other_end);
    if (end != value && other_end != other && !*end && !*other_end) return number == other_number;
    size_t len = strlen(value), other_len = strlen(other);
    if (len == other_len + 2 && value[0] == '[') return strncmp(value + 1, other, other_len) == 0;
    return strcmp(value, other) == 0;
}

/* The default is YAML: "\\n" in it is a line end. */
static bool is_default(const Key *key, const char *value, Arena *arena) {
    Yaml *node;
    Str text = {0};
    if (same_value(value, key->fallback)) return true;
    if (yaml_read_text(key->fallback, strlen(key->fallback), key->dotted, arena, &node) != ST_OK) return false;
    append_yaml_text(node, &text);
    bool same = same_value(value, str_text(&text));
    str_release(&text);
    return same;
}

static void add_setting(RunRecord *record, const char *section, const char *name, const Yaml *node) {
    Str text = {0};
    append_yaml_text(node, &text);
    Setting *setting = &record->settings[record->n_settings];
    setting->key = section ? arena_printf(record->arena, "%s.%s", section, name) : name;
    setting->value = arena_strdup(record->arena, str_text(&text));
    str_release(&text);
    if (!setting->key || !setting->value) return;
    const Key *key = key_find(setting->key);
    setting->help = key ? key->help : NULL;
    setting->is_default = key && is_default(key, setting->value, record->arena);
    record->n_settings++;
}

static Status read_settings(RunRecord *record) {
    const char *path = file_in(record, "recipe.yaml");
    Yaml *root;
    Status status = yaml_read_file(path, record->arena, &root);
    if (status == ST_RESOURCE) return status;
    if (status != ST_OK || root->kind != YAML_MAP) {
        found_broken(record, "settings are left out: %s", file_exists(path) ? "recipe.yaml is not a recipe" : "recipe.yaml is missing");
        return ST_OK;
    }
    size_t n = root->n;
    for (size_t i = 0; i < root->n; i++) n += root->items[i]->n;
    record->settings = arena_zero(record->arena, MAX(n, (size_t)1) * sizeof *record->settings);
    if (!record->settings) return ST_RESOURCE;
    for (size_t i = 0; i < root->n; i++) {
        const Yaml *section = root->items[i];
        if (section->kind != YAML_MAP)
            add_setting(record, NULL, root->keys[i], section);
        else
            for (size_t k = 0; k < section->n; k++) add_setting(record, root->keys[i], section->keys[k], section->items[k]);
    }
    return ST_OK;
}

const char *record_setting(const RunRecord *record, const char *key) {
    for (size_t i = 0; i < record->n_settings; i++)
        if (strcmp(record->settings[i].key, key) == 0) return record->settings[i].value;
    return NULL;
}

static Status read_samples(RunRecord *record) {
    const char *path = file_in(record, "samples.jsonl");
    record->samples = json_array();
    if (!record->samples) return status_fail(ST_RESOURCE, "out of memory for samples");
    if (!file_exists(path)) return ST_OK;
    Lines lines;
    Slice line;
    size_t broken = 0;
    TRY(lines_open(&lines, path));
    Status status = ST_OK;
    while (status != ST_RESOURCE && lines_next(&lines, &line)) {
        json_t *json = NULL;
        status = json_read_text(line.data, line.len, path, &json);
        bool good = status == ST_OK && json_is_object(json);
        broken += !good;
        if (good) json_array_append(record->samples, json);
        if (json_array_size(record->samples) > MAX_SAMPLES) json_array_remove(record->samples, 0); /* the newest ones are the most informative */
        json_decref(json);
    }
    Status closed = lines_close(&lines);
    if (status == ST_RESOURCE) return status;
    if (broken > 0) found_broken(record, "%zu %s of samples.jsonl left out: no JSON object", broken, broken == 1 ? "line" : "lines");
    return closed;
}

static void read_log(RunRecord *record) {
    Mapping file;
    if (file_map(file_in(record, "log.txt"), &file) != ST_OK) return;
    size_t from = file.size > LOG_TAIL ? file.size - LOG_TAIL : 0;
    while (from > 0 && from < file.size && file.data[from - 1] != '\n') from++;
    if (file.size > from) str_append_n(&record->log, (const char *)file.data + from, file.size - from);
    file_unmap(&file);
}

/* ---- the whole ---- */

static int64_t count_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value) : -1;
}

static double least_of(const Series *series) {
    double least = (double)NAN;
    for (size_t i = 0; series && i < series->n; i++) least = fmin(least, series->points[i].y);
    return least;
}

static double first_known(double a, double b) { return isnan(a) ? b : a; }

/* The record of a run that was resumed with another length (lengthen.h); NULL: it has its first length. */
static const json_t *last_extension(const RunRecord *record) {
    const json_t *list = json_object_get(record->extended, "extensions");
    return json_array_size(list) > 0 ? json_array_get(list, json_array_size(list) - 1) : NULL;
}

static void sum_up(RunRecord *record) {
    const Series *loss = record_series(record, "loss"), *eval = record_series(record, "eval_loss");
    RunNumbers *numbers = &record->numbers;
    int64_t steps = count_of(record->finished, "steps");
    numbers->finished = record->finished != NULL;
    numbers->planned_steps = count_of(record->started, "steps");
    const json_t *last = last_extension(record);
    if (count_of(last, "steps") > 0) numbers->planned_steps = count_of(last, "steps");
    if (steps > numbers->steps) numbers->steps = steps;
    numbers->first_loss = first_known(json_real_of(record->finished, "first_loss"), series_end(loss, true));
    numbers->last_loss = first_known(json_real_of(record->finished, "last_loss"), series_end(loss, false));
    numbers->eval_loss = first_known(json_real_of(record->finished, "eval_loss"), series_end(eval, false));
    numbers->best_eval_loss = first_known(json_real_of(record->finished, "best_eval_loss"), least_of(eval));
    numbers->seconds = first_known(json_real_of(record->finished, "seconds"), series_end(record_series(record, "seconds"), false));
    if (record_series(record, "reward") && isnan(numbers->eval_loss)) /* the loss of a policy gradient starts at 0 except for rounding */
        numbers->first_loss = numbers->last_loss = (double)NAN;
    numbers->tokens_per_second = series_median(record_series(record, "tokens_per_second"));
    numbers->step_seconds = median_step(record_series(record, "seconds"));
    numbers->planned_step_seconds = json_real_of(record->plan, "step_seconds");
    numbers->planned_bytes = json_real_of(record->plan, "peak_bytes");
    numbers->peak_rss_bytes = count_of(record->finished, "peak_rss_bytes");
}

static void add_conclusion(void *record, const char *text) { add_warning(record, text); }

/* Adds the differences between a lengthened run and one with this length from the start. */
static void add_extensions(RunRecord *record) {
    const json_t *list = json_object_get(record->extended, "extensions");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *text = json_object_get(entry, "text");
        if (json_is_false(json_object_get(entry, "same")) && json_is_string(text)) add_warning(record, json_string_value(text));
    }
}

/* Adds the run's own warnings, before those that the curves give. */
static void collect_warnings(RunRecord *record) {
    const json_t *said = json_object_get(record->started, "warnings");
    const RunNumbers *numbers = &record->numbers;
    Str text = {0};
    for (size_t i = 0; i < json_array_size(said); i++)
        if (json_is_string(json_array_get(said, i))) add_warning(record, json_string_value(json_array_get(said, i)));
    add_extensions(record);
    if (record->reader) record->reader->conclude(record->reading, add_conclusion, record);
    bool kept = json_is_true(json_object_get(record->finished, "early_stopped")); /* the weights of the best evaluation were saved */
    if (!kept && numbers->eval_loss > 1.05 * numbers->best_eval_loss && numbers->best_eval_loss > 0) {
        str_clear(&text);
        str_printf(
            &text,
            "the held-out loss rose again, from %.4f to %.4f: the model memorises its rows; fewer epochs or train.early_stopping keep the best",
            numbers->best_eval_loss, numbers->eval_loss);
        add_warning(record, str_text(&text));
    }
    str_release(&text);
}

/* Names "runs/a/" and "." too. */
static const char *name_of(Arena *arena, const char *dir) {
    char *copy = arena_strdup(arena, dir);
    if (!copy) return dir;
    for (size_t len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--) copy[len - 1] = '\0';
    const char *name = path_name(copy);
    return *name && strcmp(name, ".") != 0 ? name : copy;
}

static Status check_is_run(const RunRecord *record) {
    if (!dir_exists(record->dir))
        return status_hint(status_fail(ST_INPUT, "no run directory '%s'", record->dir),
                           "give the directory of a run, which is 'output' in its recipe");
    if (file_exists(file_in(record, "recipe.yaml")) || file_exists(file_in(record, "metrics.jsonl"))) return ST_OK;
    status_fail(ST_INPUT, "'%s' is not a run directory: it has neither recipe.yaml nor metrics.jsonl", record->dir);
    return status_hint(ST_INPUT, "give the directory of a run, which is 'output' in its recipe");
}

static Status read_all(RunRecord *record) {
    TRY(check_is_run(record));
    TRY(ending_read(record->dir, record->arena, &record->ending));
    TRY(read_object(record, "started.json", &record->started));
    TRY(read_object(record, "finished.json", &record->finished));
    TRY(read_object(record, "extended.json", &record->extended));
    TRY(read_object(record, "plan.json", &record->plan));
    if (json_is_string(json_object_get(record->started, "program"))) record->program = json_string_value(json_object_get(record->started, "program"));
    TRY(read_settings(record));
    TRY(read_metrics(record));
    TRY(read_samples(record));
    read_log(record);
    sum_up(record);
    collect_warnings(record);
    return ST_OK;
}

Status record_read(const char *dir, const MetricsReader *reader, RunRecord *record) {
    *record = (RunRecord){.dir = dir, .reader = reader, .arena = arena_new(0)};
    if (!record->arena) return status_fail(ST_RESOURCE, "out of memory for the report");
    record->name = name_of(record->arena, dir);
    record->series = arena_alloc(record->arena, MAX_SERIES * sizeof *record->series);
    record->warnings = arena_alloc(record->arena, MAX_WARNINGS * sizeof *record->warnings);
    record->reading = reader ? reader->begin() : NULL;
    if (!record->series || !record->warnings || (reader && !record->reading)) return status_fail(ST_RESOURCE, "out of memory for the report");
    return read_all(record);
}

void record_release(RunRecord *record) {
    for (size_t i = 0; i < record->n_series; i++) free(record->series[i].points);
    json_decref(record->started);
    json_decref(record->finished);
    json_decref(record->extended);
    json_decref(record->plan);
    json_decref(record->samples);
    json_decref(record->loads);
    if (record->reader) record->reader->end(record->reading);
    str_release(&record->log);
    arena_free(record->arena);
    *record = (RunRecord){0};
}
