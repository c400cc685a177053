/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench MODEL|S|Q|L|G|M|E: the rates of training and use of a model, compared with the peak rates of matrix products and memory. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cmd/app/app.h"
#include "cmd/app/terminal.h"
#include "cmd/app/profile.h"
#include "lib/text/text.h"
#include "lib/base/system.h"
#include "cmd/bench/bench.h"
#include "lib/train/train.h"

/* Shapes of SmolLM2-135M, Qwen2.5-0.5B, Llama-3.2-1B, Gemma-3-270M, SmolLM3-3B with 8 of its 36 layers, and Qwen3-30B-A3B with 6 of its 48, from
 * their config.json. */
typedef struct BenchShape {
    const char *name, *config;
} BenchShape;
static const BenchShape shapes[] = {
    {"S",
     "{\"model_type\": \"llama\", \"vocab_size\": 49152, \"hidden_size\": 576, \"intermediate_size\": 1536, \"num_hidden_layers\": 30, \"num_attention_heads\": 9,"
     " \"num_key_value_heads\": 3, \"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 100000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}"},
    {"Q",
     "{\"model_type\": \"qwen2\", \"vocab_size\": 151936, \"hidden_size\": 896, \"intermediate_size\": 4864, \"num_hidden_layers\": 24, \"num_attention_heads\": 14,"
     " \"num_key_value_heads\": 2, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}"},
    {"L",
     "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16, \"num_attention_heads\": 32,"
     " \"num_key_value_heads\": 8, \"head_dim\": 64, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, \"tie_word_embeddings\": true,"
     " \"torch_dtype\": \"bfloat16\"}"},
    {"G",
     "{\"model_type\": \"gemma3_text\", \"vocab_size\": 262144, \"hidden_size\": 640, \"intermediate_size\": 2048, \"num_hidden_layers\": 18, \"num_attention_heads\": 4,"
     " \"num_key_value_heads\": 1, \"head_dim\": 256, \"max_position_embeddings\": 32768, \"sliding_window\": 512, \"query_pre_attn_scalar\": 256, \"torch_dtype\": \"bfloat16\"}"},
    {"M",
     "{\"model_type\": \"smollm3\", \"vocab_size\": 128256, \"hidden_size\": 2048, \"intermediate_size\": 11008, \"num_hidden_layers\": 8, \"num_attention_heads\": 16,"
     " \"num_key_value_heads\": 4, \"max_position_embeddings\": 65536, \"rms_norm_eps\": 1e-6, \"rope_theta\": 5000000, \"torch_dtype\": \"bfloat16\"}"},
    {"E",
     "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 151936, \"hidden_size\": 2048, \"intermediate_size\": 6144, \"num_hidden_layers\": 6, \"num_attention_heads\": 32,"
     " \"num_key_value_heads\": 4, \"head_dim\": 128, \"max_position_embeddings\": 40960, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000, \"num_experts\": 128,"
     " \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 768, \"norm_topk_prob\": true, \"torch_dtype\": \"bfloat16\"}"},
};

typedef struct BenchWork {
    const char *name, *work; /* in --work, in results */
    Status (*run)(Bench *bench), (*prepare)(Bench *bench);
    int64_t batch, tokens; /* defaults of --batch and --tokens */
    bool scales;           /* `tokens` is the length of the longest row: --tokens scales all rows */
    const char *shapes;    /* the built-in shapes for which --work all includes it, since large ones take long; NULL: all */
} BenchWork;
static const BenchWork works[] = {
    {.name = "sft", .work = "sft", .run = bench_sft, .batch = 4, .tokens = 512},
    {.name = "sft_mix", .work = "sft_mix", .run = bench_sft_mix, .batch = 8, .tokens = 688, .scales = true, .shapes = "S Q"},
    {.name = "full", .work = "full", .run = bench_full, .batch = 4, .tokens = 512, .shapes = "S"},
    {.name = "dpo", .work = "dpo", .run = bench_dpo, .batch = 4, .tokens = 835, .scales = true, .shapes = "S"},
    {.name = "grpo", .work = "grpo", .run = bench_grpo, .batch = 4, .tokens = 64, .shapes = "S"},
    {.name = "decode", .work = "decode", .run = bench_decode, .batch = 1, .tokens = 64},
    {.name = "decode8", .work = "decode", .run = bench_decode, .batch = 8, .tokens = 64},
    {.name = "decode32", .work = "decode", .run = bench_decode, .batch = 32, .tokens = 32, .shapes = "S Q"},
    {.name = "prefill", .work = "prefill", .run = bench_prefill, .batch = 1, .tokens = 512},
    {.name = "prefill2048", .work = "prefill", .run = bench_prefill, .batch = 1, .tokens = 2048, .shapes = "S Q"},
    {.name = "tokenizer", .work = "tokenizer", .run = bench_tokenizer, .batch = 1, .tokens = 1, .shapes = "S Q"},
    {.name = "merge", .work = "merge", .run = bench_merge, .prepare = bench_make_adapter, .batch = 1, .tokens = 1, .shapes = "S Q"},
    {.name = "load", .work = "load", .run = bench_load_model, .batch = 1, .tokens = 1},
    {.name = "start", .work = "start", .run = bench_start, .batch = 4, .tokens = 512, .shapes = "S Q"},
};

