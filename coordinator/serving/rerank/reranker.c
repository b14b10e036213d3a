/* coordinator/serving/rerank/reranker.c - reads the template and the rank head of a model file, makes prompts, and
 * computes scores. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/rerank/reranker.h"

#include <math.h>
#include <stdio.h>

#include "engine/base/fmath.h"
#include "engine/base/mem.h"
#include "engine/tensor/quant.h"

#define HEAD "cls.output.weight"
#define TEMPLATE "tokenizer.chat_template.rerank"
#define QUERY "{query}"
#define DOCUMENT "{document}"

struct mr_reranker {
    char *template_text;
    float *head; /* [n_labels][n_embd] */
    int32_t n_labels, n_embd;
};

/* --- load -------------------------------------------------------------------------------------------------------- */

static mr_status check_head(const mr_gguf_tensor *t, const mr_model_info *info, mr_err *err) {
    if (t->n_dims > 2 || t->ne[0] != info->d_model || t->ne[1] < 2 || t->ne[1] > MR_RERANKER_MAX_LABELS)
        return mr_err_set(err, MR_E_FORMAT,
                          "tensor '" HEAD "' has %d dimensions, %lld x %lld; hint: 2, %d x 2 to %d labels", t->n_dims,
                          (long long)t->ne[0], (long long)t->ne[1], info->d_model, MR_RERANKER_MAX_LABELS);
    if (!mr_type_get((int32_t)t->type)->is_weight)
        return mr_err_set(err, MR_E_UNSUPPORTED, "tensor '" HEAD "' is of type %s", mr_type_name((int32_t)t->type));
    return MR_OK;
}

static mr_status check_labels(const mr_gguf *gguf, const mr_model_info *info, int32_t n_labels, mr_err *err) {
    char key[96];
    mr_gguf_array labels;
    snprintf(key, sizeof key, "%s.classifier.output_labels", info->arch);
    if (!mr_gguf_has_key(gguf, key))
        return MR_OK;
    mr_status status = mr_gguf_get_array(gguf, key, MR_GGUF_ELEMS_STRINGS, &labels, err);
    if (status == MR_OK && labels.n != (size_t)n_labels)
        return mr_err_set(err, MR_E_FORMAT, "%s has %zu labels, and tensor '" HEAD "' has %d", key, labels.n, n_labels);
    return status;
}

static mr_status load_head(mr_reranker *r, const mr_gguf_tensor *t, mr_err *err) {
    int64_t n = t->ne[0] * t->ne[1];
    r->n_embd = (int32_t)t->ne[0];
    r->n_labels = (int32_t)t->ne[1];
    if (!(r->head = mr_alloc_array((size_t)n, sizeof *r->head)))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a reranker");
    mr_dequantize(t->type, t->data, r->head, n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(r->head[i]))
            return mr_err_set(err, MR_E_FORMAT, "tensor '" HEAD "' has the value %g", (double)r->head[i]);
    return MR_OK;
}

static mr_status load_template(mr_reranker *r, const mr_gguf *gguf, mr_err *err) {
    mr_str text;
    mr_status status = mr_gguf_get_str(gguf, TEMPLATE, &text, err);
    if (status != MR_OK)
        return status == MR_E_NOT_FOUND ? mr_err_set(err, MR_E_FORMAT, "the file has no " TEMPLATE) : status;
    if (!(r->template_text = mr_strndup(text.data, text.len)))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a reranker");
    if (!strstr(r->template_text, QUERY) || !strstr(r->template_text, DOCUMENT))
        return mr_err_set(err, MR_E_FORMAT, TEMPLATE " has no " QUERY " or no " DOCUMENT);
    return MR_OK;
}

mr_status mr_reranker_load(const mr_gguf *gguf, const mr_model_info *info, mr_reranker **out, mr_err *err) {
    const mr_gguf_tensor *head = mr_gguf_find_tensor(gguf, HEAD);
    *out = NULL;
    if (!head)
        return MR_OK;
    mr_reranker *r = mr_alloc(sizeof *r);
    mr_status status = r ? check_head(head, info, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a reranker");
    if (status == MR_OK)
        status = check_labels(gguf, info, (int32_t)head->ne[1], err);
    if (status == MR_OK)
        status = load_head(r, head, err);
    if (status == MR_OK)
        status = load_template(r, gguf, err);
    if (status == MR_OK)
        *out = r;
    else
        mr_reranker_destroy(r);
    return status;
}

void mr_reranker_destroy(mr_reranker *r) {
    if (!r)
        return;
    mr_free(r->template_text);
    mr_free(r->head);
    mr_free(r);
}

/* --- use --------------------------------------------------------------------------------------------------------- */

/* If the text begins with the mark, moves it behind the mark. */
static bool skip(const char **text, const char *mark) {
    size_t n = strlen(mark);
    bool found = strncmp(*text, mark, n) == 0;
    *text += found ? n : 0;
    return found;
}

/* One pass, so that a query with the text "{document}" stays as it is. */
bool mr_reranker_prompt(const mr_reranker *r, mr_str query, mr_str document, mr_text_buf *out) {
    const char *at = r->template_text;
    bool ok = true;
    while (ok && *at) {
        size_t n = strcspn(at, "{");
        if (n > 0)
            ok = mr_text_buf_append(out, at, n);
        else if (skip(&at, QUERY))
            ok = mr_text_buf_append(out, query.data, query.len);
        else if (skip(&at, DOCUMENT))
            ok = mr_text_buf_append(out, document.data, document.len);
        else
            ok = mr_text_buf_append(out, at, n = 1);
        at += n;
    }
    return ok;
}

double mr_reranker_score(const mr_reranker *r, const float *row) {
    double logits[MR_RERANKER_MAX_LABELS], most = -INFINITY, sum = 0;
    for (int32_t label = 0; label < r->n_labels; label++) {
        const float *w = r->head + (size_t)label * (size_t)r->n_embd;
        logits[label] = 0;
        for (int32_t k = 0; k < r->n_embd; k++)
            logits[label] += (double)w[k] * (double)row[k];
        most = logits[label] > most ? logits[label] : most;
    }
    for (int32_t label = 0; label < r->n_labels; label++)
        sum += mr_exp(logits[label] - most);
    return mr_exp(logits[0] - most) / sum;
}
