/* SPDX-License-Identifier: Apache-2.0 */
/* A local teacher: all questions go through the generator at once; a choice is made by comparing the log-probabilities of its texts. */
#include "lib/tensor/compute.h"
#include "data/formats/conversation.h"
#include "data/synth/teacher_ranks.h"
#include "lib/model/adapter.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Local {
    Model *model;
    Tokenizer *tokenizer;
    Chat *chat;
    GenerateMemory *memory;
} Local;

static void teacher_local_close(Teacher *teacher) {
    Local *local = teacher->state;
    if (!local) return;
    generate_memory_free(local->memory);
    model_free(local->model);
    tokenizer_free(local->tokenizer);
    chat_close(local->chat);
    free(local);
}

TeacherModel teacher_local_model(const Teacher *teacher) {
    const Local *local = teacher->state;
    return (TeacherModel){teacher->options.comm, teacher->options.number, local->model, local->tokenizer, local->memory};
}

static Status open_template(const Teacher *teacher, Local *local) {
    const TeacherConfig *c = &teacher->config;
    TRY(chat_open(c->model, c->adapter, c->chat_template, teacher->options.now, local->tokenizer, &local->chat));
    json_t *values = teacher_kwargs(c);
    Status status = chat_set_kwargs(local->chat, values, local->tokenizer);
    json_decref(values);
    return status == ST_INPUT ? status_prefix(ST_CONFIG, "'template_kwargs' of '%s'", c->key) : status;
}

static Status teacher_local_open(Teacher *teacher) {
    const TeacherConfig *c = &teacher->config;
    Local *local = teacher->state = calloc(1, sizeof *local);
    if (!local) return status_errno(ENOMEM, "cannot open '%s'", c->model);
    TRY(model_load(c->model,
                   &(ModelOptions){.device = teacher->options.device,
                                   .compute = compute_from_text(c->compute ? c->compute : "auto"),
                                   .comm = teacher->options.comm,
                                   .apart = true}, /* rank 0 may end before it opens a teacher */
                   &local->model));
    if (c->adapter) TRY(adapter_load(local->model, c->adapter, false));
    TRY(tokenizer_load_if_any(c->model, &local->tokenizer));
    if (!local->tokenizer)
        return status_hint(status_fail(ST_INPUT, "the teacher '%s' has no tokenizer", c->model), "a teacher reads and writes text");
    local->memory = generate_memory_new(local->model);
    if (!local->memory) return ST_RESOURCE;
    TRY(open_template(teacher, local));
    teacher->chats = chat_has_template(local->chat) && !c->base;
    teacher->compares = !teacher->options.reads_choices;
    if (c->max_batch > 0) teacher->width = (size_t)c->max_batch;
    const TeacherModel model = teacher_local_model(teacher);
    return comm_rank(model.comm) == 0 ? teacher_deal_check(&model) : ST_OK;
}

/* ---- questions as tokens ---- */

static Status teacher_local_encode(const Local *local, const TeacherPrompt *prompt, Ids *ids) {
    if (!prompt->messages && prompt->rendered) return tokenizer_encode(local->tokenizer, prompt->text, strlen(prompt->text), TOKENIZE_PLAIN, ids);
    if (!prompt->messages) return encode_prompt(local->tokenizer, prompt->text, strlen(prompt->text), ids);
    json_t *row = json_pack("{s:O}", "messages", prompt->messages);
    if (!row) return status_fail(ST_RESOURCE, "out of memory for a question");
    Status status = row_question(row, &(DataConfig){.chat = local->chat}, local->tokenizer, ids);
    json_decref(row);
    return status;
}

/* Selects the questions that fit, with their indices; a question that is too long for the model is refused here. */
typedef struct Asked {
    TeacherPrompt *prompts;
    Ids *ids;
    size_t *places, n;
    OnTeacherAnswer *on_answer;
    void *context;
} Asked;

