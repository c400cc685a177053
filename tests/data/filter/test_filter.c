/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of rows: each rule by hand; ROUGE-L against the package's own values and the plain table; MinHash's estimate against true similarities;
 * memory, stages, and the same verdicts however rows are cut into calls and whatever the number of threads; selection against the plain greedy
 * choice. */
#include "tests/support/check.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/filter/filter.h"
#include "data/filter/minhash.h"
#include "data/filter/rouge.h"
#include "lib/infer/infer.h"

static Slice slice(const char *text) { return (Slice){text, text ? strlen(text) : 0}; }

static FilterRow make_row(const char *instruction, const char *input, const char *completion) {
    return (FilterRow){
        .instruction = slice(instruction), .input = slice(input), .completion = slice(completion), .judge = (double)NAN, .reward = (double)NAN};
}

static Yaml *yaml(const char *text, Arena *arena) {
    Yaml *node;
    check_ok(yaml_read_text(text, strlen(text), "test", arena, &node));
    return node;
}

/* Filters that `text` names, and no others. */
static Filters *open_only(const char *text, Arena *arena) {
    Filters *filters;
    check_ok(filters_open(&(FilterConfig){.filters = yaml(text, arena), .only = true}, &filters));
    return filters;
}

/* ---- ROUGE-L ---- */

static double plain(const char *a, const char *b) {
    double f;
    check_ok(rouge_l(slice(a), slice(b), &f));
    return f;
}

/* The text of an index that is likest, as its index finds it. */
static RougeBest best_of(RougeIndex *index, RougeWorker *worker, const char *text, size_t from) {
    RougeText words = {0};
    RougeBest best = {0, ROUGE_NONE};
    check_ok(rouge_index_words(index, slice(text), &words));
    check_ok(rouge_worker_fit(worker, index, &words, 0));
    rouge_index_best(index, worker, &words, from, &best);
    rouge_text_release(&words);
    return best;
}

static void add_text(RougeIndex *index, const char *text) {
    RougeText words = {0};
    check_ok(rouge_index_words(index, slice(text), &words));
    check_ok(rouge_index_add(index, &words));
    rouge_text_release(&words);
}

/* Values of rouge-score 0.1.2, RougeScorer(["rougeL"], use_stemmer=False). */
TEST(rouge_is_the_packages) {
    static const struct {
        const char *a, *b;
        double f;
    } pairs[] = {
        {"Give me a list of three colors.", "Give me a list of five animals, please!", 0.6666666666666666},
        {"Write a poem about the sea", "write a POEM about the Sea.", 1.0},
        {"a b c d e f g", "g f e d c b a", 0.14285714285714285},
        {"the the the cat the", "the cat the the dog the the", 0.6666666666666666},
        {"It's 3.14, isn't it?", "It is 3 14 is not it", 0.5714285714285714},
        {"\xE2\x84\xAA"
         "elvin and \xC4\xB0stanbul",
         "kelvin and i stanbul", 1.0}, /* KELVIN SIGN, I WITH DOT ABOVE */
        {"\xC3\x9C"
         "ber na\xC3\xAFve caf\xC3\xA9",
         "uber naive cafe", 0.0},
        {"\xE4\xB8\xAD\xE6\x96\x87 text 123", "text \xE4\xB8\xAD\xE6\x96\x87 123", 1.0},
        {"", "anything", 0},
        {"!!!", "...", 0},
        {"under_score joins-two", "under score joins two", 1.0},
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        RougeIndex *index;
        RougeWorker *worker;
        check_ok(rouge_index_new(&index));
        check_ok(rouge_worker_new(&worker));
        add_text(index, pairs[i].a);
        RougeBest best = best_of(index, worker, pairs[i].b, 0);
        check_close(plain(pairs[i].a, pairs[i].b), pairs[i].f, 0);
        check_close(best.f, pairs[i].f, 0);
        assert_int_equal(best.text, pairs[i].f > 0 ? 0 : ROUGE_NONE);
        rouge_worker_free(worker);
        rouge_index_free(index);
    }
}

/* "w3 w17 ..." with `n` words of a small vocabulary in which small numbers are frequent. */
static void random_text(char *text, size_t n, uint64_t number) {
    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        double u = rng_uniform(rng_key(11, RNG_TEST, number), i);
        sprintf(text + strlen(text), "w%d ", (int)(u * u * 40));
    }
}

/* Long texts have several words of bits; lengths around 64 are where they would break. Half of the texts are short, some are there twice. */
TEST(rouge_index_finds_the_best) {
    enum { TEXTS = 300 };
    static const size_t lengths[] = {1, 3, 8, 20, 63, 64, 65, 127, 128, 129, 200};
    static char texts[TEXTS][1200];
    RougeIndex *index;
    RougeWorker *worker;
    check_ok(rouge_index_new(&index));
    check_ok(rouge_worker_new(&worker));
    for (size_t i = 0; i < TEXTS; i++) {
        random_text(texts[i], i % 2 ? 5 + i % 11 : lengths[i / 2 % COUNT_OF(lengths)], i % 50 == 49 ? i - 7 : i);
        if (i % 10 == 9) strcpy(texts[i], texts[i - 5]);
        size_t from = i % 3 == 2 ? i / 2 : 0;
        RougeBest want = {0, ROUGE_NONE}, got = best_of(index, worker, texts[i], from);
        for (size_t k = from; k < i; k++) {
            double f = plain(texts[k], texts[i]);
            if (f > want.f) want = (RougeBest){f, k};
        }
        check_close(got.f, want.f, 0);
        assert_int_equal(got.text, want.text);
        add_text(index, texts[i]);
        assert_int_equal(rouge_index_size(index), i + 1);
    }
    rouge_worker_free(worker);
    rouge_index_free(index);
}

/* ---- MinHash ---- */

/* Two sets of `n` numbers that have `common` of them in common. */
static double true_jaccard(size_t n, size_t common) { return (double)common / (double)(2 * n - common); }

static void make_sets(uint32_t *a, uint32_t *b, size_t n, size_t common, uint64_t number) {
    for (size_t i = 0; i < n; i++) {
        a[i] = (uint32_t)rng_u64(rng_key(5, RNG_TEST, number), i);
        b[i] = i < common ? a[i] : (uint32_t)rng_u64(rng_key(6, RNG_TEST, number), i);
    }
}

/* The mean of 400 estimates of 128 minima has a deviation of 0.05/20; single ones of sqrt(J (1 - J) / 128): 4.5 of these is never passed in 400 draws
 * of a fair estimate but with chance 0.003. */
