// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/le.h"

typedef struct bytes {
    uint8_t *data;
    size_t size, capacity;
} bytes;

struct gguf_writer {
    uint32_t version, alignment;
    uint64_t n_keys, n_tensors;
    bool is_sparse, lie;
    uint64_t said_keys, said_tensors;
    bytes keys, tensors, data, file;
};

static void check(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "gguf_writer: %s\n", what);
        abort();
    }
}

/* Appends n zero bytes and returns where they start. */
static uint8_t *grow(bytes *b, size_t n) {
    if (!b->data || n > b->capacity - b->size) {
        b->capacity = 2 * b->capacity + n + 256;
        b->data = realloc(b->data, b->capacity);
        check(b->data != NULL, "no memory");
    }
    uint8_t *p = b->data + b->size;
    memset(p, 0, n);
    b->size += n;
    return p;
}

static void put(bytes *b, const void *data, size_t n) {
    uint8_t *p = grow(b, n);
    if (n && data)
        memcpy(p, data, n);
}

static void put_u32(bytes *b, uint32_t v) {
    mr_store_le32(grow(b, 4), v);
}

static void put_u64(bytes *b, uint64_t v) {
    mr_store_le64(grow(b, 8), v);
}

static void put_str(bytes *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static void pad(bytes *b, size_t alignment) {
    grow(b, (alignment - b->size % alignment) % alignment);
}

gguf_writer *gguf_writer_create(void) {
    gguf_writer *w = calloc(1, sizeof *w);
    check(w != NULL, "no memory");
    w->version = 3;
    w->alignment = 32;
    return w;
}

void gguf_writer_destroy(gguf_writer *w) {
    if (!w)
        return;
    free(w->keys.data);
    free(w->tensors.data);
    free(w->data.data);
    free(w->file.data);
    free(w);
}

void gguf_writer_sparse(gguf_writer *w) {
    w->is_sparse = true;
}

void gguf_writer_version(gguf_writer *w, uint32_t version) {
    w->version = version;
}

void gguf_writer_alignment(gguf_writer *w, uint32_t alignment) {
    check(w->n_tensors == 0 && alignment > 0, "alignment after a tensor");
    w->alignment = alignment;
    gguf_writer_u32(w, "general.alignment", alignment);
}

/* Writes name and type; the caller appends the value. Types are the numbers of the GGUF specification. */
static bytes *begin_key(gguf_writer *w, const char *key, uint32_t type) {
    w->n_keys++;
    put_str(&w->keys, key);
    put_u32(&w->keys, type);
    return &w->keys;
}

static bytes *begin_array(gguf_writer *w, const char *key, uint32_t type, size_t n) {
    bytes *b = begin_key(w, key, 9);
    put_u32(b, type);
    put_u64(b, n);
    return b;
}

void gguf_writer_raw(gguf_writer *w, const char *key, uint32_t type, const void *value, size_t n) {
    put(begin_key(w, key, type), value, n);
}

void gguf_writer_u32(gguf_writer *w, const char *key, uint32_t v) {
    put_u32(begin_key(w, key, 4), v);
}

void gguf_writer_i32(gguf_writer *w, const char *key, int32_t v) {
    put_u32(begin_key(w, key, 5), (uint32_t)v);
}

void gguf_writer_u64(gguf_writer *w, const char *key, uint64_t v) {
    put_u64(begin_key(w, key, 10), v);
}

void gguf_writer_f32(gguf_writer *w, const char *key, float v) {
    mr_store_le_f32(grow(begin_key(w, key, 6), 4), v);
}

void gguf_writer_bool(gguf_writer *w, const char *key, bool v) {
    *grow(begin_key(w, key, 7), 1) = v;
}

void gguf_writer_str(gguf_writer *w, const char *key, const char *v) {
    put_str(begin_key(w, key, 8), v);
}

void gguf_writer_u32s(gguf_writer *w, const char *key, const uint32_t *v, size_t n) {
    bytes *b = begin_array(w, key, 4, n);
    for (size_t i = 0; i < n; i++)
        put_u32(b, v[i]);
}

void gguf_writer_bools(gguf_writer *w, const char *key, const bool *v, size_t n) {
    bytes *b = begin_array(w, key, 7, n);
    for (size_t i = 0; i < n; i++)
        *grow(b, 1) = v[i];
}

void gguf_writer_i32s(gguf_writer *w, const char *key, const int32_t *v, size_t n) {
    bytes *b = begin_array(w, key, 5, n);
    for (size_t i = 0; i < n; i++)
        put_u32(b, (uint32_t)v[i]);
}

void gguf_writer_f32s(gguf_writer *w, const char *key, const float *v, size_t n) {
    bytes *b = begin_array(w, key, 6, n);
    for (size_t i = 0; i < n; i++)
        mr_store_le_f32(grow(b, 4), v[i]);
}

void gguf_writer_strs(gguf_writer *w, const char *key, const char *const *v, size_t n) {
    bytes *b = begin_array(w, key, 8, n);
    for (size_t i = 0; i < n; i++)
        put_str(b, v[i]);
}

void gguf_writer_raw_tensor(gguf_writer *w, const gguf_raw_tensor *t) {
    bytes *b = &w->tensors;
    w->n_tensors++;
    put_str(b, t->name);
    put_u32(b, t->n_dims);
    for (uint32_t i = 0; i < t->n_dims && i < 8; i++)
        put_u64(b, t->ne[i]);
    put_u32(b, t->type);
    put_u64(b, t->offset);
}

void gguf_writer_raw_data(gguf_writer *w, const void *data, size_t n) {
    put(&w->data, data, n);
}

void gguf_writer_tensor(gguf_writer *w, const char *name, mr_type type, int n_dims, const int64_t *ne,
                        const void *data) {
    gguf_raw_tensor t = {.name = name, .n_dims = (uint32_t)n_dims, .type = (uint32_t)type};
    int64_t n_elems = 1;
    size_t n;
    check(n_dims >= 1 && n_dims <= 4, "dimensions");
    for (int i = 0; i < n_dims; i++) {
        t.ne[i] = (uint64_t)ne[i];
        n_elems *= ne[i];
    }
    check(mr_type_bytes((int32_t)type, n_elems, &n), "elements do not fit the type");
    pad(&w->data, w->alignment);
    t.offset = w->data.size;
    gguf_writer_raw_tensor(w, &t);
    put(&w->data, data, n);
}

void gguf_writer_vector(gguf_writer *w, const char *name, mr_type type, int64_t n, const void *data) {
    gguf_writer_tensor(w, name, type, 1, &n, data);
}

void gguf_writer_matrix(gguf_writer *w, const char *name, mr_type type, int64_t columns, int64_t rows,
                        const void *data) {
    gguf_writer_tensor(w, name, type, 2, (const int64_t[]){columns, rows}, data);
}

void gguf_writer_counts(gguf_writer *w, uint64_t n_tensors, uint64_t n_keys) {
    w->lie = true;
    w->said_tensors = n_tensors;
    w->said_keys = n_keys;
}

const uint8_t *gguf_writer_bytes(gguf_writer *w, size_t *out_size) {
    bytes *f = &w->file;
    f->size = 0;
    put(f, w->is_sparse ? "PWRI" : "GGUF", 4);
    put_u32(f, w->version);
    put_u64(f, w->lie ? w->said_tensors : w->n_tensors);
    put_u64(f, w->lie ? w->said_keys : w->n_keys);
    put(f, w->keys.data, w->keys.size);
    put(f, w->tensors.data, w->tensors.size);
    if (w->n_tensors)
        pad(f, w->alignment);
    put(f, w->data.data, w->data.size);
    *out_size = f->size;
    return f->data;
}

bool gguf_writer_save(gguf_writer *w, const char *path) {
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    FILE *f = fopen(path, "wb");
    if (!f)
        return false;
    bool ok = fwrite(data, 1, size, f) == size;
    return fclose(f) == 0 && ok;
}

static const char *arch_key(char *buf, size_t size, const gguf_model_shape *m, const char *suffix) {
    snprintf(buf, size, "%s.%s", m->arch ? m->arch : "llama", suffix);
    return buf;
}

void gguf_writer_model_keys(gguf_writer *w, const gguf_model_shape *m) {
    const struct {
        const char *suffix;
        int32_t v;
        const uint32_t *of_layers;
    } ints[] = {
        {"block_count", m->n_layers, NULL},         {"context_length", m->context_length, NULL},
        {"embedding_length", m->d_model, NULL},     {"feed_forward_length", m->n_ff, m->n_ff_of},
        {"attention.head_count", m->n_heads, NULL}, {"attention.head_count_kv", m->n_kv_heads, m->n_kv_heads_of},
    };
    char key[128], text[16];
    gguf_writer_str(w, "general.architecture", m->arch ? m->arch : "llama");
    gguf_writer_str(w, "general.name", "test model");
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        arch_key(key, sizeof key, m, ints[i].suffix);
        if (ints[i].of_layers)
            gguf_writer_u32s(w, key, ints[i].of_layers, (size_t)m->n_layers);
        else
            gguf_writer_u32(w, key, (uint32_t)ints[i].v);
    }
    gguf_writer_f32(w, arch_key(key, sizeof key, m, "attention.layer_norm_rms_epsilon"), 1e-5f);
    bytes *b = begin_array(w, "tokenizer.ggml.tokens", 8, (size_t)m->vocab_size);
    for (int32_t i = 0; i < m->vocab_size; i++) {
        snprintf(text, sizeof text, "t%d", i);
        put_str(b, m->tokens ? m->tokens[i] : text);
    }
}

