/* SPDX-License-Identifier: Apache-2.0 */
/* gkd: learns a teacher's distributions on the policy's own samples. With probability rl.lmbda the policy samples a step's completions; else they
 * are those of the rows, or with rl.seq_kd the teacher's answers. The loss is the mean divergence over their tokens; no gradient passes through
 * sampling. Source: arXiv 2306.13649, algorithm 1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/train/distil_teacher.h"
#include "rl/text/text_run.h"

const TextAlgorithm text_gkd = {.name = "gkd",
                                .help = "a teacher's distributions on the policy's own samples (arXiv 2306.13649)",
                                .taught = true,
                                .keys = "lmbda temperature seq_kd "};

/* ---- the teacher ---- */

/* As other programs count: beta 0 is the forward divergence, 1 the reverse one, and between them lies the generalised Jensen-Shannon divergence. */
static DivergenceArgs gkd_args(const TextRl *rl) {
    const double beta = rl->recipe->rl_beta;
    return (DivergenceArgs){.kind = beta <= 0   ? DIVERGENCE_KL
                                    : beta >= 1 ? DIVERGENCE_REVERSE_KL
                                                : DIVERGENCE_JSD,
                            .temperature = rl->pass.temperature,
                            .alpha = 1,
                            .beta = beta,
                            .softcap = rl->model->logprob.softcap,
                            .teacher_softcap = rl->teacher->logprob.softcap,
                            .scaling = rl->model->logprob.temperature,
                            .teacher_scaling = rl->teacher->logprob.temperature};
}

static bool reads_answers(const Recipe *r) { return r->rl_lmbda < 1 && !r->rl_seq_kd; }

/* The row's completion in tokens, at most generate.max_new_tokens. *ended: with its end token. */
static Status row_answer(const TextRl *rl, const PromptRow *row, Ids *answer, bool *ended) {
    DataConfig config = data_config(rl->recipe, &rl->model->config, rl->chat);
    Ids whole = {0};
    bool ids_given = json_object_get(row->json, "input_ids") || json_object_get(row->json, "ids");
    Status status = row_whole(row->json, &config, rl->tokenizer, &whole);
    if (status == ST_OK && (whole.n <= row->ids.n || memcmp(whole.data, row->ids.data, row->ids.n * sizeof *whole.data) != 0))
        status = status_hint(status_fail(ST_INPUT, "there is no answer after the prompt"),
                             "gkd with rl.lmbda below 1 also learns on the rows' answers: give them, or set rl.lmbda=1 or rl.seq_kd=true");
    size_t n = row->ids.n;
    int32_t eos = rl->tokenizer ? tokenizer_eos(rl->tokenizer) : -1;
    *ended = false;
    for (; status == ST_OK && n < whole.n && !*ended && answer->n < (size_t)rl->recipe->generate_max_new_tokens; n++) {
        ids_push(answer, whole.data[n]);
        *ended = whole.data[n] == eos || (rl->stop_id >= 0 && whole.data[n] == rl->stop_id);
    }
    if (status == ST_OK && !*ended && !ids_given && n == whole.n && eos >= 0 && answer->n < (size_t)rl->recipe->generate_max_new_tokens) {
        ids_push(answer, eos);
        *ended = true;
    }
    ids_release(&whole);
    return status == ST_OK ? ST_OK : status_prefix(status, "'%s' %s %zu", row->file, row->unit, row->line);
}

Status text_gkd_check(const Recipe *recipe, bool taught) {
    static const char *const keys[] = {"distil.loss",  "distil.beta",  "distil.temperature", "distil.times_temperature_squared",
                                       "distil.alpha", "distil.top_k", "distil.hidden",      "distil.attention"};
    if (!taught) TRY(recipe_unread(recipe, "distil.teacher", "leave it out", "does nothing with 'rl.algorithm: %s'", recipe->rl_algorithm));
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        TRY(recipe_unread(recipe, keys[i], "leave it out", "does nothing with 'rl.algorithm: %s'", recipe->rl_algorithm));
    if (!taught || recipe->distil_teacher) return ST_OK;
    return status_hint(status_fail(ST_CONFIG, "'rl.algorithm: %s' needs a teacher", recipe->rl_algorithm), "name it: distil.teacher=DIR");
}

