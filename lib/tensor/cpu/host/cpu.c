/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device: chooses the instruction set, detects the processor, and manages the kernels' scratch memory. */
#include "lib/base/memory.h"
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* ---- processor features ---- */

static CpuInfo info;

static void feature_add(bool present, const char *name) {
    size_t used = strlen(info.features);
    if (present && used + strlen(name) + 2 <= sizeof info.features)
        snprintf(info.features + used, sizeof info.features - used, "%s%s", used ? " " : "", name);
}

bool cpu_has(const char *feature) { return text_among(info.features, ' ', feature); }

#if defined(__x86_64__)
static void processor_describe(void) {
    unsigned int words[12] = {0}, a = 0, b = 0, c = 0, d = 0;
    for (unsigned int i = 0; i < 3; i++) __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    snprintf(info.name, sizeof info.name, "%.48s", (const char *)words);
    feature_add(__builtin_cpu_supports("avx2"), "avx2");
    feature_add(__builtin_cpu_supports("fma"), "fma");
    bool avx512 = __builtin_cpu_supports("avx512f"); /* the operating system saves the wide registers */
    feature_add(avx512, "avx512f");
    feature_add(avx512 && __builtin_cpu_supports("avx512vnni"), "avx512_vnni");
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    feature_add(avx512 && (d >> 23 & 1u), "avx512_fp16");
    feature_add(avx512 && (d >> 22 & 1u), "amx_bf16");
    feature_add(avx512 && (d >> 25 & 1u), "amx_int8");
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        feature_add(avx512 && (a >> 5 & 1u), "avx512_bf16");
        feature_add(cpu_has("avx2") && (a >> 4 & 1u), "avx_vnni");
    }
#ifdef TILES_EMULATED
    feature_add(cpu_has("avx512_bf16") && !cpu_has("amx_bf16"), "amx_bf16");
#endif
}

