/* SPDX-License-Identifier: Apache-2.0 */
/* Compares planned with used memory: scratch memory of kernels to the byte, the resident size of runs within a few percent. */
#include "lib/base/system.h"
#include "lib/infer/top_file.h"
#include "lib/model/model.h"
#include "lib/model/safetensors.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_rl.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Calls body(context) in a child process, without any memory that kernels keep. This process must not start threads. Returns body's result. */
static bool in_own_process(bool (*body)(void *context), void *context) {
    int code = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        bool fine = body(context);
        fflush(stdout);
        _exit(fine ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &code, 0) == child);
    return WIFEXITED(code) && WEXITSTATUS(code) == 0;
}

/* ---- scratch memory ---- */

static const char *const libraries[] = {"own", "openblas", "onednn"};
static const char *const isas[] = {"base", "avx2", "avx512", "avx512_bf16", "amx"};

typedef struct Kernels {
    Arena *arena;
    DType dtype;
    bool frozen;
    const Device *device;
} Kernels; /* device: the real one, or meta */

static Tensor *tensor_of(const Kernels *k, DType dtype, int64_t rows, int64_t cols) {
    int64_t shape[] = {rows, cols};
    Tensor *tensor = tensor_view(k->arena, device_cpu(), dtype, cols ? 2 : 1, shape, NULL);
    tensor->elements = arena_zero(k->arena, tensor_bytes(tensor));
    return tensor;
}

static Tensor *weight_of(const Kernels *k, int64_t rows, int64_t cols) {
    Tensor *weight = tensor_of(k, DT_BF16, rows, cols);
    weight->storage->constant = k->frozen;
    return weight;
}

static void linear(const Kernels *k, int64_t rows, int64_t in, int64_t out) {
    Tensor *x = tensor_of(k, k->dtype, rows, in), *y = tensor_of(k, k->dtype, rows, out);
    k->device->matmul(&(Matmul){.a = x, .b = weight_of(k, out, in), .c = y, .transpose_b = true, .alpha = 1});
    k->device->matmul(&(Matmul){.a = y, .b = weight_of(k, out, in), .c = x, .alpha = 1, .beta = 1});
}

static void one_row(const Kernels *k) { linear(k, 1, 576, 1536); }
static void some_rows(const Kernels *k) { linear(k, 200, 576, 1500); }
static void long_sum(const Kernels *k) { linear(k, 130, 5000, 96); }

static void weight_gradient(const Kernels *k) {
    Tensor *x = tensor_of(k, k->dtype, 700, 330), *dy = tensor_of(k, k->dtype, 700, 250), *dw = tensor_of(k, DT_F32, 250, 330),
           *thin = tensor_of(k, k->dtype, 700, 16);
    k->device->matmul(&(Matmul){.a = dy, .b = x, .c = dw, .transpose_a = true, .alpha = 1, .beta = 1});
    k->device->matmul(&(Matmul){.a = thin, .b = x, .c = tensor_of(k, DT_F32, 16, 330), .transpose_a = true, .alpha = 1, .beta = 1});
}

static void weight_gradients(const Kernels *k) {
    Tensor *x = tensor_of(k, k->dtype, 700, 330);
    Matmul narrow = {.a = tensor_of(k, k->dtype, 700, 100), .b = x, .c = tensor_of(k, DT_F32, 100, 330), .transpose_a = true, .alpha = 1, .beta = 1},
           wide = narrow;
    wide.a = tensor_of(k, k->dtype, 700, 900), wide.c = tensor_of(k, DT_F32, 900, 330), wide.next = &narrow;
    k->device->matmul(&wide);
}

static void low_rank(const Kernels *k) {
    Tensor *x = tensor_of(k, k->dtype, 300, 576), *low = tensor_of(k, k->dtype, 300, 16), *residual = tensor_of(k, DT_F32, 300, 400),
           *bias = tensor_of(k, DT_F32, 400, 0);
    Matmul args = {.a = x,
                   .b = weight_of(k, 400, 576),
                   .c = tensor_of(k, DT_F32, 300, 400),
                   .transpose_b = true,
                   .alpha = 1,
                   .beta = 1,
                   .more_a = low,
                   .more_b = tensor_of(k, DT_F32, 400, 16),
                   .transpose_more_b = true,
                   .more_alpha = 2,
                   .down = tensor_of(k, DT_F32, 16, 576),
                   .transpose_down = true,
                   .down_alpha = 1,
                   .low = low,
                   .addend = residual};
    k->device->matmul(&args);
    args.addend = bias;
    k->device->matmul(&args);
}

