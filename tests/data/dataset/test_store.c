/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenised rows on disk: the file, the cache, threads, sources with weights, packing. */
#include "lib/base/log.h"
#include "data/dataset/cache.h"
#include "tests/support/check.h"

#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[256];
static Arena *paths;

static int store_begin(void **state) {
    (void)state;
    paths = arena_new(0);
    temp_dir_make(folder, sizeof folder);
    return 0;
}

static int store_end(void **state) {
    (void)state;
    arena_free(paths);
    temp_dir_remove(folder);
    return 0;
}

static char last_warning[1024];
static void keep_warning(void *context, LogLevel level, const char *text) {
    (void)context;
    if (level == LOG_WARNING) snprintf(last_warning, sizeof last_warning, "%s", text);
}

static const char *new_folder(const char *name) {
    const char *path = path_join(paths, folder, name);
    check_ok(dir_remove(path));
    check_ok(dir_make(path));
    return path;
}

static size_t count_files(const char *path) {
    Arena *arena = arena_new(0);
    char **names;
    size_t n;
    check_ok(dir_list(path, arena, &names, &n));
    arena_free(arena);
    return n;
}

/* The only file of a folder. */
static void only_file(const char *dir, char *path, size_t size) {
    Arena *arena = arena_new(0);
    char **names;
    size_t n;
    check_ok(dir_list(dir, arena, &names, &n));
    assert_int_equal(n, 1);
    snprintf(path, size, "%s/%s", dir, names[0]);
    arena_free(arena);
}

/* ---- the file itself ---- */

static const StoreKey key = {7, 9};
/* Four rows: all tokens trained, two trained ranges, explicit targets, three branches. */
static const int32_t words[][12] = {
    {5, 6, 7, 1, 3}, {8, 9, 10, 11, 12, 1, 2, 4, 5}, {1, 2, 3, LABEL_NONE, 4, LABEL_NONE, 1, 2}, {5, 6, 7, 8, 2, 4, 0, -1, 2, 0, 3, 0}};
static const StoreRow table[] = {
    {.weight = 1, .line = 1, .n = 3, .trained = 2, .n_runs = 1, .depth = 3},
    {.weight = 0.5, .line = 2, .n = 5, .trained = 2, .n_runs = 2, .depth = 5},
    {.weight = 1, .file = 1, .line = 9, .n = 3, .trained = 1, .n_runs = 1, .own_targets = 1, .depth = 3},
    {.weight = 1, .file = 1, .line = 10, .n = 4, .trained = 2, .n_runs = 1, .n_branches = 3, .depth = 3},
};

static Store *write_store(const char *dir, const char *name) {
    StoreWriter *writer;
    Store *store;
    check_ok(store_create(dir, name, &key, &writer));
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        StoreRow row = table[i];
        check_ok(store_append(writer, &row, words[i]));
    }
    check_ok(store_finish(writer, "{}", 2, &store));
    return store;
}

static void check_stored(const Store *store) {
    assert_int_equal(store_count(store), COUNT_OF(table));
    assert_true(slice_is(store_about(store), "{}"));
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const StoreRow *row = store_row(store, i);
        assert_true(row->line == table[i].line && row->file == table[i].file && row->n == table[i].n && row->trained == table[i].trained);
        check_close(row->weight, table[i].weight, 0);
        check_ids("words", store_words(store, row), store_words_count(row), words[i], store_words_count(&table[i]));
    }
}

TEST(rows_come_back) {
    const char *dir = new_folder("store");
    Store *store = write_store(dir, NULL);
    check_stored(store);
    assert_int_equal(count_files(dir), 0); /* it has no name */
    store_close(store);
    store = write_store(dir, "named");
    check_stored(store);
    store_close(store);
    assert_int_equal(count_files(dir), 1);
    check_ok(store_open(temp_file(dir, "named"), &key, 13, &store));
    check_stored(store);
    store_close(store);
    check_status(store_open(temp_file(dir, "named"), &key, 12, &store), ST_INPUT); /* id 12 */
    check_text("its row 2 is invalid");
    check_status(store_open(temp_file(dir, "named"), &(StoreKey){7, 8}, 13, &store), ST_INPUT);
    check_text("other rows or settings");
    check_status(store_open(temp_file(dir, "missing"), &key, 13, &store), ST_INPUT);
}

