/* SPDX-License-Identifier: Apache-2.0 */
/* experts: a router, gated MLPs, some of which it chooses for each token, and a gated MLP that all tokens pass.
 *
 * Each expert has linear layers of its own, with a branch each; and the layers of all experts together are linear layers too, to which
 * target_parameters of an adapter belong. Gate and up together are one such layer, as PEFT has it, also where the checkpoint has them apart. */
#include "lib/model/block.h"

enum { GATE, UP, DOWN, PARTS };

typedef struct ExpertsBlock {
    Linear router;
    Tensor *choice_bias;
    Linear *each[PARTS];  /* of each expert; NULL: the checkpoint has all of them together */
    Linear gate_up, down; /* of all experts together */
    Tensor *gate_up_bias, *down_bias;
    Linear shared[PARTS], shared_scale;
    bool has_shared;
    int number; /* of the block among those of experts */
} ExpertsBlock;

static void build_each(BlockBuilder *builder, const ExpertsForm *form, ExpertsBlock *block) {
    Model *model = builder->model;
    const ExpertsConfig *experts = &model->config.experts;
    const char *parts[PARTS] = {form->gate, form->up, form->down};
    int64_t C = model->config.hidden_size;
    for (int p = 0; p < PARTS; p++)
        if (!(block->each[p] = arena_zero(model->arena, (size_t)experts->n * sizeof *block->each[p]))) {
            builder->status = ST_RESOURCE;
            return;
        }
    for (int64_t e = 0; e < experts->n; e++)
        for (int p = 0; p < PARTS && builder->status == ST_OK; p++) {
            builder->index = e;
            build_linear(builder, parts[p], &block->each[p][e], p == DOWN ? experts->width : C, p == DOWN ? C : experts->width, false);
            Linear *its = &block->each[p][e];
            its->only_named = true;
            its->together = p == DOWN ? &block->down : &block->gate_up;
            its->number = e;
            its->first_row = p == UP ? experts->width : 0;
        }
}

static void build_biases(BlockBuilder *builder, const ExpertsForm *form, ExpertsBlock *block) {
    const ExpertsConfig *experts = &builder->model->config.experts;
    const char *gate_up = arena_printf(builder->model->arena, "%s_bias", form->gate_up_together),
               *down = arena_printf(builder->model->arena, "%s_bias", form->down_together);
    if (!gate_up || !down) {
        builder->status = ST_RESOURCE;
        return;
    }
    build_weight(builder, gate_up, true, &block->gate_up_bias, 2, (int64_t[]){experts->n, 2 * experts->width});
    build_weight(builder, down, true, &block->down_bias, 2, (int64_t[]){experts->n, builder->model->config.hidden_size});
}

static void build_shared(BlockBuilder *builder, const ExpertsForm *form, ExpertsBlock *block) {
    int64_t C = builder->model->config.hidden_size, width = builder->model->config.experts.shared_width;
    block->has_shared = form->shared_gate && width > 0;
    if (!block->has_shared) return;
    build_linear(builder, form->shared_gate, &block->shared[GATE], C, width, false);
    build_linear(builder, form->shared_up, &block->shared[UP], C, width, false);
    build_linear(builder, form->shared_down, &block->shared[DOWN], width, C, false);
    if (!form->shared_scale) return;
    build_linear(builder, form->shared_scale, &block->shared_scale, C, 1, false);
    block->shared_scale.only_named = true;
}

static void experts_build(BlockBuilder *builder, const void *given, void *result) {
    const ExpertsForm *form = given;
    ExpertsBlock *block = result;
    const ModelConfig *c = &builder->model->config;
    const ExpertsConfig *experts = &c->experts;
    const bool together = form->in_out || experts->together;
    block->number = builder->model->n_routers++;
    build_linear(builder, form->router, &block->router, c->hidden_size, experts->n, form->in_out);
    block->router.only_named = true;
    builder->fixed = true;
    if (form->choice_bias) build_weight(builder, form->choice_bias, true, &block->choice_bias, 1, &experts->n);
    builder->fixed = false;
    builder->sparse = true;
    if (!together) build_each(builder, form, block);
    build_together(builder, form->gate_up_together, &block->gate_up, experts->n, c->hidden_size, 2 * experts->width, form->in_out, together);
    build_together(builder, form->down_together, &block->down, experts->n, experts->width, c->hidden_size, form->in_out, together);
    builder->sparse = false;
    if (form->in_out) build_biases(builder, form, block);
    build_shared(builder, form, block);
}

