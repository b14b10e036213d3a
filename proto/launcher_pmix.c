/* launcher_pmix.c - talks to the PMIx server of the launcher. The PMIx library is not linked: the MPI library may bring
 * its own PMIx library, and two libraries with the same names in one process would call each other's functions. If a
 * PMIx library is loaded already, as with Open MPI 5, this library is used. Otherwise libpmix.so.2 is loaded, which
 * Open MPI 4.1 will load, too. */
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "proto/launcher.h"

typedef struct pmix_calls {
    __typeof__(&PMIx_Init) init;
    __typeof__(&PMIx_Finalize) finalize;
    __typeof__(&PMIx_Put) put;
    __typeof__(&PMIx_Commit) commit;
    __typeof__(&PMIx_Get) get;
    __typeof__(&PMIx_Error_string) error_string;
} pmix_calls;

struct mr_launcher {
    pmix_calls pmix;
    pmix_proc_t self;
};

/* Replaces PMIx_Initialized of PMIx if the MPI library is linked with PMIx, as Open MPI 5 is. If PMIx_Initialized says
 * that PMIx runs, Open MPI believes that it has started PMIx itself, never asks PMIx for the rank of this process, and
 * does not start (5.0.11). If the function says that PMIx does not run, Open MPI starts PMIx once more, and PMIx counts
 * the starts. Ending PMIx before MPI starts does not work: the process aborts at its end, and 4.1 does not start. */
__attribute__((visibility("default"))) int PMIx_Initialized(void) {
    return 0;
}

static bool find_calls(pmix_calls *out) {
    void *from = RTLD_DEFAULT;
    if (!dlsym(from, "PMIx_Init") && !(from = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL)))
        return false;
    /* On systems with dlsym, pointers to functions and to objects have the same size. */
    *(void **)&out->init = dlsym(from, "PMIx_Init");
    *(void **)&out->finalize = dlsym(from, "PMIx_Finalize");
    *(void **)&out->put = dlsym(from, "PMIx_Put");
    *(void **)&out->commit = dlsym(from, "PMIx_Commit");
    *(void **)&out->get = dlsym(from, "PMIx_Get");
    *(void **)&out->error_string = dlsym(from, "PMIx_Error_string");
    return out->init && out->finalize && out->put && out->commit && out->get && out->error_string;
}

static mr_status pmix_failed(const mr_launcher *l, pmix_status_t code, const char *what, mr_err *err) {
    return mr_err_set(err, code == PMIX_ERR_TIMEOUT ? MR_E_TIMEOUT : MR_E_IO, "%s: PMIx says %s", what,
                      l->pmix.error_string(code));
}

mr_launcher *mr_launcher_open(void) {
    /* Without these variables no PMIx server has started this process, and PMIx would make a job of this process
     * alone. */
    mr_launcher *l = getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK") ? mr_alloc(sizeof *l) : NULL;
    if (!l)
        return NULL;
    pmix_status_t code = PMIX_ERR_NOT_FOUND;
    if (find_calls(&l->pmix))
        code = l->pmix.init(&l->self, NULL, 0);
    if (code == PMIX_SUCCESS)
        return l;
    mr_log_write(MR_LOG_DEBUG, "launcher", "no PMIx before MPI starts: status %d", (int)code);
    mr_free(l);
    return NULL;
}

void mr_launcher_close(mr_launcher *l) {
    if (l)
        (void)l->pmix.finalize(NULL, 0);
    mr_free(l);
}

mr_status mr_launcher_put(mr_launcher *l, const char *key, const char *text, mr_err *err) {
    pmix_value_t value = {.type = PMIX_STRING, .data.string = (char *)(uintptr_t)text}; /* PMIx copies the text */
    pmix_status_t code = l->pmix.put(PMIX_GLOBAL, key, &value);
    if (code == PMIX_SUCCESS)
        code = l->pmix.commit();
    return code == PMIX_SUCCESS ? MR_OK : pmix_failed(l, code, "the launcher takes no text", err);
}

/* Reads a text of a rank, with one option. */
static pmix_status_t get(mr_launcher *l, int32_t rank, const char *key, const pmix_info_t *option, char *out_text,
                         size_t bytes) {
    pmix_proc_t proc = l->self;
    pmix_value_t *value = NULL;
    proc.rank = (pmix_rank_t)rank;
    pmix_status_t code = l->pmix.get(&proc, key, option, 1, &value);
    if (code != PMIX_SUCCESS)
        return code;
    bool is_text = value && value->type == PMIX_STRING && value->data.string && strlen(value->data.string) < bytes;
    if (is_text)
        strcpy(out_text, value->data.string);
    if (value && value->type == PMIX_STRING)
        free(value->data.string);
    free(value);
    return is_text ? PMIX_SUCCESS : PMIX_ERR_BAD_PARAM;
}

mr_status mr_launcher_get(mr_launcher *l, int32_t rank, const char *key, int seconds, char *out_text, size_t bytes,
                          mr_err *err) {
    const pmix_info_t option = {.key = PMIX_TIMEOUT, .value = {.type = PMIX_INT, .data.integer = seconds}};
    pmix_status_t code = get(l, rank, key, &option, out_text, bytes);
    return code == PMIX_SUCCESS ? MR_OK : pmix_failed(l, code, "the launcher has no text", err);
}

void mr_launcher_host(mr_launcher *l, int32_t rank, char *out_host, size_t bytes) {
    const pmix_info_t option = {.key = PMIX_OPTIONAL, .value = {.type = PMIX_BOOL, .data.flag = true}};
    if (get(l, rank, PMIX_HOSTNAME, &option, out_host, bytes) != PMIX_SUCCESS)
        out_host[0] = 0;
}
