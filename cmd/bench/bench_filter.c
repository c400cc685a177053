/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench filter: 52,002 random instructions, as many as Alpaca has. Measures ROUGE-L of each one with all before it, by the index and by the
 * plain table, and all text filters on them. */
#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/filter/filter.h"
#include "data/filter/rouge.h"

enum { TEXTS = 52002, FAMILIES = 9000, WORDS = 20000, SAMPLE = 400, LONGEST = 24 * 80 };

double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Draws a word by Zipf's law: the probability is proportional to 1 / rank, rank < WORDS. */
static unsigned zipf(RngKey key, uint64_t index) { return (unsigned)(exp(rng_uniform(key, index) * log(WORDS)) - 1); }

/* Instructions come in families. A family has one text of 8 to 60 words; each member replaces up to two thirds of its words. */
static void make_text(size_t i, char *text) {
    RngKey own = rng_key(1, RNG_TEST, i);
    size_t family = rng_below(own, 0, FAMILIES), at = 0;
    RngKey shared = rng_key(2, RNG_TEST, family);
    size_t n = 8 + rng_below(shared, 0, 53);
    double changed = 0.67 * rng_uniform(own, 1);
    for (size_t w = 0; w < n; w++) {
        bool other = rng_uniform(own, 1000 + w) < changed;
        at += (size_t)snprintf(text + at, LONGEST - at, "%sw%u", w ? " " : "", other ? zipf(own, 2000 + w) : zipf(shared, 1 + w));
    }
}

static Status make_texts(Arena *arena, Slice *texts) {
    char text[LONGEST];
    for (size_t i = 0; i < TEXTS; i++) {
        make_text(i, text);
        size_t len = strlen(text);
        char *copy = arena_strndup(arena, text, len);
        if (!copy) return ST_RESOURCE;
        texts[i] = (Slice){copy, len};
    }
    return ST_OK;
}

static Status search_all(RougeIndex *index, RougeWorker *worker, const Slice *texts, double *pairs) {
    RougeText words = {0};
    Status status = ST_OK;
    *pairs = 0;
    for (size_t i = 0; i < TEXTS && status == ST_OK; i++) {
        RougeBest best = {0, ROUGE_NONE};
        status = rouge_index_words(index, texts[i], &words);
        if (status == ST_OK) status = rouge_worker_fit(worker, index, &words, 0);
        if (status == ST_OK) rouge_index_best(index, worker, &words, 0, &best);
        *pairs += (double)rouge_index_size(index);
        if (status == ST_OK && !(best.f > 0.7)) status = rouge_index_add(index, &words);
    }
    rouge_text_release(&words);
    return status;
}

static void print_rouge(const Command *command, double pairs, double seconds, double plain) {
    if (command->json) {
        print_result(
            "{\"work\": \"rouge_l\", \"texts\": %d, \"pairs\": %.0f, \"cpu_seconds\": %.3f, \"pairs_per_second\": %.4g, \"plain_pairs_per_second\": %.4g}\n",
            TEXTS, pairs, seconds, pairs / seconds, plain);
        return;
    }
    print_result("ROUGE-L of %d instructions, each to those kept before: %.0f million pairs in %.1f s of one thread\n", TEXTS, pairs * 1e-6, seconds);
    print_result("  %.3g pairs a second; the plain table in C makes %.3g: %.0f times as fast\n", pairs / seconds, plain, pairs / seconds / plain);
}

static Status measure_rouge(const Command *command, const Slice *texts) {
    RougeIndex *index = NULL;
    RougeWorker *worker = NULL;
    double pairs = 0, f, began = cpu_seconds();
    Status status = rouge_index_new(&index);
    if (status == ST_OK) status = rouge_worker_new(&worker);
    if (status == ST_OK) status = search_all(index, worker, texts, &pairs);
    double seconds = cpu_seconds() - began;
    began = cpu_seconds();
    for (size_t i = 0; i < SAMPLE && status == ST_OK; i++)
        for (size_t k = 0; k < 50 && status == ST_OK; k++) status = rouge_l(texts[i], texts[TEXTS - 1 - k * 7], &f);
    double plain = SAMPLE * 50 / (cpu_seconds() - began);
    rouge_worker_free(worker);
    rouge_index_free(index);
    if (status == ST_OK) print_rouge(command, pairs, seconds, plain);
    return status;
}

/* Writes a thousand texts, like those of an evaluation set, to look for in the rows. */
static Status write_evaluation(const char *path) {
    FileWriter writer;
    char text[LONGEST];
    TRY(writer_open(&writer, path));
    for (size_t i = 0; i < 1000; i++) {
        make_text(TEXTS + i, text);
        writer_printf(&writer, "{\"question\": \"%s\"}\n", text);
    }
    return writer_commit(&writer);
}

/* Measures all text filters except valid_json, which no row would pass. */
static Status measure_filters(const Command *command, const Slice *texts, const char *evaluation) {
    const char *on = arena_printf(
        command->arena,
        "{empty: true, length: true, words: true, punctuation_start: true, ascii_start: true, blacklist: true, script: Latin, colon_end: true, equal: true, refusal: true, "
        "repetition: true, format: 'w[0-9]', decontaminate: ['%s'], exact: true, rouge_l: 0.7, minhash: 0.8}",
        evaluation);
    FilterRow *rows = arena_zero(command->arena, TEXTS * sizeof *rows);
    FilterVerdict *verdicts = arena_zero(command->arena, TEXTS * sizeof *verdicts);
    Yaml *map;
    Filters *filters;
    if (!on || !rows || !verdicts) return ST_RESOURCE;
    TRY(write_evaluation(evaluation));
    for (size_t i = 0; i < TEXTS; i++)
        rows[i] = (FilterRow){.instruction = texts[i], .completion = texts[(i * 7 + 1) % TEXTS], .judge = (double)NAN, .reward = (double)NAN};
    TRY(yaml_read_text(on, strlen(on), "bench", command->arena, &map));
    TRY(filters_open(&(FilterConfig){.filters = map, .only = true}, &filters));
    double began = clock_seconds(), cpu = cpu_seconds();
    Status status = filters_run(filters, FILTER_BOTH, rows, TEXTS, verdicts);
    double seconds = clock_seconds() - began;
    cpu = cpu_seconds() - cpu;
    int64_t kept = filters_counts(filters, FILTER_BOTH).kept;
    filters_close(filters);
    TRY(status);
    if (command->json)
        print_result("{\"work\": \"filters\", \"rows\": %d, \"kept\": %lld, \"seconds\": %.3f, \"cpu_seconds\": %.3f}\n", TEXTS, (long long)kept,
                     seconds, cpu);
    else
        print_result("All filters of texts over %d rows with answers: %.1f s, %.1f s of processor time; %lld kept\n", TEXTS, seconds, cpu,
                     (long long)kept);
    return ST_OK;
}

Status bench_filter(const Command *command) {
    Slice *texts = arena_alloc(command->arena, TEXTS * sizeof *texts);
    if (!texts) return ST_RESOURCE;
    TRY(make_texts(command->arena, texts));
    TRY(measure_rouge(command, texts));
    const char *temporary = getenv("TMPDIR");
    char *evaluation = arena_printf(command->arena, "%s/tune-bench-%ld.jsonl", temporary && *temporary ? temporary : "/tmp", (long)getpid());
    if (!evaluation) return ST_RESOURCE;
    Status status = measure_filters(command, texts, evaluation);
    unlink(evaluation);
    return status;
}