static void shared_input(const Kernels *k) {
    Tensor *x = tensor_of(k, k->dtype, 20, 576);
    Matmul narrow = {.a = x, .b = weight_of(k, 192, 576), .c = tensor_of(k, k->dtype, 20, 192), .transpose_b = true, .alpha = 1}, wide = narrow;
    wide.b = weight_of(k, 3000, 576), wide.c = tensor_of(k, k->dtype, 20, 3000), wide.next = &narrow;
    k->device->matmul(&wide);
}

/* Both products of a frozen weight of codes, for few rows and for many. */
static void codes(const Kernels *k) {
    Tensor *weight = tensor_of(k, DT_Q4_0, 700, 576);
    weight->storage->constant = true;
    for (int64_t rows = 7; rows < 300; rows *= 20) {
        Tensor *x = tensor_of(k, k->dtype, rows, 576), *y = tensor_of(k, k->dtype, rows, 700);
        k->device->matmul(&(Matmul){.a = x, .b = weight, .c = y, .transpose_b = true, .alpha = 1});
        k->device->matmul(&(Matmul){.a = y, .b = weight, .c = x, .alpha = 1, .beta = 1});
    }
}

static void attend(const Kernels *k, int32_t n_segments, int64_t length, bool tree) {
    Segment segments[16];
    for (int32_t s = 0; s < n_segments; s++) segments[s] = (Segment){.begin = s * length, .end = (s + 1) * length, .parent = tree && s > 0 ? 0 : -1};
    Layout layout = {.n_tokens = n_segments * length, .n_segments = n_segments, .segments = segments};
    check_ok(layout_upload(&layout, k->arena, k->device));
    AttentionArgs args = {.layout = &layout, .n_heads = 6, .n_kv_heads = 2, .head_dim = 40, .scale = 0.2};
    Tensor *q[4], *kv[4], *norms = tensor_of(k, DT_F32, layout.n_tokens, 6);
    for (int i = 0; i < 4; i++) q[i] = tensor_of(k, k->dtype, layout.n_tokens, 240), kv[i] = tensor_of(k, k->dtype, layout.n_tokens, 80);
    k->device->attention(&args, q[0], kv[0], kv[1], q[1], norms);
    k->device->attention_backward(&args, q[0], kv[0], kv[1], q[1], norms, q[2], (const double[]){0, 0, 0}, q[3], kv[2], kv[3]);
}

static void segments_alone(const Kernels *k) { attend(k, 9, 150, false); }
static void branches(const Kernels *k) { attend(k, 3, 200, true); }

/* kept: rows whose probabilities are, where the head is trained. */
static void head(const Kernels *k, int64_t rows, bool going_back, int64_t kept) {
    enum { VOCAB = 5000, WIDTH = 70 };
    const Device *device = k->device;
    Tensor *hidden = tensor_of(k, k->dtype, rows, WIDTH), *weight = weight_of(k, VOCAB, WIDTH), *targets = tensor_of(k, DT_I32, rows, 0),
           *logprob = tensor_of(k, DT_F32, rows, 0);
    Tensor *norms = tensor_of(k, DT_F32, rows, 0);
    LogprobArgs args = {.temperature = 1};
    if (!going_back) {
        device->token_logits(&args, hidden, weight, tensor_of(k, DT_F32, rows, VOCAB), tensor_of(k, DT_F64, rows, 0));
        return;
    }
    bool by_weights = !k->frozen && kept >= 0;
    LogprobResults results = {.logprob = logprob,
                              .logsumexp = norms,
                              .dlogp_dhidden = k->frozen || by_weights ? tensor_of(k, DT_F32, rows, WIDTH) : NULL,
                              .reference = by_weights ? tensor_of(k, DT_F32, rows, 0) : NULL,
                              .weights = by_weights && kept > 0 ? tensor_of(k, k->dtype, kept, VOCAB) : NULL};
    device->token_logprobs(&args, hidden, weight, targets, &results);
    device->token_logprobs_backward(&args, hidden, weight, targets, &results, &(TokenLogprobs){.logprob = logprob},
                                    by_weights ? NULL : tensor_of(k, k->dtype, rows, WIDTH), 1,
                                    k->frozen ? NULL : tensor_of(k, DT_F32, VOCAB, WIDTH));
}

static void logprobs(const Kernels *k) { head(k, 2100, true, -1); } /* more than one block of rows */
static void weights_again(const Kernels *k) { head(k, 2100, true, 0); }
static void weights_kept(const Kernels *k) { head(k, 300, true, 300); }
static void logits(const Kernels *k) { head(k, 7, false, -1); }

