/* SPDX-License-Identifier: Apache-2.0 */
/* This machine: its parts by /sys, its theoretical peak, the speed of its disks.
 *
 *     Topology topology;
 *     topology_read("/sys", "/proc/cpuinfo", &topology);
 */
#ifndef TUNE_PLAN_HERE_H
#define TUNE_PLAN_HERE_H

#include "lib/base/str.h"

enum { MOST_PROCESSORS = 1024, MOST_DISKS = 16 };
/* Processors are those of the system, whatever this process may use. 0: unknown. */
typedef struct Topology {
    int processors, cores, sockets, nodes, l3_domains;
    double l1_bytes, l2_bytes, l3_bytes; /* of one cache */
    double clock;                        /* highest, per second; without cpufreq the present one */
    short core_of[MOST_PROCESSORS], socket_of[MOST_PROCESSORS], l3_of[MOST_PROCESSORS], node_of[MOST_PROCESSORS]; /* -1: not there */
} Topology;
/* folder: the system's /sys, or a test's. cpuinfo: the file with the clock. */
void topology_read(const char *folder, const char *cpuinfo, Topology *topology);
/* Operations a cycle of a core: f32 by fused multiply-add units and vector width; 16 bits with f32 sums, 0 = none. name, features: of CpuInfo. */
void peak_per_cycle(const char *name, const char *features, double *f32, double *half);

typedef struct DiskSpeed {
    char file[512];
    double sequential;        /* bytes per second */
    double random_per_second; /* reads of 4 KiB */
    bool cached;              /* the file system does not read without its cache: the disk may be slower */
} DiskSpeed;
/* Reads `path`, or the largest file in a folder. ST_INPUT: there is none, or it cannot be read. */
Status disk_measure(const char *path, DiskSpeed *speed);

#endif
