/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous value iteration: in place, each sweep in a new random order. It converges for any order that visits each state infinitely often. */
#include "rl/mdp/mdp_form.h"

#include <math.h>

Status mdp_solver_async(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    (void)solution;
    double change;
    do {
        RngKey key = rng_key(work->options->seed, RNG_SHUFFLE, (uint64_t)work->iterations);
        change = 0;
        for (int32_t i = 0; i < form->n; i++) {
            int64_t s = (int64_t)rng_permute(key, (uint64_t)form->n, (uint64_t)i);
            change = fmax(change, form_set_best(form, s, work->V));
        }
        work->iterations++;
    } while (!work_is_done(work, change));
    return ST_OK;
}
