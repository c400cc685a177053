/* tune doctor: what this build and this machine can do, measured, and whether its gradients are right. */
#include <omp.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

#include "cmd/cmd.h"

enum { MOST_CHECKS = 256 };
#define GRADIENT_TOLERANCE 1e-6

typedef struct Library { const char *name, *version; } Library;
typedef struct Doctor { const CpuInfo *cpu; CpuSpeed speed; int n_checks; GradCheck checks[MOST_CHECKS]; Library libraries[6]; char pcre2[64]; } Doctor;

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
        {"yaml", yaml_get_version_string()}, {"jansson", JANSSON_VERSION}, {"pcre2", doctor->pcre2}, {"utf8proc", utf8proc_version()}, {"zlib", zlibVersion()},
        {"zstd", ZSTD_versionString()}};
    memcpy(doctor->libraries, libraries, sizeof libraries);
}

static void print_json(const Doctor *doctor) {
    const CpuInfo *cpu = doctor->cpu;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "version", TUNE_VERSION);
    jw_object(&w, "build");
    jw_string(&w, "compiler", compiler());
    jw_bool(&w, "onednn", cpu->has_onednn);
    for (size_t i = 0; i < COUNT_OF(doctor->libraries); i++) jw_string(&w, doctor->libraries[i].name, doctor->libraries[i].version);
    jw_end_object(&w);
    jw_object(&w, "cpu");
    jw_string(&w, "name", cpu->name);
    jw_string(&w, "kernels", cpu->isa);
    jw_array(&w, "features");
    for (const char *word = cpu->features; *word;) {
        size_t len = strcspn(word, " ");
        if (len > 0) jw_string_n(&w, NULL, word, len);
        word += len + (word[len] == ' ');
    }
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
    jw_int(&w, "memory_available", (int64_t)memory_available());
    jw_string(&w, "gradcheck", gradients_fine(doctor) ? "ok" : "failed");
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void print_plain(const Doctor *doctor) {
    const CpuInfo *cpu = doctor->cpu;
    char bytes[32];
    print_result("tune       %s, %s, %s oneDNN\nlibraries ", TUNE_VERSION, compiler(), cpu->has_onednn ? "with" : "without");
    for (size_t i = 0; i < COUNT_OF(doctor->libraries); i++) print_result(" %s %s%s", doctor->libraries[i].name, doctor->libraries[i].version, i + 1 < COUNT_OF(doctor->libraries) ? "," : "\n");
    print_result("processor  %s (%s), kernels for %s, %d threads\n", cpu->name, cpu->features, cpu->isa, omp_get_max_threads());
    print_result("products   f32  %7.1f GF/s  %s\n", doctor->speed.gflops_f32, cpu->gemm_f32);
    print_result("           bf16 %7.1f GF/s  %s; compute: auto is %s here\n", doctor->speed.gflops_bf16, cpu->gemm_bf16, cpu->native_bf16 ? "bf16" : "f32");
    print_result("memory     %s to use, read at %.1f GB/s\n", format_bytes((double)memory_available(), bytes), doctor->speed.memory_gbs);
    if (!gradients_fine(doctor)) return;
    print_result("gradients  ok: %d checks of %d ops against differences in double, worst error %.1e (%s)\n", doctor->n_checks, n_op_infos, worst_check(doctor)->max_error,
                 worst_check(doctor)->op);
}

static Status examine(const Command *command) {
    static Doctor doctor; /* its checks are too many for a stack */
    TRY(command_needs(command, 0, 0));
    device_cpu(); /* chooses the kernels */
    doctor.cpu = cpu_info();
    find_versions(&doctor);
    TRY(cpu_measure_speed(&doctor.speed));
    doctor.n_checks = gradcheck_ops(doctor.checks, MOST_CHECKS);
    if (command->json) print_json(&doctor);
    else print_plain(&doctor);
    if (gradients_fine(&doctor)) return ST_OK;
    const GradCheck *worst = worst_check(&doctor);
    if (!worst) return status_fail(ST_NUMERIC, "the gradient check could not run");
    return status_fail(ST_NUMERIC, "wrong gradient of op '%s' (example %d, input %d, element %lld): %.9g, expected %.9g", worst->op, worst->variant, worst->input,
                       (long long)worst->element, worst->got, worst->expected);
}

Status cmd_doctor(int argc, char **argv) {
    Command command = {
        .arguments_help = "",
        .help = "Says how the program was built, what the processor can do, how fast products and memory are, and whether the gradients of all ops are right.\n"
                "    tune doctor --json",
    };
    bool done;
    Status status = command_parse(&command, argc, argv, NULL, &done);
    if (status == ST_OK && !done) status = examine(&command);
    arena_free(command.arena);
    return status;
}
