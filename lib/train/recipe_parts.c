/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a recipe that libraries take. */
#include "lib/base/log.h"
#include "lib/train/train.h"

#include <math.h>
#include <string.h>
#include <time.h>

static Status fill_rank_pattern(const Recipe *recipe, LoraConfig *config) {
    const NumberMap *map = &recipe->lora_rank_pattern;
    config->n_rank_pattern = map->n;
    config->rank_keys = map->keys;
    config->rank_values = arena_alloc(recipe->arena, map->n * sizeof *config->rank_values);
    if (!config->rank_values) return ST_RESOURCE;
    for (size_t i = 0; i < map->n; i++) {
        double rank = map->values[i];
        if (rank < 1 || rank > 65536 || rank != floor(rank))
            return status_fail(ST_CONFIG, "wrong rank %g for '%s' in 'lora.rank_pattern': expected a whole number from 1 to 65536", rank,
                               map->keys[i]);
        config->rank_values[i] = (int64_t)rank;
    }
    return ST_OK;
}

Status recipe_lora(const Recipe *recipe, LoraConfig *config) {
    *config = (LoraConfig){
        .rank = recipe->lora_rank,
        .alpha = recipe->lora_alpha,
        .dropout = recipe->lora_dropout,
        .n_targets = recipe->lora_target_modules.n,
        .targets = recipe->lora_target_modules.items,
        .n_saved = recipe->lora_modules_to_save.n,
        .saved = recipe->lora_modules_to_save.items,
        .n_alpha_pattern = recipe->lora_alpha_pattern.n,
        .alpha_keys = recipe->lora_alpha_pattern.keys,
        .alpha_values = recipe->lora_alpha_pattern.values,
        .use_rslora = recipe->lora_use_rslora,
        .gaussian = strcmp(recipe->lora_init, "gaussian") == 0,
        .lr_ratio = recipe->lora_lr_ratio,
    };
    if (config->n_targets == 0) return status_fail(ST_CONFIG, "'lora.target_modules' is empty");
    for (size_t i = 0; i < config->n_targets; i++) {
        if (strpbrk(config->targets[i], "\\*+?()[]{}|^$")) { /* no name has one of these: it is a pattern for whole paths, as PEFT takes it */
            if (config->n_targets > 1)
                return status_hint(status_fail(ST_CONFIG, "the pattern '%s' in 'lora.target_modules' stands alone", config->targets[i]),
                                   "(q_proj|v_proj) in a pattern means one or the other");
            config->target_regex = config->targets[i];
            config->n_targets = 0;
            break;
        }
        if (strcmp(config->targets[i], "all-linear") != 0) continue;
        if (config->n_targets > 1) return status_fail(ST_CONFIG, "'all-linear' in 'lora.target_modules' stands alone");
        config->n_targets = 0;
    }
    return fill_rank_pattern(recipe, config);
}

Status recipe_optimizer(const Recipe *recipe, OptimizerConfig *config) {
    *config = (OptimizerConfig){
        .name = recipe->train_optimizer,
        .beta1 = recipe->train_betas.items[0],
        .beta2 = recipe->train_betas.items[1],
        .eps = recipe->train_eps,
        .weight_decay = recipe->train_weight_decay,
        .momentum = recipe->train_momentum,
    };
    return optimizer_find(config->name) ? ST_OK : status_fail(ST_CONFIG, "unknown optimizer '%s'", config->name);
}

static Status check_steps_or_share(const char *key, double given) {
    if (isnan(given) || given < 1 || (given == floor(given) && given <= 1e15)) return ST_OK;
    return status_fail(ST_CONFIG, "wrong value %g for '%s': expected whole steps up to 1e15, or a share below 1", given, key);
}

Status recipe_check_schedule(const Recipe *recipe) {
    TRY(check_steps_or_share("train.warmup_steps", recipe->train_warmup_steps));
    return check_steps_or_share("train.lr_decay_steps", recipe->train_lr_decay_steps);
}

/* As transformers: a share of all steps is rounded up. */
static int64_t steps_or_share(double given, int64_t total_steps) { return given < 1 ? (int64_t)ceil(given * (double)total_steps) : (int64_t)given; }

ScheduleConfig recipe_schedule_over(const Recipe *recipe, int64_t total_steps) {
    double lr = recipe->train_learning_rate;
    return (ScheduleConfig){
        .name = recipe->train_lr_scheduler,
        .warmup_steps = steps_or_share(recipe->train_warmup_steps, total_steps),
        .total_steps = total_steps,
        .min_lr_ratio = recipe->train_min_lr_ratio,
        .num_cycles = isnan(recipe->train_lr_num_cycles) ? 0 : recipe->train_lr_num_cycles,
        .decay_steps = isnan(recipe->train_lr_decay_steps) ? 0 : MAX((int64_t)1, steps_or_share(recipe->train_lr_decay_steps, total_steps)),
        .power = recipe->train_lr_power,
        .timescale = recipe->train_lr_timescale,
        .lr_end_ratio = lr > 1e-7 ? 1e-7 / lr : 0,
    };
}