static Status encode_all(const Local *local, const TeacherPrompt *prompts, size_t n, int64_t room, Asked *asked) {
    int64_t most = local->model->config.max_position_embeddings;
    char why[160];
    for (size_t i = 0; i < n; i++) {
        Ids *ids = &asked->ids[asked->n];
        TRY(teacher_local_encode(local, &prompts[i], ids));
        if (most <= 0 || (int64_t)ids->n + room <= most) {
            asked->prompts[asked->n] = prompts[i];
            asked->places[asked->n++] = i;
            continue;
        }
        snprintf(why, sizeof why, "the question has %zu tokens, its answer up to %lld, but the teacher's context has only %lld", ids->n,
                 (long long)room, (long long)most);
        ids_clear(ids);
        TRY(asked->on_answer(asked->context, i, &(TeacherAnswer){.text = why, .refused = true, .too_long = true, .mean = (double)NAN}));
    }
    return ST_OK;
}

/* ---- answers ---- */

static Status hand_over(void *context, const Completion *c) {
    const Asked *asked = context;
    const TeacherPrompt *prompt = &asked->prompts[c->prompt];
    TeacherAnswer answer = {.text = str_text(&c->text),
                            .cut = c->finish == FINISH_LENGTH,
                            .prompt_tokens = (int64_t)asked->ids[c->prompt].n,
                            .tokens = (int64_t)c->ids.n,
                            .mean = (double)NAN};
    if (prompt->n_choices) answer.text = teacher_choice(answer.text, prompt->choices, prompt->n_choices), answer.cut = false;
    return asked->on_answer(asked->context, asked->places[c->prompt], &answer);
}

static Status generate_answers(const Teacher *teacher, const TeacherSampling *sampling, Asked *asked) {
    const Local *local = teacher->state;
    Prompt *all = calloc(MAX(asked->n, 1), sizeof *all);
    if (!all) return status_errno(ENOMEM, "cannot ask the teacher");
    for (size_t i = 0; i < asked->n; i++) all[i] = (Prompt){asked->ids[i].data, asked->ids[i].n, asked->prompts[i].number};
    int32_t end_of_turn = chat_end_of_turn(local->chat);
    GenerateConfig config = {
        .sample = sampling->sample,
        .max_new_tokens = sampling->max_new_tokens,
        .n = 1,
        .seed = teacher->options.seed,
        .n_stop = sampling->stop.n,
        .stop = sampling->stop.items,
        .n_stop_ids = end_of_turn >= 0,
        .stop_ids = &end_of_turn,
        .max_batch = teacher->config.max_batch,
        .memory = local->memory,
    };
    const TeacherModel model = teacher_local_model(teacher);
    Status status = teacher_deal_prompts(&model, all, asked->n, &config, hand_over, asked);
    free(all);
    return status;
}

/* ---- choices ---- */

/* The choices for each question: tokens of every choice, and the log-probability of each token. Those of the first question come first. */
typedef struct Choices {
    Ids *ids;
    ScoreRow *rows;
    double *sums;
    ScoreStem *stems;
    size_t n;
} Choices;

/* If one choice is a prefix of another, as 1 is of 10, the probability of an answer that begins with it includes the other one. Then the end of the
 * answer is added to each choice. */
static bool any_begins_another(const Ids *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (i != j && ids[i].n <= ids[j].n && memcmp(ids[i].data, ids[j].data, ids[i].n * sizeof *ids[i].data) == 0) return true;
    return false;
}

/* The token that ends an answer: the turn's last token, or for texts the line's end. */
static Status append_end(const Teacher *teacher, Ids *ids) {
    const Local *local = teacher->state;
    int32_t end = chat_end_of_turn(local->chat) >= 0 ? chat_end_of_turn(local->chat) : tokenizer_eos(local->tokenizer);
    if (!teacher->chats || end < 0) return tokenizer_encode(local->tokenizer, "\n", 1, TOKENIZE_LITERAL, ids);
    ids_push(ids, end);
    return ST_OK;
}

