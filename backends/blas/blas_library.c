/* backends/blas/blas_library.c - loads the BLAS library when it is first wanted, so a run without BLAS neither maps the
 * library nor has its threads. The functions of the library are declared here: the headers differ from library to
 * library (cblas.h, mkl.h, blis.h), but the binary interface with 32-bit integers (LP64) is the same. */
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/blas/blas_backend.h"
#include "backends/blas/blas_internal.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* values of the reference cblas.h */

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                      const float *b, int ldb, float beta, float *c, int ldc);

static struct {
    pthread_once_t once;
    sgemm_fn *sgemm; /* NULL: err says why */
    char name[96];
    mr_err err;
} library = {.once = PTHREAD_ONCE_INIT};

/* Looks up a function of the library. out: address of a pointer to function. False if there is no such function. */
static bool find(void *handle, const char *name, void *out) {
    void *p = dlsym(handle, name);
    memcpy(out, &p, sizeof p);
    return p;
}

/* The core type that OpenBLAS should use. OpenBLAS recognises CPUs by their model, and treats a model that is newer
 * than the library like the oldest CPUs. */
static const char *openblas_core(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return "SKYLAKEX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "HASWELL";
#endif
    return NULL;
}

/* Opens the library. Meanwhile the environment has the variables that OpenBLAS reads; those that the user has set are
 * left alone. */
static void *open_with_variables(const char *path) {
    const struct {
        const char *name, *value;
    } variables[] = {{"OPENBLAS_CORETYPE", openblas_core()}, {"OPENBLAS_NUM_THREADS", "1"}};
    bool is_set[2] = {false};
    for (int i = 0; i < 2; i++)
        if (variables[i].value && !getenv(variables[i].name))
            is_set[i] = setenv(variables[i].name, variables[i].value, 1) == 0;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2; i++)
        if (is_set[i])
            unsetenv(variables[i].name);
    return handle;
}

/* Tells the library to use one thread for each call. Each library has its own function for this. */
static void use_one_thread(void *handle) {
    void (*set_int)(int);
    void (*set_long)(int64_t);
    if (find(handle, "openblas_set_num_threads", &set_int) || find(handle, "MKL_Set_Num_Threads", &set_int))
        set_int(1);
    else if (find(handle, "bli_thread_set_num_threads", &set_long))
        set_long(1);
}

static void load(void) {
    const char *chosen = getenv("MILLRACE_BLAS_LIBRARY"), *path = chosen && *chosen ? chosen : MILLRACE_BLAS_SONAME;
    void *handle = open_with_variables(path);
    char *(*core)(void);
    sgemm_fn *sgemm = NULL;
    if (!handle || !find(handle, "cblas_sgemm", &sgemm)) {
        const char *why = dlerror();
        (void)mr_err_set(&library.err, MR_E_UNSUPPORTED,
                         "no BLAS library: %.200s; hint: install %s, or name another one by MILLRACE_BLAS_LIBRARY",
                         why ? why : path, MILLRACE_BLAS_SONAME);
        return;
    }
    use_one_thread(handle);
    const char *file = strrchr(path, '/');
    bool has_core = find(handle, "openblas_get_corename", &core);
    snprintf(library.name, sizeof library.name, "%s%s%s", file ? file + 1 : path, has_core ? " for " : "",
             has_core ? core() : "");
    library.sgemm = sgemm; /* the library stays loaded until the process ends */
}

mr_status mr_blas_library_load(mr_err *err) {
    pthread_once(&library.once, load);
    return library.sgemm ? MR_OK : mr_err_set(err, library.err.status, "%s", library.err.text);
}

const char *blas_library_name(void) {
    return library.name;
}

void blas_multiply(const blas_product *p) {
    library.sgemm(ROW_MAJOR, NO_TRANS, TRANS, p->m, p->n, p->k, 1.0f, p->a, (int)p->lda, p->w, (int)p->ldw, p->beta,
                  p->y, (int)p->ldy);
}

enum { SIDE = 128 }; /* large enough that the library uses buffers: for small matrices it may need none */

static void multiply_once(void *ctx, int thread_idx, int n_threads) {
    (void)ctx;
    (void)thread_idx;
    (void)n_threads;
    static const float zeros[SIDE * SIDE];
    float out[SIDE * SIDE];
    const blas_product p = {
        .m = SIDE, .n = SIDE, .k = SIDE, .a = zeros, .w = zeros, .y = out, .lda = SIDE, .ldw = SIDE, .ldy = SIDE};
    blas_multiply(&p);
}

void blas_library_warm_up(mr_pool *pool) {
    mr_pool_run_each(pool, multiply_once, NULL); /* all threads at the same time: the library needs a buffer for each */
}
