/* SPDX-License-Identifier: Apache-2.0 */
/* The model that a recipe trains: loads it with its adapter, and writes the result. */
#include "lib/base/log.h"
#include "lib/model/adapter.h"
#include "lib/model/convert.h"
#include "lib/model/quantized/quantise.h"
#include "lib/train/trained_model.h"

#include "lib/train/memory.h"
#include "lib/train/train.h"

#include "lib/text/chat.h"

#include <math.h>
#include <string.h>

/* The score head is trained in full, as PEFT does for SEQ_CLS. */
static Status save_score(Model *model, LoraConfig *lora) {
    static const char *const name = "score";
    if (!model->score || module_matches(name, lora->saved, lora->n_saved)) return ST_OK;
    const char **saved = arena_alloc(model->arena, (lora->n_saved + 1) * sizeof *saved);
    if (!saved) return ST_RESOURCE;
    for (size_t i = 0; i < lora->n_saved; i++) saved[i] = lora->saved[i];
    saved[lora->n_saved++] = name;
    lora->saved = saved;
    return ST_OK;
}

static Status start_adapter(const Recipe *recipe, Model *model) {
    static const char *const fixed[] = {"lora.rank",         "lora.alpha",         "lora.target_modules", "lora.modules_to_save",
                                        "lora.rank_pattern", "lora.alpha_pattern", "lora.use_rslora",     "lora.use_dora"};
    LoraConfig config;
    TRY(recipe_lora(recipe, &config));
    TRY(save_score(model, &config));
    if (!recipe->model_adapter) return model_attach_lora(model, &config, (uint64_t)recipe->seed);
    TRY(adapter_load(model, recipe->model_adapter, true));
    for (size_t i = 0; i < COUNT_OF(fixed); i++)
        if (recipe_given(recipe, fixed[i]))
            log_message(LOG_WARNING, "'%s' is not used: the adapter in '%s' keeps its own", fixed[i], recipe->model_adapter);
    for (size_t i = 0; i < model->n_linears; i++)
        if (model->linears[i]->lora) model->linears[i]->lora->dropout = config.dropout;
    lora_set_lr_ratio(&model->params, config.lr_ratio);
    model->lora.dropout = config.dropout;
    return ST_OK;
}

/* Whether it is a norm's parameter, as "model.layers.0.input_layernorm.weight": the component before the last names the module. */
static bool is_norm(const char *name) {
    const char *last = strrchr(name, '.');
    if (!last) return false;
    const char *part = last;
    while (part > name && part[-1] != '.') part--;
    for (; part < last; part++)
        if (text_starts_with(part, "norm") || text_starts_with(part, "ln_")) return true;
    return false;
}

static void exempt_from_decay(const Recipe *recipe, Model *model) {
    bool norms = false, biases = false;
    for (size_t i = 0; i < recipe->train_no_decay.n; i++) {
        norms |= strcmp(recipe->train_no_decay.items[i], "norm") == 0;
        biases |= strcmp(recipe->train_no_decay.items[i], "bias") == 0;
    }
    for (size_t i = 0; i < model->params.n; i++) {
        Param *param = &model->params.items[i];
        if ((norms && is_norm(param->name)) || (biases && text_ends_with(param->name, ".bias"))) param->decay = false;
    }
}

/* ---- a quantised base ---- */

/* Where the run keeps the base: next to its own folder, so that runs of the same base share it. NULL: nowhere. */
static Status kept_base(const Recipe *recipe, const Quantise *how, Arena *arena, const char **dir) {
    const char *name;
    *dir = NULL;
    if (!recipe->output) return ST_OK;
    TRY(quantise_name(recipe->model_path, how, arena, &name));
    size_t end = strlen(recipe->output);
    while (end > 0 && recipe->output[end - 1] == '/') end--;
    while (end > 0 && recipe->output[end - 1] != '/') end--;
    *dir = arena_printf(arena, "%.*s%s", (int)end, recipe->output, name);
    return *dir ? ST_OK : ST_RESOURCE;
}

static Status prepare_base(const Recipe *recipe, Arena *arena) {
    Quantise how;
    const char *dir, *slash;
    TRY(recipe_quantise(recipe, &how));
    TRY(kept_base(recipe, &how, arena, &dir));
    if (!dir || dir_exists(dir)) return ST_OK;
    slash = strrchr(dir, '/');
    if (slash && slash > dir) TRY(dir_make(arena_strndup(arena, dir, (size_t)(slash - dir))));
    return quantise_save(recipe->model_path, &how, dir);
}

