/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as every file of a run directory: the page is made, and nothing of them gets out of their place in it. */
#include "lib/run/report_parts.h"
#include "rl/common/rl_doctor.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static char folder[256];

static void remove_folder(void) { temp_dir_remove(folder); }

static size_t count_of(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

static void fuzz_report_put(const char *name, const uint8_t *bytes, size_t len) {
    FILE *file = fopen(temp_file(folder, name), "wb");
    ASSERT(file && fwrite(bytes, 1, len, file) == len && fclose(file) == 0, "cannot write '%s'", name);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static const char *const files[] = {"metrics.jsonl", "started.json", "finished.json", "samples.jsonl", "recipe.yaml", "log.txt"};
    RunRecord runs[2];
    if (!folder[0]) {
        temp_dir_make(folder, sizeof folder);
        atexit(remove_folder);
    }
    for (size_t i = 0; i < COUNT_OF(files); i++) fuzz_report_put(files[i], bytes, len);
    for (int n = 1; n <= 2; n++) {
        Str page = {0};
        for (int i = 0; i < n; i++) {
            Status status = record_read(folder, &rl_report_reader, &runs[i]);
            ASSERT(status == ST_OK, "%s", status_text());
        }
        report_page(runs, (size_t)n, &page);
        ASSERT(strlen(str_text(&page)) == page.len, "a zero byte on the page");
        ASSERT(count_of(str_text(&page), "<script") == 1 && count_of(str_text(&page), "</script") == 1 && count_of(str_text(&page), "<style") == 1,
               "text became markup");
        ASSERT(utf8_whole_prefix(str_text(&page), page.len) == page.len, "half a character at the end");
        for (int i = 0; i < n; i++) record_release(&runs[i]);
        str_release(&page);
    }
    return 0;
}
