/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer models other than BPE, on vocabularies small enough to compute by hand. */
#include "tests/support/check.h"

#include <string.h>

#include "lib/text/text.h"

static Tokenizer *tokenizer_of(const char *json) {
    Tokenizer *tokenizer;
    check_ok(tokenizer_load(temp_text(test_folder, "tokenizer.json", json), &tokenizer));
    return tokenizer;
}

static void check_refused(const char *json, const char *part) {
    Tokenizer *tokenizer = (Tokenizer *)&test_folder;
    check_status(tokenizer_load(temp_text(test_folder, "tokenizer.json", json), &tokenizer), ST_INPUT);
    assert_null(tokenizer);
    check_text(part);
}

static void check_encode_as(const char *json, const char *text, const int32_t *want, size_t n) {
    Tokenizer *tokenizer = tokenizer_of(json);
    Ids ids = {0};
    check_ok(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_PLAIN, &ids));
    check_ids(text, ids.data, ids.n, want, n);
    ids_release(&ids);
    tokenizer_free(tokenizer);
}
#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define check_encode(json, text, ...) check_encode_as("{" json "}", text, IDS(__VA_ARGS__))

static void check_encode_fails(const char *json, const char *text, const char *part) {
    Tokenizer *tokenizer = tokenizer_of(json);
    Ids ids = {0};
    check_status(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_PLAIN, &ids), ST_INPUT);
    check_text(part);
    assert_int_equal(ids.n, 0);
    ids_release(&ids);
    tokenizer_free(tokenizer);
}

/* ---- Unigram ---- */

#define UNIGRAM(list, more) "\"model\":{\"type\":\"Unigram\",\"vocab\":[" list "]" more "}"
#define ABC "[\"<unk>\",0],[\"a\",-2],[\"b\",-2],[\"ab\",-3],[\"abc\",-9],[\"c\",-5.5],[\"\xC3\xA9\",-4]"
#define UNK ",\"unk_id\":0"

TEST(unigram_takes_the_best_sum) {
    check_encode(UNIGRAM(ABC, UNK), "ab", 3);     /* -3 before -4 */
    check_encode(UNIGRAM(ABC, UNK), "abc", 3, 5); /* -8.5 before -9 */
    check_encode(UNIGRAM(ABC, UNK), "abab", 3, 3);
    check_encode(UNIGRAM(ABC, UNK), "ba\xC3\xA9", 2, 1, 6);
    check_encode(UNIGRAM("[\"a\",-1],[\"aa\",-2]", ""), "aaa", 0, 1);        /* equal sums: the way that was found first stays */
    check_encode(UNIGRAM("[\"a\",-1],[\"a\",-3],[\"aa\",-4]", ""), "aa", 2); /* of two equal tokens the later one counts */
    check_encode_as("{" UNIGRAM(ABC, UNK) "}", "", NULL, 0);
}

TEST(unigram_joins_unknown_characters) {
    check_encode(UNIGRAM(ABC, UNK), "axyzb", 1, 0, 2);
    check_encode(UNIGRAM(ABC, UNK), "<unk>", 0);
    check_encode(UNIGRAM(ABC, UNK),
                 "\xE4\xB8\x80"
                 "a",
                 0, 1);
    check_encode_fails("{" UNIGRAM(ABC, "") "}", "ax", "'x' is not in the vocabulary");
#define FALLBACK ABC ",[\"<0xE4>\",-20],[\"<0xB8>\",-20],[\"<0x80>\",-20],[\"<0x81>\",-20]"
    check_encode(UNIGRAM(FALLBACK, UNK ",\"byte_fallback\":true"), "a\xE4\xB8\x80\xE4\xB8\x81", 1, 7, 8, 9, 7, 8, 10);
    check_encode(UNIGRAM(FALLBACK, UNK ",\"byte_fallback\":true"), "a\xE4\xB8\x80x", 1, 0); /* one byte of the run is missing: all of it is unknown */
}

TEST(unigram_offsets) {
    Tokenizer *tokenizer = tokenizer_of("{" UNIGRAM(FALLBACK, UNK ",\"byte_fallback\":true") "}");
    Ids ids = {0}, offsets = {0};
    check_ok(tokenizer_encode_offsets(tokenizer, "ab\xE4\xB8\x80", 5, TOKENIZE_PLAIN, &ids, &offsets));
    static const int32_t want[] = {0, 2, 2, 3, 3, 4, 4, 5};
    check_ids("offsets", offsets.data, offsets.n, want, COUNT_OF(want));
    ids_release(&ids);
    ids_release(&offsets);
    tokenizer_free(tokenizer);
}

