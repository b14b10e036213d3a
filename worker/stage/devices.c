/* worker/stage/devices.c - creates the devices of a stage. BLAS is the only device so far. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/devices.h"

#include "backends/registry.h"
#include "engine/base/log.h"

void mr_devices_prepare(const mr_devices_config *config) {
    if (config->wish != MR_DEVICES_EXACT)
        mr_backend_prepare("blas");
}

mr_status mr_devices_create(const mr_devices_config *config, int32_t n_threads, const int *cpu_ids, mr_devices *out,
                            mr_err *err) {
    mr_devices d = {.is_measured = config->wish == MR_DEVICES_MEASURED};
    int32_t n_blas = config->blas_threads > 0 ? config->blas_threads : n_threads;
    mr_err why = {0};
    mr_status status = MR_OK;
    if (config->wish != MR_DEVICES_EXACT)
        status = mr_backend_create("blas", n_blas, n_blas <= n_threads ? cpu_ids : NULL, &d.list.at[0], &why);
    d.list.n = d.list.at[0] ? 1 : 0;
    if (status == MR_E_UNSUPPORTED && d.is_measured) {
        mr_log_write(MR_LOG_DEBUG, "worker", "only the CPU computes: %s", why.text);
        status = MR_OK;
    }
    if (status != MR_OK)
        return mr_err_set(err, status, "%s", why.text);
    *out = d;
    return MR_OK;
}

void mr_devices_destroy(mr_devices *d) {
    for (int32_t b = 0; b < d->list.n; b++)
        mr_backend_destroy(d->list.at[b]);
    *d = (mr_devices){0};
}
