/* SPDX-License-Identifier: Apache-2.0 */
/* Training of byte-level BPE: against a plain way of doing it, and against merges that another program found. */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

#include "lib/text/text.h"

static const char *const end_of_text[] = {"<|endoftext|>"};

static BpeTrained tokenizer_train_on(const char *const *texts, size_t n, size_t vocab_size) {
    BpeTrainer *trainer;
    BpeTrained trained;
    check_ok(bpe_trainer_new(vocab_size, end_of_text, 1, &trainer));
    for (size_t i = 0; i < n; i++) check_ok(bpe_trainer_add(trainer, texts[i], strlen(texts[i])));
    check_ok(bpe_trainer_finish(trainer, &trained));
    bpe_trainer_free(trainer);
    return trained;
}

static json_t *merges_of(const BpeTrained *trained) {
    json_t *root;
    check_ok(json_read_text(str_text(&trained->json), trained->json.len, "trained", &root));
    json_t *merges = json_incref(json_object_get(json_object_get(root, "model"), "merges"));
    json_decref(root);
    return merges;
}

static void check_merges(const char *text, size_t vocab_size, const char *const *want, size_t n) {
    BpeTrained trained = tokenizer_train_on(&text, 1, vocab_size);
    json_t *merges = merges_of(&trained);
    assert_int_equal(json_array_size(merges), n);
    for (size_t i = 0; i < n; i++) assert_string_equal(json_string_value(json_array_get(merges, i)), want[i]);
    assert_int_equal(trained.vocab_size, 257 + n);
    json_decref(merges);
    str_release(&trained.json);
}
#define MERGES(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

TEST(frequent_pairs_come_first) {
    /* The example of the paper, with its counts; among equals the last of the alphabet: "st" before "es". */
    check_merges("low low low low low lower lower newest newest newest newest newest newest widest widest widest", 257 + 3,
                 MERGES("s t", "e st", "o w"));
    check_merges("ab ab", 257 + 3, MERGES("a b", "\xC4\xA0 ab")); /* no pair is left after two */
    check_merges("aaaa", 257 + 9, MERGES("a a", "aa aa"));
    check_merges("aaaaa", 257 + 9, MERGES("a a", "aa aa", "aaaa a"));
    check_merges("\xC3\xA9", 257 + 1, MERGES("\xC3\x83 \xC2\xA9"));
    check_merges("", 257 + 1, NULL, 0);
    check_merges("ab<|endoftext|>ab", 257 + 9, MERGES("a b")); /* nothing of the special token is counted */
}

/* ---- the plain way: all counts anew for each merge ---- */

typedef struct PlainWord {
    char symbols[64][32];
    size_t n;
} PlainWord;

static size_t plain_words(const char *text, PlainWord *words) {
    size_t n = 0;
    for (const char *c = text; *c; c++) {
        if (*c == ' ' || c == text) words[n++].n = 0;
        PlainWord *word = &words[n - 1];
        word->symbols[word->n][0] = *c;
        word->symbols[word->n++][1] = '\0';
    }
    return n;
}

static void plain_best(const PlainWord *words, size_t n, char best[2][32]) {
    size_t most = 0;
    for (size_t w = 0; w < n; w++)
        for (size_t i = 0; i + 1 < words[w].n; i++) {
            const char *left = words[w].symbols[i], *right = words[w].symbols[i + 1];
            size_t count = 0;
            for (size_t v = 0; v < n; v++)
                for (size_t k = 0; k + 1 < words[v].n; k++)
                    count += strcmp(words[v].symbols[k], left) == 0 && strcmp(words[v].symbols[k + 1], right) == 0;
            int order = most ? strcmp(left, best[0]) : 1;
            if (order == 0) order = strcmp(right, best[1]);
            if (count < most || (count == most && order <= 0)) continue;
            most = count;
            memcpy(best[0], left, sizeof best[0]);
            memcpy(best[1], right, sizeof best[1]);
        }
    if (most == 0) best[0][0] = '\0';
}

static void plain_merge(PlainWord *words, size_t n, char best[2][32]) {
    for (size_t w = 0; w < n; w++)
        for (size_t i = 0; i + 1 < words[w].n; i++) {
            if (strcmp(words[w].symbols[i], best[0]) != 0 || strcmp(words[w].symbols[i + 1], best[1]) != 0) continue;
            strcat(words[w].symbols[i], best[1]);
            words[w].n--;
            memmove(words[w].symbols[i + 1], words[w].symbols[i + 2], (words[w].n - i - 1) * sizeof words[w].symbols[0]);
        }
}

