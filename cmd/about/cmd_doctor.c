/* SPDX-License-Identifier: Apache-2.0 */
/* tune doctor: measures what this build and this machine can do, and checks the gradients of all ops. */
#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

#include "lib/base/system.h"
#include "cmd/about/doctor_parts.h"
#include "cmd/app/commands.h"
#include "cmd/app/app.h"
#include "cmd/app/ranks.h"
#include "cmd/app/options.h"
#include "cmd/app/terminal.h"
#include "lib/tensor/tensor.h"

enum { MOST_CHECKS = 256 };
#define GRADIENT_TOLERANCE 1e-6

typedef struct Library {
    const char *name, *version;
} Library;
enum { MOST_ADVICE = 8 };
typedef struct Doctor {
    const CpuInfo *cpu;
    CpuSpeed speed;
    int n_checks;
    GradCheck checks[MOST_CHECKS];
    Library libraries[6];
    char pcre2[64], mpi[64]; /* mpi: the libraries for which there is a plug-in */
    char threads[64], why[96];
    size_t n_advice;
    char advice[MOST_ADVICE][200];
    Topology topology;
    int cores;                            /* that this process may use */
    double per_cycle_f32, per_cycle_half; /* operations */
    PartSpeeds parts;
    size_t n_disks;
    DiskSpeed disks[MOST_DISKS];
} Doctor;

static const char *compiler(void) {
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

static const GradCheck *worst_check(const Doctor *doctor) {
    const GradCheck *worst = NULL;
    for (int i = 0; i < doctor->n_checks; i++)
        if (!worst || !(doctor->checks[i].max_error <= worst->max_error)) worst = &doctor->checks[i];
    return worst;
}

static bool gradients_fine(const Doctor *doctor) {
    const GradCheck *worst = worst_check(doctor);
    return worst && worst->max_error < GRADIENT_TOLERANCE;
}

static void find_versions(Doctor *doctor) {
    pcre2_config(PCRE2_CONFIG_VERSION, doctor->pcre2);
    const Library libraries[COUNT_OF(doctor->libraries)] = {
        {"yaml", yaml_get_version_string()}, {"jansson", JANSSON_VERSION}, {"pcre2", doctor->pcre2},
        {"utf8proc", utf8proc_version()},    {"zlib", zlibVersion()},      {"zstd", ZSTD_versionString()}};
    memcpy(doctor->libraries, libraries, sizeof libraries);
    Str mpi = {0};
    if (ranks_libraries(&mpi) == ST_OK) snprintf(doctor->mpi, sizeof doctor->mpi, "%s", str_text(&mpi));
    str_release(&mpi);
}

/* ---- the machine's settings ---- */

/* The first line of a system file; empty if the file does not exist. */
static const char *line_of(const char *path, char line[256]) {
    FILE *file = fopen(path, "r");
    line[0] = '\0';
    if (file && !fgets(line, 256, file)) line[0] = '\0';
    if (file) fclose(file);
    line[strcspn(line, "\n")] = '\0';
    return line;
}

/* The number of elements of a kernel list: "0-3,8" has 5. */
static int count_in_list(const char *list) {
    int n = 0;
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        int first, last, fields = sscanf(at, "%d-%d", &first, &last);
        if (fields > 0) n += fields == 2 ? MAX(last - first + 1, 0) : 1;
    }
    return n;
}

static void advise(Doctor *doctor, const char *format, ...) PRINTF_LIKE(2, 3);
static void advise(Doctor *doctor, const char *format, ...) {
    if (doctor->n_advice == MOST_ADVICE) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(doctor->advice[doctor->n_advice++], sizeof doctor->advice[0], format, arguments);
    va_end(arguments);
}

static bool virtual_machine(void) {
    char line[8192] = "";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file) && strncmp(line, "flags", 5) != 0) {}
    if (file) fclose(file);
    return strstr(line, " hypervisor") != NULL;
}

/* Why use_threads chose this number of threads; "" if it is one per processor. */
static const char *why_so_many(const Command *command, int threads, int cores, int physical, int online) {
    const char *tasks = getenv("SLURM_CPUS_PER_TASK"), *said = getenv("OMP_NUM_THREADS"), *limit = getenv("OMP_THREAD_LIMIT");
    bool is_said = said && *said;
    int64_t wanted = command->threads > 0 ? command->threads : is_said ? strtoll(said, NULL, 10) : physical;
    if (limit && *limit && threads == omp_get_thread_limit() && threads < wanted) return "set by OMP_THREAD_LIMIT";
    if (command->threads > 0) return "set by --threads";
    if (is_said) return "set by OMP_NUM_THREADS";
    if (tasks && strtoll(tasks, NULL, 10) == threads && threads < physical) return "set by SLURM_CPUS_PER_TASK";
    if (online > 0 && cores < online)
        return threads == physical && physical < cores ? "limited by affinity or control group, and one per core"
                                                       : "limited by affinity or control group";
    return threads == physical && physical < cores ? "one per core; the other processors share these cores" : "";
}

