/* SPDX-License-Identifier: Apache-2.0 */
/* See rl_watch.h. */
#include "rl/common/rl_watch.h"

#include "lib/base/file.h"

#include <string.h>

static void watch_warn(Run *run, const char *when, const RlWarning *finding) { run_warn(run, "%s%s; %s", when, finding->text, finding->hint); }

Status rl_watch_resume(RlDoctor *doctor, const Run *run, int64_t done) {
    const char *path = run_path(run, "metrics.jsonl");
    Lines lines;
    Slice line;
    if (!path || done == 0 || !file_exists(path)) return path ? ST_OK : ST_RESOURCE;
    TRY(lines_open(&lines, path));
    while (lines_next(&lines, &line)) {
        json_t *json = NULL;
        if (json_read_text(line.data, line.len, path, &json) == ST_OK) rl_doctor_read(doctor, json);
        json_decref(json);
    }
    return lines_close(&lines);
}

void rl_watch_line(RlDoctor *doctor, Run *run, int64_t step, const Metrics *metrics) {
    RlWarning finding;
    for (size_t i = 0; i < metrics->n; i++)
        if (rl_doctor_add(doctor, step, metrics->items[i].name, metrics->items[i].value, &finding)) watch_warn(run, "", &finding);
}

json_t *rl_watch_end(RlDoctor *doctor, Run *run, int64_t step) {
    json_t *all = json_array();
    RlWarning finding;
    bool silent = rl_doctor_no_signal(doctor, &finding);
    if (silent) {
        watch_warn(run, "at the end: ", &finding);
        json_array_append_new(all, json_string(finding.text));
    }
    for (size_t i = 0; rl_doctor_warning(doctor, i, &finding); i++) {
        bool same =
            silent && (strcmp(finding.rule, "zero_variance") == 0 || strcmp(finding.rule, "untrained") == 0); /* reported by rl_doctor_no_signal */
        if (!finding.holds) continue;
        if (finding.first_step < step && !same) watch_warn(run, "at the end: ", &finding);
        json_array_append_new(all, json_string(finding.text));
    }
    return all;
}
