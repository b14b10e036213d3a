/* backends/cuda/cuda_driver.c - loads the driver's library, and says what its errors mean. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"
#define HINT "install a driver for CUDA 12.4 or newer"

static struct {
    pthread_once_t once;
    cuda_driver driver;
    mr_err err; /* status MR_OK: the driver is loaded */
} library = {.once = PTHREAD_ONCE_INIT};

/* Looks up a function of the library. out: address of a pointer to function. */
static bool find(void *handle, const char *name, void *out) {
    void *p = dlsym(handle, name);
    memcpy(out, &p, sizeof p);
    return p != NULL;
}

static void find_all(void *handle) {
    static const struct {
        const char *symbol;
        size_t offset;
    } functions[] = {
#define FUNCTION(member, symbol, ...) {#symbol, offsetof(cuda_driver, member)},
#include "backends/cuda/cuda_driver.def"
#undef FUNCTION
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions && library.err.status == MR_OK; i++)
        if (!find(handle, functions[i].symbol, (char *)&library.driver + functions[i].offset))
            (void)mr_err_set(&library.err, MR_E_UNSUPPORTED, "the NVIDIA driver has no function %s; hint: " HINT,
                             functions[i].symbol);
}

static void load(void) {
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle) {
        find_all(handle); /* the library stays loaded until the process ends */
        return;
    }
    const char *why = dlerror();
    (void)mr_err_set(&library.err, MR_E_UNSUPPORTED, "no NVIDIA driver: %.200s; hint: " HINT, why ? why : LIBRARY);
}

mr_status cuda_driver_load(const cuda_driver **out, mr_err *err) {
    pthread_once(&library.once, load);
    if (library.err.status != MR_OK)
        return mr_err_set(err, library.err.status, "%s", library.err.text);
    *out = &library.driver;
    return MR_OK;
}

mr_status cuda_driver_error(const cuda_driver *driver, cuda_result result, const char *what, mr_err *err) {
    const char *name = NULL, *text = NULL;
    if (driver->get_error_name(result, &name) != CUDA_OK || driver->get_error_string(result, &text) != CUDA_OK)
        name = "an error without a name", text = "of the driver";
    return mr_err_set(err, result == CUDA_OUT_OF_MEMORY ? MR_E_NO_MEMORY : MR_E_DEVICE, "%s: %s (%d), %s", what, name,
                      result, text);
}
