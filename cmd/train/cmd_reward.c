/* SPDX-License-Identifier: Apache-2.0 */
/* tune reward: trains a reward model on preferences. */
#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/train/train_show.h"
#include "rl/pairs/reward_training.h"

/* Prints how to use the model in transformers and PEFT, as the run has saved it for its page; nothing if it has saved none. */
static Status show_use(const Recipe *recipe) {
    Arena *arena = arena_new(0);
    const char *path = arena ? path_join(arena, recipe->output, "started.json") : NULL;
    json_t *started = NULL;
    Status status = path ? json_read_file(path, &started) : ST_RESOURCE;
    const char *use = json_string_value(json_object_get(started, "use"));
    if (use) show_line("transformers and PEFT give the same scores:\n%s", use);
    json_decref(started);
    arena_free(arena);
    return status;
}

static Status cmd_reward_run(const RecipeCommand *job) {
    Show show = {.job = job};
    TrainResult result;
    const TrainingConfig config = show_training(&show);
    TRY(reward_training_run(&config, &result));
    if (show_training_result(job, &result, trained_part(job->recipe))) show_line("wrote %s/%s", job->recipe->output, trained_part(job->recipe));
    return job->options.dry_run ? ST_OK : show_use(job->recipe);
}

Status cmd_reward(int argc, char **argv) {
    static const char *const sections[] = {"", "model", "lora", "data", "train", "parallel", "eval", NULL};
    return recipe_command(
        argc, argv, "reward",
        "Trains a reward model. It gives a score at the end of an answer: higher for chosen answers than for rejected ones, or higher for right steps than for wrong ones. The result is a run directory with an adapter "
        "that includes the score head (in transformers: ForSequenceClassification with one label). Rows are {\"prompt\", \"chosen\", \"rejected\"}, or {\"prompt\", \"completions\": [...], \"labels\": [...]}.\n"
        "    tune reward recipes/reward_model.yaml model.path=DIR data.train=pairs.jsonl output=runs/reward\n"
        "    tune eval DIR --adapter runs/reward/adapter --data held_out.jsonl",
        sections, cmd_reward_run);
}