/* ---- branches ---- */

/* Expert e's own branch in this step; NULL: none. With dropout it is a copy, whose mask is that of its linear layer. */
static const LoraBranch *branch_in_step(const StepContext *step, Tape *tape, Linear *const *linears, const Linear *its) {
    LoraBranch branch;
    const LoraBranch *kept = linears[its->index]->lora;
    if (!kept || kept->dropout == 0) return kept;
    branch = *kept;
    linear_mask(its, step, &branch);
    return tape_copy(tape, &branch, sizeof branch);
}

/* The branches of one part in an adapter whose linear layers are `linears`; false: it has none there. */
static bool lora_of(const StepContext *step, Tape *tape, Linear *const *linears, const Linear *each, const Linear *together, int64_t first, int64_t n,
                    ExpertLora *lora) {
    const LoraBranch *all = linears[together->index]->lora;
    *lora = (ExpertLora){0};
    if (all) *lora = (ExpertLora){.a = all->a, .b = all->b, .scale = all->scale, .rows = together->out, .first = first};
    bool any = false;
    for (int64_t e = 0; each && e < n && !any; e++) any = linears[each[e].index]->lora != NULL;
    if (!any || all) return all != NULL;
    const LoraBranch **list = arena_alloc(tape_arena(tape), (size_t)n * sizeof *list);
    if (!list) return tape_fail(tape, ST_RESOURCE, "out of memory for the branches of experts");
    for (int64_t e = 0; e < n; e++) list[e] = branch_in_step(step, tape, linears, &each[e]);
    lora->each = list;
    return true;
}

/* PEFT loads no adapter of parameters with dropout, so there is none to train. */
static bool dropout_refused(const LayerContext *context, Tape *tape, const ExpertLora *lora, const Linear *together) {
    if (!context->batch->step.training || !lora->a || together->lora->dropout == 0) return false;
    tape_fail(tape, ST_CONFIG, "dropout %g on the adapter of all experts together ('%s') is not supported: set lora.dropout to 0",
              together->lora->dropout, together->path);
    return true;
}

/* The branches in this step: the model's, or those of each adapter for its tokens. NULL: none. */
static const ExpertLora *lora_in_step(const LayerContext *context, Tape *tape, const Linear *each, const Linear *together, int64_t first, int64_t n) {
    const StepContext *step = &context->batch->step;
    ExpertLora lora, *newest = NULL;
    if (step->n_adapters == 0) {
        if (!lora_of(step, tape, context->model->linears, each, together, first, n, &lora)) return NULL;
        return dropout_refused(context, tape, &lora, together) ? NULL : tape_copy(tape, &lora, sizeof lora);
    }
    for (int i = step->n_adapters; i-- > 0;) {
        const AdapterRows *rows = &step->adapters[i];
        if (!lora_of(step, tape, rows->linears, each, together, first, n, &lora)) continue;
        lora.begin = rows->begin;
        lora.end = rows->end;
        lora.next = newest;
        if (!(newest = tape_copy(tape, &lora, sizeof lora))) return NULL;
    }
    return newest;
}

/* ---- forward ---- */

/* Part p of experts that have tensors of their own. */
static ExpertLinear each_linear(const LayerContext *context, const ExpertsBlock *block, Tape *tape, int p) {
    int64_t n = context->model->config.experts.n;
    const Linear *each = block->each[p], *together = p == DOWN ? &block->down : &block->gate_up;
    Tensor **weights = arena_alloc(tape_arena(tape), (size_t)n * sizeof *weights);
    if (!weights) tape_fail(tape, ST_RESOURCE, "out of memory for a list of experts");
    for (int64_t e = 0; weights && e < n; e++) weights[e] = each[e].weight;
    return (ExpertLinear){
        .in = each->in, .out = each->out, .each = weights, .lora = lora_in_step(context, tape, each, together, p == UP ? each->out : 0, n)};
}

