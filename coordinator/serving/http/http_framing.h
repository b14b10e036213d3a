/* coordinator/serving/http/http_framing.h - checks that the head of a request can be read in one way only. If a server
 * and the proxy in front of it disagree about the end of a request, the rest is taken for another request (request
 * smuggling). So such a request is refused.
 * When:    http_framing_target as MHD_OPTION_URI_LOG_CALLBACK, http_framing_judge at the first call of the handler.
 *          What libmicrohttpd refuses by itself, before the handler, is for http_refusal.c.
 *          What is wrong in the framing of a chunked body is for libmicrohttpd. It takes any chunk size that fits into
 *          64 bits, shows nobody the size, and calls the handler only for the bytes of a chunk. A chunk size beyond
 *          every limit is therefore not refused at once: the connection waits for the bytes, and ends without an answer
 *          when the client's time is over (client_timeout_s), as with any body that does not come. It costs one
 *          connection for that time, and nothing behind the size is read as a request.
 * Threads: of the connection.
 * Source:  RFC 9112, sections 2.2 to 6.3. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_HTTP_HTTP_FRAMING_H
#define MR_COORDINATOR_SERVING_HTTP_HTTP_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>

#include "coordinator/serving/errors/errors.h"

/* The target of a request line, unchanged. */
typedef struct http_target {
    const char *begin, *end; /* NULL: no target; end: the zero byte that libmicrohttpd put behind the target */
    bool is_plain;           /* without spaces and control characters */
} http_target;

void http_framing_target(const char *target, http_target *out);

typedef struct http_framing {
    const char *fault; /* the error message for the client; NULL: no fault */
    mr_error_id error; /* the error of the fault */
    bool is_chunked;
} http_framing;

/* Judges the head of a request. url, method and version: the arguments of the handler. */
void http_framing_judge(struct MHD_Connection *mhd, const http_target *target, const char *url, const char *method,
                        const char *version, http_framing *out);

/* The path of a url, which may be in absolute form: "http://host:8080/health". */
const char *http_framing_path(const char *url);

#endif
