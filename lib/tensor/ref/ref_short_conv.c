/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of short convolutions. */
#include "lib/tensor/ref/ref.h"

typedef struct Conv {
    const ShortConvArgs *args;
    const Segment *segments;
    const Tensor *x, *weight, *bias;
    int64_t width, taps;
} Conv;

static Conv conv_of(const ShortConvArgs *args, const Tensor *x, const Tensor *weight, const Tensor *bias) {
    return (Conv){args, layout_segments(args->layout), x, weight, bias, weight->shape[0], weight->shape[2]};
}

/* B, C or X (part 0, 1, 2) of a row. */
static double part_of(const Conv *conv, int64_t row, int part, int64_t c) { return element_get(conv->x, (3 * row + part) * conv->width + c); }

/* Where product n (the first one is 0) of a segment's state is. */
static int64_t state_at(const Conv *conv, int32_t s, int64_t n, int64_t c) {
    return (conv->segments[s].state * (conv->taps - 1) + n) * conv->width + c;
}

/* The product B X of the token `back` tokens before `row`. */
static double product_of(const Conv *conv, int32_t s, int64_t row, int64_t back, int64_t c) {
    int64_t from = layout_before(conv->segments, s, row, back);
    if (from >= 0) return part_of(conv, from, 0, c) * part_of(conv, from, 2, c);
    bool kept = conv->args->states && conv->segments[s].past > 0;
    return kept ? element_get(conv->args->states, state_at(conv, s, conv->taps - 1 + from, c)) : 0;
}

static double tap_of(const Conv *conv, int64_t back, int64_t c) { return element_get(conv->weight, (c + 1) * conv->taps - 1 - back); }

static double sum_of(const Conv *conv, int32_t s, int64_t row, int64_t c) {
    double sum = conv->bias ? element_get(conv->bias, c) : 0;
    for (int64_t back = conv->taps - 1; back >= 0; back--) sum += tap_of(conv, back, c) * product_of(conv, s, row, back, c);
    return sum;
}

/* In order of the new products: an old one moves to an earlier place. */
static void state_shift(const Conv *conv, int32_t s) {
    for (int64_t n = 0; n < conv->taps - 1; n++)
        for (int64_t c = 0; c < conv->width; c++)
            element_set(conv->args->states, state_at(conv, s, n, c), product_of(conv, s, conv->segments[s].end, conv->taps - 1 - n, c));
}

void ref_short_conv(const ShortConvArgs *args, const Tensor *x, const Tensor *weight, const Tensor *bias, Tensor *y) {
    const Conv conv = conv_of(args, x, weight, bias);
    for (int32_t s = 0; s < args->layout->n_segments; s++)
        for (int64_t row = conv.segments[s].begin; row < conv.segments[s].end; row++)
            for (int64_t c = 0; c < conv.width; c++) element_set(y, row * conv.width + c, part_of(&conv, row, 1, c) * sum_of(&conv, s, row, c));
    for (int32_t s = 0; args->states && s < args->layout->n_segments; s++) state_shift(&conv, s);
}

/* The gradient of a product `back` tokens before `row`, as far as it comes from the tokens from `row` on. */
static double later_grad(const Conv *conv, const Tensor *dy, int32_t s, int64_t row, int64_t back, int64_t c) {
    double sum = 0;
    for (; row < conv->segments[s].end && back < conv->taps; row++, back++)
        sum += tap_of(conv, back, c) * element_get(dy, row * conv->width + c) * part_of(conv, row, 1, c);
    for (int32_t child = s + 1; back < conv->taps && child < conv->args->layout->n_segments; child++)
        if (conv->segments[child].parent == s) sum += later_grad(conv, dy, child, conv->segments[child].begin, back, c);
    return sum;
}

void ref_short_conv_backward(const ShortConvArgs *args, const Tensor *x, const Tensor *weight, const Tensor *bias, const Tensor *dy, double beta,
                             Tensor *dx, Tensor *dweight, Tensor *dbias) {
    const Conv conv = conv_of(args, x, weight, bias);
    for (int32_t s = 0; s < args->layout->n_segments; s++)
        for (int64_t row = conv.segments[s].begin; row < conv.segments[s].end; row++)
            for (int64_t c = 0; c < conv.width; c++) {
                double d = element_get(dy, row * conv.width + c), gated = d * part_of(&conv, row, 1, c);
                for (int64_t back = 0; dweight && back < conv.taps; back++)
                    ref_put(dweight, (c + 1) * conv.taps - 1 - back, gated * product_of(&conv, s, row, back, c), 1);
                if (dbias) ref_put(dbias, c, gated, 1);
                if (!dx) continue;
                double product = later_grad(&conv, dy, s, row, 0, c);
                ref_put(dx, 3 * row * conv.width + c, product * part_of(&conv, row, 2, c), beta);
                ref_put(dx, (3 * row + 1) * conv.width + c, d * sum_of(&conv, s, row, c), beta);
                ref_put(dx, (3 * row + 2) * conv.width + c, product * part_of(&conv, row, 0, c), beta);
            }
}
