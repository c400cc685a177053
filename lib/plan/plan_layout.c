/* SPDX-License-Identifier: Apache-2.0 */
/* One layout: memory of the rank that needs most, time of a step by roofline and messages, bytes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/plan/plan.h"

/* Two buckets of gradients under way; the process itself with the tables of its tokenizer. */
#define BUCKET 26214400.0
#define PROGRAM 19.4e6
#define PROGRAM_PER_WORD 200
#define SAMPLING 1.5e6 /* code and tables of sampling */
/* AdamW reads weight, gradient and two averages, and writes three of them. */
#define OPTIMIZER_BYTES 28

double plan_step_tokens(const PlanRun *run) { return (double)(run->rows * run->accumulation) * run->mean_row; }

/* ---- the device of a rank ---- */

typedef struct Rates {
    double work, bytes, memory; /* operations and bytes per second, bytes; of a rank */
    double on_machine;          /* ranks of a machine */
} Rates;

/* Ranks of a device, at least 1 */
static double sharing(const PlanTask *task) { return fmax((double)task->ranks / (double)(task->machines * task->machine.per_machine), 1); }

static Rates rates_of(const PlanTask *task) {
    const PlanMachine *machine = &task->machine;
    double share = sharing(task);
    return (Rates){plan_rate(machine, task->run.half) * machine->efficiency / share, machine->bytes_per_second / share, machine->memory / share,
                   fmin((double)machine->per_machine * share, (double)task->ranks)};
}

/* ---- messages of a group of ranks ---- */

/* An all-reduce over `ranks` ranks that are `stride` apart. Neighbours share a machine; its link to others is shared by the ranks that use it at the
 * same time, but GPUs with NVLink have a link each. */
static double group_seconds(const PlanTask *task, double ranks, double stride, double bytes) {
    Rates rates = rates_of(task);
    const LinkSpeed *inner = &task->machine.inner.bulk, *outer = &task->link.bulk;
    if (ranks <= 1) return 0;
    double inside = fmin(fmax(floor(rates.on_machine / stride), 1), ranks), hosts = ceil(ranks / inside);
    double share = strncmp(task->machine.inner.name, "nvlink", 6) == 0 ? 1 : fmin(rates.on_machine, inside * stride);
    double two_levels = message_two_levels(hosts, inside, inner, outer, share, bytes);
    if (hosts > 1) return two_levels;
    return fmin(message_ring(ranks, inner, bytes), message_halving(ranks, inner, bytes));
}

/* ---- work of a layer ---- */

typedef struct LayerCost {
    double forward, backward, recompute, messages; /* seconds; messages: of each direction */
} LayerCost;

static bool adapter(const PlanTask *task) { return task->run.lora_rank > 0; }

static double weight_bytes(const PlanTask *task) { return adapter(task) ? task->run.frozen_bytes : 4; }

/* The products that selective checkpointing computes again: gate, up and attention's last one. */
static double again_share(const PlanTask *task, int64_t layer) {
    PlanMatrix matrices[PLAN_MATRICES];
    double again = 0, all = 0;
    int n = plan_matrices(&task->model, layer, matrices);
    for (int i = 0; i < n; i++) {
        double elements = (double)matrices[i].active * (double)matrices[i].in * (double)matrices[i].out;
        all += elements;
        if (matrices[i].out > matrices[i].in || strcmp(matrices[i].name, "o_proj") == 0) again += elements;
    }
    return all > 0 ? again / all : 0;
}

/* Reads of norms, rotations and activation functions, forward, in bytes. */
static double elementwise_bytes(const PlanTask *task, double tokens, double t) {
    const PlanModel *model = &task->model;
    double c = task->run.half ? 2 : 4,
           ffn = (double)(model->num_experts > 0 ? model->num_experts_per_tok * model->moe_intermediate_size : model->intermediate_size);
    return tokens * ((double)model->norms * (double)model->hidden_size * (4 + c) +
                     (3 * ffn + 4 * (double)(model->num_attention_heads * model->head_dim)) * c / t);
}

