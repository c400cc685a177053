/* SPDX-License-Identifier: Apache-2.0 */
/* tune mdp solve: optimal values, a bound on their error, and an optimal policy. */
#include <math.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/mdp/cmd_mdp.h"

enum { SHOWN = 100 }; /* most states that the plain answer lists */

static void write_policy(JsonWriter *w, const char *key, const int32_t *policy, int64_t n) {
    jw_array(w, key);
    for (int64_t s = 0; s < n; s++) {
        if (policy[s] < 0)
            jw_null(w, NULL);
        else
            jw_int(w, NULL, policy[s]);
    }
    jw_end_array(w);
}

static void print_json(const NamedMdp *world, const MdpSolution *solution) {
    int64_t n = world->mdp.n_states, actions = world->mdp.n_actions;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    write_numbers(&w, "V", solution->V, n);
    jw_array(&w, "Q");
    for (int64_t s = 0; s < n; s++) write_numbers(&w, NULL, solution->Q + s * actions, actions);
    jw_end_array(&w);
    write_policy(&w, "policy", solution->policy, n);
    if (solution->attaining) write_policy(&w, "attaining_policy", solution->attaining, n);
    jw_double(&w, "bound", solution->bound);
    if (strcmp(solution->method, "average")) jw_double(&w, "Q_bound", solution->q_bound);
    jw_int(&w, "iterations", solution->iterations);
    jw_string(&w, "method", solution->method);
    jw_double(&w, "gamma", world->mdp.gamma);
    if (!strcmp(solution->method, "average")) jw_double(&w, "gain", solution->gain);
    if (solution->horizon > 0) {
        jw_int(&w, "horizon", solution->horizon);
        jw_array(&w, "step_V");
        for (int64_t t = 0; t <= solution->horizon; t++) write_numbers(&w, NULL, solution->step_V + t * n, n);
        jw_end_array(&w);
        jw_array(&w, "step_policy");
        for (int64_t t = 0; t < solution->horizon; t++) write_policy(&w, NULL, solution->step_policy + t * n, n);
        jw_end_array(&w);
    }
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void print_states(const NamedMdp *world, const MdpSolution *solution) {
    const Mdp *mdp = &world->mdp;
    Str line = {0};
    print_result("\n%-20s %16s  %-14s %s\n", "state", "V", "best action", "Q of every action");
    for (int64_t s = 0; s < MIN(mdp->n_states, SHOWN); s++) {
        str_clear(&line);
        if (world->state_names)
            str_append(&line, world->state_names[s]);
        else
            str_printf(&line, "%lld", (long long)s);
        print_result("%-20s %16.9f  ", str_text(&line), solution->V[s]);
        str_clear(&line);
        if (solution->policy[s] < 0)
            str_append(&line, "(terminal)");
        else if (world->action_names)
            str_append(&line, world->action_names[solution->policy[s]]);
        else
            str_printf(&line, "%d", (int)solution->policy[s]);
        print_result("%-14s", str_text(&line));
        for (int64_t a = 0; a < MIN(mdp->n_actions, 8) && solution->policy[s] >= 0; a++) {
            double q = solution->Q[s * mdp->n_actions + a];
            if (mdp_has(mdp, s, a))
                print_result(" %.6f", q);
            else
                print_result(" -"); /* the state does not have this action */
        }
        print_result("%s\n", mdp->n_actions > 8 && solution->policy[s] >= 0 ? " ..." : "");
    }
    if (mdp->n_states > SHOWN) print_result("and %d more state%s: --json has them\n", (int)(mdp->n_states - SHOWN), plural(mdp->n_states - SHOWN));
    str_release(&line);
}

static void print_plain(const NamedMdp *world, const MdpSolution *solution) {
    const Mdp *mdp = &world->mdp;
    print_result("%d state%s, %d action%s, gamma %.12g\n", (int)mdp->n_states, plural(mdp->n_states), (int)mdp->n_actions, plural(mdp->n_actions),
                 mdp->gamma);
    print_result("%s, %lld iteration%s", solution->method, (long long)solution->iterations, plural(solution->iterations));
    const char *what = strcmp(solution->method, "average") ? "values" : "reward per step";
    if (isfinite(solution->bound))
        print_result(": %s at most %.2g from the truth, rounding included\n", what, solution->bound);
    else
        print_result(": no bound on the distance to the truth was found\n");
    if (!strcmp(solution->method, "average")) print_result("reward per step in the long run: %.12g\n", solution->gain);
    if (world->start) {
        double value = 0;
        for (int64_t s = 0; s < mdp->n_states; s++)
            if (world->start[s] > 0) value += world->start[s] * solution->V[s];
        print_result("value at the start: %.12g\n", value);
    }
    print_states(world, solution);
}

/* Warns if the policy of best actions can go in circles and so does not earn the values. */
static void warn_of_policy(const MdpSolution *solution) {
    if (solution->policy_attains) return;
    show_message("tune: warning: with gamma 1 the printed policy does not earn these values: it stays in a cycle; %s",
                 solution->attaining ? "'attaining_policy' of --json earns them, with actions as good" : "set gamma below 1");
}

typedef struct Solve {
    MdpQuestion question;
    int64_t horizon, sweeps, iterations; /* 1 or more, or NOT_GIVEN */
} Solve;
enum { NOT_GIVEN = INT32_MIN };

static Status read_count(const char *name, int64_t given, int64_t *option) {
    if (given == NOT_GIVEN) return ST_OK;
    if (given < 1) return status_fail(ST_USAGE, "%s must be 1 or more, not %lld", name, (long long)given);
    *option = given;
    return ST_OK;
}

static Status read_counts(const Solve *counts, MdpOptions *options) {
    TRY(read_count("--horizon", counts->horizon, &options->horizon));
    TRY(read_count("--evaluation-sweeps", counts->sweeps, &options->evaluation_sweeps));
    return read_count("--max-iterations", counts->iterations, &options->max_iterations);
}

static Status cmd_mdp_solve_run(const Command *command, void *context) {
    Solve *asked = context;
    MdpQuestion *question = &asked->question;
    NamedMdp *world;
    TRY(command_needs(command, 1, 1));
    TRY(read_counts(asked, &question->options));
    TRY(mdp_question_open(command->arguments[0], question, &world));
    question->options.world = world;
    MdpSolution solution;
    double start = clock_seconds();
    Status status = mdp_solve(&world->mdp, &question->options, command->arena, &solution);
    char time[32];
    if (status == ST_OK) {
        show_line("%lld iteration%s in %s", (long long)solution.iterations, plural(solution.iterations),
                  format_seconds(clock_seconds() - start, time));
        warn_of_policy(&solution);
        if (command->json)
            print_json(world, &solution);
        else
            print_plain(world, &solution);
    }
    named_mdp_free(world);
    return status;
}

static void append_methods(Str *text) {
    const char *name, *help;
    for (size_t i = 0; (name = mdp_method(i, &help)); i++) str_printf(text, "\n    %-12s %s", name, help);
}

static void append_names(Str *text) {
    const char *name, *help;
    for (size_t i = 0; (name = mdp_method(i, &help)); i++) str_printf(text, "%s%s", i ? "|" : "", name);
}

Status cmd_mdp_solve(int argc, char **argv) {
    Solve asked = {MDP_QUESTION_NONE, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN};
    Str help = {0}, names = {0};
    append_names(&names);
    str_append(
        &help,
        "Computes the optimal values and an optimal policy of a finite MDP, from a file (.yaml, .json) or built in.\n"
        "    tune mdp solve FrozenLake-v1 --gamma 0.99\n"
        "The bound is certified: no value is further from the true one, rounding included. With gamma 1, values exist only if episodes end, which is checked.\nmethods:");
    append_methods(&help);
    Command command = {.arguments_help = "FILE|ENV", .help = str_text(&help)};
    const Option options[] = {
        {"--method", OPTION_TEXT, &asked.question.options.method, str_text(&names), "see above (pi for up to 1024 states, mpi for more)"},
        MDP_QUESTION_OPTIONS(asked.question),
        {"--horizon", OPTION_INT, &asked.horizon, "N", "solve for N remaining steps"},
        {"--evaluation-sweeps", OPTION_INT, &asked.sweeps, "N",
         "for mpi: exactly N sweeps between two improvements (at most 20, fewer if they suffice)"},
        {"--max-iterations", OPTION_INT, &asked.iterations, "N", "stop after N iterations, even if the tolerance is not reached"},
        {0},
    };
    Status status = command_main(&command, argc, argv, options, cmd_mdp_solve_run, &asked);
    str_release(&help);
    str_release(&names);
    return status;
}
