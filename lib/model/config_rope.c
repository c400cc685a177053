/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions in config.json: rope_theta and rope_scaling at the top level (transformers 4), or rope_parameters (5), which may have an object
 * for each kind of layer. */
#include "lib/model/family.h"
#include "lib/model/rope.h"

#include <string.h>

static RopeType rope_type(ConfigReader *reader, const char *name, const DecoderDefaults *usual) {
    static const struct {
        const char *name;
        RopeType type;
    } known[] = {
        {"default", ROPE_DEFAULT}, {"linear", ROPE_LINEAR}, {"dynamic", ROPE_DYNAMIC},
        {"yarn", ROPE_YARN},       {"llama3", ROPE_LLAMA3}, {"longrope", ROPE_LONGROPE},
    };
    if (usual->old_longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0)) return ROPE_LONGROPE;
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, name) == 0) return known[i].type;
    CONFIG_FAIL(reader, "'%s' asks for rope_type '%s', which is not supported", reader->path, name);
    if (reader->status == ST_INPUT) status_hint(ST_INPUT, "known: default, linear, dynamic, yarn, llama3, longrope");
    return ROPE_DEFAULT;
}

/* A value of rope parameters; `type` is the older name of `rope_type`. */
static const json_t *rope_value(const json_t *rope, const char *name) {
    const json_t *value = json_object_get(rope, name);
    if (!value && !strcmp(name, "type")) return json_object_get(rope, "rope_type");
    if (!value && !strcmp(name, "rope_type")) return json_object_get(rope, "type");
    return value;
}

/* A long-context setting in the old form next to the new one must not be ignored. */
static void rope_check_same(ConfigReader *reader, const json_t *rope, const json_t *scaling) {
    const char *name;
    json_t *number;
    json_object_foreach((json_t *)(uintptr_t)scaling, name, number) if (!json_equal(rope_value(rope, name), number))
        CONFIG_FAIL(reader, "'%s' has rope_parameters and rope_scaling with different values of '%s'", reader->path, name);
}

/* The objects with rope_type and its numbers, for full and for window layers; NULL: there is none. */
typedef struct RopeObjects {
    const json_t *full, *window;
} RopeObjects;

/* One object for each kind of layer. A model with a single rope may have them, too, if they agree. */
static RopeObjects nested_objects(ConfigReader *reader, const json_t *rope, bool two_ropes) {
    RopeObjects objects = {json_object_get(rope, "full_attention"), json_object_get(rope, "sliding_attention")};
    const char *key;
    json_t *value;
    const json_t *first = NULL;
    json_object_foreach((json_t *)(uintptr_t)rope, key, value) {
        if (!json_is_object(value)) {
            if (two_ropes && !json_is_null(value)) CONFIG_FAIL(reader, "'%s' has both rope_parameters by kind of layer and '%s'", reader->path, key);
            continue;
        }
        if (two_ropes && value != objects.full && value != objects.window)
            CONFIG_FAIL(reader, "'%s' has rope_parameters for '%s', and layers are full_attention or sliding_attention", reader->path, key);
        if (!two_ropes && first && !json_equal(first, value))
            CONFIG_FAIL(reader, "'%s' has different rope_parameters for its layers, which is not supported for model_type '%s'", reader->path,
                        reader->config->model_type);
        first = value;
    }
    if (!two_ropes) objects = (RopeObjects){first, NULL};
    return (RopeObjects){json_is_object(objects.full) ? objects.full : NULL, json_is_object(objects.window) ? objects.window : NULL};
}

static RopeObjects rope_objects(ConfigReader *reader, bool two_ropes) {
    const json_t *rope = config_value(reader, "rope_parameters"), *scaling = config_value(reader, "rope_scaling");
    const json_t *object = rope ? rope : scaling;
    if (!object) return (RopeObjects){0};
    if (!json_is_object(object)) {
        CONFIG_FAIL(reader, "rope parameters in '%s' are no object", reader->path);
        return (RopeObjects){0};
    }
    bool nested = false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) nested |= json_is_object(value);
    RopeObjects objects = nested ? nested_objects(reader, object, two_ropes) : (RopeObjects){object, NULL};
    if (rope && scaling) rope_check_same(reader, objects.full, scaling);
    return objects;
}

