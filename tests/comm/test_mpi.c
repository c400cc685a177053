/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks under the launchers of Open MPI and MPICH. The program starts itself: with --rank WHAT it is one of the ranks. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/str.h"
#include "lib/base/system.h"
#include "lib/comm/comm_open.h"
#include "tests/support/check.h"

#define UNIT 16384
#define MOST_RANKS 8

/* ---- a rank ---- */

static float value_of(int64_t lane, size_t i) { return (float)(mix64((uint64_t)lane * 1000003u + i) % 100000) * (i % 3 ? 1e-3f : 1e3f); }

static float *lane_of(int64_t lane, size_t n) {
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = value_of(lane, i);
    return x;
}

/* All rows of reduces.def; the tree and the master have the bits of the serial tree, the others are near it. */
static Status rank_sums(Comm *world, size_t n) {
    const int size = comm_size(world), rank = comm_rank(world);
    float *kept[TREE_LEVELS] = {NULL}, *want = malloc((n + 1) * sizeof *want), *got = malloc((n + 1) * sizeof *got);
    Status status = ST_OK;
    for (int l = 0; l < tree_levels(size); l++) kept[l] = malloc((n + 1) * sizeof(float));
    for (int64_t lane = 0; lane < size; lane++) {
        float *x = lane_of(lane, n);
        tree_push(kept, lane, 0, x, n);
        free(x);
    }
    tree_total(kept, size, want, n);
    for (int reduce = 0; reduce < COMM_N_REDUCES && status == ST_OK; reduce++) {
        size_t first[MOST_RANKS + 1];
        float *x = lane_of(rank, n);
        comm_configure(world, &(CommConfig){.reduce = (CommReduce)reduce, .timeout = 10});
        comm_parts(world, n, UNIT, first);
        const uint64_t sent = comm_count(world, -1, COMM_GRADIENTS).sent, want_sent = (n - (first[rank + 1] - first[rank])) * sizeof *x;
        status = comm_sum(world, &(CommSum){COMM_GRADIENTS, "gradients", n, first, .nodes = &x, .sum = got + first[rank]});
        if (status == ST_OK) status = comm_finish(world);
        const uint64_t counted = comm_count(world, -1, COMM_GRADIENTS).sent - sent;
        if (status == ST_OK && counted != want_sent)
            status = status_fail(ST_NUMERIC, "reduce %d: %llu bytes counted, expected %llu", reduce, (unsigned long long)counted,
                                 (unsigned long long)want_sent);
        if (status == ST_OK) status = comm_gather(world, &(CommGather){COMM_GRADIENTS, "sums", got, sizeof *got, first});
        if (status == ST_OK) status = comm_finish(world);
        for (size_t i = 0; i < n && status == ST_OK; i++) {
            const bool exact = reduce == COMM_TREE || reduce == COMM_MASTER;
            if (exact ? memcmp(&got[i], &want[i], sizeof *got) != 0 : got[i] - want[i] > 1e-5f * want[i] || want[i] - got[i] > 1e-5f * want[i])
                status = status_fail(ST_NUMERIC, "reduce %d, element %zu: %a, expected %a", reduce, i, (double)got[i], (double)want[i]);
        }
        free(x);
    }
    for (int l = 0; l < TREE_LEVELS; l++) free(kept[l]);
    free(want);
    free(got);
    return status;
}

static Status rank_groups(Comm *world) {
    const int size = comm_size(world), rank = comm_rank(world);
    int all[MOST_RANKS], text = rank == 0 ? 7 : 0, which;
    Comm *group;
    TRY(comm_gather_small(world, "ranks", &rank, sizeof rank, all));
    for (int r = 0; r < size; r++)
        if (all[r] != r) return status_fail(ST_NUMERIC, "rank %d said %d", r, all[r]);
    TRY(comm_broadcast(world, COMM_CONTROL, "text", 0, &text, sizeof text));
    if (text != 7) return status_fail(ST_NUMERIC, "broadcast %d", text);
    if (comm_host_ranks(world, &which) != size || which != rank) return status_fail(ST_NUMERIC, "%d ranks here", comm_host_ranks(world, &which));
    TRY(comm_split(world, rank % 2, 0, &group));
    comm_configure(world, &(CommConfig){.reduce = COMM_MPI});
    size_t first[MOST_RANKS + 1];
    float x[4] = {1, 2, 3, 4}, sum[4] = {0}, *node = x;
    comm_parts(group, 4, 1, first);
    Status status = comm_sum(group, &(CommSum){COMM_GRADIENTS, "of a group", 4, first, .nodes = &node, .sum = sum});
    if (status == ST_OK) status = comm_finish(group);
    if (status == ST_OK && first[comm_rank(group) + 1] > first[comm_rank(group)] &&
        sum[0] != (float)(comm_size(group) * (1 + (int)first[comm_rank(group)])))
        status = status_fail(ST_NUMERIC, "group sum %g", (double)sum[0]);
    comm_group_free(group);
    return status;
}

