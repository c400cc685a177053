/* SPDX-License-Identifier: Apache-2.0 */
/* The modules of a model, listed as its blocks say: which weights config.json requires, and the slots that their tensors belong to. */
#include "lib/model/block.h"
#include "lib/model/parts.h"
#include "lib/model/text_part.h"

#include <string.h>

/* Makes room for one more item in an array of `arena`, whose length doubles when it is full. NULL: out of memory. */
static void *grown(Arena *arena, void *items, size_t n, size_t item_bytes) {
    enum { FIRST = 64 };
    if (n != 0 && (n < FIRST || (n & (n - 1)))) return items;
    void *room = arena_alloc(arena, MAX(2 * n, (size_t)FIRST) * item_bytes);
    if (room && n) memcpy(room, items, n * item_bytes);
    return room;
}

/* ---- names ---- */

const char *part_path(const Model *model, const char *part) {
    const ModelConfig *config = &model->config;
    return config->text_names && part ? text_path(config, config->text_names, part, model->arena) : part;
}

/* "model.layers.3.mlp.experts.5.up_proj" for "mlp.experts.*.up_proj" */
static const char *layer_path(const BlockBuilder *builder, const char *part) {
    const Model *model = builder->model;
    const char *star = strchr(part, '*'), *layers = model->config.family->names->layers;
    const char *path = star ? arena_printf(model->arena, "%s.%lld.%.*s%lld%s", layers, (long long)builder->layer, (int)(star - part), part,
                                           (long long)builder->index, star + 1)
                            : arena_printf(model->arena, "%s.%lld.%s", layers, (long long)builder->layer, part);
    return part_path(model, path);
}

/* ---- modules ---- */

static Module *add_module(Model *model, const char *path, Tensor **weight, int n_dims, const int64_t *shape) {
    Module *modules = grown(model->arena, model->modules, model->n_modules, sizeof *modules);
    if (!path || !modules) return NULL;
    model->modules = modules;
    Module *module = &modules[model->n_modules++];
    *module = (Module){.path = path, .weight = weight, .n_dims = n_dims};
    memcpy(module->shape, shape, (size_t)n_dims * sizeof *shape);
    return module;
}

static Module *add_norm(Model *model, const char *path, Norm *norm, int64_t width) {
    Module *module = add_module(model, path, &norm->weight, 1, &width);
    if (!module || model->config.norm != NORM_LAYER) return module;
    module->bias = &norm->bias;
    module->bias_width = width;
    return module;
}

static Module *add_linear(Model *model, const char *path, Linear *linear, int64_t in, int64_t out, bool bias) {
    const bool in_out = model->config.in_out_weights;
    Linear **linears = grown(model->arena, model->linears, model->n_linears, sizeof *linears);
    Module *module = add_module(model, path, &linear->weight, 2, in_out ? (int64_t[]){in, out} : (int64_t[]){out, in});
    if (!module || !linears) return NULL;
    module->in_out = in_out;
    module->linear = linear;
    if (bias) {
        module->bias = &linear->bias;
        module->bias_width = out;
    }
    *linear = (Linear){.path = path, .in = in, .out = out, .index = model->n_linears};
    model->linears = linears;
    model->linears[model->n_linears++] = linear;
    return module;
}

static bool built(BlockBuilder *builder, const void *module) {
    if (!module && builder->status == ST_OK) builder->status = ST_RESOURCE;
    return module != NULL;
}

void build_linear(BlockBuilder *builder, const char *part, Linear *linear, int64_t in, int64_t out, bool bias) {
    Module *module = add_linear(builder->model, layer_path(builder, part), linear, in, out, bias);
    if (built(builder, module)) module->sparse = builder->sparse;
}

void build_norm(BlockBuilder *builder, const char *part, Norm *norm, int64_t width) {
    if (part) built(builder, add_norm(builder->model, layer_path(builder, part), norm, width));
}

void build_weight(BlockBuilder *builder, const char *part, bool bare, Tensor **weight, int n_dims, const int64_t *shape) {
    Module *module = add_module(builder->model, layer_path(builder, part), weight, n_dims, shape);
    if (!built(builder, module)) return;
    module->bare = bare;
    module->sparse = builder->sparse;
    module->fixed = builder->fixed;
}

