/* SPDX-License-Identifier: Apache-2.0 */
/* Presets of machines and links, descriptions in YAML, and numbers with units. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/plan/plan_machine.h"

/* Shares of the rate that products reach: Megatron measured .44 to .52 on GPUs (arXiv 2104.04473). */
#define GPU_EFFICIENCY .45
#define CPU_EFFICIENCY .6

const PlanLink plan_links[] = {
#define LINK(name, gbs, bulk_us, small_us, source) {name, source, {gbs * 1e9, bulk_us * 1e-6}, small_us * 1e-6},
#include "lib/plan/links.def"
#undef LINK
};
const size_t n_plan_links = COUNT_OF(plan_links);
const PlanMachine plan_machines[] = {
#define MACHINE(id, title, gpu, f32, half, gbs, gb, watts, per_machine, link, source) \
    {id,                                                                              \
     title,                                                                           \
     source,                                                                          \
     gpu,                                                                             \
     f32 * 1e12,                                                                      \
     half * 1e12,                                                                     \
     gbs * 1e9,                                                                       \
     gb * 1e9,                                                                        \
     watts,                                                                           \
     per_machine,                                                                     \
     gpu ? GPU_EFFICIENCY : CPU_EFFICIENCY,                                           \
     0,                                                                               \
     {link, NULL, {0, 0}, 0}},
#include "lib/plan/machines.def"
#undef MACHINE
};
const size_t n_plan_machines = COUNT_OF(plan_machines);

Status plan_link_find(const char *name, PlanLink *link) {
    const char *names[COUNT_OF(plan_links)];
    for (size_t i = 0; i < n_plan_links; i++) {
        names[i] = plan_links[i].name;
        if (strcmp(names[i], name) != 0) continue;
        *link = plan_links[i];
        return ST_OK;
    }
    status_fail(ST_CONFIG, "unknown link '%s'", name);
    return status_hint_nearest(ST_CONFIG, name, names, COUNT_OF(names),
                               "tune plan --list names them; or describe it: {bytes_per_second: 25 GB/s, latency: 2 us}");
}

Status plan_machine_find(const char *name, PlanMachine *machine) {
    const char *names[COUNT_OF(plan_machines)];
    for (size_t i = 0; i < n_plan_machines; i++) {
        names[i] = plan_machines[i].name;
        if (strcmp(names[i], name) != 0) continue;
        *machine = plan_machines[i];
        return plan_link_find(machine->inner.name, &machine->inner);
    }
    status_fail(ST_CONFIG, "unknown machine '%s'", name);
    return status_hint_nearest(ST_CONFIG, name, names, COUNT_OF(names),
                               "tune plan --list names them; or describe it in a file: flops, bytes_per_second, memory");
}

double plan_rate(const PlanMachine *machine, bool half) { return half && machine->half > 0 ? machine->half : machine->f32; }

double plan_ridge(const PlanMachine *machine) { return fmax(machine->half, machine->f32) / machine->bytes_per_second; }

/* ---- numbers with units ---- */

static const char *const quantity_words[] = {"operations per second", "bytes per second", "bytes", "seconds", "watts"};
static const char *const quantity_forms[] = {"312 TF/s or 312e12", "204.8 GB/s, 400 Gb/s (bits) or 204.8e9", "80 GB or 80e9", "2 us or 2e-6",
                                             "350 W"};
/* A bare number outside of these is in another unit: a bandwidth of 204.8 was meant in GB/s. */
static const struct { double low, high; } plausible[] = {{1e9, 1e20}, {1e6, 1e17}, {1e6, 1e17}, {0, 1}, {0.1, 1e7}};

/* The factor of "T", "Gi", "u", ... at *text, which moves past it. */
static double prefix_of(const char **text, bool binary) {
    static const struct {
        char letter;
        double factor, two;
    } prefixes[] = {{'P', 1e15, 0x1p50}, {'T', 1e12, 0x1p40}, {'G', 1e9, 0x1p30}, {'M', 1e6, 0x1p20}, {'k', 1e3, 0x1p10},
                    {'K', 1e3, 0x1p10},  {'m', 1e-3, 1e-3},   {'u', 1e-6, 1e-6},  {'n', 1e-9, 1e-9}};
    for (size_t i = 0; i < COUNT_OF(prefixes); i++) {
        if (**text != prefixes[i].letter || !(*text)[1]) continue;
        *text += 1;
        if (!binary || **text != 'i') return prefixes[i].factor;
        *text += 1;
        return prefixes[i].two;
    }
    return 1;
}

