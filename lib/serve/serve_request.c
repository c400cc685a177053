/* SPDX-License-Identifier: Apache-2.0 */
/* From the body of a chat or text completion to a job: fields and their ranges, prompts as tokens, and whether the answer fits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/formats/conversation.h"
#include "lib/base/system.h"
#include "lib/serve/serve_parts.h"

enum { TEXT_TOKENS = 16 /* max_tokens of a text completion without one, as OpenAI's */ };
#define SAMPLING_FIELDS                                                                                                                      \
    "model max_tokens temperature top_p top_k min_p typical_p n stop seed presence_penalty frequency_penalty repetition_penalty logit_bias " \
    "stream stream_options user ignore_eos stop_token_ids lora response_format "                                                             \
    "guided_regex guided_json guided_choice grammar "
static const char chat_fields[] =
    SAMPLING_FIELDS "messages max_completion_tokens logprobs top_logprobs tools tool_choice parallel_tool_calls chat_template_kwargs documents "
                    "reasoning_effort store metadata service_tier safety_identifier prompt_cache_key functions function_call";
static const char text_fields[] = SAMPLING_FIELDS "prompt echo logprobs suffix best_of";

/* ---- prompts ---- */

/* A text of more bytes cannot fit, whatever its tokens are, so it is not tokenized. */
static bool text_may_fit(Exchange *x, size_t len) {
    enum { LONGEST_TOKEN = 256 };
    if (len / LONGEST_TOKEN <= (size_t)x->server->max_context) return true;
    exchange_fail(x, 400, "prompt", "context_length_exceeded", "the prompt of %zu bytes is longer than the context of %lld tokens", len,
                  (long long)x->server->max_context);
    return false;
}

static bool has_tokenizer(Exchange *x) {
    if (x->server->config.tokenizer) return true;
    exchange_fail(x, 400, NULL, "no_tokenizer", "the model has no tokenizer: send token ids");
    return false;
}

bool prompt_of_text(Exchange *x, const char *text, size_t len, bool special, Ids *ids) {
    const Tokenizer *tokenizer = x->server->config.tokenizer;
    if (!has_tokenizer(x) || !text_may_fit(x, len)) return false;
    Status status = special ? encode_prompt(tokenizer, text, len, ids) : tokenizer_encode(tokenizer, text, len, TOKENIZE_PLAIN, ids);
    if (status != ST_OK) exchange_fail_status(x, status);
    return status == ST_OK;
}

bool prompt_of_ids(Exchange *x, const json_t *list, const char *key, Ids *ids) {
    int64_t vocab = x->server->config.model->config.vocab_size;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab) {
            exchange_fail(x, 400, key, "invalid_value", "'%s' must be token ids from 0 to %lld", key, (long long)vocab - 1);
            return false;
        }
        ids_push(ids, (int32_t)json_integer_value(id));
    }
    return true;
}

/* Parts of a message that are no text are refused by their kind. */
static bool parts_are_text(Exchange *x, const json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *content = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; json_is_array(content) && k < json_array_size(content); k++) {
            const json_t *type = json_object_get(json_array_get(content, k), "type");
            const char *kind = json_string_value(type);
            if (!kind || !strcmp(kind, "text")) continue;
            exchange_fail(x, 400, "messages", "unsupported_content", "message %zu has a part of type '%.40s', and this server reads text only", i + 1,
                          kind);
            return false;
        }
    }
    return true;
}

/* What a template may ask for in addition to the messages. */
static json_t *row_of_body(const json_t *body) {
    static const char *const keys[] = {"tools", "functions", "documents", "chat_template_kwargs"};
    json_t *row = json_object();
    for (size_t i = 0; row && i < COUNT_OF(keys); i++) {
        json_t *value = json_object_get(body, keys[i]);
        if (value && !json_is_null(value)) json_object_set(row, keys[i], value);
    }
    return row;
}