static Status encode_choices(const Teacher *teacher, const TeacherPrompt *prompt, Ids *ids) {
    const Local *local = teacher->state;
    for (size_t c = 0; c < prompt->n_choices; c++)
        TRY(tokenizer_encode(local->tokenizer, prompt->choices[c], strlen(prompt->choices[c]), TOKENIZE_LITERAL, &ids[c]));
    bool with_end = any_begins_another(ids, prompt->n_choices);
    for (size_t c = 0; c < prompt->n_choices && with_end; c++) TRY(append_end(teacher, &ids[c]));
    return ST_OK;
}

static Status lay_out_choices(const Teacher *teacher, const Asked *asked, size_t first, size_t n, Choices *choices) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) choices->n += asked->prompts[first + i].n_choices;
    choices->ids = calloc(choices->n, sizeof *choices->ids);
    choices->rows = calloc(choices->n, sizeof *choices->rows);
    choices->stems = calloc(n, sizeof *choices->stems);
    choices->sums = calloc(choices->n, sizeof *choices->sums);
    if (!choices->ids || !choices->rows || !choices->stems || !choices->sums) return status_errno(ENOMEM, "cannot compare %zu choices", choices->n);
    for (size_t i = 0; i < n; at += asked->prompts[first + i++].n_choices) {
        const TeacherPrompt *prompt = &asked->prompts[first + i];
        TRY(encode_choices(teacher, prompt, choices->ids + at));
        for (size_t c = at; c < at + prompt->n_choices; c++) {
            choices->rows[c] = (ScoreRow){choices->ids[c].data, choices->ids[c].n, calloc(choices->ids[c].n, sizeof(double))};
            if (!choices->rows[c].logprobs) return status_errno(ENOMEM, "cannot compare %zu choices", choices->n);
        }
        choices->stems[i] = (ScoreStem){asked->ids[first + i].data, asked->ids[first + i].n, choices->rows + at, prompt->n_choices};
    }
    return ST_OK;
}

static void release_choices(Choices *choices) {
    for (size_t c = 0; c < choices->n && choices->ids && choices->rows; c++) {
        free(choices->rows[c].logprobs);
        ids_release(&choices->ids[c]);
    }
    free(choices->ids);
    free(choices->rows);
    free(choices->stems);
    free(choices->sums);
}

/* The mean by the probabilities among the choices; NaN: one of them is no number. */
static double mean_of(const TeacherPrompt *prompt, const double *sums, double best) {
    double sum = 0, weight = 0;
    for (size_t c = 0; c < prompt->n_choices; c++) {
        char *end;
        double value = strtod(prompt->choices[c], &end);
        if (end == prompt->choices[c] || *end || !isfinite(value)) return (double)NAN;
        sum += exp(sums[c] - best) * value;
        weight += exp(sums[c] - best);
    }
    return sum / weight;
}

/* The choice whose tokens are most likely after the question, all of them together; the first of equals. */
static void teacher_local_choose(const TeacherPrompt *prompt, const ScoreStem *stem, double *sums, TeacherAnswer *answer) {
    size_t best = 0;
    double second = -(double)INFINITY;
    *answer = (TeacherAnswer){.prompt_tokens = (int64_t)stem->n};
    for (size_t c = 0; c < stem->n_branches; c++) {
        sums[c] = 0;
        for (size_t t = 0; t < stem->branches[c].n; t++) sums[c] += stem->branches[c].logprobs[t];
        answer->tokens += (int64_t)stem->branches[c].n;
        if (sums[c] > sums[best]) best = c;
    }
    for (size_t c = 0; c < stem->n_branches; c++)
        if (c != best) second = fmax(second, sums[c]);
    answer->text = prompt->choices[best];
    answer->margin = stem->n_branches > 1 ? sums[best] - second : 0;
    answer->mean = mean_of(prompt, sums, sums[best]);
}

