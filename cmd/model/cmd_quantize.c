/* SPDX-License-Identifier: Apache-2.0 */
/* tune quantize: rounds a model's weights to few bits with the help of calibration rows, and writes a directory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/common/rows.h"
#include "cmd/common/runtime.h"
#include "lib/base/system.h"
#include "lib/deploy/compress/ptq.h"

typedef struct Quantize {
    PtqConfig config;
    const char *rows, *eval, *alpha, *compute, *as;
    int64_t bits, samples, max_length, seed;
    bool sym, asym;
    TextList skip;
    ChatChoice chat;
    double began;
} Quantize;

/* ---- options ---- */

static Status check_choice(const char *option, const char *value, const char *const *values, size_t n) {
    if (!value) return ST_OK;
    Str list = {0};
    for (size_t i = 0; i < n; i++) {
        if (strcmp(values[i], value) == 0) {
            str_release(&list);
            return ST_OK;
        }
        str_printf(&list, "%s%s", i ? ", " : "", values[i]);
    }
    status_fail(ST_USAGE, "%s cannot be '%s'", option, value);
    status_hint(ST_USAGE, "it is one of %s", str_text(&list));
    str_release(&list);
    return ST_USAGE;
}

static Status read_alpha(const char *text, double *alpha) {
    char *end;
    *alpha = (double)NAN;
    if (strcmp(text, "auto") == 0) return ST_OK;
    *alpha = strtod(text, &end);
    if (*text && !*end && *alpha >= 0 && *alpha <= 1) return ST_OK;
    return status_fail(ST_USAGE, "--alpha must be auto or a number from 0 to 1, not '%s'", text);
}

static Status check_ranges(const Quantize *job) {
    const PtqConfig *config = &job->config;
    if (!(config->damp >= 0 && config->damp <= 1)) return status_fail(ST_USAGE, "--damp must be 0 to 1, not %g", config->damp);
    if (!(config->max_kl >= 0)) return status_fail(ST_USAGE, "--max-kl must be above 0, not %g", config->max_kl);
    if (job->samples < 1 || job->max_length < 1) return status_fail(ST_USAGE, "--samples and --max-length must be at least 1");
    if (job->sym && job->asym) return status_fail(ST_USAGE, "--sym and --asym exclude each other");
    if (config->max_kl > 0 && !job->eval) return status_fail(ST_USAGE, "--max-kl needs --eval FILE: the rows that it is measured on");
    if (config->act_order && strcmp(config->method, "gptq") != 0) return status_fail(ST_USAGE, "--act-order is for --method gptq");
    if (config->calibrate && strcmp(config->method, "int8") != 0) return status_fail(ST_USAGE, "--calibrate is for --method int8");
    return ST_OK;
}

static Status read_options(Quantize *job) {
    static const char *const methods[] = {
#define PTQ(name, help) #name,
#include "lib/deploy/compress/ptq.def"
#undef PTQ
    };
    static const char *const formats[] = {
#define PTQ_FORMAT(name, help) #name,
#include "lib/deploy/compress/ptq_formats.def"
#undef PTQ_FORMAT
    };
    static const char *const ranges[] = {"absmax", "percentile", "mse", "entropy"}, *const corrections[] = {"none", "mean", "mean_var"};
    PtqConfig *config = &job->config;
    if (!config->output) return status_fail(ST_USAGE, "tune quantize needs -o DIR");
    if (!config->method) return status_fail(ST_USAGE, "tune quantize needs --method rtn, gptq, awq or int8");
    TRY(check_choice("--method", config->method, methods, COUNT_OF(methods)));
    TRY(check_choice("--calibrate", config->calibrate, ranges, COUNT_OF(ranges)));
    TRY(check_choice("--bias-correction", config->bias_correction, corrections, COUNT_OF(corrections)));
    TRY(check_choice("--format", config->format, formats, COUNT_OF(formats)));
    TRY(read_alpha(job->alpha, &config->alpha));
    TRY(check_ranges(job));
    config->bits = job->bits > 0 && job->bits < 100 ? (int)job->bits : job->bits != 0 ? -1 : strcmp(config->method, "int8") == 0 ? 8 : 4;
    config->symmetric = job->sym || (!job->asym && strcmp(config->method, "awq") != 0);
    config->skip = job->skip.items;
    config->n_skip = job->skip.n;
    return ST_OK;
}

