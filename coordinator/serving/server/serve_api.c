/* coordinator/serving/server/serve_api.c - connects the endpoints of OpenAI and llama-server with the API. Reading a
 * body, its template and its grammar may take seconds, so threads of their own begin calls. The threads of the HTTP
 * server go on with streams meanwhile. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/api/api.h"
#include "coordinator/serving/server/serve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum {
    N_THREADS = 4,
    LARGE_BYTES = 1 << 18, /* a body from this size on may take long */
    MAX_LARGE = 2,         /* large bodies read at the same time; the other threads stay free for small ones */
};

typedef struct serve_call serve_call;
struct serve_call {
    serve_call *next; /* in the queue of calls to begin */
    const mr_api *a;
    mr_api_endpoint endpoint;
    mr_text_buf body;
    void (*wake)(void *ctx);
    void *wake_ctx;
    mr_api_call *call;      /* set when begun; NULL then: refused */
    mr_http_answer refusal; /* status 0: none */
    bool said;              /* the refusal has been sent */
    mr_mutex lock;
    /* Under lock. left: the HTTP server has ended the call. The thread that sets the second of these frees the call. */
    bool begun, left;
};

struct serve_starter {
    mr_thread *threads[N_THREADS];
    mr_mutex lock;
    mr_cond changed;
    /* Under lock. */
    serve_call *first, **last;
    int32_t n_large;
    bool stops;
};

static void no_memory(mr_http_answer *out) {
    mr_http_answer_error(out, MR_ERROR_OVERLOADED, "no memory for the request; try again later");
}

/* --- Beginning --------------------------------------------------------------------------------------------------- */

static void drop(serve_call *c) {
    mr_api_call_end(c->call);
    mr_text_buf_deinit(&c->body);
    mr_text_buf_deinit(&c->refusal.body);
    mr_mutex_deinit(&c->lock);
    mr_free(c);
}

/* The wake of the call, which may come before mr_api_call_begin has returned and after the server has ended the call.
 * */
static void wake_server(void *ctx) {
    serve_call *c = ctx;
    mr_mutex_lock(&c->lock);
    if (c->begun && !c->left)
        c->wake(c->wake_ctx);
    mr_mutex_unlock(&c->lock);
}

static void begin_call(serve_call *c) {
    mr_mutex_lock(&c->lock);
    bool left = c->left;
    mr_mutex_unlock(&c->lock);
    if (!left) {
        c->call = mr_api_call_begin(c->a, c->endpoint, (mr_str){c->body.data, c->body.len}, wake_server, c);
        mr_text_buf_deinit(&c->body);
        if (!c->call)
            no_memory(&c->refusal);
    }
    mr_mutex_lock(&c->lock);
    c->begun = true;
    left = c->left;
    if (!left)
        c->wake(c->wake_ctx);
    mr_mutex_unlock(&c->lock);
    if (left)
        drop(c);
}

/* Lock held. Takes the next call of the queue; NULL: the queue is empty, or has large bodies alone and MAX_LARGE of
 * these are being read. */
static serve_call *take_next(serve_starter *t, bool *out_large) {
    for (serve_call **at = &t->first, *c; (c = *at); at = &c->next) {
        *out_large = c->body.len >= LARGE_BYTES;
        if (*out_large && t->n_large == MAX_LARGE)
            continue;
        *at = c->next;
        if (t->last == &c->next)
            t->last = at;
        return c;
    }
    return NULL;
}

static void begin_calls(void *ctx) {
    serve_starter *t = ctx;
    mr_mutex_lock(&t->lock);
    while (t->first || !t->stops) {
        bool large = false;
        serve_call *c = take_next(t, &large);
        if (!c) {
            (void)mr_cond_wait_until(&t->changed, &t->lock, MR_NEVER);
            continue;
        }
        t->n_large += large;
        mr_mutex_unlock(&t->lock);
        begin_call(c);
        mr_mutex_lock(&t->lock);
        t->n_large -= large;
        if (large)
            mr_cond_broadcast(&t->changed);
    }
    mr_mutex_unlock(&t->lock);
}

