/* SPDX-License-Identifier: Apache-2.0 */
/* recipes/gym_bridge.py: with a small gymnasium and numpy that this test writes, so that it runs where neither is installed, and with the real ones
 * where they are. Skipped without python3. */
#include "lib/base/log.h"
#include "rl/env/env.h"
#include "tests/support/check.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char numpy_py[] = "class Array(list):\n"
                               "    shape = ()\n"
                               "    def ravel(self): return self\n"
                               "    def reshape(self, shape): self.shape = shape; return self\n"
                               "    def __add__(self, other): return Array(a + b for a, b in zip(self, other))\n"
                               "    def __sub__(self, other): return Array(a - b for a, b in zip(self, other))\n"
                               "def asarray(values, dtype=None): return Array(values)\n";

/* Episodes count their steps: Steps-v0 ends after `length` of them and is cut off after 9. */
static const char gymnasium_py[] =
    "import os, time, numpy\n"
    "A = numpy.Array\n"
    "class Discrete:\n"
    "    def __init__(self, n, start=0): self.n, self.start = n, start\n"
    "class Box:\n"
    "    def __init__(self, low, high): self.low, self.high, self.shape, self.dtype = A(low), A(high), (len(low),), float\n"
    "class MultiDiscrete:\n"
    "    def __init__(self, n): self.nvec, self.start, self.shape, self.dtype = A(n), A([0] * len(n)), (len(n),), int\n"
    "class Dict:\n"
    "    def __init__(self, **spaces): self.spaces = spaces\n"
    "class Text: pass\n"
    "class Spec: max_episode_steps = 9\n"
    "inf = float('inf')\n"
    "class Steps:\n"
    "    spec = Spec()\n"
    "    observation_space, action_space = Box([0, -inf], [inf, 7]), Discrete(3, start=1)\n"
    "    def __init__(self, length=4): self.length, self.t = length, 0\n"
    "    def see(self, action): return A([float(self.t), float(action)])\n"
    "    def reset(self, seed): print('begins'); self.t = 0; return self.see(seed % 5), {}\n"
    "    def step(self, action): self.t += 1; return self.see(action), self.t + 0.5, self.t >= self.length, False, {}\n"
    "    def close(self): pass\n"
    "class Parts(Steps):\n"
    "    observation_space, action_space = Dict(b=Discrete(4), a=Box([0.0], [1.0])), MultiDiscrete([2, 3])\n"
    "    def see(self, action): return {'a': A([0.25]), 'b': action if isinstance(action, int) else 10 * action[0] + action[1]}\n"
    "class Pushes(Steps):\n"
    "    action_space = Box([-1, -1], [1, inf])\n"
    "    def see(self, action): return A([float(self.t), 0.0 if isinstance(action, int) else action[0] + 10 * action[1]])\n"
    "class Crash(Steps):\n"
    "    def step(self, action):\n"
    "        if self.t == 2: os._exit(3)\n"
    "        return Steps.step(self, action)\n"
    "class Hang(Steps):\n"
    "    def step(self, action):\n"
    "        if self.t == 2: time.sleep(100)\n"
    "        return Steps.step(self, action)\n"
    "class Raise(Steps):\n"
    "    def step(self, action): raise ValueError('the cart is gone')\n"
    "class Words(Steps): action_space = Text()\n"
    "class Poisoned(Steps):\n"
    "    def see(self, action): return A([float('nan'), 0.0])\n"
    "def make(name, **arguments):\n"
    "    known = {'Steps-v0': Steps, 'Parts-v0': Parts, 'Pushes-v0': Pushes, 'Crash-v0': Crash, 'Hang-v0': Hang, 'Raise-v0': Raise, 'Words-v0': Words, 'Poisoned-v0': Poisoned}\n"
    "    if name not in known: raise LookupError('environment ' + name + ' does not exist')\n"
    "    return known[name](**arguments)\n";

static char folder[256];
static int warnings;

static void on_message(void *context, LogLevel level, const char *text) {
    (void)context, (void)text;
    warnings += level == LOG_WARNING;
}

static int gym_bridge_before(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    warnings = 0;
    check_ok(file_write_all(temp_file(folder, "numpy.py"), numpy_py, strlen(numpy_py)));
    check_ok(file_write_all(temp_file(folder, "gymnasium.py"), gymnasium_py, strlen(gymnasium_py)));
    setenv("PYTHONPATH", folder, 1);
    return 0;
}

static int gym_bridge_after(void **state) {
    (void)state;
    unsetenv("PYTHONPATH");
    temp_dir_remove(folder);
    return 0;
}

static bool python_runs(const char *program) {
    char line[200];
    snprintf(line, sizeof line, "python3 -c '%s' 2>/dev/null", program);
    return system(line) == 0;
}

static Status bridge(const char *id, const char *argument, int64_t copies, double timeout, Env **env) {
    const char *words[] = {"python3", "recipes/gym_bridge.py", id, argument};
    return env_new_command(words, argument ? 4 : 3, copies, timeout, env);
}

static Env *gym_bridge_begin(const char *id, const char *argument, int64_t copies) {
    Env *env;
    check_ok(bridge(id, argument, copies, 60, &env));
    check_ok(env_reset(env, 1));
    return env;
}

/* Actions of the space begin at 1, observations are what was done; arguments reach the environment; what it prints does not get between the answers.
 */
