/* SPDX-License-Identifier: Apache-2.0 */
/* The result of tune plan on the terminal and as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/train/plan_command.h"
#include "lib/plan/plan_published.h"

static const char *gigabytes(double bytes, char out[32]) {
    snprintf(out, 32, bytes < 0.9995e9 ? "%.1f MB" : "%.2f GB", bytes < 0.9995e9 ? bytes / 1e6 : bytes / 1e9);
    return out;
}

static const char *seconds_text(double seconds, char out[32]) {
    if (seconds >= 100) return format_seconds(seconds, out);
    snprintf(out, 32,
             seconds >= 1      ? "%.2f s"
             : seconds >= 1e-3 ? "%.1f ms"
                               : "%.1f us",
             seconds >= 1      ? seconds
             : seconds >= 1e-3 ? seconds * 1e3
                               : seconds * 1e6);
    return out;
}

static const char *per_second(double rate, const char *unit, char out[32]) {
    double factor = rate >= 1e12 ? 1e12 : 1e9;
    snprintf(out, 32, rate / factor >= 100 ? "%.0f %s%s" : "%.2f %s%s", rate / factor, factor == 1e12 ? "T" : "G", unit);
    return out;
}

void plan_describe_layout(const PlanLayout *layout, Str *text) {
    str_printf(text, "data %lld", (long long)layout->data);
    if (layout->shard != SHARD_NONE) str_printf(text, " (%s divided)", plan_shard_names[layout->shard]);
    if (layout->tensor > 1) str_printf(text, " x tensor %lld", (long long)layout->tensor);
    if (layout->pipeline > 1) str_printf(text, " x pipeline %lld, %s", (long long)layout->pipeline, plan_pipe_names[layout->schedule]);
    if (layout->chunks > 1) str_printf(text, " (%lld runs a stage)", (long long)layout->chunks);
    if (layout->micro > 1)
        str_printf(text, ", %lld x %lld row%s", (long long)layout->micro, (long long)layout->micro_rows, plural(layout->micro_rows));
}

/* ---- tables ---- */

static void print_assumptions(const PlanCommand *plan) {
    const PlanTask *task = &plan->task;
    char bytes[32], rate[32], band[32], disk[32];
    double psi = plan_parameters(&task->model);
    print_result("model      %s, %.4g %s parameters%s\n", task->model.model_type, psi >= 1e9 ? psi / 1e9 : psi / 1e6,
                 psi >= 1e9 ? "billion" : "million", task->model.known ? "" : " (an unknown family, planned as llama)");
    print_result("machine    %lld x %s%s: products %s%s, reads %s, %s each\n", (long long)task->machines,
                 task->machine.per_machine > 1 ? (snprintf(disk, sizeof disk, "%lld x ", (long long)task->machine.per_machine), disk) : "",
                 task->machine.title, per_second(plan_rate(&task->machine, task->run.half), "F/s", rate), task->run.half ? " in 16 bits" : " in f32",
                 per_second(task->machine.bytes_per_second, "B/s", band), gigabytes(task->machine.memory, bytes));
    print_result("step       %s: %lld row%s x %lld, %s tokens%s\n", plan->kind, (long long)task->run.rows, plural(task->run.rows),
                 (long long)task->run.accumulation, NUMBER(plan_step_tokens(&task->run)),
                 task->run.lora_rank > 0 ? ", an adapter" : ", every weight");
    if (task->run.prompts > 0)
        print_result("answers    %lld x %lld of at most %s tokens, prompts of %s\n", (long long)task->run.prompts, (long long)task->run.answers,
                     NUMBER(task->run.answer_tokens), NUMBER(task->run.prompt_tokens));
    if (task->run.teacher_bytes > 0)
        print_result("teacher    %s, %s of weights on each rank\n", plan->recipe->distil_teacher, gigabytes(task->run.teacher_bytes, bytes));
    if (plan->lengths.rows > 0)
        print_result("rows       %s, %s tokens on average%s%s\n", NUMBER(plan->lengths.rows), NUMBER(plan->lengths.tokens / plan->lengths.rows),
                     plan->lengths.largest_batch > 0 ? ", tokens of the largest batch: " : "",
                     plan->lengths.largest_batch > 0 ? NUMBER(plan->lengths.largest_batch) : "");
    if (plan->lengths.why[0])
        print_result("assumed    rows have %lld tokens (data.max_length): %s\n", (long long)plan->recipe->data_max_length, plan->lengths.why);
    if (plan->assumed_efficiency) print_result("assumed    products reach %.0f %% of the rate (plan.efficiency)\n", 100 * task->machine.efficiency);
    if (plan->assumed_link) print_result("assumed    machines are linked by %s (plan.link)\n", task->link.name);
}

