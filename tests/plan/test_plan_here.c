/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a machine from a made-up /sys: two sockets of two L3 domains with two cores of two threads; the peak of processors; disks. */
#include <stdio.h>
#include <string.h>

#include "lib/plan/plan_here.h"
#include "tests/support/check.h"

static void put(const char *root, const char *name, const char *text) {
    char path[512], folder[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    check_ok(dir_make(folder));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", text);
    fclose(file);
}

/* Processors 0..7 are cores, 8..15 their second threads. */
TEST(topology) {
    char root[512];
    temp_dir_make(root, sizeof root);
    put(root, "devices/system/cpu/online", "0-15");
    put(root, "devices/system/node/node0/cpulist", "0-3,8-11");
    put(root, "devices/system/node/node1/cpulist", "4-7,12-15");
    for (int i = 0; i < 16; i++) {
        char name[128], list[64];
        int core = i % 8, l3 = core / 2 * 2, socket = core / 4 * 4;
        snprintf(name, sizeof name, "devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(list, sizeof list, "%d,%d", core, core + 8);
        put(root, name, list);
        snprintf(name, sizeof name, "devices/system/cpu/cpu%d/topology/core_siblings_list", i);
        snprintf(list, sizeof list, "%d-%d,%d-%d", socket, socket + 3, socket + 8, socket + 11);
        put(root, name, list);
        snprintf(name, sizeof name, "devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", i);
        snprintf(list, sizeof list, "%d-%d,%d-%d", l3, l3 + 1, l3 + 8, l3 + 9);
        put(root, name, list);
    }
    static const char *const caches[][3] = {{"1", "Data", "32K"}, {"1", "Instruction", "64K"}, {"2", "Unified", "512K"}, {"3", "Unified", "32M"}};
    for (int i = 0; i < 4; i++) {
        static const char *const files[] = {"level", "type", "size"};
        for (int k = 0; k < 3; k++) {
            char name[128];
            snprintf(name, sizeof name, "devices/system/cpu/cpu0/cache/index%d/%s", i, files[k]);
            put(root, name, caches[i][k]);
        }
    }
    put(root, "cpuinfo", "processor : 0\ncpu MHz\t\t: 2250.000");
    char cpuinfo[600];
    snprintf(cpuinfo, sizeof cpuinfo, "%s/cpuinfo", root);
    Topology topology;
    topology_read(root, cpuinfo, &topology);
    assert_int_equal(topology.processors, 16);
    assert_int_equal(topology.cores, 8);
    assert_int_equal(topology.sockets, 2);
    assert_int_equal(topology.nodes, 2);
    assert_int_equal(topology.l3_domains, 4);
    assert_int_equal(topology.core_of[3], topology.core_of[11]);
    assert_int_equal(topology.node_of[12], 1);
    assert_int_equal(topology.node_of[16], -1);
    check_close(topology.l1_bytes, 32768, 0);
    check_close(topology.l2_bytes, 524288, 0);
    check_close(topology.l3_bytes, 33554432, 0);
    check_close(topology.clock, 2.25e9, 1);
    put(root, "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3400000");
    topology_read(root, cpuinfo, &topology);
    check_close(topology.clock, 3.4e9, 1);
    topology_read("tests/no-such-folder", "tests/no-such-file", &topology);
    assert_int_equal(topology.processors + topology.cores + topology.nodes, 0);
    temp_dir_remove(root);
}

/* A hostile list does not write outside of the table. */
TEST(lists_that_are_wrong) {
    char root[512];
    temp_dir_make(root, sizeof root);
    put(root, "devices/system/cpu/online", "5-999999999,-3,x,7");
    Topology topology;
    topology_read(root, "tests/no-such-file", &topology);
    assert_true(topology.processors > 0 && topology.processors <= MOST_PROCESSORS);
    temp_dir_remove(root);
}

TEST(peaks) {
    static const struct {
        const char *name, *features;
        double f32, half;
    } known[] = {{"AMD EPYC 7742 64-Core Processor", "avx2 fma", 32, 0},
                 {"AMD EPYC 9654 96-Core Processor", "avx2 fma avx512f avx512_bf16", 32, 64},
                 {"Intel(R) Xeon(R) Platinum 8358P CPU", "avx2 fma avx512f", 64, 0},
                 {"Intel(R) Xeon(R) Platinum 8468", "avx2 fma avx512f avx512_bf16 amx_bf16", 64, 2048},
                 {"", "", 8, 0}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        double f32, half;
        peak_per_cycle(known[i].name, known[i].features, &f32, &half);
        check_close(f32, known[i].f32, 0);
        check_close(half, known[i].half, 0);
    }
}

TEST(disks) {
    char root[512], path[600];
    DiskSpeed speed;
    temp_dir_make(root, sizeof root);
    put(root, "small", "x");
    check_status(disk_measure(root, &speed), ST_INPUT);
    check_text("at least 1 MiB");
    snprintf(path, sizeof path, "%s/large", root);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 3 << 18; i++) fwrite(&i, sizeof i, 1, file);
    fclose(file);
    check_ok(disk_measure(root, &speed));
    check_contains(speed.file, "large");
    assert_true(speed.sequential > 0 && speed.random_per_second > 0);
    check_ok(disk_measure(path, &speed));
    check_status(disk_measure("tests/no-such-file", &speed), ST_INPUT);
    temp_dir_remove(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(topology), cmocka_unit_test(lists_that_are_wrong), cmocka_unit_test(peaks),
                                       cmocka_unit_test(disks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
