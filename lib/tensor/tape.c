/* SPDX-License-Identifier: Apache-2.0 */
/* The tape: runs ops, records them for the backward pass, and manages the step's memory.
 *
 * There are four arenas. `meta` has the small data (tensor headers, nodes, attributes). `data` has elements, so a run on the meta device never
 * touches it and costs no memory. `kept` has results that outlive a checkpointed layer's forward pass. In the backward pass a node's results are dead
 * once the node is done: `data` is rewound to the beginning of the node, and serves recomputation and scratch. `grads` has buffers for gradients of
 * activations, which ops pass on to each other, and for other short-lived values (tape_temp). */
#include "lib/base/system.h"
#include "lib/tensor/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Entry {
    Node node;
    ArenaMark data_mark;
} Entry;
typedef struct FreeBuffer {
    void *data;
    size_t bytes;
} FreeBuffer;

/* What tape_result does while a checkpointed layer runs: count results, keep them, or return the kept ones. */
typedef enum Keeping { KEEP_NOTHING, KEEP_COUNT, KEEP_ALL, KEEP_RESTORE } Keeping;
enum { LAYER_MAX_RESULTS = 64 };

struct Tape {
    const Device *device;
    Storage storage; /* of all tensors of the step */
    DType compute;
    size_t limit;
    Arena *meta, *data, *kept, *grads;
    Entry **entries;
    size_t n_entries, cap_entries;
    FreeBuffer *free_buffers;
    size_t n_free, cap_free;
    bool record;
    Checkpointing checkpointing;
    Keeping keeping;
    Tensor *results[LAYER_MAX_RESULTS]; /* of the running layer; NULL where the values were not kept */
    int n_results, next_result;
    Tensor *passing;        /* result of the last layer that was not recorded: the next layer's result takes its place */
    const TapeWatch *watch; /* NULL: nobody watches */
    double backward_seconds;
    ArenaMark op_mark; /* where the running op began: its results come after this mark */
    Status status;
};

Tape *tape_new(const Device *device, DType compute, size_t limit) {
    Tape *tape = calloc(1, sizeof *tape);
    if (!tape) return NULL;
    *tape = (Tape){.device = device,
                   .storage = {.device = device, .kind = STORAGE_OWNED},
                   .compute = compute,
                   .limit = limit,
                   .record = true,
                   .meta = arena_new(0),
                   .data = arena_new(limit),
                   .kept = arena_new(limit),
                   .grads = arena_new(limit)};
    if (!tape->meta || !tape->data || !tape->kept || !tape->grads) {
        tape_free(tape);
        return NULL;
    }
    tape->op_mark = arena_mark(tape->data);
    return tape;
}

void tape_free(Tape *tape) {
    if (!tape) return;
    arena_free(tape->meta);
    arena_free(tape->data);
    arena_free(tape->kept);
    arena_free(tape->grads);
    free(tape->entries);
    free(tape->free_buffers);
    free(tape);
}

void tape_reset(Tape *tape) {
    arena_reset(tape->meta);
    arena_reset(tape->data);
    arena_reset(tape->kept);
    arena_reset(tape->grads);
    tape->n_entries = tape->n_free = 0;
    tape->status = ST_OK;
    tape->keeping = KEEP_NOTHING;
    tape->passing = NULL;
    profile_lap(NULL);
    tape->op_mark = arena_mark(tape->data);
}

void tape_record(Tape *tape, bool record) {
    tape->record = record;
    tape->passing = NULL;
}

void tape_checkpoint(Tape *tape, Checkpointing kind) { tape->checkpointing = kind; }

void tape_watch(Tape *tape, const TapeWatch *watch) { tape->watch = watch; }

Checkpointing tape_checkpointing(const Tape *tape) { return tape->checkpointing; }
Arena *tape_arena(Tape *tape) { return tape->meta; }
const Device *tape_device(const Tape *tape) { return tape->device; }
DType tape_compute(const Tape *tape) { return tape->compute; }
DType tape_residual(const Tape *tape) { return tape->compute == DT_F64 ? DT_F64 : DT_F32; }
Status tape_status(const Tape *tape) { return tape->status; }
bool tape_recording(const Tape *tape) { return tape->record; }
bool tape_repeats(const Tape *tape) { return tape->keeping == KEEP_RESTORE; }
bool tape_needs_backward(const Tape *tape) { return tape->record || tape->keeping == KEEP_COUNT || tape->keeping == KEEP_ALL; }

