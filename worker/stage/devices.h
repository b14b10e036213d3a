/* worker/stage/devices.h - the backends of a stage beside its CPU backend, as the options of the user ask for them.
 * Owns:    mr_devices owns its backends. Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_DEVICES_H
#define MR_WORKER_STAGE_DEVICES_H

#include "backends/backend.h"

#define MR_DEVICES_AUTO "auto" /* every backend that is built in, if the host has such a device */

typedef struct mr_devices_config {
    const char *backend; /* MR_DEVICES_AUTO, or the name of a backend (backends/registry.h); NULL: as "cpu". Borrowed */
    bool is_fast;        /* fast numerics; in exact numerics, only exact backends compute */
    int32_t blas_threads; /* 0: as many as the CPU backend has */
    /* The place of this stage among the stages of its host, which take the host's devices in turn. More stages than
     * devices share them. 0 of 0: the stage is alone. */
    int32_t seat, n_seats;
    int32_t one_device;    /* the number, from 1, of the one device that all stages of the host take; 0: in turn */
    uint64_t memory_bytes; /* most bytes that a device gives to this stage; 0: its part of the device's memory */
} mr_devices_config;

typedef struct mr_devices {
    mr_backends list; /* in order of preference, without the CPU */
    bool is_measured; /* a stage measures from how many rows on it uses a device (worker/stage/products.h) */
    bool is_auto;     /* nobody has named them: one that fails before it is used is left out, with a warning */
} mr_devices;

/* Whether the backend of the config only multiplies matrices, which it reads in the model file. */
bool mr_devices_only_multiply(const mr_devices_config *config);
/* Whether the config may bring a device that can hold layers: one of a backend other than the CPU and BLAS. */
bool mr_devices_may_hold_layers(const mr_devices_config *config);
/* Whether the user has named such a backend, so that its devices hold as many layers as fit. Without a name, measured
 * times decide. */
bool mr_devices_must_hold_layers(const mr_devices_config *config);
/* How many devices of this host the stages of the config would take in turn. 0: none, or each stage has its own. */
int32_t mr_devices_count(const mr_devices_config *config);
/* Makes a config without blas_threads. The CPU alone is exact even if is_fast. MR_E_INVALID: there is no such backend,
 * or it does not compute exact numerics. */
MR_MUST_USE mr_status mr_devices_choose(const char *backend, bool is_fast, mr_devices_config *out, mr_err *err);
/* Loads libraries. Call before the process has other threads. An error shows up in mr_devices_create. */
void mr_devices_prepare(const mr_devices_config *config);
/* n_threads: threads of the CPU backend. cpu_ids: [n_threads] CPUs to bind threads to, or NULL. MR_E_UNSUPPORTED: the
 * backend that is wanted by its name is not built in, or the host has no such device. Where stages share a device, a
 * line of the log says so. With MR_DEVICES_AUTO, devices that cannot be used are left out. */
MR_MUST_USE mr_status mr_devices_create(const mr_devices_config *config, int32_t n_threads, const int *cpu_ids,
                                        mr_devices *out, mr_err *err);
/* The devices that a stage may use: all of them in fast numerics, else the exact ones. The result borrows the backends.
 * devices may be NULL. */
mr_devices mr_devices_for(const mr_devices *devices, bool fast_numerics);
/* Index of the device that holds whole layers: the first one with memory of its own; -1: there is none. */
int32_t mr_devices_holder(const mr_backends *list);
/* What a plan puts on the device of a stage. */
typedef struct mr_devices_share {
    int32_t n_layers;          /* the first ones of the stage */
    int32_t n_host_experts;    /* the last so many of these leave their experts in the host's memory */
    int32_t n_device_experts;  /* but for so many experts of each such layer, which the device holds, too */
    int32_t n_cold_partitions; /* of each sparse part of these, the host holds so many last partitions; or all */
} mr_devices_share;
/* Gives the share to mr_devices_holder. The list must have such a device. */
void mr_devices_hold(mr_backends *list, mr_devices_share share);
/* Leaves out a device (an index) that nobody has named, and logs why. */
void mr_devices_leave_out(mr_devices *d, int32_t idx, const char *why);
/* {0} is accepted. */
void mr_devices_destroy(mr_devices *d);

#endif
