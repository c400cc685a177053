/* SPDX-License-Identifier: Apache-2.0 */
/* tune merge: merges adapters into their base and writes a Hugging Face directory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/work.h"
#include "cmd/app/commands.h"
#include "cmd/common/runtime.h"
#include "cmd/app/options.h"
#include "cmd/app/terminal.h"
#include "cmd/app/hub.h"
#include "sft/merge.h"
#include "lib/model/convert.h"
#include "lib/train/train.h"

typedef struct MergeCommand {
    const char *output, *dtype, *compute, *method, *onto;
    bool force;
} MergeCommand;

static Status check_method(const char *method) {
    if (!method || !strcmp(method, "cat")) return ST_OK;
    status_fail(ST_USAGE, "merge method '%s' is not supported", method);
    return status_hint(ST_USAGE, "without --method, merge adds the weighted adapters exactly");
}

/* Parses "DIR" or "DIR:WEIGHT". If the whole text is a directory, it is DIR even if it ends like a weight. */
static Status parse_adapter(Arena *arena, const char *text, MergeAdapter *adapter) {
    const char *colon = strrchr(text, ':');
    *adapter = (MergeAdapter){text, 1};
    if (!colon || dir_exists(text)) return argument_adapter_find(arena, &adapter->dir);
    char *end;
    adapter->weight = strtod(colon + 1, &end);
    if (!colon[1] || *end || !(adapter->weight - adapter->weight == 0)) {
        status_fail(ST_USAGE, "weight '%s' of adapter '%s' is not a number", colon + 1, text);
        return status_hint(ST_USAGE, "write ADAPTER:WEIGHT, such as runs/a/adapter:0.5");
    }
    adapter->dir = arena_strndup(arena, text, (size_t)(colon - text));
    return adapter->dir ? argument_adapter_find(arena, &adapter->dir) : ST_RESOURCE;
}

static void show_tensor(void *context, size_t done, size_t n) {
    (void)context;
    work_pause_at("merging tensors");
    work_at("merging tensors", done, n);
    if (done == n) work_end("merging tensors");
}

static void print_proof(const MergeResult *result) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "tensors", (int64_t)result->n);
    jw_int(&w, "merged", (int64_t)result->n_changed);
    jw_double(&w, "max_error", result->worst ? result->worst->error : 0);
    jw_string(&w, "max_error_tensor", result->worst ? result->worst->name : NULL);
    if (result->scores) {
        jw_double(&w, "score_error", result->score_error);
    } else {
        jw_double(&w, "kl", result->kl);
        jw_double(&w, "top1_agreement", result->top1_agreement);
    }
    jw_object(&w, "per_tensor");
    for (size_t i = 0; i < result->n; i++) jw_double(&w, result->tensors[i].name, result->tensors[i].error);
    jw_end_object(&w);
    jw_double(&w, "delta_lost", result->delta_lost);
    jw_double(&w, "unmoved_share", result->unmoved);
    if (result->requantised) jw_double(&w, "requantised_lost", result->requantised_lost);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

/* Results on a quantised base: what the merged model computes, and what is left of the change if it is quantised again. */
static void show_proof(const MergeResult *result, bool onto) {
    enum { PERCENT = 100 };
    static const double far = 0.01;
    if (!result->proved || (!result->quantised && !onto)) return;
    if (!result->scores) show_line("KL(base with adapter || merged) %.3g nats, same top token %.1f %%", result->kl, PERCENT * result->top1_agreement);
    if (result->requantised)
        show_line("quantising the result again in the same form would remove %.0f %% of the change%s",
                  fmin(PERCENT, PERCENT * result->requantised_lost), result->requantised_lost > 0.5 ? "; use the base with the adapter instead" : "");
    if (onto && !result->scores && result->kl > far)
        log_message(
            LOG_WARNING,
            "the merged model is not the model that was trained (KL %.3g nats): the adapter was trained on the quantised base; without --onto the "
            "adapter is merged into that base's values",
            result->kl);
}

static Status cmd_merge_run(const Command *command, void *context) {
    const MergeCommand *options = context;
    TRY(command_needs(command, 2, COUNT_OF(command->arguments)));
    if (!options->output) return status_fail(ST_USAGE, "tune merge needs -o DIR");
    TRY(check_method(options->method));
    size_t n = command->n_arguments - 1;
    MergeAdapter *adapters = arena_alloc(command->arena, n * sizeof *adapters);
    if (!adapters) return ST_RESOURCE;
    MergeConfig config = {.base = command->arguments[0],
                          .adapters = adapters,
                          .n_adapters = n,
                          .output = options->output,
                          .force = options->force,
                          .prove = command->json,
                          .onto = options->onto,
                          .runtime = runtime_choose(options->compute),
                          .convert = options->dtype != NULL,
                          .dtype = options->dtype ? dtype_from_text(options->dtype) : DT_F32,
                          .on_tensor = show_tensor};
    for (size_t i = 0; i < n; i++) TRY(parse_adapter(command->arena, command->arguments[i + 1], &adapters[i]));
    MergeResult *result;
    TRY(merge_run(&config, &result));
    if (command->json) print_proof(result);
    if (result->delta_lost > ROUNDING_TOO_COARSE)
        log_message(
            LOG_WARNING,
            "the stored type is too coarse for these adapters: rounding loses %.0f %% of their change, and %.0f %% of the weights that they change keep their old value; --dtype f16 or f32, or using the adapter unmerged, avoids this",
            100 * result->delta_lost, 100 * result->unmoved);
    show_line("wrote %s: %zu tensor%s, %zu of them merged, largest rounding error %.2g%s%s", options->output, result->n, plural((int64_t)result->n),
              result->n_changed, result->worst ? result->worst->error : 0, result->worst ? " in " : "", result->worst ? result->worst->name : "");
    show_proof(result, options->onto != NULL);
    if (result->kept) show_line("the model that was in '%s' is kept in '%s'", options->output, result->kept);
    merge_free(result);
    return ST_OK;
}

Status cmd_merge(int argc, char **argv) {
    MergeCommand job = {.compute = "f32"};
    Command command = {
        .arguments_help = "BASE ADAPTER[:WEIGHT] ... -o DIR",
        .help =
            "Adds PEFT adapters to the model in BASE and writes the sum as a Hugging Face directory, with the base's tokenizer, template and settings.\n"
            "Adapters of reward models give a model for sequence classification with one label.\n"
            "A quantised base is merged as its values, rounded once; what that changes is printed. --onto merges into the model that the base was made from.\n"
            "--json verifies the result: the share of the adapters' change that rounding loses, the largest error of each tensor, and the difference between the merged model and base with adapters on 64 fixed tokens.\n"
            "    tune merge models/smollm2 runs/demo/adapter -o models/merged --dtype bf16",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &job.output, "DIR", "the merged model's directory"},
        {"--dtype", OPTION_TEXT, &job.dtype, "f32|bf16|f16", "type of all weights (each as in the base)"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16",
         "precision of the models that --json compares (f32, so that only merging makes a difference)"},
        {"--onto", OPTION_TEXT, &job.onto, "DIR", "add the adapters to this model instead, from which BASE was quantised"},
        {"--method", OPTION_TEXT, &job.method, "cat", "cat, the default: the weighted sum of the adapters' deltas"},
        {"--force", OPTION_FLAG, &job.force, NULL, "write even if DIR has a model; the old one is kept as DIR.1, DIR.2, ..."},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_merge_run, &job);
}
