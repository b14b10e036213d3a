// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/api_error.h"

#include <stdio.h>

#include "coordinator/api/api_json.h"

bool api_error_set(api_error *e, int status, const char *code, const char *param, const char *fmt, ...) {
    if (!e)
        return false;
    *e = (api_error){.status = status, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return false;
}

bool api_error_from(api_error *e, mr_status status, const mr_err *err) {
    const char *text = err && err->text[0] ? err->text : mr_status_name(status);
    int http = 500;
    const char *code = NULL;
    switch (status) {
    case MR_E_INVALID:
    case MR_E_UNSUPPORTED:
    case MR_E_FORMAT:
        http = 400;
        break;
    case MR_E_TOO_LONG:
        http = 400;
        code = "context_length_exceeded";
        break;
    case MR_E_NOT_FOUND:
        http = 404;
        break;
    case MR_E_BUSY:
        http = 429;
        code = "rate_limit_exceeded";
        break;
    case MR_E_CANCELLED:
    case MR_E_UNAVAILABLE:
    case MR_E_TIMEOUT:
    case MR_E_PEER_LOST:
    case MR_E_NO_MEMORY:
        http = 503;
        break;
    default:
        break;
    }
    return api_error_set(e, http, code, NULL, "%s", text);
}

static const char *error_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "unavailable_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

bool api_error_write(const api_error *e, mr_text_buf *out) {
    json_t *message = api_json_text(mr_str_from(e->message));
    json_t *param = e->param[0] ? api_json_text(mr_str_from(e->param)) : json_null();
    if (!message || !param) {
        json_decref(message);
        json_decref(param);
        return false;
    }
    return api_json_write(json_pack("{s:{s:o, s:s, s:o, s:s?}}", "error", "message", message, "type",
                                    error_type(e->status), "param", param, "code", e->code),
                          out);
}