/* ---- rows ---- */

/* Chooses `most` rows by the seed, in the order of the file, and cuts them. */
static Status choose_rows(const Command *command, const Quantize *job, const TokenRows *rows, size_t most, IdRow **chosen, size_t *n) {
    const RngKey key = rng_key((uint64_t)job->seed, RNG_SHUFFLE, 0);
    *chosen = arena_alloc(command->arena, MAX(rows->n, (size_t)1) * sizeof **chosen);
    *n = 0;
    if (!*chosen) return ST_RESOURCE;
    for (size_t r = 0; r < rows->n && *n < most; r++) { /* Knuth's selection sampling: each choice of rows is as likely as another */
        const size_t left = rows->n - r, wanted = most - *n;
        if (wanted < left && rng_below(key, r, left) >= wanted) continue;
        const Ids *ids = &rows->items[r].ids;
        (*chosen)[(*n)++] = (IdRow){ids->data, MIN(ids->n, (size_t)job->max_length)};
    }
    return ST_OK;
}

/* The model's settings, tokenizer and template, without its weights. */
static Status open_words(const Command *command, Quantize *job, Model *model, OpenedModel *opened) {
    const char *dir = command->arguments[0];
    TRY(model_config_read(dir, command->arena, &model->config));
    *opened = (OpenedModel){.model = model};
    TRY(tokenizer_load_if_any(dir, &opened->tokenizer));
    return open_chat(dir, NULL, &job->chat, opened);
}

static Status read_rows(const Command *command, Quantize *job, TokenRows *rows, TokenRows *eval) {
    PtqConfig *config = &job->config;
    Model model = {0};
    OpenedModel opened = {0};
    IdRow *chosen = NULL;
    Status status = open_words(command, job, &model, &opened);
    const DataConfig data = {.system = job->chat.system, .as = job->as ? job->as : "auto"};
    if (status == ST_OK && job->rows) status = token_rows_read(job->rows, &opened, &data, false, rows);
    if (status == ST_OK && job->rows) status = choose_rows(command, job, rows, (size_t)job->samples, &chosen, &config->n_rows);
    config->rows = chosen;
    if (status == ST_OK && job->eval) status = token_rows_read(job->eval, &opened, &data, false, eval);
    if (status == ST_OK && job->eval) status = choose_rows(command, job, eval, SIZE_MAX, &chosen, &config->n_eval);
    config->eval = job->eval ? chosen : NULL;
    opened.model = NULL; /* not on the heap */
    close_model(&opened);
    return status;
}

/* ---- what is shown ---- */

static void show_plan(void *context, const PtqReport *report) {
    const Quantize *job = context;
    const PtqMemory *m = &report->memory;
    char all[32], hidden[32], sums[32], layer[32], batch[32], file[32], process[32];
    Str group = {0};
    str_printf(&group, report->group ? "groups of %lld" : "one group a row", (long long)report->group);
    show_line("%s, %d bits, %s, %s: %zu of %zu linear layers, %.2f bits a weight; the head stays as it is%s", job->config.method, job->config.bits,
              job->config.symmetric || job->config.bits == 8 ? "symmetric" : "asymmetric", str_text(&group), report->n_quantised, report->n_layers,
              report->bits, report->tied ? ", since it is the embedding too" : "");
    if (report->rows > 0)
        show_line("calibration: %lld rows of %lld tokens; errors on %lld rows held back, %lld tokens", (long long)report->rows,
                  (long long)report->tokens, (long long)report->held_rows, (long long)report->held_tokens);
    show_line("memory: %s: %s of hidden states, %s of sums over inputs, %s for a layer, %s for a batch, %s of the model's file, %s of the program",
              format_bytes((double)m->total, all), format_bytes((double)m->hidden, hidden), format_bytes((double)m->sums, sums),
              format_bytes((double)m->layer, layer), format_bytes((double)m->batch, batch), format_bytes((double)m->file, file),
              format_bytes((double)m->process, process));
    str_release(&group);
}

