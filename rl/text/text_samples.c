/* SPDX-License-Identifier: Apache-2.0 */
/* samples.jsonl: completions and their rewards. */
#include "rl/text/text_run.h"

#include "lib/run/run_parts.h"

/* Some JSON readers stop at a zero byte, so it is written as its symbol. */
static void write_text(JsonWriter *w, const char *key, const char *text, size_t len) {
    Str shown = {0};
    for (size_t i = 0; i < len; i++) {
        if (text[i])
            str_append_char(&shown, text[i]);
        else
            str_append(&shown, "\xE2\x90\x80");
    }
    jw_string_n(w, key, str_text(&shown), shown.len);
    str_release(&shown);
}

/* Flushed to disk before the checkpoint that relies on it. */
static Status text_samples_measure(TextRl *rl) {
    uint64_t bytes;
    TRY(file_sync_size(run_path(rl->run, "samples.jsonl"), &bytes));
    rl->step.next_samples_bytes = (int64_t)bytes;
    return ST_OK;
}

Status text_samples_write(TextRl *rl, int64_t step) {
    const Experience *e = &rl->step.experience;
    int64_t every = rl->recipe->rl_samples_every;
    rl->step.next_samples_bytes = rl->counts.samples_bytes;
    if (every == 0 || !run_writes(rl->run) || (step % every != 0 && step + 1 != rl->total_steps)) return ST_OK;
    Str lines = {0};
    for (int64_t i = 0; i < MIN(e->n, 2 * e->group_size); i++) {
        JsonWriter w = {0};
        Slice prompt = text_prompt(e->prompts[i / e->group_size]);
        jw_object(&w, NULL);
        jw_int(&w, "step", step + 1);
        write_text(&w, "prompt", prompt.data, prompt.len);
        write_text(&w, "completion", str_text(&e->texts[i]), e->texts[i].len);
        jw_double(&w, "reward", e->rewards[i]);
        jw_double(&w, "advantage", e->advantages[e->begin[i]]);
        jw_string(&w, "finish_reason", e->ended[i] ? "stop" : "length");
        jw_end_object(&w);
        str_append_n(&lines, str_text(&w.text), w.text.len);
        str_append_char(&lines, '\n');
        jw_release(&w);
    }
    Status status = file_append(run_path(rl->run, "samples.jsonl"), str_text(&lines), lines.len);
    str_release(&lines);
    return status == ST_OK ? text_samples_measure(rl) : status;
}

Status text_samples_cut(TextRl *rl) {
    const char *path = run_path(rl->run, "samples.jsonl");
    uint64_t there, then = (uint64_t)MAX(rl->counts.samples_bytes, 0);
    if (!run_writes(rl->run)) return ST_OK;
    if (!path) return ST_RESOURCE;
    TRY(file_sync_size(path, &there));
    if (there > then) return file_truncate(path, then);
    if (there < then)
        run_warn(rl->run, "'%s' has %llu bytes but had %llu at the checkpoint: some samples from before it are lost", path, (unsigned long long)there,
                 (unsigned long long)then);
    rl->counts.samples_bytes = (int64_t)there;
    return ST_OK;
}