static Status choose_some(const Teacher *teacher, const Asked *asked, size_t first, size_t n) {
    const TeacherModel model = teacher_local_model(teacher);
    Choices choices = {0};
    TeacherAnswer answer;
    Status status = lay_out_choices(teacher, asked, first, n, &choices);
    if (status == ST_OK) status = teacher_deal_branches(&model, choices.stems, n);
    for (size_t i = 0, at = 0; i < n && status == ST_OK; at += asked->prompts[first + i++].n_choices) {
        teacher_local_choose(&asked->prompts[first + i], &choices.stems[i], choices.sums + at, &answer);
        status = asked->on_answer(asked->context, asked->places[first + i], &answer);
    }
    release_choices(&choices);
    return status;
}

static Status choose_all(const Teacher *teacher, const Asked *asked) {
    for (size_t first = 0; first < asked->n; first += teacher->width) TRY(choose_some(teacher, asked, first, MIN(teacher->width, asked->n - first)));
    return ST_OK;
}

/* Upper bound on the tokens of a choice and its end, since each has at least a byte; an answer in words may have text around the choice. */
static TeacherSampling sampling_of_choice(const Teacher *teacher, const TeacherPrompt *prompts, size_t n) {
    TeacherSampling sampling = teacher_sampling();
    size_t most = 0;
    for (size_t i = 0; i < n; i++) most = MAX(most, teacher_choice_bytes(&prompts[i]));
    sampling.sample.greedy = true;
    sampling.max_new_tokens = (int64_t)most + (teacher->compares ? 1 : 16);
    return sampling;
}

static Status teacher_local_ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling, OnTeacherAnswer *on_answer,
                                void *context) {
    const Local *local = teacher->state;
    Asked asked = {calloc(n, sizeof *asked.prompts), calloc(n, sizeof *asked.ids), calloc(n, sizeof *asked.places), 0, on_answer, context};
    bool choices = prompts[0].n_choices > 0;
    TeacherSampling drawn = choices ? sampling_of_choice(teacher, prompts, n) : *sampling;
    Status status = asked.prompts && asked.ids && asked.places ? ST_OK : status_errno(ENOMEM, "cannot ask the teacher");
    if (status == ST_OK) status = encode_all(local, prompts, n, drawn.max_new_tokens, &asked);
    if (status == ST_OK) status = choices && teacher->compares ? choose_all(teacher, &asked) : generate_answers(teacher, &drawn, &asked);
    for (size_t i = 0; i < n && asked.ids; i++) ids_release(&asked.ids[i]);
    free(asked.prompts);
    free(asked.ids);
    free(asked.places);
    return status;
}

/* ---- the user's turn ---- */

static Status user_turn(const Teacher *teacher, const char *system, Str *text) {
    static const char mark[] = "WHAT THE USER SAYS";
    const Local *local = teacher->state;
    if (!chat_has_template(local->chat)) {
        status_fail(ST_INPUT, "the teacher '%s' has no chat template", teacher->config.model);
        return status_hint(ST_INPUT, "the start of a user's turn is needed: set synth.teacher.chat_template or synth.user_turn");
    }
    json_t *plain = json_pack("[{s:s, s:s}]", "role", "user", "content", mark), *messages = NULL;
    ChatRendering rendering = {0};
    Status status = plain ? messages_normalize(plain, NULL, &(DataConfig){.system = system, .chat = local->chat}, &messages)
                          : status_fail(ST_RESOURCE, "out of memory for a conversation");
    if (status == ST_OK) status = messages_render(local->chat, messages, json_array_size(messages), NULL, false, &rendering);
    const char *at = status == ST_OK ? strstr(str_text(&rendering.text), mark) : NULL;
    if (status == ST_OK && !at) status = status_fail(ST_INPUT, "the teacher's chat template changes the user's text");
    if (at) str_append_n(text, rendering.text.data, (size_t)(at - rendering.text.data));
    chat_rendering_release(&rendering);
    json_decref(messages);
    json_decref(plain);
    return status;
}

const TeacherKind teacher_kind_local = {.open = teacher_local_open, .close = teacher_local_close, .ask = teacher_local_ask, .user_turn = user_turn};
