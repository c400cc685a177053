/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench sft, sft_mix, full: steps of supervised fine-tuning; start: time to the end of the first step. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/app/folders.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "cmd/common/runtime.h"
#include "sft/sft.h"

/* Rows of equal length are trained on all tokens; rows with real lengths on their answers. */
static void fill_row(JsonWriter *w, const Bench *bench, const void *context, size_t i) {
    const BenchRows *rows = context;
    int64_t n = rows->items[i].prompt + rows->items[i].answer;
    bench_write_ids(w, bench, "input_ids", 16 + i, n);
    jw_array(w, "labels");
    for (int64_t k = 0; k < n; k++)
        jw_int(w, NULL,
               k < rows->items[i].prompt ? LABEL_NONE : (int64_t)rng_below(rng_key(1, RNG_TEST, 16 + i), (uint64_t)k, (uint64_t)bench->n_ids));
    jw_end_array(w);
}

static Status make_rows(const Bench *bench, bool mixed, BenchRows *rows) {
    size_t n = (size_t)(bench->batch * (bench->steps + 1));
    if (mixed) {
        TRY(bench_rows(bench, BENCH_CHAT, n, rows));
    } else {
        *rows = (BenchRows){arena_alloc(bench->command->arena, n * sizeof *rows->items), n};
        if (!rows->items) return ST_RESOURCE;
        for (size_t i = 0; i < n; i++) rows->items[i] = (BenchRow){1, bench->tokens - 1, 0}; /* the first token is not predicted */
    }
    return bench_write_rows(bench, n, fill_row, rows);
}

static void keep_plan(void *context, const RunPlan *plan) { ((Bench *)context)->row.predicted = (double)plan->memory.total; }

static void keep_step(void *context, const Progress *progress) {
    Bench *bench = context;
    if (progress->evaluation) return;
    bench_mark_step(bench, progress->step == 1);
    bench->n_done = progress->step;
}

static void count_tokens(Bench *bench, const BenchRows *rows) {
    double tokens = 0, trained = 0, seconds = bench->last - bench->first;
    for (int64_t i = bench->batch; i < bench->batch * bench->n_done; i++) {
        tokens += (double)(rows->items[i].prompt + rows->items[i].answer);
        trained += (double)rows->items[i].answer;
    }
    bench->row.tokens_per_second = tokens / seconds;
    bench->row.trained_per_second = trained / seconds;
}

static Status bench_train(Bench *bench, bool lora, bool mixed) {
    Arena *arena = bench->command->arena;
    BenchRows rows;
    Recipe *recipe;
    TrainResult result;
    const char *more[] = {"data.format=ids", arena_printf(arena, "train.batch_size=%lld", (long long)bench->batch),
                          lora ? arena_printf(arena, "lora.rank=%d", BENCH_LORA_RANK) : "lora=null"};
    TRY(make_rows(bench, mixed, &rows));
    TRY(bench_recipe(bench, more, COUNT_OF(more), &recipe));
    bench_mark_start(bench);
    Status status = sft_run(&(TrainingConfig){.recipe = recipe,
                                              .runtime = runtime_choose(model_compute_text(recipe->model_compute)),
                                              .on_plan = keep_plan,
                                              .on_progress = keep_step,
                                              .context = bench},
                            &result);
    if (status == ST_OK) count_tokens(bench, &rows);
    recipe_free(recipe);
    return status;
}

Status bench_sft(Bench *bench) { return bench_train(bench, true, false); }
Status bench_sft_mix(Bench *bench) { return bench_train(bench, true, true); }
Status bench_full(Bench *bench) { return bench_train(bench, false, false); }

/* ---- start ---- */

