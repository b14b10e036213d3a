// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/rng.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"

static void check(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "tiny_model: %s\n", what);
        abort();
    }
}

tiny_desc tiny_default(const char *arch, mr_type type) {
    bool wide = type == MR_TYPE_Q4_K || type == MR_TYPE_Q6_K;
    return (tiny_desc){
        .arch = arch,
        .type = type,
        .n_layers = 2,
        .d_model = wide ? 256 : 64,
        .n_ff = wide ? 256 : 160,
        .n_heads = 4,
        .n_kv_heads = 2,
        .vocab_size = 90,
        .context_length = 256,
        .seed = 1,
    };
}

/* --- Random values ----------------------------------------------------------------------------------------------- */

/* A stream of random bytes. */
typedef struct source {
    uint64_t seed, counter, bits;
    int n_left;
} source;

static uint8_t next_byte(source *s) {
    if (s->n_left == 0) {
        s->bits = mr_rng_u64(s->seed, 0, s->counter++);
        s->n_left = 8;
    }
    s->n_left--;
    uint8_t b = (uint8_t)s->bits;
    s->bits >>= 8;
    return b;
}

static void fill_bytes(source *s, void *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = next_byte(s);
}

static float next_uniform(source *s, float amplitude) {
    uint32_t u = (uint32_t)next_byte(s) | (uint32_t)next_byte(s) << 8 | (uint32_t)next_byte(s) << 16;
    return ((float)u / 8388608.0f - 1.0f) * amplitude;
}

static uint16_t near(source *s, float v) {
    return mr_f32_to_f16(v * (1.0f + next_uniform(s, 0.25f)));
}

static void fill_q8_0(source *s, mr_block_q8_0 *b, float amplitude) {
    fill_bytes(s, b->q, sizeof b->q);
    b->d = near(s, amplitude / 128.0f);
}

/* Values -8..7 */
static void fill_q4_0(source *s, mr_block_q4_0 *b, float amplitude) {
    fill_bytes(s, b->q, sizeof b->q);
    b->d = near(s, amplitude / 8.0f);
}

/* Scales 0..63 with a mean of 32; minima that centre them: 7.5 d sc = dmin m for the mean. */
static void fill_q4_k(source *s, mr_block_q4_k *b, float amplitude) {
    fill_bytes(s, b->scales, sizeof b->scales);
    fill_bytes(s, b->q, sizeof b->q);
    float d = amplitude / (7.5f * 40.0f);
    b->d = near(s, d);
    b->dmin = near(s, 7.5f * d);
}

static void fill_q6_k(source *s, mr_block_q6_k *b, float amplitude) {
    fill_bytes(s, b->ql, sizeof b->ql);
    fill_bytes(s, b->qh, sizeof b->qh);
    fill_bytes(s, b->sc, sizeof b->sc);
    b->d = near(s, amplitude / (32.0f * 80.0f));
}

void *tiny_random(mr_type type, int64_t n, float amplitude, uint64_t seed) {
    source s = {.seed = seed};
    size_t bytes;
    check(mr_type_bytes(type, n, &bytes), "elements do not fit the type");
    uint8_t *p = malloc(bytes ? bytes : 1);
    check(p != NULL, "no memory");
    const mr_type_info *info = mr_type_get(type);
    for (int64_t i = 0; i < n / info->block_elems; i++) {
        void *block = p + (size_t)i * (size_t)info->block_bytes;
        if (type == MR_TYPE_F32)
            *(float *)block = next_uniform(&s, amplitude);
        else if (type == MR_TYPE_F16)
            *(uint16_t *)block = mr_f32_to_f16(next_uniform(&s, amplitude));
        else if (type == MR_TYPE_BF16)
            *(uint16_t *)block = mr_f32_to_bf16(next_uniform(&s, amplitude));
        else if (type == MR_TYPE_Q8_0)
            fill_q8_0(&s, block, amplitude);
        else if (type == MR_TYPE_Q4_0)
            fill_q4_0(&s, block, amplitude);
        else if (type == MR_TYPE_Q4_K)
            fill_q4_k(&s, block, amplitude);
        else if (type == MR_TYPE_Q6_K)
            fill_q6_k(&s, block, amplitude);
        else
            fill_bytes(&s, block, (size_t)info->block_bytes); /* never multiplied: only in models that are refused */
    }
    return p;
}

/* --- The file ---------------------------------------------------------------------------------------------------- */

typedef struct maker {
    gguf_writer *w;
    const tiny_desc *d;
    const char *arch;
    int32_t n_matrices; /* third dimension of the following tensors; 0: two dimensions */
    uint64_t n_tensors; /* also the seed of the next tensor's data */
} maker;

