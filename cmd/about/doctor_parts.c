/* SPDX-License-Identifier: Apache-2.0 */
/* Memory read by the threads of one core, one L3 domain, one memory node. */
#include <omp.h>
#include <sched.h>
#include <string.h>

#include "cmd/about/doctor_parts.h"
#include "lib/tensor/tensor.h"

#ifdef __linux__
/* Processors of `part`, one per core, that this process may use. */
static int members(const Topology *topology, const short *of, short part, const cpu_set_t *allowed, int *list) {
    bool seen[MOST_PROCESSORS] = {false};
    int n = 0;
    for (int i = 0; i < MOST_PROCESSORS && i < CPU_SETSIZE; i++) {
        short core = topology->core_of[i];
        if (of[i] != part || core < 0 || seen[core] || !CPU_ISSET(i, allowed)) continue;
        seen[core] = true;
        list[n++] = i;
    }
    return n;
}

/* Binds a thread to each processor, measures, and releases them. Without the permission to bind, the threads stay free. */
static Status measure_on(const int *list, int n, const cpu_set_t *allowed, double *gbs) {
    int threads = omp_get_max_threads();
    omp_set_num_threads(n);
#pragma omp parallel
    {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(list[omp_get_thread_num() % n], &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    Status status = cpu_measure_reading(gbs);
#pragma omp parallel
    sched_setaffinity(0, sizeof *allowed, allowed);
    omp_set_num_threads(threads);
    return status;
}

/* The part that contains the first processor which this process may use. A part of all cores, or of as many as the one before, is not measured. */
static Status measure_part(const Topology *topology, const short *of, const cpu_set_t *allowed, int first, int *before, double *gbs) {
    int list[MOST_PROCESSORS], n = of[first] < 0 ? 0 : members(topology, of, of[first], allowed, list);
    if (n <= *before || n >= omp_get_max_threads()) return ST_OK;
    *before = n;
    return measure_on(list, n, allowed, gbs);
}

Status part_speeds_measure(const Topology *topology, double all, PartSpeeds *speeds) {
    cpu_set_t allowed;
    *speeds = (PartSpeeds){.all = all};
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return ST_OK;
    int first = 0, before = 0;
    while (first < MOST_PROCESSORS - 1 && first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &allowed)) first++;
    TRY(measure_part(topology, topology->core_of, &allowed, first, &before, &speeds->core));
    TRY(measure_part(topology, topology->l3_of, &allowed, first, &before, &speeds->l3));
    return measure_part(topology, topology->node_of, &allowed, first, &before, &speeds->node);
}
#else
Status part_speeds_measure(const Topology *topology, double all, PartSpeeds *speeds) {
    (void)topology;
    *speeds = (PartSpeeds){.all = all};
    return ST_OK;
}
#endif
