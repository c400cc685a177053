/* tune bench: what training and decoding reach on this machine, beside what its products reach alone. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "sft/sft.h"

/* Shapes of SmolLM2-135M, Qwen2.5-0.5B and Llama-3.2-1B, from their config.json. */
typedef struct BenchShape { const char *name, *config; } BenchShape;
static const BenchShape shapes[] = {
    {"S", "{\"model_type\": \"llama\", \"vocab_size\": 49152, \"hidden_size\": 576, \"intermediate_size\": 1536, \"num_hidden_layers\": 30, \"num_attention_heads\": 9,"
          " \"num_key_value_heads\": 3, \"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 100000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}"},
    {"Q", "{\"model_type\": \"qwen2\", \"vocab_size\": 151936, \"hidden_size\": 896, \"intermediate_size\": 4864, \"num_hidden_layers\": 24, \"num_attention_heads\": 14,"
          " \"num_key_value_heads\": 2, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}"},
    {"L", "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16, \"num_attention_heads\": 32,"
          " \"num_key_value_heads\": 8, \"head_dim\": 64, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, \"tie_word_embeddings\": true,"
          " \"torch_dtype\": \"bfloat16\"}"},
};
enum { DECODE_PROMPT = 16 };

void bench_mark_step(Bench *bench, bool is_first) {
    bench->last = clock_seconds();
    bench->products_last = cpu_product_seconds();
    if (is_first) {
        bench->first = bench->last;
        bench->products_first = bench->products_last;
    }
}

/* ---- operations in products, and bytes of weights ---- */

double bench_linear_weights(const ModelConfig *c) {
    double q = (double)(c->num_attention_heads * c->head_dim), kv = (double)(c->num_key_value_heads * c->head_dim), width = (double)c->hidden_size;
    return (double)c->num_hidden_layers * (width * (q + 2 * kv) + q * width + (c->gated_mlp ? 3 : 2) * width * (double)c->intermediate_size);
}

double bench_lora_weights(const ModelConfig *c) {
    double q = (double)(c->num_attention_heads * c->head_dim), kv = (double)(c->num_key_value_heads * c->head_dim), width = (double)c->hidden_size, ff = (double)c->intermediate_size;
    return (double)(c->num_hidden_layers * BENCH_LORA_RANK) * ((width + q) + 2 * (width + kv) + (q + width) + (c->gated_mlp ? 3 : 2) * (width + ff));
}

double bench_head_weights(const ModelConfig *c) { return (double)c->hidden_size * (double)c->vocab_size; }

double bench_attention_flops(const ModelConfig *c, double n) { return 2 * n * n * (double)(c->num_attention_heads * c->head_dim * c->num_hidden_layers); }

/* ---- training ---- */

static int64_t row_tokens(const Bench *bench, int64_t i, bool mixed) {
    if (!mixed) return bench->tokens;
    int64_t least = MAX(bench->tokens / 8, 2);
    return least + (int64_t)rng_below(rng_key(1, RNG_TEST, 1), (uint64_t)i, (uint64_t)(bench->tokens - least + 1));
}

/* In mixed rows the second half is trained, as in prompts with completions. */
static int64_t row_trained(const Bench *bench, int64_t i, bool mixed) {
    int64_t n = row_tokens(bench, i, mixed);
    return mixed ? n - n / 2 : n - 1;
}

static Status write_rows(const Bench *bench, const char *path, bool mixed) {
    FileWriter writer;
    TRY(writer_open(&writer, path));
    for (int64_t i = 0; i < bench->batch * BENCH_STEPS; i++) {
        JsonWriter w = {0};
        int64_t n = row_tokens(bench, i, mixed), first = n - row_trained(bench, i, mixed);
        jw_object(&w, NULL);
        for (int labels = 0; labels < 2; labels++) {
            jw_array(&w, labels ? "labels" : "input_ids");
            for (int64_t k = 0; k < n; k++)
                jw_int(&w, NULL, labels && k < first ? LABEL_NONE : (int64_t)rng_below(rng_key(1, RNG_TEST, 2 + (uint64_t)i), (uint64_t)k, (uint64_t)bench->config.vocab_size));
            jw_end_array(&w);
        }
        jw_end_object(&w);
        writer_printf(&writer, "%s\n", str_text(&w.text));
        jw_release(&w);
    }
    return writer_commit(&writer);
}

