/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers: ids of real ones against what their authors' libraries gave, and the logic of every part on vocabularies of a few tokens. */
#include "lib/base/system.h"
#include "tests/support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/text/text.h"

/* ---- small tokenizers, written down as tests need them ---- */

/* Characters and merges of "he", "hel", "llo", "hello", "▁h", "▁hello" and of spaces; all ids below 64. */
#define CHARS \
    "\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"h\":6,\"l\":7,\"o\":8,\"1\":9,\"2\":10,\"!\":11,\"\xE2\x96\x81\":12,\"\xC4\xA0\":13,\"\xC3\x83\":14,\"\xC2\xA9\":15,\" \":16"
#define WORDS "\"he\":20,\"ll\":21,\"llo\":22,\"hello\":23,\"\xE2\x96\x81h\":24,\"\xC4\xA0hello\":25,\"ab\":26,\"12\":27,\"aa\":28,\"aaaa\":29"
#define MERGES "\"h e\",\"l l\",\"ll o\",\"he llo\",\"\xC4\xA0 hello\",[\"a\",\"b\"],[\"1\",\"2\"],[\"a\",\"a\"],[\"aa\",\"aa\"]"
#define MODEL(more) "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<unk>\":0," CHARS "," WORDS "},\"merges\":[" MERGES "]" more "}"
#define SPECIAL(id, text, more) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":true" more "}"

static Tokenizer *tokenizer_of(const char *json) {
    Tokenizer *tokenizer;
    check_ok(tokenizer_load(temp_text(test_folder, "tokenizer.json", json), &tokenizer));
    return tokenizer;
}

static void check_encode_as(const char *json, TokenizeFlags flags, const char *text, const int32_t *want, size_t n) {
    Tokenizer *tokenizer = tokenizer_of(json);
    Ids ids = {0};
    check_ok(tokenizer_encode(tokenizer, text, strlen(text), flags, &ids));
    check_ids(text, ids.data, ids.n, want, n);
    ids_release(&ids);
    tokenizer_free(tokenizer);
}
#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define check_list(what, ids, ...) check_list_as(what, ids, IDS(__VA_ARGS__))
static void check_list_as(const char *what, const Ids *ids, const int32_t *want, size_t n) { check_ids(what, ids->data, ids->n, want, n); }
#define check_encode(json, text, ...) check_encode_as("{" json "}", TOKENIZE_PLAIN, text, IDS(__VA_ARGS__))

static void check_refused(const char *json, const char *part) {
    Tokenizer *tokenizer = (Tokenizer *)&test_folder;
    check_status(tokenizer_load(temp_text(test_folder, "tokenizer.json", json), &tokenizer), ST_INPUT);
    assert_null(tokenizer);
    check_text(part);
}

TEST(merges_go_by_rank) {
    check_encode(MODEL(""), "hello", 23);
    check_encode(MODEL(""), "helllo", 20, 21, 7, 8); /* the leftmost "ll" first */
    check_encode(MODEL(""), "aaaaaaa", 29, 28, 1);
    check_encode(MODEL(""), "aab", 1, 26); /* "a b" ranks before "a a" */
    check_encode(MODEL(",\"ignore_merges\":true"), "\xE2\x96\x81h", 24);
    check_encode(MODEL(""), "\xE2\x96\x81h", 12, 6); /* in the vocabulary, but no merge makes it */
    check_encode_as("{" MODEL("") "}", TOKENIZE_PLAIN, "", NULL, 0);
}

/* Nested repeats on a few letters: refused in a fraction of a second, and no text without matches. */
TEST(a_pattern_that_takes_too_many_steps_is_refused) {
    static const char split[] = "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+[bc]\"},\"behavior\":\"Isolated\"},";
    Str json = {0};
    str_printf(&json, "{%s%s}", split, MODEL(""));
    Tokenizer *tokenizer = tokenizer_of(str_text(&json));
    Ids ids = {0};
    check_ok(tokenizer_encode(tokenizer, "aab", 3, TOKENIZE_PLAIN, &ids));
    clock_t start = clock();
    check_status(tokenizer_encode(tokenizer, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad", 38, TOKENIZE_PLAIN, &ids), ST_INPUT);
    check_text("cannot match the pattern '(a+)+[bc]' of the tokenizer: match limit exceeded");
    assert_true(clock() - start < 2 * CLOCKS_PER_SEC);
    ids_release(&ids);
    tokenizer_free(tokenizer);
    str_release(&json);
}

/* Long words take another way than short ones; both must agree with the definition, which this is. */
static size_t merge_plainly(const char *word, int32_t *ids) {
    static const struct {
        int32_t left, right, id;
    } merges[] = {{6, 5, 20}, {7, 7, 21}, {21, 8, 22}, {20, 22, 23}, {13, 23, 25}, {1, 2, 26}, {9, 10, 27}, {1, 1, 28}, {28, 28, 29}};
    static const char letters[] = "?abcdehlo12";
    size_t n = 0;
    for (; word[n]; n++) ids[n] = (int32_t)(strchr(letters, word[n]) - letters);
    for (size_t rank = 0; rank < COUNT_OF(merges); rank++) {
        for (size_t i = 0; i + 1 < n; i++) {
            if (ids[i] != merges[rank].left || ids[i + 1] != merges[rank].right) continue;
            ids[i] = merges[rank].id;
            memmove(ids + i + 1, ids + i + 2, (--n - i - 1) * sizeof *ids);
        }
    }
    return n; /* in one round over the ranks, because here no merge makes a pair of a lower rank */
}

TEST(long_words_merge_as_short_ones) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") "}");
    static const char letters[] = "abehlo12";
    char word[600];
    int32_t want[600];
    uint32_t seed = 1;
    for (int round = 0; round < 400; round++) {
        size_t len = 1 + (seed = seed * 1664525 + 1013904223) / 65536 % (round % 2 ? 40 : 500);
        for (size_t i = 0; i < len; i++) word[i] = letters[(seed = seed * 1664525 + 1013904223) / 65536 % (round % 3 ? 8 : 2)];
        word[len] = '\0';
        Ids ids = {0};
        check_ok(tokenizer_encode(tokenizer, word, len, TOKENIZE_PLAIN, &ids));
        check_ids(word, ids.data, ids.n, want, merge_plainly(word, want));
        ids_release(&ids);
    }
    tokenizer_free(tokenizer);
}

TEST(unknown_characters) {
    check_encode(MODEL(""), "axxb", 26); /* no token for them: they vanish */
    check_encode(MODEL(",\"unk_token\":\"<unk>\""), "axxb", 1, 0, 0, 2);
    check_encode(MODEL(",\"unk_token\":\"<unk>\",\"fuse_unk\":true"), "axxb", 1, 0, 2);
    Tokenizer *tokenizer = tokenizer_of("{" MODEL(",\"unk_token\":\"[X]\"") "}");
    Ids ids = {0};
    check_ok(tokenizer_encode(tokenizer, "ab", 2, TOKENIZE_PLAIN, &ids));
    check_status(tokenizer_encode(tokenizer, "abx", 3, TOKENIZE_PLAIN, &ids), ST_INPUT);
    check_text("'[X]' is not in the vocabulary");
    assert_int_equal(ids.n, 1); /* a failure adds nothing */
    ids_release(&ids);
    tokenizer_free(tokenizer);
}

