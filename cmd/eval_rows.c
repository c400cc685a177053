/* SPDX-License-Identifier: Apache-2.0 */
/* tune eval on rows: loss and perplexity, the share of tokens guessed right, and of answers that are exactly right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/system.h"
#include "cmd/cmd_eval.h"

enum { BATCH_TOKENS = 2048, LOGIT_ROWS = 128 };
typedef struct EvalRows {
    const Eval *asked;
    const OpenedModel *opened;
    const Dataset *dataset;
    double loss_sum;
    int64_t tokens, right; /* predicted tokens; those whose likeliest token is the target */
    size_t answers, exact;
} EvalRows;

static void count_tokens(EvalRows *job, const Logits *logits, const int32_t *targets) {
    int64_t n = tensor_rows(logits->logits), vocab = tensor_width(logits->logits);
    const float *values = logits->logits->data;
    for (int64_t i = 0; i < n; i++, values += vocab) {
        int64_t best = 0;
        for (int64_t v = 1; v < vocab; v++)
            if (values[v] > values[best]) best = v;
        job->right += best == targets[i];
        job->loss_sum -= logits_logprob(logits, i, targets[i]);
    }
}

static Status eval_batch(EvalRows *job, Tape *tape, const Batch *batch) {
    const Model *model = job->opened->model;
    tape_reset(tape);
    Tensor *hidden = model_forward(model, tape, &batch->model);
    for (int64_t i = 0; i < batch->n_targets; i += LOGIT_ROWS) {
        int64_t n = MIN(LOGIT_ROWS, batch->n_targets - i);
        Tensor *some = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &n, batch->rows + i);
        if (!some) return ST_RESOURCE;
        Logits logits = model_logits(model, tape, hidden, some);
        TRY(tape_status(tape));
        count_tokens(job, &logits, batch->targets + i);
    }
    job->tokens += batch->n_targets;
    return ST_OK;
}

static Status eval_tokens(EvalRows *job) {
    Tape *tape = tape_new(job->opened->model->device, job->opened->model->compute, 0);
    Batch batch = {0};
    Status status = tape ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the tape");
    size_t *examples = malloc(job->dataset->n * sizeof *examples);
    if (!examples) status = status_fail(ST_RESOURCE, "out of memory");
    if (tape) tape_record(tape, false);
    for (size_t first = 0, n; status == ST_OK && first < job->dataset->n; first += n) {
        int64_t tokens = 0;
        for (n = 0; first + n < job->dataset->n && (n == 0 || tokens + dataset_length(job->dataset, first + n) <= BATCH_TOKENS); n++) {
            tokens += dataset_length(job->dataset, first + n);
            examples[n] = first + n;
        }
        if (interrupt_requested()) status = status_fail(ST_INTERRUPTED, "interrupted");
        if (status == ST_OK) status = batch_build(job->dataset, examples, n, &batch);
        if (status == ST_OK && batch.n_targets > 0) status = eval_batch(job, tape, &batch);
        if (status == ST_OK && !isfinite(job->loss_sum)) {
            status_fail(ST_NUMERIC, "the loss of '%s' is not finite within rows %zu to %zu", job->asked->data, first + 1, first + n);
            status = status_hint(ST_NUMERIC, "the model computes no numbers there: look at its weights, or try --compute f32");
        }
        show_progress("%zu/%zu rows", first + n, job->dataset->n);
    }
    free(examples);
    batch_release(&batch);
    tape_free(tape);
    return status;
}

/* ---- exact answers: greedily from where the first trained token is ---- */

static size_t prompt_length(const Example *example) { return (size_t)(example->n_runs > 0 ? example->runs[0].begin : example->n); }

static Status compare(void *context, const Completion *completion) {
    EvalRows *job = context;
    Example example = dataset_example(job->dataset, completion->prompt);
    const Tokenizer *tokenizer = job->opened->tokenizer;
    size_t begin = prompt_length(&example), n = (size_t)example.n - begin;
    bool same;
    if (tokenizer) { /* as text: the same words may be cut into other tokens */
        Str wanted = {0};
        TRY(tokenizer_decode(tokenizer, example.ids + begin, n, true, &wanted));
        same = wanted.len == completion->text.len && !memcmp(str_text(&wanted), str_text(&completion->text), wanted.len);
        str_release(&wanted);
    } else {
        same = n == completion->ids.n && !memcmp(example.ids + begin, completion->ids.data, n * sizeof *example.ids);
    }
    job->answers++;
    job->exact += same;
    show_progress("%zu/%zu answers", job->answers, job->dataset->n);
    return ST_OK;
}

