/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of every kind of file: what comes out, and where it says that something is wrong. */
#include "lib/base/system.h"
#include "data/data.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

static char dir[256];

/* "NUMBER JSON\n" of each row. */
static Status dump_row(void *context, const Row *row) {
    char *json = json_dumps(row->json, JSON_COMPACT);
    str_printf(context, "%zu %s\n", row->line, json);
    free(json);
    return ST_OK;
}

static Status dump(const char *path, const RowsConfig *config, Str *rows) {
    str_clear(rows);
    return rows_read_as(path, config, dump_row, rows);
}

static const char *write_bytes(const char *name, const void *bytes, size_t len) {
    const char *path = temp_file(dir, name);
    check_ok(file_write_all(path, bytes, len));
    return path;
}

/* ---- packing ---- */

static size_t gzip_member(const char *text, size_t len, uint8_t *out, size_t room) {
    z_stream zlib = {0};
    assert_int_equal(deflateInit2(&zlib, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    zlib.next_in = (Bytef *)(uintptr_t)text;
    zlib.avail_in = (unsigned)len;
    zlib.next_out = out;
    zlib.avail_out = (unsigned)room;
    assert_int_equal(deflate(&zlib, Z_FINISH), Z_STREAM_END);
    deflateEnd(&zlib);
    return room - zlib.avail_out;
}

static size_t zstd_frame(const char *text, size_t len, uint8_t *out, size_t room) {
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_checksumFlag, 1);
    size_t n = ZSTD_compress2(zstd, out, room, text, len);
    ZSTD_freeCCtx(zstd);
    assert_false(ZSTD_isError(n));
    return n;
}

typedef size_t Pack(const char *text, size_t len, uint8_t *out, size_t room);

/* Two members or frames: complete, cut after every byte, with each byte of the first checksum or length changed, with trailing bytes. */
static void check_packing(Pack *pack, const char *name) {
    static const char first[] = "{\"text\": \"one\"}\n{\"text\": \"tw", second[] = "o\"}\n";
    uint8_t packed[512];
    Str rows = {0};
    size_t border = pack(first, sizeof first - 1, packed, sizeof packed - 8);
    size_t len = border + pack(second, sizeof second - 1, packed + border, sizeof packed - border - 8);
    check_ok(dump(write_bytes(name, packed, len), &(RowsConfig){0}, &rows));
    assert_string_equal(str_text(&rows), "1 {\"text\":\"one\"}\n2 {\"text\":\"two\"}\n");
    for (size_t cut = 0; cut < len; cut++) {
        Status status = dump(write_bytes(name, packed, cut), &(RowsConfig){0}, &rows);
        assert_int_equal(status, ST_INPUT); /* at the border, the second row is cut */
        check_text(name);
    }
    for (size_t at = border - 4; at < border; at++) {
        packed[at] ^= 1;
        check_status(dump(write_bytes(name, packed, len), &(RowsConfig){0}, &rows), ST_INPUT);
        check_text("cannot unpack '");
        check_text(name);
        packed[at] ^= 1;
    }
    memcpy(packed + len, "behind", 6);
    check_status(dump(write_bytes(name, packed, len + 6), &(RowsConfig){0}, &rows), ST_INPUT);
    check_text("cannot unpack '");
    str_release(&rows);
}

TEST(packed_files_are_whole_or_refused) {
    check_packing(gzip_member, "two.jsonl.gz");
    check_packing(zstd_frame, "two.jsonl.zst");
    Str rows = {0};
    uint8_t packed[128] = {0};
    size_t len = gzip_member("a,b\n1,2\n", 8, packed, sizeof packed);
    check_ok(dump(write_bytes("zeros.csv.gz", packed, len + 20), &(RowsConfig){0}, &rows)); /* padding */
    assert_string_equal(str_text(&rows), "2 {\"a\":\"1\",\"b\":\"2\"}\n");
    packed[len - 6] ^= 0x40;
    check_status(dump(write_bytes("sum.csv.gz", packed, len), &(RowsConfig){0}, &rows), ST_INPUT);
    check_text("sum.csv.gz' after line 2: damaged gzip data: incorrect ");
    check_status(dump(temp_text(dir, "plain.txt.zst", "plain"), &(RowsConfig){0}, &rows), ST_INPUT);
    check_text("plain.txt.zst': expected zstd data as its name says");
    len = zstd_frame("text", 4, packed, sizeof packed);
    check_ok(dump(write_bytes("a.txt.zst", packed, len), &(RowsConfig){0}, &rows));
    assert_string_equal(str_text(&rows), "1 {\"text\":\"text\"}\n");
    str_release(&rows);
}

/* ---- what comes out ---- */

typedef struct Case {
    const char *name, *text, *rows, *separator;
} Case;

static void check_cases(const Case *cases, size_t n) {
    Str rows = {0};
    for (size_t i = 0; i < n; i++) {
        check_ok(dump(temp_text(dir, cases[i].name, cases[i].text), &(RowsConfig){.separator = cases[i].separator}, &rows));
        assert_string_equal(str_text(&rows), cases[i].rows);
    }
    str_release(&rows);
}

static void check_faults(const Case *cases, size_t n) {
    Str rows = {0};
    for (size_t i = 0; i < n; i++) {
        check_status(dump(temp_text(dir, cases[i].name, cases[i].text), &(RowsConfig){.separator = cases[i].separator}, &rows), ST_INPUT);
        check_text(cases[i].name);
        check_text(cases[i].rows);
    }
    str_release(&rows);
}

TEST(csv) {
    static const Case cases[] = {
        {"a.csv", "p,c\n1,2\n,\n", "2 {\"p\":\"1\",\"c\":\"2\"}\n3 {\"p\":\"\",\"c\":\"\"}\n", NULL},
        {"a.csv", "\xef\xbb\xbf\"p\",c\r\n\"1\r\n, \"\"x\"\"\",2\r\n\r\n3,\"\"",
         "2 {\"p\":\"1\\r\\n, \\\"x\\\"\",\"c\":\"2\"}\n5 {\"p\":\"3\",\"c\":\"\"}\n", NULL},
        {"a.csv", "p,c\r1,2\r3,4", "2 {\"p\":\"1\",\"c\":\"2\"}\n3 {\"p\":\"3\",\"c\":\"4\"}\n", NULL},
        {"a.csv", "p\n\"\"\n\nx\n", "2 {\"p\":\"\"}\n4 {\"p\":\"x\"}\n", NULL},
        {"a.csv", ",p\n0,\xc3\xa9 \xf0\x9f\x98\x80\n", "2 {\"Unnamed: 0\":\"0\",\"p\":\"\xc3\xa9 \xf0\x9f\x98\x80\"}\n", NULL},
        {"a.csv", "p,c\n", "", NULL},
        {"a.tsv", "p\tc\n1,5\t\"2\t3\"\n", "2 {\"p\":\"1,5\",\"c\":\"2\\t3\"}\n", NULL},
        {"a.csv", "messages,n\n\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"a\\nb\"\"}]\",[1]\n",
         "2 {\"messages\":[{\"role\":\"user\",\"content\":\"a\\nb\"}],\"n\":\"[1]\"}\n", NULL},
        {"a.csv", "label,weight\nTrue,2\n0,\ngood,1 2\n",
         "2 {\"label\":true,\"weight\":2}\n3 {\"label\":false,\"weight\":null}\n4 {\"label\":\"good\",\"weight\":\"1 2\"}\n", NULL},
        {"a.csv", "input_ids\n\"[3, 4]\"\nnone\n", "2 {\"input_ids\":[3,4]}\n3 {\"input_ids\":\"none\"}\n", NULL},
    };
    check_cases(cases, COUNT_OF(cases));
    static const Case faults[] = {
        {"f.csv", "p,c\n1,2\n3\n", "' line 3, column 2: the row ends after 1 of 2 cells: expected ',' and 'c'", NULL},
        {"f.csv", "p,c\n1,2\n3,4,5\n", "' line 3, column 5: one cell more than the 2 columns of the header", NULL},
        {"f.csv", "p,c\n\xc3\xa9 \"x\",2\n", "' line 2, column 3: stray quote", NULL},
        {"f.csv", "p,c\n\"x\"y,2\n", "' line 2, column 4: expected ',' or the end of the line after the closing quote", NULL},
        {"f.csv", "p,c\n1,\"x\ny,2\n", "' line 2, column 3: the quote that opens here is never closed", NULL},
        {"f.csv",
         "p,c\n\xc3\xa9"
         "b\xff,2\n",
         "' line 2, column 3: byte 0xFF is not UTF-8", NULL},
        {"f.csv", "p,c\n\"1\n2\",\xc3\n", "' line 3, column 4: byte 0xC3 is not UTF-8", NULL},
        {"f.csv", "p,c\n1,\xf0\x9f", "' line 2, column 3: byte 0xF0 is not UTF-8", NULL},
        {"f.csv", "p,p\n1,2\n", "' line 1, column 3: a second column 'p'", NULL},
        {"f.csv", "Unnamed: 1,,p\n1,2,3\n", "column 2 has no name, and 'Unnamed: 1' is another one's", NULL},
        {"f.csv", "", "' line 1, column 1: expected a header", NULL},
        {"f.csv", "p;c\n1;2\n", "' line 1, column 1: the header is one column, 'p;c': expected columns separated by ','", NULL},
        {"f.tsv", "p,c\n1,2\n", "expected columns separated by a tab", NULL},
        {"f.csv", "n,messages\n1,[{'role': 'user'}]\n", "' line 2, column 3: the cell of 'messages' begins like JSON but is not valid", NULL},
    };
    check_faults(faults, COUNT_OF(faults));
}

TEST(csv_of_many_columns) {
    Str text = {0}, rows = {0};
    for (int i = 0; i < 100000; i++) str_printf(&text, "%sc%d", i ? "," : "", i);
    double start = clock_seconds();
    check_ok(dump(write_bytes("wide.csv", text.data, text.len), &(RowsConfig){0}, &rows));
    double seconds = clock_seconds() - start;
    if (seconds > 10) fail_msg("100,000 columns took %.1f s", seconds); /* 0.1 s when measured; each name against all before: 36 s */
    str_release(&text);
    str_release(&rows);
}

/* Characters, quotes and line ends across the border of what is read at a time. */
TEST(csv_of_any_length) {
    Str text = {0}, rows = {0}, wanted = {0};
    for (size_t shift = 0; shift < 40; shift++) {
        str_clear(&text);
        str_clear(&wanted);
        str_append(&text, "a,b\n\"");
        for (size_t i = 0; i < ((size_t)128 << 10) - 24 + shift - 5; i++) str_append_char(&text, 'x');
        str_append_n(&wanted, text.data + 5, text.len - 5);
        str_append(&text, "\xe2\x82\xac\"\"\xf0\x9f\x98\x80\"\"\r\n\xc3\xa9\",y\r\nz,\"\"\"\"\r\n");
        check_ok(dump(write_bytes("long.csv", text.data, text.len), &(RowsConfig){0}, &rows));
        assert_memory_equal(rows.data + 8, wanted.data, wanted.len);
        assert_string_equal(rows.data + 8 + wanted.len,
                            "\xe2\x82\xac\\\"\xf0\x9f\x98\x80\\\"\\r\\n\xc3\xa9\",\"b\":\"y\"}\n4 {\"a\":\"z\",\"b\":\"\\\"\"}\n");
    }
    str_release(&text);
    str_release(&rows);
    str_release(&wanted);
}

TEST(txt) {
    static const Case cases[] = {
        {"a.txt", "one\ntwo\n", "1 {\"text\":\"one\\ntwo\\n\"}\n", NULL},
        {"a.txt", "\xef\xbb\xbfx", "1 {\"text\":\"x\"}\n", NULL},
        {"a.txt", " \n\n", "", NULL},
        {"a.txt", "one\n<end>\ntwo\nlines\n<end><end>\n\nthree\n", "1 {\"text\":\"one\"}\n3 {\"text\":\"two\\nlines\"}\n7 {\"text\":\"three\"}\n",
         "<end>"},
        {"a.txt", "one\r\ntwo\n\n three", "1 {\"text\":\"one\"}\n2 {\"text\":\"two\"}\n4 {\"text\":\" three\"}\n", "\n"},
        {"a.txt", "one\r\ntwo\r\n\r\nthree\n\nfour\r\n", "1 {\"text\":\"one\\r\\ntwo\"}\n4 {\"text\":\"three\"}\n6 {\"text\":\"four\"}\n", "\n\n"},
        {"a.txt", "one\r\n--\r\ntwo", "1 {\"text\":\"one\"}\n3 {\"text\":\"two\"}\n", "\n--\n"},
    };
    check_cases(cases, COUNT_OF(cases));
    static const Case faults[] = {
        {"f.txt", "one\nt\xc3\xa9\xff\n", "' line 2, column 3: no UTF-8", NULL},
        {"f.txt", "one\n--\n--\n\ntwo\xff\n", "' line 5, column 4: no UTF-8", "--"},
    };
    check_faults(faults, COUNT_OF(faults));
    Str rows = {0};
    check_status(dump(temp_text(dir, "a.txt", "x"), &(RowsConfig){.separator = ""}, &rows), ST_CONFIG);
    check_ok(dump(temp_text(dir, "a.txt", "a|b|c"), &(RowsConfig){.separator = "|", .max_rows = 2}, &rows));
    assert_string_equal(str_text(&rows), "1 {\"text\":\"a\"}\n1 {\"text\":\"b\"}\n");
    str_release(&rows);
}

/* A separator that lies across the border of what is read at a time, and documents longer than that. */
TEST(txt_of_any_length) {
    Str text = {0}, rows = {0};
    for (size_t shift = 0; shift < 12; shift++) {
        str_clear(&text);
        for (size_t i = 0; i < ((size_t)256 << 10) - 10 + shift; i++) str_append_char(&text, 'x');
        size_t first = text.len;
        str_append(&text, "<|end|>\n\xf0\x9f\x98\x80<|end|>");
        check_ok(dump(write_bytes("long.txt", text.data, text.len), &(RowsConfig){.separator = "<|end|>"}, &rows));
        assert_int_equal(rows.len, first + strlen("1 {\"text\":\"\"}\n2 {\"text\":\"....\"}\n"));
        check_contains(str_text(&rows) + first, "x\"}\n2 {\"text\":\"\xf0\x9f\x98\x80\"}\n");
    }
    for (size_t shift = 0; shift < 8; shift++) {
        str_clear(&text);
        for (size_t i = 0; i < ((size_t)256 << 10) - 6 + shift; i++) str_append_char(&text, 'x');
        str_append(&text, "\r\n\r\ny");
        check_ok(dump(write_bytes("long.txt", text.data, text.len), &(RowsConfig){.separator = "\n\n"}, &rows));
        check_contains(str_text(&rows) + rows.len - 20, "x\"}\n3 {\"text\":\"y\"}\n");
    }
    str_release(&text);
    str_release(&rows);
}

TEST(json) {
    static const Case cases[] = {
        {"a.json", "\xef\xbb\xbf [ {\"a\": \"],[\\\"\\\\\"}\n, {\"b\": [{}, [1]]} ]\n ", "1 {\"a\":\"],[\\\"\\\\\"}\n2 {\"b\":[{},[1]]}\n", NULL},
        {"a.json", "[]", "", NULL},
        {"a.json", "{\"a\": [1, 2],\n \"b\": [3, null]}", "1 {\"a\":1,\"b\":3}\n2 {\"a\":2,\"b\":null}\n", NULL},
        {"a.json", "{\"a\": 1}\n\n{\"a\": 2}\n", "1 {\"a\":1}\n3 {\"a\":2}\n", NULL},
        {"a.json", "\xef\xbb\xbf\n\n{\"a\": 1}\n{\"a\": 2}", "3 {\"a\":1}\n4 {\"a\":2}\n", NULL},
        {"a.ndjson", "{\"a\": 1}\r\n", "1 {\"a\":1}\n", NULL},
    };
    check_cases(cases, COUNT_OF(cases));
    static const Case faults[] = {
        {"f.json", "[{\"a\": 1},\n {\"a\": }]", "line 2, column 8: unexpected token", NULL},
        {"f.json", "[{\"a\": 1},\n {\"a\":\n\n 2x}]", "line 4, column 3: ", NULL},
        {"f.json", "[{\"a\": 1}\n", "line 2, column 1: the file ends where ',' or ']' was expected", NULL},
        {"f.json", "[{\"a\": 1", "line 1, column 9: the file ends where the end of a row was expected", NULL},
        {"f.json", "[{\"a\": \"1", "line 1, column 10: the file ends where the end of a string was expected", NULL},
        {"f.json", "[{\"a\": 1}, ]", "line 1, column 12: expected a row after ','", NULL},
        {"f.json", "[{\"a\": 1},", "line 1, column 11: the file ends where a row after ',' was expected", NULL},
        {"f.json", "[{\"a\": 1}] x", "line 1, column 12: expected nothing after the array", NULL},
        {"f.json", "[{\"a\": 1}, 5]", "row 2: a row must be a JSON object", NULL},
        {"f.json", "[{\"a\": \"\xff\"}]", "line 1, column 8: unable to decode byte 0xff", NULL},
        {"f.jsonl", "{\"a\": 1}\n{\"a\": \"\xff\"}\n", "' line 2, column 7: unable to decode byte 0xff", NULL},
        {"f.jsonl", "{\"a\": 1, \"a\": 2}\n", "duplicate object key", NULL},
    };
    check_faults(faults, COUNT_OF(faults));
}

/* ---- parquet ---- */

static const char *fixture(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "tests/fuzz/parquet/%s", name);
    return path;
}

