/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the optimisers. AdamW is arXiv 1711.05101 in torch's order of operations. */
#include "lib/tensor/ref/ref.h"

#include <math.h>

void ref_adamw(Tensor *param, const Tensor *grad, Tensor *m, Tensor *v, double grad_scale, double lr, double beta1, double beta2, double eps,
               double weight_decay, int64_t step) {
    double step_size = lr / (1 - pow(beta1, (double)step)), root = sqrt(1 - pow(beta2, (double)step));
    for (int64_t i = 0; i < tensor_count(param); i++) {
        double g = grad_scale * tensor_get(grad, i), p = tensor_get(param, i) * (1 - lr * weight_decay);
        double first = tensor_get(m, i) + (1 - beta1) * (g - tensor_get(m, i)), second = beta2 * tensor_get(v, i) + (1 - beta2) * g * g;
        tensor_set(m, i, first);
        tensor_set(v, i, second);
        tensor_set(param, i, p - step_size * first / (sqrt(second) / root + eps));
    }
}

void ref_sgd(Tensor *param, const Tensor *grad, Tensor *velocity, double grad_scale, double lr, double momentum, double weight_decay, int64_t step) {
    (void)step; /* a velocity of zero makes this equal to torch's special case for the first step */
    for (int64_t i = 0; i < tensor_count(param); i++) {
        double p = tensor_get(param, i), move = grad_scale * tensor_get(grad, i) + weight_decay * p;
        if (velocity) {
            move += momentum * tensor_get(velocity, i);
            tensor_set(velocity, i, move);
        }
        tensor_set(param, i, p - lr * move);
    }
}
