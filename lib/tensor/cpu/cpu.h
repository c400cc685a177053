/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device: fast kernels for f32 and bf16.
 *
 * The folder of a .c file decides how it is compiled. Files in simd/ are compiled once per instruction set, with -DISA=base|avx2|avx512|avx512_bf16,
 * so a kernel is written once, in C that the compiler vectorises:
 *
 *     void ISA_FN(fill)(Tensor *y, double value) { ... }     // becomes cpu_fill_avx2 when compiled with -DISA=avx2
 *
 * Files in host/ are compiled once: they choose the instruction set at run time, and call the libraries of matrix products. Files in tile/ are
 * compiled for the instruction sets that multiply bf16, -DISA=avx512_bf16|amx (tile/tiles.h), if the compiler supports them.
 *
 * Threads: OpenMP over blocks whose size depends only on the problem; sums over blocks are added in block order. So results have the same bits for
 * any number of threads.
 */
#ifndef TUNE_CPU_H
#define TUNE_CPU_H

#include "lib/tensor/device.h"

/* Number of elements below which starting threads costs more than it saves. */
enum { CPU_SERIAL = 16384 };
/* Elements that elementwise kernels give to a thread at a time. */
enum { CPU_BLOCK = 4096 };

#define CPU_PASTE(name, isa) cpu_##name##_##isa
#define CPU_PASTE_EXPANDED(name, isa) CPU_PASTE(name, isa)

/* Fill in the kernels of one instruction set, except the products. */
void cpu_kernels_base(Device *device);
void cpu_kernels_avx2(Device *device);
void cpu_kernels_avx512(Device *device);
void cpu_kernels_avx512_bf16(Device *device);
/* The same with attention in tiles of bf16. */
void cpu_tile_kernels_avx512_bf16(Device *device);
void cpu_tile_kernels_amx(Device *device);
#define KERNEL(name, arguments, values) void cpu_##name##_avx512_bf16 arguments;
#define KERNEL_PRODUCT(name, arguments, values)
#include "lib/tensor/kernels.def"
#undef KERNEL
/* The products: cpu_matmul and the products with the vocabulary's head. The libraries below them choose by processor themselves. */
#define KERNEL(name, arguments, values)
#define KERNEL_PRODUCT(name, arguments, values) void cpu_##name arguments;
#include "lib/tensor/kernels.def"
#undef KERNEL

#ifdef ISA
#define ISA_FN(name) CPU_PASTE_EXPANDED(name, ISA)
#define KERNEL(name, arguments, values) \
    void ISA_FN(name) arguments;        \
    void ISA_FN(tile_##name) arguments; /* the second only for a few kernels: tile/table.c */
#define KERNEL_PRODUCT(name, arguments, values)
#include "lib/tensor/kernels.def"
#undef KERNEL
/* codes_read (quant/packing.h), the same bits. */
void ISA_FN(codes)(DType dtype, const void *elements, int64_t first, int64_t n, bool rounds, float *values);
#endif

/* Returns scratch memory of the calling OpenMP thread, aligned to 64 bytes, not cleared, kept for the next kernel. Each slot is one piece, valid
 * until the thread requests the same slot again. The program aborts if there is no memory. CPU_SHARED, CPU_TASKS and, for products, CPU_TRANSPOSED
 * are for memory allocated before a kernel's parallel loop, CPU_LOCAL for memory of its iterations; the other slots are for products (host/gemm*.c,
 * *product.c) and for attention_backward.c. */
enum { CPU_SHARED, CPU_TASKS, CPU_LOCAL, CPU_TILE_A, CPU_TILE_B, CPU_TILE_C, CPU_TRANSPOSED, CPU_LIBRARY, CPU_SLOTS };
void *cpu_scratch(int slot, size_t bytes);
/* True while a step is planned (cpu_plan). Then cpu_scratch only records the size and returns an address that must not be used, except for
 * CPU_TASKS, whose lists are small. The kernels that the meta device calls then return before they touch a tensor's elements, and a single thread
 * requests, before the parallel loop, the memory that each thread would take in it. */
bool cpu_planning(void);
void cpu_plan(bool on);                 /* for the planner's kernels */
void cpu_plan_kernels(Device *planner); /* fills in the kernels that are planned */

int cpu_team_member(void); /* number of the calling thread in the team, 0 for all threads outside it */

bool cpu_has(const char *feature); /* one of the words of CpuInfo.features */

/* True if the fast kernels support the dtypes of these tensors: f32, bf16 and, unless the kernel writes to them (`written`), f16. A kernel calls the
 * reference device's kernel for other dtypes. NULL tensors are allowed; a quantised one aborts the program. */
bool cpu_fast(const Tensor *const *tensors, size_t n, bool written);
/* The same for a weight, which may be quantised as well. */
bool cpu_reads_weight(const Tensor *weight);
#define CPU_READS(...) cpu_fast((const Tensor *const[]){__VA_ARGS__}, sizeof((const Tensor *const[]){__VA_ARGS__}) / sizeof(Tensor *), false)
#define CPU_WRITES(...) cpu_fast((const Tensor *const[]){__VA_ARGS__}, sizeof((const Tensor *const[]){__VA_ARGS__}) / sizeof(Tensor *), true)

#endif