/* Few letters, so that there are many equal counts, overlaps and tokens that two pairs give. */
TEST(merges_equal_the_plain_way) {
    static PlainWord words[64];
    uint32_t seed = 11;
    for (int round = 0; round < 60; round++) {
        char text[256], best[2][32];
        size_t len = 40 + (seed = seed * 1664525 + 1013904223) / 65536 % 160, n = 0;
        for (size_t i = 0, run = 0; i < len; i++) {
            uint32_t draw = (seed = seed * 1664525 + 1013904223) / 65536;
            run = i > 0 && text[i - 1] != ' ' && (draw % 6 == 0 || run > 20) ? 0 : run + 1;
            text[i] = run == 0 ? ' ' : (char)('a' + draw / 8 % (round % 2 ? 2 : 4));
        }
        text[len] = '\0';
        const char *list[] = {text};
        BpeTrained trained = tokenizer_train_on(list, 1, 257 + 40);
        json_t *merges = merges_of(&trained);
        size_t n_words = plain_words(text, words), n_tokens = 257;
        for (; n_tokens < 257 + 40; n++) {
            plain_best(words, n_words, best);
            if (!best[0][0]) break;
            char want[80];
            snprintf(want, sizeof want, "%s%s %s", best[0][0] == ' ' ? "\xC4\xA0" : "", best[0] + (best[0][0] == ' '), best[1]);
            const char *got = json_string_value(json_array_get(merges, n));
            if (!got || strcmp(got, want) != 0)
                fail_msg("round %d, merge %zu of '%s': got '%s', want '%s'", round, n, text, got ? got : "none", want);
            plain_merge(words, n_words, best);
            bool known = false; /* a token may come from two pairs */
            char joined[80];
            snprintf(joined, sizeof joined, "%s%s", best[0], best[1]);
            for (size_t k = 0; k < n && !known; k++) {
                char before[80], *space;
                snprintf(before, sizeof before, "%s", json_string_value(json_array_get(merges, k)));
                space = strchr(before, ' ');
                memmove(space, space + 1, strlen(space));
                snprintf(want, sizeof want, "%s%s", joined[0] == ' ' ? "\xC4\xA0" : "", joined + (joined[0] == ' '));
                known = strcmp(before, want) == 0;
            }
            n_tokens += !known;
        }
        assert_int_equal(json_array_size(merges), n);
        json_decref(merges);
        str_release(&trained.json);
    }
}

/* A long text is counted in several parts; the same text as many documents, cut where no word is, in another order. */
TEST(cuts_and_order_do_not_matter) {
    Str text = {0};
    uint32_t seed = 3;
    while (text.len < 3 << 20) {
        seed = seed * 1664525 + 1013904223;
        str_printf(&text, "w%u%s", seed >> 20, seed / 65536 % 7 ? " " : "\n\n ");
    }
    str_append(&text, "\n\n end");
    const char *texts[] = {text.data};
    BpeTrained whole = tokenizer_train_on(texts, 1, 600), parts;
    BpeTrainer *trainer;
    check_ok(bpe_trainer_new(600, end_of_text, 1, &trainer));
    for (size_t end = text.len; end > 0;) {
        size_t start = end - 1;
        while (start > 0 && !(text.data[start] == '\n' && text.data[start - 1] != '\n' && text.data[start - 1] != ' ')) start--;
        check_ok(bpe_trainer_add(trainer, text.data + start, end - start));
        end = start;
    }
    check_ok(bpe_trainer_finish(trainer, &parts));
    assert_string_equal(whole.json.data, parts.json.data);
    bpe_trainer_free(trainer);
    str_release(&whole.json);
    str_release(&parts.json);
    str_release(&text);
}

TEST(the_reference) {
    char corpus[512], path[512];
    if (!shared_path("data/tokenizers/bpe-training/corpus.en", corpus, sizeof corpus)) skip();
    assert_true(shared_path("data/tokenizers/bpe-training/train-bpe-reference-merges.txt", path, sizeof path));
    Str text = {0};
    check_ok(file_read(corpus, 1 << 20, &text));
    const char *texts[] = {text.data};
    BpeTrained trained = tokenizer_train_on(texts, 1, 500);
    json_t *merges = merges_of(&trained), *root, *vocab;
    Lines lines;
    Slice line;
    size_t n = 0;
    check_ok(lines_open(&lines, path));
    for (; lines_next(&lines, &line); n++) assert_true(slice_is(line, json_string_value(json_array_get(merges, n))));
    check_ok(lines_close(&lines));
    assert_int_equal(n, json_array_size(merges));
    assert_true(shared_path("data/tokenizers/bpe-training/train-bpe-reference-vocab.json", path, sizeof path));
    check_ok(json_read_file(path, &vocab));
    check_ok(json_read_text(str_text(&trained.json), trained.json.len, "trained", &root));
    assert_true(json_equal(json_object_get(json_object_get(root, "model"), "vocab"), vocab));
    json_decref(root);
    json_decref(vocab);
    json_decref(merges);
    str_release(&trained.json);
    str_release(&text);
}

