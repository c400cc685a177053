/* SPDX-License-Identifier: Apache-2.0 */
/* Converts parts of a recipe into the configs of libraries. */
#include "lib/model/quantized/quantise.h"
#include "lib/base/log.h"
#include "lib/train/train.h"

#include <math.h>
#include <string.h>

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
        .n_parameters = recipe->lora_target_parameters.n,
        .parameters = recipe->lora_target_parameters.items,
        .only_parameters = recipe->lora_target_modules.n == 0,
        .n_saved = recipe->lora_modules_to_save.n,
        .saved = recipe->lora_modules_to_save.items,
        .n_alpha_pattern = recipe->lora_alpha_pattern.n,
        .alpha_keys = recipe->lora_alpha_pattern.keys,
        .alpha_values = recipe->lora_alpha_pattern.values,
        .use_rslora = recipe->lora_use_rslora,
        .use_dora = recipe->lora_use_dora,
        .gaussian = recipe->lora_init == LORA_INIT_GAUSSIAN,
        .lr_ratio = recipe->lora_lr_ratio,
    };
    if (config->n_targets == 0 && config->n_parameters == 0) return status_fail(ST_CONFIG, "'lora.target_modules' is empty");
    for (size_t i = 0; i < config->n_targets; i++) {
        if (strpbrk(config->targets[i], "\\*+?()[]{}|^$")) { /* no module name has these characters: it is a pattern for full paths, as in PEFT */
            if (config->n_targets > 1)
                return status_hint(
                    status_fail(ST_CONFIG, "the pattern '%s' in 'lora.target_modules' cannot be combined with other entries", config->targets[i]),
                    "(q_proj|v_proj) in a pattern means one or the other");
            config->target_regex = config->targets[i];
            config->n_targets = 0;
            break;
        }
        if (strcmp(config->targets[i], "all-linear") != 0) continue;
        if (config->n_targets > 1) return status_fail(ST_CONFIG, "'all-linear' in 'lora.target_modules' cannot be combined with other entries");
        config->n_targets = 0;
    }
    return fill_rank_pattern(recipe, config);
}

Status recipe_quantise(const Recipe *recipe, Quantise *how) {
    const TextList *modules = &recipe->model_quantize_modules;
    if (recipe->model_quantize == MODEL_QUANTIZE_NONE) return ST_OK;
    const char *form = model_quantize_text(recipe->model_quantize);
    if (!recipe->has_lora) {
        status_fail(ST_CONFIG, "'model.quantize: %s' without a 'lora' section: every weight would be trained, and quantised weights cannot be", form);
        return status_hint(ST_CONFIG, "lora.rank=16 trains an adapter on them; or leave model.quantize out");
    }
    *how = (Quantise){.form = form,
                      .n_modules = modules->n,
                      .modules = modules->items,
                      .nested = recipe->model_quantize_double,
                      .block = recipe->model_quantize_block};
    if (modules->n == 0) return status_fail(ST_CONFIG, "'model.quantize_modules' is empty");
    for (size_t i = 0; i < modules->n; i++) {
        if (strcmp(modules->items[i], "all-linear") != 0) continue;
        if (modules->n > 1) return status_fail(ST_CONFIG, "'all-linear' in 'model.quantize_modules' cannot be combined with other entries");
        how->n_modules = 0;
    }
    return ST_OK;
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

/* Like transformers: a fraction of all steps is rounded up. */
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

Checkpointing recipe_checkpointing(const Recipe *recipe) {
    static const Checkpointing kinds[] = {[TRAIN_CHECKPOINTING_NONE] = CHECKPOINT_NONE,
                                          [TRAIN_CHECKPOINTING_SELECTIVE] = CHECKPOINT_SELECTIVE,
                                          [TRAIN_CHECKPOINTING_LAYER] = CHECKPOINT_LAYER};
    return kinds[recipe->train_checkpointing];
}

ShardKind recipe_shard(const Recipe *recipe) {
    const char *shard = recipe->parallel_shard;
    if (strcmp(shard, "optimizer") == 0 || strcmp(shard, "zero-1") == 0) return SHARDS_OPTIMIZER;
    return strcmp(shard, "gradients") == 0 || strcmp(shard, "zero-2") == 0 ? SHARDS_GRADIENTS : SHARDS_NONE;
}

AccumulatorConfig recipe_division(const Recipe *recipe, Comm *comm) {
    return (AccumulatorConfig){.comm = comm,
                               .bucket = (size_t)recipe->parallel_bucket << 20,
                               .late = recipe->parallel_overlap == PARALLEL_OVERLAP_OFF,
                               .bf16 = recipe->parallel_reduce_dtype == PARALLEL_REDUCE_DTYPE_BF16};
}

Comm *recipe_sharing(const Recipe *recipe, Comm *comm) { return recipe->parallel_share_frozen == PARALLEL_SHARE_FROZEN_HOST ? comm : NULL; }

DType recipe_compute(const Recipe *recipe) {
    if (recipe->model_compute == MODEL_COMPUTE_AUTO) return compute_auto();
    return recipe->model_compute == MODEL_COMPUTE_BF16 ? DT_BF16 : DT_F32;
}
