/* SPDX-License-Identifier: Apache-2.0 */
/* What a file reward_<type>.c defines: its options, and the reward of a row or of all rows.
 *
 *     enum { TARGET };
 *     static const OptionSpec options[] = {[TARGET] = {"target", OPTION_WHOLE, .required = true, .low = 1, .high = 1e9}, {0}};
 *     static Status score(Reward *reward, const RewardRow *row, double *value) { ... reward->options[TARGET].number ... }
 *     const RewardKind reward_kind_length = {"length", options, .score = score};
 */
#ifndef TUNE_REWARD_KINDS_H
#define TUNE_REWARD_KINDS_H

#include "lib/recipe/option.h"
#include "rl/reward/reward.h"

typedef struct RewardKind RewardKind;
typedef struct Reward {
    const RewardKind *kind;
    const char *name, *file;
    int line;
    double weight, low, high; /* low..high: clip, infinite without */
    OptionValue options[OPTIONS_MOST];
    void *state;    /* the kind's own */
    double *values; /* of the rows that are scored now */
    size_t index;   /* in the set */
    RewardSet *set;
    Arena *arena; /* as long as the set */
    const RewardOptions *context;
} Reward;
struct RewardKind {
    const char *name;
    const OptionSpec *options;
    bool abstains;                  /* a value may be NaN: this reward does not judge the row, and adds nothing to its sum */
    Status (*open)(Reward *reward); /* NULL: nothing to prepare. Fails with reward_refuse */
    Status (*attach)(Reward *reward, const RewardPolicy *policy);                   /* NULL: who is judged makes no difference */
    Status (*bytes)(const Reward *reward, const RewardShape *shape, size_t *bytes); /* what scoring will take in memory; NULL: little */
    uint64_t (*fingerprint)(const Reward *reward);                                  /* of what was attached; NULL: the options say it all */
    void (*close)(Reward *reward);                                                  /* also called after a failed open; state may be NULL */
    /* One of both. One with an option `field` looks at the row's column whatever the completion says: rewards_check asks it with none. A fault of
     * `score` gets the row put in front, `score_all` does that itself with reward_at_row. */
    Status (*score)(Reward *reward, const RewardRow *row, double *value);
    Status (*score_all)(Reward *reward, const RewardRow *rows, size_t n, double *values);
};
#define REWARD(name) extern const RewardKind reward_kind_##name;
#include "rl/reward/rewards.def"
#undef REWARD

/* ST_CONFIG: "reward 'number' in 'recipe.yaml' line 7: ...". node: whose line it is; NULL = the entry's. */
Status reward_refuse(const Reward *reward, const Yaml *node, const char *format, ...) PRINTF_LIKE(3, 4);
/* The row with what the policy said by itself as its completion. */
RewardRow reward_without_observations(const RewardRow *row);
/* Puts "reward 'NAME', 'FILE' line N: " before the failure. */
Status reward_at_row(Status status, const Reward *reward, const RewardRow *row);
/* A reward before this one in the list, by name; NULL when there is none. Its values are those of the rows that are scored now. */
const Reward *reward_before(const Reward *reward, const char *name);
/* One more number of row `i` (of those that are scored now), shown as the column NAME/KEY. */
Status reward_extra(Reward *reward, const char *key, size_t i, double value);

/* The data row's column `field`; "a.b" is also column a's member b. ST_INPUT when it is missing (with the nearest name) or null. */
Status reward_column(const RewardRow *row, const char *field, const json_t **value);
/* A list has several answers, any of them is right; else the value itself is the only one. */
size_t reward_answers(const json_t *value);
const json_t *reward_answer(const json_t *value, size_t i);
/* An answer as text: a string is borrowed, an integer or a real number written to `room`. ST_INPUT when it is something else. */
Status reward_answer_text(const json_t *answer, const char *field, Str *room, Slice *text);

/* What a program or server is sent: {"prompt", "prompt_ids", "completion", "completion_ids", "finish_reason", ...columns of the data row} in one
 * line, added to `text`. */
void reward_write_row(const RewardRow *row, Str *text);
/* What it answers: a number, or an object with the number "reward"; its other numbers become extra columns of row `row`. ST_INPUT with `who`
 * ("program 'x'") and the answer when it is not that. A null as the number is NaN: the row is not judged, see `abstains`. */
Status reward_read_answer(Reward *reward, const char *who, Slice answer, size_t row, double *value);

/* What the completion says once it has thought: without what stands between <think> and </think> and tags like these, and without thoughts that
 * have no end (all that follows) or began in the prompt (all up to the end). Borrowed from the row, or put together in `room`. */
Slice reward_completion_text(const RewardRow *row, Str *room);

Slice slice_trim(Slice text); /* without white space at both ends */
/* Where `part` begins in the text for the last time, NULL when nowhere; ASCII letters match in both cases when `any_case`. */
const char *slice_find_last(Slice text, const char *part, bool any_case);
/* What stands between the braces of the last \boxed{...}; false when there is none. Braces that are not closed reach to the end. */
bool slice_boxed(Slice text, Slice *content);

#endif
