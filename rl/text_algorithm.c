/* The table of policy gradients on text, and what several of them share. */
#include "rl/text_algorithm.h"

#include <string.h>

#include "rl/kl.h"

static const TextAlgorithm *const algorithms[] = {
#define TEXT_ALGORITHM(name) &text_##name,
#include "rl/text_algorithms.def"
#undef TEXT_ALGORITHM
};

const TextAlgorithm *text_algorithm_at(size_t i) { return i < COUNT_OF(algorithms) ? algorithms[i] : NULL; }

const TextAlgorithm *text_algorithm_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(algorithms); i++)
        if (strcmp(algorithms[i]->name, name) == 0) return algorithms[i];
    return NULL;
}

void text_advantages_of_groups(const Recipe *recipe, GroupScale scale, Experience *e) {
    (void)recipe;
    advantages_group(e->rewards, e->n, e->group_size, scale, e->scores);
    advantages_spread(e->scores, e->n, e->begin, e->advantages);
}

void text_token_rewards(const Recipe *recipe, Experience *e) {
    kl_rewards(kl_from_text(recipe->rl_kl), recipe->rl_beta, e->old_logprobs, e->ref_logprobs, e->rewards, e->n, e->begin, e->token_rewards);
}
