/* SPDX-License-Identifier: Apache-2.0 */
/* From files to batches of tokens: readers and formats -> rows -> examples -> flat batches.
 *
 *     Dataset *dataset;
 *     TRY(dataset_load(&(DataConfig){.max_length = 1024, .truncation = "error"}, &(DataSource){.path = "rows.jsonl"}, 1, tokenizer, &dataset));
 *     Batch batch = {0};
 *     TRY(batch_build(dataset, order, n, &batch));
 *     // batch.model: what model_forward takes; batch.rows, batch.targets: what op_token_logprobs takes
 */
#ifndef TUNE_DATA_H
#define TUNE_DATA_H

#include "lib/text/chat.h"
#include "lib/text/text.h"
#include "lib/model/model.h"
#include "lib/recipe/recipe.h"
#include "data/notes.h"

enum { LABEL_NONE = -100 }; /* a position without loss, as in HF */

/* A row as it is in the file, in one of the known formats. Strings are borrowed from `json`. unit: "line", and `line` is the number of the row's
 * first line, from 1; or "row" (.json, .parquet), and `line` is the number of the row, from 1. */
typedef struct Row {
    json_t *json;
    const char *file, *unit;
    size_t line;
    /* The row before data.as turned its texts into messages, for rewards; NULL: the same as `json`. Valid during the call only */
    json_t *plain;
    Slice text;  /* the source text of the row; data NULL: it was made of cells or columns. Valid during the call only */
    bool padded; /* its structs have null for members that only other rows have (Arrow) */
} Row;

/* Tokens begin..end-1 of a row are trained. */
typedef struct TokenRun {
    int32_t begin, end;
} TokenRun;
/* A run of tokens of a row, from `begin` to the next branch. It follows all tokens of its parent; parent -1: it starts a text. See branches.h. */
typedef struct Branch {
    int32_t begin, parent;
} Branch;
/* One row to train on: one text, or several that share prefixes. Borrowed from its Dataset. */
typedef struct Example {
    const int32_t *ids; /* n */
    /* n: the label of token t where it is trained (in place, not shifted); usually the ids themselves */
    const int32_t *targets;
    const TokenRun *runs;   /* in order; never the first token of a text, since nothing predicts it */
    const Branch *branches; /* n_branches, in order, the first starts at token 0; n_branches 0: the row is one text */
    int32_t n, n_runs, n_branches, trained;
    int32_t depth;       /* tokens of its longest text; n if there is one text */
    uint32_t file, line; /* see dataset_where */
    double weight;       /* factor of each token's loss, at least 0 */
    uint64_t hash;       /* equal for equal ids and targets */
} Example;
int32_t example_label(const Example *example, int32_t t); /* LABEL_NONE if it is not trained */

/* A model's chat template, prepared for rows. */
typedef struct Chat Chat;
/* Loads the template. adapter, override: NULL, or as for chat_template_load. now: a fixed date for templates that ask for the date; NULL = today. A
 * model without a template is an error only when a row needs one. */
Status chat_open(const char *model_dir, const char *adapter, const char *override, const char *now, const Tokenizer *tokenizer, Chat **chat);
/* The same with the settings of a recipe: its keys of model, data.now and data.template_kwargs. */
Status chat_open_recipe(const Recipe *recipe, const Tokenizer *tokenizer, Chat **chat);
/* Sets template variables that rows do not set (an object; NULL: none). tokenizer: as for chat_open. ST_INPUT: there is no template, or it does not
 * read a variable of this name. */
Status chat_set_kwargs(Chat *chat, const json_t *values, const Tokenizer *tokenizer);
void chat_close(Chat *chat); /* NULL is fine */
bool chat_has_template(const Chat *chat);
bool chat_writes_date(const Chat *chat); /* its output depends on the date */
/* Calls recipe_unread for data.now if the template does not write the date. */
Status chat_check_now(const Recipe *recipe, const Chat *chat);
Status chat_set_now(Chat *chat, const char *now); /* fixes the date; see chat_open */
const char *chat_end_text(const Chat *chat);      /* the text of chat_end_of_turn; NULL = none */
/* Renders a short conversation, to check the template itself; ST_INPUT if the template refuses it. */
Status chat_probe(const Chat *chat, Str *text);
int32_t chat_end_of_turn(const Chat *chat); /* the special token that ends an assistant's turn; -1 = none */

