/* coordinator/serving/server/serve_batches.c - connects the routes /v1/files and /v1/batches of `millrace serve` with
 * the batch store. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/server/serve.h"

mr_status mr_serve_batches_create(mr_serve *s, mr_err *err) {
    const char *folder = mr_options_text(s->options, MR_OPTION_BATCH_DIR);
    return folder ? mr_batch_store_create(folder, &s->batches, err) : MR_OK;
}

mr_status mr_serve_batches_start(mr_serve *s, mr_err *err) {
    int32_t half = s->session.max_sequences / 2; /* the other half is for interactive requests */
    return s->batches ? mr_batch_store_start(s->batches, atomic_load(&s->api), half > 1 ? half : 1, err) : MR_OK;
}

void serve_batches_answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out) {
    mr_serve *s = ctx;
    mr_batch_answer answer;
    (void)endpoint;
    if (!s->batches) {
        mr_http_answer_error(out, MR_ERROR_NO_BATCHES, "this server keeps no files and batches; hint: --batch-dir");
        return;
    }
    mr_batch_store_answer(s->batches, request->method, request->path, request->body, &answer);
    out->status = answer.status;
    out->content_type = answer.content_type;
    out->body = answer.body;
}