#define BYTE_MODEL                                                                                                                                                     \
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"ab\":3,\"\xE2\x96\x81\":4," \
    "\"<0xC3>\":5,\"<0xA9>\":6,\"\xE2\x96\x81"                                                                                                                         \
    "ab\":7,\"<0xE2>\":8,\"<0x82>\":9,\"<0xAC>\":10},\"merges\":[\"a b\",\"\xE2\x96\x81 ab\"]}"
#define LLAMA_DECODER                                                                                                                                                   \
    ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"}," \
    "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
#define LLAMA_NORMALIZER \
    ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]}"

TEST(bytes_stand_in_for_characters) {
    check_encode(BYTE_MODEL LLAMA_NORMALIZER, "ab", 7);
    check_encode(BYTE_MODEL LLAMA_NORMALIZER, "ab ab\xC3\xA9", 7, 7, 5, 6);
    check_encode(BYTE_MODEL LLAMA_NORMALIZER, "\xE4\xB8\x80", 4, 0); /* not all of its bytes have tokens */
    check_encode_as("{" BYTE_MODEL LLAMA_NORMALIZER "}", TOKENIZE_PLAIN, "", NULL, 0);
}

/* A word is cut where no token reaches over, before a mark: the ids must not notice. */
TEST(marks_divide_long_texts) {
    Tokenizer *tokenizer = tokenizer_of("{" BYTE_MODEL LLAMA_NORMALIZER LLAMA_DECODER "}");
    Str text = {0}, back = {0};
    Ids ids = {0}, offsets = {0};
    for (int i = 0; i < 300; i++) str_append(&text, i % 7 ? "ab " : "b\xE2\x82\xAC  ");
    check_ok(tokenizer_encode_offsets(tokenizer, text.data, text.len, TOKENIZE_PLAIN, &ids, &offsets));
    check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, false, &back));
    assert_string_equal(back.data, text.data);
    assert_int_equal(offsets.n, 2 * ids.n);
    assert_int_equal(offsets.data[offsets.n - 1], text.len);
    for (size_t i = 1; i < ids.n; i++) assert_true(offsets.data[2 * i] >= offsets.data[2 * i - 2]);
    str_release(&text);
    str_release(&back);
    ids_release(&ids);
    ids_release(&offsets);
    tokenizer_free(tokenizer);
}

#define PRE(json) ",\"pre_tokenizer\":" json
#define BYTE_LEVEL(more) "{\"type\":\"ByteLevel\"" more "}"
TEST(pieces) {
    check_encode(MODEL("") PRE(BYTE_LEVEL("")), "hello hello", 25, 25); /* a space goes before the first word */
    check_encode(MODEL("") PRE(BYTE_LEVEL(",\"add_prefix_space\":false")), "hello hello\xC3\xA9", 23, 25, 14, 15);
    check_encode(MODEL("") PRE(BYTE_LEVEL(",\"add_prefix_space\":false,\"use_regex\":false")), "12", 27);
    check_encode(MODEL("") PRE("{\"type\":\"Digits\",\"individual_digits\":true}"), "ab12", 26, 9, 10);
    check_encode(MODEL("") PRE("{\"type\":\"Digits\",\"individual_digits\":false}"), "ab12a", 26, 27, 1);
    check_encode(MODEL("") PRE("{\"type\":\"Punctuation\"}"), "a!a", 1, 11, 1);
    check_encode(MODEL("") PRE("{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}"), "a!a", 1, 1);
    check_encode(MODEL("") PRE("{\"type\":\"BertPreTokenizer\"}"), "a! b12", 1, 11, 2, 27);
    check_encode(MODEL("") PRE("{\"type\":\"FixedLength\",\"length\":2}"), "aaab1", 28, 26, 9);
    check_encode(MODEL("") PRE("{\"type\":\"FixedLength\",\"length\":3}"), "aaab12", 28, 1, 2, 27);
    check_encode(MODEL("") PRE("{\"type\":\"WhitespaceSplit\"}"), " a \xE3\x80\x80 b! ", 1, 2, 11);
    check_encode(MODEL("") PRE("{\"type\":\"Whitespace\"}"), "a b!", 1, 2, 11);
    check_encode(MODEL("") PRE("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"b\"}"), "abba", 1, 1);
    check_encode(MODEL("") PRE("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\"}"), "a b", 12, 1, 12, 2);
    check_encode(MODEL("") PRE("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"never\"}"), "a b", 1, 12, 2);
    check_encode(MODEL("") PRE("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"add_prefix_space\":true}"), " a", 12, 1);
}

#define SPLIT(behavior, invert) PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}")
TEST(split_behaviors) {
    check_encode(MODEL("") SPLIT("Isolated", "false"), "aabb", 1, 1, 2, 2);
    check_encode(MODEL("") SPLIT("Removed", "false"), "aabb", 2, 2);
    check_encode(MODEL("") SPLIT("Removed", "true"), "aabb", 1, 1);
    check_encode(MODEL("") SPLIT("Contiguous", "false"), "aabb", 28, 2, 2);
    check_encode(MODEL("") SPLIT("MergedWithPrevious", "false"), "baab", 2, 1, 1, 2); /* ba, a, b */
    check_encode(MODEL("") SPLIT("MergedWithNext", "false"), "baab", 2, 1, 26);       /* b, a, ab */
    check_encode(MODEL("") SPLIT("MergedWithNext", "true"), "abab", 1, 2, 1, 2);      /* a, ba, b */
}

TEST(patterns_mean_what_oniguruma_means) {
#define REGEX(regex) PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Removed\"}")
    check_encode(MODEL("") REGEX("a{1,2}+"), "aaaab", 2);  /* an interval and a plus repeat */
    check_encode(MODEL("") REGEX("\\\\h"), "abhel", 6, 7); /* a hexadecimal digit */
    check_encode(MODEL(",\"unk_token\":\"<unk>\"") REGEX("\\\\w+"),
                 "a\xC2\xBD"
                 "b!\xC2\xB2",
                 11); /* a half and a superscript are of words */
    check_encode(MODEL("") REGEX("[^\\\\S]"),
                 "a\xC2\x85"
                 "b",
                 1, 2);
    check_encode(MODEL("") REGEX("^a"), "aa\na", 1); /* a line begins, not only the text */
    check_encode(MODEL("") REGEX("[^\\\\w]"),
                 "a\xC2\xBD"
                 "b",
                 1, 2); /* but in brackets a half is not */
    check_encode(MODEL("") REGEX("[[:punct:]]"),
                 "a\xE2\x82\xAC"
                 "b",
                 1, 2); /* a sign of money is */
    check_encode(MODEL("") REGEX("[[:space:]]"),
                 "a\xC2\x85"
                 "b",
                 1, 2);
    check_refused("{" MODEL("") REGEX("[[:graph:]]") "}", "a named class");
}

