/* SPDX-License-Identifier: Apache-2.0 */
/* Running a model: scores given tokens, and generates with a paged key/value cache and continuous batching. Uses the same forward pass as training.
 *
 *     GenerateConfig config = {.sample = {.temperature = 0.8, .top_p = 0.9}, .max_new_tokens = 64, .n = 1, .seed = 42};
 *     TRY(generate(model, tokenizer, prompts, n_prompts, &config, on_token, on_done, context));
 */
#ifndef TUNE_INFER_H
#define TUNE_INFER_H

#include "lib/grammar/grammar.h"
#include "lib/model/model.h"
#include "lib/text/text.h"

/* ---- choosing a token: order and formulas of transformers' logits processors; reference values: golden/sampling/warpers.json ---- */

typedef struct TokenBias {
    int32_t id;
    double bias; /* added to the logit of the token before everything else; -infinity: never chosen */
} TokenBias;
typedef struct SampleConfig {
    bool greedy;
    double temperature;                           /* 0 = greedy */
    int64_t top_k;                                /* 0 = off */
    double top_p, min_p;                          /* 1 and 0 = off */
    double typical_p, epsilon_cutoff, eta_cutoff; /* 1, 0, 0 = off */
    double repetition_penalty;                    /* 1 = off; applies to distinct tokens of prompt and completion */
    double presence_penalty, frequency_penalty;   /* 0 = off; apply to the completion only */
    int64_t no_repeat_ngram_size;                 /* 0 = off */
    const TokenBias *bias;                        /* n_bias entries, borrowed; ids of the vocabulary */
    size_t n_bias;
} SampleConfig;
/* Memory that the functions below write to, allocated by the caller: V entries each. */
typedef struct SampleScratch {
    int32_t *ids;
    double *keys;
} SampleScratch;
/* Turns `logits` (V) into the final distribution in place (probabilities, zeros where filtered). history: prompt and completion; the completion
 * begins at prompt_length. False: no token may follow, or no logit is a number. */
bool sample_distribution(const SampleConfig *config, double *logits, int64_t vocab, const int32_t *history, size_t n_history, size_t prompt_length,
                         const SampleScratch *scratch);
/* The most likely token after the penalties; the lowest id among equals. -1 in the cases where sample_distribution is false. Changes logits. */
int32_t sample_greedy(const SampleConfig *config, double *logits, int64_t vocab, const int32_t *history, size_t n_history, size_t prompt_length,
                      const SampleScratch *scratch);
bool sample_is_greedy(const SampleConfig *config);
bool sample_is_plain(const SampleConfig *config); /* no biases, penalties and filters: only the logits and the temperature matter */
/* The token for a uniform draw u in [0,1): the first whose cumulative probability exceeds u. */
int32_t sample_pick(const double *probabilities, int64_t vocab, double u);

/* ---- generation ---- */

typedef enum FinishReason {
    FINISH_STOP,   /* EOS, one of stop_ids, or a stop text */
    FINISH_LENGTH, /* max_new_tokens */
    FINISH_FAILED  /* no token can follow: Completion.status */
} FinishReason;
typedef struct Prompt {
    const int32_t *ids;
    size_t n;
    uint64_t number; /* the row's number, which keys the random numbers: (seed, number, sample, position) */
} Prompt;
/* One of the most likely tokens of the plain distribution (temperature 1, no penalty, no filter, no constraint). */
typedef struct TokenLogprob {
    int32_t id;
    double logprob;
} TokenLogprob;
typedef uint64_t GenerateHandle; /* of a request in a Generator; never 0 */
typedef struct Completion {
    size_t prompt;         /* the request's `prompt_index`; of generate(): index into prompts */
    GenerateHandle handle; /* of its request */
    int64_t sample;        /* the request's first_sample and the numbers after it; of generate(): 0..n-1 */
    Ids ids;               /* with EOS */
    double *logprobs;      /* of the chosen tokens under the plain distribution (temperature 1, no filter); ids.n entries */
    /* Of the chosen tokens under the distribution at the request's temperature, before penalties and filters: the policy of a policy gradient at
     * that temperature. Greedy: the same as logprobs. */
    double *tempered;
    double *filtered; /* of the chosen tokens under the final distribution, from which they were drawn; 0 when greedy */
    /* With n_top: at each of the ids.n positions the n_top most likely tokens of the tokenizer, in order; of equal ones the lower id comes first.
     * NULL: none were asked for */
    TokenLogprob *top;
    Str text; /* decoded, cut before a stop text; empty without a tokenizer */
    FinishReason finish;
    Status status; /* of FINISH_FAILED: why no token follows; its text and hint are the last ones recorded. generate() returns the status instead */
} Completion;
void completion_release(Completion *completion); /* frees what it owns and leaves it empty */