TapeBytes tape_bytes(const Tape *tape) {
    return (TapeBytes){arena_peak(tape->meta), arena_peak(tape->data), arena_peak(tape->kept), arena_peak(tape->grads)};
}

size_t tape_bytes_total(const TapeBytes *bytes) {
    return arena_pages(bytes->meta) + arena_pages(bytes->activations) + arena_pages(bytes->kept) + arena_pages(bytes->gradients);
}

void tape_reserve(Tape *tape, const TapeBytes *bytes) {
    tape_reset(tape);
    arena_reserve(tape->meta, bytes->meta);
    arena_reserve_from(tape->data, tape->device->source, bytes->activations);
    arena_reserve_from(tape->kept, tape->device->source, bytes->kept);
    arena_reserve_from(tape->grads, tape->device->source, bytes->gradients);
    tape_reset(tape); /* marks refer to blocks */
}

size_t tape_peak_bytes(const Tape *tape) {
    return arena_resident(tape->meta) + arena_resident(tape->data) + arena_resident(tape->kept) + arena_resident(tape->grads);
}

Tensor *tape_fail(Tape *tape, Status code, const char *format, ...) {
    if (tape->status != ST_OK) return NULL;
    va_list arguments;
    va_start(arguments, format);
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tape->status = status_fail(code, "%s", text);
    return NULL;
}

/* Reports that the arena, which recorded the failure, is out of memory. */
static Tensor *out_of_memory(Tape *tape) {
    if (tape->status == ST_OK) tape->status = ST_RESOURCE;
    return NULL;
}

static bool within_limit(Tape *tape, const int64_t *shape, int n_dims, DType dtype) {
    if (!tape->limit) return true;
    size_t bytes, total = arena_used(tape->data) + arena_used(tape->kept) + arena_used(tape->grads);
    if (!dtype_bytes_fit(dtype, n_dims, shape, &bytes)) return false;
    if (size_add(total, bytes, &total) && total <= tape->limit) return true;
    char limit[32];
    tape_fail(tape, ST_RESOURCE, "the step needs more than the %s that it may take", format_bytes((double)tape->limit, limit));
    return false;
}

static Tensor *header_over(Tape *tape, Storage *storage, void *elements, DType dtype, int n_dims, const int64_t *shape) {
    struct {
        Tensor tensor;
        StepState state;
    } *both = tape->status == ST_OK ? arena_zero(tape->meta, sizeof *both) : NULL;
    if (!both) return out_of_memory(tape);
    both->tensor = (Tensor){.dtype = dtype, .elements = elements, .storage = storage, .state = &both->state};
    tensor_set_shape(&both->tensor, n_dims, shape);
    return &both->tensor;
}

Tensor *tape_header(Tape *tape, DType dtype, int n_dims, const int64_t *shape) {
    return header_over(tape, &tape->storage, NULL, dtype, n_dims, shape);
}

Tensor *tape_reshape(Tape *tape, const Tensor *tensor, int n_dims, const int64_t *shape) {
    Tensor *other = header_over(tape, tensor->storage, tensor->elements, tensor->dtype, n_dims, shape);
    ASSERT(!other || tensor_count(other) == tensor_count(tensor), "%lld elements as %lld", (long long)tensor_count(tensor),
           (long long)tensor_count(other));
    return other;
}

/* Makes a tensor whose header is in `meta` and whose elements are in `arena`. */
static Tensor *tensor_in(Tape *tape, Arena *arena, DType dtype, int n_dims, const int64_t *shape) {
    if (tape->status != ST_OK || !within_limit(tape, shape, n_dims, dtype)) return NULL;
    Tensor *tensor = tape_header(tape, dtype, n_dims, shape);
    if (tensor && tensor_allocate(tensor, arena) != ST_OK) return out_of_memory(tape);
    return tensor;
}

Tensor *tape_tensor(Tape *tape, DType dtype, int n_dims, const int64_t *shape) { return tensor_in(tape, tape->data, dtype, n_dims, shape); }

Tensor *tape_tensor_like(Tape *tape, DType dtype, const Tensor *like) { return like ? tape_tensor(tape, dtype, like->n_dims, like->shape) : NULL; }

Tensor *tape_scratch(Tape *tape, DType dtype, int n_dims, const int64_t *shape) { return tape_tensor(tape, dtype, n_dims, shape); }

