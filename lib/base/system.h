/* SPDX-License-Identifier: Apache-2.0 */
/* What the system says and does: interrupts, the clock, caches, cores, memory of this process. */
#ifndef TUNE_SYSTEM_H
#define TUNE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

void interrupt_request(void);    /* async-signal-safe */
void interrupt_clear(void);      /* what was interrupted has ended, and the program goes on */
bool interrupt_requested(void);  /* long loops look at it between steps */
double clock_seconds(void);      /* monotonic */
uint64_t memory_available(void); /* bytes that this process may still take: the machine's and the control group's limit */
int64_t near_cache_bytes(void);  /* a processor's second-level cache; 0 when the system does not say */
int64_t far_cache_bytes(void);   /* the one in front of memory, as large as its sharers make it; 0 likewise */
/* Processors that this process may use: by its affinity (taskset, Slurm) and by the limits of its control groups (containers), 1 or more */
int cores_available(void);
/* The same, but one of those that share a core's units (SMT); folder: NULL = the system's, /sys/devices/system/cpu on Linux */
int cores_physical(const char *folder);
uint64_t memory_resident(void); /* of this process now, with the pages of mapped files, bytes; 0 where the system does not tell */
uint64_t memory_of_files(void); /* the part of it that is pages of mapped files, the program's own among them; 0 where the system does not tell */
void memory_trim(void);         /* what was freed and the C library still keeps goes back to the system, where it can be told to (glibc) */
uint64_t memory_peak(void);     /* largest resident size of this process so far, bytes */

#endif
