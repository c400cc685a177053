/* SPDX-License-Identifier: Apache-2.0 */
/* The end of every training step: the norm of the gradient, clipping, the optimiser's update, gradients back to zero. All kinds of training use it,
 * so this is the place for work on the whole gradient, such as a sum over machines.
 *
 *     TRY(stepper_init(&stepper, recipe, total_steps));
 *     TRY(optimizer_init(&stepper.optimizer, &params, arena));
 *     double norm = stepper_norm(&stepper, &params);                                   // after backward
 *     if (!isfinite(norm)) return ...;
 *     stepper_update(&stepper, &params, norm, stepper_rate(&stepper, step), step + 1);
 */
#ifndef TUNE_STEPPER_H
#define TUNE_STEPPER_H

#include "lib/nn/nn.h"
#include "lib/recipe/recipe.h"

typedef struct Stepper {
    OptimizerConfig optimizer;
    ScheduleConfig schedule;
    double learning_rate; /* before the schedule */
    double max_grad_norm; /* as clip_scale */
} Stepper;

/* Takes train.optimizer, train.lr_scheduler and their keys. total_steps: the length of the schedule. ST_CONFIG for a choice that is not known. */
Status stepper_init(Stepper *stepper, const Recipe *recipe, int64_t total_steps);
/* The learning rate after `done` finished steps: the first step has done = 0. */
double stepper_rate(const Stepper *stepper, int64_t done);
/* Euclidean norm of the gradients of all trained parameters. NaN or infinite if a gradient is: then the caller must not update. */
double stepper_norm(const Stepper *stepper, const Params *params);
/* Clips by `norm`, updates every trained parameter and sets its gradient to zero. rate: see stepper_rate; number: the step's, from 1. */
void stepper_update(const Stepper *stepper, Params *params, double norm, double rate, int64_t number);

#endif