static void keep_plan(void *context, const SftPlan *plan) { ((Bench *)context)->row.predicted = (double)plan->memory.total; }

static void keep_step(void *context, const Progress *progress) {
    Bench *bench = context;
    bench_mark_step(bench, progress->step == 1);
    bench->n_done = progress->step;
}

static void count_training(Bench *bench, bool lora, bool mixed) {
    const ModelConfig *c = &bench->config;
    double tokens = 0, trained = 0, attention = 0, seconds = bench->last - bench->first;
    for (int64_t i = bench->batch; i < bench->batch * bench->n_done; i++) {
        double n = (double)row_tokens(bench, i, mixed);
        tokens += n;
        trained += (double)row_trained(bench, i, mixed);
        attention += bench_attention_flops(c, n);
    }
    /* Forward and the gradient of what goes in; with all weights trained, or for LoRA's own, that of the weights too. */
    double flops = (lora ? 2 : 3) * 2 * (tokens * bench_linear_weights(c) + trained * bench_head_weights(c)) + (lora ? 3 * 2 * tokens * bench_lora_weights(c) : 0) + 3 * attention;
    bench->row.tokens_per_second = tokens / seconds;
    bench->row.trained_per_second = trained / seconds;
    bench->row.gflops = flops / seconds * 1e-9;
    bench->row.first_step = bench->first - bench->start;
}

static Status train(Bench *bench, bool lora, bool mixed) {
    Arena *arena = bench->command->arena;
    const char *rows = path_join(arena, bench->folder, "rows.jsonl"), *output = path_join(arena, bench->folder, "run");
    if (!rows || !output) return ST_RESOURCE;
    TRY(dir_remove(output));
    TRY(write_rows(bench, rows, mixed));
    const char *overrides[] = {
        arena_printf(arena, "model.path=%s", bench->model), arena_printf(arena, "model.compute=%s", bench->compute), arena_printf(arena, "data.train=%s", rows),
        "data.format=ids", "data.shuffle=false", arena_printf(arena, "data.max_length=%lld", (long long)bench->tokens), arena_printf(arena, "output=%s", output),
        arena_printf(arena, "train.max_steps=%d", BENCH_STEPS), arena_printf(arena, "train.batch_size=%lld", (long long)bench->batch), "train.learning_rate=1e-5",
        lora ? arena_printf(arena, "lora.rank=%d", BENCH_LORA_RANK) : "lora=null",
    };
    for (size_t i = 0; i < COUNT_OF(overrides); i++)
        if (!overrides[i]) return ST_RESOURCE;
    Recipe *recipe;
    TRY(recipe_read(NULL, overrides, COUNT_OF(overrides), &recipe));
    TrainResult result;
    bench->start = clock_seconds();
    Status status = sft_run(&(SftConfig){.recipe = recipe, .on_plan = keep_plan, .on_progress = keep_step, .context = bench}, &result);
    if (status == ST_OK) count_training(bench, lora, mixed);
    recipe_free(recipe);
    return status;
}

static Status work_sft(Bench *bench) { return train(bench, true, false); }
static Status work_sft_mix(Bench *bench) { return train(bench, true, true); }
static Status work_full(Bench *bench) { return train(bench, false, false); }

/* ---- using a model ---- */

static Status load(Bench *bench, bool skip_nan_check, Model **model) {
    bench->start = clock_seconds();
    return model_load(bench->model, &(ModelOptions){.device = device_cpu(), .compute = compute_from_text(bench->compute), .skip_nan_check = skip_nan_check}, model);
}

static Status work_load(Bench *bench) {
    Model *model;
    TRY(load(bench, false, &model));
    double seconds = clock_seconds() - bench->start;
    bench->row.first_step = seconds;
    bench->row.gbytes_per_second = (double)model_memory(model, false).mapped / seconds * 1e-9;
    model_free(model);
    return ST_OK;
}

