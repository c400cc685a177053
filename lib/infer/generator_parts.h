/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a Generator, shared by the files that make it:
 *
 *     generator.c          open, add, step, cancel, close; what fits
 *     generator_plan.c     the tokens of a step: newest tokens and parts of prompts; samples begin
 *     generator_choose.c   from a row of logits to a token
 *     generator_answer.c   a token extends an answer: text, stops, the end
 *     generator_memory.c   its plan of memory
 *     kv_cache.c           pages of keys and values; kv_prefix.c: those whose tokens are known
 *     session.c            the state that a conversation keeps between calls
 *     generate.c           generate(): all prompts through one generator */
#ifndef TUNE_GENERATOR_PARTS_H
#define TUNE_GENERATOR_PARTS_H

#include "lib/infer/infer.h"
#include "lib/infer/kv_prefix.h"

enum { STEP_TOKENS = 1024 }; /* the most tokens of prompts, and of sequences that are computed again, in a step */
/* Values of RowAt.row: there are no logits; they are the row that Generator.kept holds. */
enum { NO_ROW = -1, KEPT_ROW = -2 };
/* Where a row of logits is. */
typedef struct RowAt {
    int32_t pass; /* index into Generator.passes */
    int64_t row;  /* of the pass's logits */
} RowAt;

/* A request. It is in the queue until all of its samples have begun, and ends with its last sample. */
typedef struct Group {
    GenerateRequest request;
    const Model *model;    /* the model that computes it: the generator's, or the request's adapter */
    const Model *pass;     /* the generator's model if `model` differs from it only in low-rank branches (one pass serves both); else `model` */
    GenerateHandle handle; /* 0: this place is free */
    bool cancelled;
    int64_t begun, running; /* numbers of samples */
    int64_t done;           /* tokens of the prompt in the cache, while the request is in the queue */
    KvPageList pages;       /* of the prompt's tokens; after the request has left the queue only the first n_known of them */
    RowAt at;               /* logits of the prompt's last token */
    /* Numbers of pages: of the prompt; of these, those that samples never copy; and those that a sample at its end has in addition to shared ones */
    int64_t prompt_pages, shared_pages, own_pages;
    bool shares;         /* uses known pages, and makes its own pages known */
    int64_t n_known;     /* the first n_known of `pages` are known ones */
    PrefixFamily family; /* for kv_prefix.h */
} Group;

/* A running sample. */
typedef struct Sequence {
    Group *group; /* NULL: the slot is free */
    Completion completion;
    KvPageList pages;
    int64_t cached; /* tokens in the cache: all of prompt and completion except the newest; fewer while they are computed again */
    bool outgrown;  /* its tokens were computed again because it became longer than the original context of a longrope */
    TextStream stream;
    size_t shown; /* bytes of text that on_token got */
    size_t cap_logprobs, cap_top;
    RowAt at;                                          /* logits of its newest token; NO_ROW after the next token was chosen from them */
    bool chosen;                                       /* `next` was chosen and is not a part of the completion yet */
    int32_t next;                                      /* the chosen token; below 0: no token may follow */
    double next_logprob, next_tempered, next_filtered; /* its elements of Completion.logprobs, tempered and filtered */
    TokenLogprob *next_top;                            /* (n_top); NULL: none asked for */
    ConstraintState place;                             /* in the request's constraint */
    uint64_t *allowed;                                 /* a bit for each id of the model: may come next. NULL: without a constraint */
} Sequence;

/* A thread's memory for choosing a token. */
typedef struct Chooser {
    double *logits;        /* (V) */
    SampleScratch scratch; /* (V) each */
    Ids history;           /* prompt and answer so far, for penalties and filters */
} Chooser;

/* A forward pass of a step. A step has one pass for all rows that read the same weights, whatever low-rank branches they have. */
typedef struct Pass {
    const Model *model; /* as Group.pass */
    Logits logits;
    Tensor *advice; /* values of LogitBias; NULL: none */
} Pass;

struct GenerateMemory {
    const Model *model;
    Arena *arena;
    Tape *tape;
};

struct Generator {
    const Model *model;
    const Tokenizer *tokenizer;
    GeneratorConfig config;
    GenerateMemory *memory;
    Arena *arena; /* these two are those of `memory` */
    Tape *tape;
    KvCache *cache;
    Prefixes *prefixes; /* NULL: requests share no pages */
    /* Pages of the cache; those of them that are reserved for requests until their end, where a known page with several users counts once */
    int64_t most_pages, promised_pages;
    int64_t prompt_tokens, found_tokens; /* as GeneratorStats */
    Group *groups;
    int64_t n_groups; /* length of `groups`, free places included */
    GenerateHandle last_handle;
    bool in_step, broken; /* in_step: generator_step runs; broken: it failed or runs, so the contents of the cache are unknown */
    Sequence *slots;
    int64_t n_slots, n_active; /* n_active: slots that are not free */
    Group **queue;             /* in order of arrival; there are free slots for all samples of all but the last */
    int64_t n_queue;
    Pass *passes; /* of the current step */
    int32_t n_passes;
    Pass kept;         /* a copy of the row at which the samples of queue[0] begin, when its prompt is done and it waits for a slot; one row */
    Chooser *choosers; /* one for each thread */
    int n_threads;
    AdapterRows *adapters; /* of the current pass */
    int32_t *ids;          /* these four: of the current step */
    Segment *segments;
    int64_t *lengths;        /* as Layout.lengths */
    KvPageList pages;        /* as Layout.pages, of all passes of the step */
    int32_t *rows;           /* whose logits are wanted */
    const TokenLogprob *top; /* while on_token runs: that of its sequence */
    int32_t *absent;         /* ids of the model that the tokenizer does not have, ascending: never chosen, unless they end an answer */
    size_t n_absent;
};

