/* backends/registry.h - the one list of backends.
 * Threads: the list is constant. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_REGISTRY_H
#define MR_BACKENDS_REGISTRY_H

#include "backends/backend.h"

/* n_threads: computing threads, the caller's included, where the backend has threads. cpu_ids: [n_threads] CPUs to bind
 * them to, all but the caller's; NULL: bind nobody. Read in create only. */
typedef mr_status mr_backend_create_fn(int32_t n_threads, const int *cpu_ids, mr_backend **out, mr_err *err);

typedef struct mr_backend_kind {
    const char *name;                  /* as --backend has it */
    const char *about;                 /* what it is for */
    mr_backend_create_fn *create;      /* NULL: this program was built without it */
    mr_status (*prepare)(mr_err *err); /* NULL: nothing to do */
    const char *hint;                  /* how it is built with it; NULL for what always is */
} mr_backend_kind;

/* The kinds in order; NULL behind the last. */
const mr_backend_kind *mr_backend_kind_at(int i);
/* To be called before there are other threads, if the backend of this name is wanted. */
void mr_backend_prepare(const char *name);
/* Creates the backend of this name. MR_E_UNSUPPORTED with a hint: not built in; MR_E_INVALID: there is none. */
MR_MUST_USE mr_status mr_backend_create(const char *name, int32_t n_threads, const int *cpu_ids, mr_backend **out,
                                        mr_err *err);

#endif
