/* SPDX-License-Identifier: Apache-2.0 */
/* tune mdp simulate: plays given actions step by step, or episodes under a policy. */
#include "cmd/app/terminal.h"
#include "lib/base/system.h"
#include "cmd/mdp/cmd_mdp.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rl/env/env.h"

enum { MOST_COPIES = 64, DEFAULT_EPISODES = 100, LONGEST_EPISODE = 10000 };

typedef struct Simulate {
    const char *state, *actions, *policy;
    int64_t episodes, seed, max_steps; /* max_steps -1: the environment's own limit */
    Env *env;
} Simulate;

static Status open_environment(const Command *command, int64_t copies, Simulate *job) {
    const Yaml *node;
    TRY(mdp_argument(command->arguments[0], command->arena, &node));
    return env_from_recipe(node, copies, &job->env);
}

/* Whether states and observations are numbers, as in finite worlds. */
static bool is_numbered(const Env *env) { return env->world && env->observation.n > 0; }

/* ---- reading JSON ---- */

static Status read_json(const char *what, const char *text, json_t **root) {
    if (text[0] == '[' || text[0] == '{' || text[0] == '"' || text[0] == '-' || (text[0] >= '0' && text[0] <= '9' && !file_exists(text)))
        return json_read_text(text, strlen(text), what, root);
    return json_read_file(text, root);
}

static Status find_name(const char *what, const char *name, const char *const *names, int64_t n, double *number) {
    for (int64_t i = 0; names && i < n; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *number = (double)i;
        return ST_OK;
    }
    status_fail(ST_INPUT, "%s: there is no '%s'", what, name);
    return status_hint_nearest(ST_INPUT, name, names, names ? (size_t)n : 0, NULL);
}

/* A number, a list of `size` numbers, or a name. */
static Status read_numbers(const char *what, const json_t *json, const char *const *names, int64_t n_names, int64_t size, double *numbers) {
    if (json_is_string(json)) return find_name(what, json_string_value(json), names, n_names, numbers);
    bool good = json_is_number(json) ? size == 1 : json_array_size(json) == (size_t)size;
    if (json_is_number(json)) numbers[0] = json_number_value(json);
    for (size_t i = 0; good && json_is_array(json) && i < (size_t)size; i++) {
        good = json_is_number(json_array_get(json, i));
        numbers[i] = json_number_value(json_array_get(json, i));
    }
    return good ? ST_OK : status_fail(ST_INPUT, "%s is not a list of %lld numbers", what, (long long)size);
}

/* ST_INPUT if the world's states are numbered and `state` is not one of them. */
static Status check_number(const Env *env, double state) {
    int64_t n = env->world->mdp.n_states;
    if (env->state_size != 1 || (state >= 0 && state < (double)n && state == floor(state))) return ST_OK;
    return status_fail(ST_INPUT, "--state %.17g is not a state of '%s': states are 0 to %lld", state, env->id, (long long)(n - 1));
}

static Status set_state(const Command *command, Simulate *job) {
    Env *env = job->env;
    json_t *json;
    double *numbers = arena_zero(command->arena, (size_t)MAX(env->state_size, 1) * sizeof *numbers);
    if (!numbers) return ST_RESOURCE;
    TRY(read_json("--state", job->state, &json));
    bool numbered = is_numbered(env);
    Status status = env_is_remote(env) ? ST_OK
                                       : read_numbers("--state", json, numbered ? env->world->state_names : NULL,
                                                      numbered ? env->world->mdp.n_states : 0, env->state_size, numbers);
    json_decref(json);
    if (status == ST_OK && numbered) status = check_number(env, numbers[0]);
    return status == ST_OK ? env_set_state(env, 0, numbers) : status;
}

static Status read_actions(const Command *command, const Simulate *job, double **actions, size_t *n) {
    const Env *env = job->env;
    json_t *json, *action;
    size_t t;
    TRY(read_json("--actions", job->actions, &json));
    *n = json_array_size(json);
    Status status = json_is_array(json) ? ST_OK : status_fail(ST_INPUT, "the actions are not a list");
    *actions = arena_zero(command->arena, (*n + 1) * (size_t)env->action.size * sizeof **actions);
    if (!*actions) status = ST_RESOURCE;
    for (t = 0; status == ST_OK && t < *n; t++) {
        char what[64];
        snprintf(what, sizeof what, "action %zu", t);
        action = json_array_get(json, t);
        status = read_numbers(what, action, env->world ? env->world->action_names : NULL, env->action.n, env->action.size,
                              *actions + t * (size_t)env->action.size);
    }
    json_decref(json);
    return status;
}

