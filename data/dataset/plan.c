/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows a step trains on, as a function of (seed, step): orders of epochs, batches, steps. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "data/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number of rows to examine before an upper bound on the largest batch is good enough. */
#define LOOK_AT_MOST 4000000

/* Numbers of random streams besides those of the epochs. */
#define SOURCE_STREAM ((uint64_t)1 << 54)
#define WINDOW_STREAM ((uint64_t)1 << 53)

/* ---- the order of an epoch ---- */

static double weight_of(const DataSource *source) { return source->weight > 0 ? source->weight : 1; }

static bool all_whole(const Dataset *dataset) {
    for (size_t s = 0; s < dataset->n_sources; s++)
        if (weight_of(&dataset->sources[s]) != floor(weight_of(&dataset->sources[s]))) return false;
    return true;
}

static bool all_once(const Dataset *dataset) {
    for (size_t s = 0; s < dataset->n_sources; s++)
        if (weight_of(&dataset->sources[s]) != 1) return false;
    return true;
}

static int64_t source_rows(const Dataset *dataset, size_t s) { return (int64_t)(dataset->source_begins[s + 1] - dataset->source_begins[s]); }

/* The position in the source's stream of rows at the start of the epoch. Rounded, so that 0.29 of 100 rows are 29. */
static int64_t stream_start(const Dataset *dataset, size_t s, int64_t epoch) {
    double rows = weight_of(&dataset->sources[s]) * (double)source_rows(dataset, s);
    return (int64_t)floor(rows * (double)epoch + 0.5);
}

int64_t data_order_count(const DataOrder *order, int64_t epoch) {
    const Dataset *dataset = order->dataset;
    if (all_once(dataset)) return (int64_t)dataset->n;
    int64_t count = 0;
    for (size_t s = 0; s < dataset->n_sources; s++) count += stream_start(dataset, s, epoch + 1) - stream_start(dataset, s, epoch);
    return count;
}

/* Row `at` of a source's endless stream. If the weight is an integer, an epoch takes complete passes over the source, so no order within a pass is
 * needed. */
static size_t stream_row(const DataOrder *order, size_t s, int64_t at) {
    const Dataset *dataset = order->dataset;
    int64_t n = source_rows(dataset, s), pass = at / n, row = at % n;
    double weight = weight_of(&dataset->sources[s]);
    if (order->shuffle && weight != floor(weight)) {
        RngKey of_source = rng_key(order->seed, RNG_SHUFFLE, SOURCE_STREAM | s);
        row = (int64_t)rng_permute(rng_key(rng_u64(of_source, (uint64_t)pass), RNG_SHUFFLE, 0), (uint64_t)n, (uint64_t)row);
    }
    return dataset->source_begins[s] + (size_t)row;
}

size_t data_order_at(const DataOrder *order, int64_t epoch, int64_t index) {
    const Dataset *dataset = order->dataset;
    if (order->shuffle)
        index = (int64_t)rng_permute(rng_key(order->seed, RNG_SHUFFLE, (uint64_t)epoch), (uint64_t)data_order_count(order, epoch), (uint64_t)index);
    if (all_once(dataset)) return (size_t)index;
    for (size_t s = 0; s < dataset->n_sources; s++) {
        int64_t start = stream_start(dataset, s, epoch), count = stream_start(dataset, s, epoch + 1) - start;
        if (index < count) return stream_row(order, s, start + index);
        index -= count;
    }
    ASSERT(false, "index is %lld past the end of the epoch", (long long)index);
}

/* The number of examples in all earlier epochs. */
static int64_t count_before(const Dataset *dataset, int64_t epoch) {
    int64_t count = 0;
    for (size_t s = 0; s < dataset->n_sources; s++) count += stream_start(dataset, s, epoch);
    return count;
}

size_t data_order_place(const DataOrder *order, int64_t place) {
    const Dataset *dataset = order->dataset;
    double rows = 0; /* the average over epochs, so that the first guess is off by one step at most */
    for (size_t s = 0; s < dataset->n_sources; s++) rows += weight_of(&dataset->sources[s]) * (double)source_rows(dataset, s);
    int64_t epoch = (int64_t)((double)place / rows);
    while (count_before(dataset, epoch) > place) epoch--;
    while (count_before(dataset, epoch + 1) <= place) epoch++;
    return data_order_at(order, epoch, place - count_before(dataset, epoch));
}

