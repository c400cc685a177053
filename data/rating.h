/* SPDX-License-Identifier: Apache-2.0 */
/* What a judge's words rate something with: "Score: 8/10", "I give it 7 out of 10.", "8". */
#ifndef TUNE_RATING_H
#define TUNE_RATING_H

/* A number that has the last line for itself; else the one behind the last word "score" or "rating", or "total:", that has one, of "3 + 2 + 3 = 8"
 * the sum; else the last within low..high, one with its scale before others. Ends of scales ("/10", "out of 10") and ranges ("0-10") are none. NaN:
 * there is none, or the one that is named so is not within. */
double rating_of(const char *text, double low, double high);

#endif
