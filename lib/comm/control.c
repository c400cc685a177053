/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages between ranks: signs of life, failures, and questions about messages that do not fit. Every wait reads them. */
#include "lib/comm/comm_world.h"
#include "lib/base/system.h"
#include "lib/base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTROL_TAG 0
/* Outside of waits, control messages are looked at so often, in seconds */
#define LOOK_INTERVAL 0.02
/* Seconds for the other rank's answer, and for rank 0 to say that it prints a failure */
#define ANSWER_SECONDS 2.0

enum {
    N_STATUSES = 0
#define STATUS(name, exit_code, meaning) +1
#include "lib/base/status.def"
#undef STATUS
};

const char *rank_words(const World *world, int rank, char out[96]) {
    snprintf(out, 96, "rank %d (%.64s)", rank, world->transport->host(world->transport->state, rank));
    return out;
}

void operation_words(CommKind kind, const char *name, uint64_t bytes, char *out, size_t size) {
    if (text_starts_with(name, comm_kind_word(kind)))
        snprintf(out, size, "%s (%llu bytes)", name, (unsigned long long)bytes);
    else
        snprintf(out, size, "%s: %s (%llu bytes)", comm_kind_word(kind), name, (unsigned long long)bytes);
}

double sign_interval(const World *world) { return MIN(10.0, world->config.timeout / 4); }

Status world_fail(World *world, int from, Status status) {
    if (world->failure.status != ST_OK) return failure_restore(&world->failure);
    failure_save(&world->failure, status);
    world->failed_rank = from;
    return status;
}

/* ---- sending ---- */

static void keep_leaving(World *world) {
    for (Leaving **at = &world->leaving; *at;) {
        bool done = false;
        Leaving *this = *at;
        /* A transport that fails here fails in the next wait as well. */
        if (world->transport->done(world->transport->state, &this->request, &done) != ST_OK) done = true;
        if (done) {
            *at = this->next;
            free(this);
        } else
            at = &this->next;
    }
}

static void control_send(World *world, int to, const Control *control) {
    Leaving *leaving = calloc(1, sizeof *leaving);
    if (!leaving) return; /* a sign is sent again, and ranks that hear of no failure see a silent rank */
    leaving->control = *control;
    CommTransport *transport = world->transport;
    if (transport->send(transport->state, to, CONTROL_TAG, &leaving->control, sizeof leaving->control, &leaving->request) != ST_OK) {
        free(leaving);
        return;
    }
    leaving->next = world->leaving;
    world->leaving = leaving;
    world->counts[to][COMM_CONTROL].sent += sizeof leaving->control;
    world->counts[to][COMM_CONTROL].sent_segments++;
}

void control_say(World *world, int to, ControlKind kind, int64_t number, int64_t tag, const char *text, const char *hint, Status status) {
    Control control = {.kind = kind,
                       .from = world->transport->rank,
                       .status = (int32_t)status,
                       .waits_for = world->waits_for,
                       .step = world->step,
                       .index = world->index,
                       .number = number,
                       .tag = tag};
    snprintf(control.text, sizeof control.text, "%s", text);
    snprintf(control.hint, sizeof control.hint, "%s", hint);
    control_send(world, to, &control);
}

void control_flush(World *world, double seconds) {
    const double until = clock_seconds() + seconds;
    keep_leaving(world);
    while (world->leaving && clock_seconds() < until) {
        world->transport->idle(world->transport->state, 200);
        keep_leaving(world);
    }
}

void control_release(World *world) {
    while (world->leaving) {
        Leaving *next = world->leaving->next;
        free(world->leaving);
        world->leaving = next;
    }
}

/* ---- receiving ---- */

Status control_listen(World *world) {
    CommTransport *transport = world->transport;
    TRY(transport->receive(transport->state, -1, CONTROL_TAG, &world->hearing, sizeof world->hearing, &world->heard));
    world->listens = true;
    return ST_OK;
}

/* What this rank sent to `peer` as its operation `number` in the group of `tag` */
static void sent_words(const World *world, int peer, int64_t number, int64_t tag, char *out, size_t size) {
    char words[2 * COMM_NAME];
    snprintf(out, size, "another operation");
    for (size_t i = 0; i < MIN(world->n_sent, (size_t)SENT_LOG); i++) {
        const Sent *sent = &world->sent[i];
        if (sent->peer != peer || sent->number != number || sent->tag != tag) continue;
        operation_words(sent->kind, sent->name, sent->bytes, words, sizeof words);
        snprintf(out, size, "%s", words);
    }
}

static void control_heard(World *world, const Control *control) {
    char words[96], text[608], sent[2 * COMM_NAME + 32];
    const int from = control->from, self = world->transport->rank;
    if (from < 0 || from >= world->transport->size) return;
    Sign *sign = &world->signs[from];
    sign->at = clock_seconds();
    switch ((ControlKind)control->kind) {
    case CONTROL_SIGN:
        sign->step = control->step;
        sign->index = control->index;
        sign->waits_for = control->waits_for;
        snprintf(sign->phase, sizeof sign->phase, "%.63s", control->text);
        break;
    case CONTROL_FAIL:
        if (self == 0) control_say(world, from, CONTROL_SEEN, 0, 0, "", "", ST_OK);
        if (from == 0) world->seen = true; /* rank 0 has a failure of its own, and prints that */
        if (world->failure.status != ST_OK) break;
        if (text_starts_with(control->text, "rank ")) /* it says which */
            status_fail((Status)control->status, "%s", control->text);
        else
            status_fail((Status)control->status, "%s: %s", rank_words(world, from, words), control->text);
        if (control->hint[0]) status_hint((Status)control->status, "%s", control->hint);
        world_fail(world, from, (Status)control->status);
        break;
    case CONTROL_SEEN: world->seen = true; break;
    case CONTROL_ASK:
        sent_words(world, from, control->number, control->tag, sent, sizeof sent);
        snprintf(text, sizeof text, "rank %d sent %s", self, sent);
        control_say(world, from, CONTROL_ANSWER, control->number, control->tag, text, "", ST_OK);
        break;
    case CONTROL_ANSWER:
        snprintf(world->answer, sizeof world->answer, "%s", control->text);
        world->answered = true;
        break;
    }
}

