/* SPDX-License-Identifier: Apache-2.0 */
/* Blackjack with an infinite deck (Sutton & Barto 2018, example 5.1). Action 1 hits, 0 sticks. Observation: the player's sum, the dealer's open card,
 * whether an ace counts as 11. */
#include "rl/env/env_kinds.h"

#include <math.h>

/* A hand in the state: sum with aces as 1, whether it has an ace, number of cards. */
enum { SUM, ACE, CARDS, HAND };
enum { PLAYER = 0, DEALER = HAND, OPEN_CARD = 2 * HAND, STATE };
enum { NATURAL, SAB };

static void env_blackjack_take(EnvDraws *draws, double *hand) {
    int64_t card = env_below(draws, 13) + 1;
    if (card > 10) card = 10;
    hand[SUM] += (double)card;
    if (card == 1) hand[ACE] = 1;
    hand[CARDS]++;
}

static bool ace_counts(const double *hand) { return hand[ACE] > 0 && hand[SUM] <= 11; }
static double sum(const double *hand) { return hand[SUM] + (ace_counts(hand) ? 10 : 0); }
static double env_blackjack_score(const double *hand) { return sum(hand) > 21 ? 0 : sum(hand); }
static bool is_natural(const double *hand) { return hand[CARDS] < 3 && sum(hand) > 20; }

static void env_blackjack_start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    for (int i = 0; i < STATE; i++) state[i] = 0;
    env_blackjack_take(draws, state + DEALER);
    state[OPEN_CARD] = state[DEALER + SUM];
    env_blackjack_take(draws, state + DEALER);
    env_blackjack_take(draws, state + PLAYER);
    env_blackjack_take(draws, state + PLAYER);
}

static double env_blackjack_settle(const double *arguments, const double *player, const double *dealer) {
    double difference = env_blackjack_score(player) - env_blackjack_score(dealer);
    double reward = difference > 0 ? 1 : difference < 0 ? -1 : 0;
    if (arguments[SAB] > 0) return is_natural(player) && !is_natural(dealer) ? 1 : reward;
    return arguments[NATURAL] > 0 && is_natural(player) && reward > 0 ? 1.5 : reward;
}

static bool env_blackjack_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    double *player = state + PLAYER, *dealer = state + DEALER;
    if (*action > 0) {
        env_blackjack_take(draws, player);
        bool bust = sum(player) > 21;
        *reward = bust ? -1 : 0;
        return bust;
    }
    while (sum(dealer) < 17) env_blackjack_take(draws, dealer);
    *reward = env_blackjack_settle(context, player, dealer);
    return true;
}

static void env_blackjack_observe(const void *context, const double *state, double *observation) {
    (void)context;
    observation[0] = sum(state + PLAYER);
    observation[1] = state[OPEN_CARD];
    observation[2] = ace_counts(state + PLAYER);
}

static bool is_hand(const double *hand) {
    bool whole = hand[SUM] == floor(hand[SUM]) && hand[CARDS] == floor(hand[CARDS]);
    return whole && hand[CARDS] >= 2 && hand[SUM] >= hand[CARDS] && hand[SUM] <= MIN(31, 10 * hand[CARDS]) && (hand[ACE] == 0 || hand[ACE] == 1);
}

static bool is_state(const void *context, const double *state) {
    (void)context;
    return is_hand(state + PLAYER) && is_hand(state + DEALER) && state[OPEN_CARD] >= 1 && state[OPEN_CARD] <= 10 &&
           state[OPEN_CARD] == floor(state[OPEN_CARD]);
}

const EnvKind env_kind_blackjack = {
    .id = "Blackjack-v1",
    .state_size = STATE,
    .action = {.n = 2, .size = 1},
    .observation = {.size = 3, .low = (const double[]){0, 0, 0}, .high = (const double[]){31, 10, 1}},
    .arguments = {[NATURAL] = {.name = "natural", .is_bool = true}, [SAB] = {.name = "sab", .value = 1, .is_bool = true}},
    .start = env_blackjack_start,
    .step = env_blackjack_step,
    .observe = env_blackjack_observe,
    .is_state = is_state,
};