typedef struct ScratchCase {
    const char *name;
    void (*run)(const Kernels *k);
} ScratchCase;
static const ScratchCase scratch_cases[] = {{"one row", one_row},
                                            {"some rows", some_rows},
                                            {"long sum", long_sum},
                                            {"weight gradient", weight_gradient},
                                            {"weight gradients", weight_gradients},
                                            {"low rank", low_rank},
                                            {"shared input", shared_input},
                                            {"codes", codes},
                                            {"segments alone", segments_alone},
                                            {"branches", branches},
                                            {"logprobs", logprobs},
                                            {"weights again", weights_again},
                                            {"weights kept", weights_kept},
                                            {"logits", logits}};

typedef struct ScratchRun {
    const char *library, *isa;
    const ScratchCase *test;
    DType dtype;
    bool frozen;
    int threads;
} ScratchRun;

/* Where a thread finds nothing to do it takes nothing: with several of them the plan is a bound. */
static bool scratch_is_as_planned(void *context) {
    const ScratchRun *run = context;
    if (cpu_configure(run->library, run->isa) != ST_OK) return true;
    Kernels kernels = {arena_new(0), run->dtype, run->frozen, device_meta()};
    omp_set_num_threads(run->threads);
    run->test->run(&kernels);
    size_t planned = device_cpu()->workspace_bytes(device_cpu()), before = cpu_scratch_bytes();
    kernels.device = device_cpu();
    run->test->run(&kernels);
    size_t taken = cpu_scratch_bytes() - before;
    if (taken > 0 && (run->threads == 1 ? planned == taken : planned >= taken && planned <= (size_t)run->threads * taken)) return true;
    printf("%s %s: %s, %s, %s weights, %d threads: planned %zu bytes of scratch memory, %zu were taken\n", run->library, run->isa, run->test->name,
           dtype_name(run->dtype), run->frozen ? "frozen" : "trained", run->threads, planned, taken);
    return false;
}

TEST(scratch_memory_is_known_before) {
    bool fine = true;
    for (size_t l = 0; l < COUNT_OF(libraries); l++)
        for (size_t i = 0; i < COUNT_OF(isas); i++) {
            if (cpu_configure(libraries[l], isas[i]) != ST_OK) continue;
            if (l > 0 && i == 0 && !long_tests()) continue; /* other libraries choose their instructions themselves */
            for (size_t c = 0; c < COUNT_OF(scratch_cases); c++)
                for (int variant = 0; variant < 5; variant++) { /* the last one, frozen bf16, with two threads */
                    if (ALL_OR_FEW(false, (variant + c + i) % 5 != l)) continue;
                    ScratchRun run = {libraries[l],
                                      isas[i],
                                      &scratch_cases[c],
                                      (variant & 1) || variant == 4 ? DT_BF16 : DT_F32,
                                      (variant & 2) || variant == 4,
                                      variant < 4 ? 1 : 2};
                    fine &= in_own_process(scratch_is_as_planned, &run);
                }
        }
    check_ok(cpu_configure(NULL, NULL));
    assert_true(fine);
}

/* ---- whole runs ---- */

enum { ROWS = 16, BATCH = 4, ROW_TOKENS = 256, VOCAB = 3000 };
static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 3000, \"hidden_size\": 256, \"intermediate_size\": 704, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}";

static void write_ids(Str *text, const char *key, int64_t row, int64_t n) {
    str_printf(text, "\"%s\": [", key);
    for (int64_t t = 0; t < n; t++) str_printf(text, "%s%d", t ? ", " : "", (int)rng_below(rng_key(3, RNG_TEST, (uint64_t)row), (uint64_t)t, VOCAB));
    str_append(text, "]");
}

