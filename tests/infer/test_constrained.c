/* SPDX-License-Identifier: Apache-2.0 */
/* Generation under constraints: a model of random weights says what fits, and its neighbours change nothing. */
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "lib/infer/infer.h"
#include "rl/reward/json_schema.h"

enum { VOCAB = 450, N_SCHEMAS = 3, N_SAMPLES = 4, MOST = 400 };
static const char *const tiny_config =
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"vocab_size\": 450, \"eos_token_id\": 0, \"tie_word_embeddings\": false}";
/* Every text of these ends. */
static const char *const schemas[N_SCHEMAS] = {
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 6}, \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 120}}, "
    "\"required\": [\"name\", \"age\"], \"additionalProperties\": false}",
    "{\"type\": \"array\", \"items\": {\"enum\": [\"red\", \"green\", 7, null]}, \"minItems\": 1, \"maxItems\": 4}",
    "{\"anyOf\": [{\"type\": \"boolean\"}, {\"type\": \"number\", \"minimum\": -1, \"maximum\": 1}]}",
};
static const SampleConfig ways[] = {
    {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
    {.temperature = 1.5, .top_k = 3, .top_p = 0.95, .typical_p = 1, .repetition_penalty = 1.1},
};
static const int32_t prompt_ids[] = {5, 9, 200, 17};
static Model *model;
static Tokenizer *tokenizer;
static TokenBytes *tokens;
static json_t *parsed[N_SCHEMAS];
static Grammar *grammars[N_SCHEMAS];

static int set_up(void **state) {
    (void)state;
    static const char text[] = "{\"name\": \"Ada\", \"age\": 36}\n[\"red\", \"green\", 7, null] true false -0.25";
    const char *end = "<|end|>";
    char dir[256], path[300];
    BpeTrainer *trainer;
    BpeTrained trained;
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 3, 0.25));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(bpe_trainer_new(300, &end, 1, &trainer));
    for (int i = 0; i < 4; i++) check_ok(bpe_trainer_add(trainer, text, strlen(text)));
    check_ok(bpe_trainer_finish(trainer, &trained));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    check_ok(file_write_all(path, str_text(&trained.json), trained.json.len));
    check_ok(tokenizer_load(dir, &tokenizer));
    check_ok(token_bytes_new(tokenizer, &tokens));
    for (int i = 0; i < N_SCHEMAS; i++) {
        check_ok(json_read_text(schemas[i], strlen(schemas[i]), "schema", &parsed[i]));
        check_ok(grammar_json_schema(parsed[i], &grammars[i]));
    }
    temp_dir_remove(dir);
    str_release(&trained.json);
    bpe_trainer_free(trainer);
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    for (int i = 0; i < N_SCHEMAS; i++) {
        grammar_free(grammars[i]);
        json_decref(parsed[i]);
    }
    token_bytes_free(tokens);
    tokenizer_free(tokenizer);
    model_free(model);
    return 0;
}

typedef struct Answers {
    Completion of[N_SCHEMAS + 1][N_SAMPLES];
} Answers;

static Status take_answer(void *context, Completion *c) {
    Answers *answers = context;
    check_ok(c->status);
    answers->of[c->prompt][c->sample] = *c;
    *c = (Completion){0};
    return ST_OK;
}

static GenerateRequest ask_for(int schema, const SampleConfig *sample, Constraint *constraint, Answers *answers) {
    return (GenerateRequest){.prompt = {prompt_ids, COUNT_OF(prompt_ids), (uint64_t)schema},
                             .prompt_index = (size_t)schema,
                             .n_samples = N_SAMPLES,
                             .seed = 5,
                             .sample = *sample,
                             .max_new_tokens = MOST,
                             .constraint = constraint,
                             .on_done = take_answer,
                             .context = answers};
}

static void answers_release(Answers *answers) {
    for (int i = 0; i <= N_SCHEMAS; i++)
        for (int k = 0; k < N_SAMPLES; k++) completion_release(&answers->of[i][k]);
}

static void check_fits(int schema, const Completion *c) {
    json_t *value = json_loads(str_text(&c->text), JSON_DECODE_ANY, NULL);
    if (c->finish != FINISH_STOP || !value || schema_fits(parsed[schema], value) != SCHEMA_FITS)
        fail_msg("%s: '%s' ended with %d", schemas[schema], str_text(&c->text), (int)c->finish);
    json_decref(value);
}

