/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the tests of synthetic rows: seeds, recipes, files of runs, and teachers. One teacher is a server, a child process on 127.0.0.1
 * that misbehaves as the path of its URL says; the other one is the demo's tiny model.
 *
 *     Overrides o = remote("few_shot", "good", "", "rows");     // the teacher at /good/v1, output in the directory "rows"
 *     set(&o, "synth.num_rows=%d", 8);
 *     check_ok(run(&o, false, &result));
 */
#ifndef TUNE_SYNTH_WORLD_H
#define TUNE_SYNTH_WORLD_H

#include "data/synth/synth_parts.h"

extern int port;                /* port of the server */
extern char dir[256];           /* folder for all files of the tests */
extern const char seeds_text[]; /* the text of seeds.jsonl */

int write_seeds(void **state); /* set-up and tear-down of a group of tests */
int stop_server(void **state);

typedef struct Overrides {
    size_t n;
    char texts[24][512];
} Overrides;
void set(Overrides *o, const char *format, ...) PRINTF_LIKE(2, 3);
/* Settings of a run with the teacher at /PATH/v1. more: further keys of the teacher's map. */
Overrides remote(const char *preset, const char *path, const char *more, const char *output);
/* Settings of a run with the tiny model. */
Overrides local(const char *output);
Status run_with(const Overrides *o, const SynthConfig *base, SynthResult *result);
Status run(const Overrides *o, bool resume, SynthResult *result);

/* Read the output of a run: a file as text, which the caller frees; its n-th row; its number of lines. */
char *read_output(const char *output, const char *name);
json_t *row_of(const char *output, const char *name, size_t n);
size_t count_lines(const char *output, const char *name);
void check_same(const char *one, const char *other, const char *name);
const char *column(const json_t *row, const char *name);
const char *text_at(const json_t *row, size_t message);

bool has(const char *text, const char *part);

#endif
