/* SPDX-License-Identifier: Apache-2.0 */
/* Making a Mdp and reading one from a file: rows, names, numbers, and every fault with its line. */
#include "rl/mdp/mdp.h"
#include "tests/support/check.h"

#include <stdio.h>

static char folder[256];

static NamedMdp *read_as(const char *name, const char *text) {
    NamedMdp *world;
    check_ok(mdp_open(temp_text(folder, name, text), &world));
    return world;
}

static const char robot[] = "# A robot that cleans; names may come after they are used.\n"
                            "transitions:\n"
                            "  - [full, search, full, 2/3, 2]\n"
                            "  - [full, search, low, 1/3, 2]\n"
                            "  - [full, wait, full, 1, 0.5]\n"
                            "  - [low, wait, low, 1, 0.5, false]\n"
                            "  - [low, search, empty, 0.25, -3, true]\n"
                            "  - [low, search, low, .75, 2]\n"
                            "states: [full, low, empty]\n"
                            "actions: [search, wait]\n"
                            "gamma: 0.9\n"
                            "start: {full: 0.5, 1: 1/2}\n"
                            "terminal: [empty]\n";

static void check_robot(const NamedMdp *world) {
    const Mdp *mdp = &world->mdp;
    static const int64_t begin[] = {0, 2, 3, 5, 6, 6, 6};
    static const int32_t next[] = {0, 1, 0, 2, 1, 1};
    static const double p[] = {2.0 / 3, 1.0 / 3, 1, .25, .75, 1}, r[] = {2, 2, .5, -3, 2, .5};
    assert_int_equal(mdp->n_states, 3);
    assert_int_equal(mdp->n_actions, 2);
    check_close(mdp->gamma, 0.9, 0);
    assert_memory_equal(mdp->begin, begin, sizeof begin);
    assert_memory_equal(mdp->next, next, sizeof next);
    check_close_f64("p", mdp->probability, p, 6, 0, 0);
    check_close_f64("r", mdp->reward, r, 6, 0, 0);
    assert_true(mdp->terminal[2] && !mdp->terminal[0] && mdp->ends && mdp->ends[3] && !mdp->ends[4]);
    check_close(world->start[0], 0.5, 0);
    check_close(world->start[1], 0.5, 0);
    assert_string_equal(world->state_names[2], "empty");
    assert_string_equal(world->action_names[1], "wait");
}

TEST(yaml_and_json_say_the_same) {
    NamedMdp *world = read_as("robot.yaml", robot);
    check_robot(world);
    named_mdp_free(world);
    world = read_as(
        "robot.json",
        "{\"states\":[\"full\",\"low\",\"empty\"],\"actions\":[\"search\",\"wait\"],\"gamma\":9e-1,\"start\":{\"full\":0.5,\"low\":0.5},\"terminal\":[2],\"transitions\":[[0,0,0,0.6666666666666666,2],"
        "[0,0,1,0.3333333333333333,2.0],\n\t[0,1,\"full\",1,0.5],[\"low\",\"wait\",1,1.0,0.5,false],[1,0,2,0.25,-3,true],[1,0,1,0.75,2,0]]}");
    check_robot(world);
    named_mdp_free(world);
}

TEST(names_may_be_numbers_or_any_character) {
    NamedMdp *world = read_as(
        "names.json",
        "{\"states\":[\"\\ud83d\\ude00\",\"a\\\\ud83d\",\"1\"],\"actions\":1,\"gamma\":0,\"transitions\":[[\"\\ud83d\\ude00\",0,\"1\",1,0],[\"1\",0,0,1,7],[\"a\\\\ud83d\",0,2,1,0]]}");
    assert_string_equal(world->state_names[0], "\xf0\x9f\x98\x80");
    assert_string_equal(world->state_names[1], "a\\ud83d");
    assert_int_equal(world->mdp.next[0], 2); /* the name "1" comes before the number 1 */
    check_close(world->mdp.reward[2], 7, 0);
    assert_null(world->action_names);
    named_mdp_free(world);
}

