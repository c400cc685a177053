/* SPDX-License-Identifier: Apache-2.0 */
/* Episodes of several turns: an environment of texts (text_env.h) begins and answers, the policy speaks in between. What the policy said is trained,
 * what it was told is not.
 *
 * Tokens are never made anew: the policy's turns stay the ids that were sampled, and what the environment says is put behind them, through the chat
 * template where the model has one (as the template would have rendered it there), so sampler and trainer see the same context. Groups of episodes
 * begin with the same seed, hence the same prompt, and are compared as completions of it are.
 *
 * All running episodes speak in one batch. Each turn's context is read anew: the cache of generate() lasts for one call.
 */
#ifndef TUNE_TURNS_H
#define TUNE_TURNS_H

#include "rl/text/experience.h"
#include "rl/text/text_env.h"

typedef struct Turns {
    TextEnv *env;
    const Recipe *recipe; /* data.max_length: of an episode in tokens; data.system */
    double gamma;         /* discount of rewards, per turn */
    const Model *model;
    const Tokenizer *tokenizer;
    const Chat *chat;
    PromptRow *rows; /* first observations of the step, which the experience borrows until turns_begin */
    size_t n_rows, cap_rows;
    double played;               /* turns of all episodes since turns_begin */
    bool observations_unwritten; /* that the template leaves out what the environment says */
} Turns;
/* A new step begins: its predecessor's experience is not used any more. Room for `n` prompts. ST_RESOURCE. */
Status turns_begin(Turns *turns, size_t n);
void turns_release(Turns *turns); /* not the environment */
/* config->n episodes of each of n_groups first observations, whose seeds follow from config->seed and their numbers from `number` on. Sequences have
 * the rewards' discounted sums, and are `ended` where the environment terminated them: not by its truncation, the number of turns, or
 * data.max_length. ST_INPUT: the environment answers wrongly, begins one seed in two ways, or with more than data.max_length tokens; faults of
 * sampling. */
Status turns_sample(Turns *turns, int64_t n_groups, uint64_t number, const GenerateConfig *config, Experience *experience);

#endif
