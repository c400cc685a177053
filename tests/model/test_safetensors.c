/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: what is written is read back, and every way in which a file can be wrong is refused before a tensor is handed out. */
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "lib/model/convert.h"
#include "lib/model/model.h"
#include "lib/model/safetensors.h"

/* A file of this header text and `data_size` bytes of data, whatever the header says. */
static const char *make_file(const char *dir, const char *header, size_t header_size, size_t data_size) {
    Str bytes = {0};
    for (int i = 0; i < 8; i++) str_append_char(&bytes, (char)((uint64_t)header_size >> (8 * i)));
    str_append(&bytes, header);
    for (size_t i = 0; i < data_size; i++) str_append_char(&bytes, (char)i);
    const char *path = temp_file(dir, "made.safetensors");
    check_ok(file_write_all(path, bytes.data, bytes.len));
    str_release(&bytes);
    return path;
}

static void safetensors_refuse(const char *dir, const char *header, size_t data_size, const char *words) {
    WeightFile *set;
    check_status(weight_file_open(make_file(dir, header, strlen(header), data_size), &set), ST_INPUT);
    assert_null(set);
    check_text(words);
}

TEST(written_files_are_read_back) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    const char *path = temp_file(dir, "a.safetensors");
    const float matrix[6] = {1, -2.5f, 3e-30f, 0, 65504, -0.333f};
    const int32_t whole[2] = {-7, 1 << 30};
    SafetensorsWriter *writer;
    check_ok(safetensors_writer_new(path, &writer));
    safetensors_metadata(writer, "note", "a \"quoted\" text");
    safetensors_declare(writer, "z.matrix", DT_F32, 2, (int64_t[]){2, 3});
    safetensors_declare(writer, "half", DT_F16, 2, (int64_t[]){2, 3});
    safetensors_declare(writer, "brain", DT_BF16, 1, (int64_t[]){6});
    safetensors_declare(writer, "scalar", DT_F64, 0, NULL);
    safetensors_declare(writer, "empty", DT_F32, 2, (int64_t[]){0, 5});
    safetensors_declare(writer, "whole", DT_I32, 1, (int64_t[]){2});
    safetensors_write(writer, matrix, 10);
    safetensors_write(writer, (const char *)matrix + 10, sizeof matrix - 10);
    safetensors_write_as(writer, matrix, DT_F32, DT_F16, 6);
    safetensors_write_as(writer, matrix, DT_F32, DT_BF16, 6);
    safetensors_write(writer, &(double){0.1}, sizeof(double));
    safetensors_write(writer, whole, sizeof whole);
    assert_false(file_exists(path)); /* written completely or not at all */
    check_ok(safetensors_commit(writer));

    WeightFile *set;
    check_ok(weight_file_open(path, &set));
    assert_int_equal(set->n, 6);
    Str bytes = {0};
    check_ok(file_read(path, 1 << 16, &bytes));
    json_t *header = json_parse(bytes.data + 8, bytes.len - 8, JSON_DISABLE_EOF_CHECK, NULL), *metadata = json_object_get(header, "__metadata__");
    assert_string_equal(json_string_value(json_object_get(metadata, "format")), "pt");
    assert_string_equal(json_string_value(json_object_get(metadata, "note")), "a \"quoted\" text");
    json_decref(header);
    str_release(&bytes);
    assert_null(weight_file_find(set, "matrix"));
    const StoredTensor *z = weight_file_find(set, "z.matrix"), *half = weight_file_find(set, "half"), *brain = weight_file_find(set, "brain");
    assert_true(z->n_dims == 2 && z->shape[0] == 2 && z->shape[1] == 3 && z->dtype == DT_F32);
    assert_int_equal((uintptr_t)z->data % 8, 0);
    for (int64_t i = 0; i < 6; i++) {
        check_close(stored_get(z, i), (double)matrix[i], 0);
        check_close(stored_get(half, i), (double)f16_to_float(float_to_f16(matrix[i])), 0);
        check_close(stored_get(brain, i), (double)bf16_to_float(float_to_bf16(matrix[i])), 0);
    }
    check_close(stored_get(weight_file_find(set, "scalar"), 0), 0.1, 0);
    check_close(stored_get(weight_file_find(set, "whole"), 1), 1 << 30, 0);
    assert_int_equal(weight_file_find(set, "empty")->count, 0);
    assert_int_equal(weight_file_find(set, "scalar")->count, 1);
    weight_file_close(set);

    check_ok(safetensors_writer_new(temp_file(dir, "b.safetensors"), &writer));
    safetensors_declare(writer, "a", DT_F32, 1, (int64_t[]){1});
    safetensors_abandon(writer);
    assert_false(file_exists(temp_file(dir, "b.safetensors")));

    check_ok(safetensors_writer_new(temp_file(dir, "b.safetensors"), &writer)); /* nobody could read it */
    for (int i = 0; i < 2; i++) safetensors_declare(writer, "a", DT_F32, 1, (int64_t[]){1});
    for (int i = 0; i < 2; i++) safetensors_write(writer, matrix, sizeof *matrix);
    check_status(safetensors_commit(writer), ST_INPUT);
    check_text("duplicate object key near '\"a\"'");
    assert_false(file_exists(temp_file(dir, "b.safetensors")));
    temp_dir_remove(dir);
}

