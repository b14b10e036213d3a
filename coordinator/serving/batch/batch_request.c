/* coordinator/serving/batch/batch_request.c - turns one line of a batch into the body of an API call. A line that is no
 * valid request becomes an error for the file of results instead. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_run.h"
#include "coordinator/serving/json/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

enum { LINES_A_LOOK = 1024 }; /* of batch_request_refuse_all, whether the batch is to stop */

static void refuse(batch_request *r, const char *code, const char *fmt, ...) MR_PRINTF(3, 4);

static void refuse(batch_request *r, const char *code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, args);
    va_end(args);
    r->code = code;
}

static void refuse_kind(const batch_line *l, batch_request *r) {
    switch ((batch_line_kind)l->kind) {
    case BATCH_TOO_LONG:
        refuse(r, "line_too_long", "line %" PRIu32 " has more than %d bytes", l->number, BATCH_MAX_LINE_BYTES);
        break;
    case BATCH_NOT_JSON:
        refuse(r, "invalid_json_line", "line %" PRIu32 " is no JSON object", l->number);
        break;
    case BATCH_STRAY:
        refuse(r, "mixed_lines",
               "line %" PRIu32 " is a request, but the file begins with a prompt; a file has one kind", l->number);
        break;
    case BATCH_DUPLICATE:
        refuse(r, "duplicate_custom_id", "line %" PRIu32 " has the custom_id of an earlier line", l->number);
        break;
    default:
        refuse(r, "missing_custom_id", "line %" PRIu32 " has no custom_id of 1 to %d bytes", l->number,
               BATCH_MAX_ID_BYTES - 2);
    }
}

/* Removes streaming, and adds the priority of the batch and a seed made from the line. With the seed, a batch has the
 * same results every time. false: no memory. */
static bool settle(const mr_batch_config *c, json_t *body, mr_api_endpoint endpoint, const batch_line *l) {
    (void)json_object_del(body, "stream");
    (void)json_object_del(body, "stream_options");
    const json_t *seed = json_object_get(body, "seed");
    if (c->priority && !json_object_get(body, "priority") &&
        json_object_set_new(body, "priority", json_integer(c->priority)) != 0)
        return false;
    return endpoint == API_EMBEDDINGS || (seed && !json_is_null(seed)) ||
           json_object_set_new(body, "seed", json_integer((json_int_t)(l->hash >> 11))) == 0;
}

static bool is_for_batches(mr_str url, mr_api_endpoint *out) {
    return mr_api_endpoint_of(url, out) &&
           (*out == API_COMPLETIONS || *out == API_CHAT_COMPLETIONS || *out == API_EMBEDDINGS);
}

/* The body of a request, borrowed from the line; NULL: the request is refused. */
static json_t *body_of(const json_t *line, const batch_line *l, batch_request *r) {
    const char *method = json_string_value(json_object_get(line, "method"));
    const char *url = json_string_value(json_object_get(line, "url"));
    json_t *body = json_object_get(line, "body");
    if (method && !mr_str_is(mr_str_from(method), "POST"))
        refuse(r, "invalid_method", "line %" PRIu32 ": the method is not POST", l->number);
    else if (!url || !is_for_batches(mr_str_from(url), &r->endpoint))
        refuse(r, "invalid_url",
               "line %" PRIu32 ": the url is none of /v1/chat/completions, /v1/completions, /v1/embeddings", l->number);
    else if (!json_is_object(body))
        refuse(r, "invalid_body", "line %" PRIu32 ": the body is no object", l->number);
    else
        return body;
    return NULL;
}

static json_t *read_line(mr_str text, const batch_line *l, batch_request *r) {
    mr_err why;
    json_t *value = mr_json_read(text, 0, &why);
    if (!value)
        refuse(r, "invalid_json_line", "line %" PRIu32 " is no JSON: %s", l->number, why.text);
    return value;
}

