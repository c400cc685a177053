/* SPDX-License-Identifier: Apache-2.0 */
/* The run directory: locks it, finds where the run continues, and records what happens. */
#include "lib/base/log.h"
#include "lib/base/memory.h"
#include "lib/run/ending.h"
#include "lib/run/lengthen.h"
#include "lib/run/run_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool run_writes(const Run *run) { return !run->absent; }
const char *run_dir(const Run *run) { return run->dir; }
const char *run_backup_path(const Run *run) { return run->kept; }

void run_say_backup(const Run *run, const RunOptions *options) {
    if (run->kept && options->say) options->say("the run that was in '%s' is kept in '%s'", run->dir, run->kept);
}
bool run_finished(const Run *run) { return run->finished; }
int64_t run_step(const Run *run) { return run->step; }
const char *run_path(const Run *run, const char *name) { return path_join(run->arena, run->dir, name); }

static const Run *recorded; /* the run whose log gets all warnings, also those of code that has no Run */

void run_close(Run *run) {
    if (!run) return;
    if (run == recorded) {
        log_set_record(NULL, NULL);
        recorded = NULL;
    }
    if (run->log_fd >= 0) close(run->log_fd);
    json_decref(run->summary);
    str_release(&run->unwritten);
    arena_free(run->arena);
    free(run);
}

/* ---- opening a directory ---- */

static bool holds_run(const Run *run) {
    static const char *const names[] = {"recipe.yaml", "metrics.jsonl", "checkpoints", "adapter", "model", "finished.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *path = run_path(run, names[i]);
        if (path && (file_exists(path) || dir_exists(path))) return true;
    }
    return false;
}

static bool holds_model(const Run *run) {
    const char *model = run_path(run, "config.json"), *adapter = run_path(run, "adapter_config.json");
    return model && adapter && (file_exists(model) || file_exists(adapter));
}

static Status refuse_taken(const Run *run) {
    status_fail(ST_CONFIG, "output '%s' already contains a run", run->dir);
    return status_hint(ST_CONFIG, "continue it with --resume, start again with --force, which keeps the old run as NAME.1, or choose another output");
}

static Status compare_recipe(const Run *run, const Recipe *recipe) {
    const char *path = run_path(run, "recipe.yaml");
    if (!path) return ST_RESOURCE;
    if (!file_exists(path)) {
        status_fail(ST_CONFIG, "cannot resume '%s': it lacks recipe.yaml", run->dir);
        return status_hint(ST_CONFIG, "choose another output");
    }
    Recipe *before;
    TRY(recipe_read(path, NULL, 0, &before));
    recipe_set_old_defaults(before);
    const char *now_value, *before_value, *key = recipe_difference(recipe, before, &now_value, &before_value);
    recipe_free(before);
    if (!key) return ST_OK;
    status_fail(ST_CONFIG, "cannot resume '%s': '%s' was %s, now it is %s", run->dir, key, before_value, now_value);
    return status_hint(ST_CONFIG, "a changed recipe is another run: choose another output, or start again with --force");
}

Status run_write_recipe(const Run *run, const Recipe *recipe) {
    Str text = {0};
    recipe_write_yaml(recipe, &text);
    Status status = file_write_all(run_path(run, "recipe.yaml"), str_text(&text), text.len);
    str_release(&text);
    return status;
}

/* Finds out whether the path still leads to the open file: the folder may have been replaced meanwhile. */
static Status same_file(const char *path, int fd, bool *same) {
    struct stat named, opened;
    *same = false;
    if (file_stat(path, &named) != 0) return errno == ENOENT || errno == ENOTDIR ? ST_OK : status_errno(errno, "cannot read '%s'", path);
    if (fstat(fd, &opened) != 0) return status_errno(errno, "cannot read '%s'", path);
    *same = named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
    return ST_OK;
}