/* No byte can be changed, and none be missing, without notice. */
TEST(damage_is_seen) {
    const char *dir = new_folder("store"), *path = temp_file(dir, "named"), *broken = temp_file(dir, "broken");
    store_close(write_store(dir, "named"));
    Mapping whole;
    Store *store;
    check_ok(file_map(path, &whole));
    uint8_t *bytes = malloc(whole.size);
    for (size_t i = 0; i < whole.size; i++) {
        memcpy(bytes, whole.data, whole.size);
        bytes[i] ^= 0x10;
        FILE *file = fopen(broken, "wb");
        fwrite(bytes, 1, whole.size, file);
        fclose(file);
        check_status(store_open(broken, &key, 13, &store), ST_INPUT);
        file = fopen(broken, "wb");
        fwrite(whole.data, 1, i, file);
        fclose(file);
        check_status(store_open(broken, &key, 13, &store), ST_INPUT);
    }
    free(bytes);
    file_unmap(&whole);
}

TEST(a_folder_that_takes_nothing_is_named) {
    StoreWriter *writer;
    check_status(store_create(temp_file(folder, "nowhere"), "named", &key, &writer), ST_INPUT);
    assert_null(writer);
    check_text("nowhere");
}

/* ---- rows of files ---- */

static const DataConfig plain = {.max_length = 1000, .truncation = "error", .vocab_size = 5000};

/* `n` rows of 2 to `spread` + 1 tokens; the first token of row i is first + i. */
static const char *write_rows(const char *name, size_t n, size_t first, size_t spread) {
    Str text = {0};
    for (size_t i = 0; i < n; i++) {
        size_t length = 2 + rng_below(rng_key(5, RNG_TEST, first), i, spread);
        str_printf(&text, "{\"input_ids\": [%zu", first + i);
        for (size_t t = 1; t < length; t++) str_printf(&text, ", %zu", 2 + (i * t) % 7);
        str_append(&text, "]}\n");
    }
    temp_text(folder, name, str_text(&text));
    str_release(&text);
    return path_join(paths, folder, name);
}

static void load_file(const DataConfig *config, const char *path, Dataset **dataset) {
    check_ok(dataset_load(config, &(DataSource){.path = path}, 1, NULL, dataset));
}

static uint64_t hash_of(const Dataset *dataset) {
    uint64_t hash = dataset->n;
    for (size_t i = 0; i < dataset->n; i++) {
        Example example = dataset_example(dataset, i);
        hash = hash * 31 + example.hash + example.line + (uint64_t)example.n;
    }
    return hash;
}

TEST(threads_do_not_matter) {
    const char *path = write_rows("many.jsonl", 5000, 0, 40);
    int threads = omp_get_max_threads();
    Mapping files[2];
    char cached[2][600];
    for (int round = 0; round < 2; round++) {
        const char *dir = new_folder(round ? "several" : "single");
        DataConfig config = plain;
        Dataset *dataset;
        config.cache = dir;
        omp_set_num_threads(round ? 5 : 1);
        load_file(&config, path, &dataset);
        dataset_free(dataset);
        only_file(dir, cached[round], sizeof cached[round]);
        check_ok(file_map(cached[round], &files[round]));
    }
    omp_set_num_threads(threads);
    assert_int_equal(files[0].size, files[1].size);
    assert_memory_equal(files[0].data, files[1].data, files[0].size);
    file_unmap(&files[0]);
    file_unmap(&files[1]);
}

