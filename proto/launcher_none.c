/* launcher_none.c - replaces launcher_pmix.c in a build without PMIx. Without a launcher ranks meet when MPI has
 * started. */
// SPDX-License-Identifier: Apache-2.0

#include "proto/launcher.h"

mr_launcher *mr_launcher_open(void) {
    return NULL;
}

void mr_launcher_close(mr_launcher *l) {
    (void)l;
}

mr_status mr_launcher_put(mr_launcher *l, const char *key, const char *text, mr_err *err) {
    (void)l;
    return mr_err_set(err, MR_E_UNSUPPORTED, "no PMIx for %s %s", key, text);
}

mr_status mr_launcher_get(mr_launcher *l, int32_t rank, const char *key, int seconds, char *out_text, size_t bytes,
                          mr_err *err) {
    (void)l;
    (void)rank;
    (void)seconds;
    (void)out_text;
    (void)bytes;
    return mr_err_set(err, MR_E_UNSUPPORTED, "no PMIx for %s", key);
}

void mr_launcher_host(mr_launcher *l, int32_t rank, char *out_host, size_t bytes) {
    (void)l;
    (void)rank;
    (void)bytes;
    out_host[0] = 0;
}