TEST(parquet) {
    static const char chat[] =
        "1 {\"messages\":[{\"role\":\"user\",\"content\":\"H\xc3\xa9llo\",\"weight\":null},{\"role\":\"assistant\",\"content\":\"\",\"weight\":0.5}],\"source\":\"a\"}\n"
        "2 {\"messages\":[],\"source\":\"a\"}\n3 {\"messages\":null,\"source\":\"b\"}\n"
        "4 {\"messages\":[{\"role\":\"user\",\"content\":null,\"weight\":1.0}],\"source\":null}\n";
    static const char types[] =
        "1 {\"b\":true,\"i32\":1,\"u64\":0,\"f\":1.5,\"h\":1.5,\"d\":0.5,\"day\":\"1969-12-31\",\"ts\":\"1970-01-01T00:00:00Z\",\"t\":\"00:00:00\",\"dec\":\"1.05\","
        "\"raw\":\"text\",\"map\":{\"k\":1},\"nest\":[[1,2],[]]}\n"
        "2 {\"b\":false,\"i32\":-2,\"u64\":\"18446744073709551615\",\"f\":null,\"h\":null,\"d\":1.0000000000000001e300,\"day\":\"2024-02-29\",\"ts\":\"1969-12-31T23:59:59.999999Z\","
        "\"t\":\"23:59:59.999\",\"dec\":\"-0.01\",\"raw\":\"/wA=\",\"map\":{},\"nest\":[]}\n"
        "3 {\"b\":null,\"i32\":2147483647,\"u64\":7,\"f\":null,\"h\":null,\"d\":-0.0,\"day\":null,\"ts\":\"2023-11-14T22:13:20.123456Z\",\"t\":null,\"dec\":null,\"raw\":null,\"map\":null,"
        "\"nest\":null}\n"
        "4 {\"b\":true,\"i32\":null,\"u64\":null,\"f\":-2.0,\"h\":-2.0,\"d\":null,\"day\":\"0001-01-01\",\"ts\":null,\"t\":\"00:00:00.001\",\"dec\":\"123456789.00\",\"raw\":\"\","
        "\"map\":{\"x\":null,\"y\":2},\"nest\":[null,[3,null]]}\n";
    static const struct {
        const char *name, *rows;
    } cases[] = {
        {"chat_snappy.parquet", chat},
        {"chat_zstd_v2.parquet", chat},
        {"types_gzip.parquet", types},
        {"types_plain_v2.parquet", types},
        {"two_levels.parquet", "1 {\"ids\":[1,2],\"tags\":[\"a\"]}\n2 {\"ids\":null,\"tags\":[]}\n3 {\"ids\":[],\"tags\":[\"b\",\"c\"]}\n"},
        {"two_levels_group.parquet", "1 {\"messages\":[{\"role\":\"u\"},{\"role\":\"a\"}]}\n2 {\"messages\":[]}\n"},
        {"int96.parquet", "1 {\"at\":\"2000-01-01T00:00:01.500000000\"}\n"},
    };
    Str rows = {0}, wanted = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_ok(dump(fixture(cases[i].name), &(RowsConfig){0}, &rows));
        assert_string_equal(str_text(&rows), cases[i].rows);
    }
    for (int i = 0; i < 300; i++) {
        str_printf(&wanted, "%d {\"id\":%d,\"s\":\"prefix_%04d\",\"f\":", i + 1, i * i - 50, i / 3);
        str_append_double(&wanted, i / 4.0);
        str_printf(&wanted, "%s,\"flag\":%s}\n", i % 4 ? "" : ".0", i % 7 < 3 ? "true" : "false");
    }
    check_ok(dump(fixture("deltas_v2.parquet"), &(RowsConfig){0}, &rows));
    assert_string_equal(str_text(&rows), wanted.data);
    check_ok(dump(fixture("lengths.parquet"), &(RowsConfig){0}, &rows));
    assert_string_equal(str_text(&rows), wanted.data);
    check_ok(dump(fixture("lengths.parquet"), &(RowsConfig){.max_rows = 1}, &rows));
    assert_string_equal(str_text(&rows), "1 {\"id\":-50,\"s\":\"prefix_0000\",\"f\":0.0,\"flag\":true}\n");
    str_release(&rows);
    str_release(&wanted);
}

