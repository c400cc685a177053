/* SPDX-License-Identifier: Apache-2.0 */
/* What a generator takes is known before its model is read. Each run has a process of its own, since a process keeps what it took. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/system.h"
#include "lib/infer/infer.h"
#include "lib/infer/kv_cache.h"
#include "lib/model/adapter.h"

enum { SEQUENCES = 12, PROMPT = 150, NEW = 200, N_ADAPTERS = 2 };
#define CONFIG(hidden, mlp, layers, vocab)                                                                                                         \
    "{\"model_type\": \"llama\", \"hidden_size\": " #hidden ", \"intermediate_size\": " #mlp ", \"num_hidden_layers\": " #layers                   \
    ", \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"vocab_size\": " #vocab \
    ", \"eos_token_id\": 1, \"tie_word_embeddings\": false}"

typedef struct MemoryRun {
    const char *dir, *tiny;
    DType compute;
    bool with_adapters;
} MemoryRun;

static Status drop(void *context, Completion *c) {
    (void)context;
    return c->status;
}

static GeneratorConfig memory_config(const Model *const *adapters, bool with_adapters) {
    return (GeneratorConfig){.max_sequences = SEQUENCES,
                             .max_pages = (SEQUENCES + 1) * kv_pages_for(PROMPT + NEW),
                             .adapters = adapters,
                             .n_adapters = with_adapters ? N_ADAPTERS : 0};
}

static Status all_sequences(Generator *g, int64_t vocab, const Model *const *adapters, bool with_adapters) {
    static int32_t ids[SEQUENCES][PROMPT];
    for (size_t i = 0; i < SEQUENCES; i++) {
        for (size_t k = 0; k < PROMPT; k++) ids[i][k] = 2 + (int32_t)((i * 31 + k * 7) % (size_t)(vocab - 2));
        GenerateHandle handle = 0;
        GenerateRequest request = {.prompt = {ids[i], PROMPT, i},
                                   .n_samples = 1,
                                   .sample = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1.1},
                                   .max_new_tokens = NEW,
                                   .ignore_eos = true,
                                   .adapter = with_adapters && i % (N_ADAPTERS + 1) ? adapters[i % (N_ADAPTERS + 1) - 1] : NULL,
                                   .on_done = drop};
        while (!handle) {
            TRY(generator_add(g, &request, &handle));
            if (!handle) TRY(generator_step(g));
        }
    }
    return generator_drain(g);
}

static Status load_all(const MemoryRun *run, const char *dir, bool streamed, Model *models[1 + N_ADAPTERS]) {
    ModelOptions options = {.device = device_cpu(), .compute = run->compute, .streamed = streamed, .skip_nan_check = streamed};
    TRY(model_load(dir, &options, &models[0]));
    for (int i = 0; i < N_ADAPTERS && run->with_adapters; i++) {
        TRY(model_share_weights(models[0], &models[1 + i]));
        TRY(model_attach_lora(models[1 + i], &(LoraConfig){.rank = 8, .alpha = 16}, 1));
    }
    return ST_OK;
}

static Status run_all(const MemoryRun *run, const char *dir) {
    Model *models[1 + N_ADAPTERS] = {0};
    Generator *g;
    TRY(load_all(run, dir, false, models));
    const Model *const *adapters = (const Model *const *)(models + 1);
    GeneratorConfig config = memory_config(adapters, run->with_adapters);
    TRY(generator_open(models[0], NULL, &config, &g));
    TRY(all_sequences(g, models[0]->config.vocab_size, adapters, run->with_adapters));
    generator_close(g);
    for (int i = N_ADAPTERS; i >= 0; i--) model_free(models[i]);
    return ST_OK;
}

static Status plan_all(const MemoryRun *run, GeneratorMemory *planned) {
    Model *streamed[1 + N_ADAPTERS] = {0};
    TRY(load_all(run, run->dir, true, streamed));
    GeneratorConfig config = memory_config((const Model *const *)(streamed + 1), run->with_adapters);
    *planned = generator_memory(streamed[0], &config);
    for (int i = N_ADAPTERS; i >= 0; i--) model_free(streamed[i]);
    return ST_OK;
}

/* 5 %, and what differs from run to run in a small process (test_plan.c). A run with a tiny model comes first, so that the program's own pages and
 * the threads' stacks are there. */
static Status memory_compare(const MemoryRun *run, bool *fine) {
    enum { FLOOR = 3 << 20 };
    GeneratorMemory planned;
    TRY(run_all(run, run->tiny));
    memory_trim();
    double before = (double)memory_resident();
    TRY(plan_all(run, &planned));
    TRY(run_all(run, run->dir));
    double measured = (double)memory_peak(), wanted = before + (double)planned.total;
    *fine = fabs(measured - wanted) <= fmax(0.05 * measured, FLOOR);
    if (!*fine)
        printf("%s%s: planned %.1f MiB and %.1f (weights %.1f, packed %.1f, cache %.1f, step %.1f, scratch %.1f, tables %.1f), measured %.1f\n",
               dtype_name(run->compute), run->with_adapters ? " with adapters" : "", before / (1 << 20), (double)planned.total / (1 << 20),
               (double)planned.weights / (1 << 20), (double)planned.packed / (1 << 20), (double)planned.cache / (1 << 20),
               (double)planned.step / (1 << 20), (double)planned.scratch / (1 << 20), (double)planned.tables / (1 << 20), measured / (1 << 20));
    return ST_OK;
}

static bool is_as_planned(const MemoryRun *run) {
    bool fine = false;
    Status status = memory_compare(run, &fine);
    if (status != ST_OK) printf("%s\n", status_text());
    return fine;
}

static bool write_models(const MemoryRun *run) {
    return model_write_random(run->dir, CONFIG(256, 700, 3, 9000), DT_BF16, 1, 0.02) == ST_OK &&
           model_write_random(run->tiny, CONFIG(32, 64, 1, 300), DT_BF16, 1, 0.02) == ST_OK;
}

static bool in_own_process(bool (*body)(const MemoryRun *), const MemoryRun *run) {
    int code = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        bool fine = body(run);
        fflush(stdout);
        _exit(fine ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &code, 0) == child);
    return WIFEXITED(code) && WEXITSTATUS(code) == 0;
}

TEST(memory_is_known_before) {
#ifdef SANITIZED
    skip(); /* sanitizers need extra memory */
#endif
    char folder[256], dir[300], tiny[300];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    snprintf(dir, sizeof dir, "%s/model", folder);
    snprintf(tiny, sizeof tiny, "%s/tiny", folder);
    MemoryRun run = {.dir = dir, .tiny = tiny};
    assert_true(in_own_process(write_models, &run));
    for (int variant = 0; variant < 4; variant++) {
        run.compute = variant & 1 ? DT_BF16 : DT_F32;
        run.with_adapters = variant & 2;
        fine &= in_own_process(is_as_planned, &run);
    }
    temp_dir_remove(folder);
    assert_true(fine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_known_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
