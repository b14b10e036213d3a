/* engine/gguf/gpu_index.h - a GPU index of PowerInfer: a file beside a sparse model, which says which neurons of each
 * layer are to lie on a GPU (Song et al., "PowerInfer", 2023). The architecture is "generic.gpu_index". blk.N.gpu_idx
 * [n_ff] i32 is 1 for these neurons and 0 for the others, and blk.N.gpu_bucket i32 lists their numbers in ascending
 * order; it may be missing where there are none.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_GPU_INDEX_H
#define MR_ENGINE_GGUF_GPU_INDEX_H

#include "engine/gguf/model_info.h"
#include "engine/tensor/tensor.h"

typedef struct mr_gpu_index {
    int64_t n_neurons, n_all; /* that the index names, and that the model has */
    /* Of the named ones: those in the first partitions of their layer (rule S of engine/NUMERICS.md), if each layer has
     * as many partitions as its named neurons fill. */
    int64_t n_first;
    int32_t hot_partitions; /* the mean number of these partitions, rounded up */
} mr_gpu_index;

/* Whether the index names a file's first neurons, or nearly so: nine of ten. */
static inline bool mr_gpu_index_is_prefix(const mr_gpu_index *x) {
    return 10 * x->n_first >= 9 * x->n_neurons;
}

/* Reads and checks an index for the model. MR_E_INVALID: the file is no GPU index, or the model is not sparse.
 * MR_E_FORMAT names the tensor that is missing, has another shape than the model, or contradicts itself. */
MR_MUST_USE mr_status mr_gpu_index_read(const mr_gguf *g, const mr_model_info *info, mr_gpu_index *out, mr_err *err);

#endif