/* rows 0: a vector. offset is added to the values of a float vector. */
static void put_tensor(maker *m, const char *name, int64_t columns, int64_t rows, float amplitude, float offset) {
    const tiny_edit *e = &m->d->edit;
    mr_type type = rows ? m->d->type : m->d->vector_type;
    bool edited = e->name && strcmp(e->name, name) == 0;
    if (edited && e->kind == TINY_LEAVE_OUT)
        return;
    if (edited && e->kind == TINY_TYPE)
        type = e->type;
    if (edited && e->kind == TINY_SHAPE) {
        columns = e->columns;
        rows = e->rows;
    }
    int64_t n = columns * (rows ? rows : 1) * (m->n_matrices ? m->n_matrices : 1);
    void *data = tiny_random(type, n, amplitude, m->d->seed * 1000 + m->n_tensors++);
    for (int64_t i = 0; offset != 0.0f && i < n && type <= MR_TYPE_F16; i++) {
        if (type == MR_TYPE_F32)
            ((float *)data)[i] += offset;
        else
            ((uint16_t *)data)[i] = mr_f32_to_f16(mr_f16_to_f32(((uint16_t *)data)[i]) + offset);
    }
    if (m->n_matrices)
        gguf_writer_tensor(m->w, name, type, 3, (const int64_t[]){columns, rows, m->n_matrices}, data);
    else if (rows)
        gguf_writer_matrix(m->w, name, type, columns, rows, data);
    else
        gguf_writer_vector(m->w, name, type, columns, data);
    free(data);
}

/* Uniform in +-sqrt(3 / columns), so that a product has about the magnitude of its input. */
static void put_matrix(maker *m, const char *name, int64_t columns, int64_t rows) {
    put_tensor(m, name, columns, rows, sqrtf(3.0f / (float)columns), 0.0f);
}

static void put_norm(maker *m, const char *name, int64_t n) {
    put_tensor(m, name, n, 0, 0.5f, 1.0f);
}

/* The name of a layer's tensor; the text is valid until the next call. */
static const char *of_layer(int32_t layer, const char *suffix) {
    static char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", layer, suffix);
    return name;
}

static void put_experts(maker *m, int32_t l) {
    const tiny_desc *d = m->d;
    put_matrix(m, of_layer(l, "ffn_gate_inp.weight"), d->d_model, d->n_experts);
    m->n_matrices = d->n_experts;
    put_matrix(m, of_layer(l, "ffn_gate_exps.weight"), d->d_model, d->n_ff);
    put_matrix(m, of_layer(l, "ffn_up_exps.weight"), d->d_model, d->n_ff);
    put_matrix(m, of_layer(l, "ffn_down_exps.weight"), d->n_ff, d->d_model);
    m->n_matrices = 0;
    if (d->n_ff_shared) {
        put_tensor(m, of_layer(l, "exp_probs_b.bias"), d->n_experts, 0, 0.5f, 0.0f);
        put_matrix(m, of_layer(l, "ffn_gate_shexp.weight"), d->d_model, d->n_ff_shared);
        put_matrix(m, of_layer(l, "ffn_up_shexp.weight"), d->d_model, d->n_ff_shared);
        put_matrix(m, of_layer(l, "ffn_down_shexp.weight"), d->n_ff_shared, d->d_model);
    }
}

static void put_layer(maker *m, int32_t l) {
    const tiny_desc *d = m->d;
    bool qwen2 = strcmp(m->arch, "qwen2") == 0, qwen3 = strncmp(m->arch, "qwen3", 5) == 0;
    bool olmo2 = strcmp(m->arch, "olmo2") == 0, phi3 = strcmp(m->arch, "phi3") == 0;
    int64_t width = d->d_model, head = d->head_dim ? d->head_dim : d->d_model / d->n_heads;
    int64_t q = d->n_heads * head, kv = (d->n_kv_heads_of ? (int32_t)d->n_kv_heads_of[l] : d->n_kv_heads) * head;
    int64_t ff = d->n_ff_of ? (int32_t)d->n_ff_of[l] : d->n_ff;
    put_norm(m, of_layer(l, olmo2 ? "post_attention_norm.weight" : "attn_norm.weight"), width);
    if (phi3) {
        put_matrix(m, of_layer(l, "attn_qkv.weight"), width, q + 2 * kv);
    } else {
        put_matrix(m, of_layer(l, "attn_q.weight"), width, q);
        put_matrix(m, of_layer(l, "attn_k.weight"), width, kv);
        put_matrix(m, of_layer(l, "attn_v.weight"), width, kv);
    }
    put_matrix(m, of_layer(l, "attn_output.weight"), q, width);
    if (qwen2 || d->biases) {
        put_tensor(m, of_layer(l, "attn_q.bias"), q, 0, 0.5f, 0.0f);
        put_tensor(m, of_layer(l, "attn_k.bias"), kv, 0, 0.5f, 0.0f);
        put_tensor(m, of_layer(l, "attn_v.bias"), kv, 0, 0.5f, 0.0f);
    }
    if (d->biases && !qwen2)
        put_tensor(m, of_layer(l, "attn_output.bias"), width, 0, 0.5f, 0.0f);
    if (qwen3 || olmo2 || strcmp(m->arch, "dots1") == 0) {
        put_norm(m, of_layer(l, "attn_q_norm.weight"), olmo2 ? q : head);
        put_norm(m, of_layer(l, "attn_k_norm.weight"), olmo2 ? kv : head);
    }
    put_norm(m, of_layer(l, olmo2 ? "post_ffw_norm.weight" : "ffn_norm.weight"), width);
    if (d->n_experts && l >= d->n_dense) {
        put_experts(m, l);
        return;
    }
    if (!phi3)
        put_matrix(m, of_layer(l, "ffn_gate.weight"), width, ff);
    put_matrix(m, of_layer(l, "ffn_up.weight"), width, phi3 ? 2 * ff : ff);
    if (d->n_predictor == 0) {
        put_matrix(m, of_layer(l, "ffn_down.weight"), ff, width);
        return;
    }
    put_tensor(m, of_layer(l, "ffn_down_t.weight"), width, ff, sqrtf(3.0f / (float)ff), 0.0f);
    put_matrix(m, of_layer(l, "fc1.weight"), width, d->n_predictor);
    put_matrix(m, of_layer(l, "fc2.weight"), d->n_predictor, ff);
}