static void print_parts(const char *title, const PlanPart *parts, size_t n, const void *values, double total, const char *(*text)(double, char[32])) {
    const double *numbers = values;
    char shown[32];
    print_result("\n%s\n", title);
    for (size_t i = 0; i < n; i++)
        if (numbers[i] > 0)
            print_result("  %-18s %12s  %3.0f %%  %s\n", parts[i].title, text(numbers[i], shown), 100 * numbers[i] / total, parts[i].help);
    print_result("  %-18s %12s\n", "together", text(total, shown));
}

static double total_of(const void *values, size_t n) {
    const double *numbers = values;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += numbers[i];
    return sum;
}

static void print_layouts(const PlanCommand *plan) {
    const PlanSearch *search = &plan->search;
    char seconds[32], bytes[32];
    print_result("\nlayouts of %lld rank%s: %zu tried, %zu fit; the fastest\n", (long long)plan->task.ranks, plural(plan->task.ranks),
                 search->n_tried, search->n_fit);
    for (size_t i = 0; i < search->n_best; i++) {
        const PlanLayout *layout = &search->best[i];
        Str text = {0};
        plan_describe_layout(layout, &text);
        print_result("  %10s a step  %10s a rank  %6.2f x  bubble %2.0f %%  %s\n", seconds_text(layout->step_seconds, seconds),
                     gigabytes(layout->peak_bytes, bytes), layout->speedup, 100 * layout->bubble, str_text(&text));
        str_release(&text);
    }
    for (size_t i = 0; i < search->n_reasons; i++)
        print_result("%s%zu: %s\n", i == 0 ? "others fail:\n  " : "  ", search->reasons[i].n, search->reasons[i].why);
}

static void print_ops(const PlanCommand *plan) {
    char bytes[32], seconds[32];
    print_result("\nroofline of a step, without layout\n");
    for (size_t i = 0; i < plan->search.n_ops; i++) {
        const PlanOp *op = &plan->search.ops[i];
        print_result("  %-18s %9.3f TF  %12s  %10s  bound by %s\n", op->name, op->work / 1e12, gigabytes(op->bytes, bytes),
                     seconds_text(op->seconds, seconds), op->bound_by_memory ? "memory" : "products");
    }
}

static void print_curve(const PlanCommand *plan) {
    const PlanSearch *search = &plan->search;
    char seconds[32];
    if (search->n_curve < 2) return;
    print_result("\nspeed-up by ranks, memory aside; %.4f of a step divides (Amdahl)\n", search->divided);
    for (size_t i = 0; i < search->n_curve; i++) {
        double n = search->curve_ranks[i];
        print_result("  %6.0f rank%s  %10s a step  %8.2f x  Amdahl %8.2f  Gustafson %8.2f\n", n, n == 1 ? " " : "s",
                     seconds_text(search->curve_seconds[i], seconds), search->curve_seconds[0] / search->curve_seconds[i],
                     speedup_amdahl(search->divided, n), speedup_gustafson(search->divided, n));
    }
}