TEST(norms) {
#define NORM(json) ",\"normalizer\":" json
    check_encode(MODEL(",\"unk_token\":\"<unk>\"") NORM("{\"type\":\"Lowercase\"}"), "HELLO", 23);
    check_encode(MODEL("") NORM("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}"), "\n a b\t", 1, 16, 2);
    check_encode(MODEL("") NORM("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[x-z]+\"},\"content\":\"ll\"}"), "hexyzo", 23);
    check_encode(MODEL("") NORM("{\"type\":\"Replace\",\"pattern\":{\"String\":\"xy\"},\"content\":\"\"}"), "axyxyb", 26);
    check_encode(MODEL("") NORM("{\"type\":\"NFKC\"}"), "\xEF\xBC\x91\xE2\x91\xA1", 27); /* wide 1, circled 2 */
    /* The accent has no token */
    check_encode(MODEL("") NORM("{\"type\":\"NFD\"}") PRE(BYTE_LEVEL(",\"add_prefix_space\":false")), "\xC3\xA0", 1);
    check_encode(MODEL("") NORM("{\"type\":\"NFC\"}") PRE(BYTE_LEVEL(",\"add_prefix_space\":false")), "e\xCC\x81", 14, 15);
    check_encode(MODEL("") NORM("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"}]}"), "h\xC3\xA9", 20);
    check_encode(MODEL("") NORM("{\"type\":\"ByteLevel\"}"), " hello", 25);
    check_encode(MODEL("") NORM("{\"type\":\"Nmt\"}"),
                 "a\x01\t\xE2\x80\x8B"
                 "b",
                 1, 16, 16, 2);
}

TEST(bert_normalizer) {
#define BERT(more) NORM("{\"type\":\"BertNormalizer\"" more "}")
    check_encode(MODEL(",\"unk_token\":\"<unk>\"") BERT(""), "H\xC3\x89LL\tO\x07", 20, 21, 16, 8);
    check_encode(MODEL(",\"unk_token\":\"<unk>\"") BERT(""),
                 "a\xE4\xB8\x80"
                 "b",
                 1, 16, 0, 16, 2);
    check_encode(MODEL(",\"unk_token\":\"<unk>\"") BERT(",\"lowercase\":false"),
                 "h\xC3\xA9"
                 "A",
                 6, 0, 0); /* accents go with capitals */
    check_encode(MODEL(",\"unk_token\":\"<unk>\"") BERT(",\"lowercase\":false,\"strip_accents\":true"),
                 "h\xC3\xA9"
                 "A",
                 20, 0);
    check_encode(MODEL(",\"unk_token\":\"<unk>\"") BERT(",\"clean_text\":false,\"handle_chinese_chars\":false"), "a\t\xE4\xB8\x80", 1, 0, 0);
}

/* A table of four units that turns U+0002 into "ab". */
#define CHARSMAP(text) NORM("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" text "\"}")
#define AB_MAP "EAAAAAAAAAAAAAAAAgUAAAAAAIBhYgA="
TEST(charsmaps) {
    check_encode(MODEL("") CHARSMAP(AB_MAP),
                 "h\x02"
                 "e\xCC\x81",
                 6, 26, 5);
    check_encode(MODEL("") CHARSMAP(AB_MAP), "\x02\xCC\x81\x02", 26, 26);
    check_refused("{" MODEL("") CHARSMAP("") "}", "its trie");
    check_refused("{" MODEL("") CHARSMAP("AAAA") "}", "its trie");
    check_refused("{" MODEL("") CHARSMAP("/////w==") "}", "its trie");
    check_refused("{" MODEL("") CHARSMAP("A*AA") "}", "not base64");
    check_refused("{" MODEL("") CHARSMAP("BAAAAAAAAAD/") "}", "not UTF-8");
}

/* A megabyte of marks in falling order of their classes must not take quadratic time to sort, nor one of a single letter to merge. */
TEST(hostile_texts_take_little_time) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") NORM("{\"type\":\"NFC\"}") PRE(BYTE_LEVEL(",\"add_prefix_space\":false")) "}");
    static const char *const parts[] = {"a", " ", "\n", "\xCC\x81\xCC\xA3", "a1", "<"};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        Str text = {0};
        Ids ids = {0};
        while (text.len < 1 << 20) str_append(&text, parts[i]);
        double start = clock_seconds();
        check_ok(tokenizer_encode(tokenizer, text.data, text.len, TOKENIZE_PLAIN, &ids));
        double seconds = clock_seconds() - start;
        if (seconds > 20) fail_msg("a megabyte of '%s' took %.1f s", parts[i], seconds); /* 0.2 s when measured; quadratic: hours */
        str_release(&text);
        ids_release(&ids);
    }
    tokenizer_free(tokenizer);
}

/* ---- added tokens ---- */

#define ADDED(list) ",\"added_tokens\":[" list "]"
#define PLAIN(id, text, more) "{\"id\":" #id ",\"content\":\"" text "\",\"normalized\":false" more "}"
TEST(added_tokens) {
    check_encode(MODEL("") ADDED(SPECIAL(40, "<a>", "")), "he<a>he<a", 20, 40, 20, 1);
    check_encode(MODEL("") ADDED(SPECIAL(40, "<a", "") "," SPECIAL(41, "<a>", "")), "<a><a<a", 41, 40, 40); /* the longest */
    check_encode(MODEL("") ADDED(PLAIN(40, "<a>", ",\"lstrip\":true")), "a  <a> b", 1, 40, 16, 2);
    check_encode(MODEL("") ADDED(PLAIN(40, "<a>", ",\"rstrip\":true")), "a <a>  b", 1, 16, 40, 2);
    check_encode(MODEL("") ADDED(PLAIN(40, "hel", ",\"single_word\":true")), "hel hello hel!", 40, 16, 23, 16, 40, 11);
    /* Within a word it is no token of the model's either */
    check_encode(MODEL("") ADDED(PLAIN(40, "z", ",\"single_word\":true")), "hezhe z", 20, 20, 16, 40);
    check_encode(MODEL("") ADDED("{\"id\":40,\"content\":\"HE\",\"normalized\":true}") NORM("{\"type\":\"Lowercase\"}"), "aHeA", 1, 40, 1);
    check_encode(MODEL("") ADDED(PLAIN(40, "HE", "")) NORM("{\"type\":\"Lowercase\"}"), "heHE", 20, 40);
    check_encode(MODEL("") ADDED(SPECIAL(20, "he", "")), "hello", 20, 22); /* one that is in the vocabulary already */
    check_encode_as("{" MODEL("") ADDED(SPECIAL(40, "<a>", "") "," PLAIN(41, "<b>", "")) "}", TOKENIZE_LITERAL, "<a><b>", IDS(1, 41));
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") ADDED(SPECIAL(40, "<a>", "") "," PLAIN(41, "<b>", "")) "}");
    assert_true(tokenizer_is_special(tokenizer, 40));
    assert_false(tokenizer_is_special(tokenizer, 41));
    assert_false(tokenizer_is_special(tokenizer, -1));
    assert_false(tokenizer_is_special(tokenizer, 42));
    assert_int_equal(tokenizer_vocab_size(tokenizer), 42);
    assert_int_equal(tokenizer_id(tokenizer, "<b>"), 41);
    assert_int_equal(tokenizer_id(tokenizer, "<c>"), -1);
    assert_string_equal(tokenizer_token(tokenizer, 23), "hello");
    assert_null(tokenizer_token(tokenizer, 39));
    assert_null(tokenizer_token(tokenizer, -1));
    tokenizer_free(tokenizer);
}

