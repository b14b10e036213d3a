// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/coordinator/serving/test_api_support.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>

static void no_wake(void *ctx) {
    (void)ctx;
}

void api_scene_say(api_scene *s, const char *answer) {
    mr_token_buf ids = {0};
    assert_int_equal(
        mr_tokenizer_encode(s->tok, mr_str_from(answer), MR_ENCODE_CONTINUES | MR_ENCODE_PARSE_SPECIAL, &ids, NULL),
        MR_OK);
    mr_token_buf_deinit(&(mr_token_buf){(int32_t *)s->service.ids, 0, 0});
    s->service.ids = ids.ids;
    s->service.n_ids = (int32_t)ids.n;
}

/* The prompt is the document and the query; the head reads the first number of the row. */
static mr_reranker *make_reranker(void) {
    static const mr_model_info info = {.arch = "small", .d_model = FAKE_EMBEDDING};
    static const float head[2 * FAKE_EMBEDDING] = {1.0F / API_RANK_SCALE};
    static const int64_t ne[] = {FAKE_EMBEDDING, 2};
    gguf_writer *w = gguf_writer_create();
    mr_reranker *r = NULL;
    mr_gguf *g;
    mr_err err = {0};
    size_t n;
    gguf_writer_str(w, "tokenizer.chat_template.rerank", "{document}{query}");
    gguf_writer_tensor(w, "cls.output.weight", MR_TYPE_F32, 2, ne, head);
    const uint8_t *bytes = gguf_writer_bytes(w, &n);
    expect_ok(mr_gguf_open_memory(bytes, n, &g, &err), &err);
    expect_ok(mr_reranker_load(g, &info, &r, &err), &err);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
    return r;
}

void api_scene_make_api(api_scene *s) {
    mr_err err = {0};
    const mr_api_config config = {
        .service = &s->service,
        .tokenizer = s->tok,
        .chat = s->chat,
        .reranker = s->reranker,
        .model = "small",
        .fingerprint = "mr-test",
        .sampling = mr_sampling_params_default(),
        .max_context = API_CONTEXT,
        .n_vocab = SPM_N,
        .n_embd = FAKE_EMBEDDING,
    };
    expect_ok(mr_api_create(&config, &s->a, &err), &err);
}

void api_scene_open(api_scene *s, const char *answer) {
    api_scene_open_with(s, answer, NULL);
}

void api_scene_open_with(api_scene *s, const char *answer, const char *source) {
    static small_vocab vocab;
    mr_err err = {0};
    small_spm(&vocab);
    *s = (api_scene){.tok = small_create(&vocab)};
    expect_ok(mr_chat_template_load(NULL, s->tok, source, &s->chat, &err), &err);
    s->reranker = make_reranker();
    s->service = (mr_service){.tok = s->tok, .finish = MR_FINISH_STOP, .n_takes = -1};
    api_scene_say(s, answer);
    api_scene_make_api(s);
}

void api_scene_close(api_scene *s) {
    assert_int_equal(s->service.n_open, 0);
    mr_token_buf_deinit(&(mr_token_buf){(int32_t *)s->service.ids, 0, 0});
    mr_api_destroy(s->a);
    mr_reranker_destroy(s->reranker);
    mr_chat_template_destroy(s->chat);
    mr_tokenizer_destroy(s->tok);
}

api_result api_scene_ask_bytes(api_scene *s, mr_api_endpoint endpoint, mr_str body) {
    api_result r = {0};
    mr_api_call *call = mr_api_call_begin(s->a, endpoint, body, no_wake, NULL);
    assert_non_null(call);
    r.streams = mr_api_call_streams(call);
    while (mr_api_call_next(call, &r.bytes) == API_MORE)
        r.status = mr_api_call_status(call);
    assert_int_equal(mr_api_call_next(call, &r.bytes), API_END);
    assert_false(mr_api_call_broken(call));
    r.stats = mr_api_call_get_stats(call);
    r.retry_after_s = mr_api_call_retry_after_s(call);
    mr_api_call_end(call);
    if (!r.streams && !(r.json = json_loadb(r.bytes.data, r.bytes.len, 0, NULL)))
        fail_msg("no JSON: %s", r.bytes.data);
    return r;
}

api_result api_scene_ask(api_scene *s, mr_api_endpoint endpoint, const char *body) {
    return api_scene_ask_bytes(s, endpoint, mr_str_from(body));
}

void api_result_deinit(api_result *r) {
    mr_text_buf_deinit(&r->bytes);
    json_decref(r->json);
}

const json_t *api_value_at(const json_t *root, const char *path) {
    char part[64];
    const json_t *at = root;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, p);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(part)) : json_object_get(at, part);
        p += n + (p[n] == '.');
    }
    return at;
}

const char *api_text_at(const json_t *root, const char *path) {
    const char *text = json_string_value(api_value_at(root, path));
    if (!text)
        fail_msg("no text at %s", path);
    return text;
}
