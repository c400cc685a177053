/* SPDX-License-Identifier: Apache-2.0 */
/* The profile: one clock, cut into laps. */
#include "lib/base/system.h"
#include "lib/tensor/tensor.h"

#include <string.h>

enum { MOST_ROWS = 64 };
static struct {
    bool on;
    double last;
    size_t n;
    ProfileRow rows[MOST_ROWS];
} profile;

void profile_start(void) {
    profile.n = 1;
    profile.rows[0] = (ProfileRow){.name = "other"};
    profile.last = clock_seconds();
    profile.on = true;
}

void profile_stop(void) {
    profile_lap(NULL);
    profile.on = false;
}

bool profile_running(void) { return profile.on; }

static ProfileRow *row_of(const char *name, bool backward) {
    for (size_t i = 0; i < profile.n; i++)
        if (profile.rows[i].backward == backward && strcmp(profile.rows[i].name, name) == 0) return &profile.rows[i];
    ASSERT(profile.n < MOST_ROWS, "more than %d kinds of work", MOST_ROWS);
    profile.rows[profile.n] = (ProfileRow){.name = name, .backward = backward};
    return &profile.rows[profile.n++];
}

static void profile_cut(ProfileRow *row, int calls, OpCost cost) {
    double now = clock_seconds();
    row->calls += calls;
    row->seconds += now - profile.last;
    row->cost.flops += cost.flops;
    row->cost.bytes += cost.bytes;
    profile.last = now;
}

void profile_lap(const char *name) {
    if (profile.on) profile_cut(name ? row_of(name, false) : &profile.rows[0], 1, (OpCost){0});
}

void profile_call(const Device *device, const char *name, bool backward, OpCost cost) {
    if (!profile.on) return;
    if (device->planned)
        profile_lap(NULL);
    else
        profile_cut(row_of(name, backward), 1, cost);
}

void profile_part(const Device *device, const char *name, bool backward) {
    if (profile.on && !device->planned) profile_cut(row_of(name, backward), 0, (OpCost){0});
}

size_t profile_rows(const ProfileRow **rows) {
    profile_lap(NULL);
    *rows = profile.rows;
    return profile.n;
}

double node_bytes(const Node *node, bool backward) {
    size_t bytes = 0;
    for (int i = 0; i < NODE_MAX_INPUTS; i++)
        if (node->inputs[i]) bytes += tensor_bytes(node->inputs[i]) * (backward && node->inputs[i]->needs_grad ? 2 : 1);
    for (int i = 0; i < NODE_MAX_OUTPUTS; i++)
        if (node->outputs[i]) bytes += tensor_bytes(node->outputs[i]);
    return (double)bytes;
}