TEST(guarded_tokens_are_plain_text) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") ADDED(SPECIAL(40, "<a>", "") "," PLAIN(41, "<b>", "")) "}");
    static const char text[] = "<a><b><a>he<a>";
    const size_t guards[] = {3, 6, 9, 11};
    size_t begin, end;
    Ids ids = {0};
    check_ok(tokenizer_encode_guarded(tokenizer, text, strlen(text), guards, COUNT_OF(guards), &ids, NULL));
    check_list("guarded", &ids, 40, 41, 1, 20, 1); /* only special tokens are guarded, where they begin */
    assert_true(tokenizer_find_special(tokenizer, text, strlen(text), 1, &begin, &end));
    assert_int_equal(begin, 6);
    assert_int_equal(end, 9);
    assert_false(tokenizer_find_special(tokenizer, text, strlen(text), 12, &begin, &end));
    ids_release(&ids);
    tokenizer_free(tokenizer);
}

/* Ten letters, and one more where the ids have a gap. */
#define TEN_LETTERS "\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,\"g\":6,\"h\":7,\"i\":8,\"j\":9"
#define LETTERS(more) "{\"model\":{\"type\":\"BPE\",\"vocab\":{" TEN_LETTERS more "},\"merges\":[]}"

/* What tokenizers 0.23.3 and transformers 5.24.0 make of the same files. */
TEST(added_tokens_get_the_librarys_ids) {
    static const struct {
        const char *json, *config, *map, *text, *ids;
        int32_t size;
    } cases[] = {
        {LETTERS("") ADDED(SPECIAL(20, "<e>", "") "," SPECIAL(21, "<f>", "")) "}", NULL, NULL, "a<e>b<f>", "0 10 1 11", 12},
        {LETTERS("") ADDED(SPECIAL(10, "<e>", "") "," SPECIAL(30, "<f>", "") "," SPECIAL(12, "<g>", "")) "}", NULL, NULL, "<e><f><g>", "10 11 12",
         13},
        {LETTERS("") ADDED(SPECIAL(11, "<f>", "") "," SPECIAL(10, "<e>", "")) "}", NULL, NULL, "<f><e>", "10 11", 12},
        {LETTERS(",\"zz\":15") ADDED(SPECIAL(16, "<e>", "") "," SPECIAL(11, "<f>", "")) "}", NULL, NULL, "<e><f>", "11 12", 16},
        {LETTERS("") ADDED(SPECIAL(10, "<e>", "")) "}", "{\"eos_token\":\"<e>\",\"pad_token\":\"<p>\"}", NULL, "b<e>c<p>", "1 10 2 11", 12},
        {LETTERS("") ADDED(SPECIAL(10, "<e>", "")) "}",
         "{\"added_tokens_decoder\":{\"40\":{\"content\":\"<p>\"},\"10\":{\"content\":\"<e>\"},\"11\":{\"content\":\"<q>\",\"special\":true}}}", NULL,
         "b<e>c<q><p>", "1 10 2 11 12", 13},
        {LETTERS("") ADDED(SPECIAL(10, "<e>", "")) "}", "{\"eos_token\":\"a\",\"additional_special_tokens\":[\"<q>\"]}", NULL, "ab<q>", "0 1 11", 12},
        {LETTERS("") ADDED(SPECIAL(10, "<e>", "")) "}", "{\"pad_token\":null,\"extra_special_tokens\":{\"image_token\":\"<p>\"}}", NULL, "<e>a<p>",
         "10 0 11", 12},
        {LETTERS("") ADDED(SPECIAL(10, "<e>", "")) "}", "{}", "{\"pad_token\":\"<p>\",\"eos_token\":{\"content\":\"<e>\",\"lstrip\":false}}",
         "<e><p>", "10 11", 12},
        {LETTERS("") "}", "{\"eos_token\":\"<e>\"}", NULL, "a<e>", "0 10", 11},
    };
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Tokenizer *tokenizer;
        Ids ids = {0};
        Str text = {0};
        temp_text(dir, "tokenizer.json", cases[i].json);
        temp_text(dir, "tokenizer_config.json", cases[i].config ? cases[i].config : "{}");
        temp_text(dir, "special_tokens_map.json", cases[i].map ? cases[i].map : "{}");
        check_ok(tokenizer_load(dir, &tokenizer));
        check_ok(tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), TOKENIZE_PLAIN, &ids));
        for (size_t t = 0; t < ids.n; t++) str_printf(&text, "%s%d", t ? " " : "", (int)ids.data[t]);
        assert_string_equal(str_text(&text), cases[i].ids);
        assert_int_equal(tokenizer_vocab_size(tokenizer), cases[i].size);
        tokenizer_free(tokenizer);
        ids_release(&ids);
        str_release(&text);
    }
    temp_dir_remove(dir);
}

TEST(offsets_are_bytes_of_the_text) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") ADDED(SPECIAL(40, "<a>", "")) PRE(
        BYTE_LEVEL(",\"add_prefix_space\":false")) ",\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"b\",2],\"cls\":[\"<a>\",40]}}");
    Ids ids = {0}, offsets = {0};
    const char *text = "he hello<a>\xC3\xA9";
    check_ok(tokenizer_encode_offsets(tokenizer, text, strlen(text), TOKENIZE_SPECIAL, &ids, &offsets));
    check_list("ids", &ids, 40, 20, 25, 40, 14, 15, 2);
    check_list("offsets", &offsets, 0, 0, 0, 2, 2, 8, 8, 11, 11, 12, 12, 13, 0, 0);
    tokenizer_free(tokenizer);
    ids_clear(&ids);
    ids_clear(&offsets);
    tokenizer = tokenizer_of("{" MODEL("") NORM(
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\"},{\"type\":\"NFKC\"},{\"type\":\"Prepend\",\"prepend\":\"b\"}]}") "}");
    text = "  \xEF\xBC\x91"
           "2 ab ";
    check_ok(tokenizer_encode_offsets(tokenizer, text, strlen(text), TOKENIZE_PLAIN, &ids, &offsets));
    check_list("ids", &ids, 2, 27, 16, 26);
    check_list("offsets", &offsets, 2, 5, 2, 6, 6, 7, 7, 9);
    ids_release(&ids);
    ids_release(&offsets);
    tokenizer_free(tokenizer);
}

