/* engine/gguf/model_info.h - the hyper-parameters of a model, read from the metadata and checked; and which tensor
 * belongs to which part of the model. The same code serves every architecture. Keys are those of the GGUF
 * specification, where A stands for the value of general.architecture.
 * Owns:    nothing; mr_model_info is plain data.
 * Threads: pure functions of an open file.
 * Errors:  MR_E_FORMAT: a key or tensor is missing, of the wrong type or shape, or out of its range. MR_E_UNSUPPORTED:
 *          a kind of model that this version does not run. Error texts name the key or tensor and the value. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_MODEL_INFO_H
#define MR_ENGINE_GGUF_MODEL_INFO_H

#include "engine/gguf/gguf.h"
#include "engine/tensor/tensor.h"

enum {
    MR_MODEL_MAX_LAYERS = 4096,
    MR_MODEL_MAX_WIDTH = 1 << 20, /* limit of d_model */
    MR_MODEL_MAX_FF = 1 << 22,    /* limit of n_ff */
    MR_MODEL_MAX_HEADS = 1 << 14,
    MR_MODEL_MAX_HEAD_DIM = 1 << 12,
    MR_MODEL_MAX_VOCAB = 1 << 24,
    MR_MODEL_MAX_CONTEXT = 1 << 30,
    MR_MODEL_MAX_EXPERTS = 1 << 12,
    MR_MODEL_MAX_SHAPES = 128, /* layers that differ from each other */
    MR_MODEL_MAX_ROPES = 2,
    MR_MODEL_NO_ROPE = -1,
};

typedef enum mr_rope_scaling {
    MR_ROPE_SCALING_NONE,
    MR_ROPE_SCALING_LINEAR, /* positions are divided by factor */
    MR_ROPE_SCALING_YARN,   /* Peng et al., "YaRN: efficient context window extension", 2023 */
    /* Ding et al., "LongRoPE", 2024: MR_ROPE_FACTORS_BY_CONTEXT; positions are divided by factor, too */
    MR_ROPE_SCALING_LONGROPE,
} mr_rope_scaling;

/* Tensors [n_rot / 2] f32 whose values divide the frequencies. */
typedef enum mr_rope_factors {
    MR_ROPE_FACTORS_NONE,
    MR_ROPE_FACTORS_FIXED,      /* rope_freqs.weight (Llama 3.1) */
    MR_ROPE_FACTORS_BY_CONTEXT, /* rope_factors_short.weight and rope_factors_long.weight */
} mr_rope_factors;

typedef struct mr_model_rope {
    int32_t n_rot;   /* A.rope.dimension_count, else k_dim: RoPE rotates the first n_rot elements of each head */
    float freq_base; /* A.rope.freq_base, else 10000 */
    mr_rope_scaling scaling;
    float factor;             /* 1 without scaling */
    int32_t original_context; /* A.rope.scaling.original_context_length, else context_length */
    float attn_factor;        /* A.rope.scaling.attn_factor times .yarn_attn_factor, else 1 */
    float ext_factor;         /* A.rope.scaling.yarn_ext_factor, else 1 for YaRN and 0 otherwise */
    float beta_fast;          /* A.rope.scaling.yarn_beta_fast, else 32 */
    float beta_slow;          /* A.rope.scaling.yarn_beta_slow, else 1 */
    float score_factor;       /* of attention scores: 1, or what YaRN makes of it in some architectures */
    mr_rope_factors factors;
} mr_model_rope;

/* The numbers of a layer. Each comes from one number for all layers, from an array with a value for each layer, or from
 * a pattern; layer_info.c names the keys. */