/* The rows so far as JSON, and the first failure, which the command returns after all works have run. */
typedef struct Results {
    Str rows;
    Failure failure;
} Results;

/* ---- marks ---- */

static OpCost profiled(double *streamed) {
    const ProfileRow *rows;
    size_t n = profile_rows(&rows);
    OpCost sum = {0};
    *streamed = 0;
    for (size_t i = 0; i < n; i++) {
        sum.flops += rows[i].cost.flops;
        sum.bytes += rows[i].cost.bytes;
        if (!strcmp(rows[i].name, "linear") || !strcmp(rows[i].name, "expert_linears") || !strcmp(rows[i].name, "token_logits") ||
            !strcmp(rows[i].name, "attention"))
            *streamed += rows[i].cost.bytes;
    }
    return sum;
}

void bench_mark_start(Bench *bench) {
    bench->start = clock_seconds();
    profile_start();
}

void bench_mark_step(Bench *bench, bool is_first) {
    const ProfileRow *rows;
    bench->last = clock_seconds();
    bench->products_last = cpu_product_seconds();
    if (is_first) {
        bench->first = bench->last;
        bench->products_first = bench->products_last;
        bench->before = profiled(&bench->streamed);
        bench->row.first_step = bench->first - bench->start;
        profile_start();
        return;
    }
    bench->timed = profiled(&bench->streamed);
    bench->n_profile = profile_rows(&rows);
    memcpy(bench->profile, rows, bench->n_profile * sizeof *rows);
}

/* ---- a separate process ---- */

/* Runs `run` in a child process. The bench is in shared memory, so the caller sees what the child has written into it. The caller must not have
 * started threads; the child may. */
static Status in_child(Bench *bench, Status (*run)(Bench *bench)) {
    int code;
    failure_save(&bench->failure, status_fail(ST_RESOURCE, "the benchmark ended too early"));
    pid_t child = fork();
    if (child < 0) return status_fail(ST_RESOURCE, "cannot start a process");
    if (child == 0) {
        failure_save(&bench->failure, run(bench));
        bench->peak = MAX(bench->peak, memory_peak());
        _exit(0);
    }
    while (waitpid(child, &code, 0) < 0)
        if (errno != EINTR)
            return status_fail(ST_RESOURCE, "the process of a work is lost"); /* an interrupt goes to the child as well, so it ends soon */
    if (WIFSIGNALED(code)) return status_fail(ST_RESOURCE, "the work ended by signal %d", WTERMSIG(code));
    return failure_restore(&bench->failure);
}

static Status measure_speed(Bench *bench) { return cpu_measure_speed(&bench->speed); }

/* Called before and after a work; each call adds half of its result to the mean. */
static Status measure_reading(Bench *bench) {
    double gbs;
    TRY(cpu_measure_reading(&gbs));
    bench->read_gbs += gbs / 2;
    return ST_OK;
}

static const char *config_of(const char *shape) {
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        if (!strcmp(shapes[i].name, shape)) return shapes[i].config;
    return NULL;
}

static Status count_ids(Bench *bench) {
    Tokenizer *tokenizer;
    TRY(model_config_read(bench->model, bench->command->arena, &bench->config));
    bench->n_ids = bench->config.vocab_size;
    TRY(tokenizer_load_if_any(bench->model, &tokenizer));
    if (tokenizer) bench->n_ids = MIN(bench->n_ids, (int64_t)tokenizer_vocab_size(tokenizer));
    tokenizer_free(tokenizer);
    return ST_OK;
}

static Status write_model(Bench *bench) { return model_write_random(bench->model, config_of(bench->shape), DT_BF16, 1, 0.02); }

/* ---- the table ---- */

