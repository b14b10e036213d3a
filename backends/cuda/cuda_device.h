/* backends/cuda/cuda_device.h - the backend's own structure, and what its files call of each other. The files of ops
 * see cuda_internal.h only.
 * Every call into the queue takes these steps: cuda_enter; the work; cuda_queue_fence. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_DEVICE_H
#define MR_BACKENDS_CUDA_CUDA_DEVICE_H

#include "backends/cuda/cuda_internal.h"
#include "backends/cuda/kernels/cuda_image.h"
#include "backends/cuda/kernels/cuda_record.h"

enum {
    CUDA_EVENTS = 32, /* more than MR_KEPT_MARKS */
    CUDA_MAX_IMAGES = 128,
    CUDA_MAX_KERNELS = 256, /* whose functions are kept */
};

/* The last events in the queue: event n is at[n % CUDA_EVENTS]. */
typedef struct cuda_events {
    cuda_event at[CUDA_EVENTS];
    mr_fence fences[CUDA_EVENTS]; /* that the event reaches */
    uint64_t n;                   /* recorded so far */
} cuda_events;

struct cuda_backend {
    mr_backend base;
    const cuda_driver *driver;
    mr_device_info info;
    int32_t n_processors, shared_bytes; /* shared_bytes: most of a block */
    int capability[2];                  /* compute capability: major, minor */
    cuda_device device;
    cuda_context context; /* the device's primary one; NULL: not retained */
    cuda_stream stream;
    mr_err broken;       /* status MR_OK: the device works */
    size_t buffer_bytes; /* of all buffers */

    /* cuda_kernels.c */
    cuda_module modules[CUDA_MAX_IMAGES];
    int32_t n_modules, n_kernels;
    struct {
        const char *name;
        cuda_function function;
        uint32_t shared_bytes;   /* most dynamic ones that a launch may have */
    } kernels[CUDA_MAX_KERNELS]; /* found so far */

    /* cuda_queue.c */
    mr_fence last;    /* of the last call */
    mr_fence reached; /* this fence is reached */
    cuda_events marks, copies;
    uint64_t n_timed; /* marks whose times are known */
    int64_t ns[CUDA_EVENTS];

    /* cuda_record.c */
    cuda_record *ring;                      /* [CUDA_RECORDS] in memory of the host that the device reads */
    mr_fence record_fences[CUDA_RECORDS];   /* of the call that launched the record */
    uint64_t n_records;                     /* launched; the next one is filled */
    bool is_filling;                        /* the next one has been emptied */
    size_t filled_bytes;                    /* of cuda_record.bytes */
    cuda_address ring_address, own_address; /* own: cuda_step, and behind it the counter of records */

    /* cuda_link.c */
    cuda_uuid uuid;
    cuda_stream link_stream; /* NULL: no link has asked for it */
    cuda_event link_marks[MR_LINK_MARKS];
    uint64_t n_link_marks, n_link_reached;

    cuda_address staging; /* [CUDA_STAGING_BYTES] rows of a file on the way to their panels */
};

/* --- cuda_backend.c --- */
/* Makes the device's context the thread's. MR_E_DEVICE: the device is broken. */
MR_MUST_USE mr_status cuda_enter(cuda_backend *be, mr_err *err);
/* MR_OK for CUDA_OK. After any other result the device is broken from now on: waits until it does no work, and returns
 * MR_E_DEVICE. what: the work that failed, for the text. */
MR_MUST_USE mr_status cuda_check(cuda_backend *be, cuda_result result, const char *what, mr_err *err);
/* The same for calls that create something: MR_E_NO_MEMORY for CUDA_OUT_OF_MEMORY, and the device still works. */
MR_MUST_USE mr_status cuda_check_new(cuda_backend *be, cuda_result result, const char *what, mr_err *err);

/* --- cuda_kernels.c --- */
/* Loads all images. MR_E_UNSUPPORTED: they have no code for this device. */
MR_MUST_USE mr_status cuda_kernels_load(cuda_backend *be, const cuda_image *images, mr_err *err);
void cuda_kernels_unload(cuda_backend *be);
/* The kernel of a launch, which may have its shared memory. The name is borrowed: it outlives the backend. */
MR_MUST_USE mr_status cuda_kernels_find(cuda_backend *be, const cuda_launch_desc *desc, cuda_function *out,
                                        mr_err *err);
/* Launches a kernel outside of graphs. */
MR_MUST_USE mr_status cuda_kernels_launch(cuda_backend *be, const cuda_launch_desc *desc, mr_err *err);