typedef struct mr_layer_info {
    int32_t n_heads;
    int32_t n_kv_heads;  /* divides n_heads */
    int32_t k_dim;       /* elements of a head of queries and keys; even */
    int32_t v_dim;       /* elements of a head of values */
    int32_t rope;        /* index in mr_model_info.ropes, or MR_MODEL_NO_ROPE */
    int32_t window;      /* how many tokens a token attends to, itself included; 0: to all tokens before it */
    bool has_experts;    /* instead of one dense feed-forward part */
    int32_t n_ff;        /* width of the dense feed-forward part, or of each expert */
    int32_t n_predictor; /* of a sparse part: width of the hidden layer that predicts active neurons; else 0 */
    int32_t n_ff_shared; /* width of the expert that every row takes beside the chosen ones; 0: there is none */
} mr_layer_info;

/* Latent attention (DeepSeek-AI, "DeepSeek-V2", 2024). A position keeps one latent of v_dim numbers and a part of a key
 * that all heads share, which RoPE rotates: for the store these are one KV head, as the layer info says. Here are the
 * numbers of the heads that they stand for. */
typedef struct mr_latent_info {
    int32_t q_rank; /* A.attention.q_lora_rank: queries come from a latent of so many numbers; 0: from the row */
    int32_t k_dim;  /* A.attention.key_length_mla, of which the last n_rot rotate; 0: no latent attention */
    int32_t v_dim;  /* A.attention.value_length_mla */
} mr_latent_info;

typedef struct mr_model_info {
    char arch[64];  /* letters, digits, '-', '_' and '.' */
    char name[128]; /* general.name, cut to fit, '?' for control characters; may be empty or invalid UTF-8 */
    int32_t n_layers;
    /* A.nextn_predict_layers: so many layers follow in the file, which predict further tokens. This version leaves them
     * out. */
    int32_t n_nextn_layers;
    int32_t d_model;
    float norm_eps;     /* A.attention.layer_norm_rms_epsilon, else .layer_norm_epsilon */
    int32_t vocab_size; /* rows of token_embd.weight */
    int32_t context_length;
    mr_model_rope ropes[MR_MODEL_MAX_ROPES]; /* [n_ropes]; the second one is that of layers with a window */
    int32_t n_ropes;
    int32_t n_experts;      /* of each layer with experts; 0: no layer has experts */
    int32_t n_experts_used; /* 1 to n_experts, or 0 */
    mr_routing routing;     /* how experts are chosen and weighed */
    float attention_scale;  /* of q . k: A.attention.scale; 0: 1 / sqrt(k_dim) */
    /* growth: A.attention.temperature_scale; length: A.attention.temperature_length, else the original context. Zeros:
     * none. */
    mr_temperature temperature;
    /* Factors of embeddings, of what a part of a layer adds, and of logits; 0: none. */
    float embedding_scale, residual_scale, logit_scale;
    mr_latent_info latent;
    /* The file has the magic of PowerInfer: units are ReLU, and feed-forward parts are sparse. */
    bool is_sparse;
    float sparse_threshold; /* powerinfer.sparse_threshold, else 0: a neuron with a lower score is not active */
    /* A.attention.indexer.top_k, else 2048: beyond so many positions, an indexer (DeepSeek-AI, "DeepSeek-V3.2", 2025)
     * chooses those that a token attends to. Up to there it leaves none out. This version leaves the indexer's tensors
     * out and runs these positions: context_length is no larger. 0: no indexer. */
    int32_t indexer_top_k;
    /* Layers with the same numbers share a shape: shapes[shape_of[layer]]. */
    mr_layer_info shapes[MR_MODEL_MAX_SHAPES]; /* [n_shapes] */
    int32_t n_shapes;
    uint8_t shape_of[MR_MODEL_MAX_LAYERS]; /* [n_layers] */
    bool tied_output;                      /* no output.weight: the output matrix is token_embd.weight */
    int32_t file_type;                     /* general.file_type, -1 where it is missing */
    int32_t quantization_version;          /* 0 where it is missing */
} mr_model_info;

static inline const mr_layer_info *mr_model_layer(const mr_model_info *m, int32_t layer) {
    return &m->shapes[m->shape_of[layer]];
}

/* Partitions of neurons (rule S of engine/NUMERICS.md) of the widest feed-forward part of a sparse model; 0: the model
 * is not sparse. */
