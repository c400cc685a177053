/* SPDX-License-Identifier: Apache-2.0 */
/* FrozenLake of Gymnasium: over the ice from S to G, H are holes. On slippery ice the move succeeds with probability success_rate; otherwise it goes
 * in one of the two perpendicular directions. Actions: left, down, right, up. State: row x columns + column. */
#include "rl/mdp/worlds.h"

#include <stdio.h>
#include <string.h>

enum { MAP_NAME, DESC, IS_SLIPPERY, SUCCESS_RATE, REWARD_SCHEDULE };
enum { MAX_CELLS = 1 << 20 };

static const char *const ways[4] = {"left", "down", "right", "up"};
static const int ways_down[4] = {0, 1, 0, -1}, ways_right[4] = {-1, 0, 1, 0};

typedef struct Lake {
    int rows, columns;
    Str cells;
    double at_goal, in_hole, on_ice; /* rewards for entering */
} Lake;

static const char *map_text(const Arguments *arguments) {
    static const char *const maps[] = {"4x4", "8x8"};
    if (arguments->text[DESC]) return arguments->text[DESC];
    if (strcmp(arguments->text[MAP_NAME], maps[0]) == 0) return "SFFF/FHFH/FFFH/HFFG";
    if (strcmp(arguments->text[MAP_NAME], maps[1]) == 0) return "SFFFFFFF/FFFFFFFF/FFFHFFFF/FFFFFHFF/FFFHFFFF/FHHFFFHF/FHFFHFHF/FFFHFFFG";
    status_fail(ST_CONFIG, "unknown map '%s' of FrozenLake", arguments->text[MAP_NAME]);
    status_hint_nearest(ST_CONFIG, arguments->text[MAP_NAME], maps, COUNT_OF(maps), "map_name is 4x4 or 8x8; for another map use desc=SFF/FHF/FFG");
    return NULL;
}

static Status read_map(const char *text, Lake *lake) {
    size_t width = strcspn(text, "/");
    for (const char *row = text; *row;) {
        size_t len = strcspn(row, "/"), good = strspn(row, "SFHG");
        if (good < len) return status_fail(ST_CONFIG, "row %d of the map has a '%c', expected S, F, H or G", lake->rows, row[good]);
        if (len != width) return status_fail(ST_CONFIG, "row %d of the map is %zu cells long, row 0 is %zu", lake->rows, len, width);
        if (lake->cells.len + len > MAX_CELLS) return status_fail(ST_CONFIG, "the map has more than %d cells", MAX_CELLS);
        str_append_n(&lake->cells, row, len);
        lake->rows++;
        row += len + (row[len] == '/');
    }
    lake->columns = (int)width;
    if (lake->cells.len && strchr(str_text(&lake->cells), 'S')) return ST_OK;
    status_fail(ST_CONFIG, "the map has no S to start from");
    return status_hint(ST_CONFIG, "rows joined by '/': desc=SFFF/FHFH/FFFH/HFFG");
}

static Status read_rewards(const char *text, Lake *lake) {
    int used = 0;
    if (sscanf(text, "%lf/%lf/%lf%n", &lake->at_goal, &lake->in_hole, &lake->on_ice, &used) == 3 && !text[used]) return ST_OK;
    return status_fail(ST_CONFIG, "argument 'reward_schedule' of FrozenLake is '%s', expected three numbers for goal, hole and ice: 1/0/0", text);
}

static void add_way(MdpBuilder *builder, const Lake *lake, int32_t cell, int action, int way, double probability) {
    int32_t next = grid_clamped(lake->rows, lake->columns, cell, ways_down[way], ways_right[way]);
    char letter = lake->cells.data[next];
    double reward = letter == 'G' ? lake->at_goal : letter == 'H' ? lake->in_hole : lake->on_ice;
    mdp_builder_add(builder, cell, action, next, probability, reward, letter == 'G' || letter == 'H');
}

static void add_cell(MdpBuilder *builder, const Lake *lake, int32_t cell, double success, double failure) {
    char letter = lake->cells.data[cell];
    if (letter == 'G' || letter == 'H') {
        mdp_builder_terminal(builder, cell);
        return;
    }
    for (int a = 0; a < 4; a++) {
        if (failure > 0) add_way(builder, lake, cell, a, (a + 3) % 4, failure);
        if (success > 0) add_way(builder, lake, cell, a, a, success);
        if (failure > 0) add_way(builder, lake, cell, a, (a + 1) % 4, failure);
    }
}

static Status build_lake(const Arguments *arguments, const Lake *lake, double gamma, NamedMdp **world) {
    MdpBuilder *builder = mdp_builder_new((int64_t)lake->cells.len, 4, gamma);
    if (!builder) return ST_RESOURCE;
    double success = arguments->number[IS_SLIPPERY] > 0 ? arguments->number[SUCCESS_RATE] : 1, failure = (1 - success) / 2;
    for (size_t cell = 0; cell < lake->cells.len; cell++) add_cell(builder, lake, (int32_t)cell, success, failure);
    TRY(world_finish(builder, &(WorldDisplay){ways, lake->rows, lake->columns, lake->cells.data, -1}, world));
    double starts = 0;
    for (size_t cell = 0; cell < lake->cells.len; cell++) starts += lake->cells.data[cell] == 'S';
    for (size_t cell = 0; cell < lake->cells.len; cell++) (*world)->start[cell] = (lake->cells.data[cell] == 'S') / starts;
    return ST_OK;
}

static Status world_frozen_lake_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    Lake lake = {0};
    const char *text = map_text(arguments);
    Status status = text ? read_map(text, &lake) : ST_CONFIG;
    if (status == ST_OK) status = read_rewards(arguments->text[REWARD_SCHEDULE], &lake);
    if (status == ST_OK) status = build_lake(arguments, &lake, gamma, world);
    str_release(&lake.cells);
    return status;
}

#define LAKE_ARGUMENTS(map)                                                                                          \
    {                                                                                                                \
        [MAP_NAME] = {.name = "map_name", .is_text = true, .text = map}, [DESC] = {.name = "desc", .is_text = true}, \
        [IS_SLIPPERY] = {.name = "is_slippery", .value = 1, .is_bool = true},                                        \
        [SUCCESS_RATE] = {.name = "success_rate", .value = 1.0 / 3.0, .high = 1},                                    \
        [REWARD_SCHEDULE] = {.name = "reward_schedule", .is_text = true, .text = "1/0/0"},                           \
    }

const World world_frozen_lake = {
    .id = "FrozenLake-v1", .gamma = 0.99, .max_steps = 100, .arguments = LAKE_ARGUMENTS("4x4"), .build = world_frozen_lake_build};
const World world_frozen_lake_8x8 = {
    .id = "FrozenLake8x8-v1", .gamma = 0.99, .max_steps = 200, .arguments = LAKE_ARGUMENTS("8x8"), .build = world_frozen_lake_build};
