/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of one machine have once: the first of them fills it, then the others read it. It is a file without a name, in memory
 * (memfd_create), so nothing is left of it when the last of these processes ends, however it ends.
 *
 *     TRY(host_memory_new(comm, &memory));                    // all ranks call it; NULL: this rank has no memory in common with others
 *     float *x = host_memory_take(memory, bytes);             // the same calls on all ranks of the machine
 *     if (host_memory_fills(memory)) ... write x ...
 *     TRY(host_memory_end(memory));                           // from now on nobody writes it
 *     host_memory_free(memory);
 */
#ifndef TUNE_HOST_MEMORY_H
#define TUNE_HOST_MEMORY_H

#include "lib/comm/comm.h"

typedef struct HostMemory HostMemory;
/* All ranks of `comm` call it. *memory: NULL if the rank is the only one on its machine, if comm is NULL, or, with a warning, if one of these
 * processes cannot open what another one shares (other users, containers, a system without memfd_create). The caller calls host_memory_free.
 * ST_RESOURCE, and as comm_wait. */
Status host_memory_new(Comm *comm, HostMemory **memory);
bool host_memory_fills(const HostMemory *memory); /* whether this rank writes */
/* Bytes aligned to 64, valid until host_memory_free. All ranks of the machine take the same sizes in the same order. On ranks that read, the first
 * call waits until the first rank's host_memory_end. NULL, with the failure recorded: there is no memory, the sizes differ, or as comm_wait. */
void *host_memory_take(HostMemory *memory, size_t bytes);
Status host_memory_end(HostMemory *memory); /* ST_RESOURCE: the sizes differ; as comm_wait */
void host_memory_free(HostMemory *memory);  /* NULL is fine. Without an end, it has to come before comm_close */

#endif
