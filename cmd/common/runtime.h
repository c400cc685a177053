/* SPDX-License-Identifier: Apache-2.0 */
/* What commands compute on. */
#ifndef TUNE_RUNTIME_H
#define TUNE_RUNTIME_H

#include "lib/tensor/tensor.h"

/* The program's device, which only this function names, and the dtype of an option or key: auto, f32 or bf16; NULL: auto. */
Runtime runtime_choose(const char *compute);

#endif
