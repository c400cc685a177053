/* SPDX-License-Identifier: Apache-2.0 */
/* tune doctor: bandwidth of the machine's parts. */
#ifndef TUNE_DOCTOR_PARTS_H
#define TUNE_DOCTOR_PARTS_H

#include "lib/plan/plan_here.h"

/* GB/s of reading memory with the threads of one core, one L3 domain, one memory node, and all. 0: as the part before. */
typedef struct PartSpeeds {
    double core, l3, node, all;
} PartSpeeds;
Status part_speeds_measure(const Topology *topology, double all, PartSpeeds *speeds); /* all: GB/s with all threads, measured before */

#endif