static json_t *prompt_body(const mr_batch_config *c, json_t *text) {
    json_t *body = c->prompts_are_chats ? json_pack("{s:[{s:s, s:o}]}", "messages", "role", "user", "content", text)
                                        : json_pack("{s:o}", "prompt", text);
    if (body && c->max_tokens >= 0 && json_object_set_new(body, "max_tokens", json_integer(c->max_tokens)) != 0) {
        json_decref(body);
        return NULL;
    }
    return body;
}

static mr_status write_body(const mr_batch_config *c, json_t *body, const batch_line *l, batch_request *r,
                            mr_err *err) {
    r->body = body && settle(c, body, r->endpoint, l) ? mr_json_dump(body, JSON_COMPACT) : NULL;
    return r->body ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the request of line %" PRIu32, l->number);
}

static bool has_other_url(const mr_batch_config *c, const char *url, const batch_line *l, batch_request *r) {
    bool other = c->url && strcmp(c->url, url) != 0;
    if (other)
        refuse(r, "mismatched_url", "line %" PRIu32 ": it is for %.40s, the batch for %.40s", l->number, url, c->url);
    return other;
}

static mr_status read_prompt(const mr_batch_config *c, const batch_line *l, batch_request *r, mr_err *err) {
    if (has_other_url(c, "/v1/completions", l, r))
        return MR_OK;
    mr_str text = batch_line_text(c->input, l);
    bool is_json = l->kind == BATCH_JSON_PROMPT;
    json_t *prompt = is_json ? read_line(text, l, r) : json_stringn(text.data, text.len);
    if (!prompt && !is_json)
        refuse(r, "invalid_utf8", "line %" PRIu32 " is no UTF-8", l->number);
    else if (prompt && !is_json && memchr(text.data, 0, text.len))
        refuse(r, "invalid_line", "line %" PRIu32 " has a NUL byte, so it is no text", l->number);
    if (r->code) {
        json_decref(prompt);
        return MR_OK;
    }
    r->endpoint = c->prompts_are_chats ? API_CHAT_COMPLETIONS : API_COMPLETIONS;
    json_t *body = prompt_body(c, prompt);
    mr_status status = write_body(c, body, l, r, err);
    json_decref(body);
    return status;
}

mr_status batch_request_read(const mr_batch_config *c, const batch_line *l, batch_request *out, mr_err *err) {
    mr_status status = MR_OK;
    *out = (batch_request){.endpoint = API_COMPLETIONS};
    if (batch_line_is_bad(l)) {
        refuse_kind(l, out);
        return MR_OK;
    }
    if (l->kind != BATCH_REQUEST)
        return read_prompt(c, l, out, err);
    json_t *line = read_line(batch_line_text(c->input, l), l, out);
    json_t *body = line ? body_of(line, l, out) : NULL;
    if (body && !has_other_url(c, json_string_value(json_object_get(line, "url")), l, out))
        status = write_body(c, body, l, out, err);
    json_decref(line);
    return status;
}

static bool is_of_url(const batch_request *r) {
    return strcmp(r->code, "mismatched_url") == 0 || strcmp(r->code, "invalid_url") == 0;
}

mr_status batch_request_refuse_all(const mr_batch_config *c, batch_request *out, uint32_t *out_line, mr_err *err) {
    batch_request first = {0};
    uint32_t line = 0;
    for (uint32_t i = 0; i < c->input->n; i++) {
        batch_request r;
        if (i % LINES_A_LOOK == LINES_A_LOOK - 1 && c->stops && c->stops(c->ctx)) {
            *out = (batch_request){0}; /* the run, which looks as well, ends at once */
            return MR_OK;
        }
        mr_status status = batch_request_read(c, &c->input->lines[i], &r, err);
        if (status != MR_OK)
            return status;
        free(r.body);
        if (!r.code) { /* nearly always the first line */
            *out = (batch_request){0};
            return MR_OK;
        }
        if (!line && is_of_url(&r)) {
            first = r;
            line = c->input->lines[i].number;
        }
    }
    *out = (batch_request){0};
    if (!c->input->n)
        refuse(out, "empty_file", "the input file has no lines");
    else if (line)
        refuse(out, first.code, "no line is a request for the endpoint of the batch; %s", first.message);
    *out_line = line;
    return MR_OK;
}
