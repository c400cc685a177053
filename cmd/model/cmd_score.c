/* SPDX-License-Identifier: Apache-2.0 */
/* tune score: computes the log-probabilities of given texts, token by token. */
#include <math.h>

#include "cmd/app/commands.h"
#include "cmd/common/dealt.h"
#include "cmd/common/rounding.h"
#include "cmd/common/rows.h"
#include "cmd/common/results.h"
#include "cmd/model/score_save.h"
#include "lib/infer/infer.h"
#include "lib/model/safetensors.h"

typedef struct Score {
    const char *adapter, *compute, *output, *logits, *as, *save, *save_dtype;
    int64_t top_k;
    Rounding rounding;
    ChatChoice chat;
    SafetensorsWriter *writer;
} Score;

static void declare_logits(SafetensorsWriter *writer, const TokenRows *rows, int64_t vocab) {
    for (size_t r = 0; r < rows->n; r++) {
        Str name = {0};
        str_printf(&name, "logits.%zu", r);
        safetensors_declare(writer, str_text(&name), DT_F32, 2, (int64_t[]){(int64_t)rows->items[r].ids.n, vocab});
        str_release(&name);
    }
}

static Status write_logits(void *context, size_t row, const float *logits, int64_t n, int64_t vocab) {
    (void)row;
    safetensors_write(context, logits, (size_t)(n * vocab) * sizeof *logits);
    return ST_OK;
}

static void write_row(ResultFile *result, const Score *job, const ScoreRow *row) {
    JsonWriter w = {0};
    double sum = 0;
    jw_object(&w, NULL);
    jw_array(&w, "ids");
    for (size_t i = 0; i < row->n; i++) jw_int(&w, NULL, row->ids[i]);
    jw_end_array(&w);
    jw_array(&w, "logprobs");
    for (size_t i = 0; i < row->n; i++) {
        jw_double(&w, NULL, row->logprobs[i]); /* the first token has none: NaN is written as null */
        if (i > 0) sum += row->logprobs[i];
    }
    jw_end_array(&w);
    jw_double(&w, "sum", sum);
    rounding_write(&w, &job->rounding);
    jw_end_object(&w);
    result_line(result, &w.text);
    jw_release(&w);
}

/* Checks that all log-probabilities are finite (the first token of a row has none). On ST_NUMERIC, *n becomes the number of rows before the first
 * faulty one. */
static Status check_finite(const ScoreRow *scores, size_t *n) {
    for (size_t r = 0; r < *n; r++)
        for (size_t i = 1; i < scores[r].n; i++)
            if (!isfinite(scores[r].logprobs[i])) {
                *n = r;
                status_fail(ST_NUMERIC, "row %zu: the log-probability of token %zu is not finite", r + 1, i + 1);
                return status_hint(ST_NUMERIC, "the model's results are not finite there: check its weights, or try --compute f32");
            }
    return ST_OK;
}

/* Places for the log-probabilities of all rows, one after the other, and where those of each rank begin. */
static Status lay_out(const TokenRows *rows, Arena *arena, ScoreRow *scores, double **values, size_t *first) {
    size_t n = 0, at = 0;
    for (size_t r = 0; r < rows->n; r++) n += rows->items[r].ids.n;
    *values = arena_alloc(arena, (n + 1) * sizeof **values);
    if (!*values) return ST_RESOURCE;
    int rank = 0;
    for (size_t r = 0; r < rows->n; at += scores[r++].n) {
        const Ids *ids = &rows->items[r].ids;
        for (; rank <= dealt_ranks() && dealt_first(rows->n, rank) <= r; rank++) first[rank] = at;
        scores[r] = (ScoreRow){ids->data, ids->n, *values + at};
        scores[r].logprobs[0] = (double)INFINITY; /* until the row is scored */
    }
    for (; rank <= dealt_ranks(); rank++) first[rank] = n;
    return ST_OK;
}

/* Each rank scores its own rows; then all have all values. */
static Status score_all(const Score *job, const Model *model, ScoreRow *scores, size_t n, double *values, const size_t *first) {
    const size_t begin = dealt_first(n, dealt_rank()), end = dealt_first(n, dealt_rank() + 1);
    if (begin < end) TRY(score_rows(model, scores + begin, end - begin, job->logits ? write_logits : NULL, job->writer));
    return dealt_values("log-probabilities", values, first);
}

