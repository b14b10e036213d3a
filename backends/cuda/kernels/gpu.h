/* backends/cuda/kernels/gpu.h - what the kernels use of a GPU. nvcc translates it to CUDA, any other compiler of C++17
 * to the emulation of tests/cuda_emulation, where blocks are loops and the threads of a block are fibres.
 * A kernel takes one plain structure, whose pointers point into the device's memory:
 *
 *     MR_KERNEL(cuda_scale, cuda_scale_args, 256) {
 *         uint32_t i = gpu_block() * 256 + gpu_thread();
 *         if (i < a.n)
 *             a.y[i] = a.x[i] * a.factor;
 *     }
 *
 * A fourth argument of MR_KERNEL is the number of blocks that a multiprocessor must have room for; 1: a thread may use
 * many registers.
 * Arithmetic. Operators of float and fmaf round once and flush denormals, as rules A1 and A2 of engine/NUMERICS.md say:
 * nvcc gets -fmad=false -ftz=true -prec-div=true -prec-sqrt=true. The functions of engine/base/fmath.h that are
 * MR_INLINE and those of engine/tensor/f16.h give the CPU's bits. Of the C library, kernels use fmaf, sqrtf and fabsf
 * only.
 * Warps. All 32 lanes of a warp call gpu_shuffle, gpu_ballot, gpu_warp_*, gpu_mma_* and gpu_sync_warp
 * together, in the same place of the code. All threads of a block call gpu_sync together: no thread has returned
 * before.
 * Memory. MR_SHARED variables and dynamic shared memory have no initial value. Hot loops read the device's memory by
 * gpu_read, and shared memory by gpu_read_shared, so that the emulation can count sectors and bank conflicts. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__

#define MR_INLINE static __device__ __forceinline__
#define MR_KERNEL(name, args_t, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ args_t a)
#define MR_SHARED __shared__
#define MR_CONSTANT static __device__ const
#define MR_UNROLL _Pragma("unroll")
#define MR_NO_UNROLL _Pragma("unroll 1")

MR_INLINE uint32_t gpu_thread() {
    return threadIdx.x;
}
MR_INLINE uint32_t gpu_block() {
    return blockIdx.x;
}
MR_INLINE uint32_t gpu_block_y() {
    return blockIdx.y;
}
MR_INLINE uint32_t gpu_blocks() {
    return gridDim.x;
}
/* Shared memory of the block beside its MR_SHARED variables: as many bytes as the launch says, aligned to 16. */
MR_INLINE uint8_t *gpu_dynamic_shared() {
    extern __shared__ __align__(16) uint8_t gpu_dynamic_bytes[];
    return gpu_dynamic_bytes;
}
MR_INLINE void gpu_sync() {
    __syncthreads();
}
MR_INLINE void gpu_sync_warp() {
    __syncwarp();
}
/* Makes writes to the device's memory visible to other blocks before later writes. */
MR_INLINE void gpu_fence() {
    __threadfence();
}
template <class T> MR_INLINE T gpu_shuffle_xor(T v, int mask) {
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
template <class T> MR_INLINE T gpu_shuffle(T v, int lane) {
    return __shfl_sync(0xffffffffu, v, lane);
}
/* Bit l: v of lane l. */
MR_INLINE uint32_t gpu_ballot(bool v) {
    return __ballot_sync(0xffffffffu, v);
}
/* The greatest v, and the sum of v, of the lanes of the warp. */
MR_INLINE uint32_t gpu_warp_max(uint32_t v) {
    return __reduce_max_sync(0xffffffffu, v);
}
MR_INLINE uint32_t gpu_warp_sum(uint32_t v) {
    return __reduce_add_sync(0xffffffffu, v);
}
MR_INLINE int gpu_atomic_add(int *at, int v) {
    return atomicAdd(at, v);
}
/* Byte i of the result is the byte of a (0 to 3) or b (4 to 7) that bits 4i to 4i + 2 of selector name; bit 4i + 3 is
 * 0. */
MR_INLINE int gpu_permute(int a, int b, int selector) {
    int d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}
/* c plus the products of the four signed bytes of a and b. */
MR_INLINE int gpu_dot4(int a, int b, int c) {
    return __dp4a(a, b, c);
}
/* c[16][8] = a[16][32] b[32][8] of int8, plus start; PTX ISA, "mma.m16n8k32". Lane l has, with g = l / 4 and t = l % 4:
 * a[0], a[1]: rows g and g + 8 of k 4t .. 4t + 3; a[2], a[3]: the same rows of k 16 + 4t ..; b[0], b[1]: column g of
 * these k; c[0], c[1]: row g, columns 2t and 2t + 1; c[2], c[3]: row g + 8. */
MR_INLINE void gpu_mma_s8(int c[4], const int a[4], const int b[2], const int start[4]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start[0]), "r"(start[1]),
                   "r"(start[2]), "r"(start[3]));
}
/* The same, added to c. */
MR_INLINE void gpu_mma_s8_add(int c[4], const int a[4], const int b[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* gpu_mma_s8 with a of uint8. */
MR_INLINE void gpu_mma_u8(int c[4], const int a[4], const int b[2], const int start[4]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start[0]), "r"(start[1]),
                   "r"(start[2]), "r"(start[3]));
}
/* Starts to copy 16 bytes, both addresses aligned to 16. A thread's copies since its last commit are a group. wait: all
 * groups of the thread but the last N have arrived. */
MR_INLINE void gpu_copy16(void *shared, const void *global) {
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
MR_INLINE void gpu_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> MR_INLINE void gpu_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Reads memory that no kernel writes meanwhile, aligned to the size of T: 1, 2, 4, 8 or 16 bytes. */
template <class T> MR_INLINE T gpu_read(const T *at) {
    return __ldg(at);
}
template <class T> MR_INLINE T gpu_read_shared(const T *at) {
    return *at;
}
MR_INLINE float gpu_half(uint16_t h) {
    float f;
    asm("{cvt.f32.f16 %0, %1;}" : "=f"(f) : "h"(h));
    return f;
}
/* v, of which the compiler knows nothing: it does not compute it again, nor take it apart. */
MR_INLINE uint32_t gpu_opaque(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}
typedef int4 gpu_int4; /* 16 bytes: x, y, z, w */
typedef int2 gpu_int2;

#else
#include <gpu_emulated.h>
#endif

MR_INLINE uint32_t gpu_lane() {
    return gpu_thread() % 32;
}
MR_INLINE uint32_t gpu_warp() {
    return gpu_thread() / 32;
}

#include "engine/base/fmath.h"
#include "engine/tensor/f16.h"

#endif