/* --- cuda_queue.c --- */
MR_MUST_USE mr_status cuda_queue_init(cuda_backend *be, mr_err *err);
void cuda_queue_deinit(cuda_backend *be);
/* The fence of a call whose work stands in the queue. */
static inline mr_fence cuda_queue_fence(cuda_backend *be) {
    return ++be->last;
}
/* The same for a call whose host memory the caller wants back soon: an event follows the work. */
MR_MUST_USE mr_status cuda_queue_copied(cuda_backend *be, mr_fence *out, mr_err *err);
MR_MUST_USE mr_status cuda_queue_wait(cuda_backend *be, mr_fence fence, int64_t deadline_ns, mr_err *err);
mr_status cuda_wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err);
mr_status cuda_mark(mr_backend *base, mr_fence *out, mr_err *err);
mr_status cuda_fence_ns(mr_backend *base, mr_fence mark, int64_t *out_ns, mr_err *err);

/* --- cuda_record.c --- */
MR_MUST_USE mr_status cuda_record_init(cuda_backend *be, mr_err *err);
void cuda_record_deinit(cuda_backend *be);
/* Most bytes of a set that becomes a piece of a record. */
enum { CUDA_MAX_PIECE_BYTES = 64 * 1024 };
/* Copies bytes of src, at most CUDA_MAX_PIECE_BYTES, into the record that the next launch takes along. */
MR_MUST_USE mr_status cuda_record_put(cuda_backend *be, cuda_address to, const void *src, size_t bytes, mr_err *err);
/* Makes sure that pieces in this range are in the queue, in front of a call that reads or writes the range. */
MR_MUST_USE mr_status cuda_record_settle(cuda_backend *be, cuda_address first, size_t bytes, mr_err *err);
/* Drops the pieces in a range that is going to be freed. */
void cuda_record_drop(cuda_backend *be, cuda_address first, size_t bytes);
/* Makes the record ready for a launch of cuda_begin or of a graph, which follows. */
MR_MUST_USE mr_status cuda_record_close(cuda_backend *be, const int32_t n_rows[MR_ROWS_KINDS], mr_err *err);
/* The launch stands in the queue. Returns its fence. */
mr_fence cuda_record_launched(cuda_backend *be);
cuda_begin_args cuda_record_args(const cuda_backend *be);

/* --- cuda_memory.c --- */
mr_status cuda_buffer_create(mr_backend *base, size_t bytes, mr_buffer **out, mr_err *err);
mr_status cuda_buffer_wrap(mr_backend *base, const void *host, size_t bytes, mr_buffer **out, mr_err *err);
void cuda_buffer_destroy(mr_backend *base, mr_buffer *buffer);
mr_status cuda_set(mr_backend *base, mr_buffer *buffer, size_t offset, const void *src, size_t bytes, mr_fence *out,
                   mr_err *err);
mr_status cuda_get(mr_backend *base, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                   mr_err *err);
mr_status cuda_pin(mr_backend *base, void *host, size_t bytes, mr_err *err);
void cuda_unpin(mr_backend *base, void *host);
/* Memory of the device. MR_E_NO_MEMORY names the bytes that are wanted, free and there. what: their use. */
MR_MUST_USE mr_status cuda_memory_alloc(cuda_backend *be, size_t bytes, const char *what, cuda_address *out,
                                        mr_err *err);
/* 0 is accepted. */
void cuda_memory_free(cuda_backend *be, cuda_address address);
/* MR_E_INTERNAL unless the bytes are inside the buffer. */
MR_MUST_USE mr_status cuda_check_range(const mr_buffer *buffer, size_t offset, size_t bytes, mr_err *err);

/* --- cuda_link.c --- */
extern const mr_backend_link_ops cuda_link_ops;
void cuda_link_deinit(cuda_backend *be);

/* --- cuda_upload.c --- */
enum { CUDA_STAGING_BYTES = 8 * 1024 * 1024 };
mr_status cuda_matrix_bytes(const mr_backend *base, mr_type type, int32_t columns, int32_t rows, size_t *out,
                            mr_err *err);
mr_status cuda_weight_load(mr_backend *base, const mr_tensor *t, const uint8_t *src, mr_fence *out, mr_err *err);

/* --- cuda_program.c --- */
mr_status cuda_program_scratch_bytes(mr_backend *base, const mr_program_desc *desc, size_t *out, mr_err *err);
mr_status cuda_program_create(mr_backend *base, const mr_program_desc *desc, mr_program **out, mr_err *err);
void cuda_program_destroy(mr_backend *base, mr_program *program);
mr_status cuda_submit(mr_backend *base, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err);

/* --- cuda_ops.c --- */
/* NULL: there are no kernels for it. */
const cuda_op *cuda_op_find(mr_op op);

#endif
