/* SPDX-License-Identifier: Apache-2.0 */
/* See rank_records.h. */
#include "lib/train/rank_records.h"
#include "lib/base/file.h"
#include "lib/base/json.h"

#include <stdlib.h>

/* What a rank says of a step */
typedef struct Said {
    double seconds[RANK_WORKS], waited;
    uint64_t bytes[COMM_N_KINDS], messages;
    int64_t waited_for; /* -1: for none */
    BucketCount buckets;
} Said;

void rank_record_begin(RankRecord *record, Comm *comm) {
    *record = (RankRecord){.comm = comm, .waited = comm_waited(comm, NULL)};
    for (int kind = 0; kind < COMM_N_KINDS; kind++) record->counts[kind] = comm_count(comm, -1, (CommKind)kind);
}

void rank_record_add(RankRecord *record, RankWork work, double seconds) { record->seconds[work] += seconds; }

static void write_line(JsonWriter *w, int64_t step, int rank, const Said *said) {
    static const char *const works[] = {[RANK_FORWARD] = "forward",
                                        [RANK_BACKWARD] = "backward",
                                        [RANK_REDUCE] = "reduce",
                                        [RANK_OPTIMIZER] = "optimizer",
                                        [RANK_ROLLOUT] = "rollout"};
    jw_object(w, NULL);
    jw_int(w, "step", step);
    jw_int(w, "rank", rank);
    jw_object(w, "seconds");
    for (int i = 0; i < RANK_WORKS; i++)
        if (i != RANK_ROLLOUT || said->seconds[i] > 0) jw_double(w, works[i], said->seconds[i]);
    jw_double(w, "wait", said->waited);
    jw_end_object(w);
    jw_object(w, "bytes");
    for (int kind = 0; kind < COMM_N_KINDS; kind++)
        if (said->bytes[kind] > 0) jw_int(w, comm_kind_word((CommKind)kind), (int64_t)said->bytes[kind]);
    jw_end_object(w);
    jw_int(w, "messages", (int64_t)said->messages);
    jw_int(w, "buckets", said->buckets.left);
    jw_int(w, "buckets_in_backward", said->buckets.early);
    if (said->waited_for >= 0)
        jw_int(w, "waited_for", said->waited_for);
    else
        jw_null(w, "waited_for");
    jw_end_object(w);
}

static Status append_lines(Run *run, int64_t step, const Said *all, int ranks) {
    const char *path = run_path(run, "ranks.jsonl");
    Str text = {0};
    if (!path) return ST_RESOURCE;
    for (int rank = 0; rank < ranks; rank++) {
        JsonWriter w = {0};
        write_line(&w, step, rank, &all[rank]);
        str_append_n(&text, str_text(&w.text), w.text.len);
        str_append_char(&text, '\n');
        jw_release(&w);
    }
    Status status = file_append(path, str_text(&text), text.len);
    str_release(&text);
    return status;
}

Status rank_record_write(RankRecord *record, Run *run, int64_t step) {
    const int ranks = comm_size(record->comm);
    if (ranks == 1) return ST_OK;
    Said mine = {.waited = comm_waited(record->comm, NULL) - record->waited, .buckets = record->buckets}, *all = malloc((size_t)ranks * sizeof *all);
    int waited_for;
    if (!all) return status_fail(ST_RESOURCE, "out of memory for the records of %d ranks", ranks);
    comm_waited(record->comm, &waited_for);
    mine.waited_for = waited_for;
    for (int i = 0; i < RANK_WORKS; i++) mine.seconds[i] = record->seconds[i];
    for (int kind = 0; kind < COMM_N_KINDS; kind++) {
        const CommCount count = comm_count(record->comm, -1, (CommKind)kind);
        mine.bytes[kind] = count.sent - record->counts[kind].sent;
        mine.messages += count.sent_segments - record->counts[kind].sent_segments;
    }
    rank_record_begin(record, record->comm);
    Status status = comm_gather_small(record->comm, "records of a step", &mine, sizeof mine, all);
    /* the weights are new: a full disk is reported when they are saved */
    if (status == ST_OK && run_writes(run) && append_lines(run, step, all, ranks) != ST_OK) run_warn(run, "%s", status_text());
    free(all);
    return status;
}
