/* Parses the text of one option value, and checks the type and the range that the table of options gives. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/console/options.h"
#include "engine/base/mem.h"

enum { MAX_SHOWN = 80 }; /* bytes of a wrong value that an error shows */

static bool has_range(const mr_option_spec *spec) {
    return spec->type == MR_OPTION_TYPE_INT || spec->type == MR_OPTION_TYPE_FLOAT ||
           spec->type == MR_OPTION_TYPE_INTS || spec->type == MR_OPTION_TYPE_SIZE;
}

void option_range_text(const mr_option_spec *spec, char *out, size_t size) {
    out[0] = 0;
    if (!has_range(spec))
        return;
    if (spec->type == MR_OPTION_TYPE_FLOAT)
        snprintf(out, size, "%g to %g", spec->min, spec->max);
    else if (spec->type == MR_OPTION_TYPE_SIZE)
        snprintf(out, size, "%" PRId64 " and more", (int64_t)spec->min);
    else
        snprintf(out, size, "%" PRId64 " to %" PRId64, (int64_t)spec->min, (int64_t)spec->max);
}

static mr_status wrong(const char *name, const char *text, const char *wanted, mr_err *err) {
    return mr_err_set(err, MR_E_INVALID, "%s: \"%.*s\" is not %s", name, MAX_SHOWN, text, wanted);
}

static mr_status check_range(const mr_option_spec *spec, const char *name, const char *text, double v, mr_err *err) {
    if (v >= spec->min && v <= spec->max)
        return MR_OK;
    char range[64];
    option_range_text(spec, range, sizeof range);
    return mr_err_set(err, MR_E_INVALID, "%s: %.*s is out of range; allowed are %s", name, MAX_SHOWN, text, range);
}

/* Reads a decimal number at the start of text. *end: the first byte after the number. Numbers that are too large become
 * the largest number. */
static bool scan_int(const char *text, int64_t *out, const char **end) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits < '0' || *digits > '9')
        return false;
    *out = strtoll(text, (char **)(uintptr_t)end, 10);
    return true;
}

static mr_status parse_int(const mr_option_spec *spec, const char *name, const char *text, int64_t *out, mr_err *err) {
    const char *end;
    int64_t v;
    if (!scan_int(text, &v, &end) || *end)
        return wrong(name, text, "a whole number", err);
    mr_status status = check_range(spec, name, text, (double)v, err);
    if (status == MR_OK)
        *out = v;
    return status;
}

static mr_status parse_float(const mr_option_spec *spec, const char *name, const char *text, double *out, mr_err *err) {
    char *end = NULL;
    double v = strtod(text, &end);
    if (!*text || strspn(text, "0123456789.+-eE") != strlen(text) || *end)
        return wrong(name, text, "a number", err);
    mr_status status = check_range(spec, name, text, v, err);
    if (status == MR_OK)
        *out = v;
    return status;
}

/* Parses a size: 1536, 1.5K, 2G, 2GB, 2GiB. All units are powers of 1024. */
static mr_status parse_size(const mr_option_spec *spec, const char *name, const char *text, int64_t *out, mr_err *err) {
    static const char UNITS[] = "kmgt";
    char *end = NULL;
    double v = strtod(text, &end);
    if (*text < '0' || *text > '9' || strspn(text, "0123456789.") != (size_t)(end - text))
        return wrong(name, text, "a size such as 512M or 4G", err);
    const char *unit = *end ? strchr(UNITS, *end | 0x20) : NULL;
    if (unit) {
        v = ldexp(v, 10 * (int)(unit - UNITS + 1));
        end++;
        end += *end == 'i';
    }
    end += *end == 'B';
    if (*end)
        return wrong(name, text, "a size such as 512M or 4G", err);
    mr_status status = check_range(spec, name, text, v, err);
    if (status == MR_OK)
        *out = (int64_t)v;
    return status;
}

static mr_status parse_flag(const char *name, const char *text, int64_t *out, mr_err *err) {
    static const char *const WORDS[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof WORDS / sizeof WORDS[0]; i++) {
        if (strcmp(text, WORDS[i]) == 0) {
            *out = (int64_t)(i % 2);
            return MR_OK;
        }
    }
    return wrong(name, text, "on or off", err);
}