static LayerCost layer_cost(const PlanTask *task, int64_t layer, double tokens, double t) {
    const PlanModel *model = &task->model;
    Rates rates = rates_of(task);
    double c = task->run.half ? 2 : 4, rows = tokens / task->run.mean_row, elements = plan_layer_elements(model, layer) / t,
           stored = (plan_layer_parameters(model, layer, (PlanRank){1, 0}) / t) * weight_bytes(task),
           products = roofline_seconds(2 * elements * tokens, stored, rates.work, rates.bytes),
           attention = roofline_seconds(plan_attention_work(model, task->run.mean_row) * rows / t,
                                        4 * tokens * (double)(model->num_attention_heads * model->head_dim) * c / t, rates.work, rates.bytes),
           elementwise = elementwise_bytes(task, tokens, t) / rates.bytes;
    double lora = adapter(task) ? 2 *
                                      plan_lora_parameters(model, (PlanStage){layer, 1, false, false}, (PlanRank){1, 0}, task->run.lora_rank,
                                                           task->run.targets, task->run.n_targets) /
                                      t * tokens / rates.work
                                : 0;
    LayerCost cost = {.forward = products + attention + elementwise + lora,
                      .backward = (adapter(task) ? 1 : 2) * products + 2.5 * attention + 2 * elementwise + 2 * lora};
    if (task->run.keep == KEEP_LAYERS) cost.recompute = cost.forward;
    if (task->run.keep == KEEP_SELECTIVE) cost.recompute = again_share(task, layer) * products + elementwise;
    cost.messages = 2 * group_seconds(task, t, 1, tokens * (double)model->hidden_size * 4);
    return cost;
}

double plan_layer_seconds(const PlanTask *task, int64_t layer, double tokens) {
    LayerCost cost = layer_cost(task, layer, tokens, 1);
    return cost.forward + cost.recompute + cost.backward;
}

/* ---- stages ---- */

typedef struct StageCost {
    PlanStage stage;
    double parameters, trained;                            /* of the largest rank of the tensor group */
    double forward, backward, recompute, messages, gather; /* seconds of a micro-batch; messages, gather: part of them */
} StageCost;

static double trained_of(const PlanTask *task, PlanStage stage, PlanRank rank) {
    if (!adapter(task)) return plan_stage_parameters(&task->model, stage, rank);
    return plan_lora_parameters(&task->model, stage, rank, task->run.lora_rank, task->run.targets, task->run.n_targets);
}

/* The head: a product of V columns, and the gradient of its input. The program computes probabilities again instead of keeping them. */
static void head_cost(const PlanTask *task, double tokens, double t, StageCost *cost) {
    Rates rates = rates_of(task);
    double elements = (double)(task->model.vocab_size * task->model.hidden_size) / t,
           product = roofline_seconds(2 * elements * tokens, elements * weight_bytes(task), rates.work, rates.bytes);
    cost->forward += product;
    cost->backward += adapter(task) ? product : 2 * product;
}

/* Divided weights are gathered a layer ahead: a layer takes the longer of its work and the next one's messages. */
static double gathered_seconds(double work, double message, double layers) { return layers * fmax(message - work, 0) + fmin(message, work); }

static StageCost stage_cost(const PlanTask *task, const PlanLayout *layout, PlanStage stage, double tokens) {
    const PlanRank rank = {layout->tensor, 0};
    StageCost cost = {.stage = stage, .parameters = plan_stage_parameters(&task->model, stage, rank), .trained = trained_of(task, stage, rank)};
    double t = (double)layout->tensor, d = (double)layout->data;
    for (int64_t i = stage.first; i < stage.first + stage.layers; i++) {
        LayerCost layer = layer_cost(task, i, tokens, t);
        cost.forward += layer.forward + layer.messages;
        cost.backward += layer.backward + layer.messages + layer.recompute;
        cost.recompute += layer.recompute;
        cost.messages += 2 * layer.messages;
    }
    if (stage.head) head_cost(task, tokens, t, &cost);
    if (layout->shard == SHARD_WEIGHTS && d > 1) {
        double layers = fmax((double)stage.layers, 1), message = group_seconds(task, d, t, cost.parameters * weight_bytes(task)) / 2 / layers,
               reduce = adapter(task) ? 0 : group_seconds(task, d, t, cost.trained * 4) / 2 / layers,
               forward = gathered_seconds(cost.forward / layers, message, layers),
               backward = gathered_seconds(cost.backward / layers, message + reduce, layers);
        cost.gather = forward + backward;
        cost.forward += forward;
        cost.backward += backward;
    }
    return cost;
}

