/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a server: they equal those of tune generate and tune score whatever else is served, with adapters too; errors, keys, the cache. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/adapter.h"
#include "tests/support/tiny_server.h"

/* ---- what tune generate answers ---- */

typedef struct Kept {
    Completion of[4];
    size_t n;
} Kept;

static Status keep_completion(void *context, const Completion *c) {
    Kept *kept = context;
    Completion *mine = &kept->of[kept->n++];
    str_append_n(&mine->text, str_text(&c->text), c->text.len);
    ids_append(&mine->ids, c->ids.data, c->ids.n);
    mine->logprobs = malloc(c->ids.n * sizeof(double));
    memcpy(mine->logprobs, c->logprobs, c->ids.n * sizeof(double));
    return ST_OK;
}

static void kept_release(Kept *kept) {
    for (size_t i = 0; i < kept->n; i++) completion_release(&kept->of[i]);
    *kept = (Kept){0};
}

static void generate_here(const Model *with, const Ids *ids, uint64_t seed, double temperature, int64_t max_tokens, int64_t n, Kept *kept) {
    int32_t end = chat_end_of_turn(tiny_chat);
    GenerateConfig config = {.sample = {.temperature = temperature, .top_p = 0.9, .typical_p = 1, .repetition_penalty = 1},
                             .max_new_tokens = max_tokens,
                             .n = n,
                             .seed = seed,
                             .stop_ids = &end,
                             .n_stop_ids = end >= 0};
    *kept = (Kept){0};
    check_ok(generate(with, tiny_tokenizer, &(Prompt){ids->data, ids->n, 0}, 1, &config, NULL, keep_completion, kept));
}

static const char completion_body[] =
    "{\"model\": \"tiny\", \"prompt\": \"12+34=\", \"seed\": 7, \"temperature\": 1.3, \"top_p\": 0.9, \"max_tokens\": 24, \"n\": 2, \"logprobs\": 0}";

/* Texts and log-probabilities of the two answers, to the bit. */
static void check_completion(const HttpAnswer *answer, const Kept *want) {
    assert_int_equal(answer->status, 200);
    for (size_t i = 0; i < 2; i++) {
        const json_t *choice = choice_at(answer, i), *logprobs = json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
        assert_string_equal(json_string_value(json_object_get(choice, "text")), str_text(&want->of[i].text));
        assert_int_equal(json_array_size(logprobs), want->of[i].ids.n);
        for (size_t t = 0; t < want->of[i].ids.n; t++) assert_true(json_number_value(json_array_get(logprobs, t)) == want->of[i].logprobs[t]);
    }
}

static void *disturb(void *context) {
    Str body = {0};
    str_printf(&body, "{\"prompt\": \"%d\", \"max_tokens\": 40, \"ignore_eos\": true, \"stream\": true, \"seed\": %d}", *(int *)context * 37,
               *(int *)context);
    for (int i = 0; i < 3; i++) {
        HttpAnswer answer = tiny_ask("/v1/completions", str_text(&body));
        http_answer_release(&answer);
    }
    str_release(&body);
    return NULL;
}

TEST(an_answer_is_that_of_generate_alone_and_in_company) {
    pthread_t others[8];
    int numbers[8];
    Ids ids = {0};
    Kept want;
    check_ok(encode_prompt(tiny_tokenizer, "12+34=", 6, &ids));
    generate_here(tiny_model, &ids, 7, 1.3, 24, 2, &want);
    tiny_start_usual();
    HttpAnswer answer = tiny_ask("/v1/completions", completion_body);
    check_completion(&answer, &want);
    assert_int_equal(json_integer_value(json_object_get(answer.json, "seed")), 7);
    http_answer_release(&answer);
    for (int i = 0; i < 8; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&others[i], NULL, disturb, &numbers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        answer = tiny_ask("/v1/completions", completion_body);
        check_completion(&answer, &want);
        http_answer_release(&answer);
    }
    for (int i = 0; i < 8; i++) pthread_join(others[i], NULL);
    tiny_stop();
    kept_release(&want);
    ids_release(&ids);
}

