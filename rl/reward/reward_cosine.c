/* SPDX-License-Identifier: Apache-2.0 */
/* cosine: right answers earn more if they are short, wrong ones lose less if they are long; between length 0 and max_length the value follows half a
 * cosine (arXiv 2502.03373, section 4.2). An answer is right if the reward `right_by` of the list is above `threshold`. */
#include "rl/reward/reward_kinds.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;
enum { RIGHT_BY, THRESHOLD, MAX_LENGTH, RIGHT_SHORT, RIGHT_LONG, WRONG_SHORT, WRONG_LONG, EXCEED };
static const OptionSpec options[] = {
    [RIGHT_BY] = {.name = "right_by", .kind = OPTION_STRING, .required = true},
    [THRESHOLD] = {.name = "threshold", .kind = OPTION_NUMBER, .value = 0.5},
    [MAX_LENGTH] = {.name = "max_length", .kind = OPTION_WHOLE, .low = 1, .high = 1e9}, /* not given: generate.max_new_tokens */
    [RIGHT_SHORT] = {.name = "right_short", .kind = OPTION_NUMBER, .value = 1},
    [RIGHT_LONG] = {.name = "right_long", .kind = OPTION_NUMBER, .value = 0.5},
    [WRONG_SHORT] = {.name = "wrong_short", .kind = OPTION_NUMBER, .value = -1},
    [WRONG_LONG] = {.name = "wrong_long", .kind = OPTION_NUMBER, .value = -0.5},
    [EXCEED] = {.name = "exceed", .kind = OPTION_NUMBER}, /* value of a truncated completion; not given: the same as for others */
    {0},
};

static Status reward_cosine_open(Reward *reward) {
    OptionValue *o = reward->options;
    reward->state = (void *)(uintptr_t)reward_before(reward, o[RIGHT_BY].text);
    if (!reward->state)
        return reward_refuse(reward, o[RIGHT_BY].node, "'right_by' does not name an earlier reward of the list: '%s'", o[RIGHT_BY].text);
    if (!o[MAX_LENGTH].node) o[MAX_LENGTH].number = (double)reward->context->max_new_tokens;
    return o[MAX_LENGTH].number > 0 ? ST_OK : reward_refuse(reward, NULL, "option 'max_length' is missing");
}

static Status score_all(Reward *reward, const RewardRow *rows, size_t n, double *values) {
    const OptionValue *o = reward->options;
    const Reward *judge = reward->state;
    for (size_t i = 0; i < n; i++) {
        values[i] = (double)NAN;
        if (isnan(judge->values[i])) continue; /* unknown whether it is right: abstain */
        bool right = judge->values[i] > o[THRESHOLD].number;
        double at_zero = o[right ? RIGHT_SHORT : WRONG_SHORT].number, at_max = o[right ? RIGHT_LONG : WRONG_LONG].number;
        double share = MIN((double)reward_without_observations(&rows[i]).n_completion_ids / o[MAX_LENGTH].number, 1);
        bool cut = rows[i].finish_reason && strcmp(rows[i].finish_reason, "length") == 0;
        values[i] = cut && o[EXCEED].node ? o[EXCEED].number : at_max + 0.5 * (at_zero - at_max) * (1 + cos(pi * share));
    }
    return ST_OK;
}

const RewardKind reward_kind_cosine = {"cosine", options, .abstains = true, .open = reward_cosine_open, .score_all = score_all};