/* ---- memory ---- */

static double lanes_of(const PlanTask *task, const PlanLayout *layout) {
    double leaves = (double)task->run.accumulation, d = (double)layout->data;
    if (task->run.lanes > 0) return fmax(task->run.lanes, d);
    if (!adapter(task) && layout->shard >= SHARD_GRADIENTS) return fmax(leaves, d);
    if (!adapter(task)) return exp2(ceil(log2(d)));
    return fmax(exp2(floor(log2(fmin(16, leaves)))), 1);
}

/* Memory of the trained part. Adapters divide their states only: they are small. */
static void state_memory(const PlanTask *task, const PlanLayout *layout, double trained, PlanMemory *memory) {
    double d = (double)layout->data, states = 4 * task->run.optimizer_states;
    PlanShard shard = adapter(task) ? MIN(layout->shard, SHARD_OPTIMIZER) : layout->shard;
    memory->weights = 4 * trained / (shard >= SHARD_WEIGHTS ? d : 1);
    memory->gradients = 4 * trained / (shard >= SHARD_GRADIENTS ? d : 1);
    memory->states = states * trained / (shard >= SHARD_OPTIMIZER ? d : 1);
    memory->lanes = plan_lane_bytes(shard, trained, layout->lanes, d);
}

/* Answers to a prompt share its keys and values. The prompts are computed at once, a layer at a time, and each answer has a row of logits. */
static double sampling_memory(const PlanTask *task, const PlanLayout *layout) {
    const PlanRun *run = &task->run;
    const PlanRank rank = {layout->tensor, 0};
    double prompts = ceil((double)run->prompts / (double)layout->data), answers = prompts * (double)run->answers,
           cached = prompts * run->prompt_tokens + answers * run->answer_tokens,
           cache = plan_cache_bytes(&task->model, plan_cache_kind(&task->model), run->half ? 2 : 4) / (double)layout->tensor,
           prompt =
               prompts * run->prompt_tokens * 16 * (double)task->model.hidden_size + plan_layer_activations(task, rank, prompts * run->prompt_tokens);
    return cached * cache + prompt + answers * 4 * (double)task->model.vocab_size + SAMPLING;
}

/* kept: micro-batches whose activations the stage keeps at once. */
static PlanMemory stage_memory(const PlanTask *task, const PlanLayout *layout, const StageCost *cost, double kept, double inputs) {
    const PlanRank rank = {layout->tensor, 0};
    const double tokens = (double)layout->micro_rows * task->run.longest_row, d = (double)layout->data, layers = (double)cost->stage.layers;
    double full = plan_layer_activations(task, rank, tokens), part = plan_layer_kept(task, rank, tokens), V = (double)task->model.vocab_size;
    PlanMemory memory = {.program = PROGRAM + PROGRAM_PER_WORD * V};
    state_memory(task, layout, cost->trained, &memory);
    if (adapter(task)) memory.frozen = cost->parameters * task->run.frozen_bytes / (layout->shard == SHARD_WEIGHTS ? d : 1);
    memory.activations = layers * kept * part + (task->run.keep == KEEP_ALL ? 0 : full - part) + plan_other_activations(task, rank, tokens) +
                         inputs * tokens * (double)task->model.hidden_size * 4;
    if (cost->stage.head) memory.logits = plan_scratch(task, tokens) + plan_head_kept(task, tokens);
    if (d > 1) memory.buckets = fmin(2 * BUCKET, 8 * cost->trained);
    if (layout->shard == SHARD_WEIGHTS && d > 1) memory.gathered = 2 * cost->parameters / fmax(layers, 1) * weight_bytes(task);
    if (task->run.prompts > 0) memory.cache = sampling_memory(task, layout);
    if (task->run.reference_weights) memory.reference = cost->parameters * task->run.frozen_bytes / (layout->shard == SHARD_WEIGHTS ? d : 1);
    memory.reference += task->run.teacher_bytes; /* each rank has all of it */
    return memory;
}

static double sum_of(const void *parts, size_t n) {
    const double *values = parts;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    return sum;
}

/* ---- time ---- */

