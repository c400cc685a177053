/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a run: launcher, world, what has to be equal, the end. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/system.h"
#include "lib/comm/comm_open.h"
#include "lib/tensor/tensor.h"
#include "cmd/app/app.h"
#include "cmd/app/folders.h"
#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"

static struct {
    CommLaunch launch;
    Comm *world;
    int64_t sharing;
    double began;
    pthread_t thread; /* that opened the world */
    bool silent;      /* another rank prints the failure */
} ranks = {.launch.size = 1, .sharing = 1};

Comm *ranks_world(void) { return ranks.world; }
int64_t ranks_sharing(void) { return ranks.sharing; }

static const char *from_environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

void ranks_begin(void) {
    ranks.launch = comm_launch(from_environment, NULL);
    set_silent(ranks.launch.launched && ranks.launch.rank > 0);
}

static bool is_divided(const char *command) {
    static const char *const divided[] = {"sft", "reward", "rl", "eval", "score", "generate", "data synth"};
    for (size_t i = 0; i < COUNT_OF(divided); i++)
        if (strcmp(command, divided[i]) == 0) return true;
    return false;
}

bool ranks_spare(const char *command) { return ranks.launch.launched && ranks.launch.rank > 0 && !is_divided(command); }

/* Long work reports its progress from any thread, but a Comm belongs to the first one. */
void ranks_work(void *context, const Work *work) {
    if (ranks.world && pthread_equal(pthread_self(), ranks.thread)) comm_poll(ranks.world);
    show_work(context, work);
}

/* The values of parallel.reduce are the rows of reduces.def. */
_Static_assert((int)PARALLEL_REDUCE_TREE == (int)COMM_TREE && (int)PARALLEL_REDUCE_MPI == (int)COMM_MPI, "the order of parallel.reduce");

static void warn_of_wait(void *data, const char *text) { show_warning(data, text); }

/* Processors that this process may run on */
static void own_processors(unsigned char mask[128]) {
    memset(mask, 0, 128);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) memcpy(mask, &set, MIN(sizeof set, (size_t)128));
#endif
}

/* Ranks of this host with the same processors share them. Open MPI gives each of two ranks one processor, whatever there is. */
static Status share_processors(void) {
    const int size = comm_size(ranks.world), self = comm_rank(ranks.world);
    unsigned char mine[128], *all = malloc((size_t)size * sizeof mine);
    if (!all) return status_fail(ST_RESOURCE, "no memory for %d ranks", size);
    own_processors(mine);
    Status status = comm_gather_small(ranks.world, "processors", mine, sizeof mine, all);
    ranks.sharing = 0;
    for (int rank = 0; status == ST_OK && rank < size; rank++)
        ranks.sharing += strcmp(comm_host(ranks.world, rank), comm_host(ranks.world, self)) == 0 &&
                         memcmp(all + (size_t)rank * sizeof mine, mine, sizeof mine) == 0;
    free(all);
    ranks.sharing = MAX(ranks.sharing, 1);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    int which;
    if (status == ST_OK && cores_available() == 1 && online > comm_host_ranks(ranks.world, &which))
        show_warning(NULL, "the launcher binds this rank to one of the machine's processors: --bind-to none, or --map-by slot:PE=2 for two of them");
    return status;
}

enum { PLUGIN_FOLDERS = 2 };

/* Plug-ins are next to the program, or where `make install` puts them. */
static Status plugin_folders(Arena *arena, const char *folders[PLUGIN_FOLDERS]) {
    TRY(program_folder(arena, &folders[0]));
    if (!folders[0]) return status_fail(ST_RESOURCE, "the system does not tell where this program is");
    folders[1] = path_join(arena, folders[0], "../libexec/tune");
    return folders[1] ? ST_OK : ST_RESOURCE;
}

Status ranks_libraries(Str *text) {
    const char *folders[PLUGIN_FOLDERS], *between = "";
    char path[4096];
    Arena *arena = arena_new(0);
    Status status = arena ? plugin_folders(arena, folders) : ST_RESOURCE;
    for (int library = 0; status == ST_OK && library < COMM_N_LIBRARIES; library++)
        if (comm_plugin_find((CommLibrary)library, folders, PLUGIN_FOLDERS, path, sizeof path)) {
            str_printf(text, "%s%s", between, comm_library((CommLibrary)library)->title);
            between = ", ";
        }
    arena_free(arena);
    return status;
}