/* longrope's list of divisors. */
static const double *read_factors(ConfigReader *reader, const char *key, int64_t *n) {
    const json_t *list = config_value(reader, key);
    if (!list || reader->status != ST_OK) return NULL;
    size_t count = json_array_size(list);
    double *factors = arena_alloc(reader->arena, (count + 1) * sizeof *factors);
    if (!factors) reader->status = ST_RESOURCE;
    for (size_t i = 0; factors && i < count; i++) {
        factors[i] = json_number_value(json_array_get(list, i));
        if (!(factors[i] > 0)) CONFIG_FAIL(reader, "'%s' in '%s' has an element %zu that is no number above 0", key, reader->path, i);
    }
    if (*n && *n != (int64_t)count) CONFIG_FAIL(reader, "short_factor and long_factor in '%s' are of different lengths", reader->path);
    *n = (int64_t)count;
    return factors;
}

static void refuse_other_keys(ConfigReader *inner) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)inner->json, key, value) {
        bool seen = false;
        for (size_t i = 0; i < inner->n_seen && !seen; i++) seen = strcmp(inner->seen[i], key) == 0;
        if (!seen && !json_is_null(value)) CONFIG_FAIL(inner, "rope parameter '%s' in '%s' is not supported", key, inner->path);
    }
}

/* The required values of each rope type, and the defaults of the others. */
static void complete(ConfigReader *reader, RopeConfig *rope, const char *type) {
    double ratio = (double)reader->config->max_position_embeddings / (double)rope->original_max_position_embeddings;
    if ((rope->type == ROPE_YARN || rope->type == ROPE_LONGROPE) && rope->factor == 0) rope->factor = ratio;
    if (rope->type != ROPE_DEFAULT && !(rope->factor > 0)) CONFIG_FAIL(reader, "'%s' lacks 'factor' for rope_type '%s'", reader->path, type);
    if (rope->type == ROPE_LLAMA3 && !(rope->high_freq_factor > rope->low_freq_factor && rope->low_freq_factor > 0))
        CONFIG_FAIL(reader, "'%s' has low_freq_factor %g and high_freq_factor %g", reader->path, rope->low_freq_factor, rope->high_freq_factor);
    if (!(rope->rope_theta > 0) || !(rope->beta_fast > 0) || !(rope->beta_slow > 0))
        CONFIG_FAIL(reader, "'%s' has a rope parameter that is not above zero", reader->path);
    if (rope->type == ROPE_LONGROPE && (!rope->factors[0] || !rope->factors[1]))
        CONFIG_FAIL(reader, "'%s' lacks '%s' for rope_type '%s'", reader->path, rope->factors[0] ? "long_factor" : "short_factor", type);
    if (rope->type != ROPE_LONGROPE && rope->n_factors)
        CONFIG_FAIL(reader, "'%s' has short_factor or long_factor for rope_type '%s'", reader->path, type);
}

/* `rope` starts with the values of the top level; original: original_max_position_embeddings there, 0 = missing. */
static void read_object(ConfigReader *reader, const json_t *object, const DecoderDefaults *usual, int64_t original, RopeConfig *rope) {
    if (!object || reader->status != ST_OK) return;
    ConfigReader inner = {.json = object, .path = reader->path, .arena = reader->arena, .config = reader->config};
    const char *type = config_text(&inner, "rope_type", config_text(&inner, "type", "default"));
    rope->rope_theta = config_real(&inner, "rope_theta", rope->rope_theta);
    rope->factor = config_real(&inner, "factor", 0);
    rope->low_freq_factor = config_real(&inner, "low_freq_factor", 1);
    rope->high_freq_factor = config_real(&inner, "high_freq_factor", 4);
    rope->beta_fast = config_real(&inner, "beta_fast", 32);
    rope->beta_slow = config_real(&inner, "beta_slow", 1);
    rope->attention_factor = config_real(&inner, "attention_factor", 0);
    rope->mscale = config_real(&inner, "mscale", 0);
    rope->mscale_all_dim = config_real(&inner, "mscale_all_dim", 0);
    rope->truncate = config_flag(&inner, "truncate", true);
    rope->partial = config_real(&inner, "partial_rotary_factor", rope->partial);
    rope->factors[0] = read_factors(&inner, "short_factor", &rope->n_factors);
    rope->factors[1] = read_factors(&inner, "long_factor", &rope->n_factors);
    if (usual->scaled_queries) {
        rope->query_beta = config_real(&inner, "llama_4_scaling_beta", 0);
        config_ignore(&inner, "max_position_embeddings");
    }
    const char *key = "original_max_position_embeddings";
    int64_t inner_original = config_value(&inner, key) ? config_size(&inner, key, 0) : 0;
    int64_t otherwise = usual->original_max_position_embeddings ? usual->original_max_position_embeddings : reader->config->max_position_embeddings;
    if (original == 0) rope->original_max_position_embeddings = inner_original ? inner_original : otherwise;
    config_ignore(&inner, "finetuned");
    refuse_other_keys(&inner);
    rope->type = rope_type(&inner, type, usual);
    complete(&inner, rope, type);
    config_failed(reader, inner.status);
}

