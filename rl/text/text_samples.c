/* samples.jsonl: what was said and what it earned. */
#include "rl/text/text_run.h"

#include <stdlib.h>
#include <string.h>

/* JSON readers stop at a zero byte, so it is shown as its picture. */
static void write_text(JsonWriter *w, const char *key, const char *text, size_t len) {
    Str shown = {0};
    for (size_t i = 0; i < len; i++) {
        if (text[i]) str_append_char(&shown, text[i]);
        else str_append(&shown, "\xE2\x90\x80");
    }
    jw_string_n(w, key, str_text(&shown), shown.len);
    str_release(&shown);
}

Status text_samples_write(const TextRl *rl, int64_t step) {
    const Experience *e = &rl->experience;
    int64_t every = rl->recipe->rl_samples_every;
    if (every == 0 || (step % every != 0 && step + 1 != rl->total_steps)) return ST_OK;
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
    return status;
}

Status text_samples_cut(const TextRl *rl, int64_t steps) {
    const char *path = run_path(rl->run, "samples.jsonl");
    Str text = {0}, kept = {0};
    if (!path) return ST_RESOURCE;
    if (!file_exists(path)) return ST_OK;
    TRY(file_read(path, (size_t)1 << 32, &text));
    static const char head[] = "{\"step\": ";
    for (const char *line = str_text(&text), *end; (end = strchr(line, '\n')); line = end + 1) /* no sscanf: it measures all that follows */
        if (text_starts_with(line, head) && strtoll(line + strlen(head), NULL, 10) <= steps) str_append_n(&kept, line, (size_t)(end + 1 - line));
    Status status = file_write_all(path, str_text(&kept), kept.len);
    str_release(&text);
    str_release(&kept);
    return status;
}
