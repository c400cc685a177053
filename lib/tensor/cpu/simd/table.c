/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table of one instruction set. */
#include "lib/tensor/cpu/cpu.h"

void ISA_FN(kernels)(Device *device) {
#define KERNEL(name, arguments, values) device->name = ISA_FN(name);
#define KERNEL_PRODUCT(name, arguments, values)
#include "lib/tensor/kernels.def"
#undef KERNEL
}
