/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of this machine by /sys, and the speed of disks. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/system.h"
#include "lib/plan/plan_here.h"

/* ---- topology ---- */

/* The first line of a file below `folder`; false if it does not exist. */
static bool read_line(const char *folder, const char *name, char line[256]) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    bool there = file && fgets(line, 256, file);
    if (file) fclose(file);
    if (there) line[strcspn(line, "\n")] = '\0';
    return there;
}

/* A line of the processor's folder. */
static bool processor_line(const char *folder, int processor, const char *name, char line[256]) {
    char path[128];
    snprintf(path, sizeof path, "devices/system/cpu/cpu%d/%s", processor, name);
    return read_line(folder, path, line);
}

/* Marks the processors of a kernel list, "0-3,8", as those of `part`. */
static void mark_list(const char *list, short part, short *of, int n) {
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        int first, last, fields = sscanf(at, "%d-%d", &first, &last);
        if (fields == 1) last = first;
        for (int i = first; fields > 0 && i >= 0 && i <= last && i < n; i++) of[i] = part;
    }
}

/* Numbers the sets that a list of each processor names; returns how many there are. */
static int number_sets(const char *folder, const char *name, short *of, int n) {
    char line[256];
    int sets = 0;
    for (int i = 0; i < n; i++)
        if (of[i] < 0 && processor_line(folder, i, name, line)) {
            mark_list(line, (short)sets, of, n);
            if (of[i] == (short)sets) sets++;
        }
    return sets;
}

static double cache_bytes(const char *folder, int level) {
    char name[64], line[256];
    for (int index = 0; index < 8; index++) {
        snprintf(name, sizeof name, "cache/index%d/level", index);
        if (!processor_line(folder, 0, name, line) || atoi(line) != level) continue;
        snprintf(name, sizeof name, "cache/index%d/type", index);
        if (processor_line(folder, 0, name, line) && strcmp(line, "Instruction") == 0) continue;
        snprintf(name, sizeof name, "cache/index%d/size", index);
        if (!processor_line(folder, 0, name, line)) continue;
        char *end;
        double size = strtod(line, &end);
        return *end == 'K' ? size * 1024 : *end == 'M' ? size * 1048576 : size;
    }
    return 0;
}

static double clock_of(const char *folder, const char *cpuinfo) {
    char line[256];
    double mhz = 0;
    if (processor_line(folder, 0, "cpufreq/cpuinfo_max_freq", line)) return 1e3 * strtod(line, NULL); /* kHz */
    FILE *file = fopen(cpuinfo, "r");
    while (file && mhz == 0 && fgets(line, sizeof line, file)) {
        if (sscanf(line, "cpu MHz : %lf", &mhz) != 1) mhz = 0;
    }
    if (file) fclose(file);
    return 1e6 * mhz;
}

void topology_read(const char *folder, const char *cpuinfo, Topology *topology) {
    char line[256], name[64];
    *topology = (Topology){.clock = clock_of(folder, cpuinfo)};
    for (int i = 0; i < MOST_PROCESSORS; i++) topology->core_of[i] = topology->socket_of[i] = topology->l3_of[i] = topology->node_of[i] = -1;
    short online[MOST_PROCESSORS];
    memset(online, 0xff, sizeof online);
    if (read_line(folder, "devices/system/cpu/online", line)) mark_list(line, 0, online, MOST_PROCESSORS);
    for (int i = 0; i < MOST_PROCESSORS; i++) topology->processors += online[i] == 0;
    topology->cores = number_sets(folder, "topology/thread_siblings_list", topology->core_of, MOST_PROCESSORS);
    topology->sockets = number_sets(folder, "topology/core_siblings_list", topology->socket_of, MOST_PROCESSORS);
    topology->l3_domains = number_sets(folder, "cache/index3/shared_cpu_list", topology->l3_of, MOST_PROCESSORS);
    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "devices/system/node/node%d/cpulist", i);
        if (!read_line(folder, name, line)) continue;
        mark_list(line, (short)i, topology->node_of, MOST_PROCESSORS);
        topology->nodes++;
    }
    topology->l1_bytes = cache_bytes(folder, 1);
    topology->l2_bytes = cache_bytes(folder, 2);
    topology->l3_bytes = cache_bytes(folder, 3);
}