static const char columns[] =
    "work      shape     batch tokens   tokens/s trained/s      GF/s   of peak  in prod.      GB/s   of read   seconds      memory   predicted\n";

static void add_number(JsonWriter *w, const char *key, double value, const char *format, Str *cells) {
    if (key) jw_double(w, key, value);
    if (isnan(value))
        str_printf(cells, "%10s", "-");
    else
        str_printf(cells, format, value);
}

static void add_if_known(JsonWriter *w, const char *key, double value, const char *unit, Str *cells) {
    if (isnan(value)) return;
    jw_double(w, key, value);
    if (unit) str_printf(cells, "  %.4g %s", value, unit);
}

static void begin_row(JsonWriter *w, const Bench *bench, const BenchWork *work) {
    jw_object(w, NULL);
    jw_string(w, "work", work->work);
    jw_string(w, "shape", bench->shape);
    jw_int(w, "batch", bench->batch);
    jw_int(w, "tokens", bench->tokens);
    jw_string(w, "compute", dtype_name(compute_from_text(bench->compute)));
}

/* Ends the row, adds it to the results and prints it: as JSON, or as `cells` of the table. */
static void end_row(JsonWriter *w, const Bench *bench, const BenchWork *work, const Str *cells, Results *results) {
    jw_end_object(w);
    str_printf(&results->rows, "%s%s", results->rows.len ? ",\n  " : "", str_text(&w->text));
    if (bench->command->json)
        print_result("%s\n", str_text(&w->text));
    else
        print_result("%-9s %-9s %5lld %6lld %s\n", work->work, bench->shape, (long long)bench->batch, (long long)bench->tokens, str_text(cells));
    jw_release(w);
}

static void print_row(const Bench *bench, const BenchWork *work, Results *results) {
    const Measured *row = &bench->row;
    double peak = compute_from_text(bench->compute) == DT_BF16 ? bench->speed.gflops_bf16 : bench->speed.gflops_f32;
    JsonWriter w = {0};
    Str cells = {0};
    char memory[32], predicted[32];
    begin_row(&w, bench, work);
    add_number(&w, "tokens_per_second", row->tokens_per_second, "%10.1f", &cells);
    add_number(&w, "trained_tokens_per_second", row->trained_per_second, "%10.1f", &cells);
    add_number(&w, "gflops", row->gflops, "%10.1f", &cells);
    add_number(&w, "peak_share", row->gflops / peak, "%10.2f", &cells);
    add_number(&w, "product_share", row->product_share, "%10.2f", &cells);
    add_number(&w, "gbytes_per_second", row->gbytes_per_second, "%10.2f", &cells);
    add_number(&w, "read_share", bench->read_gbs > 0 ? row->gbytes_per_second / bench->read_gbs : (double)NAN, "%10.2f", &cells);
    jw_double(&w, "seconds_to_first_step", row->first_step);
    add_number(&w, NULL, isnan(row->seconds) ? row->first_step : row->seconds, "%10.2f", &cells);
    str_printf(&cells, "  %10s  %10s", format_bytes((double)bench->peak, memory),
               isnan(row->predicted) ? "-" : format_bytes(row->predicted, predicted));
    add_if_known(&w, "rows_per_second", row->rows_per_second, "rows/s", &cells);
    add_if_known(&w, "mbytes_per_second", row->mbytes_per_second, "MB/s", &cells);
    add_if_known(&w, "seconds", row->seconds, NULL, &cells);
    jw_int(&w, "peak_rss_bytes", (int64_t)bench->peak);
    if (isnan(row->predicted))
        jw_null(&w, "predicted_bytes");
    else
        jw_int(&w, "predicted_bytes", (int64_t)row->predicted);
    if (bench->n_profile > 0) profile_write(&w, "profile", bench->profile, bench->n_profile);
    end_row(&w, bench, work, &cells, results);
    str_clear(&cells);
    if (profile_asked() && !bench->command->json && bench->n_profile > 0) {
        profile_describe(&cells, bench->profile, bench->n_profile);
        print_result("%s\n\n", str_text(&cells));
    }
    str_release(&cells);
    show_result();
}

/* Adds a row for a failed work. The command returns the failure of the first one. */
static void print_failure(const Bench *bench, const BenchWork *work, Status status, Results *results) {
    JsonWriter w = {0};
    Str cells = {0};
    begin_row(&w, bench, work);
    jw_string(&w, "error", status_text());
    str_printf(&cells, "    failed: %s", status_text());
    end_row(&w, bench, work, &cells, results);
    str_release(&cells);
    show_result();
    if (results->failure.status == ST_OK) failure_save(&results->failure, status);
}

