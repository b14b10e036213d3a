/* backends/cuda/cuda_ops.c - the list of the ops that the backend runs. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_device.h"

const cuda_op *cuda_op_find(mr_op op) {
    static const cuda_op *const ops[MR_OP_COUNT] = {
        [MR_OP_RMS_NORM] = &cuda_op_rms_norm,
        [MR_OP_QUANTIZE] = &cuda_op_quantize,
        [MR_OP_GLU] = &cuda_op_glu,
        [MR_OP_ADD] = &cuda_op_add,
    };
    return ops[op];
}