static Status rank_does(Comm *world, const char *what) {
    const int rank = comm_rank(world);
    int all[MOST_RANKS];
    if (strcmp(what, "sums") == 0) {
        TRY(rank_groups(world));
        TRY(rank_sums(world, 3 * UNIT + 5));
        return rank_sums(world, (5 << 20) / 4);
    }
    if (strcmp(what, "hosts") == 0) { /* tests/mpi/two_hosts.sh */
        int which;
        if (comm_host_ranks(world, &which) != 1) return status_fail(ST_NUMERIC, "both ranks are on %s", comm_host(world, 0));
        if (rank == 0) fprintf(stderr, "%s 1, %s 1\n", comm_host(world, 0), comm_host(world, 1));
        return rank_sums(world, 3 * UNIT + 5);
    }
    const int steps = strcmp(what, "votes") == 0 ? 2000 : 3; /* 20 s of them */
    for (int step = 1; step <= steps; step++) {
        if (steps > 3) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        comm_phase(world, step, "forward of layer", 2);
        TRY(comm_gather_small(world, "vote", &step, sizeof step, all));
    }
    if (rank == 1 && strcmp(what, "fail") == 0) return status_fail(ST_NUMERIC, "the loss is not finite");
    if (rank == 1 && strcmp(what, "freeze") == 0) raise(SIGSTOP);
    if (rank == 1 && strcmp(what, "kill") == 0) raise(SIGKILL);
    if (rank == 1 && strcmp(what, "order") == 0) return comm_broadcast(world, COMM_WEIGHTS, "weights of layers.3", 1, all, 4);
    return comm_gather_small(world, "sums of step 12", &rank, sizeof rank, all);
}

