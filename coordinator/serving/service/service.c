/* coordinator/serving/service/service.c - accepts requests from any thread, and runs the job on the main thread:
 * submits sequences, wakes readers, and ends all requests when the run ends. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/service/service.h"

#include <string.h>

#include "coordinator/serving/service/service_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* IDS_AT_ONCE: tokens of the prompts that one turn submits to the job, which takes some tenths of a millisecond. Then
 * submitting pauses, so that steps go on. */
enum { DEFAULT_MAX_WAITING = 1024, IDS_AT_ONCE = 1 << 16 };
/* The error text for clients where the service fails. It must not name ranks, hosts or files. */
static const char FAILED_TEXT[] = "the model has stopped; the server's log says why; hint: try again later";
static const int64_t FACTS_NS = MR_NS_PER_S / 4; /* the longest wait for new stats */

struct mr_service {
    mr_service_config config;
    mr_mutex lock;
    mr_cond answered;
    /* Under lock. */
    mr_service_stats stats;
    mr_job_slot *slots; /* [cap_slots]: a copy of the job's, n_slots of them */
    int32_t n_slots, cap_slots;
    uint64_t n_asked, n_answered; /* requests for new stats, and how many of these are served */
    mr_channel *channel;          /* of the job during run; NULL: no run */
    int32_t n_vocab, max_ids;     /* of the job */
    mr_prefix_key base_key;       /* of the job */
    int32_t n_waiting;            /* waiting sequences at the last turn of the main thread, and those submitted since */
    bool drains, stops;
    bool is_paused;                    /* the job, at the last turn */
    mr_request *first_new, **last_new; /* submitted, and not taken by the main thread */
    mr_request *released;              /* released, and not taken by the main thread */
    /* Main thread. */
    mr_job *job;
    const mr_tokenizer *tok;
    mr_request *all, *dirty;
    mr_request *starting, **last_starting;
    int64_t start_ns;            /* no sequence is submitted to the job before this time */
    mr_sampler_scratch *scratch; /* NULL: not needed so far */
};

/* --- Life -------------------------------------------------------------------------------------------------------- */

mr_status mr_service_create(const mr_service_config *config, mr_service **out, mr_err *err) {
    mr_service *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a service");
    s->config = *config;
    if (s->config.max_waiting == 0)
        s->config.max_waiting = DEFAULT_MAX_WAITING;
    s->last_new = &s->first_new;
    s->last_starting = &s->starting;
    mr_mutex_init(&s->lock);
    mr_cond_init(&s->answered);
    *out = s;
    return MR_OK;
}

void mr_service_destroy(mr_service *s) {
    if (!s)
        return;
    MR_ASSERT(s->stats.n_open == 0 && !s->channel);
    mr_mutex_deinit(&s->lock);
    mr_cond_deinit(&s->answered);
    mr_free(s->slots);
    mr_free(s);
}

void service_note_latency(const mr_service *s, bool is_first, int64_t ns) {
    if (s->config.on_latency)
        s->config.on_latency(s->config.on_latency_ctx, is_first, ns);
}

void mr_service_set_loaded(mr_service *s, size_t done_bytes, size_t total_bytes) {
    mr_mutex_lock(&s->lock);
    s->stats.loaded = total_bytes ? (double)done_bytes / (double)total_bytes : 0;
    mr_mutex_unlock(&s->lock);
}

/* Lock held. */
static void set_failed(mr_service *s, const char *text) {
    mr_err err;
    (void)mr_err_set(&err, MR_E_UNAVAILABLE, "%s", text); /* cuts what does not fit */
    memcpy(s->stats.text, err.text, sizeof err.text);
    s->stats.state = MR_SERVICE_FAILED;
}

void mr_service_fail(mr_service *s, const char *text) {
    mr_mutex_lock(&s->lock);
    set_failed(s, text);
    mr_mutex_unlock(&s->lock);
}