/* Rows are tokenised side by side and ahead of one another; what is reported is what reading one after the other would meet first. */
TEST(the_first_bad_row_is_named) {
    Str text = {0};
    for (int i = 1; i <= 3000; i++)
        str_append(&text, i == 700 || i == 701 || i == 2500 ? "{\"input_ids\": [9999]}\n" : i == 720 ? "{oops\n" : "{\"input_ids\": [1, 2]}\n");
    const char *path = temp_text(folder, "bad.jsonl", str_text(&text));
    str_release(&text);
    for (int round = 0; round < 5; round++) {
        Dataset *dataset;
        check_status(dataset_load(&plain, &(DataSource){.path = path}, 1, NULL, &dataset), ST_INPUT);
        check_text("bad.jsonl' line 700: token id 9999");
        check_status(dataset_load(&plain, &(DataSource){.path = path, .max_rows = 699}, 1, NULL, &dataset), ST_OK);
        dataset_free(dataset);
    }
    const char *syntax = temp_text(folder, "syntax.jsonl", "{\"input_ids\": [1, 2]}\n{oops\n{\"input_ids\": [9999]}\n");
    Dataset *dataset;
    check_status(dataset_load(&plain, &(DataSource){.path = syntax}, 1, NULL, &dataset), ST_INPUT);
    check_text("syntax.jsonl' line 2");
}

TEST(files_of_a_pattern_share_max_rows) {
    const char *dir = new_folder("parts");
    temp_text(dir, "b.jsonl", "{\"input_ids\": [3, 4]}\n{\"input_ids\": [5, 6]}\n");
    temp_text(dir, "a.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2, 3]}\n");
    temp_text(dir, "c.txt", "x");
    DataSource sources[] = {{.path = temp_file(dir, "*.jsonl"), .max_rows = 3}, {.path = temp_file(dir, "a.jsonl"), .max_rows = 1}};
    Dataset *dataset;
    Str where = {0};
    check_ok(dataset_load(&plain, sources, 2, NULL, &dataset));
    assert_int_equal(dataset->n, 4);
    assert_int_equal(dataset->n_files, 3);
    assert_true(dataset->files[0].rows == 2 && dataset->files[1].rows == 1 && dataset->files[2].rows == 1);
    assert_true(dataset->source_begins[1] == 3 && dataset->source_begins[2] == 4);
    dataset_where(dataset, 2, &where);
    check_contains(str_text(&where), "b.jsonl line 1");
    str_release(&where);
    assert_int_equal(dataset->counts.duplicates, 1);
    dataset_free(dataset);
    check_status(dataset_load(&plain, &(DataSource){.path = temp_file(dir, "*.csv")}, 1, NULL, &dataset), ST_INPUT);
}

/* A file size limit acts like a full disk. In a child process, since the limit cannot be removed. */
TEST(a_full_disk_is_a_resource) {
    const char *rows = write_rows("large.jsonl", 4000, 0, 40), *dir = new_folder("full");
    pid_t child = fork();
    if (child == 0) {
        DataConfig config = plain;
        Dataset *dataset;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){200000, 200000});
        omp_set_num_threads(1);
        config.scratch = dir;
        if (dataset_load(&config, &(DataSource){.path = rows}, 1, NULL, &dataset) != ST_RESOURCE) _exit(1);
        config.cache = dir;
        if (dataset_load(&config, &(DataSource){.path = rows}, 1, NULL, &dataset) != ST_RESOURCE) _exit(2);
        _exit(dataset ? 3 : 0);
    }
    int code;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), 0);
    assert_int_equal(count_files(dir), 0);
}

/* ---- the cache ---- */

static bool was_cached(const DataConfig *config, const char *path, uint64_t *hash) {
    Dataset *dataset;
    load_file(config, path, &dataset);
    bool cached = dataset->cached;
    *hash = hash_of(dataset);
    assert_string_equal(dataset->format, "ids");
    assert_int_equal(dataset->counts.duplicates, 1);
    assert_int_equal(dataset->counts.cut, 2);
    assert_int_equal(dataset->files[0].rows, 3);
    dataset_free(dataset);
    return cached;
}

static const char cached_rows[] = "{\"input_ids\": [1, 2, 3, 4]}\n{\"input_ids\": [1, 2, 3, 5]}\n{\"input_ids\": [7, 8]}\n";

static DataConfig cached_config(const char *dir) {
    DataConfig config = {.max_length = 3, .truncation = "keep_start", .vocab_size = 5000, .cache = dir, .program = "test 1"};
    return config;
}

