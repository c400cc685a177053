/* SPDX-License-Identifier: Apache-2.0 */
/* Models of random weights, for benchmarks and for training from scratch. */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "lib/model/parts.h"
#include "lib/model/safetensors.h"

#include <math.h>
#include <string.h>

/* `count` values around zero with this standard deviation: four 32-bit draws a block, spread evenly over +-sqrt(3) deviations. */
static void write_uniform(SafetensorsWriter *writer, RngKey key, DType dtype, int64_t count, double deviation) {
    enum { PIECE = 4096 };
    float piece[PIECE];
    float step = (float)(2 * sqrt(3.0) * deviation / 4294967296.0);
    for (int64_t done = 0; done < count && !interrupt_requested() && !safetensors_failed(writer); done += PIECE) {
        int64_t n = MIN(count - done, PIECE);
        for (int64_t i = 0; i < n; i += 4) {
            uint32_t draws[4];
            rng_block(key, (uint64_t)(done + i) / 4, draws);
            for (int64_t k = 0; k < 4 && i + k < n; k++) piece[i + k] = ((float)draws[k] - 2147483648.0f) * step;
        }
        safetensors_write_as(writer, piece, DT_F32, dtype, (size_t)n);
    }
}

static void write_constant(SafetensorsWriter *writer, DType dtype, int64_t count, float value) {
    for (int64_t i = 0; i < count; i++) safetensors_write_as(writer, &value, DT_F32, dtype, 1);
}

static Status write_weights(const Model *model, const char *path, DType dtype, uint64_t seed, double scale) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    size_t n = model->n_modules - (model->config.tie_word_embeddings && !model->config.scores ? 1 : 0);
    for (size_t i = 0; i < n; i++) {
        const Module *module = &model->modules[i];
        Str name = {0};
        str_printf(&name, "%s%s", module->path, module->bare ? "" : ".weight");
        safetensors_declare(writer, str_text(&name), dtype, module->n_dims, module->shape);
        str_clear(&name);
        str_printf(&name, "%s.bias", module->path);
        if (module->bias) safetensors_declare(writer, str_text(&name), dtype, 1, &module->bias_width);
        str_release(&name);
    }
    for (size_t i = 0; i < n && !interrupt_requested() && !safetensors_failed(writer); i++) {
        const Module *module = &model->modules[i];
        if (module->n_dims > 1)
            write_uniform(writer, rng_key(seed, RNG_INIT, i), dtype, module_count(module), scale);
        else
            write_constant(writer, dtype, module_count(module), (float)(1 - model->config.norm_offset));
        if (module->bias) write_constant(writer, dtype, module->bias_width, 0);
    }
    if (!interrupt_requested()) return safetensors_commit(writer);
    safetensors_abandon(writer);
    return status_fail(ST_INTERRUPTED, "interrupted");
}

static uint64_t weight_bytes(const Model *model, DType dtype) {
    uint64_t n = 0;
    for (size_t i = 0; i < model->n_modules; i++) {
        const Module *module = &model->modules[i];
        n += (uint64_t)module_count(module) + (module->bias ? (uint64_t)module->bias_width : 0);
    }
    if (model->config.tie_word_embeddings && !model->config.scores && model->n_modules > 0)
        n -= (uint64_t)module_count(&model->modules[model->n_modules - 1]);
    return dtype_bytes(dtype, (int64_t)n);
}

static Status write_random(Model *model, const char *dir, json_t *config, DType dtype, uint64_t seed, double scale) {
    TRY(model_config_parse(config, "config.json", model->arena, &model->config));
    if (model->config.wrapper)
        log_message(LOG_WARNING, "only the text part of a %s is made: the other parts that config.json describes are missing", model->config.wrapper);
    TRY(model_build(model, model->config.scores));
    TRY(dir_make(dir));
    TRY(dir_check_space(dir, weight_bytes(model, dtype)));
    TRY(write_weights(model, path_join(model->arena, dir, "model.safetensors"), dtype, seed, scale));
    return config_write(config, dtype, path_join(model->arena, dir, "config.json"));
}

Status model_write_random(const char *dir, const char *config_json, DType dtype, uint64_t seed, double scale) {
    json_t *config;
    TRY(json_read_config_text(config_json, strlen(config_json), "config.json", true, &config));
    Model model = {.arena = arena_new(0)};
    Status status = model.arena ? write_random(&model, dir, config, dtype, seed, scale) : ST_RESOURCE;
    json_decref(config);
    arena_free(model.arena);
    return status;
}
