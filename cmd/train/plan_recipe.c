/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe asks for, as a task for lib/plan: model, rows of a step, method, machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/train/plan_command.h"
#include "lib/base/file.h"
#include "lib/base/system.h"
#include "lib/model/gguf/gguf_model.h"
#include "lib/tensor/quant/quant.h"
#include "lib/train/distil_teacher.h"
#include "lib/train/train.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_algorithm.h"

/* The longest pass of policy gradients, unless train.batch_tokens says more; a group of answers is never cut. */
enum { PASS_TOKENS = 1024, LARGE_PASS_TOKENS = 2048 };
#define USUAL_DISK 2e9
/* Steps reach this share of the speed that products alone reach: they also wait for memory between products. Measured: docs/plan.md. */
#define HERE_EFFICIENCY .78

/* ---- rows ---- */

static Status count_lines(const char *path, double *rows) {
    Lines lines;
    Slice line;
    TRY(lines_open(&lines, path));
    while (lines_next(&lines, &line)) *rows += line.len > 0;
    return lines_close(&lines);
}

/* Rows of files with a row on each line; NaN if there are others. */
static Status count_rows(const Yaml *node, double *rows) {
    const char *path = !node ? NULL : node->kind == YAML_SCALAR ? node->text : NULL;
    const Yaml *named = node && node->kind == YAML_MAP ? yaml_get(node, "path") : NULL;
    if (named && named->kind == YAML_SCALAR) path = named->text;
    for (size_t i = 0; node && node->kind == YAML_LIST && i < node->n; i++) TRY(count_rows(node->items[i], rows));
    if (node && node->kind == YAML_LIST) return ST_OK;
    bool lines =
        path && file_exists(path) && (text_ends_with(path, ".jsonl") || text_ends_with(path, ".jsonl.gz") || text_ends_with(path, ".jsonl.zst"));
    if (!lines) *rows = (double)NAN;
    return lines ? count_lines(path, rows) : ST_OK;
}

static Status find_steps(PlanCommand *plan, double rows_of_step) {
    const Recipe *recipe = plan->recipe;
    PlanRun *run = &plan->task.run;
    double rows = 0;
    run->steps = (double)NAN;
    if (recipe->train_max_steps > 0) {
        run->steps = (double)recipe->train_max_steps;
    } else if (plan->lengths.rows > 0) {
        run->steps = plan->lengths.steps > 0 ? (double)plan->lengths.steps : ceil(plan->lengths.rows * recipe->train_epochs / rows_of_step);
    } else if (recipe->data_train) {
        TRY(count_rows(recipe->data_train, &rows));
        run->steps = ceil(rows * recipe->train_epochs / rows_of_step);
    }
    plan->run_tokens = recipe->plan_run_tokens;
    if (isnan(plan->run_tokens)) plan->run_tokens = run->steps * plan_step_tokens(run);
    return ST_OK;
}

/* ---- methods ---- */

static double row_tokens(const Recipe *recipe) {
    double longest = (double)recipe->data_max_length;
    return recipe->plan_row_tokens > 0 ? fmin((double)recipe->plan_row_tokens, longest) : longest;
}

/* Batches of rows that were read: the rows of a mean batch, and the tokens of the largest one. */
static Status plan_read_rows(PlanCommand *plan, int64_t sequences) {
    const Recipe *recipe = plan->recipe;
    const PlanLengths *lengths = &plan->lengths;
    PlanRun *run = &plan->task.run;
    int64_t rows = MAX((int64_t)(lengths->rows / lengths->batches + .5), 1);
    run->rows = rows * sequences;
    run->mean_row = lengths->tokens / lengths->rows / (double)sequences;
    run->longest_row = fmax(lengths->largest_batch / (double)run->rows, run->mean_row);
    run->accumulation = MIN(recipe->train_gradient_accumulation_steps, (int64_t)lengths->batches);
    return find_steps(plan, (double)(rows * run->accumulation));
}