/* All sequences at once, and the logits behind the last token of each. */
static Status prefill_once(const Bench *bench, const Model *model, Tape *tape, const int32_t *ids) {
    Segment *segments = arena_alloc(bench->command->arena, (size_t)bench->batch * sizeof *segments);
    int32_t *rows = arena_alloc(bench->command->arena, (size_t)bench->batch * sizeof *rows);
    if (!segments || !rows) return ST_RESOURCE;
    for (int64_t i = 0; i < bench->batch; i++) {
        segments[i] = (Segment){.begin = i * bench->tokens, .end = (i + 1) * bench->tokens, .parent = -1};
        rows[i] = (int32_t)((i + 1) * bench->tokens - 1);
    }
    tape_reset(tape);
    tape_record(tape, false);
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = bench->batch * bench->tokens, .n_segments = (int32_t)bench->batch, .segments = segments}};
    Tensor *wanted = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &bench->batch, rows);
    Tensor *logits = wanted ? model_logits(model, tape, model_forward(model, tape, &batch), wanted).logits : NULL;
    return logits ? ST_OK : tape_status(tape) != ST_OK ? tape_status(tape) : ST_RESOURCE;
}

static Status random_ids(const Bench *bench, int64_t n, int32_t **ids) {
    *ids = arena_alloc(bench->command->arena, (size_t)n * sizeof **ids);
    if (!*ids) return ST_RESOURCE;
    for (int64_t i = 0; i < n; i++) (*ids)[i] = (int32_t)rng_below(rng_key(1, RNG_TEST, 0), (uint64_t)i, (uint64_t)bench->config.vocab_size);
    return ST_OK;
}

static Status work_prefill(Bench *bench) {
    Model *model;
    int32_t *ids;
    TRY(random_ids(bench, bench->batch * bench->tokens, &ids));
    TRY(load(bench, true, &model));
    Tape *tape = tape_new(device_cpu(), model->compute, 0);
    Status status = tape ? ST_OK : ST_RESOURCE;
    for (int i = 0; status == ST_OK && i < BENCH_STEPS; i++) {
        status = prefill_once(bench, model, tape, ids);
        bench_mark_step(bench, i == 0);
    }
    double seconds = (bench->last - bench->first) / (BENCH_STEPS - 1), n = (double)(bench->batch * bench->tokens);
    bench->row.first_step = bench->first - bench->start;
    bench->row.tokens_per_second = n / seconds;
    bench->row.gflops = (2 * (n * bench_linear_weights(&bench->config) + (double)bench->batch * bench_head_weights(&bench->config)) + (double)bench->batch * bench_attention_flops(&bench->config, (double)bench->tokens)) /
                        seconds * 1e-9;
    tape_free(tape);
    model_free(model);
    return status;
}

static Status keep_token(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    Bench *bench = context;
    (void)prompt, (void)sample, (void)id, (void)logprob, (void)text;
    bench_mark_step(bench, ++bench->n_done == bench->batch);
    return ST_OK;
}

static Status keep_nothing(void *context, const Completion *completion) {
    (void)context, (void)completion;
    return ST_OK;
}

/* From the first token of every sequence on: each step reads all weights once. */
static Status work_decode(Bench *bench) {
    Model *model;
    int32_t *ids;
    TRY(random_ids(bench, bench->batch * DECODE_PROMPT, &ids));
    Prompt *prompts = arena_alloc(bench->command->arena, (size_t)bench->batch * sizeof *prompts);
    if (!prompts) return ST_RESOURCE;
    for (int64_t i = 0; i < bench->batch; i++) prompts[i] = (Prompt){ids + i * DECODE_PROMPT, DECODE_PROMPT, (uint64_t)i};
    GenerateConfig config = {.sample = {.greedy = true, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = bench->tokens, .n = 1, .ignore_eos = true, .max_batch = bench->batch};
    TRY(load(bench, true, &model));
    Status status = generate(model, NULL, prompts, (size_t)bench->batch, &config, keep_token, keep_nothing, bench);
    double seconds = bench->last - bench->first, n = (double)(bench->n_done - bench->batch);
    bench->row.first_step = bench->first - bench->start;
    bench->row.tokens_per_second = n / seconds;
    bench->row.gflops = n * 2 * (bench_linear_weights(&bench->config) + bench_head_weights(&bench->config)) / seconds * 1e-9;
    bench->row.gbytes_per_second = n / (double)bench->batch * (bench_linear_weights(&bench->config) + bench_head_weights(&bench->config)) * (double)dtype_size(model->config.stored_dtype) / seconds * 1e-9;
    model_free(model);
    return status;
}

/* ---- the table ---- */

typedef struct Work { const char *name; Status (*run)(Bench *bench); int64_t batch, tokens; } Work; /* batch, tokens: unless told */
static const Work works[] = {
    {"sft", work_sft, 2, 256}, {"sft_mix", work_sft_mix, 4, 256}, {"full", work_full, 2, 256}, {"dpo", bench_dpo, 4, 512}, {"grpo", bench_grpo, 4, 64}, {"prefill", work_prefill, 1, 512}, {"decode", work_decode, 1, 32}, {"load", work_load, 1, 1},
};

static Status find_work(const char *name, size_t len, const Work **work) {
    const char *names[COUNT_OF(works)];
    char word[32];
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        names[i] = works[i].name;
        if (strlen(names[i]) == len && !strncmp(names[i], name, len)) {
            *work = &works[i];
            return ST_OK;
        }
    }
    snprintf(word, sizeof word, "%.*s", (int)MIN(len, sizeof word - 1), name);
    const char *nearest = text_nearest(word, names, COUNT_OF(works));
    status_fail(ST_USAGE, "work '%s' is not supported", word);
    return nearest ? status_hint(ST_USAGE, "did you mean '%s'?", nearest) : status_hint(ST_USAGE, "works are sft, sft_mix, full, dpo, grpo, prefill, decode and load");
}