static bool needs_model(const BenchWork *work) { return work->run != bench_tokenizer; }

/* Makes the model of a shape when the first work needs it. */
static Status make_model(Bench *bench) {
    if (bench->n_ids > 0) return ST_OK;
    if (config_of(bench->shape)) {
        bench->model = path_join(bench->command->arena, bench->folder, bench->shape);
        if (!bench->model) return ST_RESOURCE;
        show_progress("making a model of shape %s ...", bench->shape);
        TRY(in_child(bench, write_model));
    }
    return count_ids(bench);
}

static int64_t batch_of(const BenchWork *work, const BenchJob *job) { return job->batch > 0 ? job->batch : work->batch; }
static int64_t tokens_of(const BenchWork *work, const BenchJob *job) { return job->tokens > 0 ? job->tokens : work->tokens; }

static Status measure_work(Bench *bench, const BenchWork *work, const BenchJob *job) {
    bench->batch = batch_of(work, job);
    bench->tokens = tokens_of(work, job);
    bench->scale = work->scales ? (double)bench->tokens / (double)work->tokens : 1;
    bench->steps = job->steps;
    bench->n_done = 0;
    bench->n_profile = 0;
    bench->timed = bench->before = (OpCost){0};
    double unknown = (double)NAN;
    bench->row = (Measured){
        .tokens_per_second = unknown,
        .trained_per_second = unknown,
        .rows_per_second = unknown,
        .mbytes_per_second = unknown,
        .gflops = unknown,
        .gbytes_per_second = unknown,
        .predicted = unknown,
        .first_step = unknown,
        .seconds = unknown,
        .product_share = unknown,
    };
    bench->first = bench->last = 0;
    if (needs_model(work)) TRY(make_model(bench));
    show_progress("%s %s ...", work->name, bench->shape);
    if (work->prepare) TRY(in_child(bench, work->prepare));
    bool streams = work->run == bench_decode;
    bench->read_gbs = 0;
    if (streams) TRY(in_child(bench, measure_reading));
    bench->row.first_step = unknown;
    bench->peak = 0;
    TRY(in_child(bench, work->run));
    uint64_t peak = bench->peak;
    if (streams) TRY(in_child(bench, measure_reading));
    bench->peak = peak;
    if (bench->last > bench->first) {
        double seconds = bench->last - bench->first;
        bench->row.product_share = (bench->products_last - bench->products_first) / seconds;
        if (isnan(bench->row.gflops)) bench->row.gflops = bench->timed.flops / seconds * 1e-9;
    }
    return ST_OK;
}

static Status write_results(const Bench *bench, const char *path, const Str *rows) {
    const CpuInfo *cpu = cpu_info();
    FileWriter writer;
    JsonWriter w = {0};
    char date[16];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    jw_object(&w, NULL);
    jw_string(&w, "version", tune_version);
    jw_string(&w, "date", date);
    jw_string(&w, "cpu", cpu->name);
    jw_string(&w, "features", cpu->features);
    jw_int(&w, "threads", cpu->threads);
    jw_double(&w, "f32_gflops", bench->speed.gflops_f32);
    jw_double(&w, "bf16_gflops", bench->speed.gflops_bf16);
    jw_string(&w, "f32_kernel", cpu->gemm_f32);
    jw_string(&w, "bf16_kernel", cpu->gemm_bf16);
    jw_double(&w, "read_gbytes_per_second", bench->speed.memory_gbs);
    Status status = writer_open(&writer, path);
    if (status == ST_OK) {
        writer_printf(&writer, "%s, \"rows\": [\n  %s\n]}\n", str_text(&w.text), str_text(rows));
        status = writer_commit(&writer);
    }
    jw_release(&w);
    return status;
}

/* Runs one work and writes the results so far to the file. A failed work does not stop the others; an interrupt or a failed write does. */
static Status run_work(Bench *bench, const BenchWork *work, const BenchJob *job, Results *results) {
    Status status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : measure_work(bench, work, job);
    end_live_line();
    if (status != ST_OK && interrupt_requested()) return status;
    if (status == ST_OK)
        print_row(bench, work, results);
    else
        print_failure(bench, work, status, results);
    return job->output ? write_results(bench, job->output, &results->rows) : ST_OK;
}

/* ---- which works ---- */

