/* SPDX-License-Identifier: Apache-2.0 */
/* The profile: how often each op of a small model runs and what work its shapes say that is, to the last operation; that rows add up to the wall
 * time; that nothing else changes. */
#include "lib/base/system.h"
#include "tests/support/check.h"

#include <string.h>

#include "lib/model/model.h"

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 19, \"hidden_size\": 512, \"intermediate_size\": 520, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"max_position_embeddings\": 32, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000, \"tie_word_embeddings\": true}";
/* Weights of a layer's products; pairs of a token and one that it sees in segments of 5 and 3 tokens. */
enum {
    TOKENS = 8,
    WIDTH = 512, /* so wide that a trained head keeps probabilities */
    INNER = 520,
    VOCAB = 19,
    TARGETS = 6,
    LAYERS = 2,
    LAYER_WEIGHTS = WIDTH * (WIDTH + WIDTH / 2 + WIDTH / 2) + WIDTH * WIDTH + 3 * WIDTH * INNER,
    PAIRS = 5 * 6 / 2 + 3 * 4 / 2
};
static const int32_t ids[TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8};
static const Segment segments[] = {{0, 5, -1, 0, 0, 0}, {5, 8, -1, 0, 0, 0}};

typedef struct Place {
    char dir[256];
    Model *model;
} Place;

static int set_up(void **state) {
    static Place place;
    temp_dir_make(place.dir, sizeof place.dir);
    check_ok(model_write_random(place.dir, config, DT_F32, 3, 0.25));
    check_ok(model_load(place.dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .train_all = true}, &place.model));
    *state = &place;
    return 0;
}

static int tear_down(void **state) {
    Place *place = *state;
    profile_stop();
    model_free(place->model);
    temp_dir_remove(place->dir);
    return 0;
}

/* Forward and backward over all tokens; the squared norm of all gradients is returned. */
static double train_once(const Place *place, bool checkpoint) {
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = TOKENS, .n_segments = COUNT_OF(segments), .segments = segments}};
    int32_t rows[TARGETS] = {0, 1, 2, 3, 5, 6}, targets[TARGETS] = {2, 3, 4, 5, 7, 8};
    double ones[TARGETS] = {1, 1, 1, 1, 1, 1};
    int64_t n = TARGETS;
    params_zero_grad(&place->model->params);
    tape_checkpoint(tape, checkpoint ? CHECKPOINT_LAYER : CHECKPOINT_NONE);
    Tensor *which = tensor_view(tape_arena(tape), device_cpu(), DT_I32, 1, &n, rows),
           *wanted = tensor_view(tape_arena(tape), device_cpu(), DT_I32, 1, &n, targets);
    TokenLogprobs p = op_token_logprobs(tape, model_forward(place->model, tape, &batch), place->model->head, which, wanted, &place->model->logprob);
    tensor_seed_grad(tape, p.logprob, ones);
    check_ok(tape_backward(tape));
    tape_free(tape);
    return params_grad_norm(&place->model->params);
}

static ProfileRow row_of(const char *name, bool backward) {
    const ProfileRow *rows;
    size_t n = profile_rows(&rows);
    for (size_t i = 0; i < n; i++)
        if (rows[i].backward == backward && strcmp(rows[i].name, name) == 0) return rows[i];
    return (ProfileRow){.name = name};
}

static void check_row(const char *name, bool backward, int64_t calls, double flops) {
    ProfileRow row = row_of(name, backward);
    if (row.calls != calls || row.cost.flops != flops)
        fail_msg("%s %s: %lld calls and %.17g operations, expected %lld and %.17g", name, backward ? "backward" : "forward", (long long)row.calls,
                 row.cost.flops, (long long)calls, flops);
}

TEST(calls_and_operations_are_exact) {
    double linear = 2.0 * TOKENS * LAYERS * LAYER_WEIGHTS, attention = 4.0 * PAIRS * WIDTH * LAYERS, head = 2.0 * TARGETS * WIDTH * VOCAB;
    profile_start();
    train_once(*state, false);
    check_row("embedding", false, 1, 0);
    check_row("rms_norm", false, 2 * LAYERS + 1, 0);
    check_row("linear", false, 4 * LAYERS, linear);
    check_row("rope", false, 2 * LAYERS, 0);
    check_row("attention", false, LAYERS, attention);
    check_row("activation", false, LAYERS, 0);
    check_row("add", false, 0, 0);                   /* the residual stream is added to where the products are */
    check_row("token_logprobs", false, 1, 2 * head); /* what goes back to the hidden states is made there */
    check_row("embedding", true, 1, 0);
    check_row("rms_norm", true, 2 * LAYERS + 1, 0);
    check_row("linear", true, 4 * LAYERS, 2 * linear);
    check_row("attention", true, LAYERS, 2.5 * attention);
    check_row("activation", true, LAYERS, 0);
    check_row("token_logprobs", true, 1, head); /* probabilities are kept */
    check_row("gradient norm", false, 1, 0);
    check_close(row_of("token_logprobs", false).cost.bytes, 4.0 * (VOCAB * WIDTH + 2 * TARGETS * WIDTH + TARGETS + TARGETS * VOCAB), 0);
    /* Gradients of the result and the input, and the result; the weight and its gradient */
    check_close(row_of("rms_norm", true).cost.bytes, 4.0 * (2 * LAYERS + 1) * (3 * TOKENS * WIDTH + 2 * WIDTH), 0);
    check_close(row_of("activation", true).cost.bytes, 4.0 * LAYERS * TOKENS * INNER * 6, 0); /* what was made of it comes again */
}

