/* SPDX-License-Identifier: Apache-2.0 */
/* tune mdp evaluate: the values of a policy. */
#include <math.h>

#include "cmd/cmd_mdp.h"
#include "rl/env/env.h"

enum { SHOWN = 100 }; /* states that the plain answer lists */

/* ---- the answer ---- */

static void print_json(const NamedMdp *world, const MdpSolution *solution, const double *share) {
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
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void print_plain(const NamedMdp *world, const MdpSolution *solution, const double *share) {
    const Mdp *mdp = &world->mdp;
    print_result("%d state%s, %d action%s, gamma %.12g; %s solution of the Bellman equation\n", (int)mdp->n_states, plural(mdp->n_states),
                 (int)mdp->n_actions, plural(mdp->n_actions), mdp->gamma, solution->method);
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

static Status evaluate(const Command *command, Evaluation *evaluation, const NamedMdp *world) {
    double *policy, *share = NULL;
    MdpSolution solution;
    evaluation->question.options.world = world;
    TRY(mdp_policy_read(evaluation->policy, world, command->arena, &policy));
    TRY(mdp_evaluate(&world->mdp, policy, &evaluation->question.options, command->arena, &solution));
    if (evaluation->stationary) {
        share = arena_alloc(command->arena, (size_t)world->mdp.n_states * sizeof *share);
        if (!share) return ST_RESOURCE;
        TRY(mdp_stationary(world, policy, share));
    }
    if (command->json)
        print_json(world, &solution, share);
    else
        print_plain(world, &solution, share);
    return ST_OK;
}

Status cmd_mdp_evaluate(int argc, char **argv) {
    Evaluation evaluation = {.question = MDP_QUESTION_NONE};
    Command command = {
        .arguments_help = "FILE|ENV --policy FILE|uniform",
        .help =
            "Values of a policy, from the Bellman expectation equation: exactly for up to 1024 states, by sparse iterations for more, with a certified bound.\n"
            "A policy file is JSON with an entry for each state: an action, by number or name, or a list of probabilities; or what solve --json wrote.\n"
            "    tune mdp evaluate CliffWalking-v1 --policy uniform --gamma 0.9",
    };
    const Option options[] = {
        {"--policy", OPTION_TEXT, &evaluation.policy, "FILE|uniform", "what is done in each state"},
        MDP_QUESTION_OPTIONS(evaluation.question),
        {"--stationary", OPTION_FLAG, &evaluation.stationary, NULL,
         "also the share of time spent in each state in the long run, an ended episode beginning anew"},
        {0},
    };
    bool done;
    NamedMdp *world = NULL;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = command_needs(&command, 1, 1);
    if (status == ST_OK && !done && !evaluation.policy)
        status = status_hint(status_fail(ST_USAGE, "tune mdp evaluate needs --policy"), "--policy uniform, or a JSON file");
    if (status == ST_OK && !done) status = mdp_question_open(command.arguments[0], &evaluation.question, &world);
    if (status == ST_OK && !done) {
        status = evaluate(&command, &evaluation, world);
        named_mdp_free(world);
    }
    arena_free(command.arena);
    return status;
}
