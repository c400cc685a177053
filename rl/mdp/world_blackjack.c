/* SPDX-License-Identifier: Apache-2.0 */
/* Blackjack with an infinite deck as an exact table, with the rules of env_blackjack.c (Sutton & Barto 2018, example 5.1). A hand of 21 with two
 * cards is a separate state, since it beats other 21s. States: 10 x hand + the dealer's open card - 1, hands being hard 4..21, soft 12..21, natural;
 * last: the end. Action 1 hits, 0 sticks. */
#include "rl/mdp/worlds.h"

enum { HARD = 0, SOFT = 18, NATURAL_HAND = 28, HANDS, CARDS = 10, END = HANDS * CARDS };
enum { NATURAL, SAB };
enum { BUST = 0, DEALER_NATURAL = 6, RESULTS }; /* the dealer's last sum: bust, 17..21, a natural */

static double card_chance(int card) { return card == 10 ? 4.0 / 13 : 1.0 / 13; }
static int hard(int sum) { return HARD + sum - 4; }
static int soft(int sum) { return SOFT + sum - 12; }
static int sum_of(int hand) { return hand == NATURAL_HAND ? 21 : hand < SOFT ? hand + 4 : hand - SOFT + 12; }
static bool is_soft(int hand) { return hand >= SOFT; }

/* A hand with one more card: its sum, where an ace counts as 11 if possible. */
static void world_blackjack_take(int *sum, bool *ace, int card) {
    *sum += card;
    if (card == 1 && *sum + 10 <= 21) {
        *sum += 10;
        *ace = true;
    } else if (*sum > 21 && *ace) {
        *sum -= 10;
        *ace = false;
    }
}

static void dealer_draws(int sum, bool ace, int cards, double chance, double result[RESULTS]) {
    if (sum >= 17) {
        result[sum > 21 ? BUST : sum == 21 && cards == 2 ? DEALER_NATURAL : sum - 16] += chance;
        return;
    }
    for (int card = 1; card <= CARDS; card++) {
        int next = sum;
        bool counts = ace;
        world_blackjack_take(&next, &counts, card);
        dealer_draws(next, counts, cards + 1, chance * card_chance(card), result);
    }
}

static double world_blackjack_settle(const Arguments *arguments, int hand, int result) {
    int player = sum_of(hand), dealer = result == BUST ? 0 : result == DEALER_NATURAL ? 21 : result + 16;
    double reward = (player > dealer) - (player < dealer);
    if (hand != NATURAL_HAND) return reward;
    if (arguments->number[SAB] > 0) return result != DEALER_NATURAL ? 1 : reward;
    return arguments->number[NATURAL] > 0 && reward > 0 ? 1.5 : reward;
}

static void add_stick(MdpBuilder *builder, const Arguments *arguments, int hand, int open, const double result[RESULTS]) {
    double chance[4] = {0}; /* probabilities of the rewards -1, 0, 1 and 1.5 */
    static const double rewards[4] = {-1, 0, 1, 1.5};
    for (int r = 0; r < RESULTS; r++)
        for (int k = 0; k < 4; k++)
            if (world_blackjack_settle(arguments, hand, r) == rewards[k]) chance[k] += result[r];
    for (int k = 0; k < 4; k++)
        if (chance[k] > 0) mdp_builder_add(builder, hand * CARDS + open - 1, 0, END, chance[k], rewards[k], true);
}

static void add_hit(MdpBuilder *builder, int hand, int open) {
    double bust = 0;
    for (int card = 1; card <= CARDS; card++) {
        int sum = sum_of(hand);
        bool ace = is_soft(hand);
        world_blackjack_take(&sum, &ace, card);
        if (sum > 21)
            bust += card_chance(card);
        else
            mdp_builder_add(builder, hand * CARDS + open - 1, 1, (ace ? soft(sum) : hard(sum)) * CARDS + open - 1, card_chance(card), 0, false);
    }
    if (bust > 0) mdp_builder_add(builder, hand * CARDS + open - 1, 1, END, bust, -1, true);
}

static void fill_start(double *start) {
    for (int open = 1; open <= CARDS; open++) {
        for (int a = 1; a <= CARDS; a++) {
            for (int b = 1; b <= CARDS; b++) {
                int sum = 0;
                bool ace = false;
                world_blackjack_take(&sum, &ace, a);
                world_blackjack_take(&sum, &ace, b);
                int hand = sum == 21 ? NATURAL_HAND : ace ? soft(sum) : hard(sum);
                start[hand * CARDS + open - 1] += card_chance(open) * card_chance(a) * card_chance(b);
            }
        }
    }
}

static Status add_names(NamedMdp *world) {
    const char **names = world_state_names(world);
    if (!names) return ST_RESOURCE;
    for (int s = 0; s < END; s++) {
        int hand = s / CARDS;
        names[s] = arena_printf(world->arena, "%s %d : %d",
                                hand == NATURAL_HAND ? "natural"
                                : is_soft(hand)      ? "soft"
                                                     : "hard",
                                sum_of(hand), s % CARDS + 1);
        if (!names[s]) return ST_RESOURCE;
    }
    names[END] = "end";
    return ST_OK;
}

static Status world_blackjack_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    static const char *const names[] = {"stick", "hit"};
    MdpBuilder *builder = mdp_builder_new(END + 1, 2, gamma);
    if (!builder) return ST_RESOURCE;
    for (int open = 1; open <= CARDS; open++) {
        double result[RESULTS] = {0};
        int sum = 0;
        bool ace = false;
        world_blackjack_take(&sum, &ace, open);
        dealer_draws(sum, ace, 1, 1, result);
        for (int hand = 0; hand < HANDS; hand++) {
            add_stick(builder, arguments, hand, open, result);
            add_hit(builder, hand, open);
        }
    }
    mdp_builder_terminal(builder, END);
    TRY(world_finish(builder, &(WorldDisplay){.action_names = names, .start = -1}, world));
    fill_start((*world)->start);
    return add_names(*world);
}

const World world_blackjack = {
    .id = "Blackjack-v1",
    .gamma = 1,
    .build = world_blackjack_build,
    .arguments = {[NATURAL] = {.name = "natural", .is_bool = true}, [SAB] = {.name = "sab", .value = 1, .is_bool = true}},
};