/* The product of the decoder layer with the largest error. */
static void show_layer(void *context, const PtqReport *report, int64_t done) {
    const Quantize *job = context;
    const PtqLayer *worst = NULL;
    double damp = 0;
    for (size_t i = 0; i < report->n_layers; i++) {
        const PtqLayer *layer = &report->layers[i];
        if (layer->layer != done - 1 || !layer->by_rows) continue;
        if (!worst || layer->error > worst->error) worst = layer;
        if (layer->damp > damp) damp = layer->damp;
    }
    if (!worst) return;
    const char *name = worst->path;
    for (const char *at = worst->path + 1; *at; at++) /* its name within the layer */
        if (*at == '.' && at[-1] >= '0' && at[-1] <= '9') name = at + 1;
    Str line = {0};
    str_printf(&line, "layer %lld: largest relative error %.3g, %s (nearest: %.3g)", (long long)done, worst->error, name, worst->rtn_error);
    if (isfinite(worst->loss)) str_printf(&line, ", loss %.3g", worst->loss);
    if (damp > 0) str_printf(&line, ", damping %g", damp);
    if (isfinite(worst->ratio)) str_printf(&line, ", %s %.2g", strcmp(job->config.method, "awq") == 0 ? "ratio" : "alpha", worst->ratio);
    show_line("%s%s", str_text(&line), worst->fell_back ? ", kept as nearest" : "");
    str_release(&line);
}

static void show_end(const Quantize *job, const PtqReport *report) {
    enum { PERCENT = 100 };
    const Comparison *c = &report->comparison;
    char bytes[32], before[32];
    show_line("wrote %s: %s (%s before, %.1f %%)", job->config.output, format_bytes((double)report->bytes, bytes),
              format_bytes((double)report->original_bytes, before), PERCENT * (double)report->bytes / (double)report->original_bytes);
    if (report->evaluated)
        show_line("error: KL(original || this) %.4g nats, same top token %.1f %%, loss %.4f -> %.4f, perplexity %.4g -> %.4g, on %lld tokens%s",
                  c->kl, PERCENT * c->top1, c->loss_before, c->loss, exp(c->loss_before), exp(c->loss), (long long)c->positions,
                  strcmp(job->config.method, "int8") == 0 ? "; activations rounded to 8 bits" : "");
    show_line("time: %.1f s", clock_seconds() - job->began);
    if (report->kept) show_line("the model that was in '%s' is kept in '%s'", job->config.output, report->kept);
}

/* ---- the command ---- */