/* Rows and pairs of `most` tokens, prompts of half as many; rising: each BATCH of them longer than the one before. */
static void write_rows(const char *folder, const char *kind, int64_t most, bool rising) {
    Str ids = {0}, pairs = {0}, prompts = {0};
    for (int64_t i = 0; i < ROWS; i++) {
        int64_t n = rising ? most * (i / BATCH + 1) / (ROWS / BATCH) : most;
        str_append(&ids, "{");
        write_ids(&ids, "input_ids", i, n);
        str_append(&ids, "}\n");
        str_append(&pairs, "{");
        write_ids(&pairs, "prompt_ids", i, n / 4);
        str_append(&pairs, ", ");
        write_ids(&pairs, "chosen_ids", i + ROWS, n / 2);
        str_append(&pairs, ", ");
        write_ids(&pairs, "rejected_ids", i + 2 * ROWS, n / 2);
        str_append(&pairs, "}\n");
        str_append(&prompts, "{");
        write_ids(&prompts, "ids", i, n / 2);
        str_append(&prompts, "}\n");
    }
    char name[64];
    snprintf(name, sizeof name, "ids%s.jsonl", kind);
    temp_text(folder, name, str_text(&ids));
    snprintf(name, sizeof name, "pairs%s.jsonl", kind);
    temp_text(folder, name, str_text(&pairs));
    snprintf(name, sizeof name, "prompts%s.jsonl", kind);
    temp_text(folder, name, str_text(&prompts));
    str_release(&ids);
    str_release(&pairs);
    str_release(&prompts);
}

/* rows: ids, pairs (DPO) or prompts (GRPO). eval: a file, or a setting; judge: a reward model. */
typedef struct MemoryRun {
    const char *folder, *model, *rows, *eval, *judge, *checkpointing, *compute, *more;
    const char *distil[5]; /* settings */
    bool lora, dry, rising;
    TrainMemory plan;
} MemoryRun;

static void keep_plan(void *context, const RunPlan *plan) { ((MemoryRun *)context)->plan = plan->memory; }

static Status plan_train(MemoryRun *run, const Recipe *recipe) {
    TrainResult result;
    const TrainingConfig training = {
        .recipe = recipe, .runtime = runtime_of(recipe), .options.dry_run = run->dry, .on_plan = keep_plan, .context = run};
    if (strncmp(run->rows, "prompts", 7) == 0) return text_rl_run(&training, &(RewardOptions){0}, &result);
    if (strncmp(run->rows, "pairs", 5) == 0) return preference_run(&training, &result);
    return sft_run(&training, &result);
}

/* Bytes of difference: 1.4 MiB were seen, by what code a process has touched; without evaluations in the plan it is 20 and more */
enum { FLOOR = 3 << 20 };

static Status train_by(MemoryRun *run) {
    Arena *arena = arena_new(0);
    const char *kinds[] = {"ids", "data.format=ids", "pairs", "rl.algorithm=dpo", "prompts", "rl.algorithm=grpo"}, *settings[25];
    size_t n = 0;
    settings[n++] = arena_printf(arena, "model.path=%s/%s", run->folder, run->model);
    settings[n++] = arena_printf(arena, "model.compute=%s", run->compute);
    settings[n++] = arena_printf(arena, "output=%s/run", run->folder);
    settings[n++] = arena_printf(arena, "data.train=%s/%s.jsonl", run->folder, run->rows);
    settings[n++] = run->rising ? "train.max_steps=4" : run->eval ? "train.max_steps=1" : "train.max_steps=2";
    if (run->rising) settings[n++] = "data.shuffle=false";
    settings[n++] = arena_printf(arena, "train.checkpointing=%s", run->checkpointing);
    settings[n++] = run->lora ? "lora.rank=8" : "train.learning_rate=1e-4";
    for (size_t i = 0; i < COUNT_OF(kinds); i += 2)
        if (strncmp(kinds[i], run->rows, strlen(kinds[i])) == 0) settings[n++] = kinds[i + 1];
    if (run->eval) {
        settings[n++] = "train.eval_every=1";
        settings[n++] = strchr(run->eval, '=') ? run->eval : arena_printf(arena, "data.eval=%s/%s.jsonl", run->folder, run->eval);
    }
    if (strncmp(run->rows, "prompts", 7) == 0) {
        settings[n++] = "rl.prompts_per_step=2";
        settings[n++] = "rl.num_generations=8";
        settings[n++] = "generate.max_new_tokens=32";
        settings[n++] =
            run->judge ? arena_printf(arena, "reward=[{type: model, model: %s/%s}]", run->folder, run->judge) : "reward=[{type: length, target: 20}]";
    } else {
        settings[n++] = arena_printf(arena, "train.batch_size=%d", BATCH);
    }
    if (run->more) settings[n++] = run->more;
    for (size_t i = 0; i < COUNT_OF(run->distil) && run->distil[i]; i++) settings[n++] = run->distil[i];
    Recipe *recipe;
    Status status = recipe_read(NULL, settings, n, &recipe);
    if (status == ST_OK) status = plan_train(run, recipe);
    (void)dir_remove(temp_file(run->folder, "run"));
    return status;
}