Tensor *tape_reuse(Tape *tape, const Tensor *dead) {
    const StepState *state = dead->state;
    if (!state || !state->dead_after_use || state->saved_by_output || state->readers != 1 || dead->dtype != tape_residual(tape) || !tape->record ||
        tape->keeping != KEEP_NOTHING || tape->status != ST_OK)
        return NULL;
    return tape_reshape(tape, dead, dead->n_dims, dead->shape);
}

void *tape_copy(Tape *tape, const void *bytes, size_t size) {
    if (tape->status != ST_OK) return NULL;
    void *copy = arena_alloc(tape->meta, size);
    if (!copy) return out_of_memory(tape);
    memcpy(copy, bytes, size);
    return copy;
}

static void profile_node(const Tape *tape, const Node *node, bool backward) {
    if (!profile_running()) return;
    OpCost cost = {0};
    bool computed = backward || !node->outputs[0] || !node->outputs[0]->state->restored;
    for (int i = 0; computed && i < n_op_infos; i++)
        if (strcmp(op_infos[i].name, node->op) == 0) cost = op_infos[i].cost(node, backward);
    profile_call(tape->device, node->op, backward, cost);
}

/* ---- the watch ---- */

/* Tensors of a model, whose gradients stay after the step. */
static bool is_watched(const Tensor *tensor) { return tensor && tensor->needs_grad && !tensor->state; }

/* Counts the ops that will add to gradients. A checkpointed layer that runs again was counted before. */
static void watch_forward(const Tape *tape, Tensor *const *inputs, int n_inputs) {
    const bool counts = tape->keeping != KEEP_RESTORE && tape_needs_backward(tape);
    for (int i = 0; i < n_inputs && counts; i++)
        if (is_watched(inputs[i])) inputs[i]->uses++;
    tape->watch->poll(tape->watch->context);
}

static void watch_backward(Tape *tape, const Node *node) {
    for (int i = 0; i < NODE_MAX_INPUTS; i++)
        if (is_watched(node->inputs[i]) && --node->inputs[i]->uses == 0) tape->watch->ready(tape->watch->context, tape, node->inputs[i]);
    tape->watch->poll(tape->watch->context);
}

Node *tape_push(Tape *tape, const char *op, void (*backward)(Tape *, Node *), Tensor *const *inputs, int n_inputs, Tensor *const *outputs,
                int n_outputs, const void *attributes, size_t size) {
    ASSERT(n_inputs <= NODE_MAX_INPUTS && n_outputs <= NODE_MAX_OUTPUTS, "op '%s' has %d inputs and %d outputs", op, n_inputs, n_outputs);
    ArenaMark began = tape->op_mark;
    tape->op_mark = arena_mark(tape->data);
    if (tape->status != ST_OK) return NULL;
    bool wanted = false;
    Node node = {.op = op, .backward = backward, .attributes = size ? (void *)(uintptr_t)attributes : NULL};
    for (int i = 0; i < n_inputs; i++) {
        node.inputs[i] = inputs[i];
        wanted |= inputs[i] && inputs[i]->needs_grad;
        if (inputs[i] && inputs[i]->state) inputs[i]->state->readers++;
    }
    for (int i = 0; i < n_outputs; i++) {
        node.outputs[i] = outputs[i];
        if (outputs[i]) outputs[i]->needs_grad = wanted;
    }
    profile_node(tape, &node, false);
    if (tape->watch) watch_forward(tape, inputs, n_inputs);
    if (!wanted || !tape->record) return NULL;
    if (size) node.attributes = tape_copy(tape, attributes, size);
    if (size && !node.attributes) return NULL;
    if (array_grow(&tape->entries, &tape->cap_entries, tape->n_entries + 1, sizeof *tape->entries, "ops of the tape") != ST_OK) {
        tape_fail(tape, ST_RESOURCE, "out of memory for the tape");
        return NULL;
    }
    Entry *entry = arena_zero(tape->meta, sizeof *entry);
    if (!entry) {
        out_of_memory(tape);
        return NULL;
    }
    *entry = (Entry){.node = node, .data_mark = began};
    tape->entries[tape->n_entries++] = entry;
    return &entry->node;
}

/* ---- gradients of activations ---- */

static void *grad_buffer(Tape *tape, size_t bytes) {
    size_t best = tape->n_free;
    for (size_t i = 0; i < tape->n_free; i++) {
        size_t have = tape->free_buffers[i].bytes;
        if (have >= bytes && have <= bytes + bytes / 2 && (best == tape->n_free || have < tape->free_buffers[best].bytes)) best = i;
    }
    if (best == tape->n_free) return arena_alloc_from(tape->grads, tape->device->source, bytes);
    void *data = tape->free_buffers[best].data;
    tape->free_buffers[best] = tape->free_buffers[--tape->n_free];
    return data;
}

