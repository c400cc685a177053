/* SPDX-License-Identifier: Apache-2.0 */
/* Jack's car rental of Sutton & Barto (2018, example 4.2): two locations with at most 20 cars each. At night up to 5 cars are moved, at a cost of 2
 * per car. By day the requested cars are rented (Poisson, 3 and 4) for 10 each, and cars are returned (Poisson, 3 and 2), which can be rented the
 * next day. Tails are summed, not truncated. Action a moves a - 5 cars from the first location to the second; moves of missing cars are paid for but
 * have no effect. State: cars at the first location x 21 + cars at the second, in the evening. The reward of an outcome is the mean over all days
 * that lead there.
 */
#include "rl/mdp/worlds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CARS = 20, LEVELS = CARS + 1, MOVES = 5, ACTIONS = 2 * MOVES + 1 };

/* For a number of cars in the morning: the probability of each number in the evening, and the mean rent given that number. */
typedef struct Day {
    double chance[LEVELS][LEVELS], rent[LEVELS][LEVELS];
} Day;

/* Probabilities of 0..n events, where n means n or more. */
static void poisson(double mean, int n, double chance[LEVELS]) {
    double exactly = exp(-mean), fewer = 0;
    for (int k = 0; k < n; k++) {
        chance[k] = exactly;
        fewer += exactly;
        exactly *= mean / (k + 1);
    }
    chance[n] = 1 - fewer;
}

static void fill_day(Day *day, double requests, double returns) {
    for (int cars = 0; cars <= CARS; cars++) {
        double rented[LEVELS], back[LEVELS];
        poisson(requests, cars, rented);
        for (int rent = 0; rent <= cars; rent++) {
            int left = cars - rent;
            poisson(returns, CARS - left, back);
            for (int more = 0; more <= CARS - left; more++) {
                day->chance[cars][left + more] += rented[rent] * back[more];
                day->rent[cars][left + more] += rented[rent] * back[more] * 10 * rent;
            }
        }
        for (int evening = 0; evening <= CARS; evening++) day->rent[cars][evening] /= day->chance[cars][evening];
    }
}

static void add_night(MdpBuilder *builder, const Day days[2], int first, int second, int action) {
    int wanted = action - MOVES, moved = MAX(MIN(wanted, first), -second);
    int a = MIN(first - moved, CARS), b = MIN(second + moved, CARS);
    for (int x = 0; x <= CARS; x++) {
        for (int y = 0; y <= CARS; y++) {
            double reward = days[0].rent[a][x] + days[1].rent[b][y] - 2 * abs(wanted);
            mdp_builder_add(builder, first * LEVELS + second, action, x * LEVELS + y, days[0].chance[a][x] * days[1].chance[b][y], reward, false);
        }
    }
}

static Status world_car_rental_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    (void)arguments;
    MdpBuilder *builder = mdp_builder_new((int64_t)LEVELS * LEVELS, ACTIONS, gamma);
    if (!builder) return ST_RESOURCE;
    Day days[2] = {0};
    fill_day(&days[0], 3, 3);
    fill_day(&days[1], 4, 2);
    for (int state = 0; state < LEVELS * LEVELS; state++)
        for (int action = 0; action < ACTIONS; action++) add_night(builder, days, state / LEVELS, state % LEVELS, action);
    char moves[ACTIONS][12];
    const char *names[ACTIONS];
    for (int a = 0; a < ACTIONS; a++) {
        snprintf(moves[a], sizeof moves[a], "%+d", a - MOVES);
        names[a] = a == MOVES ? "0" : moves[a];
    }
    return world_finish(builder, &(WorldDisplay){names, LEVELS, LEVELS, NULL, 10 * LEVELS + 10}, world);
}

const World world_car_rental = {.id = "CarRental", .gamma = 0.9, .build = world_car_rental_build};
