/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: their memory, time and bytes follow from the formulas; the search orders, refuses and advises as it says. */
#include <math.h>
#include <string.h>

#include "lib/plan/plan.h"
#include "tests/support/check.h"

static const PlanModel llama8b = {.model_type = "llama",
                                  .known = true,
                                  .stored = 2,
                                  .hidden_size = 4096,
                                  .intermediate_size = 14336,
                                  .num_hidden_layers = 32,
                                  .num_attention_heads = 32,
                                  .num_key_value_heads = 8,
                                  .head_dim = 128,
                                  .vocab_size = 128256,
                                  .norms = 2,
                                  .gated = true};

/* 8 rows of 2048 tokens on a machine of `gpus` GPUs. */
static PlanTask task_of(const char *machine, int64_t gpus, int64_t machines, int64_t lora) {
    PlanTask task = {.model = llama8b,
                     .machines = machines,
                     .disk = 2e9,
                     .run = {.rows = 8,
                             .accumulation = 1,
                             .longest_row = 2048,
                             .mean_row = 2048,
                             .lora_rank = lora,
                             .frozen_bytes = 2,
                             .half = true,
                             .optimizer_states = 2,
                             .passes = 1,
                             .steps = 10}};
    check_ok(plan_machine_find(machine, &task.machine));
    check_ok(plan_link_find("hdr", &task.link));
    task.machine.per_machine = gpus;
    task.ranks = gpus * machines;
    return task;
}

static PlanLayout layout_of(const PlanTask *task, Arena *arena, PlanLayout layout) {
    check_ok(plan_layout(task, arena, &layout));
    return layout;
}

static double sum(const void *values, size_t n) {
    double total = 0;
    for (size_t i = 0; i < n; i++) total += ((const double *)values)[i];
    return total;
}

/* States of a rank are those of the formulas, for every way to divide them. */
TEST(memory_follows_the_formulas) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("h100", 8, 1, 0);
    double psi = plan_parameters(&task.model);
    for (PlanShard shard = SHARD_NONE; shard < N_SHARDS; shard++) {
        PlanLayout layout =
            layout_of(&task, arena, (PlanLayout){.data = 8, .tensor = 1, .pipeline = 1, .chunks = 1, .shard = shard, .schedule = PIPE_1F1B});
        check_close(layout.memory.weights + layout.memory.gradients + layout.memory.states, plan_state_bytes(&plan_program, shard, psi, 8), 1);
        check_close(layout.peak_bytes, sum(&layout.memory, N_MEMORY_PARTS), 1);
        check_close(layout.step_seconds, sum(&layout.seconds, N_SECOND_PARTS), 1e-9);
        assert_true(layout.memory.gathered > 0 || shard != SHARD_WEIGHTS);
    }
    task.run.lora_rank = 16;
    PlanLayout whole = layout_of(&task, arena, (PlanLayout){.data = 8, .tensor = 1, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B}),
               divided = layout_of(&task, arena,
                                   (PlanLayout){.data = 8, .tensor = 1, .pipeline = 1, .chunks = 1, .shard = SHARD_WEIGHTS, .schedule = PIPE_1F1B});
    check_close(whole.memory.frozen, 2 * psi, 0);
    check_close(divided.memory.frozen, 2 * psi / 8, 0);
    check_close(whole.memory.gradients, 167772160, 0);
    arena_free(arena);
}

/* Bytes that a rank sends: gradients of an adapter, sums of tensor ranks, boundaries. */
TEST(bytes_follow_the_formulas) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("h100", 2, 1, 16);
    task.run.rows = 2;
    PlanLayout data = layout_of(&task, arena, (PlanLayout){.data = 2, .tensor = 1, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B});
    check_close(data.bytes.gradients, 167772160, 0);
    check_close(sum(&data.bytes, N_BYTE_PARTS), 167772160, 0);
    task.run.rows = 1;
    PlanLayout tensor = layout_of(&task, arena, (PlanLayout){.data = 1, .tensor = 2, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B}),
               stages = layout_of(&task, arena, (PlanLayout){.data = 1, .tensor = 1, .pipeline = 2, .chunks = 1, .schedule = PIPE_1F1B});
    check_close(tensor.bytes.tensor, 4294967296, 0);
    check_close(stages.bytes.boundary, 33554432, 0);
    task.run.lora_rank = 0;
    task.run.rows = 2;
    PlanLayout full =
        layout_of(&task, arena, (PlanLayout){.data = 2, .tensor = 1, .pipeline = 1, .chunks = 1, .shard = SHARD_WEIGHTS, .schedule = PIPE_1F1B});
    check_close(full.bytes.gradients + full.bytes.weights, 3 * 4 * plan_parameters(&task.model) / 2, 1); /* 3 psi (N - 1) / N */
    arena_free(arena);
}

