/* SPDX-License-Identifier: Apache-2.0 */
/* Builds an Mdp: sorts outcomes into rows. */
#include "lib/base/system.h"
#include "rl/mdp/mdp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "rl/mdp/mdp_parts.h"

typedef struct Outcome {
    int64_t row;
    double probability, reward;
    int32_t next;
    uint32_t line : 31, ends : 1;
} Outcome;
typedef struct StatePlace {
    int64_t state;
    double probability;
    int line;
} StatePlace; /* probability: of starting there */
typedef struct StatePlaces {
    StatePlace *items;
    size_t n, room;
} StatePlaces;

struct MdpBuilder {
    int64_t n_states, n_actions;
    double gamma;
    Outcome *outcomes;
    size_t n, room;
    StatePlaces terminals, starts;
    const char *const *state_names, *const *action_names;
    bool is_chain;
    int line;
    Failure failure; /* the first failure */
};

/* Stores the failure just recorded, since other calls may fail before mdp_builder_finish returns it. */
static void keep_failure(MdpBuilder *builder, Status status) {
    if (builder->line) status_prefix(status, "line %d", builder->line);
    failure_save(&builder->failure, status);
}

MdpBuilder *mdp_builder_new(int64_t n_states, int64_t n_actions, double gamma) {
    MdpBuilder *builder = calloc(1, sizeof *builder);
    if (!builder) {
        status_errno(ENOMEM, "cannot begin a Mdp");
        return NULL;
    }
    builder->n_states = n_states;
    builder->n_actions = n_actions;
    builder->gamma = gamma;
    if (n_states < 1 || n_states > INT32_MAX)
        keep_failure(builder, status_fail(ST_INPUT, "%lld states, expected 1 to %d", (long long)n_states, INT32_MAX));
    else if (n_actions < 1 || n_actions > INT32_MAX)
        keep_failure(builder, status_fail(ST_INPUT, "%lld actions, expected 1 to %d", (long long)n_actions, INT32_MAX));
    return builder;
}

void mdp_builder_free(MdpBuilder *builder) {
    if (!builder) return;
    free(builder->outcomes);
    free(builder->terminals.items);
    free(builder->starts.items);
    free(builder);
}

static bool in_range(MdpBuilder *builder, const char *what, int64_t value, int64_t n) {
    if (value >= 0 && value < n) return true;
    keep_failure(builder, status_fail(ST_INPUT, "there is no %s %lld: there are %lld, counted from 0", what, (long long)value, (long long)n));
    return false;
}

/* Makes space for one more element of `size` bytes. */
static bool mdp_grow(MdpBuilder *builder, void *items, size_t n, size_t *room, size_t size) {
    Status status = array_grow(items, room, n + 1, size, "outcomes");
    if (status != ST_OK) keep_failure(builder, status);
    return status == ST_OK;
}

void mdp_builder_add(MdpBuilder *builder, int64_t state, int64_t action, int64_t next, double probability, double reward, bool ends) {
    if (builder->failure.status != ST_OK) return;
    if (!in_range(builder, "state", state, builder->n_states) || !in_range(builder, "action", action, builder->n_actions) ||
        !in_range(builder, "state", next, builder->n_states))
        return;
    if (!mdp_grow(builder, &builder->outcomes, builder->n, &builder->room, sizeof *builder->outcomes)) return;
    builder->outcomes[builder->n++] = (Outcome){.row = state * builder->n_actions + action,
                                                .probability = probability,
                                                .reward = reward,
                                                .next = (int32_t)next,
                                                .line = (uint32_t)builder->line & INT32_MAX,
                                                .ends = ends};
}

static void add_place(MdpBuilder *builder, StatePlaces *places, int64_t state, double probability) {
    if (builder->failure.status != ST_OK || !in_range(builder, "state", state, builder->n_states)) return;
    if (!mdp_grow(builder, &places->items, places->n, &places->room, sizeof *places->items)) return;
    places->items[places->n++] = (StatePlace){state, probability, builder->line};
}