/* Lock held. The main thread waits on its channel. */
static void wake_main(mr_service *s) {
    if (s->channel)
        mr_channel_wake(s->channel);
}

static void end(mr_service *s, bool stops) {
    mr_mutex_lock(&s->lock);
    s->drains = true;
    s->stops |= stops;
    if (s->stats.state != MR_SERVICE_FAILED)
        s->stats.state = MR_SERVICE_ENDING;
    wake_main(s);
    mr_mutex_unlock(&s->lock);
}

void mr_service_drain(mr_service *s) {
    end(s, false);
}

void mr_service_stop(mr_service *s) {
    end(s, true);
}

/* --- Submit and release ------------------------------------------------------------------------------------------ */

static mr_status check_stops(const mr_generate_desc *desc, mr_err *err) {
    if (desc->n_stops < 0 || desc->n_stops > MR_SERVICE_MAX_STOPS)
        return mr_err_set(err, MR_E_INVALID, "%d stop texts; hint: %d at most", desc->n_stops, MR_SERVICE_MAX_STOPS);
    for (int32_t i = 0; i < desc->n_stops; i++) {
        size_t len = strlen(desc->stops[i]);
        if (len == 0 || len > MR_SERVICE_MAX_STOP_BYTES)
            return mr_err_set(err, MR_E_INVALID, "stop text %d has %zu bytes; hint: 1 to %d", i, len,
                              MR_SERVICE_MAX_STOP_BYTES);
    }
    return MR_OK;
}

/* Checks that do not depend on the model. */
static mr_status check_desc(const mr_generate_desc *desc, mr_err *err) {
    if (desc->n_choices < 1 || desc->n_choices > MR_SERVICE_MAX_CHOICES)
        return mr_err_set(err, MR_E_INVALID, "%d choices; hint: 1 to %d", desc->n_choices, MR_SERVICE_MAX_CHOICES);
    if (desc->pooling != MR_POOLING_NONE && desc->n_choices != 1)
        return mr_err_set(err, MR_E_INVALID, "%d choices of an embedding", desc->n_choices);
    if (desc->sequence.max_tokens < -1)
        return mr_err_set(err, MR_E_INVALID, "%d tokens to generate; hint: 0 or more, or -1",
                          desc->sequence.max_tokens);
    if (desc->n_logprobs < -1 || desc->n_logprobs > MR_SERVICE_MAX_LOGPROBS)
        return mr_err_set(err, MR_E_INVALID, "%d log-probabilities of a position; hint: 0 to %d", desc->n_logprobs,
                          MR_SERVICE_MAX_LOGPROBS);
    if (desc->n_stop_ids < 0 || desc->n_stop_ids > MR_SERVICE_MAX_STOP_IDS)
        return mr_err_set(err, MR_E_INVALID, "%d stop ids; hint: %d at most", desc->n_stop_ids,
                          MR_SERVICE_MAX_STOP_IDS);
    mr_status status = check_stops(desc, err);
    return status == MR_OK ? mr_sampling_params_check(&desc->sequence.sampling, err) : status;
}

/* Lock held: whether a request is accepted now. */
static mr_status check_state(const mr_service *s, const mr_generate_desc *desc, mr_err *err) {
    if (s->stats.state == MR_SERVICE_FAILED)
        return mr_err_set(err, MR_E_UNAVAILABLE, "%s", FAILED_TEXT);
    if (s->drains)
        return mr_err_set(err, MR_E_UNAVAILABLE, "the server is ending");
    if (!s->channel)
        return mr_err_set(err, MR_E_UNAVAILABLE, "the model is loading");
    if (s->n_waiting >= s->config.max_waiting && !desc->goes_on)
        return mr_err_set(err, MR_E_BUSY, "%d sequences are waiting already%s", s->n_waiting,
                          s->is_paused ? ", and the model waits for memory" : "");
    return MR_OK;
}

