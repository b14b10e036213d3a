/* tests/cuda_emulation/emulated_kinds.c - the list of the backends of millrace_emulated: the product's, with a CUDA
 * backend that calls the emulated driver. The environment variable EMULATED_CUDA chooses devices and failures. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "backends/cuda/cuda_backend.h"
#include "backends/registry.h"
#include "tests/cuda_emulation/driver.h"

static mr_status create(const mr_backend_options *o, mr_backend **out, mr_err *err) {
    static const cuda_image images[] = {{"emulated", "every kernel"}, {NULL, NULL}};
    return mr_cuda_backend_create(&(mr_cuda_options){.driver = emulated_driver(),
                                                     .images = images,
                                                     .device = o->device,
                                                     .n_sharers = o->n_sharers,
                                                     .memory_bytes = o->memory_bytes},
                                  out, err);
}

static int32_t count(void) {
    return mr_cuda_count(emulated_driver());
}

static mr_status about_device(int32_t device, mr_device_about *out, mr_err *err) {
    return mr_cuda_about(emulated_driver(), device, out, err);
}

static const mr_backend_kind EMULATED = {.name = "cuda",
                                         .about = "layers on emulated GPUs, in exact numerics",
                                         .create = create,
                                         .count = count,
                                         .about_device = about_device,
                                         .multiplies = mr_cuda_multiplies,
                                         .exact = true};

const mr_backend_kind *const mr_backend_kinds[] = {&mr_backend_kind_cpu, &EMULATED, &mr_backend_kind_blas, NULL};

/* Whether the MPI library says that it takes addresses of devices. The linker puts this function in its place. */
int __wrap_MPIX_Query_cuda_support(void);
int __wrap_MPIX_Query_cuda_support(void) {
    return getenv("FAKE_CUDA_MPI") != NULL;
}
