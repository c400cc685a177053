/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs on ranks. */
#include "tests/support/ranked_run.h"

#include "lib/base/system.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void stop(void *context, const Progress *progress) {
    const RankedRun *ranked = context;
    if (progress->step != ranked->stop_after) return;
    if (ranked->no_memory)
        arena_fail_at(1);
    else
        interrupt_request();
}

static Recipe *recipe_of(const RankedRun *ranked, bool last) {
    char model[4096];
    const char *output = ranked->folder ? ranked->name : temp_file(test_folder, ranked->name), *own = last && ranked->last ? ranked->last : "";
    assert_non_null(realpath("recipes/demo/model", model));
    if (ranked->folder && chdir(last ? ranked->folder : test_folder) != 0) fail_msg("cannot enter %s", ranked->folder);
    return recipe_of_lines("model.path=%s\nmodel.compute=f32\noutput=%s\n%s\n%s\n%s", ranked->folder ? model : "recipes/demo/model", output,
                           ranked->settings, ranked->more, own);
}

static Status run_on_rank(Comm *comm, void *data) {
    const RankedRun *ranked = data;
    const bool last = comm_rank(comm) == comm_size(comm) - 1;
    TrainResult result;
    omp_set_num_threads(1);
    TRY(cpu_configure(ranked->gemm, NULL));
    if (ranked->file_limit > 0 && comm_rank(comm) == 0) {
        const struct rlimit limit = {(rlim_t)ranked->file_limit, (rlim_t)ranked->file_limit};
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    Recipe *recipe = recipe_of(ranked, last);
    Status status = ranked->run(&(TrainingConfig){.recipe = recipe,
                                                  .runtime = runtime_of(recipe),
                                                  .options.resume = ranked->resume,
                                                  .comm = comm,
                                                  .on_progress = last && ranked->stop_after > 0 ? stop : NULL,
                                                  .context = data},
                                &result);
    recipe_free(recipe);
    return status;
}

void run_on(int ranks, const RankedRun *ranked, Status wanted) {
    RankRun run = {.config = {.timeout = ranked->at > 0 ? 2 : 120}};
    run.trouble[ranked->killed].die = ranked->at;
    Status status = ranks_fork(ranks, &run, run_on_rank, (void *)(uintptr_t)ranked);
    if (status != wanted) fail_msg("%s on %d ranks: %s", ranked->name, ranks, status_text());
}

void check_same_metrics(const char *a, const char *b) {
    Str texts[2] = {{0}, {0}};
    metrics_text(temp_file(test_folder, a), &texts[0]);
    metrics_text(temp_file(test_folder, b), &texts[1]);
    assert_true(texts[0].len > 0);
    if (strcmp(str_text(&texts[0]), str_text(&texts[1])) != 0) fail_msg("%s:\n%s%s:\n%s", a, str_text(&texts[0]), b, str_text(&texts[1]));
    str_release(&texts[0]);
    str_release(&texts[1]);
}

void check_same_run(const char *a, const char *b, const char *result, const char *checkpoint) {
    check_same_file(test_folder, a, b, result);
    check_same_file(test_folder, a, b, checkpoint);
    check_same_metrics(a, b);
}

double rank_noted(const char *name, int64_t step, int rank, const char *map, const char *key) {
    Lines lines;
    Slice line;
    double number = -1;
    check_ok(lines_open(&lines, temp_file(temp_file(test_folder, name), "ranks.jsonl")));
    while (lines_next(&lines, &line)) {
        json_t *json = json_loadb(line.data, line.len, 0, NULL);
        assert_non_null(json);
        if (json_integer_value(json_object_get(json, "step")) == step && json_integer_value(json_object_get(json, "rank")) == rank) {
            assert_true(json_is_number(json_object_get(json_object_get(json, "seconds"), "backward")));
            if (!map) assert_true(json_is_number(json_object_get(json, key)));
            number = json_number_value(json_object_get(map ? json_object_get(json, map) : json, key));
        }
        json_decref(json);
    }
    lines_close(&lines);
    if (number < 0) fail_msg("%s: no record of step %lld, rank %d", name, (long long)step, rank);
    return number;
}

double bytes_sent(const char *name, int64_t step, int rank, const char *kind) { return rank_noted(name, step, rank, "bytes", kind); }
