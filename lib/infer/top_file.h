/* SPDX-License-Identifier: Apache-2.0 */
/* A file of what a model says of some rows: at each token the k tokens that it finds likeliest, with their log-probabilities. A teacher is asked
 * once, and is not in memory while students learn from the file.
 *
 *     TRY(top_writer_open("teacher.safetensors", &(TopShape){.k = 64, .vocab = 49152, .n_tokens = n_tokens, .n_rows = n_rows}, &writer));
 *     for each row: top_writer_add(writer, ids, n, top);        // top: as score_top gives it
 *     return top_writer_close(writer, status);
 *
 * safetensors with T tokens of R rows, one row after the other: tokens I32 (T), lengths I32 (R): the rows themselves, by which a row is found again;
 * ids I32 (T, k), logprobs F16 or F32 (T, k): of the distribution that the token was drawn from, the likeliest first; rest F32 (T): log-probability
 * of all other tokens together; vocabulary I32 (1). Nothing precedes the first token of a row: its ids are -1, its rest is 0.
 */
#ifndef TUNE_TOP_FILE_H
#define TUNE_TOP_FILE_H

#include "lib/infer/infer.h"

typedef struct TopShape {
    int64_t k, vocab, n_tokens, n_rows;
    DType dtype; /* of log-probabilities: DT_F16 or DT_F32 */
} TopShape;
typedef struct TopWriter TopWriter;
/* Starts a file, which appears complete or not at all. The number of rows and tokens must be known. Memory does not grow with them: half of the file
 * waits in a second, hidden one. ST_INPUT, ST_RESOURCE, as writer_open. */
Status top_writer_open(const char *path, const TopShape *shape, TopWriter **writer);
/* Adds a row of n tokens. top: (n, k), see score_top. A failure is kept and returned by top_writer_close. */
void top_writer_add(TopWriter *writer, const int32_t *ids, size_t n, const TokenLogprob *top);
/* Ends the file, or with another status than ST_OK removes it. Frees the writer. Returns status, or the first failure of writing. */
Status top_writer_close(TopWriter *writer, Status status);

typedef struct TopFile TopFile;
/* Opens and checks a file; reads its rows, not its log-probabilities. ST_INPUT: not such a file; ST_RESOURCE. */
Status top_file_open(const char *path, TopFile **file);
void top_file_close(TopFile *file); /* NULL is fine */
TopShape top_file_shape(const TopFile *file);
uint64_t top_file_fingerprint(const TopFile *file); /* a hash of its rows and of their rests */
/* The place of a row's first token among all tokens; -1: the file has no row of exactly these tokens. */
int64_t top_file_find(const TopFile *file, const int32_t *ids, size_t n);
/* Reads one token's k likeliest tokens, k at most the file's, and k + 1 log-probabilities, the last one of all other tokens; together they are a
 * distribution. ST_INPUT names the file and the place: an id outside of `vocab`, no distribution. */
Status top_file_read(const TopFile *file, int64_t place, int64_t k, int64_t vocab, int32_t *ids, float *logprobs);
/* Lets the system reclaim the memory of n tokens from `place` on, after they were read. */
void top_file_drop(const TopFile *file, int64_t place, int64_t n);

#endif