Status text_gkd_open(TextRl *rl) {
    const Recipe *r = rl->recipe;
    TRY(distil_teacher_open(r, rl->comm, rl->tokenizer, rl->model, &rl->teacher));
    rl->taught = gkd_args(rl);
    if (r->rl_seq_kd && r->rl_lmbda < 1) {
        rl->teacher_sampling = generate_memory_new(rl->teacher);
        if (!rl->teacher_sampling) return ST_RESOURCE;
    }
    for (size_t i = 0; reads_answers(r) && i < rl->prompts.n; i++) {
        Ids answer = {0};
        bool ended;
        Status status = row_answer(rl, &rl->prompts.items[i], &answer, &ended);
        ids_release(&answer);
        TRY(status);
    }
    return ST_OK;
}

/* ---- samples ---- */

void text_gkd_begin(TextRl *rl, int64_t step, GenerateConfig *config) {
    const Recipe *r = rl->recipe;
    double draw = rng_uniform(rng_key((uint64_t)r->seed, RNG_SAMPLE, (uint64_t)step), 1);
    rl->step.source = draw < r->rl_lmbda ? GKD_OWN : r->rl_seq_kd ? GKD_TEACHER : GKD_ROWS;
    if (rl->step.source == GKD_ROWS) config->n = 1; /* a row has one answer */
    if (rl->step.source == GKD_TEACHER) config->memory = rl->teacher_sampling;
}

static Status take_answers(TextRl *rl, const PromptRow *const *prompts, size_t n, Experience *e) {
    experience_clear(e, 1);
    for (size_t i = 0; i < n; i++) {
        Ids answer = {0};
        Str text = {0};
        bool ended;
        double *unknown = NULL;
        Status status = row_answer(rl, prompts[i], &answer, &ended);
        if (status == ST_OK && !(unknown = calloc(answer.n, sizeof *unknown))) status = status_fail(ST_RESOURCE, "out of memory for an answer");
        if (status == ST_OK && rl->tokenizer) status = tokenizer_decode(rl->tokenizer, answer.data, answer.n, true, &text);
        if (status == ST_OK) status = experience_open_group(e, prompts[i]);
        if (status == ST_OK)
            status = experience_add(e, &(NewSequence){.ids = answer.data,
                                                      .sampled = unknown,
                                                      .filtered = unknown,
                                                      .n = answer.n,
                                                      .text = {str_text(&text), text.len},
                                                      .ended = ended,
                                                      .reward = (double)NAN});
        free(unknown);
        str_release(&text);
        ids_release(&answer);
        TRY(status);
    }
    return ST_OK;
}

Status text_gkd_sample(TextRl *rl, const PromptRow *const *prompts, size_t n, const GenerateConfig *config, Experience *e) {
    if (rl->step.source == GKD_ROWS) return take_answers(rl, prompts, n, e);
    return text_sample(rl, rl->step.source == GKD_OWN ? rl->model : rl->teacher, prompts, n, 0, config, e);
}

/* ---- learning ---- */

Status text_gkd_pass(TextRl *rl, int64_t first, int64_t n, int64_t total, double *loss) {
    const Experience *e = &rl->step.experience;
    const int64_t begin = e->begin[first], end = e->begin[first + n];
    GkdSums *sums = &rl->step.gkd;
    Divergences d;
    for (int64_t t = begin; t < end; t++) rl->step.gradients[t] = e->trained[t] ? 1 / (double)total : 0;
    rl->taught.upstream = rl->step.gradients + begin;
    TRY(text_pass_taught(&rl->pass, rl->model, rl->teacher, e, first, n, &rl->taught, &d));
    *loss = 0;
    for (int64_t t = begin; t < end; t++) {
        if (!e->trained[t]) continue;
        *loss += tensor_get(d.loss, t - begin) / (double)total;
        sums->divergence += tensor_get(d.divergence, t - begin);
        sums->cross_entropy -= tensor_get(d.logprob, t - begin);
        sums->agreement += tensor_get(d.agreement, t - begin);
        sums->tokens++;
    }
    return tape_backward(rl->pass.tape);
}

void text_gkd_report(const TextRl *rl, Metrics *metrics) {
    const GkdSums *sums = &rl->step.gkd;
    const double n = sums->tokens > 0 ? (double)sums->tokens : (double)NAN;
    metric_set(metrics, "divergence", sums->divergence / n);
    metric_set(metrics, "cross_entropy", sums->cross_entropy / n);
    metric_set(metrics, "agreement", sums->agreement / n);
    metric_count(metrics, "own_samples", rl->step.source == GKD_OWN);
}