static void run_program(const char *program, char *const *arguments, const int ends[2]) {
    int silence = open("/dev/null", O_WRONLY);
    if (silence >= 0) dup2(silence, STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execvp(program, arguments);
    _exit(127);
}

/* Starts the program and waits until it reports its first step. *seconds: the time until then. *peak: a lower bound of its most resident bytes. */
static Status time_program(const char *program, char *const *arguments, double *seconds, uint64_t *peak) {
    int ends[2], code;
    struct rusage usage;
    double began = clock_seconds();
    if (pipe(ends) != 0) return status_fail(ST_RESOURCE, "cannot start '%s'", program);
    pid_t child = fork();
    if (child == 0) run_program(program, arguments, ends);
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    char line[512];
    *seconds = (double)NAN;
    while (said && fgets(line, sizeof line, said))
        if (isnan(*seconds) && strncmp(line, "step 1/", 7) == 0) *seconds = clock_seconds() - began;
    if (said)
        fclose(said);
    else
        close(ends[0]);
    if (child < 0) return status_fail(ST_RESOURCE, "cannot start '%s'", program);
    while (wait4(child, &code, 0, &usage) < 0)
        if (errno != EINTR) return status_fail(ST_RESOURCE, "the process of '%s' is lost", program); /* an interrupt goes to it as well */
    *peak = MAX(*peak, (uint64_t)usage.ru_maxrss * 1024);
    if (!WIFEXITED(code) || WEXITSTATUS(code) != 0 || isnan(*seconds)) return status_fail(ST_RESOURCE, "'%s' did not finish its first step", program);
    return ST_OK;
}

/* The memory that the run has predicted. */
static double predicted_by(const char *run) {
    Str path = {0};
    json_t *started = NULL;
    str_printf(&path, "%s/started.json", run);
    if (json_read_file(str_text(&path), &started) != ST_OK) started = NULL;
    const json_t *total = json_object_get(json_object_get(started, "memory"), "total");
    double bytes = json_is_number(total) ? json_number_value(total) : (double)NAN;
    json_decref(started);
    str_release(&path);
    return bytes;
}

/* Finds tune in the folder of this program, else in PATH. */
static Status find_tune(Arena *arena, const char **program) {
    const char *folder;
    TRY(program_folder(arena, &folder));
    *program = folder ? path_join(arena, folder, "tune") : "tune";
    if (!*program) return ST_RESOURCE;
    if (!folder || access(*program, X_OK) == 0) return ST_OK;
    return status_hint(status_fail(ST_INPUT, "no program '%s' to measure", *program), "'make' builds it");
}

/* Takes the best of several runs, since in the first one the system, or the host of a virtual machine, may spend time clearing memory. */
Status bench_start(Bench *bench) {
    Arena *arena = bench->command->arena;
    BenchRows rows;
    const char *program;
    TRY(find_tune(arena, &program));
    TRY(make_rows(bench, false, &rows));
    const char *run = arena_printf(arena, "%s/start", bench->folder);
    if (!run) return ST_RESOURCE;
    char *arguments[] = {
        "tune",
        "sft",
        arena_printf(arena, "model.path=%s", bench->model),
        arena_printf(arena, "model.compute=%s", bench->compute),
        arena_printf(arena, "data.train=%s/rows.jsonl", bench->folder),
        "data.format=ids",
        "data.shuffle=false",
        "data.max_length=1000000",
        arena_printf(arena, "lora.rank=%d", BENCH_LORA_RANK),
        arena_printf(arena, "output=%s", run),
        "train.max_steps=1",
        arena_printf(arena, "train.batch_size=%lld", (long long)bench->batch),
        arena_printf(arena, "--threads=%lld", (long long)bench->command->threads),
        NULL,
    };
    for (size_t i = 0; i + 1 < COUNT_OF(arguments); i++)
        if (!arguments[i]) return ST_RESOURCE;
    for (int64_t i = 0; i < bench->steps; i++) {
        double seconds = 0;
        TRY(time_program(program, arguments, &seconds, &bench->peak));
        bench->row.predicted = predicted_by(run);
        TRY(dir_remove(run)); /* the next run uses the same folder */
        bench->row.first_step = i > 0 ? fmin(bench->row.first_step, seconds) : seconds;
    }
    return ST_OK;
}
