/* SPDX-License-Identifier: Apache-2.0 */
/* The type in which matrices are multiplied, as options and recipes name it. */
#ifndef TUNE_COMPUTE_H
#define TUNE_COMPUTE_H

#include "lib/tensor/tensor.h"

DType compute_auto(void);                  /* bf16 if the processor multiplies bf16 natively, else f32 */
DType compute_from_text(const char *text); /* auto | f32 | bf16; the text must be valid */

#endif
