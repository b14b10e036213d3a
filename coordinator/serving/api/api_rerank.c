/* coordinator/serving/api/api_rerank.c - the part of a call that is special to /v1/rerank: makes a prompt of the query
 * and each document, takes the scores, and writes the documents with the highest scores. The answer has the form of
 * Jina's, Cohere's and llama-server's. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/api/api_internal.h"
#include "coordinator/serving/rerank/reranker.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/mem.h"

typedef struct ranked {
    int32_t index;
    double score;
} ranked;

/* A document is a text, or an object with the text as "text". NULL: it is neither. */
static const json_t *text_of(const json_t *document) {
    const json_t *text = json_is_object(document) ? json_object_get(document, "text") : document;
    return json_is_string(text) ? text : NULL;
}

/* Makes the prompt of a document. name: of the document in errors. */
static bool make_prompt(const mr_api *a, api_request *r, const json_t *text, const char *name, mr_token_buf *ids,
                        mr_api_error *e) {
    mr_text_buf prompt = {0};
    mr_str document = {json_string_value(text), json_string_length(text)};
    bool ok = (mr_reranker_prompt(a->config.reranker, r->query, document, &prompt) || api_no_memory(e)) &&
              api_encode_prompt(a, r, (mr_str){prompt.data, prompt.len}, ids, e);
    mr_text_buf_deinit(&prompt);
    if (ok && ids->n > (size_t)a->config.max_context)
        return mr_api_error_too_long(e, name, ids->n, false, a->config.max_context);
    return ok;
}

static bool make_prompts(mr_api_call *call) {
    api_request *r = &call->request;
    mr_api_error *e = &call->error;
    size_t n = json_array_size(r->documents);
    if (n == 0)
        return mr_api_error_set(e, 400, "invalid_value", "documents", "documents is empty");
    if (!(r->prompts = mr_alloc_array(n, sizeof *r->prompts)) || !(call->scores = mr_alloc_array(n, sizeof(double))))
        return api_no_memory(e);
    r->n_prompts = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        char name[32];
        const json_t *document = json_array_get(r->documents, i), *text = text_of(document);
        snprintf(name, sizeof name, "documents[%zu]", i);
        if (!text)
            return mr_api_error_set(e, 400, "invalid_type", name,
                                    "%s is %s, where a string or an object with a text is expected", name,
                                    mr_api_json_kind(document));
        if (!make_prompt(call->a, r, text, name, &r->prompts[i].ids, e))
            return false;
    }
    return true;
}

bool api_rerank_prepare(mr_api_call *call) {
    if (!call->a->config.reranker)
        return mr_api_error_set(&call->error, 400, "unsupported_parameter", NULL,
                                "this model is no reranker: its file has no usable rank head (cls.output.weight)");
    call->request.pooling = MR_POOLING_RANK;
    return make_prompts(call);
}

void api_rerank_take(mr_api_call *call, int32_t document, const mr_piece *piece) {
    if (piece->embedding)
        call->scores[document] = mr_reranker_score(call->a->config.reranker, piece->embedding);
}

/* The higher score comes first. Among equal scores the order of the request counts. */
static int compare(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->index - y->index;
}

static json_t *result(const api_request *r, const ranked *one) {
    json_t *value = json_pack("{s:i, s:f}", "index", one->index, "relevance_score", one->score);
    if (!r->return_documents)
        return value;
    json_t *text = (json_t *)text_of(json_array_get(r->documents, (size_t)one->index));
    return mr_api_json_put(value, "document", json_pack("{s:O}", "text", text));
}

json_t *api_rerank_answer(const mr_api_call *call) {
    const api_request *r = &call->request;
    json_int_t n_tokens = (json_int_t)mr_api_call_get_stats(call).prompt_tokens;
    ranked *order = mr_alloc_array((size_t)r->n_prompts, sizeof *order);
    if (!order)
        return NULL;
    for (int32_t i = 0; i < r->n_prompts; i++)
        order[i] = (ranked){i, call->scores[i]};
    qsort(order, (size_t)r->n_prompts, sizeof *order, compare);
    json_t *results = json_array();
    for (int32_t i = 0; i < r->n_prompts && (r->top_n == 0 || i < r->top_n); i++)
        results = mr_api_json_add(results, result(r, &order[i]));
    mr_free(order);
    return json_pack("{s:s, s:s, s:s, s:o, s:{s:I, s:I}}", "id", call->id, "object", "list", "model",
                     call->a->config.model, "results", results, "usage", "prompt_tokens", n_tokens, "total_tokens",
                     n_tokens);
}
