/* tests/cuda_emulation/driver_internal.h - what the files of the emulated driver share. A function of the table is
 *
 *     cuda_result emulated_NAME(…) {
 *         call c = emulated_begin(CALL_NAME);
 *         if (c.result == CUDA_OK) …
 *         return emulated_end(&c);
 *     }
 *
 * and holds the lock between the two. A function that destroys looks at c.refused instead of c.result, because it
 * destroys even where the call fails. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_DRIVER_INTERNAL_H
#define MR_TESTS_CUDA_EMULATION_DRIVER_INTERNAL_H

#include "engine/base/thread.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/cuda_emulation/emulator.h"

enum { /* further results of the driver */
       CUDA_NOT_INITIALIZED = 3,
       CUDA_INVALID_DEVICE = 101,
       CUDA_INVALID_CONTEXT = 201,
       CUDA_INVALID_HANDLE = 400,
       CUDA_ILLEGAL_ADDRESS = 700,
       CUDA_LAUNCH_OUT_OF_RESOURCES = 701,
       CUDA_ALREADY_REGISTERED = 712,
       CUDA_NOT_REGISTERED = 713,
       CUDA_NOT_SUPPORTED = 801,
       CUDA_UNKNOWN = 999,
};

typedef enum call_kind {
#define FUNCTION(member, symbol, ...) CALL_##member,
#include "backends/cuda/cuda_driver.def"
#undef FUNCTION
    CALL_KINDS
} call_kind;

#define FUNCTION(member, symbol, ...) cuda_result emulated_##member(__VA_ARGS__);
#include "backends/cuda/cuda_driver.def"
#undef FUNCTION

enum { EMULATED_SHARED_BYTES = 48 << 10 }; /* of a block, without func_set_attribute */

/* A device's primary context. */
typedef struct context {
    cuda_context handle;
    int32_t n_retained;
    cuda_result broken; /* CUDA_OK: it works */
    size_t used_bytes;
    int32_t n_open; /* streams that work: the device's memory is accessible */
    uint64_t n_drawn;
} context;

typedef enum object_kind {
    OBJECT_CONTEXT,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_GRAPH,
    OBJECT_NODE,
    OBJECT_EXEC,
    OBJECT_KINDS
} object_kind;

typedef struct call {
    call_kind kind;
    context *context; /* the current one; NULL in functions that need none */
    cuda_result result;
    bool refused;
} call;

/* Everything but thread-local state. Guarded by lock. */
typedef struct emulated {
    mr_mutex lock;
    mr_cond changed; /* work was queued or done */
    bool initialized, is_set;
    emulated_options options;
    emulated_counts counts;
    int32_t n_calls[CALL_KINDS];
    int32_t n_works;
    context contexts[EMULATED_MAX_DEVICES];
    int32_t n_live[OBJECT_KINDS];
} emulated;
extern emulated emulated_state;

/* Takes the lock, counts the call, and finds what keeps it from running: there is no current context, it is broken, or
 * the options say that the call fails. begin_free: of functions that need no context. */
call emulated_begin(call_kind kind);
call emulated_begin_free(call_kind kind);
cuda_result emulated_end(call *c);
/* The arguments are wrong. */
void emulated_refuse(call *c, cuda_result result);
/* Ends the process: the caller did what no driver forgives. */
_Noreturn void emulated_stop(const char *what, const char *name);
/* Never NULL; zeroed; free() frees it. */
void *emulated_alloc(size_t bytes);

/* Handles are never used again. find: NULL where the handle is not a live object of the kind in the context; the call
 * is refused then. remove_handle: NULL for the same reasons. */
void *emulated_add(object_kind kind, const context *owner, void *object);
void *emulated_find(call *c, object_kind kind, const void *handle);
void *emulated_remove(call *c, object_kind kind, const void *handle);
/* Calls destroy for every live object of the kind, and removes it. */
void emulated_remove_all(object_kind kind, void (*destroy)(void *object));

/* Memory of a device, and the most shared memory of a block. */
size_t emulated_total_bytes(void);
int32_t emulated_shared_bytes(void);
/* Reads EMULATED_CUDA; a word that is not known ends the process. */
emulated_options emulated_read_environment(void);

/* --- Memory ----------------------------------------------------------------------------------------------------- */
/* Makes the device's memory accessible while n_open is above 0. Call with the lock. */
void emulated_memory_open(context *c);
void emulated_memory_close(context *c);
/* Whether bytes from address lie in one live allocation that kernels of the context reach. */
bool emulated_is_device_memory(const context *c, cuda_address address, size_t bytes);
bool emulated_is_pinned(const void *host, size_t bytes);
void emulated_memory_reset(void);

/* --- Streams ---------------------------------------------------------------------------------------------------- */
/* Alive until the reset. */
typedef struct module {
    struct module *next;
    bool is_loaded;
    int32_t n_queued; /* kernels of queued work */
} module;

typedef struct launch {
    const emulator_kernel *kernel;
    module *module;
    emulator_grid grid;
    uint32_t n_threads;
    void *args; /* owned */
} launch;

typedef struct exec exec;
/* Work of a stream, with a reference to its exec or event. */
typedef struct work {
    enum { WORK_UP, WORK_DOWN, WORK_INSIDE, WORK_LAUNCH, WORK_GRAPH, WORK_RECORD, WORK_CALL } kind;
    struct work *next;
    uint8_t *to, *staged; /* staged: owned; the bytes to copy, or NULL */
    const uint8_t *from;
    size_t bytes;
    bool is_pinned; /* the memory of the host */
    launch launch;
    exec *exec;
    struct event *event;
    uint64_t n_recorded; /* of the event */
    void (*call)(void *ctx);
    void *call_ctx;
} work;

typedef struct stream stream;
/* Copies *w into the stream's queue, and takes its references. Call with the lock. */
void emulated_give(stream *s, const work *w);
void emulated_streams_reset(void);

/* --- Graphs ----------------------------------------------------------------------------------------------------- */
void emulated_exec_release(exec *x);
/* Runs the nodes. Call without the lock. seed: of the order. */
void emulated_exec_run(exec *x, uint64_t seed);
void emulated_graphs_reset(void);

#endif