/* ---- generator.c ---- */

/* Checks a request. Fails with ST_INPUT as generator_add does. session: NULL, or the session whose limit applies. */
Status request_check(const Model *model, const Tokenizer *tokenizer, const Session *session, const GenerateRequest *request);
/* generator_add of a request that was checked. */
Status generator_admit(Generator *g, const GenerateRequest *request, GenerateHandle *handle);
size_t cache_budget(const GenerateMemory *memory); /* bytes that keys and values may take */
/* Whether a sequence of n tokens is longer than the original context of a longrope. Then the angles of all of its tokens are others. */
bool is_long(const Model *model, int64_t n);
/* Number of pages of a prompt of n tokens that stay the same while its samples grow to `longest` tokens. */
int64_t shared_pages(const Model *model, int64_t n, int64_t longest);
/* Call it before sequence_release: gives the pages of the first `cached` tokens to the session, or makes them known (keep_prefixes). */
void sequence_keep(Generator *g, Sequence *s, int64_t cached);
void sequence_release(Generator *g, Sequence *s); /* frees what the slot owns, and the slot; ends the request with its last sample */
void know_prompts(Generator *g);                  /* call it after a step: makes the pages of prompts that it filled known */

/* ---- generator_plan.c ---- */

bool prompt_done(const Group *group); /* all of its tokens are in the cache */
Status step_compute(Generator *g);    /* runs the forward passes of a step; sets `at` of sequences and groups. Fails as model_forward does */
bool can_begin(const Generator *g);   /* whether a sample of queue[0] can begin */
Status begin_samples(Generator *g);   /* begins samples while there is room; a request whose samples have all begun leaves the queue. ST_RESOURCE */
/* If the prompt of queue[0] is done, copies its row of logits to g->kept, since the step's memory is freed with the step. No sequence may still need
 * the row that was kept before. */
void keep_row(Generator *g);
/* For the other prompts that are done and wait: drops their rows, so that their last token is computed again. */
void forget_rows(Generator *g);

/* ---- generator_memory.c ---- */

/* The largest step of a plan. */
typedef struct StepSize {
    int64_t prompt_tokens, n_prompts, n_single, n_rows; /* n_single: sequences with one token; n_rows: rows of logits */
    const Model *const *adapters;
    int64_t n_adapters;
} StepSize;
/* Bytes of a step's activations and logits. Adds to the plan of scratch memory (workspace_bytes). */
size_t step_bytes(const Model *model, const StepSize *size);
size_t chooser_bytes(const Model *model, int64_t n_slots);                 /* of the memory of all threads for choosing */
size_t generator_bytes(const Model *model, const GeneratorConfig *config); /* of the generator's arena */
/* ST_RESOURCE, with figures, if the generator takes more than `left` bytes. */
Status generator_fits(const Model *model, const GeneratorConfig *config, size_t left);

/* ---- generator_choose.c ---- */

bool is_eos(const Generator *g, const GenerateRequest *request, int32_t id); /* whether the id ends a completion of the request */
Status find_absent(Generator *g);                                            /* fills g->absent. ST_RESOURCE */
void row_keep(const Pass *from, int64_t row, Pass *kept);                    /* copies a row of logits and advice to `kept` */
/* Chooses the next token of `s` from the logits at s->at. Writes only `s` and `chooser`, so that threads can choose at the same time. */
void generate_choose(const Generator *g, Chooser *chooser, Sequence *s);

/* Finds the tokens that the request's constraint allows next, and those that end the answer where it may end; *ends: nothing can follow. Without a
 * constraint it does nothing. Fails as constraint_mask does. */
Status sequence_constrain(const Generator *g, Sequence *s, bool *ends);

/* ---- generator_answer.c ---- */

/* Appends the chosen token to the completion and calls on_token. If the completion ends with it, frees the slot and calls on_done. Returns the
 * callbacks' status. */
Status extend(Generator *g, Sequence *s);

/* ---- session.c ---- */

KvCache *session_cache(Session *session);
/* Moves the pages of the tokens with which both the session and the prompt begin to *pages. Returns the number of these tokens, less than those of
 * the prompt, because its last token is computed for its logits. The session is empty then. */
int64_t session_resume(Session *session, const Prompt *prompt, KvPageList *pages);
/* Moves `pages` of the first `cached` tokens of prompt and completion to the session. */
void session_keep(Session *session, const Prompt *prompt, const Ids *completion, int64_t cached, KvPageList *pages);

#endif
