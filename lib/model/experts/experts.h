/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of experts: their keys in config.json, and their form in a checkpoint.
 *
 *     static void read_config(ConfigReader *reader, ModelConfig *config) {
 *         config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 32768});
 *         experts_read(reader, "num_experts num_local_experts", "moe_intermediate_size");
 *         config->experts.router = (RouterArgs){.kind = ROUTER_SOFTMAX, ...};
 *         experts_check(reader);
 *         experts_set_layers(reader, is_dense, NULL, &dense_layer, &layer);
 *     }
 */
#ifndef TUNE_EXPERTS_H
#define TUNE_EXPERTS_H

#include "lib/model/family.h"

/* Reads the number of experts, under the first of the keys (separated by spaces) that config.json has, their width, and num_experts_per_tok. Marks
 * the keys of the auxiliary loss as understood. */
void experts_read(ConfigReader *reader, const char *number_keys, const char *width_key);
/* The router of DeepSeek-V3 and GLM: sigmoids, groups by their two best, normalised, scaled. */
void experts_read_sigmoid(ConfigReader *reader, double scale);
/* Fails unless the router's sizes fit each other; called after all of them are set. */
void experts_check(ConfigReader *reader);
/* Sets config->layer_forms: `dense` where is_dense says so, else `sparse`. */
void experts_set_layers(ConfigReader *reader, LayerTest *is_dense, const void *given, const LayerForm *dense, const LayerForm *sparse);
bool experts_before(int64_t layer, const void *first); /* a LayerTest: layer < *(const int64_t *)first */
/* DeepSeek-V3's parts: experts by the names that GLM has too, and the keys of latent attention. */
extern const ExpertsForm deepseek_experts;
extern const LatentForm deepseek_latent;
/* Reads the sizes of latent attention and its softmax scale, after config_read_decoder. */
void latent_read(ConfigReader *reader);
/* Reads the number of experts that all tokens pass: config->experts.shared_width. */
void experts_read_shared(ConfigReader *reader);
/* Sets config->experts.together by the names in the checkpoint. ST_INPUT: tensors whose order of gate and up is not known. */
Status experts_find(ModelConfig *config, const WeightFile *files);

#endif
