/* coordinator/serving/batch/batch_run.c - the loop that runs a batch: it keeps up to max_live calls of the API open,
 * waits until one has news, and stores each answer. The loop also syncs results, reports progress and checks for a
 * stop several times a second. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_run.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { SYNC_RESULTS = 4096, MAX_LINES_A_TURN = 1024 };
#define SYNC_INTERVAL_NS (1 * MR_NS_PER_S)
#define LOOK_INTERVAL_NS (200 * MR_NS_PER_MS)
#define BUSY_PAUSE_NS (100 * MR_NS_PER_MS)

struct runner;

typedef struct slot {
    struct runner *runner;
    mr_api_call *call; /* NULL: free */
    batch_line *line;
    mr_text_buf answer;
    bool woken; /* under the runner's lock */
} slot;

typedef struct runner {
    const mr_batch_config *config;
    mr_mutex lock;
    mr_cond woken;
    bool any_woken;
    slot *slots;     /* [max_live] */
    uint32_t *order; /* lines to do */
    uint32_t n_order, next;
    uint32_t *again; /* [max_live]: lines to try again, because the service was busy */
    int32_t n_again;
    int64_t busy_until_ns, sync_ns;
    int32_t n_live;
    mr_batch_counts counts;
} runner;

static void wake(void *ctx) {
    slot *s = ctx;
    runner *r = s->runner;
    mr_mutex_lock(&r->lock);
    s->woken = r->any_woken = true;
    mr_cond_signal(&r->woken);
    mr_mutex_unlock(&r->lock);
}

static void end_call(slot *s) {
    mr_api_call_end(s->call);
    s->call = NULL;
    mr_text_buf_clear(&s->answer);
    s->runner->n_live--;
}

static void count_done(runner *r, bool failed) {
    r->counts.n_done++;
    r->counts.n_failed += failed;
}

/* Begins a call for a line, or adds the error of a line that is no valid request. */
static mr_status begin_line(runner *r, slot *s, uint32_t index, mr_err *err) {
    const mr_batch_config *c = r->config;
    batch_line *l = &c->input->lines[index];
    batch_request request;
    mr_status status = batch_request_read(c, l, &request, err);
    if (status != MR_OK)
        return status;
    if (request.code) {
        count_done(r, true);
        return batch_results_add_error(c->results, c->input, l, request.code, request.message, err);
    }
    s->line = l;
    s->woken = true;
    s->call = mr_api_call_begin(c->api, request.endpoint, mr_str_from(request.body), wake, s);
    free(request.body);
    if (!s->call)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the request of line %" PRIu32, l->number);
    r->n_live++;
    mr_mutex_lock(&r->lock);
    s->woken = r->any_woken = true; /* the call may have its answer already */
    mr_mutex_unlock(&r->lock);
    return MR_OK;
}

static bool take_line(runner *r, uint32_t *out_index) {
    if (r->n_again > 0)
        *out_index = r->again[--r->n_again];
    else if (r->next < r->n_order)
        *out_index = r->order[r->next++];
    else
        return false;
    return true;
}

/* Begins calls until all slots are taken. Wrong lines take no slot, so MAX_LINES_A_TURN bounds the loop: a file with
 * many wrong lines does not delay the reaction to a stop. */
static mr_status fill(runner *r, mr_err *err) {
    mr_status status = MR_OK;
    int32_t i = 0;
    uint32_t index;
    if (mr_clock_now_ns() < r->busy_until_ns)
        return MR_OK;
    for (int32_t n = 0; n < MAX_LINES_A_TURN && status == MR_OK && r->n_live < r->config->max_live; n++) {
        while (r->slots[i].call)
            i++;
        if (!take_line(r, &index))
            break;
        status = begin_line(r, &r->slots[i], index, err);
    }
    return status;
}

/* Keeps the line for another attempt after a pause, because the service is busy (status 429). */
static void put_back(runner *r, slot *s) {
    int64_t pause = mr_api_call_retry_after_s(s->call) > 0 && r->n_live == 1 ? MR_NS_PER_S : BUSY_PAUSE_NS;
    r->again[r->n_again++] = (uint32_t)(s->line - r->config->input->lines);
    r->busy_until_ns = mr_clock_now_ns() + pause;
    end_call(s);
}

static mr_status take_answer(runner *r, slot *s, mr_err *err) {
    const mr_batch_config *c = r->config;
    int http_status = mr_api_call_status(s->call);
    if (mr_api_call_broken(s->call))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the answer to line %" PRIu32, s->line->number);
    if (http_status == 429) {
        put_back(r, s);
        return MR_OK;
    }
    if (http_status == 503)
        return mr_err_set(err, MR_E_UNAVAILABLE, "the model does not answer any more: %.300s",
                          s->answer.data ? s->answer.data : "");
    mr_api_call_stats stats = mr_api_call_get_stats(s->call);
    r->counts.prompt_tokens += stats.prompt_tokens;
    r->counts.cached_tokens += stats.cached_tokens;
    r->counts.generated_tokens += stats.generated_tokens;
    count_done(r, http_status != 200);
    mr_status status =
        batch_results_add(c->results, c->input, s->line, http_status, (mr_str){s->answer.data, s->answer.len}, err);
    end_call(s);
    return status;
}

