/* SPDX-License-Identifier: Apache-2.0 */
/* Machines and links that runs are planned for: presets (machines.def, links.def), or a description of the user's own.
 *
 *     PlanMachine machine;
 *     TRY(plan_machine_find("h100", &machine));        // an unknown name: ST_CONFIG with the nearest one
 *     TRY(plan_machine_of(node, arena, &machine));     // a name, a file, or {flops: 300e12, bytes_per_second: 2 TB/s, memory: 80 GB, ...}
 */
#ifndef TUNE_PLAN_MACHINE_H
#define TUNE_PLAN_MACHINE_H

#include "lib/base/yaml.h"
#include "lib/plan/plan_cost.h"

typedef struct PlanLink {
    const char *name, *source;
    LinkSpeed bulk;       /* bytes per second one way, latency of bulk messages */
    double small_latency; /* of messages of some bytes */
} PlanLink;
/* One GPU, or one socket of a CPU server; the machine has per_machine of them. */
typedef struct PlanMachine {
    const char *name, *title, *source;
    bool gpu;
    double f32, half;        /* operations per second: f32, and dense 16 bits with f32 sums; half 0: none */
    double bytes_per_second; /* reading memory */
    double memory, watts;    /* bytes; watts 0: unknown */
    int64_t per_machine;
    double efficiency; /* share of the rate that products reach; assumed for presets */
    double price;      /* per hour of a machine, in the user's currency; 0: unknown */
    PlanLink inner;    /* between those of one machine */
} PlanMachine;
extern const PlanLink plan_links[]; /* the presets, n_plan_links of them */
extern const size_t n_plan_links;
/* The presets, n_plan_machines of them. Only plan_machine_find sets `inner` (except its name). */
extern const PlanMachine plan_machines[];
extern const size_t n_plan_machines;
/* Find a preset. ST_CONFIG for an unknown name; the hint has the nearest one. */
Status plan_machine_find(const char *name, PlanMachine *machine);
Status plan_link_find(const char *name, PlanLink *link);
/* Read a machine or a link from a name, a YAML file with the keys below, or a map of them. Keys of a machine: name, gpu, flops, f32_flops,
 * bytes_per_second, memory, watts, price, per_machine, efficiency, inner_link; of a link: bytes_per_second, latency. Numbers may have units ("2
 * TB/s", "400 Gb/s", "989 TF/s", "80 GB", "3 us"). Texts are in `arena`. ST_CONFIG: an unknown key, a unit of another kind, a number that is
 * plausible only in another unit. */
Status plan_machine_of(const Yaml *node, Arena *arena, PlanMachine *machine);
Status plan_link_of(const Yaml *node, Arena *arena, PlanLink *link);
double plan_rate(const PlanMachine *machine, bool half); /* operations per second of products: in 16 bits if `half` and the machine has them */
double plan_ridge(const PlanMachine *machine);           /* operations per byte from which on a product is bound by work: best rate / bandwidth */

typedef enum QuantityKind { QUANTITY_RATE, QUANTITY_BANDWIDTH, QUANTITY_BYTES, QUANTITY_SECONDS, QUANTITY_WATTS } QuantityKind;
/* Reads "204.8 GB/s", "400 Gb/s" (bits) or a bare number in base units. where: the key, for messages. ST_CONFIG as above. */
Status plan_quantity(const char *text, QuantityKind kind, const char *where, double *value);

#endif
