/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a file reward_<type>.c: its options, and the reward of a row or of all rows.
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
    double weight, low, high; /* low..high: clip; infinite if none */
    OptionValue options[OPTIONS_MOST];
    void *state;    /* private to the kind */
    double *values; /* values of the rows being scored, which with several ranks are this rank's */
    size_t index;   /* index in the set */
    RewardSet *set;
    Arena *arena; /* lives as long as the set */
    const RewardOptions *context;
} Reward;
struct RewardKind {
    const char *name;
    const OptionSpec *options;
    bool abstains;                                                /* a value may be NaN: the reward abstains on the row and adds nothing to its sum */
    Status (*open)(Reward *reward);                               /* NULL: nothing to prepare. Fails with reward_refuse */
    Status (*attach)(Reward *reward, const RewardPolicy *policy); /* NULL: does not depend on the policy */
    Status (*bytes)(const Reward *reward, const RewardShape *shape, size_t *bytes); /* memory that scoring will use; NULL: negligible */
    /* of the attached model; NULL: the options determine the reward */
    uint64_t (*fingerprint)(const Reward *reward);
    void (*close)(Reward *reward); /* also called after a failed open; state may be NULL */
    /* Define one of these two. A kind with an option `field` must read the row's column whatever the completion is: rewards_check calls it with an
     * empty completion. The row is added to errors of `score`; `score_all` adds it itself with reward_at_row. The value of a row must not depend on
     * the other rows, since ranks divide them. */
    Status (*score)(Reward *reward, const RewardRow *row, double *value);
    Status (*score_all)(Reward *reward, const RewardRow *rows, size_t n, double *values);
};
#define REWARD(name) extern const RewardKind reward_kind_##name;
#include "rl/reward/rewards.def"
#undef REWARD

/* ST_CONFIG: "reward 'number' in 'recipe.yaml' line 7: ...". node: gives the line; NULL = the entry's line. */
Status reward_refuse(const Reward *reward, const Yaml *node, const char *format, ...) PRINTF_LIKE(3, 4);
/* A copy of the row with the policy's own part as its completion. */
RewardRow reward_without_observations(const RewardRow *row);
/* Prepends "reward 'NAME', 'FILE' line N: " to the failure's text. */
Status reward_at_row(Status status, const Reward *reward, const RewardRow *row);
/* An earlier reward of the list, by name; NULL if there is none. Its values are of the rows being scored. */
const Reward *reward_before(const Reward *reward, const char *name);
/* Adds a number for row `i` of the rows being scored, reported as the column NAME/KEY. */
Status reward_extra(Reward *reward, const char *key, size_t i, double value);

/* ---- reward_ranks.c ---- */

enum { REWARD_COLUMNS_MOST = 256 };
/* Which rows each rank scores: rank r those from first[r] to first[r + 1] - 1. Rows of the same prompt stay together. first: (ranks + 1) */
void reward_rows_divide(const Comm *comm, const RewardRow *rows, size_t n, size_t *first);
/* Turns columns with the values of this rank's rows into columns with those of all rows, in `arena`. The first `listed` columns are the same on all
 * ranks; the others are joined by their names, and are NaN on ranks that lack them. ST_INPUT: too many columns; fails as comm_wait. */
Status reward_columns_share(Comm *comm, const size_t *first, size_t listed, RewardColumn *columns, size_t *n_columns, Arena *arena);

/* The data row's column `field`; "a.b" is also column a's member b. ST_INPUT when it is missing (with the nearest name) or null. */
Status reward_column(const RewardRow *row, const char *field, const json_t **value);
/* The right answers in a value: each item of a list, else the value itself. */
size_t reward_answers(const json_t *value);
const json_t *reward_answer(const json_t *value, size_t i);
/* An answer as text: a string is borrowed, a number is written to `room`. ST_INPUT for other values. */
Status reward_answer_text(const json_t *answer, const char *field, Str *room, Slice *text);

/* Appends the request to a program or server to `text`: {"prompt", "prompt_ids", "completion", "completion_ids", "finish_reason", ...columns of the
 * data row} in one line. */
void reward_write_row(const RewardRow *row, Str *text);
/* Reads its answer: a number, or an object with the number "reward", whose other numbers become additional columns of row `row`. ST_INPUT with `who`
 * ("program 'x'") and the answer for anything else. null instead of the number gives NaN, see `abstains`. */
Status reward_read_answer(Reward *reward, const char *who, Slice answer, size_t row, double *value);

/* The completion without its thoughts: without the text between <think> and </think> or similar tags. Thoughts without a closing tag extend to the
 * end; thoughts opened in the prompt begin at the start. Borrowed from the row, or assembled in `room`. */
Slice reward_completion_text(const RewardRow *row, Str *room);

Slice slice_trim(Slice text); /* without leading and trailing white space */
/* The last occurrence of `part` in the text, NULL if there is none; `any_case` ignores the case of ASCII letters. */
const char *slice_find_last(Slice text, const char *part, bool any_case);
/* The text in the braces of the last \boxed{...}; false if there is none. Unclosed braces extend to the end. */
bool slice_boxed(Slice text, Slice *content);

#endif