mr_status mr_service_submit(mr_service *s, const mr_generate_desc *desc, mr_request **out, mr_err *err) {
    mr_request *r = NULL;
    mr_mutex_lock(&s->lock);
    mr_status status = check_state(s, desc, err);
    int32_t n_vocab = s->n_vocab, max_ids = s->max_ids;
    mr_prefix_key base_key = s->base_key;
    mr_mutex_unlock(&s->lock);
    if (status == MR_OK)
        status = check_desc(desc, err);
    if (status == MR_OK)
        status = mr_job_check_prompt(desc->sequence.prompt_ids, desc->sequence.n_prompt,
                                     desc->pooling == MR_POOLING_NONE && desc->sequence.max_tokens != 0, n_vocab,
                                     max_ids, err);
    if (status == MR_OK)
        status = request_create(s, desc, &base_key, &r, err);
    if (status != MR_OK)
        return status;
    mr_mutex_lock(&s->lock);
    status = check_state(s, desc, err); /* it may have changed */
    if (status == MR_OK) {
        s->stats.n_requests++;
        s->stats.n_open++;
        s->n_waiting += r->n_choices;
        *s->last_new = r;
        s->last_new = &r->next_new;
        wake_main(s);
        *out = r;
    }
    mr_mutex_unlock(&s->lock);
    if (status != MR_OK)
        request_destroy(r);
    return status;
}

void mr_request_release(mr_request *r) {
    if (!r)
        return;
    mr_service *s = r->service;
    mr_mutex_lock(&r->wake_lock);
    r->is_released = true;
    mr_mutex_unlock(&r->wake_lock);
    mr_mutex_lock(&s->lock);
    bool runs = s->channel != NULL;
    s->stats.n_open--;
    if (runs) { /* the main thread uses the request */
        r->next_released = s->released;
        s->released = r;
        wake_main(s);
    }
    mr_mutex_unlock(&s->lock);
    if (!runs)
        request_destroy(r);
}

/* --- The run ----------------------------------------------------------------------------------------------------- */

void service_mark_dirty(mr_request *r) {
    mr_service *s = r->service;
    if (r->is_dirty)
        return;
    r->is_dirty = true;
    r->next_dirty = s->dirty;
    s->dirty = r;
}

/* Wakes each reader that has news, once in a turn. */
static void wake_readers(mr_service *s) {
    for (mr_request *r = s->dirty, *next; r; r = next) {
        next = r->next_dirty;
        r->is_dirty = false;
        mr_mutex_lock(&r->wake_lock);
        if (!r->is_released && r->desc.wake)
            r->desc.wake(r->desc.ctx);
        mr_mutex_unlock(&r->wake_lock);
    }
    s->dirty = NULL;
}

mr_sampler_scratch *service_scratch(mr_service *s, mr_err *err) {
    if (!s->scratch && mr_sampler_scratch_create(s->n_vocab, &s->scratch, err) != MR_OK)
        return NULL;
    return s->scratch;
}

int32_t mr_service_max_ids(mr_service *s) {
    mr_mutex_lock(&s->lock);
    int32_t n = s->max_ids;
    mr_mutex_unlock(&s->lock);
    return n;
}

static void link_request(mr_service *s, mr_request *r) {
    r->before = NULL;
    r->after = s->all;
    if (r->after)
        r->after->before = r;
    s->all = r;
}

void service_start(mr_request *r) {
    mr_service *s = r->service;
    r->job = s->job;
    r->tok = s->tok;
    r->is_starting = true;
    r->next_starting = NULL;
    *s->last_starting = r;
    s->last_starting = &r->next_starting;
}

static void start_no_more(mr_service *s, mr_request *r) {
    mr_request **at = &s->starting;
    if (!r->is_starting)
        return;
    while (*at != r)
        at = &(*at)->next_starting;
    *at = r->next_starting;
    s->last_starting = r->next_starting ? s->last_starting : at;
    r->is_starting = false;
}

