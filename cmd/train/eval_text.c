/* SPDX-License-Identifier: Apache-2.0 */
/* tune eval of a run on text: rewards of answers to prompts, or episodes in its environment of texts. */
#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"
#include "cmd/common/recipe_command.h"
#include "cmd/common/runtime.h"
#include "cmd/train/cmd_eval.h"
#include "rl/text/text_rl.h"

static void show_prompts(const Command *command, const TextEvaluation *found) {
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "rows", (int64_t)found->rows);
        jw_double(&w, "reward", found->reward);
        jw_double(&w, "reward_std", found->reward_std);
        jw_double(&w, "completion_length", found->completion_length);
        jw_double(&w, "eos_fraction", found->eos_fraction);
        for (size_t k = 0; k < found->n_columns; k++) jw_double(&w, found->names[k], found->columns[k]);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return;
    }
    print_result("rows        %zu (greedy answers)\nreward      %s +- %s\nlength      %.1f tokens, %.1f %% ended by themselves\n", found->rows,
                 format_number(found->reward, 6, (char[32]){0}), NUMBER(found->reward_std), found->completion_length, 100 * found->eos_fraction);
    for (size_t k = 0; k < found->n_columns; k++) print_result("%-28s %s\n", found->names[k], format_number(found->columns[k], 6, (char[32]){0}));
}

Status eval_prompts(const Command *command, const Eval *job) {
    TextEvaluation found;
    Status status = text_rl_evaluate(runtime_choose(NULL).device, ranks_world(), command->arguments[0], job->data,
                                     &(RewardOptions){.secret = secret_from_environment}, &found);
    if (status == ST_OK) show_prompts(command, &found);
    arena_free(found.arena);
    return status;
}

static void show_episode(void *context, int64_t number, const char *prompt, const char *text, double reward) {
    const Eval *job = context;
    if (job->watch)
        print_result("-- episode %lld --\n%s%s\n-- return %s --\n\n", (long long)number, prompt, text, format_number(reward, 6, (char[32]){0}));
    else
        work_at("episodes", (uint64_t)number, (uint64_t)job->episodes);
}

static void show_turns(const Command *command, const Eval *job, const TextEvaluation *found) {
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "episodes", (int64_t)found->rows);
        jw_double(&w, "mean_return", found->reward);
        jw_double(&w, "std_return", found->reward_std);
        jw_double(&w, "mean_length", found->turns);
        jw_double(&w, "success", found->success);
        jw_double(&w, "completion_length", found->completion_length);
        for (size_t k = 0; k < found->n_columns; k++) jw_double(&w, found->names[k], found->columns[k]);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return;
    }
    print_result(
        "episodes  %zu (%s answers)\nreturn    %.4f +- %.4f\nlength    %.2f turns, %.1f tokens\nsuccess   %.1f %% ended by the environment with a return above 0\n",
        found->rows, job->sample ? "sampled" : "greedy", found->reward, found->reward_std, found->turns, found->completion_length,
        100 * found->success);
    for (size_t k = 0; k < found->n_columns; k++) print_result("%-28s %s\n", found->names[k], format_number(found->columns[k], 6, (char[32]){0}));
}

Status eval_turns(const Command *command, const Eval *job) {
    TextEvaluation found;
    Status status = text_rl_play(command->arguments[0],
                                 &(TextPlay){.device = runtime_choose(NULL).device,
                                             .episodes = job->episodes,
                                             .sample = job->sample,
                                             .seed = (uint64_t)job->seed,
                                             .rewards = {.secret = secret_from_environment},
                                             .on_episode = show_episode,
                                             .context = (void *)(uintptr_t)job},
                                 &found);
    end_live_line();
    if (status == ST_OK) show_turns(command, job, &found);
    arena_free(found.arena);
    return status;
}
