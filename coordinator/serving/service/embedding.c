/* coordinator/serving/service/embedding.c - one vector for a prompt: the hidden rows of its positions are pooled, the
 * first numbers of the result are taken, and scaled to length 1. Sums are in double and in the order of positions, so
 * that the bits are the same for any cut and chunking. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "coordinator/serving/service/service_internal.h"
#include "engine/base/mem.h"

static void fail(mr_request *r, mr_status status, const char *text) {
    request_cancel(r);
    request_fail(r, status, text);
}

/* Scales a vector to length 1, or rounds it where scales is false. false: its length is 0 or not finite. */
static bool normalise(const double *sum, int32_t n, bool scales, float *out) {
    double squares = 0;
    for (int32_t i = 0; i < n; i++)
        squares += sum[i] * sum[i];
    double length = sqrt(squares);
    if (!(length > 0) || isinf(length))
        return false;
    for (int32_t i = 0; i < n; i++)
        out[i] = (float)(scales ? sum[i] / length : sum[i]);
    return true;
}

static bool reads_last_alone(const mr_request *r) {
    return r->desc.pooling == MR_POOLING_LAST || r->desc.pooling == MR_POOLING_RANK;
}

static void on_hidden(void *ctx, int32_t first_position, int32_t n_rows, const float *rows) {
    mr_request *r = ctx;
    request_choice *c = &r->choices[0];
    size_t n = (size_t)mr_job_get_stats(r->job).n_embd;
    for (int32_t i = 0; i < n_rows; i++) {
        int32_t position = first_position + i;
        bool counts =
            r->desc.pooling == MR_POOLING_MEAN || position == (r->desc.pooling == MR_POOLING_CLS ? 0 : r->n_prompt - 1);
        for (size_t k = 0; k < (size_t)c->n_embedding && counts; k++)
            c->embedding_sum[k] += (double)rows[(size_t)i * n + k];
    }
    if (first_position + n_rows < r->n_prompt)
        return;
    if (!normalise(c->embedding_sum, c->n_embedding, r->desc.pooling != MR_POOLING_RANK, c->embedding)) {
        fail(r, MR_E_NUMERICS, "the model computed values that are not numbers");
        return;
    }
    mr_mutex_lock(&r->lock);
    c->head.embedding = c->embedding;
    c->head.n_embedding = c->n_embedding;
    mr_mutex_unlock(&r->lock);
    choice_finish(c, MR_FINISH_STOP, MR_OK, NULL);
}

void request_start_embedding(mr_request *r) {
    request_choice *c = &r->choices[0];
    mr_sequence_desc desc = r->desc.sequence;
    mr_err err = {0};
    desc.fresh = !reads_last_alone(r); /* the last row alone may use the prefix cache */
    desc.on_hidden = on_hidden;
    desc.last_hidden = reads_last_alone(r);
    desc.ctx = r;
    int32_t n_embd = mr_job_get_stats(r->job).n_embd;
    c->n_embedding = r->desc.n_embedding > 0 && r->desc.n_embedding < n_embd ? r->desc.n_embedding : n_embd;
    c->embedding = mr_alloc_array((size_t)c->n_embedding, sizeof *c->embedding);
    c->embedding_sum = mr_alloc_array((size_t)c->n_embedding, sizeof *c->embedding_sum);
    if (!c->embedding || !c->embedding_sum)
        fail(r, MR_E_NO_MEMORY, "no memory for an embedding");
    else if (mr_job_submit(r->job, &desc, &c->sequence, &err) != MR_OK)
        fail(r, err.status, err.text);
    mr_sequence_desc_drop(&r->desc.sequence);
}