/* The state of a conversation between calls: keys and values of all earlier tokens, so that only new tokens are computed. One generator or generate()
 * at a time uses it. */
typedef struct Session Session;
Status session_new(const Model *model, int64_t max_tokens, Session **session); /* max_tokens: limit on prompt and answer together. ST_RESOURCE */
void session_free(Session *session);                                           /* NULL is fine */
int64_t session_max_tokens(const Session *session);                            /* as given to session_new */

/* Memory of keys and values and of a step's activations that one call of generate() or one generator after the other uses. It saves time, because the
 * system clears new pages at about a gigabyte a second. */
typedef struct GenerateMemory GenerateMemory;
GenerateMemory *generate_memory_new(const Model *model); /* NULL: out of memory, recorded as ST_RESOURCE */
void generate_memory_free(GenerateMemory *memory);       /* NULL is fine */

/* Returns values to add to the logits of a step's rows before tokens are chosen: (P, V) f32 in the step's memory; NULL after a failure, which the
 * tape records. Recorded log-probabilities remain those of the model alone. */
typedef Tensor *LogitBias(void *context, Tape *tape, Tensor *hidden, const Tensor *rows);

/* Gets each token as it is chosen, with the text that became printable. */
typedef Status OnToken(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text);

/* ---- a generator: requests come and go while it runs ----
 *
 *     TRY(generator_open(model, tokenizer, &(GeneratorConfig){.max_sequences = 32, .max_pages = 1024}, &generator));
 *     for (;;) {
 *         while (request = next()) {                                // NULL: nothing to add
 *             TRY(generator_add(generator, request, &handle));
 *             if (!handle) break;                                   // no room now: try again after a step
 *         }
 *         if (!generator_busy(generator)) break;
 *         TRY(generator_step(generator));                           // calls on_token and on_done
 *     }
 *     generator_close(generator);
 *
 * One thread uses a generator at a time. */
typedef struct Generator Generator;
typedef struct GeneratorConfig {
    int64_t max_sequences; /* maximum number of running samples */
    int64_t max_pages;     /* of keys and values, each of KV_PAGE_SIZE tokens (kv_cache.h); for prompts and answers of all running requests */
    LogitBias *logit_bias; /* NULL: nothing */
    void *logit_bias_context;
    GenerateMemory *memory; /* of this model, for one generator at a time; NULL: the generator has its own */
    /* NULL, or a session, whose keys and values are used and kept: then max_pages is not read, and one request of one sample runs at a time */
    Session *session;
    /* Requests that begin with the same tokens and have the same adapter share the pages of these tokens while they run. true: pages of prompts and
     * answers also stay for requests to come, until their memory is needed, the least recently used ones first. The results are the same. */
    bool keep_prefixes;
    /* the adapters that requests may name, for the plan of memory; others may come too */
    const Model *const *adapters;
    size_t n_adapters;
    size_t constraint_bytes; /* for the plan of memory: constraints_bytes of those that requests have at a time; 0: none */
} GeneratorConfig;
/* Bytes that a generator takes at most, computed from shapes. total: all of them; with the memory of the process before the model was loaded, it is
 * the largest resident size. */
typedef struct GeneratorMemory {
    size_t weights;     /* of the model and the adapters, as they are stored */
    size_t packed;      /* packed copies of weights for products */
    size_t cache;       /* keys and values */
    size_t step;        /* activations and logits of the largest step */
    size_t scratch;     /* scratch memory of kernels, beyond what they have already */
    size_t tables;      /* tables of requests, and memory for choosing tokens */
    size_t constraints; /* GeneratorConfig.constraint_bytes, and the tokens that each sequence may choose */
    size_t total;
} GeneratorMemory;
/* The model's weights need not be in memory: a model that was loaded with ModelOptions.streamed and skip_nan_check is enough. */
GeneratorMemory generator_memory(const Model *model, const GeneratorConfig *config);
/* The callbacks may add requests and cancel them. A status other than ST_OK cancels their own request, and generator_step returns it. */
typedef Status OnCompletion(void *context, Completion *completion); /* may keep the completion: copy the struct and leave an empty one */
/* A prompt, computed once, and the samples that follow it. The caller owns what it points to, and keeps it until the last completion was handed out
 * or the request was cancelled. */