static Status eval_answers(EvalRows *job, Arena *arena) {
    Prompt *prompts = arena_alloc(arena, job->dataset->n * sizeof *prompts);
    int64_t longest = 1;
    if (!prompts) return ST_RESOURCE;
    for (size_t i = 0; i < job->dataset->n; i++) {
        Example example = dataset_example(job->dataset, i);
        prompts[i] = (Prompt){example.ids, prompt_length(&example), i};
        longest = MAX(longest, example.n - (int64_t)prompts[i].n);
        if (prompts[i].n == 0 || prompts[i].n == (size_t)example.n) {
            status_fail(ST_INPUT, "row %u has no prompt with an answer behind it", example.line);
            return status_hint(ST_INPUT, "--exact-match needs rows with a prompt and a completion");
        }
    }
    /* One token more than any answer has: an answer that goes on is not equal. */
    GenerateConfig config = {
        .sample = {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = longest + 1, .n = 1};
    return generate(job->opened->model, job->opened->tokenizer, prompts, job->dataset->n, &config, NULL, compare, job);
}

static void print_json(const EvalRows *job, double loss) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "rows", (int64_t)job->dataset->n);
    jw_int(&w, "tokens", job->tokens);
    jw_double(&w, "loss", loss);
    jw_double(&w, "perplexity", exp(loss));
    jw_double(&w, "accuracy", (double)job->right / (double)job->tokens);
    if (job->asked->exact_match) jw_double(&w, "exact_match", (double)job->exact / (double)job->answers);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static Status report(const Command *command, const EvalRows *job) {
    if (job->tokens == 0) return status_fail(ST_INPUT, "'%s' has no token whose loss counts", job->asked->data);
    double loss = job->loss_sum / (double)job->tokens;
    if (command->json) {
        print_json(job, loss);
        return ST_OK;
    }
    print_result("rows        %zu (%s)\n", job->dataset->n, job->dataset->format);
    if (job->dataset->counts.turned) print_result("texts       %s\n", job->dataset->plain_as);
    print_result("tokens      %lld\nloss        %.6f\nperplexity  %.4f\n", (long long)job->tokens, loss, exp(loss));
    print_result("accuracy    %.2f %% of tokens\n", 100.0 * (double)job->right / (double)job->tokens);
    if (job->asked->exact_match) print_result("exact       %.2f %% of answers\n", 100.0 * (double)job->exact / (double)job->answers);
    return ST_OK;
}

static Status load_rows(const Eval *asked, const OpenedModel *opened, Dataset **dataset) {
    DataConfig config = asked->config;
    config.scratch = getenv("TMPDIR");
    config.chat = opened->chat;
    config.system = asked->chat.system;
    if (!config.as) config.as = "auto";
    config.vocab_size = opened->model->config.vocab_size;
    if (opened->model->config.learned_positions) config.positions = opened->model->config.max_position_embeddings;
    config.context = context_count(&opened->model->config);
    TRY(dataset_load(&config, &(DataSource){.path = asked->data}, 1, opened->tokenizer, dataset));
    data_counts_warn(&(*dataset)->counts, asked->data, show_warning, NULL);
    return ST_OK;
}

Status eval_rows(const Command *command, const Eval *asked) {
    OpenedModel opened;
    Dataset *dataset = NULL;
    TRY(open_model(command->arguments[0], asked->adapter, asked->compute, &asked->chat, &opened));
    Status status = load_rows(asked, &opened, &dataset);
    EvalRows job = {.asked = asked, .opened = &opened, .dataset = dataset};
    if (status == ST_OK) status = eval_tokens(&job);
    if (status == ST_OK && asked->exact_match) status = eval_answers(&job, command->arena);
    if (status == ST_OK) status = report(command, &job);
    dataset_free(dataset);
    close_model(&opened);
    return status;
}
