/* SPDX-License-Identifier: Apache-2.0 */
/* tune plan: what a run takes and which layout to choose, before anything is loaded. */
#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/common/recipe_command.h"
#include "cmd/common/results.h"
#include "cmd/train/plan_command.h"

typedef struct PlanOptions {
    int64_t ranks, data, tensor, pipeline;
    bool list, published;
    const char *output;
} PlanOptions;

static Status check_numbers(const PlanOptions *options) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"--ranks", options->ranks}, {"--data", options->data}, {"--tensor", options->tensor}, {"--pipeline", options->pipeline}};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (numbers[i].value < 0 || numbers[i].value > 65536)
            return status_fail(ST_USAGE, "%s %lld: expected 1 to 65536", numbers[i].name, (long long)numbers[i].value);
    return ST_OK;
}

/* Nothing fits: what is short, and what would help. */
static Status fits_nowhere(const PlanCommand *plan) {
    const PlanLayout *least = &plan->search.least;
    Str layout = {0}, advice = {0};
    if (least->peak_bytes == 0) {
        status_fail(ST_CONFIG, "no layout of %lld ranks divides: %s", (long long)plan->task.ranks,
                    plan->search.n_reasons > 0 ? plan->search.reasons[0].why : "there is none");
        return status_hint(ST_CONFIG, "try another --ranks, or more rows a step");
    }
    plan_describe_layout(least, &layout);
    Status status = plan_what_would_fit(&plan->task, plan->command->arena, &advice);
    if (status == ST_OK) {
        status_fail(ST_RESOURCE, "no layout fits: the smallest, %s, needs %.3g GB a rank, a device has %.3g", str_text(&layout),
                    least->peak_bytes / 1e9, plan->task.machine.memory / 1e9);
        status = status_hint(ST_RESOURCE, "%s", str_text(&advice));
    }
    str_release(&layout);
    str_release(&advice);
    return status;
}

static Status plan_recipe(PlanCommand *plan, const PlanOptions *options) {
    if (options->output) TRY(check_page(options->output));
    use_threads(plan->command->threads ? plan->command->threads : plan->recipe->threads);
    TRY(plan_of_recipe(plan, options->ranks));
    if (options->data) plan->task.data = options->data;
    if (options->tensor) plan->task.tensor = options->tensor;
    if (options->pipeline) plan->task.pipeline = options->pipeline;
    TRY(plan_search(&plan->task, plan->command->arena, &plan->search));
    if (plan->search.n_best > 0 || plan->search.least.peak_bytes > 0) {
        if (plan->command->json)
            plan_print_json(plan);
        else
            plan_print(plan);
    }
    if (plan->search.n_best == 0) return fits_nowhere(plan);
    if (!options->output) return ST_OK;
    TRY(plan_write_page(plan, options->output));
    show_line("wrote %s", options->output);
    return ST_OK;
}

static Status cmd_plan_run(const Command *command, void *context) {
    const PlanOptions *options = context;
    static PlanCommand plan; /* too large for the stack */
    Recipe *recipe;
    TRY(check_numbers(options));
    if (options->list || options->published) {
        TRY(command_needs(command, 0, 0));
        if (options->list) plan_print_presets(command->json);
        if (options->published) plan_print_published(command->json);
        return ST_OK;
    }
    TRY(command_recipe(command, &recipe));
    plan = (PlanCommand){.command = command, .recipe = recipe};
    Status status = plan_recipe(&plan, options);
    recipe_free(recipe);
    return status;
}

Status cmd_plan(int argc, char **argv) {
    static const char *const sections[] = {"", "plan", "model", "lora", "data", "train", "parallel", "generate", "rl", "distil", NULL};
    PlanOptions options = {0};
    Command command = {
        .arguments_help = "RECIPE [KEY=VALUE ...]",
        .help =
            "Computes what a run takes before anything is loaded: memory of a rank, time of a step, and the fastest layouts, on this machine or on one that you do not have. Of the model its config.json and the headers of its files are read, no weights.\n"
            "    tune plan recipes/sft_lora.yaml model.path=DIR plan.machine=h100\n"
            "    tune plan --list",
        .sections = sections,
    };
    const Option table[] = {
        {"--ranks", OPTION_INT, &options.ranks, "N", "number of ranks (one on each GPU or socket)"},
        {"--data", OPTION_INT, &options.data, "N", "only layouts with so many data groups"},
        {"--tensor", OPTION_INT, &options.tensor, "N", "only layouts with so many tensor ranks"},
        {"--pipeline", OPTION_INT, &options.pipeline, "N", "only layouts with so many stages"},
        {"-o", OPTION_TEXT, &options.output, "FILE", "also write a page with charts, such as layouts.html"},
        {"--list", OPTION_FLAG, &options.list, NULL, "name the machines and links that are known"},
        {"--published", OPTION_FLAG, &options.published, NULL, "published figures next to those of the same formulas"},
        {0},
    };
    return command_main(&command, argc, argv, table, cmd_plan_run, &options);
}
