/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of dataset.c: reading rows into the store, and what is kept and said about the whole. */
#ifndef TUNE_DATASET_PARTS_H
#define TUNE_DATASET_PARTS_H

#include "data/data.h"
#include "data/formats/row_form.h"
#include "data/dataset/store.h"
#include "lib/train/rejected.h"

enum { PLACES_SHOWN = 8 }; /* of rows that something is said of */

/* ---- rows to the store: dataset_rows.c ---- */

/* A row on its way to tokens. */
typedef struct Slot Slot;
typedef struct Loader {
    Dataset *dataset;
    const DataConfig *config;
    const Tokenizer *tokenizer;
    RowForm form;
    const DataFormat *format;  /* of the current file; NULL until its first row */
    const char *wanted_format; /* NULL = by the first row */
    uint32_t file;
    int64_t rows_read; /* of the current source */
    struct BadRows {
        int64_t n;
        Failure first;
    } * bad;                 /* of each source, with config->rejected */
    RejectedMark before;     /* where these rows begin in config->rejected */
    Slot *slots;             /* the block: BLOCK_ROWS, of which n_slots wait */
    size_t n_slots, waiting; /* waiting: bytes of their texts, about */
    int64_t n_encoded;       /* rows of earlier blocks */
    uint64_t read, to_read;  /* bytes of the files' lines, and of all files; 0 = not known, as of packed ones */
    StoreWriter *writer;
} Loader;

/* All files of the dataset, row by row, into loader->writer. ST_INPUT with file and line; of several bad rows the first is named. */
Status loader_read(Loader *loader);

/* ---- what is known about the whole: dataset_about.c ---- */

/* What the table of rows does not tell, as an object, and back. before: where the rows left out begin in `rejected`; NULL: none are. ST_INPUT: the
 * store was not made from these files. */
void about_write(Dataset *dataset, const Rejected *rejected, RejectedMark before, JsonWriter *w);
Status about_read(Dataset *dataset, Rejected *rejected);
Status about_duplicates(const Store *store, int64_t *duplicates); /* rows that are the same as an earlier one. ST_RESOURCE */

#endif