TEST(rows_are_found_again) {
    const char *dir = path_join(paths, new_folder("top"), "made"), *path = arena_strdup(paths, temp_text(folder, "cached.jsonl", cached_rows));
    const struct timespec times[2] = {{1700000000, 0}, {1700000000, 0}};
    DataConfig config = cached_config(dir);
    uint64_t first, again;
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_false(was_cached(&config, path, &first));
    assert_true(was_cached(&config, path, &again));
    assert_true(first == again);
    assert_int_equal(count_files(dir), 1);
    /* Same size, same time */
    temp_text(folder, "cached.jsonl", "{\"input_ids\": [1, 2, 3, 4]}\n{\"input_ids\": [1, 2, 3, 5]}\n{\"input_ids\": [7, 9]}\n");
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_false(was_cached(&config, path, &again));
    assert_true(first != again);
    temp_text(folder, "cached.jsonl", cached_rows);
    assert_true(was_cached(&config, path, &again));
    assert_true(first == again);
}

TEST(other_settings_are_other_rows) {
    const char *dir = new_folder("settings"), *path = arena_strdup(paths, temp_text(folder, "cached.jsonl", cached_rows)),
               *tokenizer = new_folder("tokenizer");
    uint64_t hash;
    temp_text(tokenizer, "tokenizer.json", "1");
    temp_text(tokenizer, "model.safetensors", "1");
    DataConfig base = cached_config(dir), configs[5];
    base.tokenizer = tokenizer;
    for (size_t i = 0; i < COUNT_OF(configs); i++) configs[i] = base;
    configs[0].program = "test 2";
    configs[1].train_on = "all";
    configs[2].vocab_size = 4000;
    configs[3].format = "ids";
    configs[4].positions = 99;
    assert_false(was_cached(&base, path, &hash));
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        assert_false(was_cached(&configs[i], path, &hash));
        assert_true(was_cached(&configs[i], path, &hash));
    }
    temp_text(tokenizer, "model.safetensors", "2");
    assert_true(was_cached(&base, path, &hash));
    temp_text(tokenizer, "tokenizer.json", "2");
    assert_false(was_cached(&base, path, &hash));
    temp_text(tokenizer, "merges.txt", "");
    assert_false(was_cached(&base, path, &hash));
    temp_text(folder, "cached.json", cached_rows); /* named otherwise, it may be read otherwise */
    assert_false(was_cached(&base, temp_file(folder, "cached.json"), &hash));
}

TEST(a_broken_cache_is_made_again) {
    const char *dir = new_folder("broken"), *path = arena_strdup(paths, temp_text(folder, "cached.jsonl", cached_rows));
    char file[600];
    DataConfig config = cached_config(dir);
    uint64_t first, again;
    assert_false(was_cached(&config, path, &first));
    only_file(dir, file, sizeof file);
    Str whole = {0};
    check_ok(file_read(file, 1 << 20, &whole));
    for (int fault = 0; fault < 3; fault++) {
        last_warning[0] = '\0';
        if (fault < 2) {
            check_ok(file_truncate(file, fault ? whole.len - 8 : 0));
        } else {
            whole.data[40] ^= 1;
            check_ok(file_write_all(file, whole.data, whole.len));
        }
        assert_false(was_cached(&config, path, &again));
        assert_true(first == again);
        check_contains(last_warning, "rows are tokenised again");
        assert_true(was_cached(&config, path, &again));
        assert_true(first == again);
    }
    str_release(&whole);
}

/* Processes that start at the same time do the same work, and none sees another's half. What a killed one left is removed. */
TEST(two_at_once_and_one_that_was_killed) {
    const char *dir = new_folder("both"), *path = write_rows("both.jsonl", 3000, 0, 30);
    temp_text(dir, ".rows-0.bin.tmp-1", "half of it");
    DataConfig config = plain;
    config.cache = dir;
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        Dataset *dataset;
        omp_set_num_threads(1);
        Status status = dataset_load(&config, &(DataSource){.path = path}, 1, NULL, &dataset);
        _exit(status == ST_OK && dataset->n == 3000 ? 0 : 1);
    }
    for (int i = 0; i < 4; i++) {
        int code;
        assert_int_equal(waitpid(children[i], &code, 0), children[i]);
        assert_int_equal(code, 0);
    }
    assert_int_equal(count_files(dir), 1);
    Dataset *dataset;
    load_file(&config, path, &dataset);
    assert_true(dataset->cached);
    dataset_free(dataset);
}