/* The number of threads, why, and advice on the machine's settings. A setting that the system does not show gives no advice. */
static void look_at_settings(Doctor *doctor, const Command *command) {
    char line[256];
    int threads = omp_get_max_threads(), cores = cores_available(), physical = cores_physical(NULL);
    int nodes = count_in_list(line_of("/sys/devices/system/node/online", line)),
        online = count_in_list(line_of("/sys/devices/system/cpu/online", line));
    size_t n = (size_t)snprintf(doctor->threads, sizeof doctor->threads, "%d", threads);
    if (online > 0) snprintf(doctor->threads + n, sizeof doctor->threads - n, " of %d processors", online);
    snprintf(doctor->why, sizeof doctor->why, "%s", why_so_many(command, threads, cores, physical, online));
    if (threads > physical && physical < cores)
        advise(doctor, "these processors have %d cores: matrix products may be as fast with --threads %d", physical, physical);
    if (nodes > 1) {
        advise(doctor, "this machine has %d NUMA nodes: numactl --cpunodebind=0 --membind=0 keeps a run on one of them", nodes);
        advise(doctor, "a rank on each node: mpirun --map-by ppr:1:numa:PE=%d --bind-to core", MAX(physical / nodes, 1));
    }
    if (nodes == 1 && strstr(doctor->cpu->name, "EPYC") && !virtual_machine())
        advise(doctor, "all memory is one NUMA node (NPS1): NPS4 in the firmware settings makes memory faster for runs that are bound to one node");
    line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", line);
    if (line[0] && strcmp(line, "performance") != 0)
        advise(doctor, "the frequency governor is '%.40s': cpupower frequency-set -g performance may be faster", line);
    if (strstr(line_of("/sys/kernel/mm/transparent_hugepage/enabled", line), "[never]"))
        advise(doctor, "transparent huge pages are off: 'madvise' in /sys/kernel/mm/transparent_hugepage/enabled makes large tables faster");
    if (threads > cores) advise(doctor, "%d threads on %d processors wait for each other: use --threads %d", threads, cores, cores);
}

/* Intel processors with AVX512_BF16 multiply pairs of bf16 in two passes: without AMX, or if the host hides it, f32 is faster. */
static void look_at_speeds(Doctor *doctor) {
    double share = doctor->speed.gflops_bf16 / doctor->speed.gflops_f32;
    if (doctor->cpu->auto_bf16 && share < 0.8)
        advise(doctor, "bf16 products run at %.0f %% of the speed of f32 on this machine: model.compute=f32 trains faster, but takes more memory",
               100 * share);
}

/* ---- the machine's parts ---- */

static double peak(const Doctor *doctor, double per_cycle) { return doctor->cores * doctor->topology.clock * per_cycle; }

static Status look_at_machine(Doctor *doctor, const Command *command) {
    topology_read("/sys", "/proc/cpuinfo", &doctor->topology);
    doctor->cores = MIN(cores_physical(NULL), omp_get_max_threads());
    peak_per_cycle(doctor->cpu->name, doctor->cpu->features, &doctor->per_cycle_f32, &doctor->per_cycle_half);
    TRY(part_speeds_measure(&doctor->topology, doctor->speed.memory_gbs, &doctor->parts));
    for (doctor->n_disks = 0; doctor->n_disks < command->n_arguments; doctor->n_disks++)
        TRY(disk_measure(command->arguments[doctor->n_disks], &doctor->disks[doctor->n_disks]));
    return ST_OK;
}

