/* backends/registry.c - creates backends by name. It is apart from the backends because it is the only place that knows
 * all of them. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/registry.h"

#include <string.h>

#include "backends/blas/blas_backend.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/cuda/cuda_backend.h"

static mr_status create_cpu(const mr_backend_options *o, mr_backend **out, mr_err *err) {
    return mr_cpu_backend_create(&(mr_cpu_options){.n_threads = o->n_threads, .cpu_ids = o->cpu_ids}, out, err);
}

#ifdef MILLRACE_WITH_CUDA
static mr_status create_cuda(const mr_backend_options *o, mr_backend **out, mr_err *err) {
    mr_cuda_options options = {
        .images = mr_cuda_images, .device = o->device, .n_sharers = o->n_sharers, .memory_bytes = o->memory_bytes};
    mr_status status = cuda_driver_load(&options.driver, err);
    return status == MR_OK ? mr_cuda_backend_create(&options, out, err) : status;
}

static mr_status about_cuda(int32_t device, mr_device_about *out, mr_err *err) {
    const cuda_driver *driver = NULL;
    mr_status status = cuda_driver_load(&driver, err);
    return status == MR_OK ? mr_cuda_about(driver, device, out, err) : status;
}

static int32_t count_cuda(void) {
    const cuda_driver *driver = NULL;
    mr_err ignored; /* create_cuda returns the same error */
    return cuda_driver_load(&driver, &ignored) == MR_OK ? mr_cuda_count(driver) : 0;
}
#else
#define create_cuda NULL
#define count_cuda NULL
#define about_cuda NULL
#endif

#ifdef MILLRACE_WITH_BLAS
static mr_status create_blas(const mr_backend_options *o, mr_backend **out, mr_err *err) {
    return mr_blas_backend_create(&(mr_blas_options){.n_threads = o->n_threads, .cpu_ids = o->cpu_ids}, out, err);
}
#else
#define create_blas NULL
#define mr_blas_library_load NULL
#endif

const mr_backend_kind mr_backend_kind_cpu = {
    .name = "cpu", .about = "every operation, in exact numerics", .create = create_cpu, .exact = true};
const mr_backend_kind mr_backend_kind_cuda = {
    .name = "cuda",
    .about = "layers on NVIDIA GPUs, in exact numerics",
    .create = create_cuda,
    .count = count_cuda,
    .about_device = about_cuda,
    .multiplies = mr_cuda_multiplies,
    .hint = "install the CUDA toolkit, 12.4 or newer, and build with -DMILLRACE_CUDA=ON",
    .exact = true};
const mr_backend_kind mr_backend_kind_blas = {
    .name = "blas",
    .about = "matrix products by a BLAS library, in fast numerics",
    .create = create_blas,
    .prepare = mr_blas_library_load,
    .hint = "install a BLAS library (on Debian libopenblas-dev) and build with -DMILLRACE_BLAS=ON"};

const mr_backend_kind *mr_backend_kind_find(const char *name) {
    int i = 0;
    while (mr_backend_kinds[i] && strcmp(mr_backend_kinds[i]->name, name) != 0)
        i++;
    return mr_backend_kinds[i];
}

void mr_backend_prepare(const char *name) {
    const mr_backend_kind *kind = mr_backend_kind_find(name);
    mr_err ignored; /* mr_backend_create returns the same error later */
    if (kind && kind->prepare)
        (void)!kind->prepare(&ignored);
}

mr_status mr_backend_create(const char *name, const mr_backend_options *options, mr_backend **out, mr_err *err) {
    const mr_backend_kind *kind = mr_backend_kind_find(name);
    if (!kind)
        return mr_err_set(err, MR_E_INVALID, "there is no backend '%s'", name);
    if (!kind->create)
        return mr_err_set(err, MR_E_UNSUPPORTED, "this program was built without the backend '%s'; hint: %s", name,
                          kind->hint);
    return kind->create(options, out, err);
}

int32_t mr_backend_kind_devices(const mr_backend_kind *kind) {
    return kind->count ? kind->count() : INT32_MAX;
}