TEST(minhash_estimates_jaccard) {
    enum { PAIRS = 400, K = 128, N = 150 };
    MinHash *minhash;
    check_ok(minhash_new(K, 0.8, 1, &minhash));
    for (size_t common = 15; common <= 150; common += 45) {
        double truth = true_jaccard(N, common), deviation = sqrt(truth * (1 - truth) / K), sum = 0;
        for (uint64_t p = 0; p < PAIRS; p++) {
            uint32_t a[N], b[N], first[K], second[K];
            make_sets(a, b, N, common, p * 1000 + common);
            minhash_sketch(minhash, a, N, first);
            minhash_sketch(minhash, b, N, second);
            double estimate = minhash_similarity(minhash, first, second);
            sum += estimate;
            check_close(estimate, truth, 4.5 * deviation + 1e-12);
        }
        check_close(sum / PAIRS, truth, 4.5 * deviation / sqrt(PAIRS) + 1e-12);
    }
    minhash_free(minhash);
}

/* Bands are chosen so that pairs as like as the threshold meet with 0.98; of 200 pairs at J = 0.85 nearly all do, at J = 0.3 hardly any. */
TEST(bands_find_what_is_near) {
    enum { PAIRS = 200, K = 128, N = 170 };
    MinHash *minhash;
    check_ok(minhash_new(K, 0.8, 1, &minhash));
    size_t rows = minhash_rows(minhash), bands = minhash_bands(minhash), found = 0, far = 0;
    assert_true(rows * bands <= K && 1 - pow(1 - pow(0.8, (double)rows), (double)bands) >= 0.98);
    assert_true(1 - pow(1 - pow(0.8, (double)rows + 1), (double)(K / (rows + 1))) < 0.98);
    for (uint64_t p = 0; p < PAIRS; p++) {
        uint32_t a[N], b[N], signature[K];
        double similarity = 0;
        size_t best = SIZE_MAX, n = p % 2 ? 156 : 78; /* J = 0.85 and 0.3 */
        make_sets(a, b, N, n, p);
        minhash_sketch(minhash, b, N, signature);
        check_ok(minhash_add(minhash, signature));
        minhash_sketch(minhash, a, N, signature);
        minhash_best(minhash, signature, 0, &similarity, &best);
        if (p % 2)
            found += best == p;
        else
            far += best != SIZE_MAX;
    }
    assert_true(found >= 97 && far <= 5);
    minhash_free(minhash);
}

/* ---- what a row alone tells ---- */

typedef struct Case {
    const char *filters, *instruction, *input, *completion, *what;
} Case; /* what: NULL = kept */