/* A GGUF file, directories of other programs, and experts; prompts are ids, since most have no tokenizer. */
TEST(quantised_models_are_served) {
    static const char *const names[] = {"deploy/gguf/qwen2-wide/qwen2-wide.q4_k_m.gguf", "deploy/hfquant/bnb-nf4", "deploy/hfquant/gptq",
                                        "models/qwen3_moe"};
    static const int32_t given[] = {5, 6, 7, 8};
    static const char body[] =
        "{\"prompt\": [5, 6, 7, 8], \"seed\": 7, \"temperature\": 1.3, \"top_p\": 0.9, \"max_tokens\": 24, \"n\": 2, \"logprobs\": 0}";
    char name[128], path[512];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Model *its;
        Kept want = {0};
        snprintf(name, sizeof name, "golden/%s", names[i]);
        if (!shared_path(name, path, sizeof path)) skip();
        check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &its));
        GenerateConfig config = {
            .sample = {.temperature = 1.3, .top_p = 0.9, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = 24, .n = 2, .seed = 7};
        check_ok(generate(its, NULL, &(Prompt){given, COUNT_OF(given), 0}, 1, &config, NULL, keep_completion, &want));
        ServeConfig serves = tiny_config();
        serves.model = its;
        serves.tokenizer = NULL;
        serves.chat = NULL;
        serves.max_context = 64;
        tiny_start(&serves);
        HttpAnswer answer = tiny_ask("/v1/completions", body);
        check_completion(&answer, &want);
        http_answer_release(&answer);
        tiny_stop();
        kept_release(&want);
        model_free(its);
    }
}

/* ---- streams ---- */

/* Joins the texts of a stream's events of one choice. Returns its finish_reason; fails the test where an event is not right. */
static const char *join_events(const Str *stream, int64_t index, bool chats, Str *text, json_t **usage) {
    static char finish[32];
    const char *at = str_text(stream);
    *finish = '\0';
    *usage = NULL;
    for (const char *end; (end = strstr(at, "\n\n")); at = end + 2) {
        if (*at == ':') continue;
        assert_true(text_starts_with(at, "data: "));
        at += strlen("data: ");
        if (text_starts_with(at, "[DONE]")) return finish;
        json_t *event = json_of_text(at, (size_t)(end - at), 0);
        assert_non_null(event);
        const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
        if (!choice) *usage = json_incref(json_object_get(event, "usage"));
        if (choice && json_integer_value(json_object_get(choice, "index")) == index) {
            const json_t *delta = chats ? json_object_get(choice, "delta") : choice;
            const char *piece = json_string_value(json_object_get(delta, chats ? "content" : "text")),
                       *ends = json_string_value(json_object_get(choice, "finish_reason"));
            if (piece) str_append(text, piece);
            if (ends) strncpy(finish, ends, sizeof finish - 1);
        }
        json_decref(event);
    }
    fail_msg("a stream without [DONE]: %s", str_text(stream));
    return finish;
}

static const char chat_fields[] =
    "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"12+34=\"}]}], \"seed\": 3, \"temperature\": 0.9, \"top_p\": 0.9, \"n\": 2";