/* "7-1": the ranks of each stage. Equal neighbours are counted: "1 x 8". */
static void describe_pipedream(const PipedreamPlan *plan, Str *text) {
    for (int64_t i = 0; i < plan->n;) {
        int64_t same = 1;
        while (i + same < plan->n && plan->stages[i + same].ranks == plan->stages[i].ranks) same++;
        str_printf(text, same > 3 ? "%s%lld (x %lld)" : "%s%lld", i ? "-" : "", (long long)plan->stages[i].ranks, (long long)same);
        for (int64_t k = 1; k < same && same <= 3; k++) str_printf(text, "-%lld", (long long)plan->stages[i].ranks);
        i += same;
    }
}

static void print_pipedream(const PlanSearch *search) {
    Str text = {0};
    if (search->pipedream.n == 0) return;
    describe_pipedream(&search->pipedream, &text);
    print_result("\npipedream  ranks of each stage %s: %.2f x one rank, %lld micro-batch%s in flight\n", str_text(&text), search->pipedream_speedup,
                 (long long)search->pipedream.noam, search->pipedream.noam == 1 ? "" : "es");
    str_release(&text);
}

static void print_run(const PlanCommand *plan, const PlanLayout *best) {
    char text[32], load[32];
    double seconds = plan_run_seconds(plan, best), cost = plan_run_cost(plan, best), energy = plan_run_energy(plan, best);
    print_result("\nspeed      %s tokens/s\n", NUMBER(plan_step_tokens(&plan->task.run) / best->step_seconds));
    print_result("loading    %s at %s%s\n", seconds_text(plan->search.load_seconds, load), per_second(plan->task.disk, "B/s", text),
                 plan->assumed_disk ? " (assumed: plan.disk)" : "");
    if (isnan(seconds)) return;
    print_result("run        %s for %s tokens\n", format_seconds(seconds, text), NUMBER(plan->run_tokens));
    if (!isnan(energy)) print_result("energy     %s kWh\n", NUMBER(energy / 3.6e6));
    if (!isnan(cost)) print_result("cost       %s\n", NUMBER(cost));
}

void plan_print(const PlanCommand *plan) {
    const PlanSearch *search = &plan->search;
    const PlanLayout *best = search->n_best > 0 ? &search->best[0] : &search->least;
    Str layout = {0}, title = {0};
    plan_describe_layout(best, &layout);
    print_assumptions(plan);
    str_printf(&title, "memory of a rank: %s", str_text(&layout));
    print_parts(str_text(&title), plan_memory_parts, N_MEMORY_PARTS, &best->memory, best->peak_bytes, gigabytes);
    print_parts("time of a step", plan_second_parts, N_SECOND_PARTS, &best->seconds, best->step_seconds, seconds_text);
    if (total_of(&best->bytes, N_BYTE_PARTS) > 0)
        print_parts("a rank sends in a step", plan_byte_parts, N_BYTE_PARTS, &best->bytes, total_of(&best->bytes, N_BYTE_PARTS), gigabytes);
    print_layouts(plan);
    print_ops(plan);
    print_curve(plan);
    print_pipedream(search);
    if (search->n_best > 0) print_run(plan, best);
    str_release(&layout);
    str_release(&title);
}

/* ---- JSON ---- */

static void write_parts(JsonWriter *w, const char *key, const PlanPart *parts, size_t n, const void *values) {
    const double *numbers = values;
    jw_object(w, key);
    for (size_t i = 0; i < n; i++) jw_double(w, parts[i].name, numbers[i]);
    jw_end_object(w);
}

