/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer with an objective of its own, and runs without a directory. */
#include "data/check/check.h"
#include "lib/base/system.h"
#include "lib/train/trainer.h"
#include "rl/learn/learn.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- an objective: cross-entropy, whose weights are looked at when the run ends ---- */

typedef struct Small {
    RecipeRows rows;
    Batch batch;
    double *seeds, *weights; /* weights: all trained ones, at the end */
    int64_t cap_seeds, n_weights;
    int begun, prepared;
} Small;

static Status small_open(Trainer *trainer, RunPlan *plan) {
    Small *small = trainer->context;
    TRY(recipe_rows_open(trainer->recipe, &trainer->model->config, NULL, &small->rows));
    trainer->train = small->rows.train;
    trainer->eval = small->rows.eval;
    trainer_input(trainer, "data.train", dataset_fingerprint(small->rows.train));
    run_plan_say(plan, "data: %lld rows", (long long)small->rows.train->counts.rows);
    return ST_OK;
}

static Status small_prepare(Trainer *trainer) {
    ((Small *)trainer->context)->prepared++;
    return ST_OK;
}

static Status small_begin(Trainer *trainer, const Pass *all, double *divisor) {
    Small *small = trainer->context;
    if (all->held_out) return ST_OK;
    small->begun++;
    *divisor = 0;
    for (size_t i = 0; i < all->n; i++) *divisor += dataset_example(small->rows.train, all->rows[i]).trained;
    return ST_OK;
}

static Status small_batch(Trainer *trainer, const Pass *pass, LossSums *sums) {
    Small *small = trainer->context;
    Batch *batch = &small->batch;
    Tape *tape = pass->tape;
    TRY(batch_build(pass->held_out ? small->rows.eval : small->rows.train, pass->rows, pass->n, batch));
    batch->model.step = pass->dropout;
    int64_t n = batch->n_targets;
    if (n > small->cap_seeds) TRY(array_resize(&small->seeds, (size_t)(small->cap_seeds = n), sizeof *small->seeds, "seeds"));
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, batch->rows);
    Tensor *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, batch->targets);
    if (!rows || !targets) return ST_RESOURCE;
    Tensor *hidden = model_forward(trainer->model, tape, &batch->model);
    Tensor *logprobs = op_token_logprobs(tape, hidden, trainer->model->head, rows, targets, &trainer->model->logprob).logprob;
    TRY(tape_status(tape));
    memset(small->seeds, 0, (size_t)n * sizeof *small->seeds);
    if (tape_device(tape) != device_meta()) tensor_read(logprobs, small->seeds);
    for (int64_t i = 0; i < n; i++) sums->loss_sum -= small->seeds[i];
    sums->count += (double)n;
    sums->tokens += batch->model.layout.n_tokens;
    sums->loss_tokens += n;
    if (!pass->training) return ST_OK;
    for (int64_t i = 0; i < n; i++) small->seeds[i] = -1 / pass->divisor;
    tensor_seed_grad(tape, logprobs, small->seeds);
    return tape_backward(tape);
}

static void small_release(Trainer *trainer) {
    Small *small = trainer->context;
    const Params *params = &trainer->model->params;
    small->weights = calloc((size_t)params_count(params, true), sizeof *small->weights);
    for (size_t i = 0; i < params->n && small->weights; i++) {
        if (!params->items[i].trained) continue;
        tensor_read(params->items[i].tensor, small->weights + small->n_weights);
        small->n_weights += tensor_count(params->items[i].tensor);
    }
    batch_release(&small->batch);
    free(small->seeds);
    recipe_rows_close(&small->rows);
}

static const Objective objective = {
    .open = small_open, .prepare = small_prepare, .begin = small_begin, .batch = small_batch, .release = small_release};

static const char rows[] = "{\"prompt\": \"two plus two is\", \"completion\": \" four\"}\n"
                           "{\"prompt\": \"one plus two is\", \"completion\": \" three, and that is all\"}\n"
                           "{\"prompt\": \"one plus one is\", \"completion\": \" two\"}\n"
                           "{\"prompt\": \"ten plus one is\", \"completion\": \" eleven of them\"}\n"
                           "{\"prompt\": \"ten plus two is\", \"completion\": \" twelve\"}\n";

static Status small_run(const char *name, bool absent, Small *small, TrainResult *result) {
    Recipe *recipe = recipe_of_lines("model.path=recipes/demo/model\nmodel.compute=f32\ndata.train=%s\ndata.eval_split=0.2\noutput=%s\n"
                                     "lora.rank=4\nlora.dropout=0.1\ntrain.batch_size=2\ntrain.max_steps=6\ntrain.eval_every=2\ntrain.save_every=2\n"
                                     "train.early_stopping=3\ntrain.learning_rate=1e-2",
                                     temp_text(test_folder, "rows.jsonl", rows), temp_file(test_folder, name));
    Status status =
        trainer_run(&objective, small, &(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.absent = absent}, result);
    recipe_free(recipe);
    return status;
}