static bool unit_of(const char *unit, QuantityKind *kind, double *factor) {
    static const struct {
        const char *name;
        QuantityKind kind;
        double factor;
    } units[] = {{"F/s", QUANTITY_RATE, 1},          {"FLOPS", QUANTITY_RATE, 1},
                 {"FLOP/s", QUANTITY_RATE, 1},       {"B/s", QUANTITY_BANDWIDTH, 1},
                 {"b/s", QUANTITY_BANDWIDTH, 0.125}, {"bit/s", QUANTITY_BANDWIDTH, 0.125},
                 {"bps", QUANTITY_BANDWIDTH, 0.125}, {"B", QUANTITY_BYTES, 1},
                 {"s", QUANTITY_SECONDS, 1},         {"W", QUANTITY_WATTS, 1}};
    *factor = prefix_of(&unit, true);
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (strcmp(unit, units[i].name) != 0) continue;
        *kind = units[i].kind;
        *factor *= units[i].factor;
        return true;
    }
    return false;
}

Status plan_quantity(const char *text, QuantityKind kind, const char *where, double *value) {
    char *end;
    double number = strtod(text, &end), factor = 1;
    QuantityKind given = kind;
    if (end == text || !isfinite(number)) {
        status_fail(ST_CONFIG, "'%s: %s' is not a number of %s", where, text, quantity_words[kind]);
        return status_hint(ST_CONFIG, "write %s", quantity_forms[kind]);
    }
    while (*end == ' ') end++;
    if (*end && !unit_of(end, &given, &factor)) {
        status_fail(ST_CONFIG, "'%s: %s': unknown unit '%s'", where, text, end);
        return status_hint(ST_CONFIG, "write %s", quantity_forms[kind]);
    }
    if (given != kind) {
        status_fail(ST_CONFIG, "'%s: %s' is in %s, expected %s", where, text, quantity_words[given], quantity_words[kind]);
        return status_hint(ST_CONFIG, "write %s", quantity_forms[kind]);
    }
    *value = number * factor;
    if (number > 0 && *value >= plausible[kind].low && *value <= plausible[kind].high) return ST_OK;
    if (kind == QUANTITY_SECONDS && number == 0) return ST_OK;
    status_fail(ST_CONFIG, "'%s: %s' is %s %s", where, text, NUMBER(*value), quantity_words[kind]);
    return status_hint(ST_CONFIG, "that is %s than any machine has: write %s", *value < plausible[kind].low ? "less" : "more", quantity_forms[kind]);
}

/* ---- descriptions ---- */

typedef struct Field {
    const char *key;
    QuantityKind kind;
    double *value;
} Field;

static Status read_fields(const Yaml *node, const char *what, const Field *fields, size_t n, const char *const *others, size_t n_others) {
    const char *names[32];
    size_t n_names = 0;
    for (size_t i = 0; i < n; i++) names[n_names++] = fields[i].key;
    for (size_t i = 0; i < n_others; i++) names[n_names++] = others[i];
    for (size_t i = 0; i < node->n; i++) {
        size_t at = 0;
        while (at < n_names && strcmp(names[at], node->keys[i]) != 0) at++;
        if (at == n_names) {
            status_fail(ST_CONFIG, "unknown key '%s' of a %s", node->keys[i], what);
            return status_hint_nearest(ST_CONFIG, node->keys[i], names, n_names, "the keys are: ");
        }
        if (at >= n) continue;
        if (node->items[i]->kind != YAML_SCALAR) return status_fail(ST_CONFIG, "'%s' of a %s is not a number", node->keys[i], what);
        TRY(plan_quantity(node->items[i]->text, fields[at].kind, fields[at].key, fields[at].value));
    }
    return ST_OK;
}

/* The map that a node is, or names: a file, since a name has neither '/' nor '.yaml'. NULL: a name. */
static Status description(const Yaml *node, Arena *arena, const Yaml **map) {
    *map = node->kind == YAML_MAP ? node : NULL;
    if (node->kind == YAML_MAP) return ST_OK;
    if (node->kind != YAML_SCALAR) return status_fail(ST_CONFIG, "a machine or link is a name, a file or a map");
    if (!strchr(node->text, '/') && !text_ends_with(node->text, ".yaml")) return ST_OK;
    Yaml *root;
    TRY(yaml_read_file(node->text, arena, &root));
    if (root->kind != YAML_MAP) return status_fail(ST_CONFIG, "'%s' is not a map of keys and values", node->text);
    *map = root;
    return ST_OK;
}

