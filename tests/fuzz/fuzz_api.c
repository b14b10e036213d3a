/* tests/fuzz/fuzz_api.c - fuzzes request bodies of every endpoint. Any bytes must give a request, or an error with a
 * status. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/chat/chat_template.h"
#include "engine/base/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/fake_service.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

static mr_service service;

static const mr_api *the_api(void) {
    static small_vocab vocab;
    static mr_tokenizer *tok;
    static mr_chat_template *chat;
    static mr_api *a;
    static const int32_t ids[] = {SPM_AB, SPM_BYTE_0 + 0xC3, SPM_A, SPM_LLAMA};
    if (a)
        return a;
    small_spm(&vocab);
    MR_ASSERT(mr_tokenizer_create(&vocab.desc, &tok, NULL) == MR_OK);
    MR_ASSERT(mr_chat_template_load(NULL, tok, NULL, &chat, NULL) == MR_OK);
    service = (mr_service){.tok = tok, .ids = ids, .n_ids = 4, .finish = MR_FINISH_STOP, .n_takes = -1};
    const mr_api_config config = {
        .service = &service,
        .tokenizer = tok,
        .chat = chat,
        .model = "small",
        .fingerprint = "mr-fuzz",
        .sampling = mr_sampling_params_default(),
        .max_context = 50, /* at most as many tokens as the fake service has log-probabilities for */
        .n_vocab = SPM_N,
        .n_embd = FAKE_EMBEDDING,
    };
    MR_ASSERT(mr_api_create(&config, &a, NULL) == MR_OK);
    return a;
}

/* The first byte selects the endpoint. The other bytes are the body. */
int mr_fuzz_api(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    const mr_api *a = the_api();
    mr_text_buf out = {0};
    mr_api_call *call = mr_api_call_begin(a, (mr_api_endpoint)(data[0] % API_ENDPOINTS),
                                          (mr_str){(const char *)data + 1, size - 1}, NULL, NULL);
    MR_ASSERT(call);
    while (mr_api_call_next(call, &out) == API_MORE)
        ;
    MR_ASSERT(mr_api_call_next(call, &out) == API_END && !mr_api_call_broken(call) && out.len > 0);
    mr_api_call_end(call);
    MR_ASSERT(service.n_open == 0);
    mr_text_buf_deinit(&out);
    return 0;
}
