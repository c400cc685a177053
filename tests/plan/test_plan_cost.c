/* SPDX-License-Identifier: Apache-2.0 */
/* Formulas of parallel training against hand-computed and published figures, to their digits. */
#include <math.h>
#include <string.h>

#include "lib/plan/plan_machine.h"
#include "lib/plan/plan_published.h"
#include "tests/support/check.h"

#define PSI_05B 494032768.0
#define PSI_8B 8030261248.0
#define PSI_70B 70553706496.0
/* Half of the last digit that is given. */
#define DIGITS(n) (.5000001 * pow(10, -(n)))

static const LinkSpeed ten_gbe = {1.25e9, 30e-6}, hdr = {25e9, 2e-6}, nvlink4 = {450e9, 3e-6};

static double gigabytes(const StateBytes *bytes, PlanShard shard, double psi, double ranks) {
    return plan_state_bytes(bytes, shard, psi, ranks) / 1e9;
}

TEST(states_of_full_training) {
    static const struct {
        double psi, ranks, none, optimizer, optimizer_bf16, gradients, gradients_bf16, weights;
    } known[] = {{PSI_05B, 8, 7.905, 4.446, 3.705, 2.717, 1.976, .988},
                 {PSI_8B, 8, 128.484, 72.272, 60.227, 44.166, 32.121, 16.061},
                 {PSI_8B, 64, 128.484, 65.246, 49.687, 33.627, 18.068, 2.008},
                 {PSI_70B, 64, 1128.859, 573.249, 436.551, 295.444, 158.746, 17.638}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        double psi = known[i].psi, n = known[i].ranks;
        check_close(gigabytes(&plan_program, SHARD_NONE, psi, n), known[i].none, DIGITS(3));
        check_close(gigabytes(&plan_program_bf16, SHARD_NONE, psi, n), known[i].none, DIGITS(3));
        check_close(gigabytes(&plan_program, SHARD_OPTIMIZER, psi, n), known[i].optimizer, DIGITS(3));
        check_close(gigabytes(&plan_program_bf16, SHARD_OPTIMIZER, psi, n), known[i].optimizer_bf16, DIGITS(3));
        check_close(gigabytes(&plan_program, SHARD_GRADIENTS, psi, n), known[i].gradients, DIGITS(3));
        check_close(gigabytes(&plan_program_bf16, SHARD_GRADIENTS, psi, n), known[i].gradients_bf16, DIGITS(3));
        check_close(gigabytes(&plan_program, SHARD_WEIGHTS, psi, n), known[i].weights, DIGITS(3));
        check_close(gigabytes(&plan_program_bf16, SHARD_WEIGHTS, psi, n), known[i].weights, DIGITS(3));
    }
}

/* 70B on 64 GPUs, the largest stage of equal numbers of layers. */
TEST(states_of_70b_on_64_gpus) {
    static const PlanModel llama = {.hidden_size = 8192,
                                    .intermediate_size = 28672,
                                    .num_hidden_layers = 80,
                                    .num_attention_heads = 64,
                                    .num_key_value_heads = 8,
                                    .head_dim = 128,
                                    .vocab_size = 128256,
                                    .norms = 2,
                                    .gated = true};
    static const struct {
        int64_t t, p, d;
        PlanShard shard;
        double gigabytes;
    } known[] = {{8, 1, 8, SHARD_NONE, 141.126},       {8, 1, 8, SHARD_OPTIMIZER, 48.512}, {8, 2, 4, SHARD_NONE, 70.563},
                 {8, 2, 4, SHARD_OPTIMIZER, 30.871},   {4, 2, 8, SHARD_OPTIMIZER, 48.508}, {8, 8, 1, SHARD_NONE, 19.217},
                 {1, 1, 64, SHARD_GRADIENTS, 156.541}, {1, 1, 64, SHARD_WEIGHTS, 17.638}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        double largest = 0;
        for (int64_t stage = 0; stage < known[i].p; stage++) {
            int64_t layers = 80 / known[i].p;
            double psi =
                plan_stage_parameters(&llama, (PlanStage){stage * layers, layers, stage == 0, stage == known[i].p - 1}, (PlanRank){known[i].t, 0});
            largest = fmax(largest, psi);
        }
        check_close(gigabytes(&plan_paper, known[i].shard, largest, (double)known[i].d), known[i].gigabytes, DIGITS(3));
    }
}

