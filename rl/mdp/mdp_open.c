/* SPDX-License-Identifier: Apache-2.0 */
/* Opens worlds by name: built-in ones with their arguments, or files. */
#include "rl/mdp/mdp_parts.h"
#include "rl/mdp/worlds.h"

#include <math.h>
#include <string.h>

const World *const worlds[] = {
#define WORLD(name) &world_##name,
#include "rl/mdp/worlds.def"
#undef WORLD
};
const size_t n_worlds = COUNT_OF(worlds);

const char *const four_ways[4] = {"up", "right", "down", "left"};
const int row_of_way[4] = {-1, 0, 1, 0}, column_of_way[4] = {0, 1, 0, -1};

int32_t grid_clamped(int rows, int columns, int32_t cell, int down, int right) {
    int row = cell / columns + down, column = cell % columns + right;
    return MIN(MAX(row, 0), rows - 1) * columns + MIN(MAX(column, 0), columns - 1);
}

const char **world_state_names(NamedMdp *world) {
    world->state_names = arena_zero(world->arena, (size_t)world->mdp.n_states * sizeof *world->state_names);
    return world->state_names;
}

static bool add_look(NamedMdp *world, const WorldDisplay *look) {
    size_t states = (size_t)world->mdp.n_states, actions = (size_t)world->mdp.n_actions;
    if (!world->start && !(world->start = arena_zero(world->arena, states * sizeof *world->start))) return false;
    if (look->start >= 0) world->start[look->start] = 1;
    world->rows = look->rows;
    world->columns = look->columns;
    if (look->cells && !(world->cells = arena_strndup(world->arena, look->cells, (size_t)look->rows * (size_t)look->columns))) return false;
    if (!look->action_names) return true;
    if (!(world->action_names = arena_zero(world->arena, actions * sizeof *world->action_names))) return false;
    for (size_t a = 0; a < actions; a++)
        if (!(world->action_names[a] = arena_strdup(world->arena, look->action_names[a]))) return false;
    return true;
}

Status world_finish(MdpBuilder *builder, const WorldDisplay *look, NamedMdp **world) {
    TRY(mdp_builder_finish(builder, world));
    if (add_look(*world, look)) return ST_OK;
    named_mdp_free(*world);
    *world = NULL;
    return ST_RESOURCE;
}

/* ---- by name ---- */

bool mdp_is_file_name(const char *name) {
    return text_ends_with(name, ".yaml") || text_ends_with(name, ".yml") || text_ends_with(name, ".json") || strchr(name, '/');
}

const World *world_find(const char *id) {
    for (size_t i = 0; i < n_worlds; i++)
        if (strcmp(worlds[i]->id, id) == 0) return worlds[i];
    return NULL;
}

static Status no_such_world(const char *id) {
    const char *names[COUNT_OF(worlds)];
    for (size_t i = 0; i < n_worlds; i++) names[i] = worlds[i]->id;
    status_fail(ST_CONFIG, "unknown world '%s'", id);
    return status_hint_nearest(ST_CONFIG, id, names, n_worlds, "a file .yaml or .json, or one of ");
}

enum { MAX_EPISODE_STEPS, GAMMA };

/* Arguments of every world, with their defaults. */
static void common_arguments(double gamma, int64_t max_steps, Argument common[MAX_ARGUMENTS]) {
    memset(common, 0, MAX_ARGUMENTS * sizeof *common);
    common[MAX_EPISODE_STEPS] = (Argument){.name = "max_episode_steps", .value = (double)max_steps, .is_whole = true, .high = 9e15};
    common[GAMMA] = (Argument){.name = "gamma", .value = gamma, .high = 1};
}

static Status open_file(const char *path, char *text, double gamma, NamedMdp **world) {
    static const Argument none[MAX_ARGUMENTS];
    Argument common[MAX_ARGUMENTS];
    Arguments values, shared;
    common_arguments((double)NAN, 0, common);
    TRY(arguments_read(path, text, none, &values, common, &shared));
    TRY(mdp_read_file(path, isnan(gamma) ? shared.number[GAMMA] : gamma, world));
    (*world)->max_steps = (int64_t)shared.number[MAX_EPISODE_STEPS];
    return ST_OK;
}

static Status open_built_in(const World *kind, char *text, double gamma, NamedMdp **world) {
    Argument common[MAX_ARGUMENTS];
    Arguments values, shared;
    common_arguments(kind->gamma, kind->max_steps, common);
    TRY(arguments_read(kind->id, text, kind->arguments, &values, common, &shared));
    TRY(kind->build(&values, isnan(gamma) ? shared.number[GAMMA] : gamma, world));
    (*world)->max_steps = (int64_t)shared.number[MAX_EPISODE_STEPS];
    return ST_OK;
}

/* Splits off the arguments; NULL: none. A file name may contain colons: the longest existing name counts. */
static char *cut_arguments(char *spec) {
    char *first = strchr(spec, ':');
    if (!first || (mdp_is_file_name(spec) && file_exists(spec))) return NULL;
    for (char *colon = spec + strlen(spec); colon > first; colon--) {
        if (*colon != ':') continue;
        *colon = '\0';
        if (mdp_is_file_name(spec) && file_exists(spec)) return colon + 1;
        *colon = ':';
    }
    *first = '\0';
    return first + 1;
}

static Status open_spec(char *spec, double gamma, NamedMdp **world) {
    char *text = cut_arguments(spec);
    const World *kind = world_find(spec);
    if (kind) return open_built_in(kind, text, gamma, world);
    if (mdp_is_file_name(spec)) return open_file(spec, text, gamma, world);
    return no_such_world(spec);
}

Status mdp_open(const char *spec, NamedMdp **world) { return mdp_open_discounted(spec, (double)NAN, world); }

Status mdp_open_discounted(const char *spec, double gamma, NamedMdp **world) {
    *world = NULL;
    Str text = {0};
    str_append(&text, spec);
    Status status = text.len ? open_spec(text.data, gamma, world) : status_fail(ST_CONFIG, "the name of the world is empty");
    str_release(&text);
    if (status == ST_OK) return ST_OK;
    named_mdp_free(*world);
    *world = NULL;
    return status;
}