Status trained_base_prepare(const Recipe *recipe) {
    if (recipe->model_quantize == MODEL_QUANTIZE_NONE || !recipe->model_path) return ST_OK;
    Arena *arena = arena_new(0);
    Status status = arena ? prepare_base(recipe, arena) : ST_RESOURCE;
    arena_free(arena);
    return status;
}

Status trained_base(const Recipe *recipe, const char *adapter, Arena *arena, const char **base) {
    if (recipe->model_quantize != MODEL_QUANTIZE_NONE) return adapter_base(adapter, arena, base);
    *base = arena_strdup(arena, recipe->model_path);
    return *base ? ST_OK : ST_RESOURCE;
}

/* Loads the base that the run keeps, or quantises in memory, as for a dry run. */
static Status load_base(const Recipe *recipe, ModelOptions *options, Arena *arena, Model **model) {
    Quantise how;
    const char *dir = NULL;
    if (recipe->model_quantize == MODEL_QUANTIZE_NONE) return model_load(recipe->model_path, options, model);
    TRY(recipe_quantise(recipe, &how));
    TRY(kept_base(recipe, &how, arena, &dir));
    if (dir && dir_exists(dir)) return model_load(dir, options, model);
    options->quantise = &how;
    return model_load(recipe->model_path, options, model);
}

/* Every weight becomes an f32 copy with a gradient. The system may grant that memory without having it, so it is checked first. */
typedef struct Room {
    const Recipe *recipe;
    int ranks;
} Room;

static Status check_room(const void *context, int64_t n_weights) {
    const Room *room = context;
    return train_memory_check_weights(room->recipe, room->ranks, n_weights);
}

static Status trained_model_load(const Recipe *recipe, Runtime runtime, const ModelUse *use, Model **result) {
    const int ranks = use->divides ? comm_size(use->comm) : 1;
    const Room room = {recipe, ranks};
    ModelOptions options = {.device = runtime.device,
                            .compute = runtime.compute,
                            .train_all = !recipe->has_lora,
                            .lends = !recipe->has_lora && ranks > 1 && recipe_shard(recipe) >= SHARDS_GRADIENTS,
                            .comm = recipe_sharing(recipe, use->comm),
                            .backward = true,
                            .dequantize = recipe->model_dequantize,
                            .scores = use->scores,
                            .seed = (uint64_t)recipe->seed,
                            .admit = recipe->has_lora ? NULL : check_room,
                            .context = &room};
    Arena *arena = arena_new(0);
    Status status = arena ? load_base(recipe, &options, arena, result) : ST_RESOURCE;
    arena_free(arena);
    TRY(status);
    Model *model = *result;
    if (recipe->has_lora) TRY(start_adapter(recipe, model));
    exempt_from_decay(recipe, model);
    model->checkpointing = recipe_checkpointing(recipe);
    return ST_OK;
}

Status trained_model_open_as(const Recipe *recipe, Runtime runtime, const ModelUse *use, Model **model) {
    *model = NULL;
    if (!recipe->model_path) return status_hint(status_fail(ST_CONFIG, "'model.path' is missing"), "name a Hugging Face model directory");
    if (recipe->model_adapter && !recipe->has_lora)
        return status_hint(status_fail(ST_CONFIG, "'model.adapter' needs a 'lora' section"), "merge the adapter first to train every weight");
    Status status = trained_model_load(recipe, runtime, use, model);
    if (status == ST_OK && (*model)->config.dropout > 0)
        log_message(LOG_WARNING, "'%s' is configured with a dropout of %g for training, which is not applied%s", recipe->model_path,
                    (*model)->config.dropout, recipe->has_lora ? "; lora.dropout is" : "");
    if (status == ST_OK || !*model) return status;
    model_free(*model);
    *model = NULL;
    return status;
}

Status trained_model_open(const Recipe *recipe, Runtime runtime, Model **model) {
    return trained_model_open_as(recipe, runtime, &(ModelUse){.scores = false}, model);
}

Status trained_model_share_weights(const Recipe *recipe, const Model *model, Model **twin) {
    TRY(model_share_weights(model, twin));
    Status status = start_adapter(recipe, *twin);
    if (status == ST_OK) {
        exempt_from_decay(recipe, *twin);
        return ST_OK;
    }
    model_free(*twin);
    *twin = NULL;
    return status;
}

static void warn_coarse(const RoundingLoss *loss, DType dtype) {
    if (rounding_lost(loss) > ROUNDING_TOO_COARSE)
        log_message(
            LOG_WARNING,
            "%s is too coarse for this result: rounding removes %.0f %% of the change that training made, and %.0f %% of the changed weights return to their old value; train.save_dtype: f32 keeps the change",
            dtype_name(dtype), fmin(100, 100 * rounding_lost(loss)), 100 * rounding_unmoved(loss));
}

