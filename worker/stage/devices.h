/* worker/stage/devices.h - the backends of a stage beside its CPU backend, as the options of the user ask for them.
 * Owns:    mr_devices owns its backends. Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_DEVICES_H
#define MR_WORKER_STAGE_DEVICES_H

#include "backends/backend.h"

typedef enum mr_device_wish {
    MR_DEVICES_EXACT,    /* no device: all devices compute in fast numerics */
    MR_DEVICES_MEASURED, /* the devices that are built in, for products that a device was measured to run faster */
    MR_DEVICES_BLAS,     /* BLAS, for every product that it supports */
} mr_device_wish;

typedef struct mr_devices_config {
    mr_device_wish wish;
    int32_t blas_threads; /* 0: as many as the CPU backend has */
} mr_devices_config;

typedef struct mr_devices {
    mr_backends list; /* in order of preference, without the CPU */
    bool is_measured; /* a stage measures from how many rows on it uses a device (worker/stage/products.h) */
} mr_devices;

/* Loads libraries. Call before the process has other threads. An error shows up in mr_devices_create. */
void mr_devices_prepare(const mr_devices_config *config);
/* n_threads: threads of the CPU backend. cpu_ids: [n_threads] CPUs to bind threads to, or NULL. MR_E_UNSUPPORTED: BLAS
 * is wanted, and not built in. */
MR_MUST_USE mr_status mr_devices_create(const mr_devices_config *config, int32_t n_threads, const int *cpu_ids,
                                        mr_devices *out, mr_err *err);
/* {0} is accepted. */
void mr_devices_destroy(mr_devices *d);

#endif
