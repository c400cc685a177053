/* A policy that is given: by name, or from a file. */
#include "rl/table.h"

#include <math.h>
#include <string.h>

static Status read_action(const json_t *entry, const char *path, int64_t state, int64_t n_actions, double *pi) {
    json_int_t action = json_integer_value(entry);
    if (action < 0 || action >= n_actions)
        return status_fail(ST_INPUT, "'%s': action of state %lld is %lld, expected 0 to %lld", path, (long long)state, (long long)action, (long long)n_actions - 1);
    for (int64_t a = 0; a < n_actions; a++) pi[a] = a == action;
    return ST_OK;
}

static Status read_probabilities(const json_t *entry, const char *path, int64_t state, int64_t n_actions, double *pi) {
    double sum = 0;
    if (json_array_size(entry) != (size_t)n_actions)
        return status_fail(ST_INPUT, "'%s': state %lld has %zu probabilities, expected %lld", path, (long long)state, json_array_size(entry), (long long)n_actions);
    for (int64_t a = 0; a < n_actions; a++) {
        const json_t *p = json_array_get(entry, (size_t)a);
        pi[a] = json_number_value(p);
        if (!json_is_number(p) || !(pi[a] >= 0 && pi[a] <= 1)) return status_fail(ST_INPUT, "'%s': probability of action %lld in state %lld is no number from 0 to 1", path, (long long)a, (long long)state);
        sum += pi[a];
    }
    return fabs(sum - 1) <= 1e-9 ? ST_OK : status_fail(ST_INPUT, "'%s': probabilities of state %lld sum to %.12g, expected 1", path, (long long)state, sum);
}

static Status read_states(const json_t *root, const char *path, int64_t n_states, int64_t n_actions, double *pi) {
    if (!json_is_array(root)) return status_fail(ST_INPUT, "'%s' is no list with one entry per state", path);
    if (json_array_size(root) != (size_t)n_states) return status_fail(ST_INPUT, "'%s' has %zu entries, expected one for each of %lld states", path, json_array_size(root), (long long)n_states);
    for (int64_t s = 0; s < n_states; s++) {
        const json_t *entry = json_array_get(root, (size_t)s);
        double *row = pi + s * n_actions;
        if (json_is_integer(entry)) TRY(read_action(entry, path, s, n_actions, row));
        else if (json_is_array(entry)) TRY(read_probabilities(entry, path, s, n_actions, row));
        else if (json_is_null(entry)) for (int64_t a = 0; a < n_actions; a++) row[a] = 1 / (double)n_actions; /* a terminal state, as tune mdp solve writes it */
        else return status_fail(ST_INPUT, "'%s': entry of state %lld is neither an action nor a list of probabilities", path, (long long)s);
    }
    return ST_OK;
}

Status policy_read(const char *name, int64_t n_states, int64_t n_actions, double *pi) {
    if (strcmp(name, "uniform") == 0) {
        for (int64_t i = 0; i < n_states * n_actions; i++) pi[i] = 1 / (double)n_actions;
        return ST_OK;
    }
    json_t *root;
    TRY(json_read_file(name, &root));
    Status status = read_states(root, name, n_states, n_actions, pi);
    json_decref(root);
    return status;
}