TEST(rules_by_hand) {
    static const Case cases[] = {
        {"empty: true", "Say hello.", "", "Hello.", NULL},
        {"empty: true", " \n", "", "Hello.", "the prompt is empty"},
        {"empty: true", "Say hello.", "", "\xE3\x80\x80 ", "the answer is empty"}, /* IDEOGRAPHIC SPACE */
        {"empty: true", "Say hello.", "", NULL, NULL},
        {"empty: true", NULL, NULL, "A text alone.", NULL},
        {"length: {max: 5}", "abcde", "", "12345", NULL},
        {"length: {max: 5}", "abcdef", "", "1", "the prompt is too long"},
        {"length: 5", "abc", "", "123456", "the answer is too long"},
        {"length: {max: 5}", "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4", "", "1", NULL}, /* characters, not bytes */
        {"length: {max: 5}", "abc", "def", "1", "the prompt is too long"},
        {"length: {min_prompt: 4}", "abc", "", "1", "the prompt is too short"},
        {"length: {min_completion: 2}", "abc", "", "1", "the answer is too short"},
        {"words: true", "Name three colours", "", "a", "too few words"},
        {"words: true", "Name three more colours", "", "a", NULL},
        {"words: {max: 5}", "one two three four five six", "", "a", "too many words"},
        {"words: {on: completion, min: 2}", "Say", "", "hello", "too few words"},
        {"words: {min: 4}", "\xE5\x86\x99\xE4\xB8\x80\xE9\xA6\x96\xE8\xAF\x97", "", "a", NULL}, /* four Han characters */
        {"punctuation_start: true", "\"Quote\" this", "", "a", "it starts with punctuation"},
        {"punctuation_start: true", "Quote \"this\"", "", "a", NULL},
        {"ascii_start: true",
         "\xC3\x89"
         "crire",
         "", "a", "it starts with a character that is not ASCII"},
        {"ascii_start: true", "E\xC3\xA9", "", "a", NULL},
        {"blacklist: true", "Describe this Image.", "", "a", "it has 'image'"},
        {"blacklist: true", "Use your imagination and a mapping", "", "a", NULL},
        {"blacklist: true", "go   to the shop", "", "a", "it has 'go to'"},
        {"blacklist: true", "Write a program that sorts", "", "a", "it starts with 'Write a program'"},
        {"blacklist: true", "How does one write a program?", "", "a", NULL},
        {"blacklist: true", "Describe this video", "", "a", NULL},
        {"blacklist: {preset: alpaca}", "Describe this video", "", "a", "it has 'video'"},
        {"blacklist: [cat, C++]", "A category of image", "", "a", NULL},
        {"blacklist: [cat, C++]", "Learn c++ now", "", "a", "it has 'C++'"},
        {"script: Latin", "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 you", "", "a", "too few letters of the script"},
        {"script: cyrillic", "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 (1)", "", "a", NULL},
        {"script: Latin", "1 + 1 = ?", "", "2", NULL},
        {"script: {script: Latin, min: 0.25}", "\xD0\x9F\xD1\x80\xD0\xB8 a", "", "a", NULL}, /* exactly a quarter */
        {"colon_end: true", "Do it", "the list:", "a", "the input ends with a colon"},
        {"colon_end: true", "Do it:", "x", "Here it is: ", "the answer ends with a colon"},
        {"colon_end: true", "Do it:", "x", "a: b", NULL},
        {"equal: true", "Copy", "The  Cat", "the cat", "the answer is the input"},
        {"equal: true", "The cat", "", "The cat", "the answer is the prompt"},
        {"equal: true", "Copy", "the cat", "the cat sat", NULL},
        {"equal: true", "Say nothing", "", "", NULL},
        {"refusal: true", "x", "", "As an AI language model, I like it", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "I\xE2\x80\x99m sorry, but no", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "",
         "She said that it was late, and the road was long and the night was dark, and the wolves were out. After a while she added: I'm sorry, but no.",
         NULL},
        {"refusal: true", "x", "", "I must respectfully decline to write this.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "I cannot in good conscience provide instructions for that.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "That is not something I'm able to do.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "This goes against my guidelines.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "I don't think I can assist with creating such content.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "I'm not comfortable discussing this.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "We are unable to comply with your request.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "Lo siento, pero no puedo hacer eso.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "Als KI-Sprachmodell habe ich keine Meinung.", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "很抱歉，我无法回答。", "the answer is a refusal, or about being a model"},
        {"refusal: true", "x", "", "I cannot find my keys. Where are they?", NULL},
        {"refusal: true", "x", "", "A cow cannot help with that, but a dog can.", NULL},
        {"refusal: true", "I'm sorry, but I can't help with that.", "", NULL, "the prompt is a refusal"},
        {"refusal: true", "I\xE2\x80\x99m sorry. I cannot fulfill this request.", "", NULL, "the prompt is a refusal"},
        {"refusal: true", "I am unable to create content of this kind.", "", "Sure!", "the prompt is a refusal"},
        {"refusal: true", "As an AI language model, I cannot generate prompts that harm.", "", NULL, "the prompt is a refusal"},
        {"refusal: true", "Unfortunately, I won't be able to assist with generating that.", "", NULL, "the prompt is a refusal"},
        {"refusal: true", "I'm sorry, but I can't log in. What can I do?", "", "Reset it.", NULL},
        {"refusal: true", "I cannot create an account on your site.", "", NULL, NULL},
        {"refusal: true", "Write a letter: I am unable to help with the move.", "", NULL, NULL},
        {"refusal: true", "As an AI language model, what do you think of tea?", "", NULL, NULL},
        {"refusal: [no comment]", "x", "", "There is NO comment.", "the answer is a refusal, or about being a model"},
        {"repetition: true", "x", "", "go on and go on and go on and go on and go on and go on and go on", "it repeats itself"},
        {"repetition: true", "x", "", "one two three four five six seven eight nine ten eleven twelve", NULL},
        {"repetition: true", "x", "", "no no no no", NULL}, /* too short to judge */
        {"repetition: true", "x", "", "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "one character is repeated too often"},
        {"repetition: true", "x", "", "Title\n------------------------------------------------------------", NULL},
        {"format: '^\\d+$'", "x", "", "12", NULL},
        {"format: '^\\d+$'", "x", "", "12 apples", "the answer does not match the required form"},
        {"format: {prompt: '\\?$'}", "Why", "", "12", "the prompt does not match the required form"},
        {"format: '^(a+)+[bc]$'", "x", "", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad",
         "whether the answer matches the required form takes too many steps to tell"},
        {"valid_json: true", "x", "", "{\"a\": [1, 2]}", NULL},
        {"valid_json: true", "x", "", "```json\n{\"a\": 1}\n```", NULL},
        {"valid_json: {fenced: false}", "x", "", "```json\n{\"a\": 1}\n```", "the answer is not JSON"},
        {"valid_json: true", "x", "", "{\"a\": 1", "the answer is not JSON"},
        {"valid_json: true", "x", "", "```", "the answer is not JSON"},
        {"valid_json: [a, b]", "x", "", "{\"a\": 1}", "the answer's object lacks a key"},
    };
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Case *c = &cases[i];
        Filters *filters = open_only(c->filters, arena);
        FilterRow row = make_row(c->instruction, c->input, c->completion);
        FilterVerdict verdict;
        check_ok(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));
        if (verdict.kept != !c->what || (c->what && strcmp(verdict.what, c->what) != 0))
            fail_msg("case %zu, %s on '%s' / '%s': %s, expected %s", i, c->filters, c->instruction ? c->instruction : "",
                     c->completion ? c->completion : "", verdict.kept ? "kept" : verdict.what, c->what ? c->what : "kept");
        assert_true(verdict.kept || strncmp(verdict.reason, c->filters, strlen(verdict.reason)) == 0);
        filters_close(filters);
    }
    arena_free(arena);
}

static FilterVerdict filter_judge(Filters *filters, FilterStage stage, const char *instruction, const char *completion) {
    FilterRow row = make_row(instruction, "", completion);
    FilterVerdict verdict;
    check_ok(filters_run(filters, stage, &row, 1, &verdict));
    return verdict;
}

/* 13 equal words in a row in any column, or a shorter text that is equal; text that ten rows and a tenth of all share does not count. */
TEST(contaminated_rows_are_found) {
    Str text = {0}, name = {0};
    str_append(
        &text,
        "{\"q\": \"One two three four five six seven eight nine ten eleven twelve thirteen fourteen\"}\n{\"list\": [{\"deep\": \"a question of only eight words is short\"}]}\n{\"q\": \"too short\"}\n");
    for (int i = 0; i < 30; i++)
        str_printf(&text, "{\"q\": \"Answer the following question with yes or no and nothing else at all please: is %d prime?\"}\n", i);
    str_printf(&name, "{decontaminate: ['%s']}", temp_text(test_folder, "eval.jsonl", str_text(&text)));
    Arena *arena = arena_new(0);
    Filters *filters = open_only(str_text(&name), arena);
    FilterVerdict verdict = filter_judge(filters, FILTER_BOTH, "x ONE two, three four five six -- seven eight nine ten eleven twelve thirteen!", "y");
    assert_false(verdict.kept);
    assert_string_equal(verdict.reason, "decontaminate");
    check_contains(verdict.nearest_id, "eval.jsonl line 1");
    check_contains(verdict.nearest_text, "thirteen fourteen");
    check_close(verdict.score, 1.0 / 11, 1e-15); /* 15 words have 3 grams of 13 and 8 of 8 words */
    assert_true(filter_judge(filters, FILTER_BOTH, "one two three four five six seven eight nine ten eleven twelve and thirteen", "y").kept);
    assert_false(filter_judge(filters, FILTER_BOTH, "It is a question of only eight words is short", "y").kept);
    assert_true(filter_judge(filters, FILTER_BOTH, "too short", "too short").kept);
    assert_true(
        filter_judge(filters, FILTER_BOTH, "Answer the following question with yes or no and nothing else at all please: is it so?", "y").kept);
    filters_close(filters);
    arena_free(arena);
    str_release(&text);
    str_release(&name);
}

