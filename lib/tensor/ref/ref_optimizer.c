/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the optimisers. AdamW is arXiv 1711.05101 in torch's order of operations. */
#include "lib/tensor/ref/ref.h"

#include <math.h>

void ref_adamw(Tensor *param, const Tensor *grad, Tensor *m, Tensor *v, double grad_scale, double lr, double beta1, double beta2, double eps,
               double weight_decay, int64_t step) {
    double step_size = lr / (1 - pow(beta1, (double)step)), root = sqrt(1 - pow(beta2, (double)step));
    for (int64_t i = 0; i < tensor_count(param); i++) {
        double g = grad_scale * element_get(grad, i), p = element_get(param, i) * (1 - lr * weight_decay);
        double first = element_get(m, i) + (1 - beta1) * (g - element_get(m, i)), second = beta2 * element_get(v, i) + (1 - beta2) * g * g;
        element_set(m, i, first);
        element_set(v, i, second);
        element_set(param, i, p - step_size * first / (sqrt(second) / root + eps));
    }
}

void ref_sgd(Tensor *param, const Tensor *grad, Tensor *velocity, double grad_scale, double lr, double momentum, double weight_decay, int64_t step) {
    (void)step; /* a velocity of zero makes this equal to torch's special case for the first step */
    for (int64_t i = 0; i < tensor_count(param); i++) {
        double p = element_get(param, i), move = grad_scale * element_get(grad, i) + weight_decay * p;
        if (velocity) {
            move += momentum * element_get(velocity, i);
            element_set(velocity, i, move);
        }
        element_set(param, i, p - lr * move);
    }
}