static void buffer_release(Tape *tape, FreeBuffer buffer) {
    /* Without memory for the list entry, the buffer is just not reused. */
    if (array_grow(&tape->free_buffers, &tape->cap_free, tape->n_free + 1, sizeof *tape->free_buffers, "free buffers") != ST_OK) return;
    tape->free_buffers[tape->n_free++] = buffer;
}

static void grad_release(Tape *tape, Tensor *tensor) {
    if (!tensor || !tensor->grad) return;
    buffer_release(tape, (FreeBuffer){tensor->grad->elements, tensor_bytes(tensor->grad)});
    tensor->grad = NULL;
}

bool tape_temp(Tape *tape, Tensor *tensor) {
    if (tape->status != ST_OK || !within_limit(tape, tensor->shape, tensor->n_dims, tensor->dtype)) return false;
    tensor->elements = grad_buffer(tape, tensor_bytes(tensor));
    return tensor->elements || out_of_memory(tape);
}

void tape_temp_free(Tape *tape, Tensor *tensor) {
    if (tensor->grad)
        grad_release(tape, tensor);
    else if (tensor->elements)
        buffer_release(tape, (FreeBuffer){tensor->elements, tensor_bytes(tensor)});
    tensor->elements = NULL;
}

Tensor *tape_grad(Tape *tape, Tensor *tensor, double *beta) {
    *beta = 1;
    if (!tensor || !tensor->needs_grad || tape->status != ST_OK) return NULL;
    if (tensor->grad) {
        if (tensor->grad->lent && !tensor->grad->elements) {
            if (!within_limit(tape, tensor->shape, tensor->n_dims, tensor->dtype)) return NULL;
            tensor->grad->elements = grad_buffer(tape, tensor_bytes(tensor));
            if (!tensor->grad->elements) return out_of_memory(tape);
        }
        if (tensor->grad->blank) *beta = 0;
        if (tensor_device(tensor->grad) == tape->device) tensor->grad->blank = false; /* a plan writes no values */
        return tensor->grad;
    }
    if (!within_limit(tape, tensor->shape, tensor->n_dims, tensor->dtype)) return NULL;
    Tensor *grad = tape_header(tape, tensor->dtype, tensor->n_dims, tensor->shape);
    if (grad) grad->elements = grad_buffer(tape, tensor_bytes(tensor));
    if (!grad || !grad->elements) return out_of_memory(tape);
    *beta = 0;
    return tensor->grad = grad;
}

void tape_grad_free(Tape *tape, Tensor *grad) {
    ASSERT(grad->lent, "a gradient with memory of its own");
    if (tape && grad->elements) buffer_release(tape, (FreeBuffer){grad->elements, tensor_bytes(grad)});
    grad->elements = NULL;
    grad->blank = true;
}

bool tensor_grad_move(Tensor *from, Tensor *to) {
    if (!to->needs_grad || to->grad || !from->grad || to->dtype != from->dtype || tensor_count(to) != tensor_count(from)) return false;
    to->grad = from->grad;
    from->grad = NULL;
    return true;
}

void tensor_seed_grad(Tape *tape, Tensor *tensor, const double *values) {
    double beta;
    Tensor *grad = tensor ? tape_grad(tape, tensor, &beta) : NULL;
    if (!grad || tape->device->planned) return;
    if (beta == 0) {
        tensor_write(grad, values);
        return;
    }
    int64_t count = tensor_count(grad);
    for (int64_t i = 0; i < count; i++) tensor_set(grad, i, values[i] + tensor_get(grad, i));
}

/* Runs the nodes after `floor` backward and removes them. */
static void walk_back(Tape *tape, size_t floor) {
    bool record = tape->record;
    tape->record = false;
    while (tape->n_entries > floor && tape->status == ST_OK) {
        Entry *entry = tape->entries[--tape->n_entries];
        Node *node = &entry->node;
        bool reached = false;
        for (int i = 0; i < NODE_MAX_OUTPUTS; i++) reached |= node->outputs[i] && node->outputs[i]->grad;
        if (reached) {
            ArenaMark scratch = arena_mark(tape->data);
            node->backward(tape, node);
            profile_node(tape, node, true);
            arena_rewind(tape->data, scratch);
        }
        if (tape->watch) watch_backward(tape, node);
        for (int i = 0; i < NODE_MAX_OUTPUTS; i++) grad_release(tape, node->outputs[i]);
        arena_rewind(tape->data, entry->data_mark);
    }
    tape->op_mark = arena_mark(tape->data);
    tape->record = record;
}

