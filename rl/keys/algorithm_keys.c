/* SPDX-License-Identifier: Apache-2.0 */
/* One table of all algorithms and the keys they read; other keys are an error. */
#include "lib/base/log.h"
#include "rl/keys/algorithm_keys.h"

#include <stdio.h>
#include <string.h>

#include "lib/recipe/keys.h"
#include "rl/learn/learner.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_algorithm.h"
#include "rl/text/text_env.h"

/* ---- the table: four kinds of algorithms, the keys that a whole kind reads, the keys that each algorithm reads ---- */

typedef struct Entry {
    const char *name, *keys;
} Entry; /* name NULL: no such algorithm */
typedef struct Kind {
    const char *what, *common;
    const char *unread; /* keys of other sections that have no effect here */
    Entry (*at)(size_t i);
} Kind;

static Entry environment_at(size_t i) {
    const Algorithm *algorithm = algorithm_at(i);
    return algorithm ? (Entry){algorithm->name, algorithm->keys} : (Entry){0};
}

static Entry text_at(size_t i) {
    const TextAlgorithm *algorithm = text_algorithm_at(i);
    return algorithm ? (Entry){algorithm->name, algorithm->keys} : (Entry){0};
}

static Entry pair_at(size_t i) {
    const PairAlgorithm *algorithm = preference_algorithm_at(i);
    return algorithm ? (Entry){algorithm->name, algorithm->keys} : (Entry){0};
}

static Entry offline_at(size_t i) {
    return i == 0 ? (Entry){"ilql", "gamma expectile cql_alpha awac_coef awac_beta q_width tau target_every"} : (Entry){0};
}

#define KEYS_OF_ALL "algorithm env train.log_every train.live train.save_every train.save_last train.keep_checkpoints "

static const Kind environments = {"on environments", KEYS_OF_ALL "total_steps num_envs num_steps gamma",
                                  "reward model.* lora.* data.* generate.* eval.* parallel.* distil.*", environment_at};

#define KEYS_OF_TEXT                                                                                                                             \
    KEYS_OF_ALL KEYS_OF_OPTIMIZER                                                                                                                \
        "train.epochs train.max_steps train.eval_every train.batch_tokens train.no_decay train.checkpointing train.max_memory train.save_dtype " \
        "num_generations prompts_per_step sampling_rounds num_iterations num_minibatches ent_coef "                                              \
        "beta kl reference mask_truncated missing_eos_penalty max_logprob_diff samples_every"

static const Kind texts = {"on text", KEYS_OF_TEXT, "generate.n data.step_separator data.turns data.cache data.train_on eval.metrics", text_at};
static const Kind text_environments = {"on environments of text", KEYS_OF_TEXT " gamma",
                                       "generate.n data.step_separator data.turns data.cache data.train_on train.eval_every eval.metrics", text_at};
#define KEYS_OF_ROWS \
    "train.epochs train.max_steps train.batch_size train.gradient_accumulation_steps train.batch_tokens train.no_decay train.checkpointing train.max_memory train.save_dtype "

static const Kind pairs = {"on pairs",
                           KEYS_OF_ALL KEYS_OF_OPTIMIZER KEYS_OF_ROWS "train.eval_every train.early_stopping train.router_aux_loss_coef beta",
                           "reward generate.* data.step_separator data.turns eval.metrics distil.*", pair_at};
static const Kind offline = {"on rows with rewards", KEYS_OF_ALL KEYS_OF_OPTIMIZER KEYS_OF_ROWS,
                             "reward generate.* data.step_separator data.turns eval.metrics parallel.* distil.*", offline_at};
static const Kind *const kinds[] = {&environments, &texts, &pairs, &offline};

/* ---- the check ---- */

/* Whether the list contains the key (without its section if that is rl) or "section.*" for all keys of its section. */
static bool lists(const char *keys, const Key *key) {
    char whole[64];
    snprintf(whole, sizeof whole, "%s.*", key->section);
    return text_among(keys, ' ', strcmp(key->section, "rl") == 0 ? key->name : key->dotted) || text_among(keys, ' ', whole);
}

static bool reads(const Kind *kind, const Entry *entry, const Key *key) { return lists(kind->common, key) || lists(entry->keys, key); }

/* "ppo on environments; grpo, dapo on text" */
static void say_who(const Key *key, Str *text) {
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        size_t n = 0;
        Entry entry;
        if (lists(kinds[k]->common, key)) {
            str_printf(text, "%sall algorithms %s", text->len ? "; " : "", kinds[k]->what);
            continue;
        }
        for (size_t i = 0; (entry = kinds[k]->at(i)).name; i++)
            if (lists(entry.keys, key)) str_printf(text, "%s%s", n++ ? ", " : text->len ? "; " : "", entry.name);
        if (n > 0) str_printf(text, " %s", kinds[k]->what);
    }
}