/* 8B: log2(P / d) buffers of 4 psi; with divided gradients log2(P) of a part. */
TEST(lanes) {
    static const double ranks[] = {1, 2, 4, 8, 16}, buffers[] = {4, 3, 2, 1, 0};
    for (size_t i = 0; i < COUNT_OF(ranks); i++) check_close(plan_lane_bytes(SHARD_NONE, PSI_05B, 16, ranks[i]), buffers[i] * 4 * PSI_05B, 0);
    check_close(plan_lane_bytes(SHARD_NONE, PSI_05B, 8, 16), 0, 0);
    check_close(plan_lane_bytes(SHARD_GRADIENTS, PSI_05B, 8, 4), 3 * PSI_05B, 0);
}

/* arXiv 2205.05198, table 2: s 2048, b 1, h 12288, a 96. */
TEST(activations_of_the_paper) {
    double sbh = 2048.0 * 12288;
    check_close(plan_paper_activations(2048, 1, 12288, 96, 1, false, PAPER_NONE), sbh * (34 + 80), 1);
    check_close(plan_paper_activations(2048, 1, 12288, 96, 8, false, PAPER_NONE), sbh * (10 + 104 / 8.0), 1);
    check_close(plan_paper_activations(2048, 1, 12288, 96, 8, true, PAPER_NONE), sbh * 114 / 8, 1);
    check_close(plan_paper_activations(2048, 1, 12288, 96, 8, true, PAPER_SELECTIVE), sbh * 34 / 8, 1);
    check_close(plan_paper_activations(2048, 1, 12288, 96, 8, true, PAPER_FULL), sbh * 2, 1);
}

TEST(messages) {
    const double lora = 167772160, full = 4 * PSI_8B;
    check_close(message_ring(2, &ten_gbe, lora), .134278, DIGITS(6));
    check_close(message_sent(2, lora), 167772160, 0);
    check_close(full, 32121044992, 0);
    check_close(message_sent(8, full), 56211828736, 0);
    check_close(message_ring(8, &ten_gbe, full), 44.969883, DIGITS(6));
    check_close(message_halving(8, &ten_gbe, full), 44.969643, DIGITS(6));
    check_close(message_tree(8, &ten_gbe, full), 154.181196, DIGITS(6));
    check_close(message_ring(8, &hdr, full), 2.248501, DIGITS(6));
    check_close(message_ring(8, &nvlink4, full), .124957, DIGITS(6));
    check_close(message_halving(16, &hdr, 65536) * 1e6, 20.9, DIGITS(1));
    check_close(message_tree(16, &hdr, 65536) * 1e6, 37.0, DIGITS(1));
    /* 30 x 2 us + 2 x 15/16 x 65536 / 25e9 = 64.9152 us */
    check_close(message_ring(16, &hdr, 65536) * 1e6, 64.9152, DIGITS(4));
    check_close(message_master(8, &ten_gbe, full), 14 * (30e-6 + full / 1.25e9), 1e-9);
    check_close(message_ring(1, &hdr, full), 0, 0);
    check_close(message_two_levels(1, 8, &nvlink4, &hdr, 1, full), message_ring(8, &nvlink4, full), 0);
    check_close(message_two_levels(8, 1, &nvlink4, &hdr, 1, full), message_ring(8, &hdr, full), 0);
}

/* Bytes that a rank sends in a layer by four all-reduces of T x h x 4; a boundary's bytes. */
TEST(bytes_of_tensor_ranks) {
    check_close(4 * message_sent(2, 2048.0 * 4096 * 4), 134217728, 0);
    check_close(32 * 4 * message_sent(2, 2048.0 * 4096 * 4), 4294967296, 0);
    check_close(4 * message_sent(8, 4096.0 * 8192 * 4), 939524096, 0);
    check_close(80 * 4 * message_sent(8, 4096.0 * 8192 * 4), 75161927680, 0);
}

TEST(overlap) {
    const double ready[] = {1, 2, 3}, short_ones[] = {.8, .8, .8}, long_ones[] = {1.5, 1.5, 1.5};
    check_close(message_exposed(ready, short_ones, 3, 3), .8, 1e-12);
    check_close(message_exposed(ready, long_ones, 3, 3), 2.5, 1e-12);
    check_close(message_exposed(ready, short_ones, 3, 9), 0, 0);
}

TEST(speedup) {
    check_close(speedup_amdahl(.6, 4), 1.818182, DIGITS(6));
    check_close(speedup_gustafson(.6, 4), 2.8, 1e-12);
    check_close(speedup_amdahl(.95, 32768), 19.988, DIGITS(3));
    double ranks[] = {1, 2, 4, 8}, speedups[4];
    for (int i = 0; i < 4; i++) speedups[i] = speedup_amdahl(.9, ranks[i]);
    check_close(speedup_fit(ranks, speedups, 4), .9, 1e-12);
    assert_true(isnan(speedup_fit(ranks, speedups, 1)));
    check_close(roofline_seconds(100, 10, 10, 2), 10, 0);
    check_close(roofline_seconds(100, 40, 10, 2), 20, 0);
}