int32_t mr_model_partitions(const mr_model_info *m);

/* The tensor with the factors of a run whose sequences have at most max_context positions; NULL: there are no factors.
 * Every position of a run has the same factors, those before original_context too: so a row does not depend on the
 * length of its sequence. */
const char *mr_model_rope_factors(const mr_model_rope *rope, int32_t max_context);

/* Bytes of the keys and values of one position in a layer; 0 for a type that does not fit. */
size_t mr_model_kv_bytes(const mr_model_info *m, int32_t layer, mr_type type);

/* Reads and checks all hyper-parameters. Also checks that the file has tensors of every layer and of no other layer but
 * those that predict further tokens. */
MR_MUST_USE mr_status mr_model_info_read(const mr_gguf *g, mr_model_info *out, mr_err *err);

/* Which part of the model a tensor belongs to, by its name. */
typedef enum mr_model_part {
    MR_MODEL_EMBEDDING, /* token_embd.*: on the head stage, and on the tail stage if the output is tied */
    MR_MODEL_LAYER,     /* blk.N.* */
    MR_MODEL_OUTPUT,    /* output_norm.* and output.*: on the tail stage */
    MR_MODEL_ENCODER,   /* v.*, a.* and mm.*: of an encoder of pictures or sounds; on no stage */
    MR_MODEL_SHARED,    /* all other tensors, such as rope_freqs.weight: on every stage */
    /* "blk." without a plain number below MR_MODEL_MAX_LAYERS; mr_model_info_read refuses such a tensor */
    MR_MODEL_BAD_LAYER,
} mr_model_part;

/* Writes out_layer for MR_MODEL_LAYER only. out_layer may be NULL. */
mr_model_part mr_model_tensor_part(const char *name, int32_t *out_layer);

/* Whether the tensor belongs to a layer that predicts further tokens, to an indexer, or to an encoder: no stage reads
 * it. */
bool mr_model_tensor_is_left_out(const mr_model_info *info, const mr_gguf_tensor *t);

/* Whether the tensor holds one matrix for each expert, one behind the other. */
bool mr_model_tensor_is_of_experts(const mr_model_info *info, const mr_gguf_tensor *t);

/* Bytes of the parts of the model in the file, without the tensors that are left out. */
size_t mr_model_layer_bytes(const mr_gguf *g, const mr_model_info *info, int32_t layer);
/* What a step reads of a layer, and what the layer computes for a row. */
typedef struct mr_layer_work {
    size_t bytes;        /* of all tensors except those of experts */
    size_t expert_bytes; /* of the matrices of all experts */
    double n_products;   /* products of a weight and a number of the row; of the experts, those that a row uses count */
} mr_layer_work;
mr_layer_work mr_model_layer_work(const mr_gguf *g, const mr_model_info *info, int32_t layer);
/* Bytes that one token reads of a layer. Of the matrices of experts, those of n_experts_used experts count. */
size_t mr_model_layer_read_bytes(const mr_gguf *g, const mr_model_info *info, int32_t layer);
size_t mr_model_embedding_bytes(const mr_gguf *g);
/* Bytes that the tail stage needs beside its layers. With a tied output the embedding is included. */
size_t mr_model_output_bytes(const mr_gguf *g);
size_t mr_model_shared_bytes(const mr_gguf *g);
/* Bytes of the encoders, which are left out. */
size_t mr_model_encoder_bytes(const mr_gguf *g);

/* Sorts the layers into kinds. Layers of one kind have the same numbers and the same tensors, of the same types and
 * shapes, so they take the same time. Kinds are numbered from 0 in the order of their first layers. out_kind has
 * info->n_layers elements. max_kinds is 1 to 256; in a model with more kinds, all further kinds count as the last one.
 * MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_model_layer_kinds(const mr_gguf *g, const mr_model_info *info, int32_t max_kinds,
                                           uint8_t *out_kind, int32_t *out_n_kinds, mr_err *err);

#endif
