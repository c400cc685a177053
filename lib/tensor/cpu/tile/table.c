/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of processors that multiply bf16: those of AVX-512, except where tiles of bf16 are faster. */
#include "lib/tensor/cpu/cpu.h"

void ISA_FN(tile_kernels)(Device *device) {
    cpu_kernels_avx512_bf16(device);
    device->attention = ISA_FN(tile_attention);
    device->attention_backward = ISA_FN(tile_attention_backward);
}
