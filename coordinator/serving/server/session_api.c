/* coordinator/serving/server/session_api.c - makes the API of a session: reads the chat template, the sampling
 * parameters, the pooling, the rank head and the fingerprint that the API needs. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/server/session_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/console/output.h"
#include "coordinator/serving/jinja/jinja.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"

/* A broken template in the model file turns chats off and nothing else. A broken template that the user gave is an
 * error. */
static mr_status load_template(mr_session_api *a, const mr_session *session, const mr_tokenizer *tok, mr_err *err) {
    const char *path = mr_options_text(session->options, MR_OPTION_CHAT_TEMPLATE_FILE);
    mr_text_buf given = {0};
    mr_status status = path ? mr_text_file_read(path, MR_JINJA_MAX_SOURCE_BYTES, &given, err) : MR_OK;
    if (status == MR_OK)
        status = mr_chat_template_load(session->gguf, tok, path ? given.data : NULL, &a->chat, err);
    mr_text_buf_deinit(&given);
    if (status == MR_OK || path)
        return status == MR_OK ? MR_OK : mr_err_prefix(err, "--chat-template-file");
    mr_output_warning("%s: chats are refused; hint: --chat-template-file", err->text);
    return MR_OK;
}

/* The pooling of embeddings: that of --pooling, or that of the model file, or the mean. The rank head of a reranker
 * reads the last row, so embeddings of rerankers are made of this row, too. */
static mr_status choose_pooling(const mr_session *session, mr_pooling *out, mr_err *err) {
    static const mr_pooling OF_OPTION[] = {MR_POOLING_MEAN, MR_POOLING_CLS, MR_POOLING_LAST};
    /* llama.cpp's numbers: none, mean, cls, last, rank. */
    static const mr_pooling OF_FILE[] = {MR_POOLING_MEAN, MR_POOLING_MEAN, MR_POOLING_CLS, MR_POOLING_LAST,
                                         MR_POOLING_LAST};
    char key[96];
    uint32_t kind = 0;
    snprintf(key, sizeof key, "%s.pooling_type", session->info.arch);
    if (mr_options_given(session->options, MR_OPTION_POOLING)) {
        *out = OF_OPTION[(int)mr_options_number(session->options, MR_OPTION_POOLING)];
        return MR_OK;
    }
    if (mr_gguf_has_key(session->gguf, key)) {
        mr_status status = mr_gguf_get_u32(session->gguf, key, &kind, err);
        if (status != MR_OK)
            return status;
    }
    if (kind >= sizeof OF_FILE / sizeof OF_FILE[0])
        return mr_err_set(err, MR_E_UNSUPPORTED, "%s is %u, which is no pooling; hint: --pooling", key, kind);
    *out = OF_FILE[kind];
    return MR_OK;
}

/* A broken rank head turns reranking off and nothing else. */
static mr_status load_reranker(mr_session_api *a, const mr_session *session, mr_err *err) {
    mr_status status = mr_reranker_load(session->gguf, &session->info, &a->reranker, err);
    if (status == MR_OK || status == MR_E_NO_MEMORY)
        return status;
    mr_output_warning("%s: reranking is refused", err->text);
    return MR_OK;
}

mr_status mr_session_api_open(mr_session_api *a, const mr_session *session, const mr_tokenizer *tok,
                              mr_service *service, const char *model, mr_err *err) {
    mr_pooling pooling = MR_POOLING_MEAN;
    mr_status status = mr_session_sampling_init(&a->sampling, session->options, err);
    if (status == MR_OK)
        status = mr_session_sampling_set_tokenizer(&a->sampling, session->options, tok, err);
    if (status == MR_OK)
        status = load_template(a, session, tok, err);
    if (status == MR_OK)
        status = choose_pooling(session, &pooling, err);
    if (status == MR_OK)
        status = load_reranker(a, session, err);
    if (status != MR_OK)
        return status;
    snprintf(a->fingerprint, sizeof a->fingerprint, "millrace-%s-%016" PRIx64 "-%s", MILLRACE_VERSION,
             mr_session_model_digest(session), session->devices.is_fast ? "fast" : "exact");
    const mr_api_config config = {.service = service,
                                  .tokenizer = tok,
                                  .chat = a->chat,
                                  .reranker = a->reranker,
                                  .model = model,
                                  .fingerprint = a->fingerprint,
                                  .sampling = a->sampling.params,
                                  .max_context = session->ctx,
                                  .n_vocab = session->info.vocab_size,
                                  .n_embd = session->info.d_model,
                                  .pooling = pooling};
    return mr_api_create(&config, &a->api, err);
}

void mr_session_api_close(mr_session_api *a) {
    mr_api_destroy(a->api);
    mr_reranker_destroy(a->reranker);
    mr_chat_template_destroy(a->chat);
    mr_session_sampling_deinit(&a->sampling);
    *a = (mr_session_api){0};
}

char *mr_session_api_model_name(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    if (n > 5 && strcmp(name + n - 5, ".gguf") == 0)
        n -= 5;
    return mr_strndup(name, n);
}
