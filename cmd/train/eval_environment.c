/* SPDX-License-Identifier: Apache-2.0 */
/* tune eval of a run in an environment: plays episodes with its policy. */
#include <stdio.h>

#include "cmd/app/terminal.h"
#include "cmd/common/runtime.h"
#include "cmd/train/cmd_eval.h"
#include "cmd/train/watch.h"
#include "rl/learn/learn.h"

static void show_cut(const Evaluation *found) {
    if (found->cut == 0) return;
    char limit[64] = "the limit of their steps";
    if (found->limit > 0) snprintf(limit, sizeof limit, "step %lld, where they were cut", (long long)found->limit);
    show_line("%lld of %lld episode%s did not end before %s", (long long)found->cut, (long long)found->episodes, plural(found->episodes), limit);
}

Status eval_environment(const Command *command, const Eval *job) {
    Evaluation found;
    Watch watch = {0};
    EvaluationConfig config = {.device = runtime_choose(NULL).device,
                               .episodes = job->episodes,
                               .sample = job->sample,
                               .seed = (uint64_t)job->seed,
                               .on_step = job->watch ? watch_step : NULL,
                               .context = &watch};
    TRY(learn_evaluate(command->arguments[0], &config, &found));
    show_cut(&found);
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "episodes", found.episodes);
        jw_double(&w, "mean_return", found.mean_return);
        jw_double(&w, "std_return", found.std_return);
        jw_double(&w, "mean_length", found.mean_length);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return ST_OK;
    }
    print_result("episodes  %lld (%s actions)\nreturn    %.4f +- %.4f\nlength    %.2f\n", (long long)found.episodes, job->sample ? "sampled" : "best",
                 found.mean_return, found.std_return, found.mean_length);
    return ST_OK;
}
