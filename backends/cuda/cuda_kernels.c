/* backends/cuda/cuda_kernels.c - loads the compiled kernels, and finds them by name. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "backends/cuda/cuda_device.h"

enum { USUAL_SHARED_BYTES = 48 << 10 }; /* that a block may have without asking for more */

mr_status cuda_kernels_load(cuda_backend *be, const cuda_image *images, mr_err *err) {
    for (; images[be->n_modules].data; be->n_modules++) {
        MR_ASSERT(be->n_modules < CUDA_MAX_IMAGES);
        cuda_result result = be->driver->module_load_data(&be->modules[be->n_modules], images[be->n_modules].data);
        if (result == CUDA_NO_BINARY_FOR_GPU)
            return mr_err_set(err, MR_E_UNSUPPORTED,
                              "this program has no kernels for %s; hint: name its compute capability in "
                              "CMAKE_CUDA_ARCHITECTURES when the program is built",
                              be->info.name);
        mr_status status = cuda_check_new(be, result, "load the kernels", err);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

void cuda_kernels_unload(cuda_backend *be) {
    while (be->n_modules > 0)
        (void)be->driver->module_unload(be->modules[--be->n_modules]);
}

/* Index of the kernel in be->kernels. */
static mr_status find(cuda_backend *be, const char *name, int32_t *out, mr_err *err) {
    cuda_function function = NULL;
    cuda_result result = CUDA_NOT_FOUND;
    char what[96];
    for (int32_t i = 0; i < be->n_kernels; i++)
        if (strcmp(be->kernels[i].name, name) == 0) {
            *out = i;
            return MR_OK;
        }
    for (int32_t i = 0; i < be->n_modules && result == CUDA_NOT_FOUND; i++)
        result = be->driver->module_get_function(&function, be->modules[i], name);
    snprintf(what, sizeof what, "find kernel %s", name);
    mr_status status = cuda_check_new(be, result, what, err);
    if (status != MR_OK)
        return status;
    MR_ASSERT(be->n_kernels < CUDA_MAX_KERNELS);
    be->kernels[be->n_kernels].name = name;
    be->kernels[be->n_kernels].function = function;
    be->kernels[be->n_kernels].shared_bytes = USUAL_SHARED_BYTES;
    *out = be->n_kernels++;
    return MR_OK;
}

mr_status cuda_kernels_find(cuda_backend *be, const cuda_launch_desc *desc, cuda_function *out, mr_err *err) {
    int32_t i = 0;
    char what[96];
    mr_status status = find(be, desc->kernel, &i, err);
    if (status != MR_OK)
        return status;
    *out = be->kernels[i].function;
    if (desc->shared_bytes <= be->kernels[i].shared_bytes)
        return MR_OK;
    snprintf(what, sizeof what, "give kernel %s %u bytes of shared memory", desc->kernel, (unsigned)desc->shared_bytes);
    status = cuda_check(
        be, be->driver->func_set_attribute(*out, CUDA_FUNCTION_DYNAMIC_SHARED_BYTES, (int)desc->shared_bytes), what,
        err);
    if (status == MR_OK)
        be->kernels[i].shared_bytes = desc->shared_bytes;
    return status;
}

mr_status cuda_kernels_launch(cuda_backend *be, const cuda_launch_desc *desc, mr_err *err) {
    cuda_function function = NULL;
    void *args = (void *)(uintptr_t)desc->args;
    char what[96];
    mr_status status = cuda_kernels_find(be, desc, &function, err);
    if (status != MR_OK)
        return status;
    snprintf(what, sizeof what, "launch kernel %s", desc->kernel);
    return cuda_check(be,
                      be->driver->launch_kernel(function, desc->grid[0], desc->grid[1], 1, desc->n_threads, 1, 1,
                                                desc->shared_bytes, be->stream, &args, NULL),
                      what, err);
}