/* One rank: the roofline of section 4.1's operations, and nothing else. */
TEST(time_of_one_rank) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("h100", 1, 1, 16);
    PlanLayout layout = layout_of(&task, arena, (PlanLayout){.data = 1, .tensor = 1, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B});
    double lora = plan_lora_parameters(&task.model, plan_whole(&task.model), (PlanRank){1, 0}, 16, NULL, 0),
           least = plan_step_work(&task.model, 8, 2048, lora) / (989e12 * .45);
    assert_true(layout.step_seconds >= least && layout.step_seconds < 1.2 * least);
    check_close(layout.seconds.reduce + layout.seconds.tensor + layout.seconds.gather + layout.seconds.bubble, 0, 1e-12);
    task.run.keep = KEEP_LAYERS;
    PlanLayout again = layout_of(&task, arena, (PlanLayout){.data = 1, .tensor = 1, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B});
    assert_true(again.memory.activations < layout.memory.activations / 4);
    assert_true(again.seconds.recompute > .9 * again.seconds.forward * .9 && layout.seconds.recompute == 0);
    arena_free(arena);
}

TEST(generating) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("h100", 1, 1, 16);
    task.run.prompts = task.run.answers = 1;
    task.run.prompt_tokens = 1;
    task.run.answer_tokens = 1000;
    PlanLayout layout = layout_of(&task, arena, (PlanLayout){.data = 1, .tensor = 1, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B});
    double least = 1000 * .004794; /* each token reads the weights once */
    assert_true(layout.seconds.rollout > least && layout.seconds.rollout < 1.03 * least);
    assert_true(layout.memory.cache > 1001 * 131072);
    arena_free(arena);
}

TEST(the_search_finds_the_fastest) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("h100", 8, 1, 16);
    PlanSearch search;
    check_ok(plan_search(&task, arena, &search));
    assert_int_equal(search.n_best, PLAN_BEST);
    assert_true(search.n_fit <= search.n_tried);
    for (size_t i = 0; i < search.n_best; i++) {
        const PlanLayout *layout = &search.best[i];
        assert_int_equal(layout->data * layout->tensor * layout->pipeline, 8);
        assert_true(layout->fits && layout->peak_bytes <= 80e9);
        if (i > 0) assert_true(layout->step_seconds >= (1 - 1e-9) * search.best[i - 1].step_seconds);
        int64_t in_stages = 0;
        for (int64_t k = 0; k < layout->pipeline; k++) in_stages += layout->layers[k];
        assert_int_equal(in_stages, 32);
    }
    int64_t ranks = 0, layers = 0;
    for (int64_t i = 0; i < search.pipedream.n; i++) ranks += search.pipedream.stages[i].ranks, layers += search.pipedream.stages[i].layers;
    assert_int_equal(ranks, 8);
    assert_int_equal(layers, 32);
    assert_true(search.pipedream_speedup > 7 && search.pipedream_speedup < 8.001);
    assert_int_equal(search.n_curve, 4);
    assert_true(search.divided > .99 && search.divided <= 1);
    check_close(search.load_seconds, 16060522496 / 2e9, 1e-9);
    arena_free(arena);
}

