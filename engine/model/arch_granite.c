/* engine/model/arch_granite.c - Granite 3 and 4 (IBM, 2024): Llama's layer, with factors for embeddings, for what each
 * part adds, for scores and for logits. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

static int32_t add_scaled(mr_graph *g, const layer_ctx *ctx, int32_t x, int32_t part) {
    return mr_graph_add(g, x, ctx->residual_scale > 0 ? mr_graph_scale(g, part, ctx->residual_scale) : part);
}

static int32_t layer(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x /* [d, R] */) {
    int32_t h = mr_graph_rms_norm(g, x, w[W_ATTN_NORM], ctx->eps);
    x = add_scaled(g, ctx, x, part_gqa(g, ctx, w, h, MR_NO_TENSOR));
    h = mr_graph_rms_norm(g, x, w[W_FFN_NORM], ctx->eps);
    return add_scaled(g, ctx, x, part_glu(g, ctx, w, h, MR_NO_TENSOR));
}

const mr_arch mr_arch_granite = {
    .name = "granite",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_ANY_BIASES, SPEC_GLU, SPEC_GLU_BIASES},
    .layer = layer,
};
