/* SPDX-License-Identifier: Apache-2.0 */
/* Files that commands write. */
#ifndef TUNE_RESULTS_H
#define TUNE_RESULTS_H

#include "lib/base/file.h"
#include "lib/base/str.h"

/* ST_CONFIG if writing `output` would overwrite an input, even under another name: an input file, or a file of the model or adapter in an input
 * directory. NULL inputs are skipped. */
Status check_output(const char *output, const char *const *inputs, size_t n);
/* ST_CONFIG if a page or drawing would overwrite a file that is not one. path may be NULL. */
Status check_page(const char *path);
/* Lines of results, to stdout if path is NULL, else to a file that appears when it is complete. */
typedef struct ResultFile {
    bool to_file;
    FileWriter writer;
    size_t n;
} ResultFile; /* n: lines so far */
Status result_open(ResultFile *result, const char *path);
Status result_line(ResultFile *result, const Str *line); /* fails after a failed write to the file */
Status result_flush(ResultFile *result);                 /* writes what is buffered; reports a failed write before the file is closed */
/* If status is ST_OK, the file appears under its name; else the lines so far are kept as FILE.partial with a warning. Returns status, or the
 * failure of the last write. */
Status result_close(ResultFile *result, Status status);

#endif
