// SPDX-License-Identifier: Apache-2.0
#include "coordinator/clusters/virtual_cluster.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/frame.h"
#include "proto/link.h"
#include "proto/messages.h"
#include "proto/phases.h"
#include "worker/stage/step_sums.h"

enum {
    N_KINDS = 8,            /* kinds of links: the low bits of a link's tag */
    RECEIVES_OF_STAGE = 16, /* posted receives for the reports of a stage */
    RECEIVES_MORE = 4096,   /* posted receives for the tail's tokens and logits */
    START_NS = 1,           /* start of the clock */
};
static const mr_channel_request SENT = UINT64_MAX; /* the handle of every send, which completes at once */

/* A posted receive. Its handle is made of its generation and its index + 1. */
typedef struct receive {
    uint8_t *buffer;
    uint32_t generation; /* differs from that of a stale handle */
    size_t capacity, bytes;
    int32_t next; /* in its list of posted or free receives; -1: the last */
    int32_t list; /* index of the list of posted receives: one for each stage and kind of link */
    bool done;
} receive;

typedef struct receive_list {
    int32_t first, last; /* -1: empty */
} receive_list;

/* A message to the coordinator, under way or waiting for a receive. */
typedef struct message {
    struct message *prev, *next;
    int64_t due_ns;
    int32_t list;
    size_t bytes;
    uint8_t frame[];
} message;

typedef struct virtual_stage {
    int64_t free_ns; /* when it has run all steps so far */
    int64_t sent_ns; /* when all rows so far have left for the next stage */
    int64_t ns[MR_PHASE_COUNT];
    mr_step_sums sums;
} virtual_stage;

struct mr_virtual_cluster {
    mr_channel base; /* first */
    mr_virtual_cluster_config config;
    receive *receives;
    int32_t n_receives, free;
    receive_list *lists;   /* [n_stages * N_KINDS] */
    message *first, *last; /* under way, in order of due_ns; messages of the same time in the order of sending */
    virtual_stage *stages;
    uint8_t *packed; /* [MR_MAX_TOKENS_BYTES] */
    uint64_t n_steps;
    uint32_t epoch; /* of the coordinator's frames */
    /* Set when the plan comes. */
    mr_msg_limits limits;
    mr_arena *arena;         /* for one message of the coordinator */
    int64_t *ids_ns;         /* [max_sequences]: when the head gets the last sampled id of a slot */
    Millrace__Token *tokens; /* [max_rows] */
    Millrace__Token **items; /* [max_rows], into tokens */
};

static mr_virtual_cluster *cluster_of(mr_channel *ch) {
    return (mr_virtual_cluster *)ch;
}

static mr_status no_memory(mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a simulated cluster");
}

/* --- Messages to the coordinator --------------------------------------------------------------------------------- */

static mr_status send(mr_virtual_cluster *c, int32_t stage, mr_frame frame, const ProtobufCMessage *body,
                      int64_t due_ns, mr_err *err) {
    size_t bytes;
    mr_status status = mr_msg_pack(body, c->packed, MR_MAX_TOKENS_BYTES, &bytes, err);
    message *m = status == MR_OK ? mr_alloc(sizeof *m + MR_FRAME_BYTES + bytes) : NULL;
    if (!m)
        return status == MR_OK ? no_memory(err) : status;
    m->due_ns = due_ns;
    m->list = stage * N_KINDS + (int32_t)frame.kind;
    m->bytes = MR_FRAME_BYTES + bytes;
    memcpy(m->frame + MR_FRAME_BYTES, c->packed, bytes);
    frame.epoch = c->epoch;
    frame.payload_bytes = bytes;
    mr_frame_seal(&frame, m->frame);
    m->prev = c->last; /* searched from the end, because most messages are due last */
    while (m->prev && m->prev->due_ns > due_ns)
        m->prev = m->prev->prev;
    m->next = m->prev ? m->prev->next : c->first;
    *(m->prev ? &m->prev->next : &c->first) = m;
    *(m->next ? &m->next->prev : &c->last) = m;
    return MR_OK;
}

/* Sends a report that a stage makes at time ns. */
static mr_status send_report(mr_virtual_cluster *c, int32_t stage, ProtobufCMessage *body, int64_t ns, mr_err *err) {
    const Millrace__Report report = mr_msg_report_of(body);
    const mr_frame frame = {.kind = MR_FRAME_REPORT};
    return send(c, stage, frame, &report.base, ns + c->config.latency_ns, err);
}

