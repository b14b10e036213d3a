/* backends/cuda/kernels/begin.cu - the first kernel of a graph, see cuda_record.h. One block reads the record over the
 * bus, so what counts is the number of reads that wait for each other: the list of pieces, then all pieces together. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_record.h"
#include "backends/cuda/kernels/gpu.h"

/* Copies a piece. Its first unit goes to thread number first, so that all threads have work in a record of many small
 * pieces. Returns the number of units. */
template <class T> MR_INLINE uint32_t copy_piece(const cuda_record *r, const cuda_piece *p, uint32_t first) {
    const T *from = (const T *)(r->bytes + p->offset);
    T *to = (T *)(uintptr_t)p->address;
    uint32_t n = p->bytes / (uint32_t)sizeof(T);
    for (uint32_t i = (gpu_thread() + CUDA_BEGIN_THREADS - first) % CUDA_BEGIN_THREADS; i < n; i += CUDA_BEGIN_THREADS)
        to[i] = from[i];
    return n;
}

MR_KERNEL(cuda_begin, cuda_begin_args, CUDA_BEGIN_THREADS) {
    MR_SHARED cuda_piece pieces[CUDA_RECORD_PIECES];
    const cuda_record *r = &a.ring[*a.n % CUDA_RECORDS];
    uint32_t t = gpu_thread(), n_pieces = (uint32_t)r->n_pieces;
    if (t < n_pieces)
        pieces[t] = r->pieces[t];
    if (t < CUDA_ROW_COUNTS)
        a.step->n_rows[t] = r->step.n_rows[t];
    gpu_sync();
    if (t == 0)
        ++*a.n;
    for (uint32_t i = 0, first = 0; i < n_pieces; i++) {
        const cuda_piece *p = &pieces[i];
        uint64_t ends = p->address | p->bytes;
        uint32_t n = ends % 16 == 0  ? copy_piece<gpu_int4>(r, p, first)
                     : ends % 4 == 0 ? copy_piece<uint32_t>(r, p, first)
                                     : copy_piece<uint8_t>(r, p, first);
        first = (first + n) % CUDA_BEGIN_THREADS;
    }
}