/* 5 %, and what differs from run to run in a small process. */
static bool memory_is_as_planned(void *context) {
    MemoryRun *run = context;
    Status status = train_by(run);
    double measured = (double)memory_peak(), planned = (double)run->plan.total, difference = measured - planned;
    bool fine = status == ST_OK && fabs(difference) <= fmax(0.05 * measured, FLOOR);
    if (!fine)
        printf("%s, evaluations %s, checkpointing %s, %s, %s: planned %.1f MiB, measured %.1f %s\n", run->rows, run->eval ? run->eval : "none",
               run->checkpointing, run->compute, run->lora ? "adapter" : "all weights", planned / (1 << 20), measured / (1 << 20),
               status == ST_OK ? "" : status_text());
    return fine;
}

#define SMALL(architecture)                                                                                \
    "{\"model_type\": \"llama\", \"architectures\": [\"" architecture                                      \
    "\"], \"vocab_size\": 3000, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true, \"num_labels\": 1}"
static bool write_model(void *folder) {
    return model_write_random(temp_file(folder, "model"), config, DT_BF16, 1, 0.02) == ST_OK &&
           model_write_random(temp_file(folder, "small"), SMALL("LlamaForCausalLM"), DT_BF16, 1, 0.02) == ST_OK &&
           model_write_random(temp_file(folder, "judge"), SMALL("LlamaForSequenceClassification"), DT_F32, 1, 0.02) == ST_OK;
}

TEST(resident_size_is_known_before) {
#ifdef SANITIZED
    skip(); /* sanitizers need extra memory */
#endif
    static const char *const kinds[] = {"none", "selective", "layer"}, *const computes[] = {"f32", "bf16"};
    char folder[512];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_model, folder));
    write_rows(folder, "", ROW_TOKENS, false);
    for (size_t c = 0; c < COUNT_OF(computes); c++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++)
            for (size_t variant = 0; variant < 4; variant++) {
                if (!long_tests() && (variant + c + k) % 2) continue;
                MemoryRun run = {.folder = folder,
                                 .model = "model",
                                 .rows = variant == 2 ? "pairs" : "ids",
                                 .checkpointing = kinds[k],
                                 .compute = computes[c],
                                 .lora = variant > 0,
                                 .eval = variant == 3 ? "data.eval_split=0.5" : NULL,
                                 .more = variant == 0 ? "train.save_every=1" : NULL}; /* a checkpoint of all weights takes no memory */
                fine &= in_own_process(memory_is_as_planned, &run);
            }
    temp_dir_remove(folder);
    assert_true(fine);
}

/* A copy of the model whose linear layers are int8, as bitsandbytes stores them. */
static Status write_int8(const char *from, const char *to) {
    WeightFile *file;
    SafetensorsWriter *writer;
    json_t *json;
    TRY(json_read_file(temp_file(from, "config.json"), &json));
    json_object_set_new(json, "quantization_config", json_pack("{sb}", "load_in_8bit", 1));
    TRY(dir_make(to));
    if (json_dump_file(json, temp_file(to, "config.json"), 0) != 0) return ST_INPUT;
    json_decref(json);
    TRY(weight_file_open(from, &file));
    TRY(safetensors_writer_new(temp_file(to, "model.safetensors"), &writer));
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < file->n; i++) {
            const StoredTensor *tensor = &file->tensors[i];
            int64_t rows = tensor->shape[0], width = tensor->n_dims == 2 ? tensor->shape[1] : 0;
            if (!strstr(tensor->name, "_proj.weight")) {
                if (round == 0) safetensors_declare_as(writer, tensor);
                if (round == 1) safetensors_write(writer, tensor->data, tensor->bytes);
                continue;
            }
            float *values = malloc((size_t)(rows * width) * sizeof *values), *absmax = malloc((size_t)rows * sizeof *absmax);
            int8_t *bytes = malloc((size_t)(rows * width));
            TRY(stored_read(tensor, 0, rows * width, DT_F32, values));
            for (int64_t r = 0; r < rows; r++) absmax[r] = int8_row_write(values + r * width, width, bytes + r * width);
            StoredTensor eight = *tensor;
            char name[128];
            eight.dtype_text = "I8";
            eight.bytes = (size_t)(rows * width);
            snprintf(name, sizeof name, "%.*sSCB", (int)(strlen(tensor->name) - strlen("weight")), tensor->name);
            if (round == 0) safetensors_declare_as(writer, &eight);
            if (round == 0) safetensors_declare(writer, name, DT_F32, 1, &rows);
            if (round == 1) safetensors_write(writer, bytes, eight.bytes);
            if (round == 1) safetensors_write(writer, absmax, (size_t)rows * sizeof *absmax);
            free(values);
            free(absmax);
            free(bytes);
        }
    weight_file_close(file);
    return safetensors_commit(writer);
}