TEST(checkpointed_layers_run_again) {
    double linear = 2.0 * TOKENS * LAYERS * LAYER_WEIGHTS;
    profile_start();
    train_once(*state, true);
    /* What ends a layer is the next one's input, and there still */
    check_row("linear", false, 2 * 4 * LAYERS, 2 * linear - 2.0 * TOKENS * LAYERS * INNER * WIDTH);
    check_row("linear", true, 4 * LAYERS, 2 * linear);
    check_row("layer", false, LAYERS, 0);
    check_row("layer", true, LAYERS, 0);
    check_row("token_logprobs", true, 1, 4.0 * TARGETS * WIDTH * VOCAB); /* logits too */
}

/* x W with a frozen W, and its branch: rows x in x rank, rows x rank x out. */
TEST(a_frozen_weight_takes_no_gradient) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    OpExample example = {.tape = tape, .arena = arena, .seed = 1, .dtype = DT_F32, .variant = 2};
    double full = 2 * 5 * 7 * 6, by_a = 2 * 5 * 7 * 3, by_b = 2 * 5 * 3 * 6, ones[5 * 6];
    for (size_t i = 0; i < COUNT_OF(ones); i++) ones[i] = 1;
    profile_start();
    op_linear_example(&example);
    tensor_seed_grad(tape, example.outputs[0], ones);
    check_ok(tape_backward(tape));
    check_row("linear", false, 1, full + by_a + by_b);
    check_row("linear", true, 1, full + 2 * by_a + 2 * by_b);
    tape_free(tape);
    arena_free(arena);
}

/* A window of 4 and 3 tokens before the segment: its 6 tokens see 4 each; without the window 4, 5, .. 9. */
TEST(attention_counts_what_is_seen) {
    Segment segment = {0, 6, -1, 3, 0, 0};
    Layout layout = {.n_tokens = 6, .n_segments = 1, .segments = &segment};
    AttentionArgs args = {.layout = &layout, .n_heads = 2, .n_kv_heads = 1, .head_dim = 4};
    Tensor y = {.dtype = DT_F32};
    Node node = {.outputs = {&y}, .attributes = &args};
    check_close(op_attention_cost(&node, false).flops, 4.0 * 8 * (4 + 5 + 6 + 7 + 8 + 9), 0);
    args.window = 4;
    check_close(op_attention_cost(&node, false).flops, 4.0 * 8 * 6 * 4, 0);
    args.window = 6;
    check_close(op_attention_cost(&node, true).flops, 10.0 * 8 * (4 + 5 + 6 + 6 + 6 + 6), 0);
    check_close(op_attention_cost(&node, false).bytes, 4.0 * (6 * 2 * 8 + 6 * 2 * 4 + 3 * 2 * 4), 0);
}

TEST(rows_add_up_and_nothing_else_changes) {
    profile_stop();
    double plain = train_once(*state, false), began = clock_seconds(), sum = 0;
    profile_start();
    double profiled = train_once(*state, false);
    const ProfileRow *rows;
    size_t n = profile_rows(&rows);
    double wall = clock_seconds() - began;
    for (size_t i = 0; i < n; i++) {
        assert_true(rows[i].seconds >= 0);
        sum += rows[i].seconds;
    }
    assert_true(sum > 0 && sum <= wall);
    assert_true(plain == profiled);
    profile_stop();
    n = profile_rows(&rows);
    train_once(*state, false);
    assert_true(profile_rows(&rows) == n && row_of("linear", false).calls == 4 * LAYERS);
}

/* What is only planned takes memory into account, no work. */
TEST(the_meta_device_does_no_work) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device_meta(), DT_F32, 0);
    Tensor *x = tensor_new(arena, device_meta(), DT_F32, 2, (int64_t[]){4, 4});
    profile_start();
    assert_non_null(op_add(tape, x, x, 1));
    check_row("add", false, 0, 0);
    tape_free(tape);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_and_operations_are_exact),       cmocka_unit_test(checkpointed_layers_run_again),
        cmocka_unit_test(a_frozen_weight_takes_no_gradient),    cmocka_unit_test(attention_counts_what_is_seen),
        cmocka_unit_test(rows_add_up_and_nothing_else_changes), cmocka_unit_test(the_meta_device_does_no_work),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