TEST(post_processors) {
#define TEMPLATE                                                                                                                                \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"B\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}," \
    "{\"SpecialToken\":{\"id\":\"E\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"B\":{\"id\":\"B\",\"ids\":[40,41],\"tokens\":[\"<a>\",\"<b>\"]},\"E\":{\"id\":\"E\",\"ids\":[41],\"tokens\":[\"<b>\"]}}}"
#define TEMPLATED                                           \
    "{" MODEL("") ADDED(SPECIAL(40, "<a>", "") "," SPECIAL( \
        41, "<b>", "")) ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE "]}}"
    check_encode_as(TEMPLATED, TOKENIZE_SPECIAL, "he", IDS(40, 41, 20, 41));
    check_encode_as(TEMPLATED, TOKENIZE_SPECIAL, "", IDS(40, 41, 41));
    check_encode_as(TEMPLATED, TOKENIZE_PLAIN, "he", IDS(20));
    temp_text(test_folder, "tokenizer_config.json", "{\"bos_token\":{\"content\":\"<a>\"},\"eos_token\":\"<b>\",\"pad_token\":null}");
    temp_text(test_folder, "special_tokens_map.json", "{\"bos_token\":\"<b>\",\"pad_token\":\"<a>\"}");
    Tokenizer *tokenizer = tokenizer_of(TEMPLATED);
    assert_int_equal(tokenizer_bos(tokenizer), 40);
    assert_int_equal(tokenizer_eos(tokenizer), 41);
    assert_int_equal(tokenizer_pad(tokenizer), -1);
    assert_true(tokenizer_adds_bos(tokenizer));
    tokenizer_free(tokenizer);
    unlink(temp_file(test_folder, "tokenizer_config.json"));
    tokenizer = tokenizer_of(TEMPLATED);
    assert_int_equal(tokenizer_bos(tokenizer), 41);
    assert_false(tokenizer_adds_bos(tokenizer));
    tokenizer_free(tokenizer);
    unlink(temp_file(test_folder, "special_tokens_map.json"));
}

/* ---- decoding ---- */

static void check_decode_as(const char *json, bool skip, const char *want, const int32_t *ids, size_t n) {
    Tokenizer *tokenizer = tokenizer_of(json);
    Str text = {0};
    check_ok(tokenizer_decode(tokenizer, ids, n, skip, &text));
    assert_string_equal(str_text(&text), want);
    str_release(&text);
    tokenizer_free(tokenizer);
}
#define DECODER(json) ",\"decoder\":" json
#define check_decode(json, want, ...) check_decode_as("{" json "}", false, want, IDS(__VA_ARGS__))

TEST(decoders) {
    check_decode(MODEL("") DECODER("{\"type\":\"ByteLevel\"}"), "hello hello\xC3\xA9\xEF\xBF\xBD", 23, 25, 14, 15, 14);
    check_decode(MODEL("") DECODER("{\"type\":\"ByteLevel\"}") ADDED(SPECIAL(40, "<\xE4\xB8\x80>", "")), "\xEF\xBF\xBD<\xE4\xB8\x80>a", 14, 40, 1);
    check_decode_as("{" MODEL("") DECODER("{\"type\":\"ByteLevel\"}") ADDED(SPECIAL(40, "<a>", "")) "}", true, "\xC3\xA9", IDS(14, 40, 15));
    /* A token of normalised text as the normalizer leaves it: tokenizers 0.23.3 */
    check_decode(MODEL("") DECODER("{\"type\":\"ByteLevel\"}") NORM("{\"type\":\"NFKD\"}")
                     ADDED("{\"id\":40,\"content\":\"\xC3\x9Cn\",\"normalized\":true}," PLAIN(41, "<A>", "")),
                 "U\xCC\x88n<A>", 40, 41);
    check_decode(MODEL("") NORM("{\"type\":\"Lowercase\"}") ADDED("{\"id\":40,\"content\":\"HE\",\"normalized\":true}"), "he a", 40, 1);
    check_decode(MODEL(""), "hello a b", 23, 1, 2);
    check_decode(MODEL("") DECODER("{\"type\":\"Sequence\",\"decoders\":[]}"), "helloab", 23, 1, 2);
    check_refused("{" MODEL("") DECODER("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteLevel\"}]}") "}",
                  "behind one that joins");
    check_decode(BYTE_MODEL LLAMA_DECODER, "ab ab\xC3\xA9", 7, 7, 5, 6);
    check_decode(BYTE_MODEL LLAMA_DECODER,
                 "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                 "a",
                 5, 6, 5, 1); /* one wrong byte spoils the run */
    check_decode(BYTE_MODEL LLAMA_DECODER, " ab", 4, 7);
    check_decode(MODEL("") DECODER("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\"}"), "h h", 24, 24);
    check_decode(MODEL("") DECODER("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"never\"}"), " h h", 24, 24);
    check_decode(MODEL("") DECODER("{\"type\":\"BPEDecoder\",\"suffix\":\"o\"}"), "hell hell", 23, 23);
    check_decode(MODEL("")
                     DECODER("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":2},"
                             "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"l+\"},\"content\":\"L\"}]}"),
                 "aaaaheLobaaheL", 29, 1, 23, 2, 28, 20, 7, 21, 1);
}

/* "he", "##llo", ".", "n't", "<pad>", "|" */
#define PIECES(decoder)                                                                                                                                                   \
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\".\",\"continuing_subword_prefix\":\"##\",\"vocab\":{\"he\":0,\"##llo\":1,\".\":2,\"n't\":3,\"<pad>\":4,\"|\":5}}," \
    "\"decoder\":{" decoder "}"
TEST(word_piece_and_ctc_decoders) {
    check_decode(PIECES("\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true"), "hello. hen't", 0, 1, 2, 0, 3);
    check_decode(PIECES("\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false"), "hello . he n't", 0, 1, 2, 0, 3);
    check_decode(PIECES("\"type\":\"WordPiece\""), "##llo he", 1, 0); /* the first token keeps its prefix */
    check_decode(PIECES("\"type\":\"CTC\",\"pad_token\":\"<pad>\",\"word_delimiter_token\":\"|\",\"cleanup\":true"), "hehe .", 0, 0, 4, 0, 4, 4, 5, 2,
                 2);
    check_decode(PIECES("\"type\":\"CTC\",\"cleanup\":false"), "he|n't", 0, 0, 5, 3);
}

TEST(ids_without_a_token_are_nothing) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") "}");
    static const int32_t absent[] = {-1, 30, 17, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT_OF(absent); i++) {
        int32_t ids[] = {23, absent[i], 1};
        for (int skip = 0; skip < 2; skip++) {
            Str text = {0};
            check_ok(tokenizer_decode(tokenizer, ids, 3, skip, &text));
            assert_string_equal(text.data, "hello a"); /* and no blank for it */
            str_release(&text);
        }
    }
    tokenizer_free(tokenizer);
}

TEST(broken_text_is_refused) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") "}");
    Ids ids = {0};
    check_status(tokenizer_encode(tokenizer, "ab\xC3", 3, TOKENIZE_PLAIN, &ids), ST_INPUT);
    check_text("byte 2 of the text is not UTF-8");
    assert_int_equal(ids.n, 0);
    ids_release(&ids);
    tokenizer_free(tokenizer);
}