static bool write_quantised(void *folder) {
    return write_model(folder) && write_int8(temp_file(folder, "model"), temp_file(folder, "int8")) == ST_OK;
}

/* A file of log-probabilities for the rows of ids. */
static bool write_stored_teacher(void *folder) {
    enum { K = 64 };
    int32_t ids[ROW_TOKENS];
    static TokenLogprob top[ROW_TOKENS * K];
    TopWriter *writer;
    TopShape shape = {.k = K, .vocab = VOCAB, .n_tokens = ROWS * ROW_TOKENS, .n_rows = ROWS, .dtype = DT_F16};
    if (top_writer_open(temp_file(folder, "top.safetensors"), &shape, &writer) != ST_OK) return false;
    for (int64_t i = 0; i < ROWS; i++) {
        for (int64_t t = 0; t < ROW_TOKENS; t++) {
            ids[t] = (int32_t)rng_below(rng_key(3, RNG_TEST, (uint64_t)i), (uint64_t)t, VOCAB);
            for (int k = 0; k < K; k++) top[t * K + k] = (TokenLogprob){t == 0 ? -1 : k, log(0.9 / K)};
        }
        top_writer_add(writer, ids, ROW_TOKENS, top);
    }
    return top_writer_close(writer, ST_OK) == ST_OK;
}

/* Of a stored teacher no weights are in memory. */
static bool stored_teacher_has_no_weights(void *context) {
    MemoryRun *run = context, plain = *run;
    if (!memory_is_as_planned(run)) return false;
    plain.dry = true;
    memset(plain.distil, 0, sizeof plain.distil);
    return train_by(&plain) == ST_OK && plain.plan.weights + plain.plan.mapped == run->plan.weights + run->plan.mapped;
}

TEST(resident_size_with_a_teacher_is_known_before) {
#ifdef SANITIZED
    skip(); /* sanitizers need extra memory */
#endif
    char folder[512], model[600], stored[600];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    snprintf(model, sizeof model, "distil.teacher=%s/model", folder);
    snprintf(stored, sizeof stored, "distil.teacher=%s/top.safetensors", folder);
    assert_true(in_own_process(write_model, folder) && in_own_process(write_stored_teacher, folder));
    write_rows(folder, "", ROW_TOKENS, false);
    const char *const settings[][5] = {{model, "distil.loss=jsd"},
                                       {model, "distil.loss=top_k"},
                                       {model, "distil.hidden=1", "distil.attention=1"},
                                       {stored, "distil.loss=top_k"},
                                       {model, "rl.algorithm=gkd", "rl.lmbda=1", "reward=null"}};
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        for (int lora = 0; lora < 2; lora++) {
            if (!long_tests() && (i + (size_t)lora) % 2) continue;
            const bool own = i + 1 == COUNT_OF(settings);
            MemoryRun run = {.folder = folder,
                             .model = "model",
                             .rows = own ? "prompts" : "ids",
                             .checkpointing = lora ? "layer" : "none",
                             .compute = "f32",
                             .lora = lora};
            memcpy(run.distil, settings[i], sizeof run.distil);
            fine &= in_own_process(settings[i][0] == stored ? stored_teacher_has_no_weights : memory_is_as_planned, &run);
        }
    temp_dir_remove(folder);
    assert_true(fine);
}

/* A base of codes takes what the plan says, which is less than with their values. */
static bool codes_take_less(void *context) {
    MemoryRun *run = context, values = *run;
    if (!memory_is_as_planned(run)) return false;
    values.dry = true;
    values.more = "model.dequantize=true";
    return train_by(&values) == ST_OK && values.plan.weights + values.plan.mapped > run->plan.weights + run->plan.mapped;
}

TEST(resident_size_on_codes_is_known_before) {
#ifdef SANITIZED
    skip();
#endif
    char folder[512];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_quantised, folder));
    write_rows(folder, "", ROW_TOKENS, false);
    for (int c = 0; c < 2; c++) {
        MemoryRun run = {.folder = folder, .model = "int8", .rows = "ids", .checkpointing = "selective", .compute = c ? "bf16" : "f32", .lora = true};
        fine &= in_own_process(codes_take_less, &run);
    }
    temp_dir_remove(folder);
    assert_true(fine);
}

