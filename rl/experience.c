/* Sampling into flat arrays. */
#include "rl/experience.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every array of doubles that a token has a place in. */
static double **token_arrays(Experience *e, size_t i) {
    double **const arrays[] = {&e->sampled, &e->filtered, &e->old_logprobs, &e->ref_logprobs, &e->logprobs, &e->entropies, &e->token_rewards, &e->advantages};
    return i < COUNT_OF(arrays) ? arrays[i] : NULL;
}

static Status resize(void *array, size_t n, size_t size) {
    void **at = array, *grown = realloc(*at, MAX(n, 1) * size);
    if (!grown) return status_fail(ST_RESOURCE, "out of memory for what was sampled");
    *at = grown;
    return ST_OK;
}

static Status take(void *context, const Completion *completion) {
    Experience *e = context;
    size_t before = (size_t)e->n_tokens, n = before + completion->ids.n;
    TRY(resize(&e->ids, n, sizeof *e->ids));
    TRY(resize(&e->sampled, n, sizeof(double)));
    TRY(resize(&e->filtered, n, sizeof(double)));
    memcpy(e->ids + before, completion->ids.data, completion->ids.n * sizeof *e->ids);
    memcpy(e->sampled + before, completion->tempered, completion->ids.n * sizeof(double));
    memcpy(e->filtered + before, completion->filtered, completion->ids.n * sizeof(double));
    str_clear(&e->texts[e->n]);
    str_append_n(&e->texts[e->n], str_text(&completion->text), completion->text.len);
    e->ended[e->n] = completion->finish == FINISH_STOP;
    e->rewards[e->n++] = (double)NAN;
    e->n_tokens = (int64_t)n;
    e->begin[e->n] = e->n_tokens;
    return ST_OK;
}

static Status prepare(Experience *e, const PromptRow *const *prompts, size_t n_prompts, int64_t group_size) {
    int64_t n = (int64_t)n_prompts * group_size, had = e->n_groups * e->group_size;
    TRY(resize(&e->prompts, n_prompts, sizeof *e->prompts));
    TRY(resize(&e->begin, (size_t)n + 1, sizeof *e->begin));
    TRY(resize(&e->ended, (size_t)n, sizeof *e->ended));
    TRY(resize(&e->rewards, (size_t)n, sizeof *e->rewards));
    TRY(resize(&e->scores, (size_t)n, sizeof *e->scores));
    for (int64_t i = n; i < had; i++) str_release(&e->texts[i]);
    TRY(resize(&e->texts, (size_t)n, sizeof *e->texts));
    for (int64_t i = had; i < n; i++) e->texts[i] = (Str){0};
    memcpy(e->prompts, prompts, n_prompts * sizeof *prompts);
    e->n_groups = (int64_t)n_prompts;
    e->group_size = group_size;
    e->n = e->n_tokens = e->begin[0] = 0;
    return ST_OK;
}

Status experience_sample(const Model *model, const Tokenizer *tokenizer, const PromptRow *const *prompts, size_t n_prompts, const GenerateConfig *config, Experience *e) {
    TRY(prepare(e, prompts, n_prompts, config->n));
    Prompt *asked = malloc(n_prompts * sizeof *asked);
    if (!asked) return status_fail(ST_RESOURCE, "out of memory for %zu prompts", n_prompts);
    for (size_t i = 0; i < n_prompts; i++) asked[i] = (Prompt){prompts[i]->ids.data, prompts[i]->ids.n, i};
    Status status = generate(model, tokenizer, asked, n_prompts, config, NULL, take, e);
    free(asked);
    TRY(status);
    for (size_t i = 0; token_arrays(e, i); i++) TRY(resize(token_arrays(e, i), (size_t)e->n_tokens, sizeof(double)));
    TRY(resize(&e->trained, (size_t)e->n_tokens, sizeof *e->trained));
    TRY(resize(&e->last, (size_t)e->n_tokens, sizeof *e->last));
    for (int64_t t = 0; t < e->n_tokens; t++) {
        e->trained[t] = true;
        e->last[t] = false;
    }
    for (int64_t i = 0; i < e->n; i++) e->last[e->begin[i + 1] - 1] = true;
    return ST_OK;
}

void experience_release(Experience *e) {
    for (int64_t i = 0; i < e->n_groups * e->group_size; i++) str_release(&e->texts[i]);
    for (size_t i = 0; token_arrays(e, i); i++) free(*token_arrays(e, i));
    free(e->prompts);
    free(e->begin);
    free(e->ended);
    free(e->rewards);
    free(e->scores);
    free(e->last);
    free(e->texts);
    free(e->ids);
    free(e->trained);
    *e = (Experience){0};
}
