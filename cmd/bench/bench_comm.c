/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench comm: bytes per second of sums and copies between ranks, next to what one process copies and adds. Started by a launcher, it measures
 * the launcher's ranks; without one, only the machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"
#include "cmd/bench/bench.h"
#include "lib/base/system.h"

enum { ROUNDS = 5, UNIT = 16384 };

static int compare_seconds(const void *a, const void *b) {
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *seconds) {
    qsort(seconds, ROUNDS, sizeof *seconds, compare_seconds);
    return seconds[ROUNDS / 2];
}

/* GB/s of a copy, and of x += y (each element of y read once) */
static void measure_machine(float *x, const float *y, size_t n, double *copies, double *adds) {
    double seconds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        const double began = clock_seconds();
        memcpy(x, y, n * sizeof *x);
        seconds[round] = clock_seconds() - began;
    }
    *copies = (double)(n * sizeof *x) / 1e9 / median(seconds);
    for (int round = 0; round < ROUNDS; round++) {
        const double began = clock_seconds();
        for (size_t i = 0; i < n; i++) x[i] += y[i];
        seconds[round] = clock_seconds() - began;
    }
    *adds = (double)(n * sizeof *x) / 1e9 / median(seconds);
}

/* Seconds of a sum (reduce-scatter) and of the copies of its parts (all-gather); the median of five */
static Status measure_sum(Comm *comm, CommReduce reduce, float *x, size_t n, double *sums, double *copies) {
    double summed[ROUNDS], copied[ROUNDS];
    size_t first[COMM_MAX_RANKS + 1];
    comm_configure(comm, &(CommConfig){.reduce = reduce});
    comm_parts(comm, n, UNIT, first);
    const CommSum sum = {COMM_GRADIENTS, "gradients", n, first, .nodes = &x, .sum = x + first[comm_rank(comm)]};
    const CommGather gather = {COMM_WEIGHTS, "weights", x, sizeof *x, first};
    for (int round = -1; round < ROUNDS; round++) { /* the first one opens connections */
        int all[COMM_MAX_RANKS];
        for (size_t i = 0; i < n; i++) x[i] = 1;
        TRY(comm_gather_small(comm, "begin", &round, sizeof round, all));
        const double began = clock_seconds();
        TRY(comm_sum(comm, &sum));
        TRY(comm_finish(comm));
        const double middle = clock_seconds();
        TRY(comm_gather(comm, &gather));
        TRY(comm_finish(comm));
        if (round < 0) continue;
        summed[round] = middle - began;
        copied[round] = clock_seconds() - middle;
    }
    if (n > 0 && x[n - 1] != (float)comm_size(comm)) return status_fail(ST_NUMERIC, "the sum of %d ones is %g", comm_size(comm), (double)x[n - 1]);
    *sums = median(summed);
    *copies = median(copied);
    return ST_OK;
}

static void show_row(const Command *command, const char *reduce, int size, size_t bytes, double sums, double copies) {
    const double moved = (double)bytes * (size - 1) / size / 1e9; /* that a rank sends in each of both */
    if (command->json)
        print_result("{\"ranks\": %d, \"reduce\": \"%s\", \"bytes\": %zu, \"sum_seconds\": %.6g, \"gather_seconds\": %.6g}\n", size, reduce, bytes,
                     sums, copies);
    else
        print_result("%-8s %11zu bytes  sum %9.3f ms, %6.2f GB/s a rank   gather %9.3f ms, %6.2f GB/s a rank\n", reduce, bytes, 1e3 * sums,
                     moved / sums, 1e3 * copies, moved / copies);
}

Status bench_comm(const Command *command) {
    static const size_t sizes[] = {16 << 10, 1 << 20, 25 << 20};
    const size_t most = sizes[COUNT_OF(sizes) - 1] / sizeof(float);
    double copies, adds;
    float *x = malloc(2 * most * sizeof *x);
    if (!x) return status_fail(ST_RESOURCE, "no memory for %zu numbers", 2 * most);
    for (size_t i = 0; i < 2 * most; i++) x[i] = 1;
    Comm *comm = ranks_world();
    measure_machine(x, x + most, most, &copies, &adds);
    if (!command->json) print_result("machine  memcpy %.2f GB/s, x += y %.2f GB/s\n", copies, adds);
    if (!comm && !command->json) print_result("one rank: start it with mpirun -n N to measure messages\n");
    if (comm && !command->json) print_result("%d ranks, %s\n", comm_size(comm), comm_title(comm));
    Status status = ST_OK;
    for (size_t i = 0; comm && i < COUNT_OF(sizes); i++)
        for (int reduce = 0; reduce < COMM_N_REDUCES && status == ST_OK; reduce++) {
            double summed, copied;
            status = measure_sum(comm, (CommReduce)reduce, x, sizes[i] / sizeof(float), &summed, &copied);
            if (status == ST_OK) show_row(command, comm_reduce_word((CommReduce)reduce), comm_size(comm), sizes[i], summed, copied);
        }
    free(x);
    return status;
}