/* What was trained can be used: any text comes back from its ids. */
TEST(any_text_comes_back) {
    const char *texts[] = {"the cat sat on the mat. \xC3\xA9t\xC3\xA9, \xE4\xB8\xAD\xE6\x96\x87 and \xF0\x9F\x99\x82 the end"};
    BpeTrained trained = tokenizer_train_on(texts, 1, 300);
    Tokenizer *tokenizer;
    check_ok(tokenizer_load(temp_text(test_folder, "tokenizer.json", trained.json.data), &tokenizer));
    uint32_t seed = 5;
    for (int round = 0; round < 3000; round++) {
        Str text = {0}, back = {0};
        Ids ids = {0};
        for (size_t n = (seed = seed * 1664525 + 1013904223) / 65536 % 20; n > 0; n--) {
            static const uint32_t limits[] = {0x80, 0x800, 0x10000, 0x110000};
            uint32_t draw = (seed = seed * 1664525 + 1013904223) >> 8, c = draw % limits[draw / 4096 % 4];
            char bytes[4];
            if (c == 0 || (c >= 0xD800 && c < 0xE000)) c = ' ';
            str_append_n(&text, bytes, utf8_encode(c, bytes));
        }
        check_ok(tokenizer_encode(tokenizer, str_text(&text), text.len, TOKENIZE_SPECIAL, &ids));
        check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, false, &back));
        if (text.len != back.len || memcmp(str_text(&text), str_text(&back), text.len) != 0)
            fail_msg("'%s' came back as '%s'", str_text(&text), str_text(&back));
        str_release(&text);
        str_release(&back);
        ids_release(&ids);
    }
    tokenizer_free(tokenizer);
    str_release(&trained.json);
}

TEST(a_long_word_takes_little_time) {
    Str text = {0};
    uint32_t seed = 5;
    for (int i = 0; i < 1000000; i++) str_append_char(&text, (char)('a' + (seed = seed * 1664525 + 1013904223) / 65536 % 20));
    const char *texts[] = {text.data};
    BpeTrained trained = tokenizer_train_on(texts, 1, 4000);
    assert_int_equal(trained.vocab_size, 4000);
    str_release(&trained.json);
    str_release(&text);
}

TEST(wrong_requests) {
    BpeTrainer *trainer;
    static const char *const empty[] = {""}, *const twice[] = {"<a>", "<b>", "<a>"}, *const byte[] = {"\xC4\xA0"}, *const broken[] = {"<\xC3>"};
    check_status(bpe_trainer_new(256, end_of_text, 1, &trainer), ST_USAGE);
    check_text("need 257");
    assert_null(trainer);
    check_status(bpe_trainer_new((size_t)1 << 40, end_of_text, 1, &trainer), ST_USAGE);
    check_status(bpe_trainer_new(300, empty, 1, &trainer), ST_USAGE);
    check_status(bpe_trainer_new(300, twice, 3, &trainer), ST_USAGE);
    check_text("'<a>' is given twice");
    check_status(bpe_trainer_new(300, byte, 1, &trainer), ST_USAGE);
    check_status(bpe_trainer_new(300, broken, 1, &trainer), ST_USAGE);
    check_ok(bpe_trainer_new(300, NULL, 0, &trainer));
    check_status(bpe_trainer_add(trainer, "ab\xFF", 3), ST_INPUT);
    check_text("byte 2");
    bpe_trainer_free(trainer);
    bpe_trainer_free(NULL);
}

/* A merge whose token would be written like a special one is left out. */
TEST(special_tokens_stay_special) {
    static const char *const special[] = {"\xC4\xA0"
                                          "a"};
    BpeTrainer *trainer;
    BpeTrained trained;
    check_ok(bpe_trainer_new(256 + 1 + 9, special, 1, &trainer));
    check_ok(bpe_trainer_add(trainer, "x a a a ab", 10));
    check_ok(bpe_trainer_finish(trainer, &trained));
    json_t *merges = merges_of(&trained);
    assert_int_equal(json_array_size(merges), 2);
    assert_string_equal(json_string_value(json_array_get(merges, 0)), "a b");
    json_decref(merges);
    str_release(&trained.json);
    bpe_trainer_free(trainer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequent_pairs_come_first),
        cmocka_unit_test(merges_equal_the_plain_way),
        cmocka_unit_test(cuts_and_order_do_not_matter),
        cmocka_unit_test(the_reference),
        cmocka_unit_test(any_text_comes_back),
        cmocka_unit_test(a_long_word_takes_little_time),
        cmocka_unit_test(wrong_requests),
        cmocka_unit_test(special_tokens_stay_special),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
