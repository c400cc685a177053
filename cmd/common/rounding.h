/* SPDX-License-Identifier: Apache-2.0 */
/* The option --activations of commands that decode or score, and how far its results are from exact ones. */
#ifndef TUNE_ROUNDING_H
#define TUNE_ROUNDING_H

#include "cmd/common/open.h"
#include "lib/base/json.h"

typedef struct Rounding {
    const char *text; /* of the option; NULL: exact */
    bool on;          /* activations are rounded to 8 bits */
    int64_t tokens;   /* on which kl was measured; 0: it was not */
    double kl;        /* mean of KL(exact || rounded) over these tokens, nats */
} Rounding;
#define ACTIVATIONS_OPTION(rounding)                                                             \
    {                                                                                            \
        "--activations", OPTION_TEXT, &(rounding).text, "exact|int8",                            \
            "int8: products with quantised weights round activations to 8 bits, which is faster" \
    }
/* Applies the option to all products from now on. int8: measures kl on a few tokens, and prints a line about it. That takes
 * less than a second on two cores for models of up to about 0.6 G weights; larger ones run the least number of tokens, which takes longer. With
 * --quiet it measures only if that is `needed`. ST_USAGE: int8, and the model has no quantised weights; else fails as a forward pass does. */
Status rounding_choose(const Command *command, const OpenedModel *opened, bool needed, Rounding *rounding);
void rounding_write(JsonWriter *w, const Rounding *rounding); /* adds "activations_kl" to an object, if it was measured */

#endif
