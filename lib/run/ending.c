/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes stopped.json, and concludes how a run without it ended. */
#include "lib/run/ending.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/json.h"
#include "lib/run/run_parts.h"

#define TAIL ((size_t)64 << 10) /* of a file, searched for its last line */

static const char *const remedies[] = {[NEXT_RESUME] = "resume", [NEXT_FIX] = "mend", [NEXT_NEW_RUN] = "anew"};

NextAction next_action_after(Status status, bool fixable) {
    if (status == ST_INTERRUPTED || status == ST_RESOURCE) return NEXT_RESUME;
    return status == ST_NUMERIC && !fixable ? NEXT_NEW_RUN : NEXT_FIX;
}

/* ---- writing ---- */

Status ending_write(const char *path, Status status, const char *hint, NextAction next_action, const char *resume) {
    Failure failure;
    JsonWriter w = {0};
    failure_save(&failure, status);
    jw_object(&w, NULL);
    jw_string(&w, "error", failure.text);
    jw_string(&w, "hint", hint ? hint : failure.hint);
    jw_int(&w, "exit_code", status_exit_code(status));
    jw_string(&w, "remedy", remedies[next_action]);
    jw_string(&w, "resume", resume);
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    Status written = file_write_all(path, str_text(&w.text), w.text.len);
    jw_release(&w);
    return written;
}

/* ---- reading ---- */

/* The last complete line of a file; "" when there is none. */
static void last_line(const char *path, Str *line) {
    Mapping file;
    if (!path || !file_exists(path) || file_map(path, &file) != ST_OK) return;
    size_t from = file.size > TAIL ? file.size - TAIL : 0, end = file.size;
    while (end > from && file.data[end - 1] != '\n') end--;
    size_t begin = end > from ? end - 1 : end;
    while (begin > from && file.data[begin - 1] != '\n') begin--;
    if (begin < end) str_append_n(line, (const char *)file.data + begin, end - begin - 1);
    file_unmap(&file);
}

static int64_t last_step(const char *path) {
    Str line = {0};
    json_t *json = NULL;
    int64_t step = 0;
    last_line(path, &line);
    if (line.len > 0 && json_read_text(str_text(&line), line.len, "metrics.jsonl", &json) == ST_OK)
        step = MAX(json_integer_value(json_object_get(json, "step")), (json_int_t)0);
    json_decref(json);
    str_release(&line);
    return step;
}

static int64_t newest_checkpoint(const char *dir, Arena *arena) {
    char **names;
    size_t n;
    int64_t newest = -1;
    if (!dir || !dir_exists(dir) || dir_list(dir, arena, &names, &n) != ST_OK) return -1;
    for (size_t i = 0; i < n; i++) newest = MAX(newest, checkpoint_step_of(names[i]));
    return newest;
}

/* A process holds the lock of its run's log as long as it lives. */
static RunEnd end_by_lock(const char *log) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int fd = log ? UNTIL_DONE(open(log, O_RDONLY | O_CLOEXEC)) : -1;
    bool known = fd >= 0 && fcntl(fd, RUN_ASK_LOCK, &lock) == 0;
    if (fd >= 0) close(fd);
    return !known ? END_UNKNOWN : lock.l_type == F_UNLCK ? END_KILLED : END_GOES_ON;
}

/* Runs of older versions report an interruption only in their log. */
static RunEnd end_without_words(const char *log) {
    RunEnd end = end_by_lock(log);
    Str line = {0};
    last_line(log, &line);
    if (end == END_KILLED && strstr(str_text(&line), " interrupted after step ")) end = END_INTERRUPTED;
    str_release(&line);
    return end;
}

static const char *text_of(const json_t *object, const char *key, Arena *arena) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? arena_strdup(arena, text) : NULL;
}

static void take_words(const json_t *stopped, Arena *arena, Ending *ending) {
    const char *error = text_of(stopped, "error", arena), *hint = text_of(stopped, "hint", arena);
    const char *next_action = json_string_value(json_object_get(stopped, "remedy"));
    ending->error = error ? error : "";
    ending->hint = hint ? hint : "";
    ending->resume = text_of(stopped, "resume", arena);
    ending->end = json_integer_value(json_object_get(stopped, "exit_code")) == status_exit_code(ST_INTERRUPTED) ? END_INTERRUPTED : END_ERROR;
    ending->next_action = NEXT_FIX;
    for (size_t i = 0; i < COUNT_OF(remedies); i++)
        if (next_action && strcmp(next_action, remedies[i]) == 0) ending->next_action = (NextAction)i;
}