static Status cmd_score_rows(const Command *command, Score *job, const OpenedModel *opened, const TokenRows *rows) {
    ScoreRow *scores = arena_alloc(command->arena, MAX(rows->n, 1) * sizeof *scores);
    size_t *first = arena_zero(command->arena, ((size_t)dealt_ranks() + 1) * sizeof *first);
    double *values;
    ResultFile result;
    if (!scores || !first) return ST_RESOURCE;
    TRY(dealt_check(opened->model, token_rows_hash(rows)));
    TRY(lay_out(rows, command->arena, scores, &values, first));
    if (job->logits) {
        TRY(safetensors_writer_new(job->logits, &job->writer));
        declare_logits(job->writer, rows, opened->model->config.vocab_size);
    }
    /* before the work, so that a wrong name does not lose it */
    Status status = dealt_rank() == 0 ? result_open(&result, job->output) : ST_OK;
    if (status == ST_OK) status = score_all(job, opened->model, scores, rows->n, values, first);
    size_t n = rows->n;
    if (status == ST_OK) status = check_finite(scores, &n);
    if (job->logits && status == ST_OK)
        status = safetensors_commit(job->writer);
    else if (job->logits)
        safetensors_abandon(job->writer);
    if (dealt_rank() > 0) return status;
    for (size_t r = 0; r < n && !isinf(scores[r].logprobs[0]) && (job->output || status == ST_OK); r++) write_row(&result, job, &scores[r]);
    return result_close(&result, status);
}

/* The other options say how rows are read or written here. */
static Status save_instead(const Command *command, const Score *job) {
    TRY(command_needs(command, 2, COUNT_OF(command->arguments)));
    if (job->output || job->logits || job->as || chat_choice_first(&job->chat))
        return status_hint(status_fail(ST_USAGE, "--save reads rows as tune sft does, and writes one file"),
                           "give a recipe, or overrides such as data.as=chat, in place of other options");
    return score_save(command, &(ScoreSave){.path = job->save,
                                            .dtype = job->save_dtype,
                                            .top_k = job->top_k > 0 ? job->top_k : 64,
                                            .adapter = job->adapter,
                                            .compute = job->compute});
}

static Status cmd_score_run(const Command *command, void *context) {
    Score *job = context;
    OpenedModel opened;
    TokenRows rows = {0};
    if (job->save && job->rounding.text) return status_fail(ST_USAGE, "--activations does nothing with --save");
    if (job->save) return save_instead(command, job);
    if (job->top_k > 0 || job->save_dtype) return status_fail(ST_USAGE, "--top-k and --save-dtype do nothing without --save");
    TRY(command_needs(command, 2, 2));
    if (job->logits && dealt_ranks() > 1) return status_fail(ST_USAGE, "--logits works in one process, not on %d ranks", dealt_ranks());
    const char *inputs[] = {command->arguments[0], command->arguments[1], job->adapter};
    TRY(check_output(job->output, inputs, COUNT_OF(inputs)));
    TRY(check_output(job->logits, inputs, COUNT_OF(inputs)));
    TRY(open_model_dealt(command->arguments[0], job->adapter, job->compute, &job->chat, &opened));
    Status status = rounding_choose(command, &opened, true, &job->rounding);
    if (status == ST_OK)
        status = token_rows_read(command->arguments[1], &opened, &(DataConfig){.system = job->chat.system, .as = job->as}, false, &rows);
    if (status == ST_OK) status = cmd_score_rows(command, job, &opened, &rows);
    token_rows_release(&rows);
    close_model(&opened);
    return status;
}

Status cmd_score(int argc, char **argv) {
    Score job = {0};
    Command command = {
        .over_ranks = true,
        .arguments_help = "MODEL ROWS.jsonl",
        .help =
            "Writes {\"ids\": [...], \"logprobs\": [null, -1.23, ...], \"sum\": ...} for each row, in nats: the log-probability of each token given those before it.\n"
            "Rows are {\"ids\": [...]}, {\"text\": ...}, {\"prompt\": ..., \"completion\": ...}, {\"messages\": [...]} or any format of training. BOS is added if the tokenizer adds it, EOS only by "
            "a chat template.\n"
            "With --save a teacher's likeliest tokens are stored for distil.teacher, at each token of the rows as tune sft trains on them. The rows are those of a file or of a recipe, with overrides KEY=VALUE after it:\n"
            "    tune score LARGE student.yaml --top-k 64 --save teacher.safetensors",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &job.output, "FILE", "write rows to FILE instead of stdout"},
        {"--adapter", OPTION_TEXT, &job.adapter, "DIR", "PEFT adapter to use"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of matrix products"},
        ACTIVATIONS_OPTION(job.rounding),
        CHAT_OPTIONS(job.chat),
        AS_OPTION(job),
        {"--logits", OPTION_TEXT, &job.logits, "FILE", "also write logits.N (tokens, vocabulary) F32 as safetensors"},
        {"--top-k", OPTION_INT, &job.top_k, "N", "with --save: number of likeliest tokens at each place (64)"},
        {"--save", OPTION_TEXT, &job.save, "FILE", "write the likeliest tokens and their log-probabilities as safetensors, and no rows"},
        {"--save-dtype", OPTION_TEXT, &job.save_dtype, "f16|f32", "with --save: dtype of log-probabilities (f16)"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_score_run, &job);
}