/* ---- given actions ---- */

typedef struct Trace {
    size_t n;
    double *actions, *states, *observations, *rewards;
    bool *terminated, *truncated;
} Trace;

/* Plays the actions. A time limit is recorded and play continues; the end of the episode stops it. */
static Status follow(const Command *command, Simulate *job, Trace *trace) {
    Env *env = job->env;
    size_t state = (size_t)env->state_size, seen = (size_t)env->observation.size, n = trace->n;
    int64_t limit = env->max_steps;
    trace->states = arena_zero(command->arena, (n + 1) * state * sizeof(double));
    trace->observations = arena_zero(command->arena, (n + 1) * seen * sizeof(double));
    trace->rewards = arena_zero(command->arena, (n + 1) * sizeof(double));
    trace->terminated = arena_zero(command->arena, n + 1);
    trace->truncated = arena_zero(command->arena, n + 1);
    if (!trace->states || !trace->observations || !trace->rewards || !trace->terminated || !trace->truncated) return ST_RESOURCE;
    env->max_steps = 0;
    for (size_t t = 0; t <= n; t++) {
        if (state) memcpy(trace->states + t * state, env->states, state * sizeof(double));
        memcpy(trace->observations + t * seen, env->observations, seen * sizeof(double));
        if (t == n) break;
        Status status = env_step(env, trace->actions + t * (size_t)env->action.size, false);
        if (status != ST_OK) return status_prefix(status, "step %zu", t);
        trace->rewards[t] = env->rewards[0];
        trace->terminated[t] = env->terminated[0];
        trace->truncated[t] = env->truncated[0] || (limit > 0 && env->lengths[0] >= limit);
    }
    return ST_OK;
}

static void write_row(JsonWriter *w, const double *row, int64_t size, bool whole) {
    if (whole) {
        jw_int(w, NULL, (int64_t)*row);
        return;
    }
    if (size == 0) {
        jw_null(w, NULL);
        return;
    }
    write_numbers(w, NULL, row, size);
}

static void write_flags(JsonWriter *w, const char *key, const bool *flags, size_t n) {
    jw_array(w, key);
    for (size_t t = 0; t < n; t++) jw_bool(w, NULL, flags[t]);
    jw_end_array(w);
}

/* Prints what is written so far, since the numbers of 1e8 episodes are gigabytes of text. */
static void print_part(JsonWriter *w) {
    enum { PART = 1 << 16 };
    if (w->text.len < PART) return;
    print_result("%s", str_text(&w->text));
    str_clear(&w->text);
}

static void write_doubles(JsonWriter *w, const char *key, const double *values, size_t n) {
    jw_array(w, key);
    for (size_t t = 0; t < n; t++) {
        jw_double(w, NULL, values[t]);
        print_part(w);
    }
    jw_end_array(w);
}

