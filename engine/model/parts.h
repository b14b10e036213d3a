/* engine/model/parts.h - parts of layers as graphs. R rows, d width, H heads of K or V elements, G KV heads, f
 * feed-forward width. h is the input of the part, [d, R], and add is added to its result, [d, R], or MR_NO_TENSOR.
 * Every part gives [d, R]. w: as in mr_arch.layer.
 * Owns: nothing. Threads and errors: those of the graph. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_PARTS_H
#define MR_ENGINE_MODEL_PARTS_H

#include "engine/model/arch.h"

/* Attention with heads that share KV heads (Ainslie et al., "GQA", 2023). Biases, sinks, and norms of queries and keys
 * before and behind RoPE are applied where w has them, and RoPE where the layer has it. A norm as wide as a head norms
 * each head by itself. */
int32_t part_gqa(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add);

/* Latent attention (DeepSeek-AI, "DeepSeek-V2", 2024) in its absorbed form: the matrices of keys and values move to the
 * queries and to the result, so all heads attend with one KV head, the latent itself. */
int32_t part_latent(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add);

/* down(silu(gate h) * up h) (Shazeer, "GLU variants improve Transformer", 2020), or another unit. */
int32_t part_glu(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add);

/* A mixture of such parts, of which each row takes the best by the router, and the shared expert, where w has one, with
 * weight 1 or that of its gate. add is needed. */
int32_t part_moe(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add);

/* x + what the neurons give that a predictor expects to be active. The predictor reads x, the neurons read its norm
 * h. */
int32_t part_sparse(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x, int32_t h);

/* part_moe in layers with experts, else part_glu. */
int32_t part_ffn(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add);

/* Llama's layer: norm, attention, norm, feed-forward part, which is sparse where w has a predictor. */
int32_t part_llama_layer(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x);

#endif
