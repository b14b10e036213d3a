/* backends/cuda/cuda_upload.c - loads matrices of the file: the rows go to the device in pieces of whole panels, and a
 * kernel repacks each piece there. Copies and kernels stand in the one queue, so no piece comes too early. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_device.h"

/* Bytes of a row as it lies in the file; 0: the file has no such rows. */
static size_t file_row_bytes(mr_type type, int32_t columns) {
    size_t bytes = 0;
    return mr_type_bytes(type, columns, &bytes) ? bytes : 0;
}

mr_status cuda_matrix_bytes(const mr_backend *base, mr_type type, int32_t columns, int32_t rows, size_t *out,
                            mr_err *err) {
    size_t bytes = cuda_weight_bytes(type, columns, rows);
    if (bytes == 0 || file_row_bytes(type, columns) > CUDA_STAGING_BYTES / MR_PANEL)
        return mr_err_set(err, MR_E_UNSUPPORTED, "%s multiplies no %s matrices with %d columns",
                          ((const cuda_backend *)base)->info.name, mr_type_name(type), columns);
    *out = bytes;
    return MR_OK;
}

/* Puts one piece into the queue. */
static mr_status load_piece(cuda_backend *be, const cuda_repack *r, const uint8_t *src, size_t bytes, mr_err *err) {
    _Alignas(16) uint8_t args[CUDA_MAX_ARGS];
    cuda_launch_desc launch;
    cuda_weight_repack(r, args, &launch);
    mr_status status =
        cuda_check(be, be->driver->memcpy_htod_async(be->staging, src, bytes, be->stream), "copy a matrix", err);
    return status == MR_OK ? cuda_kernels_launch(be, &launch, err) : status;
}

mr_status cuda_weight_load(mr_backend *base, const mr_tensor *t, const uint8_t *src, mr_fence *out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    size_t bytes = 0, row_bytes = file_row_bytes(t->type, t->ne[0]);
    mr_status status = cuda_matrix_bytes(base, t->type, t->ne[0], t->ne[1], &bytes, err);
    if (status == MR_OK)
        status = cuda_check_range(t->buffer, t->offset, bytes, err);
    if (status == MR_OK)
        status = cuda_enter(be, err);
    if (status == MR_OK)
        status = cuda_record_settle(be, (cuda_address)(uintptr_t)cuda_data(t), bytes, err);
    if (status != MR_OK)
        return status;
    const int32_t most_rows = (int32_t)(CUDA_STAGING_BYTES / (row_bytes * MR_PANEL)) * MR_PANEL;
    const uint8_t *staging = (const uint8_t *)(uintptr_t)be->staging;
    for (int32_t row = 0; row < t->ne[1] && status == MR_OK; row += most_rows) {
        cuda_repack r = {.type = t->type, .columns = t->ne[0], .src = staging};
        r.rows = t->ne[1] - row < most_rows ? t->ne[1] - row : most_rows;
        r.dst = cuda_data(t) + cuda_weight_bytes(t->type, t->ne[0], row);
        status = load_piece(be, &r, src + (size_t)row * row_bytes, (size_t)r.rows * row_bytes, err);
    }
    return status == MR_OK ? cuda_queue_copied(be, out, err) : status;
}