/* The command as typed, to build the one that resumes. */
static const char *command_that_began(const char *started, Arena *arena) {
    json_t *json = NULL;
    const char *command = NULL;
    if (started && file_exists(started) && json_read_file(started, &json) == ST_OK) command = json_string_value(json_object_get(json, "command"));
    if (command) command = text_ends_with(command, " --resume") ? arena_strdup(arena, command) : arena_printf(arena, "%s --resume", command);
    json_decref(json);
    return command;
}

Status ending_read(const char *dir, Arena *arena, Ending *ending) {
    const char *log = path_join(arena, dir, "log.txt"), *stopped = path_join(arena, dir, "stopped.json");
    const char *finished = path_join(arena, dir, "finished.json"), *metrics = path_join(arena, dir, "metrics.jsonl");
    json_t *json = NULL;
    *ending = (Ending){.error = "", .hint = ""};
    if (!log || !stopped || !finished || !metrics) return ST_RESOURCE;
    ending->answers = file_exists(path_join(arena, dir, "requests.jsonl"));
    ending->step = last_step(metrics);
    ending->saved_step = newest_checkpoint(path_join(arena, dir, "checkpoints"), arena);
    if (file_exists(finished))
        ending->end = END_FINISHED;
    else if (file_exists(stopped) && json_read_file(stopped, &json) == ST_OK && json_is_object(json)) /* removed as soon as the run continues */
        take_words(json, arena, ending);
    else
        ending->end = end_without_words(log);
    json_decref(json);
    if (ending_is_failure(ending) && !ending->resume) ending->resume = command_that_began(path_join(arena, dir, "started.json"), arena);
    return ST_OK;
}

/* ---- descriptions ---- */

bool ending_is_failure(const Ending *ending) { return ending->end == END_INTERRUPTED || ending->end == END_ERROR || ending->end == END_KILLED; }

const char *ending_name(RunEnd end) {
    static const char *const words[] = {"unfinished", "finished", "running", "interrupted", "failed", "killed"};
    return words[end];
}

static void append_step(const Ending *ending, Str *text) {
    if (ending->answers) return;
    if (ending->step > 0)
        str_printf(text, " after step %lld", (long long)ending->step);
    else
        str_append(text, " before its first step was written");
}

void ending_describe(const Ending *ending, Str *text) {
    switch (ending->end) {
    case END_INTERRUPTED: str_append(text, "interrupted"); break;
    case END_ERROR: str_append(text, "ended by an error"); break;
    case END_KILLED: str_append(text, "ended without a message"); break;
    default: str_append(text, ending->end == END_GOES_ON ? "still running" : ending->end == END_FINISHED ? "finished" : "not finished");
    }
    append_step(ending, text);
    if (ending->end == END_ERROR) str_printf(text, ": %s", ending->error);
    if (ending->end == END_KILLED)
        str_append(
            text,
            ": it was killed (kill -9, or the system was out of memory), it crashed, the machine went down, or the disk was too full to record the reason");
}

static void append_from(const Ending *ending, Str *text) {
    if (ending->answers)
        str_append(text, "from the recorded answers");
    else if (ending->saved_step > 0)
        str_printf(text, "from the checkpoint of step %lld", (long long)ending->saved_step);
    else
        str_append(text, "from the beginning, since there is no checkpoint");
}

void ending_describe_next_action(const Ending *ending, Str *text) {
    if (!ending_is_failure(ending)) return;
    if (ending->next_action == NEXT_NEW_RUN) {
        str_append(text, "--resume would fail the same way: the same numbers lead to the same step. Begin another run in another output with other "
                         "settings, such as a lower train.learning_rate.");
    } else if (ending->next_action == NEXT_FIX) {
        str_append(text, "--resume alone would fail the same way. Fix the cause that the error names first: then --resume continues ");
        append_from(ending, text);
        str_append(text, ". If the recipe or the rows must change, begin another run in another output.");
    } else {
        str_append(text, ending->end == END_ERROR ? "Once the error is fixed, this continues " : "This continues ");
        append_from(ending, text);
        str_printf(text, ": %s", ending->resume ? ending->resume : "the same command with --resume");
    }
}
