/* SPDX-License-Identifier: Apache-2.0 */
/* tune mdp evaluate: the values of a policy. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/mdp/cmd_mdp.h"
#include "rl/env/env.h"

enum { SHOWN = 100 }; /* most states that the plain answer lists */

/* ---- the answer ---- */

/* Writes P_pi and R_pi of V = R_pi + gamma P_pi V. Transitions that end the episode are left out of P_pi, so its rows may sum to less than 1, and
 * terminal states have rows of zeros. */
static Status write_chain(JsonWriter *w, const NamedMdp *world, const double *policy, Arena *arena) {
    enum { MOST = 1024 }; /* most states for which the matrix is written */
    int64_t n = world->mdp.n_states;
    Mdp process;
    TRY(mdp_induced_chain(&world->mdp, policy, world, arena, &process));
    double *R = arena_zero(arena, (size_t)n * sizeof *R), *row = arena_alloc(arena, (size_t)n * sizeof *row);
    if (!R || !row) return ST_RESOURCE;
    if (n > MOST)
        show_line("note: P_pi is left out: it is written for at most %d states", MOST);
    else
        jw_array(w, "P_pi");
    for (int64_t s = 0; s < n; s++) {
        memset(row, 0, (size_t)n * sizeof *row * (n <= MOST));
        for (int64_t k = process.begin[s]; k < process.begin[s + 1]; k++) {
            R[s] += process.probability[k] * process.reward[k];
            if (!(process.ends && process.ends[k])) row[process.next[k]] += process.probability[k];
        }
        if (n <= MOST) write_numbers(w, NULL, row, n);
    }
    if (n <= MOST) jw_end_array(w);
    write_numbers(w, "R_pi", R, n);
    return ST_OK;
}

static Status print_json(const NamedMdp *world, const double *policy, const MdpSolution *solution, const double *share, Arena *arena) {
    int64_t n = world->mdp.n_states, actions = world->mdp.n_actions;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    write_numbers(&w, "V", solution->V, n);
    jw_array(&w, "Q");
    for (int64_t s = 0; s < n; s++) write_numbers(&w, NULL, solution->Q + s * actions, actions);
    jw_end_array(&w);
    jw_double(&w, "bound", solution->bound);
    jw_double(&w, "Q_bound", solution->q_bound);
    jw_int(&w, "iterations", solution->iterations);
    jw_string(&w, "method", solution->method);
    jw_double(&w, "gamma", world->mdp.gamma);
    if (share) write_numbers(&w, "stationary", share, n);
    Status status = write_chain(&w, world, policy, arena);
    jw_end_object(&w);
    if (status == ST_OK) print_result("%s\n", str_text(&w.text));
    jw_release(&w);
    return status;
}

static void print_plain(const NamedMdp *world, const MdpSolution *solution, const double *share) {
    const Mdp *mdp = &world->mdp;
    char actions[32] = "nothing to choose";
    if (!world->is_chain) snprintf(actions, sizeof actions, "%d action%s", (int)mdp->n_actions, plural(mdp->n_actions));
    print_result("%d state%s, %s, gamma %.12g; %s solution of the Bellman equation\n", (int)mdp->n_states, plural(mdp->n_states), actions, mdp->gamma,
                 solution->method);
    if (isfinite(solution->bound))
        print_result("values at most %.2g from the truth, rounding included\n", solution->bound);
    else
        print_result("no bound on the distance to the truth was found\n");
    if (world->start) {
        double value = 0;
        for (int64_t s = 0; s < mdp->n_states; s++)
            if (world->start[s] > 0) value += world->start[s] * solution->V[s];
        print_result("value at the start: %.12g\n", value);
    }
    print_result("\n%-20s %16s%s\n", "state", "V", share ? "  share of time" : "");
    Str name = {0};
    for (int64_t s = 0; s < MIN(mdp->n_states, SHOWN); s++) {
        str_clear(&name);
        if (world->state_names)
            str_append(&name, world->state_names[s]);
        else
            str_printf(&name, "%lld", (long long)s);
        print_result("%-20s %16.9f", str_text(&name), solution->V[s]);
        if (share) print_result("  %13.9f", share[s]);
        print_result("%s\n", mdp->terminal[s] ? "  (terminal)" : "");
    }
    if (mdp->n_states > SHOWN) print_result("and %d more state%s: --json has them\n", (int)(mdp->n_states - SHOWN), plural(mdp->n_states - SHOWN));
    str_release(&name);
}

typedef struct Evaluation {
    MdpQuestion question;
    const char *policy;
    bool stationary;
} Evaluation;

static Status cmd_mdp_evaluate_policy(const Command *command, Evaluation *evaluation, const NamedMdp *world) {
    double *policy, *share = NULL;
    MdpSolution solution;
    evaluation->question.options.world = world;
    if (!evaluation->policy && world->mdp.n_actions > 1)
        return status_hint(status_fail(ST_USAGE, "tune mdp evaluate needs --policy"), "--policy uniform, or a JSON file");
    TRY(mdp_policy_read(evaluation->policy ? evaluation->policy : "uniform", world, command->arena, &policy));
    TRY(mdp_evaluate(&world->mdp, policy, &evaluation->question.options, command->arena, &solution));
    if (evaluation->stationary) {
        share = arena_alloc(command->arena, (size_t)world->mdp.n_states * sizeof *share);
        if (!share) return ST_RESOURCE;
        TRY(mdp_stationary(world, policy, share));
    }
    if (command->json) return print_json(world, policy, &solution, share, command->arena);
    print_plain(world, &solution, share);
    return ST_OK;
}

static Status cmd_mdp_evaluate_run(const Command *command, void *context) {
    Evaluation *evaluation = context;
    NamedMdp *world;
    TRY(command_needs(command, 1, 1));
    TRY(mdp_question_open(command->arguments[0], &evaluation->question, &world));
    Status status = cmd_mdp_evaluate_policy(command, evaluation, world);
    named_mdp_free(world);
    return status;
}

Status cmd_mdp_evaluate(int argc, char **argv) {
    Evaluation evaluation = {.question = MDP_QUESTION_NONE};
    Command command = {
        .arguments_help = "FILE|ENV [--policy FILE|uniform]",
        .help =
            "Computes the values of a policy from the Bellman expectation equation: exactly for up to 1024 states, by sparse iterations for more, with a certified bound.\n"
            "--json also gives the chain and the rewards under the policy, P_pi and R_pi. A Markov chain or reward process, a file without actions, needs no policy.\n"
            "A policy file is JSON with an entry for each state: an action, by number or name, or a list of probabilities; or what solve --json wrote.\n"
            "    tune mdp evaluate CliffWalking-v1 --policy uniform --gamma 0.9",
    };
    const Option options[] = {
        {"--policy", OPTION_TEXT, &evaluation.policy, "FILE|uniform", "the policy to evaluate"},
        MDP_QUESTION_OPTIONS(evaluation.question),
        {"--stationary", OPTION_FLAG, &evaluation.stationary, NULL,
         "also give the share of time spent in each state in the long run, where a new episode follows each ended one"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_mdp_evaluate_run, &evaluation);
}
