/* SPDX-License-Identifier: Apache-2.0 */
/* Whole quantisations: planned and used memory, inputs that are always 0, the end by an interrupt. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/rng.h"
#include "lib/base/system.h"
#include "lib/deploy/compress/ptq.h"
#include "lib/model/weight_file.h"

enum { N_ROWS = 12, ROW_TOKENS = 120, VOCAB = 300 };
#define CONFIG(hidden, intermediate, layers)                                                                                                \
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 300, \"hidden_size\": " hidden                  \
    ", \"intermediate_size\": " intermediate ", \"num_hidden_layers\": " layers ", \"num_attention_heads\": 4, \"num_key_value_heads\": 2," \
    " \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}"

typedef struct Job {
    PtqConfig config;
    IdRow rows[N_ROWS];
    int32_t ids[N_ROWS][ROW_TOKENS];
    char model[600], output[600];
    PtqMemory memory; /* as planned */
} Job;

static void keep_memory(void *context, const PtqReport *report) { ((Job *)context)->memory = report->memory; }

static void job_make(Job *job, const char *method) {
    for (int r = 0; r < N_ROWS; r++) {
        for (int t = 0; t < ROW_TOKENS; t++) job->ids[r][t] = (int32_t)rng_below(rng_key(5, RNG_TEST, (uint64_t)r), (uint64_t)t, VOCAB);
        job->rows[r] = (IdRow){job->ids[r], ROW_TOKENS};
    }
    snprintf(job->model, sizeof job->model, "%s", temp_file(test_folder, "plain"));
    snprintf(job->output, sizeof job->output, "%s", temp_file(test_folder, "quantised"));
    job->config = (PtqConfig){.model = job->model,
                              .output = job->output,
                              .force = true,
                              .method = method,
                              .bits = strcmp(method, "int8") == 0 ? 8 : 4,
                              .group = 32,
                              .symmetric = true,
                              .damp = 0.01,
                              .alpha = 0.5,
                              .rows = job->rows,
                              .n_rows = N_ROWS,
                              .hold_back = 0.125,
                              .runtime = {device_cpu(), DT_F32},
                              .on_plan = keep_memory,
                              .context = job};
}

/* ---- memory ---- */

/* Bytes of difference by what code a process has touched */
enum { FLOOR = 3 << 20 };

typedef struct Way {
    const char *method, *calibrate;
    bool all_rows; /* errors are measured on all rows */
} Way;

/* In a child, whose memory starts at that of a process without threads. */
static bool is_as_planned(const Way *way) {
    static Job job;
    PtqReport *report;
    job_make(&job, way->method);
    job.config.calibrate = way->calibrate;
    if (way->all_rows) job.config.hold_back = 0;
    const Status status = ptq_run(&job.config, &report);
    const double used = (double)memory_peak(), planned = (double)job.memory.total;
    printf("%s %s: planned %.1f MiB, used %.1f MiB\n", way->method, way->calibrate ? way->calibrate : "", planned / (1 << 20), used / (1 << 20));
    fflush(stdout);
    return status == ST_OK && used <= 1.05 * planned && used >= 0.9 * planned - FLOOR;
}

static void check_memory(const char *config, const Way *ways, size_t n) {
    bool fine = true;
    assert_int_equal(model_write_random(temp_file(test_folder, "plain"), config, DT_BF16, 1, 0.05), ST_OK);
    for (size_t i = 0; i < n; i++) {
        int code = -1;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) _exit(is_as_planned(&ways[i]) ? 0 : 1);
        assert_true(child > 0 && waitpid(child, &code, 0) == child);
        fine &= WIFEXITED(code) && WEXITSTATUS(code) == 0;
    }
    check_ok(dir_remove(temp_file(test_folder, "quantised")));
    check_ok(dir_remove(temp_file(test_folder, "plain")));
    assert_true(fine);
}