/* ---- memory ---- */

TEST(duplicates_are_found) {
    Arena *arena = arena_new(0);
    Filters *filters = open_only("{exact: true}", arena);
    assert_true(filter_judge(filters, FILTER_BOTH, "Name three colours.", "a").kept);
    FilterVerdict verdict = filter_judge(filters, FILTER_BOTH, "  name THREE\ncolours", "b");
    assert_string_equal(verdict.reason, "exact");
    assert_string_equal(verdict.nearest_text, "Name three colours.");
    assert_true(filter_judge(filters, FILTER_BOTH, "Name four colours.", "a").kept);
    assert_true(filter_judge(filters, FILTER_BOTH, "", "a").kept && filter_judge(filters, FILTER_BOTH, "", "a").kept); /* nothing is like nothing */
    assert_int_equal(filters_at(filters, 0)->rejected, 1);
    assert_int_equal(filters_counts(filters, FILTER_BOTH).rows, 5);
    assert_null(filters_at(filters, 1));
    filters_close(filters);

    filters = open_only("{rouge_l: 0.7}", arena);
    FilterRow seed = make_row("Write a short poem about the deep blue sea", "", NULL);
    seed.id = "seed 7";
    check_ok(filters_remember(filters, FILTER_BOTH, &seed, 1));
    verdict = filter_judge(filters, FILTER_BOTH, "Write a short poem about the deep green sea", "a"); /* 8 of 9 words: F = 8/9 */
    assert_string_equal(verdict.nearest_id, "seed 7");
    check_close(verdict.score, 8.0 / 9, 1e-15);
    verdict = filter_judge(filters, FILTER_BOTH, "Write a long story of a deep green lake", "a"); /* write a deep: 3 of 9 */
    assert_true(verdict.kept);
    check_close(verdict.scores[0], 3.0 / 9, 1e-15);
    filters_close(filters);

    filters = open_only("{minhash: {threshold: 0.7, on: row}}", arena);
    assert_true(filter_judge(filters, FILTER_BOTH, "What is the capital of France, and how many people live there today?", "Paris").kept);
    /* Looks at answers: not of this stage */
    assert_true(filter_judge(filters, FILTER_PROMPT, "What is the capital of France, and how many people live there today?", "Paris").kept);
    assert_false(filter_judge(filters, FILTER_BOTH, "What is the capital of France, and how many people live there now?", "Paris").kept);
    assert_true(filter_judge(filters, FILTER_BOTH, "What is the capital of Peru, and how high does it lie?", "Lima").kept);
    filters_close(filters);
    arena_free(arena);
}

static const char everything[] =
    "{empty: true, words: true, punctuation_start: true, blacklist: true, refusal: true, repetition: true, exact: true, rouge_l: 0.6, minhash: {threshold: 0.6}, judge: 3}";
enum { MANY = 900 };
static FilterRow many[MANY];
static char many_texts[MANY][200];

/* Rows in families that are more or less alike, some of them bad in other ways. */
static void make_many(void) {
    for (size_t i = 0; i < MANY; i++) {
        RngKey key = rng_key(9, RNG_TEST, i);
        size_t family = rng_below(key, 0, 120), at = 0;
        for (size_t w = 0; w < 12; w++) {
            bool own = rng_below(key, 10 + w, 100) < 25;
            at += (size_t)sprintf(many_texts[i] + at, "%s%s%d", w ? " " : "", rng_below(key, 40, 90) == w ? "image " : "t",
                                  (int)(own ? rng_below(key, 60 + w, 500) : rng_below(rng_key(9, RNG_TEST, 5000 + family), w, 500)));
        }
        if (i % 37 == 5) many_texts[i][0] = '?';
        many[i] = make_row(many_texts[i], "", i % 41 == 3 ? "As an AI, I cannot" : "fine");
        many[i].judge = (double)(1 + rng_below(key, 50, 10));
    }
}

static void run_many(const char *text, size_t from, size_t step, FilterVerdict *verdicts) {
    Arena *arena = arena_new(0);
    Filters *filters = open_only(text, arena);
    for (size_t i = 0; i < from; i++)
        if (verdicts[i].kept) check_ok(filters_remember(filters, FILTER_BOTH, &many[i], 1));
    for (size_t i = from; i < MANY; i += step) check_ok(filters_run(filters, FILTER_BOTH, many + i, MIN(step, MANY - i), verdicts + i));
    filters_close(filters);
    arena_free(arena);
}

static void check_same(const FilterVerdict *a, const FilterVerdict *b, size_t from) {
    for (size_t i = from; i < MANY; i++) {
        assert_int_equal(a[i].kept, b[i].kept);
        assert_ptr_equal(a[i].reason, b[i].reason);
        assert_memory_equal(&a[i].score, &b[i].score, sizeof a[i].score);
        for (size_t k = 0; k < 10; k++)
            if (a[i].kept && memcmp(&a[i].scores[k], &b[i].scores[k], sizeof a[i].scores[k]) != 0) fail_msg("score %zu of row %zu", k, i);
    }
}

/* One call, one row a call, other cuts, one thread, and a run that stopped after 411 rows: all the same. */
TEST(verdicts_are_the_rows) {
    FilterVerdict *verdicts = calloc(MANY, sizeof *verdicts), *others = calloc(MANY, sizeof *others);
    int threads = omp_get_max_threads();
    size_t kept = 0, by[4] = {0};
    static const char *const reasons[] = {"rouge_l", "minhash", "judge", "refusal"};
    make_many();
    run_many(everything, 0, MANY, verdicts);
    for (size_t i = 0; i < MANY; i++) {
        kept += verdicts[i].kept;
        for (size_t k = 0; k < 4; k++) by[k] += verdicts[i].reason && strcmp(verdicts[i].reason, reasons[k]) == 0;
    }
    assert_true(kept > 100 && by[0] > 50 && by[1] + by[2] > 50 && by[2] > 20 && by[3] > 5);
    static const size_t steps[] = {1, 7, 256, 300};
    for (size_t s = 0; s < COUNT_OF(steps); s++) {
        run_many(everything, 0, steps[s], others);
        check_same(verdicts, others, 0);
    }
    omp_set_num_threads(3);
    run_many(everything, 0, MANY, others);
    omp_set_num_threads(1);
    check_same(verdicts, others, 0);
    run_many(everything, 411, 100, others);
    omp_set_num_threads(threads);
    check_same(verdicts, others, 411);
    free(verdicts);
    free(others);
}