TEST(presets) {
    static const struct {
        const char *name;
        double ridge;
    } ridges[] = {{"v100", 138.9}, {"a100", 153.0},     {"a800", 153.0},      {"h100", 295.2},      {"h800", 295.2},     {"gh200", 247.2},
                  {"l40s", 419.0}, {"epyc-7742", 22.5}, {"xeon-8358p", 26.0}, {"xeon-8350c", 26.0}, {"xeon-8468", 672.0}};
    PlanMachine machine;
    for (size_t i = 0; i < COUNT_OF(ridges); i++) {
        check_ok(plan_machine_find(ridges[i].name, &machine));
        check_close(plan_ridge(&machine), ridges[i].ridge, DIGITS(1));
    }
    check_ok(plan_machine_find("epyc-9654", &machine)); /* 16-bit products by AVX512_BF16: twice the f32 ridge of 16.0 */
    check_close(plan_ridge(&machine), 32.0, DIGITS(1));
    for (size_t i = 0; i < n_plan_machines; i++) {
        check_ok(plan_machine_find(plan_machines[i].name, &machine));
        assert_true(machine.inner.bulk.bytes_per_second > 0 && strlen(machine.source) > 0);
    }
    for (size_t i = 0; i < n_plan_links; i++) assert_true(plan_links[i].bulk.bytes_per_second > 0 && strlen(plan_links[i].source) > 0);
    check_status(plan_machine_find("h10", &machine), ST_CONFIG);
    check_contains(status_hint_text(), "h100");
    PlanLink link;
    check_status(plan_link_find("nvlink4", &link), ST_CONFIG);
    check_contains(status_hint_text(), "nvlink-4");
}

/* One token of 8B in bf16, bound by memory: bytes of the weights / bandwidth, ms. */
TEST(decoding_bound_by_memory) {
    static const struct {
        const char *name;
        double milliseconds;
    } known[] = {{"h100", 4.794}, {"a100", 7.877}, {"l40s", 18.589}, {"epyc-9654", 34.854}, {"epyc-7742", 78.421}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        PlanMachine machine;
        check_ok(plan_machine_find(known[i].name, &machine));
        double seconds = roofline_seconds(2 * PSI_8B, 2 * PSI_8B, plan_rate(&machine, true) * machine.efficiency, machine.bytes_per_second);
        check_close(1e3 * seconds, known[i].milliseconds, DIGITS(3));
    }
}

TEST(quantities) {
    static const struct {
        const char *text;
        QuantityKind kind;
        double value;
    } good[] = {{"204.8 GB/s", QUANTITY_BANDWIDTH, 204.8e9},
                {"400 Gb/s", QUANTITY_BANDWIDTH, 50e9},
                {"2e9", QUANTITY_BANDWIDTH, 2e9},
                {"989 TF/s", QUANTITY_RATE, 989e12},
                {"1.5 PFLOPS", QUANTITY_RATE, 1.5e15},
                {"80 GB", QUANTITY_BYTES, 80e9},
                {"80GiB", QUANTITY_BYTES, 80 * 0x1p30},
                {"3 us", QUANTITY_SECONDS, 3e-6},
                {"350 W", QUANTITY_WATTS, 350},
                {"0", QUANTITY_SECONDS, 0},
                {"1 kW", QUANTITY_WATTS, 1000}};
    static const struct {
        const char *text;
        QuantityKind kind;
        const char *why;
    } bad[] = {{"204.8", QUANTITY_BANDWIDTH, "204.8 bytes per second"},
               {"989 TF/s", QUANTITY_BANDWIDTH, "is in operations per second, expected bytes"},
               {"80 GB", QUANTITY_BANDWIDTH, "is in bytes, expected bytes per second"},
               {"5 parsecs", QUANTITY_BYTES, "unknown unit 'parsecs'"},
               {"fast", QUANTITY_RATE, "not a number"},
               {"-3 GB", QUANTITY_BYTES, "bytes"},
               {"3", QUANTITY_SECONDS, "is 3 seconds"},
               {"nan", QUANTITY_RATE, "not a number"},
               {"312", QUANTITY_RATE, "312 operations per second"}};
    double value;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        check_ok(plan_quantity(good[i].text, good[i].kind, "key", &value));
        check_close(value, good[i].value, 1e-12 * good[i].value);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        check_status(plan_quantity(bad[i].text, bad[i].kind, "key", &value), ST_CONFIG);
        check_text(bad[i].why);
        assert_true(strlen(status_hint_text()) > 0);
    }
}