TEST(a_chat_is_that_of_generate_as_a_whole_and_as_a_stream) {
    Ids ids = {0};
    Kept want;
    Str body = {0}, text = {0};
    json_t *row = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", "12+34="), *usage;
    check_ok(row_question(row, &(DataConfig){.chat = tiny_chat}, tiny_tokenizer, &ids));
    generate_here(tiny_model, &ids, 3, 0.9, 20, 2, &want);
    tiny_start_usual();
    str_printf(&body, "{%s, \"max_tokens\": 20}", chat_fields);
    HttpAnswer answer = tiny_ask("/v1/chat/completions", str_text(&body));
    assert_int_equal(answer.status, 200);
    for (size_t i = 0; i < 2; i++)
        assert_string_equal(json_string_value(json_object_get(json_object_get(choice_at(&answer, i), "message"), "content")),
                            str_text(&want.of[i].text));
    json_t *whole_usage = json_incref(json_object_get(answer.json, "usage"));
    assert_int_equal(json_integer_value(json_object_get(whole_usage, "prompt_tokens")), (int64_t)ids.n);
    assert_int_equal(json_integer_value(json_object_get(whole_usage, "completion_tokens")), (int64_t)(want.of[0].ids.n + want.of[1].ids.n));
    http_answer_release(&answer);
    str_clear(&body);
    str_printf(&body, "{%s, \"max_completion_tokens\": 20, \"stream\": true, \"stream_options\": {\"include_usage\": true}}", chat_fields);
    answer = tiny_ask("/v1/chat/completions", str_text(&body));
    check_contains(str_text(&answer.head), "text/event-stream");
    for (int64_t i = 0; i < 2; i++) {
        str_clear(&text);
        const char *finish = join_events(&answer.body, i, true, &text, &usage);
        assert_string_equal(finish, want.of[i].ids.n == 20 ? "length" : "stop");
        assert_string_equal(str_text(&text), str_text(&want.of[i].text));
        assert_true(json_equal(usage, whole_usage));
        json_decref(usage);
    }
    http_answer_release(&answer);
    tiny_stop();
    json_decref(whole_usage);
    json_decref(row);
    kept_release(&want);
    ids_release(&ids);
    str_release(&body);
    str_release(&text);
}

/* ---- errors ---- */

TEST(errors_name_what_is_wrong) {
    static const struct {
        const char *path, *body;
        int status;
        const char *code, *param;
    } cases[] = {
        {"/v1/chat/completions", "{", 400, "invalid_json", NULL},
        {"/v1/chat/completions", "[1]", 400, NULL, NULL},
        {"/v1/chat/completions", "{\"messages\": []}", 400, "invalid_value", "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"model\": \"x\"}", 404, "model_not_found", "model"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]}]}",
         400, "unsupported_content", "messages"},
        {"/v1/completions", "{\"prompt\": \"a\", \"temperature\": -1}", 400, "invalid_value", "temperature"},
        {"/v1/completions", "{\"prompt\": \"a\", \"n\": 1000}", 400, "invalid_value", "n"},
        {"/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 1.5}", 400, "invalid_value", "max_tokens"},
        {"/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 5000}", 400, "context_length_exceeded", "prompt"},
        {"/v1/completions", "{\"prompt\": \"a\", \"stop\": [\"\"]}", 400, "invalid_value", "stop"},
        {"/v1/completions", "{\"prompt\": \"a\", \"suffix\": \"b\"}", 400, "unsupported_value", "suffix"},
        {"/v1/completions", "{\"prompt\": \"a\", \"stream\": \"yes\"}", 400, "invalid_type", "stream"},
        {"/v1/completions", "{\"prompt\": [0, 99999]}", 400, "invalid_value", "prompt"},
        {"/v1/completions", "{\"prompt\": []}", 400, "invalid_value", "prompt"},
        {"/v1/completions", "{\"prompt\": \"\\u0000\"}", 400, "invalid_json", NULL},
        {"/v1/embeddings", "{\"input\": \"a\", \"dimensions\": 0}", 400, "invalid_value", "dimensions"},
        {"/v1/nothing", "{}", 404, "unknown_url", NULL},
        {"/v1/models", "{}", 405, "method_not_allowed", NULL},
        {"/v1/load_lora_adapter", "{\"lora_name\": \"a\", \"lora_path\": \"../x\"}", 403, "not_allowed", "lora_path"},
    };
    tiny_start_usual();
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_refusal(tiny_ask(cases[i].path, cases[i].body), cases[i].status, cases[i].code, cases[i].param);
    HttpAnswer answer = http_ask(server_port(tiny_server), "GET", "/v1/models/tiny", "", "");
    assert_string_equal(json_string_value(json_object_get(answer.json, "id")), "tiny");
    assert_null(json_object_get(answer.json, "activations_kl")); /* products are exact */
    http_answer_release(&answer);
    check_refusal(http_ask(server_port(tiny_server), "GET", "/v1/models/none", "", ""), 404, "model_not_found", "model");
    check_refusal(http_ask(server_port(tiny_server), "GET", "/v1/models", "Origin: http://evil.example\r\n", ""), 403, "wrong_origin", NULL);
    tiny_stop();
}

