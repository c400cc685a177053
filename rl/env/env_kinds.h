/* SPDX-License-Identifier: Apache-2.0 */
/* What a built-in environment is: a table of plain functions on one copy. One file env_<name>.c and one line of envs.def each. */
#ifndef TUNE_ENV_KINDS_H
#define TUNE_ENV_KINDS_H

#include "rl/mdp/arguments.h"
#include "rl/env/env.h"

/* The random numbers of one start or step of one copy; each call gives the next. */
typedef struct EnvDraws {
    uint64_t seed, copy, next;
} EnvDraws;
double env_uniform(EnvDraws *draws, double low, double high);
int64_t env_below(EnvDraws *draws, int64_t n);

/* `context`: the values of the arguments in their order (const double *), unless the environment was made with one of its own. */
struct EnvKind {
    const char *id;
    int64_t max_steps, state_size;
    Space action, observation;
    Argument arguments[MAX_ARGUMENTS];
    void (*start)(const void *context, EnvDraws *draws, double *state);
    bool (*step)(const void *context, EnvDraws *draws, const double *action, double *state, double *reward); /* true: terminated */
    void (*observe)(const void *context, const double *state, double *observation);
    bool (*is_state)(const void *context, const double *state); /* of finite numbers; NULL: all are */
    /* Instead of the above, all copies at once, for what lives in another program. begin: starts episodes of the copies in `which`; copies whose
     * episodes are lost meanwhile are flagged as truncated. step_all: one step of all copies that do not rest, with flags and lengths. */
    Status (*begin)(Env *env, const bool *which);
    Status (*step_all)(Env *env, const double *actions);
    Status (*resume)(Env *env); /* env_resume */
    void (*close)(Env *env);
};

/* Allocates a stopped environment of this kind; `context` as above. ST_RESOURCE. */
Status env_allocate(const EnvKind *kind, int64_t copies, Env **env);

void env_set_id(Env *env, const char *spec); /* what messages call it */

void env_observe_f32(const double *values, int64_t n, double *observation); /* rounded to float32, as Gymnasium hands them out */

const EnvKind *env_kind_find(const char *id); /* NULL: no such */

#define ENV(name) extern const EnvKind env_kind_##name;
#include "rl/env/envs.def"
#undef ENV

#endif
