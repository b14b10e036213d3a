/* engine/base/inline.h - marks functions that the kernels of devices use, too. There MR_INLINE is a word of their
 * compiler (backends/cuda/kernels/gpu.h). Such functions are valid C and C++. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_INLINE_H
#define MR_ENGINE_BASE_INLINE_H

#ifndef MR_INLINE
#define MR_INLINE static inline
#endif

#endif
