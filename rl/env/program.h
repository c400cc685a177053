/* SPDX-License-Identifier: Apache-2.0 */
/* A child process that runs an environment: JSON lines, one request and one answer each (env_command.c: numbers; rl/text/text_env.c: texts). It is
 * restarted when it dies or hangs.
 *
 *     program->request is written; Status status = program_request(program);
 *     if (status == ST_RESOURCE) TRY(program_restart(program, open, self)); // the request is lost
 *     else TRY(program_list(program, "rewards", n, &rewards)); // points into program->answer
 */
#ifndef TUNE_PROGRAM_H
#define TUNE_PROGRAM_H

#include <jansson.h>

#include "lib/child/child.h"
#include "lib/base/file.h"
#include "lib/base/json.h"

typedef struct Program {
    Arena *arena;      /* borrowed */
    const char *id;    /* for messages: the first word of the command, until the program gives its id */
    const char **argv; /* n words */
    size_t n;
    int64_t copies;
    double timeout; /* time limit of an answer in seconds */
    Child *child;
    bool asked;                  /* a request was sent since the start */
    int64_t failures, successes; /* failures in a row; successful steps since the last failure */
    Str request, reply;
    json_t *answer; /* to the last request */
} Program;

/* The words are copied. ST_RESOURCE. */
Status program_init(Program *program, const char *const *argv, size_t n, int64_t copies, double timeout, Arena *arena);
/* Starts the program, asks it to open its copies and reads its id. Fails as program_request does. */
Status program_start(Program *program);
/* Sends `request` and parses the answer. ST_RESOURCE: the program has died or hangs; ST_INPUT: a wrong answer, or {"error": text}. */
Status program_request(Program *program);
/* The same in two steps. program_answer fails as program_request does. wait: waits for the answer; otherwise *answered says whether there is one, and
 * `request` stays as it is until then. */
Status program_begin(Program *program);
Status program_answer(Program *program, bool wait, bool *answered);
/* Notes a good answer to a step; after enough of them in a row the count of failures is reset. */
void program_note_success(Program *program);
/* Fails with ST_INPUT for a wrong answer and shows its beginning. copy < 0: the answer as a whole is wrong. */
Status program_wrong(const Program *program, int64_t copy, const char *problem);
/* The list `name` of n items in the answer. Fails as program_wrong does. */
Status program_list(const Program *program, const char *name, int64_t n, const json_t **list);
/* After ST_RESOURCE: starts a new process with `open`, which calls program_start; no episode runs in it. After too many failures in a row it fails
 * with the text of the last one. */
Status program_restart(Program *program, Status (*open)(void *context), void *context);
/* Asks the program to close and waits `patience` seconds for its exit; 0: kills it at once. */
void program_stop(Program *program, double patience);

/* Used by program_restart. Seconds to wait after `failures` failures in a row (1 or more): 0.1 after the first, doubled after each further one, at
 * most 5 and at most `most`, the time limit of an answer. */
double restart_pause(int64_t failures, double most);
/* Sleeps for `seconds`; an interrupt ends the sleep. */
void restart_wait(double seconds);

#endif