static Status take_lock(const Run *run, const char *path, int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    bool free = true; /* some file systems have no locks */
    if (fcntl(fd, RUN_SET_LOCK, &lock) != 0)
        free = errno != EACCES && errno != EAGAIN;
    else
        TRY(same_file(path, fd, &free));
    if (free) return ST_OK;
    status_fail(ST_CONFIG, "another process is training in '%s'", run->dir);
    return status_hint(ST_CONFIG, "wait for it, or stop it and continue with --resume; or choose another output");
}

/* The log is also the lock: a second process in the same directory would mix its steps with this one's. */
Status run_lock(const Run *run, bool make, int *fd) {
    const char *path = run_path(run, "log.txt");
    *fd = -1;
    if (!path) return ST_RESOURCE;
    *fd = UNTIL_DONE(open(path, O_WRONLY | O_APPEND | (make ? O_CREAT : 0) | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (*fd < 0 && errno == ELOOP) return file_refuse_link(path);
    if (*fd < 0) return !make && errno == ENOENT ? ST_OK : status_unwritable(errno, "cannot write '%s'", path);
    Status status = take_lock(run, path, *fd);
    if (status == ST_OK) return ST_OK;
    close(*fd);
    *fd = -1;
    return status;
}

/* Training does not stop when a log line cannot be written. */
static void log_line(const Run *run, const char *text) {
    if (!run || run->log_fd < 0) return;
    char stamp[32];
    time_t now = time(NULL);
    struct tm parts;
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
    Str line = {0};
    str_printf(&line, "%s %s\n", stamp, text);
    ssize_t written = write(run->log_fd, str_text(&line), line.len);
    (void)written;
    str_release(&line);
}

static void record(void *run, LogLevel level, const char *text) {
    (void)level;
    log_line(run, text);
}

/* ---- where the run continues ---- */

/* Removes incomplete checkpoints, and those newer than the one that is used: they are damaged. */
static Status clean_checkpoints(Run *run) {
    char **names;
    size_t n;
    TRY(dir_list(run->checkpoints_path, run->arena, &names, &n));
    for (size_t i = 0; i < n; i++) {
        int64_t step = checkpoint_step_of(names[i]);
        bool temporary = text_starts_with(names[i], ".tmp-");
        if (!temporary && step <= run->step) continue;
        if (!temporary) run_warn(run, "checkpoint '%s' is damaged: it is not used", names[i]);
        TRY(dir_remove(path_join(run->arena, run->checkpoints_path, names[i])));
    }
    return ST_OK;
}

static bool is_temporary(const char *name) { return text_starts_with(name, ".tune-rows-") || (name[0] == '.' && strstr(name, ".tmp-")); }

/* Finds a temporary file that a killed process left (writer.c). */
static Status has_temporary(Run *run, bool *has) {
    char **names;
    size_t n;
    *has = false;
    TRY(dir_list(run->dir, run->arena, &names, &n));
    for (size_t i = 0; i < n; i++) *has |= is_temporary(names[i]);
    return ST_OK;
}

/* Removes these files. The folder is locked, so no other process writes them. */
static Status clean_files(Run *run) {
    char **names;
    size_t n;
    TRY(dir_list(run->dir, run->arena, &names, &n));
    for (size_t i = 0; i < n; i++) {
        if (!is_temporary(names[i])) continue;
        const char *path = path_join(run->arena, run->dir, names[i]);
        if (path && UNTIL_DONE(unlink(path)) != 0) return status_errno(errno, "cannot remove '%s'", path);
    }
    return ST_OK;
}

/* The end of the last complete line among the file's first `size` bytes. */
static uint64_t whole_lines_end(const char *path, uint64_t size) {
    char piece[4096];
    int fd = UNTIL_DONE(open(path, O_RDONLY | O_CLOEXEC));
    while (fd >= 0 && size > 0) {
        size_t want = (size_t)MIN(size, (uint64_t)sizeof piece);
        ssize_t got = pread(fd, piece, want, (off_t)(size - want));
        if (got != (ssize_t)want) break;
        while (want > 0 && piece[want - 1] != '\n') want--;
        size -= (size_t)got - want;
        if (want > 0) break;
    }
    if (fd >= 0) close(fd);
    return size;
}

/* The checkpoint is valid without the lines that are missing, whether by a power cut, a copy or an edit. */
static Status warn_of_short_metrics(Run *run, uint64_t size, uint64_t bytes) {
    uint64_t whole = whole_lines_end(run->metrics_path, size);
    run_warn(run, "'%s' is shorter than at the checkpoint of step %lld: its last %llu bytes up to there are lost", run->metrics_path,
             (long long)run->step, (unsigned long long)(bytes - whole));
    return file_truncate(run->metrics_path, whole);
}

Status run_cut_metrics(Run *run, uint64_t bytes) {
    struct stat info;
    if (run->absent) return ST_OK;
    if (file_stat(run->metrics_path, &info) != 0) {
        if (bytes > 0 && errno != ENOENT) return status_errno(errno, "cannot resume: '%s'", run->metrics_path);
        if (bytes > 0) run_warn(run, "'%s' is missing: its lines up to step %lld are lost", run->metrics_path, (long long)run->step);
        return ST_OK;
    }
    if (bytes > (uint64_t)info.st_size) return warn_of_short_metrics(run, (uint64_t)info.st_size, bytes);
    if (whole_lines_end(run->metrics_path, bytes) != bytes)
        return status_hint(
            status_fail(ST_INPUT, "cannot resume '%s': it changed after the checkpoint of step %lld", run->metrics_path, (long long)run->step),
            "restore the old file, or choose another output");
    return file_truncate(run->metrics_path, bytes);
}

static Status take_up(Run *run) {
    Manifest manifest = {0};
    TRY(dir_make(run->checkpoints_path));
    TRY(checkpoint_find(run->checkpoints_path, &run->step));
    if (run->step >= 0) TRY(checkpoint_verify(run->checkpoints_path, run->step, &manifest));
    if (manifest.recipe != 0 && manifest.recipe != run->recipe && !lengthen_knows(run, manifest.recipe))
        return status_hint(
            status_fail(ST_CONFIG, "cannot resume '%s': the checkpoint of step %lld belongs to another recipe", run->dir, (long long)run->step),
            "move it away, or choose another output");
    TRY(clean_checkpoints(run));
    TRY(clean_files(run));
    TRY(run_cut_metrics(run, manifest.metrics_bytes));
    return events_open(&run->events, run->arena, run->dir, run->metrics_path, run->resumed);
}

/* Removes the record of the earlier ending. */
static Status forget_end(Run *run) {
    const char *stopped = run_path(run, "stopped.json");
    if (!stopped) return ST_RESOURCE;
    if (UNTIL_DONE(unlink(stopped)) == 0 || errno == ENOENT) return ST_OK;
    return status_errno(errno, "cannot remove '%s'", stopped);
}

/* Refuses runs that must not continue; finds out whether the run existed and is complete. */
static Status examine(Run *run, const Recipe *recipe, RunMode take) {
    if (file_exists(run->dir) && !dir_exists(run->dir))
        return status_hint(status_fail(ST_CONFIG, "output '%s' is a file", run->dir), "a run is a folder: choose another output");
    if (holds_model(run))
        return status_hint(status_fail(ST_CONFIG, "output '%s' is the directory of a model or an adapter", run->dir),
                           "choose another output: a run has a folder of its own");
    run->resumed = holds_run(run);
    if (!run->resumed) return ST_OK;
    if (take == RUN_NEW) return refuse_taken(run);
    if (take == RUN_REPLACE) return run_replace_check(run, recipe);
    TRY(compare_recipe(run, recipe));
    run->finished = file_exists(run_path(run, "finished.json"));
    return ST_OK;
}

static Status run_new(const Recipe *recipe, RunMode take, Run **result) {
    bool absent = take == RUN_ABSENT;
    *result = NULL;
    if (!absent && (!recipe->output || recipe->output[0] == '\0')) {
        status_fail(ST_CONFIG, "'output' is missing");
        return status_hint(ST_CONFIG, "name the run directory: output: runs/my-run");
    }
    Run *run = calloc(1, sizeof *run);
    if (!run || !(run->arena = arena_new(0))) {
        free(run);
        return status_fail(ST_RESOURCE, "out of memory for the run");
    }
    run->absent = absent;
    run->log_fd = -1;
    run->step = -1;
    run->recipe = recipe_fingerprint(recipe);
    run->dir = arena_strdup(run->arena, recipe->output ? recipe->output : "");
    run->metrics_path = run->dir ? run_path(run, "metrics.jsonl") : NULL;
    run->checkpoints_path = run->dir ? run_path(run, "checkpoints") : NULL;
    *result = run;
    return run->metrics_path && run->checkpoints_path ? ST_OK : ST_RESOURCE;
}

/* --resume without a run is allowed, so that scripts can always pass it. It may be a mistake, so it is a warning. */
static void warn_of_nothing(const Run *run) {
    log_message(LOG_WARNING, "--resume: output '%s' %s, so a new run begins; check 'output' if there should be one", run->dir,
                dir_exists(run->dir) ? "contains no run to resume" : "does not exist");
}

Status run_check(const Recipe *recipe, RunMode take, bool *finished) {
    Run *run;
    *finished = false;
    if (take == RUN_ABSENT) return ST_OK;
    Status status = run_new(recipe, take, &run);
    if (status == ST_OK) status = examine(run, recipe, take);
    if (status == ST_OK && take == RUN_RESUME && !run->resumed) warn_of_nothing(run);
    if (status == ST_OK && !run->finished) status = dir_check_creatable(run->dir);
    *finished = run && run->finished;
    run_close(run);
    return status;
}

bool run_reported(const Run *run) {
    const char *path = run_path(run, "report.html");
    return path && file_exists(path);
}

/* Logs the end of a run that was killed and could not do so itself. */
static void say_silence(Run *run, const Ending *before) {
    Str text = {0};
    ending_describe(before, &text);
    run_warn(run, "the run in '%s' %s", run->dir, str_text(&text));
    str_release(&text);
}

static Status put_aside(Run *run, const Recipe *recipe) {
    Str kept = {0};
    Status status = run_replace(run, recipe, &kept);
    if (status == ST_OK && !(run->kept = arena_strdup(run->arena, str_text(&kept)))) status = ST_RESOURCE;
    str_release(&kept);
    run->resumed = false;
    return status;
}

static Status run_begin(Run *run, const Recipe *recipe, RunMode take, const Lengthening *longer) {
    Ending before = {0};
    bool temporary = false;
    TRY(examine(run, recipe, take));
    if (longer) run->finished = false;
    if (run->finished) TRY(has_temporary(run, &temporary));
    if (run->finished && run_reported(run) && !temporary) return ST_OK;
    if (run->resumed && take == RUN_REPLACE) TRY(put_aside(run, recipe));
    if (run->resumed) TRY(ending_read(run->dir, run->arena, &before));
    TRY(dir_make(run->dir));
    TRY(run_lock(run, true, &run->log_fd));
    if (run->kept) run_note(run, "the run that was here before is kept in '%s'", run->kept);
    if (run->finished) return clean_files(run);
    log_set_record(record, run);
    recorded = run;
    if (!run->resumed) TRY(run_write_recipe(run, recipe));
    if (longer && run->resumed) TRY(lengthen_apply(longer, run, recipe));
    TRY(take_up(run));
    if (before.end == END_KILLED) say_silence(run, &before);
    return forget_end(run);
}

Status run_open(const Recipe *recipe, RunMode take, Run **result) { return run_open_longer(recipe, take, NULL, result); }

Status run_open_longer(const Recipe *recipe, RunMode take, const Lengthening *longer, Run **result) {
    Run *run;
    Status status = run_new(recipe, take, &run);
    if (status == ST_OK && !run->absent) status = run_begin(run, recipe, take, longer);
    *result = status == ST_OK ? run : NULL;
    if (status != ST_OK) run_close(run);
    return status;
}

Status run_mark_finished(Run *run, const json_t *summary) {
    json_decref(run->summary);
    run->summary = json_deep_copy(summary);
    if (!run->summary) return status_fail(ST_RESOURCE, "out of memory for the run's summary");
    if (run->absent) {
        run->finished = true;
        return ST_OK;
    }
    char *text = json_text(summary, JSON_INDENT(2));
    if (!text) return status_fail(ST_RESOURCE, "out of memory for the run's summary");
    Str line = {0};
    str_printf(&line, "%s\n", text);
    free(text);
    Status status = dir_sync_tree(run->dir); /* the files of a finished run must be on disk */
    if (status == ST_OK) status = file_write_all(run_path(run, "finished.json"), str_text(&line), line.len);
    str_release(&line);
    if (status == ST_OK) run->finished = true;
    return status;
}

Status run_summary(const Run *run, json_t **summary) {
    if (!run->summary) return json_read_file(run_path(run, "finished.json"), summary);
    *summary = json_incref(run->summary);
    return ST_OK;
}

/* ---- failures ---- */

/* A checkpoint saved without its metrics line would never get it. */
static Status write_unwritten(Run *run) {
    if (run->unwritten.len == 0) return ST_OK;
    TRY(run_metric(run, str_text(&run->unwritten)));
    str_clear(&run->unwritten);
    return ST_OK;
}

void run_resume_by(Run *run, const char *command) { run->resume = command ? arena_strdup(run->arena, command) : NULL; }

static void append_way_on(const Run *run, NextAction next_action, int64_t saved_step, Str *hint) {
    const char *again = run->resume ? run->resume : "--resume";
    if (saved_step <= 0 && next_action == NEXT_RESUME)
        str_printf(hint, "nothing was saved before this; --resume begins anew in '%s'", run->dir);
    else if (saved_step <= 0)
        str_printf(hint, "nothing was saved before this; once the error is fixed, --resume starts again in '%s'", run->dir);
    else if (next_action == NEXT_RESUME)
        str_printf(hint, "a checkpoint of step %lld is saved in '%s': continue with %s", (long long)saved_step, run->dir, again);
    else
        str_printf(hint, "a checkpoint of step %lld is saved in '%s': --resume alone would fail the same way; once the error is fixed, it continues",
                   (long long)saved_step, run->dir);
}

Status run_failed(Run *run, Status status, Status (*save)(void *context), void *context, const int64_t *saved_step) {
    Failure failure;
    Str hint = {0};
    status = memory_check(status);
    if (run->absent) return status;
    memory_clear_failure(); /* the step that lacked memory is abandoned; the saved state is older */
    failure_save(&failure, status);
    Status saved = write_unwritten(run);
    if (saved == ST_OK) saved = save(context);
    if (saved != ST_OK && !strstr(failure.text, status_text())) run_warn(run, "no checkpoint: %s", status_text());
    str_printf(&hint, "%s%s", failure.hint, failure.hint[0] ? "; " : "");
    run->hint = arena_strdup(run->arena, failure.hint);
    append_way_on(run, next_action_after(status, true), *saved_step, &hint);
    run_note(run, "%s; %s", failure.text, str_text(&hint));
    status_hint(failure_restore(&failure), "%s", str_text(&hint));
    str_release(&hint);
    return status;
}

Status run_mark_stopped(Run *run, Status status) {
    const char *path = run->absent ? NULL : run_path(run, "stopped.json");
    if (!path || run->finished) return status;
    Failure failure;
    failure_save(&failure, status);
    if (ending_write(path, status, run->hint, next_action_after(status, run->hint != NULL), run->resume) != ST_OK)
        run_warn(run, "no stopped.json: %s", status_text());
    return failure_restore(&failure);
}

Status run_interrupted(Run *run, int64_t step) {
    if (run->absent) return status_fail(ST_INTERRUPTED, "interrupted after step %lld", (long long)step);
    run_log(run, "interrupted after step %lld", (long long)step);
    status_fail(ST_INTERRUPTED, "interrupted after step %lld, a checkpoint is saved in '%s'", (long long)step, run->dir);
    return status_hint(ST_INTERRUPTED, "continue with --resume");
}

/* ---- inputs ---- */

/* Fingerprints are stored as text: jansson's integers are signed. */
json_t *run_inputs_to_json(const TaskInput inputs[TASK_MAX_INPUTS]) {
    json_t *json = json_object();
    char text[32];
    for (int i = 0; i < TASK_MAX_INPUTS && json; i++) {
        if (!inputs[i].key) continue;
        snprintf(text, sizeof text, "%016llx", (unsigned long long)inputs[i].fingerprint);
        json_object_set_new(json, inputs[i].key, json_string(text));
    }
    return json;
}

Status run_check_inputs(const Run *run, const TaskInput inputs[TASK_MAX_INPUTS], const json_t *state) {
    const json_t *json = json_object_get(state, "inputs");
    for (int i = 0; i < TASK_MAX_INPUTS; i++) {
        const char *text = inputs[i].key ? json_string_value(json_object_get(json, inputs[i].key)) : NULL;
        if (!inputs[i].key || (text && strtoull(text, NULL, 16) == inputs[i].fingerprint)) continue;
        status_fail(ST_CONFIG, "cannot resume '%s': the input named by '%s' changed after the checkpoint of step %lld", run->dir, inputs[i].key,
                    (long long)run->step);
        return status_hint(ST_CONFIG, "restore the old files, or choose another output");
    }
    return ST_OK;
}

/* ---- started.json ---- */

bool run_started_begin(const Run *run, const Recipe *recipe, const char *command, JsonWriter *w) {
    const char *path = run_path(run, "started.json");
    *w = (JsonWriter){0};
    if (run->absent) return false;
    if (run->resumed && path && file_exists(path)) return false;
    jw_object(w, NULL);
    jw_string(w, "program", recipe->program);
    jw_string(w, "command", command);
    return true;
}

Status run_started_end(const Run *run, JsonWriter *w) {
    const char *path = run_path(run, "started.json");
    jw_end_object(w);
    str_append_char(&w->text, '\n');
    Status status = path ? file_write_all(path, str_text(&w->text), w->text.len) : ST_RESOURCE;
    jw_release(w);
    return status;
}

/* ---- metrics and log ---- */

Status run_metric(Run *run, const char *json_line) {
    if (run->absent) return ST_OK;
    Str line = {0};
    str_printf(&line, "%s\n", json_line);
    Status status = file_append(run->metrics_path, str_text(&line), line.len);
    str_release(&line);
    if (status == ST_OK) return events_add(&run->events, json_line);
    if (json_line != str_text(&run->unwritten)) str_append(&run->unwritten, json_line);
    return status;
}

void run_note(Run *run, const char *format, ...) {
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_keep_one_line(text, sizeof text);
    log_line(run, text);
}

static void run_say(const Run *run, LogLevel level, const char *format, va_list args) {
    char text[4096];
    vsnprintf(text, sizeof text, format, args);
    text_keep_one_line(text, sizeof text);
    if (run != recorded || level != LOG_WARNING) log_line(run, text);
    log_message(level, "%s", text);
}

void run_log(Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    run_say(run, LOG_INFO, format, args);
    va_end(args);
}

void run_warn(Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    run_say(run, LOG_WARNING, format, args);
    va_end(args);
}