static Status render_messages(const Server *server, const json_t *messages, const json_t *row, const Chat *chat, ChatRendering *rendering) {
    DataConfig config = {.system = server->config.system, .chat = chat, .vocab_size = server->config.model->config.vocab_size};
    json_t *normal = NULL;
    TRY(messages_normalize(messages, row, &config, &normal));
    Status status = messages_render(chat, normal, json_array_size(normal), row, true, rendering);
    json_decref(normal);
    return status;
}

bool prompt_of_messages(Exchange *x, const json_t *body, const ServedModel *model, Ids *ids, Str *text) {
    const Server *server = x->server;
    const Chat *chat = served_chat(server, model);
    const json_t *messages = json_object_get(body, "messages"), *kwargs = NULL;
    ChatRendering rendering = {0};
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        exchange_fail(x, 400, "messages", "invalid_value", "'messages' must be a list with a message");
        return false;
    }
    if (!field_object(x, body, "chat_template_kwargs", &kwargs) || !parts_are_text(x, messages) || !has_tokenizer(x)) return false;
    if (!chat_has_template(chat)) {
        exchange_fail(x, 400, "messages", "no_chat_template",
                      "the model has no chat template: use /v1/completions, or start the server with --chat-template");
        return false;
    }
    json_t *row = row_of_body(body);
    Status status = row ? render_messages(server, messages, row, chat, &rendering) : status_fail(ST_RESOURCE, "out of memory");
    json_decref(row);
    bool fits = status != ST_OK || text_may_fit(x, rendering.text.len);
    if (status == ST_OK && fits && ids)
        status = tokenizer_encode_guarded(server->config.tokenizer, str_text(&rendering.text), rendering.text.len, NULL, 0, ids, NULL);
    if (status == ST_OK && text) str_append_n(text, str_text(&rendering.text), rendering.text.len);
    chat_rendering_release(&rendering);
    if (status != ST_OK) exchange_fail_status(x, status);
    return status == ST_OK && fits;
}

static bool one_prompt(Exchange *x, const json_t *value, Answer *answer) {
    size_t i = answer->n_prompts++;
    if (json_is_string(value)) {
        str_append_n(&answer->texts[i], json_string_value(value), json_string_length(value));
        return prompt_of_text(x, json_string_value(value), json_string_length(value), true, &answer->prompts[i]);
    }
    if (json_is_array(value)) return prompt_of_ids(x, value, "prompt", &answer->prompts[i]);
    exchange_fail(x, 400, "prompt", "invalid_type", "'prompt' must be a text, token ids, or a list of these");
    return false;
}

static bool make_room(Exchange *x, Answer *answer, size_t n) {
    answer->prompts = calloc(n, sizeof *answer->prompts);
    answer->texts = calloc(n, sizeof *answer->texts);
    answer->handles = calloc(n, sizeof *answer->handles);
    if (answer->prompts && answer->texts && answer->handles) return true;
    exchange_fail(x, 503, NULL, "out_of_memory", "no memory for %zu prompts", n);
    return false;
}

/* A text, a list of texts, ids, or a list of lists of ids. */
static bool text_prompts(Exchange *x, const json_t *body, Answer *answer) {
    const json_t *prompt = json_object_get(body, "prompt"), *first = json_array_get(prompt, 0);
    bool many = json_is_array(prompt) && !json_is_integer(first);
    size_t n = many ? json_array_size(prompt) : 1;
    if (n == 0 || n > MOST_PROMPTS) {
        exchange_fail(x, 400, "prompt", "invalid_value", "'prompt' must have 1 to %d prompts", MOST_PROMPTS);
        return false;
    }
    if (!make_room(x, answer, n)) return false;
    for (size_t i = 0; i < n; i++)
        if (!one_prompt(x, many ? json_array_get(prompt, i) : prompt, answer)) return false;
    return true;
}

/* ---- sampling ---- */

