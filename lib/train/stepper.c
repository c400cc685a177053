/* SPDX-License-Identifier: Apache-2.0 */
/* See stepper.h. */
#include "lib/train/stepper.h"

#include "lib/train/train.h"

Status stepper_init(Stepper *stepper, const Recipe *recipe, int64_t total_steps) {
    *stepper = (Stepper){.learning_rate = recipe->train_learning_rate, .max_grad_norm = recipe->train_max_grad_norm};
    TRY(recipe_optimizer(recipe, &stepper->optimizer));
    return recipe_schedule(recipe, total_steps, &stepper->schedule);
}

double stepper_rate(const Stepper *stepper, int64_t done) { return stepper->learning_rate * schedule_factor(&stepper->schedule, done); }

double stepper_norm(const Stepper *stepper, const Params *params) {
    (void)stepper;
    return params_grad_norm(params);
}

void stepper_update(const Stepper *stepper, Params *params, double norm, double rate, int64_t number) {
    optimizer_step(&stepper->optimizer, params, clip_scale(norm, stepper->max_grad_norm), rate, number);
    params_zero_grad(params);
}