Status ranks_open(void) {
    if (!ranks.launch.launched) return ST_OK;
    const CommConfig config = {.warn = warn_of_wait};
    const char *folders[PLUGIN_FOLDERS];
    Arena *arena = arena_new(0);
    Status status = arena ? plugin_folders(arena, folders) : ST_RESOURCE;
    if (status == ST_OK) status = comm_open(&ranks.launch, folders, PLUGIN_FOLDERS, &config, &ranks.world);
    arena_free(arena);
    TRY(status);
    set_silent(comm_rank(ranks.world) > 0);
    ranks.began = clock_seconds();
    ranks.thread = pthread_self();
    return share_processors();
}

void ranks_warn(const char *text) {
    const int rank = comm_rank(ranks.world);
    Str words = {0};
    str_printf(&words, "rank %d (%s): %s", rank, comm_host(ranks.world, rank), text);
    set_silent(false);
    show_warning(NULL, str_text(&words));
    set_silent(rank > 0);
    str_release(&words);
}

Status ranks_begin_failed(const char *command, Status status) {
    Failure own;
    if (status == ST_OK || !ranks.launch.launched || !is_divided(command)) return status;
    failure_save(&own, status);
    TRY(ranks_open());
    return failure_restore(&own);
}

/* ---- what has to be equal ---- */

/* "train.learning_rate", 1e-4 here, 2e-4 on rank 0 */
typedef struct Difference {
    char key[64], own[96], first[96];
} Difference;

/* Rank 0 sends its resolved recipe; each rank compares it with its own, both read back from text. */
static Status compare_recipes(const Recipe *recipe, Difference *difference) {
    Comm *world = ranks.world;
    Str own = {0}, first = {0};
    Recipe *recipes[2] = {NULL, NULL};
    recipe_write_yaml(recipe, &own);
    uint64_t bytes = own.len;
    *difference = (Difference){.key = ""};
    Status status = comm_broadcast(world, COMM_CONTROL, "length of the recipe", 0, &bytes, sizeof bytes);
    if (status == ST_OK && comm_rank(world) == 0) str_append_n(&first, str_text(&own), own.len);
    if (status == ST_OK && comm_rank(world) > 0) {
        if (!str_reserve(&first, bytes + 1)) status = status_fail(ST_RESOURCE, "no memory for the recipe of rank 0");
        for (uint64_t i = 0; status == ST_OK && i < bytes; i++) str_append_char(&first, ' ');
    }
    if (status == ST_OK) status = comm_broadcast(world, COMM_CONTROL, "recipe", 0, first.data, bytes);
    if (status == ST_OK && (first.len != own.len || memcmp(first.data, own.data, own.len) != 0)) {
        const char *key = NULL, *value_own = "", *value_first = "";
        status = recipe_read_text("the recipe of this rank", &own, NULL, 0, &recipes[0]);
        if (status == ST_OK) status = recipe_read_text("the recipe of rank 0", &first, NULL, 0, &recipes[1]);
        if (status == ST_OK) key = recipe_differs_anywhere(recipes[0], recipes[1], &value_own, &value_first);
        if (key) {
            snprintf(difference->key, sizeof difference->key, "%s", key);
            snprintf(difference->own, sizeof difference->own, "%s", value_own);
            snprintf(difference->first, sizeof difference->first, "%s", value_first);
        }
    }
    for (int i = 0; i < 2; i++) recipe_free(recipes[i]);
    str_release(&own);
    str_release(&first);
    return status;
}

