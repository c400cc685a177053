/* SPDX-License-Identifier: Apache-2.0 */
/* Samples completions into flat arrays. */
#include "rl/text/experience.h"
#include "lib/base/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every per-token array and the size of its elements; NULL after the last. */
static void *token_array(Experience *e, size_t i, size_t *size) {
    double **const reals[] = {&e->sampled,       &e->filtered,   &e->old_logprobs, &e->ref_logprobs, &e->logprobs, &e->entropies, &e->earned,
                              &e->token_rewards, &e->advantages, &e->values,       &e->final_values, &e->targets,  &e->new_values};
    bool **const flags[] = {&e->trained, &e->terminated, &e->truncated};
    *size = sizeof(double);
    if (i < COUNT_OF(reals)) return (void *)reals[i];
    *size = sizeof(bool);
    if (i - COUNT_OF(reals) < COUNT_OF(flags)) return (void *)flags[i - COUNT_OF(reals)];
    *size = sizeof *e->ids;
    return i == COUNT_OF(reals) + COUNT_OF(flags) ? (void *)&e->ids : NULL;
}

static Status reserve_tokens(Experience *e, int64_t n) {
    if (n <= e->cap_tokens) return ST_OK;
    int64_t cap = MAX(n, 2 * e->cap_tokens);
    size_t size;
    void *array;
    for (size_t i = 0; (array = token_array(e, i, &size)); i++) TRY(array_resize(array, (size_t)cap, size, "tokens of samples"));
    e->cap_tokens = cap;
    return ST_OK;
}

static Status reserve_groups(Experience *e, int64_t n_groups) {
    int64_t n = n_groups * e->group_size;
    if (n <= e->cap_sequences) return ST_OK;
    TRY(array_resize(&e->prompts, (size_t)n, sizeof *e->prompts, "samples")); /* n, not n_groups: the group size may change later */
    TRY(array_resize(&e->begin, (size_t)n + 1, sizeof *e->begin, "samples"));
    TRY(array_resize(&e->ended, (size_t)n, sizeof *e->ended, "samples"));
    TRY(array_resize(&e->rewards, (size_t)n, sizeof *e->rewards, "samples"));
    TRY(array_resize(&e->scores, (size_t)n, sizeof *e->scores, "samples"));
    TRY(array_resize(&e->texts, (size_t)n, sizeof *e->texts, "samples"));
    for (int64_t i = e->cap_sequences; i < n; i++) e->texts[i] = (Str){0};
    e->cap_sequences = n;
    return ST_OK;
}

Status experience_open_group(Experience *e, const PromptRow *prompt) {
    TRY(reserve_groups(e, e->n_groups + 1));
    e->begin[e->n] = e->n_tokens;
    e->prompts[e->n_groups++] = prompt;
    return ST_OK;
}

Status experience_add(Experience *e, const NewSequence *s) {
    int64_t before = e->n_tokens, after = before + (int64_t)s->n;
    TRY(reserve_tokens(e, after));
    memcpy(e->ids + before, s->ids, s->n * sizeof *s->ids);
    if (s->sampled) memcpy(e->sampled + before, s->sampled, s->n * sizeof *s->sampled);
    if (s->filtered) memcpy(e->filtered + before, s->filtered, s->n * sizeof *s->filtered);
    for (int64_t t = before; t < after; t++) {
        e->trained[t] = !s->trained || s->trained[t - before];
        e->earned[t] = s->earned ? s->earned[t - before] : 0;
        e->terminated[t] = s->ended && t == after - 1;
        e->truncated[t] = !s->ended && t == after - 1;
    }
    str_clear(&e->texts[e->n]);
    str_append_n(&e->texts[e->n], s->text.data, s->text.len);
    e->ended[e->n] = s->ended;
    e->rewards[e->n++] = s->reward;
    e->begin[e->n] = e->n_tokens = after;
    return ST_OK;
}

/* Context of the sampler's callback. */
typedef struct Sampling {
    Experience *e;
    Comm *comm;
    uint64_t wanted;
} Sampling;

