/* coordinator/cli/bench/bench_work.c - counts what one step of a model costs: products, bytes of weights and bytes of
 * the KV cache. The shares of the machine's limits are computed from these figures. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/bench/bench.h"

static bool is_float(mr_type type) {
    return type == MR_TYPE_F32 || type == MR_TYPE_F16 || type == MR_TYPE_BF16;
}

static double bytes_of(int32_t type, int64_t n_elems) {
    size_t bytes;
    return mr_type_bytes(type, n_elems, &bytes) ? (double)bytes : 0;
}

bench_work bench_work_of(const mr_gguf *gguf, const mr_model_info *info, mr_type kv_type) {
    bench_work w = {.has_experts = info->n_experts > 0};
    double int8 = 0, used = info->n_experts ? (double)info->n_experts_used / info->n_experts : 1;
    for (int32_t i = 0; i < mr_gguf_n_tensors(gguf); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(gguf, i);
        mr_model_part part = mr_model_tensor_part(t->name, NULL);
        bool embedding = part == MR_MODEL_EMBEDDING;
        if (mr_model_tensor_is_left_out(info, t))
            continue;
        if (embedding)
            w.row_bytes += bytes_of((int32_t)t->type, t->ne[0]);
        if (embedding && !info->tied_output)
            continue;
        double factor = mr_model_tensor_is_of_experts(info, t) ? used : 1;
        double n = t->n_dims > 1 ? factor * (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2] : 0;
        w.weight_bytes += factor * (double)t->bytes;
        if (part == MR_MODEL_LAYER)
            w.products += n;
        else
            w.output_products += n;
        int8 += is_float(t->type) ? 0 : n;
    }
    w.is_int8 = 2 * int8 > w.products + w.output_products;
    for (int32_t l = 0; l < info->n_layers; l++)
        w.position_bytes += (double)mr_model_kv_bytes(info, l, kv_type);
    return w;
}