/* Alone, and then all requests at once with one that is free. */
TEST(answers_fit_and_stand_alone) {
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        static Answers alone, among;
        Constraint *constraints[N_SCHEMAS];
        Generator *g;
        GenerateHandle handle;
        for (int i = 0; i < N_SCHEMAS; i++) {
            check_ok(constraint_new(grammars[i], tokens, &constraints[i]));
            check_ok(generator_open(model, tokenizer, &(GeneratorConfig){.max_sequences = 2, .max_pages = 60}, &g));
            GenerateRequest request = ask_for(i, &ways[w], constraints[i], &alone);
            check_ok(generator_add(g, &request, &handle));
            assert_true(handle != 0);
            check_ok(generator_drain(g));
            generator_close(g);
        }
        check_ok(generator_open(model, tokenizer, &(GeneratorConfig){.max_sequences = 20, .max_pages = 320}, &g));
        for (int i = 0; i <= N_SCHEMAS; i++) {
            GenerateRequest request = ask_for(i, &ways[w], i < N_SCHEMAS ? constraints[i] : NULL, &among);
            if (i == N_SCHEMAS) request.max_new_tokens = 30;
            check_ok(generator_add(g, &request, &handle));
            assert_true(handle != 0);
        }
        check_ok(generator_drain(g));
        generator_close(g);
        for (int i = 0; i < N_SCHEMAS; i++) {
            for (int k = 0; k < N_SAMPLES; k++) {
                const Completion *a = &alone.of[i][k], *b = &among.of[i][k];
                check_fits(i, a);
                check_ids("an answer among others", b->ids.data, b->ids.n, a->ids.data, a->ids.n);
                assert_memory_equal(a->logprobs, b->logprobs, a->ids.n * sizeof *a->logprobs);
                assert_memory_equal(a->filtered, b->filtered, a->ids.n * sizeof *a->filtered);
            }
            constraint_free(constraints[i]);
        }
        answers_release(&alone), answers_release(&among);
    }
}

/* A text that may go on ends by the model's choice, one that may not ends at once, one without room is cut. */
TEST(ends_are_told) {
    static const struct {
        const char *pattern;
        int64_t most;
        bool ignore_eos;
        FinishReason finish;
    } cases[] = {
        {"red", 10, false, FINISH_STOP}, {"red", 10, true, FINISH_STOP}, {"(red )*", 8, true, FINISH_LENGTH}, {"[a-z]{50}", 3, false, FINISH_LENGTH}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        static Answers answers;
        Grammar *grammar;
        Constraint *constraint;
        Generator *g;
        GenerateHandle handle;
        check_ok(grammar_regex(cases[i].pattern, strlen(cases[i].pattern), &grammar));
        check_ok(constraint_new(grammar, tokens, &constraint));
        check_ok(generator_open(model, tokenizer, &(GeneratorConfig){.max_sequences = 4, .max_pages = 60}, &g));
        GenerateRequest request = ask_for(0, &ways[1], constraint, &answers);
        request.max_new_tokens = cases[i].most;
        request.ignore_eos = cases[i].ignore_eos;
        check_ok(generator_add(g, &request, &handle));
        check_ok(generator_drain(g));
        generator_close(g);
        for (int k = 0; k < N_SAMPLES; k++) {
            const Completion *c = &answers.of[0][k];
            assert_int_equal(c->finish, cases[i].finish);
            if (cases[i].finish == FINISH_LENGTH)
                assert_int_equal(c->ids.n, cases[i].most);
            else
                assert_string_equal(str_text(&c->text), "red");
        }
        answers_release(&answers);
        constraint_free(constraint);
        grammar_free(grammar);
    }
}

/* An end token is chosen in a text that is complete, and only there; a bias makes it the most likely one everywhere. */
TEST(end_tokens_wait_for_the_end) {
    static Answers answers;
    Grammar *grammar;
    Constraint *constraint;
    Generator *g;
    GenerateHandle handle;
    const TokenBias end = {0, 100};
    check_ok(grammar_regex("(red )+", 7, &grammar));
    check_ok(constraint_new(grammar, tokens, &constraint));
    check_ok(generator_open(model, tokenizer, &(GeneratorConfig){.max_sequences = 4, .max_pages = 60}, &g));
    GenerateRequest request = ask_for(0, &ways[1], constraint, &answers);
    request.sample.bias = &end, request.sample.n_bias = 1;
    check_ok(generator_add(g, &request, &handle));
    check_ok(generator_drain(g));
    for (int k = 0; k < N_SAMPLES; k++) {
        const Completion *c = &answers.of[0][k];
        assert_string_equal(str_text(&c->text), "red ");
        assert_true(c->finish == FINISH_STOP && c->ids.data[c->ids.n - 1] == 0);
    }
    answers_release(&answers);
    request.sample.bias = NULL, request.sample.n_bias = 0;
    generator_close(g);
    check_ok(generator_open(model, NULL, &(GeneratorConfig){.max_sequences = 4, .max_pages = 60}, &g));
    check_status(generator_add(g, &request, &handle), ST_INPUT);
    check_text("a constraint needs a tokenizer");
    generator_close(g);
    constraint_free(constraint);
    grammar_free(grammar);
}

/* What constraints take at most is a part of the plan, and of what is compared with the free memory. */
TEST(constraints_are_planned) {
    GeneratorConfig config = {.max_sequences = 2, .max_pages = 8};
    Generator *g;
    size_t one = constraints_bytes(tokenizer, 1), without = generator_memory(model, &config).total,
           masks = 2 * ((VOCAB + 63) / 64) * sizeof(uint64_t);
    assert_int_equal(constraints_bytes(tokenizer, 0), 0);
    assert_true(one >= CONSTRAINT_BYTES && constraints_bytes(tokenizer, 3) - one >= 2 * (size_t)CONSTRAINT_BYTES);
    config.constraint_bytes = one;
    assert_int_equal(generator_memory(model, &config).total, without + one + masks);
    config.constraint_bytes = (size_t)1 << 50;
    check_status(generator_open(model, tokenizer, &config, &g), ST_RESOURCE);
    check_text("for the forms of answers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_fit_and_stand_alone),
        cmocka_unit_test(ends_are_told),
        cmocka_unit_test(end_tokens_wait_for_the_end),
        cmocka_unit_test(constraints_are_planned),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