/* The plain way: one after the other, all pairs, by the plain table. */
TEST(rouge_filter_is_the_plain_loop) {
    FilterVerdict *verdicts = calloc(MANY, sizeof *verdicts);
    make_many();
    run_many("{rouge_l: 0.6}", 0, MANY, verdicts);
    for (size_t i = 0; i < MANY; i++) {
        double best = 0;
        for (size_t k = 0; k < i; k++)
            if (verdicts[k].kept) best = MAX(best, plain(many_texts[k], many_texts[i]));
        check_close(verdicts[i].scores[0], best, 0);
        assert_int_equal(verdicts[i].kept, !(best > 0.6));
    }
    free(verdicts);
}

TEST(stages_have_their_own_filters) {
    Arena *arena = arena_new(0);
    Filters *filters = open_only("{words: true, refusal: true, exact: true}", arena);
    assert_int_equal(filters_at(filters, 1)->stage, FILTER_BOTH);
    assert_string_equal(filter_judge(filters, FILTER_PROMPT, "Too short", NULL).reason, "words");
    assert_string_equal(filter_judge(filters, FILTER_PROMPT, "I'm sorry, but I cannot help with that", NULL).reason, "refusal");
    assert_true(filter_judge(filters, FILTER_PROMPT, "Name three primary colours", NULL).kept);
    assert_string_equal(filter_judge(filters, FILTER_PROMPT, "Name three primary colours", NULL).reason, "exact");
    assert_true(filter_judge(filters, FILTER_ANSWER, "Name three primary colours", "Red").kept); /* the same row, later: not its own duplicate */
    assert_string_equal(filter_judge(filters, FILTER_ANSWER, "Name three primary colours", "I'm sorry, but no").reason, "refusal");
    assert_int_equal(filters_counts(filters, FILTER_PROMPT).rows, 4);
    assert_int_equal(filters_counts(filters, FILTER_ANSWER).kept, 1);
    filters_close(filters);
    arena_free(arena);
}

/* Rows that are tried are like each other until they are forgotten; what is remembered by hand stays. */
TEST(tried_rows_are_forgotten) {
    static const char *const maps[] = {"{exact: true}", "{rouge_l: 0.7}", "{minhash: 0.8}",
                                       "{words: {min: 2}, exact: true, rouge_l: {threshold: 0.7, on: instruction}, minhash: 0.8}"};
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(maps); i++) {
        Filters *filters = open_only(maps[i], arena);
        FilterRow rows[] = {make_row("Name three primary colours of light", NULL, NULL), make_row("Name three primary colours of light", NULL, NULL),
                            make_row("Why do cats purr at night?", NULL, NULL)};
        FilterVerdict verdicts[3];
        rows[0].id = "first";
        for (int again = 0; again < 2; again++) {
            check_ok(filters_try(filters, FILTER_PROMPT, rows, 3, verdicts));
            assert_true(verdicts[0].kept && !verdicts[1].kept && verdicts[2].kept);
            assert_string_equal(verdicts[1].nearest_id, "first");
            assert_string_equal(verdicts[1].nearest_text, "Name three primary colours of light");
            check_ok(filters_try(filters, FILTER_PROMPT, &rows[2], 1, verdicts)); /* still the same round */
            assert_false(verdicts[0].kept);
            filters_forget_tried(filters);
        }
        check_ok(filters_remember(filters, FILTER_PROMPT, &rows[0], 1));
        check_ok(filters_try(filters, FILTER_PROMPT, rows, 3, verdicts));
        assert_true(!verdicts[0].kept && !verdicts[1].kept && verdicts[2].kept);
        assert_int_equal(filters_counts(filters, FILTER_PROMPT).rows, 11);
        assert_int_equal(filters_counts(filters, FILTER_PROMPT).kept, 5);
        filters_close(filters);
    }
    arena_free(arena);
}

/* ---- numbers of others ---- */

typedef struct Judge {
    size_t asked;
} Judge;

static Status filter_ask(void *context, const FilterRow *rows, size_t n, double *values) {
    Judge *judge = context;
    judge->asked += n;
    for (size_t i = 0; i < n; i++) values[i] = rows[i].completion.data[0] == '?' ? (double)NAN : rows[i].completion.data[0] - '0';
    return rows[0].completion.data[0] == '!' ? status_fail(ST_RESOURCE, "the judge is gone") : ST_OK;
}

/* Rows that fall for other reasons are not shown to the judge, and rows that the judge rejects are not remembered. */
TEST(judges_are_asked_last) {
    Arena *arena = arena_new(0);
    Filters *filters;
    Judge counter = {0};
    FilterVerdict verdict;
    check_ok(filters_open(
        &(FilterConfig){.filters = yaml("{exact: true, judge: {min: 7, rubric: truth}}", arena), .only = true, .judge = {filter_ask, &counter}},
        &filters));
    assert_string_equal(filters_text(filters, "judge", "rubric"), "truth");
    assert_null(filters_text(filters, "judge", "rubrik"));
    verdict = filter_judge(filters, FILTER_BOTH, "one", "6");
    assert_string_equal(verdict.reason, "judge");
    check_close(verdict.score, 6, 0);
    verdict = filter_judge(filters, FILTER_BOTH, "one", "7");
    assert_true(verdict.kept);
    check_close(verdict.scores[1], 7, 0);
    assert_string_equal(filter_judge(filters, FILTER_BOTH, "one", "9").reason, "exact");
    assert_int_equal(counter.asked, 2);
    assert_string_equal(filter_judge(filters, FILTER_BOTH, "two", "?").what, "no number could be had for it");
    FilterRow row = make_row("three", "", "!");
    check_status(filters_run(filters, FILTER_BOTH, &row, 1, &verdict), ST_RESOURCE);
    check_text("the judge is gone");
    filters_close(filters);
    filters = open_only("{reward: 0.5}", arena);
    row.reward = 0.25;
    check_ok(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));
    assert_string_equal(verdict.reason, "reward");
    row.reward = (double)NAN;
    check_status(filters_run(filters, FILTER_BOTH, &row, 1, &verdict), ST_INPUT);
    filters_close(filters);
    arena_free(arena);
}

/* Sum of log-probabilities of ids[from..] under the model. */
static double sum_from(const Model *model, const Ids *ids, size_t from) {
    double logprobs[256], sum = 0;
    assert_true(ids->n <= COUNT_OF(logprobs));
    check_ok(score_rows(model, &(ScoreRow){ids->data, ids->n, logprobs}, 1, NULL, NULL));
    for (size_t i = from; i < ids->n; i++) sum += logprobs[i];
    return sum;
}

