/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-turn episodes: a text environment (text_env.h) starts the episode and answers the policy's turns. Tokens of the policy are trained, tokens of
 * the environment are not.
 *
 * The policy's turns are never tokenised again: they stay the ids that were sampled. Environment text is appended to them, rendered by the chat
 * template if the model has one (as the template would have rendered it there), so sampler and trainer see the same context. The episodes of a group
 * start with the same seed, hence the same prompt, and are compared like completions of a prompt.
 *
 * All episodes share one generator. The environment gets the turns that have ended while the model still samples turns of other episodes, so a slow
 * answer stops only the episodes that wait for it. The generator keeps keys and values of earlier turns as long as there is memory.
 */
#ifndef TUNE_TURNS_H
#define TUNE_TURNS_H

#include "rl/text/experience.h"
#include "rl/text/text_env.h"

typedef struct Turns {
    TextEnv *env;
    const Recipe *recipe; /* for data.max_length (limit of an episode in tokens) and data.system */
    double gamma;         /* discount of rewards, per turn */
    const Model *model;
    const Tokenizer *tokenizer;
    const Chat *chat;
    PromptRow *rows; /* first observations of the step; the experience borrows them until turns_begin */
    size_t n_rows, cap_rows;
    double played;               /* number of turns of all episodes since turns_begin */
    bool observations_unwritten; /* warned that the template leaves out the environment's messages */
} Turns;
/* Starts a new step with up to `n` prompts; the previous step's experience must not be used any more. ST_RESOURCE. */
Status turns_begin(Turns *turns, size_t n);
void turns_release(Turns *turns); /* does not close the environment */
/* Plays config->n episodes from each of n_groups first observations; seeds follow from config->seed and the groups' numbers, which count from
 * `number`. A sequence's reward is the discounted sum of rewards. `ended` is true only if the environment terminated the episode, not after
 * truncation by it, max_turns or data.max_length. ST_INPUT: a wrong answer, different observations for the same seed, or a first observation of more
 * than data.max_length tokens; errors of sampling. */
Status turns_sample(Turns *turns, int64_t n_groups, uint64_t number, const GenerateConfig *config, Experience *experience);

#endif
