/* SPDX-License-Identifier: Apache-2.0 */
/* tune reward: a reward model from preferences. */
#include "cmd/pair_command.h"
#include "rl/reward/reward_training.h"

static Status run(const RecipeCommand *job) { return pair_command(job, reward_training_run, false); }

Status cmd_reward(int argc, char **argv) {
    static const char *const sections[] = {"", "model", "lora", "data", "train", "eval", NULL};
    return recipe_command(
        argc, argv, "reward",
        "Trains a reward model: a score at the end of an answer that puts chosen answers above rejected ones, or tells right steps from wrong ones. The result is a run directory with an adapter "
        "that has the score in it (transformers: ForSequenceClassification with one label). Rows: {\"prompt\", \"chosen\", \"rejected\"}, or {\"prompt\", \"completions\": [...], \"labels\": [...]}.\n"
        "    tune reward recipes/reward_model.yaml model.path=DIR data.train=pairs.jsonl output=runs/reward\n"
        "    tune eval DIR --adapter runs/reward/adapter --data held_out.jsonl",
        sections, run);
}
