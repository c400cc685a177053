/* SPDX-License-Identifier: Apache-2.0 */
/* What tune data check finds: each fault is planted in rows of ids, and rows without it raise no alarm. */
#include "lib/base/system.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/check/check.h"

static const ModelConfig model = {.vocab_size = 1000, .eos_token_id = {1}, .n_eos = 1};

/* Rows of ids: `row` writes one; n of them. */
static Dataset *rows_of(const char *name, size_t n, void (*row)(FILE *file, size_t i)) {
    FILE *file = fopen(temp_file(test_folder, name), "w");
    for (size_t i = 0; i < n; i++) row(file, i);
    fclose(file);
    Dataset *dataset;
    DataSource source = {.path = temp_file(test_folder, name)};
    check_ok(dataset_load(&(DataConfig){.max_length = 500, .scratch = test_folder}, &source, 1, NULL, &dataset));
    return dataset;
}

static void write_row(FILE *file, const int32_t *ids, size_t n) {
    fprintf(file, "{\"input_ids\": [");
    for (size_t i = 0; i < n; i++) fprintf(file, "%s%d", i ? ", " : "", (int)ids[i]);
    fprintf(file, "]}\n");
}

static void random_ids(int32_t *ids, size_t n, uint64_t number) {
    for (size_t i = 0; i < n; i++) ids[i] = 5 + (int32_t)rng_below(rng_key(3, RNG_TEST, number), i, 900);
}

static void good_row(FILE *file, size_t i) {
    int32_t ids[60];
    random_ids(ids, 59, i);
    ids[59] = 1;
    write_row(file, ids, 60);
}

static void endless_row(FILE *file, size_t i) {
    int32_t ids[40];
    random_ids(ids, 40, i);
    write_row(file, ids, 40);
}

/* Every third row is the one before with one token changed. */
static void alike_row(FILE *file, size_t i) {
    int32_t ids[100];
    random_ids(ids, 99, i % 3 == 2 ? i - 1 : i);
    if (i % 3 == 2) ids[50] = 4;
    ids[99] = 1;
    write_row(file, ids, 100);
}

/* Half of what is evaluated is in the good rows; all of it begins alike. */
static void eval_row(FILE *file, size_t i) {
    int32_t ids[60];
    random_ids(ids, 59, i % 2 ? i : 1000 + i);
    for (int k = 0; k < 20; k++) ids[k] = 7;
    ids[59] = 1;
    write_row(file, ids, 60);
}

static void brief_row(FILE *file, size_t i) {
    int32_t ids[8];
    random_ids(ids, 7, i);
    ids[7] = 1;
    write_row(file, ids, 8);
}

static DataCheck check_look(Dataset *train, Dataset *eval) {
    DataCheck check = {0};
    check_ok(data_check(&(RecipeRows){.train = train, .eval = eval}, &model, &check));
    return check;
}

static bool warned(const DataCheck *check, const char *part) {
    for (size_t i = 0; i < check->n_warnings; i++)
        if (strstr(check->warnings[i], part)) return true;
    return false;
}

TEST(good_rows_raise_no_alarm) {
    Dataset *train = rows_of("good.jsonl", 200, good_row), *eval = rows_of("endless.jsonl", 20, endless_row);
    DataCheck check = check_look(train, NULL);
    assert_int_equal(check.n_warnings, 0);
    assert_false(check.wrong);
    assert_int_equal(check.ended, 200);
    assert_int_equal(check.percentiles[0], 60);
    assert_int_equal(check.percentiles[CHECK_SHARES - 1], 60);
    int64_t all = 0;
    for (int i = 0; i < CHECK_BARS; i++) all += check.bars[i];
    assert_int_equal(all, 200);
    assert_int_equal(check.bars[60 / check.bar_width], 200);
    data_check_release(&check);
    dataset_free(train);
    dataset_free(eval);
}

TEST(planted_faults_are_found) {
    Dataset *good = rows_of("good.jsonl", 200, good_row), *endless = rows_of("endless.jsonl", 50, endless_row),
            *alike = rows_of("alike.jsonl", 90, alike_row), *eval = rows_of("eval.jsonl", 40, eval_row),
            *brief = rows_of("brief.jsonl", 30, brief_row);
    DataCheck check = check_look(endless, NULL);
    assert_true(warned(&check, "no end token is ever trained"));
    data_check_release(&check);
    check = check_look(alike, NULL);
    assert_int_equal(check.near_duplicates, 30);
    assert_true(warned(&check, "30 of the first 90 rows are much like"));
    data_check_release(&check);
    check = check_look(good, eval);
    assert_int_equal(check.overlapping_eval, 20); /* their common beginning alone does not count */
    assert_true(warned(&check, "20 of 40 evaluation rows share a run of 13 tokens"));
    assert_true(warned(&check, "eval.jsonl line 2 (") && warned(&check, "good.jsonl line 2)")); /* the first of them, and what it is like */
    data_check_release(&check);
    check = check_look(brief, brief);
    assert_int_equal(check.overlapping_eval, 30); /* fewer than 13 tokens, but the same ones */
    data_check_release(&check);
    dataset_free(brief);
    dataset_free(good);
    dataset_free(endless);
    dataset_free(alike);
    dataset_free(eval);
}

/* 50,000 rows, which is as many as are compared, of 40 tokens: 6 MiB of sketches, and the rows' own pages, 8 MiB, which are read from the file. */
TEST(many_rows_are_compared_in_little_memory) {
#ifdef SANITIZED
    skip(); /* sanitizers need extra memory */
#endif
    Dataset *train = rows_of("many.jsonl", 50001, endless_row);
    int code = -1;
    pid_t child = fork(); /* whose peak is its own */
    if (child == 0) {
        DataCheck check = {0};
        uint64_t before = memory_resident();
        Status status = data_check(&(RecipeRows){.train = train}, &model, &check);
        bool fine = status == ST_OK && check.compared == 50000 && check.near_duplicates == 0 &&
                    warned(&check, "among the first 50000 of 50001 rows") && memory_peak() < before + (20 << 20);
        if (!fine)
            printf("%lld rows compared, %lld alike, %.1f MiB\n", (long long)check.compared, (long long)check.near_duplicates,
                   ((double)memory_peak() - (double)before) / (1 << 20));
        fflush(stdout);
        _exit(fine ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &code, 0) == child);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    dataset_free(train);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(good_rows_raise_no_alarm), cmocka_unit_test(planted_faults_are_found),
                                       cmocka_unit_test(many_rows_are_compared_in_little_memory)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