TEST(keys_are_asked_for) {
    const ServeKey keys[] = {{"ann", "key-of-ann"}, {"bob", "key-of-bob"}};
    char audit[512];
    ServeConfig config = tiny_config();
    config.keys = keys;
    config.n_keys = 2;
    config.strict = true;
    config.rounds_activations = true;
    config.activations_kl = 0.125;
    snprintf(audit, sizeof audit, "%s", temp_file(test_folder, "audit.jsonl"));
    config.audit = audit;
    tiny_start(&config);
    int port = server_port(tiny_server);
    check_refusal(http_ask(port, "GET", "/v1/models", "", ""), 401, "invalid_api_key", NULL);
    check_refusal(http_ask(port, "GET", "/v1/models", "Authorization: Bearer key-of-an\r\n", ""), 401, "invalid_api_key", NULL);
    check_refusal(http_ask(port, "GET", "/v1/models", "Authorization: Bearer key-of-ann2\r\n", ""), 401, "invalid_api_key", NULL);
    check_refusal(http_ask(port, "POST", "/v1/completions", "Authorization: Bearer key-of-bob\r\n", "{\"prompt\": \"a\", \"tpo_p\": 1}"), 400,
                  "unknown_parameter", "tpo_p");
    HttpAnswer answer = http_ask(port, "GET", "/v1/models/tiny", "Authorization: Bearer key-of-ann\r\n", "");
    check_close(json_number_value(json_object_get(answer.json, "activations_kl")), 0.125, 0);
    http_answer_release(&answer);
    answer = http_ask(port, "POST", "/v1/completions", "Authorization: Bearer key-of-bob\r\n",
                      "{\"prompt\": \"secret words\", \"max_tokens\": 2, \"ignore_eos\": true}");
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
    tiny_stop();
    Str text = {0};
    check_ok(file_read(audit, 1 << 20, &text));
    check_contains(str_text(&text), "\"key\": \"bob\", \"path\": \"/v1/completions\", \"model\": \"tiny\"");
    check_contains(str_text(&text), "\"completion_tokens\": 2, \"status\": 200");
    check_contains(str_text(&text), "\"status\": 401");
    assert_null(strstr(str_text(&text), "secret"));
    str_release(&text);
    config.host = "0.0.0.0";
    config.n_keys = 0;
    check_status(server_open(&config, &tiny_server), ST_USAGE);
    check_text("no key is asked for");
}

TEST(a_port_has_one_server) {
    tiny_start_usual();
    ServeConfig config = tiny_config();
    Server *second;
    config.port = server_port(tiny_server);
    check_status(server_open(&config, &second), ST_INPUT);
    check_text("cannot listen at '127.0.0.1'");
    tiny_stop();
}

/* ---- scores, texts and vectors ---- */

TEST(echo_has_the_scores_of_tune_score) {
    Ids ids = {0};
    double want[32];
    check_ok(encode_prompt(tiny_tokenizer, "12+34=46", 8, &ids));
    assert_true(ids.n <= COUNT_OF(want));
    check_ok(score_rows(tiny_model, &(ScoreRow){ids.data, ids.n, want}, 1, NULL, NULL));
    tiny_start_usual();
    for (int n_top = 0; n_top <= 3; n_top += 3)
        for (int more = 0; more < 2; more++) {
            Str body = {0};
            str_printf(&body, "{\"prompt\": \"12+34=46\", \"echo\": true, \"logprobs\": %d, \"max_tokens\": %d, \"temperature\": 0}", n_top, more);
            HttpAnswer answer = tiny_ask("/v1/completions", str_text(&body));
            assert_int_equal(answer.status, 200);
            const json_t *all = json_object_get(choice_at(&answer, 0), "logprobs"), *logprobs = json_object_get(all, "token_logprobs"),
                         *tops = json_object_get(all, "top_logprobs");
            assert_int_equal(json_array_size(logprobs), ids.n + (size_t)more);
            assert_true(json_is_null(json_array_get(logprobs, 0)) && json_is_null(json_array_get(tops, 0)));
            check_contains(json_string_value(json_object_get(choice_at(&answer, 0), "text")), "12+34=46");
            for (size_t t = 1; t < ids.n; t++) assert_true(json_number_value(json_array_get(logprobs, t)) == want[t]);
            for (size_t t = 1; t < ids.n && n_top > 0; t++) { /* the likeliest of them is the token itself, or likelier */
                const char *key;
                json_t *value;
                double best = -HUGE_VAL;
                json_object_foreach(json_array_get(tops, t), key, value) best = MAX(best, json_number_value(value));
                assert_true(best >= want[t]);
                assert_in_range(json_object_size(json_array_get(tops, t)), 1, n_top + 1);
            }
            http_answer_release(&answer);
            str_release(&body);
        }
    tiny_stop();
    ids_release(&ids);
}