double tape_backward_seconds(const Tape *tape) { return tape->backward_seconds; }

Status tape_backward(Tape *tape) {
    const double began = clock_seconds();
    profile_lap(NULL);
    walk_back(tape, 0);
    Status status = tape->device->synchronise(tape->device);
    tape->backward_seconds += clock_seconds() - began;
    if (tape->status == ST_OK) tape->status = status;
    return tape->status;
}

/* ---- a layer as a unit ---- */

/* A layer whose results were not all kept: how to run it again, its kept results, and the mark of `kept` before it. */
typedef struct LayerCall {
    LayerFn *layer;
    void *context;
    Tensor **results;
    int n_results;
    ArenaMark kept_mark;
    Tensor **shared;            /* as op_layer_shared; n_shared */
    Tensor *const *before;      /* their values before the layer */
    int set[LAYER_MOST_SHARED]; /* the places that the layer set; n_set */
    int n_shared, n_set;
} LayerCall;

/* Returns the kept values under a new header, so that gradients belong to the new tensor. */
static Tensor *tape_restore(Tape *tape, const Tensor *kept) {
    Tensor *tensor = tape_reshape(tape, kept, kept->n_dims, kept->shape);
    if (tensor) tensor->state->restored = true;
    return tensor;
}

Tensor *tape_result(Tape *tape, DType dtype, int n_dims, const int64_t *shape, bool *there) {
    *there = false;
    if (tape->status != ST_OK) return NULL;
    if (tape->keeping == KEEP_NOTHING) return tape_tensor(tape, dtype, n_dims, shape);
    int i = tape->next_result++;
    ASSERT(i < LAYER_MAX_RESULTS, "a layer of more than %d results", LAYER_MAX_RESULTS);
    if (tape->keeping == KEEP_RESTORE && i < tape->n_results && tape->results[i]) {
        *there = true;
        return tape_restore(tape, tape->results[i]);
    }
    Tensor *tensor = tensor_in(tape, tape->keeping == KEEP_ALL ? tape->kept : tape->data, dtype, n_dims, shape);
    if (tape->keeping != KEEP_RESTORE) tape->results[i] = tensor;
    return tensor;
}

static void layer_backward(Tape *tape, Node *node) {
    const LayerCall *call = node->attributes;
    size_t floor = tape->n_entries;
    tape->record = true;
    tape->op_mark = arena_mark(tape->data);
    tape->keeping = KEEP_RESTORE;
    tape->next_result = 0;
    tape->n_results = call->n_results;
    memcpy(tape->results, call->results, (size_t)call->n_results * sizeof *tape->results);
    for (int i = 0; i < call->n_set; i++) call->shared[call->set[i]] = NULL;
    Tensor *again[NODE_MAX_OUTPUTS] = {call->layer(tape, node->inputs[0], call->context)};
    tape->keeping = KEEP_NOTHING;
    for (int i = 0; i < call->n_set; i++) {
        again[1 + i] = call->shared[call->set[i]];
        call->shared[call->set[i]] = node->outputs[1 + i];
    }
    for (int i = 0; i <= call->n_set; i++)
        if (again[i] && node->outputs[i]->grad && !tensor_grad_move(node->outputs[i], again[i]))
            tape_fail(tape, ST_RESOURCE, "a layer computed again has another form than before");
    walk_back(tape, floor);
    tape->record = false;
    arena_rewind(tape->kept, call->kept_mark);
}

/* Keeps only the input of the layer that has run, and its result if the last expensive op made that. */
static void keep_last(Tape *tape, const Tensor *result, Tensor *y) {
    int last = tape->n_results - 1;
    for (int i = 0; i <= last; i++) tape->results[i] = i == last && tape->results[i] == result ? y : NULL;
}

/* Finds the places that the layer set. With `copy`, copies of the tensors replace them, which live until the step ends. */
static bool find_set(Tape *tape, LayerCall *call, bool copy) {
    for (int i = 0; i < call->n_shared; i++) {
        Tensor *own = call->shared[i], *kept = own;
        if (own == call->before[i]) continue;
        ASSERT(call->n_set < LAYER_MOST_SHARED && !call->before[i], "a layer that sets more than %d tensors, or one again", LAYER_MOST_SHARED);
        if (copy) {
            if (!(kept = tensor_in(tape, tape->kept, own->dtype, own->n_dims, own->shape))) return false;
            tape->device->copy(own, kept);
            kept->needs_grad = own->needs_grad;
        }
        kept->state->saved_by_output = true;
        call->set[call->n_set++] = i;
        call->shared[i] = kept;
    }
    return true;
}

