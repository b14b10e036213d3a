/* The endpoints of OpenAI and llama-server: calls of the API, as the HTTP server carries them. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "coordinator/api/api.h"
#include "coordinator/output.h"
#include "coordinator/serve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "worker/hello.h"

typedef struct serve_call {
    api_call *call;      /* NULL: refused */
    http_answer refusal; /* status 0: none */
    bool said;           /* the refusal was */
} serve_call;

/* --- The API ---------------------------------------------------------------------------------------------------------------- */

/* Of embeddings that name none: the model's own kind, or the mean. */
static mr_pooling usual_pooling(const cmd_session *session) {
    static const mr_pooling KINDS[] = {MR_POOLING_MEAN, MR_POOLING_MEAN, MR_POOLING_CLS, MR_POOLING_LAST};
    char key[96];
    uint32_t kind = 0;
    mr_err none;
    snprintf(key, sizeof key, "%s.pooling_type", session->info.arch);
    bool known = mr_gguf_get_u32(session->gguf, key, &kind, &none) == MR_OK && kind < sizeof KINDS / sizeof *KINDS;
    return known ? KINDS[kind] : MR_POOLING_MEAN;
}

/* A broken template of the model file leaves the rest to be served; one that was asked for has to work. */
static mr_status load_chat(serve *s, mr_err *err) {
    const char *path = mr_options_text(s->options, MR_OPTION_CHAT_TEMPLATE_FILE);
    mr_text_buf given = {0};
    mr_status status = path ? serve_read_file("--chat-template-file", path, &given, err) : MR_OK;
    if (status == MR_OK)
        status = chat_template_load(s->session.gguf, s->tok, given.data, &s->chat, err);
    mr_text_buf_deinit(&given);
    if (status == MR_OK || path)
        return status == MR_OK ? MR_OK : mr_err_prefix(err, "--chat-template-file");
    output_warning("%s: chats are refused; hint: --chat-template-file", err->text);
    return MR_OK;
}

mr_status serve_api_create(serve *s, mr_err *err) {
    const cmd_session *session = &s->session;
    bool is_exact = session->devices.wish == MR_DEVICES_EXACT;
    api *made = NULL;
    mr_status status = load_chat(s, err);
    if (status != MR_OK)
        return status;
    api_config config = {.service = s->service,
                         .tokenizer = s->tok,
                         .chat = s->chat,
                         .model = s->model,
                         .fingerprint = s->fingerprint,
                         .max_context = session->ctx,
                         .n_vocab = session->info.vocab_size,
                         .n_embd = session->info.d_model,
                         .pooling = usual_pooling(session)};
    snprintf(s->fingerprint, sizeof s->fingerprint, "millrace-%s-%016" PRIx64 "-%s", MILLRACE_VERSION,
             mr_hello_file_digest(session->gguf), is_exact ? "exact" : "fast");
    status = cmd_sampling_init(&s->sampling, s->options, err);
    if (status == MR_OK)
        status = cmd_sampling_set_tokenizer(&s->sampling, s->options, s->tok, err);
    config.sampling = s->sampling.params;
    if (status == MR_OK)
        status = api_create(&config, &made, err);
    if (status == MR_OK)
        atomic_store(&s->api, made);
    return status;
}

/* --- Calls ------------------------------------------------------------------------------------------------------------------ */

static void *begin(void *ctx, int endpoint, const http_request *request, void (*wake)(void *), void *wake_ctx) {
    serve *s = ctx;
    const api *a = atomic_load(&s->api);
    serve_call *c = mr_alloc(sizeof *c);
    if (!c)
        return NULL;
    if (serve_refuse(s, &c->refusal))
        return c;
    c->call = a ? api_call_begin(a, (api_endpoint)endpoint, request->body, wake, wake_ctx) : NULL;
    if (!c->call)
        http_answer_error(&c->refusal, 503, "server_error", "overloaded", "no memory for the request; try again later");
    return c;
}

static http_state next(void *call, mr_text_buf *out) {
    serve_call *c = call;
    if (!c->call) {
        bool more = !c->said && mr_text_buf_append(out, c->refusal.body.data, c->refusal.body.len);
        c->said = true;
        return more ? HTTP_MORE : HTTP_END;
    }
    api_state state = api_call_next(c->call, out);
    return state == API_MORE ? HTTP_MORE : state == API_WAIT ? HTTP_WAIT : HTTP_END;
}

static void info(const void *call, http_call_info *out) {
    const serve_call *c = call;
    *out = (http_call_info){.status = c->refusal.status};
    if (!c->call)
        return;
    api_call_facts facts = api_call_get_facts(c->call);
    out->streams = api_call_streams(c->call);
    out->status = api_call_broken(c->call) && !out->streams ? 500 : api_call_status(c->call);
    out->retry_after_s = api_call_retry_after_s(c->call);
    out->prompt_tokens = facts.prompt_tokens;
    out->new_tokens = facts.generated_tokens;
    if (facts.first_token_ns > 0)
        out->first_token_s = (double)(facts.first_token_ns - facts.begun_ns) / (double)MR_NS_PER_S;
}

static void end(void *call) {
    serve_call *c = call;
    api_call_end(c->call);
    mr_text_buf_deinit(&c->refusal.body);
    mr_free(c);
}

const http_call_ops serve_api_call = {begin, next, info, end};
