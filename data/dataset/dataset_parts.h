/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of dataset.c: reading rows into the store, and facts about the dataset. */
#ifndef TUNE_DATASET_PARTS_H
#define TUNE_DATASET_PARTS_H

#include "data/data.h"
#include "data/formats/row_form.h"
#include "data/dataset/store.h"
#include "lib/recipe/rejected.h"

enum { PLACES_SHOWN = 8 }; /* number of rows that a message names */

/* ---- rows to the store: dataset_rows.c ---- */

/* A row that is being tokenised. */
typedef struct Slot Slot;
typedef struct Loader {
    Dataset *dataset;
    const DataConfig *config;
    const Tokenizer *tokenizer;
    RowForm form;
    const DataFormat *format;  /* of the current file; NULL until its first row */
    const char *wanted_format; /* NULL = detected by the first row */
    uint32_t file;
    int64_t rows_read; /* of the current source */
    struct BadRows {
        int64_t n;
        Failure first;
    } * bad;                 /* of each source, with config->rejected */
    RejectedMark before;     /* index of this dataset's first row in config->rejected */
    Slot *slots;             /* the current block: BLOCK_ROWS slots, n_slots of them filled */
    size_t n_slots, waiting; /* waiting: approximate bytes of the texts in the block */
    int64_t n_encoded;       /* rows of earlier blocks */
    uint64_t read, to_read;  /* bytes read, and bytes of all files; 0 = unknown, as for compressed files */
    StoreWriter *writer;
} Loader;

/* Tokenises all files of the dataset, row by row, into loader->writer. ST_INPUT with file and line; of several bad rows the first is named. */
Status loader_read(Loader *loader);

/* ---- facts about the dataset: dataset_about.c ---- */

/* Writes the facts that the table of rows does not contain as an object, and reads them back. before: index of the first row left out in `rejected`;
 * NULL: none are. ST_INPUT: the store was not made from these files. */
void about_write(Dataset *dataset, const Rejected *rejected, RejectedMark before, JsonWriter *w);
Status about_read(Dataset *dataset, Rejected *rejected);
Status about_duplicates(const Store *store, int64_t *duplicates); /* counts rows that equal an earlier one. ST_RESOURCE */

#endif
