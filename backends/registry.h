/* backends/registry.h - the one list of backends, for code that creates a backend by name.
 * The list itself is in kinds.c. A program that links an object with a list of its own has that list instead: the
 * linker takes kinds.c only where mr_backend_kinds is missing. Tests add their backends in this way.
 * A host may have several devices of a kind, and several backends may use one of them at the same time: the stages of
 * one process, or the ranks of a host. The options say which device a backend gets, and how many share it.
 * Threads: the list is constant; any thread may read it. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_REGISTRY_H
#define MR_BACKENDS_REGISTRY_H

#include "backends/backend.h"

typedef struct mr_backend_options {
    int32_t n_threads; /* that compute, the caller's included, if the backend has threads */
    /* [n_threads]: thread i > 0 is bound to CPU cpu_ids[i]; the caller has bound itself to cpu_ids[0]. NULL: no thread
     * is bound. The array is only read during the call. */
    const int *cpu_ids;
    int32_t device;      /* which of the host's devices of the kind, from 0 */
    int32_t n_sharers;   /* backends that use this device, this one included: each gets an equal part of its memory */
    size_t memory_bytes; /* most bytes of the backend's buffers; 0: its part of the device's memory */
} mr_backend_options;
typedef mr_status mr_backend_create_fn(const mr_backend_options *options, mr_backend **out, mr_err *err);

typedef struct mr_backend_kind {
    const char *name;             /* value of --backend */
    const char *about;            /* its purpose, for help texts */
    mr_backend_create_fn *create; /* NULL: this program was built without the backend */
    int32_t (*count)(void);       /* devices of this host; NULL: each backend is a device of its own */
    /* Describes a device of this host, from 0. An error says why there is no such device. NULL: not known. */
    mr_status (*about_device)(int32_t device, mr_device_about *out, mr_err *err);
    /* Whether its devices have a kernel for products with matrices of so many columns. NULL: not known. */
    bool (*multiplies)(mr_type type, int32_t columns);
    mr_status (*prepare)(mr_err *err); /* see mr_backend_prepare; NULL: nothing to prepare */
    const char *hint;                  /* how to build the program with the backend; NULL: it is always built in */
    bool exact;                        /* its backends may compute exact numerics: mr_device_info.exact */
} mr_backend_kind;

extern const mr_backend_kind mr_backend_kind_cpu, mr_backend_kind_cuda, mr_backend_kind_blas;
/* In order of preference, except that the CPU comes first; NULL at the end. */
extern const mr_backend_kind *const mr_backend_kinds[];

/* Call this before the process starts other threads, if the backend of this name will be created. It may set
 * environment variables for a moment (see mr_blas_library_load). */
void mr_backend_prepare(const char *name);
/* The kind of this name, or NULL. */
const mr_backend_kind *mr_backend_kind_find(const char *name);
/* Creates the backend of this name. MR_E_UNSUPPORTED with a hint: the program was built without the backend, or the
 * host has no such device. MR_E_INVALID: no backend has this name. */
MR_MUST_USE mr_status mr_backend_create(const char *name, const mr_backend_options *options, mr_backend **out,
                                        mr_err *err);
/* The number of devices of a kind on this host; INT32_MAX: each backend is a device of its own. 0: there is none, and
 * mr_backend_create says why. */
int32_t mr_backend_kind_devices(const mr_backend_kind *kind);

#endif