/* Rows of one accumulation step. With train.batch_tokens, as many as have that many tokens. */
static Status plan_rows(PlanCommand *plan, int64_t sequences) {
    const Recipe *recipe = plan->recipe;
    PlanRun *run = &plan->task.run;
    if (plan->lengths.rows > 0) return plan_read_rows(plan, sequences);
    run->longest_row = (double)recipe->data_max_length;
    run->mean_row = row_tokens(recipe);
    run->accumulation = recipe->train_gradient_accumulation_steps;
    run->rows = recipe->train_batch_size * sequences;
    if (recipe->train_batch_tokens > 0) {
        run->rows = MAX((int64_t)((double)recipe->train_batch_tokens / run->mean_row), 1);
        run->longest_row = fmax((double)recipe->train_batch_tokens / (double)run->rows, run->mean_row);
    }
    return find_steps(plan, (double)(run->rows * run->accumulation) / (double)sequences);
}

static Status plan_pairs(PlanCommand *plan) {
    const Recipe *recipe = plan->recipe;
    PlanRun *run = &plan->task.run;
    static const char without_reference[] = "orpo simpo cpo";
    plan->kind = "preferences";
    /* Its log-probabilities are computed before training, so its weights need no memory. */
    if (!text_among(without_reference, ' ', recipe->rl_algorithm)) run->first_passes = 1;
    return plan_rows(plan, 2);
}

/* Answers of a step are learned from in passes of some tokens; the answers to a prompt share it. */
static Status plan_answers(PlanCommand *plan) {
    const Recipe *recipe = plan->recipe;
    PlanRun *run = &plan->task.run;
    plan->kind = "rollouts";
    run->prompts = recipe->rl_prompts_per_step;
    run->answers = recipe->rl_num_generations;
    run->answer_tokens = (double)recipe->generate_max_new_tokens;
    run->prompt_tokens = (double)(recipe->plan_prompt_tokens > 0 ? recipe->plan_prompt_tokens : recipe->data_max_length);
    if (plan->lengths.rows > 0 && recipe->plan_prompt_tokens <= 0) run->prompt_tokens = plan->lengths.tokens / plan->lengths.rows;
    double group = run->prompt_tokens + run->answer_tokens * (double)run->answers, row = group / (double)run->answers,
           pass = recipe->train_batch_tokens > 0 ? (double)recipe->train_batch_tokens : fmin(fmax(group, PASS_TOKENS), LARGE_PASS_TOKENS);
    int64_t sequences = run->prompts * run->answers;
    pass = fmin(pass, row * (double)sequences);
    run->rows = MAX(MIN((int64_t)(pass / row), sequences), 1);
    run->accumulation = (sequences + run->rows - 1) / run->rows;
    run->mean_row = row;
    run->longest_row = fmax(pass / (double)run->rows, row);
    run->passes = (double)recipe->rl_num_iterations;
    if (text_algorithm_find(recipe->rl_algorithm)->taught) return find_steps(plan, (double)run->prompts);
    run->forward_passes = (recipe->rl_beta > 0) + (recipe->rl_num_iterations > 1 || recipe->rl_num_minibatches > 1);
    run->reference_weights = recipe->rl_beta > 0 && (!recipe->has_lora || recipe->rl_reference);
    return find_steps(plan, (double)run->prompts);
}

static Status plan_method(PlanCommand *plan) {
    const Recipe *recipe = plan->recipe;
    plan->kind = "SFT";
    if (!recipe->has_rl) return plan_rows(plan, 1);
    if (recipe->rl_env) return status_fail(ST_CONFIG, "tune plan plans language models: '%s' in an environment is small", recipe->rl_algorithm);
    if (text_algorithm_find(recipe->rl_algorithm)) return plan_answers(plan);
    if (preference_algorithm(recipe->rl_algorithm)) return plan_pairs(plan);
    return status_fail(ST_CONFIG, "tune plan does not plan 'rl.algorithm: %s'", recipe->rl_algorithm);
}

/* ---- machine ---- */

/* This machine as one device: its measured speeds, without a theoretical rate. */
static Status measure_here(PlanCommand *plan) {
    const CpuInfo *cpu = cpu_info();
    CpuSpeed speed;
    TRY(cpu_measure_speed(&speed));
    plan->here = true;
    plan->task.machine = (PlanMachine){.name = "here",
                                       .title = cpu->name,
                                       .source = "measured",
                                       .f32 = speed.gflops_f32 * 1e9,
                                       .half = speed.gflops_bf16 * 1e9,
                                       .bytes_per_second = speed.memory_gbs * 1e9,
                                       .memory = (double)memory_available() + (double)memory_resident(),
                                       .per_machine = 1,
                                       .efficiency = HERE_EFFICIENCY};
    return plan_link_find("shared-memory", &plan->task.machine.inner);
}

