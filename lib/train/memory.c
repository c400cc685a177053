/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that training will take, before its first step. */
#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/parallel/lanes.h"
#include "lib/train/memory.h"
#include "lib/train/train.h"

#include <errno.h>
#include <omp.h>
#include <string.h>

/* Hints what to change in a recipe that needs too much memory. */
static Status advise_less(const Recipe *recipe) {
    Str advice = {0};
    str_append(&advice, "make ");
    if (recipe->train_batch_tokens > 0) {
        str_append(&advice, "train.batch_tokens");
    } else if (recipe->train_batch_size > 1) {
        str_append(&advice, "train.batch_size");
    } else {
        str_append(&advice, "data.max_length");
    }
    str_append(&advice, " smaller");
    if (recipe->train_gradient_accumulation_steps >= 1 && recipe->train_batch_size > 1)
        str_append(&advice, " (train.gradient_accumulation_steps makes up for it)");
    if (recipe->train_checkpointing == TRAIN_CHECKPOINTING_NONE) str_append(&advice, ", or set train.checkpointing: layer");
    if (!recipe->has_lora) str_append(&advice, ", or train a LoRA adapter");
    status_hint(ST_RESOURCE, "%s", str_text(&advice));
    str_release(&advice);
    return ST_RESOURCE;
}

/* Plans one accumulation step on the meta device, which computes nothing but allocates what the real step will. If even the layout fails, the step
 * does not fit either. */
static Status plan_activations(const MemoryTask *task, TrainMemory *memory) {
    const Device *device = tape_device(task->tape);
    device->workspace_clear(device);
    Tape *meta = tape_new(device_plan(device), tape_compute(task->tape), 0);
    if (!meta) return status_fail(ST_RESOURCE, "out of memory for the plan of a step");
    tape_checkpoint(meta, task->model->checkpointing);
    Status status = task->largest(task->context, meta);
    memory->tape_bytes = tape_bytes(meta);
    memory->activations = tape_bytes_total(&memory->tape_bytes);
    tape_free(meta);
    if (status != ST_RESOURCE) return status;
    char need[32], have[32];
    status_fail(status, "training needs more than %s of memory for a step, the machine has %s left", format_bytes((double)memory->activations, need),
                format_bytes((double)memory_available(), have));
    return advise_less(task->recipe);
}

static size_t beside(const MemoryTask *task) { return task->beside ? *task->beside : 0; }

/* Pages of code that runs for the first time, stacks of threads, malloc's reserves: 1.5 to 1.9 MiB measured on tiny models, and none where the
 * kernels' plans are an upper bound. This value is within 5 % of both. */
enum { FIRST_TIME = 1 << 20 };

/* resident: the process's resident size before the first plan, which leaves something on the heap. */
static Status memory_measure(const MemoryTask *task, size_t resident, TrainMemory *memory) {
    OptimizerConfig optimizer;
    TRY(recipe_optimizer(task->recipe, &optimizer));
    ModelMemory model = model_memory(task->model, true);
    *memory = (TrainMemory){
        .mapped = model.mapped,
        .shared = model.shared,
        .weights = model.weights,
        .packed = model.packed,
        .gradients = model.gradients,
        .optimizer = optimizer_bytes(&optimizer, &task->model->params),
        .lanes = task->lanes,
        .messages = task->messages,
        .best = task->recipe->train_early_stopping > 0 ? params_copies_bytes(&task->model->params, 1) : 0,
        .checkpointing = task->model->checkpointing,
    };
    size_t loaded = memory->mapped + memory->shared + memory->weights + memory->gradients;
    memory->baseline = (resident > loaded ? resident - loaded : 0) + FIRST_TIME;
    TRY(plan_activations(task, memory));
    memory->scratch = tape_device(task->tape)->workspace_bytes(tape_device(task->tape));
    memory->total = loaded + memory->packed + memory->optimizer + memory->lanes + memory->messages + memory->best + memory->activations +
                    memory->scratch + memory->baseline + beside(task);
    return ST_OK;
}

/* ---- train.max_memory ---- */

static const char *const checkpointing_names[] = {
    [CHECKPOINT_NONE] = "none", [CHECKPOINT_HEAD] = "head", [CHECKPOINT_SELECTIVE] = "selective", [CHECKPOINT_LAYER] = "layer"};

static Checkpointing checkpointing_named(const char *text) {
    Checkpointing kind = CHECKPOINT_NONE;
    while (kind < CHECKPOINT_LAYER && strcmp(checkpointing_names[kind], text) != 0) kind++;
    return kind;
}

