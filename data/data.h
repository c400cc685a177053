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
#include "lib/train/train.h"
#include "data/notes.h"

enum { LABEL_NONE = -100 }; /* a position that carries no loss, as in HF */

/* A row as the file has it, in one of the known forms. Strings are borrowed from `json`. */
/* Line from 1, unit "line"; of a .json array or columns, or .parquet: the row's number, "row"; of a row of several lines: its first */
typedef struct Row {
    json_t *json;
    const char *file, *unit;
    size_t line;
    /* What `json` was before data.as made turns of its texts, for rewards; NULL: it is `json` itself. During the call only */
    json_t *plain;
    Slice text;  /* the row as the file has it; data NULL: it is made of cells or columns. During the call only */
    bool padded; /* its structs have null for each member that another row has (Arrow) */
} Row;

/* Tokens begin..end-1 of a row are trained. */
typedef struct TokenRun {
    int32_t begin, end;
} TokenRun;
/* Tokens of a row from `begin` to where the next branch begins, behind all of the parent's; parent -1: a text begins. See branches.h. */
typedef struct Branch {
    int32_t begin, parent;
} Branch;
/* One row to train on: a text, or several that share their beginnings. Borrowed from its Dataset. */
typedef struct Example {
    const int32_t *ids; /* n */
    /* n: what token t should have been predicted as, where it is trained (in place, not shifted); mostly the ids themselves */
    const int32_t *targets;
    const TokenRun *runs;   /* in order; never the first token of a text, which nothing predicts */
    const Branch *branches; /* n_branches, in order, the first from token 0; 0: the row is one text */
    int32_t n, n_runs, n_branches, trained;
    int32_t depth;       /* tokens of its longest text; n where it is one */
    uint32_t file, line; /* see dataset_where */
    double weight;       /* of each token's loss, from 0 */
    uint64_t hash;       /* the same for the same ids and targets */
} Example;
int32_t example_label(const Example *example, int32_t t); /* LABEL_NONE where it is not trained */

/* A model's chat template as its rows need it. */
typedef struct Chat Chat;
/* adapter, override: NULL, or as for chat_template_load; now: fixed date for templates that ask for it, NULL = today. A model without a template is
 * fine until a row needs one. */
Status chat_open(const char *model_dir, const char *adapter, const char *override, const char *now, const Tokenizer *tokenizer, Chat **chat);
/* The same with what a recipe says: its keys of model, data.now and data.template_kwargs. */
Status chat_open_recipe(const Recipe *recipe, const Tokenizer *tokenizer, Chat **chat);
/* Values of variables that rows do not give (an object; NULL: none); tokenizer: as for chat_open. ST_INPUT: there is no template, or it does not have
 * the name. */
Status chat_set_kwargs(Chat *chat, const json_t *values, const Tokenizer *tokenizer);
void chat_close(Chat *chat); /* NULL is fine */
bool chat_has_template(const Chat *chat);
bool chat_writes_date(const Chat *chat); /* its text depends on the day */
/* recipe_unread of data.now where no template writes the date */
Status chat_check_now(const Recipe *recipe, const Chat *chat);
Status chat_set_now(Chat *chat, const char *now); /* fixes the day; see chat_open */
const char *chat_end_text(const Chat *chat);      /* the text of chat_end_of_turn; NULL = none */
/* The rendering of a short conversation, for checks of the template itself; ST_INPUT when it refuses it. */
Status chat_probe(const Chat *chat, Str *text);
int32_t chat_end_of_turn(const Chat *chat); /* the special token that ends an assistant's turn; -1 = none */