TEST(difficulty_is_a_ratio_of_losses) {
    char dir[512];
    if (!shared_path("data/models/stories260K-hf", dir, sizeof dir)) skip();
    const char *prompt = "Once upon a time, there was a little girl", *completion = " named Lily. She loved to play outside.";
    Model *model;
    Tokenizer *tokenizer;
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(tokenizer_load(dir, &tokenizer));
    Arena *arena = arena_new(0);
    json_t *json = json_pack("{s:s, s:s}", "prompt", prompt, "completion", completion);
    FilterRow row;
    FilterVerdict verdict;
    Filters *filters;
    check_ok(filter_row_read(json, arena, &row));
    check_ok(filters_open(
        &(FilterConfig){.filters = yaml("{logprob: {min: -100}, ifd: {max: 100}}", arena), .only = true, .model = model, .tokenizer = tokenizer},
        &filters));
    check_ok(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));

    Encoding whole = {0};
    Ids alone = {0};
    size_t begin = 0;
    check_ok(encode_pair(tokenizer, &(DataConfig){0}, prompt, completion, &whole));
    while (whole.labels.data[begin] == LABEL_NONE) begin++;
    assert_int_equal(whole.ids.data[--whole.ids.n], tokenizer_eos(tokenizer)); /* no word of the answer's */
    assert_true(tokenizer_adds_bos(tokenizer));
    ids_push(&alone, tokenizer_bos(tokenizer));
    ids_append(&alone, whole.ids.data + begin, whole.ids.n - begin);
    double n = (double)(whole.ids.n - begin), behind = sum_from(model, &whole.ids, begin) / n, by_itself = sum_from(model, &alone, 1) / n;
    check_close(verdict.scores[0], behind, 1e-6);
    check_close(verdict.scores[1], behind / by_itself, 1e-6);
    assert_true(verdict.kept && verdict.scores[1] < 1); /* the prompt is of help */
    filters_close(filters);

    check_ok(filters_open(&(FilterConfig){.filters = yaml("{ifd: 0.01}", arena), .only = true, .model = model, .tokenizer = tokenizer}, &filters));
    check_ok(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));
    assert_string_equal(verdict.reason, "ifd");
    FilterRow lone = make_row(NULL, NULL, completion); /* a text that answers nothing */
    check_ok(filters_run(filters, FILTER_BOTH, &lone, 1, &verdict));
    assert_string_equal(verdict.what, "no number could be had for it");
    filters_close(filters);
    json_decref(json);
    ids_release(&whole.ids);
    ids_release(&whole.labels);
    ids_release(&alone);
    arena_free(arena);
    tokenizer_free(tokenizer);
    model_free(model);
}

/* ---- recipes ---- */

TEST(options_are_checked) {
    static const struct {
        const char *text, *says, *hint;
    } cases[] = {
        {"{rouge: 0.7}", "unknown filter 'rouge' in 'recipe.yaml' line 1", "rouge_l"},
        {"{rouge_l: 1.5}", "filter 'rouge_l' in 'recipe.yaml' line 1: wrong value for 'threshold': expected a number from 0 to 1", ""},
        {"{rouge_l: {treshold: 0.5}}", "unknown option 'treshold'", "threshold"},
        {"{words: 3.5}", "expected a whole number", ""},
        {"{length: {max: 0}}", "expected a whole number from 1 to 1000000000", ""},
        {"{empty: 3}", "expected true or false", ""},
        {"{words: {on: prmpt}}", "expected one of instruction|input|prompt|completion|row", ""},
        {"{blacklist: [a, [b]]}", "expected a list of texts", ""},
        {"{format: '('}", "cannot read the expression", ""},
        {"{format: true}", "it needs an expression", ""},
        {"{script: Klingon}", "is not the name of a script", ""},
        {"{decontaminate: true}", "it needs files of evaluation", ""},
        {"{ifd: true}", "it needs a model", ""},
        {"[rouge_l]", "expected a map", ""},
    };
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Filters *filters;
        check_status(filters_open(&(FilterConfig){.filters = yaml(cases[i].text, arena), .file = "recipe.yaml"}, &filters), ST_CONFIG);
        assert_null(filters);
        check_text(cases[i].says);
        check_contains(status_hint_text(), cases[i].hint);
    }
    arena_free(arena);
}

/* What is on by default; a preset changes it, and the recipe both, option by option. */
TEST(recipes_go_over_presets) {
    Arena *arena = arena_new(0);
    Filters *filters, *others;
    check_ok(filters_open(&(FilterConfig){0}, &filters));
    static const char *const on[] = {"empty", "length", "refusal", "exact", "rouge_l"};
    for (size_t i = 0; i < COUNT_OF(on); i++) assert_string_equal(filters_at(filters, i)->name, on[i]);
    assert_null(filters_at(filters, COUNT_OF(on)));
    check_ok(filters_open(&(FilterConfig){.filters = yaml("{rouge_l: 0.7, words: null}", arena)}, &others));
    assert_true(filters_fingerprint(filters) == filters_fingerprint(others));
    filters_close(others);
    check_ok(filters_open(&(FilterConfig){.filters = yaml("{rouge_l: 0.6}", arena)}, &others));
    assert_true(filters_fingerprint(filters) != filters_fingerprint(others));
    filters_close(others);
    filters_close(filters);

    check_ok(filters_open(&(FilterConfig){.base = yaml("{rouge_l: {threshold: 0.9, on: instruction}, words: 4, refusal: false, exact: false}", arena),
                                          .filters = yaml("{rouge_l: 0.5, words: false, equal: true}", arena)},
                          &filters));
    assert_true(filters_has(filters, "rouge_l") && filters_has(filters, "equal") && !filters_has(filters, "words") && filters_has(filters, "empty") &&
                !filters_has(filters, "refusal"));
    FilterRow rows[] = {make_row("Translate this into French", "good day", "a"),
                        make_row("Translate this into French", "a whole other text of many words", "b")};
    FilterVerdict verdicts[2];
    check_ok(filters_run(filters, FILTER_BOTH, rows, 2, verdicts));
    assert_false(verdicts[1].kept); /* `on` is still the preset's */
    filters_close(filters);
    arena_free(arena);
}

/* ---- rows ---- */