/* What rows are used for: to learn their answers; as prompts; to compare or score their answers. */
typedef enum RowUse { ROWS_AS_EXAMPLES, ROWS_AS_PROMPTS, ROWS_AS_SCORED } RowUse;
typedef struct DataConfig {
    const char *format;         /* NULL or "auto": by the first row */
    const char *train_on;       /* auto | completion | assistant | last | all */
    const char *system;         /* system message for conversations without one; NULL = none */
    const char *step_separator; /* appended to each step of a stepwise row; NULL: a line end */
    const char *as;             /* auto | chat | text: how rows of plain texts become turns; NULL: text. See row_form.h */
    const Yaml *columns;        /* {our name: column of the rows}; NULL: rows use our names */
    const char *turns;          /* conversations: whole | each | auto, see conversation.h; NULL: whole, for callers that need one text a row */
    bool plain_control;         /* control tokens within messages are read as plain words */
    const Chat *chat;           /* for rows of messages; NULL = such rows are refused */
    /* Which answer of a pair is trained, for methods that learn from both answers: rows without a preference are left out, and unwanted answers are
     * treated as any other. NO_PAIRS: as in supervised training */
    enum { NO_PAIRS, PAIRS_CHOSEN, PAIRS_REJECTED } pairs;
    struct Rejected *rejected; /* collects rows that cannot be used (lib/recipe/rejected.h); NULL: the first such row is an error */
    bool prompts;              /* rows are read as prompts (row_question), and no token is trained; not with `cache` */
    int64_t max_length;
    const char *truncation; /* error | drop | keep_start | keep_end */
    int64_t vocab_size;     /* of the model: an id outside of it is ST_INPUT; 0 = not checked */
    int64_t positions;      /* number of learned positions of the model: a longer row is ST_INPUT; 0 = any length */
    ContextCount context;   /* of a model without learned positions: longer rows are counted */
    /* About the current row; set by the code that reads rows. */
    bool padded;     /* see Row */
    RowNotes *notes; /* collects oddities of the row; NULL: they are not collected */
    /* Where tokenised rows are stored. */
    const char *cache;     /* folder, created if missing; entries are found by the content of files, tokenizer and settings; NULL: no cache */
    const char *scratch;   /* without `cache`: an unnamed file in this folder, or in the nearest parent that exists; NULL or not writable: /tmp */
    const char *tokenizer; /* cache: the folder or file that the tokenizer was loaded from; NULL: none */
    const char *program;   /* cache: name and version of the program, since another version may tokenise differently; NULL: none */
} DataConfig;
DataConfig data_config(const Recipe *recipe, const ModelConfig *model, const Chat *chat); /* the recipe's data section; chat may be NULL */

/* A row as tokens. */
typedef struct Encoding {
    Ids ids, labels;    /* both of the same length */
    bool remapped;      /* the prompt's ids are no prefix of the row's ids: the border was found by characters */
    bool no_eos;        /* the tokenizer has no EOS to end the row with */
    bool unwritten;     /* it has tool calls, tools or reasoning that the chat template never reads */
    bool after_thought; /* the chat template starts a thought when it asks for an answer, but writes the finished answer without it */
    double weight;      /* the row's; see row_weight */
    /* tokens of answers before truncation; those of them that the chat template wrote, as far as that can be determined */
    int32_t marked, templates;
    bool conversation, has_system; /* messages; with a system message */
    Ids ends;                      /* the end of each of its texts, which are concatenated (DataConfig.turns); empty: it is one text */
} Encoding;
void encoding_release(Encoding *encoding);

