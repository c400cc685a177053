/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks of a loop, in a row for each thread, so that what one leaves in a cache is there for the next; who is done takes some of another's. */
#ifndef TUNE_SHARES_H
#define TUNE_SHARES_H

#include "lib/tensor/cpu/cpu.h"

#include <omp.h>
#include <stdatomic.h>

typedef struct Share {
    _Alignas(64) atomic_llong next;
    long long end;
} Share;
typedef struct Shares {
    Share *list;
    int64_t n;
} Shares;

static inline int64_t shares_count(int64_t n_tasks) { return MIN(n_tasks, (int64_t)omp_get_max_threads()); }

/* In `list`, which has room for shares_count. */
static inline Shares shares_begin(Share *list, int64_t n_tasks) {
    int64_t n = shares_count(n_tasks);
    for (int64_t i = 0; i < n; i++) {
        atomic_init(&list[i].next, i * n_tasks / n);
        list[i].end = (i + 1) * n_tasks / n;
    }
    return (Shares){list, n};
}

static inline Shares shares_new(int64_t n_tasks) {
    return shares_begin(cpu_scratch(CPU_TASKS, (size_t)shares_count(n_tasks) * sizeof(Share)), n_tasks);
}

/* The next task of the calling thread, -1 = none is left. *at: 0 at first. */
static inline int64_t shares_next(const Shares *shares, int64_t *at) {
    for (; *at < shares->n; ++*at) {
        Share *share = &shares->list[(omp_get_thread_num() + *at) % shares->n];
        long long task = atomic_fetch_add(&share->next, 1);
        if (task < share->end) return task;
    }
    return -1;
}

#endif
