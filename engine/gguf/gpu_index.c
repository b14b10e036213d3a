/* engine/gguf/gpu_index.c - reads GPU indices of PowerInfer, and checks every number in them. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/gpu_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/le.h"

static const char ARCHITECTURE[] = "generic.gpu_index";

static mr_status check_file(const mr_gguf *g, const mr_model_info *info, mr_err *err) {
    mr_str arch = {0};
    if (!info->is_sparse)
        return mr_err_set(err, MR_E_INVALID,
                          "a GPU index of PowerInfer is for sparse models, and this model has no magic 'PWRI'");
    if (!mr_gguf_has_key(g, "general.architecture"))
        return mr_err_set(err, MR_E_INVALID, "the file is no GPU index: key 'general.architecture' is missing");
    mr_status status = mr_gguf_get_str(g, "general.architecture", &arch, err);
    if (status != MR_OK)
        return status;
    if (arch.len != sizeof ARCHITECTURE - 1 || memcmp(arch.data, ARCHITECTURE, arch.len) != 0)
        return mr_err_set(err, MR_E_INVALID, "the file is no GPU index: its architecture is '%.*s', not '%s'",
                          arch.len < 64 ? (int)arch.len : 64, arch.data, ARCHITECTURE);
    return MR_OK;
}

/* Returns NULL if the layer has no such tensor. */
static const mr_gguf_tensor *find(const mr_gguf *g, int32_t layer, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "blk.%" PRId32 ".%s", layer, what);
    return mr_gguf_find_tensor(g, name);
}

static mr_status check_shape(const mr_gguf_tensor *t, int64_t n, const char *of, mr_err *err) {
    if (t->type == MR_TYPE_I32 && t->n_dims == 1 && t->ne[0] == n)
        return MR_OK;
    return mr_err_set(err, MR_E_FORMAT,
                      "tensor '%s' of the GPU index is %s with %" PRId32 " dimensions and %" PRId64
                      " elements, expected I32 with 1 dimension and %" PRId64 ", %s",
                      t->name, mr_type_name(t->type), (int32_t)t->n_dims, t->ne[0], n, of);
}

static int32_t element(const mr_gguf_tensor *t, int64_t i) {
    return (int32_t)mr_load_le32(t->data + 4 * i);
}

/* Counts the neurons that the index names in a layer. */
static mr_status count_named(const mr_gguf_tensor *idx, int64_t n_ff, int64_t *out, mr_err *err) {
    mr_status status = check_shape(idx, n_ff, "as many as the layer has neurons", err);
    *out = 0;
    for (int64_t i = 0; i < n_ff && status == MR_OK; i++) {
        int32_t v = element(idx, i);
        if (v != 0 && v != 1)
            status = mr_err_set(err, MR_E_FORMAT,
                                "tensor '%s' of the GPU index: element %" PRId64 " is %" PRId32 ", allowed are 0 and 1",
                                idx->name, i, v);
        *out += v == 1;
    }
    return status;
}

/* Checks the list of neurons against the marks. Both have n neurons, so none is missing if all in the list are marked
 * and the list ascends. */
static mr_status check_bucket(const mr_gguf_tensor *idx, const mr_gguf_tensor *bucket, int64_t n, mr_err *err) {
    mr_status status = check_shape(bucket, n, "as many as gpu_idx of the layer marks", err);
    int64_t before = -1;
    for (int64_t i = 0; i < n && status == MR_OK; i++) {
        int32_t neuron = element(bucket, i);
        if (neuron <= before || neuron >= idx->ne[0])
            status = mr_err_set(err, MR_E_FORMAT,
                                "tensor '%s' of the GPU index: element %" PRId64 " is %" PRId32 " behind %" PRId64
                                ", expected a greater number below %" PRId64,
                                bucket->name, i, neuron, before, idx->ne[0]);
        else if (element(idx, neuron) != 1)
            status = mr_err_set(err, MR_E_FORMAT,
                                "tensor '%s' of the GPU index names neuron %" PRId32 ", which '%s' does not mark",
                                bucket->name, neuron, idx->name);
        before = neuron;
    }
    return status;
}

static int64_t count_first(const mr_gguf_tensor *idx, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < idx->ne[0] && i < n; i++)
        count += element(idx, i) == 1;
    return count;
}

static mr_status read_layer(const mr_gguf *g, const mr_model_info *info, int32_t layer, mr_gpu_index *x,
                            int64_t *n_partitions, mr_err *err) {
    const mr_gguf_tensor *idx = find(g, layer, "gpu_idx"), *bucket = find(g, layer, "gpu_bucket");
    int64_t n_ff = mr_model_layer(info, layer)->n_ff, n = 0;
    if (!idx)
        return mr_err_set(err, MR_E_FORMAT,
                          "tensor 'blk.%" PRId32 ".gpu_idx' is missing in the GPU index; hint: the model has %" PRId32
                          " layers",
                          layer, info->n_layers);
    mr_status status = count_named(idx, n_ff, &n, err);
    if (status == MR_OK && n > 0 && !bucket)
        return mr_err_set(err, MR_E_FORMAT, "tensor 'blk.%" PRId32 ".gpu_bucket' is missing in the GPU index", layer);
    if (status == MR_OK && bucket)
        status = check_bucket(idx, bucket, n, err);
    if (status != MR_OK)
        return status;
    int64_t n_hot = (n + MR_PARTITION - 1) / MR_PARTITION;
    x->n_neurons += n;
    x->n_all += n_ff;
    x->n_first += count_first(idx, n_hot * MR_PARTITION);
    *n_partitions += n_hot;
    return MR_OK;
}

mr_status mr_gpu_index_read(const mr_gguf *g, const mr_model_info *info, mr_gpu_index *out, mr_err *err) {
    mr_gpu_index x = {0};
    int64_t n_partitions = 0;
    mr_status status = check_file(g, info, err);
    for (int32_t l = 0; l < info->n_layers && status == MR_OK; l++)
        status = read_layer(g, info, l, &x, &n_partitions, err);
    if (status != MR_OK)
        return status;
    if (find(g, info->n_layers, "gpu_idx"))
        return mr_err_set(err, MR_E_FORMAT,
                          "the GPU index has tensor 'blk.%" PRId32 ".gpu_idx', but the model has %" PRId32 " layers",
                          info->n_layers, info->n_layers);
    x.hot_partitions = (int32_t)((n_partitions + info->n_layers - 1) / info->n_layers);
    *out = x;
    return MR_OK;
}