void mdp_builder_terminal(MdpBuilder *builder, int64_t state) { add_place(builder, &builder->terminals, state, 0); }
void mdp_builder_start(MdpBuilder *builder, int64_t state, double probability) { add_place(builder, &builder->starts, state, probability); }
void mdp_builder_line(MdpBuilder *builder, int line) { builder->line = line; }

void mdp_builder_chain(MdpBuilder *builder) { builder->is_chain = true; }

void mdp_builder_names(MdpBuilder *builder, const char *const *state_names, const char *const *action_names) {
    builder->state_names = state_names;
    builder->action_names = action_names;
}

/* ---- finishing ---- */

static Status copy_names(Arena *arena, const char *const *names, int64_t n, const char ***copies) {
    *copies = NULL;
    if (!names) return ST_OK;
    *copies = arena_alloc(arena, (size_t)n * sizeof **copies);
    if (!*copies) return ST_RESOURCE;
    size_t bytes = 0;
    for (int64_t i = 0; i < n; i++) bytes += strlen(names[i]) + 1;
    char *text = arena_alloc(arena, bytes);
    if (!text) return ST_RESOURCE;
    for (int64_t i = 0; i < n; i++) {
        size_t len = strlen(names[i]) + 1;
        (*copies)[i] = memcpy(text, names[i], len);
        text += len;
    }
    return ST_OK;
}

/* A hostile file can declare many states in a few bytes, so a state without outcomes must be found before arrays over states are allocated. Every
 * live state has an outcome, so the number of states mentioned bounds the number of valid states; if more are declared, one of the first `said + 1`
 * states is not mentioned. */
static Status check_size(const MdpBuilder *builder, NamedMdp *names, size_t *rows) {
    size_t said = builder->n + builder->terminals.n;
    if ((size_t)builder->n_states > said) {
        bool *spoken = calloc(said + 1, 1);
        if (!spoken) return status_errno(ENOMEM, "cannot check the states");
        for (size_t i = 0; i < builder->n; i++)
            if ((size_t)(builder->outcomes[i].row / builder->n_actions) <= said) spoken[builder->outcomes[i].row / builder->n_actions] = true;
        for (size_t i = 0; i < builder->terminals.n; i++)
            if ((size_t)builder->terminals.items[i].state <= said) spoken[builder->terminals.items[i].state] = true;
        size_t missing = 0;
        while (spoken[missing]) missing++;
        free(spoken);
        return mdp_fail_no_transitions(names, (int64_t)missing);
    }
    size_t bytes;
    bool fits = size_mul((size_t)builder->n_states, (size_t)builder->n_actions, rows) && size_mul(*rows, sizeof(int64_t), &bytes);
    if (!fits || bytes > memory_available() / 2)
        return status_fail(ST_RESOURCE, "%lld states with %lld actions each do not fit into memory", (long long)builder->n_states,
                           (long long)builder->n_actions);
    return ST_OK;
}

/* Sorts outcomes into their rows, in the order in which they were added (counting sort). */
static void fill_rows(const MdpBuilder *builder, Mdp *mdp, int *lines, size_t rows) {
    for (size_t i = 0; i < builder->n; i++) mdp->begin[builder->outcomes[i].row + 1]++;
    for (size_t row = 0; row < rows; row++) mdp->begin[row + 1] += mdp->begin[row];
    for (size_t i = 0; i < builder->n; i++) {
        const Outcome *outcome = &builder->outcomes[i];
        int64_t k = mdp->begin[outcome->row]++;
        mdp->next[k] = outcome->next;
        mdp->probability[k] = outcome->probability;
        mdp->reward[k] = outcome->reward;
        if (mdp->ends) mdp->ends[k] = outcome->ends;
        lines[k] = (int)outcome->line;
    }
    memmove(mdp->begin + 1, mdp->begin, rows * sizeof *mdp->begin);
    mdp->begin[0] = 0;
}

