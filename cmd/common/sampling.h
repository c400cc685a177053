/* SPDX-License-Identifier: Apache-2.0 */
/* Options of commands that generate. */
#ifndef TUNE_SAMPLING_H
#define TUNE_SAMPLING_H

#include "cmd/app/options.h"
#include "lib/infer/infer.h"

/* How tokens are chosen, as generate and chat take it; stop: a TextList. */
#define SAMPLING_OPTIONS(config, stop)                                                                                                     \
    {"--max-new-tokens", OPTION_INT, &(config).max_new_tokens, "N", "longest answer in tokens"},                                           \
        {"--temperature", OPTION_REAL, &(config).sample.temperature, "X", "1 = as the model has it, 0 = greedy"},                          \
        {"--greedy", OPTION_FLAG, &(config).sample.greedy, NULL, "always the likeliest token"},                                            \
        {"--top-k", OPTION_INT, &(config).sample.top_k, "N", "keep the N likeliest tokens; 0 = all"},                                      \
        {"--top-p", OPTION_REAL, &(config).sample.top_p, "X", "keep the smallest set with this probability"},                              \
        {"--min-p", OPTION_REAL, &(config).sample.min_p, "X", "drop tokens below this share of the likeliest one"},                        \
        {"--typical-p", OPTION_REAL, &(config).sample.typical_p, "X", "keep the least surprising set with this probability"},              \
        {"--epsilon-cutoff", OPTION_REAL, &(config).sample.epsilon_cutoff, "X", "drop tokens below this probability"},                     \
        {"--eta-cutoff", OPTION_REAL, &(config).sample.eta_cutoff, "X", "the same, lower where many tokens are likely"},                   \
        {"--repetition-penalty", OPTION_REAL, &(config).sample.repetition_penalty, "X", "above 1: tokens seen before become less likely"}, \
        {"--presence-penalty", OPTION_REAL, &(config).sample.presence_penalty, "X", "off the logits of tokens that the answer has"},       \
        {"--frequency-penalty", OPTION_REAL, &(config).sample.frequency_penalty, "X", "the same for each time that it has them"},          \
        {"--no-repeat-ngram-size", OPTION_INT, &(config).sample.no_repeat_ngram_size, "N", "no N tokens in a row come twice; 0 = off"}, {  \
        "--stop", OPTION_LIST, &(stop), "TEXT", "text that ends an answer; may be given several times"                                     \
    }
Status check_sampling(const GenerateConfig *config); /* ST_USAGE for what is out of range */

#endif