TEST(broken_unigrams_are_refused) {
    check_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":{\"a\":1}}}", "a list of tokens and scores");
    check_refused("{" UNIGRAM("[\"a\"]", "") "}", "wrong token 0");
    check_refused("{" UNIGRAM("[\"a\",1],[\"b\",\"1\"]", "") "}", "wrong token 1");
    check_refused("{" UNIGRAM("[\"a\",1],[2,1]", "") "}", "wrong token 1");
    check_refused("{" UNIGRAM("[\"a\",1],\"b\"", "") "}", "wrong token 1");
    check_refused("{" UNIGRAM("[\"a\",1]", ",\"unk_id\":1") "}", "'unk_id'");
    check_refused("{" UNIGRAM("", ",\"unk_id\":0") "}", "'unk_id'");
    check_refused("{" UNIGRAM("[\"a\",1]", ",\"unk_id\":\"<unk>\"") "}", "'unk_id'");
    check_refused("{" UNIGRAM("[\"a\",1]", ",\"unk_id\":-5") "}", "'unk_id'");
    check_encode_fails("{" UNIGRAM("", "") "}", "a", "'a' is not in the vocabulary");
}

/* ---- WordPiece ---- */

#define PIECES(more)                                                                                                                                                                          \
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":8,\"vocab\":{\"[UNK]\":0,\"un\":1,\"##aff\":2,\"##able\":3," \
    "\"##a\":4,\"a\":5,\"##\":6,\"\xC3\xA9\":7,\"##\xC3\xA9\":8,\"#\":9,\"u\":10}" more "}"

TEST(word_piece_takes_the_longest) {
    check_encode(PIECES(""), "unaffa", 1, 2, 4);
    check_encode(PIECES(""), "unable", 1, 3);
    check_encode(PIECES(""), "a\xC3\xA9", 5, 8);
    check_encode(PIECES(""), "unax", 0); /* one piece is missing: the word is unknown */
    check_encode(PIECES(""), "##a", 4);  /* the prefix in the text itself */
    check_encode(PIECES(""), "aaaaaaaa", 5, 4, 4, 4, 4, 4, 4, 4);
    check_encode(PIECES(""), "aaaaaaaaa", 0);                                                                             /* nine characters */
    check_encode(PIECES(""), "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 7, 8, 8, 8, 8, 8, 8, 8); /* eight, though 16 bytes */
    check_encode(PIECES("") ",\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}", "un a una", 1, 5, 1, 4);
    /* a file that does not say its type */
    check_encode("\"model\":{\"continuing_subword_prefix\":\"##\",\"unk_token\":\"x\",\"vocab\":{\"a\":1,\"##b\":2}}", "ab", 1, 2);
    check_encode("\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"\",\"vocab\":{\"a\":1,\"ab\":2}}", "aab", 1, 2);
}

TEST(word_piece_failures) {
    check_encode_fails("{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[X]\",\"continuing_subword_prefix\":\"##\",\"vocab\":{\"a\":1}}}", "ab",
                       "'[X]' is not in the vocabulary");
    check_encode_fails("{\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"##\",\"vocab\":{\"a\":1}}}", "ab", "no 'unk_token'");
    check_refused("{\"model\":{\"type\":\"WordPiece\",\"vocab\":[]}}", "'vocab'");
    check_refused("{\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":-1,\"vocab\":{}}}", "'max_input_chars_per_word'");
    check_refused("{\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":\"8\",\"vocab\":{}}}", "'max_input_chars_per_word'");
}

/* ---- WordLevel ---- */

TEST(word_level_knows_whole_words) {
#define WORDS \
    "\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"<unk>\":0,\"hello\":1,\"a\":2},\"unk_token\":\"<unk>\"},\"pre_tokenizer\":{\"type\":\"Whitespace\"}"
    check_encode(WORDS, "hello a hell", 1, 2, 0);
    check_encode_fails("{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":2}}}", "b", "no 'unk_token'");
}

/* A megabyte of one character, and one long word, for each kind. A quadratic way would take hours, not the test's patience. */
TEST(hostile_texts) {
    static const char *const tokenizers[] = {
        "{" UNIGRAM(ABC ",[\" \",-1],[\"aaaa\",-3]", UNK) "}",
        "{" UNIGRAM(ABC ",[\"\xE2\x96\x81\",-1],[\"\xE2\x96\x81"
                        "a\",-3]",
                    UNK) ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\"}}",
        "{" PIECES("") "}",
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100000000,\"vocab\":{\"u\":0,\"a\":1,\"##a\":2,\"##aaa\":3}}}",
        "{" WORDS "}",
    };
    static const char *const parts[] = {"a", " ", "abc", "\xC3\xA9", "x"};
    for (size_t t = 0; t < COUNT_OF(tokenizers); t++) {
        Tokenizer *tokenizer = tokenizer_of(tokenizers[t]);
        for (size_t p = 0; p < COUNT_OF(parts); p++) {
            Str text = {0};
            Ids ids = {0};
            while (text.len < 1000000) str_append(&text, parts[p]);
            check_ok(tokenizer_encode(tokenizer, text.data, text.len, TOKENIZE_PLAIN, &ids));
            str_release(&text);
            ids_release(&ids);
        }
        tokenizer_free(tokenizer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unigram_takes_the_best_sum),
        cmocka_unit_test(unigram_joins_unknown_characters),
        cmocka_unit_test(unigram_offsets),
        cmocka_unit_test(broken_unigrams_are_refused),
        cmocka_unit_test(word_piece_takes_the_longest),
        cmocka_unit_test(word_piece_failures),
        cmocka_unit_test(word_level_knows_whole_words),
        cmocka_unit_test(hostile_texts),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
