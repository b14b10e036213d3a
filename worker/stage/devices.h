/* worker/stage/devices.h - the backends of a stage beside its CPU, as the user wants them.
 * Owns:    mr_devices its backends. Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_DEVICES_H
#define MR_WORKER_STAGE_DEVICES_H

#include "backends/backend.h"

typedef enum mr_device_wish {
    MR_DEVICES_EXACT,    /* none: whatever there is computes in fast numerics */
    MR_DEVICES_MEASURED, /* those that are built in, for products in which they were found faster than the CPU */
    MR_DEVICES_BLAS,     /* BLAS, for every product that it supports */
} mr_device_wish;

typedef struct mr_devices_config {
    mr_device_wish wish;
    int32_t blas_threads; /* 0: as many as the CPU backend has */
} mr_devices_config;

typedef struct mr_devices {
    mr_backends list; /* in order of preference; the CPU comes behind them */
    bool is_measured; /* a stage finds out from how many rows on it uses them (worker/stage/products.h) */
} mr_devices;

/* Before there are other threads: loads what has to be loaded. What fails, fails again in create. */
void mr_devices_prepare(const mr_devices_config *config);
/* n_threads: of the CPU backend. cpu_ids: [n_threads] CPUs to bind threads to, or NULL. MR_E_UNSUPPORTED: BLAS is
 * wanted, and not built in. */
MR_MUST_USE mr_status mr_devices_create(const mr_devices_config *config, int32_t n_threads, const int *cpu_ids,
                                        mr_devices *out, mr_err *err);
/* {0} is accepted. */
void mr_devices_destroy(mr_devices *d);

#endif
