/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW (arXiv 1711.05101) in torch's order: decay, averages, bias correction, epsilon outside the corrected root. */
#include "lib/nn/nn.h"

static int adamw_states(const OptimizerConfig *config) {
    (void)config;
    return 2;
}

static void adamw_update(const OptimizerConfig *config, Param *param, double grad_scale, double lr, int64_t step) {
    double decay = param->decay ? config->weight_decay : 0;
    tensor_device(param->tensor)
        ->adamw(param->tensor, param_grad(param), param->state[0], param->state[1], grad_scale, lr, config->beta1, config->beta2, config->eps, decay,
                step);
}

const OptimizerInfo optimizer_adamw = {"adamw", "Adam with decoupled weight decay", "betas eps", adamw_states, adamw_update};
