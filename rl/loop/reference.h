/* SPDX-License-Identifier: Apache-2.0 */
/* The policy that a KL penalty or a preference loss compares with. It shares the base weights: where it is the policy as it began, only the trained
 * tensors are kept twice.
 *
 *     TRY(reference_open(recipe, model, &reference));
 *     const Model *other = reference_begin(reference);   // until reference_end `model` itself must not be used
 *     TRY(text_pass_forward(&pass, other, ...));
 *     reference_end(reference);
 */
#ifndef TUNE_REFERENCE_H
#define TUNE_REFERENCE_H

#include "lib/train/trained_model.h"

typedef struct Reference Reference;
/* By rl.reference: null = `model` as it is now; base = without its adapter; else a directory with a model, or with an adapter on model.path. `model`
 * is borrowed and has just been opened: a resumed run opens its reference before it loads the checkpoint. ST_CONFIG; ST_INPUT: no such directory,
 * another vocabulary; ST_RESOURCE. */
Status reference_open(const Recipe *recipe, Model *model, Reference **reference);
void reference_free(Reference *reference); /* NULL is fine */
/* model_fingerprint of a directory's; 0 for the policy as it was, and for NULL. */
uint64_t reference_fingerprint(const Reference *reference);
/* The model to run, without recording. */
const Model *reference_begin(Reference *reference);
void reference_end(Reference *reference);

#endif
