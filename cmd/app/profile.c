/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the table of --profile: the time of a run by kind of op. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/app/profile.h"
#include "cmd/app/terminal.h"

static bool asked, as_json;

void profile_ask(bool json) {
    asked = true;
    as_json = json;
    profile_start();
}

bool profile_asked(void) { return asked; }

/* The most seconds first, "other" last. */
static int by_seconds(const void *a, const void *b) {
    const ProfileRow *one = a, *two = b;
    bool one_other = strcmp(one->name, "other") == 0, two_other = strcmp(two->name, "other") == 0;
    if (one_other != two_other) return one_other ? 1 : -1;
    return one->seconds < two->seconds ? 1 : one->seconds > two->seconds ? -1 : 0;
}

static ProfileRow *sorted_rows(const ProfileRow *rows, size_t n, double *seconds) {
    *seconds = 0;
    for (size_t i = 0; i < n; i++) *seconds += rows[i].seconds;
    ProfileRow *sorted = malloc(MAX(n, (size_t)1) * sizeof *sorted);
    if (!sorted) return NULL;
    if (n) memcpy(sorted, rows, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_seconds);
    return sorted;
}

static double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds * 1e-9 : 0; }

void profile_write(JsonWriter *w, const char *key, const ProfileRow *unsorted, size_t n) {
    double all;
    ProfileRow *rows = sorted_rows(unsorted, n, &all);
    jw_array(w, key);
    for (size_t i = 0; rows && i < n; i++) {
        const ProfileRow *row = &rows[i];
        bool measured = row->cost.bytes > 0;
        jw_object(w, NULL);
        jw_string(w, "op", row->name);
        jw_string(w, "pass", !measured ? NULL : row->backward ? "backward" : "forward");
        jw_int(w, "calls", row->calls);
        jw_double(w, "seconds", row->seconds);
        jw_double(w, "share", all > 0 ? row->seconds / all : 0);
        if (measured) {
            jw_double(w, "flops", row->cost.flops);
            jw_double(w, "gflops", per_second(row->cost.flops, row->seconds));
            jw_double(w, "bytes", row->cost.bytes);
            jw_double(w, "gbytes_per_second", per_second(row->cost.bytes, row->seconds));
        }
        jw_end_object(w);
    }
    jw_end_array(w);
    free(rows);
}

static void add_number(Str *line, double value, const char *format) {
    if (value > 0)
        str_printf(line, format, value);
    else
        str_printf(line, "%10s", "-");
}

void profile_describe(Str *text, const ProfileRow *unsorted, size_t n) {
    double all, flops = 0, bytes = 0;
    ProfileRow *rows = sorted_rows(unsorted, n, &all);
    str_printf(text, "%-24s %9s %10s %6s%10s%10s%10s\n", "op", "calls", "seconds", "share", "GF/s", "GB", "GB/s");
    for (size_t i = 0; rows && i < n; i++) {
        const ProfileRow *row = &rows[i];
        char name[64];
        snprintf(name, sizeof name, "%s%s", row->name, row->backward ? " backward" : "");
        flops += row->cost.flops;
        bytes += row->cost.bytes;
        str_printf(text, "%-24s %9lld %10.3f %5.1f%%", name, (long long)row->calls, row->seconds, all > 0 ? 100 * row->seconds / all : 0);
        add_number(text, per_second(row->cost.flops, row->seconds), "%10.1f");
        add_number(text, row->cost.bytes * 1e-9, "%10.3f");
        add_number(text, per_second(row->cost.bytes, row->seconds), "%10.2f");
        str_append(text, "\n");
    }
    str_printf(text, "%-24s %9s %10.3f %6s", "all", "", all, "");
    add_number(text, per_second(flops, all), "%10.1f");
    add_number(text, bytes * 1e-9, "%10.3f");
    add_number(text, per_second(bytes, all), "%10.2f");
    free(rows);
}

void profile_end(void) {
    const ProfileRow *rows;
    if (!asked || !profile_running()) return;
    size_t n = profile_rows(&rows);
    if (as_json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        profile_write(&w, "profile", rows, n);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
    } else {
        Str text = {0};
        profile_describe(&text, rows, n);
        show_message("%s", str_text(&text));
        str_release(&text);
    }
    profile_stop();
}