/* ---- packing: the rows of a window into batches of at most batch_tokens ---- */

/* Enough rows for about 256 batches: then the last, half-filled batch of a window wastes a fifth of a percent. */
enum { WINDOW_BATCHES = 256, WINDOW_LEAST = 1024, WINDOW_MOST = 65536 };

typedef struct Item {
    int32_t tokens;
    uint32_t place;
} Item; /* place: index in the window's part of the epoch's order */
typedef struct Bin {
    int64_t room;
    uint32_t number;
} Bin;
typedef struct PackedWindow {
    int64_t number, epoch, n_batches;
    size_t *rows;    /* examples, batch after batch */
    int64_t *starts; /* first row of each batch, and the end */
    Item *items;     /* the fields below are for packing */
    Bin *open;
    uint32_t *batch_of; /* per item */
} PackedWindow;

static void window_free(PackedWindow *window) {
    if (!window) return;
    free(window->rows);
    free(window->starts);
    free(window->items);
    free(window->open);
    free(window->batch_of);
    free(window);
}

static Status window_new(PackedWindow **result) {
    PackedWindow *window = calloc(1, sizeof *window);
    *result = NULL;
    if (window) {
        window->number = window->epoch = -1;
        window->rows = malloc(WINDOW_MOST * sizeof *window->rows);
        window->starts = malloc((WINDOW_MOST + 1) * sizeof *window->starts);
        window->items = malloc(WINDOW_MOST * sizeof *window->items);
        window->open = malloc(WINDOW_MOST * sizeof *window->open);
        window->batch_of = malloc(WINDOW_MOST * sizeof *window->batch_of);
    }
    if (!window || !window->rows || !window->starts || !window->items || !window->open || !window->batch_of) {
        window_free(window);
        return status_fail(ST_RESOURCE, "out of memory for packing rows");
    }
    *result = window;
    return ST_OK;
}

static int64_t window_rows(const DataPlan *plan) {
    const Dataset *dataset = plan->order.dataset;
    double mean = (double)dataset->counts.tokens / (double)dataset->n, rows = WINDOW_BATCHES * (double)plan->batch_tokens / mean;
    return (int64_t)MIN(MAX(rows, (double)WINDOW_LEAST), (double)WINDOW_MOST);
}

/* Windows of an epoch have the same size, so that no window has only a few rows that fill no batch. */
static int64_t window_begin(const DataPlan *plan, int64_t number) { return plan->n_rows * number / plan->n_windows; }

static int longer_item(const void *a, const void *b) {
    const Item *x = a, *y = b;
    if (x->tokens != y->tokens) return x->tokens < y->tokens ? 1 : -1;
    return (x->place > y->place) - (x->place < y->place);
}

/* From the longest row to the shortest, each goes into the batch that it leaves the least space in; of two, into the earlier one. Batches without
 * space for the shortest row are closed. */
static void pack_best(PackedWindow *window, int64_t n, int64_t capacity) {
    int64_t n_open = 0;
    qsort(window->items, (size_t)n, sizeof *window->items, longer_item);
    int32_t shortest = window->items[n - 1].tokens;
    window->n_batches = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t tokens = window->items[i].tokens;
        int64_t best = -1, best_room = INT64_MAX;
        for (int64_t b = 0; b < n_open; b++)
            if (window->open[b].room >= tokens && window->open[b].room < best_room) best_room = window->open[best = b].room;
        if (best < 0) window->open[best = n_open++] = (Bin){capacity, (uint32_t)window->n_batches++};
        Bin *bin = &window->open[best];
        bin->room -= tokens;
        window->batch_of[window->items[i].place] = bin->number;
        if (bin->room >= shortest) continue;
        memmove(bin, bin + 1, (size_t)(n_open - best - 1) * sizeof *bin);
        n_open--;
    }
}