/* ---- for help ---- */

const char *algorithm_kind(size_t kind) { return kind < COUNT_OF(kinds) ? kinds[kind]->what : NULL; }
const char *algorithm_of_kind(size_t kind, size_t i) { return kinds[kind]->at(i).name; }

bool algorithm_reads(size_t kind, const char *algorithm, const char *dotted_key, bool own) {
    const Key *key = key_find(dotted_key);
    Entry entry;
    for (size_t i = 0; key && (entry = kinds[kind]->at(i)).name; i++)
        if (strcmp(entry.name, algorithm) == 0)
            return own ? lists(entry.keys, key) && !lists(kinds[kind]->common, key) : reads(kinds[kind], &entry, key);
    return false;
}

void algorithms_reading(const char *dotted_key, Str *text) {
    const Key *key = key_find(dotted_key);
    if (key) say_who(key, text);
}

/* ---- refusing ---- */

static Status keys_refuse(const Recipe *recipe, const char *algorithm, const Kind *kind, const Key *key) {
    Str who = {0};
    int line = recipe_line(recipe, key->dotted);
    say_who(key, &who);
    if (line > 0 && recipe->path)
        status_fail(ST_CONFIG, "'%s' line %d: algorithm '%s' %s does not take '%s'", recipe->path, line, algorithm, kind->what, key->dotted);
    else
        status_fail(ST_CONFIG, "algorithm '%s' %s does not take '%s'", algorithm, kind->what, key->dotted);
    if (who.len > 0)
        status_hint(ST_CONFIG, "it belongs to %s; leave it out", str_text(&who));
    else
        status_hint(ST_CONFIG, "leave it out: it belongs to other kinds of training");
    str_release(&who);
    return ST_CONFIG;
}

static void warn_unread(const Recipe *recipe, const char *algorithm, const Kind *kind, const Key *key) {
    int line = recipe_line(recipe, key->dotted);
    if (line > 0 && recipe->path)
        log_message(LOG_WARNING, "'%s' line %d: '%s' does nothing: algorithm '%s' %s does not read it", recipe->path, line, key->dotted, algorithm,
                    kind->what);
    else
        log_message(LOG_WARNING, "'%s' does nothing: algorithm '%s' %s does not read it", key->dotted, algorithm, kind->what);
}

static bool is_checked(const Key *key) {
    return strcmp(key->section, "rl") == 0 || strcmp(key->section, "policy") == 0 || strcmp(key->section, "train") == 0;
}

static Status algorithm_keys_check(const Recipe *recipe, const char *algorithm, const Kind *kind) {
    Entry entry;
    Recipe *defaults;
    Status status = ST_OK;
    size_t at = 0;
    while ((entry = kind->at(at)).name && strcmp(entry.name, algorithm) != 0) at++;
    if (!entry.name) return ST_OK; /* opening an unknown algorithm reports the error */
    TRY(recipe_read(NULL, NULL, 0, &defaults));
    for (size_t i = 0; i < n_recipe_keys && status == ST_OK; i++) {
        const Key *key = &recipe_keys[i];
        if (recipe_same(recipe, defaults, key->dotted)) continue;
        if (is_checked(key) && !reads(kind, &entry, key))
            status = keys_refuse(recipe, algorithm, kind, key);
        else if (lists(kind->unread, key))
            warn_unread(recipe, algorithm, kind, key);
    }
    recipe_free(defaults);
    if (status == ST_OK) status = idle_keys_check(recipe);
    return status == ST_OK && reads(kind, &entry, key_find("train.optimizer")) ? recipe_check_choices(recipe) : status;
}

Status rl_check_keys(const Recipe *recipe) {
    const char *algorithm = recipe->rl_algorithm;
    if (strcmp(algorithm, offline.at(0).name) == 0) return algorithm_keys_check(recipe, algorithm, &offline);
    if (preference_algorithm(algorithm)) {
        TRY(algorithm_keys_check(recipe, algorithm, &pairs));
        return recipe_check_batches(recipe);
    }
    if (!recipe->rl_env) return algorithm_keys_check(recipe, algorithm, &texts);
    return algorithm_keys_check(recipe, algorithm, text_env_is_requested(recipe->rl_env) ? &text_environments : &environments);
}