/* Random ids one by one: each piece is complete characters, and all pieces together are the same as decoding at once. */
static void check_streams(const Tokenizer *tokenizer, const char *name, int rounds) {
    uint32_t seed = 7;
    for (int round = 0; round < rounds; round++) {
        int32_t ids[24];
        size_t n = (seed = seed * 1664525 + 1013904223) / 65536 % COUNT_OF(ids), got = 0;
        while (got < n) {
            int32_t size = tokenizer_vocab_size(tokenizer),
                    id = (int32_t)((seed = seed * 1664525 + 1013904223) / 256 % (uint32_t)(round % 2 ? size : MIN(size, 260)));
            if (tokenizer_token(tokenizer, id)) ids[got++] = id;
        }
        bool skip = round % 3 == 0;
        Str whole = {0}, sum = {0};
        TextStream stream;
        stream_init(&stream, tokenizer, skip);
        check_ok(tokenizer_decode(tokenizer, ids, n, skip, &whole));
        for (size_t i = 0; i < n; i++) {
            size_t before = sum.len;
            check_ok(stream_push(&stream, ids[i], &sum));
            for (size_t at = before, used; at < sum.len; at += used) {
                uint32_t c;
                used = utf8_decode(sum.data + at, sum.len - at, &c);
                if (used == 0) fail_msg("%s: piece %zu ends inside a character", name, i);
            }
        }
        check_ok(stream_finish(&stream, &sum));
        if (strcmp(str_text(&whole), str_text(&sum)) != 0)
            fail_msg("%s: round %d: stream '%s', at once '%s'", name, round, str_text(&sum), str_text(&whole));
        stream_release(&stream);
        str_release(&whole);
        str_release(&sum);
    }
}

TEST(streams_equal_decoding_at_once) {
    static const char *const tokenizers[] = {
        "{" MODEL("") "}",
        "{" MODEL("") DECODER("{\"type\":\"ByteLevel\"}") ADDED(SPECIAL(40, "<a>", "")) "}",
        "{" BYTE_MODEL LLAMA_DECODER "}",
        "{" MODEL("") DECODER("{\"type\":\"BPEDecoder\",\"suffix\":\"o\"}") "}",
        "{" MODEL("") DECODER("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"}") "}",
        "{" PIECES("\"type\":\"WordPiece\"") "}",
        "{" PIECES("\"type\":\"CTC\"") "}",
        "{" MODEL("")
            DECODER("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},{\"type\":\"Strip\",\"content\":\"a\",\"start\":2,\"stop\":2},"
                    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"hel\"},\"content\":\"\"}]}") "}",
    };
    for (size_t i = 0; i < COUNT_OF(tokenizers); i++) {
        Tokenizer *tokenizer = tokenizer_of(tokenizers[i]);
        check_streams(tokenizer, tokenizers[i], 300);
        tokenizer_free(tokenizer);
    }
}

/* What can be shown is shown at once. */
TEST(streams_hold_back_only_parts) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") DECODER("{\"type\":\"ByteLevel\"}") "}");
    Str text = {0};
    TextStream stream;
    stream_init(&stream, tokenizer, false);
    check_ok(stream_push(&stream, 23, &text));
    assert_string_equal(text.data, "hello");
    check_ok(stream_push(&stream, 14, &text));
    assert_string_equal(text.data, "hello");
    check_ok(stream_push(&stream, 15, &text));
    assert_string_equal(text.data, "hello\xC3\xA9");
    check_ok(stream_push(&stream, 99, &text)); /* no token: nothing */
    check_ok(stream_finish(&stream, &text));
    assert_string_equal(text.data, "hello\xC3\xA9");
    str_release(&text);
    tokenizer_free(tokenizer);
}

/* ---- what is refused, and how it is said ---- */

TEST(wrong_files_are_refused) {
    check_refused("{\"model\":{", "cannot parse JSON");
    check_refused("[]", "it has no 'model'");
    check_refused("{}", "it has no 'model'");
    check_refused("{\"model\":{\"type\":\"Morphemes\",\"vocab\":[]}}", "model 'Morphemes'");
    check_refused("{\"model\":{\"vocab\":{}}}", "no 'type'");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "'vocab'");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", "wrong id of token 'a'");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "wrong id of token 'a'");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4000000000},\"merges\":[]}}", "wrong id of token 'a'");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "id 1");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1}}}", "'merges'");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"a\"]}}", "wrong merge 0");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[[\"a\"]]}}", "wrong merge 0");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"a b\"]}}", "not in the vocabulary: 'b'");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"a a\"]}}", "not in the vocabulary: 'aa'");
    check_refused("{" MODEL(",\"dropout\":0.1") "}", "'dropout'");
    check_refused("{" MODEL("") ADDED(SPECIAL(1, "<a>", "")) "}", "id 1");
    check_refused("{" MODEL("") ADDED(SPECIAL(40, "a", "")) "}", "two ids");
    check_refused("{" MODEL("") ADDED("{\"id\":40}") "}", "'content'");
    check_refused("{" MODEL("") ADDED("1") "}", "'added_tokens'");
    check_refused("{" MODEL("") NORM("{\"type\":\"Precompiled\"}") "}", "'precompiled_charsmap'");
    check_refused("{" MODEL("") NORM("{\"type\":\"Rot13\"}") "}", "normalizer 'Rot13'");
    check_refused("{" MODEL("") PRE("{\"type\":\"FixedLength\",\"length\":0}") "}", "'length'");
    check_refused("{" MODEL("") NORM("{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Glob\":\"*\"}}") "}", "'pattern'");
    check_refused("{" MODEL("") PRE("{\"type\":\"UnicodeScripts\"}") "}", "pre_tokenizer 'UnicodeScripts'");
    check_refused("{" MODEL("") PRE("{\"type\":\"Sequence\"}") "}", "'pretokenizers'");
    check_refused("{" MODEL("") PRE("[]") "}", "'type'");
    check_refused("{" MODEL("") SPLIT("Sideways", "false") "}", "'Sideways'");
    check_refused("{" MODEL("") REGEX("(a") "}", "'(a'");
    check_refused("{" MODEL("") REGEX("[a&&b]") "}", "intersection");
    check_refused("{" MODEL("") REGEX("[a[b]]") "}", "class inside a class");
    check_refused("{" MODEL("") PRE("{\"type\":\"Metaspace\",\"replacement\":\"__\"}") "}", "one character");
    check_refused("{" MODEL("") DECODER("{\"type\":\"Morphemes\"}") "}", "decoder 'Morphemes'");
    check_refused("{" MODEL("") ",\"post_processor\":{\"type\":\"Other\"}}", "post_processor 'Other'");
    check_refused("{" MODEL("") ",\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"x\",99],\"cls\":[\"a\",1]}}", "id 99");
    check_refused("{" MODEL("") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", "'single'");
    unlink(temp_file(test_folder, "tokenizer.json"));
    Tokenizer *tokenizer;
    check_status(tokenizer_load(test_folder, &tokenizer), ST_INPUT);
    check_contains(status_hint_text(), "merges.txt");
}

