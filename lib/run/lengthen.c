/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that are made longer: what is asked for, and the record of it. What they go on from is for lib/train/lengthen_plan.c to find. */
#include "lib/base/memory.h"
#include "lib/run/lengthen.h"
#include "lib/run/run_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char record_name[] = "extended.json";

/* ---- the request ---- */

Status lengthen_read(Lengthening *longer, const Recipe *recipe) {
    const char *path = path_join(recipe->arena, recipe->output, "recipe.yaml");
    if (!path) return recipe->output ? ST_RESOURCE : ST_OK;
    if (!file_exists(path)) return ST_OK;
    TRY(recipe_read(path, NULL, 0, &longer->before));
    recipe_set_old_defaults(longer->before);
    if (recipe_other_length(recipe, longer->before)) return ST_OK;
    recipe_free(longer->before);
    longer->before = NULL;
    return ST_OK;
}

void lengthen_release(Lengthening *longer) {
    if (longer->before) recipe_free(longer->before);
    str_release(&longer->differs);
}

void lengthen_describe(const Lengthening *longer, Str *text) {
    const char *what = longer->counter ? " of the environment" : "";
    long long steps = (long long)longer->is.steps;
    if (longer->from < 0) {
        str_printf(text, "the run has no checkpoint yet and begins at step 0, with %lld step%s%s", steps, plural(steps), what);
        return;
    }
    str_printf(text, "the run had a length of %lld step%s%s and continues from the checkpoint of step %lld until it has %lld",
               (long long)longer->was.steps, plural(longer->was.steps), what, (long long)longer->from, steps);
    if (longer->differs.len == 0)
        str_append(text, "; the result has the same bytes as that of a run with this length from the start");
    else
        str_printf(text, ", and the result differs from that of a run with this length from the start: %s", str_text(&longer->differs));
}

/* ---- the record ---- */

/* An empty one where there is none, or none that can be understood. ST_RESOURCE: it is there, and cannot be read now. */
static Status read_record(const Run *run, json_t **json) {
    const char *path = run_path(run, record_name);
    *json = NULL;
    if (!path) return ST_RESOURCE;
    Status status = file_exists(path) ? json_read_file(path, json) : ST_OK;
    if (status == ST_RESOURCE) return status;
    if (json_is_array(json_object_get(*json, "extensions"))) return ST_OK;
    json_decref(*json);
    *json = json_pack("{s:[]}", "extensions");
    return *json ? ST_OK : status_fail(ST_RESOURCE, "out of memory for '%s'", record_name);
}

bool lengthen_knows(const Run *run, uint64_t recipe) {
    json_t *json;
    if (read_record(run, &json) != ST_OK) memory_no_answer(EIO, record_name);
    const json_t *list = json_object_get(json, "extensions");
    bool known = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(list, i), "recipe"));
        known |= text && strtoull(text, NULL, 16) == recipe;
    }
    json_decref(json);
    return known;
}

static json_t *entry_of(const Lengthening *longer, const char *text) {
    char recipe[20];
    snprintf(recipe, sizeof recipe, "%016llx", (unsigned long long)recipe_fingerprint(longer->before));
    json_t *entry = json_pack("{s:s, s:I, s:I, s:b, s:s}", "recipe", recipe, "from", (json_int_t)longer->from, "before",
                              (json_int_t)longer->was.steps, "same", (int)(longer->differs.len == 0), "text", text);
    if (entry) json_object_set_new(entry, longer->counter ? longer->counter : "steps", json_integer(longer->is.steps));
    return entry;
}

static Status write_record(const Lengthening *longer, const Run *run, const char *text) {
    json_t *json, *list, *entry;
    char *written = NULL;
    Str line = {0};
    TRY(read_record(run, &json));
    entry = entry_of(longer, text);
    list = json_object_get(json, "extensions");
    size_t n = json_array_size(list);
    bool again = n > 0 && json_equal(json_array_get(list, n - 1), entry); /* it ended before it went on */
    if (entry && (again || json_array_append(list, entry) == 0)) written = json_text(json, JSON_INDENT(2));
    if (written) str_printf(&line, "%s\n", written);
    Status status = written ? file_write_all(run_path(run, record_name), str_text(&line), line.len)
                            : status_fail(ST_RESOURCE, "out of memory for '%s'", record_name);
    free(written);
    json_decref(json);
    json_decref(entry);
    str_release(&line);
    return status;
}

static Status forget_end(const Run *run) {
    const char *path = run_path(run, "finished.json");
    if (!path) return ST_RESOURCE;
    if (UNTIL_DONE(unlink(path)) != 0) return errno == ENOENT ? ST_OK : status_errno(errno, "cannot remove '%s'", path);
    return dir_sync(run_dir(run));
}

/* The order matters: if the process is killed in between, the same command continues the run, with the old length or the new one. */
Status lengthen_apply(const Lengthening *longer, Run *run, const Recipe *recipe) {
    Str text = {0};
    lengthen_describe(longer, &text);
    Status status = write_record(longer, run, str_text(&text));
    if (status == ST_OK && longer->from >= 0) status = checkpoint_remove_after(run, longer->from);
    if (status == ST_OK) status = forget_end(run);
    if (status == ST_OK) status = run_write_recipe(run, recipe);
    if (status == ST_OK) run_note(run, "%s", str_text(&text));
    str_release(&text);
    return status;
}
