/* SPDX-License-Identifier: Apache-2.0 */
/* One list names all state that the next step of a run depends on. Checkpoints save the list; a resumed run reads it back and checks that its entries
 * have the same names and sizes.
 *
 *     static void table_list_state(void *context, StateList *states) {
 *         state_f64(states, "Q", table->Q, table->n);
 *         state_count(states, "episodes", &table->episodes);
 *     }
 */
#ifndef TUNE_STATE_LIST_H
#define TUNE_STATE_LIST_H

#include "lib/nn/nn.h"
#include "lib/train/rank_checkpoint.h"

typedef struct StateCount {
    const char *name;
    int64_t *value;
} StateCount;
typedef struct StateReal {
    const char *name;
    double *value;
} StateReal;
enum { STATE_NUMBERS = 16 };
typedef struct StateList {
    Arena *arena;
    RankCheckpoint *checkpoint; /* of state_divided; NULL: the list has no such entry */
    CheckpointItem *items;
    size_t n, cap;
    StateCount counts[STATE_NUMBERS];
    StateReal reals[STATE_NUMBERS];
    size_t n_counts, n_reals;
    bool divided;  /* other ranks have parts of some tensors */
    Status status; /* the first failure */
} StateList;
/* Each appends an entry to the list. The list borrows the memory, which a checkpoint writes and a resumed run reads back. */
void state_f64(StateList *states, const char *name, double *values, int64_t n);
void state_f32(StateList *states, const char *name, float *values, int64_t n);
void state_bytes(StateList *states, const char *name, void *bytes,
                 size_t n); /* n is a multiple of 4: integers of any width; round up the size of arrays of flags */
void state_tensor(StateList *states, const char *name, Tensor *tensor);
/* The tensor "KIND/NAME" of a parameter. */
void state_of_param(StateList *states, const char *kind, const Param *param, Tensor *tensor);
/* The same of a tensor that ranks divide: this one has its own elements of trained parameter k in `own` (rank_checkpoint_part). */
void state_divided(StateList *states, const char *kind, const Param *param, size_t k, Tensor *own);
void state_count(StateList *states, const char *name, int64_t *value); /* `name` is a string constant, also in state_real */
void state_real(StateList *states, const char *name, double *value);   /* NaN is preserved */
/* All trained parameters under their own names, and all optimiser states of trained parameters. */
void state_weights(StateList *states, const Params *params);
void state_optimizer(StateList *states, const Params *params);
/* The first tensor that holds a NaN or an infinity. Divided tensors and integers are not looked at. NULL: there is none. */
const CheckpointItem *state_nonfinite(const StateList *states);
/* Adds the counts and reals to a checkpoint's counters, and reads them back. ST_INPUT naming one that is no number. */
void state_numbers_write(const StateList *states, json_t *json);
Status state_numbers_read(const StateList *states, const json_t *json);

#endif
