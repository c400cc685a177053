/* A teacher on this machine: all questions go through the generator at once; a choice is made by what each of its texts would cost. */
#include "data/conversation.h"
#include "data/teacher.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICE_TOKENS = 16 }; /* room for the longest choice */

typedef struct Local { Model *model; Tokenizer *tokenizer; Chat *chat; } Local;

static void close(Teacher *teacher) {
    Local *local = teacher->state;
    if (!local) return;
    model_free(local->model);
    tokenizer_free(local->tokenizer);
    chat_close(local->chat);
    free(local);
}

static Status open(Teacher *teacher) {
    const TeacherConfig *c = &teacher->config;
    Local *local = teacher->state = calloc(1, sizeof *local);
    if (!local) return status_errno(ENOMEM, "cannot open '%s'", c->model);
    TRY(model_load(c->model, &(ModelOptions){.device = device_cpu(), .compute = compute_from_text(c->compute ? c->compute : "auto")}, &local->model));
    if (c->adapter) TRY(adapter_load(local->model, c->adapter, false));
    TRY(tokenizer_load_if_any(c->model, &local->tokenizer));
    if (!local->tokenizer) return status_hint(status_fail(ST_INPUT, "the teacher '%s' has no tokenizer", c->model), "it is asked in words");
    TRY(chat_open(c->model, c->chat_template, teacher->options.now, local->tokenizer, &local->chat));
    teacher->chats = chat_has_template(local->chat) && !c->base;
    if (c->max_batch > 0) teacher->width = (size_t)c->max_batch;
    return ST_OK;
}

/* ---- questions as tokens ---- */

static Status encode(const Local *local, const TeacherPrompt *prompt, Ids *ids) {
    if (!prompt->messages && prompt->rendered) return tokenizer_encode(local->tokenizer, prompt->text, strlen(prompt->text), TOKENIZE_PLAIN, ids);
    if (!prompt->messages) return encode_prompt(local->tokenizer, prompt->text, strlen(prompt->text), ids);
    json_t *row = json_pack("{s:O}", "messages", prompt->messages);
    if (!row) return status_fail(ST_RESOURCE, "out of memory for a question");
    Status status = row_question(row, &(DataConfig){.chat = local->chat}, local->tokenizer, ids);
    json_decref(row);
    return status;
}

/* The questions that fit, with their places among all; one that is too long for the model is answered here. */
typedef struct Asked { TeacherPrompt *prompts; Ids *ids; size_t *places, n; OnTeacherAnswer *on_answer; void *context; } Asked;

static Status encode_all(const Local *local, const TeacherPrompt *prompts, size_t n, int64_t room, Asked *asked) {
    int64_t most = local->model->config.max_position_embeddings;
    char why[160];
    for (size_t i = 0; i < n; i++) {
        Ids *ids = &asked->ids[asked->n];
        TRY(encode(local, &prompts[i], ids));
        if (most <= 0 || (int64_t)ids->n + room <= most) {
            asked->prompts[asked->n] = prompts[i];
            asked->places[asked->n++] = i;
            continue;
        }
        snprintf(why, sizeof why, "the question has %zu tokens, its answer up to %lld, and the teacher takes %lld", ids->n, (long long)room, (long long)most);
        ids_clear(ids);
        TRY(asked->on_answer(asked->context, i, &(TeacherAnswer){.text = why, .refused = true, .too_long = true}));
    }
    return ST_OK;
}

/* ---- answers ---- */

static Status hand_over(void *context, const Completion *c) {
    const Asked *asked = context;
    TeacherAnswer answer = {.text = str_text(&c->text), .cut = c->finish == FINISH_LENGTH, .prompt_tokens = (int64_t)asked->ids[c->prompt].n, .tokens = (int64_t)c->ids.n};
    return asked->on_answer(asked->context, asked->places[c->prompt], &answer);
}

static Status generate_answers(const Teacher *teacher, const TeacherSampling *sampling, Asked *asked) {
    const Local *local = teacher->state;
    Prompt *all = calloc(MAX(asked->n, 1), sizeof *all);
    if (!all) return status_errno(ENOMEM, "cannot ask the teacher");
    for (size_t i = 0; i < asked->n; i++) all[i] = (Prompt){asked->ids[i].data, asked->ids[i].n, asked->prompts[i].number};
    int32_t end_of_turn = chat_end_of_turn(local->chat);
    GenerateConfig config = {
        .sample = sampling->sample, .max_new_tokens = sampling->max_new_tokens, .n = 1, .seed = teacher->options.seed, .n_stop = sampling->stop.n, .stop = sampling->stop.items,
        .n_stop_ids = end_of_turn >= 0, .stop_ids = &end_of_turn, .max_batch = teacher->config.max_batch,
    };
    Status status = generate(local->model, local->tokenizer, all, asked->n, &config, NULL, hand_over, asked);
    free(all);
    return status;
}