TEST(texts_have_the_scores_of_tune_score) {
    static const int32_t given[] = {5, 6, 7};
    Ids ids = {0};
    double want[2][32];
    check_ok(encode_prompt(tiny_tokenizer, "12+34=46", 8, &ids));
    assert_true(ids.n <= COUNT_OF(want[0]));
    check_ok(score_rows(tiny_model, (ScoreRow[]){{ids.data, ids.n, want[0]}, {given, COUNT_OF(given), want[1]}}, 2, NULL, NULL));
    tiny_start_usual();
    HttpAnswer answer = tiny_ask("/score", "{\"input\": [\"12+34=46\", [5, 6, 7]]}");
    assert_int_equal(answer.status, 200);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(json_object_get(answer.json, "data"), i), *logprobs = json_object_get(row, "logprobs");
        size_t n = i ? COUNT_OF(given) : ids.n;
        double sum = 0;
        assert_int_equal(json_array_size(logprobs), n);
        assert_true(json_is_null(json_array_get(logprobs, 0)));
        for (size_t t = 0; t < n; t++)
            assert_int_equal(json_integer_value(json_array_get(json_object_get(row, "ids"), t)), i ? given[t] : ids.data[t]);
        for (size_t t = 1; t < n; t++) {
            assert_true(json_number_value(json_array_get(logprobs, t)) == want[i][t]);
            sum += want[i][t];
        }
        assert_true(json_number_value(json_object_get(row, "sum")) == sum);
    }
    assert_int_equal(json_integer_value(json_object_get(json_object_get(answer.json, "usage"), "prompt_tokens")), ids.n + COUNT_OF(given));
    http_answer_release(&answer);
    check_refusal(tiny_ask("/v1/score", "{\"input\": [[]]}"), 400, "context_length_exceeded", "input");
    check_refusal(tiny_ask("/v1/score", "{\"input\": [1.5]}"), 400, "invalid_type", "input");
    tiny_stop();
    ids_release(&ids);
}

TEST(the_likeliest_tokens_are_those_of_all_logits) {
    enum { N_TOP = 4 };
    Ids ids = {0};
    double logprobs[32], want[32];
    TokenLogprob top[32 * N_TOP];
    while (ids.n < 30) ids_push(&ids, 5 + (int32_t)ids.n); /* more than are computed at a time */
    ScoreRow row = {ids.data, ids.n, logprobs};
    check_ok(score_top(tiny_model, &row, N_TOP, top));
    check_ok(score_rows(tiny_model, &(ScoreRow){ids.data, ids.n, want}, 1, NULL, NULL));
    assert_true(isnan(logprobs[0]) && top[0].id == -1);
    for (size_t t = 1; t < ids.n; t++) {
        assert_true(logprobs[t] == want[t]);
        for (int k = 1; k < N_TOP; k++) assert_true(top[t * N_TOP + k].logprob <= top[t * N_TOP + k - 1].logprob);
        for (int k = 0; k < N_TOP; k++)
            if (top[t * N_TOP + k].id == ids.data[t]) assert_true(top[t * N_TOP + k].logprob == want[t]);
        assert_true(top[t * N_TOP].logprob >= want[t]);
    }
    ids_release(&ids);
}

