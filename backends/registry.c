/* backends/registry.c - the list of backends, and their creation by name. It is apart from the backends because it is
 * the only place that knows all of them. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/registry.h"

#include <string.h>

#include "backends/blas/blas_backend.h"
#include "backends/cpu/cpu_backend.h"

static mr_status create_cpu(int32_t n_threads, const int *cpu_ids, mr_backend **out, mr_err *err) {
    return mr_cpu_backend_create(&(mr_cpu_options){.n_threads = n_threads, .cpu_ids = cpu_ids}, out, err);
}

#ifdef MILLRACE_WITH_BLAS
static mr_status create_blas(int32_t n_threads, const int *cpu_ids, mr_backend **out, mr_err *err) {
    return mr_blas_backend_create(&(mr_blas_options){.n_threads = n_threads, .cpu_ids = cpu_ids}, out, err);
}
#else
#define create_blas NULL
#define mr_blas_library_load NULL
#endif

static const mr_backend_kind KINDS[] = {
    {"cpu", "every operation, in exact numerics", create_cpu, NULL, NULL},
    {"blas", "matrix products by a BLAS library, in fast numerics", create_blas, mr_blas_library_load,
     "install a BLAS library (on Debian libopenblas-dev) and build with -DMILLRACE_BLAS=ON"},
};

const mr_backend_kind *mr_backend_kind_at(int i) {
    return i >= 0 && i < (int)(sizeof KINDS / sizeof *KINDS) ? &KINDS[i] : NULL;
}

static const mr_backend_kind *find(const char *name) {
    const mr_backend_kind *kind;
    for (int i = 0; (kind = mr_backend_kind_at(i)) && strcmp(kind->name, name) != 0;)
        i++;
    return kind;
}

void mr_backend_prepare(const char *name) {
    const mr_backend_kind *kind = find(name);
    mr_err ignored; /* mr_backend_create returns the same error later */
    if (kind && kind->prepare)
        (void)!kind->prepare(&ignored);
}

mr_status mr_backend_create(const char *name, int32_t n_threads, const int *cpu_ids, mr_backend **out, mr_err *err) {
    const mr_backend_kind *kind = find(name);
    if (!kind)
        return mr_err_set(err, MR_E_INVALID, "there is no backend '%s'", name);
    if (!kind->create)
        return mr_err_set(err, MR_E_UNSUPPORTED, "this program was built without the backend '%s'; hint: %s", name,
                          kind->hint);
    return kind->create(n_threads, cpu_ids, out, err);
}