/* Copies m to the oldest receive that is posted for it, and frees m. false: no receive is posted. */
static bool deliver(mr_virtual_cluster *c, message *m) {
    receive_list *list = &c->lists[m->list];
    if (list->first < 0)
        return false;
    receive *r = &c->receives[list->first];
    list->first = r->next;
    list->last = r->next < 0 ? -1 : list->last;
    r->done = true;
    r->bytes = m->bytes;
    if (m->bytes <= r->capacity)
        memcpy(r->buffer, m->frame, m->bytes);
    *(m->prev ? &m->prev->next : &c->first) = m->next;
    *(m->next ? &m->next->prev : &c->last) = m->prev;
    mr_free(m);
    return true;
}

/* Delivers all messages that are due. Returns whether any was delivered. */
static bool deliver_due(mr_virtual_cluster *c) {
    int64_t now = mr_clock_now_ns();
    bool any = false;
    for (message *m = c->first, *next; m && m->due_ns <= now; m = next) {
        next = m->next;
        any |= deliver(c, m);
    }
    return any;
}

/* --- Control messages of the coordinator ------------------------------------------------------------------------- */

static mr_status take_plan(mr_virtual_cluster *c, const Millrace__Plan *plan, mr_err *err) {
    if (c->arena || plan->n_stages != (size_t)c->config.n_stages)
        return mr_err_set(err, MR_E_PROTOCOL, "a plan of %zu stages for a simulated cluster of %d", plan->n_stages,
                          c->config.n_stages);
    c->limits = (mr_msg_limits){.n_stages = (uint32_t)plan->n_stages,
                                .max_rows = plan->max_rows,
                                .max_sequences = plan->max_sequences,
                                .max_context = plan->max_context,
                                .n_kv_blocks = plan->n_kv_blocks,
                                .n_vocab = (uint32_t)c->config.n_vocab};
    c->arena = mr_arena_create_whole(mr_msg_arena_bytes(&c->limits));
    c->ids_ns = mr_alloc_array(c->limits.max_sequences, sizeof *c->ids_ns);
    c->tokens = mr_alloc_array(c->limits.max_rows, sizeof *c->tokens);
    c->items = mr_alloc_array(c->limits.max_rows, sizeof(Millrace__Token *));
    if (!c->arena || !c->ids_ns || !c->tokens || !c->items)
        return no_memory(err);
    mr_status status = MR_OK;
    for (int32_t i = 0; i < c->config.n_stages && status == MR_OK; i++) {
        Millrace__Ready ready = MILLRACE__READY__INIT;
        ready.stage = (uint32_t)i;
        c->stages[i].free_ns = c->stages[i].sent_ns = mr_clock_now_ns();
        mr_step_sums_clear(&c->stages[i].sums, c->stages[i].free_ns);
        status = send_report(c, i, &ready.base, c->stages[i].free_ns, err);
    }
    return status;
}

/* Advances a stage to end_ns: it has no work until plan_ns, waits for rows until start_ns, and then computes. */
static void account(virtual_stage *s, int64_t plan_ns, int64_t start_ns, int64_t end_ns) {
    int64_t known_ns = plan_ns > s->free_ns ? plan_ns : s->free_ns;
    s->ns[MR_PHASE_NO_WORK] += known_ns - s->free_ns;
    s->ns[MR_PHASE_WAIT_IN] += start_ns - known_ns;
    s->ns[MR_PHASE_COMPUTE] += end_ns - start_ns;
    s->free_ns = end_ns;
}

/* Adds the time of a step to a stage's sums, and reports the sums when they are due, as real stages do. */
static mr_status note_step(mr_virtual_cluster *c, int32_t stage, uint64_t step, int32_t n_rows, int64_t ns,
                           mr_err *err) {
    virtual_stage *s = &c->stages[stage];
    Millrace__StepSums sums = MILLRACE__STEP_SUMS__INIT;
    mr_step_sums_add(&s->sums, (uint32_t)n_rows, ns);
    if (stage == 0 && c->config.n_stages > 1)
        mr_step_sums_sent(&s->sums, step, (uint32_t)n_rows, s->free_ns);
    /* The report is sent when the step is planned, which is earlier than the end of the step. Sending later would keep
     * many more messages under way. */
    int64_t now = mr_clock_now_ns();
    if (!s->sums.has_news || now < mr_step_sums_due_ns(&s->sums))
        return MR_OK;
    sums.stage = (uint32_t)stage;
    mr_step_sums_fill(&s->sums, &sums);
    mr_status status = send_report(c, stage, &sums.base, now, err);
    mr_step_sums_clear(&s->sums, now);
    return status;
}