static void control_receive(World *world) {
    CommTransport *transport = world->transport;
    bool done = world->listens;
    while (done) {
        if (transport->done(transport->state, &world->heard, &done) != ST_OK) {
            world_fail(world, transport->rank, ST_RESOURCE);
            world->listens = done = false;
        } else if (done) {
            Control control = world->hearing;
            control.text[sizeof control.text - 1] = control.hint[sizeof control.hint - 1] = '\0';
            if (control.status < 0 || control.status >= N_STATUSES) control.status = ST_RESOURCE;
            world->listens = false;
            control_heard(world, &control);
            if (control_listen(world) != ST_OK) {
                world_fail(world, transport->rank, ST_RESOURCE);
                done = false;
            }
        }
    }
}

/* ---- clocks ---- */

static void sign_send(World *world, double now) {
    const int size = world->transport->size, self = world->transport->rank;
    world->signed_at = now;
    for (int rank = self == 0 ? 1 : 0; rank < (self == 0 ? size : 1); rank++)
        control_say(world, rank, CONTROL_SIGN, 0, 0, world->phase ? world->phase : "", "", ST_OK);
}

static void phase_words(const Sign *sign, char *out, size_t size) {
    int used = snprintf(out, size, "%s", sign->phase[0] ? sign->phase : "start");
    if (sign->index >= 0 && sign->phase[0] && (size_t)used < size) used += snprintf(out + used, size - (size_t)used, " %lld", (long long)sign->index);
    if (sign->step > 0 && (size_t)used < size) snprintf(out + used, size - (size_t)used, ", step %lld", (long long)sign->step);
}

/* Rank 0 watches all ranks, and all watch rank 0. */
static void clocks_check(World *world, double now) {
    const int size = world->transport->size, self = world->transport->rank;
    char words[96], phase[160];
    for (int rank = self == 0 ? 1 : 0; rank < (self == 0 ? size : 1); rank++) {
        const Sign *sign = &world->signs[rank];
        if (now - sign->at <= world->config.timeout) continue;
        phase_words(sign, phase, sizeof phase);
        status_fail(ST_RESOURCE, "%s has given no sign for %.0f s: %s", rank_words(world, rank, words), now - sign->at, phase);
        status_hint(ST_RESOURCE, "it is stopped, or its machine cannot be reached; `--resume` continues from the last checkpoint. "
                                 "parallel.timeout sets the seconds");
        world_fail(world, self, ST_RESOURCE);
        return;
    }
}

/* The rank at the end of the chain of ranks that wait for each other */
static int last_of_chain(const World *world, int rank) {
    for (int hops = 0; hops < world->transport->size; hops++) {
        const int next = world->signs[rank].waits_for;
        if (next < 0 || next >= world->transport->size || next == world->transport->rank) break;
        rank = next;
    }
    return rank;
}

void control_warn(World *world, double since) {
    const double now = clock_seconds(), limit = sign_interval(world);
    if (world->transport->rank != 0 || !world->config.warn || world->waits_for < 0 || now - since < limit || now - world->warned_at < limit) return;
    char other[96], phase[160], text[512];
    const int rank = last_of_chain(world, world->waits_for);
    const Sign *sign = &world->signs[rank];
    world->warned_at = now;
    phase_words(sign, phase, sizeof phase);
    snprintf(text, sizeof text, "rank 0 waits for %s, last sign %.0f s ago: %s", rank_words(world, rank, other), now - sign->at, phase);
    world->config.warn(world->config.data, text);
}

void control_poll(World *world, bool waiting) {
    const double now = clock_seconds();
    if (!waiting && now - world->looked_at < LOOK_INTERVAL) return;
    world->looked_at = now;
    control_receive(world);
    if (world->leaving) keep_leaving(world);
    if (now - world->signed_at >= sign_interval(world)) sign_send(world, now);
    if (waiting) clocks_check(world, now);
}

/* ---- messages that do not fit ---- */

Status control_mismatch(World *world, int from, const char *waits_for, const CommHeader *header, int64_t tag) {
    const int self = world->transport->rank;
    const uint32_t kind = header->kind & 0xff;
    char text[608];
    snprintf(text, sizeof text, "rank %d waits for %s", self, waits_for);
    world->answered = false;
    control_say(world, from, CONTROL_ASK, header->number, tag, text, "", ST_OK);
    for (double until = clock_seconds() + ANSWER_SECONDS; !world->answered && clock_seconds() < until;) {
        control_poll(world, true);
        world->transport->idle(world->transport->state, 200);
    }
    if (world->answered)
        status_fail(ST_RESOURCE, "%s, %s", text, world->answer);
    else
        status_fail(ST_RESOURCE, "%s, rank %d sent %s (%llu bytes)", text, from,
                    kind < COMM_N_KINDS ? comm_kind_word((CommKind)kind) : "something else", (unsigned long long)header->bytes);
    status_hint(ST_RESOURCE, "the ranks run different programs or recipes, or one of them left a step");
    return world_fail(world, self, ST_RESOURCE);
}
