/* SPDX-License-Identifier: Apache-2.0 */
/* A built-in environment is a table of plain functions on one copy. Each has a file env_<name>.c and a line of envs.def. */
#ifndef TUNE_ENV_KINDS_H
#define TUNE_ENV_KINDS_H

#include "rl/mdp/arguments.h"
#include "rl/env/env.h"

/* The random numbers of one start or step of one copy; each call returns the next. */
typedef struct EnvDraws {
    uint64_t seed, copy, next;
} EnvDraws;
double env_uniform(EnvDraws *draws, double low, double high);
int64_t env_below(EnvDraws *draws, int64_t n);

/* `context`: the values of the arguments in order (const double *), unless the environment was made with another context. */
struct EnvKind {
    const char *id;
    int64_t max_steps, state_size;
    Space action, observation;
    Argument arguments[MAX_ARGUMENTS];
    void (*start)(const void *context, EnvDraws *draws, double *state);
    bool (*step)(const void *context, EnvDraws *draws, const double *action, double *state, double *reward); /* true: terminated */
    void (*observe)(const void *context, const double *state, double *observation);
    bool (*is_state)(const void *context, const double *state); /* checks finite numbers; NULL: all are valid */
    /* Instead of the functions above, for environments in another program, all copies at once. begin: starts episodes of the copies in `which`; flags
     * copies whose episodes are lost in the process as truncated. step_all: one step of all copies that are not idle, with flags and lengths. */
    Status (*begin)(Env *env, const bool *which);
    Status (*step_all)(Env *env, const double *actions);
    Status (*resume)(Env *env); /* env_resume */
    void (*close)(Env *env);
};

/* Allocates a stopped environment of this kind; `context` as above. ST_RESOURCE. */
Status env_allocate(const EnvKind *kind, int64_t copies, Env **env);

void env_set_id(Env *env, const char *spec); /* its name in messages */

void env_observe_f32(const double *values, int64_t n, double *observation); /* rounds to float32, as Gymnasium returns */

const EnvKind *env_kind_find(const char *id); /* NULL: unknown */

#define ENV(name) extern const EnvKind env_kind_##name;
#include "rl/env/envs.def"
#undef ENV

#endif
