/* SPDX-License-Identifier: Apache-2.0 */
/* A second device for tests: the CPU's kernels on memory that the host cannot read or write between calls. Code that touches the elements of a tensor
 * other than by tensor_upload, tensor_download and what is made of them ends with SIGSEGV and a line that names the device. */
#ifndef TUNE_LOCKED_DEVICE_H
#define TUNE_LOCKED_DEVICE_H

#include "lib/tensor/tensor.h"

const Device *device_locked(void);
size_t locked_bytes(void);            /* bytes that tensors have of it now */
void locked_fail(const char *reason); /* the device fails at its next call, and says why until it is called with NULL */

#endif