static Status fill_world(const MdpBuilder *builder, NamedMdp *world, int **lines) {
    Arena *arena = world->arena;
    Mdp *mdp = &world->mdp;
    size_t rows;
    *mdp = (Mdp){.n_states = (int32_t)builder->n_states, .n_actions = (int32_t)builder->n_actions, .gamma = builder->gamma};
    NamedMdp names = {.mdp = *mdp, .state_names = (const char **)(uintptr_t)builder->state_names};
    TRY(check_size(builder, &names, &rows));
    bool some_end = false;
    for (size_t i = 0; i < builder->n && !some_end; i++) some_end = builder->outcomes[i].ends;
    mdp->begin = arena_zero(arena, (rows + 1) * sizeof *mdp->begin);
    mdp->next = arena_alloc(arena, builder->n * sizeof *mdp->next);
    mdp->probability = arena_alloc(arena, builder->n * sizeof *mdp->probability);
    mdp->reward = arena_alloc(arena, builder->n * sizeof *mdp->reward);
    mdp->terminal = arena_zero(arena, (size_t)builder->n_states);
    if (some_end) mdp->ends = arena_alloc(arena, builder->n);
    if (builder->starts.n) world->start = arena_zero(arena, (size_t)builder->n_states * sizeof *world->start);
    *lines = malloc((builder->n + 1) * sizeof **lines);
    if (!*lines) return status_errno(ENOMEM, "cannot sort %zu outcomes", builder->n);
    if (!mdp->begin || !mdp->next || !mdp->probability || !mdp->reward || !mdp->terminal || (some_end && !mdp->ends) ||
        (builder->starts.n && !world->start))
        return ST_RESOURCE;
    fill_rows(builder, mdp, *lines, rows);
    for (size_t i = 0; i < builder->terminals.n; i++) mdp->terminal[builder->terminals.items[i].state] = true;
    for (size_t i = 0; i < builder->starts.n; i++) world->start[builder->starts.items[i].state] += builder->starts.items[i].probability;
    TRY(copy_names(arena, builder->state_names, builder->n_states, &world->state_names));
    return copy_names(arena, builder->action_names, builder->n_actions, &world->action_names);
}

static Status mdp_finish(const MdpBuilder *builder, NamedMdp **world) {
    TRY(failure_restore(&builder->failure));
    Arena *arena = arena_new(0);
    NamedMdp *made = arena ? arena_zero(arena, sizeof *made) : NULL;
    if (!made) {
        arena_free(arena);
        return ST_RESOURCE;
    }
    made->arena = arena;
    int *lines = NULL;
    Status status = fill_world(builder, made, &lines);
    made->is_chain = builder->is_chain;
    if (status == ST_OK && builder->line > 0) status = mdp_settle_file(made, lines);
    if (status == ST_OK) status = mdp_check_lines(made, lines);
    free(lines);
    if (status == ST_OK)
        *world = made;
    else
        named_mdp_free(made);
    return status;
}

Status mdp_builder_finish(MdpBuilder *builder, NamedMdp **world) {
    *world = NULL;
    Status status = mdp_finish(builder, world);
    mdp_builder_free(builder);
    return status;
}

static uint64_t add_part(uint64_t hash, const void *part, int64_t n, size_t size) {
    return part ? XXH3_64bits_withSeed(part, (size_t)n * size, hash) : hash;
}

uint64_t named_mdp_fingerprint(const NamedMdp *world) {
    const Mdp *mdp = &world->mdp;
    int64_t rows = (int64_t)mdp->n_states * mdp->n_actions, n = mdp->begin[rows];
    uint64_t hash = add_part((uint64_t)world->max_steps, &mdp->gamma, 1, sizeof mdp->gamma);
    hash = add_part(hash, mdp->begin, rows + 1, sizeof *mdp->begin);
    hash = add_part(hash, mdp->next, n, sizeof *mdp->next);
    hash = add_part(hash, mdp->probability, n, sizeof *mdp->probability);
    hash = add_part(hash, mdp->reward, n, sizeof *mdp->reward);
    hash = add_part(hash, mdp->ends, n, sizeof *mdp->ends);
    hash = add_part(hash, mdp->terminal, mdp->n_states, sizeof *mdp->terminal);
    return add_part(hash, world->start, mdp->n_states, sizeof *world->start);
}

void named_mdp_free(NamedMdp *world) {
    if (world) arena_free(world->arena);
}
