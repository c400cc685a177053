/* SPDX-License-Identifier: Apache-2.0 */
/* The processor's device: fast kernels for f32 and bf16.
 *
 * The folder of a .c file says how it is compiled. Those in simd/ are compiled once per instruction set, with -DISA=base|avx2|avx512|avx512_bf16, so
 * a kernel is written once, in C that the compiler vectorises:
 *
 *     void ISA_FN(fill)(Tensor *y, double value) { ... }     // becomes cpu_fill_avx2 when compiled with -DISA=avx2
 *
 * Those in host/ are compiled once: they choose the set when the program runs, and call the libraries of matrix products.
 * Those in tile/ are compiled for the sets that multiply bf16, -DISA=avx512_bf16|amx (tile/tiles.h), if the compiler knows them.
 *
 * Threads: OpenMP over blocks whose size depends on the problem alone; sums over blocks are added in block order. So results are the same bits for
 * any number of threads.
 */
#ifndef TUNE_CPU_H
#define TUNE_CPU_H

#include "lib/tensor/tensor.h"

/* Elements of a tensor below which starting threads costs more than it saves. */
enum { CPU_SERIAL = 16384 };
/* Elements that elementwise kernels hand to a thread at once. */
enum { CPU_BLOCK = 4096 };

#define CPU_PASTE(name, isa) cpu_##name##_##isa
#define CPU_PASTE_EXPANDED(name, isa) CPU_PASTE(name, isa)

/* Fills in the kernels of one instruction set, all but the products. */
void cpu_kernels_base(Device *device);
void cpu_kernels_avx2(Device *device);
void cpu_kernels_avx512(Device *device);
void cpu_kernels_avx512_bf16(Device *device);
/* The same with attention in tiles of bf16. */
void cpu_tile_kernels_avx512_bf16(Device *device);
void cpu_tile_kernels_amx(Device *device);
#define KERNEL(name, arguments) void cpu_##name##_avx512_bf16 arguments;
#define KERNEL_PRODUCT(name, arguments)
#include "lib/tensor/kernels.def"
#undef KERNEL
/* The products: cpu_matmul and those with the vocabulary's head. The libraries below choose by the processor themselves. */
#define KERNEL(name, arguments)
#define KERNEL_PRODUCT(name, arguments) void cpu_##name arguments;
#include "lib/tensor/kernels.def"
#undef KERNEL

#ifdef ISA
#define ISA_FN(name) CPU_PASTE_EXPANDED(name, ISA)
#define KERNEL(name, arguments)  \
    void ISA_FN(name) arguments; \
    void ISA_FN(tile_##name) arguments; /* the second for a few only: tile/table.c */
#define KERNEL_PRODUCT(name, arguments)
#include "lib/tensor/kernels.def"
#undef KERNEL
#endif

/* Scratch memory of the calling OpenMP thread, aligned to 64 bytes, kept for the next kernel; not cleared. Each slot is one piece, valid until the
 * thread asks for the same slot again. CPU_SHARED, CPU_TASKS and, for products, CPU_TRANSPOSED are for what a kernel allocates before its parallel
 * loop, CPU_LOCAL for what its iterations need; the others are for products (host/gemm*.c, *product.c), and for attention_backward.c. */
enum { CPU_SHARED, CPU_TASKS, CPU_LOCAL, CPU_TILE_A, CPU_TILE_B, CPU_TILE_C, CPU_TRANSPOSED, CPU_LIBRARY, CPU_SLOTS };
void *cpu_scratch(int slot, size_t bytes);
/* While a step is planned (cpu_plan) cpu_scratch only notes what is asked for, and hands out an address that must not be used; but for CPU_TASKS,
 * lists that are small. The kernels that the meta device calls then end before they touch a tensor's elements: what each thread takes in a parallel
 * loop, one asks for before it. */
bool cpu_planning(void);

int cpu_team_member(void); /* number of the calling thread in the team, 0 for all others */

bool cpu_has(const char *feature); /* one of the words of CpuInfo.features */

/* True if the fast kernels do these dtypes: f32 and bf16, and f16 where it is only read. The rest is left to the reference kernels. NULL tensors are
 * fine. */
bool cpu_fast(const Tensor *const *tensors, size_t n, bool written);
#define CPU_READS(...) cpu_fast((const Tensor *const[]){__VA_ARGS__}, sizeof((const Tensor *const[]){__VA_ARGS__}) / sizeof(Tensor *), false)
#define CPU_WRITES(...) cpu_fast((const Tensor *const[]){__VA_ARGS__}, sizeof((const Tensor *const[]){__VA_ARGS__}) / sizeof(Tensor *), true)

#endif
