/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is an environment: JSON lines, one request and one answer each (env_command.c: numbers; rl/text/text_env.c: texts). It is started
 * again when it dies or hangs.
 *
 *     program->request is written; Status status = program_request(program);
 *     if (status == ST_RESOURCE) TRY(program_restart(program, open, self)); // what it was about to do is lost
 *     else TRY(program_list(program, "rewards", n, &rewards));              // parts of program->answer
 */
#ifndef TUNE_PROGRAM_H
#define TUNE_PROGRAM_H

#include <jansson.h>

#include "lib/child/child.h"
#include "lib/base/file.h"
#include "lib/base/json.h"

typedef struct Program {
    Arena *arena;      /* borrowed */
    const char *id;    /* for messages: its first word, until it says its own */
    const char **argv; /* n words */
    size_t n;
    int64_t copies;
    double timeout; /* seconds for an answer */
    Child *child;
    bool asked;                  /* since it was started */
    int64_t failures, successes; /* in a row; answers to steps since the last one */
    Str request, reply;
    json_t *answer; /* to the last request */
} Program;

/* The words are copied. ST_RESOURCE. */
Status program_init(Program *program, const char *const *argv, size_t n, int64_t copies, double timeout, Arena *arena);
/* Starts it and asks it to open its copies; takes its id. As program_request. */
Status program_start(Program *program);
/* Sends `request` and parses the answer. ST_RESOURCE: the program is gone or hangs; ST_INPUT: it answers wrongly, or with {"error": text}. */
Status program_request(Program *program);
/* The answer to a step was good: after some of them in a row, earlier failures are forgotten. */
void program_note_success(Program *program);
/* ST_INPUT: the answer is not what was asked for, with its first line. copy < 0: the whole of it. */
Status program_wrong(const Program *program, int64_t copy, const char *problem);
/* A list of n of the answer. As program_wrong. */
Status program_list(const Program *program, const char *name, int64_t n, const json_t **list);
/* After ST_RESOURCE: a new one, by `open`, which calls program_start; no episode runs in it. Gives up after too many failures in a row, with the last
 * one's text. */
Status program_restart(Program *program, Status (*open)(void *context), void *context);
/* Asks it to close and waits so many seconds for its end; 0: at once. */
void program_stop(Program *program, double patience);

/* Of program_restart. Seconds to wait after so many failures in a row (1 or more): 0.1 after the first, twice as long after each further one, never
 * longer than 5 or `most`, the time that the program has for an answer. */
double restart_pause(int64_t failures, double most);
/* Sleeps so long; an interrupt ends it. */
void restart_wait(double seconds);

#endif
