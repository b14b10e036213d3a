// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/devices_check.h"

#include "backends/digest/digest.h"
#include "backends/registry.h"

/* The two are computed beside each other, so that what only one of them supports is left out. */
static mr_status check(mr_backend *device, const char *name, mr_backend *cpu, mr_err *err) {
    mr_digest of_device, of_cpu;
    char differ[MR_ERR_TEXT_BYTES / 2];
    mr_status status = mr_digest_compute(device, cpu, &of_device, err);
    if (status == MR_OK)
        status = mr_digest_compute(cpu, device, &of_cpu, err);
    if (status != MR_OK)
        return mr_err_prefix(err, "device '%s' could not be compared with the CPU", name);
    if (mr_digest_compare(&of_cpu, &of_device, differ, sizeof differ) > 0)
        return mr_err_set(
            err, MR_E_UNSUPPORTED,
            "device '%s' computes other bits than the CPU in: %s; hint: another version of its driver, or "
            "--backend cpu",
            name, differ);
    return MR_OK;
}

mr_status mr_devices_check(mr_devices *d, mr_err *err) {
    mr_backend *cpu = NULL;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < d->list.n && status == MR_OK; i++) {
        mr_backend *device = d->list.at[i];
        mr_device_info info;
        device->ops->describe(device, &info);
        if (!info.exact)
            continue;
        if (!cpu)
            status = mr_backend_create("cpu", &(mr_backend_options){.n_threads = 1}, &cpu, err);
        if (status != MR_OK)
            break;
        mr_err why = {0};
        status = check(device, info.name, cpu, &why);
        if (status != MR_OK && d->is_auto) {
            mr_devices_leave_out(d, i--, why.text);
            status = MR_OK;
        }
        if (status != MR_OK)
            (void)mr_err_set(err, status, "%s", why.text);
    }
    mr_backend_destroy(cpu);
    return status;
}