TEST(texts_become_tokens_and_vectors) {
    tiny_start_usual();
    HttpAnswer answer = tiny_ask("/tokenize", "{\"prompt\": \"12+34\"}");
    json_t *tokens = json_incref(json_object_get(answer.json, "tokens"));
    assert_int_equal(json_integer_value(json_object_get(answer.json, "count")), json_array_size(tokens));
    http_answer_release(&answer);
    answer = http_ask(server_port(tiny_server), "GET", "/tokenizer_info", "", "");
    assert_string_equal(json_string_value(json_object_get(answer.json, "eos_token")), "<eos>");
    check_contains(json_string_value(json_object_get(answer.json, "chat_template")), "<|im_start|>");
    http_answer_release(&answer);
    char *text = json_dumps(tokens, 0);
    Str body = {0};
    str_printf(&body, "{\"tokens\": %s}", text);
    answer = tiny_ask("/detokenize", str_text(&body));
    check_contains(json_string_value(json_object_get(answer.json, "prompt")), "12+34");
    http_answer_release(&answer);
    answer = tiny_ask("/apply-template", "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}");
    assert_string_equal(json_string_value(json_object_get(answer.json, "prompt")), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    http_answer_release(&answer);
    str_clear(&body);
    str_printf(&body, "{\"input\": [\"12+34\", %s]}", text);
    answer = tiny_ask("/v1/embeddings", str_text(&body));
    const json_t *data = json_object_get(answer.json, "data"), *first = json_object_get(json_array_get(data, 0), "embedding");
    double sum = 0;
    assert_int_equal(json_array_size(first), tiny_model->config.hidden_size);
    assert_true(json_equal(first, json_object_get(json_array_get(data, 1), "embedding")));
    for (size_t i = 0; i < json_array_size(first); i++)
        sum += json_number_value(json_array_get(first, i)) * json_number_value(json_array_get(first, i));
    check_close(sum, 1, 1e-5); /* numbers are f32 */
    http_answer_release(&answer);
    answer = tiny_ask("/v1/embeddings", "{\"input\": \"12+34\", \"encoding_format\": \"base64\", \"dimensions\": 2}");
    assert_int_equal(json_string_length(json_object_get(json_array_get(json_object_get(answer.json, "data"), 0), "embedding")), 12); /* 8 bytes */
    http_answer_release(&answer);
    tiny_stop();
    str_release(&body);
    free(text);
    json_decref(tokens);
}

/* ---- adapters ---- */

/* Larger than trained ones, so that it changes what is said. */
static Model *make_adapter(const char *dir, uint64_t seed) {
    Model *adapter;
    check_ok(model_share_weights(tiny_model, &adapter));
    check_ok(model_attach_lora(adapter, &(LoraConfig){.rank = 4, .alpha = 8}, seed));
    for (size_t i = 0; i < adapter->n_linears; i++) {
        if (!adapter->linears[i]->lora) continue;
        Tensor *b = adapter->linears[i]->lora->b;
        for (int64_t k = 0; k < tensor_count(b); k++) tensor_set(b, k, rng_uniform(rng_key(seed, RNG_TEST, i), (uint64_t)k) - 0.5);
    }
    check_ok(adapter_save(adapter, dir, tiny_dir));
    model_free(adapter);
    check_ok(model_share_weights(tiny_model, &adapter));
    check_ok(adapter_load(adapter, dir, false));
    return adapter;
}

static int load_status(const char *name, const char *path, bool replace) {
    Str body = {0};
    str_printf(&body, "{\"lora_name\": \"%s\", \"lora_path\": \"%s\", \"load_inplace\": %s}", name, path, replace ? "true" : "false");
    HttpAnswer answer = tiny_ask("/v1/load_lora_adapter", str_text(&body));
    int status = answer.status;
    http_answer_release(&answer);
    str_release(&body);
    return status;
}

/* Kernels belong to one thread at a time, so what the server must answer is computed while it does nothing. */
static void want_of(const Model *with, Kept *want) {
    Ids ids = {0};
    check_ok(encode_prompt(tiny_tokenizer, "12+34=", 6, &ids));
    generate_here(with, &ids, 7, 1.3, 24, 2, want);
    ids_release(&ids);
}

static void check_adapter(const char *name, const Kept *want) {
    Str body = {0};
    str_printf(&body, "{\"model\": \"%s\", %s", name, strstr(completion_body, "\"prompt\""));
    HttpAnswer answer = tiny_ask("/v1/completions", str_text(&body));
    check_completion(&answer, want);
    http_answer_release(&answer);
    str_release(&body);
}

/* An answer to the usual question with more fields. */
static void check_with(const char *more, const Kept *want) {
    Str body = {0};
    str_printf(&body, "{%s, %s", more, strstr(completion_body, "\"prompt\""));
    HttpAnswer answer = tiny_ask("/v1/completions", str_text(&body));
    check_completion(&answer, want);
    http_answer_release(&answer);
    str_release(&body);
}

/* llama.cpp's way: adapter 0 has the answers `whole`. */
static void check_scales(const Kept *whole, const Kept *half, const Kept *base) {
    check_with("\"lora\": [{\"id\": 0, \"scale\": 1}]", whole);
    check_with("\"lora\": [{\"id\": 0, \"scale\": 0.5}, {\"id\": 1, \"scale\": 0}]", half);
    check_with("\"lora\": []", base);
    check_refusal(tiny_ask("/v1/completions", "{\"prompt\": \"a\", \"lora\": [{\"id\": 7, \"scale\": 1}]}"), 400, "model_not_found", "lora");
    check_refusal(tiny_ask("/v1/completions", "{\"prompt\": \"a\", \"lora\": [{\"id\": 0, \"scale\": 1}, {\"id\": 1, \"scale\": 1}]}"), 400,
                  "unsupported_value", "lora");
    check_refusal(tiny_ask("/lora-adapters", "[{\"id\": 0}]"), 400, "invalid_value", NULL);
    HttpAnswer answer = tiny_ask("/lora-adapters", "[{\"id\": 0, \"scale\": 0.5}]");
    assert_int_equal(answer.status, 200);
    assert_true(json_number_value(json_object_get(json_array_get(answer.json, 0), "scale")) == 0.5);
    http_answer_release(&answer);
    check_adapter("poet", half);
    answer = tiny_ask("/lora-adapters", "[{\"id\": 0, \"scale\": 1}]");
    http_answer_release(&answer);
    check_adapter("poet", whole);
}

TEST(adapters_are_models_that_come_and_go) {
    char first[512], second[512];
    snprintf(first, sizeof first, "%s", temp_file(test_folder, "first"));
    snprintf(second, sizeof second, "%s", temp_file(test_folder, "second"));
    Model *a = make_adapter(first, 1), *b = make_adapter(second, 2);
    Kept of_a, of_b, of_base, of_half;
    want_of(a, &of_a);
    want_of(b, &of_b);
    want_of(tiny_model, &of_base);
    for (size_t i = 0; i < b->n_linears; i++)
        if (b->linears[i]->lora) b->linears[i]->lora->scale /= 2;
    want_of(b, &of_half);
    ServeConfig config = tiny_config();
    pthread_t others[4];
    int numbers[4];
    config.adapter_dir = test_folder;
    tiny_start(&config);
    assert_int_equal(load_status("poet", "first", false), 200);
    assert_int_equal(load_status("poet", "second", false), 400);
    assert_int_equal(load_status("prose", second, false), 200);
    assert_int_equal(load_status("tiny", "first", true), 400); /* the base's name */
    assert_int_equal(load_status("x", "../first", false), 400);
    assert_int_equal(load_status("x", "first/../../../etc", false), 400);
    assert_int_equal(load_status("x", "/etc", false), 400);
    assert_int_equal(load_status("x y", "first", false), 400);
    for (int i = 0; i < 4; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&others[i], NULL, disturb, &numbers[i]), 0);
    }
    check_adapter("poet", &of_a);
    check_adapter("prose", &of_b);
    check_adapter("tiny", &of_base);
    assert_int_equal(load_status("poet", "second", true), 200);
    check_adapter("poet", &of_b);
    for (int i = 0; i < 4; i++) pthread_join(others[i], NULL);
    check_scales(&of_b, &of_half, &of_base);
    HttpAnswer answer = http_ask(server_port(tiny_server), "GET", "/v1/models", "", "");
    assert_int_equal(json_array_size(json_object_get(answer.json, "data")), 3);
    http_answer_release(&answer);
    answer = tiny_ask("/v1/unload_lora_adapter", "{\"lora_name\": \"poet\"}");
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
    check_refusal(tiny_ask("/v1/completions", "{\"model\": \"poet\", \"prompt\": \"a\"}"), 404, "model_not_found", "model");
    check_refusal(tiny_ask("/v1/unload_lora_adapter", "{\"lora_name\": \"tiny\"}"), 404, "model_not_found", "lora_name");
    tiny_wait_for("tune_adapters_loaded", 1);
    tiny_stop();
    kept_release(&of_a);
    kept_release(&of_b);
    kept_release(&of_base);
    kept_release(&of_half);
    model_free(a);
    model_free(b);
}

