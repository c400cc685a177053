/* SPDX-License-Identifier: Apache-2.0 */
/* rouge_l: rows whose prompt is too similar to a seed or a kept row, by ROUGE-L's F; exactly the filter of self-instruct and Alpaca (rouge.h). Texts
 * without a-z and 0-9 are similar to none. */
#include "data/filter/filter_kinds.h"
#include "data/filter/rouge.h"

#include <errno.h>
#include <stdlib.h>

enum { THRESHOLD, ON };
static const OptionSpec options[] = {
    [THRESHOLD] = {"threshold", OPTION_NUMBER, .value = 0.7, .low = 0, .high = 1, .help = "F above which a row is rejected"},
    [ON] = {"on", OPTION_STRING, .text = "prompt", .choices = FILTER_FIELDS, .help = "what is compared; self-instruct has instruction"},
    {0},
};

typedef struct Rouge {
    RougeIndex *index;
    RougeWorker **workers; /* n_workers */
    RougeText texts[FILTER_BLOCK];
} Rouge;

static Status filter_rouge_l_open(Filter *filter) {
    Rouge *rouge = filter->state = calloc(1, sizeof *rouge);
    filter->info.stage = filter_on(filter->options[ON].text);
    if (!rouge || !(rouge->workers = calloc((size_t)filter->n_workers, sizeof *rouge->workers))) return status_errno(ENOMEM, "cannot compare rows");
    TRY(rouge_index_new(&rouge->index));
    for (int i = 0; i < filter->n_workers; i++) TRY(rouge_worker_new(&rouge->workers[i]));
    return ST_OK;
}

static void filter_rouge_l_close(Filter *filter) {
    Rouge *rouge = filter->state;
    if (!rouge) return;
    for (int i = 0; rouge->workers && i < filter->n_workers; i++) rouge_worker_free(rouge->workers[i]);
    for (size_t i = 0; i < FILTER_BLOCK; i++) rouge_text_release(&rouge->texts[i]);
    rouge_index_free(rouge->index);
    free(rouge->workers);
    free(rouge);
}

static Status filter_rouge_l_take(Filter *filter, const FilterRow *row, size_t slot) {
    Rouge *rouge = filter->state;
    Str room = {0};
    Status status = rouge_index_words(rouge->index, filter_subject(row, filter->options[ON].text, &room), &rouge->texts[slot]);
    str_release(&room);
    return status;
}

static Status filter_rouge_l_fit(Filter *filter) {
    Rouge *rouge = filter->state;
    for (int i = 0; i < filter->n_workers; i++)
        for (size_t slot = 0; slot < FILTER_BLOCK; slot++) TRY(rouge_worker_fit(rouge->workers[i], rouge->index, &rouge->texts[slot], FILTER_BLOCK));
    return ST_OK;
}

static void filter_rouge_l_search(const Filter *filter, size_t slot, int worker, size_t from, FilterMatch *match) {
    const Rouge *rouge = filter->state;
    RougeBest best = {match->score, match->row};
    rouge_index_best(rouge->index, rouge->workers[worker], &rouge->texts[slot], from, &best);
    *match = (FilterMatch){best.f, best.text};
}

static const char *filter_rouge_l_alike(const Filter *filter, double score) {
    return score > filter_number(filter, THRESHOLD) ? "too similar to a seed or an earlier row" : NULL;
}

static Status filter_rouge_l_remember(Filter *filter, size_t slot) {
    Rouge *rouge = filter->state;
    return rouge_index_add(rouge->index, &rouge->texts[slot]);
}

static const FilterMemory memory = {.take = filter_rouge_l_take,
                                    .fit = filter_rouge_l_fit,
                                    .search = filter_rouge_l_search,
                                    .rejects = filter_rouge_l_alike,
                                    .remember = filter_rouge_l_remember};
const FilterKind filter_kind_rouge_l = {.name = "rouge_l",
                                        .help = "rows too similar to a seed or an earlier row, by ROUGE-L",
                                        .argument = "F",
                                        .on = true,
                                        .stage = FILTER_PROMPT,
                                        .options = options,
                                        .open = filter_rouge_l_open,
                                        .close = filter_rouge_l_close,
                                        .memory = &memory};