/* What a run says about rows that are not there any more is the same from the cache. */
TEST(lost_rows_are_told_again) {
    const char *dir = new_folder("lost");
    DataConfig config = {.max_length = 3, .truncation = "keep_start", .vocab_size = 5000, .cache = dir};
    Str text = {0};
    for (int i = 0; i < 12; i++)
        str_append(&text, i == 1 ? "{\"input_ids\": [1, 2]}\n" : "{\"input_ids\": [1, 2, 3, 4], \"labels\": [-100, -100, -100, 4]}\n");
    const char *path = arena_strdup(paths, temp_text(folder, "lost.jsonl", str_text(&text)));
    str_release(&text);
    for (int round = 0; round < 2; round++) {
        Dataset *dataset;
        load_file(&config, path, &dataset);
        assert_int_equal(dataset->cached, round);
        assert_int_equal(dataset->counts.dropped_untrained, 11);
        check_contains(dataset->counts.dropped_untrained_rows, "lost.jsonl line 1, ");
        check_contains(dataset->counts.dropped_untrained_rows, "lost.jsonl line 9 and 3 more");
        dataset_free(dataset);
    }
}

/* ---- weights of sources ---- */

/* How often each row is taken in epochs from..to-1. */
static void count_taken(const DataOrder *order, int64_t from, int64_t to, int *taken) {
    memset(taken, 0, order->dataset->n * sizeof *taken);
    for (int64_t epoch = from; epoch < to; epoch++)
        for (int64_t i = 0; i < data_order_count(order, epoch); i++) taken[data_order_at(order, epoch, i)]++;
}

TEST(weights_mix_sources) {
    DataSource sources[] = {{.path = write_rows("one.jsonl", 30, 0, 3)},
                            {.path = write_rows("half.jsonl", 41, 100, 3), .weight = 0.5},
                            {.path = write_rows("twice.jsonl", 7, 200, 3), .weight = 2},
                            {.path = write_rows("more.jsonl", 10, 300, 3), .weight = 1.25}};
    Dataset *dataset;
    int taken[88];
    check_ok(dataset_load(&plain, sources, 4, NULL, &dataset));
    assert_int_equal(dataset->n, 88);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataOrder order = {dataset, 3, shuffle};
        for (int64_t epoch = 0; epoch < 6; epoch += 2) {
            int in_epoch[4] = {0};
            count_taken(&order, epoch, epoch + 1, taken);
            for (size_t i = 0; i < 88; i++) {
                size_t s = i < 30 ? 0 : i < 71 ? 1 : i < 78 ? 2 : 3;
                in_epoch[s] += taken[i];
                assert_in_range(taken[i], s == 1 ? 0 : s == 2 ? 2 : 1, s == 3 ? 2 : s == 1 ? 1 : s + (s == 0));
            }
            assert_int_equal(in_epoch[0], 30);
            assert_in_range(in_epoch[1], 20, 21);
            assert_int_equal(in_epoch[2], 14);
            assert_in_range(in_epoch[3], 12, 13);
            count_taken(&order, epoch, epoch + 2, taken); /* the other half comes next */
            for (size_t i = 30; i < 71; i++) assert_int_equal(taken[i], 1);
        }
        count_taken(&order, 0, 4, taken);
        for (size_t i = 78; i < 88; i++) assert_int_equal(taken[i], 5);
    }
    /* Rows of all sources are mixed, plans give complete passes, and access out of order gives the same. */
    for (int64_t tokens = 0; tokens <= 9; tokens += 9) {
        DataPlan plan, other;
        int64_t total;
        data_plan_init(&plan, &(DataOrder){dataset, 3, true}, 4, tokens, 2);
        data_plan_init(&other, &(DataOrder){dataset, 3, true}, 4, tokens, 2);
        check_ok(data_plan_total(&plan, 4, &total));
        size_t *examples = NULL, *again = NULL, n, m, rows = 0;
        for (int64_t step = total - 1; step >= 0; step--) {
            PlanStep at, there;
            check_ok(data_plan_step(&plan, step, &at));
            check_ok(data_plan_step(&other, step, &there));
            assert_true(at.epoch == there.epoch && at.first_batch == there.first_batch && at.n_batches == there.n_batches);
            for (int64_t b = 0; b < at.n_batches; b++) {
                check_ok(data_plan_batch(&plan, at.epoch, at.first_batch + b, &examples, &n));
                check_ok(data_plan_batch(&other, at.epoch, at.first_batch + b, &again, &m));
                assert_int_equal(n, m);
                assert_memory_equal(examples, again, n * sizeof *examples);
                rows += n;
            }
        }
        assert_int_equal(rows, 4 * 30 + 82 + 4 * 14 + 50);
        free(examples);
        free(again);
        data_plan_release(&plan);
        data_plan_release(&other);
    }
    Dataset *part; /* what is held out is evaluated once, whatever its weight */
    check_ok(dataset_split(dataset, 0.25, 1, &part));
    assert_int_equal(data_order_count(&(DataOrder){.dataset = part}, 0), 22);
    assert_int_equal(dataset->source_begins[4], 66);
    assert_int_equal(part->source_begins[4], 22);
    dataset_free(part);
    dataset_free(dataset);
}