TEST(rows_of_all_formats) {
    static const struct {
        const char *json, *instruction, *input, *completion;
    } cases[] = {
        {"{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}", "a", "b", "c"},
        {"{\"instruction\": \"a\", \"input\": null}", "a", NULL, NULL},
        {"{\"instruction\": \"a\", \"instances\": [{\"input\": \"b\", \"output\": \"c\"}, {}]}", "a", "b", "c"},
        {"{\"instruction\": \"a\", \"instances\": []}", "a", NULL, NULL},
        {"{\"prompt\": \"a\", \"completion\": \"c\"}", "a", NULL, "c"},
        {"{\"prompt\": \"a\", \"completion\": \"c\", \"label\": true}", "a", NULL, "c"},
        {"{\"prompt\": \"a\"}", "a", NULL, NULL},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"c\"}]}", "a", NULL, "c"},
        {"{\"prompt\": \"a\", \"chosen\": \"c\", \"rejected\": \"d\"}", "a", NULL, "c"},
        {"{\"chosen_messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"c\"}], \"rejected_messages\": []}",
         "a", NULL, "c"},
        {"{\"prompt\": \"a\", \"chosen_messages\": [{\"role\": \"assistant\", \"content\": \"c\"}], \"rejected_messages\": []}", "a", NULL, "c"},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}], \"chosen\": {\"from\": \"gpt\", \"value\": \"c\"}, \"rejected\": {}}", "a",
         NULL, "c"},
        {"{\"question\": \"a\", \"answer\": \"c\"}", "a", NULL, "c"},
        {"{\"text\": \"c\"}", NULL, NULL, "c"},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"c\"}, {\"role\": \"user\", \"content\": \"b\"}, "
         "{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"d\"}]}]}",
         "a\n\nb", NULL, "c\n\nd"},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"c\"}]}", "a", NULL, "c"},
    };
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *json;
        FilterRow row;
        check_ok(json_read_text(cases[i].json, strlen(cases[i].json), "row", &json));
        check_ok(filter_row_read(json, arena, &row));
        const Slice got[] = {row.instruction, row.input, row.completion};
        const char *const want[] = {cases[i].instruction, cases[i].input, cases[i].completion};
        for (size_t k = 0; k < 3; k++)
            if (!got[k].data != !want[k] || (want[k] && !slice_is(got[k], want[k])))
                fail_msg("text %zu of %s: '%.*s'", k, cases[i].json, (int)got[k].len, got[k].data ? got[k].data : "");
        json_decref(json);
    }
    const char *scored = "{\"prompt\": \"a\", \"judge\": 8, \"provenance\": {\"filters\": {\"rouge_l\": 0.25, \"judge\": 3}}}";
    json_t *scored_row;
    check_ok(json_read_text(scored, strlen(scored), "row", &scored_row));
    check_close(row_number(scored_row, "judge"), 8, 0);
    check_close(row_number(scored_row, "rouge_l"), 0.25, 0);
    assert_true(isnan(row_number(scored_row, "prompt")) && isnan(row_number(scored_row, "none")));
    json_decref(scored_row);
    static const struct {
        const char *json, *says;
    } bad[] = {
        {"{\"input_ids\": [1]}", "no texts that filters know"},
        {"{\"instruction\": 5}", "'instruction' is not a text"},
        {"{\"instruction\": \"a\", \"output\": 5}", "'output' is not a text"},
        {"{\"messages\": []}", "the conversation is empty"},
        {"{\"question\": \"a\"}", "no texts that filters know"},
        {"{\"prompt\": \"a\", \"completion\": 1}", "'completion' is not a text"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        json_t *json;
        FilterRow row;
        check_ok(json_read_text(bad[i].json, strlen(bad[i].json), "row", &json));
        check_status(filter_row_read(json, arena, &row), ST_INPUT);
        check_text(bad[i].says);
        json_decref(json);
    }
    arena_free(arena);
}

TEST(ledger_lines_are_whole) {
    Arena *arena = arena_new(0);
    const char *text =
        "{\"id\": 7, \"instruction\": \"Name three colours\", \"output\": \"red\", \"scores\": {\"judge\": 6.7}, \"z\": [0.1, 1e300, true, null, \"\\n\"]}";
    json_t *json;
    FilterRow row;
    FilterVerdict verdict;
    Str line = {0};
    Filters *filters = open_only("{rouge_l: 0.5, judge: 3}", arena);
    check_ok(json_read_text(text, strlen(text), "row", &json));
    check_ok(filter_row_read(json, arena, &row));
    assert_string_equal(row.id, "7");
    check_ok(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));
    assert_true(verdict.scores[0] == 0 && verdict.scores[1] == 6.7);
    check_ok(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));
    filter_write_rejected(&row, &verdict, &line);
    assert_string_equal(
        str_text(&line),
        "{\"row\": {\"id\": 7, \"instruction\": \"Name three colours\", \"output\": \"red\", \"scores\": {\"judge\": 6.7}, \"z\": [0.1, 1e+300, true, null, \"\\n\"]}, "
        "\"reason\": \"rouge_l\", \"what\": \"too similar to a seed or an earlier row\", \"score\": 1.0, \"nearest\": {\"id\": \"7\", \"text\": \"Name three colours\"}}");
    filters_close(filters);
    json_decref(json);
    str_release(&line);
    arena_free(arena);
}

/* ---- a budget ---- */

