/* coordinator/planning/quantities.h - reads quantities with units from a text, such as "mem=64GB,bw=80GB/s".
 * Owns:    nothing. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_QUANTITIES_H
#define MR_COORDINATOR_PLANNING_QUANTITIES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum mr_unit {
    MR_UNIT_NONE,             /* 1.5 */
    MR_UNIT_BYTES,            /* 64GB, 64GiB or 64G: K, M, G and T count by 1024 */
    MR_UNIT_BYTES_PER_SECOND, /* 80GB/s, 80GB or 80G: by 1000 */
    MR_UNIT_PER_SECOND,       /* 2T: by 1000 */
    MR_UNIT_SECONDS,          /* 50us, 1ms or 2s */
} mr_unit;

typedef struct mr_quantity {
    const char *name;
    mr_unit unit;
    double *value;
} mr_quantity;

/* Reads "NAME=VALUE" words, which commas or blanks separate, into the values of known. Values are above 0. A word may
 * be missing: its value stays. false: the word at *out_bad, of *out_len bytes, is none of known. */
bool mr_quantities_read(const char *text, const mr_quantity *known, int32_t n_known, const char **out_bad,
                        int32_t *out_len);

#endif