/* What rows are read for: to imitate their answers; to be asked; to compare or judge their answers. */
typedef enum RowUse { ROWS_AS_EXAMPLES, ROWS_AS_PROMPTS, ROWS_AS_SCORED } RowUse;
typedef struct DataConfig {
    const char *format;         /* NULL or "auto": by the first row */
    const char *train_on;       /* auto | completion | assistant | last | all */
    const char *system;         /* system message for conversations without one; NULL = none */
    const char *step_separator; /* behind each step of a stepwise row; NULL: a line end */
    const char *as;             /* auto | chat | text: rows of plain texts as turns; NULL: text. See row_form.h */
    const Yaml *columns;        /* {our name: column of the rows}; NULL: rows have our names */
    const char *turns;          /* conversations: whole | each | auto, see conversation.h; NULL: whole, for those who want one text a row */
    bool plain_control;         /* control tokens in what people wrote are words */
    const Chat *chat;           /* for rows of messages; NULL = they are refused */
    /* Preferences as those who learn from both kinds see them: which answer of a pair is trained, rows that teach nothing are passed over, and
     * answers that were not wanted count as any other. NO_PAIRS: as supervised training sees them */
    enum { NO_PAIRS, PAIRS_CHOSEN, PAIRS_REJECTED } pairs;
    struct Rejected *rejected; /* takes rows that cannot be used (lib/recipe/rejected.h); NULL: the first of them is an error */
    bool prompts;              /* rows are read as questions (row_question), of which nothing is trained; without `cache` */
    int64_t max_length;
    const char *truncation; /* error | drop | keep_start | keep_end */
    int64_t vocab_size;     /* of the model: an id outside is ST_INPUT; 0 = not checked */
    int64_t positions;      /* that the model has learned: a longer row is ST_INPUT; 0 = any number */
    ContextCount context;   /* of a model without learned positions: longer rows are counted */
    /* Of the row in work; set by those who read rows. */
    bool padded;     /* see Row */
    RowNotes *notes; /* what is odd about it goes here; NULL: nobody wants to know */
    /* Where tokenised rows are kept. */
    const char *cache;     /* folder, made when missing: found again by the content of files, tokenizer and settings; NULL: none */
    const char *scratch;   /* else a file without a name in this folder, or in the nearest one above that exists; NULL or not writable: /tmp */
    const char *tokenizer; /* cache: the folder or file the tokenizer was loaded from; NULL: none was */
    const char *program;   /* cache: name and version: another one may cut rows in another way; NULL: none */
} DataConfig;
DataConfig data_config(const Recipe *recipe, const ModelConfig *model, const Chat *chat); /* the recipe's data section; chat may be NULL */

/* A row as tokens. */
typedef struct Encoding {
    Ids ids, labels;               /* of the same length */
    bool remapped;                 /* the prompt's ids are no prefix of the row's: the border was found by characters */
    bool no_eos;                   /* the tokenizer has no EOS to end the row with */
    bool unwritten;                /* it has tool calls, tools or reasoning, which the chat template does not name */
    bool after_thought;            /* its chat template begins a thought when it asks for an answer, and writes the answer otherwise */
    double weight;                 /* the row's; see row_weight */
    int32_t marked, templates;     /* tokens of answers before any cut; those of them that the chat template wrote, as far as that can be told */
    bool conversation, has_system; /* messages; with a system message */
    Ids ends;                      /* of each of its texts, which lie one behind the other (DataConfig.turns); empty: it is one text */
} Encoding;
void encoding_release(Encoding *encoding);