static void print_trace_json(const Env *env, const Trace *trace) {
    JsonWriter w = {0};
    size_t n = trace->n;
    jw_object(&w, NULL);
    jw_array(&w, "states");
    for (size_t t = 0; t <= n; t++) write_row(&w, trace->states + t * (size_t)env->state_size, env->state_size, is_numbered(env));
    jw_end_array(&w);
    jw_array(&w, "observations");
    for (size_t t = 0; t <= n; t++)
        write_row(&w, trace->observations + t * (size_t)env->observation.size, env->observation.size, env->observation.n > 0);
    jw_end_array(&w);
    write_doubles(&w, "rewards", trace->rewards, n);
    write_flags(&w, "terminated", trace->terminated, n);
    write_flags(&w, "truncated", trace->truncated, n);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void append_state(Str *text, const Env *env, const Trace *trace, size_t t) {
    bool hidden = env->state_size == 0;
    const double *row = hidden ? trace->observations + t * (size_t)env->observation.size : trace->states + t * (size_t)env->state_size;
    if (is_numbered(env)) mdp_append_state(text, env->world, (int64_t)*row);
    for (int64_t i = 0; !is_numbered(env) && i < (hidden ? env->observation.size : env->state_size); i++)
        str_printf(text, "%s%.6g", i ? " " : "", row[i]);
}

static void append_action(Str *text, const Env *env, const double *action) {
    if (env->world) mdp_append_action(text, env->world, (int64_t)*action);
    for (int64_t i = 0; !env->world && i < env->action.size; i++) str_printf(text, "%s%.6g", i ? " " : "action ", action[i]);
}

static void print_trace(const Env *env, const Trace *trace) {
    Str text = {0};
    double sum = 0;
    for (size_t t = 0; t <= trace->n; t++) {
        str_printf(&text, "%6zu  ", t);
        append_state(&text, env, trace, t);
        if (t < trace->n) {
            str_append(&text, "  ");
            append_action(&text, env, trace->actions + t * (size_t)env->action.size);
            str_printf(&text, "  reward %g%s%s", trace->rewards[t], trace->terminated[t] ? "  terminated" : "",
                       trace->truncated[t] ? "  truncated" : "");
            sum += trace->rewards[t];
        }
        str_append_char(&text, '\n');
    }
    str_printf(&text, "return %.10g\n", sum);
    print_text(text.data, text.len);
    str_release(&text);
}

static Status simulate_trace(const Command *command, Simulate *job) {
    Trace trace = {0};
    TRY(open_environment(command, 1, job));
    TRY(read_actions(command, job, &trace.actions, &trace.n));
    TRY(env_reset(job->env, (uint64_t)job->seed));
    if (job->state) TRY(set_state(command, job));
    TRY(follow(command, job, &trace));
    if (command->json)
        print_trace_json(job->env, &trace);
    else
        print_trace(job->env, &trace);
    return ST_OK;
}

/* ---- episodes ---- */

typedef struct Episodes {
    int64_t n, steps, terminated, truncated;
    double *returns, *discounted, *visits, *stationary; /* visits and stationary (n_states), NULL where states have no numbers */
    int64_t *lengths;
    double *policy; /* (n_states, n_actions); NULL: all actions are equally likely */
    double mean, deviation, mean_discounted, mean_length;
} Episodes;

/* Draws action `step` of a copy: from the policy's row, uniformly, or normally distributed if the actions have no bounds. */
static void cmd_mdp_simulate_choose(const Simulate *job, const Episodes *episodes, int64_t copy, uint64_t step, double *action) {
    const Env *env = job->env;
    const Space *space = &env->action;
    RngKey key = rng_key((uint64_t)job->seed, RNG_SAMPLE, (uint64_t)copy);
    if (space->n && !episodes->policy) *action = (double)rng_below(key, step, (uint64_t)space->n);
    if (space->n && episodes->policy) {
        const double *row = episodes->policy + (int64_t)env->observations[copy] * space->n;
        double left = rng_uniform(key, step);
        *action = 0;
        for (int64_t a = 0; a < space->n; a++) {
            if (row[a] > 0) *action = (double)a;
            if (left < row[a]) break;
            left -= row[a];
        }
    }
    for (int64_t i = 0; !space->n && i < space->size; i++) {
        uint64_t draw = step * (uint64_t)space->size + (uint64_t)i;
        bool bounded = isfinite(space->low[i]) && isfinite(space->high[i]);
        action[i] = bounded ? space->low[i] + (space->high[i] - space->low[i]) * rng_uniform(key, draw) : rng_normal(key, draw);
    }
}

static bool episodes_allocate(Arena *arena, const Env *env, Episodes *episodes) {
    size_t n = (size_t)episodes->n;
    episodes->returns = arena_zero(arena, n * sizeof(double));
    episodes->discounted = arena_zero(arena, n * sizeof(double));
    episodes->lengths = arena_zero(arena, n * sizeof(int64_t));
    if (is_numbered(env)) {
        episodes->visits = arena_zero(arena, (size_t)env->observation.n * sizeof(double));
        episodes->stationary = arena_zero(arena, (size_t)env->observation.n * sizeof(double));
        if (!episodes->visits || !episodes->stationary) return false;
    }
    return episodes->returns && episodes->discounted && episodes->lengths;
}

/* Copy c plays episodes c, c + copies, ..., so the set of counted episodes does not depend on their lengths. */
static Status cmd_mdp_simulate_play(const Command *command, Simulate *job, Episodes *episodes) {
    Env *env = job->env;
    int64_t copies = env->copies, playing = copies;
    double gamma = env->world ? env->world->mdp.gamma : 1,
           *actions = arena_zero(command->arena, (size_t)(copies * env->action.size) * sizeof *actions);
    double *factor = arena_zero(command->arena, (size_t)copies * sizeof *factor);
    int64_t *episode = arena_zero(command->arena, (size_t)copies * sizeof *episode);
    if (!actions || !factor || !episode) return ST_RESOURCE;
    for (int64_t c = 0; c < copies; c++) {
        episode[c] = c;
        factor[c] = 1;
    }
    for (uint64_t t = 0; playing > 0; t++) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        for (int64_t c = 0; c < copies; c++) {
            cmd_mdp_simulate_choose(job, episodes, c, t, actions + c * env->action.size);
            if (episodes->visits && episode[c] < episodes->n) episodes->visits[(int64_t)env->observations[c]]++;
        }
        TRY(env_step(env, actions, true));
        for (int64_t c = 0; c < copies; c++) {
            int64_t e = episode[c];
            if (e >= episodes->n) continue;
            episodes->steps++;
            episodes->lengths[e]++;
            episodes->returns[e] += env->rewards[c];
            episodes->discounted[e] += factor[c] * env->rewards[c];
            factor[c] *= gamma;
            if (!env->terminated[c] && !env->truncated[c]) continue;
            episodes->terminated += env->terminated[c];
            episodes->truncated += !env->terminated[c];
            factor[c] = 1;
            episode[c] += copies;
            if (episode[c] >= episodes->n) playing--;
        }
    }
    return ST_OK;
}

