/* SPDX-License-Identifier: Apache-2.0 */
/* tune eval on rows: loss, perplexity, and the shares of tokens and of whole answers that are predicted correctly. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "lib/infer/infer.h"
#include "lib/base/system.h"
#include "cmd/common/dealt.h"
#include "cmd/train/cmd_eval.h"
#include "data/branches.h"

enum { BATCH_TOKENS = 2048, LOGIT_ROWS = 128 };
typedef struct EvalRows {
    const Eval *asked;
    const OpenedModel *opened;
    const Dataset *dataset;
    /* of a batch; in the end of all */
    double loss_sum;
    int64_t tokens, right;      /* predicted tokens; those whose most likely token is the target */
    struct Question *questions; /* n_questions prompts to answer */
    size_t n_questions, answers, exact;
} EvalRows;

static void count_tokens(EvalRows *job, const Logits *logits, const int32_t *targets) {
    for (int64_t i = 0; i < tensor_rows(logits->logits); i++) {
        int64_t best;
        tensor_device(logits->logits)->largest(logits->logits, i, &best);
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

/* The end of the batch that begins with row `first`: as many rows as fit, at least one. */
static size_t batch_end(const Dataset *dataset, size_t first) {
    int64_t tokens = dataset_length(dataset, first);
    size_t end = first + 1;
    for (; end < dataset->n && tokens + dataset_length(dataset, end) <= BATCH_TOKENS; end++) tokens += dataset_length(dataset, end);
    return end;
}

/* What a batch gives */
typedef struct BatchSums {
    double loss_sum;
    int64_t tokens, right;
} BatchSums;

static Status eval_some(EvalRows *job, Tape *tape, size_t first, size_t end, Batch *batch, size_t *examples) {
    for (size_t i = first; i < end; i++) examples[i - first] = i;
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    TRY(dealt_poll());
    TRY(batch_build(job->dataset, examples, end - first, batch));
    job->loss_sum = 0;
    job->tokens = job->right = 0;
    if (batch->n_targets > 0) TRY(eval_batch(job, tape, batch));
    if (isfinite(job->loss_sum)) return ST_OK;
    status_fail(ST_NUMERIC, "the loss of '%s' is not finite within rows %zu to %zu", job->asked->data, first + 1, end);
    return status_hint(ST_NUMERIC, "the model's results are not finite there: check its weights, or try --compute f32");
}

/* Ranks take turns with the batches. sums: (n_batches); those of this rank's batches are set. */
static Status eval_batches(EvalRows *job, BatchSums *sums) {
    Tape *tape = tape_new(job->opened->model->device, job->opened->model->compute, 0);
    Batch batch = {0};
    Status status = tape ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the tape");
    size_t *examples = malloc(job->dataset->n * sizeof *examples), number = 0;
    if (!examples) status = status_fail(ST_RESOURCE, "out of memory");
    if (tape) tape_record(tape, false);
    for (size_t first = 0, end; status == ST_OK && first < job->dataset->n; first = end, number++) {
        end = batch_end(job->dataset, first);
        if (number % (size_t)dealt_ranks() != (size_t)dealt_rank()) continue;
        status = eval_some(job, tape, first, end, &batch, examples);
        sums[number] = (BatchSums){job->loss_sum, job->tokens, job->right};
        work_at("evaluating rows", end, job->dataset->n);
    }
    work_end("evaluating rows");
    free(examples);
    batch_release(&batch);
    tape_free(tape);
    return status;
}

/* The sums of batches are added in order, so that they do not depend on the ranks. */
static Status eval_tokens(EvalRows *job, Arena *arena) {
    size_t n = 0, ranks = (size_t)dealt_ranks();
    for (size_t first = 0; first < job->dataset->n; first = batch_end(job->dataset, first)) n++;
    BatchSums *mine = arena_zero(arena, MAX(n, 1) * sizeof *mine), *all = arena_alloc(arena, ranks * MAX(n, 1) * sizeof *all);
    if (!mine || !all) return ST_RESOURCE;
    TRY(eval_batches(job, mine));
    TRY(dealt_words("evaluation", mine, n * sizeof *mine, all));
    job->loss_sum = 0;
    job->tokens = job->right = 0;
    for (size_t i = 0; i < n; i++) {
        const BatchSums *batch = &all[i % ranks * n + i];
        job->loss_sum += batch->loss_sum;
        job->tokens += batch->tokens;
        job->right += batch->right;
    }
    return ST_OK;
}

/* ---- exact match: greedy answers, from the first trained token on ---- */

typedef struct Question {
    Ids ids, labels;   /* one text of a row */
    size_t begin, end; /* the tokens of its (first) answer */
} Question;

static Status eval_rows_compare(void *context, const Completion *completion) {
    EvalRows *job = context;
    const Question *asked = &job->questions[dealt_first(job->n_questions, dealt_rank()) + completion->prompt];
    const Tokenizer *tokenizer = job->opened->tokenizer;
    const int32_t *answer = asked->ids.data + asked->begin;
    size_t n = asked->end - asked->begin;
    bool same;
    if (tokenizer) { /* compares texts, since the same text may have another tokenization */
        Str wanted = {0};
        TRY(tokenizer_decode(tokenizer, answer, n, true, &wanted));
        same = wanted.len == completion->text.len && !memcmp(str_text(&wanted), str_text(&completion->text), wanted.len);
        str_release(&wanted);
    } else {
        same = n == completion->ids.n && !memcmp(answer, completion->ids.data, n * sizeof *answer);
    }
    job->answers++;
    job->exact += same;
    work_at("answering", job->answers, job->n_questions);
    return ST_OK;
}

/* Adds a question for each text of a row. */
static Status add_questions(EvalRows *job, const Example *example) {
    for (int32_t k = 0; k < example_texts(example); k++) {
        Question *asked = &job->questions[job->n_questions++];
        example_text(example, k, &asked->ids, &asked->labels);
        while (asked->begin < asked->ids.n && asked->labels.data[asked->begin] == LABEL_NONE) asked->begin++;
        asked->end = asked->begin;
        while (asked->end < asked->ids.n && asked->labels.data[asked->end] != LABEL_NONE) asked->end++;
        if (asked->begin > 0 && asked->begin < asked->ids.n) continue;
        status_fail(ST_INPUT, "row %u has no prompt followed by an answer", example->line);
        return status_hint(ST_INPUT, "--exact-match needs rows with a prompt and a completion");
    }
    return ST_OK;
}

/* Another rank may have failed meanwhile. */
static Status look_at_ranks(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)context, (void)prompt, (void)sample, (void)id, (void)logprob, (void)text;
    return dealt_poll();
}

/* Adds what the other ranks counted. */
static Status add_answers(EvalRows *job, Arena *arena) {
    const size_t mine[] = {job->answers, job->exact};
    size_t *all = arena_alloc(arena, (size_t)dealt_ranks() * sizeof mine);
    if (!all) return ST_RESOURCE;
    TRY(dealt_words("answers", mine, sizeof mine, all));
    job->answers = job->exact = 0;
    for (int rank = 0; rank < dealt_ranks(); rank++) {
        job->answers += all[2 * rank];
        job->exact += all[2 * rank + 1];
    }
    return ST_OK;
}

static Status eval_rows_ask(EvalRows *job, Arena *arena) {
    Prompt *prompts = arena_alloc(arena, job->n_questions * sizeof *prompts);
    int64_t longest = 1;
    if (!prompts) return ST_RESOURCE;
    for (size_t i = 0; i < job->n_questions; i++) {
        const Question *asked = &job->questions[i];
        prompts[i] = (Prompt){asked->ids.data, asked->begin, i};
        longest = MAX(longest, (int64_t)(asked->end - asked->begin));
    }
    /* One token more than the longest answer: an answer that continues past the expected one is not equal. */
    GenerateConfig config = {
        .sample = {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = longest + 1, .n = 1};
    const size_t first = dealt_first(job->n_questions, dealt_rank()), end = dealt_first(job->n_questions, dealt_rank() + 1);
    if (first < end)
        TRY(generate(job->opened->model, job->opened->tokenizer, prompts + first, end - first, &config, dealt_ranks() > 1 ? look_at_ranks : NULL,
                     eval_rows_compare, job));
    return add_answers(job, arena);
}

static Status eval_answers(EvalRows *job, Arena *arena) {
    size_t n = 0;
    Status status = ST_OK;
    for (size_t i = 0; i < job->dataset->n; i++) {
        const Example example = dataset_example(job->dataset, i);
        n += (size_t)example_texts(&example);
    }
    job->questions = arena_zero(arena, n * sizeof *job->questions);
    if (!job->questions) return ST_RESOURCE;
    for (size_t i = 0; i < job->dataset->n && status == ST_OK; i++) {
        const Example example = dataset_example(job->dataset, i);
        status = add_questions(job, &example);
    }
    if (status == ST_OK) status = eval_rows_ask(job, arena);
    for (size_t i = 0; i < job->n_questions; i++) {
        ids_release(&job->questions[i].ids);
        ids_release(&job->questions[i].labels);
    }
    return status;
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

static Status eval_rows_report(const Command *command, const EvalRows *job) {
    if (job->tokens == 0) return status_fail(ST_INPUT, "'%s' has no trained token", job->asked->data);
    double loss = job->loss_sum / (double)job->tokens;
    if (command->json) {
        print_json(job, loss);
        return ST_OK;
    }
    print_result("rows        %zu (%s)\n", job->dataset->n, job->dataset->format);
    if (job->dataset->counts.as_chat) print_result("texts       %s\n", job->dataset->plain_as);
    print_result("tokens      %lld\nloss        %.6f\nperplexity  %.4f\n", (long long)job->tokens, loss, exp(loss));
    print_result("accuracy    %.2f %% of tokens\n", 100.0 * (double)job->right / (double)job->tokens);
    if (job->asked->exact_match) print_result("exact       %.2f %% of answers\n", 100.0 * (double)job->exact / (double)job->answers);
    return ST_OK;
}

static Status load_rows(const Eval *asked, const OpenedModel *opened, Dataset **dataset) {
    DataConfig config = asked->config;
    config.scratch = getenv("TMPDIR");
    config.turns = "auto";
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
    TRY(open_model_dealt(command->arguments[0], asked->adapter, asked->compute, &asked->chat, &opened));
    Status status = load_rows(asked, &opened, &dataset);
    EvalRows job = {.asked = asked, .opened = &opened, .dataset = dataset};
    if (status == ST_OK) status = dealt_check(opened.model, dataset_fingerprint(dataset));
    if (status == ST_OK) status = eval_tokens(&job, command->arena);
    if (status == ST_OK && asked->exact_match) status = eval_answers(&job, command->arena);
    if (status == ST_OK) status = eval_rows_report(command, &job);
    dataset_free(dataset);
    close_model(&opened);
    return status;
}