static ExpertLinear together_linear(const LayerContext *context, const Linear *linear, Tape *tape, Tensor *bias) {
    return (ExpertLinear){.in = linear->in,
                          .out = linear->out,
                          .whole = linear->weight,
                          .bias = bias,
                          .lora = lora_in_step(context, tape, NULL, linear, 0, linear->copies)};
}

/* The inner values of all slots. */
static Tensor *inner_forward(const LayerContext *context, const ExpertsBlock *block, Tape *tape, Tensor *x, const Routing *routing) {
    const ModelConfig *config = &context->model->config;
    Tensor *both[2];
    if (block->each[GATE]) {
        const ExpertLinear layers[] = {each_linear(context, block, tape, GATE), each_linear(context, block, tape, UP)};
        if (tape_status(tape) != ST_OK) return NULL;
        op_expert_linears(tape, x, true, routing, layers, 2, both);
        return op_activation_passing(tape, config->activation, both[0], both[1]);
    }
    const ExpertLinear layer = together_linear(context, &block->gate_up, tape, block->gate_up_bias);
    if (tape_status(tape) != ST_OK) return NULL;
    op_expert_linears(tape, x, true, routing, &layer, 1, both);
    if (block->gate_up_bias) return op_clamped_glu(tape, both[0], config->experts.limit, config->experts.alpha);
    return op_activation_passing(tape, config->activation, both[0], both[0]);
}

/* The router's logits. A residual of zeros keeps them in f32 where products have results in bf16. */
static Tensor *router_logits(const LayerContext *context, const ExpertsBlock *block, Tape *tape, Tensor *x) {
    Tensor *zeros = NULL;
    if (x && context->model->config.experts.wide_router && tape_compute(tape) != tape_residual(tape)) {
        zeros = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){tensor_rows(x), block->router.out});
        if (!zeros) return NULL;
        tape_device(tape)->fill(zeros, 0);
    }
    return linear_forward(&block->router, tape, x, zeros, &context->batch->step);
}

/* Adds the expert that all tokens pass to `sum`. Its scale is the weight of the only choice of a router. */
static Tensor *shared_forward(const LayerContext *context, const ExpertsBlock *block, Tape *tape, Tensor *x, Tensor *sum) {
    const StepContext *step = &context->batch->step;
    Tensor *both[2];
    linears_forward((const Linear *[]){&block->shared[GATE], &block->shared[UP]}, 2, tape, x, step, both);
    Tensor *h = sublayer_activate(context, tape, both[0], both[1], &block->shared[DOWN]);
    if (!block->shared_scale.path) return linear_forward(&block->shared[DOWN], tape, h, sum, step);
    const RouterArgs one = {.kind = ROUTER_SIGMOID, .n_experts = 1, .top_k = 1, .scale = 1};
    Routing scale = op_router(tape, linear_forward(&block->shared_scale, tape, x, NULL, step), NULL, &one, NULL);
    return op_expert_sum(tape, linear_forward(&block->shared[DOWN], tape, h, NULL, step), &scale, sum);
}

static Tensor *experts_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const ExpertsBlock *block = sublayer->block;
    bool plain = !sublayer->output_norm.weight && context->model->config.residual_scale == 1;
    Routing routing = op_router(tape, router_logits(context, block, tape, x), block->choice_bias, &context->model->config.experts.router,
                                context->batch->loads ? &context->batch->loads[block->number] : NULL);
    Tensor *h = inner_forward(context, block, tape, x, &routing), *y = NULL;
    const ExpertLinear down =
        block->each[DOWN] ? each_linear(context, block, tape, DOWN) : together_linear(context, &block->down, tape, block->down_bias);
    if (tape_status(tape) != ST_OK) return NULL;
    op_expert_linears(tape, h, false, &routing, &down, 1, &y);
    y = op_expert_sum(tape, y, &routing, plain ? residual : NULL);
    if (y && block->has_shared) y = shared_forward(context, block, tape, x, y);
    return plain ? y : sublayer_add(context, sublayer, tape, y, residual);
}

const BlockKind block_experts = {sizeof(ExpertsBlock), experts_build, experts_forward};
