/* SPDX-License-Identifier: Apache-2.0 */
/* This process and its machine: time, memory. */
#include "lib/base/base.h"
#include "lib/base/system.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int64_t near_cache_bytes(void) {
#if defined(__APPLE__)
    int64_t bytes = 0;
    size_t size = sizeof bytes;
    if (sysctlbyname("hw.perflevel0.l2cachesize", &bytes, &size, NULL, 0) == 0 || sysctlbyname("hw.l2cachesize", &bytes, &size, NULL, 0) == 0)
        return bytes;
    return 0;
#elif defined(_SC_LEVEL2_CACHE_SIZE)
    static _Atomic int64_t known = -1; /* the query takes microseconds on virtual machines */
    if (known < 0) known = MAX(sysconf(_SC_LEVEL2_CACHE_SIZE), 0);
    return known;
#else
    return 0;
#endif
}

int64_t far_cache_bytes(void) {
#if !defined(__APPLE__) && defined(_SC_LEVEL3_CACHE_SIZE)
    return MAX(sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
#else
    return 0;
#endif
}

void memory_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

#ifdef __APPLE__

uint64_t memory_of_files(void) { return 0; }

uint64_t memory_peak(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss : 0;
}

uint64_t memory_resident(void) {
    mach_task_basic_info_data_t info;
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    return task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &count) == KERN_SUCCESS ? info.resident_size : 0;
}

static uint64_t machine_available(void) {
    uint64_t bytes = 0;
    size_t size = sizeof bytes;
    return sysctlbyname("hw.memsize", &bytes, &size, NULL, 0) == 0 ? bytes : UINT64_MAX;
}

static uint64_t group_available(void) { return UINT64_MAX; }
static double group_cores(void) { return (double)INT_MAX; }
static int allowed_cores(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }
static int allowed_physical(const char *folder) {
    int n = 0;
    size_t size = sizeof n;
    (void)folder;
    return sysctlbyname("hw.physicalcpu", &n, &size, NULL, 0) == 0 ? n : allowed_cores();
}
static uint64_t address_space_used(void) { return 0; }

#else

/* Sizes of this process from /proc/self/statm: 0 all, 1 resident, 2 the resident part that belongs to files. */
static uint64_t statm(int which) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages[3] = {0};
    if (!file) return 0;
    bool read = fscanf(file, "%llu %llu %llu", &pages[0], &pages[1], &pages[2]) == 3;
    fclose(file);
    return read ? (uint64_t)pages[which] * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

uint64_t memory_resident(void) { return statm(1); }
uint64_t memory_of_files(void) { return statm(2); }

/* The number after `name` at the start of a line, times `unit`; false when there is none. An empty name: the first number of the file. */
static bool number_in_file(const char *path, const char *name, uint64_t unit, uint64_t *value) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    char line[512];
    bool found = false;
    size_t len = strlen(name);
    while (!found && fgets(line, sizeof line, file)) {
        unsigned long long number;
        if (strncmp(line, name, len) != 0 || sscanf(line + len, " %llu", &number) != 1) continue;
        *value = number > UINT64_MAX / unit ? UINT64_MAX : number * unit;
        found = true;
    }
    fclose(file);
    return found;
}

static uint64_t machine_available(void) {
    uint64_t bytes;
    return number_in_file("/proc/meminfo", "MemAvailable:", 1024, &bytes) ? bytes : UINT64_MAX;
}

static uint64_t address_space_used(void) {
    uint64_t bytes;
    return number_in_file("/proc/self/status", "VmSize:", 1024, &bytes) ? bytes : 0;
}