/* ---- the cache ---- */

/* The example of the textbooks: a prompt of 4 tokens that may get 1,020 more reserves 1,024 places in one piece, of which 4 are used. */
TEST(pages_waste_less_than_whole_requests) {
    const int32_t ids[4] = {5, 6, 7, 8};
    Generator *generator;
    GenerateHandle handle;
    Kept kept = {0};
    GenerateRequest request = {.prompt = {ids, 4, 0},
                               .n_samples = 1,
                               .sample = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
                               .max_new_tokens = 1020,
                               .ignore_eos = true,
                               .on_done = NULL,
                               .context = &kept};
    check_ok(generator_open(tiny_model, tiny_tokenizer, &(GeneratorConfig){.max_sequences = 1, .max_pages = 33}, &generator));
    check_ok(generator_add(generator, &request, &handle));
    check_ok(generator_step(generator));
    GeneratorStats stats = generator_stats(generator);
    assert_int_equal(stats.longest_tokens, 1024);
    assert_int_equal(stats.cached_tokens, 4); /* so a reservation in one piece would waste 1,020 */
    assert_int_equal(stats.used, 1);
    assert_int_equal(stats.lost_tokens, 28);
    assert_true(generator_cancel(generator, handle));
    assert_int_equal(generator_stats(generator).longest_tokens, 0);
    generator_close(generator);
}