static void write_layout(JsonWriter *w, const PlanCommand *plan, const PlanLayout *layout) {
    jw_object(w, NULL);
    jw_int(w, "data", layout->data);
    jw_string(w, "shard", plan_shard_names[layout->shard]);
    jw_int(w, "tensor", layout->tensor);
    jw_bool(w, "sequence", false);
    jw_int(w, "pipeline", layout->pipeline);
    jw_array(w, "layers");
    for (int64_t i = 0; layout->layers && i < layout->pipeline; i++) jw_int(w, NULL, layout->layers[i]);
    jw_end_array(w);
    jw_string(w, "schedule", layout->pipeline > 1 ? plan_pipe_names[layout->schedule] : NULL);
    jw_int(w, "chunks", layout->chunks);
    jw_int(w, "micro_batches", layout->micro);
    jw_int(w, "micro_rows", layout->micro_rows);
    jw_double(w, "lanes", layout->lanes);
    write_parts(w, "memory_bytes", plan_memory_parts, N_MEMORY_PARTS, &layout->memory);
    jw_double(w, "peak_bytes", layout->peak_bytes);
    write_parts(w, "seconds", plan_second_parts, N_SECOND_PARTS, &layout->seconds);
    jw_double(w, "step_seconds", layout->step_seconds);
    write_parts(w, "bytes", plan_byte_parts, N_BYTE_PARTS, &layout->bytes);
    jw_double(w, "bubble", layout->bubble);
    jw_double(w, "speedup", layout->speedup);
    jw_double(w, "efficiency", layout->efficiency);
    jw_double(w, "cost", plan_run_cost(plan, layout));
    jw_bool(w, "fits", layout->fits);
    jw_string(w, "why", layout->fits ? NULL : layout->why);
    jw_end_object(w);
}

