/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a generator takes, computed before it takes it: its largest step runs on the device that computes nothing. */
#include <omp.h>

#include "lib/infer/generator_parts.h"

/* Tokens of prompts, then one of each sequence. */
static Segment *step_segments(Arena *arena, const StepSize *size) {
    int64_t n = size->n_prompts + size->n_single, at = 0;
    Segment *segments = arena_zero(arena, (size_t)n * sizeof *segments);
    for (int64_t i = 0; segments && i < n; i++) {
        int64_t end = i < size->n_prompts ? size->prompt_tokens * (i + 1) / size->n_prompts : at + 1;
        segments[i] = (Segment){.begin = at, .end = end, .parent = -1};
        at = end;
    }
    return segments;
}

/* As if each adapter had its share of the rows. */
static AdapterRows *step_adapters(Arena *arena, const StepSize *size, int64_t n_tokens) {
    int64_t n = size->n_adapters;
    AdapterRows *rows = arena_alloc(arena, (size_t)(n + 1) * sizeof *rows);
    for (int64_t i = 0; rows && i < n; i++) rows[i] = (AdapterRows){size->adapters[i]->linears, n_tokens * i / (n + 1), n_tokens * (i + 1) / (n + 1)};
    return rows;
}

size_t step_bytes(const Model *model, const StepSize *size) {
    Arena *arena = arena_new(0);
    Tape *meta = tape_new(model->device->planner, model->compute, 0);
    int64_t n_tokens = size->prompt_tokens + size->n_single;
    size_t bytes = 0;
    Segment *segments = arena ? step_segments(arena, size) : NULL;
    AdapterRows *adapters = arena ? step_adapters(arena, size, n_tokens) : NULL;
    int32_t *ids = arena ? arena_zero(arena, (size_t)n_tokens * sizeof *ids) : NULL,
            *rows = arena ? arena_zero(arena, (size_t)size->n_rows * sizeof *rows) : NULL;
    if (meta && segments && adapters && ids && rows) {
        tape_record(meta, false);
        Tensor *hidden = model_forward(
            model, meta,
            &(ModelBatch){.ids = ids,
                          .layout = {.n_tokens = n_tokens, .n_segments = (int32_t)(size->n_prompts + size->n_single), .segments = segments},
                          .step = {.adapters = adapters, .n_adapters = (int)size->n_adapters}});
        Tensor *which = hidden ? tensor_view(tape_arena(meta), tape_device(meta), DT_I32, 1, &size->n_rows, rows) : NULL;
        if (which) (void)model_logits(model, meta, hidden, which);
        bytes = tape_peak_bytes(meta);
    }
    tape_free(meta);
    arena_free(arena);
    return bytes;
}

size_t chooser_bytes(const Model *model, int64_t n_slots) {
    size_t choosers = (size_t)MIN((int64_t)omp_get_max_threads(), n_slots), vocab = (size_t)model->config.vocab_size;
    return choosers * vocab * (2 * sizeof(double) + sizeof(int32_t));
}

/* What a generator keeps of its requests and of their last logits, and what it chooses tokens with. */
static size_t tables_bytes(const Model *model, const GeneratorConfig *config) {
    enum { ROUNDING = 1 << 16 };
    size_t n_slots = config->session ? 1 : (size_t)config->max_sequences, n_rows = 2 * n_slots, vocab = (size_t)model->config.vocab_size;
    size_t of_rows = sizeof(Group) + sizeof(Pass) + sizeof(AdapterRows) + sizeof(Segment) + sizeof(int64_t) + sizeof(int32_t);
    return n_rows * of_rows + n_slots * (sizeof(Sequence) + sizeof(Group *)) + (n_slots + STEP_TOKENS) * sizeof(int32_t) +
           3 * vocab * sizeof(int32_t) + chooser_bytes(model, (int64_t)n_slots) + (size_t)(2 * model->config.num_hidden_layers) * sizeof(Tensor) +
           ROUNDING;
}

/* Constraints, and for each sequence a bit for each id. */
static size_t constraint_memory(const Model *model, const GeneratorConfig *config) {
    size_t n_slots = config->session ? 1 : (size_t)config->max_sequences, words = ((size_t)model->config.vocab_size + 63) / 64;
    return config->constraint_bytes ? config->constraint_bytes + n_slots * words * sizeof(uint64_t) : 0;
}

size_t generator_bytes(const Model *model, const GeneratorConfig *config) {
    size_t bytes = tables_bytes(model, config), n_pages = (size_t)config->max_pages;
    return config->session ? bytes : bytes + n_pages * (kv_page_bytes(model) + 2 * sizeof(int32_t) + PREFIX_BYTES);
}

/* A step of as many tokens of prompts as there may be, while all sequences but one go on; and one without, which takes other kernels. */
static size_t largest_step(const Model *model, const GeneratorConfig *config) {
    int64_t n_slots = config->session ? 1 : config->max_sequences;
    StepSize size = {.prompt_tokens = STEP_TOKENS,
                     .n_prompts = 1,
                     .n_single = n_slots,
                     .n_rows = n_slots,
                     .adapters = config->adapters,
                     .n_adapters = (int64_t)config->n_adapters};
    size_t bytes = step_bytes(model, &size);
    size.prompt_tokens = size.n_prompts = 0;
    return MAX(bytes, step_bytes(model, &size));
}

GeneratorMemory generator_memory(const Model *model, const GeneratorConfig *config) {
    ModelMemory of_model = model_memory(model, false);
    int64_t n_pages = config->session ? kv_pages_for(session_max_tokens(config->session)) + 1 : config->max_pages;
    GeneratorMemory memory = {.weights = of_model.mapped + of_model.shared + of_model.weights,
                              .packed = of_model.packed,
                              .cache = (size_t)n_pages * (kv_page_bytes(model) + (config->session ? 0 : PREFIX_BYTES)),
                              .tables = tables_bytes(model, config),
                              .constraints = constraint_memory(model, config)};
    for (size_t i = 0; i < config->n_adapters; i++) {
        ModelMemory of_adapter = model_memory(config->adapters[i], false);
        memory.weights += of_adapter.mapped + of_adapter.weights;
    }
    model->device->workspace_clear(model->device);
    memory.step = largest_step(model, config);
    memory.scratch = model->device->workspace_bytes(model->device);
    memory.total = memory.weights + memory.packed + arena_pages(memory.cache + memory.tables) + memory.constraints + memory.step + memory.scratch;
    return memory;
}

/* The weights are there already, and so is what earlier generators left in `memory`. */
Status generator_fits(const Model *model, const GeneratorConfig *config, size_t left) {
    GeneratorMemory memory = generator_memory(model, config);
    size_t packed = memory.packed - MIN(memory.packed, cpu_packed_bytes()), need = memory.total - memory.weights - memory.packed + packed;
    char texts[4][32], more[32];
    Str forms = {0};
    if (need <= left) return ST_OK;
    if (memory.constraints) str_printf(&forms, ", %s for the forms of answers", format_bytes((double)memory.constraints, more));
    status_fail(ST_RESOURCE, "generating needs %s, of it %s for keys and values%s and %s for a step; %s are left",
                format_bytes((double)need, texts[0]), format_bytes((double)memory.cache, texts[1]), str_text(&forms),
                format_bytes((double)memory.step, texts[2]), format_bytes((double)left, texts[3]));
    str_release(&forms);
    return status_hint(ST_RESOURCE, "let fewer sequences run at a time, lower max_new_tokens or shorten the prompts");
}