/* Runs the layer without recording it. With `keeping` KEEP_ALL its result is in `kept`: as the last result kept there, or as a copy. Otherwise it
 * is a copy, in place of x if x is the last layer's result. */
static Tensor *run_unrecorded(Tape *tape, LayerCall *call, Tensor *x, Keeping keeping) {
    bool record = tape->record;
    Arena *arena = keeping == KEEP_NOTHING ? tape->data : tape->kept;
    Tensor *y = keeping == KEEP_NOTHING && x == tape->passing ? x : NULL;
    if (!y && keeping != KEEP_ALL) y = tensor_in(tape, arena, tape_residual(tape), x->n_dims, x->shape);
    if (keeping != KEEP_ALL && !y) return NULL;
    ArenaMark mark = arena_mark(tape->data), began = tape->op_mark;
    tape->record = false;
    tape->keeping = keeping;
    tape->n_results = tape->next_result = 0;
    Tensor *result = call->layer(tape, x, call->context);
    tape->keeping = KEEP_NOTHING;
    tape->record = record;
    tape->n_results = tape->next_result;
    if (!result) return NULL;
    ASSERT(tensor_count(result) == tensor_count(x), "layer of %lld elements returned %lld", (long long)tensor_count(x),
           (long long)tensor_count(result));
    if (keeping == KEEP_COUNT) keep_last(tape, result, y);
    bool is_kept = keeping == KEEP_ALL && tape->n_results > 0 && tape->results[tape->n_results - 1] == result;
    if (is_kept)
        y = result;
    else if (!y)
        y = tensor_in(tape, arena, tape_residual(tape), x->n_dims, x->shape);
    if (!y || !find_set(tape, call, true)) return NULL;
    if (!is_kept) tape->device->copy(result, y);
    y->needs_grad = result->needs_grad;
    if (keeping == KEEP_NOTHING) tape->passing = y;
    arena_rewind(tape->data, mark);
    tape->op_mark = began;
    return y;
}

Tensor *op_layer_shared(Tape *tape, LayerFn *layer, Tensor *x, void *context, Tensor **shared, int n_shared) {
    if (!x || tape->status != ST_OK) return NULL;
    LayerCall call = {.layer = layer, .context = context, .kept_mark = arena_mark(tape->kept), .shared = shared, .n_shared = n_shared};
    if (n_shared > 0 && !(call.before = tape_copy(tape, shared, (size_t)n_shared * sizeof(Tensor *)))) return NULL;
    if (tape->record && tape->checkpointing <= CHECKPOINT_HEAD) {
        Tensor *y = layer(tape, x, context);
        return y && find_set(tape, &call, false) ? y : NULL;
    }
    Keeping keeping = !tape->record ? KEEP_NOTHING : tape->checkpointing == CHECKPOINT_LAYER ? KEEP_COUNT : KEEP_ALL;
    Tensor *outputs[NODE_MAX_OUTPUTS] = {run_unrecorded(tape, &call, x, keeping)};
    if (!outputs[0]) return NULL;
    /* The layer's own parameters may need gradients although x does not: the flags, found by running the layer, decide. */
    bool needs[NODE_MAX_OUTPUTS] = {outputs[0]->needs_grad};
    Tensor wanted = {.needs_grad = needs[0]};
    for (int i = 0; i < call.n_set; i++) {
        outputs[1 + i] = shared[call.set[i]];
        wanted.needs_grad |= needs[1 + i] = outputs[1 + i]->needs_grad;
    }
    call.n_results = tape->n_results;
    call.results = tape_copy(tape, tape->results, (size_t)tape->n_results * sizeof *tape->results);
    Node *node = tape_push(tape, "layer", layer_backward, (Tensor *[]){&wanted}, 1, outputs, 1 + call.n_set, &call, sizeof call);
    for (int i = 0; i <= call.n_set; i++) outputs[i]->needs_grad = needs[i];
    if (node) node->inputs[0] = x;
    return outputs[0];
}

Tensor *op_layer(Tape *tape, LayerFn *layer, Tensor *x, void *context) { return op_layer_shared(tape, layer, x, context, NULL, 0); }
