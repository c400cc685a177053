/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic gradient descent, optionally with momentum: torch's SGD without dampening; decay is added to the gradient. */
#include "lib/nn/nn.h"

static int sgd_states(const OptimizerConfig *config) { return config->momentum != 0 ? 1 : 0; }

static void sgd_update(const OptimizerConfig *config, Param *param, double grad_scale, double lr, int64_t step) {
    tensor_device(param->tensor)
        ->sgd(param->tensor, param_grad(param), param->state[0], grad_scale, lr, config->momentum, param->decay ? config->weight_decay : 0, step);
}

const OptimizerInfo optimizer_sgd = {"sgd", "gradient descent, with momentum when train.momentum is set", "momentum", sgd_states, sgd_update};
