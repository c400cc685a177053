/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the fault shim share. build/FLAVOUR/fault.so is loaded before any program by LD_PRELOAD, on Linux with glibc; the
 * environment says what fails (docs/faults.md):
 *   FAULT_ALLOC=n        the n-th allocation (alloc.c)
 *   FAULT_FILES=KIND:n   the n-th operation on files that this kind can meet (files.c)
 *   n-                   so do all that follow; n~: every second one from there on
 *   FAULT_COUNT=FILE     how many there were of each kind is written there at the end
 *   FAULT_STACKS=FILE    the first allocation of each stack of calls is named there by its number
 *   FAULT_FAILED=FILE    the program or library whose allocation failed last is named there
 *   FAULT_ROOT=FOLDER    what happens to files below it is written to the file FAULT_LOG (journal.c), from which power.c makes the state after a cut
 * Counted from the beginning of main to its end, and in that process only. */
#ifndef TUNE_FAULTS_SHIM_H
#define TUNE_FAULTS_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct Trigger {
    long first; /* 0: none fails */
    char after; /* '-': all that follow, '~': every second one */
    atomic_long calls;
} Trigger;

void trigger_set(Trigger *trigger, const char *said); /* "12", "12-", "12~" or NULL */
bool trigger_next(Trigger *trigger);                  /* counts one; whether it fails */
bool fault_watching(void);

void alloc_begin(void);
void alloc_tell(int file);
void files_begin(void);
void files_tell(int file);

/* What happened, for the log. Descriptors that were not opened below FAULT_ROOT are left out. */
void journal_begin(void);
bool journal_is_kept(void);
void journal_open(int fd, const char *path, bool made, bool cut);
void journal_close(int fd);
void journal_write(int fd, const void *bytes, size_t size, off_t at); /* at: -1: where the descriptor was before it wrote */
void journal_size(int fd, off_t size);
void journal_sync(int fd);
void journal_name(const char *what, const char *path, const char *to); /* mkdir, remove, rename, link; to: NULL where there is one path */

#endif
