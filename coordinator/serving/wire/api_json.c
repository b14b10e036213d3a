/* coordinator/serving/wire/api_json.c - reads the JSON body of a request after checking its depth and size, and builds
 * and writes the JSON of answers. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/wire/api_json.h"

#include "coordinator/serving/errors/errors.h"
#include "coordinator/serving/json/json.h"
#include "engine/text/text_file.h"
#include "engine/text/utf8.h"

/* Counts depth and values before the text goes to the parser, because the parser allocates memory for each value. The
 * counts are right for valid JSON. They may be wrong for other text, which the parser refuses. */
static bool within_bounds(mr_str body, mr_api_error *e) {
    int depth = 0, n_values = 0;
    bool in_string = false;
    for (size_t i = 0; i < body.len; i++) {
        char c = body.data[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        in_string = c == '"';
        if (c == '[' || c == '{') {
            n_values++;
            if (++depth > API_MAX_DEPTH)
                return mr_api_error_set(e, 400, NULL, NULL, "the body is nested deeper than %d levels", API_MAX_DEPTH);
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',') {
            n_values++;
        }
        if (n_values > API_MAX_VALUES)
            return mr_api_error_set(e, 413, NULL, NULL, "the body has more than %d values", API_MAX_VALUES);
    }
    return true;
}

json_t *mr_api_json_parse(mr_str body, mr_api_error *e) {
    const char *encoding = mr_text_other_encoding(body);
    if (encoding) {
        mr_api_error_set(e, 400, NULL, NULL, "the body is text in %s; hint: send UTF-8", encoding);
        return NULL;
    }
    body = mr_text_skip_mark(body);
    if (body.len == 0) {
        mr_api_error_set(e, 400, NULL, NULL, "the body is empty, where a JSON object is expected");
        return NULL;
    }
    if (!within_bounds(body, e))
        return NULL;
    mr_err err;
    json_t *root = mr_json_read(body, 0, &err);
    if (!root) {
        if (err.status == MR_E_NO_MEMORY)
            mr_api_error_set(e, 503, NULL, NULL, "no memory for the body");
        else
            mr_api_error_set(e, 400, NULL, NULL, "the body is no JSON: %s", err.text);
        return NULL;
    }
    if (!json_is_object(root) || mr_json_digits(root)) {
        mr_api_error_set(e, 400, NULL, NULL, "the body is %s, where a JSON object is expected", mr_api_json_kind(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

json_t *mr_api_json_text(mr_str text) {
    json_t *value = json_stringn(text.len ? text.data : "", text.len);
    if (value)
        return value; /* valid UTF-8, as most texts are */
    mr_text_buf clean = {0};
    mr_utf8_decoder decoder = {0};
    for (size_t i = 0; i < text.len; i++) {
        if (!mr_text_buf_reserve(&clean, MR_UTF8_MAX_STEP_BYTES))
            goto out;
        clean.len += mr_utf8_decoder_push(&decoder, (uint8_t)text.data[i], clean.data + clean.len);
    }
    if (!mr_text_buf_reserve(&clean, MR_UTF8_MAX_STEP_BYTES))
        goto out;
    clean.len += mr_utf8_decoder_finish(&decoder, clean.data + clean.len);
    value = json_stringn(clean.data, clean.len);
out:
    mr_text_buf_deinit(&clean);
    return value;
}

static int append(const char *bytes, size_t n, void *out) {
    return mr_text_buf_append(out, bytes, n) ? 0 : -1;
}

bool mr_api_json_write(json_t *value, mr_text_buf *out) {
    size_t before = out->len;
    bool ok = value && json_dump_callback(value, append, out, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0;
    if (!ok) {
        out->len = before;
        if (out->data)
            out->data[before] = 0;
    }
    json_decref(value);
    return ok;
}

bool mr_api_json_write_error(const mr_api_error *e, mr_text_buf *out) {
    json_t *message = mr_api_json_text(mr_str_from(e->message));
    json_t *param = e->param[0] ? mr_api_json_text(mr_str_from(e->param)) : json_null();
    if (!message || !param) {
        json_decref(message);
        json_decref(param);
        return false;
    }
    json_t *error = json_pack("{s:o, s:s, s:o, s:s?}", "message", message, "type", mr_error_type(e->status), "param",
                              param, "code", e->code);
    if (e->n_ctx > 0) {
        error = mr_api_json_put(error, "n_prompt_tokens", json_integer(e->n_prompt_tokens));
        error = mr_api_json_put(error, "n_ctx", json_integer(e->n_ctx));
    }
    return mr_api_json_write(json_pack("{s:o}", "error", error), out);
}

json_t *mr_api_json_put(json_t *object, const char *key, json_t *value) {
    if (object && json_object_set_new_nocheck(object, key, value) == 0)
        return object;
    if (!object)
        json_decref(value);
    json_decref(object);
    return NULL;
}

json_t *mr_api_json_add(json_t *array, json_t *value) {
    if (array && json_array_append_new(array, value) == 0)
        return array;
    if (!array)
        json_decref(value);
    json_decref(array);
    return NULL;
}

const char *mr_api_json_kind(const json_t *value) {
    if (mr_json_digits(value))
        return "a number beyond 64 bits";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}
