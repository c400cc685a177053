/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a Generator, shared by the files that make it:
 *
 *     generator.c          open, add, step, cancel, close; what fits
 *     generator_plan.c     the tokens of a step: newest tokens and parts of prompts; samples begin
 *     generator_choose.c   from a row of logits to a token
 *     generator_answer.c   a token extends an answer: text, stops, the end
 *     generator_memory.c   what it takes
 *     kv_cache.c           pages of keys and values; kv_prefix.c: those whose tokens are known
 *     session.c            what a conversation keeps
 *     generate.c           generate(): all prompts through one generator */
#ifndef TUNE_GENERATOR_PARTS_H
#define TUNE_GENERATOR_PARTS_H

#include "lib/infer/infer.h"
#include "lib/infer/kv_prefix.h"

enum { STEP_TOKENS = 1024 };         /* of prompts */
enum { NO_ROW = -1, KEPT_ROW = -2 }; /* in addition to the rows of a step's logits */
typedef struct RowAt {
    int32_t pass; /* of the step */
    int64_t row;
} RowAt;

/* A request. In the queue until all of its samples have begun. */
typedef struct Group {
    GenerateRequest request;
    const Model *model;    /* that computes it: the generator's, or the request's adapter */
    const Model *pass;     /* the generator's, if `model` differs from it in low-rank branches only: then a pass serves both; else `model` */
    GenerateHandle handle; /* 0: this place is free */
    bool cancelled;
    int64_t begun, running; /* samples */
    int64_t done;           /* tokens of the prompt in the cache, while it is in the queue */
    KvPageList pages;       /* of the prompt; of the known ones to its end */
    RowAt at;               /* logits of the prompt's last token */
    /* Pages: of the prompt; those of them that samples never copy; and what a sample has of its own at its end. */
    int64_t prompt_pages, shared_pages, own_pages;
    bool shares; /* pages with other requests: the first n_known of its pages are known ones */
    int64_t n_known;
    PrefixFamily family;
} Group;

typedef struct Sequence {
    Group *group; /* NULL: the slot is free */
    Completion completion;
    KvPageList pages;
    int64_t cached; /* tokens in the cache: prompt and completion but the newest, or fewer while they are computed again */
    bool outgrown;  /* computed again, since it became longer than the original context of a longrope */
    TextStream stream;
    size_t shown; /* bytes of text that on_token has seen */
    size_t cap_logprobs;
    RowAt at;     /* logits of its newest token; NO_ROW when it has its next one */
    bool chosen;  /* `next` is to be taken */
    int32_t next; /* the token chosen by these, and its log-probabilities as Completion names them */
    double next_logprob, next_tempered, next_filtered;
} Sequence;

/* What a thread needs to choose a token: V values each, and prompt and answer so far for penalties and filters. */
typedef struct Chooser {
    double *logits;
    SampleScratch scratch;
    Ids history;
} Chooser;

/* A step is one pass for all rows that read the same weights, whatever low-rank branches they have. */
typedef struct Pass {
    const Model *model; /* as Group.pass */
    Logits logits;
    Tensor *advice; /* NULL: none */
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
    Arena *arena; /* both of memory */
    Tape *tape;
    KvCache *cache;
    Prefixes *prefixes; /* NULL: requests share no pages */
    /* promised: to requests to their end, and the known pages in use, which count once */
    int64_t most_pages, promised_pages;
    int64_t prompt_tokens, found_tokens; /* as GeneratorStats */
    Group *groups;
    int64_t n_groups; /* places */
    GenerateHandle last_handle;
    bool in_step, broken; /* broken: what the cache holds of the step in work is not known */
    Sequence *slots;
    int64_t n_slots, n_active;
    Group **queue; /* in order; all but the last have slots for all of their samples */
    int64_t n_queue;
    Pass *passes; /* of the step in work */
    int32_t n_passes;
    Pass kept;         /* of the first of the queue, when it is done and waits for a slot: a single row */
    Chooser *choosers; /* one a thread */
    int n_threads;
    AdapterRows *adapters; /* of the pass in work */
    int32_t *ids;          /* of the step */
    Segment *segments;
    int64_t *lengths;
    int32_t *rows;
    int32_t *absent; /* ids of the model that the tokenizer does not have, in order: never chosen, unless they end an answer */
    size_t n_absent;
};

/* ---- generator.c ---- */

Status request_check(const Model *model, const Tokenizer *tokenizer, const Session *session, const GenerateRequest *request);
/* generator_add of a request that was checked. */
Status generator_admit(Generator *g, const GenerateRequest *request, GenerateHandle *handle);
size_t cache_budget(const GenerateMemory *memory); /* bytes that keys and values may take */
/* Sequences longer than the original context of a longrope have other angles, all of their tokens. */
bool is_long(const Model *model, int64_t n);
/* Pages of a prompt of n tokens that stay the same while its samples grow to `longest` tokens. */
int64_t shared_pages(const Model *model, int64_t n, int64_t longest);
/* Before sequence_release: the first `cached` tokens go to the session, or their pages become known. */
void sequence_keep(Generator *g, Sequence *s, int64_t cached);
void sequence_release(Generator *g, Sequence *s); /* what the slot owns */
void know_prompts(Generator *g);                  /* after a step: the pages of prompts that it filled */

/* ---- generator_plan.c ---- */

bool prompt_done(const Group *group);
Status step_compute(Generator *g);  /* the forward passes; leaves rows to sequences and groups */
bool can_begin(const Generator *g); /* a sample of the first of the queue */
Status begin_samples(Generator *g);
/* Of the first of the queue, if its prompt is done: the step's memory goes with the step. No sequence may still need the row that was kept before. */
void keep_row(Generator *g);
void forget_rows(Generator *g); /* of prompts that still wait: their last token is computed again */

/* ---- generator_memory.c ---- */

typedef struct StepSize {
    int64_t prompt_tokens, n_prompts, n_single, n_rows; /* n_single: sequences with one token; n_rows: of logits */
    const Model *const *adapters;
    int64_t n_adapters;
} StepSize;
/* Bytes of a step's activations and logits. Adds to the plan of scratch memory (workspace_bytes). */
size_t step_bytes(const Model *model, const StepSize *size);
size_t chooser_bytes(const Model *model, int64_t n_slots);
size_t generator_bytes(const Model *model, const GeneratorConfig *config);             /* in its arena */
Status generator_fits(const Model *model, const GeneratorConfig *config, size_t left); /* ST_RESOURCE, with figures */

/* ---- generator_choose.c ---- */

bool is_eos(const Generator *g, const GenerateRequest *request, int32_t id);
Status find_absent(Generator *g);
void row_keep(const Pass *from, int64_t row, Pass *kept);
/* The next token of `s`. Reads what all threads share, writes only `s` and `chooser`. */
void generate_choose(const Generator *g, Chooser *chooser, Sequence *s);

/* ---- generator_answer.c ---- */

Status extend(Generator *g, Sequence *s); /* takes the token that was chosen; hands the completion out when it is the last one */

/* ---- session.c ---- */

KvCache *session_cache(Session *session);
int64_t session_resume(Session *session, const Prompt *prompt, KvPageList *pages);
void session_keep(Session *session, const Prompt *prompt, const Ids *completion, int64_t cached, KvPageList *pages);

#endif
