/* Tasks of a loop, in a row for each thread, so that what one leaves in a cache is there for the next; who is done takes some of another's. */
#ifndef TUNE_SHARES_H
#define TUNE_SHARES_H

#include "lib/tensor/cpu/cpu.h"

#include <omp.h>
#include <stdatomic.h>

typedef struct Share { _Alignas(64) atomic_llong next; long long end; } Share;
typedef struct Shares { Share *list; int64_t n; } Shares;

static inline Shares shares_new(int64_t n_tasks) {
    int64_t n = MIN(n_tasks, (int64_t)omp_get_max_threads());
    Share *shares = cpu_scratch(CPU_TASKS, (size_t)n * sizeof *shares);
    for (int64_t i = 0; i < n; i++) {
        atomic_init(&shares[i].next, i * n_tasks / n);
        shares[i].end = (i + 1) * n_tasks / n;
    }
    return (Shares){shares, n};
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