TEST(deep_nesting_is_refused) {
    Str json = {0};
    str_append(&json, "{" MODEL("") ",\"decoder\":");
    for (int i = 0; i < 100; i++) str_append(&json, "{\"type\":\"Sequence\",\"decoders\":[");
    for (int i = 0; i < 100; i++) str_append(&json, "]}");
    str_append(&json, "}");
    check_refused(json.data, "nested too deeply");
    str_release(&json);
}

static void load_broken(const uint8_t *bytes, size_t len, void *context) {
    (void)context;
    Tokenizer *tokenizer;
    check_ok(file_write_all(temp_file(test_folder, "broken.json"), bytes, len));
    Status status = tokenizer_load(temp_file(test_folder, "broken.json"), &tokenizer);
    if (status != ST_OK) {
        assert_true(status == ST_INPUT && status_text()[0]);
        return;
    }
    Ids ids = {0};
    Str text = {0};
    const char *sample = "hello he<a> 12\xC3\xA9 \xE2\x96\x81!";
    if (tokenizer_encode(tokenizer, sample, strlen(sample), TOKENIZE_SPECIAL, &ids) == ST_OK)
        check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, false, &text));
    ids_release(&ids);
    str_release(&text);
    tokenizer_free(tokenizer);
}

TEST(broken_files_do_no_harm) {
    static const char *const seeds[] = {TEMPLATED, "{" BYTE_MODEL LLAMA_NORMALIZER LLAMA_DECODER "}",
                                        "{" MODEL("") PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}," BYTE_LEVEL("") "]}")
                                            DECODER("{\"type\":\"ByteLevel\"}") "}"};
    for (size_t i = 0; i < COUNT_OF(seeds); i++) check_mutations(seeds[i], strlen(seeds[i]), 700, load_broken, NULL);
}

/* ---- vocab.json and merges.txt ---- */

TEST(older_files) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    temp_text(dir, "vocab.json", "{\"<|endoftext|>\":0," CHARS "," WORDS "}");
    temp_text(dir, "merges.txt", "#version: 0.2\nh e\nl l\r\nll o\nhe llo\n\n\xC4\xA0 hello\n");
    Tokenizer *tokenizer;
    Ids ids = {0};
    check_ok(tokenizer_load(dir, &tokenizer));
    check_ok(tokenizer_encode(tokenizer, "hello hello<|endoftext|>", 24, TOKENIZE_PLAIN, &ids));
    check_list("gpt2", &ids, 23, 25, 0);
    assert_true(tokenizer_is_special(tokenizer, 0));
    tokenizer_free(tokenizer);
    ids_clear(&ids);
    temp_text(
        dir, "tokenizer_config.json",
        "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"eos_token\":\"<e>\",\"bos_token\":null,\"added_tokens_decoder\":{\"50\":{\"content\":\"<e>\",\"special\":true}}}");
    check_ok(tokenizer_load(temp_file(dir, "vocab.json"), &tokenizer));
    check_ok(tokenizer_encode(tokenizer, "12 hello<e>e\xCC\x81", 14, TOKENIZE_PLAIN, &ids)); /* digits one by one, and NFC */
    check_list("qwen2", &ids, 9, 10, 25, 50, 14, 15);
    assert_int_equal(tokenizer_eos(tokenizer), 50);
    assert_int_equal(tokenizer_bos(tokenizer), -1);
    tokenizer_free(tokenizer);
    temp_text(dir, "tokenizer_config.json", "{\"tokenizer_class\":\"T5Tokenizer\"}");
    check_status(tokenizer_load(dir, &tokenizer), ST_INPUT);
    check_text("'T5Tokenizer'");
    temp_text(dir, "tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"<e>\"}}}");
    check_status(tokenizer_load(dir, &tokenizer), ST_INPUT);
    unlink(temp_file(dir, "tokenizer_config.json"));
    unlink(temp_file(dir, "merges.txt"));
    check_status(tokenizer_load(dir, &tokenizer), ST_INPUT);
    check_text("merges.txt");
    ids_release(&ids);
    temp_dir_remove(dir);
}

/* ---- settings that list characters ---- */

TEST(characters) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    temp_text(dir, "tokenizer_config.json", "{\"char_ords\": [48, 49, 44, 8364], \"model_max_length\": 64}");
    assert_true(tokenizer_in(dir));
    Tokenizer *tokenizer;
    Ids ids = {0};
    Str text = {0};
    check_ok(tokenizer_load(dir, &tokenizer));
    /* What is not listed is unknown; special tokens are found in texts */
    check_ok(tokenizer_encode(tokenizer, "01,\xE2\x82\xAC?SE", 9, TOKENIZE_SPECIAL, &ids));
    check_list("characters", &ids, 4, 5, 6, 7, 3, 0, 1);
    check_ok(tokenizer_decode(tokenizer, ids.data, 4, false, &text));
    assert_string_equal(str_text(&text), "01,\xE2\x82\xAC");
    assert_int_equal(tokenizer_eos(tokenizer), 1);
    assert_int_equal(tokenizer_pad(tokenizer), 2);
    assert_int_equal(tokenizer_bos(tokenizer), -1);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 8);
    assert_true(tokenizer_is_special(tokenizer, 1) && !tokenizer_is_special(tokenizer, 4));
    tokenizer_free(tokenizer);
    static const char *const wrong[] = {"[48, 48]", "[48, \"1\"]", "[55296]", "[0]", "[-1]", "[69]"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        str_clear(&text);
        str_printf(&text, "{\"char_ords\": %s}", wrong[i]);
        temp_text(dir, "tokenizer_config.json", text.data);
        check_status(tokenizer_load(dir, &tokenizer), ST_INPUT);
        check_text("'char_ords'");
    }
    temp_text(dir, "tokenizer_config.json", "{}");
    assert_false(tokenizer_in(dir));
    check_status(tokenizer_load(dir, &tokenizer), ST_INPUT);
    check_text("no tokenizer");
    ids_release(&ids);
    str_release(&text);
    temp_dir_remove(dir);
}

/* ---- real tokenizers ---- */

static void check_texts(const Tokenizer *tokenizer, const char *name) {
    char path[512], file[128];
    Str texts = {0}, wanted = {0};
    snprintf(file, sizeof file, "data/tokenizers/expected/ggml-vocab-%s.gguf.inp", name);
    assert_true(shared_path(file, path, sizeof path));
    check_ok(file_read(path, 1 << 20, &texts));
    memcpy(path + strlen(path) - 3, "out", 3);
    check_ok(file_read(path, 1 << 20, &wanted));
    static const char between[] = "\n__ggml_vocab_test__\n";
    size_t n_texts = 0;
    char *text = texts.data, *line = wanted.data;
    for (char *end; (end = strstr(text, between)) != NULL; text = end + strlen(between), n_texts++) {
        Ids ids = {0}, want = {0};
        Str back = {0};
        *end = '\0';
        for (char *next; *line && *line != '\n'; line = next) {
            ids_push(&want, (int32_t)strtol(line, &next, 10));
            while (*next == ' ') next++;
        }
        line += *line == '\n';
        check_ok(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_PLAIN, &ids));
        check_ids(text, ids.data, ids.n, want.data, want.n);
        check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, false, &back));
        assert_string_equal(str_text(&back), text);
        ids_release(&ids);
        ids_release(&want);
        str_release(&back);
    }
    assert_true(n_texts > 40);
    str_release(&texts);
    str_release(&wanted);
}

