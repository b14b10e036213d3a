/* tests/cuda_build/cuda_driver_check.c - compares backends/cuda/cuda_driver.h with the header of the CUDA toolkit: it
 * compiles only if types, sizes, numbers and the parameters of all functions are the same. A new number or structure
 * of cuda_driver.h needs a line here; a new function does not. */
// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <stddef.h>

#include "backends/cuda/cuda_driver.h"

#define SAME_TYPE(ours, theirs) _Static_assert(__builtin_types_compatible_p(ours, theirs), #ours)
SAME_TYPE(cuda_device, CUdevice);
SAME_TYPE(cuda_address, CUdeviceptr);
SAME_TYPE(cuda_context, CUcontext);
SAME_TYPE(cuda_stream, CUstream);
SAME_TYPE(cuda_event, CUevent);
SAME_TYPE(cuda_module, CUmodule);
SAME_TYPE(cuda_function, CUfunction);
SAME_TYPE(cuda_graph, CUgraph);
SAME_TYPE(cuda_graph_node, CUgraphNode);
SAME_TYPE(cuda_graph_exec, CUgraphExec);

/* Enumerations there are integers here, and are passed in the same way. */
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
SAME_SIZE(cuda_result, CUresult);
SAME_SIZE(cuda_device_attribute, CUdevice_attribute);
SAME_SIZE(cuda_function_attribute, CUfunction_attribute);

#define SAME_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME_NUMBER(CUDA_OK, CUDA_SUCCESS);
SAME_NUMBER(CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME_NUMBER(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_NUMBER(CUDA_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_NUMBER(CUDA_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME_NUMBER(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME_NUMBER(CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME_NUMBER(CUDA_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME_NUMBER(CUDA_ATTRIBUTE_PROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_NUMBER(CUDA_ATTRIBUTE_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME_NUMBER(CUDA_ATTRIBUTE_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_NUMBER(CUDA_ATTRIBUTE_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_NUMBER(CUDA_ATTRIBUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_NUMBER(CUDA_ATTRIBUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_NUMBER(CUDA_ATTRIBUTE_SHARED_BYTES_OPT_IN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_NUMBER(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_NUMBER(CUDA_EVENT_DEFAULT, CU_EVENT_DEFAULT);
SAME_NUMBER(CUDA_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME_NUMBER(CUDA_HOST_REGISTER_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_NUMBER(CUDA_HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME_NUMBER(CUDA_HOST_ALLOC_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP);
SAME_NUMBER(CUDA_FUNCTION_DYNAMIC_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

SAME_SIZE(cuda_uuid, CUuuid);
SAME_SIZE(((cuda_uuid *)0)->bytes, ((CUuuid *)0)->bytes);

#define SAME_MEMBER(ours, theirs)                                                                                      \
    _Static_assert(offsetof(cuda_kernel_node, ours) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, theirs), #ours);           \
    SAME_SIZE(((cuda_kernel_node *)0)->ours, ((CUDA_KERNEL_NODE_PARAMS_v2 *)0)->theirs)
SAME_SIZE(cuda_kernel_node, CUDA_KERNEL_NODE_PARAMS_v2);
SAME_MEMBER(function, func);
SAME_MEMBER(grid_x, gridDimX);
SAME_MEMBER(grid_y, gridDimY);
SAME_MEMBER(grid_z, gridDimZ);
SAME_MEMBER(block_x, blockDimX);
SAME_MEMBER(block_y, blockDimY);
SAME_MEMBER(block_z, blockDimZ);
SAME_MEMBER(dynamic_shared_bytes, sharedMemBytes);
SAME_MEMBER(kernel_params, kernelParams);
SAME_MEMBER(extra, extra);
SAME_MEMBER(kernel, kern);
SAME_MEMBER(context, ctx);

/* The list of functions once more, with the types of the toolkit for those that are integers or structures here. */
#define cuda_result CUresult
#define cuda_device_attribute CUdevice_attribute
#define cuda_function_attribute CUfunction_attribute
#define cuda_uuid CUuuid
#define cuda_kernel_node CUDA_KERNEL_NODE_PARAMS
#define FUNCTION(member, symbol, ...) SAME_TYPE(__typeof__(&symbol), CUresult (*)(__VA_ARGS__));
#include "backends/cuda/cuda_driver.def"