/* Two units of 8 f32 (AVX2), or of 16 (AVX-512; AMD's first two generations have one). A multiply-add is two operations. */
void peak_per_cycle(const char *name, const char *features, double *f32, double *half) {
    bool intel = strstr(name, "Intel") || strstr(name, "Xeon"), wide = text_among(features, ' ', "avx512f");
    *f32 = wide && intel ? 64 : wide || text_among(features, ' ', "avx2") ? 32 : 8;
    *half = text_among(features, ' ', "amx_bf16") ? 2048 : text_among(features, ' ', "avx512_bf16") ? 2 * *f32 : 0;
}

/* ---- disks ---- */

enum { PIECE = 4 << 20, SMALL = 4096, LEAST_FILE = 1 << 20, MOST_RANDOM = 4000 };
#define DISK_SECONDS 1.0

/* Reads past the cache where the file system can. */
static int disk_open(const char *path, bool *cached) {
    int file = -1;
    *cached = true;
#ifdef O_DIRECT
    file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    *cached = file < 0;
#endif
    if (file < 0) file = open(path, O_RDONLY | O_CLOEXEC);
#ifdef POSIX_FADV_DONTNEED
    if (file >= 0 && *cached) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
#endif
    return file;
}

static double read_in_order(int file, char *memory, off_t size) {
    double begin = clock_seconds(), seconds = 0;
    off_t at = 0;
    while (at < size && seconds < DISK_SECONDS && !interrupt_requested()) {
        ssize_t n = pread(file, memory, PIECE, at);
        if (n <= 0) break;
        at += n;
        seconds = clock_seconds() - begin;
    }
    return seconds > 0 ? (double)at / seconds : 0;
}

static double read_at_random(int file, char *memory, off_t size) {
    double begin = clock_seconds(), seconds = 0;
    uint64_t pages = (uint64_t)(size / SMALL);
    int n = 0;
    for (; pages > 0 && n < MOST_RANDOM && seconds < DISK_SECONDS && !interrupt_requested(); n++) {
        if (pread(file, memory, SMALL, (off_t)(mix64((uint64_t)n + 1) % pages * SMALL)) <= 0) break;
        seconds = clock_seconds() - begin;
    }
    return seconds > 0 ? n / seconds : 0;
}

/* The largest file of a folder. */
static Status largest_in(const char *folder, char file[512]) {
    Arena *arena = arena_new(0);
    char **names = NULL;
    size_t n = 0;
    off_t largest = 0;
    if (!arena) return ST_RESOURCE;
    Status status = dir_list(folder, arena, &names, &n);
    for (size_t i = 0; status == ST_OK && i < n; i++) {
        char path[512];
        struct stat info;
        int length = snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (length >= (int)sizeof path || stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= largest) continue;
        largest = info.st_size;
        memcpy(file, path, sizeof path);
    }
    arena_free(arena);
    if (status == ST_OK && largest == 0) status = status_fail(ST_INPUT, "no file in '%s' to measure its disk with", folder);
    return status;
}

Status disk_measure(const char *path, DiskSpeed *speed) {
    struct stat info;
    void *memory = NULL;
    *speed = (DiskSpeed){0};
    if (dir_exists(path))
        TRY(largest_in(path, speed->file));
    else
        snprintf(speed->file, sizeof speed->file, "%s", path);
    int file = disk_open(speed->file, &speed->cached);
    if (file < 0 || fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < LEAST_FILE) {
        if (file >= 0) close(file);
        return status_fail(ST_INPUT, "cannot measure the disk with '%s': a file of at least 1 MiB is needed", speed->file);
    }
    if (posix_memalign(&memory, SMALL, PIECE) != 0) memory = NULL;
    if (memory) speed->random_per_second = read_at_random(file, memory, info.st_size);
    if (memory) speed->sequential = read_in_order(file, memory, info.st_size);
    free(memory);
    close(file);
    return memory ? ST_OK : status_fail(ST_RESOURCE, "out of memory to measure a disk");
}
