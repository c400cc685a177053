/* SPDX-License-Identifier: Apache-2.0 */
/* repetition: -penalty x (1 - distinct n-grams / all n-grams) over the completion's words (in lower case) or token ids; 0 if it is shorter than n
 * (arXiv 2502.03373, section 4.3). */
#include "rl/reward/reward_kinds.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NGRAM, PENALTY, UNIT };
static const OptionSpec options[] = {
    [NGRAM] = {.name = "ngram", .kind = OPTION_WHOLE, .value = 3, .low = 1, .high = 64},
    [PENALTY] = {.name = "penalty", .kind = OPTION_NUMBER, .value = 1, .low = 0, .high = 1e9},
    [UNIT] = {.name = "unit", .kind = OPTION_STRING, .text = "words", .choices = "words|tokens"},
    {0},
};

/* A word, or the bytes of an id. */
typedef struct Gram {
    const Slice *units;
    size_t n;
} Gram;

static int compare_units(Slice a, Slice b) {
    for (size_t i = 0; i < a.len && i < b.len; i++) {
        int order = tolower((unsigned char)a.data[i]) - tolower((unsigned char)b.data[i]);
        if (order != 0) return order;
    }
    return (a.len > b.len) - (a.len < b.len);
}

static int compare_grams(const void *a, const void *b) {
    const Gram *x = a, *y = b;
    for (size_t i = 0; i < x->n; i++) {
        int order = compare_units(x->units[i], y->units[i]);
        if (order != 0) return order;
    }
    return 0;
}

static size_t split_words(Slice text, Slice *words) {
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        while (i < text.len && isspace((unsigned char)text.data[i])) i++;
        size_t begin = i;
        while (i < text.len && !isspace((unsigned char)text.data[i])) i++;
        if (i > begin) words[n++] = (Slice){text.data + begin, i - begin};
    }
    return n;
}

/* Ids as fixed-length strings of letters that lower-casing does not change. */
static size_t split_ids(const RewardRow *row, char *room, Slice *units) {
    for (size_t i = 0; i < row->n_completion_ids; i++) {
        uint32_t id = (uint32_t)row->completion_ids[i];
        for (int k = 0; k < 8; k++) room[8 * i + (size_t)k] = (char)('A' + (id >> (4 * k) & 15));
        units[i] = (Slice){room + 8 * i, 8};
    }
    return row->n_completion_ids;
}

static Status reward_repetition_score(Reward *reward, const RewardRow *given, double *value) {
    const RewardRow own = reward_without_observations(given), *row = &own;
    bool tokens = strcmp(reward->options[UNIT].text, "tokens") == 0;
    size_t most = tokens ? row->n_completion_ids : row->completion.len / 2 + 1, size = (size_t)reward->options[NGRAM].number;
    Slice *units = malloc(MAX(most, 1) * sizeof *units);
    Gram *grams = malloc(MAX(most, 1) * sizeof *grams);
    char *room = tokens ? malloc(MAX(most, 1) * 8) : NULL;
    if (units && grams && (room || !tokens)) {
        size_t n = tokens ? split_ids(row, room, units) : split_words(row->completion, units), count = n >= size ? n - size + 1 : 0,
               different = count > 0;
        for (size_t i = 0; i < count; i++) grams[i] = (Gram){units + i, size};
        qsort(grams, count, sizeof *grams, compare_grams);
        for (size_t i = 1; i < count; i++) different += compare_grams(&grams[i], &grams[i - 1]) != 0;
        *value = count ? -reward->options[PENALTY].number * (1 - (double)different / (double)count) : 0;
    }
    Status status = units && grams && (room || !tokens) ? ST_OK : status_errno(ENOMEM, "cannot count repetitions");
    free(units);
    free(grams);
    free(room);
    return status;
}

const RewardKind reward_kind_repetition = {"repetition", options, .score = reward_repetition_score};
