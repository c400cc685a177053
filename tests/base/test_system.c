/* SPDX-License-Identifier: Apache-2.0 */
/* The machine: memory, cores, clock; interrupts. */
#include "lib/base/system.h"
#include "tests/support/check.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SANITIZED
static void limit_the_address_space(void) {
    const uint64_t bytes = (uint64_t)4 << 30;
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0 || memory_available() == 0 || memory_available() >= bytes) _exit(1);
    limit.rlim_cur = 1;
    if (setrlimit(RLIMIT_AS, &limit) != 0 || memory_available() != 0) _exit(2);
}
#endif

TEST(the_machine_is_known) {
    assert_true(memory_available() > (uint64_t)16 << 20 && memory_available() < (uint64_t)1 << 50);
    assert_true(cores_available() >= 1);
#ifdef __linux__
    cpu_set_t all, one;
    int core = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(core, &all)) core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cores_available(), 1);
    assert_int_equal(cores_physical(NULL), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
#endif
    assert_in_range(cores_physical(NULL), 1, cores_available());
    assert_true(memory_peak() > 1 << 20 && memory_peak() < (uint64_t)1 << 45);
    assert_true(memory_resident() > 1 << 20 && memory_resident() < (uint64_t)1 << 45);
#ifndef SANITIZED
    int result = in_child(limit_the_address_space);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
#endif
    double before = clock_seconds();
    assert_true(before > 0 && clock_seconds() >= before);
}

#ifdef __linux__
/* What the system says of the cores of all processors that the process may use: `format` gets a processor's number. */
static void say_siblings(const char *folder, const cpu_set_t *set, const char *format) {
    for (int i = 0; i < CPU_SETSIZE; i++) {
        char name[64], text[64];
        if (!CPU_ISSET(i, set)) continue;
        snprintf(name, sizeof name, "cpu%d", i);
        mkdir(temp_file(folder, name), 0700);
        snprintf(name, sizeof name, "cpu%d/topology", i);
        mkdir(temp_file(folder, name), 0700);
        snprintf(name, sizeof name, "cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, format, i, i);
        temp_text(folder, name, text);
    }
}

TEST(threads_of_a_core_count_once) {
    cpu_set_t all;
    char cpus[sizeof test_folder + 8];
    snprintf(cpus, sizeof cpus, "%s/cpus", test_folder);
    check_ok(dir_make(cpus));
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int free_of_quota = CPU_COUNT(&all) == cores_available();
    assert_int_equal(cores_physical(cpus), cores_available()); /* nothing is known */
    say_siblings(cpus, &all, "%d\n");
    assert_int_equal(cores_physical(cpus), cores_available());
    say_siblings(cpus, &all, "0-1023\n");
    assert_int_equal(cores_physical(cpus), 1);
    say_siblings(cpus, &all, "0,%d,1023\n");
    if (free_of_quota) assert_int_equal(cores_physical(cpus), CPU_ISSET(0, &all) ? 1 : CPU_COUNT(&all));
    say_siblings(cpus, &all, "garbage\n");
    assert_int_equal(cores_physical(cpus), cores_available());
}
#endif

static void ask_to_stop(void) {
    if (interrupt_requested()) _exit(1);
    interrupt_request();
    if (!interrupt_requested()) _exit(2);
}

/* Lines of usual lengths are read to their end: what is written after an interrupt needs them. */
static void stop_within_a_line(void) {
    Lines lines;
    Slice line;
    interrupt_request();
    if (lines_open(&lines, temp_file(test_folder, "a_long_line")) != ST_OK || !lines_next(&lines, &line) || line.len != 5) _exit(1);
    if (lines_next(&lines, &line)) _exit(2);
    if (lines_close(&lines) != ST_INTERRUPTED) _exit(3);
}

TEST(interrupts_are_seen) {
    int result = in_child(ask_to_stop);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    Str text = {0};
    str_append(&text, "short\n");
    for (int i = 0; i < 1 << 20; i++) str_append_char(&text, 'x');
    temp_text(test_folder, "a_long_line", str_text(&text));
    str_release(&text);
    result = in_child(stop_within_a_line);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}

static void *read_until_asked_to_stop(void *context) {
    while (!interrupt_requested()) sched_yield();
    return context;
}

/* A signal reaches any thread, and all of them read what it asks for: the thread sanitizer sees a flag that is not atomic. */
TEST(interrupts_reach_other_threads) {
    pthread_t reader;
    assert_int_equal(pthread_create(&reader, NULL, read_until_asked_to_stop, NULL), 0);
    interrupt_request();
    assert_int_equal(pthread_join(reader, NULL), 0);
    interrupt_clear();
    assert_false(interrupt_requested());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_machine_is_known),
#ifdef __linux__
        cmocka_unit_test(threads_of_a_core_count_once),
#endif
        cmocka_unit_test(interrupts_are_seen),
        cmocka_unit_test(interrupts_reach_other_threads),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