static Status quantize_rows(const Command *command, Quantize *job) {
    PtqReport *report;
    job->config.model = command->arguments[0];
    job->config.runtime = runtime_choose(job->compute);
    job->config.hold_back = 0.125;
    job->config.on_plan = show_plan;
    job->config.on_layer = show_layer;
    job->config.context = job;
    TRY(ptq_run(&job->config, &report));
    if (command->json) {
        JsonWriter w = {0};
        ptq_write_json(&job->config, report, &w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
    }
    show_end(job, report);
    ptq_free(report);
    return ST_OK;
}

static Status cmd_quantize_run(const Command *command, void *context) {
    Quantize *job = context;
    TokenRows rows = {0}, eval = {0};
    job->began = clock_seconds();
    TRY(command_needs(command, 1, 1));
    TRY(read_options(job));
    Status status = job->rows || job->eval ? read_rows(command, job, &rows, &eval) : ST_OK;
    if (status == ST_OK) status = quantize_rows(command, job);
    token_rows_release(&rows);
    token_rows_release(&eval);
    return status;
}

Status cmd_quantize(int argc, char **argv) {
    Quantize job = {.config = {.damp = 0.01}, .alpha = "0.5", .compute = "auto", .samples = 128, .max_length = 2048};
    Command command = {
        .arguments_help = "MODEL -o DIR",
        .help =
            "Rounds the weights of the model's linear layers to few bits, and writes a directory in the format of compressed-tensors, which every command, transformers and vLLM read. "
            "Embedding, head and norms stay as they are.\n"
            "Methods: rtn takes the nearest code of each weight; gptq passes the error of a column on to the next ones; awq scales columns so that large inputs have finer steps; "
            "int8 rounds activations too. All but rtn need calibration rows, in any format of training.\n"
            "Layers are quantised in order, each with the inputs that the layers before it give as they are written. DIR/quantize.json says what each cost.\n"
            "    tune quantize models/smollm2 -o models/smollm2-w4 --method gptq --group 64 --rows train.jsonl --eval test.jsonl",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &job.config.output, "DIR", "the quantised model's directory"},
        {"--method", OPTION_TEXT, &job.config.method, "rtn|gptq|awq|int8", "how codes are chosen"},
        {"--rows", OPTION_TEXT, &job.rows, "FILE", "calibration rows"},
        {"--bits", OPTION_INT, &job.bits, "N", "bits of a weight: 2, 3, 4 (default) or 8"},
        {"--group", OPTION_INT, &job.config.group, "N", "inputs that share a scale, -1: a row (the largest of 128, 64, 32 that divides all rows)"},
        {"--sym", OPTION_FLAG, &job.sym, NULL, "symmetric codes (default of rtn and gptq)"},
        {"--asym", OPTION_FLAG, &job.asym, NULL, "codes with a zero point (default of awq)"},
        {"--act-order", OPTION_FLAG, &job.config.act_order, NULL, "gptq: round columns of large inputs first"},
        {"--damp", OPTION_REAL, &job.config.damp, "X", "gptq: added to the diagonal, as a share of its mean"},
        {"--alpha", OPTION_TEXT, &job.alpha, "auto|0..1", "int8: how much of the inputs' range the weights take (SmoothQuant); 0: none"},
        {"--calibrate", OPTION_TEXT, &job.config.calibrate, "absmax|percentile|mse|entropy",
         "int8: activations get fixed ranges, chosen so (each token has its own)"},
        {"--bias-correction", OPTION_TEXT, &job.config.bias_correction, "none|mean|mean_var", "correct the outputs' means, or means and variances"},
        {"--no-clip", OPTION_FLAG, &job.config.no_clip, NULL, "awq: values are not cut"},
        {"--fallback", OPTION_FLAG, &job.config.fallback, NULL, "keep rounding to nearest where the method is worse on rows held back"},
        {"--skip", OPTION_LIST, &job.skip, "NAME", "a linear layer that stays as it is, such as down_proj; repeatable"},
        {"--samples", OPTION_INT, &job.samples, "N", "calibration rows at most, chosen by the seed"},
        {"--max-length", OPTION_INT, &job.max_length, "N", "tokens of a row at most; the rest is cut"},
        {"--seed", OPTION_INT, &job.seed, "N", "choice of calibration rows"},
        {"--eval", OPTION_TEXT, &job.eval, "FILE", "compare the result with the original on these rows: KL, perplexity, most likely tokens"},
        {"--max-kl", OPTION_REAL, &job.config.max_kl, "X", "with --eval: a larger KL is a failure (exit 6), and nothing is written"},
        {"--format", OPTION_TEXT, &job.config.format, "ct|gptq", "the directory's form: compressed-tensors (ct), or as GPTQModel writes it"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of passes over rows; comparisons are in f32 (auto)"},
        AS_OPTION(job),
        CHAT_OPTIONS(job.chat),
        {"--force", OPTION_FLAG, &job.config.force, NULL, "write even if DIR has a model; the old one is kept as DIR.1, DIR.2, ..."},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_quantize_run, &job);
}