static void write_machine(const Doctor *doctor, JsonWriter *w) {
    const Topology *t = &doctor->topology;
    jw_object(w, "machine");
    jw_int(w, "sockets", t->sockets);
    jw_int(w, "nodes", t->nodes);
    jw_int(w, "l3_domains", t->l3_domains);
    jw_int(w, "cores", t->cores);
    jw_int(w, "processors", t->processors);
    jw_double(w, "l1_bytes", t->l1_bytes);
    jw_double(w, "l2_bytes", t->l2_bytes);
    jw_double(w, "l3_bytes", t->l3_bytes);
    jw_end_object(w);
    jw_object(w, "peak");
    jw_double(w, "clock", t->clock);
    jw_int(w, "cores", doctor->cores);
    jw_double(w, "f32_operations_per_cycle", doctor->per_cycle_f32);
    jw_double(w, "bf16_operations_per_cycle", doctor->per_cycle_half);
    jw_double(w, "f32_gflops", peak(doctor, doctor->per_cycle_f32) / 1e9);
    jw_double(w, "bf16_gflops", peak(doctor, doctor->per_cycle_half) / 1e9);
    jw_end_object(w);
    jw_object(w, "part_gbytes_per_second");
    const struct {
        const char *name;
        double gbs;
    } parts[] = {{"core", doctor->parts.core}, {"l3", doctor->parts.l3}, {"node", doctor->parts.node}, {"all", doctor->parts.all}};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (parts[i].gbs > 0) jw_double(w, parts[i].name, parts[i].gbs);
    jw_end_object(w);
    jw_array(w, "disks");
    for (size_t i = 0; i < doctor->n_disks; i++) {
        const DiskSpeed *disk = &doctor->disks[i];
        jw_object(w, NULL);
        jw_string(w, "file", disk->file);
        jw_double(w, "sequential_bytes_per_second", disk->sequential);
        jw_double(w, "random_reads_per_second", disk->random_per_second);
        jw_bool(w, "cached", disk->cached);
        jw_end_object(w);
    }
    jw_end_array(w);
}

static void print_machine(const Doctor *doctor) {
    const Topology *t = &doctor->topology;
    char l1[32], l2[32], l3[32];
    if (t->cores > 0)
        print_result("machine    %d socket%s, %d memory node%s, %d L3 domain%s, %d core%s with %d processor%s each; L1 %s, L2 %s, L3 %s\n",
                     t->sockets, plural(t->sockets), t->nodes, plural(t->nodes), t->l3_domains, plural(t->l3_domains), t->cores, plural(t->cores),
                     t->processors / t->cores, plural(t->processors / t->cores), format_bytes(t->l1_bytes, l1), format_bytes(t->l2_bytes, l2),
                     format_bytes(t->l3_bytes, l3));
    if (t->clock > 0)
        print_result("peak       f32 %8.1f GF/s = %d core%s x %.2f GHz x %.0f; products reach %.0f %%\n", peak(doctor, doctor->per_cycle_f32) / 1e9,
                     doctor->cores, plural(doctor->cores), t->clock / 1e9, doctor->per_cycle_f32,
                     100 * doctor->speed.gflops_f32 * 1e9 / peak(doctor, doctor->per_cycle_f32));
    if (t->clock > 0 && doctor->per_cycle_half > 0)
        print_result("           bf16 %7.1f GF/s = %d core%s x %.2f GHz x %.0f; products reach %.0f %%\n", peak(doctor, doctor->per_cycle_half) / 1e9,
                     doctor->cores, plural(doctor->cores), t->clock / 1e9, doctor->per_cycle_half,
                     100 * doctor->speed.gflops_bf16 * 1e9 / peak(doctor, doctor->per_cycle_half));
}

static void print_speeds(const Doctor *doctor) {
    if (doctor->parts.core > 0) print_result("reading    one core %.1f GB/s", doctor->parts.core);
    if (doctor->parts.l3 > 0) print_result(", one L3 %.1f", doctor->parts.l3);
    if (doctor->parts.node > 0) print_result(", one node %.1f", doctor->parts.node);
    if (doctor->parts.core > 0) print_result(", all %.1f\n", doctor->parts.all);
    for (size_t i = 0; i < doctor->n_disks; i++) {
        const DiskSpeed *disk = &doctor->disks[i];
        print_result("%-10s %.2f GB/s in order, %.0f random reads of 4 KiB a second%s: %s\n", i == 0 ? "disks" : "", disk->sequential / 1e9,
                     disk->random_per_second, disk->cached ? " (cached)" : "", disk->file);
    }
}