/* ---- choices ---- */

/* The choice whose tokens are likeliest behind the question; of equal ones the first. */
static Status choose(const Local *local, const TeacherPrompt *prompt, const Ids *question, TeacherAnswer *answer) {
    size_t n = prompt->n_choices, best = 0;
    ScoreRow *rows = calloc(n, sizeof *rows);
    Ids *ids = calloc(n, sizeof *ids);
    double *sums = calloc(n, sizeof *sums), second = -(double)INFINITY;
    Status status = rows && ids && sums ? ST_OK : status_errno(ENOMEM, "cannot compare %zu choices", n);
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        ids_append(&ids[i], question->data, question->n);
        status = tokenizer_encode(local->tokenizer, prompt->choices[i], strlen(prompt->choices[i]), TOKENIZE_LITERAL, &ids[i]);
        rows[i] = (ScoreRow){ids[i].data, ids[i].n, malloc(ids[i].n * sizeof *rows[i].logprobs)};
        if (!rows[i].logprobs) status = status_errno(ENOMEM, "cannot compare %zu choices", n);
        answer->tokens += (int64_t)(ids[i].n - question->n);
    }
    if (status == ST_OK) status = score_rows(local->model, rows, n, NULL, NULL);
    for (size_t i = 0; i < n && status == ST_OK; i++)
        for (size_t t = question->n; t < rows[i].n; t++) sums[i] += rows[i].logprobs[t];
    for (size_t i = 1; i < n && status == ST_OK; i++)
        if (sums[i] > sums[best]) best = i;
    for (size_t i = 0; i < n && status == ST_OK; i++)
        if (i != best) second = fmax(second, sums[i]);
    if (status == ST_OK) answer->text = prompt->choices[best], answer->margin = n > 1 ? sums[best] - second : 0, answer->prompt_tokens = (int64_t)question->n;
    for (size_t i = 0; i < n && rows && ids; i++) free(rows[i].logprobs), ids_release(&ids[i]);
    free(rows);
    free(ids);
    free(sums);
    return status;
}

static Status choose_all(const Local *local, const Asked *asked) {
    for (size_t i = 0; i < asked->n; i++) {
        TeacherAnswer answer = {0};
        TRY(choose(local, &asked->prompts[i], &asked->ids[i], &answer));
        TRY(asked->on_answer(asked->context, asked->places[i], &answer));
    }
    return ST_OK;
}

static Status ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling, OnTeacherAnswer *on_answer, void *context) {
    const Local *local = teacher->state;
    Asked asked = {calloc(n, sizeof *asked.prompts), calloc(n, sizeof *asked.ids), calloc(n, sizeof *asked.places), 0, on_answer, context};
    bool choices = prompts[0].n_choices > 0;
    Status status = asked.prompts && asked.ids && asked.places ? ST_OK : status_errno(ENOMEM, "cannot ask the teacher");
    if (status == ST_OK) status = encode_all(local, prompts, n, choices ? CHOICE_TOKENS : sampling->max_new_tokens, &asked);
    if (status == ST_OK) status = choices ? choose_all(local, &asked) : generate_answers(teacher, sampling, &asked);
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
        return status_hint(ST_INPUT, "what begins a user's turn is taken from it: give synth.teacher.chat_template, or say it in synth.user_turn");
    }
    json_t *plain = json_pack("[{s:s, s:s}]", "role", "user", "content", mark), *messages = NULL;
    ChatRendering rendering = {0};
    Status status = plain ? messages_normalize(plain, system, &messages) : status_fail(ST_RESOURCE, "out of memory for a conversation");
    if (status == ST_OK) status = messages_render(local->chat, messages, json_array_size(messages), NULL, false, &rendering);
    const char *at = status == ST_OK ? strstr(str_text(&rendering.text), mark) : NULL;
    if (status == ST_OK && !at) status = status_fail(ST_INPUT, "the teacher's chat template does not write what the user says as it is");
    if (at) str_append_n(text, rendering.text.data, (size_t)(at - rendering.text.data));
    chat_rendering_release(&rendering);
    json_decref(messages);
    json_decref(plain);
    return status;
}

const TeacherKind teacher_kind_local = {open, close, ask, user_turn};