TEST(parquet_of_others) {
    char path[512];
    if (!shared_path("data/models/verl-arithmetic-llama/data_train.parquet", path, sizeof path)) skip();
    Str rows = {0};
    check_ok(dump(path, &(RowsConfig){.max_rows = 2}, &rows));
    assert_string_equal(str_text(&rows), "1 {\"prompt\":\"6,2:9,6\"}\n2 {\"prompt\":\"0,3:9,3\"}\n");
    check_ok(dump(path, &(RowsConfig){0}, &rows));
    check_contains(str_text(&rows), "\n800 {\"prompt\":");
    str_release(&rows);
}

typedef struct Patch {
    const char *name;
    size_t at;
    uint8_t byte;
    const char *message;
} Patch;

TEST(parquet_faults) {
    static const Patch patches[] = {
        {"int96.parquet", 0, 'X', "it is not a Parquet file: expected 'PAR1' at its beginning"},
        {"int96.parquet", 106, 'E', "it is encrypted"},
        {"int96.parquet", 105, 'X', "expected 'PAR1' in the last 4 of its 107 bytes"},
        {"int96.parquet", 100, 0x7f, "a footer of "},
        {"int96.parquet", 14, 20, "column 'at': page at byte 4: values in encoding 10 are not supported"},
        {"int96.parquet", 14, 4, "column 'at': page at byte 4: values of a dictionary, and there is none"},
        {"int96.parquet", 7, 22, "column 'at': page at byte 4: it is not packed, and has two sizes"},
        {"int96.parquet", 9, 0x7e, "column 'at': page at byte 4: it is longer than its column"},
        {"int96.parquet", 12, 4, "column 'at': page at byte 4: 2 values, where the column has 1 left"},
        {"two_levels.parquet", 26, 6, "column 'ids.element': page at byte 4: its levels are damaged"},
        {"chat_zstd_v2.parquet", 40, 1, "its checksum is wrong"},
        {"brotli.parquet", 0, 'P', "column 'messages.list.element.role': page at byte 4, codec brotli: expected snappy, gzip, zstd or none"},
    };
    Str rows = {0};
    for (size_t i = 0; i < COUNT_OF(patches); i++) {
        Str bytes = {0};
        check_ok(file_read(fixture(patches[i].name), 1 << 20, &bytes));
        bytes.data[patches[i].at] = (char)patches[i].byte;
        check_status(dump(write_bytes("f.parquet", bytes.data, bytes.len), &(RowsConfig){0}, &rows), ST_INPUT);
        check_text("f.parquet': ");
        check_text(patches[i].message);
        str_release(&bytes);
    }
    Str bytes = {0};
    check_ok(file_read(fixture("chat_snappy.parquet"), 1 << 20, &bytes));
    for (size_t len = 0; len < bytes.len; len += len < 16 || len + 16 > bytes.len ? 1 : 7) {
        check_status(dump(write_bytes("cut.parquet", bytes.data, len), &(RowsConfig){0}, &rows), ST_INPUT);
        check_text("cut.parquet': ");
    }
    str_release(&bytes);
    str_release(&rows);
}

