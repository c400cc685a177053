/* SPDX-License-Identifier: Apache-2.0 */
/* The operating system: interrupts, the clock, caches, cores, memory of this process. */
#ifndef TUNE_SYSTEM_H
#define TUNE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

void interrupt_request(void);    /* async-signal-safe */
void interrupt_clear(void);      /* the interrupted work has ended and the program continues */
bool interrupt_requested(void);  /* long loops check it between steps */
double clock_seconds(void);      /* monotonic */
uint64_t memory_available(void); /* bytes that this process may still allocate, by the machine's memory and the control group's limit */
int64_t near_cache_bytes(void);  /* second-level cache of one processor; 0 when unknown */
int64_t far_cache_bytes(void);   /* last-level cache, which several processors share; 0 when unknown */
/* Processors that this process may use, at least 1: by its affinity (taskset, Slurm) and the limits of its control groups (containers) */
int cores_available(void);
/* The same, but one processor per physical core (SMT siblings count once). folder: NULL = the system's, /sys/devices/system/cpu on Linux */
int cores_physical(const char *folder);
uint64_t memory_resident(void); /* resident bytes of this process, with pages of mapped files; 0 when unknown */
uint64_t memory_of_files(void); /* the part of it that is pages of mapped files, including the program's own; 0 when unknown */
void memory_trim(void);         /* returns freed memory that the C library still holds to the system, where it can (glibc) */
uint64_t memory_peak(void);     /* largest resident size of this process so far, bytes */

#endif
