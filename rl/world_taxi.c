/* Taxi of Gymnasium (Dietterich 2000): fetch a passenger at one of four stands and bring them to another. Actions: south, north, east, west, pick up, drop off.
 * State: ((row x 5 + column) x 5 + passenger) x 4 + destination; passenger 4 sits in the taxi. All 500 states have Gymnasium's outcomes, also those that nobody comes to. */
#include "rl/worlds.h"

enum { SIDE = 5, STANDS = 4, IN_TAXI = 4, STATES = SIDE * SIDE * (STANDS + 1) * STANDS, ACTIONS = 6 };
enum { SOUTH, NORTH, EAST, WEST, PICK_UP, DROP_OFF };
enum { IS_RAINY, RAINY_PROBABILITY };

typedef struct Ride { int row, column, passenger, destination; } Ride;

static const struct { int row, column; } stands[STANDS] = {{0, 0}, {0, 4}, {4, 0}, {4, 3}};

static Ride ride_of(int state) { return (Ride){state / 100, state / 20 % 5, state / 4 % 5, state % 4}; }
static int32_t state_of(Ride r) { return ((r.row * 5 + r.column) * 5 + r.passenger) * 4 + r.destination; }

static int stand_at(Ride r) {
    for (int s = 0; s < STANDS; s++)
        if (stands[s].row == r.row && stands[s].column == r.column) return s;
    return -1;
}

/* Walls stand east of column 1 in the two upper rows, and east of columns 0 and 2 in the two lower ones. */
static bool wall_east(int row, int column) {
    return column == SIDE - 1 || (row < 2 && column == 1) || (row > 2 && (column == 0 || column == 2));
}

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

static void add_move(MdpBuilder *builder, Ride ride, int way, double straight) {
    static const int left[4] = {EAST, WEST, NORTH, SOUTH}, right[4] = {WEST, EAST, SOUTH, NORTH};
    int32_t state = state_of(ride);
    if (straight < 1 && can_move(ride, way)) { /* before a wall rain does nothing */
        mdp_builder_add(builder, state, way, state_of(moved(ride, left[way])), (1 - straight) / 2, -1, false);
        mdp_builder_add(builder, state, way, state_of(moved(ride, right[way])), (1 - straight) / 2, -1, false);
        mdp_builder_add(builder, state, way, state_of(moved(ride, way)), straight, -1, false);
    } else {
        mdp_builder_add(builder, state, way, state_of(moved(ride, way)), 1, -1, false);
    }
}

static void add_pick_up(MdpBuilder *builder, Ride ride) {
    int32_t state = state_of(ride);
    bool there = ride.passenger < IN_TAXI && stand_at(ride) == ride.passenger;
    if (there) ride.passenger = IN_TAXI;
    mdp_builder_add(builder, state, PICK_UP, state_of(ride), 1, there ? -1 : -10, false);
}

/* A passenger can be left at any stand; only at the destination it ends the episode. */
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
    for (int s = 0; s < STATES; s++) {
        static const char *const places[] = {"R", "G", "Y", "B", "taxi"};
        Ride ride = ride_of(s);
        names[s] = arena_printf(world->arena, "(%d,%d) %s>%s", ride.row, ride.column, places[ride.passenger], places[ride.destination]);
        if (!names[s]) return ST_RESOURCE;
    }
    return ST_OK;
}

static Status build(const Arguments *arguments, double gamma, NamedMdp **world) {
    static const char *const names[ACTIONS] = {"south", "north", "east", "west", "pick up", "drop off"};
    MdpBuilder *builder = mdp_builder_new(STATES, ACTIONS, gamma);
    if (!builder) return ST_RESOURCE;
    double straight = arguments->number[IS_RAINY] > 0 ? arguments->number[RAINY_PROBABILITY] : 1;
    for (int s = 0; s < STATES; s++) {
        for (int way = SOUTH; way <= WEST; way++) add_move(builder, ride_of(s), way, straight);
        add_pick_up(builder, ride_of(s));
        add_drop_off(builder, ride_of(s));
    }
    TRY(world_finish(builder, &(WorldLook){.action_names = names, .start = -1}, world));
    for (int s = 0; s < STATES; s++) {
        Ride ride = ride_of(s);
        if (ride.passenger < IN_TAXI && ride.passenger != ride.destination) (*world)->start[s] = 1.0 / 300;
    }
    return add_names(*world);
}

const World world_taxi_v3 = {.id = "Taxi-v3", .gamma = 0.99, .max_steps = 200, .build = build};
const World world_taxi_v4 = {
    .id = "Taxi-v4", .gamma = 0.99, .max_steps = 200, .build = build,
    .arguments = {[IS_RAINY] = {.name = "is_rainy", .is_bool = true}, [RAINY_PROBABILITY] = {.name = "rainy_probability", .value = 0.8, .high = 1}},
};