TEST(faults_have_their_line) {
    static const struct {
        const char *text, *part, *hint;
    } cases[] = {
        {"", "line 1: the file is empty", NULL},
        {"states: 2\nactions: 1\ngamma: 0.9\n", "key 'transitions' is missing", NULL},
        {"states: 1\nactons: 1\n", "line 2: unknown key 'actons'", "'actions'"},
        {"states: 1\nstates: 1\n", "line 2: key 'states' is already on line 1", NULL},
        {"states: 1\nactions: 1\ngamma: 1.5\n", "line 3: gamma is 1.5", NULL},
        {"states: 1\nactions: 1\ngamma: -0.1\n", "line 3: gamma is -0.1", NULL},
        {"gamma: nan\n", "line 1: expected a number from 0 to 1, not 'nan'", NULL},
        {"gamma: 1/0\n", "line 1: expected a number", NULL},
        {"states: 0\n", "line 1: expected how many states", NULL},
        {"states: 99999999999\n", "line 1: expected how many states", NULL},
        {"states: []\n", "line 1: expected how many states", NULL},
        {"states: [a, a]\nactions: 1\ngamma: 0\ntransitions: []\n", "line 1: two states are named 'a'", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 0, 0.5, 1]\n- [0, 0, 0, 0.4, 1]\n",
         "line 5: state 0, action 0: the probabilities sum to 0.9, expected 1", NULL},
        {"states: [x]\nactions: [go]\ngamma: 0\ntransitions:\n- [x, go, x, 1, 1]\n- [x, go, 0, 1, 1]\n",
         "line 5: state 'x', action 'go': the probabilities sum to 2, expected 1", NULL},
        {"states: 2\nactions: 2\ngamma: 0\ntransitions: [[0, 0, 0, 1, 1]]\n", "state 1 has no transitions and is not terminal", "terminal"},
        {"states: 1\nactions: 2\ngamma: 0\ntransitions: [[0, 0, 0, 1, 1], [0, 1, 0, 0, 1]]\n", "action 1: the probabilities sum to 0", "left out"},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions: [[0, 0, 0, 0.33, 1], [0, 0, 0, 0.66, 1]]\n", "sum to 0.99, expected 1", "1/3"},
        {"states: 1\ngamma: 0\ntransitions: [[0, 0, 0.5, 1]]\n", "line 3: state 0: the probabilities sum to 0.5", NULL},
        {"states: 1\ngamma: 0\ntransitions: [[0, 0, 1, 1, 2]]\n", "line 3: expected true or false for the end of the episode, not '2'", "'actions'"},
        {"states: 1\ntransitions: [[0, 0, 1, 1]]\n", "key 'gamma' is missing", NULL},
        {"states: 2000000000\nactions: 1\ngamma: 0\ntransitions: [[0, 0, 0, 1, 1]]\n", "state 1 has no transitions", NULL},
        {"states: 3\nactions: 2000000000\ngamma: 0\nterminal: [0, 1, 2]\ntransitions: []\n", "do not fit into memory", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 0, 1.5, 1]\n", "line 5: a probability is 1.5", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 0, -1, 1]\n", "line 5: a probability is -1", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 0, 1, .inf]\n", "line 5: expected a reward", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 1, 1, 0]\n", "line 5: there is no state '1': there are 1", NULL},
        {"states: [home, work]\nactions: 1\ngamma: 0\ntransitions:\n- [hoome, 0, 1, 1, 0]\n", "line 5: there is no state 'hoome'", "'home'"},
        {"states: 1\nactions: [left, right]\ngamma: 0\ntransitions:\n- [0, rigt, 0, 1, 0]\n", "line 5: there is no action 'rigt'", "'right'"},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 0, 1]\n", "line 5: expected a reward", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 0, 1, 0, maybe]\n",
         "line 5: expected true or false for the end of the episode, not 'maybe'", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions:\n- [0, 0, 0, 1, 0, true, 1]\n", "line 5: expected [state, action", NULL},
        {"states: 1\nactions: 1\ngamma: 0\ntransitions: {a: 1}\n", "line 4: expected a list of transitions", NULL},
        {"states: 1\nactions: 1\ngamma: 0\nterminal: [4]\ntransitions: []\n", "line 4: there is no state '4'", NULL},
        {"states: 1\nactions: 1\ngamma: 0\nstart: {0: 0.5}\ntransitions: [[0, 0, 0, 1, 1]]\n", "the probabilities of start states sum to 0.5", NULL},
        {"states: [&a x, *a]\n", "line 1: aliases are not supported", NULL},
        {"states: [1, 2\n", "line 2", NULL},
        {"- 1\n", "line 1: expected the keys", NULL},
        {"states: 1\n---\nstates: 2\n", "is missing", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        NamedMdp *world;
        Status status = mdp_open(temp_text(folder, "bad.yaml", cases[i].text), &world);
        if (status == ST_OK) fail_msg("case %zu was read: %s", i, cases[i].text);
        assert_null(world);
        check_text("bad.yaml");
        check_text(cases[i].part);
        if (cases[i].hint) check_contains(status_hint_text(), cases[i].hint);
    }
    NamedMdp *world;
    check_status(mdp_open(temp_file(folder, "missing.yaml"), &world), ST_INPUT);
}

