/* SPDX-License-Identifier: Apache-2.0 */
/* Whether probabilities mean what they say: of the statements made with 80 %, are 80 % right?
 *
 *     Calibration c = {0};
 *     for (...) calibration_add(&c, sigmoid(margin), 1);
 *     double worse_than_known = calibration_brier(&c), off = calibration_error(&c);
 */
#ifndef TUNE_CALIBRATION_H
#define TUNE_CALIBRATION_H

enum { CALIBRATION_BINS = 10 };
/* By how sure the more likely side was: bin b holds confidences from 0.5 + b / 20 on. */
typedef struct Calibration {
    double n[CALIBRATION_BINS], confidence[CALIBRATION_BINS], right[CALIBRATION_BINS], squares, total;
} Calibration;
/* A statement of probability p, and how true it was: 1, 0, or a share between. */
void calibration_add(Calibration *calibration, double p, double truth);
/* Mean of (p - truth)^2; 0.25 is what always saying one half gives. NaN without statements. Source: Brier 1950. */
double calibration_brier(const Calibration *calibration);
/* Expected calibration error: mean distance between confidence and share right, of ten bins by confidence. NaN without statements. Source: arXiv
 * 1706.04599, equation 3. */
double calibration_error(const Calibration *calibration);

#endif
