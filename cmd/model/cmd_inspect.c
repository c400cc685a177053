/* SPDX-License-Identifier: Apache-2.0 */
/* tune inspect: shows what is in a model, an adapter, a safetensors or GGUF file, a checkpoint or a run. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/gguf.h"
#include "lib/base/log.h"
#include "lib/base/yaml.h"
#include "cmd/app/commands.h"
#include "cmd/app/options.h"
#include "cmd/app/terminal.h"
#include "lib/model/adapter.h"
#include "lib/model/model.h"
#include "lib/text/text.h"

typedef struct Inspect {
    Arena *arena;
    const char *path;
    JsonWriter json;
    Str plain;
} Inspect; /* plain text and JSON are both made; one is printed */

static bool cmd_inspect_holds(const Inspect *job, const char *name) {
    const char *path = path_join(job->arena, job->path, name);
    return path && file_exists(path);
}

/* A name from a file with its control characters made visible, in the arena. */
static const char *shown(const Inspect *job, const char *name) {
    size_t room = 8 * strlen(name) + 1;
    char *text = arena_alloc(job->arena, room);
    if (!text) return "?";
    memcpy(text, name, strlen(name) + 1);
    text_keep_one_line(text, room);
    return text;
}

/* ---- tensors ---- */

static void print_tensors(Inspect *job, const WeightFile *set) {
    int64_t elements = 0;
    size_t bytes = 0;
    char size[32];
    jw_array(&job->json, "tensors");
    for (size_t i = 0; i < set->n; i++) {
        const StoredTensor *tensor = &set->tensors[i];
        Str shape = {0};
        jw_object(&job->json, NULL);
        jw_string(&job->json, "name", tensor->name);
        jw_string(&job->json, "dtype", tensor->dtype_text);
        jw_array(&job->json, "shape");
        for (int d = 0; d < tensor->n_dims; d++) {
            jw_int(&job->json, NULL, tensor->shape[d]);
            str_printf(&shape, "%s%lld", d ? "," : "", (long long)tensor->shape[d]);
        }
        jw_end_array(&job->json);
        if (set->n_files > 1) jw_string(&job->json, "file", path_name(tensor->file));
        jw_end_object(&job->json);
        str_printf(&job->plain, "%-64s %-5s (%s)\n", shown(job, tensor->name), tensor->dtype_text, str_text(&shape));
        str_release(&shape);
        elements += tensor->count;
        bytes += tensor->bytes;
    }
    jw_end_array(&job->json);
    jw_int(&job->json, "files", (int64_t)set->n_files);
    jw_int(&job->json, "parameters", elements);
    jw_int(&job->json, "bytes", (int64_t)bytes);
    str_printf(&job->plain, "%zu tensor%s, %lld element%s, %s in %zu file%s\n", set->n, plural((int64_t)set->n), (long long)elements,
               plural(elements), format_bytes((double)bytes, size), set->n_files, set->n_files == 1 ? "" : "s");
}

static void print_bits(Inspect *job, const WeightFile *set) {
    jw_double(&job->json, "bits_per_weight", weight_file_describe(set, &job->plain));
    str_append_char(&job->plain, '\n');
}

static Status inspect_tensors(Inspect *job, const char *path) {
    WeightFile *set;
    TRY(weight_file_open(path, &set));
    print_tensors(job, set);
    if (weight_file_is_quantised(set)) print_bits(job, set);
    weight_file_close(set);
    return ST_OK;
}

/* ---- GGUF files ---- */

enum { SHOWN_ELEMENTS = 8, SHOWN_BYTES = 60 }; /* of a list and of a text in the metadata */