TEST(real_gpt2) {
    char path[512];
    if (!shared_path("data/tokenizers/gpt2-tokenizer/hf", path, sizeof path)) skip();
    Tokenizer *tokenizer;
    check_ok(tokenizer_load(path, &tokenizer));
    check_texts(tokenizer, "gpt-2");
    assert_int_equal(tokenizer_eos(tokenizer), 50256);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 50257);
    check_streams(tokenizer, "gpt-2", 500);
    tokenizer_free(tokenizer);
}

static void copy_shared(const char *from, const char *dir, const char *name) {
    char path[512];
    assert_true(shared_path(from, path, sizeof path));
    check_ok(file_copy(path, temp_file(dir, name)));
}

TEST(real_qwen2) {
    char path[512], dir[512];
    if (!shared_path("data/tokenizers/qwen2-tokenizer", path, sizeof path)) skip();
    temp_dir_make(dir, sizeof dir);
    copy_shared("data/tokenizers/qwen2-tokenizer/vocab.json", dir, "vocab.json");
    copy_shared("data/tokenizers/qwen2-tokenizer/merges.lf.txt", dir, "merges.txt");
    copy_shared("data/tokenizers/qwen2-tokenizer/tokenizer_config.json", dir, "tokenizer_config.json");
    copy_shared("data/tokenizers/qwen2-tokenizer/added_tokens.json", dir, "added_tokens.json");
    Tokenizer *tokenizer;
    check_ok(tokenizer_load(dir, &tokenizer));
    check_texts(tokenizer, "qwen2");
    assert_int_equal(tokenizer_eos(tokenizer), 151645);
    assert_int_equal(tokenizer_pad(tokenizer), 151643);
    check_streams(tokenizer, "qwen2", 300);
    tokenizer_free(tokenizer);
    temp_dir_remove(dir);
}

TEST(real_stories) {
    char path[512], model[512];
    if (!shared_path("golden/stories260K/expected.json", path, sizeof path) || !shared_path("data/models/stories260K-hf", model, sizeof model))
        skip();
    json_t *root, *item;
    size_t i, k;
    Tokenizer *tokenizer;
    check_ok(json_read_file(path, &root));
    check_ok(tokenizer_load(model, &tokenizer));
    json_array_foreach(json_object_get(root, "tokenizer"), i, item) {
        const json_t *list = json_object_get(item, "ids"), *id;
        const char *text = json_string_value(json_object_get(item, "text"));
        Ids ids = {0}, want = {0};
        Str back = {0};
        json_array_foreach(list, k, id) ids_push(&want, (int32_t)json_integer_value(id));
        check_ok(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_SPECIAL, &ids));
        check_ids(text, ids.data, ids.n, want.data, want.n);
        check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, true, &back));
        assert_string_equal(str_text(&back), text);
        ids_release(&ids);
        ids_release(&want);
        str_release(&back);
    }
    assert_true(tokenizer_adds_bos(tokenizer));
    check_streams(tokenizer, "stories", 1000);
    tokenizer_free(tokenizer);
    json_decref(root);
}

/* The documentation of the reference library's quick tour gives these ids. */
TEST(real_wiki) {
    char path[512];
    if (!shared_path("data/tokenizers/hf-tokenizers/tokenizer-wiki.json", path, sizeof path)) skip();
    Tokenizer *tokenizer;
    Ids ids = {0};
    const char *text = "Hello, y'all! How are you \xF0\x9F\x98\x81 ?";
    check_ok(tokenizer_load(path, &tokenizer));
    check_ok(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_SPECIAL, &ids));
    check_list(text, &ids, 27253, 16, 93, 11, 5097, 5, 7961, 5112, 6218, 0, 35);
    ids_release(&ids);
    tokenizer_free(tokenizer);
}

TEST(malformed_is_refused) {
    char path[512];
    if (!shared_path("data/tokenizers/malformed_tokenizer.json", path, sizeof path)) skip();
    Tokenizer *tokenizer;
    check_status(tokenizer_load(path, &tokenizer), ST_INPUT);
    check_text("malformed_tokenizer.json': line 38954");
}

/* ---- one tokenizer, many threads ---- */

static const char *const shared_texts[] = {"hello hello ab 12", "abba hello 12 12 he", "aaaaaaa hello llo", "hel lo ab ab ab hello!"};

static void *encode_many(void *context) {
    const Tokenizer *tokenizer = context;
    size_t sum = 0;
    for (int i = 0; i < 3000; i++) {
        Ids ids = {0};
        const char *text = shared_texts[i % 4];
        if (tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_PLAIN, &ids) == ST_OK)
            for (size_t k = 0; k < ids.n; k++) sum = sum * 31 + (size_t)ids.data[k];
        ids_release(&ids);
    }
    return (void *)sum;
}

TEST(threads_share_a_tokenizer) {
    Tokenizer *tokenizer = tokenizer_of("{" MODEL("") PRE(BYTE_LEVEL("")) "}");
    pthread_t threads[4];
    void *want = encode_many(tokenizer), *got;
    for (size_t i = 0; i < COUNT_OF(threads); i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_many, tokenizer), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        pthread_join(threads[i], &got);
        assert_ptr_equal(got, want);
    }
    tokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_that_takes_too_many_steps_is_refused),
        cmocka_unit_test(merges_go_by_rank),
        cmocka_unit_test(long_words_merge_as_short_ones),
        cmocka_unit_test(unknown_characters),
        cmocka_unit_test(bytes_stand_in_for_characters),
        cmocka_unit_test(marks_divide_long_texts),
        cmocka_unit_test(pieces),
        cmocka_unit_test(split_behaviors),
        cmocka_unit_test(patterns_mean_what_oniguruma_means),
        cmocka_unit_test(norms),
        cmocka_unit_test(bert_normalizer),
        cmocka_unit_test(charsmaps),
        cmocka_unit_test(hostile_texts_take_little_time),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(guarded_tokens_are_plain_text),
        cmocka_unit_test(added_tokens_get_the_librarys_ids),
        cmocka_unit_test(offsets_are_bytes_of_the_text),
        cmocka_unit_test(post_processors),
        cmocka_unit_test(decoders),
        cmocka_unit_test(word_piece_and_ctc_decoders),
        cmocka_unit_test(ids_without_a_token_are_nothing),
        cmocka_unit_test(broken_text_is_refused),
        cmocka_unit_test(streams_equal_decoding_at_once),
        cmocka_unit_test(streams_hold_back_only_parts),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(broken_files_do_no_harm),
        cmocka_unit_test(older_files),
        cmocka_unit_test(characters),
        cmocka_unit_test(real_gpt2),
        cmocka_unit_test(real_qwen2),
        cmocka_unit_test(real_stories),
        cmocka_unit_test(real_wiki),
        cmocka_unit_test(malformed_is_refused),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
