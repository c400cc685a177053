/* tune eval: the loss of a model on rows that it was not trained on. */
#include <math.h>
#include <string.h>

#include "cmd/cmd.h"

enum { BATCH_TOKENS = 2048 };

typedef struct Eval { const char *adapter, *compute, *data, *format, *train_on; } Eval;
typedef struct EvalSums { double nll; int64_t tokens; } EvalSums;

static Status eval_batch(const Model *model, Tape *tape, Batch *batch, EvalSums *sums) {
    if (batch->n_targets == 0) return ST_OK;
    tape_reset(tape);
    Tensor *hidden = model_forward(model, tape, &batch->model);
    Tensor *rows = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &batch->n_targets, batch->rows);
    Tensor *targets = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &batch->n_targets, batch->targets);
    if (!rows || !targets) return ST_RESOURCE;
    TokenLogprobs p = op_token_logprobs(tape, hidden, model->head, rows, targets, &model->logprob);
    TRY(tape_status(tape));
    for (int64_t i = 0; i < batch->n_targets; i++) sums->nll -= tensor_get(p.logprob, i);
    sums->tokens += batch->n_targets;
    return ST_OK;
}

static Status eval_rows(const Command *command, const Model *model, const Dataset *dataset, EvalSums *sums) {
    Batch batch = {0};
    Tape *tape = tape_new(model->device, model->compute, 0);
    size_t *examples = arena_alloc(command->arena, dataset->n * sizeof *examples);
    Status status = tape && examples ? ST_OK : ST_RESOURCE;
    if (status == ST_OK) tape_record(tape, false);
    for (size_t first = 0, end; status == ST_OK && first < dataset->n; first = end) {
        int64_t tokens = 0;
        for (end = first; end < dataset->n && (end == first || tokens + dataset->examples[end].n <= BATCH_TOKENS); end++) {
            tokens += dataset->examples[end].n;
            examples[end - first] = end;
        }
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : batch_build(dataset, examples, end - first, &batch);
        if (status == ST_OK) status = eval_batch(model, tape, &batch, sums);
        show_progress("%zu/%zu rows", end, dataset->n);
    }
    batch_release(&batch);
    tape_free(tape);
    return status;
}

static Status print_loss(const Command *command, const Dataset *dataset, const EvalSums *sums) {
    if (sums->tokens == 0) return status_fail(ST_INPUT, "no token of the rows counts in the loss");
    double loss = sums->nll / (double)sums->tokens;
    if (!isfinite(loss)) return status_fail(ST_NUMERIC, "the loss is not finite");
    end_live_line();
    if (!command->json) {
        print_result("%zu rows, %lld tokens in the loss\nloss        %.6f\nperplexity  %.4f\n", dataset->n, (long long)sums->tokens, loss, exp(loss));
        return ST_OK;
    }
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "rows", (int64_t)dataset->n);
    jw_int(&w, "tokens", sums->tokens);
    jw_double(&w, "loss", loss);
    jw_double(&w, "perplexity", exp(loss));
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
    return ST_OK;
}

static void say(void *context, const char *text) {
    (void)context;
    show_line("%s", text);
}

static Status eval(const Command *command, const Eval *job, const OpenedModel *opened) {
    DataConfig config = {.format = job->format, .train_on = job->train_on, .max_length = INT32_MAX, .truncation = "error", .vocab_size = opened->model->config.vocab_size};
    Dataset *dataset;
    EvalSums sums = {0};
    TRY(dataset_load(&config, &(DataSource){.path = job->data}, 1, opened->tokenizer, &dataset));
    data_counts_warn(&dataset->counts, job->data, say, NULL);
    Status status = eval_rows(command, opened->model, dataset, &sums);
    if (status == ST_OK) status = print_loss(command, dataset, &sums);
    dataset_free(dataset);
    return status;
}

static Status check(const Eval *job) {
    if (!job->data) return status_fail(ST_USAGE, "tune eval needs --data FILE");
    if (strcmp(job->format, "auto") != 0 && !data_format_find(job->format)) return status_fail(ST_USAGE, "--format '%s' is not known", job->format);
    if (strcmp(job->train_on, "auto") != 0 && strcmp(job->train_on, "completion") != 0 && strcmp(job->train_on, "all") != 0)
        return status_fail(ST_USAGE, "--train-on is auto, completion or all, not '%s'", job->train_on);
    return ST_OK;
}

static Status run(const Command *command, const Eval *job) {
    OpenedModel opened;
    TRY(command_needs(command, 1, 1));
    TRY(check(job));
    TRY(open_model(command->arguments[0], job->adapter, job->compute, &opened));
    Status status = eval(command, job, &opened);
    close_model(&opened);
    return status;
}

Status cmd_eval(int argc, char **argv) {
    Eval job = {.format = "auto", .train_on = "auto"};
    Command command = {
        .arguments_help = "MODEL --data FILE",
        .help = "The mean loss of a model, in nats per token that would be trained, and its perplexity. Rows are of any format that training takes; none is cut.\n"
                "With --json: {\"rows\", \"tokens\", \"loss\", \"perplexity\"}.\n"
                "    tune eval models/smollm2 --adapter runs/my-run/adapter --data held-out.jsonl",
    };
    const Option options[] = {
        {"--data", OPTION_TEXT, &job.data, "FILE", "rows, .jsonl or .json, also .gz"},
        {"--adapter", OPTION_TEXT, &job.adapter, "DIR", "PEFT adapter to use"},
        {"--compute", OPTION_TEXT, &job.compute, "TYPE", "auto, f32 or bf16"},
        {"--format", OPTION_TEXT, &job.format, "NAME", "of the rows; auto: by the first one"},
        {"--train-on", OPTION_TEXT, &job.train_on, "WHAT", "auto, completion or all: which tokens count"},
        {0},
    };
    bool done;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = run(&command, &job);
    arena_free(command.arena);
    return status;
}