void build_together(BlockBuilder *builder, const char *part, Linear *linear, int64_t copies, int64_t in, int64_t out, bool in_out, bool stored) {
    Model *model = builder->model;
    const char *path = layer_path(builder, part);
    Linear **linears = grown(model->arena, model->linears, model->n_linears, sizeof *linears);
    if (!built(builder, path) || !built(builder, linears)) return;
    *linear = (Linear){.path = path, .in = in, .out = out, .index = model->n_linears, .copies = copies, .only_named = true};
    model->linears = linears;
    model->linears[model->n_linears++] = linear;
    Module *module = stored ? add_module(model, path, &linear->weight, 3, (int64_t[]){copies, in_out ? in : out, in_out ? out : in}) : NULL;
    if (!stored || !built(builder, module)) return;
    module->bare = module->sparse = true;
    module->in_out = in_out;
    module->linear = linear;
}

int build_cache_row(BlockBuilder *builder, int64_t keys, int64_t values) {
    Model *model = builder->model;
    CacheRow *rows = grown(model->arena, model->cache_rows, (size_t)model->n_cache_rows, sizeof *rows);
    if (!built(builder, rows)) return 0;
    model->cache_rows = rows;
    model->cache_rows[model->n_cache_rows] = (CacheRow){keys, values};
    return model->n_cache_rows++;
}

int build_state(BlockBuilder *builder, int64_t width) {
    Model *model = builder->model;
    int64_t *widths = grown(model->arena, model->state_widths, (size_t)model->n_states, sizeof *widths);
    if (!built(builder, widths)) return 0;
    model->state_widths = widths;
    model->state_widths[model->n_states] = width;
    return model->n_states++;
}

int build_result(BlockBuilder *builder) { return builder->model->n_shared++; }

int64_t module_count(const Module *module) {
    int64_t count = 1;
    for (int d = 0; d < module->n_dims; d++) count *= module->shape[d];
    return count;
}

/* ---- layers ---- */

static void build_sublayer(BlockBuilder *builder, const SublayerForm *form, Sublayer *sublayer) {
    Model *model = builder->model;
    sublayer->kind = form->kind;
    sublayer->block = arena_zero(model->arena, form->kind->bytes);
    if (!built(builder, sublayer->block)) return;
    build_norm(builder, form->input_norm, &sublayer->input_norm, model->config.hidden_size);
    form->kind->build(builder, form->form, sublayer->block);
    build_norm(builder, form->output_norm, &sublayer->output_norm, model->config.hidden_size);
}

static Status build_layer(Model *model, int64_t i) {
    const ModelConfig *config = &model->config;
    const LayerForm *form = config->layer_forms ? config->layer_forms[i] : config->family->layer;
    DecoderLayer *layer = &model->layers[i];
    BlockBuilder builder = {.model = model, .layer = i};
    while (layer->n_sublayers < MOST_SUBLAYERS && form->sublayers[layer->n_sublayers].kind) layer->n_sublayers++;
    layer->sublayers = arena_zero(model->arena, (size_t)layer->n_sublayers * sizeof *layer->sublayers);
    if (!layer->sublayers) return ST_RESOURCE;
    for (int s = 0; s < layer->n_sublayers && builder.status == ST_OK; s++) build_sublayer(&builder, &form->sublayers[s], &layer->sublayers[s]);
    return builder.status;
}

static bool add_table(Model *model, const char *part, Tensor **weight, int64_t rows) {
    return add_module(model, part_path(model, part), weight, 2, (int64_t[]){rows, model->config.hidden_size}) != NULL;
}

Status model_build(Model *model, bool scores) {
    const ModelConfig *c = &model->config;
    const PartNames *names = c->family->names;
    model->layers = arena_zero(model->arena, (size_t)c->num_hidden_layers * sizeof *model->layers);
    if (!model->layers || !add_table(model, names->embed, &model->embed, c->vocab_size)) return ST_RESOURCE;
    if (c->learned_positions && !add_table(model, names->positions, &model->position_embed, c->max_position_embeddings)) return ST_RESOURCE;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) TRY(build_layer(model, i));
    if (!add_norm(model, part_path(model, names->final_norm), &model->final_norm, c->hidden_size)) return ST_RESOURCE;
    if (scores) return add_module(model, "score", &model->score, 2, (int64_t[]){1, c->hidden_size}) ? ST_OK : ST_RESOURCE;
    return add_table(model, names->head, &model->head, c->vocab_size) ? ST_OK : ST_RESOURCE;
}