/* The order is part of what a run is: it must never change, on no machine. */
TEST(orders_stay_as_they_are) {
    DataSource sources[] = {{.path = write_rows("one.jsonl", 5, 0, 3)}, {.path = write_rows("half.jsonl", 8, 100, 3), .weight = 0.5}};
    Dataset *dataset;
    check_ok(dataset_load(&plain, sources, 2, NULL, &dataset));
    int32_t order[2][9];
    for (int64_t epoch = 0; epoch < 2; epoch++)
        for (int64_t i = 0; i < 9; i++) order[epoch][i] = (int32_t)data_order_at(&(DataOrder){dataset, 42, true}, epoch, i);
    check_ids("epoch 0", order[0], 9, ((int32_t[]){3, 11, 0, 5, 2, 9, 1, 6, 4}), 9);
    check_ids("epoch 1", order[1], 9, ((int32_t[]){4, 3, 7, 12, 1, 0, 8, 10, 2}), 9);
    dataset_free(dataset);
}

/* ---- packing ---- */

typedef struct PackingCase {
    int64_t batches, tokens, most;
} PackingCase;

/* Each row once, no batch above the limit. */
static PackingCase pack(const Dataset *dataset, int64_t batch_tokens, bool shuffle, int64_t epoch) {
    DataPlan plan;
    PackingCase packing = {0};
    size_t *examples = NULL, n;
    unsigned char *seen = calloc(dataset->n, 1);
    data_plan_init(&plan, &(DataOrder){dataset, 9, shuffle}, 1, batch_tokens, 1);
    check_ok(data_plan_epoch(&plan, epoch, &packing.batches));
    for (int64_t b = 0; b < packing.batches; b++) {
        int64_t tokens = 0;
        check_ok(data_plan_batch(&plan, epoch, b, &examples, &n));
        assert_true(n > 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(seen[examples[i]]++, 0);
            tokens += dataset_length(dataset, examples[i]);
        }
        assert_true(tokens <= batch_tokens);
        packing.tokens += tokens;
        packing.most = MAX(packing.most, tokens);
    }
    assert_int_equal(packing.tokens, dataset->counts.tokens);
    free(seen);
    free(examples);
    data_plan_release(&plan);
    return packing;
}

static double waste(const PackingCase *packing, int64_t batch_tokens) {
    return 1 - (double)packing->tokens / (double)(packing->batches * batch_tokens);
}

TEST(batches_are_filled) {
    Dataset *dataset;
    load_file(&plain, write_rows("pack.jsonl", 4000, 0, 120), &dataset);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        PackingCase best = pack(dataset, 512, true, epoch), next = pack(dataset, 512, false, epoch);
        assert_true(waste(&best, 512) < 0.01);
        assert_true(best.batches < next.batches);
    }
    DataPlan plan;
    size_t *examples = NULL, n;
    int64_t batches, tokens = 0;
    data_plan_init(&plan, &(DataOrder){dataset, 9, true}, 1, 512, 1);
    check_ok(data_plan_largest(&plan, 10, &examples, &n));
    for (size_t i = 0; i < n; i++) tokens += dataset_length(dataset, examples[i]);
    assert_in_range(tokens, 505, 512);
    data_plan_release(&plan);
    data_plan_init(&plan, &(DataOrder){dataset, 9, true}, 1, 100, 1);
    check_status(data_plan_epoch(&plan, 0, &batches), ST_INPUT);
    check_text("pack.jsonl line ");
    check_text("more than the 100 of 'train.batch_tokens'");
    data_plan_release(&plan);
    free(examples);
    dataset_free(dataset);
}