/* A row format: one file data_<format>.c and one line in datasets.def. */
typedef struct DataFormat {
    const char *name;
    const char *help;
    bool (*detect)(const json_t *row);
    /* A format of conversations only turns its rows into normalised messages (a new array); its `encode` and `question` are NULL. */
    Status (*read_messages)(const json_t *row, const DataConfig *config, json_t **messages);
    /* Fills an empty encoding from one row. ST_INPUT if the row lacks a field (the caller adds file and line). */
    Status (*encode)(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
    /* The ids of the prompt that the row's answer belongs to; see row_question. */
    Status (*question)(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
    bool needs_tokenizer;
    bool takes_system; /* data.system applies to it */
} DataFormat;
const DataFormat *data_format_find(const char *name); /* NULL when unknown */
const DataFormat *data_format_at(size_t i);           /* NULL after the last */
/* Encodes a row by its fields, for every format. */
Status data_format_encode(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
/* The same for a row that must be one text, such as pairs and rows with rewards. An answer is rendered the way it is asked for, as with data.turns:
 * auto. ST_INPUT: it has several trained turns, and the template renders them differently when it asks for them. */
Status data_format_encode_one(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
Status data_format_question(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);

/* rows, tokens, trained_tokens: of the rows that are used; the other fields count rows. */
typedef struct DataCounts {
    int64_t rows, tokens, trained_tokens;
    int64_t dropped_long;                /* truncation: drop */
    int64_t cut;                         /* truncation: keep_start, keep_end */
    int64_t dropped_untrained;           /* no trained token was left after truncation */
    int64_t untrained;                   /* used, but no token of it is trained */
    int64_t duplicates;                  /* the same tokens and labels as an earlier row; used */
    int64_t remapped, no_eos, unwritten; /* see Encoding */
    int64_t weighted;                    /* with a weight other than 1 */
    ContextCount beyond;                 /* used, but longer than the model's context */
    /* Where the first of them are: "FILE line N, ..."; in the dataset's memory, NULL if there are none */
    const char *dropped_untrained_rows, *untrained_rows;
    int64_t conversations, with_system;  /* rows of messages; those of them with a system message */
    int64_t marked, templates;           /* tokens: see Encoding */
    int64_t as_chat, texts, untemplated; /* rows of plain texts: see RowFound */
    /* conversations trained turn by turn; their answers, and the sum of tokens of these texts if each is counted separately */
    int64_t turned, turns, turn_tokens;
    int64_t after_thought; /* rows: see Encoding */
    int64_t lost_turns;    /* answers left out of rows that are used: data.max_length, as for rows */
    const RowNotes *notes; /* other oddities; owned by the dataset, NULL: none */
} DataCounts;
/* Columns and tags of an entry of dataset_info.json, under the names used in that file; NULL: not given. */
typedef struct ColumnMap {
    bool sharegpt, ranking;
    bool plain; /* texts to continue: only the prompt column is set */
    const char *prompt, *query, *response, *history, *messages, *system, *tools, *chosen, *rejected, *kto_tag;
    const char *role_tag, *content_tag, *user_tag, *assistant_tag, *observation_tag, *function_tag, *system_tag;
} ColumnMap;
/* An entry of data.train. */
typedef struct DataSource {
    const char *path;         /* a file, or a pattern that matches several; data_sources resolves FOLDER/dataset_info.json#NAME */
    const ColumnMap *columns; /* of that entry; NULL: rows are used unchanged */
    const Yaml *names;        /* as DataConfig.columns, for this source only; NULL: those of the config */
    const char *format;       /* NULL: that of the config */
    const char *separator;    /* see RowsConfig */
    int64_t max_rows;         /* total over its files; 0: all rows */
    /* How often an epoch takes each row: 2: twice; 0.5: half of the rows, and the others in the next epoch; 0 means 1 */
    double weight;
} DataSource;
typedef struct DataFile {
    const char *path, *unit, *format; /* unit of row numbers, format; NULL until a row was read */
    const char *shape;                /* the columns that identified a public form of rows: see row_shape; NULL: rows are in our form */
    uint32_t source;
    int64_t rows; /* rows used */
} DataFile;
/* Rows that the caller stores (pairs, prompts): what ordering, batching and messages need to know about them. */
typedef struct RowSource {
    const void *rows;
    int32_t (*length)(const void *rows, size_t i);
    void (*where)(const void *rows, size_t i, Str *text);
} RowSource;
/* Rows are tokenised once, into a file (see DataConfig) that is mapped: memory does not grow with the number of rows. */
typedef struct Dataset {
    size_t n;
    int64_t longest; /* tokens that a pass computes for the row */
    DataCounts counts;
    ContextCount context; /* DataConfig.context */
    const char *format;   /* of the first file with rows */
    const char *shape;    /* the same as DataFile.shape, for callers that store rows themselves */
    const char *plain_as; /* how rows of plain texts are read: see row_form_describe; NULL: there are none */
    DataSource *sources;
    size_t *source_begins; /* n_sources + 1: rows source_begins[s]..source_begins[s + 1] - 1 are of source s */
    size_t n_sources;
    DataFile *files; /* that the sources stand for */
    size_t n_files;
    struct RowPlace {
        uint32_t file, line;
    } * lost; /* the first of counts.dropped_untrained */
    size_t n_lost;
    RowNotes notes;
    bool prompts; /* see DataConfig */
    bool cached;  /* the tokenised rows came from the cache */
    struct Store *store;
    uint64_t *taken; /* rows of the store that dataset_split held out, in order; NULL: none */
    size_t n_held_out_rows;
    bool held_out; /* true: this dataset consists of these rows; false: of all others */
    Arena *arena;  /* NULL: all of it is borrowed from the dataset that was split */
    /* Used in place of a store: n, longest, counts.tokens and sources are set by the caller, so that DataOrder and DataPlan work; nothing is freed */
    RowSource row_source;
} Dataset;
/* Reads a key such as data.train: a scalar, a list of scalars, or a list of maps. ST_CONFIG. */
Status data_sources(const Yaml *node, const char *key, Arena *arena, DataSource **sources, size_t *n);
/* For callers that store rows themselves (RowSource). */
typedef struct SourceReader {
    const DataConfig *config; /* only its fields `as`, `columns` and `chat` are used */
    RowUse use;
    bool widen;         /* see RowsConfig */
    const size_t *kept; /* rows so far, over all sources */
    /* Takes one row of a source. row->file lives as long as the arena; failures get the file's name and the line */
    Status (*take)(void *context, const DataSource *source, const Row *row);
    void *context;
} SourceReader;
/* Reads all rows of a key such as data.train, file by file; fills sources and source_begins of table. ST_CONFIG, ST_INPUT, and any failure of
 * `take`. */
Status data_sources_read(const Yaml *node, const char *key, const SourceReader *reader, Arena *arena, Dataset *table);
/* Reads and tokenises all rows, or finds them in the cache. ST_INPUT with file and line: invalid JSON, a missing field, an unknown id, no rows.
 * ST_RESOURCE: the disk is full. The result has the same bytes for any number of threads; of several bad rows the first is named. Prints nothing:
 * counts say what was dropped or truncated. Strings of sources are borrowed. */
Status dataset_load(const DataConfig *config, const DataSource *sources, size_t n_sources, const Tokenizer *tokenizer, Dataset **dataset);
void dataset_free(Dataset *dataset);
Example dataset_example(const Dataset *dataset, size_t i);
int32_t dataset_length(const Dataset *dataset, size_t i);                         /* tokens that a pass computes */
int64_t dataset_tokens(const Dataset *dataset, const size_t *examples, size_t n); /* sum over n of them */
uint64_t dataset_fingerprint(const Dataset *dataset);                             /* hashes all rows and their weights, in order */
/* The number of held-out rows of a share of n rows: at least one, and at least one is left. ST_INPUT if n < 2. */
Status held_out_count(size_t n, double share, size_t *wanted);
/* Moves `share` of the rows (by seed) from `dataset` into a second one, which borrows from it and takes each row once an epoch. */
Status dataset_split(Dataset *dataset, double share, uint64_t seed, Dataset **held_out);
/* Reads the rows of a file in order: .jsonl, .json (an array of objects, or an object of columns), .csv and .tsv (with a header), .txt (rows
 * {"text"}), each also as .gz and .zst, and .parquet. Memory does not grow with the file, except for .json columns and a .txt that is one document.
 * Stops at the first error; ST_INPUT names the file and the place in it. The json that `read` gets is valid during the call only. */
typedef Status RowCallback(void *context, const Row *row);
typedef struct RowsConfig {
    int64_t max_rows; /* 0: all rows */
    /* .txt: separator between documents; NULL: the file is one document. Line ends around a document are not part of it; blank documents are
     * skipped
     */
    const char *separator;
    bool widen; /* JSON: columns that nobody uses may have numbers out of range (json_load_row); not if `json` is written or passed on */
    /* Called for a row that cannot be read, such as invalid JSON or a record with too many cells, with its failure (of this thread) and its `text`:
     * ST_OK continues with the next row. NULL: such a row ends the reading */
    Status (*bad)(void *context, const Row *row);
} RowsConfig;
Status rows_read(const char *path, RowCallback *read, void *context);
/* Reads the first max_rows of them. */
Status rows_read_some(const char *path, int64_t max_rows, RowCallback *read, void *context);
/* Reads them as `config` says. */
Status rows_read_as(const char *path, const RowsConfig *config, RowCallback *read, void *context);
/* Expands a path with * ? [...] to the matching files, sorted by bytes; a path that exists, or has none of these characters, is returned unchanged.
 * ST_INPUT if no file matches. */
Status rows_expand(const char *pattern, Arena *arena, const char ***paths, size_t *n);
/* For commands that run a model on rows. A row as a question: its prompt, or its conversation up to the answer, with the generation prompt; for a
 * training row that is one text, all that precedes the (last) trained part. A row as a whole: all of its tokens, a prompt and its completion as one
 * text; BOS if the tokenizer adds it, EOS only if the chat template writes it. The format is detected by the columns. ST_INPUT. */
Status row_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* The messages of a conversation's question, without a final answer: a new list; NULL if the row is no conversation. ST_INPUT. */
Status row_question_messages(const json_t *row, json_t **messages);
/* All messages of a conversation as they are rendered: a new list; NULL if the row is no conversation. With config->as: chat also for plain texts.
 * ST_INPUT. */
Status row_messages(const json_t *row, const DataConfig *config, json_t **messages);
Status row_whole(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* The ids of `text`, with BOS if the post-processor adds it and the text does not begin with it; never EOS. */
Status encode_prompt(const Tokenizer *tokenizer, const char *text, size_t len, Ids *ids);
/* The same, with control tokens handled as the config says. */
Status encode_prompt_as(const Tokenizer *tokenizer, const DataConfig *config, const char *text, size_t len, Ids *ids);
/* A prompt and its answer as one row with EOS at its end: trained from the border, or everywhere with train_on: all. The ids are those of the joined
 * text. */
Status encode_pair(const Tokenizer *tokenizer, const DataConfig *config, const char *prompt, const char *completion, Encoding *encoding);
/* The row's `weight`, a factor of the loss of each of its tokens; 1 if missing, 0: the row is not trained. ST_INPUT for any other value. */
Status row_weight(const json_t *row, double *weight);
/* A list of the formats and the columns that identify them, for messages. */
void data_formats_list(Str *text);
/* ST_INPUT names the first id that is not in the vocabulary, and its position. vocab_size 0: any id from 0 on is valid. */
Status ids_check(const Ids *ids, int64_t vocab_size);
/* Fails with ST_INPUT for a row of `n` tokens where data.truncation allows no row above max_length. what: "row" */
Status row_too_long(const char *what, size_t n, int64_t max_length);
/* ST_INPUT for a row of more tokens than the model has positions for. positions 0: any length is valid. */
Status positions_check(size_t n, int64_t positions);
/* A text column of a row; ST_INPUT if it is missing or no string. */
Status row_text(const json_t *row, const char *key, const char **text);

/* Says what was dropped, truncated or odd: calls `say` with one sentence each. */
void data_counts_warn(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context);
/* One sentence that says how many conversations are trained turn by turn; no call if none is. */
void data_turns_report(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context);
/* "messages: 812 rows" for each file; one sentence for the rest if there are many files. */
void data_files_report(const Dataset *dataset, void (*say)(void *context, const char *text), void *context);
/* "FILE line N" of an example. */
void dataset_where(const Dataset *dataset, size_t example, Str *text);

/* Which examples an epoch takes, in which order: a function of (seed, epoch, index) only, the same on any machine. With shuffle off: file order. A
 * source of weight w gives the rows w n epoch .. w n (epoch + 1) of an endless stream that repeats its n rows (in a new order each time when
 * shuffled). */
typedef struct DataOrder {
    const Dataset *dataset;
    uint64_t seed;
    bool shuffle;
} DataOrder;
int64_t data_order_count(const DataOrder *order, int64_t epoch);            /* number of examples in the epoch */
size_t data_order_at(const DataOrder *order, int64_t epoch, int64_t index); /* index of the example */
size_t data_order_place(const DataOrder *order, int64_t place);             /* the same over all epochs in sequence, `place` from 0 */

/* The run's optimiser steps: `accumulation` batches each; the last step of an epoch takes what is left. A batch has `batch_size` rows, or is filled
 * with at most `batch_tokens` tokens: shuffled rows are packed best-fit, window by window of the epoch's order; rows in file order are taken in that
 * order. Memory does not grow with the rows, except for a few bytes a window. */
typedef struct DataPlan {
    DataOrder order;
    int64_t batch_size, batch_tokens, accumulation; /* batch_tokens 0: batches are counted in rows */
    int64_t epoch, n_rows, n_batches;               /* of the epoch used last; -1: none */
    int64_t n_windows, *window_batches;             /* batch_tokens: the number of batches before each window, and the total */
    struct PackedWindow *window;                    /* the window used last */
    int64_t *first_steps, n_epochs, cap_epochs;     /* first_steps[e]: steps before epoch e, for the epochs needed so far */
} DataPlan;
/* steps_before, epoch_steps: of the epoch */
typedef struct PlanStep {
    int64_t epoch, first_batch, n_batches;
    int64_t steps_before, epoch_steps;
} PlanStep;
void data_plan_init(DataPlan *plan, const DataOrder *order, int64_t batch_size, int64_t batch_tokens, int64_t accumulation);
void data_plan_release(DataPlan *plan);
/* These functions fail with ST_INPUT, file and line for a row longer than batch_tokens. */
Status data_plan_total(DataPlan *plan, double epochs, int64_t *steps); /* the steps of a part of an epoch are rounded up */
Status data_plan_step(DataPlan *plan, int64_t step, PlanStep *at);
Status data_plan_epoch(DataPlan *plan, int64_t epoch, int64_t *n_batches);
double data_plan_epochs(DataPlan *plan, int64_t steps); /* epochs completed after that many steps; 0 if the plan fails */
/* The examples of a batch; *examples grows as needed, the caller frees it. */
Status data_plan_batch(DataPlan *plan, int64_t epoch, int64_t batch, size_t **examples, size_t *n);
/* The examples of the batch with the most tokens in the first `steps` steps; with very many rows an upper bound: the longest rows together. */
Status data_plan_largest(DataPlan *plan, int64_t steps, size_t **examples, size_t *n);
/* The largest set of examples that goes through the model at once if batches are split into parts of at most `most_tokens` tokens (0: no split): the
 * largest batch if it fits; otherwise the longest row that is a part by itself, or the longest rows that fill a part. */
Status data_plan_largest_part(DataPlan *plan, int64_t steps, int64_t most_tokens, size_t **examples, size_t *n);

/* A flat batch without padding: one segment for each text of an example, or for each branch. */
typedef struct Batch {
    ModelBatch model;
    int32_t *ids;
    Segment *segments;
    int32_t *rows, *targets; /* n_targets: hidden row rows[i] predicts targets[i] */
    double *weights;         /* n_targets: weights of the rows that the targets belong to */
    int64_t n_targets;
    size_t cap_tokens, cap_segments;
} Batch;
/* Fills the batch and reuses its memory. A trained token is the target of the position before it. */
Status batch_build(const Dataset *dataset, const size_t *examples, size_t n, Batch *batch);
void batch_release(Batch *batch);

#endif
