/* From files to batches of tokens: readers and formats -> rows -> examples -> flat batches.
 *
 *     Dataset *dataset;
 *     TRY(dataset_load(&(DataConfig){.max_length = 1024}, paths, n_paths, tokenizer, &dataset));
 *     Batch batch = {0};
 *     TRY(batch_build(dataset, order, n, &batch));
 *     // batch.model.ids, batch.model.layout: what model_forward takes; batch.rows, batch.targets, batch.weights: what op_token_logprobs and the loss take
 */
#ifndef TUNE_DATA_H
#define TUNE_DATA_H

#include "lib/text/text.h"
#include "lib/train/train.h"

enum { LABEL_NONE = -100 }; /* a position that carries no loss, as in HF */

/* A row as the file has it, in one of the known forms. Strings are borrowed from `json`. */
typedef struct Row { json_t *json; const char *file; size_t line; } Row; /* line from 1; for .json arrays: the element's number */

/* One sequence to train on: ids, and at each position the label it should have been predicted as, or LABEL_NONE (in place, not shifted). */
typedef struct Example { const int32_t *ids, *labels; int32_t n, trained; uint32_t file; uint32_t row; } Example;

typedef struct DataConfig {
    const char *format;      /* NULL or "auto": by the first row */
    const char *train_on;    /* auto | completion | all */
    int64_t max_length;
    const char *truncation;  /* error | drop | keep_start | keep_end */
    int64_t vocab_size;      /* of the model: an id outside is ST_INPUT; 0 = not checked */
} DataConfig;

/* One file data_<format>.c and one line in datasets.def each. */
typedef struct DataFormat {
    const char *name;
    const char *help;
    bool (*detect)(const json_t *row);
    /* Appends ids and labels of one row. ST_INPUT for a row that lacks a field (the caller adds file and line). */
    Status (*encode)(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids, Ids *labels);
    bool needs_tokenizer;
} DataFormat;
const DataFormat *data_format_find(const char *name);
const DataFormat *data_format_at(size_t i);

typedef struct DataCounts { int64_t rows, tokens, trained_tokens, dropped_long, cut, dropped_untrained, duplicates; } DataCounts;
typedef struct DataSource { const char *path; const char *format; } DataSource; /* format NULL: the config's */
typedef struct Dataset {
    Example *examples;
    size_t n;
    int64_t longest;         /* tokens */
    DataCounts counts;
    const char *format;      /* what was used (of the first source) */
    DataSource *sources;
    size_t n_sources;
    Arena *arena;
} Dataset;
/* Reads a key such as data.train: a scalar, a list of scalars, or a list of maps. ST_CONFIG. */
Status data_sources(const Yaml *node, const char *key, Arena *arena, DataSource **sources, size_t *n);
/* Reads all rows. ST_INPUT with file and line: no JSON, a missing field, an unknown id, an empty result. Prints nothing: counts tell what was dropped or cut. */
Status dataset_load(const DataConfig *config, const DataSource *sources, size_t n_sources, const Tokenizer *tokenizer, Dataset **dataset);
void dataset_free(Dataset *dataset);
/* Takes `share` of the examples (by seed) out of `dataset` into a second one that borrows its memory. */
Status dataset_split(Dataset *dataset, double share, uint64_t seed, Dataset **held_out);
/* Rows of a file one after the other, for other users of rows (generate, score). Stops at the first error. `read` keeps the json only during the call. */
Status rows_read(const char *path, Status (*read)(void *context, const Row *row), void *context);
/* Text of an Alpaca row's prompt: Stanford's wording. */
void alpaca_prompt(const char *instruction, const char *input, Str *text);
/* ids of `text` with BOS where the post-processor adds it and the text does not begin with it; EOS never. */
Status encode_prompt(const Tokenizer *tokenizer, const char *text, size_t len, Ids *ids);

/* Which examples a step trains on: a function of (seed, epoch, index) alone. */
typedef struct DataOrder { const Dataset *dataset; uint64_t seed; bool shuffle; } DataOrder;
size_t data_order_at(const DataOrder *order, int64_t epoch, int64_t index); /* example number */
/* Accumulation steps of one epoch: rows grouped into batches of `batch_size` rows or of at most `batch_tokens` tokens; starts[i]..starts[i+1] are the indexes of batch i. */
Status data_epoch_batches(const DataOrder *order, int64_t epoch, int64_t batch_size, int64_t batch_tokens, int64_t **starts, int64_t *n_batches); /* free(*starts) */

/* A flat batch without padding: one segment per example. */
typedef struct Batch {
    ModelBatch model;
    int32_t *ids;
    Segment *segments;
    int32_t *rows, *targets;  /* n_targets: hidden row rows[i] predicts targets[i] */
    int64_t n_targets;
    size_t *examples;         /* for messages */
    size_t n_examples;
    size_t cap_tokens, cap_segments;
} Batch;
Status batch_build(const Dataset *dataset, const size_t *examples, size_t n, Batch *batch); /* reuses the batch's memory */
void batch_release(Batch *batch);

#endif