static void print_json(const Doctor *doctor) {
    const CpuInfo *cpu = doctor->cpu;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "version", tune_version);
    jw_object(&w, "build");
    jw_string(&w, "compiler", compiler());
    jw_bool(&w, "onednn", cpu->has_onednn);
    jw_bool(&w, "glpk", HAVE_GLPK);
    jw_string(&w, "mpi", doctor->mpi);
    for (size_t i = 0; i < COUNT_OF(doctor->libraries); i++) jw_string(&w, doctor->libraries[i].name, doctor->libraries[i].version);
    jw_end_object(&w);
    jw_object(&w, "cpu");
    jw_string(&w, "name", cpu->name);
    jw_string(&w, "kernels", cpu->isa);
    jw_array(&w, "features");
    const char *features = cpu->features;
    for (Slice word; text_next(&features, ' ', &word);) jw_string_n(&w, NULL, word.data, word.len);
    jw_end_array(&w);
    jw_end_object(&w);
    jw_int(&w, "threads", omp_get_max_threads());
    jw_object(&w, "gemm");
    jw_double(&w, "f32_gflops", doctor->speed.gflops_f32);
    jw_double(&w, "bf16_gflops", doctor->speed.gflops_bf16);
    jw_string(&w, "f32_kernel", cpu->gemm_f32);
    jw_string(&w, "bf16_kernel", cpu->gemm_bf16);
    jw_end_object(&w);
    jw_double(&w, "read_gbytes_per_second", doctor->speed.memory_gbs);
    write_machine(doctor, &w);
    jw_int(&w, "memory_available", (int64_t)memory_available());
    jw_int(&w, "processors", cores_available());
    if (doctor->why[0]) jw_string(&w, "threads_why", doctor->why);
    jw_array(&w, "advice");
    for (size_t i = 0; i < doctor->n_advice; i++) jw_string(&w, NULL, doctor->advice[i]);
    jw_end_array(&w);
    jw_string(&w, "gradcheck", gradients_fine(doctor) ? "ok" : "failed");
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void print_plain(const Doctor *doctor) {
    const CpuInfo *cpu = doctor->cpu;
    char bytes[32];
    print_result("tune       %s, %s, %s oneDNN, %s GLPK\nlibraries ", tune_version, compiler(), cpu->has_onednn ? "with" : "without",
                 HAVE_GLPK ? "with" : "without");
    for (size_t i = 0; i < COUNT_OF(doctor->libraries); i++)
        print_result(" %s %s%s", doctor->libraries[i].name, doctor->libraries[i].version, i + 1 < COUNT_OF(doctor->libraries) ? "," : "\n");
    print_result("ranks      plug-ins for %s\n", *doctor->mpi ? doctor->mpi : "no MPI library: a run is one process");
    print_result("processor  %s (%s), kernels for %s\n", cpu->name, cpu->features, cpu->isa);
    print_machine(doctor);
    print_result("threads    %s%s%s\n", doctor->threads, doctor->why[0] ? ": " : "", doctor->why);
    print_result("products   f32  %7.1f GF/s  %s\n", doctor->speed.gflops_f32, cpu->gemm_f32);
    print_result("           bf16 %7.1f GF/s  %s; compute: auto is %s here\n", doctor->speed.gflops_bf16, cpu->gemm_bf16,
                 cpu->auto_bf16 ? "bf16" : "f32");
    print_result("memory     %s available, read at %.1f GB/s\n", format_bytes((double)memory_available(), bytes), doctor->speed.memory_gbs);
    print_speeds(doctor);
    for (size_t i = 0; i < doctor->n_advice; i++) print_result("%-10s %s\n", i == 0 ? "to try" : "", doctor->advice[i]);
    if (!gradients_fine(doctor)) return;
    print_result("gradients  ok: %d checks of %d ops against differences in double, worst error %.1e (%s)\n", doctor->n_checks, n_op_infos,
                 worst_check(doctor)->max_error, worst_check(doctor)->op);
}

static Status examine(const Command *command, void *context) {
    (void)context;
    static Doctor doctor; /* too large for the stack */
    TRY(command_needs(command, 0, MOST_DISKS));
    doctor.cpu = cpu_info();
    find_versions(&doctor);
    look_at_settings(&doctor, command);
    TRY(cpu_measure_speed(&doctor.speed));
    look_at_speeds(&doctor);
    TRY(look_at_machine(&doctor, command));
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    doctor.n_checks = gradcheck_ops(doctor.checks, MOST_CHECKS);
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    if (command->json)
        print_json(&doctor);
    else
        print_plain(&doctor);
    if (gradients_fine(&doctor)) return ST_OK;
    const GradCheck *worst = worst_check(&doctor);
    if (!worst) return status_fail(ST_NUMERIC, "the gradient check could not run");
    return status_fail(ST_NUMERIC, "wrong gradient of op '%s' (example %d, input %d, element %lld): %.9g, expected %.9g", worst->op, worst->variant,
                       worst->input, (long long)worst->element, worst->got, worst->expected);
}

Status cmd_doctor(int argc, char **argv) {
    Command command = {
        .arguments_help = "[FILE ...]",
        .help =
            "Shows how the program was built and what the processor supports, measures the speed of matrix products and memory, and checks the gradients of all ops. With files or folders of models and data, it also measures the disks that hold them.\n"
            "    tune doctor --json\n"
            "    tune doctor models/base rows.jsonl",
    };
    return command_main(&command, argc, argv, NULL, examine, NULL);
}
