/* engine/model/model.h - architectures: from a GGUF file to the graph of a layer range.
 * A stage is layers [first, last): the first stage also embeds, the last one also has the output norm and matrix.
 * Owns:    mr_weights owns its buffers. Borrows: gguf, info and backends, which outlive it.
 * Threads: caller serialises.
 * Errors:  MR_E_UNSUPPORTED for an architecture, tensor or type that this version does not run, MR_E_FORMAT for a
 *          tensor of the wrong shape; both name the tensor. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_MODEL_H
#define MR_ENGINE_MODEL_MODEL_H

#include "backends/backend.h"
#include "engine/base/status.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/model_info.h"
#include "engine/graph/graph.h"
#include "engine/kv/kv_store.h"

/* Tensors of one layer; the names and shapes are in weights.c. */
typedef enum mr_layer_slot {
    MR_W_ATTN_NORM,
    MR_W_Q,
    MR_W_Q_BIAS,
    MR_W_Q_NORM,
    MR_W_K,
    MR_W_K_BIAS,
    MR_W_K_NORM,
    MR_W_V,
    MR_W_V_BIAS,
    MR_W_O,
    MR_W_O_BIAS,
    MR_W_FFN_NORM,
    MR_W_GATE,
    MR_W_UP,
    MR_W_DOWN,
    MR_W_ROUTER,
    MR_W_GATE_EXPERTS,
    MR_W_UP_EXPERTS,
    MR_W_DOWN_EXPERTS,
    MR_LAYER_SLOTS,
} mr_layer_slot;

/* What all layers of a graph share. */
typedef struct mr_layer_ctx {
    float eps;
    int32_t rope_table;
    mr_rope_desc rope;
    mr_attention_desc attention; /* k_state and v_state are those of the layer at hand */
    int32_t n_experts, n_experts_used;
} mr_layer_ctx;

/* One architecture. Slots are bit sets of mr_layer_slot. */
typedef struct mr_arch {
    const char *name; /* general.architecture */
    mr_rope_pairs rope_pairs;
    uint32_t required, optional;
    bool has_experts; /* a model may have a router and experts instead of gate, up and down */
    /* Adds one layer: x [d, R] in, its new value out. w holds tensor ids, MR_NO_TENSOR for what the file lacks. */
    int32_t (*layer)(mr_graph *g, const mr_layer_ctx *ctx, const int32_t w[MR_LAYER_SLOTS], int32_t x);
} mr_arch;

extern const mr_arch mr_arch_llama, mr_arch_qwen2, mr_arch_qwen3;
/* Llama's layer, for architectures that differ by their tensors only. */
int32_t mr_llama_layer(mr_graph *g, const mr_layer_ctx *ctx, const int32_t w[MR_LAYER_SLOTS], int32_t x);
/* MR_E_UNSUPPORTED names the architecture and those that there are. */
MR_MUST_USE mr_status mr_arch_find(const char *name, const mr_arch **out, mr_err *err);

typedef struct mr_layer_range {
    int32_t first, last; /* [first, last) */
} mr_layer_range;

typedef struct mr_weights mr_weights;

typedef struct mr_weights_desc {
    const mr_gguf *gguf;
    const mr_model_info *info;
    mr_layer_range range;
    /* Matrices stay in the mapped file, in its layout, where the last backend can read it there: they take no memory
     * that the system cannot take back, and products convert them again and again. */
    bool map;
} mr_weights_desc;

/* Looks up and checks the tensors of a range, chooses the backend that holds each, and computes what they take; nothing
 * is loaded. */
MR_MUST_USE mr_status mr_weights_create(const mr_weights_desc *desc, const mr_backends *backends, mr_weights **out,
                                        mr_err *err);
void mr_weights_destroy(mr_weights *w);
/* Bytes in the layouts of all backends; what stays in the mapped file is not counted. */
size_t mr_weights_bytes(const mr_weights *w);
/* Of them on backend b of mr_weights_create. */
size_t mr_weights_bytes_on(const mr_weights *w, int32_t b);
/* The largest matrix of a type in the file among those that products read, or NULL. */
const mr_gguf_tensor *mr_weights_largest(const mr_weights *w, mr_type type);
/* Loads them; each tensor's file pages are given back once it is repacked. progress may be NULL. */
typedef void mr_load_progress(void *ctx, size_t done_bytes, size_t total_bytes);
MR_MUST_USE mr_status mr_weights_load(mr_weights *w, mr_load_progress *progress, void *ctx, mr_err *err);

/* How a stage's graph is sized. */
typedef struct mr_stage_shape {
    int32_t max_rows;     /* the row bucket */
    int32_t max_out_rows; /* rows that want logits */
} mr_stage_shape;

/* Tensors that live across steps. */
typedef struct mr_stage_state {
    const mr_tensor *k, *v; /* one for each layer of the range */
    mr_tensor block_table;  /* [max blocks of a sequence, sequence slots] i32 */
} mr_stage_state;

/* Ids of a stage graph's inputs and outputs; MR_NO_TENSOR for what this stage does not have. */
typedef struct mr_stage_io {
    int32_t ids;         /* head: [1, R] i32 */
    int32_t x_in;        /* others: [d, R] f32 */
    int32_t positions;   /* [1, R] i32 */
    int32_t slots;       /* [1, R] i32 */
    int32_t row_seq;     /* [1, R] i32: the line of the block table */
    int32_t out_rows;    /* tail: [1, O] i32 */
    int32_t hidden_rows; /* tail: [1, H] i32 */
    int32_t x_out;       /* all but the tail: [d, R] f32 */
    int32_t logits;      /* tail: [vocabulary, O] f32 */
    int32_t hidden;      /* tail: [d, H] f32, behind the output norm */
} mr_stage_io;

/* Builds (does not finish) the graph. */
MR_MUST_USE mr_status mr_stage_graph_build(const mr_weights *w, const mr_stage_state *state,
                                           const mr_stage_shape *shape, mr_graph **out, mr_stage_io *out_io,
                                           mr_err *err);

/* The constant of rule R, [MR_ROPE_ROWS][row_floats] with n_rot / 2 values in each row: base, factors of a rope_freqs
 * tensor (NULL for none), linear and YaRN scaling (Peng et al., 2023). out_magnitude: what cosines and sines are
 * multiplied by. */
void mr_rope_angles(const mr_model_info *info, const float *factors, size_t row_floats, float *out_angles,
                    float *out_magnitude);

#endif