/* Submits sequences of the starting requests to the job, one sequence of each request in turn. So a request with many
 * choices of a long prompt does not block the requests behind it. */
static void start_some(mr_service *s) {
    int64_t now_ns = mr_clock_now_ns(), begun_ns = now_ns, n_ids = 0;
    if (now_ns < s->start_ns)
        return;
    while (s->starting && n_ids < IDS_AT_ONCE) {
        mr_request *r = s->starting;
        n_ids += r->n_prompt;
        start_no_more(s, r);
        if (request_start_next(r))
            service_start(r);
    }
    now_ns = mr_clock_now_ns();
    s->start_ns = s->starting ? now_ns + mr_job_pause_ns(now_ns - begun_ns) : 0;
}

/* The number of choices that have not been submitted to the job. */
static int32_t n_to_start(const mr_service *s) {
    int32_t n = 0;
    for (const mr_request *r = s->starting; r; r = r->next_starting)
        n += r->n_choices - r->n_started;
    return n;
}

/* Ends and frees a request that its reader has released. */
static void drop_request(mr_service *s, mr_request *r) {
    start_no_more(s, r);
    request_cancel(r);
    *(r->before ? &r->before->after : &s->all) = r->after;
    if (r->after)
        r->after->before = r->before;
    request_destroy(r);
}

/* Lock held. Copies the numbers of the job for mr_service_get_stats and mr_service_get_slots. */
static void answer_stats(mr_service *s) {
    s->stats.job = mr_job_get_stats(s->job);
    s->n_slots = mr_job_get_slots(s->job, s->slots, s->cap_slots);
    s->n_answered = s->n_asked;
    mr_cond_broadcast(&s->answered);
}

/* Takes over what other threads have submitted and released; returns whether the run goes on. */
static bool take_submitted(mr_service *s) {
    mr_mutex_lock(&s->lock);
    mr_request *news = s->first_new, *released = s->released;
    s->first_new = s->released = NULL;
    s->last_new = &s->first_new;
    bool goes_on = !s->stops, drains = s->drains;
    mr_mutex_unlock(&s->lock);
    for (mr_request *r = news, *next; r; r = next) {
        next = r->next_new;
        link_request(s, r);
        service_start(r);
    }
    mr_job_stats stats = mr_job_get_stats(s->job);
    mr_mutex_lock(&s->lock);
    s->max_ids = stats.max_ids; /* another plan may have fewer KV blocks */
    mr_mutex_unlock(&s->lock);
    start_some(s);
    wake_readers(s); /* for requests that ended at once; also empties the list before requests are destroyed */
    for (mr_request *r = released, *next; r; r = next) {
        next = r->next_released;
        drop_request(s, r);
    }
    stats = mr_job_get_stats(s->job);
    int32_t n_waiting = stats.n_waiting + n_to_start(s);
    mr_mutex_lock(&s->lock);
    s->n_waiting = n_waiting;
    s->is_paused = stats.is_paused;
    for (const mr_request *r = s->first_new; r; r = r->next_new)
        s->n_waiting += r->n_choices;
    if (s->n_asked != s->n_answered)
        answer_stats(s);
    mr_mutex_unlock(&s->lock);
    return goes_on && !(drains && n_waiting + stats.n_live == 0);
}

static mr_status begin_run(mr_service *s, mr_job *job, const mr_tokenizer *tok, mr_err *err) {
    mr_job_stats stats = mr_job_get_stats(job);
    mr_job_slot *slots = mr_alloc_array((size_t)stats.max_sequences, sizeof *slots);
    if (!slots)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a service of %d sequences", stats.max_sequences);
    s->job = job;
    s->tok = tok;
    mr_mutex_lock(&s->lock);
    mr_free(s->slots);
    s->slots = slots;
    s->cap_slots = stats.max_sequences;
    s->n_vocab = stats.n_vocab;
    s->base_key = *mr_job_base_key(job);
    s->max_ids = stats.max_ids;
    s->is_paused = stats.is_paused;
    s->stats.loaded = 1;
    s->stats.text[0] = 0;
    s->stats.state = s->drains ? MR_SERVICE_ENDING : MR_SERVICE_READY;
    s->channel = mr_job_channel(job);
    mr_mutex_unlock(&s->lock);
    if (s->config.on_ready)
        s->config.on_ready(s->config.on_ready_ctx);
    return MR_OK;
}

