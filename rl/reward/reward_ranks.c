/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks divide the rows that rewards score, so that each completion is judged once, by the programs and models of one rank. */
#include "rl/reward/reward_kinds.h"

#include <math.h>
#include <string.h>

void reward_rows_divide(const Comm *comm, const RewardRow *rows, size_t n, size_t *first) {
    const size_t ranks = (size_t)comm_size(comm);
    for (size_t r = 0; r <= ranks; r++) {
        size_t at = r * n / ranks;
        while (at > 0 && at < n && rows[at].prompt_ids == rows[at - 1].prompt_ids) at++;
        first[r] = at;
    }
}

/* The values of all rows; NaN for this rank's if `own` is NULL. */
static Status share_values(Comm *comm, const size_t *first, const double *own, Arena *arena, const double **values) {
    const size_t ranks = (size_t)comm_size(comm), begin = first[comm_rank(comm)], end = first[comm_rank(comm) + 1];
    double *all = arena_alloc(arena, MAX(first[ranks], (size_t)1) * sizeof *all);
    if (!all) return ST_RESOURCE;
    for (size_t i = begin; i < end; i++) all[i] = own ? own[i - begin] : (double)NAN;
    *values = all;
    TRY(comm_gather(comm, &(CommGather){COMM_EXPERIENCE, "rewards", all, sizeof *all, first}));
    return comm_finish(comm);
}

/* The names of columns listed .. n - 1 of all ranks, each with its NUL. *bytes: of all */
static Status share_names(Comm *comm, const RewardColumn *columns, size_t listed, size_t n, Arena *arena, char **names, size_t *bytes) {
    const size_t ranks = (size_t)comm_size(comm);
    size_t own = 0, *first = arena_zero(arena, (ranks + 1) * sizeof *first);
    if (!first) return ST_RESOURCE;
    for (size_t k = listed; k < n; k++) own += strlen(columns[k].name) + 1;
    TRY(comm_gather_small(comm, "lengths of names of rewards", &own, sizeof own, first + 1));
    for (size_t r = 0; r < ranks; r++) first[r + 1] += first[r];
    *bytes = first[ranks];
    *names = arena_alloc(arena, MAX(*bytes, (size_t)1));
    if (!*names) return ST_RESOURCE;
    char *at = *names + first[comm_rank(comm)];
    for (size_t k = listed; k < n; k++) {
        memcpy(at, columns[k].name, strlen(columns[k].name) + 1);
        at += strlen(at) + 1;
    }
    TRY(comm_gather(comm, &(CommGather){COMM_EXPERIENCE, "names of rewards", *names, 1, first}));
    return comm_finish(comm);
}

static RewardColumn *find_column(RewardColumn *columns, size_t from, size_t n, const char *name) {
    for (size_t k = from; k < n; k++)
        if (strcmp(columns[k].name, name) == 0) return &columns[k];
    return NULL;
}

Status reward_columns_share(Comm *comm, const size_t *first, size_t listed, RewardColumn *columns, size_t *n_columns, Arena *arena) {
    const size_t n_own = *n_columns;
    size_t bytes, n = listed;
    char *names;
    TRY(share_names(comm, columns, listed, n_own, arena, &names, &bytes));
    RewardColumn *own = arena_alloc(arena, n_own * sizeof *own);
    if (!own) return ST_RESOURCE;
    memcpy(own, columns, n_own * sizeof *own);
    for (size_t k = 0; k < listed; k++) TRY(share_values(comm, first, own[k].values, arena, &columns[k].values));
    for (const char *name = names; name < names + bytes; name += strlen(name) + 1) {
        if (find_column(columns, listed, n, name)) continue;
        if (n == REWARD_COLUMNS_MOST) return status_fail(ST_INPUT, "more than %d different numbers of rewards", REWARD_COLUMNS_MOST);
        const RewardColumn *mine = find_column(own, listed, n_own, name);
        columns[n] = (RewardColumn){.name = name};
        TRY(share_values(comm, first, mine ? mine->values : NULL, arena, &columns[n++].values));
    }
    *n_columns = n;
    return ST_OK;
}