static const char *variable_of(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

static void rank_warns(void *data, const char *text) {
    (void)data;
    fprintf(stderr, "warning: %s\n", text);
}

/* The folder of the plug-ins: this program is BUILD/tests/comm/test_mpi or BUILD/tests/test_mpi */
static int rank_main(const char *self, const char *what) {
    char folders[2][512];
    snprintf(folders[0], sizeof folders[0], "%.*s/../..", (int)(strrchr(self, '/') - self), self);
    snprintf(folders[1], sizeof folders[1], "%.*s/..", (int)(strrchr(self, '/') - self), self);
    const CommLaunch launch = comm_launch(variable_of, NULL);
    Comm *world = NULL;
    Status status = comm_open(&launch, (const char *[]){folders[0], folders[1]}, 2, &(CommConfig){.timeout = 2, .warn = rank_warns}, &world);
    if (status == ST_OK) {
        status = rank_does(world, what);
        char all[MOST_RANKS];
        if (status == ST_OK) status = comm_end(world, false, "", 1, all);
        if (status != ST_OK ? comm_fail(world, status) : comm_rank(world) == 0)
            fprintf(stderr, "%s: %s (%s)\n", status == ST_OK ? "all is well" : "error", status == ST_OK ? what : status_text(), comm_title(world));
    } else if (launch.rank == 0)
        fprintf(stderr, "error: %s; %s\n", status_text(), status_hint_text());
    comm_close(world, status);
    return status_exit_code(status);
}

/* ---- the launchers ---- */

static const char *self_path;
static char said[1 << 14]; /* what the last run printed */

/* The command that starts ranks; "" if it is not there, or its plug-in is not. */
static const char *launcher(CommLibrary library) {
    static const char *const finds[] = {"if command -v mpirun.openmpi; then :; elif mpirun --version 2>&1 | grep -q 'Open MPI'; then echo mpirun; fi",
                                        "if command -v mpirun.mpich; then :; elif mpirun --version 2>&1 | grep -q HYDRA; then echo mpirun; fi"};
    static const char *const arguments[] = {"--oversubscribe --bind-to none --mca mpi_yield_when_idle 1", ""};
    static char commands[COMM_N_LIBRARIES][512];
    char *command = commands[library], name[256] = "", plugin[1024], folder[512];
    FILE *pipe = popen(finds[library], "r");
    if (pipe && fgets(name, sizeof name, pipe)) name[strcspn(name, "\n")] = '\0';
    if (pipe) pclose(pipe);
    snprintf(folder, sizeof folder, "%.*s/..", (int)(strrchr(self_path, '/') - self_path), self_path);
    const char *const folders[] = {folder, temp_file(folder, "..")};
    const bool built = comm_plugin_find(library, folders, 2, plugin, sizeof plugin);
    if (*name && built) snprintf(command, sizeof commands[0], "%s %s", name, arguments[library]);
    if (!*command) printf("skipped: %s: %s\n", comm_library(library)->title, built ? "no launcher" : "no plug-in");
    return command;
}

/* Runs `size` ranks; returns the launcher's exit code, and keeps what all of them printed in `said`. */
static int ranks_start(const char *command, int size, const char *what) {
    char line[2048];
    size_t used = 0, n;
    snprintf(line, sizeof line, "timeout -s KILL 60 %s -n %d %s --rank %s 2>&1", command, size, self_path, what);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    while ((n = fread(said + used, 1, sizeof said - 1 - used, pipe)) > 0) used += n;
    said[used] = '\0';
    const int code = pclose(pipe);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
}

static void check_said_once(const char *part) {
    const char *at = strstr(said, part);
    if (!at || strstr(at + 1, part)) fail_msg("'%s' is not there once: %s", part, said);
}

static void check_library(CommLibrary library) {
    const char *command = launcher(library);
#ifdef SANITIZED /* MPI libraries leak and race; test_comm runs the code of ranks under sanitizers */
    command = "";
#endif
    if (!*command) skip();
    for (int size = 2; size <= 4; size += 2) {
        if (size > 2 && library == COMM_MPICH && !long_tests()) continue; /* its waiting ranks spin */
        if (ranks_start(command, size, "sums") != 0) fail_msg("%s, %d ranks: %s", command, size, said);
        check_said_once("all is well: sums");
        check_said_once(comm_library(library)->title);
    }
    assert_int_equal(ranks_start(command, 2, "fail"), 6);
    check_said_once("error: rank 1 (");
    check_said_once("the loss is not finite");
    if (!long_tests()) return;
    assert_int_equal(ranks_start(command, 3, "order"), 5);
    check_said_once("error: ");
    check_contains(said, "sums of step 12 (4 bytes)");
    assert_int_equal(ranks_start(command, 3, "freeze"), 5);
    check_said_once("error: rank 1 (");
    check_contains(said, "has given no sign for");
    check_contains(said, "warning: rank 0 waits for rank 1 (");
    assert_true(ranks_start(command, 3, "kill") != 0);
}

TEST(open_mpi) { check_library(COMM_OPENMPI); }
TEST(mpich) { check_library(COMM_MPICH); }

/* A launcher of another library starts processes of which each finds itself alone. Here the variables say what no launcher did. */
TEST(a_wrong_launcher_is_found_before_anything_else) {
#ifdef SANITIZED
    skip();
#endif
    if (*launcher(COMM_OPENMPI)) {
        assert_int_equal(ranks_start("env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 sh -c 'shift 2; exec \"$@\"' sh", 2, "sums"), 5);
        check_said_once("the launcher started 2 processes, but Open MPI");
    }
    assert_int_equal(ranks_start("env SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0 sh -c 'shift 2; exec \"$@\"' sh", 2, "sums"), 5);
    check_said_once("srun started 3 processes that cannot find each other");
}

static const char *no_variable(void *context, const char *name) {
    const char *const *pairs = context;
    for (; *pairs; pairs += 2)
        if (strcmp(pairs[0], name) == 0) return pairs[1];
    return NULL;
}

TEST(launchers_are_recognised) {
    CommLaunch launch = comm_launch(no_variable, (const char *[]){NULL});
    assert_false(launch.launched);
    assert_int_equal(launch.size, 1);
    launch = comm_launch(no_variable, (const char *[]){"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "3", NULL});
    assert_true(launch.launched && launch.library == COMM_OPENMPI && launch.rank == 3 && launch.size == 4);
    launch = comm_launch(no_variable, (const char *[]){"PMI_SIZE", "2", "PMI_RANK", "1", NULL});
    assert_true(launch.launched && launch.library == COMM_MPICH && launch.rank == 1 && launch.size == 2);
    launch = comm_launch(no_variable, (const char *[]){"SLURM_STEP_NUM_TASKS", "8", "SLURM_PROCID", "5", "PMIX_RANK", "5", NULL});
    assert_true(launch.launched && !launch.unknown && launch.library == COMM_OPENMPI && launch.rank == 5 && launch.size == 8);
    launch = comm_launch(no_variable, (const char *[]){"SLURM_STEP_NUM_TASKS", "8", "SLURM_PROCID", "5", NULL});
    assert_true(launch.unknown);
    launch = comm_launch(no_variable, (const char *[]){"SLURM_STEP_NUM_TASKS", "1", "SLURM_PROCID", "0", NULL});
    assert_false(launch.launched || launch.unknown);
    /* Slurm with each of its plug-ins, as its manual lists their variables; a batch script itself is no rank */
    static const char *const pmi2[] = {"SLURM_PROCID",
                                       "2",
                                       "SLURM_STEP_NUM_TASKS",
                                       "4",
                                       "SLURM_NTASKS",
                                       "4",
                                       "SLURM_LOCALID",
                                       "0",
                                       "PMI_FD",
                                       "9",
                                       "PMI_JOBID",
                                       "12.0",
                                       "PMI_RANK",
                                       "2",
                                       "PMI_SIZE",
                                       "4",
                                       NULL};
    launch = comm_launch(no_variable, (void *)(uintptr_t)pmi2);
    assert_true(launch.launched && !launch.unknown && launch.library == COMM_MPICH && launch.rank == 2 && launch.size == 4);
    static const char *const pmix[] = {"SLURM_PROCID",
                                       "3",
                                       "SLURM_STEP_NUM_TASKS",
                                       "4",
                                       "SLURM_NTASKS",
                                       "4",
                                       "PMIX_NAMESPACE",
                                       "slurm.pmix.12.0",
                                       "PMIX_RANK",
                                       "3",
                                       "PMIX_SERVER_URI41",
                                       "pmix-server.7;tcp4://127.0.0.1:1",
                                       NULL};
    launch = comm_launch(no_variable, (void *)(uintptr_t)pmix);
    assert_true(launch.launched && !launch.unknown && launch.library == COMM_OPENMPI && launch.rank == 3 && launch.size == 4);
    static const char *const batch[] = {"SLURM_JOB_ID", "12", "SLURM_NTASKS", "4", "SLURM_PROCID", "0", "SLURM_JOB_NUM_NODES", "2", NULL};
    launch = comm_launch(no_variable, (void *)(uintptr_t)batch);
    assert_false(launch.launched || launch.unknown);
    /* mpirun within a Slurm job: its own variables say who is who */
    static const char *const within[] = {
        "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2", "OMPI_COMM_WORLD_SIZE", "8", "OMPI_COMM_WORLD_RANK", "5", "PMIX_RANK", "5", NULL};
    launch = comm_launch(no_variable, (void *)(uintptr_t)within);
    assert_true(launch.launched && launch.library == COMM_OPENMPI && launch.rank == 5 && launch.size == 8);
    launch = comm_launch(no_variable, (const char *[]){"PMI_SIZE", "many", "PMI_RANK", "1", NULL});
    assert_false(launch.launched);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return rank_main(argv[0], argv[2]);
    self_path = argv[0];
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_are_recognised),
        cmocka_unit_test(open_mpi),
        cmocka_unit_test(mpich),
        cmocka_unit_test(a_wrong_launcher_is_found_before_anything_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
