/* Refuses requests whose framing is ambiguous. libmicrohttpd 1.0 checks most of this itself when it is told to
 * (MHD_OPTION_CLIENT_DISCIPLINE_LVL). Older versions join folded lines, end lines at a lone LF and end texts at a
 * NUL, and leave no trace of it in names and values. They cut the head in place, though, so a head in which nothing
 * was skipped is one that the request line and the headers fill without a gap. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/http/http_framing.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

enum { CRLF_BYTES = 2 };

#define TOKEN_CHARS "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

typedef struct head {
    uintptr_t end; /* end of the part that was checked last: the version, or a value */
    bool has_gap, bad_name, bad_value;
    int n_hosts, n_lengths, n_codings;
    const char *host, *coding;
} head;

/* --- The request line -------------------------------------------------------------------------------------------- */

void http_framing_target(const char *target, http_target *out) {
    *out = (http_target){.begin = target, .is_plain = target != NULL};
    if (!target)
        return;
    for (; *target; target++)
        out->is_plain &= (unsigned char)*target > ' ' && *target != 0x7f;
    out->end = target;
}

/* The authority of an absolute url, up to its path or its end; NULL: the url is not absolute. */
static const char *authority_of(const char *url) {
    if (strncasecmp(url, "http://", 7) == 0)
        return url + 7;
    return strncasecmp(url, "https://", 8) == 0 ? url + 8 : NULL;
}

const char *http_framing_path(const char *url) {
    const char *authority = authority_of(url);
    if (!authority)
        return url;
    const char *path = strchr(authority, '/');
    return path ? path : "/";
}

/* Whether the host of an absolute url and the Host header are the same. */
static bool fits_host(const char *url, const char *host) {
    const char *authority = authority_of(url);
    size_t n = authority ? strcspn(authority, "/") : 0;
    return !authority || !host || (strlen(host) == n && strncasecmp(authority, host, n) == 0);
}

static bool is_target(const char *url, const char *method) {
    return *url == '/' || authority_of(url) || strcmp(url, "*") == 0 || strcmp(method, "CONNECT") == 0;
}

/* --- Headers ----------------------------------------------------------------------------------------------------- */

static bool is_plain(const char *value, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)value[i] < ' ' && value[i] != '\t') || value[i] == 0x7f)
            return false;
    return true;
}

/* Checks one header. Fits MHD_KeyValueIteratorN. */
static enum MHD_Result take_header(void *ctx, enum MHD_ValueKind kind, const char *name, size_t n_name,
                                   const char *value, size_t n_value) {
    head *h = ctx;
    (void)kind;
    h->bad_name |= n_name == 0 || strspn(name, TOKEN_CHARS) != n_name;
    h->bad_value |= !is_plain(value, n_value);
    h->has_gap |= (uintptr_t)name != h->end + CRLF_BYTES; /* a folded line moves the name */
    h->end = (uintptr_t)value + n_value;
    if (strcasecmp(name, "Host") == 0) {
        h->n_hosts++;
        h->host = value;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->n_codings++;
        h->coding = value;
    }
    h->n_lengths += strcasecmp(name, "Content-Length") == 0;
    return MHD_YES;
}

/* Whether there are gaps between the request line and the headers. */
static bool has_gap(struct MHD_Connection *mhd, const head *h, const char *method, const char *version,
                    const http_target *target) {
#if MHD_VERSION >= 0x00097701
    (void)mhd, (void)h, (void)method, (void)version, (void)target;
    return false; /* checked by libmicrohttpd */
#else
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return h->has_gap || !info || target->begin != method + strlen(method) + 1 || version != target->end + 1 ||
           h->end + 2 * CRLF_BYTES != (uintptr_t)method + info->header_size;
#endif
}

/* Codings other than chunked alone: with chunked as the last one the request could be read by who knows the others. */
static mr_error_id error_of_coding(const char *coding) {
    const char *last = strrchr(coding, ',');
    last = last ? last + 1 + strspn(last + 1, " \t") : coding;
    return last != coding && strcasecmp(last, "chunked") == 0 ? MR_ERROR_UNKNOWN_CODING : MR_ERROR_INVALID_HTTP;
}

void http_framing_judge(struct MHD_Connection *mhd, const http_target *target, const char *url, const char *method,
                        const char *version, http_framing *out) {
    const bool is_1_0 = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    head h = {.end = (uintptr_t)version + strlen(version)};
    (void)MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, take_header, &h);
    *out = (http_framing){.error = MR_ERROR_INVALID_HTTP, .is_chunked = h.n_codings > 0};
    if (!target->is_plain || !is_target(url, method)) {
        out->fault = "the request's target is none of HTTP's";
    } else if (h.bad_name) {
        out->fault = "the name of a header has a character that is not allowed, such as a space before the colon";
    } else if (h.bad_value) {
        out->fault = "the value of a header has a control character";
    } else if (has_gap(mhd, &h, method, version, target)) {
        out->fault = "the head has a folded line, a NUL, spaces too many, or a line that does not end with CR LF";
    } else if (h.n_hosts > 1 || (h.n_hosts == 0 && !is_1_0)) {
        out->fault = "exactly one Host header is expected";
    } else if (!fits_host(url, h.host)) {
        out->fault = "the target and the Host header name different hosts";
    } else if (h.n_lengths > 1 || h.n_codings > 1 || (h.n_lengths > 0 && h.n_codings > 0)) {
        out->fault = "the length of the body is said more than once (Content-Length, Transfer-Encoding)";
    } else if (h.n_codings > 0 && is_1_0) {
        out->fault = "HTTP/1.0 has no Transfer-Encoding";
    } else if (h.n_codings > 0 && strcasecmp(h.coding, "chunked") != 0) {
        out->error = error_of_coding(h.coding);
        out->fault = "of Transfer-Encoding only chunked is known here";
    }
}