/* ---- rows that are left out ---- */

/* "NUMBER bad TEXT | FAULT\n" among the others. */
static Status dump_bad(void *context, const Row *row) {
    str_printf(context, "%zu bad %.*s | %s\n", row->line, (int)row->text.len, row->text.data ? row->text.data : "", strchr(status_text(), ':') + 2);
    return ST_OK;
}

TEST(bad_rows_are_passed_over) {
    static const Case cases[] = {
        {"b.csv", "p,c\n1,2\n3\n4,5\n",
         "2 {\"p\":\"1\",\"c\":\"2\"}\n3 bad 3 | the row ends after 1 of 2 cells: expected ',' and 'c'\n4 {\"p\":\"4\",\"c\":\"5\"}\n", NULL},
        {"b.csv", "p,c\n\"1\n,\",2,3,4\n4,5\n",
         "2 bad \"1\n,\",2,3,4 | one cell more than the 2 columns of the header\n4 {\"p\":\"4\",\"c\":\"5\"}\n", NULL},
        {"b.csv", "p,c\r\na\"b,2\r\n4,5\r\n",
         "2 bad a\"b,2 | stray quote: expected a cell that is quoted from end to end or has no quotes\n3 {\"p\":\"4\",\"c\":\"5\"}\n", NULL},
        {"b.csv", "p,c\n\"a \"b\" c\",2\n4,5\n",
         "2 bad \"a \"b\" c\",2 | expected ',' or the end of the line after the closing quote\n3 {\"p\":\"4\",\"c\":\"5\"}\n", NULL},
        {"b.csv", "p,c\n1,\"x\n\"3\",4\n5,6\n",
         "2 bad 1,\"x\n\"3\",4 | expected ',' or the end of the line after the closing quote\n4 {\"p\":\"5\",\"c\":\"6\"}\n", NULL},
        {"b.csv", "p,c\n1,2\n3,\"x\n", "2 {\"p\":\"1\",\"c\":\"2\"}\n3 bad 3,\"x\n | the quote that opens here is never closed\n", NULL},
        {"b.csv", "p,c\n\"\xff\nx\",2\n4,5\n", "2 bad \"\xff\nx\",2 | byte 0xFF is not UTF-8\n4 {\"p\":\"4\",\"c\":\"5\"}\n", NULL},
        {"b.tsv", "n\tmessages\n1\t[{'role': 'user'}]\n2\t[]\n",
         "2 bad 1\t[{'role': 'user'}] | the cell of 'messages' begins like JSON but is not valid: string or '}' expected near '''\n3 {\"n\":\"2\",\"messages\":[]}\n",
         NULL},
        {"b.json", "[{\"a\": 1}, {\"a\": x}, 3, {\"a\": 2}]",
         "1 {\"a\":1}\n2 bad {\"a\": x} | line 1, column 18: invalid token near 'x'\n3 bad 3 | a row must be a JSON object\n4 {\"a\":2}\n", NULL},
        {"b.txt", "one\n--\n\xff\n--\ntwo\n", "1 {\"text\":\"one\"}\n3 bad  | no UTF-8\n5 {\"text\":\"two\"}\n", "--"},
    };
    Str rows = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        RowsConfig how = {.separator = cases[i].separator, .bad = dump_bad};
        check_ok(dump(temp_text(dir, cases[i].name, cases[i].text), &how, &rows));
        assert_string_equal(str_text(&rows), cases[i].rows);
    }
    str_release(&rows);
}