Status recipe_schedule(const Recipe *recipe, int64_t total_steps, ScheduleConfig *config) {
    *config = recipe_schedule_over(recipe, total_steps);
    if (config->warmup_steps > 0 && config->warmup_steps >= total_steps)
        log_message(LOG_WARNING, "'train.warmup_steps' takes all %lld step%s of the run: 'train.learning_rate' is never reached",
                    (long long)total_steps, plural(total_steps));
    return schedule_check(config);
}

Status recipe_check_steps(const Recipe *recipe, int64_t total_steps) {
    if (total_steps > 0) return ST_OK;
    status_fail(ST_CONFIG, "'train.epochs: %g' leaves no step to do", recipe->train_epochs);
    return status_hint(ST_CONFIG, "raise it, or give train.max_steps; where rows were left out, tune data check says why");
}

const Yaml *recipe_eval_rows(const Recipe *recipe, const char **key) {
    *key = recipe->data_eval ? "data.eval" : "eval.data";
    return recipe->data_eval ? recipe->data_eval : recipe->eval_data;
}

void recipe_warn_eval_every(const Recipe *recipe) {
    const char *key;
    if (recipe->train_eval_every == 0 || recipe_eval_rows(recipe, &key) || recipe->data_eval_split > 0) return;
    log_message(LOG_WARNING, "'train.eval_every' does nothing: there is neither 'data.eval' nor 'data.eval_split'");
}

/* ---- what rows are rendered with ---- */

Status recipe_template_kwargs(const Recipe *recipe, json_t **values) {
    const Yaml *given = recipe->data_template_kwargs;
    *values = given && given->n > 0 ? yaml_to_json(given) : NULL;
    return given && given->n > 0 && !*values ? status_fail(ST_RESOURCE, "out of memory for 'data.template_kwargs'") : ST_OK;
}

/* ---- the day ---- */

static Status kept_day(const Recipe *recipe, const char **day) {
    const char *path = path_join(recipe->arena, recipe->output, "recipe.yaml");
    Recipe *kept;
    if (!path) return ST_RESOURCE;
    if (!file_exists(path)) return ST_OK;
    TRY(recipe_read(path, NULL, 0, &kept));
    bool dated = kept->data_now != NULL;
    if (dated) *day = arena_strdup(recipe->arena, kept->data_now);
    recipe_free(kept);
    return dated && !*day ? ST_RESOURCE : ST_OK;
}

Status recipe_day(const Recipe *recipe, bool resume, const char **day) {
    char today[32];
    struct tm parts;
    time_t now = time(NULL);
    *day = NULL;
    if (resume && recipe->output) TRY(kept_day(recipe, day));
    if (*day) return ST_OK;
    strftime(today, sizeof today, "%Y-%m-%d", localtime_r(&now, &parts));
    *day = arena_strdup(recipe->arena, today);
    return *day ? ST_OK : ST_RESOURCE;
}

Recipe recipe_dated(const Recipe *recipe, const char *day) {
    Recipe dated = *recipe;
    dated.has_data = true; /* else its directory would not keep the day: runs on an environment may do without the section */
    dated.data_now = day;
    return dated;
}

/* ---- keys that came later ---- */

void recipe_as_before(Recipe *kept) {
    if (!recipe_given(kept, "data.as")) kept->data_as = "text";
}

Status recipe_take_up(Recipe *recipe) {
    const char *path = recipe->output ? path_join(recipe->arena, recipe->output, "recipe.yaml") : NULL;
    Recipe *kept;
    if (!path || !file_exists(path)) return recipe->output && !path ? ST_RESOURCE : ST_OK;
    TRY(recipe_read(path, NULL, 0, &kept));
    recipe_as_before(kept);
    if (!recipe_given(kept, "data.as") && strcmp(recipe->data_as, "auto") == 0) recipe->data_as = kept->data_as;
    recipe_free(kept);
    return ST_OK;
}

DType compute_from_text(const char *text) {
    if (strcmp(text, "auto") == 0) return cpu_info()->auto_bf16 ? DT_BF16 : DT_F32;
    return strcmp(text, "bf16") == 0 ? DT_BF16 : DT_F32;
}

DType recipe_compute(const Recipe *recipe) { return compute_from_text(recipe->model_compute); }