static void append_texts(const json_t *value, Str *text) {
    const char *name;
    json_t *item;
    if (json_is_string(value)) str_printf(text, "%s\n", json_string_value(value));
    for (size_t i = 0; i < json_array_size(value); i++) append_texts(json_array_get(value, i), text);
    json_object_foreach((json_t *)(uintptr_t)value, name, item) append_texts(item, text);
}

/* All texts of a row as one. */
static Status row_to_text(void *context, const Row *row) {
    FileWriter *writer = context;
    Str text = {0}, line = {0};
    append_texts(row->json, &text);
    str_append_json(&line, str_text(&text), text.len);
    writer_printf(writer, "{\"text\": %s}\n", str_text(&line));
    str_release(&text);
    str_release(&line);
    return ST_OK;
}

/* The rows that are given with the project, cut by the demo's tokenizer. */
TEST(rows_of_the_project_are_packed_well) {
    static const struct {
        const char *path;
        int64_t batch_tokens;
    } files[] = {{"data/rows/gsm8k/train.jsonl", 4096},
                 {"data/rows/gsm8k/train.jsonl", 16384},
                 {"data/rows/self-instruct/seed_tasks.jsonl", 2048},
                 {"data/rows/demo/alpaca_en_demo.json", 4096},
                 {"data/rows/demo/v1_sft_demo.jsonl", 4096},
                 {"data/rows/hh-rlhf/test.jsonl.gz", 8192},
                 {"data/rows/demo/kto_en_demo.json", 4096},
                 {"data/rows/humaneval/HumanEval.jsonl.gz", 8192}};
    Tokenizer *tokenizer;
    check_ok(tokenizer_load("recipes/demo/model", &tokenizer));
    for (size_t i = 0; i < (ONE_SET ? 1 : COUNT_OF(files)); i++) {
        char path[512];
        Dataset *dataset;
        FileWriter writer;
        const char *texts = temp_file(folder, "texts.jsonl");
        DataConfig config = {.max_length = files[i].batch_tokens / 2, .truncation = "keep_start"};
        if (!shared_path(files[i].path, path, sizeof path)) continue;
        check_ok(writer_open(&writer, texts));
        check_ok(rows_read_some(path, 1500, row_to_text, &writer));
        check_ok(writer_commit(&writer));
        check_ok(dataset_load(&config, &(DataSource){.path = texts}, 1, tokenizer, &dataset));
        PackingCase packing = pack(dataset, files[i].batch_tokens, true, 0);
        double wasted = waste(&packing, files[i].batch_tokens);
        int64_t fewest = (packing.tokens + files[i].batch_tokens - 1) / files[i].batch_tokens; /* few batches waste more: the last one is not full */
        printf("%s: %zu rows, %lld batches of %lld tokens, %.2f %% wasted\n", files[i].path, dataset->n, (long long)packing.batches,
               (long long)files[i].batch_tokens, 100 * wasted);
        assert_true(wasted < 0.02 || packing.batches == fewest);
        dataset_free(dataset);
    }
    tokenizer_free(tokenizer);
}

/* ---- what packing must not change ---- */

typedef struct Gradients {
    double loss;
    double *values;
    size_t n;
} Gradients;

static void add_gradients(Model *model, Tape *tape, const Dataset *dataset, const size_t *examples, size_t n, double *loss) {
    Batch batch = {0};
    check_ok(batch_build(dataset, examples, n, &batch));
    tape_reset(tape);
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &batch.n_targets, batch.rows);
    Tensor *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &batch.n_targets, batch.targets);
    TokenLogprobs p = op_token_logprobs(tape, model_forward(model, tape, &batch.model), model->head, rows, targets, &model->logprob);
    check_ok(tape_status(tape));
    double *seeds = malloc((size_t)batch.n_targets * sizeof *seeds);
    for (int64_t i = 0; i < batch.n_targets; i++) {
        *loss -= tensor_get(p.logprob, i);
        seeds[i] = -1;
    }
    tensor_seed_grad(tape, p.logprob, seeds);
    check_ok(tape_backward(tape));
    free(seeds);
    batch_release(&batch);
}

