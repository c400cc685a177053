/* SPDX-License-Identifier: Apache-2.0 */
/* length: with `target`, 1 at that length, decreasing linearly on both sides, 0 from twice the target on. With `buffer`, DAPO's soft overlong
 * punishment: 0 up to max_length - buffer, then linearly down to -penalty at max_length (arXiv 2503.14476, equation 13), and further down beyond it
 * without `cap`, as in verl. */
#include "rl/reward/reward_kinds.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

enum { TARGET, BUFFER, MAX_LENGTH, PENALTY, CAP, UNIT };
static const OptionSpec options[] = {
    [TARGET] = {.name = "target", .kind = OPTION_WHOLE, .low = 1, .high = 1e9},
    [BUFFER] = {.name = "buffer", .kind = OPTION_WHOLE, .low = 1, .high = 1e9},
    [MAX_LENGTH] = {.name = "max_length", .kind = OPTION_WHOLE, .low = 1, .high = 1e9}, /* not given: generate.max_new_tokens */
    [PENALTY] = {.name = "penalty", .kind = OPTION_NUMBER, .value = 1, .low = 0, .high = 1e9},
    [CAP] = {.name = "cap", .kind = OPTION_BOOL, .value = 1},
    [UNIT] = {.name = "unit", .kind = OPTION_STRING, .text = "tokens", .choices = "tokens|words|characters"},
    {0},
};

static Status reward_length_open(Reward *reward) {
    OptionValue *target = &reward->options[TARGET], *buffer = &reward->options[BUFFER], *max = &reward->options[MAX_LENGTH];
    if (!target->node == !buffer->node) return reward_refuse(reward, target->node, "it takes either 'target' or 'buffer'");
    if (target->node && max->node) return reward_refuse(reward, max->node, "'max_length' needs 'buffer' and does not work with 'target'");
    if (target->node) return ST_OK;
    if (!max->node && strcmp(reward->options[UNIT].text, "tokens") == 0) max->number = (double)reward->context->max_new_tokens;
    if (max->number <= 0) return reward_refuse(reward, buffer->node, "option 'max_length' is missing");
    return buffer->number <= max->number
               ? ST_OK
               : reward_refuse(reward, buffer->node, "'buffer' is %g, more than the longest completion of %g", buffer->number, max->number);
}

static size_t count_words(Slice text) {
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) n += !isspace((unsigned char)text.data[i]) && (i == 0 || isspace((unsigned char)text.data[i - 1]));
    return n;
}

static size_t count_characters(Slice text) {
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) n += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return n;
}

static Status reward_length_score(Reward *reward, const RewardRow *row, double *value) {
    const OptionValue *o = reward->options;
    const char *unit = o[UNIT].text;
    RewardRow own = reward_without_observations(row);
    double length = (double)(strcmp(unit, "words") == 0    ? count_words(own.completion)
                             : strcmp(unit, "tokens") == 0 ? own.n_completion_ids
                                                           : count_characters(own.completion));
    if (o[TARGET].node) {
        *value = MAX(0, 1 - fabs(length - o[TARGET].number) / o[TARGET].number);
        return ST_OK;
    }
    double over = (length - (o[MAX_LENGTH].number - o[BUFFER].number)) / o[BUFFER].number;
    if (o[CAP].number != 0) over = MIN(over, 1);
    *value = over > 0 ? -over * o[PENALTY].number : 0;
    return ST_OK;
}

const RewardKind reward_kind_length = {"length", options, .open = reward_length_open, .score = reward_length_score};
