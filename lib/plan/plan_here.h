/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that the program runs on: its processors as /sys lists them, its theoretical peak, the speed of its disks.
 *
 *     Topology topology;
 *     topology_read("/sys", "/proc/cpuinfo", &topology);
 */
#ifndef TUNE_PLAN_HERE_H
#define TUNE_PLAN_HERE_H

#include "lib/base/str.h"

enum { MOST_PROCESSORS = 1024, MOST_DISKS = 16 };
/* Counts and sizes of the whole system, not only of the processors that this process may use. 0: unknown. */
typedef struct Topology {
    int processors, cores, sockets, nodes, l3_domains;
    double l1_bytes, l2_bytes, l3_bytes; /* of one cache */
    double clock;                        /* the highest frequency, cycles per second; without cpufreq the current one */
    short core_of[MOST_PROCESSORS], socket_of[MOST_PROCESSORS], l3_of[MOST_PROCESSORS], node_of[MOST_PROCESSORS]; /* -1: not there */
} Topology;
/* Reads the topology; what cannot be read stays unknown. folder: the system's /sys, or a test's. cpuinfo: the file with the clock. */
void topology_read(const char *folder, const char *cpuinfo, Topology *topology);
/* Operations that a core can do in a cycle: *f32 follows from the multiply-add units and the vector width; *half: 16 bits with f32 sums, 0 = none.
 * name, features: of CpuInfo. */
void peak_per_cycle(const char *name, const char *features, double *f32, double *half);

typedef struct DiskSpeed {
    char file[512];
    double sequential;        /* bytes per second */
    double random_per_second; /* reads of 4 KiB */
    bool cached;              /* the file system does not read without its cache: the disk may be slower */
} DiskSpeed;
/* Measures reading of the file `path`, or of the largest file in the folder `path`. ST_INPUT: there is none, or it cannot be read. */
Status disk_measure(const char *path, DiskSpeed *speed);

#endif
