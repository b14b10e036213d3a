/* The endpoints of OpenAI and llama-server: calls of the API, as the HTTP server carries them. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/api.h"
#include "coordinator/serve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

typedef struct serve_call {
    api_call *call;      /* NULL: refused */
    http_answer refusal; /* status 0: none */
    bool said;           /* the refusal was */
} serve_call;

static void *begin(void *ctx, int endpoint, const http_request *request, void (*wake)(void *), void *wake_ctx) {
    serve *s = ctx;
    const api *a = atomic_load(&s->api);
    serve_call *c = mr_alloc(sizeof *c);
    if (!c)
        return NULL;
    if (!a && serve_refuse(s, &c->refusal))
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