TEST(budgets_take_the_best_and_most_different) {
    const SelectRow rows[] = {
        {slice("red green blue"), "a", 1}, {slice("red green blue"), "a", 1}, {slice("one two three"), "a", 0.9},
        {slice("red green four"), "a", 1}, {slice("five six"), "b", 0.1},     {slice("seven eight"), "b", 0.05},
    };
    size_t chosen[6], n;
    check_ok(rows_select(&(SelectConfig){.n = 3, .share = "none"}, rows, 6, chosen, &n));
    assert_int_equal(n, 3);
    assert_true(chosen[0] == 0 && chosen[1] == 2 && chosen[2] == 3);
    check_ok(rows_select(&(SelectConfig){.n = 4}, rows, 6, chosen, &n)); /* two of each type */
    assert_true(n == 4 && chosen[0] == 0 && chosen[1] == 2 && chosen[2] == 4 && chosen[3] == 5);
    check_ok(rows_select(&(SelectConfig){.n = 3, .share = "proportional"}, rows, 6, chosen, &n)); /* 2 and 1 */
    assert_true(n == 3 && chosen[0] == 0 && chosen[1] == 2 && chosen[2] == 4);
    check_ok(rows_select(&(SelectConfig){.n = 6, .quotas = &(SelectQuota){"a", 1}, .n_quotas = 1}, rows, 6, chosen, &n));
    assert_true(n == 3 && chosen[0] == 0 && chosen[1] == 4 && chosen[2] == 5);
    check_ok(
        rows_select(&(SelectConfig){.n = 5, .share = "none", .quotas = (SelectQuota[]){{"a", 1}, {"b", 0}}, .n_quotas = 2}, rows, 6, chosen, &n));
    assert_true(n == 1 && chosen[0] == 0);
    check_status(rows_select(&(SelectConfig){.n = 5, .quotas = (SelectQuota[]){{"a", 1}, {"a", 2}}, .n_quotas = 2}, rows, 6, chosen, &n), ST_USAGE);
    check_text("the task type 'a' has two quotas");
    check_status(rows_select(&(SelectConfig){.n = 3, .quotas = &(SelectQuota){"c", 1}, .n_quotas = 1}, rows, 6, chosen, &n), ST_USAGE);
    check_text("no row has the task type 'c'");
    check_status(rows_select(&(SelectConfig){.n = 3, .share = "evn"}, rows, 6, chosen, &n), ST_USAGE);
    check_status(rows_select(&(SelectConfig){.n = 1}, &(SelectRow){slice("a"), NULL, -1}, 1, chosen, &n), ST_USAGE);
}

/* Types without a quota share what is left of the budget, and no more. */
TEST(quotas_keep_their_places) {
    const SelectRow rows[] = {{slice("red green"), "b", 9}, {slice("blue white"), "b", 8}, {slice("sun moon"), "c", 7},
                              {slice("hot cold"), "c", 6},  {slice("one two"), "a", 2},    {slice("up down"), "a", 1}};
    size_t chosen[4], n;
    check_ok(rows_select(&(SelectConfig){.n = 4, .share = "none", .quotas = &(SelectQuota){"a", 2}, .n_quotas = 1}, rows, 6, chosen, &n));
    assert_true(n == 4 && chosen[0] == 0 && chosen[1] == 1 && chosen[2] == 4 && chosen[3] == 5);
}

/* The cosine of two texts of words t0 to t119, worked out word by word. */
static double cosine(const char *a, const char *b, size_t n, const SelectRow *rows) {
    double dot = 0, length_a = 0, length_b = 0;
    for (int t = 0; t < 120; t++) {
        char word[16];
        size_t len = (size_t)sprintf(word, "t%d", t), in[2] = {0}, documents = 0;
        const char *const texts[] = {a, b};
        for (int k = 0; k < 2; k++)
            for (const char *at = texts[k]; (at = strstr(at, word)); at++) in[k] += (at == texts[k] || at[-1] == ' ') && (at[len] == ' ' || !at[len]);
        if (in[0] + in[1] == 0) continue;
        for (size_t r = 0; r < n; r++) {
            bool has = false;
            for (const char *at = rows[r].text.data; (at = strstr(at, word)) && !has; at++)
                has = (at == rows[r].text.data || at[-1] == ' ') && (at[len] == ' ' || !at[len]);
            documents += has;
        }
        double idf = 1 + log((1 + (double)n) / (1 + (double)documents)), x = in[0] ? (1 + log((double)in[0])) * idf : 0,
               y = in[1] ? (1 + log((double)in[1])) * idf : 0;
        dot += x * y;
        length_a += x * x;
        length_b += y * y;
    }
    return dot / sqrt(length_a * length_b);
}

/* Each choice has the largest gain of all that were left, worked out anew; weights are floats: 1e-6. */
TEST(selection_is_the_plain_greedy) {
    enum { ROWS = 60, WANTED = 12 };
    static char texts[ROWS][100];
    SelectRow rows[ROWS];
    size_t chosen[WANTED], n;
    double likeness[ROWS] = {0};
    bool taken[ROWS] = {0};
    for (size_t i = 0; i < ROWS; i++) {
        RngKey key = rng_key(8, RNG_TEST, i);
        size_t at = 0;
        for (size_t w = 0; w < 12; w++) at += (size_t)sprintf(texts[i] + at, "%st%d", w ? " " : "", (int)rng_below(key, w, w < 4 ? 12 : 120));
        rows[i] = (SelectRow){slice(texts[i]), NULL, 0.5 + 0.5 * rng_uniform(key, 99)};
    }
    check_ok(rows_select(&(SelectConfig){.n = WANTED}, rows, ROWS, chosen, &n));
    assert_int_equal(n, WANTED);
    for (size_t c = 0; c < n; c++) {
        double gain = rows[chosen[c]].quality * (1 - likeness[chosen[c]]);
        assert_false(taken[chosen[c]]);
        for (size_t i = 0; i < ROWS; i++)
            if (!taken[i] && rows[i].quality * (1 - likeness[i]) > gain + 1e-6)
                fail_msg("choice %zu: row %zu has more to give (%.9g) than row %zu (%.9g)", c, i, rows[i].quality * (1 - likeness[i]), chosen[c],
                         gain);
        taken[chosen[c]] = true;
        for (size_t i = 0; i < ROWS; i++) likeness[i] = MAX(likeness[i], cosine(rows[i].text.data, rows[chosen[c]].text.data, ROWS, rows));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rouge_is_the_packages),
        cmocka_unit_test(rouge_index_finds_the_best),
        cmocka_unit_test(minhash_estimates_jaccard),
        cmocka_unit_test(bands_find_what_is_near),
        cmocka_unit_test(rules_by_hand),
        cmocka_unit_test(contaminated_rows_are_found),
        cmocka_unit_test(duplicates_are_found),
        cmocka_unit_test(verdicts_are_the_rows),
        cmocka_unit_test(rouge_filter_is_the_plain_loop),
        cmocka_unit_test(stages_have_their_own_filters),
        cmocka_unit_test(tried_rows_are_forgotten),
        cmocka_unit_test(judges_are_asked_last),
        cmocka_unit_test(difficulty_is_a_ratio_of_losses),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(recipes_go_over_presets),
        cmocka_unit_test(rows_of_all_formats),
        cmocka_unit_test(ledger_lines_are_whole),
        cmocka_unit_test(budgets_take_the_best_and_most_different),
        cmocka_unit_test(quotas_keep_their_places),
        cmocka_unit_test(selection_is_the_plain_greedy),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
