/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of activations as this program's tape keeps them, from shapes. A test compares it with the tape of the meta device. */
#include <math.h>

#include "lib/plan/plan.h"

const PlanPart plan_memory_parts[] = {
#define PART(name, title, help) {#name, title, help},
    PLAN_MEMORY_PARTS(PART)
#undef PART
};
const PlanPart plan_second_parts[] = {
#define PART(name, title, help) {#name, title, help},
    PLAN_SECOND_PARTS(PART)
#undef PART
};
const PlanPart plan_byte_parts[] = {
#define PART(name, title, help) {#name, title, help},
    PLAN_BYTE_PARTS(PART)
#undef PART
};

/* Widths of a layer on a rank, in elements of a token. */
typedef struct Widths {
    double hidden, queries, keys, ffn, adapter, heads;
} Widths;

/* Rows of the adapter's branches: a token meets those of its experts. */
static double adapter_width(const PlanTask *task, int64_t layer) {
    PlanMatrix matrices[PLAN_MATRICES];
    double width = 0;
    int n = plan_matrices(&task->model, layer, matrices);
    for (int i = 0; i < n; i++) width += matrices[i].adapted ? (double)(task->run.lora_rank * matrices[i].active) : 0;
    return width;
}

/* Of the last layer, which has experts if the model has. */
static Widths widths_of(const PlanTask *task, PlanRank rank) {
    const PlanModel *model = &task->model;
    double dim = (double)model->head_dim, heads = (double)plan_heads(model, rank),
           kv_heads = heads * (double)model->num_key_value_heads / (double)model->num_attention_heads;
    double ffn = (double)plan_even(model->intermediate_size, rank.size, 0);
    if (model->num_experts > 0)
        ffn = (double)(model->num_experts_per_tok + model->n_shared_experts) * (double)plan_even(model->moe_intermediate_size, rank.size, 0);
    return (Widths){(double)model->hidden_size, heads * dim, fmax(kv_heads, 1) * dim, ffn, adapter_width(task, model->num_hidden_layers - 1), heads};
}

/* Bytes of an activation between ops. */
static double element(const PlanTask *task) { return task->run.half ? 2 : 4; }

double plan_layer_activations(const PlanTask *task, PlanRank rank, double tokens) {
    Widths w = widths_of(task, rank);
    double up = task->model.gated ? 2 * w.ffn : w.ffn, norms = task->model.norms > 2 ? 2 * w.hidden : 0;
    if (task->model.qk_norm != QK_NORM_NONE) norms += w.queries + w.keys;
    return tokens * (element(task) * (2 * w.hidden + norms + 2 * w.queries + 2 * w.keys + up + w.adapter) + 4 * (2 + w.heads));
}

/* Layers: the input. Selective: also attention and those products whose sums are at least as long as their rows. */
double plan_layer_kept(const PlanTask *task, PlanRank rank, double tokens) {
    Widths w = widths_of(task, rank);
    double kept = 4 * w.hidden;
    if (task->run.keep == KEEP_ALL) return plan_layer_activations(task, rank, tokens);
    if (task->run.keep == KEEP_LAYERS) return tokens * kept;
    double products = (w.queries <= w.hidden ? w.queries : 0) + (w.keys <= w.hidden ? 2 * w.keys : 0);
    return tokens * (kept + element(task) * (w.queries + products + w.adapter) + 4 * w.heads);
}

/* What is left free at the ends of a tape's blocks, measured on tiny models. */
#define TAPE_ENDS 7e5

/* The residual stream, the last norm, their gradients, tables of angles; the gradients of one layer's widest part. */
double plan_other_activations(const PlanTask *task, PlanRank rank, double tokens) {
    Widths w = widths_of(task, rank);
    return TAPE_ENDS +
           tokens * (element(task) * (3 * w.ffn + 3 * w.hidden + 2 * w.queries + 2 * w.keys) + 4 * (4 * w.hidden + (double)task->model.head_dim));
}

/* Whole blocks of 2048 rows, that take no more memory than the head's weights, gradient and averages (op_token_logprobs). */
double plan_head_kept(const PlanTask *task, double tokens) {
    const double block = 2048, most = floor(16 * (double)task->model.hidden_size / element(task) / block) * block;
    if (task->run.lora_rank > 0 || task->run.keep != KEEP_ALL) return 0;
    return fmin(tokens <= block ? tokens : floor(tokens / block) * block, most) * (double)task->model.vocab_size * element(task);
}

/* The head is computed for 1024 rows at a time, 512 where entropies are computed too, in tiles of 2048 columns; the rest is for each column of the
 * vocabulary. */
double plan_scratch(const PlanTask *task, double tokens) {
    double V = (double)task->model.vocab_size, rows = fmin(tokens, task->run.prompts > 0 ? 512 : 1024);
    return rows * (8 * fmin(V, 2048) + 15 * (double)task->model.hidden_size) + 131 * V + 1.5e6;
}
