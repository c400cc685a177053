/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the rating in a judge's words: "Score: 8/10", "I give it 7 out of 10.", "8". */
#ifndef TUNE_RATING_H
#define TUNE_RATING_H

/* The rating of a text, by the first rule that applies: a number alone on the last line; the number after the last word "score" or "rating", or after
 * "total:" (of "3 + 2 + 3 = 8" the sum); the last number within low..high, preferably one with its scale. Ends of scales ("/10", "out of 10") and
 * ranges ("0-10") do not count. NaN: there is no rating, or the number found by the first two rules is out of range. */
double rating_of(const char *text, double low, double high);

#endif
