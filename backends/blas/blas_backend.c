/* backends/blas/blas_backend.c - the operation table of the BLAS backend, and which nodes it supports. Its weights are
 * addresses of matrices in the file. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/blas/blas_backend.h"

#include <stdio.h>
#include <string.h>

#include "backends/blas/blas_internal.h"
#include "backends/host_memory.h"
#include "engine/base/mem.h"

static void destroy(mr_backend *base) {
    blas_backend *be = (blas_backend *)base;
    mr_pool_destroy(be->pool);
    mr_free(be->scratch_memory);
    mr_free(be);
}

static void describe(const mr_backend *base, mr_device_info *out) {
    const blas_backend *be = (const blas_backend *)base;
    *out = (mr_device_info){.alignment = BLAS_ALIGNMENT, .host_addressable = true, .keeps_source = true};
    snprintf(out->name, sizeof out->name, "BLAS (%s), %d thread%s", blas_library_name(), be->n_threads,
             be->n_threads == 1 ? "" : "s");
}

static bool multiplies(mr_type type) {
    const mr_type_info *info = mr_type_get(type);
    return info && info->is_weight;
}

static bool supports(const mr_backend *be, const mr_tensor *tensors, const mr_node *n) {
    (void)be;
    return n->op == MR_OP_MATMUL && multiplies(tensors[n->in[0]].type) && tensors[n->in[1]].type == MR_TYPE_F32;
}

static mr_status weight_bytes(const mr_backend *be, mr_type type, int32_t columns, int32_t rows, size_t *out,
                              mr_err *err) {
    (void)be;
    (void)rows;
    size_t row_bytes;
    if (!multiplies(type) || !mr_type_bytes(type, columns, &row_bytes))
        return mr_err_set(err, MR_E_UNSUPPORTED, "the BLAS backend multiplies no %s matrices with %d columns",
                          mr_type_name(type), columns);
    *out = BLAS_ALIGNMENT;
    return MR_OK;
}

/* Stores the address of the rows in the tensor. */
static mr_status weight_load(mr_backend *be, const mr_tensor *t, const uint8_t *src, mr_fence *out, mr_err *err) {
    return mr_host_set(be, t->buffer, t->offset, &src, sizeof src, out, err);
}

static const mr_backend_ops OPS = {
    .destroy = destroy,
    .describe = describe,
    .supports = supports,
    .buffer_create = mr_host_buffer_create,
    .buffer_wrap = mr_host_buffer_wrap,
    .buffer_destroy = mr_host_buffer_destroy,
    .set = mr_host_set,
    .get = mr_host_get,
    .weight_bytes = weight_bytes,
    .weight_load = weight_load,
    .program_create = blas_program_create,
    .program_destroy = blas_program_destroy,
    .submit = blas_submit,
    .wait = mr_host_wait,
    .mark = mr_host_mark,
    .fence_ns = mr_host_fence_ns,
    .pin = mr_host_pin,
    .unpin = mr_host_unpin,
};

mr_status mr_blas_backend_create(const mr_blas_options *options, mr_backend **out, mr_err *err) {
    mr_status status = mr_blas_library_load(err);
    if (status != MR_OK)
        return status;
    blas_backend *be = mr_alloc(sizeof *be);
    if (!be)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the BLAS backend");
    be->host.base.ops = &OPS;
    be->n_threads = options->n_threads;
    status = mr_pool_create(options->n_threads, options->cpu_ids, &be->pool, err);
    if (status != MR_OK) {
        mr_free(be);
        return status;
    }
    blas_library_warm_up(be->pool);
    *out = &be->host.base;
    return MR_OK;
}