/* Generating: the prompts at once, then a token of every answer at a time. Reads the weights and the answers' cache for each. */
static double rollout_seconds(const PlanTask *task, const PlanLayout *layout) {
    const PlanRun *run = &task->run;
    const PlanModel *model = &task->model;
    if (run->prompts == 0) return 0;
    Rates rates = rates_of(task);
    double t = (double)layout->tensor, answers = ceil((double)(run->prompts * run->answers) / (double)layout->data),
           prompts = ceil((double)run->prompts / (double)layout->data), elements = plan_elements(model) / t,
           stored = plan_parameters(model) / t * (adapter(task) ? run->frozen_bytes : 4),
           cache = plan_cache_bytes(model, plan_cache_kind(model), run->half ? 2 : 4) / t;
    double prefill = roofline_seconds(2 * elements * prompts * run->prompt_tokens, stored, rates.work, rates.bytes),
           context = run->prompt_tokens + run->answer_tokens / 2,
           token = roofline_seconds(2 * elements * answers, stored + answers * context * cache, rates.work, rates.bytes);
    return prefill + run->answer_tokens * token;
}

/* Gradients are sent in buckets as the last micro-batch's backward pass makes them. */
static double exposed_reduce(double seconds, double backward, double bytes) {
    enum { MOST_BUCKETS = 64 };
    double ready[MOST_BUCKETS], cost[MOST_BUCKETS];
    size_t n = (size_t)fmin(fmax(ceil(bytes / BUCKET), 1), MOST_BUCKETS);
    for (size_t i = 0; i < n; i++) ready[i] = backward * (double)(i + 1) / (double)n, cost[i] = seconds / (double)n;
    return message_exposed(ready, cost, n, backward);
}

static double boundary_bytes(const PlanTask *task, double tokens) { return tokens * (double)task->model.hidden_size * 4; }

/* Stages are data x tensor ranks apart. If they do not all fit on one machine, a boundary crosses machines, and every micro-batch waits for it. */
static const LinkSpeed *boundary_link(const PlanTask *task, const PlanLayout *layout) {
    bool one_machine = rates_of(task).on_machine >= (double)(layout->pipeline * layout->data * layout->tensor);
    return one_machine ? &task->machine.inner.bulk : &task->link.bulk;
}

/* The pipeline's time for `micro` micro-batches. A steady state is reached after a few rounds; more take as long as the slowest stage. */
static Status pipeline_seconds(const PlanTask *task, const PlanLayout *layout, const StageCost *costs, Arena *arena, PlanPipeResult *result) {
    const int64_t p = layout->pipeline, most = 6 * p, simulated = MIN(layout->micro, most);
    double *forward = arena_alloc(arena, (size_t)p * sizeof(double)), *backward = arena_alloc(arena, (size_t)p * sizeof(double)), slowest = 0,
           busy = 0;
    if (!forward || !backward) return ST_RESOURCE;
    const LinkSpeed *link = boundary_link(task, layout);
    double bytes = boundary_bytes(task, (double)layout->micro_rows * task->run.mean_row);
    for (int64_t i = 0; i < p; i++) {
        forward[i] = costs[i].forward;
        backward[i] = costs[i].backward;
        slowest = fmax(slowest, forward[i] + backward[i]);
        busy += forward[i] + backward[i];
    }
    double transfer = link->latency + bytes / link->bytes_per_second;
    TRY(plan_pipe_simulate(&(PlanPipe){layout->schedule, p, simulated, layout->chunks, forward, backward, NULL, transfer}, arena, result));
    if (p > 1) slowest = fmax(slowest, transfer * (double)layout->chunks);
    result->makespan += (double)(layout->micro - simulated) * slowest;
    if (result->inputs > 0) result->inputs = (double)layout->micro;
    result->bubble = 1 - (double)layout->micro * busy / (double)p / result->makespan;
    return ST_OK;
}

