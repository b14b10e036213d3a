/* tests/unit/coordinator/serving/test_api_support.h - an api over a fake service, a small vocabulary and ChatML.
 * Ends the test where something fails. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_COORDINATOR_SERVING_TEST_API_SUPPORT_H
#define MR_TESTS_UNIT_COORDINATOR_SERVING_TEST_API_SUPPORT_H

#include <jansson.h>

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/chat/chat_template.h"
#include "coordinator/serving/rerank/reranker.h"
#include "tests/support/fake_service.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

enum { API_CONTEXT = 2000, API_RANK_SCALE = 128 };

typedef struct api_scene {
    mr_tokenizer *tok;
    mr_chat_template *chat;
    mr_reranker *reranker; /* of a document of token id n, the score is 1 / (1 + exp(-n / API_RANK_SCALE)) */
    mr_service service;
    mr_api *a;
} api_scene;

/* Answers of the service are what `answer` encodes to. */
void api_scene_open(api_scene *s, const char *answer);
/* Like api_scene_open, with a chat template. source NULL: ChatML. */
void api_scene_open_with(api_scene *s, const char *answer, const char *source);
/* Makes the api anew, with what the scene has. */
void api_scene_make_api(api_scene *s);
void api_scene_say(api_scene *s, const char *answer);
void api_scene_close(api_scene *s);

typedef struct api_result {
    int status;
    bool streams;
    mr_text_buf bytes;
    json_t *json; /* body of an answer that is not a stream */
    mr_api_call_stats stats;
    int retry_after_s;
} api_result;

/* Runs a call to its end. */
api_result api_scene_ask(api_scene *s, mr_api_endpoint endpoint, const char *body);
api_result api_scene_ask_bytes(api_scene *s, mr_api_endpoint endpoint, mr_str body);
void api_result_deinit(api_result *r);
/* The text at a path such as "choices.0.text"; fails the test where there is none. */
const char *api_text_at(const json_t *root, const char *path);
const json_t *api_value_at(const json_t *root, const char *path);

#endif