TEST(conversions_are_exact_or_round_to_even) {
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
    const double values[] = {0, -0.0, 1, -1.5, 1.0009765625, 3.140625, 65504, 1e-7, (double)INFINITY, 0.1};
    enum { N = COUNT_OF(values) };
    for (size_t a = 0; a < COUNT_OF(dtypes); a++)
        for (size_t b = 0; b < COUNT_OF(dtypes); b++) {
            uint8_t from[8 * N + 1], to[8 * N + 1];
            double got[N], through[N];
            convert_elements(values, DT_F64, from + 1, dtypes[a], N); /* off by one byte: any alignment is fine */
            convert_elements(from + 1, dtypes[a], to + 1, dtypes[b], N);
            convert_elements(to + 1, dtypes[b], got, DT_F64, N);
            for (int i = 0; i < N; i++) {
                double x = values[i];
                const DType steps[] = {dtypes[a], dtypes[b]};
                for (int k = 0; k < 2; k++) {
                    if (steps[k] != DT_F64) x = (double)(float)x;
                    if (steps[k] == DT_BF16) x = (double)bf16_to_float(float_to_bf16((float)x));
                    if (steps[k] == DT_F16) x = (double)f16_to_float(float_to_f16((float)x));
                }
                through[i] = x;
            }
            assert_memory_equal(got, through, sizeof got);
        }
}

#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

