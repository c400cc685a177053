/* SPDX-License-Identifier: Apache-2.0 */
/* Products of activations in codes of 8 bits with quantised weights: faster, with other results than those of dequantised weights. */
#ifndef TUNE_ACTIVATIONS_H
#define TUNE_ACTIVATIONS_H

#include <stdbool.h>

/* From now on, products of the CPU device with a weight whose codes are integers (all quantised forms but NF4, FP4, MXFP4, 8-bit floats, q2_k, q3_k
 * and act-order) first round the other factor: of each 32 elements of a row, to codes -127..127 times (largest magnitude / 127). An element is off by
 * at most 1/254 of the largest magnitude among the 32, so a result is off by at most the sum over the blocks of that bound times the sum of the
 * magnitudes of the weights. The bits depend neither on the threads nor on the instruction set. Only for decoding and scoring: gradients are those of
 * exact products. The reference device ignores it. */
void cpu_round_activations(bool on);

#endif
