/* tests/conformance/emulated_gpu.h - the CUDA backend on the emulated driver, in builds that have emulated GPUs
 * (MILLRACE_TEST_GPU). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CONFORMANCE_EMULATED_GPU_H
#define MR_TESTS_CONFORMANCE_EMULATED_GPU_H

#include "tests/support/test.h"

#ifdef MILLRACE_TEST_GPU

#include "backends/cuda/cuda_backend.h"
#include "tests/cuda_emulation/driver.h"

static inline mr_status emulated_gpu_create(mr_backend **out, mr_err *err) {
    static const cuda_image images[] = {{"kernels", "all of them"}, {NULL, NULL}};
    emulated_driver_reset(&(emulated_options){.seed = 1, .max_delay_us = 20});
    return mr_cuda_backend_create(&(mr_cuda_options){.driver = emulated_driver(), .images = images}, out, err);
}

#else

/* Ends the test as skipped. */
static inline mr_status emulated_gpu_create(mr_backend **out, mr_err *err) {
    (void)out;
    print_message("this build has no emulated GPU\n");
    skip();
    return mr_err_set(err, MR_E_UNSUPPORTED, "no emulated GPU");
}

#endif

#endif
