/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl on a language model: by prompts with rewards or an environment of texts, by preferences, or offline by rows with rewards. */
#include "cmd/app/terminal.h"
#include "cmd/train/cmd_rl.h"
#include "cmd/train/train_show.h"
#include "rl/offline/ilql.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_rl.h"

Status rl_text(const RecipeCommand *job) {
    const Recipe *recipe = job->recipe;
    const RewardOptions rewards = {.secret = secret_from_environment};
    Show show = {.job = job};
    TrainResult result;
    const TrainingConfig config = show_training(&show);
    TRY(text_rl_run(&config, &rewards, &result));
    if (!show_training_result(job, &result, NULL)) return ST_OK;
    show_line("wrote %s/%s", recipe->output, trained_part(recipe));
    if (!recipe->rl_env) show_next_use(recipe, first_row_is_conversation(recipe));
    return ST_OK;
}

Status rl_pairs(const RecipeCommand *job) {
    const Recipe *recipe = job->recipe;
    Show show = {.job = job};
    TrainResult result;
    const TrainingConfig config = show_training(&show);
    TRY(preference_run(&config, &result));
    if (!show_training_result(job, &result, trained_part(recipe))) return ST_OK;
    show_line("wrote %s/%s", recipe->output, trained_part(recipe));
    show_next_use(recipe, first_row_is_conversation(recipe));
    return ST_OK;
}

Status rl_offline(const RecipeCommand *job) {
    const Recipe *recipe = job->recipe;
    Show show = {.job = job};
    TrainResult result;
    Str model = {0};
    const TrainingConfig config = show_training(&show);
    TRY(ilql_run(&config, &result));
    if (!show_training_result(job, &result, NULL)) return ST_OK;
    show_line("wrote %s/%s and %s/ilql_heads.safetensors", recipe->output, trained_part(recipe), recipe->output);
    append_trained(&model, recipe);
    show_line("next: tune generate %s --ilql 4%s --prompt Hello", str_text(&model), first_row_is_conversation(recipe) ? "" : " --raw");
    str_release(&model);
    return ST_OK;
}