/* Fills batches in the given order. */
static void pack_next(PackedWindow *window, int64_t n, int64_t capacity) {
    int64_t room = 0;
    window->n_batches = 0;
    for (int64_t i = 0; i < n; i++) {
        if (window->items[i].tokens > room) {
            room = capacity;
            window->n_batches++;
        }
        room -= window->items[i].tokens;
        window->batch_of[i] = (uint32_t)(window->n_batches - 1);
    }
}

/* Best-fit creates batches of long rows before those of short ones, so their order is shuffled. */
static uint32_t batch_place(const PackedWindow *window, bool shuffle, RngKey key, uint32_t batch) {
    return shuffle ? (uint32_t)rng_permute(key, (uint64_t)window->n_batches, batch) : batch;
}

/* Lists the rows batch after batch; in a batch they keep the epoch's order. */
static void sort_rows(const DataPlan *plan, PackedWindow *window, int64_t n, size_t *in_order) {
    RngKey of_epoch = rng_key(plan->order.seed, RNG_SHUFFLE, WINDOW_STREAM | (uint64_t)window->epoch);
    RngKey key = rng_key(rng_u64(of_epoch, (uint64_t)window->number), RNG_SHUFFLE, 0);
    memset(window->starts, 0, (size_t)(window->n_batches + 1) * sizeof *window->starts);
    for (int64_t i = 0; i < n; i++) {
        window->batch_of[i] = batch_place(window, plan->order.shuffle, key, window->batch_of[i]);
        window->starts[window->batch_of[i] + 1]++;
    }
    for (int64_t b = 0; b < window->n_batches; b++) window->starts[b + 1] += window->starts[b];
    for (int64_t i = 0; i < n; i++) window->rows[window->starts[window->batch_of[i]]++] = in_order[i];
    memmove(window->starts + 1, window->starts, (size_t)window->n_batches * sizeof *window->starts); /* each start has become its end */
    window->starts[0] = 0;
}

static Status pack_window(DataPlan *plan, int64_t number) {
    if (!plan->window) TRY(window_new(&plan->window));
    PackedWindow *window = plan->window;
    if (window->number == number && window->epoch == plan->epoch) return ST_OK;
    int64_t begin = window_begin(plan, number), n = window_begin(plan, number + 1) - begin;
    size_t *in_order = malloc((size_t)n * sizeof *in_order);
    if (!in_order) return status_fail(ST_RESOURCE, "out of memory for packing %lld rows", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        in_order[i] = data_order_at(&plan->order, plan->epoch, begin + i);
        window->items[i] = (Item){dataset_length(plan->order.dataset, in_order[i]), (uint32_t)i};
    }
    if (plan->order.shuffle) {
        pack_best(window, n, plan->batch_tokens);
    } else {
        pack_next(window, n, plan->batch_tokens);
    }
    window->number = number;
    window->epoch = plan->epoch;
    sort_rows(plan, window, n, in_order);
    free(in_order);
    return ST_OK;
}

/* ---- the batches of an epoch ---- */

void data_plan_init(DataPlan *plan, const DataOrder *order, int64_t batch_size, int64_t batch_tokens, int64_t accumulation) {
    *plan = (DataPlan){.order = *order, .batch_size = batch_size, .batch_tokens = MAX(batch_tokens, 0), .accumulation = accumulation, .epoch = -1};
}

void data_plan_release(DataPlan *plan) {
    window_free(plan->window);
    free(plan->window_batches);
    free(plan->first_steps);
    *plan = (DataPlan){.epoch = -1};
}

/* A batch has at least one row. */
static Status check_lengths(const DataPlan *plan) {
    const Dataset *dataset = plan->order.dataset;
    if (dataset->longest <= plan->batch_tokens) return ST_OK;
    size_t i = 0;
    while (dataset_length(dataset, i) <= plan->batch_tokens) i++;
    Str where = {0};
    dataset_where(dataset, i, &where);
    status_fail(ST_INPUT, "%s: the row has %d tokens, more than the %lld of 'train.batch_tokens'", str_text(&where), (int)dataset_length(dataset, i),
                (long long)plan->batch_tokens);
    str_release(&where);
    return status_hint(ST_INPUT,
                       "raise train.batch_tokens to at least %lld, or lower data.max_length with data.truncation: drop, keep_start or keep_end%s",
                       (long long)dataset->longest,
                       dataset->counts.turned ? "; a conversation that is trained turn by turn (data.turns) is one row, and data.max_length limits "
                                                "each of its answers with its prompt"
                                              : "");
}

