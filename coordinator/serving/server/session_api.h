/* coordinator/serving/server/session_api.h - the API over a session, for the commands that answer requests (serve,
 * batch).
 * Owns:    sampling parameters, template, fingerprint and the api. Borrows: session, tokenizer, service and model,
 *          which outlive it. {0} may be closed.
 * Threads: bound to the main thread; the api itself is for any. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVER_SESSION_API_H
#define MR_COORDINATOR_SERVING_SERVER_SESSION_API_H

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/chat/chat_template.h"
#include "coordinator/serving/rerank/reranker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/session_sampling.h"

typedef struct mr_session_api {
    mr_session_sampling sampling;
    mr_chat_template *chat; /* NULL: the template of the model file is broken */
    mr_reranker *reranker;  /* NULL: the model is no reranker, or its rank head is broken */
    char fingerprint[64];
    mr_api *api;
} mr_session_api;

/* The session must have a plan. MR_E_INVALID: wrong sampling options or --chat-template-file. */
MR_MUST_USE mr_status mr_session_api_open(mr_session_api *a, const mr_session *session, const mr_tokenizer *tok,
                                          mr_service *service, const char *model, mr_err *err);
/* After all calls have ended. */
void mr_session_api_close(mr_session_api *a);
/* The model's name for clients: the name of its file without the ending. Freed with mr_free; NULL: no memory. */
char *mr_session_api_model_name(const char *path);

#endif