Status plan_link_of(const Yaml *node, Arena *arena, PlanLink *link) {
    const Yaml *map;
    TRY(description(node, arena, &map));
    if (!map) return plan_link_find(node->text, link);
    *link = (PlanLink){.name = "own", .source = "recipe", .bulk.latency = 1e-5};
    const Field fields[] = {{"bytes_per_second", QUANTITY_BANDWIDTH, &link->bulk.bytes_per_second},
                            {"latency", QUANTITY_SECONDS, &link->bulk.latency}};
    TRY(read_fields(map, "link", fields, COUNT_OF(fields), (const char *const[]){"name"}, 1));
    link->small_latency = link->bulk.latency;
    const Yaml *name = yaml_get(map, "name");
    if (name && name->kind == YAML_SCALAR) link->name = arena_strdup(arena, name->text);
    return link->bulk.bytes_per_second > 0 ? ST_OK : status_fail(ST_CONFIG, "a link needs 'bytes_per_second'");
}

static Status read_plain(const Yaml *map, PlanMachine *machine) {
    const Yaml *per = yaml_get(map, "per_machine"), *efficiency = yaml_get(map, "efficiency"), *gpu = yaml_get(map, "gpu"),
               *price = yaml_get(map, "price");
    if (per && (!yaml_as_int(per, &machine->per_machine) || machine->per_machine < 1 || machine->per_machine > 4096))
        return status_fail(ST_CONFIG, "'per_machine' is a number from 1 to 4096");
    if (efficiency && (!yaml_as_double(efficiency, &machine->efficiency) || !(machine->efficiency > 0 && machine->efficiency <= 1)))
        return status_hint(status_fail(ST_CONFIG, "'efficiency' is a share above 0, at most 1"), "45 %% is 0.45");
    if (gpu && !yaml_as_bool(gpu, &machine->gpu)) return status_fail(ST_CONFIG, "'gpu' is true or false");
    if (price && (!yaml_as_double(price, &machine->price) || !(machine->price >= 0))) return status_fail(ST_CONFIG, "'price' is a number per hour");
    return ST_OK;
}

Status plan_machine_of(const Yaml *node, Arena *arena, PlanMachine *machine) {
    const Yaml *map;
    TRY(description(node, arena, &map));
    if (!map) return plan_machine_find(node->text, machine);
    *machine = (PlanMachine){.name = "own", .source = "recipe", .per_machine = 1, .efficiency = GPU_EFFICIENCY};
    const Field fields[] = {{"flops", QUANTITY_RATE, &machine->half},
                            {"f32_flops", QUANTITY_RATE, &machine->f32},
                            {"bytes_per_second", QUANTITY_BANDWIDTH, &machine->bytes_per_second},
                            {"memory", QUANTITY_BYTES, &machine->memory},
                            {"watts", QUANTITY_WATTS, &machine->watts}};
    static const char *const others[] = {"name", "gpu", "price", "per_machine", "efficiency", "inner_link"};
    TRY(read_fields(map, "machine", fields, COUNT_OF(fields), others, COUNT_OF(others)));
    TRY(read_plain(map, machine));
    const Yaml *name = yaml_get(map, "name"), *inner = yaml_get(map, "inner_link");
    if (name && name->kind == YAML_SCALAR) machine->name = arena_strdup(arena, name->text);
    machine->title = machine->name;
    if (machine->f32 == 0) machine->f32 = machine->half;
    if (machine->half == 0) machine->half = machine->f32;
    if (machine->f32 == 0 || machine->bytes_per_second == 0 || machine->memory == 0)
        return status_hint(status_fail(ST_CONFIG, "a machine needs 'flops', 'bytes_per_second' and 'memory'"),
                           "{flops: 312 TF/s, bytes_per_second: 2039 GB/s, memory: 80 GB}");
    return inner ? plan_link_of(inner, arena, &machine->inner) : plan_link_find(machine->gpu ? "pcie-4-host" : "shared-memory", &machine->inner);
}
