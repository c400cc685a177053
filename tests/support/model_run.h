/* SPDX-License-Identifier: Apache-2.0 */
/* A model that runs on one short row, and the golden values that it is compared with.
 *
 *     ModelRun run;
 *     model_run_open(&run, dir, device_reference(), DT_F64);
 *     int64_t n = stored_ids(expected, 0, run.ids);
 *     model_run_ids(&run, n);
 *     double *logits = model_run_logits(&run, &count);      // the caller frees it
 *     model_run_close(&run);
 *
 * Every failure fails the test.
 */
#ifndef TUNE_MODEL_RUN_H
#define TUNE_MODEL_RUN_H

#include "lib/model/model.h"
#include "lib/model/weight_file.h"

enum { MODEL_RUN_MOST = 256 };
typedef struct ModelRun {
    Model *model;
    Tape *tape;
    int32_t ids[MODEL_RUN_MOST], rows[MODEL_RUN_MOST];
    Segment segment;
    ModelBatch batch;
} ModelRun;
void model_run_open(ModelRun *run, const char *dir, const Device *device, DType compute);
void model_run_close(ModelRun *run);
void model_run_ids(ModelRun *run, int64_t n); /* the next pass is over the first n of run->ids; keeps batch.loads */
double *model_run_logits(ModelRun *run, size_t *count);
/* Adds the gradient of the summed -log p / n_total of the next tokens; returns the sum. */
double model_run_backward(ModelRun *run, double n_total);

int64_t stored_ids(const WeightFile *set, int s, int32_t *ids); /* tensor "seq<s>.input_ids"; returns its length, at most MODEL_RUN_MOST */
/* Compares with the tensor `name` of the set. */
void check_stored(const char *what, const double *got, const WeightFile *set, const char *name, double tolerance);
WeightFile *weights_open(const char *dir, const char *name);

#endif