static void layer_tensors(gguf_writer *w, const gguf_model_shape *m, int32_t layer) {
    int64_t d = m->d_model, kv = d / m->n_heads * m->n_kv_heads, ff = m->n_ff;
    const struct {
        const char *name;
        int64_t columns, rows; /* rows 0: a float32 vector */
    } tensors[] = {
        {"attn_norm", d, 0}, {"attn_q", d, d},    {"attn_k", d, kv}, {"attn_v", d, kv},   {"attn_output", d, d},
        {"ffn_norm", d, 0},  {"ffn_gate", d, ff}, {"ffn_up", d, ff}, {"ffn_down", ff, d},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].name);
        if (tensors[i].rows)
            gguf_writer_matrix(w, name, m->type, tensors[i].columns, tensors[i].rows, NULL);
        else
            gguf_writer_vector(w, name, MR_TYPE_F32, tensors[i].columns, NULL);
    }
}

void gguf_writer_model_tensors(gguf_writer *w, const gguf_model_shape *m) {
    gguf_writer_matrix(w, "token_embd.weight", m->type, m->d_model, m->vocab_size, NULL);
    gguf_writer_vector(w, "output_norm.weight", MR_TYPE_F32, m->d_model, NULL);
    if (!m->tied_output)
        gguf_writer_matrix(w, "output.weight", m->type, m->d_model, m->vocab_size, NULL);
    for (int32_t i = 0; i < m->n_layers; i++)
        layer_tensors(w, m, i);
}
