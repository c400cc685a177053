/* This process and its machine: time, memory. */
#include "lib/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t memory_peak(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#ifdef __APPLE__
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}

#ifdef __APPLE__

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
static uint64_t address_space_used(void) { return 0; }

#else

uint64_t memory_resident(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    if (!file) return 0;
    if (fscanf(file, "%*s %llu", &pages) != 1) pages = 0; /* the whole size comes first */
    fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The number behind `name` at the start of a line, times `unit`; false when there is none. An empty name: the first number of the file. */
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

/* What one group leaves: its limit less what it uses; file pages that can be dropped do not count. "max" is no number: no limit. */
static uint64_t one_group_available(const char *dir, const char *limit_name, const char *usage_name, const char *cache_name) {
    char path[1200];
    uint64_t limit, usage, cache = 0;
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (!number_in_file(path, "", 1, &limit)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, usage_name);
    if (!number_in_file(path, "", 1, &usage)) return limit;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (number_in_file(path, cache_name, 1, &cache)) usage -= MIN(usage, cache);
    return limit - MIN(limit, usage);
}

/* The group `path` below `root` and all above it: each may have a limit. In a container upper ones are not visible. */
static uint64_t groups_available(const char *root, const char *path, bool v2) {
    char dir[1024];
    uint64_t least = UINT64_MAX;
    snprintf(dir, sizeof dir, "%s%s", root, path);
    size_t root_len = strlen(root);
    while (strlen(dir) >= root_len) {
        uint64_t here = v2 ? one_group_available(dir, "memory.max", "memory.current", "inactive_file ")
                           : one_group_available(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ");
        least = MIN(least, here);
        char *slash = strrchr(dir, '/');
        if (!slash || slash < dir + root_len) break;
        *slash = '\0';
    }
    return least;
}

static uint64_t group_available(void) {
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (!file) return UINT64_MAX;
    char line[1024];
    uint64_t least = UINT64_MAX;
    while (fgets(line, sizeof line, file)) { /* "0::/path" (v2), "7:memory:/path" (v1) */
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        if (kinds[1] == '\0') least = MIN(least, groups_available("/sys/fs/cgroup", path, true));
        if (strcmp(kinds + 1, "memory") == 0) least = MIN(least, groups_available("/sys/fs/cgroup/memory", path, false));
    }
    fclose(file);
    return least;
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