static bool read_stops(Exchange *x, const json_t *body, Answer *answer) {
    const json_t *stop = json_object_get(body, "stop");
    size_t n = json_is_array(stop) ? json_array_size(stop) : json_is_string(stop) ? 1 : 0;
    bool right = !stop || json_is_null(stop) || json_is_array(stop) || json_is_string(stop);
    if (n == 0 && right) return true;
    answer->stop = calloc(n + 1, sizeof *answer->stop);
    for (size_t i = 0; right && answer->stop && i < n && n <= MOST_STOPS; i++) {
        const char *text = json_string_value(json_is_array(stop) ? json_array_get(stop, i) : stop);
        right = text && *text && (answer->stop[i] = strdup(text));
    }
    if (!right || !answer->stop || n > MOST_STOPS) {
        exchange_fail(x, 400, "stop", "invalid_value", "'stop' must be a text or up to %d texts, none of them empty", MOST_STOPS);
        return false;
    }
    answer->request.stop = (const char *const *)answer->stop;
    answer->request.n_stop = n;
    return true;
}

/* With room for the end of a turn after them. */
static bool read_stop_ids(Exchange *x, const json_t *body, Answer *answer) {
    const json_t *list = json_object_get(body, "stop_token_ids");
    size_t n = json_array_size(list);
    int64_t vocab = x->server->config.model->config.vocab_size;
    bool right = !list || json_is_null(list) || (json_is_array(list) && n <= MOST_STOPS);
    answer->stop_ids = right ? calloc(n + 1, sizeof *answer->stop_ids) : NULL;
    for (size_t i = 0; i < n && answer->stop_ids && right; i++) {
        const json_t *id = json_array_get(list, i);
        right = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < vocab;
        if (right) answer->stop_ids[answer->request.n_stop_ids++] = (int32_t)json_integer_value(id);
    }
    if (right && answer->stop_ids) return true;
    exchange_fail(x, 400, "stop_token_ids", "invalid_value", "'stop_token_ids' must be up to %d token ids from 0 to %lld", MOST_STOPS,
                  (long long)vocab - 1);
    return false;
}

/* A seed may be any 64 bits. Without one, each request gets another one, or the server's. */
static bool read_seed(Exchange *x, const json_t *body, Answer *answer) {
    Server *server = x->server;
    int64_t seed = 0;
    const json_t *given = json_object_get(body, "seed");
    if (given && !json_is_null(given)) {
        if (!field_int(x, body, "seed", INT64_MIN, INT64_MAX, &seed)) return false;
        answer->request.seed = (uint64_t)seed;
        return true;
    }
    pthread_mutex_lock(&server->lock);
    /* below 2^53, so that each client reads it back unchanged */
    answer->request.seed = server->config.seeded ? server->config.seed : mix64(server->seeds + ++server->n_requests) >> 11;
    pthread_mutex_unlock(&server->lock);
    return true;
}

