/* SPDX-License-Identifier: Apache-2.0 */
/* The team: threads that poll for a moment before they sleep, for jobs of a few microseconds.
 *
 * A single word, the ticket, contains everything that threads must agree on: the number of the job, how many tasks it has and how many are taken. A
 * thread takes a task by incrementing the ticket, so a late thread finds nothing left, and the caller never waits for a sleeping thread, only for
 * tasks that were taken.
 *
 * If other programs want the processor too, the system may suspend a thread in the middle of a task for milliseconds. After that the caller works
 * alone for a number of jobs, and for twice as many each time that it happens again before the team has made up for the lost time. A job saves at
 * most the time of the caller's own part. */
#include "lib/base/system.h"
#include "lib/tensor/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* WATCH: how often a thread polls the ticket before it sleeps, 50 to 100 microseconds. */
enum { MOST_ALONE = 4096 };
static const double LATE = 50e-6; /* seconds that a job may wait for its last task beyond the caller's own working time */
static const double MOST_OWED = 20e-3;
enum { TEAM_MOST = 64, WATCH = 2000, TASK_BITS = 20, TASK_MOST = (1 << TASK_BITS) - 1 };

static struct {
    _Alignas(64) atomic_uint_least64_t ticket; /* job << 40 | tasks << 20 | taken */
    _Alignas(64) atomic_int_least64_t done;    /* finished tasks of the job */
    _Alignas(64) atomic_int sleeping, members; /* members: threads that may take tasks, including the caller */
    atomic_flag busy;
    CpuTask *task;
    void *context;
    int started;         /* threads, without the caller */
    int alone, patience; /* jobs that the caller will still do alone; number of such jobs at the next delay */
    double owed;         /* seconds lost in waiting that the team has not made up for */
    pthread_mutex_t mutex;
    pthread_cond_t work;
} team = {.busy = ATOMIC_FLAG_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

static _Thread_local int member; /* 0: not a thread of the team */

int cpu_team_member(void) { return member; }

static void breathe(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool tasks_left(uint64_t ticket) { return (ticket & TASK_MOST) < (ticket >> TASK_BITS & TASK_MOST); }

/* Takes and runs tasks until none is left. */
static void work_off(void) {
    uint64_t ticket = atomic_load_explicit(&team.ticket, memory_order_acquire);
    while (tasks_left(ticket)) {
        if (!atomic_compare_exchange_weak_explicit(&team.ticket, &ticket, ticket + 1, memory_order_acq_rel, memory_order_acquire)) continue;
        team.task(team.context, (int64_t)(ticket & TASK_MOST));
        atomic_fetch_add_explicit(&team.done, 1, memory_order_release);
        ticket = atomic_load_explicit(&team.ticket, memory_order_acquire);
    }
}

static bool wanted(void) { return tasks_left(atomic_load(&team.ticket)) && member < atomic_load(&team.members); }

static void *member_run(void *number) {
    member = (int)(intptr_t)number;
    for (;;) {
        for (int look = 0; look < WATCH; look++) {
            if (wanted()) {
                work_off();
                look = 0;
            }
            breathe();
        }
        pthread_mutex_lock(&team.mutex);
        atomic_fetch_add(&team.sleeping, 1);
        while (!wanted()) pthread_cond_wait(&team.work, &team.mutex);
        atomic_fetch_sub(&team.sleeping, 1);
        pthread_mutex_unlock(&team.mutex);
    }
    return NULL;
}

/* Starts threads; does without those that cannot be started. */
static void team_grow(int members) {
    while (team.started + 1 < members) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, member_run, (void *)(intptr_t)(team.started + 1)) != 0) return;
        pthread_detach(thread);
        team.started++;
    }
}

/* began, finished: the times at which the caller began and finished its own part, in seconds. */
static void wait_for_others(int64_t n, double began, double finished) {
    double worked = finished - began, waited = 0;
    if (atomic_load_explicit(&team.done, memory_order_acquire) < n) {
        for (int look = 0; atomic_load_explicit(&team.done, memory_order_acquire) < n; look++) {
            if (look < WATCH)
                breathe();
            else
                sched_yield();
        }
        waited = clock_seconds() - finished;
    }
    bool late = waited > worked + LATE;
    team.owed = fmin(fmax(team.owed + waited - worked, 0), MOST_OWED);
    if (late)
        team.alone = team.patience = MIN(2 * team.patience + 1, (int)MOST_ALONE);
    else if (team.owed == 0)
        team.patience /= 2;
}

void cpu_team_run(int64_t n, CpuTask *task, void *context) {
    int members = MIN(omp_get_max_threads(), (int)TEAM_MOST);
    bool serial = n < 2 || n > TASK_MOST || members < 2 || member || omp_in_parallel() || atomic_flag_test_and_set(&team.busy);
    if (!serial && team.alone > 0) {
        team.alone--;
        atomic_flag_clear(&team.busy);
        serial = true;
    }
    if (serial) {
        for (int64_t i = 0; i < n; i++) task(context, i);
        return;
    }
    team_grow(members);
    team.task = task;
    team.context = context;
    atomic_store_explicit(&team.done, 0, memory_order_relaxed);
    atomic_store_explicit(&team.members, members, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&team.ticket, memory_order_relaxed) >> 2 * TASK_BITS) + 1;
    atomic_store(&team.ticket, job << 2 * TASK_BITS | (uint64_t)n << TASK_BITS);
    if (atomic_load(&team.sleeping)) {
        pthread_mutex_lock(&team.mutex);
        pthread_cond_broadcast(&team.work);
        pthread_mutex_unlock(&team.mutex);
    }
    double began = clock_seconds();
    work_off();
    wait_for_others(n, began, clock_seconds());
    atomic_flag_clear(&team.busy);
}
