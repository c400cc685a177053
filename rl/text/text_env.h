/* SPDX-License-Identifier: Apache-2.0 */
/* A text environment that runs as a program: it receives the policy's text and answers with the next observation. docs/protocols.md describes its
 * requests, which are those of env_new_command (env.h) with texts for actions and observations.
 *
 * A program that dies or hangs is restarted after a growing pause, a few times in a row; its running episodes are truncated. A wrong answer ends the
 * run and is shown.
 */
#ifndef TUNE_TEXT_ENV_H
#define TUNE_TEXT_ENV_H

#include "rl/core/rl.h"

typedef struct TextEnv TextEnv;
/* Whether rl.env is a text environment: {command: [...], text: true}. */
bool text_env_is_requested(const Yaml *node);
/* {command: [program, argument...], text: true, timeout: 60, max_turns: 8}. ST_CONFIG; ST_INPUT: no such program, or a wrong answer; ST_RESOURCE.
 */
Status text_env_open(const Yaml *node, int64_t copies, TextEnv **env);
void text_env_close(TextEnv *env); /* NULL is fine */
const char *text_env_id(const TextEnv *env);
int64_t text_env_max_turns(const TextEnv *env);
int64_t text_env_max_turns_in_recipe(const Yaml *node); /* the same before it is opened; opening reports errors */
/* The last answer for a copy. After the end of an episode the observation is meaningless. Valid until the next call. */
typedef struct TextTurn {
    const json_t *observation;
    double reward;
    bool terminated, truncated;
} TextTurn;
const TextTurn *text_env_turn(const TextEnv *env, int64_t copy);
/* Starts episodes in copies 0 .. n - 1 with the given seeds (31 bits); the other copies do nothing. ST_INPUT, ST_RESOURCE. */
Status text_env_reset(TextEnv *env, const uint64_t *seeds, int64_t n);
/* Sends the actions of some copies; the answer comes with text_env_answer. actions[copy]: the policy's text, NULL if the copy does nothing; n as in
 * text_env_reset. ST_INPUT: the program wrote something without a request; ST_RESOURCE. */
Status text_env_begin(TextEnv *env, const Slice *actions, int64_t n);
typedef enum TextAnswer {
    TEXT_NONE,  /* not yet */
    TEXT_TURNS, /* of the copies that text_env_begin had actions of */
    TEXT_LOST   /* the program was started again: all episodes are truncated, also those of other copies */
} TextAnswer;
/* wait: for the answer. ST_INPUT names the copy and shows the answer; ST_RESOURCE after too many failures; ST_INTERRUPTED while it waits. */
Status text_env_answer(TextEnv *env, bool wait, TextAnswer *answer);

#endif