/* Linux forgets the peak so far when told so; elsewhere it is that of all works up to here. */
static void forget_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    if (fd < 0) return;
    ssize_t written = write(fd, "5", 1);
    (void)written;
    close(fd);
}

static void print_number(JsonWriter *w, const char *key, double value, const char *format, Str *cells) {
    jw_double(w, key, value);
    if (isnan(value)) str_printf(cells, "%10s", "-");
    else str_printf(cells, format, value);
}

static void print_row(const Bench *bench, const Work *work) {
    const Measured *row = &bench->row;
    double peak = compute_from_text(bench->compute) == DT_BF16 ? bench->speed.gflops_bf16 : bench->speed.gflops_f32;
    JsonWriter w = {0};
    Str cells = {0};
    char peak_rss[32];
    jw_object(&w, NULL);
    jw_string(&w, "work", work->name);
    jw_string(&w, "shape", bench->shape);
    jw_int(&w, "batch", bench->batch);
    print_number(&w, "tokens_per_second", row->tokens_per_second, "%10.1f", &cells);
    print_number(&w, "trained_tokens_per_second", row->trained_per_second, "%10.1f", &cells);
    print_number(&w, "gflops", row->gflops, "%10.1f", &cells);
    print_number(&w, "peak_share", row->gflops / peak, "%10.2f", &cells);
    print_number(&w, "product_share", row->product_share, "%10.2f", &cells);
    print_number(&w, "gbytes_per_second", row->gbytes_per_second, "%10.2f", &cells);
    print_number(&w, "seconds_to_first_step", row->first_step, "%10.2f", &cells);
    if (!isnan(row->rows_per_second)) jw_double(&w, "rows_per_second", row->rows_per_second);
    jw_int(&w, "peak_rss_bytes", (int64_t)memory_peak());
    if (isnan(row->predicted)) jw_null(&w, "predicted_bytes");
    else jw_int(&w, "predicted_bytes", (int64_t)row->predicted);
    jw_end_object(&w);
    if (bench->command->json) print_result("%s\n", str_text(&w.text));
    else print_result("%-8s %-5s %5lld %6lld %s  %s\n", work->name, bench->shape, (long long)bench->batch, (long long)bench->tokens, str_text(&cells), format_bytes((double)memory_peak(), peak_rss));
    jw_release(&w);
    str_release(&cells);
}

