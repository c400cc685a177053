/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "rl/env/program.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { RESTARTS = 5, CALM = 100, SHOWN = 200 }; /* RESTARTS: allowed failures in a row; CALM: steps without failure that reset the count */

/* ---- requests and answers ---- */

Status program_wrong(const Program *program, int64_t copy, const char *problem) {
    int shown = (int)MIN(program->reply.len ? program->reply.len - 1 : 0, (size_t)SHOWN);
    char of_copy[40] = "";
    if (copy >= 0) snprintf(of_copy, sizeof of_copy, "copy %lld: ", (long long)copy);
    status_fail(ST_INPUT, "environment '%s' answers wrongly: %s%s: '%.*s%s'", program->id, of_copy, problem, shown, str_text(&program->reply),
                program->reply.len > SHOWN + 1 ? "..." : "");
    return child_add_last_line(program->child, ST_INPUT);
}

Status program_begin(Program *program) {
    json_decref(program->answer);
    program->answer = NULL;
    str_clear(&program->reply);
    /* output before the first request would be taken for its answer */
    Slice unasked = program->asked ? child_unrequested(program->child) : (Slice){0};
    program->asked = true;
    if (unasked.len > 0) {
        str_append_n(&program->reply, unasked.data, unasked.len);
        return program_wrong(program, -1, "more than one line for a request");
    }
    child_begin(program->child, str_text(&program->request), program->request.len, 1, program->timeout);
    return ST_OK;
}

Status program_answer(Program *program, bool wait, bool *answered) {
    size_t which;
    *answered = true;
    TRY(wait ? children_next(&program->child, 1, &which, &program->reply) : child_poll(program->child, answered, &program->reply));
    if (!*answered) return ST_OK;
    program->answer = json_parse(program->reply.data, program->reply.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(program->answer)) return program_wrong(program, -1, "no JSON object");
    const char *error = json_string_value(json_object_get(program->answer, "error"));
    return error ? status_fail(ST_INPUT, "environment '%s' reports: %s", program->id, error) : ST_OK;
}

Status program_list(const Program *program, const char *name, int64_t n, const json_t **list) {
    char problem[80];
    *list = json_object_get(program->answer, name);
    if (json_array_size(*list) == (size_t)n) return ST_OK;
    snprintf(problem, sizeof problem, "'%s' is not a list of %lld", name, (long long)n);
    return program_wrong(program, -1, problem);
}

Status program_request(Program *program) {
    bool answered;
    TRY(program_begin(program));
    return program_answer(program, true, &answered);
}

/* ---- start, restart, stop ---- */

Status program_init(Program *program, const char *const *argv, size_t n, int64_t copies, double timeout, Arena *arena) {
    *program = (Program){.arena = arena, .id = argv[0], .n = n, .copies = copies, .timeout = timeout, .argv = arena_zero(arena, n * sizeof *argv)};
    if (!program->argv) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++)
        if (!(program->argv[i] = arena_strdup(arena, argv[i]))) return ST_RESOURCE;
    program->id = program->argv[0];
    return ST_OK;
}

Status program_start(Program *program) {
    TRY(child_start(program->argv, program->n, NULL, &program->child));
    program->asked = false;
    str_clear(&program->request);
    str_printf(&program->request, "{\"open\": {\"copies\": %lld}}\n", (long long)program->copies);
    TRY(program_request(program));
    const json_t *id = json_object_get(program->answer, "id");
    if (!json_is_string(id)) return ST_OK;
    const char *own = arena_strdup(program->arena, json_string_value(id));
    if (own) program->id = own;
    return own ? ST_OK : ST_RESOURCE;
}

void program_note_success(Program *program) {
    if (++program->successes >= CALM) program->failures = 0;
}

/* The pause lets a machine recover from a short lack of memory or files, and keeps a program that dies at once from using a processor for
 * restarts. */
double restart_pause(int64_t failures, double most) { return fmin(fmin(0.1 * ldexp(1, (int)MIN(failures - 1, 30)), 5), most); }

void restart_wait(double seconds) {
    double until = clock_seconds() + seconds;
    for (double left; !interrupt_requested() && (left = until - clock_seconds()) > 0;)
        nanosleep(&(struct timespec){.tv_nsec = (long)(fmin(left, 0.05) * 1e9)}, NULL);
}

Status program_restart(Program *program, Status (*open)(void *context), void *context) {
    program->successes = 0;
    while (true) {
        if (++program->failures > RESTARTS) {
            status_prefix(ST_RESOURCE, "environment '%s' failed %d times in a row", program->id, RESTARTS + 1);
            return child_add_last_line(program->child, ST_RESOURCE);
        }
        double pause = restart_pause(program->failures, program->timeout);
        log_message(LOG_WARNING, "environment '%s': %s; restarting it in %g s (%lld of %d), its episodes are truncated", program->id, status_text(),
                    pause, (long long)program->failures, RESTARTS);
        child_stop(program->child, NULL, 0);
        program->child = NULL;
        restart_wait(pause);
        Status status = open(context);
        if (status != ST_RESOURCE) return status;
    }
}

void program_stop(Program *program, double patience) {
    child_stop(program->child, "{\"close\": true}\n", patience);
    program->child = NULL;
    json_decref(program->answer);
    program->answer = NULL;
    str_release(&program->request);
    str_release(&program->reply);
}