TEST(an_objective_is_its_rows_and_the_loss_of_a_batch) {
    Small small = {.n_weights = 0};
    TrainResult result;
    double losses[8], evaluations[8];
    check_ok(small_run("own", false, &small, &result));
    assert_int_equal(small.prepared, 1);
    assert_int_equal(small.begun, 6);
    assert_int_equal(metrics_read(temp_file(test_folder, "own"), "loss", losses, 8), 6);
    assert_int_equal(metrics_read(temp_file(test_folder, "own"), "eval_loss", evaluations, 8), 3);
    assert_true(losses[5] < losses[0]);
    assert_true(metric_get(&result.numbers, "last_loss") == losses[5]);
    assert_true(metric_get(&result.numbers, "eval_loss") == evaluations[2]);
    free(small.weights);
}

/* ---- runs without a directory ---- */

TEST(a_run_without_a_directory_trains_the_same) {
    Small written = {.n_weights = 0}, absent = {.n_weights = 0};
    TrainResult a, b;
    check_ok(small_run("written", false, &written, &a));
    check_ok(small_run("absent", true, &absent, &b));
    assert_false(dir_exists(temp_file(test_folder, "absent")));
    assert_int_equal(a.numbers.n, b.numbers.n);
    for (size_t i = 0; i < a.numbers.n; i++)
        if (strcmp(a.numbers.items[i].name, "seconds") != 0 && a.numbers.items[i].value != b.numbers.items[i].value)
            fail_msg("%s is %g with a directory, %g without", a.numbers.items[i].name, a.numbers.items[i].value, b.numbers.items[i].value);
    assert_true(written.n_weights > 0);
    assert_int_equal(written.n_weights, absent.n_weights);
    assert_memory_equal(written.weights, absent.weights, (size_t)written.n_weights * sizeof *written.weights);
    free(written.weights);
    free(absent.weights);
}

static void count_steps(void *context, const Progress *progress) { *(int64_t *)context = progress->step; }

static void interrupt_at_three(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 3) interrupt_request();
}

static Status learned_run(const char *name, bool absent, TrainResult *result) {
    int64_t steps = 0;
    Recipe *recipe =
        recipe_of_lines("rl.algorithm=q_learning\nrl.env=FrozenLake-v1\nrl.total_steps=600\nrl.gamma=0.9\noutput=%s", temp_file(test_folder, name));
    Status status = learn_run(
        &(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.absent = absent, .on_progress = count_steps, .context = &steps},
        NULL, result);
    if (status == ST_OK) assert_true(steps >= 600);
    recipe_free(recipe);
    return status;
}

TEST(nor_does_learning_in_an_environment_need_one) {
    TrainResult a, b;
    check_ok(learned_run("lake", false, &a));
    check_ok(learned_run("no-lake", true, &b));
    assert_false(dir_exists(temp_file(test_folder, "no-lake")));
    assert_true(metric_get(&a.numbers, "episodes") > 0);
    assert_true(metric_get(&a.numbers, "episodes") == metric_get(&b.numbers, "episodes"));
    assert_true(metric_get(&a.numbers, "best_reward") == metric_get(&b.numbers, "best_reward"));
}

/* It says that it was interrupted, but not that something was saved. */
TEST(an_interrupted_run_without_a_directory_writes_nothing) {
    Small small = {.n_weights = 0};
    TrainResult result;
    Recipe *recipe = recipe_of_lines("model.path=recipes/demo/model\nmodel.compute=f32\ndata.train=%s\noutput=%s\nlora.rank=4\ntrain.max_steps=6",
                                     temp_text(test_folder, "rows.jsonl", rows), temp_file(test_folder, "cut"));
    check_status(
        trainer_run(&objective, &small,
                    &(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.absent = true, .on_progress = interrupt_at_three},
                    &result),
        ST_INTERRUPTED);
    interrupt_clear();
    check_text("interrupted after step 3");
    assert_null(strstr(status_text(), "saved"));
    assert_false(dir_exists(temp_file(test_folder, "cut")));
    recipe_free(recipe);
    free(small.weights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_objective_is_its_rows_and_the_loss_of_a_batch),
        cmocka_unit_test(a_run_without_a_directory_trains_the_same),
        cmocka_unit_test(nor_does_learning_in_an_environment_need_one),
        cmocka_unit_test(an_interrupted_run_without_a_directory_writes_nothing),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
