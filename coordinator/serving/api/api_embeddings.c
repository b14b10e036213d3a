/* coordinator/serving/api/api_embeddings.c - the part of a call that is special to /v1/embeddings: reads the pooling
 * and the format that the request names, and writes the vectors as numbers or in base64. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/api/api_internal.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/mem.h"

bool api_embeddings_prepare(mr_api_call *call) {
    api_request *r = &call->request;
    static const struct {
        const char *name;
        mr_pooling pooling;
    } poolings[] = {{"mean", MR_POOLING_MEAN}, {"cls", MR_POOLING_CLS}, {"last", MR_POOLING_LAST}};
    r->pooling = call->a->config.pooling != MR_POOLING_NONE ? call->a->config.pooling : MR_POOLING_MEAN;
    bool known = r->pooling_name.len == 0;
    for (size_t i = 0; i < sizeof poolings / sizeof poolings[0]; i++)
        if (mr_str_is(r->pooling_name, poolings[i].name)) {
            r->pooling = poolings[i].pooling;
            known = true;
        }
    if (!known)
        return mr_api_error_set(&call->error, 400, "invalid_value", "pooling", "pooling is none of mean, cls, last");
    if (r->dimensions > call->a->config.n_embd)
        return mr_api_error_set(&call->error, 400, "invalid_value", "dimensions",
                                "dimensions is %d, and embeddings of this model have %d", r->dimensions,
                                call->a->config.n_embd);
    if (r->encoding_format.len > 0 && !mr_str_is(r->encoding_format, "float") &&
        !mr_str_is(r->encoding_format, "base64"))
        return mr_api_error_set(&call->error, 400, "invalid_value", "encoding_format",
                                "encoding_format is none of float, base64");
    call->embeddings = json_array();
    for (int32_t i = 0; i < r->n_prompts; i++)
        call->embeddings = mr_api_json_add(call->embeddings, json_null());
    return call->embeddings || mr_api_error_set(&call->error, 503, NULL, NULL, "no memory for the answer");
}

static json_t *numbers(const mr_piece *piece) {
    json_t *list = json_array();
    for (int32_t i = 0; i < piece->n_embedding; i++)
        list = mr_api_json_add(list, json_real((double)piece->embedding[i]));
    return list;
}

/* Base64 (RFC 4648) of the vector as little-endian float32, as it lies in memory. */
static json_t *base64(const mr_piece *piece) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = (size_t)piece->n_embedding * sizeof(float);
    const uint8_t *bytes = (const uint8_t *)piece->embedding;
    char *text = mr_alloc(n / 3 * 4 + 5);
    if (!text)
        return NULL;
    char *to = text;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t rest = (uint32_t)(n - i < 3 ? n - i : 3);
        uint32_t bits = (uint32_t)bytes[i] << 16 | (rest > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (rest > 2 ? (uint32_t)bytes[i + 2] : 0);
        *to++ = letters[bits >> 18];
        *to++ = letters[bits >> 12 & 63];
        *to++ = '=';
        *to++ = '=';
        if (rest > 1)
            to[-2] = letters[bits >> 6 & 63];
        if (rest > 2)
            to[-1] = letters[bits & 63];
    }
    json_t *value = json_stringn(text, (size_t)(to - text));
    mr_free(text);
    return value;
}

bool api_embeddings_take(mr_api_call *call, int32_t input, const mr_piece *piece) {
    if (!piece->embedding)
        return true;
    json_t *value = mr_str_is(call->request.encoding_format, "base64") ? base64(piece) : numbers(piece);
    json_t *entry = json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", input, "embedding", value);
    return json_array_set_new(call->embeddings, (size_t)input, entry) == 0 ||
           mr_api_error_set(&call->error, 503, NULL, NULL, "no memory for the answer");
}

json_t *api_embeddings_answer(const mr_api_call *call) {
    mr_api_call_stats f = mr_api_call_get_stats(call);
    return json_pack("{s:s, s:O, s:s, s:{s:I, s:I}}", "object", "list", "data", call->embeddings, "model",
                     call->a->config.model, "usage", "prompt_tokens", (json_int_t)f.prompt_tokens, "total_tokens",
                     (json_int_t)f.prompt_tokens);
}