/* One file data_<format>.c and one line in datasets.def each. */
typedef struct DataFormat {
    const char *name;
    const char *help;
    bool (*detect)(const json_t *row);
    /* A format of conversations says how its rows become normalised messages, a new array, and no more; `encode` and `question` are NULL then. */
    Status (*read_messages)(const json_t *row, const DataConfig *config, json_t **messages);
    /* Fills an empty encoding from one row. ST_INPUT for a row that lacks a field (the caller adds file and line). */
    Status (*encode)(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
    /* The ids that ask for what such a row answers; see row_question. */
    Status (*question)(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
    bool needs_tokenizer;
    bool takes_system; /* data.system has a place in it */
} DataFormat;
const DataFormat *data_format_find(const char *name); /* NULL when unknown */
const DataFormat *data_format_at(size_t i);           /* NULL behind the last */
/* What the fields say, for every format. */
Status data_format_encode(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
/* The same of a row that must be one text, as pairs and rows with rewards are. An answer is rendered as it is asked for, as data.turns: auto does.
 * ST_INPUT: there are several, which the template writes otherwise than when they are asked for. */
Status data_format_encode_one(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Encoding *encoding);
Status data_format_question(const DataFormat *format, const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);

/* rows, tokens, trained_tokens: what is kept; the others count rows. */
typedef struct DataCounts {
    int64_t rows, tokens, trained_tokens;
    int64_t dropped_long;                /* truncation: drop */
    int64_t cut;                         /* truncation: keep_start, keep_end */
    int64_t dropped_untrained;           /* nothing trained was left after the cut */
    int64_t untrained;                   /* kept, but no token of it is trained */
    int64_t duplicates;                  /* the same tokens and labels as an earlier row; kept */
    int64_t remapped, no_eos, unwritten; /* see Encoding */
    int64_t weighted;                    /* with a weight that is not 1 */
    ContextCount beyond;                 /* kept, but longer than the model's context */
    /* Where the first of them are: "FILE line N, ..."; in the dataset's memory, NULL when there are none */
    const char *dropped_untrained_rows, *untrained_rows;
    int64_t conversations, with_system;  /* rows of messages, and those of them with a system message */
    int64_t marked, templates;           /* tokens: see Encoding */
    int64_t as_chat, texts, untemplated; /* rows of plain texts: see RowFound */
    int64_t turned, turns, turn_tokens;  /* conversations trained turn by turn; their answers, and the tokens of all of these apart */
    int64_t after_thought;               /* rows: see Encoding */
    int64_t lost_turns;                  /* answers left out of rows that stay: data.max_length, as for rows */
    const RowNotes *notes;               /* what else was odd; the dataset's, NULL: nothing */
} DataCounts;
/* Columns and tags of an entry of dataset_info.json, under the names that file has for them; NULL: not there. */
typedef struct ColumnMap {
    bool sharegpt, ranking;
    bool plain; /* texts to go on with: the prompt's column alone */
    const char *prompt, *query, *response, *history, *messages, *system, *tools, *chosen, *rejected, *kto_tag;
    const char *role_tag, *content_tag, *user_tag, *assistant_tag, *observation_tag, *function_tag, *system_tag;
} ColumnMap;
/* An entry of data.train. */
typedef struct DataSource {
    const char *path;         /* a file, or a pattern of several; FOLDER/dataset_info.json#NAME is resolved by data_sources */
    const ColumnMap *columns; /* of that entry; NULL: rows are as they are */
    const Yaml *names;        /* as DataConfig.columns, for this source alone; NULL: those of the config */
    const char *format;       /* NULL: the config's */
    const char *separator;    /* see RowsConfig */
    int64_t max_rows;         /* over all its files; 0: all */
    /* How often an epoch takes each of its rows: 2: twice, 0.5: half of them, the others in the next epoch; 0 stands for 1 */
    double weight;
} DataSource;
typedef struct DataFile {
    const char *path, *unit, *format; /* unit of row numbers, format: NULL until a row was read */
    const char *shape;                /* the columns that told a public form of rows: see row_shape; NULL: they are ours */
    uint32_t source;
    int64_t rows; /* kept */
} DataFile;
/* Rows that somebody else keeps (pairs, prompts): what their order, their batches and messages about them need. */
typedef struct RowSource {
    const void *rows;
    int32_t (*length)(const void *rows, size_t i);
    void (*where)(const void *rows, size_t i, Str *text);
} RowSource;
/* Rows are tokenised once, into a file (see DataConfig) that is mapped: memory does not grow with them. */
typedef struct Dataset {
    size_t n;
    int64_t longest; /* tokens that a pass computes for a row */
    DataCounts counts;
    ContextCount context; /* DataConfig.context */
    const char *format;   /* of the first file with rows */
    const char *shape;    /* the same as DataFile.shape, of those who keep rows themselves */
    const char *plain_as; /* how rows of plain texts are read: see row_form_describe; NULL: there are none */
    DataSource *sources;
    size_t *source_begins; /* n_sources + 1: rows source_begins[s]..source_begins[s + 1] - 1 are of source s */
    size_t n_sources;
    DataFile *files; /* that the sources mean */
    size_t n_files;
    struct RowPlace {
        uint32_t file, line;
    } * lost; /* the first of counts.dropped_untrained */
    size_t n_lost;
    RowNotes notes;
    bool prompts; /* see DataConfig */
    bool cached;  /* found tokenised */
    struct Store *store;
    uint64_t *taken; /* rows of the store that dataset_split held out, in order; NULL: none */
    size_t n_held_out_rows;
    bool held_out; /* these rows are the dataset; else all others are */
    Arena *arena;  /* NULL: all of it is borrowed from the dataset that was split */
    /* Instead of a store: n, longest, counts.tokens and sources are the owner's to set, DataOrder and DataPlan to use; nothing is to be freed */
    RowSource row_source;
} Dataset;
/* Reads a key such as data.train: a scalar, a list of scalars, or a list of maps. ST_CONFIG. */
Status data_sources(const Yaml *node, const char *key, Arena *arena, DataSource **sources, size_t *n);
/* For those who keep rows themselves (RowSource). */
typedef struct SourceReader {
    const DataConfig *config; /* of its fields `as`, `columns` and `chat` count */
    RowUse use;
    bool widen;         /* see RowsConfig */
    const size_t *kept; /* rows so far, of all sources */
    /* One row of a source. row->file lives as long as the arena; failures get its name and the line */
    Status (*take)(void *context, const DataSource *source, const Row *row);
    void *context;
} SourceReader;
/* All rows of a key such as data.train, file by file; fills sources and source_begins of table. ST_CONFIG, ST_INPUT, what `take` fails with. */
Status data_sources_read(const Yaml *node, const char *key, const SourceReader *reader, Arena *arena, Dataset *table);
/* Reads and tokenises all rows, or finds them tokenised. ST_INPUT with file and line: no JSON, a missing field, an unknown id, an empty result.
 * ST_RESOURCE: the disk is full. The same bytes for any number of threads; of several bad rows the first is named. Prints nothing: counts tell what
 * was dropped or cut. Strings of sources are borrowed. */
Status dataset_load(const DataConfig *config, const DataSource *sources, size_t n_sources, const Tokenizer *tokenizer, Dataset **dataset);
void dataset_free(Dataset *dataset);
Example dataset_example(const Dataset *dataset, size_t i);
int32_t dataset_length(const Dataset *dataset, size_t i);                         /* tokens that a pass computes */
int64_t dataset_tokens(const Dataset *dataset, const size_t *examples, size_t n); /* of n of them together */
uint64_t dataset_fingerprint(const Dataset *dataset);                             /* of all rows and their weights, in order */
/* How many of n rows a share holds out: at least one, and one is left. ST_INPUT when there are not two. */
Status held_out_count(size_t n, double share, size_t *wanted);
/* Takes `share` of the rows (by seed) out of `dataset` into a second one, which borrows from it and takes each row once an epoch. */
Status dataset_split(Dataset *dataset, double share, uint64_t seed, Dataset **held_out);
/* Rows of a file one after the other: .jsonl, .json (an array of objects, or an object of columns), .csv and .tsv (with a header), .txt (rows
 * {"text"}), each also .gz and .zst, and .parquet. Memory does not grow with the file, but for .json columns and a .txt that is one document. Stops
 * at the first error; ST_INPUT names the file and the place in it. `read` keeps the json only during the call. */
typedef Status RowCallback(void *context, const Row *row);
typedef struct RowsConfig {
    int64_t max_rows; /* 0: all */
    /* .txt: what stands between documents; NULL: the file is one document. Line ends around a document are not part of it, blank documents are none
     */
    const char *separator;
    bool widen; /* JSON: numbers of columns that nobody uses may be any (json_load_row); not where `json` is written or handed on */
    /* A row that cannot be read, such as a line that is no JSON or a record with a cell too many, with its failure in this thread and its `text`:
     * ST_OK goes on behind it. NULL: it ends the reading */
    Status (*bad)(void *context, const Row *row);
} RowsConfig;
Status rows_read(const char *path, RowCallback *read, void *context);
/* The first max_rows of them. */
Status rows_read_some(const char *path, int64_t max_rows, RowCallback *read, void *context);
/* As `config` says. */
Status rows_read_as(const char *path, const RowsConfig *config, RowCallback *read, void *context);
/* The files that a path with * ? [...] means, sorted by bytes; a path that exists, or has none of these characters, means itself. ST_INPUT when no
 * file matches. */
Status rows_expand(const char *pattern, Arena *arena, const char ***paths, size_t *n);
/* For those who use a model on rows. A row as a question: its prompt, or its conversation up to the answer, with the generation prompt; of a whole
 * training row what comes before the (last) trained part. A row as a whole: all of its tokens, a prompt and its completion as one text; BOS where the
 * tokenizer adds it, EOS only where the chat template writes it. Rows are told by their columns. ST_INPUT. */
Status row_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* The messages of a conversation's question, without the answer that it may end with: a new list, NULL where the row is no conversation. ST_INPUT. */
Status row_question_messages(const json_t *row, json_t **messages);
/* The messages of a conversation as they are rendered, all of them: a new list, NULL where the row is no conversation; with config->as: chat also of
 * plain texts. ST_INPUT. */
Status row_messages(const json_t *row, const DataConfig *config, json_t **messages);
Status row_whole(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);
/* ids of `text` with BOS where the post-processor adds it and the text does not begin with it; EOS never. */
Status encode_prompt(const Tokenizer *tokenizer, const char *text, size_t len, Ids *ids);
/* The same, with control tokens as the config says. */
Status encode_prompt_as(const Tokenizer *tokenizer, const DataConfig *config, const char *text, size_t len, Ids *ids);
/* A prompt and what is to be answered, as one row with EOS at its end: trained from the border on, or everywhere with train_on: all. The ids are
 * those of the whole text. */
Status encode_pair(const Tokenizer *tokenizer, const DataConfig *config, const char *prompt, const char *completion, Encoding *encoding);
/* The row's `weight`, which each of its tokens' losses is multiplied by; 1 without one, 0: the row is not trained. ST_INPUT for what is no such
 * number. */
Status row_weight(const json_t *row, double *weight);
/* What the formats are and which columns tell them, for messages. */
void data_formats_list(Str *text);
/* ST_INPUT naming the first id that is not in the vocabulary, and its position. vocab_size 0: any id from 0 on. */
Status ids_check(const Ids *ids, int64_t vocab_size);
/* The ST_INPUT of `n` tokens where data.truncation lets no row have more than max_length. what: "row" */
Status row_too_long(const char *what, size_t n, int64_t max_length);
/* ST_INPUT for a row of more tokens than the model has positions for. positions 0: it takes any number. */
Status positions_check(size_t n, int64_t positions);
/* A text column of a row; ST_INPUT when it is missing or no string. */
Status row_text(const json_t *row, const char *key, const char **text);

/* What was dropped, cut or odd, one sentence each; `say` is called for each of them. */
void data_counts_warn(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context);
/* That conversations are trained turn by turn, in one sentence; nothing where none is. */
void data_turns_report(const DataCounts *counts, const char *what, void (*say)(void *context, const char *text), void *context);
/* "messages: 812 rows" of each file; the rest in one sentence when there are very many. */
void data_files_report(const Dataset *dataset, void (*say)(void *context, const char *text), void *context);
/* "FILE line N" of an example. */
void dataset_where(const Dataset *dataset, size_t example, Str *text);

/* Which examples an epoch takes, and in which order: a function of (seed, epoch, index) alone, the same on any machine. With shuffle off: file order.
 * A source of weight w gives the rows w n epoch .. w n (epoch + 1) of an endless stream that goes through its n rows again and again (in a new order
 * each time when shuffled). */
typedef struct DataOrder {
    const Dataset *dataset;
    uint64_t seed;
    bool shuffle;
} DataOrder;
int64_t data_order_count(const DataOrder *order, int64_t epoch);            /* examples of the epoch */
size_t data_order_at(const DataOrder *order, int64_t epoch, int64_t index); /* example number */
size_t data_order_place(const DataOrder *order, int64_t place);             /* the same of all epochs one behind the other, place from 0 */

/* The run's optimiser steps: `accumulation` batches each, the last one of an epoch has what is left. A batch has `batch_size` rows, or is filled with
 * at most `batch_tokens` tokens: shuffled rows are packed best-fit, window by window of the epoch's order; rows in file order are taken as they come.
 * Memory does not grow with the rows, but for a few bytes for each window. */
typedef struct DataPlan {
    DataOrder order;
    int64_t batch_size, batch_tokens, accumulation; /* batch_tokens 0: by rows */
    int64_t epoch, n_rows, n_batches;               /* of the epoch used last; -1: none */
    int64_t n_windows, *window_batches;             /* batch_tokens: batches before each of its windows, and of all */
    struct PackedWindow *window;                    /* the one used last */
    int64_t *first_steps, n_epochs, cap_epochs;     /* first_steps[e]: steps before epoch e, for those that were needed so far */
} DataPlan;
/* steps_before, epoch_steps: of the epoch */
typedef struct PlanStep {
    int64_t epoch, first_batch, n_batches;
    int64_t steps_before, epoch_steps;
} PlanStep;
void data_plan_init(DataPlan *plan, const DataOrder *order, int64_t batch_size, int64_t batch_tokens, int64_t accumulation);
void data_plan_release(DataPlan *plan);
/* These fail with ST_INPUT, file and line for a row longer than batch_tokens. */
Status data_plan_total(DataPlan *plan, double epochs, int64_t *steps); /* a part of an epoch counts its steps rounded up */
Status data_plan_step(DataPlan *plan, int64_t step, PlanStep *at);
Status data_plan_epoch(DataPlan *plan, int64_t epoch, int64_t *n_batches);
double data_plan_epochs(DataPlan *plan, int64_t steps); /* that so many steps have gone through; 0 where the plan fails */
/* Examples of a batch; *examples grows as needed, free it. */
Status data_plan_batch(DataPlan *plan, int64_t epoch, int64_t batch, size_t **examples, size_t *n);
/* Examples of the batch with the most tokens among the first `steps` steps; with very many rows a bound: the longest rows together. */
Status data_plan_largest(DataPlan *plan, int64_t steps, size_t **examples, size_t *n);
/* The largest that goes through the model at once where batches are cut into parts of at most `most_tokens` tokens (0: they are not): the largest
 * batch if it has no more, else the longest row that is a part by itself, or rows, the longest first, that fill a part. */
Status data_plan_largest_part(DataPlan *plan, int64_t steps, int64_t most_tokens, size_t **examples, size_t *n);

/* A flat batch without padding: one segment per text of an example, or per branch. */
typedef struct Batch {
    ModelBatch model;
    int32_t *ids;
    Segment *segments;
    int32_t *rows, *targets; /* n_targets: hidden row rows[i] predicts targets[i] */
    double *weights;         /* n_targets: of the rows that the targets belong to */
    int64_t n_targets;
    size_t cap_tokens, cap_segments;
} Batch;
/* A trained token is the target of the position before. Reuses the batch's memory. */
Status batch_build(const Dataset *dataset, const size_t *examples, size_t n, Batch *batch);
void batch_release(Batch *batch);

#endif
