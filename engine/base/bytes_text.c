/* engine/base/bytes_text.c - writes numbers of bytes. Figures that a message compares must not look the same: "it has
 * 0.01 GiB, a layer takes 0.01 GiB" tells nobody what is missing. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/bytes_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_DECIMALS = 6 };

static const char *write_with(uint64_t bytes, int decimals, char out[MR_BYTES_TEXT]) {
    static const char *const UNITS[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(out, MR_BYTES_TEXT, "%" PRIu64 " B", bytes);
        return out;
    }
    double v = (double)bytes / 1024;
    size_t unit = 0;
    /* 1023.95 would be written as 1024.0. */
    for (; v >= 1023.95; v /= 1024)
        unit++;
    snprintf(out, MR_BYTES_TEXT, "%.*f %s", decimals, v, UNITS[unit]);
    return out;
}

const char *mr_bytes_text(uint64_t bytes, char out[MR_BYTES_TEXT]) {
    return write_with(bytes, 1, out);
}

mr_bytes_pair mr_bytes_apart(uint64_t a, uint64_t b) {
    mr_bytes_pair pair;
    for (int decimals = 1; decimals <= MOST_DECIMALS; decimals++) {
        write_with(a, decimals, pair.a);
        write_with(b, decimals, pair.b);
        if (a == b || strcmp(pair.a, pair.b) != 0)
            return pair;
    }
    snprintf(pair.a, sizeof pair.a, "%" PRIu64 " B", a);
    snprintf(pair.b, sizeof pair.b, "%" PRIu64 " B", b);
    return pair;
}
