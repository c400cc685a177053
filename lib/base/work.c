/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of long work, and when it is worth a line. */
#include "lib/base/work.h"

#include <stdatomic.h>
#include <string.h>

#include "lib/base/system.h"

static struct {
    WorkSink *sink;
    void *context;
    double told;
    const char *what, *held; /* what: reported last; held: see work_pause_at; NULL: none */
} target;
static atomic_flag telling = ATOMIC_FLAG_INIT;

void work_set_sink(WorkSink *sink, void *context) {
    target.sink = sink;
    target.context = context;
    target.what = target.held = NULL;
}

/* Names are compared by content: a constant text may exist more than once. */
static bool same_name(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static void work_report(const Work *work) {
    static const double apart = 0.1;
    if (!target.sink || atomic_flag_test_and_set(&telling)) return;
    double now = clock_seconds();
    bool hidden = target.held && !same_name(target.held, work->what);
    if (!hidden && (!same_name(target.what, work->what) || now - target.told >= apart)) {
        target.what = work->what;
        target.told = now;
        target.sink(target.context, work);
    }
    atomic_flag_clear(&telling);
}

void work_at(const char *what, uint64_t done, uint64_t total) { work_report(&(Work){what, done, total, false}); }

void work_at_bytes(const char *what, uint64_t done, uint64_t total) { work_report(&(Work){what, done, total, true}); }

void work_pause_at(const char *what) {
    if (!target.held) target.held = what;
}

/* The reported name may be that of other work that ended without a call: it has ended as well. */
void work_end(const char *what) {
    if (!target.sink || (target.held && !same_name(target.held, what)) || atomic_flag_test_and_set(&telling)) return;
    if (target.what) target.sink(target.context, &(Work){0});
    target.what = target.held = NULL;
    atomic_flag_clear(&telling);
}

/* ---- when a line is due ---- */

bool progress_due(ProgressTimer *pace, double now, bool redraws) {
    static const double quiet = 2, first_minute = 60, same = 1;
    if (!pace->begun || (pace->over && now - pace->asked > same)) *pace = (ProgressTimer){.at_once = pace->at_once, .begun = true, .began = now};
    pace->over = false;
    pace->asked = now;
    double taken = now - pace->began, apart = redraws ? 0.1 : taken > first_minute ? 60 : 10;
    if ((taken < quiet && !pace->at_once) || (pace->shown && now - pace->last < apart)) return false;
    pace->shown = true;
    pace->last = now;
    return true;
}

void progress_ended(ProgressTimer *pace) { pace->over = true; }
