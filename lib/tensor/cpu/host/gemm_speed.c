/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the machine's speed: for `tune doctor` and `tune-bench`. */
#include "lib/base/system.h"
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"

/* rows, out, in: products of the layers of SmolLM2-135M and Qwen2.5-0.5B, and a piece of their heads. */
static const int64_t products[][3] = {{512, 576, 576}, {512, 1536, 576}, {512, 576, 1536}, {256, 4096, 576}, {256, 4864, 896}, {256, 896, 4864}};
enum { MOST_ELEMENTS = 4864 * 896 };
#define SECONDS_EACH 0.1

static Tensor matrix(DType dtype, int64_t rows, int64_t cols, void *data) {
    return (Tensor){.dtype = dtype, .n_dims = 2, .shape = {rows, cols}, .elements = data};
}

/* The best of the repetitions, because other programs can only slow it down. */
static double product_gflops(DType dtype, const int64_t shape[3], char *memory) {
    Tensor a = matrix(dtype, shape[0], shape[2], memory), b = matrix(dtype, shape[1], shape[2], memory + (size_t)MOST_ELEMENTS * 4),
           c = matrix(dtype, shape[0], shape[1], memory + (size_t)MOST_ELEMENTS * 8);
    Storage constant = {.device = device_cpu(), .constant = true};
    b.storage = &constant;
    double best = 0, start = clock_seconds();
    for (int i = 0; i < 2 || clock_seconds() - start < SECONDS_EACH; i++) {
        double before = clock_seconds();
        cpu_matmul(&(Matmul){.a = &a, .b = &b, .c = &c, .transpose_b = true, .alpha = 1});
        double speed = 2e-9 * (double)shape[0] * (double)shape[1] * (double)shape[2] / MAX(clock_seconds() - before, 1e-9);
        if (i > 0) best = MAX(best, speed); /* the first one packs */
    }
    tensor_unpack(&b);
    return best;
}

static double best_gflops(DType dtype, char *memory) {
    double best = 0;
    for (size_t i = 0; i < COUNT_OF(products); i++) best = MAX(best, product_gflops(dtype, products[i], memory));
    return best;
}

/* Reads a block of words, 64 bytes from each quarter in turn: processors read several streams faster than one, and faster still with distant
 * prefetches into the second-level cache, which has more outstanding lines than the first. */
static uint64_t block_read(const uint64_t *words, size_t n) {
    enum { STREAMS = 4, LINE = 8, AHEAD = 512 };
    typedef uint64_t Line __attribute__((vector_size(LINE * sizeof(uint64_t))));
    Line lanes[STREAMS] = {{0}};
    for (size_t j = 0; j < n / STREAMS; j += LINE)
        for (int i = 0; i < STREAMS; i++) {
            const uint64_t *at = words + (size_t)i * (n / STREAMS) + j;
            __builtin_prefetch(at + AHEAD, 0, 2);
            lanes[i] += *(const Line *)at;
        }
    Line all = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    uint64_t sum = 0;
    for (int i = 0; i < LINE; i++) sum += all[i];
    return sum;
}

static double read_gbs(const uint64_t *words, size_t n) {
    enum { BLOCK = 1 << 17 };
    double best = 0, start = clock_seconds();
    volatile uint64_t result = 0;
    for (int i = 0; i < 2 || clock_seconds() - start < SECONDS_EACH * 3; i++) {
        double before = clock_seconds();
        uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
        for (size_t j = 0; j < n; j += BLOCK) sum += block_read(words + j, BLOCK);
        result += sum;
        best = MAX(best, 1e-9 * (double)(n * sizeof *words) / MAX(clock_seconds() - before, 1e-9));
    }
    (void)result; /* volatile, so that the compiler keeps the loops */
    return best;
}

/* Twice the last-level cache, because otherwise the cache would be measured too (43 GB/s with 256 MiB against 35 with 1 GiB, on a Xeon with a
 * cache of 480 MiB), but not more than an eighth of the memory. A multiple of block_read's blocks. */
static size_t memory_bytes(void) {
    const uint64_t least = 256u << 20;
    uint64_t wanted = MAX(least, MIN(2 * (uint64_t)far_cache_bytes(), memory_available() / 8));
    return (size_t)(wanted / least * least);
}

/* Memory that has been written in full: pages that nobody wrote to would all be the same page of zeros, in the first-level cache. The contents are
 * numbers from 1 to 2 both as bf16 and as f32. NULL: out of memory. */
static char *memory_new(Arena **arena, size_t bytes) {
    device_cpu(); /* chooses the library, if nobody has */
    *arena = arena_new(0);
    char *memory = *arena ? arena_alloc(*arena, bytes) : NULL;
    if (memory) {
        uint32_t *words = (uint32_t *)(void *)memory;
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < bytes / 4; i++) words[i] = 0x3f803f80u | ((uint32_t)i * 2654435761u >> 8 & 0x007f007fu);
    } else
        status_fail(ST_RESOURCE, "cannot measure the processor's speed: no memory for %zu MiB", bytes >> 20);
    return memory;
}

Status cpu_measure_speed(CpuSpeed *speed) {
    Arena *arena;
    size_t bytes = memory_bytes();
    char *memory = memory_new(&arena, bytes);
    if (memory)
        *speed = (CpuSpeed){.gflops_f32 = best_gflops(DT_F32, memory),
                            .gflops_bf16 = best_gflops(DT_BF16, memory),
                            .memory_gbs = read_gbs((const uint64_t *)(void *)memory, bytes / 8)};
    arena_free(arena);
    return memory ? ST_OK : ST_RESOURCE;
}

Status cpu_measure_reading(double *gbs) {
    Arena *arena;
    size_t bytes = memory_bytes();
    char *memory = memory_new(&arena, bytes);
    if (memory) *gbs = read_gbs((const uint64_t *)(void *)memory, bytes / 8);
    arena_free(arena);
    return memory ? ST_OK : ST_RESOURCE;
}