/* A slow link between machines: the search keeps traffic inside. */
TEST(a_slow_link_changes_the_choice) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("a100", 8, 2, 0);
    PlanSearch fast, slow;
    check_ok(plan_search(&task, arena, &fast));
    check_ok(plan_link_find("ethernet-1", &task.link));
    check_ok(plan_search(&task, arena, &slow));
    assert_true(slow.n_best > 0 && fast.n_best > 0);
    assert_true(slow.best[0].step_seconds > 3 * fast.best[0].step_seconds);
    assert_true(slow.best[0].pipeline > 1); /* boundaries are the smallest messages */
    arena_free(arena);
}

TEST(what_fits_nowhere) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("l40s", 1, 1, 0);
    PlanSearch search;
    Str advice = {0};
    check_ok(plan_search(&task, arena, &search));
    assert_int_equal(search.n_fit, 0);
    assert_true(search.n_reasons > 0 && search.least.peak_bytes > 48e9);
    check_contains(search.reasons[0].why, "memory: a rank needs");
    check_ok(plan_what_would_fit(&task, arena, &advice));
    check_contains(str_text(&advice), "an adapter");
    str_clear(&advice);
    task.run.lora_rank = 16;
    task.machine.memory = 4e9;
    check_ok(plan_what_would_fit(&task, arena, &advice));
    check_contains(str_text(&advice), "machines");
    str_clear(&advice);
    task.machine.memory = 1e6;
    check_ok(plan_what_would_fit(&task, arena, &advice));
    check_contains(str_text(&advice), "no number of these machines");
    str_release(&advice);
    arena_free(arena);
}

TEST(sizes_that_do_not_divide) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("h100", 6, 1, 16);
    PlanSearch search;
    task.data = 4;
    check_status(plan_search(&task, arena, &search), ST_CONFIG);
    check_text("6 ranks are not data 4 x tensor 1 x pipeline 1");
    check_contains(status_hint_text(), "1, 2, 3, 6");
    task.data = 0;
    task.tensor = 3; /* 8 key/value heads: 3, 3, 2 */
    check_ok(plan_search(&task, arena, &search));
    task.tensor = 64;
    check_status(plan_search(&task, arena, &search), ST_CONFIG);
    check_text("tensor 64");
    task.tensor = 0;
    task.pipeline = 33;
    check_status(plan_search(&task, arena, &search), ST_CONFIG);
    check_text("pipeline 33: the model has 32 layers");
    task.pipeline = 0;
    task.ranks = 0;
    check_status(plan_search(&task, arena, &search), ST_CONFIG);
    task.ranks = 16;
    task.run.rows = 1;
    PlanLayout layout = layout_of(&task, arena, (PlanLayout){.data = 16, .tensor = 1, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B});
    assert_false(layout.fits);
    check_contains(layout.why, "data 16: a step has 1 rows");
    arena_free(arena);
}

/* Two ranks on one processor have frozen weights once; on a GPU each has its own. */
TEST(frozen_weights_are_planned_once) {
    Arena *arena = arena_new(0);
    PlanTask task = task_of("epyc-9654", 1, 1, 16);
    const PlanLayout two = {.data = 2, .tensor = 1, .pipeline = 1, .chunks = 1, .schedule = PIPE_1F1B};
    task.ranks = 2;
    const PlanLayout plain = layout_of(&task, arena, two);
    task.machine.memory = 2 * plain.peak_bytes - plain.memory.frozen;
    assert_false(layout_of(&task, arena, two).fits);
    task.run.share_frozen = true;
    assert_true(layout_of(&task, arena, two).fits);
    check_close(layout_of(&task, arena, two).peak_bytes, plain.peak_bytes, 0);
    task.machine.memory *= 0.999;
    assert_false(layout_of(&task, arena, two).fits);
    task.machine.memory /= 0.999;
    task.machine.gpu = true;
    assert_false(layout_of(&task, arena, two).fits);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_follows_the_formulas),
        cmocka_unit_test(bytes_follow_the_formulas),
        cmocka_unit_test(time_of_one_rank),
        cmocka_unit_test(generating),
        cmocka_unit_test(the_search_finds_the_fastest),
        cmocka_unit_test(a_slow_link_changes_the_choice),
        cmocka_unit_test(what_fits_nowhere),
        cmocka_unit_test(frozen_weights_are_planned_once),
        cmocka_unit_test(sizes_that_do_not_divide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