/* Runs a step on all stages; *out_ns: when the tail has sampled. All times that the step waits for are known, because
 * ids come from earlier steps, and plans arrive in order. */
static mr_status run_step(mr_virtual_cluster *c, uint64_t step, const mr_virtual_work *work, int64_t ids_ns,
                          int64_t *out_ns, mr_err *err) {
    const mr_virtual_cluster_config *config = &c->config;
    int64_t plan_ns = mr_clock_now_ns() + config->latency_ns, rows_ns = ids_ns;
    double bytes = (double)work->n_rows * config->row_bytes;
    int64_t wire_ns = config->bytes_per_second > 0 ? (int64_t)(bytes / config->bytes_per_second * 1e9) : 0;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < config->n_stages && status == MR_OK; i++) {
        virtual_stage *s = &c->stages[i];
        int64_t start_ns = plan_ns > rows_ns ? plan_ns : rows_ns;
        start_ns = start_ns > s->free_ns ? start_ns : s->free_ns;
        account(s, plan_ns, start_ns, start_ns + config->compute_ns(config->compute_ctx, i, work));
        status = note_step(c, i, step, work->n_rows, s->free_ns - start_ns, err);
        s->sent_ns = (s->free_ns > s->sent_ns ? s->free_ns : s->sent_ns) + wire_ns;
        rows_ns = s->sent_ns + config->latency_ns;
    }
    c->n_steps++;
    *out_ns = c->stages[config->n_stages - 1].free_ns;
    if (config->n_stages > 1)
        mr_step_sums_came_back(&c->stages[0].sums, step, *out_ns + config->latency_ns);
    return status;
}

static mr_status take_step(mr_virtual_cluster *c, const Millrace__StepPlan *plan, mr_err *err) {
    Millrace__Tokens tokens = MILLRACE__TOKENS__INIT;
    mr_virtual_work work = {0};
    int64_t ids_ns = 0;
    tokens.step = plan->step;
    tokens.tokens = c->items;
    for (size_t i = 0; i < plan->n_runs; i++) {
        const Millrace__Run *run = plan->runs[i];
        int64_t n = run->n_rows, first = run->first_position;
        work.n_rows += (int32_t)n;
        work.n_positions += n * first + n * (n - 1) / 2;
        if (run->n_ids == 0)
            ids_ns = c->ids_ns[run->slot] > ids_ns ? c->ids_ns[run->slot] : ids_ns;
        if (run->want != MILLRACE__WANT__WANT_TOKEN)
            continue;
        Millrace__Token *t = &c->tokens[tokens.n_tokens];
        millrace__token__init(t);
        t->slot = run->slot;
        t->generation = run->generation;
        t->position = (uint32_t)(first + n);
        c->items[tokens.n_tokens++] = t;
    }
    work.n_out = (int32_t)tokens.n_tokens;
    int64_t done_ns = 0;
    mr_status status = run_step(c, plan->step, &work, ids_ns, &done_ns, err);
    if (status != MR_OK)
        return status;
    for (size_t i = 0; i < tokens.n_tokens; i++)
        c->ids_ns[c->tokens[i].slot] = done_ns + (c->config.n_stages > 1 ? c->config.latency_ns : 0);
    const mr_frame frame = {.kind = MR_FRAME_TOKENS, .step = plan->step};
    return send(c, c->config.n_stages - 1, frame, &tokens.base, done_ns + c->config.latency_ns, err);
}

static mr_status end_stages(mr_virtual_cluster *c, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < c->config.n_stages && status == MR_OK && c->arena; i++) {
        uint64_t ns[MR_PHASE_COUNT];
        Millrace__Seconds seconds = MILLRACE__SECONDS__INIT;
        int64_t now = mr_clock_now_ns(), end = c->stages[i].free_ns > now ? c->stages[i].free_ns : now;
        account(&c->stages[i], now, end, end);
        for (int k = 0; k < MR_PHASE_COUNT; k++)
            ns[k] = (uint64_t)c->stages[i].ns[k];
        seconds.stage = (uint32_t)i;
        seconds.n_ns = MR_PHASE_COUNT;
        seconds.ns = ns;
        seconds.steps = c->n_steps;
        seconds.ended = true;
        status = send_report(c, i, &seconds.base, now, err);
    }
    return status;
}

