/* SPDX-License-Identifier: Apache-2.0 */
/* Using a model: scoring given tokens, and generating with a paged key/value cache and continuous batching. The same forward pass as training.
 *
 *     GenerateConfig config = {.sample = {.temperature = 0.8, .top_p = 0.9}, .max_new_tokens = 64, .n = 1, .seed = 42};
 *     TRY(generate(model, tokenizer, prompts, n_prompts, &config, on_token, on_done, context));
 */
#ifndef TUNE_INFER_H
#define TUNE_INFER_H

#include "lib/model/model.h"
#include "lib/text/text.h"

/* ---- choosing a token: order and formulas are those of transformers' logits processors; their values: golden/sampling/warpers.json ---- */

typedef struct SampleConfig {
    bool greedy;
    double temperature;                           /* 0 = greedy */
    int64_t top_k;                                /* 0 = off */
    double top_p, min_p;                          /* 1 and 0 = off */
    double typical_p, epsilon_cutoff, eta_cutoff; /* 1, 0, 0 = off */
    double repetition_penalty;                    /* 1 = off; on distinct tokens of prompt and completion */
    double presence_penalty, frequency_penalty;   /* 0 = off; on the completion only */
    int64_t no_repeat_ngram_size;                 /* 0 = off */
} SampleConfig;
typedef struct SampleScratch {
    int32_t *ids;
    double *keys;
} SampleScratch; /* V entries each */
/* Turns `logits` (V) into the final distribution in place (probabilities, zeros where filtered). history: prompt and completion; the completion
 * begins at prompt_length. False: no token is left that may follow, or none has a logit that is a number. */
bool sample_distribution(const SampleConfig *config, double *logits, int64_t vocab, const int32_t *history, size_t n_history, size_t prompt_length,
                         const SampleScratch *scratch);
/* The likeliest token after the penalties, the lowest id of equal ones; -1: none is left, likewise. Changes logits. */
int32_t sample_greedy(const SampleConfig *config, double *logits, int64_t vocab, const int32_t *history, size_t n_history, size_t prompt_length,
                      const SampleScratch *scratch);
bool sample_is_greedy(const SampleConfig *config);
bool sample_is_plain(const SampleConfig *config); /* neither penalties nor filters: by the logits at the temperature alone */
/* The token that a uniform draw u in [0,1) picks: the first whose cumulated probability exceeds u. */
int32_t sample_pick(const double *probabilities, int64_t vocab, double u);

/* ---- generation ---- */

typedef enum FinishReason { FINISH_STOP, FINISH_LENGTH, FINISH_FAILED } FinishReason;
/* number: its row, which keys the random numbers: (seed, number, sample, position) */
typedef struct Prompt {
    const int32_t *ids;
    size_t n;
    uint64_t number;
} Prompt;
typedef uint64_t GenerateHandle; /* of a request in a Generator; never 0 */
typedef struct Completion {
    size_t prompt;         /* the request's `prompt_index`; of generate(): index into prompts */
    GenerateHandle handle; /* of its request */
    int64_t sample;        /* the request's first_sample and the numbers after it; of generate(): 0..n-1 */
    Ids ids;               /* EOS kept */
    double *logprobs;      /* of the chosen tokens under the plain distribution (temperature 1, no filter); ids.n entries */
    /* Under the distribution at the request's temperature, before penalties and filters: what a policy gradient at that temperature calls the policy.
     * Greedy: as logprobs */
    double *tempered;
    double *filtered; /* under the distribution that they were drawn from, after all of these; 0 when greedy */
    Str text;         /* decoded, cut before a stop text; empty without a tokenizer */
    FinishReason finish;
    Status status; /* of FINISH_FAILED: why no token follows; its text and hint are the last ones recorded. generate() hands out no such completion */
} Completion;
void completion_release(Completion *completion); /* what it owns; it is empty then */

