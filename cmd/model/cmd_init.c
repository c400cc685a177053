/* SPDX-License-Identifier: Apache-2.0 */
/* tune init: makes a model with random weights, to train from scratch or to measure with. */
#include <math.h>

#include "cmd/app/commands.h"
#include "cmd/app/options.h"
#include "cmd/app/terminal.h"
#include "lib/model/convert.h"
#include "lib/model/model.h"

typedef struct Init {
    const char *output, *dtype;
    int64_t seed;
    double scale;
    bool force;
} Init;

/* The largest drawn values, sqrt(3) standard deviations, must be finite in `dtype`. */
static Status check_scale(double scale, DType dtype) {
    double most = (dtype == DT_F16 ? 65504 : 3.38e38) / sqrt(3);
    if (scale >= 0 && scale <= most) return ST_OK;
    status_fail(ST_USAGE, "--scale must be 0 to %.3g for %s, not %g", most, dtype_name(dtype), scale);
    return status_hint(ST_USAGE, "0.02 is usual");
}

/* --force replaces only a model: with a wrong path it must not move other files. */
static Status check_directory(const Command *command, const Init *job) {
    const char *settings = path_join(command->arena, job->output, "config.json");
    if (!settings) return ST_RESOURCE;
    if (!file_exists(job->output) && !dir_exists(job->output)) return ST_OK;
    status_fail(ST_CONFIG, "'%s' already exists%s", job->output, job->force ? " and is not a model: it is not replaced" : "");
    if (!job->force) return status_hint(ST_CONFIG, "name a new directory, or --force, which keeps the old one as NAME.1");
    if (!file_exists(settings)) return status_hint(ST_CONFIG, "name a new directory");
    bool input = path_inside(command->arguments[0], job->output) || path_inside(".", job->output);
    return input ? status_hint(status_fail(ST_CONFIG, "'%s' cannot be replaced: it is in use", job->output), "name a new directory") : ST_OK;
}

typedef struct InitModel {
    const Command *command;
    const Init *job;
    const char *config, *from;
} InitModel; /* from: a directory with a tokenizer, or NULL */

static Status write_model(void *context, const char *dir) {
    const InitModel *model = context;
    TRY(check_directory(model->command, model->job)); /* another process may have made it meanwhile */
    TRY(model_write_random(dir, model->config, dtype_from_text(model->job->dtype), (uint64_t)model->job->seed, model->job->scale));
    return model->from ? model_copy_files(model->from, dir) : ST_OK;
}

static void print_json(const Init *job) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "output", job->output);
    jw_string(&w, "dtype", job->dtype);
    jw_int(&w, "seed", job->seed);
    jw_double(&w, "scale", job->scale);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static Status cmd_init_run(const Command *command, void *context) {
    const Init *job = context;
    Str config = {0}, kept = {0};
    TRY(command_needs(command, 1, 1));
    TRY(check_scale(job->scale, dtype_from_text(job->dtype)));
    if (!job->output) return status_fail(ST_USAGE, "tune init needs -o DIR");
    TRY(check_directory(command, job));
    const char *from = dir_exists(command->arguments[0]) ? command->arguments[0] : NULL,
               *path = from ? path_join(command->arena, from, "config.json") : command->arguments[0];
    if (!path) return ST_RESOURCE;
    Status status = file_read(path, 1 << 20, &config);
    json_t *json = NULL;
    if (status == ST_OK) status = json_read_config_text(str_text(&config), config.len, path, false, &json); /* faults are reported for this file */
    json_decref(json);
    if (status == ST_OK) status = dir_build_with_backup(job->output, write_model, &(InitModel){command, job, str_text(&config), from}, &kept);
    if (status == ST_OK) show_line("wrote %s", job->output);
    if (status == ST_OK && kept.len > 0) show_line("the model that was in '%s' is kept in '%s'", job->output, str_text(&kept));
    str_release(&config);
    str_release(&kept);
    if (status == ST_OK && command->json) print_json(job);
    return status;
}

Status cmd_init(int argc, char **argv) {
    Init job = {.dtype = "f32", .seed = 42, .scale = 0.02};
    Command command = {
        .arguments_help = "CONFIG -o DIR",
        .help =
            "Writes a Hugging Face directory with random weights in the shape of CONFIG: a config.json, or a directory with one. The directory's tokenizer is copied.\n"
            "    tune init recipes/demo/model -o runs/fresh",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &job.output, "DIR", "the new model's directory"},
        {"--force", OPTION_FLAG, &job.force, NULL, "write even if DIR has a model; the old one is kept as DIR.1, DIR.2, ..."},
        {"--dtype", OPTION_TEXT, &job.dtype, "f32|bf16|f16", "type of the weights (f32)"},
        {"--seed", OPTION_INT, &job.seed, "N", "seed of the random weights (42)"},
        {"--scale", OPTION_REAL, &job.scale, "X", "standard deviation of matrix elements (0.02)"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_init_run, &job);
}