/* A file whose rows cannot be separated, and one without rows. */
TEST(broken_files_stay_errors) {
    static const Case faults[] = {
        {"b.csv", "p,c\n1,\"x\ny,2\nz,3\n", "' line 2, column 3: the quote that opens here is never closed", NULL},
        {"b.csv", "p,\"c\nd\"e\n1,2\n", "expected ',' or the end of the line after the closing quote", NULL},
        {"b.csv", "p,\xff\n1,2\n", "byte 0xFF is not UTF-8", NULL},
        {"b.csv", "", "expected a header", NULL},
        {"b.json", "[{\"a\": 1}, {\"a\": ", "the file ends where the end of a row was expected", NULL},
    };
    Str rows = {0};
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        check_status(dump(temp_text(dir, faults[i].name, faults[i].text), &(RowsConfig){.bad = dump_bad}, &rows), ST_INPUT);
        check_text(faults[i].rows);
    }
    str_release(&rows);
}

/* The text of a row is complete wherever the blocks of the reader end. */
TEST(bad_rows_of_any_place) {
    Str text = {0}, rows = {0};
    for (size_t first = ((size_t)128 << 10) - 9; first <= (size_t)128 << 10; first++) {
        str_clear(&text);
        str_append(&text, "p,c\n");
        while (text.len + 1 < first) str_append_char(&text, 'x');
        str_append(&text, ",\n\"1\n2\",3,4\n5,6\n");
        check_ok(dump(temp_text(dir, "long.csv", str_text(&text)), &(RowsConfig){.bad = dump_bad}, &rows));
        check_contains(str_text(&rows), "\n3 bad \"1\n2\",3,4 | one cell more than the 2 columns of the header\n5 {\"p\":\"5\",\"c\":\"6\"}\n");
    }
    str_release(&text);
    str_release(&rows);
}

