// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/quantities.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char SEPARATORS[] = ", \t\r\n";

/* Reads the end of a time: "us", "ms" or "s". Returns its seconds; 0: it is something else. */
static double time_unit(const char *text) {
    return strcmp(text, "us") == 0 ? 1e-6 : strcmp(text, "ms") == 0 ? 1e-3 : strcmp(text, "s") == 0 ? 1 : 0;
}

/* Reads the end of a number that is no time: a letter for a power of a thousand, and the rest of the unit. Returns the
 * factor; 0: it is something else. */
static double factor_of(const char *text, mr_unit unit) {
    static const char LETTERS[] = "KMGT";
    const bool bytes = unit == MR_UNIT_BYTES || unit == MR_UNIT_BYTES_PER_SECOND;
    const char *letter = *text && unit != MR_UNIT_NONE ? strchr(LETTERS, *text) : NULL;
    double factor = 1;
    for (const char *p = LETTERS; letter && p <= letter; p++)
        factor *= unit == MR_UNIT_BYTES ? 1024 : 1000;
    text += letter != NULL;
    text += letter && bytes && *text == 'i';
    text += bytes && *text == 'B';
    text += unit == MR_UNIT_BYTES_PER_SECOND && strcmp(text, "/s") == 0 ? 2 : 0;
    return *text == 0 ? factor : 0;
}

static bool read_number(const char *text, size_t len, mr_unit unit, double *out) {
    char copy[48], *end;
    if (len == 0 || len >= sizeof copy)
        return false;
    memcpy(copy, text, len);
    copy[len] = 0;
    double v = strtod(copy, &end);
    if (end == copy)
        return false;
    v *= unit == MR_UNIT_SECONDS ? time_unit(end) : factor_of(end, unit);
    if (!isfinite(v) || v <= 0 || v >= 1e18)
        return false;
    *out = v;
    return true;
}

bool mr_quantities_read(const char *text, const mr_quantity *known, int32_t n_known, const char **out_bad,
                        int32_t *out_len) {
    for (const char *p = text + strspn(text, SEPARATORS); *p; p += strspn(p, SEPARATORS)) {
        size_t len = strcspn(p, SEPARATORS), name = strcspn(p, "="), i = 0;
        while (i < (size_t)n_known && (strlen(known[i].name) != name || strncmp(known[i].name, p, name) != 0))
            i++;
        if (i == (size_t)n_known || name >= len ||
            !read_number(p + name + 1, len - name - 1, known[i].unit, known[i].value)) {
            *out_bad = p;
            *out_len = len < 100 ? (int32_t)len : 100;
            return false;
        }
        p += len;
    }
    return true;
}