/* What a conversation keeps from call to call: keys and values of all that was said, so that only what is new is computed. */
typedef struct Session Session;
Status session_new(const Model *model, int64_t max_tokens, Session **session); /* ST_RESOURCE; max_tokens: prompt and answer at most */
void session_free(Session *session);                                           /* NULL is fine */
int64_t session_max_tokens(const Session *session);                            /* its max_tokens */

/* Memory that a call leaves to the next one: keys and values, and what a step computes. Of new pages the system clears a gigabyte a second. */
typedef struct GenerateMemory GenerateMemory;
GenerateMemory *generate_memory_new(const Model *model); /* NULL: out of memory, recorded as ST_RESOURCE */
void generate_memory_free(GenerateMemory *memory);       /* NULL is fine */

/* What is added to the logits of a step's rows before tokens are chosen by them, in the step's memory: (P, V) f32; NULL after a failure, which is on
 * the tape. Log-probabilities that are recorded stay the model's own. */
typedef Tensor *LogitBias(void *context, Tape *tape, Tensor *hidden, const Tensor *rows);

/* Sees each token as it comes, with the text that became printable. */
typedef Status OnToken(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text);

/* ---- a generator: requests come and go while it runs ----
 *
 *     TRY(generator_open(model, tokenizer, &(GeneratorConfig){.max_sequences = 32, .max_pages = 1024}, &generator));
 *     for (;;) {
 *         while (request = next()) {                                // none: nothing to add
 *             TRY(generator_add(generator, request, &handle));
 *             if (!handle) break;                                   // not now: after a step
 *         }
 *         if (!generator_busy(generator)) break;
 *         TRY(generator_step(generator));                           // calls on_token and on_done
 *     }
 *     generator_close(generator);
 *
 * One thread uses a generator at a time. */
typedef struct Generator Generator;
typedef struct GeneratorConfig {
    int64_t max_sequences; /* that run at a time */
    int64_t max_pages;     /* of keys and values, each of KV_PAGE_SIZE tokens (kv_cache.h); prompts and answers of all that run */
    LogitBias *logit_bias; /* NULL: nothing */
    void *logit_bias_context;
    GenerateMemory *memory; /* of this model, for one generator at a time; NULL: the generator has its own */
    /* NULL, or where keys and values are: max_pages is not read then, and there is one request of one sample at a time */
    Session *session;
} GeneratorConfig;
/* The callbacks may add requests and cancel them. A status other than ST_OK cancels their own request, and generator_step returns it. */
typedef Status OnCompletion(void *context, Completion *completion); /* may take the completion: it copies the struct and leaves an empty one */
/* A prompt, computed once, and the samples that follow it. What it points to is the caller's, and stays until its last completion was handed out, or
 * it was cancelled. */
typedef struct GenerateRequest {
    Prompt prompt;
    size_t prompt_index; /* for callbacks; messages count from 1 */
    int64_t first_sample, n_samples;
    uint64_t seed;
    SampleConfig sample;
    int64_t max_new_tokens;
    size_t n_stop;
    const char *const *stop; /* texts; need a tokenizer */
    size_t n_stop_ids;
    const int32_t *stop_ids; /* tokens that end a completion beside the model's EOS, such as the chat template's end of turn */
    bool ignore_eos;         /* neither of them ends it */
    const Model *adapter;    /* shares the weights of the generator's model (model_share_weights) and has an adapter; NULL: the model itself */
    OnToken *on_token;       /* may be NULL */
    OnCompletion *on_done;
    void *context; /* of both */
} GenerateRequest;
/* An id of the model that the tokenizer does not have is never chosen, as if its logit were -infinity before all filters; `logprobs` and `tempered`
 * are those of the whole vocabulary, as training has them. tokenizer: NULL = no texts. ST_RESOURCE: keys and values take more than half of the memory
 * that is left. */