/* Handles a control message to the last stage. All stages get the same messages, except those that open a sequence. */
static mr_status take_control(mr_virtual_cluster *c, const void *data, size_t bytes, mr_err *err) {
    mr_frame frame;
    Millrace__Control *m = NULL;
    mr_status status = mr_frame_open(data, bytes, MR_FRAME_CONTROL, &frame, err);
    mr_arena *arena = c->arena;
    if (status == MR_OK && !arena) /* the first message is the plan, which sets the size of the arena */
        status = mr_arena_create(0, 0, &arena, err);
    if (status != MR_OK)
        return status;
    c->epoch = frame.epoch;
    status =
        mr_msg_unpack_control((const uint8_t *)data + MR_FRAME_BYTES, frame.payload_bytes, &c->limits, arena, &m, err);
    if (status == MR_OK && m->body_case == MILLRACE__CONTROL__BODY_PLAN)
        status = take_plan(c, m->plan, err);
    else if (status == MR_OK && m->body_case == MILLRACE__CONTROL__BODY_STEP)
        status = take_step(c, m->step, err);
    else if (status == MR_OK && m->body_case == MILLRACE__CONTROL__BODY_SHUTDOWN)
        status = end_stages(c, err);
    if (arena != c->arena)
        mr_arena_destroy(arena);
    return status;
}

/* --- The channel ------------------------------------------------------------------------------------------------- */

static mr_status check_peer(const mr_virtual_cluster *c, int32_t peer, mr_err *err) {
    if (peer >= 0 && peer < c->config.n_stages)
        return MR_OK;
    return mr_err_set(err, MR_E_INVALID, "no stage %d of %d simulated ones", peer, c->config.n_stages);
}

static mr_status virtual_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                                   mr_channel_request *out, mr_err *err) {
    mr_virtual_cluster *c = cluster_of(ch);
    mr_status status = check_peer(c, peer, err);
    if (status == MR_OK && peer == c->config.n_stages - 1 && tag % N_KINDS == MR_LINK_CONTROL)
        status = take_control(c, data, bytes, err);
    if (status == MR_OK)
        *out = SENT;
    return status;
}

static mr_status virtual_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                                   mr_channel_request *out, mr_err *err) {
    mr_virtual_cluster *c = cluster_of(ch);
    mr_status status = check_peer(c, peer, err);
    if (status != MR_OK)
        return status;
    if (c->free < 0)
        return mr_err_set(err, MR_E_NO_MEMORY, "all %d receives of a simulated cluster are posted", c->n_receives);
    int32_t idx = c->free, at = peer * N_KINDS + (int32_t)(tag % N_KINDS);
    receive_list *list = &c->lists[at];
    c->free = c->receives[idx].next;
    c->receives[idx] = (receive){
        .buffer = buffer, .generation = c->receives[idx].generation, .capacity = capacity, .next = -1, .list = at};
    if (list->first < 0)
        list->first = idx;
    else
        c->receives[list->last].next = idx;
    list->last = idx;
    *out = (mr_channel_request)c->receives[idx].generation << 32 | (mr_channel_request)(idx + 1);
    return MR_OK;
}

/* The index of a handle's receive; -1: the handle is stale. */
static int32_t place_of(const mr_virtual_cluster *c, mr_channel_request request) {
    int32_t idx = (int32_t)(request & UINT32_MAX) - 1;
    return idx >= 0 && idx < c->n_receives && c->receives[idx].generation == request >> 32 ? idx : -1;
}

static void release(mr_virtual_cluster *c, int32_t idx) {
    c->receives[idx].generation++;
    c->receives[idx].next = c->free;
    c->free = idx;
}