static Status pack_epoch(DataPlan *plan) {
    int64_t most = window_rows(plan);
    TRY(check_lengths(plan));
    plan->n_windows = (plan->n_rows + most - 1) / most;
    TRY(array_resize(&plan->window_batches, (size_t)(plan->n_windows + 1), sizeof *plan->window_batches, "windows of packed rows"));
    int64_t *batches = plan->window_batches;
    batches[0] = 0;
    for (int64_t w = 0; w < plan->n_windows; w++) {
        work_at("packing rows, parts", (uint64_t)w, (uint64_t)plan->n_windows);
        TRY(pack_window(plan, w));
        batches[w + 1] = batches[w] + plan->window->n_batches;
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted while packing rows");
    }
    work_end("packing rows, parts");
    plan->n_batches = batches[plan->n_windows];
    return ST_OK;
}

static Status load_epoch(DataPlan *plan, int64_t epoch) {
    if (plan->epoch == epoch) return ST_OK;
    plan->epoch = epoch;
    plan->n_rows = data_order_count(&plan->order, epoch);
    plan->n_batches = (plan->n_rows + plan->batch_size - 1) / MAX(plan->batch_size, 1);
    Status status = plan->batch_tokens > 0 ? pack_epoch(plan) : ST_OK;
    if (status != ST_OK) plan->epoch = -1;
    return status;
}

Status data_plan_epoch(DataPlan *plan, int64_t epoch, int64_t *n_batches) {
    TRY(load_epoch(plan, epoch));
    *n_batches = plan->n_batches;
    return ST_OK;
}

