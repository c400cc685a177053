/* SPDX-License-Identifier: Apache-2.0 */
/* echo: the log-probabilities of the tokens of prompts, as tune score computes them. */
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
