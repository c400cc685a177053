/* SPDX-License-Identifier: Apache-2.0 */
/* Value functions for policy gradients on text: a head on the policy's hidden states, or a separate value model, which shares the policy's base
 * weights where possible.
 *
 *     TRY(text_value_open(recipe, "head", policy, &value));    // before optimizer_init of the policy: a head is one of its parameters
 *     pass.value_head = value->head;
 *     TRY(text_pass_forward(&pass, value->model, experience, 0, n, &results));
 */
#ifndef TUNE_TEXT_VALUE_H
#define TUNE_TEXT_VALUE_H

#include "lib/model/model.h"
#include "lib/train/state_list.h"
#include "lib/train/stepper.h"

typedef struct TextValue {
    Model *model; /* the model whose hidden states are read: the policy or the separate value model */
    bool own;     /* a separate value model */
    Tensor *head; /* (1, C) */
    Arena *arena; /* of the value model's optimiser */
} TextValue;

/* Opens a value function. `which`: "head": a head on the policy; FILE.safetensors: such a head, initialised from that file; "base": a separate model
 * on model.path, trained with the recipe's lora section; DIR: a separate model, initialised from the model in DIR, or from the adapter in DIR on
 * model.path, with its head if it has one. Other heads start at zero. ST_INPUT: no such file or directory, another family, vocabulary or tokenizer;
 * ST_CONFIG; ST_RESOURCE. comm: the ranks that train together, all of which call it; NULL: one process. */
Status text_value_open(const Recipe *recipe, Comm *comm, const char *which, Model *policy, TextValue **value);
void text_value_free(TextValue *value); /* NULL is fine */
/* Lists a separate model's weights and optimiser under separate names. A head on the policy is listed with the policy's parameters. */
void text_value_list_state(TextValue *value, StateList *states);
/* Takes an optimiser step of a separate model, like the policy's. norm: of its gradient. */
void text_value_update(const TextValue *value, const Recipe *recipe, const Stepper *stepper, double norm, double learning_rate, int64_t step);
/* Writes value_head.safetensors next to the policy ("v_head.summary.weight", (1, C), TRL's name); a separate model and its head go to value/.
 * ST_RESOURCE. */
Status text_value_save(const TextValue *value, const Recipe *recipe, const char *run_dir);

#endif
