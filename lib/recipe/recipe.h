/* SPDX-License-Identifier: Apache-2.0 */
/* The recipe: what a user asks for, read from YAML and key=value texts against the one table of keys, config.def. --help, the key check, the
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
typedef const Yaml *YamlNode; /* a key whose value has its own structure (data.train, reward, synth.teacher); NULL when absent */

/* enum rl_kl with its constants RL_KL_K1, ..., and rl_kl_text(RL_KL_K1) = "k1": for each key of type CHOICE. The texts are those of a recipe. */
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
    const char *path;            /* where it was read; NULL for one made in memory */
    struct UnknownKeys *unknown; /* while it is read */
    const char *program;         /* set by the program: its name and version, for the head of the resolved recipe; NULL = none */
    bool has_model, has_lora, has_data, has_train, has_eval, has_generate, has_rl, has_policy, has_synth; /* the section is there and not null */
    bool lora_declined;                                                                                   /* `lora: null` is written */
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
    struct Rejected *rejected; /* data.on_bad_row: skip; what was left out so far, whoever reads rows adds to it; else NULL */
    bool *given;               /* per key, in config.def's order: the recipe or the command line set it */
    int *lines;                /* per key: its line in the file; 0 = not from the file */
} Recipe;
/* overrides: "key=value" texts, values are YAML, but a text is taken as it stands unless it is quoted or null. path NULL: overrides only. ST_CONFIG
 * with file, line and the nearest name or the allowed values. A whole number whose default is null is -1 when null; a number NaN, a text NULL. */
Status recipe_read(const char *path, const char *const *overrides, size_t n_overrides, Recipe **recipe);
/* The same where the file's text is at hand; path: where it is from, for messages. */
Status recipe_read_text(const char *path, const Str *text, const char *const *overrides, size_t n_overrides, Recipe **recipe);
void recipe_free(Recipe *recipe);
bool recipe_given(const Recipe *recipe, const char *dotted_key);
bool recipe_same(const Recipe *a, const Recipe *b, const char *dotted_key); /* the same value */
int recipe_line(const Recipe *recipe, const char *dotted_key);              /* for messages; 0 = not in the file */
void recipe_write_yaml(const Recipe *recipe, Str *text);                    /* resolved: every key with its value */
void recipe_write_schema(Str *text);                                        /* JSON schema of a recipe */
/* A number for the values that recipe_difference compares and those of the length, data.now's left out: the same for recipes that are the same
 * run. */
uint64_t recipe_fingerprint(const Recipe *recipe);
/* The first key whose value differs between two recipes, leaving out those that don't change what is trained and those of the run's length
 * (recipe_text.c lists both), and both values as text; NULL when they train the same. The values are in `a`'s arena. */
const char *recipe_difference(const Recipe *a, const Recipe *b, const char **value_a, const char **value_b);
bool recipe_other_length(const Recipe *a, const Recipe *b); /* train.max_steps, train.epochs, rl.total_steps: one of them differs */
/* A key that this run does not read: ST_CONFIG with the hint where it was typed, a warning where it stands in a file, which commands may share.
 * Nothing where it was not given, or holds its default, since the recipe of a run spells out every key. format: what it does not do, behind its name:
 * "does nothing with 'train.optimizer: sgd'". */
Status recipe_unread(const Recipe *recipe, const char *dotted_key, const char *hint, const char *format, ...) PRINTF_LIKE(4, 5);
/* recipe_unread of train.batch_size where train.batch_tokens decides. Typed it counts with any value. */
Status recipe_check_batches(const Recipe *recipe);
Status recipe_check_schedule(const Recipe *recipe); /* ST_CONFIG for steps that are not whole */
/* The day that the run in recipe->output began, YYYY-MM-DD: today, or with `resume` data.now of the recipe that the run keeps there. Rows must not
 * change when a run is taken up on another day, so where a chat template writes the date and data.now is null, the run goes by this one and keeps it:
 * see recipe_dated. *day lives as long as the recipe. ST_CONFIG, ST_INPUT: the kept recipe cannot be read; ST_RESOURCE. */
Status recipe_day(const Recipe *recipe, bool resume, const char **day);
/* data.template_kwargs as an object, a new reference; NULL: there are none. ST_RESOURCE. */
Status recipe_template_kwargs(const Recipe *recipe, json_t **values);
Recipe recipe_dated(const Recipe *recipe, const char *day); /* the same with data.now: day; all else of it is the recipe's own and lives as long */
/* Keys that came later and whose default means something new: a recipe that a run keeps, and that lacks them, means what it meant then. Here data.as,
 * whose rows were texts. */
void recipe_set_old_defaults(Recipe *kept);
/* With --resume: the recipe takes over what recipe_set_old_defaults says of the one that the run in recipe->output keeps, where it has one.
 * ST_CONFIG, ST_INPUT: that cannot be read; ST_RESOURCE. */
Status recipe_adopt_defaults_of_run(Recipe *recipe);
/* ST_CONFIG when a run by this recipe has no step to do: too few rows for train.epochs. */
Status recipe_check_steps(const Recipe *recipe, int64_t total_steps);
/* The rows that are given for evaluation, with the key that names them: data.eval, or eval.data which is the same. NULL: none are. */
const Yaml *recipe_eval_rows(const Recipe *recipe, const char **key);
/* To be asked where rows can be held out: a warning when it asks for evaluations without any */
void recipe_warn_eval_every(const Recipe *recipe);

#endif
