/* SPDX-License-Identifier: Apache-2.0 */
/* The log-probabilities of the tokens of prompts (echo) and of given texts (/score), as tune score computes them. */
#include <math.h>
#include <stdlib.h>

#include "lib/serve/serve_parts.h"

static Status score_prompt(const Model *model, const Ids *ids, int64_t n_top, PromptScores *scores) {
    scores->logprobs = calloc(ids->n, sizeof *scores->logprobs);
    scores->top = n_top > 0 ? calloc(ids->n * (size_t)n_top, sizeof *scores->top) : NULL;
    if (!scores->logprobs || (n_top > 0 && !scores->top)) return status_fail(ST_RESOURCE, "out of memory for the scores of a prompt");
    ScoreRow row = {ids->data, ids->n, scores->logprobs};
    return n_top > 0 ? score_top(model, &row, n_top, scores->top) : score_rows(model, &row, 1, NULL, NULL);
}

Status answer_score(Server *server, Job *job, bool *ended) {
    Answer *answer = job->answer;
    *ended = answer->n_top < 0;
    if (*ended) return ST_OK;
    if (!answer->scores) answer->scores = calloc(answer->n_prompts, sizeof *answer->scores);
    if (!answer->scores) return status_fail(ST_RESOURCE, "out of memory for the scores of prompts");
    size_t i = answer->n_scored++;
    *ended = answer->n_scored == answer->n_prompts;
    return score_prompt(served_weights(server, job->model), &answer->prompts[i], answer->n_top, &answer->scores[i]);
}

/* ---- /score ---- */

/* The fields of a line of tune score. */
static Status write_score(JsonWriter *w, size_t index, const Ids *ids, const double *logprobs) {
    double sum = 0;
    for (size_t i = 1; i < ids->n; i++) {
        if (!isfinite(logprobs[i])) return status_fail(ST_NUMERIC, "text %zu: the log-probability of token %zu is not finite", index + 1, i + 1);
        sum += logprobs[i];
    }
    jw_object(w, NULL);
    jw_string(w, "object", "score");
    jw_int(w, "index", (int64_t)index);
    jw_array(w, "ids");
    for (size_t i = 0; i < ids->n; i++) jw_int(w, NULL, ids->data[i]);
    jw_end_array(w);
    jw_array(w, "logprobs");
    for (size_t i = 0; i < ids->n; i++) jw_double(w, NULL, logprobs[i]); /* NaN, of the first token, is written as null */
    jw_end_array(w);
    jw_double(w, "sum", sum);
    jw_end_object(w);
    return ST_OK;
}

static Status score_next(const Server *server, Job *job) {
    const Ids *ids = &job->ids[job->n_worked];
    PromptScores scores = {0};
    Status status = score_prompt(served_weights(server, job->model), ids, 0, &scores);
    if (status == ST_OK) status = write_score(&job->written, job->n_worked, ids, scores.logprobs);
    free(scores.logprobs);
    return status;
}

static bool score_work(Server *server, Job *job) { return inputs_work(server, job, score_next); }

void handle_score(Exchange *x) {
    json_t *body;
    const char *name = NULL;
    if (!body_read(x, &body)) return;
    ServedModel *model = fields_known(x, body, "model input user") && field_text(x, body, "model", &name) ? served_find(x, name) : NULL;
    Job *job = model ? job_new(x, model) : NULL;
    if (job && read_inputs(x, body, job)) {
        job->work = score_work;
        engine_submit(job);
    } else if (job) {
        job_free(job);
    }
    json_decref(body);
}