static void write_rest(JsonWriter *w, const PlanCommand *plan, const PlanLayout *best) {
    const PlanSearch *search = &plan->search;
    jw_array(w, "reasons");
    for (size_t i = 0; i < search->n_reasons; i++) {
        jw_object(w, NULL);
        jw_int(w, "layouts", (int64_t)search->reasons[i].n);
        jw_string(w, "why", search->reasons[i].why);
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_array(w, "roofline");
    for (size_t i = 0; i < search->n_ops; i++) {
        jw_object(w, NULL);
        jw_string(w, "op", search->ops[i].name);
        jw_double(w, "work", search->ops[i].work);
        jw_double(w, "bytes", search->ops[i].bytes);
        jw_double(w, "seconds", search->ops[i].seconds);
        jw_string(w, "bound_by", search->ops[i].bound_by_memory ? "memory" : "products");
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_array(w, "speedup");
    for (size_t i = 0; i < search->n_curve; i++) {
        jw_object(w, NULL);
        jw_double(w, "ranks", search->curve_ranks[i]);
        jw_double(w, "seconds", search->curve_seconds[i]);
        jw_double(w, "amdahl", speedup_amdahl(search->divided, search->curve_ranks[i]));
        jw_double(w, "gustafson", speedup_gustafson(search->divided, search->curve_ranks[i]));
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_array(w, "pipedream");
    for (int64_t i = 0; i < search->pipedream.n; i++) {
        jw_object(w, NULL);
        jw_int(w, "layers", search->pipedream.stages[i].layers);
        jw_int(w, "ranks", search->pipedream.stages[i].ranks);
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_double(w, "divided", search->divided);
    jw_double(w, "load_seconds", search->load_seconds);
    jw_double(w, "run_tokens", plan->run_tokens);
    jw_double(w, "run_seconds", plan_run_seconds(plan, best));
    jw_double(w, "run_joules", plan_run_energy(plan, best));
    jw_double(w, "run_cost", plan_run_cost(plan, best));
}

static void write_rows(JsonWriter *w, const PlanLengths *lengths) {
    jw_object(w, "rows");
    jw_double(w, "count", lengths->rows);
    jw_double(w, "mean_tokens", lengths->rows > 0 ? lengths->tokens / lengths->rows : (double)NAN);
    jw_double(w, "largest_batch", lengths->largest_batch);
    jw_string(w, "why", lengths->why[0] ? lengths->why : NULL);
    jw_end_object(w);
}

void plan_print_json(const PlanCommand *plan) {
    const PlanSearch *search = &plan->search;
    const PlanLayout *best = search->n_best > 0 ? &search->best[0] : &search->least;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "machine", plan->task.machine.name);
    jw_int(&w, "ranks", plan->task.ranks);
    jw_double(&w, "parameters", plan_parameters(&plan->task.model));
    write_rows(&w, &plan->lengths);
    write_parts(&w, "memory_bytes", plan_memory_parts, N_MEMORY_PARTS, &best->memory);
    jw_double(&w, "peak_bytes", best->peak_bytes);
    jw_double(&w, "tokens", plan_step_tokens(&plan->task.run));
    jw_double(&w, "seconds", best->step_seconds);
    jw_array(&w, "layouts");
    for (size_t i = 0; i < search->n_best; i++) write_layout(&w, plan, &search->best[i]);
    if (search->n_best == 0) write_layout(&w, plan, &search->least);
    jw_end_array(&w);
    write_rest(&w, plan, best);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

/* ---- lists ---- */

static void write_presets(void) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_array(&w, "machines");
    for (size_t i = 0; i < n_plan_machines; i++) {
        const PlanMachine *m = &plan_machines[i];
        jw_object(&w, NULL);
        jw_string(&w, "name", m->name);
        jw_string(&w, "title", m->title);
        jw_bool(&w, "gpu", m->gpu);
        jw_double(&w, "f32_flops", m->f32);
        jw_double(&w, "half_flops", m->half);
        jw_double(&w, "bytes_per_second", m->bytes_per_second);
        jw_double(&w, "memory", m->memory);
        jw_double(&w, "watts", m->watts);
        jw_int(&w, "per_machine", m->per_machine);
        jw_string(&w, "inner_link", m->inner.name);
        jw_string(&w, "source", m->source);
        jw_end_object(&w);
    }
    jw_end_array(&w);
    jw_array(&w, "links");
    for (size_t i = 0; i < n_plan_links; i++) {
        const PlanLink *link = &plan_links[i];
        jw_object(&w, NULL);
        jw_string(&w, "name", link->name);
        jw_double(&w, "bytes_per_second", link->bulk.bytes_per_second);
        jw_double(&w, "latency", link->bulk.latency);
        jw_double(&w, "small_latency", link->small_latency);
        jw_string(&w, "source", link->source);
        jw_end_object(&w);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

void plan_print_presets(bool json) {
    if (json) {
        write_presets();
        return;
    }
    print_result("machine       f32 TF/s  16 bits     GB/s     GB    W  ridge  source\n");
    for (size_t i = 0; i < n_plan_machines; i++) {
        const PlanMachine *m = &plan_machines[i];
        char half[16] = "-";
        if (m->half > 0) snprintf(half, sizeof half, "%.1f", m->half / 1e12);
        print_result("%-12s %9.2f %8s %8.1f %6.0f %4.0f %6.1f  %s\n", m->name, m->f32 / 1e12, half, m->bytes_per_second / 1e9, m->memory / 1e9,
                     m->watts, plan_ridge(m), m->source);
    }
    print_result("\nlink            GB/s  latency   small  source\n");
    for (size_t i = 0; i < n_plan_links; i++) {
        const PlanLink *link = &plan_links[i];
        print_result("%-13s %6.2f %5.1f us %4.1f us  %s\n", link->name, link->bulk.bytes_per_second / 1e9, 1e6 * link->bulk.latency,
                     1e6 * link->small_latency, link->source);
    }
}

void plan_print_published(bool json) {
    PlanPublished rows[PLAN_PUBLISHED];
    size_t n = plan_published(rows);
    JsonWriter w = {0};
    jw_array(&w, NULL);
    if (!json) print_result("%-33s %-42s %10s %10s  %s\n", "source", "what", "published", "ours", "unit");
    for (size_t i = 0; i < n; i++) {
        const PlanPublished *row = &rows[i];
        if (!json) {
            print_result("%-33s %-42s %10.4g %10.4g  %s%s%s\n", row->source, row->what, row->theirs, row->ours, row->unit, row->remark[0] ? "; " : "",
                         row->remark);
            continue;
        }
        jw_object(&w, NULL);
        jw_string(&w, "source", row->source);
        jw_string(&w, "what", row->what);
        jw_string(&w, "unit", row->unit);
        jw_double(&w, "published", row->theirs);
        jw_double(&w, "ours", row->ours);
        jw_string(&w, "remark", row->remark);
        jw_end_object(&w);
    }
    jw_end_array(&w);
    if (json) print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}
