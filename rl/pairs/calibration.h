/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration of probabilities: how far the share of right predictions is from their confidence. If 80 % of the predictions made with a confidence of
 * 80 % are right, the error is 0.
 *
 *     Calibration c = {0};
 *     for (...) calibration_add(&c, sigmoid(margin), 1);
 *     double worse_than_known = calibration_brier(&c), off = calibration_error(&c);
 */
#ifndef TUNE_CALIBRATION_H
#define TUNE_CALIBRATION_H

enum { CALIBRATION_BINS = 10 };
/* Bins by the confidence of the more likely side: bin b starts at confidence 0.5 + b / 20. */
typedef struct Calibration {
    /* Of each bin: number of predictions, sum of their confidences, number of right ones. Of all: sum of (p - truth)^2, number of predictions */
    double n[CALIBRATION_BINS], confidence[CALIBRATION_BINS], right[CALIBRATION_BINS], squares, total;
} Calibration;
/* Adds a prediction of probability p and the truth: 1, 0, or a probability. */
void calibration_add(Calibration *calibration, double p, double truth);
/* Mean of (p - truth)^2; always predicting one half gives 0.25. NaN without predictions. Source: Brier 1950. */
double calibration_brier(const Calibration *calibration);
/* Expected calibration error: mean distance between confidence and accuracy over ten bins of confidence. NaN without predictions. Source: arXiv
 * 1706.04599, equation 3. */
double calibration_error(const Calibration *calibration);

#endif
