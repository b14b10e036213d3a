/* backends/cuda/cuda_record.c - fills the ring of records, see kernels/cuda_record.h. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cuda/cuda_device.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

_Static_assert((int)CUDA_ROW_COUNTS >= (int)MR_ROWS_KINDS, "a step has a place for each kind of rows");
_Static_assert((int)CUDA_MAX_PIECE_BYTES <= (int)CUDA_RECORD_BYTES, "a piece fits into an empty record");

mr_status cuda_record_init(cuda_backend *be, mr_err *err) {
    static const uint8_t zeros[CUDA_ALIGNMENT];
    const cuda_driver *d = be->driver;
    void *ring = NULL;
    mr_status status = cuda_memory_alloc(be, sizeof zeros, "the step's numbers", &be->own_address, err);
    if (status == MR_OK)
        status = cuda_check(be, d->memcpy_htod_async(be->own_address, zeros, sizeof zeros, be->stream), "copy", err);
    if (status == MR_OK)
        status = cuda_check_new(be,
                                d->mem_host_alloc(&ring, CUDA_RECORDS * sizeof *be->ring,
                                                  CUDA_HOST_ALLOC_PORTABLE | CUDA_HOST_ALLOC_MAPPED),
                                "allocate pinned memory", err);
    be->ring = ring;
    if (status == MR_OK)
        status = cuda_check(be, d->mem_host_get_device_pointer(&be->ring_address, ring, 0), "map pinned memory", err);
    return status;
}

void cuda_record_deinit(cuda_backend *be) {
    if (be->ring)
        (void)be->driver->mem_free_host(be->ring);
    cuda_memory_free(be, be->own_address);
}

cuda_begin_args cuda_record_args(const cuda_backend *be) {
    uint8_t *own = (uint8_t *)(uintptr_t)be->own_address;
    return (cuda_begin_args){.ring = (const cuda_record *)(uintptr_t)be->ring_address,
                             .n = (uint32_t *)(void *)(own + sizeof(cuda_step)),
                             .step = (cuda_step *)(void *)own};
}

static cuda_record *filled(const cuda_backend *be) {
    return &be->ring[be->n_records % CUDA_RECORDS];
}

/* Empties the next record, once the device has read what it held. */
static mr_status begin_filling(cuda_backend *be, mr_err *err) {
    if (be->is_filling)
        return MR_OK;
    mr_status status = cuda_queue_wait(be, be->record_fences[be->n_records % CUDA_RECORDS], MR_NEVER, err);
    if (status != MR_OK)
        return status;
    filled(be)->n_pieces = 0;
    be->filled_bytes = 0;
    be->is_filling = true;
    return MR_OK;
}

mr_status cuda_record_close(cuda_backend *be, const int32_t n_rows[MR_ROWS_KINDS], mr_err *err) {
    mr_status status = begin_filling(be, err);
    if (status != MR_OK)
        return status;
    memcpy(filled(be)->step.n_rows, n_rows, MR_ROWS_KINDS * sizeof *n_rows);
    return MR_OK;
}

mr_fence cuda_record_launched(cuda_backend *be) {
    mr_fence fence = cuda_queue_fence(be);
    be->record_fences[be->n_records % CUDA_RECORDS] = fence;
    be->n_records++;
    be->is_filling = false;
    return fence;
}

/* Launches cuda_begin on the record. */
static mr_status flush(cuda_backend *be, mr_err *err) {
    static const int32_t none[MR_ROWS_KINDS];
    const cuda_begin_args args = cuda_record_args(be);
    const cuda_launch_desc begin = {"cuda_begin", {1, 1}, CUDA_BEGIN_THREADS, &args, .args_bytes = sizeof args};
    mr_status status = cuda_record_close(be, none, err);
    if (status == MR_OK)
        status = cuda_kernels_launch(be, &begin, err);
    if (status == MR_OK)
        (void)cuda_record_launched(be);
    return status;
}

static bool overlaps(const cuda_piece *p, cuda_address first, size_t bytes) {
    return p->address < first + bytes && first < p->address + p->bytes;
}

mr_status cuda_record_settle(cuda_backend *be, cuda_address first, size_t bytes, mr_err *err) {
    for (int32_t i = 0; be->is_filling && i < filled(be)->n_pieces; i++)
        if (overlaps(&filled(be)->pieces[i], first, bytes))
            return flush(be, err);
    return MR_OK;
}

void cuda_record_drop(cuda_backend *be, cuda_address first, size_t bytes) {
    for (int32_t i = 0; be->is_filling && i < filled(be)->n_pieces; i++)
        if (overlaps(&filled(be)->pieces[i], first, bytes))
            filled(be)->pieces[i].bytes = 0;
}

mr_status cuda_record_put(cuda_backend *be, cuda_address to, const void *src, size_t bytes, mr_err *err) {
    size_t stored = mr_round_up(bytes, CUDA_PIECE_ALIGNMENT);
    mr_status status = cuda_record_settle(be, to, bytes, err);
    if (status == MR_OK && be->is_filling &&
        (filled(be)->n_pieces == CUDA_RECORD_PIECES || stored > CUDA_RECORD_BYTES - be->filled_bytes))
        status = flush(be, err);
    if (status == MR_OK)
        status = begin_filling(be, err);
    if (status != MR_OK)
        return status;
    cuda_record *r = filled(be);
    r->pieces[r->n_pieces++] =
        (cuda_piece){.address = to, .bytes = (uint32_t)bytes, .offset = (uint32_t)be->filled_bytes};
    memcpy(r->bytes + be->filled_bytes, src, bytes);
    be->filled_bytes += stored;
    return MR_OK;
}
