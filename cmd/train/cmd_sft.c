/* SPDX-License-Identifier: Apache-2.0 */
/* tune sft: trains an adapter or a model by a recipe and writes it into the run directory. */
#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/train/train_show.h"
#include "sft/sft.h"

static Status cmd_sft_train(const RecipeCommand *job) {
    Show show = {.job = job};
    TrainResult result;
    const TrainingConfig config = show_training(&show);
    TRY(sft_run(&config, &result));
    if (!show_training_result(job, &result, trained_part(job->recipe))) return ST_OK;
    show_line("wrote %s/%s", job->recipe->output, trained_part(job->recipe));
    show_next_use(job->recipe, show.conversations);
    return ST_OK;
}

Status cmd_sft(int argc, char **argv) {
    static const char *const sections[] = {"", "model", "lora", "data", "train", "parallel", "eval", "distil", "generate", NULL};
    return recipe_command(
        argc, argv, "sft",
        "Trains a LoRA adapter on rows (without a lora section, the whole model) and writes it into the recipe's output directory.\n"
        "    tune sft recipes/demo/sft.yaml lora.rank=8 output=runs/try",
        sections, cmd_sft_train);
}