TEST(memory_is_as_planned) {
#ifdef SANITIZED
    skip(); /* sanitizers need extra memory */
#endif
    static const Way ways[] = {{"rtn", NULL, false}, {"gptq", NULL, false}, {"awq", NULL, false}, {"int8", NULL, false}, {"int8", "entropy", true}};
    check_memory(CONFIG("256", "1536", "1"), ways, COUNT_OF(ways));
}

/* The experts of the second layer have more weights, and the first layer has the widest inputs. */
TEST(memory_is_that_of_the_largest_parts) {
#ifdef SANITIZED
    skip();
#endif
    static const Way ways[] = {{"gptq", NULL, false}};
    check_memory("{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 300, \"hidden_size\": 128,"
                 " \"intermediate_size\": 1024, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32,"
                 " \"num_experts\": 32, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 64, \"mlp_only_layers\": [0],"
                 " \"max_position_embeddings\": 256, \"tie_word_embeddings\": true}",
                 ways, COUNT_OF(ways));
}

/* ---- inputs that are always 0 ---- */

enum { DEAD = 5 };
/* The norm before query, key and value makes this input 0. */
static void write_dead(const char *folder) {
    WeightFile *file;
    check_ok(model_write_random(folder, CONFIG("64", "160", "2"), DT_BF16, 1, 0.05));
    check_ok(weight_file_open(folder, &file));
    const StoredTensor *norm = weight_file_find(file, "model.layers.0.input_layernorm.weight");
    const long at = (long)(norm->data - weight_file_mapping(file, norm->data)->data) + 2 * DEAD;
    weight_file_close(file);
    FILE *raw = fopen(temp_file(folder, "model.safetensors"), "r+b");
    assert_true(raw && fseek(raw, at, SEEK_SET) == 0 && fwrite("\0\0", 2, 1, raw) == 1 && fclose(raw) == 0);
}

static void check_dead(const Job *job, const PtqReport *report, bool zeroed) {
    Model *model;
    check_ok(model_load(job->output, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .dequantize = true}, &model));
    for (size_t i = 0; i < report->n_layers; i++) {
        const PtqLayer *layer = &report->layers[i];
        const Linear *linear = model->linears[i];
        const bool reads = layer->layer == 0 && strstr(layer->path, "self_attn") && !strstr(layer->path, "o_proj");
        assert_int_equal(layer->dead, reads);
        assert_true(isfinite(layer->error) && layer->error < 0.5);
        for (int64_t o = 0; o < linear->out && reads && zeroed; o++) assert_true(tensor_get(linear->weight, o * linear->in + DEAD) == 0);
    }
    model_free(model);
}

TEST(dead_inputs_are_told) {
    static const char *const methods[] = {"gptq", "awq", "int8"};
    static Job job;
    for (size_t i = 0; i < COUNT_OF(methods); i++) {
        PtqReport *report;
        job_make(&job, methods[i]);
        if (i == 0) write_dead(job.model);
        check_ok(ptq_run(&job.config, &report));
        check_dead(&job, report, strcmp(methods[i], "gptq") == 0);
        ptq_free(report);
    }
    check_ok(dir_remove(job.output));
}

/* ---- the end by an interrupt ---- */

static void ask_to_end(void *context, const PtqReport *report, int64_t done) {
    (void)context;
    (void)report;
    if (done == 1) interrupt_request();
}

static size_t entries(const char *folder) {
    Arena *arena = arena_new(0);
    char **names;
    size_t n;
    check_ok(dir_list(folder, arena, &names, &n));
    arena_free(arena);
    return n;
}

TEST(an_interrupt_leaves_nothing) {
    static Job job;
    PtqReport *report;
    job_make(&job, "gptq");
    const size_t before = entries(test_folder);
    job.config.on_layer = ask_to_end;
    check_status(ptq_run(&job.config, &report), ST_INTERRUPTED);
    interrupt_clear();
    assert_null(report);
    check_text("nothing was written");
    assert_int_equal(entries(test_folder), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_as_planned), /* first: their processes start without threads */
        cmocka_unit_test(memory_is_that_of_the_largest_parts),
        cmocka_unit_test(dead_inputs_are_told),
        cmocka_unit_test(an_interrupt_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
