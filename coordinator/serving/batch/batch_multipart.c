/* coordinator/serving/batch/batch_multipart.c - finds one part of a body of multipart/form-data by its name. Uploads
 * are the only bodies in this format. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_files.h"

enum { MAX_BOUNDARY_BYTES = 70 + 2 }; /* RFC 2046, with the two dashes */

static const char *find(mr_str s, const char *what, size_t n) {
    return s.len >= n ? memmem(s.data, s.len, what, n) : NULL;
}

/* The value of key="..." or key=... in the header lines. */
static bool parameter(mr_str head, const char *key, mr_str *out) {
    size_t n = strlen(key);
    for (const char *at = find(head, key, n); at;
         at = find((mr_str){at + 1, (size_t)(head.data + head.len - at) - 1}, key, n)) {
        const char *value = at + n, *end = head.data + head.len;
        bool begins = at > head.data && (at[-1] == ' ' || at[-1] == ';');
        if (!begins || end - value < 2 || value[0] != '=')
            continue;
        if (*++value != '"') { /* a token */
            size_t len = 0;
            while (value + len < end && !strchr("; \t\r\n", value[len]))
                len++;
            *out = (mr_str){value, len};
            return true;
        }
        value++;
        const char *quote = memchr(value, '"', (size_t)(end - value));
        if (!quote)
            return false;
        *out = (mr_str){value, (size_t)(quote - value)};
        return true;
    }
    return false;
}

bool batch_multipart_find(mr_str body, const char *name, mr_str *out_content, mr_str *out_filename) {
    const char *line_end = find(body, "\r\n", 2);
    char mark[MAX_BOUNDARY_BYTES + 2] = "\r\n";
    size_t n = line_end ? (size_t)(line_end - body.data) : 0;
    if (n < 3 || n > MAX_BOUNDARY_BYTES || memcmp(body.data, "--", 2) != 0)
        return false;
    memcpy(mark + 2, body.data, n);
    mr_str rest = {line_end + 2, body.len - n - 2};
    for (;;) {
        const char *blank = find(rest, "\r\n\r\n", 4);
        if (!blank)
            return false;
        mr_str head = {rest.data, (size_t)(blank - rest.data)}, its_name;
        mr_str content = {blank + 4, rest.len - head.len - 4};
        const char *end = find(content, mark, n + 2);
        if (!end)
            return false;
        size_t len = (size_t)(end - content.data);
        if (parameter(head, "name", &its_name) && mr_str_is(its_name, name)) {
            if (!parameter(head, "filename", out_filename))
                *out_filename = (mr_str){"", 0};
            *out_content = (mr_str){content.data, len};
            return true;
        }
        if (content.len - len < n + 4 || end[n + 2] != '\r')
            return false; /* that was the last part */
        rest = (mr_str){end + n + 4, content.len - len - n - 4};
    }
}
