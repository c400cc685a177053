/* SPDX-License-Identifier: Apache-2.0 */
/* An environment of texts that is a program: it is told what the policy said, and answers with what comes next. docs/protocols.md has its requests,
 * which are those of env_new_command (env.h) with texts for actions and observations.
 *
 * A program that dies or hangs is started again after a pause that grows, a few times in a row; its running episodes are truncated. A wrong answer
 * ends the run and is shown.
 */
#ifndef TUNE_TEXT_ENV_H
#define TUNE_TEXT_ENV_H

#include "rl/core/rl.h"

typedef struct TextEnv TextEnv;
/* Whether rl.env asks for one: {command: [...], text: true}. */
bool text_env_is_requested(const Yaml *node);
/* {command: [program, argument...], text: true, timeout: 60, max_turns: 8}. ST_CONFIG; ST_INPUT: no such program, or it answers wrongly; ST_RESOURCE.
 */
Status text_env_open(const Yaml *node, int64_t copies, TextEnv **env);
void text_env_close(TextEnv *env); /* NULL is fine */
const char *text_env_id(const TextEnv *env);
int64_t text_env_max_turns(const TextEnv *env);
int64_t text_env_max_turns_in_recipe(const Yaml *node); /* the same before it is opened; what is wrong with it is told then */
/* What a copy's program said last; an episode that ended has no observation that counts. Valid until the next call. */
typedef struct TextTurn {
    const json_t *observation;
    double reward;
    bool terminated, truncated;
} TextTurn;
const TextTurn *text_env_turn(const TextEnv *env, int64_t copy);
/* Begins episodes in copies 0 .. n - 1 by their seeds (31 bits); the other copies rest. ST_INPUT, ST_RESOURCE. */
Status text_env_reset(TextEnv *env, const uint64_t *seeds, int64_t n);
/* actions[copy]: what was said, NULL where the copy rests; n as above. ST_INPUT names the copy and shows the answer; ST_RESOURCE after too many
 * failures. */
Status text_env_step(TextEnv *env, const Slice *actions, int64_t n);

#endif
