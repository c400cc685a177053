/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks divide the prompts of a step: each samples the completions of its own ones, and then all have all of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/train/train.h"
#include "rl/text/text_run.h"

/* Begins a sequence in a message. ids, two arrays of log-probabilities and the text follow, each from a multiple of 8 bytes on. */
typedef struct SequenceHead {
    uint64_t tokens, text, ended;
} SequenceHead;

static size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

static size_t sequence_bytes(const SequenceHead *head) {
    return sizeof *head + padded(head->tokens * sizeof(int32_t)) + 2 * head->tokens * sizeof(double) + padded(head->text);
}

static SequenceHead head_of(const Experience *e, int64_t i) {
    return (SequenceHead){(uint64_t)(e->begin[i + 1] - e->begin[i]), e->texts[i].len, e->ended[i]};
}

static void message_put(char **at, const void *bytes, size_t size) {
    if (size) memcpy(*at, bytes, size);
    *at += padded(size);
}

static void write_sequence(const Experience *e, int64_t i, char **at) {
    SequenceHead head = head_of(e, i);
    const int64_t begin = e->begin[i];
    message_put(at, &head, sizeof head);
    message_put(at, e->ids + begin, head.tokens * sizeof *e->ids);
    message_put(at, e->sampled + begin, head.tokens * sizeof *e->sampled);
    message_put(at, e->filtered + begin, head.tokens * sizeof *e->filtered);
    message_put(at, str_text(&e->texts[i]), head.text);
}

static const char *message_get(const char **at, size_t size) {
    const char *bytes = *at;
    *at += padded(size);
    return bytes;
}

static Status read_sequence(Experience *e, const char **at) {
    SequenceHead head;
    memcpy(&head, message_get(at, sizeof head), sizeof head);
    NewSequence sequence = {.n = head.tokens, .ended = head.ended != 0, .reward = (double)NAN};
    sequence.ids = (const int32_t *)(const void *)message_get(at, head.tokens * sizeof *sequence.ids);
    sequence.sampled = (const double *)(const void *)message_get(at, head.tokens * sizeof *sequence.sampled);
    sequence.filtered = (const double *)(const void *)message_get(at, head.tokens * sizeof *sequence.filtered);
    sequence.text = (Slice){message_get(at, head.text), head.text};
    return experience_add(e, &sequence);
}

/* Copies the sequences of all ranks to all. first: (size + 1), room for offsets in bytes */
static Status exchange(Comm *comm, const Experience *mine, size_t *first, char **bytes) {
    size_t own = 0;
    const int size = comm_size(comm), rank = comm_rank(comm);
    for (int64_t i = 0; i < mine->n; i++) {
        SequenceHead head = head_of(mine, i);
        own += sequence_bytes(&head);
    }
    first[0] = 0;
    TRY(comm_gather_small(comm, "sizes of samples", &own, sizeof own, first + 1));
    for (int r = 0; r < size; r++) first[r + 1] += first[r];
    *bytes = malloc(MAX(first[size], 1));
    if (!*bytes) return status_fail(ST_RESOURCE, "out of memory for samples");
    char *at = *bytes + first[rank];
    for (int64_t i = 0; i < mine->n; i++) write_sequence(mine, i, &at);
    TRY(comm_gather(comm, &(CommGather){COMM_EXPERIENCE, "samples", *bytes, 1, first}));
    return comm_finish(comm);
}

static Status take_all(const PromptRow *const *prompts, size_t n_prompts, const char *bytes, Experience *e) {
    for (size_t p = 0; p < n_prompts; p++) {
        TRY(experience_open_group(e, prompts[p]));
        for (int64_t k = 0; k < e->group_size; k++) TRY(read_sequence(e, &bytes));
    }
    return ST_OK;
}

Status text_sample(TextRl *rl, const Model *model, const PromptRow *const *prompts, size_t n_prompts, uint64_t number, const GenerateConfig *config,
                   Experience *e) {
    Comm *comm = rl->comm;
    const size_t size = (size_t)comm_size(comm), rank = (size_t)comm_rank(comm), begin = rank * n_prompts / size, end = (rank + 1) * n_prompts / size;
    if (size == 1) return experience_sample(model, rl->tokenizer, prompts, n_prompts, number, config, NULL, e);
    Experience *mine = &rl->step.own;
    char *bytes = NULL;
    size_t *first = malloc((size + 1) * sizeof *first);
    if (!first) return status_fail(ST_RESOURCE, "out of memory for samples");
    experience_clear(mine, config->n);
    Status status = ST_OK;
    if (begin < end) status = experience_sample(model, rl->tokenizer, prompts + begin, end - begin, number + begin, config, comm, mine);
    if (status == ST_OK) status = exchange(comm, mine, first, &bytes);
    experience_clear(e, config->n);
    if (status == ST_OK) status = take_all(prompts, n_prompts, bytes, e);
    free(bytes);
    free(first);
    return status;
}

/* ---- what ranks divide besides prompts and passes ---- */

Status text_divides(const TextRl *rl, ShardKind *shard) {
    *shard = recipe_shard(rl->recipe);
    if (*shard == SHARDS_NONE || !rl->value || !rl->value->own) return ST_OK;
    status_fail(ST_CONFIG, "'parallel.shard: %s' divides one model, but 'rl.value_model' trains a second one", rl->recipe->parallel_shard);
    return status_hint(ST_CONFIG, "leave parallel.shard out, or set rl.value_model: head");
}

void text_list_optimizer(TextRl *rl, StateList *states) {
    static const char *const kinds[OPTIMIZER_MAX_STATES] = {"state0", "state1"};
    const Params *params = &rl->model->params;
    const int n_states = optimizer_find(rl->update.stepper.optimizer.name)->states(&rl->update.stepper.optimizer);
    size_t k = 0;
    if (!rl->update.division.divided || comm_size(rl->comm) == 1) {
        state_optimizer(states, params);
        return;
    }
    for (size_t i = 0; i < params->n; i++) {
        const Param *param = &params->items[i];
        for (int s = 0; s < n_states && param->trained; s++) state_divided(states, kinds[s], param, k, param->state[s]);
        k += param->trained;
    }
}

/* ---- passes without gradients ---- */

Status text_share_tokens(TextRl *rl, const int64_t *passes, int64_t n_passes, double *const *arrays, size_t n_arrays) {
    Comm *comm = rl->comm;
    const Experience *e = &rl->step.experience;
    const int64_t size = comm_size(comm);
    if (size == 1 || e->n == 0) return ST_OK; /* no pair was found */
    size_t *first = malloc(((size_t)size + 1) * sizeof *first);
    Status status = first ? ST_OK : status_fail(ST_RESOURCE, "out of memory for passes");
    for (int64_t r = 0; first && r <= size; r++) first[r] = (size_t)e->begin[passes[r * n_passes / size]];
    for (size_t i = 0; i < n_arrays && status == ST_OK; i++)
        if (arrays[i]) status = comm_gather(comm, &(CommGather){COMM_EXPERIENCE, "values of tokens", arrays[i], sizeof *arrays[i], first});
    if (status == ST_OK) status = comm_finish(comm);
    free(first);
    return status;
}