/* All gradients one after the other, and zero afterwards. */
static Gradients take_gradients(Model *model, double loss) {
    Gradients gradients = {.loss = loss, .values = malloc((size_t)params_count(&model->params, true) * sizeof(double))};
    for (size_t k = 0; k < model->params.n; k++) {
        const Tensor *grad = model->params.items[k].tensor->grad;
        if (!grad) continue;
        tensor_read(grad, gradients.values + gradients.n);
        gradients.n += (size_t)tensor_count(grad);
    }
    params_zero_grad(&model->params);
    return gradients;
}

/* Batches of packed rows against each row alone: the same sums, added in another order. */
static void compare_packing(const Device *device, DType compute, double tolerance) {
    Model *model;
    Dataset *dataset;
    DataPlan plan;
    Tape *tape = tape_new(device, compute, 0);
    size_t *examples = NULL, n;
    int64_t batches;
    double loss = 0, largest = 0, worst = 0;
    DataConfig config = {.max_length = 64, .truncation = "error", .vocab_size = 256};
    check_ok(model_load("recipes/demo/model", &(ModelOptions){.device = device, .compute = compute, .train_all = true}, &model));
    load_file(&config, write_rows("grad.jsonl", 40, 0, 30), &dataset);
    for (size_t i = 0; i < dataset->n; i++) add_gradients(model, tape, dataset, &i, 1, &loss);
    Gradients alone = take_gradients(model, loss);
    loss = 0;
    data_plan_init(&plan, &(DataOrder){dataset, 1, true}, 1, 128, 1);
    check_ok(data_plan_epoch(&plan, 0, &batches));
    assert_true(batches < 8);
    for (int64_t b = 0; b < batches; b++) {
        check_ok(data_plan_batch(&plan, 0, b, &examples, &n));
        add_gradients(model, tape, dataset, examples, n, &loss);
    }
    Gradients packed = take_gradients(model, loss);
    assert_int_equal(alone.n, packed.n);
    for (size_t i = 0; i < alone.n; i++) {
        largest = fmax(largest, fabs(alone.values[i]));
        worst = fmax(worst, fabs(alone.values[i] - packed.values[i]));
    }
    printf("packed and alone in %s: gradients differ by %.1e of the largest, losses by %.1e\n", dtype_name(compute), worst / largest,
           fabs(alone.loss / packed.loss - 1));
    assert_true(largest > 0 && worst <= tolerance * largest);
    check_close(packed.loss, alone.loss, tolerance * alone.loss);
    free(alone.values);
    free(packed.values);
    free(examples);
    data_plan_release(&plan);
    dataset_free(dataset);
    tape_free(tape);
    model_free(model);
}

TEST(packed_rows_never_see_each_other) {
    if (!ONE_SET) compare_packing(device_reference(), DT_F64, 1e-13); /* it has no threads */
    compare_packing(device_cpu(), DT_F32, 2e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(a_folder_that_takes_nothing_is_named),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(the_first_bad_row_is_named),
        cmocka_unit_test(files_of_a_pattern_share_max_rows),
        cmocka_unit_test(a_full_disk_is_a_resource),
        cmocka_unit_test(rows_are_found_again),
        cmocka_unit_test(other_settings_are_other_rows),
        cmocka_unit_test(a_broken_cache_is_made_again),
        cmocka_unit_test(two_at_once_and_one_that_was_killed),
        cmocka_unit_test(lost_rows_are_told_again),
        cmocka_unit_test(weights_mix_sources),
        cmocka_unit_test(orders_stay_as_they_are),
        cmocka_unit_test(batches_are_filled),
        cmocka_unit_test(rows_of_the_project_are_packed_well),
        cmocka_unit_test(packed_rows_never_see_each_other),
    };
    log_set_sink(keep_warning, NULL, LOG_WARNING);
    return cmocka_run_group_tests(tests, store_begin, store_end);
}
