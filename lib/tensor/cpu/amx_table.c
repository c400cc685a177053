/* The kernels of processors with AMX: those of AVX-512, but for what bf16 tiles do faster. */
#include "lib/tensor/cpu/cpu.h"

void cpu_kernels_amx(Device *device) {
    cpu_kernels_avx512(device);
    device->attention = cpu_attention_amx;
    device->attention_backward = cpu_attention_backward_amx;
}