static bool read_sampling(Exchange *x, const json_t *body, Answer *answer) {
    GenerateRequest *request = &answer->request;
    SampleConfig *sample = &request->sample;
    *sample = (SampleConfig){.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    int64_t vocab = x->server->config.model->config.vocab_size;
    bool fine = field_real(x, body, "temperature", 0, 100, &sample->temperature) && field_real(x, body, "top_p", 1e-9, 1, &sample->top_p) &&
                field_real(x, body, "min_p", 0, 1, &sample->min_p) && field_real(x, body, "typical_p", 1e-9, 1, &sample->typical_p) &&
                field_int(x, body, "top_k", -1, vocab, &sample->top_k) &&
                field_real(x, body, "presence_penalty", -100, 100, &sample->presence_penalty) &&
                field_real(x, body, "frequency_penalty", -100, 100, &sample->frequency_penalty) &&
                field_real(x, body, "repetition_penalty", 1e-3, 100, &sample->repetition_penalty) &&
                field_bool(x, body, "ignore_eos", &request->ignore_eos) && field_int(x, body, "n", 1, MOST_SAMPLES, &answer->n) &&
                read_stops(x, body, answer) && read_stop_ids(x, body, answer) && read_seed(x, body, answer) && read_bias(x, body, answer);
    sample->top_k = MAX(sample->top_k, 0); /* -1 is vLLM's word for all */
    return fine;
}

static bool read_stream(Exchange *x, const json_t *body, Answer *answer) {
    const json_t *options = NULL;
    bool fine = field_bool(x, body, "stream", &answer->stream) && field_object(x, body, "stream_options", &options);
    return fine && (!options || field_bool(x, options, "include_usage", &answer->tell_usage));
}

/* ---- does it fit ---- */

static bool check_length(Exchange *x, Answer *answer, int64_t wanted) {
    int64_t most = x->server->max_context, longest = 0, vocab = x->server->config.model->config.vocab_size;
    for (size_t i = 0; i < answer->n_prompts; i++) {
        const Ids *ids = &answer->prompts[i];
        longest = MAX(longest, (int64_t)ids->n);
        answer->prompt_tokens += (int64_t)ids->n;
        if (ids->n == 0) {
            exchange_fail(x, 400, answer->chat ? "messages" : "prompt", "invalid_value", "the prompt is empty");
            return false;
        }
        if (ids_check(ids, vocab) != ST_OK) {
            exchange_fail_status(x, ST_INPUT);
            return false;
        }
    }
    answer->request.max_new_tokens = wanted >= 0 ? wanted : MAX(1, MIN(x->server->config.max_tokens, most - longest));
    if (longest + answer->request.max_new_tokens <= most) return true;
    exchange_fail(x, 400, answer->chat ? "messages" : "prompt", "context_length_exceeded",
                  "the context has %lld tokens; the prompt has %lld, and %lld are asked for", (long long)most, (long long)longest,
                  (long long)answer->request.max_new_tokens);
    return false;
}

/* ---- jobs ---- */

/* What a path answers. */
typedef struct Kind {
    bool chat;
    const char *fields, *id; /* the fields that it knows; how ids of answers begin */
    const Dialect *dialect;
    bool (*to_chat)(Exchange *x, json_t **body); /* NULL: the body is one of a chat or text completion already */
} Kind;
static const Kind kind_chat = {true, chat_fields, "chatcmpl-", &dialect_completions, NULL},
                  kind_text = {false, text_fields, "cmpl-", &dialect_completions, NULL},
                  kind_messages = {true, messages_fields, "msg_", &dialect_messages, chat_of_messages},
                  kind_responses = {true, responses_fields, "resp_", &dialect_responses, chat_of_input};

static Answer *answer_new(Exchange *x, const Kind *kind) {
    Answer *answer = calloc(1, sizeof *answer);
    if (!answer) {
        exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the request");
        return NULL;
    }
    answer->chat = kind->chat;
    answer->dialect = kind->dialect;
    answer->n = 1;
    answer->n_top = -1;
    answer->lora_scale = (double)NAN;
    answer->created = (int64_t)time(NULL);
    answer->queued = clock_seconds();
    answer->end_of_turn = -1;
    return answer;
}

/* Gives the answer to the engine, which owns it then. False: x has failed. */
static bool submit_answer(Exchange *x, ServedModel *model, const Kind *kind, Answer *answer) {
    Server *server = x->server;
    Job *job = NULL;
    answer->n_choices = answer->n_prompts * (size_t)answer->n;
    answer->choices = calloc(answer->n_choices, sizeof *answer->choices);
    if (answer->choices)
        job = job_new(x, model);
    else
        exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the request"), served_leave(server, model);
    if (!job) return false;
    pthread_mutex_lock(&server->lock);
    answer->number = ++server->n_requests;
    pthread_mutex_unlock(&server->lock);
    snprintf(answer->id, sizeof answer->id, "%s%016llx", kind->id, (unsigned long long)mix64(server->seeds ^ answer->number));
    if (served_chat(server, model)) answer->end_of_turn = chat_end_of_turn(served_chat(server, model));
    answer->request.stop_ids = answer->stop_ids;
    if (answer->end_of_turn >= 0) answer->stop_ids[answer->request.n_stop_ids++] = answer->end_of_turn;
    answer->request.n_samples = answer->n;
    answer->request.n_top = MAX(answer->n_top, 0);
    x->prompt_tokens = answer->prompt_tokens;
    job->answer = answer;
    engine_submit(job);
    return true;
}

static bool read_chat(Exchange *x, json_t *body, const ServedModel *model, Answer *answer) {
    int64_t wanted = -1, n_top = 0;
    bool logprobs = false;
    bool fine = read_sampling(x, body, answer) && read_stream(x, body, answer) && field_int(x, body, "max_tokens", 0, 1 << 20, &wanted) &&
                field_int(x, body, "max_completion_tokens", 0, 1 << 20, &wanted) && field_bool(x, body, "logprobs", &logprobs) &&
                field_int(x, body, "top_logprobs", 0, MOST_TOP, &n_top);
    if (!fine || !make_room(x, answer, 1)) return false;
    if (logprobs) answer->n_top = n_top;
    answer->n_prompts = 1;
    answer->splits = x->server->config.splits_reasoning;
    if (!read_tools(x, body, model, answer) || !read_format(x, body, answer) || !read_effort(x, body, model)) return false;
    answer->request.keep_special = answer_is_parsed(answer);
    return prompt_of_messages(x, body, model, &answer->prompts[0], answer_is_parsed(answer) ? &answer->rendered : NULL) &&
           check_length(x, answer, wanted);
}

static bool read_text(Exchange *x, const json_t *body, Answer *answer) {
    int64_t wanted = TEXT_TOKENS, best = 0;
    const char *suffix = "";
    bool fine = read_sampling(x, body, answer) && read_stream(x, body, answer) && field_int(x, body, "max_tokens", 0, 1 << 20, &wanted) &&
                field_bool(x, body, "echo", &answer->echo) && field_int(x, body, "logprobs", 0, MOST_TOP, &answer->n_top) &&
                field_text(x, body, "suffix", &suffix) && field_int(x, body, "best_of", 1, MOST_SAMPLES, &best);
    if (!fine) return false;
    if (*suffix || (best && best != answer->n)) {
        exchange_fail(x, 400, *suffix ? "suffix" : "best_of", "unsupported_value",
                      *suffix ? "this server does not fill in before a 'suffix'" : "'best_of' must be 'n'");
        return false;
    }
    return read_format(x, body, answer) && text_prompts(x, body, answer) && check_length(x, answer, wanted);
}

static void handle_answer(Exchange *x, const Kind *kind) {
    json_t *body;
    const char *name = NULL;
    if (!body_read(x, &body)) return;
    bool known = fields_known(x, body, kind->fields) && (!kind->to_chat || kind->to_chat(x, &body));
    ServedModel *model = known && field_text(x, body, "model", &name) ? served_find(x, name) : NULL;
    Answer *answer = model ? answer_new(x, kind) : NULL;
    bool fine =
        answer && read_lora(x, body, &model, &answer->lora_scale) && (kind->chat ? read_chat(x, body, model, answer) : read_text(x, body, answer));
    json_decref(body);
    if (!fine) served_leave(x->server, model);
    if (!fine || !submit_answer(x, model, kind, answer)) answer_release(x->server, answer);
}

void handle_chat(Exchange *x) { handle_answer(x, &kind_chat); }
void handle_completions(Exchange *x) { handle_answer(x, &kind_text); }
void handle_messages(Exchange *x) { handle_answer(x, &kind_messages); }
void handle_responses(Exchange *x) { handle_answer(x, &kind_responses); }