static mr_status parse_choice(const mr_option_spec *spec, const char *name, const char *text, mr_option_value *out,
                              mr_err *err) {
    size_t len = strlen(text);
    int64_t i = 0;
    for (const char *word = spec->value; word; i++) {
        const char *bar = strchr(word, '|');
        size_t word_len = bar ? (size_t)(bar - word) : strlen(word);
        if (word_len == len && memcmp(word, text, len) == 0) {
            out->number = i;
            out->text = text;
            return MR_OK;
        }
        word = bar ? bar + 1 : NULL;
    }
    return mr_err_set(err, MR_E_INVALID, "%s: \"%.*s\" is not one of %s", name, MAX_SHOWN, text, spec->value);
}

static mr_status parse_ints(const mr_option_spec *spec, const char *name, const char *text, mr_option_value *out,
                            mr_err *err) {
    mr_status status = MR_OK;
    int32_t n = 0;
    int32_t *ints = mr_alloc_array(MR_OPTIONS_MAX_INTS, sizeof *ints);
    if (!ints)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for options");
    for (const char *p = text, *end = NULL;; p = end + 1) {
        int64_t v;
        if (!scan_int(p, &v, &end) || (*end && *end != ',')) {
            status = wrong(name, text, "a list of whole numbers such as 8,14", err);
            goto out;
        }
        char number[32];
        snprintf(number, sizeof number, "%" PRId64, v);
        status = check_range(spec, name, number, (double)v, err);
        if (status == MR_OK && n == MR_OPTIONS_MAX_INTS)
            status = mr_err_set(err, MR_E_INVALID, "%s: the list has more than %d numbers", name, MR_OPTIONS_MAX_INTS);
        if (status != MR_OK)
            goto out;
        ints[n++] = (int32_t)v;
        if (!*end)
            break;
    }
    mr_free(out->ints);
    out->ints = ints;
    out->n = n;
    ints = NULL;
out:
    mr_free(ints);
    return status;
}

static mr_status add_to_list(const char *name, const char *text, mr_option_value *out, mr_err *err) {
    if (out->n >= MR_OPTIONS_MAX_LIST)
        return mr_err_set(err, MR_E_INVALID, "%s was given more than %d times", name, MR_OPTIONS_MAX_LIST);
    /* The capacity doubles each time, so the list is full at every power of two. */
    if ((out->n & (out->n - 1)) == 0) {
        size_t cap = out->n ? 2 * (size_t)out->n : 1;
        const char **list = mr_realloc(out->list, cap * sizeof *list);
        if (!list)
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for options");
        out->list = list;
    }
    out->list[out->n++] = text;
    return MR_OK;
}

mr_status option_value_parse(const mr_option_spec *spec, const char *name, const char *text, mr_option_value *out,
                             mr_err *err) {
    switch (spec->type) {
    case MR_OPTION_TYPE_LIST:
        return add_to_list(name, text, out, err);
    case MR_OPTION_TYPE_INT:
        return parse_int(spec, name, text, &out->number, err);
    case MR_OPTION_TYPE_FLOAT:
        return parse_float(spec, name, text, &out->real, err);
    case MR_OPTION_TYPE_FLAG:
        return parse_flag(name, text, &out->number, err);
    case MR_OPTION_TYPE_SIZE:
        return parse_size(spec, name, text, &out->number, err);
    case MR_OPTION_TYPE_CHOICE:
        return parse_choice(spec, name, text, out, err);
    case MR_OPTION_TYPE_INTS:
        return parse_ints(spec, name, text, out, err);
    case MR_OPTION_TYPE_FILE:
        if (strcmp(text, "-") == 0)
            return mr_err_set(err, MR_E_INVALID,
                              "%s: - is neither standard input nor standard output here; hint: /dev/stdin or "
                              "/dev/stdout, or ./- for a file of this name",
                              name);
        break;
    case MR_OPTION_TYPE_TEXT:
        break;
    }
    out->text = text;
    return MR_OK;
}
