/* tests/fuzz/fuzz_gguf.c - fuzzes model files. Reads each accepted file as a loader would, up to the first and last
 * byte of every value and tensor. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/gpu_index.h"
#include "engine/gguf/model_info.h"
#include "tests/fuzz/fuzz.h"

static volatile unsigned sink;

/* Reads the first byte, the last byte, and some bytes between. */
static void touch(const void *data, size_t n) {
    const uint8_t *p = data;
    size_t step = n / 64 + 1;
    for (size_t i = 0; i < n; i += step)
        sink += p[i];
    if (n)
        sink += p[n - 1];
}

static void walk_array(const mr_gguf *g, const char *key) {
    mr_gguf_array a;
    mr_err err;
    if (mr_gguf_get_array(g, key, MR_GGUF_ELEMS_ANY, &a, &err) != MR_OK)
        return;
    for (size_t i = 0; i < a.n; i++) {
        if (a.type == MR_GGUF_STRING) {
            mr_str s = mr_gguf_array_str(&a, i);
            touch(s.data, s.len);
        } else if (a.type == MR_GGUF_F32 || a.type == MR_GGUF_F64) {
            sink += mr_gguf_array_f32(&a, i) > 0;
        } else {
            sink += (unsigned)mr_gguf_array_i64(&a, i) + mr_gguf_array_u32(&a, i) + (unsigned)mr_gguf_array_i32(&a, i);
        }
    }
}

static void walk_key(const mr_gguf *g, int32_t idx) {
    const char *key = mr_gguf_key_name(g, idx);
    char text[200];
    mr_err err;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
    int64_t i64;
    float f32;
    bool b;
    mr_str s;
    MR_ASSERT(mr_gguf_has_key(g, key));
    mr_gguf_key_format(g, idx, text, sizeof text);
    MR_ASSERT(strlen(text) < sizeof text);
    mr_gguf_key_format(g, idx, text, 1 + (size_t)idx % 7);
    sink += mr_gguf_get_u32(g, key, &u32, &err) == MR_OK;
    sink += mr_gguf_get_i32(g, key, &i32, &err) == MR_OK;
    sink += mr_gguf_get_u64(g, key, &u64, &err) == MR_OK;
    sink += mr_gguf_get_i64(g, key, &i64, &err) == MR_OK;
    sink += mr_gguf_get_f32(g, key, &f32, &err) == MR_OK;
    sink += mr_gguf_get_bool(g, key, &b, &err) == MR_OK;
    if (mr_gguf_get_str(g, key, &s, &err) == MR_OK)
        touch(s.data, s.len);
    walk_array(g, key);
}

static void walk_tensor(const mr_gguf *g, const mr_gguf_tensor *t) {
    MR_ASSERT(mr_gguf_find_tensor(g, t->name) == t);
    MR_ASSERT(t->offset >= mr_gguf_part_at(g, 0)->header_bytes && t->offset <= mr_gguf_file_bytes(g));
    MR_ASSERT(t->bytes > 0 && t->bytes <= mr_gguf_file_bytes(g) - t->offset);
    MR_ASSERT(t->data == mr_gguf_file_data(g) + t->offset);
    MR_ASSERT(t->n_dims >= 1 && t->n_dims <= MR_GGUF_MAX_DIMS && mr_type_get(t->type));
    touch(t->data, t->bytes);
}

static void walk_model(const mr_gguf *g) {
    mr_model_info m;
    mr_err err = {0};
    if (mr_model_info_read(g, &m, &err) != MR_OK) {
        MR_ASSERT(err.text[0]);
        return;
    }
    size_t sum = mr_model_embedding_bytes(g) + mr_model_shared_bytes(g);
    for (int32_t i = 0; i < m.n_layers; i++) {
        size_t bytes = mr_model_layer_bytes(g, &m, i);
        MR_ASSERT(bytes > 0);
        sum += bytes;
    }
    MR_ASSERT(sum <= mr_gguf_file_bytes(g));
    MR_ASSERT(mr_model_output_bytes(g) <= mr_gguf_file_bytes(g));
    for (int32_t i = 0; i < m.n_layers; i++) {
        const mr_layer_info *l = mr_model_layer(&m, i);
        MR_ASSERT(l->n_heads % l->n_kv_heads == 0 && l->k_dim % 2 == 0 && m.ropes[0].n_rot <= l->k_dim);
        MR_ASSERT(l->n_ff > 0 && l->rope < m.n_ropes && (!l->has_experts || m.n_experts > 0));
    }
}

/* As an index for a sparse model of one layer. */
static void walk_gpu_index(const mr_gguf *g) {
    static const mr_model_info m = {.n_layers = 1, .is_sparse = true, .n_shapes = 1, .shapes = {{.n_ff = 8}}};
    mr_gpu_index x;
    mr_err err = {0};
    if (mr_gpu_index_read(g, &m, &x, &err) != MR_OK) {
        MR_ASSERT(err.text[0]);
        return;
    }
    MR_ASSERT(x.n_first <= x.n_neurons && x.n_neurons <= x.n_all && x.n_all == 8 && x.hot_partitions <= 1);
}

int mr_fuzz_gguf(const uint8_t *data, size_t size) {
    mr_gguf *g = NULL;
    mr_err err = {0};
    mr_status status = mr_gguf_open_memory(data, size, &g, &err);
    if (status) {
        MR_ASSERT(!g && err.status == status && err.text[0]);
        return 0;
    }
    for (int32_t i = 0; i < mr_gguf_n_keys(g); i++)
        walk_key(g, i);
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++)
        walk_tensor(g, mr_gguf_tensor_at(g, i));
    walk_model(g);
    walk_gpu_index(g);
    mr_gguf_release_pages(g, data, size);
    mr_gguf_close(g);
    return 0;
}
