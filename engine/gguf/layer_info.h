/* engine/gguf/layer_info.h - internal to mr_model_info_read: the numbers of each layer, and RoPE.
 * Owns: nothing. Threads: caller serialises. Errors: in keys->status. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_LAYER_INFO_H
#define MR_ENGINE_GGUF_LAYER_INFO_H

#include "engine/gguf/model_info.h"
#include "engine/gguf/model_keys.h"

/* What the keys of a file do not say, because every model of the architecture has it. */
typedef struct arch_habits {
    const char *arch;
    mr_route_score score;    /* of experts, where the file does not say */
    bool normalises_weights; /* of experts; the same */
    int32_t window_period;   /* with a sliding window: the last of so many layers has none; 0: all layers have it */
    int32_t no_rope_period;  /* the last of so many layers has no RoPE; 0: all layers have RoPE */
    bool has_latent;         /* attention is latent */
    bool has_indexer;        /* mr_model_info.indexer_top_k */
    bool plain_window_rope;  /* layers with a window have RoPE without scaling */
    float window_freq_base;  /* with plain_window_rope, where the file does not say; 0: that of other layers */
    bool yarn_scales_scores; /* with A.rope.scaling.yarn_log_multiplier m, YaRN leaves magnitudes alone and multiplies
                              * scores by (1 + m ln(factor))^2 */
    bool yarn_keeps_size;  /* YaRN's magnitude is divided by 1 + 0.1 m ln(factor), m A.rope.scaling.yarn_log_multiplier,
                             * else 1 */
    bool rope_is_a_choice; /* A.rope.scaling.finetuned false: no layer has RoPE */
    bool has_factors;      /* A.embedding_scale, .residual_scale and .logit_scale, by which logits are divided */
    bool scales_embedding; /* by sqrt(d_model) */
    int32_t n_layers_of_largest; /* in the model with so many layers q . k is scaled by 1 / sqrt(d_model / n_heads) */
} arch_habits;

/* The habits of an architecture; of an unknown one, none. */
const arch_habits *arch_habits_find(const char *arch);

/* Reads shapes, ropes and what belongs to them. Needs n_layers, d_model, context_length and n_experts. */
void layer_info_read(model_keys *keys, mr_model_info *m);

/* Reads RoPE for heads of k_dim elements: ropes and n_ropes. */
void rope_info_read(model_keys *keys, const arch_habits *habits, int32_t k_dim, mr_model_info *m);

/* Finds and checks the tensors with factors. */
MR_MUST_USE mr_status rope_info_read_factors(const mr_gguf *g, mr_model_rope *r, mr_err *err);

/* Checks that t is a matrix [columns, rows], or a vector [columns] where rows is 1. */
MR_MUST_USE mr_status model_info_check_shape(const mr_gguf_tensor *t, int64_t columns, int64_t rows, mr_err *err);

#endif