mr_status mr_serve_starter_create(serve_starter **out, mr_err *err) {
    serve_starter *t = mr_alloc(sizeof *t);
    if (!t)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for threads that begin requests");
    mr_status status = MR_OK;
    t->last = &t->first;
    mr_mutex_init(&t->lock);
    mr_cond_init(&t->changed);
    for (int i = 0; i < N_THREADS && status == MR_OK; i++)
        status = mr_thread_create("serve-begin", 0, begin_calls, t, &t->threads[i], err);
    if (status == MR_OK)
        *out = t;
    else
        mr_serve_starter_destroy(t);
    return status;
}

void mr_serve_starter_destroy(serve_starter *t) {
    if (!t)
        return;
    mr_mutex_lock(&t->lock);
    t->stops = true;
    mr_cond_broadcast(&t->changed);
    mr_mutex_unlock(&t->lock);
    for (int i = 0; i < N_THREADS; i++)
        mr_thread_join(t->threads[i]);
    mr_cond_deinit(&t->changed);
    mr_mutex_deinit(&t->lock);
    mr_free(t);
}

/* --- What the server calls --------------------------------------------------------------------------------------- */

static void *begin(void *ctx, int endpoint, const mr_http_request *request, void (*wake)(void *), void *wake_ctx) {
    mr_serve *s = ctx;
    serve_starter *t = s->starter;
    serve_call *c = mr_alloc(sizeof *c);
    if (!c)
        return NULL;
    *c = (serve_call){
        .a = atomic_load(&s->api), .endpoint = (mr_api_endpoint)endpoint, .wake = wake, .wake_ctx = wake_ctx};
    mr_mutex_init(&c->lock);
    bool refused = !c->a && serve_refuse(s, &c->refusal);
    if (!refused && (!c->a || !mr_text_buf_append(&c->body, request->body.data, request->body.len))) {
        no_memory(&c->refusal);
        refused = true;
    }
    c->begun = refused;
    if (refused)
        return c;
    mr_mutex_lock(&t->lock);
    *t->last = c;
    t->last = &c->next;
    mr_cond_signal(&t->changed);
    mr_mutex_unlock(&t->lock);
    return c;
}

static bool has_begun(serve_call *c) {
    mr_mutex_lock(&c->lock);
    bool begun = c->begun;
    mr_mutex_unlock(&c->lock);
    return begun;
}

static mr_http_state next(void *call, mr_text_buf *out) {
    serve_call *c = call;
    if (!has_begun(c))
        return HTTP_WAIT;
    if (!c->call) {
        bool more = !c->said && mr_text_buf_append(out, c->refusal.body.data, c->refusal.body.len);
        c->said = true;
        return more ? HTTP_MORE : HTTP_END;
    }
    mr_api_state state = mr_api_call_next(c->call, out);
    return state == API_MORE ? HTTP_MORE : state == API_WAIT ? HTTP_WAIT : HTTP_END;
}

static void info(const void *call, mr_http_call_info *out) {
    serve_call *c = (serve_call *)(uintptr_t)call; /* for its lock */
    *out = (mr_http_call_info){0};
    if (!has_begun(c))
        return;
    out->status = c->refusal.status;
    if (!c->call)
        return;
    mr_api_call_stats stats = mr_api_call_get_stats(c->call);
    out->streams = mr_api_call_streams(c->call);
    out->status = mr_api_call_broken(c->call) && !out->streams ? 500 : mr_api_call_status(c->call);
    out->retry_after_s = mr_api_call_retry_after_s(c->call);
    out->failed = out->streams && stats.failed;
    out->prompt_tokens = stats.prompt_tokens;
    out->new_tokens = stats.generated_tokens;
    if (stats.first_token_ns > 0)
        out->first_token_s = (double)(stats.first_token_ns - stats.begun_ns) / (double)MR_NS_PER_S;
}

static void end(void *call) {
    serve_call *c = call;
    mr_mutex_lock(&c->lock);
    c->left = true;
    bool begun = c->begun;
    mr_mutex_unlock(&c->lock);
    if (begun)
        drop(c);
}

const mr_http_call_ops serve_api_call = {begin, next, info, end};
