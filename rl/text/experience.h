/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy on text did in one step: groups of completions of the same prompt, as flat arrays over their tokens. Everything that is known of a
 * token has the token's place in its array.
 *
 *     TRY(experience_sample(model, tokenizer, prompts, n, 0, &config, &round));
 *     experience_clear(&batch, config.n);
 *     TRY(experience_append(&batch, &round, 3));          // the group that is worth learning from
 */
#ifndef TUNE_EXPERIENCE_H
#define TUNE_EXPERIENCE_H

#include "lib/infer/infer.h"
#include "rl/text/prompts.h"

typedef struct Experience {
    int64_t n_groups, group_size; /* sequence i is completion i % group_size of group i / group_size */
    int64_t n;                    /* sequences: n_groups x group_size */
    const PromptRow **prompts;    /* (n_groups); borrowed */
    int64_t *begin;               /* (n + 1): the tokens of sequence i are begin[i] .. begin[i + 1] - 1 */
    int64_t n_tokens;
    bool *ended;     /* (n): by EOS or a stop text: terminated. false: cut at the longest length, truncated */
    Str *texts;      /* (n) */
    double *rewards; /* (n): NaN where none was given */
    double *scores;  /* (n): what a reward is worth beside others */

    /* (n_tokens) */
    int32_t *ids;
    double *sampled;              /* log-prob as the sampler had it, at its temperature before filters */
    double *filtered;             /* after filters: what the token was drawn from */
    double *old_logprobs;         /* as the trainer had it before the first update */
    double *ref_logprobs;         /* under the reference */
    double *logprobs, *entropies; /* as the policy has it now */
    /* In an environment, for the turn that ends with the token; 0 elsewhere. What it earned, and more, is in the sequence's reward */
    double *earned;
    double *token_rewards, *advantages;
    /* V of the state before the token, as it was before the first update; of the state behind it, where a sequence was cut. Only where values are
     * learned */
    double *values, *final_values;
    double *targets;    /* what values are to become */
    double *new_values; /* as they are now */
    bool *trained;
    bool *terminated, *truncated; /* the last token of a sequence is one of them */
    int64_t cap_sequences, cap_tokens;
} Experience;

/* Completions of every prompt, sampled from `model` as it is now. Sequences and random numbers are a function of config->seed and the prompts'
 * numbers alone, which are counted from `number`. The experience is emptied first and keeps its memory; {0} is an empty one. Faults as generate. */
Status experience_sample(const Model *model, const Tokenizer *tokenizer, const PromptRow *const *prompts, size_t n_prompts, uint64_t number,
                         const GenerateConfig *config, Experience *experience);
/* Empties it for groups of this size. */
void experience_clear(Experience *experience, int64_t group_size);
/* For who samples in another way: a group of this prompt (borrowed), whose sequences are to be added. ST_RESOURCE. */
Status experience_open_group(Experience *experience, const PromptRow *prompt);
typedef struct Sequence {
    const int32_t *ids;
    const double *sampled, *filtered;
    const bool *trained;  /* NULL: all */
    const double *earned; /* NULL: nothing */
    size_t n;
    Slice text;
    bool ended;
    double reward;
} Sequence;
Status experience_add(Experience *experience, const Sequence *sequence);
/* Puts group `group` of `from`, which has groups of the same size, behind what is there: what was sampled and what it earned. ST_RESOURCE. */
Status experience_append(Experience *experience, const Experience *from, int64_t group);
/* The same with some of its completions, as many as groups have here: `members`, counted within the group of `from`; NULL: the first ones. */
Status experience_append_members(Experience *experience, const Experience *from, int64_t group, const int64_t *members);
/* Tokens of a sequence that are trained: as sampled, those that the policy chose, without what an environment told. */
int64_t experience_trained(const Experience *experience, int64_t sequence);
void experience_release(Experience *experience);

#endif