Status generator_open(const Model *model, const Tokenizer *tokenizer, const GeneratorConfig *config, Generator **generator);
/* *handle 0 and ST_OK: not now, there is no room for it before some of what runs is done. What was admitted always has room until its end.
 * A result is a function of the request alone, of its prompt, seed, number and sample, and not of what else runs. ST_INPUT: empty prompt, unknown id,
 * longer than the model's positions or the session, stop texts without a tokenizer; ST_RESOURCE: there would be no room for it alone. */
Status generator_add(Generator *generator, const GenerateRequest *request, GenerateHandle *handle);
/* Computes the next token of all that runs, and parts of prompts; hands out what is done, in any order. Requests with the same adapter are computed
 * together. Nothing to do is fine. After a failure that is not of a callback it can only be closed. ST_RESOURCE. */
Status generator_step(Generator *generator);
bool generator_busy(const Generator *generator); /* there is something to do */
/* Its samples that are not done are dropped, without a completion. False: there is no such request, or it was done. */
bool generator_cancel(Generator *generator, GenerateHandle handle);
Status generator_drain(Generator *generator);             /* steps until all is done; ST_INTERRUPTED */
void generator_close(Generator *generator);               /* drops what is not done; NULL is fine */
int64_t generator_free_pages(const Generator *generator); /* of keys and values, that nothing is promised */

/* ---- all completions of some prompts, in their order ---- */

typedef struct GenerateConfig {
    SampleConfig sample;
    int64_t max_new_tokens;
    int64_t n; /* completions per prompt */
    uint64_t seed;
    size_t n_stop; /* these as in GenerateRequest */
    const char *const *stop;
    size_t n_stop_ids;
    const int32_t *stop_ids;
    bool ignore_eos;
    int64_t max_batch;     /* sequences at a time; 0 = as many as memory reasonably allows */
    LogitBias *logit_bias; /* these as in GeneratorConfig */
    void *logit_bias_context;
    GenerateMemory *memory;
    Session *session; /* of the one prompt with its one completion, or NULL; it keeps both, also when the call is interrupted */
} GenerateConfig;
/* Runs all prompts through a generator of its own. on_token may be NULL; on_done gets each completion in order of prompts and samples; it may keep
 * nothing of it. Either can end it by returning a status. ST_INPUT: as generator_add, of any of the prompts before the first one runs; ST_RESOURCE;
 * ST_NUMERIC: a logit that is not finite, or no token is left; ST_INTERRUPTED. */
typedef Status OnDone(void *context, const Completion *completion);
Status generate(const Model *model, const Tokenizer *tokenizer, const Prompt *prompts, size_t n_prompts, const GenerateConfig *config,
                OnToken *on_token, OnDone *on_done, void *context);

/* Bytes that generate holds at most for n_prompts prompts of `longest` tokens: cache, activations, logits. */
size_t generate_bytes(const Model *model, size_t n_prompts, size_t longest, const GenerateConfig *config);

/* ---- scoring ---- */

/* Log-probability of each token given those before it. rows: ids; logprobs[i]: n entries, [0] is NaN. logits (may be NULL): called with each row's
 * (n, V) f32. Rows are packed into flat batches; a row's values do not depend on the others. */
typedef struct ScoreRow {
    const int32_t *ids;
    size_t n;
    double *logprobs;
} ScoreRow;
typedef Status OnLogits(void *context, size_t row, const float *logits, int64_t n, int64_t vocab);
Status score_rows(const Model *model, ScoreRow *rows, size_t n_rows, OnLogits *on_logits, void *context);
/* The same of several ways to go on from one text: its tokens are computed once for all of its branches, and logprobs[0] of a branch is the one
 * behind them. */
typedef struct ScoreStem {
    const int32_t *ids;
    size_t n;
    const ScoreRow *branches;
    size_t n_branches;
} ScoreStem;
Status score_branches(const Model *model, const ScoreStem *stems, size_t n_stems);

#endif
