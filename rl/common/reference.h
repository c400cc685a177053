/* SPDX-License-Identifier: Apache-2.0 */
/* The reference policy of a KL penalty or a preference loss. It shares the base weights: if the reference is the initial policy, only the trained
 * tensors are stored twice.
 *
 *     TRY(reference_open(recipe, comm, model, &reference));
 *     const Model *other = reference_begin(reference); // do not use `model` until reference_end
 *     TRY(text_pass_forward(&pass, other, ...));
 *     reference_end(reference);
 */
#ifndef TUNE_REFERENCE_H
#define TUNE_REFERENCE_H

#include "lib/train/trained_model.h"

typedef struct Reference Reference;
/* Opens the reference named by rl.reference: null = `model` in its current state; base = `model` without its adapter; else a directory with a model,
 * or with an adapter on model.path. `model` is borrowed and must have its initial weights: a resumed run opens its reference before it loads the
 * checkpoint. comm: the ranks that train together, all of which call it; NULL: one process. ST_CONFIG; ST_INPUT: no such directory, another
 * vocabulary; ST_RESOURCE. */
Status reference_open(const Recipe *recipe, Comm *comm, Model *model, Reference **reference);
void reference_free(Reference *reference); /* NULL is fine */
/* model_fingerprint of a reference from a directory; 0 for the initial policy and for NULL. */
uint64_t reference_fingerprint(const Reference *reference);
/* The model to run, in inference mode (no tape). */
const Model *reference_begin(Reference *reference);
void reference_end(Reference *reference);

#endif