typedef struct GenerateRequest {
    Prompt prompt;
    size_t prompt_index; /* for callbacks; messages count from 1 */
    int64_t first_sample, n_samples;
    uint64_t seed;
    SampleConfig sample;
    int64_t max_new_tokens;
    size_t n_stop;
    const char *const *stop; /* stop texts; they need a tokenizer */
    size_t n_stop_ids;
    const int32_t *stop_ids; /* tokens that end a completion in addition to the model's EOS, such as the chat template's end of turn */
    bool ignore_eos;         /* neither EOS nor stop_ids end a completion */
    bool keep_special;       /* texts have special tokens, except the one that ends the completion */
    int64_t n_top;           /* of Completion.top, 0 to 20 */
    /* NULL, or what the text follows; needs a tokenizer, that of its TokenBytes. Its tokens are allowed before all filters. The completion ends with
     * FINISH_STOP when nothing can follow, with or without EOS; EOS and stop_ids are allowed when the text is complete. Several requests may have
     * the same constraint. Its memory is its owner's; GeneratorConfig.constraint_bytes counts it. */
    Constraint *constraint;
    const Model *adapter; /* shares the weights of the generator's model (model_share_weights) and has an adapter; NULL: the model itself */
    OnToken *on_token;    /* may be NULL */
    OnCompletion *on_done;
    void *context; /* of both */
} GenerateRequest;
/* An id that the model has and the tokenizer lacks is never chosen, as if its logit were -infinity before all filters; `logprobs` and `tempered` are
 * over the full vocabulary, as in training. tokenizer: NULL = no texts. ST_RESOURCE, with figures: keys and values would take more than half of the
 * free memory, or all parts together more than it. */
Status generator_open(const Model *model, const Tokenizer *tokenizer, const GeneratorConfig *config, Generator **generator);
/* Adds a request. *handle 0 with ST_OK: there is no room before a running request ends. An admitted request has room until its end.
 * Its results depend on its prompt, seed, number and sample alone, not on other requests. ST_INPUT: empty prompt, unknown id, longer than the model's
 * positions or the session, stop texts or a constraint without a tokenizer, a bias of an unknown id, a constraint that no token can begin;
 * ST_RESOURCE: there would be no room for it even alone. */
Status generator_add(Generator *generator, const GenerateRequest *request, GenerateHandle *handle);
/* Computes the next token of every running sample, and parts of waiting prompts; hands out finished completions, in any order. All requests are
 * computed together, whatever their adapters; only those of an adapter with full weights of its own (modules_to_save) are computed apart. Does
 * nothing when nothing runs. After a failure outside callbacks the generator can only be closed. ST_RESOURCE. */
Status generator_step(Generator *generator);
bool generator_busy(const Generator *generator); /* a request runs or waits */
/* Drops the unfinished samples of a request without a completion. False: there is no such request, or it is finished. */
bool generator_cancel(Generator *generator, GenerateHandle handle);
Status generator_drain(Generator *generator);             /* steps until all requests are finished; ST_INTERRUPTED */
void generator_close(Generator *generator);               /* drops unfinished requests; NULL is fine */
int64_t generator_free_pages(const Generator *generator); /* pages of keys and values that no request has reserved */
/* Forgets the kept pages of an adapter (or of the generator's model), before its weights change or it is freed. No request may use it. */
void generator_forget(Generator *generator, const Model *adapter);
/* While on_token runs: the n_top most likely tokens at the position of the token, as Completion.top has them. */
const TokenLogprob *generator_top(const Generator *generator);
/* What a generator holds now. Pages are those of keys and values, each of KV_PAGE_SIZE tokens. */
typedef struct GeneratorStats {
    int64_t running, waiting;            /* samples; prompts whose samples have not all begun */
    int64_t pages;                       /* all pages of the cache */
    int64_t used;                        /* pages that requests use */
    int64_t reserved;                    /* pages that requests use or will need until their end */
    int64_t shared;                      /* pages that several requests use */
    int64_t kept;                        /* pages of earlier requests, kept until their memory is needed (keep_prefixes) */
    int64_t lost_tokens;                 /* places after the last tokens in the last pages of requests */
    int64_t cached_tokens;               /* tokens of running samples and waiting prompts that are in the cache */
    int64_t longest_tokens;              /* the same at their full length, with max_new_tokens: what a reservation in one piece would take */
    int64_t prompt_tokens, found_tokens; /* since it was opened: tokens of admitted prompts; those of them that were in shared or kept pages */
} GeneratorStats;
GeneratorStats generator_stats(const Generator *generator);

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
    int64_t n_top;
    Constraint *constraint;
    int64_t max_batch;     /* sequences at a time; 0 = as many as memory reasonably allows */
    LogitBias *logit_bias; /* these as in GeneratorConfig */
    void *logit_bias_context;
    GenerateMemory *memory;
    Session *session; /* NULL, or the session of a single prompt with a single completion; it keeps both, also when the call is interrupted */
} GenerateConfig;
/* Gets each completion in order of prompts and samples, valid only during the call. */
typedef Status OnDone(void *context, const Completion *completion);
/* Runs all prompts through a generator of its own. on_token may be NULL. It and on_done can end the generation by returning a status. ST_INPUT: as
 * generator_add; all prompts are checked before the first one runs. ST_RESOURCE; ST_NUMERIC: a logit is not finite, or no token is left;
 * ST_INTERRUPTED. */