static Status find_machine(PlanCommand *plan) {
    const Recipe *recipe = plan->recipe;
    PlanTask *task = &plan->task;
    const Yaml *node = recipe->plan_machine;
    bool here = !node || node->kind == YAML_NULL || (node->kind == YAML_SCALAR && strcmp(node->text, "here") == 0);
    TRY(here ? measure_here(plan) : plan_machine_of(node, recipe->arena, &task->machine));
    if (recipe->plan_per_machine > 0) task->machine.per_machine = recipe->plan_per_machine;
    plan->assumed_efficiency = !here && isnan(recipe->plan_efficiency);
    if (!isnan(recipe->plan_efficiency)) task->machine.efficiency = recipe->plan_efficiency;
    if (recipe->plan_inner_link) TRY(plan_link_of(recipe->plan_inner_link, recipe->arena, &task->machine.inner));
    task->machines = recipe->plan_machines;
    plan->assumed_link = !recipe->plan_link && task->machines > 1;
    TRY(recipe->plan_link ? plan_link_of(recipe->plan_link, recipe->arena, &task->link)
                          : plan_link_find(task->machine.gpu ? "hdr" : "ethernet-25", &task->link));
    plan->price = isnan(recipe->plan_price_per_hour) ? (task->machine.price > 0 ? task->machine.price : (double)NAN) : recipe->plan_price_per_hour;
    plan->assumed_disk = !recipe->plan_disk;
    task->disk = USUAL_DISK;
    return recipe->plan_disk ? plan_quantity(recipe->plan_disk, QUANTITY_BANDWIDTH, "plan.disk", &task->disk) : ST_OK;
}

/* ---- model ---- */

/* Bits of a weight in a form of model.quantize: codes, scales, and the scales of scales (nf4 and fp4). */
static double bits_of(const Recipe *recipe, double in) {
    const QuantFormat *format = quant_format_named(model_quantize_text(recipe->model_quantize));
    double block = (double)recipe->model_quantize_block;
    if (format) return 8 * (double)format->bytes / (double)format->block;
    if (recipe->model_quantize == MODEL_QUANTIZE_INT8) return 8 + 32 / in;
    return 4 + (recipe->model_quantize_double ? 8 / block + 32 / (block * FOUR_BIT_NESTED) : 32 / block);
}

/* Mean bytes of a weight with the linear layers of all layers quantised. */
static double quantised_bytes(const Recipe *recipe, const PlanModel *model) {
    double all = plan_parameters(model), bits = 8 * model->stored * all;
    for (int64_t layer = 0; layer < model->num_hidden_layers; layer++) {
        PlanMatrix matrices[PLAN_MATRICES];
        int n = plan_matrices(model, layer, matrices);
        for (int i = 0; i < n; i++) {
            double weights = (double)matrices[i].copies * (double)matrices[i].in * (double)matrices[i].out;
            if (matrices[i].adapted && matrices[i].copies == 1) bits += weights * (bits_of(recipe, (double)matrices[i].in) - 8 * model->stored);
        }
    }
    return bits / 8 / all;
}

/* Bytes of a stored weight by the headers of the model's files. A folder with config.json alone has the bytes of its dtype. */
static Status stored_bytes(const char *path, double *bytes) {
    Arena *arena = arena_new(0);
    WeightFile *file = NULL;
    Str types = {0};
    if (!arena) return status_fail(ST_RESOURCE, "out of memory");
    const char *single = path_join(arena, path, "model.safetensors"), *several = path_join(arena, path, "model.safetensors.index.json");
    Status status = single && several ? ST_OK : ST_RESOURCE;
    if (status == ST_OK && (gguf_is(path) || file_exists(single) || file_exists(several))) {
        status = weight_file_open(path, &file);
        if (status == ST_OK) *bytes = weight_file_describe(file, &types) / 8;
    }
    weight_file_close(file);
    str_release(&types);
    arena_free(arena);
    return status;
}

static Status plan_read_model(const char *path, PlanModel *model) {
    json_t *config = NULL;
    if (!gguf_is(path)) {
        TRY(plan_model_read(path, model));
        return stored_bytes(path, &model->stored);
    }
    Status status = gguf_config_json(path, &config);
    if (status == ST_OK) status = plan_model_parse(config, path, model);
    json_decref(config);
    return status == ST_OK ? stored_bytes(path, &model->stored) : status;
}