static Status agree_on_recipe(const Recipe *recipe) {
    const int size = comm_size(ranks.world);
    Difference own, *all = malloc((size_t)size * sizeof *all);
    Status status = all ? compare_recipes(recipe, &own) : status_fail(ST_RESOURCE, "no memory for %d ranks", size);
    if (status == ST_OK) status = comm_gather_small(ranks.world, "differences of recipes", &own, sizeof own, all);
    /* Rank 0 fails for all: the others hear of it in their next wait. */
    for (int rank = 1; rank < size && status == ST_OK && comm_rank(ranks.world) == 0; rank++)
        if (all[rank].key[0]) {
            status = status_fail(ST_CONFIG, "rank %d (%s) has another recipe: %s %s, rank 0 %s", rank, comm_host(ranks.world, rank), all[rank].key,
                                 all[rank].own, all[rank].first);
            status_hint(ST_CONFIG, "all ranks take the same command line and the same file");
        }
    free(all);
    return status;
}

/* The rows of a step are divided over all ranks. */
static Status check_data(const Recipe *recipe) {
    const int size = comm_size(ranks.world);
    if (recipe->parallel_data < 0 || recipe->parallel_data == size) return ST_OK;
    status_fail(ST_CONFIG, "%d rank%s not data %lld x tensor 1 x pipeline 1", size, size == 1 ? " is" : "s are", (long long)recipe->parallel_data);
    return status_hint(ST_CONFIG, "parallel.data=%d, or leave it out; the launcher's -n decides how many ranks there are", size);
}

/* "4 ranks on 2 hosts (hostA 2, hostB 2), Open MPI 4.1.4; 2 threads a rank" */
static void show_ranks(void) {
    Comm *world = ranks.world;
    const int size = comm_size(world);
    Str hosts = {0};
    int n_hosts = 0;
    for (int rank = 0; rank < size; rank++) {
        int here = 0, before = 0;
        for (int other = 0; other < size; other++)
            if (strcmp(comm_host(world, other), comm_host(world, rank)) == 0) here++, before += other < rank;
        if (before > 0) continue;
        if (++n_hosts <= 8) str_printf(&hosts, "%s%s %d", n_hosts > 1 ? ", " : "", comm_host(world, rank), here);
    }
    const int64_t processors = MAX(cores_physical(NULL) / ranks.sharing, 1);
    show_line("%d ranks on %d host%s (%s%s), %s; %lld processor%s a rank", size, n_hosts, plural(n_hosts), str_text(&hosts),
              n_hosts > 8 ? ", ..." : "", comm_title(world), (long long)processors, plural(processors));
    if (ranks.sharing > cores_physical(NULL)) show_warning(NULL, "there are more ranks than processors: they wait for each other");
    str_release(&hosts);
}

static Status agree_on_program(void) {
    CommFact fact = {"program", "", ST_CONFIG};
    snprintf(fact.text, sizeof fact.text, "%s", tune_program);
    return comm_agree(ranks.world, &fact, 1);
}

/* What decides the rounding of results */
static Status agree_on_processors(void) {
    CommFact facts[] = {{"instruction set", "", ST_CONFIG}, {"library for products", "", ST_CONFIG}};
    snprintf(facts[0].text, sizeof facts[0].text, "%s", cpu_info()->isa);
    snprintf(facts[1].text, sizeof facts[1].text, "%.30s, %.30s", cpu_info()->gemm_f32, cpu_info()->gemm_bf16);
    return comm_agree(ranks.world, facts, COUNT_OF(facts));
}

Status ranks_agree(const Recipe *recipe) {
    if (!ranks.world) return check_data(recipe);
    if (comm_rank(ranks.world) == 0) TRY(check_data(recipe));
    TRY(agree_on_program());
    TRY(agree_on_recipe(recipe));
    if (recipe->parallel_hosts == PARALLEL_HOSTS_SAME && agree_on_processors() != ST_OK)
        return status_hint(ST_CONFIG, "parallel.hosts=mixed allows it; results are then equal to rounding only");
    comm_configure(ranks.world,
                   &(CommConfig){.reduce = (CommReduce)recipe->parallel_reduce, .timeout = recipe->parallel_timeout, .warn = warn_of_wait});
    show_ranks();
    return ST_OK;
}

