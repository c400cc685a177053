/* SPDX-License-Identifier: Apache-2.0 */
/* Files that commands write. */
#ifndef TUNE_RESULTS_H
#define TUNE_RESULTS_H

#include "lib/base/file.h"
#include "lib/base/str.h"

/* ST_CONFIG when a file that is to be written is one of the inputs, under whatever name: a file, or one that makes up the model or adapter in a
 * directory. NULLs among them are passed over. */
Status check_output(const char *output, const char *const *inputs, size_t n);
/* ST_CONFIG when a page (or drawing) would take the place of a file that is none. path NULL: nothing. */
Status check_page(const char *path);
/* Lines of results: to stdout when path is NULL, else to a file that appears whole. */
typedef struct ResultFile {
    bool to_file;
    FileWriter writer;
    size_t n;
} ResultFile; /* n: lines */
Status result_open(ResultFile *result, const char *path);
Status result_line(ResultFile *result, const Str *line); /* fails once the file could not be written */
Status result_flush(ResultFile *result);                 /* tells that before it is closed */
/* The file appears when status is fine; else the lines so far are kept as FILE.partial, and a warning says so. Returns it, or the write's */
Status result_close(ResultFile *result, Status status);

#endif