static Status try_choice(const MemoryTask *task, size_t resident, Checkpointing checkpointing, int64_t part_tokens, TrainMemory *memory) {
    task->model->checkpointing = checkpointing;
    if (task->split) task->split(task->context, part_tokens);
    TRY(memory_measure(task, resident, memory));
    memory->part_tokens = part_tokens;
    return ST_OK;
}

static Status read_limit(const Recipe *recipe, size_t *limit) {
    if (bytes_from_text(recipe->train_max_memory, limit)) return ST_OK;
    int line = recipe_line(recipe, "train.max_memory");
    if (line > 0)
        status_fail(ST_CONFIG, "'%s' line %d: 'train.max_memory: %s' is not a size", recipe->path, line, recipe->train_max_memory);
    else
        status_fail(ST_CONFIG, "'train.max_memory: %s' is not a size", recipe->train_max_memory);
    return status_hint(ST_CONFIG, "write a number with a unit, such as 4GiB or 1500MB");
}

static Status too_little(const MemoryTask *task, const TrainMemory *memory) {
    const Recipe *recipe = task->recipe;
    bool cut = task->split != NULL;
    char least[32];
    status_fail(ST_RESOURCE, "'train.max_memory: %s' is too small: even with recomputed layers%s training needs %s", recipe->train_max_memory,
                cut ? " and batches in the smallest parts" : "", format_bytes((double)memory->total, least));
    return status_hint(ST_RESOURCE, "raise it to that, or %s%s", cut ? "shorten the longest rows (data.max_length)" : "take smaller batches",
                       recipe->has_lora ? "" : ", or train a LoRA adapter");
}

/* The choice must not depend on what differs from run to run, since parts change the rounding of sums. So scratch memory is counted for a fixed
 * number of threads (unless there are more), and the process's own memory in large steps. Its file pages (the program's code) vary by about 0.6
 * MiB with their placement by the system; the rest varies by a few KiB, and by about 0.1 MiB per thread. */
enum { DECIDED_THREADS = 8, OWN_STEP = 2 << 20, FILE_STEP = 4 << 20, FILE_HEADROOM = 2 << 20, STEPS_IN_LIMIT = 256 };

static size_t in_steps(size_t bytes, size_t step, size_t limit) {
    step = MAX(step, limit / STEPS_IN_LIMIT);
    return (bytes + step - 1) / step * step;
}

static size_t decided_program(const TrainMemory *memory, size_t files, size_t limit) {
    files = MIN(files - MIN(files, memory->mapped), memory->baseline);
    return in_steps(memory->baseline - files, OWN_STEP, limit) + in_steps(files + FILE_HEADROOM, FILE_STEP, limit);
}

static Status decide(const MemoryTask *task, size_t resident, size_t files, size_t limit, Checkpointing checkpointing, int64_t part_tokens,
                     TrainMemory *memory) {
    int threads = omp_get_max_threads();
    omp_set_num_threads(MAX(threads, DECIDED_THREADS)); /* starts no thread: the meta device only asks for their number */
    Status status = try_choice(task, resident, checkpointing, part_tokens, memory);
    omp_set_num_threads(threads);
    memory->total += decided_program(memory, files, limit) - memory->baseline;
    return status;
}

/* Tries the choices from the cheapest on. Parts of a thousand tokens cost almost nothing; recomputed layers and small parts cost time. */
static Status memory_fit(const MemoryTask *task, size_t resident, TrainMemory *memory) {
    static const struct {
        Checkpointing checkpointing;
        int64_t part_tokens;
    } choices[] = {
        {CHECKPOINT_NONE, 0},         {CHECKPOINT_HEAD, 0},         {CHECKPOINT_SELECTIVE, 0},   {CHECKPOINT_SELECTIVE, 4096},
        {CHECKPOINT_SELECTIVE, 2048}, {CHECKPOINT_SELECTIVE, 1024}, {CHECKPOINT_SELECTIVE, 512}, {CHECKPOINT_LAYER, 0},
        {CHECKPOINT_LAYER, 4096},     {CHECKPOINT_LAYER, 2048},     {CHECKPOINT_LAYER, 1024},    {CHECKPOINT_LAYER, 512},
        {CHECKPOINT_LAYER, 1},
    };
    Checkpointing least = task->model->checkpointing;
    size_t files = (size_t)memory_of_files(), limit;
    TRY(read_limit(task->recipe, &limit));
    for (size_t i = 0; i < COUNT_OF(choices); i++) {
        if (choices[i].checkpointing < least || (choices[i].part_tokens > 0 && !task->split)) continue;
        TRY(decide(task, resident, files, limit, choices[i].checkpointing, choices[i].part_tokens, memory));
        if (memory->total <= limit) return try_choice(task, resident, choices[i].checkpointing, choices[i].part_tokens, memory);
    }
    size_t counted = memory->total;
    TRY(try_choice(task, resident, CHECKPOINT_LAYER, task->split ? 1 : 0, memory)); /* the last choice, so its plan is exact */
    if (memory->total <= limit) return ST_OK;
    memory->total = MIN(memory->total + FILE_HEADROOM, counted); /* with that much it fits, wherever the system puts file pages */
    return too_little(task, memory);
}

