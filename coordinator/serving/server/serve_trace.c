/* coordinator/serving/server/serve_trace.c - GET /trace?seconds=N: records the work of the stages for N seconds from
 * now on, and answers with a file in the format of --trace. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/server/serve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { MAX_SECONDS = 60, MAX_RECORDINGS = 4, MAX_BYTES = 64 << 20 };
/* How long to wait for late spans: stages send theirs four times a second. */
static const int64_t LATE_NS = MR_NS_PER_S / 2;

typedef struct recording recording;
struct recording {
    serve_trace *all;
    mr_trace_file file;
    char *text; /* the content of file, valid once file is closed */
    size_t bytes;
    int64_t end_ns;
    bool said;
    mr_http_answer refusal; /* status 0: none */
    recording *next;
};

struct serve_trace {
    mr_mutex lock; /* guards the fields below */
    const mr_session *session;
    recording *first;
    int32_t n;
};

mr_status mr_serve_trace_create(serve_trace **out, mr_err *err) {
    serve_trace *t = mr_alloc(sizeof *t);
    if (!t)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for recordings");
    mr_mutex_init(&t->lock);
    *out = t;
    return MR_OK;
}

void mr_serve_trace_destroy(serve_trace *t) {
    if (!t)
        return;
    mr_mutex_deinit(&t->lock);
    mr_free(t);
}

void mr_serve_trace_begin(serve_trace *t, const mr_session *session) {
    mr_mutex_lock(&t->lock);
    t->session = session;
    mr_mutex_unlock(&t->lock);
}

void mr_serve_trace_spans(void *ctx, int32_t stage, const mr_span *spans, int32_t n) {
    serve_trace *t = ctx;
    mr_mutex_lock(&t->lock);
    for (recording *r = t->first; r; r = r->next)
        if (ftell(r->file.file) < MAX_BYTES)
            mr_trace_file_spans(&r->file, stage, spans, n);
    mr_mutex_unlock(&t->lock);
}

/* --- The call ---------------------------------------------------------------------------------------------------- */

/* Begins to record; false: r->refusal is the answer. */
static bool start(recording *r, serve_trace *t) {
    mr_mutex_lock(&t->lock);
    bool is_full = t->n >= MAX_RECORDINGS, ok = !is_full && t->session;
    FILE *f = ok ? open_memstream(&r->text, &r->bytes) : NULL;
    if (f) {
        mr_trace_file_begin(&r->file, f, t->session->clock_offset_ns);
        mr_session_name_tracks(t->session, &r->file);
        r->next = t->first;
        t->first = r;
        t->n++;
    }
    mr_mutex_unlock(&t->lock);
    if (!f)
        mr_http_answer_error(&r->refusal, MR_ERROR_OVERLOADED,
                             is_full ? "too many recordings are being made; try later"
                                     : "the model has no stages now; try later");
    return f != NULL;
}

/* Closes the file, which completes its text. */
static void stop(recording *r) {
    serve_trace *t = r->all;
    mr_err ignored;
    if (!r->file.file)
        return;
    mr_mutex_lock(&t->lock);
    recording **place = &t->first;
    while (*place != r)
        place = &(*place)->next;
    *place = r->next;
    t->n--;
    mr_mutex_unlock(&t->lock);
    if (mr_trace_file_close(&r->file, &ignored) != MR_OK)
        r->bytes = 0; /* no memory */
}

static void *begin(void *ctx, int endpoint, const mr_http_request *request, void (*wake)(void *), void *wake_ctx) {
    mr_serve *s = ctx;
    recording *r = mr_alloc(sizeof *r);
    const char *text = mr_http_query(request, "seconds");
    char *end = NULL;
    double seconds = text ? strtod(text, &end) : 1;
    (void)endpoint, (void)wake, (void)wake_ctx; /* no wake: the HTTP server polls a few times a second */
    if (!r)
        return NULL;
    r->all = s->trace;
    if (text && (end == text || *end || !(seconds > 0) || seconds > MAX_SECONDS))
        mr_http_answer_error(&r->refusal, MR_ERROR_INVALID_VALUE, "seconds has to be a number above 0, at most 60");
    else if (!serve_refuse(s, &r->refusal) && start(r, s->trace))
        r->end_ns = r->file.zero_ns + (int64_t)(seconds * (double)MR_NS_PER_S) + LATE_NS;
    return r;
}

static mr_http_state next(void *call, mr_text_buf *out) {
    recording *r = call;
    mr_str text = {r->refusal.body.data, r->refusal.body.len};
    if (r->said)
        return HTTP_END;
    if (!r->refusal.status) {
        if (mr_clock_now_ns() < r->end_ns)
            return HTTP_WAIT;
        stop(r);
        text = (mr_str){r->text, r->bytes};
    }
    r->said = true;
    return text.len == 0 || mr_text_buf_append(out, text.data, text.len) ? HTTP_MORE : HTTP_END;
}

static void info(const void *call, mr_http_call_info *out) {
    const recording *r = call;
    *out = (mr_http_call_info){.status = r->refusal.status ? r->refusal.status : 200};
}

static void end(void *call) {
    recording *r = call;
    stop(r);
    free(r->text); /* allocated by open_memstream */
    mr_text_buf_deinit(&r->refusal.body);
    mr_free(r);
}

const mr_http_call_ops serve_trace_call = {begin, next, info, end};