static Status run_work(Bench *bench, const Work *work, int64_t batch, int64_t tokens) {
    bench->batch = batch > 0 ? batch : work->batch;
    bench->tokens = tokens > 0 ? tokens : work->tokens;
    bench->n_done = 0;
    bench->row = (Measured){(double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN};
    bench->first = bench->last = 0;
    if (bench->tokens < 2 && work->run != work_load) return status_fail(ST_USAGE, "--tokens must be 2 or more");
    show_progress("%s %s ...", work->name, bench->shape);
    forget_peak();
    TRY(work->run(bench));
    end_live_line();
    if (bench->last > bench->first) bench->row.product_share = (bench->products_last - bench->products_first) / (bench->last - bench->first);
    print_row(bench, work);
    return ST_OK;
}

static Status run_works(Bench *bench, const char *list, int64_t batch, int64_t tokens) {
    for (const char *at = list; *at;) {
        size_t len = strcspn(at, ",");
        const Work *work;
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        TRY(find_work(at, len, &work));
        TRY(run_work(bench, work, batch, tokens));
        at += len + (at[len] == ',');
    }
    return ST_OK;
}

static Status check_works(const char *list) {
    const Work *work;
    for (const char *at = list; *at;) {
        size_t len = strcspn(at, ",");
        TRY(find_work(at, len, &work));
        at += len + (at[len] == ',');
    }
    return *list ? ST_OK : status_fail(ST_USAGE, "--work names nothing");
}

static Status make_model(Bench *bench, const char *name) {
    bench->shape = bench->model = name;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        if (!strcmp(shapes[i].name, name)) {
            bench->model = path_join(bench->command->arena, bench->folder, "model");
            if (!bench->model) return ST_RESOURCE;
            show_progress("making a model of shape %s ...", name);
            TRY(model_write_random(bench->model, shapes[i].config, DT_BF16, 1, 0.02));
        }
    return model_config_read(bench->model, bench->command->arena, &bench->config);
}

static Status bench_all(const Command *command, const char *list, const char *compute, int64_t batch, int64_t tokens) {
    TRY(command_needs(command, 1, 1));
    if (!strcmp(command->arguments[0], "mlp")) return bench_mlp(command);
    if (!strcmp(command->arguments[0], "ppo")) return bench_ppo(command);
    if (!strcmp(command->arguments[0], "filter")) return bench_filter(command);
    TRY(check_compute(compute));
    TRY(check_works(list));
    if (batch < 0 || tokens < 0) return status_fail(ST_USAGE, "--batch and --tokens must be positive");
    const char *temporary = getenv("TMPDIR");
    char *folder = arena_printf(command->arena, "%s/tune-bench-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (!folder) return ST_RESOURCE;
    if (!mkdtemp(folder)) return status_fail(ST_RESOURCE, "cannot make a folder like '%s'", folder);
    Bench bench = {.command = command, .folder = folder, .compute = compute};
    Status status = make_model(&bench, command->arguments[0]);
    if (status == ST_OK) status = cpu_measure_speed(&bench.speed);
    if (status == ST_OK && !command->json) print_result("%-8s %-5s %5s %6s %10s%10s%10s%10s%10s%10s%10s  %s\n", "work", "shape", "batch", "tokens", "tokens/s", "trained/s", "GF/s", "of peak", "in prod.", "GB/s", "first s", "memory");
    if (status == ST_OK) status = run_works(&bench, list, batch, tokens);
    if (status != ST_OK) dir_remove(folder);
    else status = dir_remove(folder);
    return status;
}

Status cmd_bench(int argc, char **argv) {
    const char *list = "sft,prefill,decode,load", *compute = "auto";
    int64_t batch = 0, tokens = 0;
    Command command = {
        .arguments_help = "MODEL | S | Q | L | mlp | ppo | filter",
        .help = "Measures training and use of a model, or of random weights in the shape of SmolLM2-135M (S), Qwen2.5-0.5B (Q) or Llama-3.2-1B (L);\n"
                "mlp: acting with and updates of a policy of two hidden layers of 64;\n"
                "ppo: steps a second of PPO on CartPole, with stable-baselines3's and cleanrl's settings.\n"
                "filter: ROUGE-L and all filters of texts over 52,002 instructions.\n"
                "Operations are those of matrix products alone; their share is of the best that this machine's products reach. --json: one object per work and line.\n"
                "    tune bench S --work sft,decode",
    };
    const Option options[] = {
        {"--work", OPTION_TEXT, &list, "LIST", "of sft, sft_mix, full, dpo, grpo, prefill, decode, load (sft,prefill,decode,load)"},
        {"--batch", OPTION_INT, &batch, "N", "sequences at a time; dpo: pairs, grpo: prompts, 8 completions each"},
        {"--tokens", OPTION_INT, &tokens, "N", "tokens of a sequence; decode, grpo: new ones; dpo: of the longest prompt"},
        {"--compute", OPTION_TEXT, &compute, "TYPE", "auto, f32 or bf16"},
        {0},
    };
    bool done;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = bench_all(&command, list, compute, batch, tokens);
    arena_free(command.arena);
    return status;
}
