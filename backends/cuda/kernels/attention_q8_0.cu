/* backends/cuda/kernels/attention_q8_0.cu - attention on Q8_0 stores (rule T8). The name of a kernel has the most
 * elements of a key. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_attention_int8.h"

/* QUERIES: of a unit. */
template <int K_DIM_, int V_DIM_, int QUERIES> struct shape {
    static constexpr int K_DIM = K_DIM_, V_DIM = V_DIM_, GROUPS = QUERIES > 16 ? 2 : 1, WARPS = QUERIES / 4 / GROUPS;
};

#define SHAPE(k_dim, v_dim, queries)                                                                                   \
    MR_KERNEL(cuda_attention_q8_0_##k_dim, cuda_attention_args, CUDA_ATTENTION_THREADS, CUDA_ATTENTION_BLOCKS) {       \
        MR_SHARED gpu_int8_shared<shape<k_dim, v_dim, (queries)*CUDA_ATTENTION_WARPS>> shared;                         \
        gpu_attend_int8(a, shared);                                                                                    \
    }
#include "backends/cuda/kernels/cuda_attention.def"
