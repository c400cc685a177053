/* SPDX-License-Identifier: Apache-2.0 */
/* tune grad: writes the gradient of the mean loss, to check against other programs. */
#include "lib/base/system.h"
#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/common/rows.h"
#include "cmd/common/results.h"
#include "cmd/common/runtime.h"
#include "lib/model/adapter.h"
#include "lib/model/safetensors.h"

enum { BATCH_TOKENS = 1024 }; /* tokens of the rows that run together; limits the memory of activations */

typedef struct Grad {
    const char *adapter, *compute, *output, *as;
    ChatChoice chat;
} Grad;
typedef struct GradBatch {
    int32_t *ids, *positions, *targets;
    Segment *segments;
    double *weights;
} GradBatch;

static Status open_trained(const char *dir, const Grad *job, Model **model) {
    Runtime runtime = runtime_choose(job->compute ? job->compute : "f32");
    TRY(model_load(dir, &(ModelOptions){.device = runtime.device, .compute = runtime.compute, .train_all = !job->adapter}, model));
    return job->adapter ? adapter_load(*model, job->adapter, true) : ST_OK;
}

static Status count_targets(const TokenRows *rows, int64_t *n_targets, size_t *longest) {
    *n_targets = 0;
    *longest = BATCH_TOKENS;
    for (size_t r = 0; r < rows->n; r++) {
        const Ids *ids = &rows->items[r].ids;
        *n_targets += (int64_t)ids->n - 1;
        *longest = MAX(*longest, ids->n);
    }
    if (*n_targets > 0) return ST_OK;
    status_fail(ST_INPUT, "the rows predict no token");
    return status_hint(ST_INPUT, "a row needs at least two tokens");
}

/* Adds the gradient of -(sum of log-probabilities) / n_all over rows first..end-1. */
static Status add_gradient(const Model *model, Tape *tape, const TokenRows *rows, size_t first, size_t end, int64_t n_all, const GradBatch *room) {
    int64_t n = 0, n_targets = 0;
    for (size_t r = first; r < end; r++) {
        const Ids *ids = &rows->items[r].ids;
        room->segments[r - first] = (Segment){.begin = n, .end = n + (int64_t)ids->n, .parent = -1};
        for (size_t i = 0; i < ids->n; i++, n++) {
            room->ids[n] = ids->data[i];
            if (i == 0) continue;
            room->positions[n_targets] = (int32_t)n - 1;
            room->weights[n_targets] = -1 / (double)n_all;
            room->targets[n_targets++] = ids->data[i];
        }
    }
    if (n_targets == 0) return ST_OK;
    tape_reset(tape);
    ModelBatch batch = {.ids = room->ids, .layout = {.n_tokens = n, .n_segments = (int32_t)(end - first), .segments = room->segments}};
    Tensor *hidden = model_forward(model, tape, &batch);
    Tensor *positions = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &n_targets, room->positions);
    Tensor *targets = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &n_targets, room->targets);
    if (!positions || !targets) return ST_RESOURCE;
    TokenLogprobs p = op_token_logprobs(tape, hidden, model->head, positions, targets, &model->logprob);
    TRY(tape_status(tape));
    tensor_seed_grad(tape, p.logprob, room->weights);
    return tape_backward(tape);
}

static Status add_gradients(const Command *command, const Model *model, const TokenRows *rows) {
    int64_t n_all;
    size_t longest;
    TRY(count_targets(rows, &n_all, &longest));
    Arena *arena = command->arena;
    GradBatch room = {arena_alloc(arena, longest * sizeof *room.ids), arena_alloc(arena, longest * sizeof *room.positions),
                      arena_alloc(arena, longest * sizeof *room.targets), arena_alloc(arena, longest * sizeof *room.segments),
                      arena_alloc(arena, longest * sizeof *room.weights)};
    Tape *tape = tape_new(model->device, model->compute, 0);
    Status status = tape && room.ids && room.positions && room.targets && room.segments && room.weights ? ST_OK : ST_RESOURCE;
    for (size_t first = 0, end; status == ST_OK && first < rows->n; first = end) {
        size_t tokens = rows->items[first].ids.n;
        for (end = first + 1; end < rows->n && tokens + rows->items[end].ids.n <= BATCH_TOKENS; end++) tokens += rows->items[end].ids.n;
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : add_gradient(model, tape, rows, first, end, n_all, &room);
        work_at("gradients of rows", end, rows->n);
    }
    work_end("gradients of rows");
    tape_free(tape);
    const Param *wrong = status == ST_OK ? params_nonfinite(&model->params, true) : NULL;
    return wrong ? status_fail(ST_NUMERIC, "the gradient of '%s' is not finite", wrong->name) : status;
}

