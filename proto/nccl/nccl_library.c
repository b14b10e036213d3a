/* proto/nccl/nccl_library.c - loads NCCL. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/nccl/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
#define HINT "hint: install NCCL 2.18 or newer, or put its folder into LD_LIBRARY_PATH"

static struct {
    pthread_once_t once;
    nccl_library table;
    mr_err err; /* status MR_OK: the library is loaded */
} library = {.once = PTHREAD_ONCE_INIT};

/* Looks up a function of the library. out: address of a pointer to function. */
static bool find(void *handle, const char *name, void *out) {
    void *p = dlsym(handle, name);
    memcpy(out, &p, sizeof p);
    return p != NULL;
}

static mr_status find_all(void *handle, nccl_library *out, mr_err *err) {
    static const struct {
        const char *symbol;
        size_t offset;
    } functions[] = {
#define FUNCTION(member, symbol, ...) {#symbol, offsetof(nccl_library, member)},
#include "proto/nccl/nccl_library.def"
#undef FUNCTION
        {"ncclGetErrorString", offsetof(nccl_library, get_error_string)},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!find(handle, functions[i].symbol, (char *)out + functions[i].offset))
            return mr_err_set(err, MR_E_UNSUPPORTED, "NCCL has no function %s; " HINT, functions[i].symbol);
    return MR_OK;
}

/* The library stays loaded until the process ends: it has threads of its own. */
mr_status nccl_library_open(const char *name, nccl_library *out, mr_err *err) {
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *why = handle ? NULL : dlerror();
    if (!handle)
        return mr_err_set(err, MR_E_UNSUPPORTED, "no NCCL: %.200s; " HINT, why ? why : name);
    mr_status status = find_all(handle, out, err);
    if (status != MR_OK)
        return status;
    if (out->get_version(&out->version) != NCCL_OK || out->version < NCCL_NEEDED_VERSION)
        return mr_err_set(err, MR_E_UNSUPPORTED, "NCCL has version %d; " HINT, out->version);
    return MR_OK;
}

static void load(void) {
    (void)!nccl_library_open(LIBRARY, &library.table, &library.err);
}

mr_status nccl_library_load(const nccl_library **out, mr_err *err) {
    pthread_once(&library.once, load);
    if (library.err.status != MR_OK)
        return mr_err_set(err, library.err.status, "%s", library.err.text);
    *out = &library.table;
    return MR_OK;
}