static Status save_whole(const Recipe *recipe, const Model *model, const char *dir) {
    static const DType dtypes[] = {[TRAIN_SAVE_DTYPE_F32] = DT_F32, [TRAIN_SAVE_DTYPE_BF16] = DT_BF16, [TRAIN_SAVE_DTYPE_F16] = DT_F16};
    bool given = recipe->train_save_dtype != TRAIN_SAVE_DTYPE_AUTO;
    DType dtype = given ? dtypes[recipe->train_save_dtype] : model->config.stored_dtype;
    RoundingLoss loss = {0};
    Status status = model_save(model, dir, given ? &dtype : NULL, &loss);
    if (status == ST_OK) warn_coarse(&loss, dtype);
    return status == ST_NUMERIC ? status_hint(status, "f32 and bf16 hold larger values: continue with --resume and train.save_dtype=f32") : status;
}

/* ---- the chat template: a result that is prompted with another template answers worse, without any error ---- */

/* The folder in the run that keeps the template; nothing else writes to it. */
static const char *template_dir(const Recipe *recipe, Arena *arena) { return path_join(arena, recipe->output, "checkpoints"); }

static Status check_template(const ChatTemplate *now, const Run *run, const char *dir) {
    ChatTemplate *began;
    TRY(chat_template_load(dir, NULL, NULL, &began));
    bool same = true;
    for (int with_tools = 0; with_tools < 2; with_tools++) {
        Str a = {0}, b = {0};
        chat_template_text(now, with_tools, &a);
        chat_template_text(began, with_tools, &b);
        same = same && a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
        str_release(&a);
        str_release(&b);
    }
    chat_template_free(began);
    if (same) return ST_OK;
    status_fail(ST_CONFIG, "cannot resume '%s': the chat template is not the one that it began with", run_dir(run));
    return status_hint(ST_CONFIG, "bring the old file back, or choose another output");
}

static Status keep_template(const Recipe *recipe, const Run *run, const char *dir) {
    ChatTemplate *chat;
    bool kept;
    TRY(chat_template_find(dir, &kept));
    json_t *values;
    TRY(recipe_template_kwargs(recipe, &values));
    Status status = chat_template_load(recipe->model_path, recipe->model_adapter, recipe->model_chat_template, &chat);
    if (status == ST_OK && chat) status = chat_template_set_defaults(chat, values);
    json_decref(values);
    if (status == ST_OK && chat) status = kept && run_step(run) >= 0 ? check_template(chat, run, dir) : chat_template_save(chat, dir);
    chat_template_free(chat);
    return status;
}

Status trained_template_keep(const Recipe *recipe, const Run *run) {
    bool adapters = false;
    if (recipe->model_adapter) TRY(chat_template_find(recipe->model_adapter, &adapters));
    bool values = recipe->data_template_kwargs && recipe->data_template_kwargs->n > 0;
    if (!recipe->model_chat_template && !adapters && !values) return ST_OK; /* the base model has it */
    Arena *arena = arena_new(0);
    const char *dir = arena ? template_dir(recipe, arena) : NULL;
    Status status = dir ? keep_template(recipe, run, dir) : ST_RESOURCE;
    arena_free(arena);
    return status;
}

static Status save_template(const Recipe *recipe, const char *made) {
    Arena *arena = arena_new(0);
    const char *dir = arena && recipe->output ? template_dir(recipe, arena) : NULL;
    ChatTemplate *chat = NULL;
    bool kept = false;
    Status status = dir ? chat_template_find(dir, &kept) : arena ? ST_OK : ST_RESOURCE;
    if (kept) status = chat_template_load(dir, NULL, NULL, &chat);
    if (chat) status = chat_template_save(chat, made);
    chat_template_free(chat);
    arena_free(arena);
    return status;
}

/* ---- the result ---- */

typedef struct Trained {
    const Recipe *recipe;
    const Model *model;
} Trained;

static Status write_trained(void *context, const char *made) {
    const Trained *trained = context;
    TRY(trained->recipe->has_lora ? adapter_save(trained->model, made, trained->model->dir) : save_whole(trained->recipe, trained->model, made));
    return save_template(trained->recipe, made);
}

Status trained_weights_save(const Recipe *recipe, const Model *model, const char *dir) {
    return dir_build(dir, write_trained, &(Trained){recipe, model});
}

Status trained_model_save(const Recipe *recipe, const Model *model, const char *run_dir) {
    Arena *arena = arena_new(0);
    Status status = arena ? trained_weights_save(recipe, model, path_join(arena, run_dir, recipe->has_lora ? "adapter" : "model")) : ST_RESOURCE;
    arena_free(arena);
    return status;
}
