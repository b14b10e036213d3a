/* backends/cuda/cuda_upload.c - loads matrices of the file. There are no kernels that multiply them yet, so the backend
 * refuses all of them. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_device.h"

mr_status cuda_matrix_bytes(const mr_backend *base, mr_type type, int32_t columns, int32_t rows, size_t *out,
                            mr_err *err) {
    (void)rows;
    (void)out;
    return mr_err_set(err, MR_E_UNSUPPORTED, "%s multiplies no %s matrices with %d columns",
                      ((const cuda_backend *)base)->info.name, mr_type_name(type), columns);
}

mr_status cuda_weight_load(mr_backend *base, const mr_tensor *t, const uint8_t *src, mr_fence *out, mr_err *err) {
    size_t bytes = 0;
    (void)src;
    (void)out;
    return cuda_matrix_bytes(base, t->type, t->ne[0], t->ne[1], &bytes, err);
}
