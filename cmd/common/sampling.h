/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling options of the commands that generate. */
#ifndef TUNE_SAMPLING_H
#define TUNE_SAMPLING_H

#include "cmd/app/options.h"
#include "lib/infer/infer.h"

/* The options of generate and chat that say how tokens are sampled. stop: a TextList. */
#define SAMPLING_OPTIONS(config, stop)                                                                                                     \
    {"--max-new-tokens", OPTION_INT, &(config).max_new_tokens, "N", "maximum length of an answer in tokens"},                              \
        {"--temperature", OPTION_REAL, &(config).sample.temperature, "X", "sampling temperature; 1 = unchanged, 0 = greedy"},              \
        {"--greedy", OPTION_FLAG, &(config).sample.greedy, NULL, "always take the most likely token"},                                     \
        {"--top-k", OPTION_INT, &(config).sample.top_k, "N", "keep the N most likely tokens; 0 = all"},                                    \
        {"--top-p", OPTION_REAL, &(config).sample.top_p, "X", "keep the smallest set with this probability"},                              \
        {"--min-p", OPTION_REAL, &(config).sample.min_p, "X", "drop tokens below X times the highest probability"},                        \
        {"--typical-p", OPTION_REAL, &(config).sample.typical_p, "X", "keep the least surprising set with this probability"},              \
        {"--epsilon-cutoff", OPTION_REAL, &(config).sample.epsilon_cutoff, "X", "drop tokens below this probability"},                     \
        {"--eta-cutoff", OPTION_REAL, &(config).sample.eta_cutoff, "X", "the same, lower where many tokens are likely"},                   \
        {"--repetition-penalty", OPTION_REAL, &(config).sample.repetition_penalty, "X", "above 1: tokens seen before become less likely"}, \
        {"--presence-penalty", OPTION_REAL, &(config).sample.presence_penalty, "X", "subtract X from the logits of tokens in the answer"}, \
        {"--frequency-penalty", OPTION_REAL, &(config).sample.frequency_penalty, "X", "the same, once for each occurrence"},               \
        {"--no-repeat-ngram-size", OPTION_INT, &(config).sample.no_repeat_ngram_size, "N", "never repeat N tokens in a row; 0 = off"}, {   \
        "--stop", OPTION_LIST, &(stop), "TEXT", "text that ends an answer; repeatable"                                                     \
    }
/* Options of what generate reports and of biases. biases: a TextList, for read_biases. */
#define REPORT_OPTIONS(config, biases)                                                                                            \
    {"--logit-bias", OPTION_LIST, &(biases), "ID=X", "add X, -100 to 100, to the logit of the token with this id; repeatable"}, { \
        "--top-logprobs", OPTION_INT, &(config).n_top, "N", "rows have the N most likely tokens at each position; at most 20"     \
    }
Status read_biases(const TextList *texts, Arena *arena, SampleConfig *sample); /* ST_USAGE: not ID=X, or X out of range */
Status check_sampling(const GenerateConfig *config);                           /* ST_USAGE if a value is out of range */

#endif