/* Reads the choice that the run began with; false when started.json has none. */
static bool read_choice(const char *run_dir, Checkpointing *checkpointing, int64_t *part_tokens) {
    Str path = {0};
    json_t *started = NULL;
    str_printf(&path, "%s/started.json", run_dir);
    Status status = file_exists(str_text(&path)) ? json_read_file(str_text(&path), &started) : ST_OK;
    if (status == ST_RESOURCE) memory_no_answer(EIO, str_text(&path)); /* other choices would give other bytes */
    if (status != ST_OK) started = NULL;
    const json_t *memory = json_object_get(started, "memory");
    const char *name = json_string_value(json_object_get(memory, "checkpointing"));
    if (name) {
        *checkpointing = checkpointing_named(name);
        *part_tokens = json_integer_value(json_object_get(memory, "part_tokens"));
    }
    json_decref(started);
    str_release(&path);
    return name != NULL;
}

/* What is still to be allocated: weights and gradients already are. */
static size_t still_needed(const TrainMemory *memory) {
    return memory->packed + memory->optimizer + memory->lanes + memory->messages + memory->best + memory->activations + memory->scratch +
           memory->rollout;
}

/* Plans by the recipe. Only the cached probabilities of a trained head, which save time, are dropped when the machine lacks the memory. */
static Status as_told(const MemoryTask *task, size_t resident, TrainMemory *memory) {
    Status status = memory_measure(task, resident, memory);
    bool fits = status == ST_OK && still_needed(memory) + beside(task) <= memory_available();
    if (fits || task->model->checkpointing != CHECKPOINT_NONE || (status != ST_OK && status != ST_RESOURCE)) return status;
    TrainMemory whole = *memory;
    TRY(try_choice(task, resident, CHECKPOINT_HEAD, 0, memory));
    if (status == ST_OK && memory->activations + memory->scratch >= whole.activations + whole.scratch) { /* the head is not trained */
        *memory = whole;
        task->model->checkpointing = CHECKPOINT_NONE;
    }
    return ST_OK;
}

static Status memory_choose(const MemoryTask *task, const char *run_dir, TrainMemory *memory) {
    Checkpointing checkpointing;
    int64_t part_tokens;
    memory_trim(); /* texts of the tokenizer and of rows that were tokenised: 25 MiB with the model S */
    size_t resident = (size_t)memory_resident();
    if (!task->recipe->train_max_memory) return as_told(task, resident, memory);
    if (run_dir && read_choice(run_dir, &checkpointing, &part_tokens)) return try_choice(task, resident, checkpointing, part_tokens, memory);
    return memory_fit(task, resident, memory);
}

/* Parts change the rounding of sums, so all ranks take the same ones. */
static Status follow_choice(const MemoryTask *task, TrainMemory *memory) {
    int64_t choice[] = {(int64_t)memory->checkpointing, memory->part_tokens};
    TRY(comm_broadcast(task->comm, COMM_CONTROL, "parts of a step", 0, choice, sizeof choice));
    return comm_rank(task->comm) == 0 ? ST_OK : try_choice(task, (size_t)memory_resident(), (Checkpointing)choice[0], choice[1], memory);
}

Status train_memory_plan(const MemoryTask *task, const char *run_dir, TrainMemory *memory) {
    if (comm_rank(task->comm) == 0) TRY(memory_choose(task, run_dir, memory));
    if (comm_size(task->comm) > 1) TRY(follow_choice(task, memory));
    tape_reserve(task->tape, &memory->tape_bytes);
    return ST_OK;
}