TEST(malformed_files_are_refused) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    WeightFile *set;
    /* Padded with spaces: fine */
    check_ok(weight_file_open(make_file(dir, ONE("F32", "[2]", "[0,8]") "   ", strlen(ONE("F32", "[2]", "[0,8]") "   "), 8), &set));
    weight_file_close(set);
    static const char no_elements[] = ONE("F32", "[4611686018427387904,4,0]", "[0,0]");
    check_ok(weight_file_open(make_file(dir, no_elements, strlen(no_elements), 0), &set));
    assert_int_equal(set->tensors[0].count, 0);
    weight_file_close(set);
    check_ok(weight_file_open(make_file(dir, "{}", 2, 0), &set));
    assert_int_equal(set->n, 0);
    weight_file_close(set);

    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } cases[] = {
        {"", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"[]", 0, "does not start with '{'"},
        {"{\"a\":", 0, "cannot parse JSON"},
        {"{} x", 0, "cannot parse JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "duplicate"},
        {"{\"a\":3}", 0, "no dtype"},
        {"{\"a\":{}}", 0, "no dtype"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no data_offsets"},
        {ONE("F31", "[2]", "[0,8]"), 8, "unknown dtype 'F31'"},
        {ONE("F32", "[-2]", "[0,8]"), 8, "is not an integer"},
        {ONE("F32", "[2.0]", "[0,8]"), 8, "is not an integer"},
        {ONE("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "more than 8 dimensions"},
        {ONE("F32", "[4611686018427387904,4]", "[0,8]"), 8, "does not fit"},
        {ONE("F32", "[9223372036854775807]", "[0,8]"), 8, "does not fit"},
        {ONE("F32", "[2]", "[0,9]"), 9, "9 bytes, its shape needs 8"},
        {ONE("F32", "[2]", "[0,8]"), 7, "ends at byte 8 of 7"},
        {ONE("F32", "[2]", "[0,8]"), 9, "1 bytes at its end belong to no tensor"},
        {ONE("F32", "[2]", "[4,12]"), 12, "belong to no tensor"},
        {ONE("F32", "[2]", "[8,0]"), 8, "run backwards"},
        {ONE("F32", "[2]", "[-8,0]"), 8, "run backwards"},
        {ONE("F32", "[2]", "[0,18446744073709551615]"), 8, "cannot parse JSON"},
        {ONE("F32", "[2]", "[0,9223372036854775807]"), 8, "ends at byte"},
        {ONE("F32", "[2]", "[0,8,16]"), 8, "no data_offsets"},
        {ONE("F32", "[2]", "\"x\""), 8, "no data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", 6,
         "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12,
         "before it belong to no tensor"},
        {"{\"__metadata__\":3}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "metadata 'k' is no string"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) safetensors_refuse(dir, cases[i].header, cases[i].data, cases[i].words);

    check_status(weight_file_open(make_file(dir, "{}", 3, 0), &set), ST_INPUT);
    check_text("its header has 3 bytes");
    check_status(weight_file_open(make_file(dir, "{}", (size_t)1 << 40, 0), &set), ST_INPUT);
    check_text("its header would have 1099511627776 bytes");
    check_status(weight_file_open(make_file(dir, "{}", SIZE_MAX, 0), &set), ST_INPUT);
    check_text("its header would have");
    check_status(weight_file_open(temp_text(dir, "short", "1234567"), &set), ST_INPUT);
    check_text("7 bytes are no safetensors file");
    check_status(weight_file_open(temp_text(dir, "empty", ""), &set), ST_INPUT);
    check_status(weight_file_open(temp_file(dir, "missing"), &set), ST_INPUT);
    check_text("missing");
    temp_dir_remove(dir);
}

/* ---- shards ---- */

static void write_shard(const char *dir, const char *file, const char *tensor, float value) {
    SafetensorsWriter *writer;
    check_ok(safetensors_writer_new(temp_file(dir, file), &writer));
    safetensors_declare(writer, tensor, DT_F32, 1, (int64_t[]){1});
    safetensors_write(writer, &value, sizeof value);
    check_ok(safetensors_commit(writer));
}

TEST(shards_are_read_through_their_index) {
    char dir[512];
    WeightFile *set;
    temp_dir_make(dir, sizeof dir);
    check_status(weight_file_open(dir, &set), ST_INPUT);
    check_text("no model.safetensors");
    write_shard(dir, "m-1.safetensors", "a", 1);
    write_shard(dir, "m-2.safetensors", "b", 2);
    const char *index = temp_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\"}}");
    check_ok(weight_file_open(dir, &set));
    assert_int_equal(set->n_files, 2);
    check_close(stored_get(weight_file_find(set, "b"), 0), 2, 0);
    assert_string_equal(path_name(weight_file_find(set, "a")->file), "m-1.safetensors");
    weight_file_close(set);

    static const struct {
        const char *index, *words;
    } cases[] = {
        {"{}", "lacks 'weight_map'"},
        {"{\"weight_map\":{}}", "names no tensor"},
        {"{\"weight_map\":{\"a\":3}}", "no file for tensor 'a'"},
        {"{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}", "outside the directory"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}}", "tensor 'c' is missing"},
        {"{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-2.safetensors\"}}", "tensor 'a' is missing"},
        {"{\"weight_map\":{\"a\":\"m-3.safetensors\"}}", "m-3.safetensors"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_ok(file_write_all(index, cases[i].index, strlen(cases[i].index)));
        check_status(weight_file_open(dir, &set), ST_INPUT);
        check_text(cases[i].words);
    }
    write_shard(dir, "m-2.safetensors", "a", 2);
    temp_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"x\":\"m-2.safetensors\"}}");
    check_status(weight_file_open(dir, &set), ST_INPUT);
    check_text("tensor 'a' is in");
    temp_dir_remove(dir);
}

TEST(an_index_says_where_every_tensor_is) {
    char dir[512];
    WeightFile *set;
    Str text = {0};
    temp_dir_make(dir, sizeof dir);
    write_shard(dir, "m-1.safetensors", "a", 1);
    write_shard(dir, "m-2.safetensors", "b", 2);
    check_ok(safetensors_write_index(dir, (IndexedTensor[]){{"b", "m-2.safetensors"}, {"a", "m-1.safetensors"}}, 2, 8));
    check_ok(file_read(temp_file(dir, "model.safetensors.index.json"), 1000, &text));
    assert_string_equal(str_text(&text), "{\n  \"metadata\": {\n    \"total_size\": 8\n  },\n  \"weight_map\": {\n    \"b\": \"m-2.safetensors\",\n"
                                         "    \"a\": \"m-1.safetensors\"\n  }\n}\n");
    str_release(&text);
    check_ok(weight_file_open(dir, &set));
    check_close(stored_get(weight_file_find(set, "b"), 0), 2, 0);
    weight_file_close(set);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_files_are_read_back),         cmocka_unit_test(conversions_are_exact_or_round_to_even),
        cmocka_unit_test(malformed_files_are_refused),         cmocka_unit_test(shards_are_read_through_their_index),
        cmocka_unit_test(an_index_says_where_every_tensor_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