Status ranks_agree_on_words(int argc, char **argv) {
    CommFact fact = {"command line", "", ST_USAGE};
    uint64_t hash = (uint64_t)argc;
    if (!ranks.world) return ST_OK;
    for (int i = 0; i < argc; i++)
        for (size_t at = 0, end = strlen(argv[i]); at <= end; at++) hash = mix64(hash ^ (unsigned char)argv[i][at]);
    comm_fact_hash(&fact, hash);
    TRY(agree_on_program());
    TRY(comm_agree(ranks.world, &fact, 1));
    TRY(agree_on_processors());
    show_ranks();
    return ST_OK;
}

/* After SIGTERM, Open MPI kills its processes once this many seconds are over, twice. */
#define OPENMPI_KILL_SECONDS 1.0

void ranks_step(void) {
    static double last;
    static bool said;
    if (!ranks.world || said || ranks.launch.library != COMM_OPENMPI) return;
    const double now = clock_seconds();
    if (last > 0 && now - last > 2 * OPENMPI_KILL_SECONDS) {
        said = true;
        if (!getenv("OMPI_MCA_odls_base_sigkill_timeout"))
            show_line("OMPI_MCA_odls_base_sigkill_timeout=60 in the environment of mpirun gives time to save when it is asked to end");
    }
    last = now;
}

/* ---- the end ---- */

typedef struct RankEnd {
    uint64_t sent[COMM_N_KINDS];
    double waited;
    int32_t waited_for;
} RankEnd;

/* What all ranks sent, and how long they waited: one line for each kind of bytes */
static void show_end(const RankEnd *all, int size, double seconds) {
    Str waits = {0};
    char bytes[32];
    for (int kind = 0; kind < COMM_N_KINDS; kind++) {
        uint64_t sum = 0;
        for (int rank = 0; rank < size; rank++) sum += all[rank].sent[kind];
        const bool library = kind == COMM_GRADIENTS && comm_reduce(ranks.world) == COMM_MPI;
        if (sum > 0)
            show_line("ranks sent %s of %s%s", format_bytes((double)sum, bytes), comm_kind_word((CommKind)kind),
                      library ? ", as given to the MPI library for its sums" : "");
    }
    for (int rank = 0; rank < size && rank < 16; rank++)
        str_printf(&waits, "%s%.0f %%", rank ? ", " : "", 100 * all[rank].waited / MAX(seconds, 1e-9));
    if (all[0].waited_for >= 0)
        show_line("ranks waited %s of the time; rank 0 mostly for rank %d (%s)", str_text(&waits), all[0].waited_for,
                  comm_host(ranks.world, all[0].waited_for));
    str_release(&waits);
}

Status ranks_end(Status status) {
    if (!ranks.world) return status;
    if (status != ST_OK && status != ST_INTERRUPTED) {
        ranks.silent = !comm_fail(ranks.world, status);
        return status;
    }
    Failure own;
    failure_save(&own, status);
    const int size = comm_size(ranks.world);
    RankEnd mine = {.waited_for = -1}, *all = malloc((size_t)size * sizeof *all);
    int waited_for;
    mine.waited = comm_waited(ranks.world, &waited_for);
    mine.waited_for = waited_for;
    for (int kind = 0; kind < COMM_N_KINDS; kind++) mine.sent[kind] = comm_count(ranks.world, -1, (CommKind)kind).sent;
    signal(SIGTERM, SIG_IGN); /* this rank's work is saved, and the launcher ends those that are still here when the first one leaves */
    Status ended = all ? comm_end(ranks.world, status == ST_INTERRUPTED, &mine, sizeof mine, all) : status_fail(ST_RESOURCE, "no memory");
    if (ended == ST_OK && status == ST_OK) show_end(all, size, clock_seconds() - ranks.began);
    free(all);
    if (ended == ST_OK) {
        signal(SIGINT, SIG_IGN);
        return failure_restore(&own);
    }
    ranks.silent = !comm_fail(ranks.world, ended);
    return status == ST_INTERRUPTED ? failure_restore(&own) : ended;
}

bool ranks_print(void) {
    if (ranks.world && !ranks.silent) set_silent(false);
    return !ranks.silent && (ranks.world || !ranks.launch.launched || ranks.launch.rank == 0);
}

void ranks_close(Status status) {
    comm_close(ranks.world, status);
    ranks.world = NULL;
}
