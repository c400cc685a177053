/* SPDX-License-Identifier: Apache-2.0 */
/* Parts that Liquid's families share. */
#ifndef TUNE_LIQUID_H
#define TUNE_LIQUID_H

#include "lib/model/family.h"

/* Reads the keys of the decoder, of its attention and of its convolutions. intermediate_size: if config.json has no feed-forward width. */
void liquid_read(ConfigReader *reader, int64_t intermediate_size);
/* Whether the layer has attention, by layer_types or full_attn_idxs; without both keys all layers have. Fails for an unknown type. */
bool liquid_has_attention(ConfigReader *reader, int64_t layer);
extern const ShortConvForm liquid_conv;
extern const AttentionForm liquid_attention;
extern const GatedMlpForm liquid_mlp;
extern const PartNames liquid_names;
/* The initialiser of a LayerForm: an operator, and a feed-forward block. */
#define LIQUID_LAYER(operator, operator_form, feed_forward, feed_forward_form)                                                     \
    {                                                                                                                              \
        { {operator, operator_form, .input_norm = "operator_norm"}, {feed_forward, feed_forward_form, .input_norm = "ffn_norm"}, } \
    }

#endif
