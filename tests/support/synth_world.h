/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of synthetic rows share: seeds, recipes, what runs wrote, and teachers: one behind a url, a process of the test on 127.0.0.1 that
 * misbehaves as the path says, and the demo's tiny model here.
 *
 *     Overrides o = remote("few_shot", "good", "", "rows");     // the teacher behind /good/v1, output in the directory "rows"
 *     set(&o, "synth.num_rows=%d", 8);
 *     check_ok(run(&o, false, &result));
 */
#ifndef TUNE_SYNTH_WORLD_H
#define TUNE_SYNTH_WORLD_H

#include "data/synth/synth_parts.h"

extern int port;                /* of the server */
extern char dir[256];           /* of all that tests write */
extern const char seeds_text[]; /* what stands in seeds.jsonl */

int write_seeds(void **state); /* set-up and tear-down of a group of tests */
int stop_server(void **state);

typedef struct Overrides {
    size_t n;
    char texts[24][512];
} Overrides;
void set(Overrides *o, const char *format, ...) PRINTF_LIKE(2, 3);
/* A run with the teacher behind /PATH/v1; more: further keys of the teacher's map. */
Overrides remote(const char *preset, const char *path, const char *more, const char *output);
/* A run with the model here. */
Overrides local(const char *output);
Status run_with(const Overrides *o, const SynthConfig *base, SynthResult *result);
Status run(const Overrides *o, bool resume, SynthResult *result);

/* What a run wrote: a file as text, which the caller frees; its n-th row; its lines. */
char *read_output(const char *output, const char *name);
json_t *row_of(const char *output, const char *name, size_t n);
size_t count_lines(const char *output, const char *name);
void check_same(const char *one, const char *other, const char *name);
const char *column(const json_t *row, const char *name);
const char *text_at(const json_t *row, size_t message);

bool has(const char *text, const char *part);

#endif