/* A value on one line: a long list by its first elements and their number, a long text cut. */
static void describe_value(const Inspect *job, const json_t *json, Str *text) {
    if (json_is_string(json)) {
        size_t len = json_string_length(json), n = utf8_whole_prefix(json_string_value(json), MIN(len, (size_t)SHOWN_BYTES));
        const char *part = arena_strndup(job->arena, json_string_value(json), n);
        str_printf(text, "%s%s", part ? shown(job, part) : "?", n < len ? "..." : "");
    } else if (json_is_array(json)) {
        for (size_t i = 0; i < MIN(json_array_size(json), (size_t)SHOWN_ELEMENTS); i++) {
            str_append(text, i ? ", " : "");
            describe_value(job, json_array_get(json, i), text);
        }
        if (json_array_size(json) > SHOWN_ELEMENTS) str_printf(text, ", ... (%zu)", json_array_size(json));
    } else {
        char *number = json_text(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        str_append(text, number ? number : "?");
        free(number);
    }
}

static Status print_metadata(Inspect *job, const Gguf *gguf) {
    jw_object(&job->json, "metadata");
    for (size_t i = 0; i < gguf->n_values; i++) {
        json_t *json;
        TRY(gguf_json(gguf, &gguf->values[i], &json));
        Str line = {0};
        describe_value(job, json, &line);
        str_printf(&job->plain, "%-44s %s\n", shown(job, gguf->values[i].key), str_text(&line));
        str_release(&line);
        char *text = json_text(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        jw_raw(&job->json, gguf->values[i].key, text ? text : "null");
        free(text);
        json_decref(json);
    }
    jw_end_object(&job->json);
    return ST_OK;
}

/* Tensors have the names, shapes and dtypes with which a model is loaded. */
static Status inspect_gguf(Inspect *job) {
    Gguf *gguf;
    WeightFile *set;
    jw_string(&job->json, "kind", "gguf");
    TRY(gguf_open(job->path, &gguf));
    Status status = print_metadata(job, gguf);
    gguf_close(gguf);
    TRY(status);
    TRY(weight_file_open(job->path, &set));
    print_tensors(job, set);
    print_bits(job, set);
    weight_file_close(set);
    return ST_OK;
}

/* ---- directories ---- */

/* Copies a JSON file into the result unchanged: config.json, adapter_config.json, manifest.json. */
static Status copy_json(Inspect *job, const char *key, const char *file) {
    json_t *json;
    const char *path = path_join(job->arena, job->path, file);
    if (!path) return ST_RESOURCE;
    TRY(json_read_config(path, false, &json));
    char *text = json_text(json, JSON_REAL_PRECISION(17));
    json_decref(json);
    if (!text) return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
    jw_raw(&job->json, key, text);
    free(text);
    return ST_OK;
}

static Status inspect_model(Inspect *job) {
    ModelConfig c;
    TRY(model_config_read(job->path, job->arena, &c));
    TRY(copy_json(job, "config", "config.json"));
    str_printf(&job->plain,
               "%s%s%s: %lld layer%s, width %lld, %lld head%s of %lld (%lld for keys and values), feed-forward %lld, vocabulary %lld%s\n",
               c.model_type, c.wrapper ? ", the text part of a " : "", c.wrapper ? c.wrapper : "", (long long)c.num_hidden_layers,
               plural(c.num_hidden_layers), (long long)c.hidden_size, (long long)c.num_attention_heads, plural(c.num_attention_heads),
               (long long)c.head_dim, (long long)c.num_key_value_heads, (long long)c.intermediate_size, (long long)c.vocab_size,
               c.tie_word_embeddings ? ", head tied to the embedding" : "");
    bool tokenizer = tokenizer_in(job->path);
    str_printf(&job->plain, "%lld position%s, tokenizer: %s\n", (long long)c.max_position_embeddings, plural(c.max_position_embeddings),
               tokenizer ? "yes" : "none");
    jw_bool(&job->json, "tokenizer", tokenizer);
    return inspect_tensors(job, job->path);
}

/* What the adapter covers, if its base is here. */
static Status print_cover(Inspect *job) {
    const char *base;
    Str with = {0}, without = {0};
    TRY(adapter_base(job->path, job->arena, &base));
    if (*base == '\0' || (!dir_exists(base) && !file_exists(base))) return ST_OK;
    Status status = adapter_cover(job->path, base, &with, &without);
    if (status == ST_OK) {
        str_printf(&job->plain, "covers %s\n", with.len ? str_text(&with) : "nothing");
        str_printf(&job->plain, "does not cover %s\n", without.len ? str_text(&without) : "any other layer: there is none");
        jw_string(&job->json, "covers", str_text(&with));
        jw_string(&job->json, "not_covered", str_text(&without));
    }
    str_release(&with);
    str_release(&without);
    if (status == ST_INPUT) str_printf(&job->plain, "its base cannot be compared: %s\n", status_text());
    return status == ST_INPUT ? ST_OK : status;
}

static Status inspect_adapter(Inspect *job) {
    LoraConfig lora;
    TRY(adapter_config_read(job->path, job->arena, &lora));
    TRY(copy_json(job, "adapter", "adapter_config.json"));
    str_printf(&job->plain, "LoRA adapter: rank %lld, alpha %g%s, targets ", (long long)lora.rank, lora.alpha, lora.use_rslora ? " (rslora)" : "");
    if (lora.target_regex)
        str_printf(&job->plain, "%s", shown(job, lora.target_regex));
    else if (lora.n_targets == 0 && !lora.only_parameters)
        str_printf(&job->plain, "all linear layers");
    for (size_t i = 0; i < lora.n_targets; i++) str_printf(&job->plain, "%s%s", i ? ", " : "", shown(job, lora.targets[i]));
    for (size_t i = 0; i < lora.n_parameters; i++) str_printf(&job->plain, "%s%s", i ? ", " : "; of all experts: ", shown(job, lora.parameters[i]));
    for (size_t i = 0; i < lora.n_saved; i++) str_printf(&job->plain, "%s%s", i ? ", " : "; trained whole: ", shown(job, lora.saved[i]));
    str_printf(&job->plain, "\n");
    TRY(print_cover(job));
    const char *weights = path_join(job->arena, job->path, "adapter_model.safetensors");
    return weights ? inspect_tensors(job, weights) : ST_RESOURCE;
}

static Status inspect_checkpoint(Inspect *job) {
    TRY(copy_json(job, "checkpoint", "manifest.json"));
    str_printf(&job->plain, "checkpoint of a run\n");
    char **names;
    size_t n;
    TRY(dir_list(job->path, job->arena, &names, &n));
    for (size_t i = 0; i < n; i++)
        if (text_ends_with(names[i], ".safetensors")) return inspect_tensors(job, path_join(job->arena, job->path, names[i]));
    return status_fail(ST_INPUT, "checkpoint '%s' lacks its tensors", job->path);
}

static Status count_steps(Inspect *job) {
    Lines lines;
    Slice line;
    Str first = {0}, last = {0};
    json_int_t latest = -1;
    size_t n = 0;
    TRY(lines_open(&lines, path_join(job->arena, job->path, "metrics.jsonl")));
    while (lines_next(&lines, &line)) {
        if (line.len == 0) continue;
        json_t *json = json_parse(line.data, line.len, 0, NULL), *step = json_object_get(json, "step");
        bool whole = json != NULL; /* false for a line that is being written, or was when the run was killed */
        bool again = json_is_integer(step) && json_integer_value(step) == latest; /* the line of an evaluation after the same step */
        if (json_is_integer(step)) latest = json_integer_value(step);
        json_decref(json);
        if (!whole) {
            log_message(LOG_WARNING, "metrics.jsonl line %zu is incomplete: it is ignored", lines.number);
            continue;
        }
        n += !again;
        if (first.len == 0) str_append_n(&first, line.data, line.len);
        str_clear(&last);
        str_append_n(&last, line.data, line.len);
    }
    Status status = lines_close(&lines);
    if (status == ST_OK && n > 0) {
        jw_raw(&job->json, "first", str_text(&first));
        jw_raw(&job->json, "last", str_text(&last));
        str_printf(&job->plain, "%zu logged step%s\nfirst  %s\nlast   %s\n", n, plural((int64_t)n), str_text(&first), str_text(&last));
    }
    str_release(&first);
    str_release(&last);
    return status;
}

/* Whether several processes, which leave ranks.jsonl, rounded their sums of gradients. Only this key is read, since the recipe may be of another
 * version; a recipe that is no YAML says nothing. */
static Status inspect_rounding(Inspect *job) {
    Yaml *recipe;
    const char *path = path_join(job->arena, job->path, "recipe.yaml");
    if (!path) return ST_RESOURCE;
    if (!cmd_inspect_holds(job, "ranks.jsonl")) return ST_OK;
    const Status status = yaml_read_file(path, job->arena, &recipe);
    if (status != ST_OK) return status == ST_RESOURCE ? status : ST_OK;
    const Yaml *dtype = yaml_get(yaml_get(recipe, "parallel"), "reduce_dtype");
    if (dtype && dtype->kind == YAML_SCALAR && strcmp(dtype->text, "bf16") == 0) {
        jw_string(&job->json, "reduce_dtype", "bf16");
        str_printf(&job->plain, "gradients travelled as bf16 (parallel.reduce_dtype): another number of ranks gives other bits\n");
    }
    return ST_OK;
}

static Status say_teacher(Inspect *job) {
    json_t *started;
    TRY(json_read_file(path_join(job->arena, job->path, "started.json"), &started));
    const char *teacher = json_string_value(json_object_get(started, "teacher"));
    if (teacher) {
        jw_string(&job->json, "teacher", teacher);
        str_printf(&job->plain, "teacher %s\n", teacher);
    }
    json_decref(started);
    return ST_OK;
}

static Status inspect_run(Inspect *job) {
    str_printf(&job->plain, "run '%s'\n", job->path);
    TRY(inspect_rounding(job));
    if (cmd_inspect_holds(job, "started.json")) TRY(say_teacher(job));
    if (cmd_inspect_holds(job, "metrics.jsonl")) TRY(count_steps(job));
    static const char *const results[] = {"adapter", "model"};
    jw_array(&job->json, "results");
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        const char *path = path_join(job->arena, job->path, results[i]);
        if (!path || !dir_exists(path)) continue;
        jw_string(&job->json, NULL, path);
        str_printf(&job->plain, "result %s\n", path);
    }
    jw_end_array(&job->json);
    const char *folder = path_join(job->arena, job->path, "checkpoints");
    char **names = NULL;
    size_t n = 0;
    if (folder && dir_exists(folder)) TRY(dir_list(folder, job->arena, &names, &n));
    jw_array(&job->json, "checkpoints");
    for (size_t i = 0; i < n; i++) {
        if (names[i][0] == '.') continue;
        jw_string(&job->json, NULL, names[i]);
        str_printf(&job->plain, "checkpoint %s/%s\n", folder, names[i]);
    }
    jw_end_array(&job->json);
    return ST_OK;
}

typedef struct Kind {
    const char *name, *file;
    Status (*inspect)(Inspect *job);
} Kind;
static const Kind kinds[] = {
    {"adapter", "adapter_config.json", inspect_adapter},
    {"checkpoint", "manifest.json", inspect_checkpoint},
    {"model", "config.json", inspect_model},
    {"run", "recipe.yaml", inspect_run},
};

static Status inspect_directory(Inspect *job) {
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (cmd_inspect_holds(job, kinds[i].file)) {
            jw_string(&job->json, "kind", kinds[i].name);
            return kinds[i].inspect(job);
        }
    status_fail(ST_INPUT, "'%s' is not a model, adapter, checkpoint or run", job->path);
    return status_hint(ST_INPUT, "a model has config.json, an adapter adapter_config.json, a checkpoint manifest.json, a run recipe.yaml");
}

static Status inspect(const Command *command, void *context) {
    (void)context;
    TRY(command_needs(command, 1, 1));
    Inspect job = {.arena = command->arena, .path = command->arguments[0]};
    jw_object(&job.json, NULL);
    jw_string(&job.json, "path", job.path);
    Status status;
    if (dir_exists(job.path)) {
        status = inspect_directory(&job);
    } else if (gguf_is(job.path)) {
        status = inspect_gguf(&job);
    } else {
        jw_string(&job.json, "kind", "safetensors");
        status = inspect_tensors(&job, job.path);
    }
    jw_end_object(&job.json);
    if (status == ST_OK && command->json)
        print_result("%s\n", str_text(&job.json.text));
    else if (status == ST_OK)
        print_text(str_text(&job.plain), job.plain.len);
    jw_release(&job.json);
    str_release(&job.plain);
    return status;
}

Status cmd_inspect(int argc, char **argv) {
    Command command = {
        .arguments_help = "PATH",
        .help =
            "Shows what is in a model or adapter directory, a safetensors or GGUF file, a checkpoint or a run: tensors with shapes and dtypes, settings, steps.\n"
            "    tune inspect runs/demo/adapter",
    };
    return command_main(&command, argc, argv, NULL, inspect, NULL);
}