static void fill_seconds(const PlanTask *task, PlanLayout *layout, const StageCost *costs, const PlanPipeResult *pipe) {
    const StageCost *slowest = costs, *largest = costs;
    Rates rates = rates_of(task);
    double m = (double)layout->micro, d = (double)layout->data, t = (double)layout->tensor, passes = fmax(task->run.passes, 1);
    for (int64_t i = 0; i < layout->pipeline; i++) {
        if (costs[i].forward + costs[i].backward > slowest->forward + slowest->backward) slowest = &costs[i];
        if (costs[i].trained > largest->trained) largest = &costs[i];
    }
    PlanSeconds *seconds = &layout->seconds;
    double gather_forward = slowest->gather / 2, half_messages = slowest->messages / 2;
    seconds->forward = passes * m * (slowest->forward - half_messages - gather_forward);
    seconds->backward = passes * m * (slowest->backward - half_messages - slowest->recompute - (slowest->gather - gather_forward));
    seconds->recompute = passes * m * slowest->recompute;
    seconds->tensor = passes * m * slowest->messages;
    seconds->gather = passes * m * slowest->gather;
    seconds->bubble = passes * fmax(pipe->makespan - m * (slowest->forward + slowest->backward), 0);
    seconds->passes = task->run.forward_passes * (m + (double)layout->pipeline - 1) * slowest->forward;
    seconds->rollout = rollout_seconds(task, layout);
    bool divided = layout->shard == SHARD_WEIGHTS && !adapter(task);
    double bytes = 4 * largest->trained, whole = group_seconds(task, d, t, bytes), leaves = m;
    if (layout->shard == SHARD_GRADIENTS && !adapter(task)) whole = whole / 2 * (leaves + 1);
    seconds->reduce = divided ? 0 : passes * exposed_reduce(whole, largest->backward, bytes);
    seconds->optimizer = passes * OPTIMIZER_BYTES * largest->trained / (layout->shard == SHARD_NONE ? 1 : d) / rates.bytes;
    layout->step_seconds = sum_of(seconds, N_SECOND_PARTS);
}

/* Section 3.3's table, for the rank with most parameters. */
static void fill_bytes(const PlanTask *task, PlanLayout *layout, const StageCost *costs) {
    double m = (double)layout->micro, d = (double)layout->data, t = (double)layout->tensor, rest = (d - 1) / d,
           tokens = (double)layout->micro_rows * task->run.mean_row, hidden = boundary_bytes(task, tokens), passes = fmax(task->run.passes, 1);
    for (int64_t i = 0; i < layout->pipeline; i++) {
        const StageCost *cost = &costs[i];
        double n = 4 * cost->trained, layers = (double)cost->stage.layers, frozen = cost->parameters * weight_bytes(task);
        PlanBytes bytes = {.gradients = rest * n, .weights = rest * n};
        if (layout->shard == SHARD_NONE || adapter(task)) bytes = (PlanBytes){.gradients = 2 * rest * n};
        if (layout->shard == SHARD_GRADIENTS && !adapter(task)) bytes.gradients = rest * n * m;
        if (layout->shard == SHARD_WEIGHTS && !adapter(task)) bytes = (PlanBytes){.gradients = rest * n * m, .weights = 2 * rest * frozen * m};
        if (layout->shard == SHARD_WEIGHTS && adapter(task)) bytes.weights = 2 * rest * frozen * m;
        bytes.tensor = t > 1 ? m * layers * 4 * message_sent(t, hidden) : 0;
        bytes.boundary = layout->pipeline > 1 ? m * hidden * (double)((i > 0) + (i < layout->pipeline - 1)) * (double)layout->chunks : 0;
        for (size_t k = 0; k < N_BYTE_PARTS; k++) ((double *)&bytes)[k] *= passes;
        if (sum_of(&bytes, N_BYTE_PARTS) > sum_of(&layout->bytes, N_BYTE_PARTS)) layout->bytes = bytes;
    }
}

/* ---- a layout ---- */

static void refuse(PlanLayout *layout, const char *format, ...) PRINTF_LIKE(2, 3);
static void refuse(PlanLayout *layout, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(layout->why, sizeof layout->why, format, arguments);
    va_end(arguments);
}

/* Rows of a data group, and its micro-batches; false with the reason where sizes do not divide. */
static bool divide_rows(const PlanTask *task, PlanLayout *layout) {
    const PlanRun *run = &task->run;
    int64_t rows = run->rows * run->accumulation, of_group = (rows + layout->data - 1) / layout->data;
    if (layout->data > rows) {
        refuse(layout, "data %lld: a step has %lld rows", (long long)layout->data, (long long)rows);
        return false;
    }
    if (layout->micro_rows < 1) layout->micro_rows = MIN(run->rows, of_group);
    layout->micro = (of_group + layout->micro_rows - 1) / layout->micro_rows;
    if (layout->schedule == PIPE_INTERLEAVED && layout->micro % layout->pipeline != 0) {
        refuse(layout, "interleaved: micro-batches (%lld) are no multiple of the stages (%lld)", (long long)layout->micro,
               (long long)layout->pipeline);
        return false;
    }
    return true;
}

