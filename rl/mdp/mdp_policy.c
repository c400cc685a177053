/* SPDX-License-Identifier: Apache-2.0 */
/* Reads policies of finite MDPs, by name or from a file. */
#include "rl/mdp/mdp.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Status policy_fault(const char *path, const NamedMdp *world, int64_t state, const char *problem) {
    Str text = {0};
    mdp_append_state(&text, world, state);
    status_fail(ST_INPUT, "policy '%s': %s: %s", path, str_text(&text), problem);
    str_release(&text);
    return ST_INPUT;
}

/* Terminal states have no choices; in a world of which only the sizes are known every state has every action. */
static bool is_choice(const Mdp *mdp, int64_t s, int64_t a) { return !mdp->begin || mdp->terminal[s] || mdp_has(mdp, s, a); }

static Status not_a_choice(const char *path, const NamedMdp *world, int64_t s, int64_t action) {
    Str text = {0};
    str_append(&text, "it does not have ");
    mdp_append_action(&text, world, action);
    Status status = policy_fault(path, world, s, str_text(&text));
    str_release(&text);
    return status;
}

static int64_t action_of(const NamedMdp *world, const json_t *entry) {
    if (json_is_integer(entry)) return json_integer_value(entry);
    if (json_is_real(entry)) { /* 1.0, from programs that store all numbers as doubles */
        double number = json_real_value(entry);
        return number >= 0 && number < world->mdp.n_actions && number == floor(number) ? (int64_t)number : -1;
    }
    for (int64_t a = 0; world->action_names && json_is_string(entry) && a < world->mdp.n_actions; a++)
        if (!strcmp(world->action_names[a], json_string_value(entry))) return a;
    return -1;
}

static Status read_probabilities(const char *path, const NamedMdp *world, int64_t s, const json_t *entry, double *row) {
    int64_t n = world->mdp.n_actions;
    double sum = 0;
    if ((int64_t)json_array_size(entry) != n) return policy_fault(path, world, s, "expected a probability for every action");
    for (int64_t a = 0; a < n; a++) {
        const json_t *value = json_array_get(entry, (size_t)a);
        if (json_is_null(value) && !is_choice(&world->mdp, s, a)) continue; /* solve --json writes null for actions that do not exist */
        row[a] = json_number_value(value);
        if (!json_is_number(value) || !(row[a] >= 0)) return policy_fault(path, world, s, "a probability is not a number from 0 to 1");
        if (row[a] > 0 && !is_choice(&world->mdp, s, a)) return not_a_choice(path, world, s, a);
        sum += row[a];
    }
    if (fabs(sum - 1) <= 1e-9) return ST_OK;
    char problem[80];
    snprintf(problem, sizeof problem, "the policy's probabilities sum to %.12g, expected 1", sum);
    return policy_fault(path, world, s, problem);
}

static Status read_entry(const char *path, const NamedMdp *world, int64_t s, const json_t *entry, double *row) {
    int64_t n = world->mdp.n_actions, action = action_of(world, entry);
    /* No action in terminal states */
    if (world->mdp.terminal[s] && ((action >= 0 && action < n) || (json_is_array(entry) && (int64_t)json_array_size(entry) == n))) return ST_OK;
    if (json_is_null(entry)) return world->mdp.terminal[s] ? ST_OK : policy_fault(path, world, s, "no action, and it is not terminal");
    if (json_is_array(entry)) return read_probabilities(path, world, s, entry, row);
    if (action < 0 || action >= n) return policy_fault(path, world, s, "expected an action, by number from 0 or by name, or a list of probabilities");
    if (!is_choice(&world->mdp, s, action)) return not_a_choice(path, world, s, action);
    row[action] = 1;
    return ST_OK;
}

static Status read_file(const char *path, const NamedMdp *world, double *policy) {
    json_t *root;
    TRY(json_read_file(path, &root));
    const json_t *entries = json_is_object(root) ? json_object_get(root, "policy") : root;
    Status status = ST_OK;
    if (!json_is_array(entries) || (int64_t)json_array_size(entries) != world->mdp.n_states)
        status = status_fail(ST_INPUT, "policy '%s': expected a list with an entry for each of %d states", path, (int)world->mdp.n_states);
    for (int64_t s = 0; s < world->mdp.n_states && status == ST_OK; s++)
        status = read_entry(path, world, s, json_array_get(entries, (size_t)s), policy + s * world->mdp.n_actions);
    json_decref(root);
    return status;
}

/* Uniform over the actions that the state has. */
static void take_any(const Mdp *mdp, int64_t s, double *row) {
    int64_t n = 0;
    for (int64_t a = 0; a < mdp->n_actions; a++) n += is_choice(mdp, s, a);
    for (int64_t a = 0; a < mdp->n_actions; a++) row[a] = is_choice(mdp, s, a) ? 1.0 / (double)n : 0;
}

Status mdp_policy_read(const char *spec, const NamedMdp *world, Arena *arena, double **policy) {
    size_t n = (size_t)world->mdp.n_states * (size_t)world->mdp.n_actions;
    *policy = arena_zero(arena, n * sizeof **policy);
    if (!*policy) return ST_RESOURCE;
    if (strcmp(spec, "uniform") != 0) return read_file(spec, world, *policy);
    for (int64_t s = 0; s < world->mdp.n_states; s++) take_any(&world->mdp, s, *policy + s * world->mdp.n_actions);
    return ST_OK;
}