/* 1 and 0 both mean the complete head. */
static void check_partial(ConfigReader *reader, const DecoderDefaults *usual, RopeConfig *rope) {
    if (rope->partial != 1 && !usual->partial_rotary_factor)
        CONFIG_FAIL(reader, "'%s' sets 'partial_rotary_factor', which is not supported for model_type '%s'", reader->path,
                    reader->config->model_type);
    if (!(rope->partial > 0 && rope->partial <= 1))
        CONFIG_FAIL(reader, "wrong 'partial_rotary_factor' in '%s': expected more than 0 and at most 1, got %g", reader->path, rope->partial);
    if (rope->partial == 1) rope->partial = 0;
}

static double read_theta(ConfigReader *reader, const char *key, double fallback) {
    double theta = config_real(reader, key, fallback);
    if (!(theta > 0)) CONFIG_FAIL(reader, "'%s' has '%s' %g, expected a number above 0", reader->path, key, theta);
    return theta;
}

void config_read_rope(ConfigReader *reader, const DecoderDefaults *usual) {
    ModelConfig *config = reader->config;
    const char *key = "original_max_position_embeddings";
    int64_t original = config_value(reader, key) ? config_size(reader, key, 0) : 0;
    RopeConfig top = {.type = ROPE_DEFAULT,
                      .rope_theta = read_theta(reader, "rope_theta", usual->rope_theta ? usual->rope_theta : 10000),
                      .partial = config_real(reader, "partial_rotary_factor", usual->partial_rotary_factor ? usual->partial_rotary_factor : 1),
                      .truncate = true,
                      .beta_fast = 32,
                      .beta_slow = 1,
                      .original_max_position_embeddings = original};
    const char *window_key = usual->window_theta_key;
    RopeObjects objects = rope_objects(reader, window_key != NULL);
    config->rope = top;
    read_object(reader, objects.full, usual, original, &config->rope);
    check_partial(reader, usual, &config->rope);
    if (!window_key) return;
    config->window_rope = top;
    config->window_rope.rope_theta = read_theta(reader, window_key, usual->window_theta);
    read_object(reader, objects.window, usual, original, &config->window_rope);
    check_partial(reader, usual, &config->window_rope);
    config->layer_rope = reader->status == ST_OK ? arena_zero(reader->arena, (size_t)config->num_hidden_layers * sizeof *config->layer_rope) : NULL;
    if (!config->layer_rope && reader->status == ST_OK) reader->status = ST_RESOURCE;
}

void config_check_rope(ConfigReader *reader, const RopeConfig *rope) {
    int64_t dims = rope_dims(rope, reader->config->head_dim);
    if (rope->type == ROPE_NONE || reader->status != ST_OK) return;
    if (dims < 2 || dims % 2 != 0)
        CONFIG_FAIL(reader, rope->partial ? "%lld rotary dimensions in '%s' are no pairs" : "head_dim %lld in '%s' is odd", (long long)dims,
                    reader->path);
    if (rope->type == ROPE_LONGROPE && rope->n_factors != dims / 2)
        CONFIG_FAIL(reader, "short_factor and long_factor in '%s' have %lld numbers, expected %lld for %lld rotary dimensions", reader->path,
                    (long long)rope->n_factors, (long long)(dims / 2), (long long)dims);
}
