/* backends/cuda/cuda_driver.h - the functions of NVIDIA's driver that the backend calls, as a table. The driver's
 * library is loaded at run time, so that one program runs with and without a driver, and no CUDA header is needed to
 * build. Tests have a table of their own, the emulation (tests/cuda_emulation).
 * Names, types and numbers are those of the CUDA Driver API (version 12.4).
 * Threads: as the driver's functions. The table is constant once it is loaded. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_DRIVER_H
#define MR_BACKENDS_CUDA_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { CUDA_NEEDED_VERSION = 12040 }; /* as driver_get_version counts: 1000 * major + 10 * minor */

typedef int cuda_result; /* CUresult */
typedef int cuda_device;
typedef int cuda_device_attribute;       /* CUdevice_attribute */
typedef int cuda_function_attribute;     /* CUfunction_attribute */
typedef unsigned long long cuda_address; /* CUdeviceptr: in the device's memory */
typedef struct CUctx_st *cuda_context;
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;
typedef struct CUmod_st *cuda_module;
typedef struct CUfunc_st *cuda_function;
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphNode_st *cuda_graph_node;
typedef struct CUgraphExec_st *cuda_graph_exec;

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NO_DEVICE = 100,
    CUDA_NO_BINARY_FOR_GPU = 209,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_SYSTEM_DRIVER_MISMATCH = 803,
};
enum { /* CUdevice_attribute */
       CUDA_ATTRIBUTE_PROCESSORS = 16,
       CUDA_ATTRIBUTE_INTEGRATED = 18,
       CUDA_ATTRIBUTE_PCI_BUS = 33,
       CUDA_ATTRIBUTE_PCI_DEVICE = 34,
       CUDA_ATTRIBUTE_CAPABILITY_MAJOR = 75,
       CUDA_ATTRIBUTE_CAPABILITY_MINOR = 76,
       CUDA_ATTRIBUTE_SHARED_BYTES_OPT_IN = 97,
};
enum { /* flags */
       CUDA_STREAM_NON_BLOCKING = 1,
       CUDA_EVENT_DEFAULT = 0,
       CUDA_HOST_REGISTER_PORTABLE = 1,
       CUDA_HOST_REGISTER_MAPPED = 2,
       CUDA_HOST_ALLOC_PORTABLE = 1,
       CUDA_HOST_ALLOC_MAPPED = 2,
       CUDA_FUNCTION_DYNAMIC_SHARED_BYTES = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
};

/* CUuuid */
typedef struct cuda_uuid {
    char bytes[16];
} cuda_uuid;

/* CUDA_KERNEL_NODE_PARAMS_v2. kernel_params: an array of addresses of the arguments. */
typedef struct cuda_kernel_node {
    cuda_function function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned dynamic_shared_bytes;
    void **kernel_params;
    void **extra;
    void *kernel; /* a CUkernel in place of function; NULL */
    cuda_context context;
} cuda_kernel_node;

/* FUNCTION(member, symbol, parameters): all return cuda_result. The members are named as the symbols without "cu" and
 * version. */
typedef struct cuda_driver {
#define FUNCTION(member, symbol, ...) cuda_result (*member)(__VA_ARGS__);
#include "backends/cuda/cuda_driver.def"
#undef FUNCTION
} cuda_driver;

/* Loads the driver's library, and looks up every function. Calls after the first return the same. MR_E_UNSUPPORTED with
 * a hint: there is no driver, or one without a function. Thread-safe. */
MR_MUST_USE mr_status cuda_driver_load(const cuda_driver **out, mr_err *err);
/* Sets the text of a failed call: what was done, then the driver's name of the error. Returns MR_E_NO_MEMORY for
 * CUDA_OUT_OF_MEMORY, else MR_E_DEVICE. */
mr_status cuda_driver_error(const cuda_driver *driver, cuda_result result, const char *what, mr_err *err);

#endif