static Status find_work(const char *name, size_t len, const BenchWork **work) {
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
    status_fail(ST_USAGE, "work '%s' is not supported", word);
    status_hint_nearest(ST_USAGE, word, names, COUNT_OF(works), "--work takes all, or some of ");
    return ST_USAGE;
}

/* Finds the next work of the list and advances *at. */
static Status next_work(const char **at, const BenchWork **work) {
    size_t len = strcspn(*at, ",");
    TRY(find_work(*at, len, work));
    *at += len + ((*at)[len] == ',');
    return ST_OK;
}

/* With several sequences, timing begins after the first token of the last one, and ends when the first one ends. */
static Status check_work(const BenchWork *work, const BenchJob *job) {
    int64_t least = work->tokens == 1 ? 1 : work->run == bench_decode && batch_of(work, job) > 1 ? 3 : 2;
    if (tokens_of(work, job) >= least) return ST_OK;
    return status_fail(ST_USAGE, "--tokens must be %lld or more for '%s' of %lld at a time", (long long)least, work->name,
                       (long long)batch_of(work, job));
}

static Status check_works(const BenchJob *job) {
    const BenchWork *work;
    if (!strcmp(job->list, "all")) {
        for (work = works; work < works + COUNT_OF(works); work++) TRY(check_work(work, job));
        return ST_OK;
    }
    for (const char *at = job->list; *at;) {
        TRY(next_work(&at, &work));
        TRY(check_work(work, job));
    }
    return *job->list ? ST_OK : status_fail(ST_USAGE, "--work names nothing");
}

/* Checks before measuring that the results can be written. */
static Status check_result_path(const char *path) {
    FileWriter writer;
    if (!path) return ST_OK;
    if (dir_exists(path)) return status_fail(ST_USAGE, "-o needs a file, but '%s' is a folder", path);
    TRY(writer_open(&writer, path));
    writer_abandon(&writer);
    return ST_OK;
}

static Status run_works(Bench *bench, const BenchJob *job, Results *results) {
    const BenchWork *work;
    if (!strcmp(job->list, "all")) {
        for (work = works; work < works + COUNT_OF(works); work++)
            if (!work->shapes || !config_of(bench->shape) || strstr(work->shapes, bench->shape)) TRY(run_work(bench, work, job, results));
        return ST_OK;
    }
    for (const char *at = job->list; *at;) {
        TRY(next_work(&at, &work));
        TRY(run_work(bench, work, job, results));
    }
    return ST_OK;
}

static Status run_shape(Bench *bench, const char *shape, const BenchJob *job, Results *results) {
    bench->shape = bench->model = shape;
    bench->n_ids = 0;
    Status status = run_works(bench, job, results);
    if (bench->model != shape) dir_remove(bench->model); /* frees disk space for the next model */
    return status;
}

/* ---- the command ---- */

static Status run_shapes(Bench *bench, const BenchJob *job) {
    const Command *command = bench->command;
    Results results = {0};
    Status status = in_child(bench, measure_speed);
    if (status == ST_OK && !command->json) print_result("%s", columns);
    for (size_t i = 0; status == ST_OK && i < command->n_arguments; i++) status = run_shape(bench, command->arguments[i], job, &results);
    if (status == ST_OK) status = failure_restore(&results.failure);
    str_release(&results.rows);
    return status;
}

Status bench_models(const Command *command, const BenchJob *job) {
    if (job->batch < 0 || job->tokens < 0 || job->steps < 1) return status_fail(ST_USAGE, "--batch, --tokens and --steps must be positive");
    TRY(check_works(job));
    TRY(check_result_path(job->output));
    const char *temporary = getenv("TMPDIR");
    char *folder = arena_printf(command->arena, "%s/tune-bench-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (!folder) return ST_RESOURCE;
    Bench *bench = mmap(NULL, sizeof *bench, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench == MAP_FAILED) return status_fail(ST_RESOURCE, "no shared memory for the processes of the works");
    Status status = mkdtemp(folder) ? ST_OK : status_fail(ST_RESOURCE, "cannot make a folder like '%s'", folder);
    if (status == ST_OK) {
        *bench = (Bench){.command = command,
                         .folder = folder,
                         .compute = job->compute,
                         .checkpointing = job->checkpointing,
                         .rows = job->rows,
                         .tokenizer = job->tokenizer};
        profile_stop(); /* each work has its own profile */
        status = run_shapes(bench, job);
        if (status != ST_OK)
            dir_remove(folder);
        else
            status = dir_remove(folder);
    }
    munmap(bench, sizeof *bench);
    return status;
}