/* A file of 60 MiB, which no later part of the run reads. */
static bool write_large(void *folder) {
    static const char large[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 3000, \"hidden_size\": 640, \"intermediate_size\": 1920, \"num_hidden_layers\": 6,"
        " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"tie_word_embeddings\": true}";
    return model_write_random(temp_file(folder, "large"), large, DT_BF16, 1, 0.02) == ST_OK;
}

/* The first run also hashes and quantises the original. */
TEST(resident_size_of_a_run_that_quantises_is_known_before) {
#ifdef SANITIZED
    skip();
#endif
    char folder[512];
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_large, folder));
    write_rows(folder, "", ROW_TOKENS / 4, false);
    MemoryRun run = {
        .folder = folder, .model = "large", .rows = "ids", .checkpointing = "layer", .compute = "f32", .lora = true, .more = "model.quantize=nf4"};
    bool fine = in_own_process(memory_is_as_planned, &run);
    temp_dir_remove(folder);
    assert_true(fine);
}

#define FAMILY_CONFIG(type, more)                                                                                                      \
    "{\"model_type\": \"" type "\", \"vocab_size\": 3000, \"hidden_size\": 256, \"intermediate_size\": 704, \"num_hidden_layers\": 6," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"torch_dtype\": \"bfloat16\"" more "}"
static bool write_families(void *folder) {
    return model_write_random(temp_file(folder, "gemma"), FAMILY_CONFIG("gemma3_text", ", \"head_dim\": 64"), DT_BF16, 1, 0.02) == ST_OK &&
           model_write_random(temp_file(folder, "phi"), FAMILY_CONFIG("phi3", ""), DT_BF16, 1, 0.02) == ST_OK &&
           model_write_random(temp_file(folder, "granite"), FAMILY_CONFIG("granite", ", \"residual_multiplier\": 0.2"), DT_BF16, 1, 0.02) == ST_OK &&
           model_write_random(temp_file(folder, "olmo"), FAMILY_CONFIG("olmo2", ""), DT_BF16, 1, 0.02) == ST_OK;
}

/* Norms after a sublayer, two ropes, fused projections, scaled sums, a stream that products read. */
TEST(resident_size_of_other_families_is_known_before) {
#ifdef SANITIZED
    skip();
#endif
    static const char *const models[] = {"gemma", "phi", "granite", "olmo"};
    char folder[512];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_families, folder));
    write_rows(folder, "", ROW_TOKENS, false);
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        MemoryRun run = {.folder = folder,
                         .model = models[m],
                         .rows = m == 1 ? "pairs" : "ids",
                         .checkpointing = m % 2 ? "selective" : "none",
                         .compute = m < 2 ? "bf16" : "f32",
                         .lora = m != 3};
        fine &= in_own_process(memory_is_as_planned, &run);
    }
    temp_dir_remove(folder);
    assert_true(fine);
}

/* Memory kept from smaller batches must not prevent a larger batch from fitting. */
TEST(batches_that_grow_take_what_is_planned) {
#ifdef SANITIZED
    skip();
#endif
    static const char *const kinds[] = {"none", "selective", "layer"};
    char folder[512];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_model, folder));
    write_rows(folder, "-rising", 2 * ROW_TOKENS, true);
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (size_t variant = 0; variant < 3; variant++) {
            if (!long_tests() && variant != (k + 1) % COUNT_OF(kinds)) continue;
            MemoryRun run = {.folder = folder,
                             .model = "model",
                             .rows = variant == 2 ? "pairs-rising" : "ids-rising",
                             .checkpointing = kinds[k],
                             .compute = "f32",
                             .lora = variant > 0,
                             .rising = true};
            fine &= in_own_process(memory_is_as_planned, &run);
        }
    temp_dir_remove(folder);
    assert_true(fine);
}

/* Where held-out rows are far longer than those that are learned. */
TEST(evaluations_are_in_the_plan) {
#ifdef SANITIZED
    skip();
#endif
    static const MemoryRun runs[] = {
        {.rows = "ids", .eval = "ids-long"}, {.rows = "pairs", .eval = "pairs-long"}, {.rows = "prompts", .eval = "prompts-long"}};
    char folder[512];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_model, folder));
    write_rows(folder, "", 32, false);
    write_rows(folder, "-long", 800, false);
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        MemoryRun run = runs[i];
        run.folder = folder, run.model = "model", run.checkpointing = "none", run.compute = "f32", run.lora = true;
        fine &= in_own_process(memory_is_as_planned, &run);
    }
    temp_dir_remove(folder);
    assert_true(fine);
}

