/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of a policy on text in one step: groups of completions of the same prompt, as flat arrays over their tokens. All per-token arrays use
 * the same index.
 *
 *     TRY(experience_sample(model, tokenizer, prompts, n, 0, &config, &round));
 *     experience_clear(&batch, config.n);
 *     TRY(experience_append(&batch, &round, 3));          // keep group 3
 */
#ifndef TUNE_EXPERIENCE_H
#define TUNE_EXPERIENCE_H

#include "lib/comm/comm.h"
#include "lib/infer/infer.h"
#include "rl/text/prompts.h"

typedef struct Experience {
    int64_t n_groups, group_size; /* sequence i is completion i % group_size of group i / group_size */
    int64_t n;                    /* sequences: n_groups x group_size */
    const PromptRow **prompts;    /* (n_groups); borrowed */
    int64_t *begin;               /* (n + 1): the tokens of sequence i are begin[i] .. begin[i + 1] - 1 */
    int64_t n_tokens;
    bool *ended;     /* (n): true: ended by EOS or a stop text (terminated); false: cut at the maximum length (truncated) */
    Str *texts;      /* (n) */
    double *rewards; /* (n): NaN where none was given */
    double *scores;  /* (n): advantage of each completion as a whole */

    /* (n_tokens) */
    int32_t *ids;
    double *sampled;              /* log-prob by the sampler, at its temperature, before filters */
    double *filtered;             /* log-prob after filters: of the distribution that the token was drawn from */
    double *old_logprobs;         /* log-prob by the trainer before the first update */
    double *ref_logprobs;         /* log-prob under the reference */
    double *logprobs, *entropies; /* under the current policy */
    /* With an environment: the reward of the turn that ends with this token; 0 elsewhere. The sequence's reward includes it */
    double *earned;
    double *token_rewards, *advantages;
    /* values: V of the state before the token, before the first update; final_values: V of the state after it, where a sequence was cut. Only where
     * values are learned */
    double *values, *final_values;
    double *targets;    /* targets of the values */
    double *new_values; /* values under the current value model */
    bool *trained;
    bool *terminated, *truncated; /* one of them is set at the last token of a sequence */
    int64_t cap_sequences, cap_tokens;
} Experience;

/* Samples completions of every prompt from `model`. Sequences and random numbers depend only on config->seed and the prompts' numbers, which count
 * from `number`. Empties the experience first but keeps its memory; {0} is an empty one. comm: ranks that may fail meanwhile; NULL: none. Fails as
 * generate does, and as comm_check. */
Status experience_sample(const Model *model, const Tokenizer *tokenizer, const PromptRow *const *prompts, size_t n_prompts, uint64_t number,
                         const GenerateConfig *config, Comm *comm, Experience *experience);
/* Empties it for groups of this size. */
void experience_clear(Experience *experience, int64_t group_size);
/* For other ways of sampling: starts a group of this prompt (borrowed); experience_add adds its sequences. ST_RESOURCE. */
Status experience_open_group(Experience *experience, const PromptRow *prompt);
/* The arguments of experience_add, which copies them. Arrays have n entries, one for each token; fields as in Experience. */
typedef struct NewSequence {
    const int32_t *ids;
    const double *sampled, *filtered;
    const bool *trained;  /* NULL: all */
    const double *earned; /* NULL: nothing */
    size_t n;
    Slice text;
    bool ended;
    double reward;
} NewSequence;
/* Appends a sequence to the open group. ST_RESOURCE. */
Status experience_add(Experience *experience, const NewSequence *sequence);
/* Appends the samples and rewards of group `group` of `from`, which must have groups of the same size. ST_RESOURCE. */
Status experience_append(Experience *experience, const Experience *from, int64_t group);
/* The same with only group_size of its completions: `members` are indices within the group of `from`; NULL: the first ones. */
Status experience_append_members(Experience *experience, const Experience *from, int64_t group, const int64_t *members);
/* Number of trained tokens of a sequence: after sampling, the tokens that the policy chose, without those of an environment. */
int64_t experience_trained(const Experience *experience, int64_t sequence);
void experience_release(Experience *experience);

#endif