/* getrusage may report the peak of a larger program that started this one, so it is used only without another source. */
uint64_t memory_peak(void) {
    uint64_t bytes;
    struct rusage usage;
    if (number_in_file("/proc/self/status", "VmHWM:", 1024, &bytes)) return bytes;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

/* ---- control groups: the process's own and all its parents; each may have a limit. In a container the upper ones are not visible ---- */

typedef void LookAtGroup(const char *dir, bool v2, void *context);

static void look_upward(const char *root, const char *path, bool v2, LookAtGroup *look, void *context) {
    char dir[1024];
    snprintf(dir, sizeof dir, "%s%s", root, path);
    size_t root_len = strlen(root);
    while (strlen(dir) >= root_len) {
        look(dir, v2, context);
        char *slash = strrchr(dir, '/');
        if (!slash || slash < dir + root_len) break;
        *slash = '\0';
    }
}

/* Whether `word` is one of the names in "cpu,cpuacct". */
static bool is_among(const char *names, const char *word) {
    size_t len = strlen(word);
    for (const char *at = names; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strcspn(at, ",") == len && strncmp(at, word, len) == 0) return true;
    return false;
}

static void visit_groups(const char *controller, LookAtGroup *look, void *context) {
    FILE *file = fopen("/proc/self/cgroup", "r");
    char line[1024], root[256];
    if (!file) return;
    while (fgets(line, sizeof line, file)) { /* "0::/path" (v2), "7:memory:/path" (v1) */
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        snprintf(root, sizeof root, "/sys/fs/cgroup/%s", kinds + 1);
        if (kinds[1] == '\0')
            look_upward("/sys/fs/cgroup", path, true, look, context);
        else if (is_among(kinds + 1, controller))
            look_upward(root, path, false, look, context);
    }
    fclose(file);
}

/* What a group leaves: its limit less its usage, without file pages that can be dropped. "max" is not a number: no limit. */
static void look_for_memory(const char *dir, bool v2, void *context) {
    uint64_t *least = context, limit, usage, cache = 0;
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    if (!number_in_file(path, "", 1, &limit)) return;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!number_in_file(path, "", 1, &usage)) usage = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (number_in_file(path, v2 ? "inactive_file " : "total_inactive_file ", 1, &cache)) usage -= MIN(usage, cache);
    *least = MIN(*least, limit - MIN(limit, usage));
}

static uint64_t group_available(void) {
    uint64_t least = UINT64_MAX;
    visit_groups("memory", look_for_memory, &least);
    return least;
}

/* Processor time that a group may use, in processors: "150000 100000" is one and a half. */
static void look_for_cores(const char *dir, bool v2, void *context) {
    double *least = context;
    uint64_t quota, period = 0;
    char path[1200];
    if (v2) {
        unsigned long long both[2];
        snprintf(path, sizeof path, "%s/cpu.max", dir);
        FILE *file = fopen(path, "r");
        if (!file) return;
        int n = fscanf(file, "%llu %llu", &both[0], &both[1]);
        fclose(file);
        if (n != 2) return;
        quota = both[0];
        period = both[1];
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
        if (!number_in_file(path, "", 1, &quota) || quota > INT64_MAX) return; /* -1: no limit */
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!number_in_file(path, "", 1, &period)) return;
    }
    if (quota > 0 && period > 0) *least = MIN(*least, (double)quota / (double)period);
}

static double group_cores(void) {
    double least = (double)INT_MAX;
    visit_groups("cpu", look_for_cores, &least);
    return least;
}

static int allowed_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                       : (int)sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 processors do not fit */
}

/* The lowest processor of `set` that shares a core with this one; this one if the system does not say. The file reads "0-1" or "0,64". */
static int first_of_core(const char *folder, int processor, const cpu_set_t *set) {
    char path[1200], list[256] = "";
    snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", folder, processor);
    FILE *file = fopen(path, "r");
    if (!file) return processor;
    if (!fgets(list, sizeof list, file)) list[0] = '\0';
    fclose(file);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        int first, last, n = sscanf(at, "%d-%d", &first, &last);
        for (int i = n > 0 ? MAX(first, 0) : processor; i <= (n == 2 ? last : first) && i < processor; i++)
            if (CPU_ISSET(i, set)) return i;
    }
    return processor;
}

static int allowed_physical(const char *folder) {
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return allowed_cores();
    for (int i = 0; i < CPU_SETSIZE; i++) n += CPU_ISSET(i, &set) && first_of_core(folder, i, &set) == i;
    return n;
}

#endif

uint64_t memory_available(void) {
    uint64_t least = MIN(machine_available(), group_available());
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        uint64_t space = (uint64_t)limit.rlim_cur;
        least = MIN(least, space - MIN(space, address_space_used()));
    }
    return least;
}

static int granted_cores(int allowed) {
    int granted = (int)MAX(group_cores(), 1); /* with one and a half, a second thread would wait half of the time, and the first for it */
    return MAX(MIN(allowed, granted), 1);
}

int cores_available(void) { return granted_cores(allowed_cores()); }
int cores_physical(const char *folder) { return granted_cores(allowed_physical(folder ? folder : "/sys/devices/system/cpu")); }