Status train_memory_check_weights(const Recipe *recipe, int ranks, int64_t n_weights) {
    OptimizerConfig optimizer;
    TRY(recipe_optimizer(recipe, &optimizer));
    const Lanes lanes = lanes_of(recipe->parallel_lanes, recipe->train_gradient_accumulation_steps, recipe->has_lora, ranks);
    const ShardKind shard = ranks > 1 ? recipe_shard(recipe) : SHARDS_NONE;
    const double gradients = shard >= SHARDS_GRADIENTS ? 1.0 / ranks : 1 + lane_buffers(0, (lanes.n + ranks - 1) / ranks);
    const double states = optimizer_find(optimizer.name)->states(&optimizer) / (shard >= SHARDS_OPTIMIZER ? (double)ranks : 1);
    double copies = 1 + gradients + states + (recipe->train_early_stopping > 0), need = copies * (double)n_weights * (double)sizeof(float);
    uint64_t left = memory_available();
    if (need <= (double)left) return ST_OK;
    char needed[32], have[32];
    status_fail(ST_RESOURCE, "training every weight of '%s' needs %s of memory before the first step, the machine has %s left", recipe->model_path,
                format_bytes(need, needed), format_bytes((double)left, have));
    return status_hint(ST_RESOURCE, "train a LoRA adapter: a lora section, such as lora.rank=16");
}

Status train_memory_check(const Recipe *recipe, const TrainMemory *memory) {
    size_t still = still_needed(memory);
    uint64_t left = memory_available();
    if (still <= left) return ST_OK;
    char need[32], have[32];
    status_fail(ST_RESOURCE, "training needs %s of memory more, the machine has %s left", format_bytes((double)still, need),
                format_bytes((double)left, have));
    return advise_less(recipe);
}

void train_memory_describe(const TrainMemory *memory, Str *text) {
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = {
        {"mapped weights", memory->mapped}, {"shared weights", memory->shared},   {"weights", memory->weights},   {"packed weights", memory->packed},
        {"gradients", memory->gradients},   {"partial sums", memory->lanes},      {"messages", memory->messages}, {"optimizer", memory->optimizer},
        {"best weights", memory->best},     {"activations", memory->activations}, {"scratch", memory->scratch},   {"sampling", memory->rollout},
        {"experience", memory->experience}, {"program", memory->baseline},
    };
    char bytes[32];
    str_printf(text, "%s", format_bytes((double)memory->total, bytes));
    const char *before = " (";
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (parts[i].bytes == 0) continue;
        str_printf(text, "%s%s %s", before, parts[i].name, format_bytes((double)parts[i].bytes, bytes));
        before = ", ";
    }
    if (before[0] == ',') str_append_char(text, ')');
    if (memory->before) str_printf(text, "; %s while the teacher answers, before training", format_bytes((double)memory->before, bytes));
    if (memory->checkpointing != CHECKPOINT_NONE) str_printf(text, "; checkpointing %s", checkpointing_names[memory->checkpointing]);
    if (memory->part_tokens > 1)
        str_printf(text, "; batches in parts of at most %lld token%s", (long long)memory->part_tokens, plural(memory->part_tokens));
    if (memory->part_tokens == 1) str_append(text, "; batches row by row");
}

void train_memory_write(JsonWriter *w, const TrainMemory *memory) {
    jw_object(w, "memory");
    jw_int(w, "total", (int64_t)memory->total);
    jw_int(w, "mapped", (int64_t)memory->mapped);
    if (memory->shared) jw_int(w, "shared", (int64_t)memory->shared);
    jw_int(w, "weights", (int64_t)memory->weights);
    jw_int(w, "packed", (int64_t)memory->packed);
    jw_int(w, "gradients", (int64_t)memory->gradients);
    if (memory->lanes) jw_int(w, "lanes", (int64_t)memory->lanes);
    if (memory->messages) jw_int(w, "messages", (int64_t)memory->messages);
    jw_int(w, "optimizer", (int64_t)memory->optimizer);
    jw_int(w, "best", (int64_t)memory->best);
    jw_int(w, "activations", (int64_t)memory->activations);
    jw_int(w, "scratch", (int64_t)memory->scratch);
    if (memory->rollout) jw_int(w, "sampling", (int64_t)memory->rollout);
    if (memory->experience) jw_int(w, "experience", (int64_t)memory->experience);
    jw_int(w, "program", (int64_t)memory->baseline);
    if (memory->before) jw_int(w, "before", (int64_t)memory->before);
    jw_string(w, "checkpointing", checkpointing_names[memory->checkpointing]);
    jw_int(w, "part_tokens", memory->part_tokens);
    jw_end_object(w);
}
