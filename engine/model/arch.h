/* engine/model/arch.h - what an architecture consists of: a list of tables of tensors, and a function that adds a layer
 * to a graph. specs.c has the tables that architectures share, parts.h what their graphs share.
 * Owns: nothing; architectures are constants. Threads: any. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_ARCH_H
#define MR_ENGINE_MODEL_ARCH_H

#include "engine/gguf/model_info.h"
#include "engine/graph/graph.h"

/* Tensors of a layer by what they do. */
typedef enum layer_slot {
    W_ATTN_NORM,
    W_Q,
    W_Q_A, /* queries by way of a latent: to the latent and its norm; W_Q goes on from there */
    W_Q_A_NORM,
    W_Q_BIAS,
    W_Q_NORM,
    W_Q_LATE_NORM, /* behind RoPE */
    W_K,
    W_K_BIAS,
    W_K_NORM,
    W_K_LATE_NORM,
    W_V,
    W_KV_A, /* latent attention: to the latent and the shared part of keys; the norm of the latent */
    W_KV_A_NORM,
    W_K_B, /* of each head: from its query to one in the latent, from the sum of latents to its value */
    W_V_B,
    W_V_BIAS,
    W_SINKS,
    W_O,
    W_O_BIAS,
    W_FFN_NORM,
    W_GATE,
    W_GATE_BIAS,
    W_UP,
    W_UP_BIAS,
    W_DOWN,
    W_DOWN_BIAS,
    W_DOWN_ROWS, /* of a sparse part: down with a row for each neuron */
    W_GATE_COLD, /* of a sparse part: the last neurons, where the last backend has them and another one the first */
    W_UP_COLD,
    W_DOWN_ROWS_COLD,
    W_PREDICT_IN, /* of a sparse part: the two matrices of the predictor */
    W_PREDICT_OUT,
    W_ROUTER,
    W_ROUTER_BIAS,
    W_CHOICE_BIAS, /* of the scores by which experts are chosen */
    W_GATE_EXPERTS,
    W_GATE_EXPERTS_BIAS,
    W_UP_EXPERTS,
    W_UP_EXPERTS_BIAS,
    W_DOWN_EXPERTS,
    W_DOWN_EXPERTS_BIAS,
    W_GATE_SHARED,
    W_UP_SHARED,
    W_DOWN_SHARED,
    W_SHARED_GATE,
    W_ATTN_POST_NORM,
    W_FFN_POST_NORM,
    LAYER_SLOTS,
} layer_slot;

/* Sizes that a tensor may have. D: d_model; H heads of K elements in queries and keys and V in values; G KV heads. */
typedef enum tensor_size {
    SIZE_ONE,
    SIZE_D,
    SIZE_Q,      /* H * K */
    SIZE_K,      /* G * K */
    SIZE_V,      /* G * V */
    SIZE_A,      /* H * V: the result of attention */
    SIZE_HEADS,  /* H */
    SIZE_K_HEAD, /* K */
    SIZE_V_HEAD, /* V */
    SIZE_LATENT_Q_RANK,
    SIZE_LATENT_Q,      /* H * k_dim of mr_latent_info */
    SIZE_LATENT_A,      /* H * v_dim of mr_latent_info */
    SIZE_LATENT_K_HEAD, /* elements of k_dim that do not rotate */
    SIZE_LATENT_V_HEAD, /* v_dim */
    SIZE_FF,            /* width of the feed-forward part, or of each expert */
    SIZE_PREDICTOR,     /* width of the hidden layer of a predictor */
    SIZE_SHARED,        /* width of the shared expert */
    SIZE_EXPERTS,
    SIZE_VOCAB,
} tensor_size;

/* Which layers have a tensor, and how. 0: all layers need it. */
enum {
    IN_DENSE = 1,   /* layers without experts alone */
    IN_EXPERTS = 2, /* layers with experts alone */
    IN_SHARED = 16, /* layers with a shared expert alone */
    OPTIONAL = 4,
    OF_EXPERTS = 8,    /* holds one matrix for each expert, one behind the other */
    VECTORS = 32,      /* holds as many vectors as it has rows */
    IN_LATENT_Q = 128, /* models whose queries come from a latent alone */
    IN_PLAIN_Q = 256,  /* models whose queries do not */
    OF_HEADS = 512,    /* holds one matrix for each query head, one behind the other */
    IN_SPARSE = 1024,  /* sparse models alone */
    NOT_SPARSE = 2048, /* models that are not sparse */
    OF_NEURONS = 4096, /* with IN_SPARSE or in sparse models: rows are read one by one, in the layout of the file */
    ONE_ROW = 64,      /* a matrix, though it has one row */
};

