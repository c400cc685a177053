/* SPDX-License-Identifier: Apache-2.0 */
/* tune eval of a reward model: the share of pairs that it orders correctly, or of steps that it classifies correctly, and the calibration of its
 * scores as log-odds. */
#include "cmd/app/terminal.h"
#include "cmd/common/runtime.h"
#include "cmd/train/cmd_eval.h"
#include "rl/pairs/reward_training.h"
#include "rl/reward/scorer.h"

static void show_rows(void *context, size_t done, size_t n) {
    (void)context;
    work_at("scoring rows", done, n);
}

static void report_reward(const Command *command, const RewardNumbers *m, bool stepwise) {
    double chosen = m->rewards_chosen / m->chosen, rejected = m->rewards_rejected / m->rejected, error = calibration_error(&m->calibration),
           brier = calibration_brier(&m->calibration);
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, stepwise ? "steps" : "pairs", (int64_t)m->n);
        jw_double(&w, "loss", m->loss);
        jw_double(&w, "accuracy", m->accuracy / m->n);
        jw_double(&w, stepwise ? "rewards_right" : "rewards_chosen", chosen);
        jw_double(&w, stepwise ? "rewards_wrong" : "rewards_rejected", rejected);
        jw_double(&w, "margin", chosen - rejected);
        jw_double(&w, "calibration_error", error);
        jw_double(&w, "brier", brier);
        jw_int(&w, "left_out", m->left_out);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return;
    }
    print_result("%s       %.0f\nloss        %.6f\naccuracy    %.2f %% %s\n", stepwise ? "steps" : "pairs", m->n, m->loss, 100 * m->accuracy / m->n,
                 stepwise ? "of steps classified correctly" : "of pairs ordered correctly");
    print_result("scores      %.4f for %s, %.4f for the others\n", chosen, stepwise ? "right" : "chosen", rejected);
    print_result("calibration off by %.2f %%, Brier score %.4f\n", 100 * error, brier);
}

Status eval_reward(const Command *command, const Eval *job) {
    Scorer *scorer;
    RewardNumbers numbers;
    bool stepwise;
    if (job->exact_match) return status_fail(ST_USAGE, "--exact-match is for language models: a reward model gives no answers");
    json_t *kwargs;
    TRY(chat_choice_kwargs(&job->chat, &kwargs));
    ScorerOptions how = {.device = runtime_choose(NULL).device,
                         .base_dir = job->adapter ? command->arguments[0] : NULL,
                         .compute = job->compute,
                         .chat_template = job->chat.chat_template,
                         .template_kwargs = kwargs,
                         .now = job->chat.now};
    Status status = scorer_open(job->adapter ? job->adapter : command->arguments[0], &how, &scorer);
    json_decref(kwargs);
    TRY(status);
    RewardEvaluation config = {.model = scorer->model,
                               .tokenizer = scorer->tokenizer,
                               .chat = scorer->chat,
                               .at_turn = scorer->at_turn,
                               .data = job->data,
                               .max_length = job->config.max_length,
                               .truncation = job->config.truncation,
                               .as = job->config.as ? job->config.as : scorer->as,
                               .system = job->chat.system,
                               .on_progress = show_rows,
                               .say = show_warning};
    status = reward_evaluate(&config, &numbers, &stepwise);
    end_live_line();
    if (status == ST_OK) report_reward(command, &numbers, stepwise);
    scorer_close(scorer);
    return status;
}