TEST(builder_sorts_and_keeps_the_first_fault) {
    NamedMdp *world;
    MdpBuilder *builder = mdp_builder_new(2, 2, 1);
    mdp_builder_add(builder, 1, 1, 0, 0.5, 4, false);
    mdp_builder_add(builder, 0, 1, 1, 1, 2, false);
    mdp_builder_add(builder, 1, 1, 0, 0.5, 4, false);
    mdp_builder_add(builder, 0, 0, 0, 1, 1, false);
    mdp_builder_add(builder, 1, 0, 1, 1, 3, false);
    check_ok(mdp_builder_finish(builder, &world));
    static const double rewards[] = {1, 2, 3, 4, 4};
    check_close_f64("r", world->mdp.reward, rewards, 5, 0, 0);
    assert_null(world->mdp.ends);
    check_ok(mdp_check(world));
    bool reachable[2];
    check_ok(mdp_reachable(world, reachable));
    assert_true(reachable[0] && reachable[1]);
    world->start = (double[]){1, 0};
    world->mdp.next[1] = 0;
    check_ok(mdp_reachable(world, reachable));
    assert_true(reachable[0] && !reachable[1]);
    named_mdp_free(world);

    builder = mdp_builder_new(2, 1, 0.5);
    mdp_builder_add(builder, 2, 0, 0, 1, 0, false);
    mdp_builder_add(builder, 0, 7, 0, 1, 0, false);
    check_status(mdp_builder_finish(builder, &world), ST_INPUT);
    check_text("there is no state 2");
    check_status(mdp_builder_finish(mdp_builder_new(-5, 3, 0.5), &world), ST_INPUT);
    check_text("-5 states");
    builder = mdp_builder_new(1, 1, 2);
    mdp_builder_terminal(builder, 0);
    check_status(mdp_builder_finish(builder, &world), ST_INPUT);
    check_text("gamma is 2");
}

static void broken(const uint8_t *bytes, size_t len, void *context) {
    (void)context;
    const char *path = temp_file(folder, "broken.yaml");
    FILE *file = fopen(path, "wb");
    fwrite(bytes, 1, len, file);
    fclose(file);
    NamedMdp *world;
    if (mdp_open(path, &world) == ST_OK)
        check_ok(mdp_check(world));
    else
        assert_null(world);
    named_mdp_free(world);
}

TEST(broken_files_are_refused) { check_mutations(robot, sizeof robot - 1, 400, broken, NULL); }

TEST(full_memory_is_a_status) {
    const char *path = temp_text(folder, "robot.yaml", robot);
    for (long n = 1;; n++) {
        NamedMdp *world;
        arena_fail_at(n);
        Status status = mdp_open(path, &world);
        arena_fail_at(0);
        named_mdp_free(world);
        if (status == ST_OK) break;
        assert_int_equal(status, ST_RESOURCE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_and_json_say_the_same), cmocka_unit_test(names_may_be_numbers_or_any_character),
        cmocka_unit_test(faults_have_their_line),     cmocka_unit_test(builder_sorts_and_keeps_the_first_fault),
        cmocka_unit_test(broken_files_are_refused),   cmocka_unit_test(full_memory_is_a_status),
    };
    temp_dir_make(folder, sizeof folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_dir_remove(folder);
    return failed;
}