TEST(bad_cells_of_parquet) {
    Str bytes = {0}, rows = {0};
    check_ok(file_read(fixture("two_levels.parquet"), 1 << 20, &bytes));
    bytes.data[0x67] = (char)0xff; /* of "b", in the third row */
    const char *path = write_bytes("b.parquet", bytes.data, bytes.len);
    check_status(dump(path, &(RowsConfig){0}, &rows), ST_INPUT);
    check_text("column 'tags': row 3: a text that is not UTF-8");
    check_ok(dump(path, &(RowsConfig){.bad = dump_bad}, &rows));
    assert_string_equal(str_text(&rows), "1 {\"ids\":[1,2],\"tags\":[\"a\"]}\n2 {\"ids\":null,\"tags\":[]}\n"
                                         "3 bad {\"ids\":[],\"tags\":[null,\"c\"]} | column 'tags': row 3: a text that is not UTF-8\n");
    str_release(&bytes);
    str_release(&rows);
}

/* ---- names ---- */

TEST(names_and_patterns) {
    Str rows = {0};
    check_status(dump(temp_text(dir, "rows.xlsx", "x"), &(RowsConfig){0}, &rows), ST_INPUT);
    check_text("its name has no known ending");
    check_contains(status_hint_text(), ".jsonl, .ndjson, .json, .csv, .tsv, .txt, each also as .gz or .zst, and from .parquet");
    str_release(&rows);
    static const char *const files[] = {"g-B.csv", "g-a.csv", "g-10.csv", "g-[1].csv", "g-x.txt"};
    for (size_t i = 0; i < COUNT_OF(files); i++) temp_text(dir, files[i], "a\n");
    check_ok(dir_make(temp_file(dir, "g-folder.csv")));
    static const struct {
        const char *pattern;
        size_t n;
        const char *names[4];
    } cases[] = {
        {"g-*.csv", 4, {"g-10.csv", "g-B.csv", "g-[1].csv", "g-a.csv"}},
        {"g-[1].csv", 1, {"g-[1].csv"}},
        {"g-?.csv", 2, {"g-B.csv", "g-a.csv"}},
        {"missing.csv", 1, {"missing.csv"}},
    };
    Arena *arena = arena_new(0);
    const char **paths;
    size_t n;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_ok(rows_expand(temp_file(dir, cases[i].pattern), arena, &paths, &n));
        assert_int_equal(n, cases[i].n);
        for (size_t j = 0; j < n; j++) assert_string_equal(path_name(paths[j]), cases[i].names[j]);
    }
    check_status(rows_expand(temp_file(dir, "none-*.csv"), arena, &paths, &n), ST_INPUT);
    check_text("no file matches '");
    check_text("none-*.csv'");
    arena_free(arena);
}

static int set_up(void **state) {
    (void)state;
    temp_dir_make(dir, sizeof dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_files_are_whole_or_refused),
        cmocka_unit_test(csv),
        cmocka_unit_test(csv_of_many_columns),
        cmocka_unit_test(csv_of_any_length),
        cmocka_unit_test(txt),
        cmocka_unit_test(txt_of_any_length),
        cmocka_unit_test(json),
        cmocka_unit_test(parquet),
        cmocka_unit_test(parquet_of_others),
        cmocka_unit_test(parquet_faults),
        cmocka_unit_test(bad_rows_are_passed_over),
        cmocka_unit_test(broken_files_stay_errors),
        cmocka_unit_test(bad_rows_of_any_place),
        cmocka_unit_test(bad_cells_of_parquet),
        cmocka_unit_test(names_and_patterns),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