TEST(requests_share_the_beginning_of_prompts) {
    Str body = {0};
    tiny_start_usual();
    str_append(&body, "{\"max_tokens\": 4, \"prompt\": \"");
    for (int i = 0; i < 100; i++) str_printf(&body, "%d ", i % 10);
    str_append(&body, "\"}");
    for (int i = 0; i < 2; i++) {
        HttpAnswer answer = tiny_ask("/v1/completions", str_text(&body));
        assert_int_equal(answer.status, 200);
        http_answer_release(&answer);
    }
    tiny_wait_for("tune_prefix_found_tokens_total", 192); /* of 201 tokens: 6 full pages */
    tiny_stop();
    str_release(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_that_of_generate_alone_and_in_company),
        cmocka_unit_test(quantised_models_are_served),
        cmocka_unit_test(a_chat_is_that_of_generate_as_a_whole_and_as_a_stream),
        cmocka_unit_test(errors_name_what_is_wrong),
        cmocka_unit_test(keys_are_asked_for),
        cmocka_unit_test(a_port_has_one_server),
        cmocka_unit_test(echo_has_the_scores_of_tune_score),
        cmocka_unit_test(texts_have_the_scores_of_tune_score),
        cmocka_unit_test(the_likeliest_tokens_are_those_of_all_logits),
        cmocka_unit_test(texts_become_tokens_and_vectors),
        cmocka_unit_test(adapters_are_models_that_come_and_go),
        cmocka_unit_test(pages_waste_less_than_whole_requests),
        cmocka_unit_test(requests_share_the_beginning_of_prompts),
    };
    return cmocka_run_group_tests(tests, tiny_set_up, tiny_clean_up);
}