static void summarise(const Env *env, Episodes *episodes) {
    double n = (double)episodes->n, square = 0;
    for (int64_t e = 0; e < episodes->n; e++) {
        episodes->mean += episodes->returns[e] / n;
        episodes->mean_discounted += episodes->discounted[e] / n;
    }
    for (int64_t e = 0; e < episodes->n; e++) square += (episodes->returns[e] - episodes->mean) * (episodes->returns[e] - episodes->mean);
    episodes->deviation = sqrt(square / n);
    episodes->mean_length = (double)episodes->steps / n;
    for (int64_t s = 0; episodes->visits && s < env->observation.n; s++) episodes->visits[s] /= (double)episodes->steps;
}

static void print_episodes_json(const Env *env, const Episodes *episodes) {
    JsonWriter w = {0};
    size_t n = (size_t)episodes->n;
    jw_object(&w, NULL);
    jw_string(&w, "environment", env->id);
    jw_int(&w, "episodes", episodes->n);
    jw_int(&w, "steps", episodes->steps);
    jw_double(&w, "mean_return", episodes->mean);
    jw_double(&w, "std_return", episodes->deviation);
    if (env->world) jw_double(&w, "gamma", env->world->mdp.gamma);
    if (env->world) jw_double(&w, "mean_discounted_return", episodes->mean_discounted);
    jw_double(&w, "mean_length", episodes->mean_length);
    jw_int(&w, "terminated", episodes->terminated);
    jw_int(&w, "truncated", episodes->truncated);
    write_doubles(&w, "returns", episodes->returns, n);
    jw_array(&w, "lengths");
    for (size_t e = 0; e < n; e++) {
        jw_int(&w, NULL, episodes->lengths[e]);
        print_part(&w);
    }
    jw_end_array(&w);
    if (episodes->visits) write_doubles(&w, "state_distribution", episodes->visits, (size_t)env->observation.n);
    if (episodes->stationary) write_doubles(&w, "stationary", episodes->stationary, (size_t)env->observation.n);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void print_episodes(const Env *env, const Episodes *episodes) {
    char number[32];
    print_result("%lld episode%s, %lld step%s: %lld terminated, %lld truncated\n", (long long)episodes->n, plural(episodes->n),
                 (long long)episodes->steps, plural(episodes->steps), (long long)episodes->terminated, (long long)episodes->truncated);
    print_result("return %s, standard deviation %s", format_number(episodes->mean, 6, number), NUMBER(episodes->deviation));
    if (env->world && env->world->mdp.gamma < 1)
        print_result("; discounted by %g: %s", env->world->mdp.gamma, format_number(episodes->mean_discounted, 6, number));
    print_result("\nlength %s\n", NUMBER(episodes->mean_length));
    if (!episodes->visits) return;
    print_result("\nshare of the steps that begin in a state%s\n", episodes->stationary ? ", and the same of an endless run" : "");
    for (int64_t s = 0; s < env->observation.n; s++) {
        if (episodes->visits[s] == 0) continue;
        Str text = {0};
        mdp_append_state(&text, env->world, s);
        print_result("  %-24s %8.5f", str_text(&text), episodes->visits[s]);
        if (episodes->stationary) print_result("  %8.5f", episodes->stationary[s]);
        print_result("\n");
        str_release(&text);
    }
}

static Status open_policy(const Command *command, Simulate *job, Episodes *episodes) {
    const char *policy = job->policy ? job->policy : "uniform";
    if (is_numbered(job->env)) return mdp_policy_read(policy, job->env->world, command->arena, &episodes->policy);
    if (strcmp(policy, "uniform") == 0) return ST_OK;
    status_fail(ST_USAGE, "a policy file needs numbered states, and environment '%s' has none", job->env->id);
    return status_hint(ST_USAGE, "tune eval RUN plays a policy that tune rl has trained");
}

static Status simulate_episodes(const Command *command, Simulate *job) {
    Episodes episodes = {.n = job->episodes};
    if (job->state) return status_hint(status_fail(ST_USAGE, "--state needs --actions"), "the environment chooses where episodes begin");
    TRY(open_environment(command, MIN(job->episodes, MOST_COPIES), job));
    TRY(env_number_states(&job->env));
    Env *env = job->env;
    if (job->max_steps > 0)
        env->max_steps = env->max_steps > 0 ? MIN(job->max_steps, env->max_steps) : job->max_steps;
    else if (env->max_steps == 0)
        env->max_steps = LONGEST_EPISODE;
    TRY(open_policy(command, job, &episodes));
    if (!episodes_allocate(command->arena, env, &episodes)) return ST_RESOURCE;
    TRY(env_reset(env, (uint64_t)job->seed));
    TRY(cmd_mdp_simulate_play(command, job, &episodes));
    summarise(env, &episodes);
    Status known = episodes.stationary ? mdp_stationary(env->world, episodes.policy, episodes.stationary) : ST_OK;
    if (known == ST_INTERRUPTED) return known;
    if (known != ST_OK) {
        show_line("no shares of an endless run: %s", status_text());
        episodes.stationary = NULL;
    }
    if (command->json)
        print_episodes_json(env, &episodes);
    else
        print_episodes(env, &episodes);
    return ST_OK;
}

static Status simulate(const Command *command, void *context) {
    Simulate *job = context;
    TRY(command_needs(command, 1, 1));
    if (job->episodes < 1 || job->episodes > 100000000)
        return status_fail(ST_USAGE, "--episodes must be 1 to 100 million, not %lld", (long long)job->episodes);
    if (job->max_steps == 0 || job->max_steps < -1)
        return status_fail(ST_USAGE, "--max-steps must be 1 or more, not %lld", (long long)job->max_steps);
    if (job->actions && job->policy) return status_fail(ST_USAGE, "--actions and --policy exclude each other");
    Status status = job->actions ? simulate_trace(command, job) : simulate_episodes(command, job);
    env_free(job->env);
    return status;
}

Status cmd_mdp_simulate(int argc, char **argv) {
    Simulate job = {.episodes = DEFAULT_EPISODES, .max_steps = -1};
    Command command = {
        .arguments_help = "FILE|ENV",
        .help =
            "Plays episodes under a policy and shows their statistics; or plays given actions one by one and prints the result of each. ENV is what a recipe has under rl.env: CartPole-v1, "
            "FrozenLake-v1:map_name=8x8, an MDP file, '{command: [python3, recipes/gym_bridge.py, LunarLander-v3]}'.\n"
            "    tune mdp simulate FrozenLake-v1 --episodes 1000 --policy policy.json\n"
            "    tune mdp simulate CartPole-v1 --state '[0.01, 0.02, 0.03, 0.04]' --actions '[1, 0, 1]' --json",
    };
    const Option options[] = {
        {"--actions", OPTION_TEXT, &job.actions, "FILE|JSON", "a list of actions: numbers, lists of numbers, or names"},
        {"--state", OPTION_TEXT, &job.state, "JSON", "state in which the actions begin: a number, a list, or a name"},
        {"--episodes", OPTION_INT, &job.episodes, "N", "number of episodes (100)"},
        {"--policy", OPTION_TEXT, &job.policy, "FILE|uniform", "an action, or a list of probabilities, for each state (uniform)"},
        {"--max-steps", OPTION_INT, &job.max_steps, "N", "longest episode, if the environment does not end it before (10000 if it has no limit)"},
        {"--seed", OPTION_INT, &job.seed, "S", "seed of all random draws (0)"},
        {0},
    };
    return command_main(&command, argc, argv, options, simulate, &job);
}
