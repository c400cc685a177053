/* What a plan says against what is then taken: kernels' scratch memory to the byte, the resident size of whole runs within a few percent. */
#include "lib/model/model.h"
#include "rl/preference.h"
#include "sft/sft.h"
#include "tests/check.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Calls body(context) in a process of its own, which holds nothing yet that kernels keep; this one starts no threads. False when it says so. */
static bool in_child(bool (*body)(void *context), void *context) {
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

typedef struct Kernels { Arena *arena; DType dtype; bool frozen; const Device *device; } Kernels; /* device: the real one, or meta */

static Tensor *tensor_of(const Kernels *k, DType dtype, int64_t rows, int64_t cols) {
    int64_t shape[] = {rows, cols};
    Tensor *tensor = tensor_view(k->arena, device_cpu(), dtype, cols ? 2 : 1, shape, NULL);
    tensor->data = arena_zero(k->arena, tensor_bytes(tensor));
    return tensor;
}

static Tensor *weight_of(const Kernels *k, int64_t rows, int64_t cols) {
    Tensor *weight = tensor_of(k, DT_BF16, rows, cols);
    weight->constant = k->frozen;
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
    Tensor *x = tensor_of(k, k->dtype, 700, 330), *dy = tensor_of(k, k->dtype, 700, 250), *dw = tensor_of(k, DT_F32, 250, 330), *thin = tensor_of(k, k->dtype, 700, 16);
    k->device->matmul(&(Matmul){.a = dy, .b = x, .c = dw, .transpose_a = true, .alpha = 1, .beta = 1});
    k->device->matmul(&(Matmul){.a = thin, .b = x, .c = tensor_of(k, DT_F32, 16, 330), .transpose_a = true, .alpha = 1, .beta = 1});
}

static void weight_gradients(const Kernels *k) {
    Tensor *x = tensor_of(k, k->dtype, 700, 330);
    Matmul narrow = {.a = tensor_of(k, k->dtype, 700, 100), .b = x, .c = tensor_of(k, DT_F32, 100, 330), .transpose_a = true, .alpha = 1, .beta = 1}, wide = narrow;
    wide.a = tensor_of(k, k->dtype, 700, 900), wide.c = tensor_of(k, DT_F32, 900, 330), wide.next = &narrow;
    k->device->matmul(&wide);
}

static void low_rank(const Kernels *k) {
    Tensor *x = tensor_of(k, k->dtype, 300, 576), *low = tensor_of(k, k->dtype, 300, 16), *residual = tensor_of(k, DT_F32, 300, 400), *bias = tensor_of(k, DT_F32, 400, 0);
    Matmul args = {.a = x, .b = weight_of(k, 400, 576), .c = tensor_of(k, DT_F32, 300, 400), .transpose_b = true, .alpha = 1, .beta = 1, .more_a = low, .more_b = tensor_of(k, DT_F32, 400, 16),
                   .transpose_more_b = true, .more_alpha = 2, .down = tensor_of(k, DT_F32, 16, 576), .transpose_down = true, .down_alpha = 1, .low = low, .addend = residual};
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

static void attend(const Kernels *k, int32_t n_segments, int64_t length, bool tree) {
    Segment segments[16];
    for (int32_t s = 0; s < n_segments; s++) segments[s] = (Segment){.begin = s * length, .end = (s + 1) * length, .parent = tree && s > 0 ? 0 : -1};
    Layout layout = {.n_tokens = n_segments * length, .n_segments = n_segments, .segments = segments};
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
    enum { VOCAB = 5000, WIDTH = 200 };
    const Device *device = k->device;
    Tensor *hidden = tensor_of(k, k->dtype, rows, WIDTH), *weight = weight_of(k, VOCAB, WIDTH), *targets = tensor_of(k, DT_I32, rows, 0), *logprob = tensor_of(k, DT_F32, rows, 0);
    Tensor *norms = tensor_of(k, DT_F32, rows, 0);
    LogprobArgs args = {.temperature = 1};
    if (!going_back) {
        device->token_logits(&args, hidden, weight, tensor_of(k, DT_F32, rows, VOCAB), tensor_of(k, DT_F64, rows, 0));
        return;
    }
    bool by_weights = !k->frozen && kept >= 0;
    LogprobResults results = {.logprob = logprob, .logsumexp = norms, .slope = k->frozen || by_weights ? tensor_of(k, DT_F32, rows, WIDTH) : NULL,
                              .reference = by_weights ? tensor_of(k, DT_F32, rows, 0) : NULL, .weights = by_weights && kept > 0 ? tensor_of(k, k->dtype, kept, VOCAB) : NULL};
    device->token_logprobs(&args, hidden, weight, targets, &results);
    device->token_logprobs_backward(&args, hidden, weight, targets, &results, &(TokenLogprobs){.logprob = logprob}, by_weights ? NULL : tensor_of(k, k->dtype, rows, WIDTH), 1,
                                    k->frozen ? NULL : tensor_of(k, DT_F32, VOCAB, WIDTH));
}

static void logprobs(const Kernels *k) { head(k, 2100, true, -1); } /* more than one block of rows */
static void weights_again(const Kernels *k) { head(k, 2100, true, 0); }
static void weights_kept(const Kernels *k) { head(k, 300, true, 300); }
static void logits(const Kernels *k) { head(k, 7, false, -1); }

typedef struct ScratchCase { const char *name; void (*run)(const Kernels *k); } ScratchCase;
static const ScratchCase scratch_cases[] = {{"one row", one_row}, {"some rows", some_rows}, {"long sum", long_sum}, {"weight gradient", weight_gradient}, {"weight gradients", weight_gradients}, {"low rank", low_rank}, {"shared input", shared_input}, {"segments alone", segments_alone},
                                            {"branches", branches}, {"logprobs", logprobs}, {"weights again", weights_again}, {"weights kept", weights_kept}, {"logits", logits}};

typedef struct ScratchRun { const char *library, *isa; const ScratchCase *test; DType dtype; bool frozen; int threads; } ScratchRun;

/* Where a thread finds nothing to do it takes nothing: with several of them the plan is a bound. */
static bool scratch_is_as_planned(void *context) {
    const ScratchRun *run = context;
    if (cpu_configure(run->library, run->isa) != ST_OK) return true;
    Kernels kernels = {arena_new(0), run->dtype, run->frozen, device_meta()};
    omp_set_num_threads(run->threads);
    run->test->run(&kernels);
    size_t planned = cpu_planned_bytes(), before = cpu_scratch_bytes();
    kernels.device = device_cpu();
    run->test->run(&kernels);
    size_t taken = cpu_scratch_bytes() - before;
    if (taken > 0 && (run->threads == 1 ? planned == taken : planned >= taken && planned <= (size_t)run->threads * taken)) return true;
    printf("%s %s: %s, %s, %s weights, %d threads: planned %zu bytes of scratch memory, %zu were taken\n", run->library, run->isa, run->test->name, dtype_name(run->dtype), run->frozen ? "frozen" : "trained",
           run->threads, planned, taken);
    return false;
}

static void scratch_memory_is_known_before(void **state) {
    (void)state;
    bool fine = true;
    for (size_t l = 0; l < COUNT_OF(libraries); l++)
        for (size_t i = 0; i < COUNT_OF(isas); i++)
            for (size_t c = 0; c < COUNT_OF(scratch_cases); c++)
                for (int variant = 0; variant < 5; variant++) { /* the last one, frozen bf16, with two threads */
                    ScratchRun run = {libraries[l], isas[i], &scratch_cases[c], (variant & 1) || variant == 4 ? DT_BF16 : DT_F32, (variant & 2) || variant == 4, variant < 4 ? 1 : 2};
                    fine &= in_child(scratch_is_as_planned, &run);
                }
    assert_true(fine);
}

/* ---- whole runs ---- */

enum { ROWS = 16, ROW_TOKENS = 256, VOCAB = 3000 };
static const char config[] = "{\"model_type\": \"llama\", \"vocab_size\": 3000, \"hidden_size\": 256, \"intermediate_size\": 704, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
                             " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}";

static void write_ids(Str *text, const char *key, int64_t row, int64_t n) {
    str_printf(text, "\"%s\": [", key);
    for (int64_t t = 0; t < n; t++) str_printf(text, "%s%d", t ? ", " : "", (int)rng_below(rng_key(3, RNG_TEST, (uint64_t)row), (uint64_t)t, VOCAB));
    str_append(text, "]");
}

static void write_rows(const char *folder) {
    Str ids = {0}, pairs = {0};
    for (int64_t i = 0; i < ROWS; i++) {
        str_append(&ids, "{");
        write_ids(&ids, "input_ids", i, ROW_TOKENS);
        str_append(&ids, "}\n");
        str_append(&pairs, "{");
        write_ids(&pairs, "prompt_ids", i, ROW_TOKENS / 4);
        str_append(&pairs, ", ");
        write_ids(&pairs, "chosen_ids", i + ROWS, ROW_TOKENS / 2);
        str_append(&pairs, ", ");
        write_ids(&pairs, "rejected_ids", i + 2 * ROWS, ROW_TOKENS / 2);
        str_append(&pairs, "}\n");
    }
    temp_text(folder, "ids.jsonl", str_text(&ids));
    temp_text(folder, "pairs.jsonl", str_text(&pairs));
    str_release(&ids);
    str_release(&pairs);
}

typedef struct MemoryRun { const char *folder, *checkpointing, *compute; bool lora, pairs, eval; double planned; } MemoryRun;

static void keep_plan(void *context, const SftPlan *plan) { ((MemoryRun *)context)->planned = (double)plan->memory.total; }
static void keep_pair_plan(void *context, const PairRun *run, const PairPlan *plan) {
    (void)run;
    ((MemoryRun *)context)->planned = (double)plan->memory.total;
}

static Status train(MemoryRun *run, const Recipe *recipe) {
    TrainResult result;
    if (run->pairs) return preference_run(&(PairRunConfig){.recipe = recipe, .on_plan = keep_pair_plan, .context = run}, &result);
    return sft_run(&(SftConfig){.recipe = recipe, .on_plan = keep_plan, .context = run}, &result);
}

/* 5 %, and what reading rows, code that runs for the first time and malloc add in a small process. */
static bool memory_is_as_planned(void *context) {
    MemoryRun *run = context;
    Arena *arena = arena_new(0);
    const char *overrides[] = {
        arena_printf(arena, "model.path=%s/model", run->folder), arena_printf(arena, "model.compute=%s", run->compute), arena_printf(arena, "output=%s/run", run->folder),
        arena_printf(arena, "data.train=%s/%s.jsonl", run->folder, run->pairs ? "pairs" : "ids"), run->eval ? "data.eval_split=0.5" : "data.eval_split=0", run->eval ? "train.eval_every=1" : "train.eval_every=0",
        "train.batch_size=4", "train.max_steps=2", arena_printf(arena, "train.checkpointing=%s", run->checkpointing), run->lora ? "lora.rank=8" : "train.learning_rate=1e-4",
        run->pairs ? "rl.algorithm=dpo" : "data.format=ids",
    };
    enum { FLOOR = 4 << 20 };
    Recipe *recipe;
    Status status = recipe_read(NULL, overrides, COUNT_OF(overrides), &recipe);
    if (status == ST_OK) status = train(run, recipe);
    double measured = (double)memory_peak(), difference = measured - run->planned;
    bool fine = status == ST_OK && fabs(difference) <= fmax(0.05 * measured, FLOOR);
    if (!fine)
        printf("%s%s, checkpointing %s, %s, %s: planned %.1f MiB, measured %.1f %s\n", run->pairs ? "pairs" : "rows", run->eval ? " and evaluations" : "", run->checkpointing, run->compute,
               run->lora ? "adapter" : "all weights", run->planned / (1 << 20), measured / (1 << 20), status == ST_OK ? "" : status_text());
    (void)dir_remove(temp_file(run->folder, "run"));
    return fine;
}

static bool write_model(void *folder) { return model_write_random(temp_file(folder, "model"), config, DT_BF16, 1, 0.02) == ST_OK; }

static void resident_size_is_known_before(void **state) {
    (void)state;
#ifdef SANITIZED
    skip(); /* sanitizers take memory of their own */
#endif
    static const char *const kinds[] = {"none", "selective", "layer"}, *const computes[] = {"f32", "bf16"};
    char folder[512];
    bool fine = true;
    temp_dir_make(folder, sizeof folder);
    assert_true(in_child(write_model, folder));
    write_rows(folder);
    for (size_t c = 0; c < COUNT_OF(computes); c++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++)
            for (int variant = 0; variant < 4; variant++) {
                MemoryRun run = {.folder = folder, .checkpointing = kinds[k], .compute = computes[c], .lora = variant > 0, .pairs = variant == 2, .eval = variant == 3};
                fine &= in_child(memory_is_as_planned, &run);
            }
    temp_dir_remove(folder);
    assert_true(fine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scratch_memory_is_known_before), cmocka_unit_test(resident_size_is_known_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