static Status cut_stages(const PlanTask *task, Arena *arena, PlanLayout *layout) {
    const int64_t n = task->model.num_hidden_layers;
    double *cost = arena_alloc(arena, (size_t)n * sizeof *cost);
    int64_t *counts = arena_alloc(arena, (size_t)layout->pipeline * sizeof *counts);
    if (!cost || !counts) return ST_RESOURCE;
    layout->layers = counts;
    for (int64_t i = 0; i < layout->pipeline; i++) counts[i] = n / layout->pipeline;
    if (layout->schedule == PIPE_INTERLEAVED) return ST_OK; /* every run of layers has the same length */
    for (int64_t i = 0; i < n; i++) cost[i] = plan_layer_elements(&task->model, i);
    return stages_balance(cost, n, (double)(task->model.vocab_size * task->model.hidden_size), layout->pipeline, arena, counts, NULL);
}

static Status compute(const PlanTask *task, Arena *arena, PlanLayout *layout) {
    const int64_t p = layout->pipeline;
    StageCost *costs = arena_alloc(arena, (size_t)p * sizeof *costs);
    PlanPipeResult pipe;
    if (!costs) return ST_RESOURCE;
    for (int64_t i = 0, first = 0; i < p; first += layout->layers[i++])
        costs[i] =
            stage_cost(task, layout, (PlanStage){first, layout->layers[i], i == 0, i == p - 1}, (double)layout->micro_rows * task->run.mean_row);
    TRY(pipeline_seconds(task, layout, costs, arena, &pipe));
    layout->bubble = pipe.bubble;
    layout->lanes = lanes_of(task, layout);
    for (int64_t i = 0; i < p; i++) {
        PlanMemory memory = stage_memory(task, layout, &costs[i], pipe.kept[i], pipe.inputs);
        if (layout->schedule == PIPE_PIPEDREAM) memory.versions = (double)(p - 1 - i) * memory.weights;
        double bytes = sum_of(&memory, N_MEMORY_PARTS);
        if (bytes > layout->peak_bytes) layout->peak_bytes = bytes, layout->memory = memory;
    }
    fill_seconds(task, layout, costs, &pipe);
    fill_bytes(task, layout, costs);
    return ST_OK;
}

/* Of the device's memory. What each of its ranks has whole, and none changes, is there once. */
static double share_of_memory(const PlanTask *task, const PlanLayout *layout) {
    bool whole = layout->tensor == 1 && layout->pipeline == 1 && layout->shard != SHARD_WEIGHTS;
    bool once = task->run.share_frozen && !task->machine.gpu && whole;
    return layout->peak_bytes - (once ? (layout->memory.frozen + layout->memory.reference) * (1 - 1 / sharing(task)) : 0);
}

Status plan_layout(const PlanTask *task, Arena *arena, PlanLayout *layout) {
    layout->fits = false;
    layout->why[0] = '\0';
    if (plan_tensor_fits(&task->model, layout->tensor) != ST_OK) {
        refuse(layout, "tensor %lld: %lld heads with %lld key/value heads do not divide", (long long)layout->tensor,
               (long long)task->model.num_attention_heads, (long long)task->model.num_key_value_heads);
        return ST_OK;
    }
    if (layout->pipeline * layout->chunks > task->model.num_hidden_layers) {
        refuse(layout, "pipeline %lld: the model has %lld layers", (long long)layout->pipeline, (long long)task->model.num_hidden_layers);
        return ST_OK;
    }
    if (!divide_rows(task, layout)) return ST_OK;
    TRY(cut_stages(task, arena, layout));
    TRY(compute(task, arena, layout));
    double memory = rates_of(task).memory, needed = share_of_memory(task, layout);
    layout->fits = needed <= memory;
    if (!layout->fits) refuse(layout, "memory: a rank needs %.3g GB, it has %.3g", needed / 1e9, memory / 1e9);
    return ST_OK;
}