static int64_t window_of(const DataPlan *plan, int64_t batch) {
    int64_t low = 0, high = plan->n_windows - 1; /* the last window that begins at or before the batch */
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (plan->window_batches[middle] <= batch) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

static Status plan_reserve(size_t **examples, size_t n) { return array_resize(examples, n, sizeof **examples, "rows of a batch"); }

static Status packed_batch(DataPlan *plan, int64_t batch, size_t **examples, size_t *n) {
    int64_t number = window_of(plan, batch);
    TRY(pack_window(plan, number));
    const int64_t *starts = plan->window->starts + (batch - plan->window_batches[number]);
    *n = (size_t)(starts[1] - starts[0]);
    TRY(plan_reserve(examples, *n));
    memcpy(*examples, plan->window->rows + starts[0], *n * sizeof **examples);
    return ST_OK;
}

Status data_plan_batch(DataPlan *plan, int64_t epoch, int64_t batch, size_t **examples, size_t *n) {
    TRY(load_epoch(plan, epoch));
    ASSERT(batch >= 0 && batch < plan->n_batches, "batch %lld of %lld", (long long)batch, (long long)plan->n_batches);
    if (plan->batch_tokens > 0) return packed_batch(plan, batch, examples, n);
    int64_t begin = batch * plan->batch_size, end = MIN(begin + plan->batch_size, plan->n_rows);
    *n = (size_t)(end - begin);
    TRY(plan_reserve(examples, *n));
    for (int64_t i = begin; i < end; i++) (*examples)[i - begin] = data_order_at(&plan->order, epoch, i);
    return ST_OK;
}

/* ---- steps ---- */

static int64_t steps_of(const DataPlan *plan) { return (plan->n_batches + plan->accumulation - 1) / plan->accumulation; }

/* Whether every epoch has the same number of batches. */
static bool epochs_alike(const DataPlan *plan) { return plan->batch_tokens == 0 && all_whole(plan->order.dataset); }

/* If epochs differ in length, the first step of each epoch is stored in order. */
static Status epoch_start(DataPlan *plan, int64_t epoch, int64_t *first_step) {
    if (epochs_alike(plan)) {
        TRY(load_epoch(plan, epoch));
        *first_step = epoch * steps_of(plan);
        return ST_OK;
    }
    while (plan->n_epochs <= epoch) {
        if (plan->n_epochs == plan->cap_epochs) {
            int64_t cap = plan->cap_epochs ? plan->cap_epochs * 2 : 16;
            TRY(array_resize(&plan->first_steps, (size_t)cap, sizeof *plan->first_steps, "epochs"));
            plan->cap_epochs = cap;
        }
        int64_t first = 0;
        if (plan->n_epochs > 0) {
            TRY(load_epoch(plan, plan->n_epochs - 1));
            first = plan->first_steps[plan->n_epochs - 1] + steps_of(plan);
        }
        plan->first_steps[plan->n_epochs++] = first;
    }
    *first_step = plan->first_steps[epoch];
    return ST_OK;
}

Status data_plan_total(DataPlan *plan, double epochs, int64_t *steps) {
    int64_t whole = (int64_t)floor(epochs);
    TRY(epoch_start(plan, whole, steps));
    double part = epochs - (double)whole;
    if (part <= 0) return ST_OK;
    TRY(load_epoch(plan, whole));
    *steps += (int64_t)ceil(part * (double)steps_of(plan));
    return ST_OK;
}

/* The epoch of a step, and that epoch's first step. */
static Status epoch_of_step(DataPlan *plan, int64_t step, int64_t *epoch, int64_t *first) {
    if (epochs_alike(plan)) {
        TRY(load_epoch(plan, 0));
        *epoch = step / steps_of(plan);
        return epoch_start(plan, *epoch, first);
    }
    int64_t next;
    *epoch = MAX(plan->n_epochs - 1, 0);
    TRY(epoch_start(plan, *epoch, first));
    while (*first > step) *first = plan->first_steps[--*epoch];
    for (;;) {
        TRY(epoch_start(plan, *epoch + 1, &next));
        if (next > step) return ST_OK;
        *first = next;
        ++*epoch;
    }
}

Status data_plan_step(DataPlan *plan, int64_t step, PlanStep *at) {
    int64_t epoch, first;
    TRY(epoch_of_step(plan, step, &epoch, &first));
    TRY(load_epoch(plan, epoch));
    at->epoch = epoch;
    at->steps_before = first;
    at->epoch_steps = steps_of(plan);
    at->first_batch = (step - first) * plan->accumulation;
    at->n_batches = MIN(plan->accumulation, plan->n_batches - at->first_batch);
    return ST_OK;
}

double data_plan_epochs(DataPlan *plan, int64_t steps) {
    PlanStep at;
    if (data_plan_step(plan, MAX(steps - 1, 0), &at) != ST_OK) return 0;
    return (double)at.epoch + (double)(steps - at.steps_before) / (double)at.epoch_steps;
}

/* ---- the largest batch ---- */

static Status search_largest(DataPlan *plan, int64_t steps, size_t **examples, size_t *n) {
    int64_t best = -1, best_epoch = 0, best_batch = 0;
    for (int64_t step = 0; step < steps; step++) {
        PlanStep at;
        TRY(data_plan_step(plan, step, &at));
        if (!plan->order.shuffle && all_whole(plan->order.dataset) && at.epoch > 0) break; /* every epoch is the same */
        for (int64_t batch = at.first_batch; batch < at.first_batch + at.n_batches; batch++) {
            TRY(data_plan_batch(plan, at.epoch, batch, examples, n));
            int64_t tokens = dataset_tokens(plan->order.dataset, *examples, *n);
            if (tokens <= best) continue;
            best = tokens;
            best_epoch = at.epoch;
            best_batch = batch;
        }
    }
    return data_plan_batch(plan, best_epoch, best_batch, examples, n);
}

/* The largest number of times that an epoch takes a row. */
static int64_t most_often(const Dataset *dataset) {
    double most = 1;
    for (size_t s = 0; s < dataset->n_sources; s++) most = fmax(most, ceil(weight_of(&dataset->sources[s])));
    return (int64_t)most;
}

/* Counts the rows of each length, then goes through the lengths from the longest until the batch is full: the rows counted have `least` tokens or
 * more. */
static size_t longest_rows(const DataPlan *plan, const int64_t *of_length, int32_t *least) {
    int64_t rows = 0, tokens = 0;
    for (*least = (int32_t)plan->order.dataset->longest; *least > 0; --*least)
        for (int64_t i = 0; i < of_length[*least]; i++) {
            rows++;
            tokens += *least;
            if (plan->batch_tokens > 0 ? tokens >= plan->batch_tokens : rows >= plan->batch_size) return (size_t)rows;
        }
    *least = 1;
    return (size_t)rows;
}

/* Upper bound: a batch of rows has at most the tokens of the longest rows together, each as often as an epoch takes it; a batch filled by tokens has
 * at most its limit. */
static Status bound_largest(const DataPlan *plan, size_t **examples, size_t *n) {
    const Dataset *dataset = plan->order.dataset;
    int64_t *of_length = calloc((size_t)dataset->longest + 1, sizeof *of_length), often = most_often(dataset);
    int32_t least;
    if (!of_length) return status_fail(ST_RESOURCE, "out of memory for rows of %lld tokens", (long long)dataset->longest);
    for (size_t i = 0; i < dataset->n; i++) of_length[dataset_length(dataset, i)] += often;
    size_t wanted = longest_rows(plan, of_length, &least);
    free(of_length);
    TRY(plan_reserve(examples, wanted));
    *n = 0;
    for (int longer = 1; longer >= 0; longer--) /* rows of `least` tokens fill the space that longer rows leave */
        for (size_t i = 0; i < dataset->n && *n < wanted; i++) {
            int32_t length = dataset_length(dataset, i);
            bool wants = longer ? length > least : length == least;
            for (int64_t time = 0; wants && time < often && *n < wanted; time++) (*examples)[(*n)++] = i;
        }
    return ST_OK;
}

Status data_plan_largest(DataPlan *plan, int64_t steps, size_t **examples, size_t *n) {
    TRY(load_epoch(plan, 0));
    double epochs = steps_of(plan) > 0 ? (double)steps / (double)steps_of(plan) : 1;
    bool few = (plan->order.shuffle ? fmax(epochs, 1) : 1) * (double)plan->n_rows <= LOOK_AT_MOST;
    return few ? search_largest(plan, steps, examples, n) : bound_largest(plan, examples, n);
}

/* Takes rows from the longest on, as long as they fit. */
static Status fill_part(const DataPlan *plan, int64_t most_tokens, size_t **examples, size_t *n) {
    const Dataset *dataset = plan->order.dataset;
    int64_t *of_length = calloc((size_t)dataset->longest + 1, sizeof *of_length), left = MAX(most_tokens, dataset->longest),
            often = most_often(dataset);
    if (!of_length) return status_fail(ST_RESOURCE, "out of memory for rows of %lld tokens", (long long)dataset->longest);
    for (size_t i = 0; i < dataset->n; i++) of_length[dataset_length(dataset, i)] += often;
    int64_t wanted = 0;
    for (int64_t length = dataset->longest; length > 0; length--) { /* turns the counts into the number of rows taken */
        of_length[length] = MIN(of_length[length], left / length);
        left -= of_length[length] * length;
        wanted += of_length[length];
    }
    Status status = plan_reserve(examples, (size_t)wanted);
    *n = 0;
    for (size_t i = 0; i < dataset->n && status == ST_OK; i++)
        for (int64_t *taken = &of_length[dataset_length(dataset, i)], time = 0; *taken > 0 && time < often; --*taken, time++) (*examples)[(*n)++] = i;
    free(of_length);
    return status;
}

Status data_plan_largest_part(DataPlan *plan, int64_t steps, int64_t most_tokens, size_t **examples, size_t *n) {
    TRY(data_plan_largest(plan, steps, examples, n));
    return most_tokens > 0 && dataset_tokens(plan->order.dataset, *examples, *n) > most_tokens ? fill_part(plan, most_tokens, examples, n) : ST_OK;
}