TEST(episodes_are_played) {
    static const double actions[] = {0, 2};
    if (!python_runs("0")) skip();
    Env *env = gym_bridge_begin("Steps-v0", "length=3", 2);
    assert_true(env->action.n == 3 && env->observation.size == 2 && env->max_steps == 9 && strcmp(env->id, "Steps-v0") == 0);
    assert_true(env->observation.low[1] == -(double)INFINITY && env->observation.high[1] == 7);
    for (int t = 1; t <= 7; t++) {
        check_ok(env_step(env, actions, true));
        for (int c = 0; c < 2; c++) {
            const double *seen = (t % 3 ? env->observations : env->final_observations) + 2 * c;
            assert_int_equal(env->terminated[c], t % 3 == 0);
            check_close(env->rewards[c], (t - 1) % 3 + 1.5, 0);
            check_close(seen[0], (t - 1) % 3 + 1, 0);
            check_close(seen[1], actions[c] + 1, 0);
        }
    }
    env_free(env);
}

TEST(composed_spaces_are_numbers) {
    if (!python_runs("0")) skip();
    Env *env = gym_bridge_begin("Parts-v0", NULL, 1);
    assert_true(env->action.n == 6 && env->observation.size == 2 && env->observation.high[0] == 1 && env->observation.high[1] == 3);
    check_ok(env_step(env, (const double[]){5}, true)); /* 5 = 1 of 2, 2 of 3 */
    check_close(env->observations[0], 0.25, 0);
    check_close(env->observations[1], 12, 0);
    env_free(env);
    env = gym_bridge_begin("Pushes-v0", NULL, 1);
    assert_true(env->action.n == 0 && env->action.size == 2 && env->action.high[1] == (double)INFINITY);
    check_ok(env_step(env, (const double[]){-5, 0.3}, true)); /* brought within its bounds */
    check_close(env->observations[1], -1 + 3, 1e-12);
    env_free(env);
}

TEST(what_fails_is_said) {
    Env *env;
    if (!python_runs("0")) skip();
    check_status(bridge("Words-v0", NULL, 1, 60, &env), ST_INPUT);
    check_text("TypeError: actions of the kind Text");
    check_status(bridge("Nowhere-v0", NULL, 1, 60, &env), ST_INPUT);
    check_text("environment Nowhere-v0 does not exist");
    check_status(bridge("Steps-v0", "colour=red", 1, 60, &env), ST_INPUT);
    check_text("unexpected keyword argument 'colour'");
    env = gym_bridge_begin("Raise-v0", NULL, 1);
    check_status(env_step(env, (const double[]){0}, true), ST_INPUT);
    check_text("ValueError: the cart is gone");
    env_free(env);
    check_ok(bridge("Poisoned-v0", NULL, 1, 60, &env));
    check_status(env_reset(env, 1), ST_INPUT); /* NaN is no JSON */
    check_text("ValueError");
    env_free(env);
}

TEST(a_crash_and_a_hang_cost_their_episodes) {
    static const double still[2];
    if (!python_runs("0")) skip();
    for (int hangs = 0; hangs < 2; hangs++) {
        Env *env;
        warnings = 0;
        check_ok(bridge(hangs ? "Hang-v0" : "Crash-v0", NULL, 2, hangs ? 8 : 60, &env)); /* starting takes its time as well */
        check_ok(env_reset(env, 1));
        for (int t = 0; t < 3; t++) check_ok(env_step(env, still, true));
        assert_true(env->truncated[0] && env->truncated[1] && !env->terminated[0] && warnings == 1);
        check_ok(env_step(env, still, true));
        assert_true(!env->truncated[0] && env->observations[0] == 1);
        env_free(env);
    }
}

/* The deterministic lake of the package is ours, step by step. */
TEST(the_real_one_is_bridged) {
    static const int way[] = {1, 1, 2, 0, 3, 1, 2, 2, 1, 2, 0, 0, 1, 2, 3, 1, 2, 1, 1, 2, 2};
    unsetenv("PYTHONPATH");
    if (!python_runs("import gymnasium, numpy")) skip();
    Env *env = gym_bridge_begin("FrozenLake-v1", "is_slippery=False", 1), *ours;
    check_ok(env_new("FrozenLake-v1:is_slippery=false", 1, &ours));
    check_ok(env_reset(ours, 1));
    assert_true(env->action.n == ours->action.n && env->observation.n == ours->observation.n && env->max_steps == ours->max_steps);
    for (size_t t = 0; t < COUNT_OF(way); t++) {
        double action = way[t];
        check_ok(env_step(env, &action, true));
        check_ok(env_step(ours, &action, true));
        assert_true(env->observations[0] == ours->observations[0] && env->rewards[0] == ours->rewards[0] &&
                    env->terminated[0] == ours->terminated[0]);
    }
    env_free(env);
    env_free(ours);
    env = gym_bridge_begin("Pendulum-v1", "g=9.81", 2);
    assert_true(env->action.size == 1 && env->action.high[0] == 2 && env->observation.size == 3);
    check_ok(env_step(env, (const double[]){1, -3}, true));
    env_free(env);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    log_set_sink(on_message, NULL, LOG_WARNING);
#define ENTRY(name) cmocka_unit_test_setup_teardown(name, gym_bridge_before, gym_bridge_after)
    const struct CMUnitTest tests[] = {ENTRY(episodes_are_played), ENTRY(composed_spaces_are_numbers), ENTRY(what_fails_is_said),
                                       ENTRY(a_crash_and_a_hang_cost_their_episodes), ENTRY(the_real_one_is_bridged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
