/* backends/cuda/cuda_backend.h - a backend that computes on an NVIDIA GPU, in exact numerics.
 * A program is a graph of the driver, so that a step is one launch. Small sets wait on the host for the next launch,
 * which takes them along (kernels/cuda_record.h).
 * Threads: as backends/backend.h says.
 * Errors:  MR_E_DEVICE after any call of the driver that fails, except for memory that the device does not have. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_BACKEND_H
#define MR_BACKENDS_CUDA_CUDA_BACKEND_H

#include "backends/backend.h"
#include "backends/cuda/cuda_driver.h"
#include "backends/cuda/kernels/cuda_image.h"

typedef struct mr_cuda_options {
    const cuda_driver *driver; /* borrowed */
    const cuda_image *images;  /* borrowed: the compiled kernels; ends with an image without data */
    int32_t device;            /* number of the device, as the driver counts them */
    int32_t n_sharers;         /* as in mr_backend_options; 0: 1 */
    size_t memory_bytes;       /* as in mr_backend_options */
} mr_cuda_options;

/* MR_E_UNSUPPORTED with a hint: there is no such device, or it cannot run the kernels. MR_E_NO_MEMORY: the device has
 * no memory left. */
MR_MUST_USE mr_status mr_cuda_backend_create(const mr_cuda_options *options, mr_backend **out, mr_err *err);
/* Devices of this host. */
int32_t mr_cuda_count(const cuda_driver *driver);
/* As in mr_backend_kind (backends/registry.h). */
mr_status mr_cuda_about(const cuda_driver *driver, int32_t device, mr_device_about *out, mr_err *err);
bool mr_cuda_multiplies(mr_type type, int32_t columns);

#endif
