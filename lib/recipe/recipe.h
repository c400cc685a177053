/* SPDX-License-Identifier: Apache-2.0 */
/* The recipe: the user's settings, read from YAML and key=value texts by the table of keys, config.def. --help, the key check, the
 * schema and the resolved recipe are made from that table.
 *
 *     Recipe *recipe;
 *     TRY(recipe_read("recipe.yaml", overrides, n_overrides, &recipe)); // misspelt key: error with line and nearest name
 *     ... recipe->lora_rank ...
 *     recipe_free(recipe);
 */
#ifndef TUNE_RECIPE_H
#define TUNE_RECIPE_H

#include "lib/base/json.h"
#include "lib/base/yaml.h"

typedef struct TextList {
    size_t n;
    const char **items;
} TextList;
typedef struct RealList {
    size_t n;
    double *items;
} RealList;
typedef struct NumberMap {
    size_t n;
    const char **keys;
    double *values;
} NumberMap;
typedef const Yaml *YamlNode; /* a key with a structured value (data.train, reward, synth.teacher); NULL when absent */

/* For each key of type CHOICE an enum with its constants and a function that returns their text in recipes, such as enum rl_kl and
 * rl_kl_text(RL_KL_K1) = "k1". */
/* clang-format off */
#define CHOICES(field) enum field {
#define CHOICE(constant, text) constant,
#define CHOICES_END(field) }; const char *field##_text(enum field value);
/* clang-format on */
#include "lib/recipe/choices.def"
#undef CHOICES
#undef CHOICE
#undef CHOICES_END

typedef struct Recipe {
    Arena *arena;
    const char *path;            /* the file that it was read from; NULL for a recipe made in memory */
    struct UnknownKeys *unknown; /* only while it is read */
    const char *program;         /* set by the program: its name and version, for the head of the resolved recipe; NULL = none */
    bool has_model, has_lora, has_data, has_train, has_eval, has_generate, has_rl, has_policy, has_synth, has_parallel, has_plan,
        has_distil;     /* present and not null */
    bool lora_declined; /* `lora: null` is written */
    /* One field per line of config.def: section_key, e.g. lora_rank, train_learning_rate; the top level has no prefix: seed, output. */
#define KEY(section, name, owner, type, ...) RECIPE_FIELD_##type(section##_##name)
#define TOP_KEY(name, owner, type, ...) RECIPE_FIELD_##type(name)
#define RECIPE_FIELD_INT(field) int64_t field;
#define RECIPE_FIELD_REAL(field) double field;
#define RECIPE_FIELD_BOOL(field) bool field;
#define RECIPE_FIELD_TEXT(field) const char *field;
#define RECIPE_FIELD_CHOICE(field) enum field field;
#define RECIPE_FIELD_NAME(field) const char *field;
#define RECIPE_FIELD_LIST(field) TextList field;
#define RECIPE_FIELD_REALS(field) RealList field;
#define RECIPE_FIELD_MAP(field) NumberMap field;
#define RECIPE_FIELD_NODE(field) YamlNode field;
#include "lib/recipe/config.def"
#undef KEY
#undef TOP_KEY
    struct Rejected *rejected; /* with data.on_bad_row: skip, the rows left out so far: code that reads rows adds to it; else NULL */
    bool *given;               /* per key, in config.def's order: whether the recipe or the command line set it */
    int *lines;                /* per key: its line in the file; 0 = not from the file */
} Recipe;
/* Reads the file at `path` (NULL: overrides only), then applies `overrides`: "key=value" texts with YAML values; the value of a text key is taken
 * literally unless it is quoted or null. The caller calls recipe_free. A null whole number is -1, a null number NaN, a null text NULL. ST_CONFIG
 * with file, line and the nearest name or the allowed values. */