/* A tensor of a layer. Rows of a table that have the same name are parts of one matrix of the file: its first rows, the
 * next ones and so on. */
typedef struct tensor_spec {
    layer_slot slot;
    const char *name;          /* behind "blk.N."; NULL ends a table */
    tensor_size columns, rows; /* columns: elements of a row, the input of a product. rows: SIZE_ONE for a vector */
    unsigned flags;
} tensor_spec;

extern const tensor_spec SPEC_NORMS[];       /* before attention and before the feed-forward part */
extern const tensor_spec SPEC_GQA[];         /* attention with heads that share KV heads */
extern const tensor_spec SPEC_LATENT[];      /* latent attention */
extern const tensor_spec SPEC_QKV_BIASES[];  /* of queries, keys and values */
extern const tensor_spec SPEC_ANY_BIASES[];  /* the same and that of the result, where the file has them */
extern const tensor_spec SPEC_HEAD_NORMS[];  /* of each head of queries and keys */
extern const tensor_spec SPEC_WIDE_NORMS[];  /* of queries and of keys, over the whole width */
extern const tensor_spec SPEC_GLU[];         /* the feed-forward part of layers without experts */
extern const tensor_spec SPEC_GLU_BIASES[];  /* of the three matrices of SPEC_GLU, where the file has them */
extern const tensor_spec SPEC_SPARSE[];      /* beside SPEC_GLU, in sparse models */
extern const tensor_spec SPEC_MOE[];         /* experts, in layers that have them */
extern const tensor_spec SPEC_CHOICE_BIAS[]; /* with experts that are chosen by scores and a bias */
extern const tensor_spec SPEC_SHARED[];      /* the shared expert, in layers that have one */

/* Parameters of one layer of a graph. */
typedef struct layer_ctx {
    const mr_layer_info *layer;
    float eps;
    int32_t rope_table; /* MR_NO_TENSOR in a layer without RoPE */
    mr_rope_desc rope;
    mr_attention_desc attention;
    float residual_scale; /* of what a part adds to x; 0: none. Architectures that have it apply it */
    mr_glu glu;
    mr_relu_unit relu_unit; /* of sparse parts */
    float sparse_threshold;
    int32_t n_experts, n_experts_used;
    const mr_experts_held *held; /* NULL: one backend has all experts of the layer */
    mr_routing routing;
    mr_latent_info latent;
} layer_ctx;

enum { MAX_TABLES = 8 };

typedef struct mr_arch {
    const char *name; /* general.architecture */
    mr_rope_pairs rope_pairs;
    mr_glu glu;                             /* of feed-forward parts; zeros: SwiGLU */
    mr_relu_unit relu_unit;                 /* of sparse parts */
    const tensor_spec *tensors[MAX_TABLES]; /* NULL behind the last table */
    /* Adds one layer to the graph. x is the input [d, R]; the result is the output [d, R]. w holds tensor ids,
     * MR_NO_TENSOR for a tensor that the file lacks. */
    int32_t (*layer)(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x);
} mr_arch;

extern const mr_arch mr_arch_bamboo, mr_arch_deepseek2, mr_arch_dots1, mr_arch_ernie4_5_moe, mr_arch_gemma3,
    mr_arch_glm4moe, mr_arch_glm_dsa, mr_arch_gpt_oss, mr_arch_granite, mr_arch_hunyuan_moe, mr_arch_llama,
    mr_arch_minimax_m2, mr_arch_mistral3, mr_arch_olmo2, mr_arch_phi3, mr_arch_qwen2, mr_arch_qwen2moe, mr_arch_qwen3,
    mr_arch_qwen3moe, mr_arch_smollm3;

/* MR_E_UNSUPPORTED: this version does not run the architecture. The error text names the supported ones. */
MR_MUST_USE mr_status mr_arch_find(const char *name, const mr_arch **out, mr_err *err);

#endif
