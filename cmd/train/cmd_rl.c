/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl: trains a policy by a recipe and writes it into the run directory. */
#include <string.h>

#include "cmd/app/commands.h"
#include "cmd/train/cmd_rl.h"
#include "rl/keys/algorithm_keys.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_env.h"

/* The algorithm and the recipe decide what the run learns from: rows of preferences, rows with rewards, an environment, or prompts with rewards. */
static Status cmd_rl_run(const RecipeCommand *job) {
    const Recipe *recipe = job->recipe;
    bool offline = strcmp(recipe->rl_algorithm, "ilql") == 0;
    bool pairs = preference_algorithm(recipe->rl_algorithm) != NULL;
    if (recipe->rl_env && (offline || pairs)) {
        status_fail(ST_CONFIG, "algorithm '%s' learns from rows of %s, not from an environment", recipe->rl_algorithm,
                    offline ? "text with rewards" : "preferences");
        return status_hint(ST_CONFIG, "name rows in data.train and leave out rl.env");
    }
    TRY(rl_check_keys(recipe));
    if (offline) return rl_offline(job);
    if (pairs) return rl_pairs(job);
    return recipe->rl_env && !text_env_is_requested(recipe->rl_env) ? rl_environment(job) : rl_text(job);
}

Status cmd_rl(int argc, char **argv) {
    static const char *const sections[] = {"",         "rl",    "policy",   "reward", "model",  "lora", "data",
                                           "generate", "train", "parallel", "eval",   "distil", NULL};
    return recipe_command(
        argc, argv, "rl",
        "Trains a policy by reinforcement learning: in an environment (rl.env), or a language model on prompts with rewards, on preferences, or offline on rows with rewards (ilql). The result is a run directory with the policy or the adapter.\n"
        "    tune rl recipes/rl_cartpole_ppo.yaml output=runs/cartpole\n"
        "    tune rl recipes/rl_dpo.yaml model.path=DIR data.train=pairs.jsonl output=runs/dpo",
        sections, cmd_rl_run);
}
