/* backends/cuda/kernels/attention_f32.cu - attention on F32 stores (rule T). The name of a kernel has the most elements
 * of a key. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_attention_float.h"

template <int PAIRS_, int MOST_, int K_DIM_> struct shape {
    typedef gpu_float_chunks<float, PAIRS_> Chunks;
    static constexpr int PAIRS = PAIRS_, MOST = MOST_, K_DIM = K_DIM_;
};

/* SHAPE(most elements of a key, of a value, most queries of a warp) */
#define SHAPE(k_dim, v_dim, queries)                                                                                   \
    MR_KERNEL(cuda_attention_f32_##k_dim, cuda_attention_args, CUDA_ATTENTION_THREADS, CUDA_ATTENTION_BLOCKS) {        \
        MR_SHARED gpu_attention_shared<shape<(v_dim) / 64, queries, k_dim>> shared;                                    \
        gpu_attend(a, shared);                                                                                         \
    }
#include "backends/cuda/kernels/cuda_attention.def"
