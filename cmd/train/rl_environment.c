/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl in an environment: shows the learned and the exact values if these are known, and with --watch an episode at the end. */
#include <math.h>

#include "cmd/app/terminal.h"
#include "cmd/common/runtime.h"
#include "cmd/train/cmd_rl.h"
#include "cmd/train/train_show.h"
#include "cmd/train/watch.h"
#include "rl/learn/learn.h"

static void show_values(void *context, const Learner *learner, const double *learned, const double *exact) {
    (void)context;
    enum { SHOWN = 24 };
    const char *const *names = learner->world ? (const char *const *)learner->world->state_names : NULL;
    int64_t n = learner->env->observation.n, known = 0;
    double sum = 0, worst = 0;
    end_live_line();
    show_line("values:  state     learned       exact");
    for (int64_t s = 0; s < n; s++) {
        if (isnan(learned[s])) continue;
        double error = learned[s] - exact[s];
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)s);
        if (known++ < SHOWN) show_line("      %8s  %10.4f  %10.4f", names ? names[s] : number, learned[s], exact[s]);
        sum += error * error;
        worst = fmax(worst, fabs(error));
    }
    if (known > SHOWN) show_line("       ... and %lld more", (long long)(known - SHOWN));
    show_line("values: root mean square error %s, largest error %s", NUMBER(sqrt(sum / (double)MAX(known, 1))), NUMBER(worst));
}

static Status show_episode(const Recipe *recipe) {
    Watch watch = {0};
    Evaluation found;
    TRY(learn_evaluate(recipe->output,
                       &(EvaluationConfig){.device = runtime_choose(NULL).device, .episodes = 1, .seed = 1, .on_step = watch_step, .context = &watch},
                       &found));
    if (found.cut > 0 && found.limit > 0)
        show_line("the episode was cut after %lld step%s: the environment has no step limit", (long long)found.limit, plural(found.limit));
    return ST_OK;
}

Status rl_environment(const RecipeCommand *job) {
    const Recipe *recipe = job->recipe;
    Show show = {.job = job};
    TrainResult result;
    const TrainingConfig config = show_training(&show);
    TRY(learn_run(&config, show_values, &result));
    if (show_training_result(job, &result, NULL)) {
        Str run = {0};
        str_append_shell(&run, "%s", recipe->output);
        show_line("wrote %s/policy.safetensors", recipe->output);
        show_line("next: tune eval %s --episodes 100", str_text(&run));
        str_release(&run);
    }
    return job->watch && !job->options.dry_run && !job->command->json ? show_episode(recipe) : ST_OK;
}