Status recipe_read(const char *path, const char *const *overrides, size_t n_overrides, Recipe **recipe);
/* The same from a text; path: where it is from, for messages. */
Status recipe_read_text(const char *path, const Str *text, const char *const *overrides, size_t n_overrides, Recipe **recipe);
void recipe_free(Recipe *recipe);
bool recipe_given(const Recipe *recipe, const char *dotted_key);
bool recipe_same(const Recipe *a, const Recipe *b, const char *dotted_key); /* the same value */
int recipe_line(const Recipe *recipe, const char *dotted_key);              /* for messages; 0 = not in the file */
void recipe_write_yaml(const Recipe *recipe, Str *text);                    /* resolved: every key with its value */
void recipe_write_schema(Str *text);                                        /* JSON schema of a recipe */
/* A hash of the values that recipe_difference compares and of the run's length, without data.now: equal for recipes of the same run. */
uint64_t recipe_fingerprint(const Recipe *recipe);
/* The first key whose value differs between two recipes, with both values as text; NULL when they train the same. Keys that do not change what is
 * trained and those of the run's length are ignored (recipe_text.c lists both). The values are in `a`'s arena. */
const char *recipe_difference(const Recipe *a, const Recipe *b, const char **value_a, const char **value_b);
/* The same for all keys but `threads`: the first one that differs between the recipes of two processes of one run. */
const char *recipe_differs_anywhere(const Recipe *a, const Recipe *b, const char **value_a, const char **value_b);
bool recipe_other_length(const Recipe *a, const Recipe *b); /* whether train.max_steps, train.epochs or rl.total_steps differs */
/* Reports a key that this run does not read: ST_CONFIG with the hint when it is on the command line, a warning when it is in a file, which
 * commands may share. Nothing when it was not given, or has its default, since the recipe of a run lists every key. format: the rest of the
 * sentence after the key's name, as "does nothing with 'train.optimizer: sgd'". */
Status recipe_unread(const Recipe *recipe, const char *dotted_key, const char *hint, const char *format, ...) PRINTF_LIKE(4, 5);
/* recipe_unread for train.batch_size where train.batch_tokens decides. On the command line any value of it is reported. */
Status recipe_check_batches(const Recipe *recipe);
Status recipe_check_schedule(const Recipe *recipe); /* ST_CONFIG for steps that are not whole */
/* The day, YYYY-MM-DD, that the run in recipe->output began: today, or with `resume` data.now of the kept recipe. Rows must not change when a run
 * is resumed on another day. So when a chat template writes the date and data.now is null, the run uses this day and keeps it: see recipe_dated.
 * *day lives as long as the recipe. ST_CONFIG, ST_INPUT: the kept recipe cannot be read; ST_RESOURCE. */
Status recipe_day(const Recipe *recipe, bool resume, const char **day);
/* data.template_kwargs as an object, a new reference; NULL: there are none. ST_RESOURCE. */
Status recipe_template_kwargs(const Recipe *recipe, json_t **values);
/* A copy of the recipe with data.now: day. It shares everything else with `recipe` and is valid as long as it. */
Recipe recipe_dated(const Recipe *recipe, const char *day);
/* For keys that were added later with a default that changes the meaning: a kept recipe without them gets the value that it meant then. So far
 * data.as, when rows were texts, and parallel.lanes, when gradients were one sum. */
void recipe_set_old_defaults(Recipe *kept);
/* With --resume: applies to `recipe` the values that recipe_set_old_defaults gives the kept recipe in recipe->output, if there is one. Warns if other
 * lanes will change the rounding of results. ST_CONFIG, ST_INPUT: the kept recipe cannot be read; ST_RESOURCE. */
Status recipe_adopt_defaults_of_run(Recipe *recipe);
/* ST_CONFIG when a run by this recipe has no step: too few rows for train.epochs. */
Status recipe_check_steps(const Recipe *recipe, int64_t total_steps);
/* The evaluation rows and the key that names them: data.eval, or eval.data, which is the same. NULL: none. */
const Yaml *recipe_eval_rows(const Recipe *recipe, const char **key);
/* For runs that could hold out rows: warns when the recipe asks for evaluations without evaluation rows. */
void recipe_warn_eval_every(const Recipe *recipe);

#endif
