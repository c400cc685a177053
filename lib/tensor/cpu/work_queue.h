/* SPDX-License-Identifier: Apache-2.0 */
/* Divides the tasks of a loop into a consecutive range for each thread, so that a task finds the data of the one before in the cache. A thread
 * that has finished its range takes tasks from another's. */
#ifndef TUNE_WORK_QUEUE_H
#define TUNE_WORK_QUEUE_H

#include "lib/tensor/cpu/cpu.h"

#include <omp.h>
#include <stdatomic.h>

typedef struct WorkRange {
    _Alignas(64) atomic_llong next;
    long long end;
} WorkRange;
typedef struct WorkQueue {
    WorkRange *list;
    int64_t n;
} WorkQueue;

static inline int64_t work_queue_count(int64_t n_tasks) { return MIN(n_tasks, (int64_t)omp_get_max_threads()); }

/* Initialises the queue in `list`, which has work_queue_count entries. */
static inline WorkQueue work_queue_begin(WorkRange *list, int64_t n_tasks) {
    int64_t n = work_queue_count(n_tasks);
    for (int64_t i = 0; i < n; i++) {
        atomic_init(&list[i].next, i * n_tasks / n);
        list[i].end = (i + 1) * n_tasks / n;
    }
    return (WorkQueue){list, n};
}

static inline WorkQueue work_queue_new(int64_t n_tasks) {
    return work_queue_begin(cpu_scratch(CPU_TASKS, (size_t)work_queue_count(n_tasks) * sizeof(WorkRange)), n_tasks);
}

/* The next task of the calling thread, -1 = none is left. *at: a variable of the thread, 0 before its first call. */
static inline int64_t work_queue_next(const WorkQueue *queue, int64_t *at) {
    for (; *at < queue->n; ++*at) {
        WorkRange *share = &queue->list[(omp_get_thread_num() + *at) % queue->n];
        long long task = atomic_fetch_add(&share->next, 1);
        if (task < share->end) return task;
    }
    return -1;
}

#endif