/* Another rank may have failed meanwhile, and hears that this one works. */
static Status look_at_ranks(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)prompt, (void)sample, (void)id, (void)logprob, (void)text;
    return comm_check(((const Sampling *)context)->comm);
}

static Status experience_take(void *context, const Completion *c) {
    const Sampling *sampling = context;
    work_at("sampling completions", (uint64_t)sampling->e->n, sampling->wanted);
    return experience_add(sampling->e, &(NewSequence){.ids = c->ids.data,
                                                      .sampled = c->tempered,
                                                      .filtered = c->filtered,
                                                      .n = c->ids.n,
                                                      .text = {str_text(&c->text), c->text.len},
                                                      .ended = c->finish == FINISH_STOP,
                                                      .reward = (double)NAN});
}

void experience_clear(Experience *e, int64_t group_size) {
    e->group_size = group_size;
    e->n_groups = e->n = e->n_tokens = 0;
}

Status experience_sample(const Model *model, const Tokenizer *tokenizer, const PromptRow *const *prompts, size_t n_prompts, uint64_t number,
                         const GenerateConfig *config, Comm *comm, Experience *e) {
    experience_clear(e, config->n);
    TRY(reserve_groups(e, (int64_t)n_prompts));
    Prompt *asked = malloc(n_prompts * sizeof *asked);
    if (!asked) return status_fail(ST_RESOURCE, "out of memory for %zu prompts", n_prompts);
    for (size_t i = 0; i < n_prompts; i++) asked[i] = (Prompt){prompts[i]->ids.data, prompts[i]->ids.n, number + i};
    e->begin[0] = 0;
    Sampling sampling = {e, comm, n_prompts * (uint64_t)config->n};
    work_at("sampling completions", 0, sampling.wanted);
    Status status = generate(model, tokenizer, asked, n_prompts, config, comm_size(comm) > 1 ? look_at_ranks : NULL, experience_take, &sampling);
    work_end("sampling completions");
    free(asked);
    TRY(status);
    memcpy(e->prompts, prompts, n_prompts * sizeof *prompts);
    e->n_groups = (int64_t)n_prompts;
    return ST_OK;
}

static Status append_sequence(Experience *e, const Experience *from, int64_t i) {
    int64_t begin = from->begin[i];
    return experience_add(e, &(NewSequence){.ids = from->ids + begin,
                                            .sampled = from->sampled + begin,
                                            .filtered = from->filtered + begin,
                                            .trained = from->trained + begin,
                                            .earned = from->earned + begin,
                                            .n = (size_t)(from->begin[i + 1] - begin),
                                            .text = {str_text(&from->texts[i]), from->texts[i].len},
                                            .ended = from->ended[i],
                                            .reward = from->rewards[i]});
}

Status experience_append_members(Experience *e, const Experience *from, int64_t group, const int64_t *members) {
    TRY(experience_open_group(e, from->prompts[group]));
    for (int64_t k = 0; k < e->group_size; k++) TRY(append_sequence(e, from, group * from->group_size + (members ? members[k] : k)));
    return ST_OK;
}

Status experience_append(Experience *e, const Experience *from, int64_t group) {
    ASSERT(e->group_size == from->group_size, "a group of %lld among groups of %lld", (long long)from->group_size, (long long)e->group_size);
    return experience_append_members(e, from, group, NULL);
}

int64_t experience_trained(const Experience *e, int64_t sequence) {
    int64_t n = 0;
    for (int64_t t = e->begin[sequence]; t < e->begin[sequence + 1]; t++) n += e->trained[t];
    return n;
}

void experience_release(Experience *e) {
    size_t size;
    void **array;
    for (int64_t i = 0; i < e->cap_sequences; i++) str_release(&e->texts[i]);
    for (size_t i = 0; (array = token_array(e, i, &size)); i++) free(*array);
    free(e->prompts);
    free(e->begin);
    free(e->ended);
    free(e->rewards);
    free(e->scores);
    free(e->texts);
    *e = (Experience){0};
}