/* Next to nothing is trained: what is planned is the process itself. */
TEST(small_processes_are_known_before) {
#ifdef SANITIZED
    skip();
#endif
    static const MemoryRun runs[] = {
        {.rows = "ids", .lora = true}, {.rows = "ids"}, {.rows = "pairs", .lora = true}, {.rows = "prompts", .lora = true}};
    char folder[512];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_model, folder));
    write_rows(folder, "", 32, false);
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        MemoryRun run = runs[i];
        run.folder = folder, run.model = "small", run.checkpointing = "none", run.compute = "f32";
        fine &= in_own_process(memory_is_as_planned, &run);
    }
    temp_dir_remove(folder);
    assert_true(fine);
}

/* ---- train.max_memory ---- */

/* A dry run. limit 0: none. */
static bool plan_by(MemoryRun *run, size_t limit) {
    char text[64];
    snprintf(text, sizeof text, "train.max_memory=%zu", limit);
    run->dry = true;
    run->more = limit > 0 ? text : NULL;
    Status status = train_by(run);
    run->more = NULL;
    if (status != ST_OK) printf("%s, limit %zu: %s\n", run->rows, limit, status_text());
    return status == ST_OK;
}

static bool choice_is_that_of_other_threads(void *context) {
    MemoryRun *run = context, other = *run;
    omp_set_num_threads(1);
    if (!plan_by(run, 0)) return false;
    omp_set_num_threads(8);
    if (!plan_by(&other, 0)) return false;
    size_t limit = run->plan.total + (other.plan.total - run->plan.total) / 2; /* what one of them would stay below, and the other not */
    if (!plan_by(&other, limit)) return false;
    omp_set_num_threads(1);
    if (!plan_by(run, limit)) return false;
    bool same = run->plan.checkpointing == other.plan.checkpointing && run->plan.part_tokens == other.plan.part_tokens;
    if (!same)
        printf("checkpointing %d and %d, parts of %lld and %lld tokens\n", run->plan.checkpointing, other.plan.checkpointing,
               (long long)run->plan.part_tokens, (long long)other.plan.part_tokens);
    return same;
}

static bool reward_model_is_below_the_limit(void *context) {
    MemoryRun *run = context;
    if (!plan_by(run, 0)) return false;
    size_t limit = run->plan.total - run->plan.activations / 10;
    if (!plan_by(run, limit)) return false;
    if (run->plan.total > limit) printf("planned %zu bytes, the limit is %zu\n", run->plan.total, limit);
    return run->plan.total <= limit;
}

/* In parts, where nothing else would fit. */
static bool long_evaluation_is_below_the_limit(void *context) {
    MemoryRun *run = context;
    if (!plan_by(run, 0)) return false;
    size_t limit = run->plan.total - run->plan.activations / 2;
    if (!plan_by(run, limit)) return false;
    if (run->plan.total > limit) printf("planned %zu bytes, the limit is %zu\n", run->plan.total, limit);
    return run->plan.total <= limit && run->plan.part_tokens > 0;
}

TEST(a_limit_is_kept) {
#ifdef SANITIZED
    skip();
#endif
    char folder[512];
    temp_dir_make(folder, sizeof folder);
    assert_true(in_own_process(write_model, folder));
    write_rows(folder, "", 32, false);
    write_rows(folder, "-long", 1000, false);
    MemoryRun run = {.folder = folder, .model = "model", .rows = "ids-long", .checkpointing = "none", .compute = "f32", .lora = true}, judged = run,
              evaluated = run;
    judged.rows = "prompts", judged.judge = "judge", judged.model = "small";
    evaluated.rows = "ids", evaluated.eval = "ids-long";
    bool same = in_own_process(choice_is_that_of_other_threads, &run), below = in_own_process(reward_model_is_below_the_limit, &judged),
         parts = in_own_process(long_evaluation_is_below_the_limit, &evaluated);
    temp_dir_remove(folder);
    assert_true(same);
    assert_true(below);
    assert_true(parts);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scratch_memory_is_known_before),
                                       cmocka_unit_test(resident_size_is_known_before),
                                       cmocka_unit_test(resident_size_with_a_teacher_is_known_before),
                                       cmocka_unit_test(resident_size_on_codes_is_known_before),
                                       cmocka_unit_test(resident_size_of_a_run_that_quantises_is_known_before),
                                       cmocka_unit_test(resident_size_of_other_families_is_known_before),
                                       cmocka_unit_test(batches_that_grow_take_what_is_planned),
                                       cmocka_unit_test(evaluations_are_in_the_plan),
                                       cmocka_unit_test(small_processes_are_known_before),
                                       cmocka_unit_test(a_limit_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