/* Linux lets a process use AMX tiles only after it has asked, before its threads use any. */
static bool tiles_granted(void) {
#ifdef TILES_EMULATED
    return true;
#elif defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* Whether an instruction set that the processor has is also faster than the one before it. On Intel cores with AVX512_FP16 (Golden Cove and later)
 * and AMX switched off, as hosts of virtual machines do, vdpbf16ps runs at half the rate of f32: 173 GF/s instead of 330, measured on Emerald
 * Rapids. Decided by the kind of processor, never by a timing, because the bits of a run depend on it. */
static bool isa_pays(const char *isa) { return strcmp(isa, "avx512_bf16") != 0 || !(__builtin_cpu_is("intel") && cpu_has("avx512_fp16")); }

static bool isa_possible(const char *isa) {
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
    if (strcmp(isa, "amx") == 0) return avx512 && cpu_has("amx_bf16") && cpu_has("avx512_bf16") && tiles_granted();
    if (strcmp(isa, "avx512_bf16") == 0 || strcmp(isa, "avx512_widened") == 0) return avx512 && cpu_has("avx512_bf16");
    if (strcmp(isa, "avx512") == 0) return avx512;
    if (strcmp(isa, "avx2") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return true;
}
#else
static void processor_describe(void) {
#if defined(__aarch64__)
    snprintf(info.name, sizeof info.name, "arm64");
    feature_add(true, "neon");
#if defined(__linux__)
    unsigned long features = getauxval(AT_HWCAP), more = getauxval(AT_HWCAP2);
#ifdef HWCAP_SVE
    feature_add(features & HWCAP_SVE, "sve");
#endif
#ifdef HWCAP2_BF16
    feature_add(more & HWCAP2_BF16, "bf16");
#endif
    (void)features, (void)more;
#endif
#else
    snprintf(info.name, sizeof info.name, "unknown processor");
#endif
}

static bool isa_possible(const char *isa) {
    (void)isa;
    return true;
}

static bool isa_pays(const char *isa) { return isa_possible(isa); }
#endif

/* ---- the device ---- */

/* From the most basic set to the widest. */
static const struct {
    const char *name;
    void (*kernels)(Device *);
} isas[] = {
    {"base", cpu_kernels_base},
#if defined(__x86_64__)
    {"avx2", cpu_kernels_avx2},
#if HAVE_AVX512
    {"avx512", cpu_kernels_avx512},
#endif
#if HAVE_TILES
    {"avx512_widened", cpu_kernels_avx512_bf16}, /* bf16 is rounded by the processor, but multiplied in f32 */
    {"avx512_bf16", cpu_tile_kernels_avx512_bf16},
    {"amx", cpu_tile_kernels_amx},
#endif
#endif
};

static size_t workspace_bytes(const Device *device);
static void workspace_clear(const Device *device);

static Device cpu = {
    .name = "cpu",
    .host_memory = true,
    .upload = host_transfer,
    .download = host_transfer,
    .synchronise = host_synchronise,
#define KERNEL(name, arguments, values)
#define KERNEL_PRODUCT(name, arguments, values) .name = cpu_##name,
#include "lib/tensor/kernels.def"
#undef KERNEL
    .packed_bytes = gemm_packed_bytes,
    .product_dtype = product_dtype,
    .packed_free = gemm_packed_free,
    .pack = gemm_pack,
    .workspace_bytes = workspace_bytes,
    .workspace_clear = workspace_clear,
};
static Device planner;

static Status isa_configure(const char *wanted) {
    bool any = !wanted || strcmp(wanted, "auto") == 0;
    for (size_t i = COUNT_OF(isas); i-- > 0;) {
        if (!any && strcmp(wanted, isas[i].name) != 0) continue;
        if (isa_possible(isas[i].name) && (!any || isa_pays(isas[i].name))) {
            isas[i].kernels(&cpu);
            info.isa = isas[i].name;
            return ST_OK;
        }
        if (!any) return status_fail(ST_USAGE, "this processor cannot run the instruction set '%s'", wanted);
    }
    char names[128] = "";
    for (size_t i = 0, n = 0; i < COUNT_OF(isas); i++) n += (size_t)snprintf(names + n, sizeof names - n, "%s, ", isas[i].name);
    status_fail(ST_USAGE, "unknown instruction set '%s'", wanted);
    return status_hint(ST_USAGE, "this build has: %sor auto", names);
}

Status cpu_configure(const char *gemm, const char *isa) {
    if (!info.name[0]) processor_describe();
    TRY(isa_configure(isa));
    return gemm_configure(gemm, &info);
}

const Device *device_cpu(void) {
    if (!info.isa) {
        Status status = cpu_configure(NULL, NULL);
        ASSERT(status == ST_OK, "no kernels for this processor: %s", status_text());
    }
    if (!cpu.planner) {
        planner = device_planner(&cpu);
        cpu_plan_kernels(&planner);
        cpu.planner = &planner;
    }
    return &cpu;
}

const Device *device_meta(void) { return device_cpu()->planner; }

const CpuInfo *cpu_info(void) {
    device_cpu();
    info.threads = omp_get_max_threads();
    gemm_describe(&info);
    return &info;
}

bool cpu_fast(const Tensor *const *tensors, size_t n, bool written) {
    for (size_t i = 0; i < n; i++) {
        if (!tensors[i]) continue;
        DType dtype = tensors[i]->dtype;
        ASSERT(!dtype_is_quantised(dtype), "a kernel that reads no codes has a tensor of %s", dtype_name(dtype));
        if (dtype != DT_F32 && dtype != DT_BF16 && (written || dtype != DT_F16)) return false;
    }
    return true;
}

bool cpu_reads_weight(const Tensor *weight) { return dtype_is_quantised(weight->dtype) || CPU_READS(weight); }

/* ---- scratch ---- */

/* Indexed by thread number, so that nothing is lost when the thread pool shrinks and grows. */
enum { MOST_THREADS = 1024 };
static struct {
    void *memory;
    size_t bytes;
} scratch[MOST_THREADS][CPU_SLOTS];
static atomic_size_t scratch_total;
static bool planning;             /* used only by the thread that runs the tapes, while the others sleep */
static size_t planned[CPU_SLOTS]; /* planned bytes of a thread */
#define NOWHERE ((void *)(uintptr_t)64)

/* Rounds up to whole pages, and large requests to huge pages, most of which they would take anyway. */
static size_t scratch_size(size_t bytes) {
    size_t page = bytes > HUGE_PAGE / 4 ? HUGE_PAGE : 4096;
    return (MAX(bytes, (size_t)1) + page - 1) / page * page;
}

/* A kernel cannot fail inside a parallel loop. If the system refuses memory, the kernel gets memory from here, and memory_check fails the step at
 * its end. Pages that nobody writes to take no memory. */
static _Alignas(4096) char spare[(size_t)64 << 20];
static atomic_size_t spare_used;

static void *spare_piece(size_t size) {
    size_t at = size <= sizeof spare ? atomic_fetch_add(&spare_used, size) : sizeof spare;
    memory_ran_out(size);
    if (at <= sizeof spare && size <= sizeof spare - at) return spare + at;
    if (size <= sizeof spare) atomic_fetch_sub(&spare_used, size);
    return NULL;
}

/* Large pieces are returned to the system when a larger one replaces them; in malloc's heap they would stay. */
static void *piece_new(size_t size) {
    void *piece = size >= HUGE_PAGE ? pages_map(size) : aligned_alloc(4096, size);
    return piece ? piece : spare_piece(size);
}

static void piece_free(void *piece, size_t size) {
    if ((uintptr_t)piece - (uintptr_t)spare < sizeof spare) return;
    if (size >= HUGE_PAGE)
        pages_unmap(piece, size);
    else
        free(piece);
}

void *cpu_scratch(int slot, size_t bytes) {
    int thread = omp_get_thread_num() + cpu_team_member(); /* one of them is 0 */
    ASSERT(thread < MOST_THREADS, "thread %d, at most %d", thread, MOST_THREADS);
    size_t had = scratch[thread][slot].bytes, size = scratch_size(bytes);
    if (planning && slot != CPU_TASKS) {
        planned[slot] = MAX(planned[slot], size);
        return NOWHERE;
    }
    if (had > 0 && had >= bytes) return scratch[thread][slot].memory;
    if (had > 0) piece_free(scratch[thread][slot].memory, had);
    scratch[thread][slot].memory = piece_new(size);
    ASSERT(scratch[thread][slot].memory, "no memory for %zu bytes of a kernel's scratch", size);
    scratch[thread][slot].bytes = size;
    atomic_fetch_add(&scratch_total, size - had);
    return scratch[thread][slot].memory;
}

size_t cpu_scratch_bytes(void) { return atomic_load(&scratch_total); }

/* ---- planning ---- */

bool cpu_planning(void) { return planning; }

void cpu_plan(bool on) { planning = on; }

static void workspace_clear(const Device *device) {
    (void)device;
    memset(planned, 0, sizeof planned);
}

static size_t workspace_bytes(const Device *device) {
    (void)device;
    size_t bytes = 0;
    for (int slot = 0; slot < CPU_SLOTS; slot++)
        for (int thread = 0; thread < (slot == CPU_SHARED || slot == CPU_TRANSPOSED ? 1 : omp_get_max_threads()); thread++)
            bytes += planned[slot] - MIN(planned[slot], scratch[thread][slot].bytes);
    return bytes;
}
