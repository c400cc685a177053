/* SPDX-License-Identifier: Apache-2.0 */
/* Taxi of Gymnasium (Dietterich 2000): pick up a passenger at one of four stands and drop them off at another. Actions: south, north, east, west,
 * pick up, drop off. State: ((row x 5 + column) x 5 + passenger) x 4 + destination; passenger 4 is in the taxi. All 500 states have Gymnasium's
 * outcomes, including unreachable ones. With fickle passengers there are 500 more states with the same observations, in which the passenger will
 * change the destination to any other stand after the taxi's first move with them. */
#include "rl/mdp/worlds.h"

enum { SIDE = 5, STANDS = 4, IN_TAXI = 4, RIDES = SIDE * SIDE * (STANDS + 1) * STANDS, ACTIONS = 6 };
enum { SOUTH, NORTH, EAST, WEST, PICK_UP, DROP_OFF };
enum { IS_RAINY, RAINY_PROBABILITY, FICKLE_PASSENGER, FICKLE_PROBABILITY };

typedef struct Ride {
    int row, column, passenger, destination;
    bool fickle;
} Ride;

static const struct { int row, column; } stands[STANDS] = {{0, 0}, {0, 4}, {4, 0}, {4, 3}};

static Ride ride_of(int state) { return (Ride){state % RIDES / 100, state / 20 % 5, state / 4 % 5, state % 4, state >= RIDES}; }
static int32_t state_of(Ride r) { return (r.fickle ? RIDES : 0) + ((r.row * 5 + r.column) * 5 + r.passenger) * 4 + r.destination; }

static int stand_at(Ride r) {
    for (int s = 0; s < STANDS; s++)
        if (stands[s].row == r.row && stands[s].column == r.column) return s;
    return -1;
}

/* Walls are east of column 1 in the two upper rows, and east of columns 0 and 2 in the two lower ones. */
static bool wall_east(int row, int column) { return column == SIDE - 1 || (row < 2 && column == 1) || (row > 2 && (column == 0 || column == 2)); }

static bool can_move(Ride r, int way) {
    if (way == SOUTH) return r.row < SIDE - 1;
    if (way == NORTH) return r.row > 0;
    if (way == EAST) return !wall_east(r.row, r.column);
    return r.column > 0 && !wall_east(r.row, r.column - 1);
}

static Ride moved(Ride r, int way) {
    if (!can_move(r, way)) return r;
    r.row += (way == SOUTH) - (way == NORTH);
    r.column += (way == EAST) - (way == WEST);
    return r;
}

static void add_arrival(MdpBuilder *builder, Ride from, int action, Ride to, double probability) {
    bool changes = from.fickle && from.passenger == IN_TAXI && (to.row != from.row || to.column != from.column);
    if (!changes) mdp_builder_add(builder, state_of(from), action, state_of(to), probability, -1, false);
    for (int stand = 0; stand < STANDS && changes; stand++) {
        if (stand == from.destination) continue;
        Ride elsewhere = {.row = to.row, .column = to.column, .passenger = IN_TAXI, .destination = stand};
        mdp_builder_add(builder, state_of(from), action, state_of(elsewhere), probability / (STANDS - 1), -1, false);
    }
}

static void add_move(MdpBuilder *builder, Ride ride, int way, double straight) {
    static const int left[4] = {EAST, WEST, NORTH, SOUTH}, right[4] = {WEST, EAST, SOUTH, NORTH};
    if (straight < 1 && can_move(ride, way)) { /* rain has no effect in front of a wall */
        add_arrival(builder, ride, way, moved(ride, left[way]), (1 - straight) / 2);
        add_arrival(builder, ride, way, moved(ride, right[way]), (1 - straight) / 2);
        add_arrival(builder, ride, way, moved(ride, way), straight);
    } else {
        add_arrival(builder, ride, way, moved(ride, way), 1);
    }
}

static void add_pick_up(MdpBuilder *builder, Ride ride) {
    int32_t state = state_of(ride);
    bool there = ride.passenger < IN_TAXI && stand_at(ride) == ride.passenger;
    if (there) ride.passenger = IN_TAXI;
    mdp_builder_add(builder, state, PICK_UP, state_of(ride), 1, there ? -1 : -10, false);
}

/* A passenger can be dropped off at any stand; only the destination ends the episode. */
static void add_drop_off(MdpBuilder *builder, Ride ride) {
    int32_t state = state_of(ride);
    int stand = stand_at(ride);
    bool possible = ride.passenger == IN_TAXI && stand >= 0, arrived = possible && stand == ride.destination;
    if (possible) ride.passenger = stand;
    mdp_builder_add(builder, state, DROP_OFF, state_of(ride), 1, arrived ? 20 : possible ? -1 : -10, arrived);
}

static Status add_names(NamedMdp *world) {
    const char **names = world_state_names(world);
    if (!names) return ST_RESOURCE;
    for (int s = 0; s < world->mdp.n_states; s++) {
        static const char *const places[] = {"R", "G", "Y", "B", "taxi"};
        Ride ride = ride_of(s);
        names[s] = arena_printf(world->arena, "(%d,%d) %s>%s%s", ride.row, ride.column, places[ride.passenger], places[ride.destination],
                                ride.fickle ? " fickle" : "");
        if (!names[s]) return ST_RESOURCE;
    }
    return ST_OK;
}

static Status world_taxi_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    static const char *const names[ACTIONS] = {"south", "north", "east", "west", "pick up", "drop off"};
    bool may_be_fickle = arguments->number[FICKLE_PASSENGER] > 0;
    int states = may_be_fickle ? 2 * RIDES : RIDES;
    MdpBuilder *builder = mdp_builder_new(states, ACTIONS, gamma);
    if (!builder) return ST_RESOURCE;
    double straight = arguments->number[IS_RAINY] > 0 ? arguments->number[RAINY_PROBABILITY] : 1,
           fickle = may_be_fickle ? arguments->number[FICKLE_PROBABILITY] : 0;
    for (int s = 0; s < states; s++) {
        for (int way = SOUTH; way <= WEST; way++) add_move(builder, ride_of(s), way, straight);
        add_pick_up(builder, ride_of(s));
        add_drop_off(builder, ride_of(s));
    }
    TRY(world_finish(builder, &(WorldDisplay){.action_names = names, .start = -1}, world));
    if (may_be_fickle) (*world)->n_observations = RIDES;
    for (int s = 0; s < states; s++) {
        Ride ride = ride_of(s);
        if (ride.passenger < IN_TAXI && ride.passenger != ride.destination) (*world)->start[s] = (ride.fickle ? fickle : 1 - fickle) / 300;
    }
    return add_names(*world);
}

#define TAXI(world_id)                                                                                 \
    {                                                                                                  \
        .id = world_id, .gamma = 0.99, .max_steps = 200, .build = world_taxi_build,                    \
        .arguments = {[IS_RAINY] = {.name = "is_rainy", .is_bool = true},                              \
                      [RAINY_PROBABILITY] = {.name = "rainy_probability", .value = 0.8, .high = 1},    \
                      [FICKLE_PASSENGER] = {.name = "fickle_passenger", .is_bool = true},              \
                      [FICKLE_PROBABILITY] = {.name = "fickle_probability", .value = 0.3, .high = 1}}, \
    }

const World world_taxi_v3 = TAXI("Taxi-v3");
const World world_taxi_v4 = TAXI("Taxi-v4");
