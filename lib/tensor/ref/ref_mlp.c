/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of multilayer perceptrons. The saved values are stored layer after layer, each (rows, width). */
#include "lib/tensor/ref/ref.h"

#include <math.h>
#include <stdlib.h>

static int64_t widest(const MlpArgs *args) {
    int64_t width = args->weights[0]->shape[1];
    for (int k = 0; k < args->n_layers; k++) width = MAX(width, args->weights[k]->shape[0]);
    return width;
}

static bool activated(const MlpArgs *args, int layer) { return layer + 1 < args->n_layers || args->activate_last; }

static double value_of(const MlpArgs *args, double z) { return args->activation == ACT_TANH ? tanh(z) : z < 0 ? 0 : z; }
/* f' at the point where f has the value `value`. */
static double slope_at(const MlpArgs *args, double value) {
    return args->activation == ACT_TANH ? 1 - value * value : isnan(value) ? value : value > 0;
}

void ref_mlp(const MlpArgs *args, const Tensor *x, Tensor *saved, Tensor *y) {
    int64_t rows = tensor_rows(x), most = widest(args);
    double *memory = ref_zeros(2 * most), *in = memory, *out = memory ? memory + most : NULL;
    for (int64_t r = 0; memory && r < rows; r++) {
        int64_t before = 0; /* saved values of the layers below */
        for (int64_t i = 0; i < tensor_width(x); i++) in[i] = element_get(x, r * tensor_width(x) + i);
        for (int k = 0; k < args->n_layers; k++) {
            int64_t n_in = args->weights[k]->shape[1], n_out = args->weights[k]->shape[0];
            for (int64_t o = 0; o < n_out; o++) {
                double sum = element_get(args->biases[k], o);
                for (int64_t i = 0; i < n_in; i++) sum += in[i] * element_get(args->weights[k], o * n_in + i);
                out[o] = activated(args, k) ? value_of(args, sum) : sum;
                if (saved && activated(args, k)) element_set(saved, before + r * n_out + o, out[o]);
                if (k + 1 == args->n_layers) element_set(y, r * n_out + o, out[o]);
            }
            before += rows * n_out;
            double *other = in;
            in = out, out = other;
        }
    }
    free(memory);
}

/* The input of layer `layer`: values of row r of x, or of the layer below. */
static double input_of(const MlpArgs *args, const Tensor *x, const Tensor *saved, int64_t rows, int layer, int64_t r, int64_t i) {
    int64_t before = 0, width = args->weights[layer]->shape[1];
    for (int k = 0; k + 1 < layer; k++) before += rows * args->weights[k]->shape[0];
    return layer == 0 ? element_get(x, r * width + i) : element_get(saved, before + r * width + i);
}

void ref_mlp_backward(const MlpArgs *args, const Tensor *x, const Tensor *saved, const Tensor *dy, const MlpGrads *grads) {
    int64_t rows = tensor_rows(dy), most = widest(args);
    double *d = ref_zeros(rows * most), *below = ref_zeros(rows * most);
    bool whole = d && below;
    for (int64_t i = 0; whole && i < tensor_count(dy); i++) d[i] = element_get(dy, i);
    for (int k = args->n_layers; whole && k-- > 0;) {
        int64_t n_in = args->weights[k]->shape[1], n_out = args->weights[k]->shape[0], before = 0;
        for (int j = 0; j < k; j++) before += rows * args->weights[j]->shape[0];
        for (int64_t i = 0; activated(args, k) && i < rows * n_out; i++) d[i] *= slope_at(args, element_get(saved, before + i));
        for (int64_t o = 0; o < n_out; o++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) sum += d[r * n_out + o];
            if (grads->biases[k]) ref_put(grads->biases[k], o, sum, 1);
            for (int64_t i = 0; grads->weights[k] && i < n_in; i++) {
                sum = 0;
                for (int64_t r = 0; r < rows; r++) sum += d[r * n_out + o] * input_of(args, x, saved, rows, k, r, i);
                ref_put(grads->weights[k], o * n_in + i, sum, 1);
            }
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < n_in; i++) {
                double sum = 0;
                for (int64_t o = 0; o < n_out; o++) sum += d[r * n_out + o] * element_get(args->weights[k], o * n_in + i);
                below[r * n_in + i] = sum;
            }
        double *other = d;
        d = below, below = other;
    }
    for (int64_t i = 0; whole && grads->x && i < tensor_count(grads->x); i++) ref_put(grads->x, i, d[i], grads->beta);
    free(d);
    free(below);
}