/* Ends all open requests. From then on a reader frees its request itself. */
static void end_run(mr_service *s, mr_status status, const mr_err *err) {
    mr_mutex_lock(&s->lock);
    /* MR_E_CANCELLED without a drain means that the job's `interrupted` has ended the run, because a rank was lost. */
    bool is_orderly = status == MR_OK || (status == MR_E_CANCELLED && s->drains);
    const char *text = is_orderly ? "the server is ending" : FAILED_TEXT;
    mr_request *news = s->first_new;
    s->first_new = NULL;
    s->last_new = &s->first_new;
    s->n_waiting = 0;
    s->drains = true; /* no new requests while the open ones end */
    if (is_orderly)
        s->stats.state = MR_SERVICE_ENDING;
    else
        set_failed(s, err->text[0] ? err->text : "the job was interrupted");
    mr_mutex_unlock(&s->lock);
    for (mr_request *r = news, *next; r; r = next) {
        next = r->next_new;
        link_request(s, r);
    }
    for (mr_request *r = s->all; r; r = r->after) {
        request_cancel(r);
        request_fail(r, MR_E_UNAVAILABLE, text); /* no request is the cause of the job's end */
    }
    wake_readers(s);
    mr_mutex_lock(&s->lock);
    answer_stats(s);
    s->channel = NULL;
    mr_request *released = s->released;
    s->released = NULL;
    mr_mutex_unlock(&s->lock);
    for (mr_request *r = released, *next; r; r = next) {
        next = r->next_released;
        request_destroy(r);
    }
    s->all = s->starting = NULL;
    s->last_starting = &s->starting;
    s->job = NULL;
    mr_sampler_scratch_destroy(s->scratch);
    s->scratch = NULL;
}

mr_status mr_service_run(mr_service *s, mr_job *job, const mr_tokenizer *tok, mr_err *err) {
    mr_status status = begin_run(s, job, tok, err);
    if (status != MR_OK)
        return status;
    while (status == MR_OK && take_submitted(s)) {
        status = mr_job_turn(job, s->starting ? s->start_ns : MR_NEVER, err);
        wake_readers(s);
    }
    end_run(s, status, err);
    return status;
}

/* --- Stats ------------------------------------------------------------------------------------------------------- */

const char *mr_service_state_name(mr_service_state state) {
    static const char *const NAMES[] = {"loading", "ready", "ending", "failed"};
    return NAMES[state];
}

/* Lock held: waits until the main thread has copied new numbers of the job, at most FACTS_NS. */
static void ask(mr_service *s) {
    int64_t deadline = mr_clock_now_ns() + FACTS_NS;
    uint64_t question = ++s->n_asked;
    wake_main(s);
    while (s->channel && s->n_answered < question && mr_cond_wait_until(&s->answered, &s->lock, deadline))
        ;
}

void mr_service_get_stats(mr_service *s, mr_service_stats *out) {
    mr_mutex_lock(&s->lock);
    ask(s);
    *out = s->stats;
    mr_mutex_unlock(&s->lock);
}

int32_t mr_service_get_slots(mr_service *s, mr_job_slot *out, int32_t cap) {
    mr_mutex_lock(&s->lock);
    ask(s);
    int32_t n = s->n_slots;
    if (n > 0 && cap > 0)
        memcpy(out, s->slots, (size_t)(n < cap ? n : cap) * sizeof *out);
    mr_mutex_unlock(&s->lock);
    return n;
}