Status generate(const Model *model, const Tokenizer *tokenizer, const Prompt *prompts, size_t n_prompts, const GenerateConfig *config,
                OnToken *on_token, OnDone *on_done, void *context);

/* A configuration for sequences of at most `longest` tokens with their answers: as many at a time as generate() runs of n_sequences, and pages for
 * all of them, as far as there is memory. Its other fields are those of `config`. */
GeneratorConfig generator_size(const Model *model, int64_t n_sequences, int64_t longest, const GenerateConfig *config);

/* Peak bytes that generate needs for n_prompts prompts of at most `longest` tokens: cache, activations, logits. */
size_t generate_bytes(const Model *model, size_t n_prompts, size_t longest, const GenerateConfig *config);

/* ---- scoring ---- */

typedef struct ScoreRow {
    const int32_t *ids; /* n tokens, at least one */
    size_t n;
    double *logprobs; /* (n): allocated by the caller, written */
} ScoreRow;
/* Gets the logits (n, vocab) of a row, valid only during the call. A status other than ST_OK ends the scoring. */
typedef Status OnLogits(void *context, size_t row, const float *logits, int64_t n, int64_t vocab);
/* Computes the log-probability of each token given the tokens before it; logprobs[0] is NaN. on_logits may be NULL. Rows are packed into flat
 * batches; a row's values do not depend on the others. ST_INPUT: a row without tokens, an unknown id; ST_RESOURCE; ST_INTERRUPTED. */
Status score_rows(const Model *model, ScoreRow *rows, size_t n_rows, OnLogits *on_logits, void *context);
/* Several continuations (branches) of the same text, the stem. */
typedef struct ScoreStem {
    const int32_t *ids; /* n tokens */
    size_t n;
    const ScoreRow *branches;
    size_t n_branches;
} ScoreStem;
/* Scores the branches of stems; a stem's tokens are computed once for all of its branches. logprobs[0] of a branch is that of its first token given
 * the stem. Fails as score_rows does. */
Status score_branches(const Model *model, const ScoreStem *stems, size_t n_stems);
/* Whether a token may not be among the likeliest. */
typedef bool SkipToken(const void *context, int32_t id);
/* Writes the n likeliest tokens of a row of logits to `top`, in order; of equal ones the lower id first. If there are fewer tokens than n, the last
 * ids are -1. values: memory for (vocab). skip: NULL = no token is left out. */
void logits_top(const Logits *logits, int64_t row, int64_t n, SkipToken *skip, const void *context, double *values, TokenLogprob *top);
/* As score_rows for one row, with the n_top likeliest tokens at each place, in order (of equal ones the lower id first). top: (n, n_top); the first
 * n_top have ids -1 and NaN. Computes logits of a few tokens at a time. Fails as score_rows does. */
Status score_top(const Model *model, const ScoreRow *row, int64_t n_top, TokenLogprob *top);
/* The text as one vector of length 1: the first n_dims (at most hidden_size) of the hidden states after the final norm, of the last token or, with
 * `mean`, their mean over all tokens. ST_INPUT: an unknown id; ST_RESOURCE. */
Status text_vector(const Model *model, const int32_t *ids, size_t n, bool mean, int64_t n_dims, double *vector);

#endif