TEST(machines_of_the_user) {
    static const struct {
        const char *text, *why;
    } bad[] = {{"{flops: 300 TF/s, memory: 80 GB}", "needs 'flops', 'bytes_per_second' and 'memory'"},
               {"{flops: 300 TF/s, memory: 80 GB, bytes_per_second: 2039}", "2039 bytes per second"},
               {"{flop: 300 TF/s}", "unknown key 'flop'"},
               {"{flops: 300 TF/s, memory: 80 GB, bytes_per_second: 2 TB/s, efficiency: 45}", "'efficiency' is a share"},
               {"{flops: 300 TF/s, memory: 80 GB, bytes_per_second: 2 TB/s, inner_link: nvlink}", "unknown link 'nvlink'"},
               {"[a]", "a name, a file or a map"},
               {"no/such.yaml", "no/such.yaml"}};
    Arena *arena = arena_new(0);
    PlanMachine machine;
    Yaml *node;
    const char *good =
        "{name: box, gpu: true, flops: 300 TF/s, memory: 80 GB, bytes_per_second: 2 TB/s, per_machine: 4, inner_link: {bytes_per_second: 64 GB/s, latency: 2 us}}";
    check_ok(yaml_read_text(good, strlen(good), "test", arena, &node));
    check_ok(plan_machine_of(node, arena, &machine));
    assert_string_equal(machine.name, "box");
    assert_int_equal(machine.per_machine, 4);
    check_close(machine.inner.bulk.bytes_per_second, 64e9, 0);
    check_close(machine.bytes_per_second, 2e12, 0);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        check_ok(yaml_read_text(bad[i].text, strlen(bad[i].text), "test", arena, &node));
        assert_int_not_equal(plan_machine_of(node, arena, &machine), ST_OK);
        check_text(bad[i].why);
    }
    arena_free(arena);
}

/* Ours reproduces theirs where the table says nothing else: within the digits that they print (some papers cut, some round). */
TEST(published_figures) {
    PlanPublished rows[PLAN_PUBLISHED];
    size_t n = plan_published(rows), agree = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(rows[i].ours) && rows[i].ours > 0);
        if (rows[i].remark[0]) continue;
        double unit = rows[i].theirs == floor(rows[i].theirs) && rows[i].theirs >= 10 ? 1 : rows[i].theirs >= 10 ? .1 : .05;
        check_close(rows[i].ours, rows[i].theirs, unit);
        agree++;
    }
    assert_true(agree >= 60);
    check_close(plan_pipe_ideal_speedup(8, 32), 6.564, DIGITS(3));
    check_close(plan_pipe_ideal_speedup(4, 32), 3.657, DIGITS(3));
    check_close(gigabytes(&plan_paper, SHARD_NONE, 7.5e9, 64), 120, 1e-9);
    check_close(gigabytes(&plan_paper, SHARD_OPTIMIZER, 7.5e9, 64), 31.41, DIGITS(2));
    check_close(gigabytes(&plan_paper, SHARD_GRADIENTS, 7.5e9, 64), 16.64, DIGITS(2));
    check_close(gigabytes(&plan_paper, SHARD_WEIGHTS, 7.5e9, 64), 1.875, 1e-12);
    check_close(megatron_days(300e9, 175e9, 1024, 140e12), 33.9, DIGITS(1));
    check_close(megatron_days(450e9, 1008e9, 3072, 163e12), 83.9, DIGITS(1));
    check_close(megatron_step_work(512, 2048, 24, 2304, 51200) / (32 * 137e12), 3.528, DIGITS(3));
    check_close(megatron_step_work(3072, 2048, 128, 25600, 51200) / (3072 * 163e12), 102.630, DIGITS(3));
    check_close(claim_rate(40e9, 860e6, 8, 7, 6) / 1e12, 1023.8, DIGITS(1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_of_full_training),
        cmocka_unit_test(states_of_70b_on_64_gpus),
        cmocka_unit_test(lanes),
        cmocka_unit_test(activations_of_the_paper),
        cmocka_unit_test(messages),
        cmocka_unit_test(bytes_of_tensor_ranks),
        cmocka_unit_test(overlap),
        cmocka_unit_test(speedup),
        cmocka_unit_test(presets),
        cmocka_unit_test(decoding_bound_by_memory),
        cmocka_unit_test(quantities),
        cmocka_unit_test(machines_of_the_user),
        cmocka_unit_test(published_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
