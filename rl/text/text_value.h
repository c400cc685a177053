/* SPDX-License-Identifier: Apache-2.0 */
/* What values of tokens are learned by, for policy gradients on text: a head on the policy's own hidden states, or a model of its own, which shares
 * the policy's base weights where it can.
 *
 *     TRY(text_value_open(recipe, "head", policy, &value));    // before optimizer_init of the policy: a head is one of its parameters
 *     pass.value_head = value->head;
 *     TRY(text_pass_forward(&pass, value->model, experience, 0, n, &results));
 */
#ifndef TUNE_TEXT_VALUE_H
#define TUNE_TEXT_VALUE_H

#include "lib/train/stepper.h"
#include "rl/loop/loop.h"

typedef struct TextValue {
    Model *model; /* whose hidden states are read: the policy, or the value's own */
    bool own;
    Tensor *head; /* (1, C) */
    Arena *arena; /* of the own model's optimiser */
} TextValue;

/* `which`: "head": a head on the policy; FILE.safetensors: the same, that begins as that file; "base": a model of its own on model.path, trained as
 * the recipe's lora section says; DIR: such a model that begins as that model, or as that adapter on model.path, with its head when it has one. Heads
 * begin at zero. ST_INPUT: no such file or directory, another family, vocabulary or tokenizer; ST_CONFIG; ST_RESOURCE. */
Status text_value_open(const Recipe *recipe, const char *which, Model *policy, TextValue **value);
void text_value_free(TextValue *value); /* NULL is fine */
/* An own model's weights and optimiser, under names of their own. A head on the policy goes with the policy's. */
void text_value_list_state(TextValue *value, StateList *states);
/* One step of the own model, like the policy's; nothing for a head. Returns the norm of its gradient before clipping, 0 for a head. */
double text_value_update(const TextValue *value, const Recipe *recipe, const Stepper *stepper, double learning_rate, int64_t step);
/* value_head.safetensors beside the policy ("v_head.summary.weight", (1, C), as TRL names it); an own model goes into value/, with its head in there.
 * ST_RESOURCE. */
Status text_value_save(const TextValue *value, const Recipe *recipe, const char *run_dir);

#endif