/* Writes the gradients under the tensor names of the checkpoint or the adapter's file. */
static Status write_gradients(const Model *model, const char *path) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < model->params.n; i++) {
            const Param *param = &model->params.items[i];
            if (!param->trained) continue;
            const Tensor *grad = param_grad(param);
            if (pass == 1) {
                safetensors_write_tensor(writer, grad, DT_F32);
                continue;
            }
            Str name = {0};
            str_printf(&name, "%s%s", param->role == PARAM_BASE ? "" : "base_model.model.", param->name);
            safetensors_declare(writer, str_text(&name), DT_F32, grad->n_dims, grad->shape);
            str_release(&name);
        }
    return safetensors_commit(writer);
}

static void print_json(const char *output, const Model *model, const TokenRows *rows) {
    JsonWriter w = {0};
    int64_t tensors = 0, tokens = 0;
    for (size_t i = 0; i < model->params.n; i++) tensors += model->params.items[i].trained;
    for (size_t r = 0; r < rows->n; r++) tokens += (int64_t)rows->items[r].ids.n - 1;
    jw_object(&w, NULL);
    jw_string(&w, "output", output);
    jw_int(&w, "rows", (int64_t)rows->n);
    jw_int(&w, "tokens", tokens); /* predicted ones */
    jw_int(&w, "tensors", tensors);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static Status cmd_grad_run(const Command *command, void *context) {
    const Grad *job = context;
    OpenedModel opened = {0};
    TokenRows rows = {0};
    TRY(command_needs(command, 2, 2));
    if (!job->output) return status_fail(ST_USAGE, "tune grad needs -o OUT.safetensors");
    const char *inputs[] = {command->arguments[0], command->arguments[1], job->adapter};
    TRY(check_output(job->output, inputs, COUNT_OF(inputs)));
    Status status = open_trained(command->arguments[0], job, &opened.model);
    if (status == ST_OK) status = tokenizer_load_if_any(command->arguments[0], &opened.tokenizer);
    if (status == ST_OK) status = open_chat(command->arguments[0], job->adapter, &job->chat, &opened);
    if (status == ST_OK)
        status = token_rows_read(command->arguments[1], &opened, &(DataConfig){.system = job->chat.system, .as = job->as}, false, &rows);
    if (status == ST_OK) status = add_gradients(command, opened.model, &rows);
    if (status == ST_OK) status = write_gradients(opened.model, job->output);
    if (status == ST_OK && command->json) print_json(job->output, opened.model, &rows);
    token_rows_release(&rows);
    close_model(&opened);
    return status;
}

Status cmd_grad(int argc, char **argv) {
    Grad job = {0};
    Command command = {
        .arguments_help = "MODEL ROWS.jsonl -o OUT.safetensors",
        .help =
            "Writes the gradient of the mean loss over all predicted tokens of the rows, in F32: for every parameter under its name in the checkpoint, or for the adapter's tensors.\n"
            "A tied head has no entry; its gradient is part of the embedding's. Rows have the formats of tune score.\n"
            "    tune grad models/smollm2 rows.jsonl -o gradient.safetensors",
    };
    const Option options[] = {
        {"-o", OPTION_TEXT, &job.output, "FILE", "file for the gradients"},
        {"--adapter", OPTION_TEXT, &job.adapter, "DIR", "PEFT adapter; write the gradients of its tensors"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of matrix products (f32)"},
        CHAT_OPTIONS(job.chat),
        AS_OPTION(job),
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_grad_run, &job);
}