static mr_status look_at(runner *r, slot *s, mr_err *err) {
    mr_api_state state;
    do
        state = mr_api_call_next(s->call, &s->answer);
    while (state == API_MORE);
    return state == API_END ? take_answer(r, s, err) : MR_OK;
}

/* Waits until a call has news, at most LOOK_INTERVAL_NS. */
static void wait_for_calls(runner *r) {
    int64_t now = mr_clock_now_ns(), until = now + LOOK_INTERVAL_NS;
    if (r->busy_until_ns > now && r->busy_until_ns < until)
        until = r->busy_until_ns;
    mr_mutex_lock(&r->lock);
    while (!r->any_woken && mr_cond_wait_until(&r->woken, &r->lock, until))
        ;
    r->any_woken = false;
    mr_mutex_unlock(&r->lock);
}

static mr_status look_at_woken(runner *r, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < r->config->max_live && status == MR_OK; i++) {
        slot *s = &r->slots[i];
        if (!s->call)
            continue;
        mr_mutex_lock(&r->lock);
        bool woken = s->woken;
        s->woken = false;
        mr_mutex_unlock(&r->lock);
        if (woken)
            status = look_at(r, s, err);
    }
    return status;
}

static mr_status save(runner *r, mr_err *err) {
    mr_batch_results *results = r->config->results;
    int64_t now = mr_clock_now_ns();
    if (results->n_unsaved < SYNC_RESULTS && now < r->sync_ns)
        return MR_OK;
    r->sync_ns = now + SYNC_INTERVAL_NS;
    return batch_results_sync(results, err);
}

static mr_status turn(runner *r, mr_err *err) {
    const mr_batch_config *c = r->config;
    int64_t stop_ns = MR_NEVER;
    for (;;) {
        if (stop_ns == MR_NEVER && c->stops && c->stops(c->ctx))
            stop_ns = mr_clock_now_ns() + c->grace_ns;
        mr_status status = stop_ns == MR_NEVER ? fill(r, err) : MR_OK;
        if (status == MR_OK)
            status = look_at_woken(r, err);
        if (status == MR_OK)
            status = save(r, err);
        if (status != MR_OK)
            return status;
        r->counts.n_live = (uint32_t)r->n_live;
        if (c->progress)
            c->progress(c->ctx, &r->counts);
        bool all_begun = r->next == r->n_order && !r->n_again;
        if (!r->n_live && all_begun)
            return MR_OK;
        if (stop_ns != MR_NEVER && (!r->n_live || mr_clock_now_ns() >= stop_ns))
            return mr_err_set(err, MR_E_CANCELLED, "%s", "");
        bool may_begin = stop_ns == MR_NEVER && !all_begun && r->n_live < c->max_live;
        if (!may_begin || mr_clock_now_ns() < r->busy_until_ns)
            wait_for_calls(r);
    }
}

static mr_status prepare(runner *r, mr_err *err) {
    const mr_batch_config *c = r->config;
    r->slots = mr_alloc_array((size_t)c->max_live, sizeof *r->slots);
    r->again = mr_alloc_array((size_t)c->max_live, sizeof *r->again);
    if (!r->slots || !r->again)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " requests", c->max_live);
    for (int32_t i = 0; i < c->max_live; i++)
        r->slots[i].runner = r;
    r->counts =
        (mr_batch_counts){.n_lines = c->input->n, .n_done = c->results->n_found, .n_failed = c->results->n_failed};
    return batch_input_order(c->input, &r->order, &r->n_order, err);
}

mr_status mr_batch_run(const mr_batch_config *config, mr_batch_counts *out_counts, mr_err *err) {
    runner r = {.config = config};
    mr_mutex_init(&r.lock);
    mr_cond_init(&r.woken);
    mr_status status = prepare(&r, err);
    if (status == MR_OK)
        status = turn(&r, err);
    for (int32_t i = 0; r.slots && i < config->max_live; i++) {
        if (r.slots[i].call)
            end_call(&r.slots[i]);
        mr_text_buf_deinit(&r.slots[i].answer);
    }
    mr_err on_sync;
    mr_status synced = batch_results_sync(config->results, &on_sync); /* also the results before an error */
    if (synced != MR_OK && (status == MR_OK || status == MR_E_CANCELLED)) {
        status = synced;
        *err = on_sync;
    }
    *out_counts = r.counts;
    mr_free(r.slots);
    mr_free(r.again);
    mr_free(r.order);
    mr_cond_deinit(&r.woken);
    mr_mutex_deinit(&r.lock);
    return status;
}