gguf_writer *tiny_model_write(const tiny_desc *d) {
    maker m = {.w = gguf_writer_create(), .d = d, .arch = d->arch ? d->arch : "llama"};
    gguf_model_shape shape = {
        .arch = m.arch,
        .n_layers = d->n_layers,
        .d_model = d->d_model,
        .n_ff = d->n_ff,
        .n_heads = d->n_heads,
        .n_kv_heads = d->n_kv_heads,
        .n_ff_of = d->n_ff_of,
        .n_kv_heads_of = d->n_kv_heads_of,
        .vocab_size = d->vocab_size,
        .context_length = d->context_length,
        .tokens = d->tokens,
    };
    int32_t head = d->head_dim ? d->head_dim : d->d_model / d->n_heads;
    char key[64];
    gguf_writer_model_keys(m.w, &shape);
    snprintf(key, sizeof key, "%s.attention.key_length", m.arch);
    gguf_writer_u32(m.w, key, (uint32_t)head);
    snprintf(key, sizeof key, "%s.attention.value_length", m.arch);
    gguf_writer_u32(m.w, key, (uint32_t)head);
    if (d->n_experts) {
        snprintf(key, sizeof key, "%s.expert_count", m.arch);
        gguf_writer_u32(m.w, key, (uint32_t)d->n_experts);
        snprintf(key, sizeof key, "%s.expert_used_count", m.arch);
        gguf_writer_u32(m.w, key, (uint32_t)d->n_experts_used);
        snprintf(key, sizeof key, "%s.expert_shared_feed_forward_length", m.arch);
        gguf_writer_u32(m.w, key, (uint32_t)d->n_ff_shared);
        snprintf(key, sizeof key, "%s.leading_dense_block_count", m.arch);
        gguf_writer_u32(m.w, key, (uint32_t)d->n_dense);
    }
    if (d->n_predictor) {
        gguf_writer_sparse(m.w);
        gguf_writer_f32(m.w, "powerinfer.sparse_threshold", d->threshold);
    }
    put_tensor(&m, "token_embd.weight", d->d_model, d->vocab_size, 1.7f, 0.0f);
    for (int32_t l = 0; l < d->n_layers; l++)
        put_layer(&m, l);
    put_norm(&m, "output_norm.weight", d->d_model);
    if (!d->tied_output)
        put_matrix(&m, "output.weight", d->d_model, d->vocab_size);
    if (d->rope_factors)
        put_tensor(&m, "rope_freqs.weight", head / 2, 0, 0.9f, 1.5f);
    return m.w;
}

/* --- The open model ---------------------------------------------------------------------------------------------- */

static tiny_model *finish_open(tiny_model *m, mr_status status, mr_err *err) {
    if (status == MR_OK)
        status = mr_model_info_read(m->gguf, &m->info, err);
    check(status == MR_OK, err->text);
    return m;
}

tiny_model *tiny_model_open(gguf_writer *w) {
    tiny_model *m = calloc(1, sizeof *m);
    mr_err err = {0};
    size_t size;
    const uint8_t *bytes = gguf_writer_bytes(w, &size);
    check(m != NULL && (m->bytes = malloc(size)) != NULL, "no memory");
    memcpy(m->bytes, bytes, size);
    gguf_writer_destroy(w);
    return finish_open(m, mr_gguf_open_memory(m->bytes, size, &m->gguf, &err), &err);
}

tiny_model *tiny_model_open_path(const char *path) {
    tiny_model *m = calloc(1, sizeof *m);
    mr_err err = {0};
    check(m != NULL, "no memory");
    return finish_open(m, mr_gguf_open(path, &m->gguf, &err), &err);
}

tiny_model *tiny_model_create(const tiny_desc *desc) {
    return tiny_model_open(tiny_model_write(desc));
}

void tiny_model_destroy(tiny_model *m) {
    if (!m)
        return;
    mr_gguf_close(m->gguf);
    free(m->bytes);
    free(m);
}
