// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_api.h"

#include <stdlib.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct mr_api_call {
    struct mr_api_call *next;
    char *body;
    void (*wake)(void *ctx);
    void *ctx;
    int status;
    bool done, told;
};

static struct {
    mr_mutex lock;
    mr_cond more;
    mr_thread *thread;
    mr_api_call *first;
    int n_calls, n_live, max_live, delay_us, busy_every;
    bool ends;
} fake;

static void answer_all(void *ctx) {
    (void)ctx;
    mr_mutex_lock(&fake.lock);
    while (!fake.ends) {
        mr_api_call *call = fake.first;
        if (!call) {
            (void)mr_cond_wait_until(&fake.more, &fake.lock, MR_NEVER);
            continue;
        }
        fake.first = call->next;
        call->done = true;
        call->wake(call->ctx); /* under the lock, so that the call cannot be destroyed meanwhile */
        mr_mutex_unlock(&fake.lock);
        if (fake.delay_us)
            usleep((useconds_t)(rand() % fake.delay_us));
        mr_mutex_lock(&fake.lock);
    }
    mr_mutex_unlock(&fake.lock);
}

void fake_api_start(int delay_us, int busy_every) {
    mr_mutex_init(&fake.lock);
    mr_cond_init(&fake.more);
    fake.first = NULL;
    fake.n_calls = fake.n_live = fake.max_live = 0;
    fake.delay_us = delay_us;
    fake.busy_every = busy_every;
    fake.ends = false;
    MR_ASSERT(mr_thread_create("fake api", 0, answer_all, NULL, &fake.thread, NULL) == MR_OK);
}

void fake_api_stop(void) {
    mr_mutex_lock(&fake.lock);
    fake.ends = true;
    mr_cond_signal(&fake.more);
    mr_mutex_unlock(&fake.lock);
    mr_thread_join(fake.thread);
    mr_cond_deinit(&fake.more);
    mr_mutex_deinit(&fake.lock);
}

int fake_api_n_calls(void) {
    return fake.n_calls;
}

int fake_api_max_live(void) {
    return fake.max_live;
}

bool mr_api_endpoint_of(mr_str path, mr_api_endpoint *out) {
    *out = API_COMPLETIONS;
    if (mr_str_is(path, "/v1/chat/completions"))
        *out = API_CHAT_COMPLETIONS;
    else if (mr_str_is(path, "/v1/embeddings"))
        *out = API_EMBEDDINGS;
    else if (mr_str_is(path, "/tokenize"))
        *out = API_TOKENIZE;
    else
        return mr_str_is(path, "/v1/completions");
    return true;
}

mr_api_call *mr_api_call_begin(const mr_api *a, mr_api_endpoint endpoint, mr_str body, void (*wake)(void *ctx),
                               void *ctx) {
    (void)a;
    (void)endpoint;
    mr_api_call *call = mr_alloc(sizeof *call);
    MR_ASSERT(call);
    *call = (mr_api_call){.body = mr_strndup(body.data, body.len), .wake = wake, .ctx = ctx, .status = 200};
    MR_ASSERT(call->body);
    mr_mutex_lock(&fake.lock);
    if (++fake.n_calls % fake.busy_every == 0)
        call->status = 429;
    else if (strstr(call->body, "refuse"))
        call->status = 400;
    else if (strstr(call->body, "fail"))
        call->status = 503;
    fake.n_live++;
    fake.max_live = fake.n_live > fake.max_live ? fake.n_live : fake.max_live;
    if (fake.n_calls % 5 == 0 && fake.first) { /* second in the list, so that answers change order */
        call->next = fake.first->next;
        fake.first->next = call;
    } else {
        call->next = fake.first;
        fake.first = call;
    }
    mr_cond_signal(&fake.more);
    mr_mutex_unlock(&fake.lock);
    return call;
}

mr_api_state mr_api_call_next(mr_api_call *call, mr_text_buf *out) {
    mr_mutex_lock(&fake.lock);
    bool done = call->done;
    mr_mutex_unlock(&fake.lock);
    if (!done)
        return API_WAIT;
    if (call->told)
        return API_END;
    call->told = true;
    MR_ASSERT(mr_text_buf_append(out, "{\"echo\":\n", 9) && mr_text_buf_append(out, call->body, strlen(call->body)) &&
              mr_text_buf_append(out, "}\n", 2));
    return API_MORE;
}

int mr_api_call_status(const mr_api_call *call) {
    return call->status;
}

int mr_api_call_retry_after_s(const mr_api_call *call) {
    (void)call;
    return 0;
}

bool mr_api_call_broken(const mr_api_call *call) {
    (void)call;
    return false;
}

mr_api_call_stats mr_api_call_get_stats(const mr_api_call *call) {
    (void)call;
    return (mr_api_call_stats){.prompt_tokens = 2, .generated_tokens = 3};
}

void mr_api_call_end(mr_api_call *call) {
    if (!call)
        return;
    mr_mutex_lock(&fake.lock);
    for (mr_api_call **p = &fake.first; *p; p = &(*p)->next)
        if (*p == call) {
            *p = call->next;
            break;
        }
    fake.n_live--;
    mr_mutex_unlock(&fake.lock);
    mr_free(call->body);
    mr_free(call);
}