static mr_status virtual_test(mr_channel *ch, mr_channel_request request, mr_completion *out, mr_err *err) {
    mr_virtual_cluster *c = cluster_of(ch);
    if (request == SENT) {
        *out = (mr_completion){.done = true};
        return MR_OK;
    }
    int32_t idx = place_of(c, request);
    if (idx < 0)
        return mr_err_set(err, MR_E_INVALID, "a request that is not posted");
    const receive *r = &c->receives[idx];
    if (!r->done) {
        *out = (mr_completion){0};
        return MR_OK;
    }
    release(c, idx);
    if (r->bytes > r->capacity)
        return mr_err_set(err, MR_E_PROTOCOL, "a message of %zu bytes where at most %zu are taken", r->bytes,
                          r->capacity);
    *out = (mr_completion){.done = true, .bytes = r->bytes};
    return MR_OK;
}

static bool virtual_cancel(mr_channel *ch, mr_channel_request request) {
    mr_virtual_cluster *c = cluster_of(ch);
    int32_t idx = request == SENT ? -1 : place_of(c, request), before = -1;
    if (idx < 0)
        return true;
    receive_list *list = &c->lists[c->receives[idx].list];
    for (int32_t i = list->first; i >= 0 && i != idx; i = c->receives[i].next)
        before = i;
    if (!c->receives[idx].done) {
        *(before < 0 ? &list->first : &c->receives[before].next) = c->receives[idx].next;
        list->last = list->last == idx ? before : list->last;
    }
    release(c, idx);
    return true;
}

static mr_status virtual_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    mr_virtual_cluster *c = cluster_of(ch);
    int64_t now = mr_clock_now_ns();
    if (deliver_due(c))
        return MR_OK;
    message *next = c->first;
    while (next && next->due_ns <= now) /* due messages wait for a receive to be posted */
        next = next->next;
    if (!next && deadline_ns == MR_NEVER)
        return mr_err_set(err, MR_E_INTERNAL, "a job waits for simulated stages, which have nothing to do");
    int64_t then = next && next->due_ns < deadline_ns ? next->due_ns : deadline_ns;
    if (then > now)
        mr_clock_freeze(then);
    (void)deliver_due(c);
    return MR_OK;
}

static void virtual_wake(mr_channel *ch) {
    (void)ch; /* virtual_wait never blocks */
}

static void virtual_destroy(mr_channel *ch) {
    (void)ch; /* the cluster owns the channel: mr_virtual_cluster_destroy */
}

static const mr_channel_ops virtual_ops = {
    .name = "virtual",
    .post_send = virtual_post_send,
    .post_recv = virtual_post_recv,
    .test = virtual_test,
    .cancel = virtual_cancel,
    .wait = virtual_wait,
    .wake = virtual_wake,
    .destroy = virtual_destroy,
};

mr_status mr_virtual_cluster_create(const mr_virtual_cluster_config *config, mr_virtual_cluster **out, mr_err *err) {
    mr_virtual_cluster *c = mr_alloc(sizeof *c);
    if (!c)
        return no_memory(err);
    int32_t n = config->n_stages;
    c->base = (mr_channel){.ops = &virtual_ops, .self = n, .n_peers = n + 1};
    c->config = *config;
    c->n_receives = n * RECEIVES_OF_STAGE + RECEIVES_MORE;
    c->receives = mr_alloc_array((size_t)c->n_receives, sizeof *c->receives);
    c->lists = mr_alloc_array((size_t)n * N_KINDS, sizeof *c->lists);
    c->stages = mr_alloc_array((size_t)n, sizeof *c->stages);
    c->packed = mr_alloc(MR_MAX_TOKENS_BYTES);
    if (!c->receives || !c->lists || !c->stages || !c->packed) {
        mr_virtual_cluster_destroy(c);
        return no_memory(err);
    }
    c->free = -1;
    for (int32_t i = c->n_receives; i-- > 0;)
        release(c, i);
    for (int32_t i = 0; i < n * N_KINDS; i++)
        c->lists[i] = (receive_list){-1, -1};
    mr_clock_freeze(START_NS);
    *out = c;
    return MR_OK;
}

mr_channel *mr_virtual_cluster_channel(mr_virtual_cluster *c) {
    return &c->base;
}

void mr_virtual_cluster_destroy(mr_virtual_cluster *c) {
    if (!c)
        return;
    mr_clock_freeze(-1);
    for (message *m = c->first, *next; m; m = next) {
        next = m->next;
        mr_free(m);
    }
    mr_arena_destroy(c->arena);
    mr_free(c->ids_ns);
    mr_free(c->tokens);
    mr_free(c->items);
    mr_free(c->receives);
    mr_free(c->lists);
    mr_free(c->stages);
    mr_free(c->packed);
    mr_free(c);
}
