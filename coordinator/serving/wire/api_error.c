/* coordinator/serving/wire/api_error.c - fills in the error of a request, from a text or from an mr_status. The JSON of
 * an error is written in api_json.c. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/wire/api_error.h"

#include <stdio.h>

#include "coordinator/serving/errors/errors.h"

bool mr_api_error_set(mr_api_error *e, int status, const char *code, const char *param, const char *fmt, ...) {
    if (!e)
        return false;
    *e = (mr_api_error){.status = status, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return false;
}

bool mr_api_error_too_long(mr_api_error *e, const char *param, size_t n_tokens, bool at_least, int32_t n_ctx) {
    const mr_error_kind *kind = &mr_error_kinds[MR_ERROR_CONTEXT_LENGTH];
    bool lacks_room = n_tokens <= (size_t)n_ctx;
    mr_api_error_set(e, kind->status, kind->code, param,
                     "This model's maximum context length is %d tokens, and the prompt has %zu%s%s; please reduce the "
                     "length of the prompt",
                     n_ctx, n_tokens, at_least ? " at least" : "", lacks_room ? " and needs room for one more" : "");
    e->n_prompt_tokens = (int64_t)n_tokens;
    e->n_ctx = n_ctx;
    return false;
}

bool mr_api_error_from(mr_api_error *e, mr_status status, const mr_err *err) {
    const char *text = err && err->text[0] ? err->text : mr_status_name(status);
    mr_error_id id = MR_ERROR_INTERNAL;
    switch (status) {
    case MR_E_INVALID:
    case MR_E_TOO_LONG:
    case MR_E_UNSUPPORTED:
    case MR_E_FORMAT:
        id = MR_ERROR_BAD_REQUEST;
        break;
    case MR_E_NOT_FOUND:
        id = MR_ERROR_NOT_FOUND;
        break;
    case MR_E_BUSY:
        id = MR_ERROR_RATE_LIMIT;
        break;
    case MR_E_CANCELLED:
    case MR_E_UNAVAILABLE:
    case MR_E_TIMEOUT:
    case MR_E_PEER_LOST:
    case MR_E_NO_MEMORY:
        id = MR_ERROR_UNAVAILABLE;
        break;
    default:
        break;
    }
    return mr_api_error_set(e, mr_error_kinds[id].status, mr_error_kinds[id].code, NULL, "%s", text);
}