/* A teacher is in memory and reads the rows of each step, unless it is a file of log-probabilities, or answers before the training. */
static Status plan_teacher(PlanCommand *plan) {
    const Recipe *recipe = plan->recipe;
    const char *path = recipe->distil_teacher;
    PlanRun *run = &plan->task.run;
    PlanModel teacher;
    const bool answers = recipe->distil_loss == DISTIL_LOSS_SEQUENCE && !recipe->has_rl;
    if (!path || answers || distil_teacher_is_file(path)) return ST_OK;
    TRY(plan_read_model(path, &teacher));
    const double rows = (double)run->rows;
    run->teacher_bytes = plan_parameters(&teacher) * teacher.stored;
    run->forward_passes += plan_forward_work(&teacher, rows, run->mean_row) / plan_forward_work(&plan->task.model, rows, run->mean_row);
    return ST_OK;
}

static double states_of(const Recipe *recipe) {
    OptimizerConfig optimizer;
    return recipe_optimizer(recipe, &optimizer) == ST_OK ? (double)optimizer_find(optimizer.name)->states(&optimizer) : 2;
}

Status plan_of_recipe(PlanCommand *plan, int64_t ranks) {
    const Recipe *recipe = plan->recipe;
    PlanTask *task = &plan->task;
    PlanRun *run = &task->run;
    if (!recipe->model_path)
        return status_hint(status_fail(ST_CONFIG, "the recipe names no model: 'model.path'"),
                           "a folder with a config.json is enough; weights are not read");
    TRY(plan_read_model(recipe->model_path, &task->model));
    TRY(find_machine(plan));
    TRY(plan_read_lengths(recipe, &plan->lengths));
    run->passes = 1;
    TRY(plan_method(plan));
    TRY(plan_teacher(plan));
    run->lora_rank = recipe->has_lora ? recipe->lora_rank : 0;
    bool all = recipe->lora_target_modules.n == 1 && strcmp(recipe->lora_target_modules.items[0], "all-linear") == 0;
    run->targets = all ? NULL : recipe->lora_target_modules.items;
    run->n_targets = all ? 0 : recipe->lora_target_modules.n;
    run->frozen_bytes = recipe->model_quantize == MODEL_QUANTIZE_NONE ? task->model.stored : quantised_bytes(recipe, &task->model);
    run->share_frozen = recipe->parallel_share_frozen == PARALLEL_SHARE_FROZEN_HOST;
    run->lanes = atof(recipe->parallel_lanes); /* 0 for the words */
    if (strcmp(recipe->parallel_lanes, "leaves") == 0) run->lanes = (double)run->accumulation;
    run->half = recipe->model_compute == MODEL_COMPUTE_AUTO ? (plan->here ? recipe_compute(recipe) == DT_BF16 : task->machine.half > 0)
                                                            : recipe->model_compute == MODEL_COMPUTE_BF16;
    run->optimizer_states = states_of(recipe);
    run->keep = recipe->train_checkpointing == TRAIN_CHECKPOINTING_LAYER       ? KEEP_LAYERS
                : recipe->train_checkpointing == TRAIN_CHECKPOINTING_SELECTIVE ? KEEP_SELECTIVE
                                                                               : KEEP_ALL;
    task->ranks = ranks > 0 ? ranks : task->machines * task->machine.per_machine;
    if (!recipe->plan_search) task->tensor = task->pipeline = 1;
    return ST_OK;
}

/* ---- the whole run ---- */

double plan_run_seconds(const PlanCommand *plan, const PlanLayout *layout) {
    double steps = plan->run_tokens / plan_step_tokens(&plan->task.run), epochs = fmax(plan->recipe->train_epochs, 1);
    return steps * layout->step_seconds + plan->task.run.first_passes * steps / epochs * layout->seconds.forward + plan->search.load_seconds;
}

double plan_run_cost(const PlanCommand *plan, const PlanLayout *layout) {
    return plan_run_seconds(plan, layout) / 3600 * plan->price * (double)plan->task.machines;
}

double plan_run_energy(const PlanCommand *plan, const PlanLayout *layout) {
    double devices = (double)(plan->task.machines * plan->task.machine.per_machine);
    return plan->task.machine.watts > 0 ? plan_run_seconds(plan, layout) * plan->task.machine.watts * devices : (double)NAN;
}
