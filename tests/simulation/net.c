// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/net.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "proto/link.h"

enum { MAX_REQUESTS = 256, ALL = INT32_MAX };

typedef enum request_state { REQUEST_FREE, REQUEST_POSTED, REQUEST_DONE } request_state;

typedef struct message message;
typedef struct request {
    request_state state;
    bool is_send;
    mr_status status;
    uint32_t tag, generation;
    int32_t peer;
    void *buffer;         /* of a receive */
    size_t capacity;      /* of buffer */
    size_t bytes;         /* of the message, when done */
    message *message;     /* of a send that nobody has received yet */
    struct request *next; /* posted receives in the order of their posts; or free requests */
} request;

struct message {
    message *next;
    int32_t from, to;
    uint32_t tag;
    const uint8_t *data; /* the sender's, or copy */
    uint8_t *copy;
    size_t bytes;
    int64_t due_ns, number; /* number: in the order of all sends */
    request *send;          /* waits for the receive; NULL: the send is done */
    bool is_wrong;
};

typedef struct message_list {
    message *first;
    int32_t n;
} message_list;

typedef struct endpoint {
    mr_channel base; /* first */
    net *net;
    bool is_open, is_dead;
    bool lost[WORLD_MAX_ACTORS];       /* what it has heard */
    int64_t news_ns[WORLD_MAX_ACTORS]; /* when it will hear that an endpoint is lost; INT64_MAX: never */
    request table[MAX_REQUESTS];
    request *free, *posted;
    message_list arrived; /* no receive is posted for them, in order */
    int32_t n_requests;
} endpoint;

struct net {
    net_config config;
    rng draws;
    size_t eager_bytes; /* larger messages wait for their receive */
    int32_t usual_ns, n_rare;
    bool is_cut[WORLD_MAX_ACTORS];
    int64_t lifeline_ns[WORLD_MAX_ACTORS];
    int32_t wrong_to[WORLD_MAX_ACTORS]; /* by sender; -1: no message is to be wrong */
    int32_t more_to[WORLD_MAX_ACTORS];  /* by sender: whose next message comes with another one; -1: nobody's */
    bool more_is_wrong[WORLD_MAX_ACTORS], more_of_lobby[WORLD_MAX_ACTORS];
    message_list flying; /* in no order */
    net_counts counts;
    int64_t n_sent;
    endpoint endpoints[WORLD_MAX_ACTORS];
};

/* Buffers of sends that cannot be cancelled are in use until the process ends. */
static const void *stuck_buffers[1 << 16];
static size_t n_stuck_buffers;

static endpoint *endpoint_of(mr_channel *ch) {
    return (endpoint *)ch;
}

static int32_t n_endpoints(const net *n) {
    return n->config.world->n_ranks + 1;
}

static bool is_of_lobby(uint32_t tag) {
    return tag == mr_link_tag(MR_LINK_CONTROL, 0) || tag == mr_link_tag(MR_LINK_REPORT, 0);
}

/* --- Lists ------------------------------------------------------------------------------------------------------- */

static void list_append(message_list *list, message *m) {
    message **at = &list->first;
    while (*at)
        at = &(*at)->next;
    m->next = NULL;
    *at = m;
    list->n++;
}

static void list_remove(message_list *list, message *m) {
    message **at = &list->first;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    list->n--;
}

static void message_free(message *m) {
    free(m->copy);
    free(m);
}

static void post_receive(endpoint *ep, request *r) {
    request **at = &ep->posted;
    while (*at)
        at = &(*at)->next;
    r->next = NULL;
    *at = r;
}

static void unpost_receive(endpoint *ep, request *r) {
    request **at = &ep->posted;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
}

static void request_finish(endpoint *ep, request *r, mr_status status, size_t bytes) {
    if (!r->is_send)
        unpost_receive(ep, r);
    r->state = REQUEST_DONE;
    r->status = status;
    r->bytes = bytes;
    r->message = NULL;
    world_notify(ep->net->config.world, ep->base.self);
}

static void request_free(endpoint *ep, request *r) {
    r->state = REQUEST_FREE;
    r->generation++;
    r->next = ep->free;
    ep->free = r;
    ep->n_requests--;
}

static request *request_of(endpoint *ep, mr_channel_request handle) {
    uint64_t idx = (handle & UINT32_MAX) - 1;
    if (idx >= MAX_REQUESTS)
        return NULL;
    request *r = &ep->table[idx];
    return r->state != REQUEST_FREE && r->generation == handle >> 32 ? r : NULL;
}

/* --- Messages ---------------------------------------------------------------------------------------------------- */

static void receive(net *n, message *m, request *r) {
    endpoint *to = &n->endpoints[m->to];
    bool fits = m->bytes <= r->capacity;
    if (fits && m->bytes > 0) {
        memcpy(r->buffer, m->data, m->bytes);
        if (m->is_wrong)
            ((uint8_t *)r->buffer)[m->bytes / 2] ^= 0x10;
    }
    request_finish(to, r, fits ? MR_OK : MR_E_PROTOCOL, m->bytes);
    if (m->send)
        request_finish(&n->endpoints[m->from], m->send, MR_OK, m->bytes);
    message_free(m);
}

/* The message has come to its endpoint. */
static void arrive(net *n, message *m) {
    endpoint *to = &n->endpoints[m->to];
    request *r = to->posted;
    if (to->is_dead || !to->is_open || to->lost[m->from]) {
        if (m->send)
            m->send->message = NULL; /* the send never ends by itself */
        message_free(m);
        return;
    }
    while (r && (r->peer != m->from || r->tag != m->tag))
        r = r->next;
    if (r) {
        receive(n, m, r);
        return;
    }
    list_append(&to->arrived, m);
    n->counts.most_waiting = to->arrived.n > n->counts.most_waiting ? to->arrived.n : n->counts.most_waiting;
}

/* Mostly some microseconds, now and then milliseconds, and rarely most of a second. */
static int64_t draw_delay(net *n) {
    if (n->config.is_calm)
        return 20000;
    int32_t kind = rng_below(&n->draws, n->n_rare);
    return 1000 + rng_below(&n->draws, kind == 0 ? 300000000 : kind < 4 ? 5000000 : n->usual_ns);
}

/* Behind the messages of the same (sender, tag) that are under way. */
static int64_t due_ns(net *n, const message *m) {
    int64_t due = n->config.world->now_ns + draw_delay(n);
    for (const message *o = n->flying.first; o; o = o->next)
        if (o->from == m->from && o->to == m->to && o->tag == m->tag && o->due_ns >= due)
            due = o->due_ns + 1;
    return due;
}

static mr_status lost(int32_t peer, mr_err *err) {
    return mr_err_set(err, MR_E_PEER_LOST, "endpoint %d is gone", (int)peer);
}

static request *take(endpoint *ep, int32_t peer, uint32_t tag, mr_channel_request *out, mr_err *err) {
    request *r = ep->free;
    if (!r) {
        (void)mr_err_set(err, MR_E_NO_MEMORY, "all %d requests are in use", MAX_REQUESTS);
        return NULL;
    }
    ep->free = r->next;
    uint32_t generation = r->generation;
    *r = (request){.state = REQUEST_POSTED, .peer = peer, .tag = tag, .generation = generation};
    *out = (uint64_t)generation << 32 | (uint64_t)(r - ep->table + 1);
    net *n = ep->net;
    n->counts.most_requests = ++ep->n_requests > n->counts.most_requests ? ep->n_requests : n->counts.most_requests;
    return r;
}

/* --- The channel ------------------------------------------------------------------------------------------------- */

static mr_status check_post(endpoint *ep, int32_t peer, uint32_t tag, mr_err *err) {
    if (peer < 0 || peer >= ep->base.n_peers || tag > MR_CHANNEL_MAX_TAG)
        return mr_err_set(err, MR_E_INVALID, "no endpoint %d with tag %u", (int)peer, (unsigned)tag);
    return ep->is_dead || ep->lost[peer] ? lost(peer, err) : MR_OK;
}

/* Sends another message behind m. */
static void send_more(net *n, const message *m) {
    message *more = calloc(1, sizeof *more);
    uint8_t *copy = malloc(m->bytes ? m->bytes : 1);
    if (!more || !copy)
        abort();
    memcpy(copy, m->data, m->bytes);
    *more = (message){.from = m->from, .to = m->to, .tag = m->tag, .data = copy, .copy = copy, .bytes = m->bytes};
    more->is_wrong = n->more_is_wrong[m->from];
    more->number = n->n_sent++;
    more->due_ns = due_ns(n, more);
    list_append(&n->flying, more);
    n->more_to[m->from] = -1;
    world_note(n->config.world, "another message to endpoint %d with tag %u is on its way", (int)m->to,
               (unsigned)m->tag);
}

static mr_status net_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                               mr_channel_request *out, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    net *n = ep->net;
    world_tick(n->config.world, ch->self);
    if (!ep->is_dead && n->config.on_send)
        n->config.on_send(n->config.ctx, ch->self, peer, tag);
    mr_status status = check_post(ep, peer, tag, err);
    if (status != MR_OK)
        return status;
    request *r = take(ep, peer, tag, out, err);
    message *m = r ? calloc(1, sizeof *m) : NULL;
    if (!m)
        return MR_E_NO_MEMORY;
    *m = (message){.from = ch->self, .to = peer, .tag = tag, .data = data, .bytes = bytes, .number = n->n_sent++};
    r->is_send = true;
    if (n->wrong_to[ch->self] == peer && !is_of_lobby(tag)) {
        m->is_wrong = true;
        n->wrong_to[ch->self] = -1;
        world_note(n->config.world, "a message to endpoint %d with tag %u will be wrong", (int)peer, (unsigned)tag);
    }
    if (bytes <= n->eager_bytes) {
        m->copy = malloc(bytes ? bytes : 1);
        if (!m->copy)
            abort();
        memcpy(m->copy, data, bytes);
        m->data = m->copy;
    } else {
        m->send = r;
        r->message = m;
    }
    world_trace(n->config.world, "sends %zu bytes to %d with tag %u%s", bytes, (int)peer, (unsigned)tag,
                m->send ? ", large" : "");
    if (!m->send)
        request_finish(ep, r, MR_OK, bytes);
    if (n->is_cut[ch->self] || n->is_cut[peer] || n->endpoints[peer].is_dead) {
        r->message = NULL;
        message_free(m);
        return MR_OK;
    }
    m->due_ns = due_ns(n, m);
    list_append(&n->flying, m);
    if (n->more_to[ch->self] == peer && (is_of_lobby(tag) || !n->more_of_lobby[ch->self]))
        send_more(n, m);
    return MR_OK;
}

static mr_status net_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                               mr_channel_request *out, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    world_tick(ep->net->config.world, ch->self);
    mr_status status = check_post(ep, peer, tag, err);
    if (status != MR_OK)
        return status;
    request *r = take(ep, peer, tag, out, err);
    if (!r)
        return MR_E_NO_MEMORY;
    r->buffer = buffer;
    r->capacity = capacity;
    post_receive(ep, r);
    for (message *m = ep->arrived.first; m; m = m->next)
        if (m->from == peer && m->tag == tag) {
            list_remove(&ep->arrived, m);
            receive(ep->net, m, r);
            break;
        }
    return MR_OK;
}

static mr_status net_test(mr_channel *ch, mr_channel_request handle, mr_completion *out, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    request *r = request_of(ep, handle);
    world_tick(ep->net->config.world, ch->self);
    if (!r)
        return mr_err_set(err, MR_E_INVALID, "request 0x%llx is not posted", (unsigned long long)handle);
    if (ep->is_dead) {
        request_free(ep, r);
        return lost(ch->self, err);
    }
    if (r->state == REQUEST_POSTED) {
        *out = (mr_completion){.done = false};
        return MR_OK;
    }
    mr_status status = r->status;
    if (status == MR_OK)
        *out = (mr_completion){.done = true, .bytes = r->bytes};
    else if (status == MR_E_PEER_LOST)
        (void)lost(r->peer, err);
    else
        mr_err_set(err, status, "a message of %zu bytes where %zu are taken", r->bytes, r->capacity);
    request_free(ep, r);
    return status;
}

/* Withdraws a large message that nobody has received. */
static void take_back(net *n, message *m) {
    list_remove(m->due_ns ? &n->flying : &n->endpoints[m->to].arrived, m);
    message_free(m);
}

/* A large send may go on without its request. */
static bool cancel_send(endpoint *ep, request *r) {
    net *n = ep->net;
    message *m = r->message;
    if (!m)
        return true;
    if (n->config.sends_may_stick && n_stuck_buffers < sizeof stuck_buffers / sizeof stuck_buffers[0]) {
        stuck_buffers[n_stuck_buffers++] = m->data;
        n->counts.n_stuck++;
        m->send = NULL;
        r->message = NULL;
        return false;
    }
    take_back(n, m);
    r->message = NULL;
    return true;
}

static bool net_cancel(mr_channel *ch, mr_channel_request handle) {
    endpoint *ep = endpoint_of(ch);
    request *r = request_of(ep, handle);
    bool is_ours = true;
    if (!r)
        return true;
    if (r->state == REQUEST_POSTED && r->is_send && !ep->is_dead)
        is_ours = cancel_send(ep, r);
    else if (r->state == REQUEST_POSTED && !r->is_send)
        unpost_receive(ep, r);
    request_free(ep, r);
    return is_ours;
}

static mr_status net_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    if (!ep->is_dead)
        world_wait(ep->net->config.world, ch->self, deadline_ns);
    return ep->is_dead ? lost(ch->self, err) : MR_OK;
}

static void net_progress(mr_channel *ch) {
    world_tick(endpoint_of(ch)->net->config.world, ch->self);
}

static void net_wake(mr_channel *ch) {
    world_notify(endpoint_of(ch)->net->config.world, ch->self);
}

/* --- Losses ------------------------------------------------------------------------------------------------------ */

static void drop_messages(message_list *list, int32_t from, int32_t to) {
    for (message *m = list->first, *next; m; m = next) {
        next = m->next;
        if ((m->from != from && from != ALL) || (m->to != to && to != ALL))
            continue;
        list_remove(list, m);
        if (m->send)
            m->send->message = NULL;
        message_free(m);
    }
}

/* Drops a message, and those behind it of the same (sender, tag): they stay in order. */
static void drop_from(message_list *list, message key) {
    for (message *m = list->first, *next; m; m = next) {
        next = m->next;
        if (m->from != key.from || m->to != key.to || m->tag != key.tag || m->number < key.number)
            continue;
        list_remove(list, m);
        message_free(m);
    }
}

/* A message of the endpoint that cannot arrive any more: a large one, which lies in memory that is gone, or a small one
 * that would arrive too late. */
static message *find_lost(const message_list *list, int32_t from, int64_t late_ns) {
    message *m = list->first;
    while (m && (m->from != from || (!m->send && m->due_ns < late_ns)))
        m = m->next;
    return m;
}

/* What the endpoint has sent and what has not arrived yet is lost from some message of each (receiver, tag) on. */
static void lose_last_messages(net *n, int32_t from) {
    int64_t late_ns = n->config.world->now_ns + draw_delay(n);
    for (int32_t to = 0; to < n_endpoints(n); to++) {
        message_list *arrived = &n->endpoints[to].arrived;
        for (message *m; (m = find_lost(arrived, from, INT64_MAX));) {
            const message key = *m;
            drop_from(arrived, key);
            drop_from(&n->flying, key);
        }
    }
    for (message *m; (m = find_lost(&n->flying, from, late_ns));)
        drop_from(&n->flying, *m);
}

/* Others hear of the loss; the coordinator also by the lifeline, earlier or later than by the channel. */
static void draw_news(net *n, int32_t who) {
    int64_t now = n->config.world->now_ns;
    int32_t coordinator = n->config.world->n_ranks;
    for (int32_t i = 0; i < n_endpoints(n); i++)
        if (i != who && (n->config.ranks_hear || i == coordinator || who == coordinator))
            n->endpoints[i].news_ns[who] = now + 1000 + rng_below(&n->draws, 400000000);
    n->lifeline_ns[who] = now + 1000 + rng_below(&n->draws, rng_below(&n->draws, 2) ? 1500000000 : 50000000);
}

void net_kill(net *n, int32_t who) {
    endpoint *ep = &n->endpoints[who];
    if (ep->is_dead)
        return;
    lose_last_messages(n, who);
    drop_messages(&n->flying, ALL, who);
    drop_messages(&ep->arrived, ALL, who);
    ep->is_dead = true;
    world_notify(n->config.world, who);
    draw_news(n, who);
}

void net_cut(net *n, int32_t who) {
    if (n->endpoints[who].is_dead || n->is_cut[who])
        return;
    n->is_cut[who] = true;
    drop_messages(&n->flying, who, ALL);
    drop_messages(&n->flying, ALL, who);
    draw_news(n, who);
    for (int32_t i = 0; i < n_endpoints(n); i++)
        n->endpoints[who].news_ns[i] = n->config.world->now_ns + 1000 + rng_below(&n->draws, 2000000000);
}

void net_corrupt_next(net *n, int32_t from, int32_t to) {
    n->wrong_to[from] = to;
}

void net_forge_next(net *n, int32_t from, int32_t to, bool of_lobby, bool is_wrong) {
    n->more_of_lobby[from] = of_lobby;
    n->more_to[from] = to;
    n->more_is_wrong[from] = is_wrong;
}

bool net_is_gone(const net *n, int32_t who) {
    return n->endpoints[who].is_dead || n->is_cut[who];
}

bool net_lifeline_has_ended(const net *n, int32_t rank) {
    return n->lifeline_ns[rank] <= n->config.world->now_ns;
}

/* The endpoint hears that a peer is lost. */
static void take_news(net *n, endpoint *ep, int32_t peer) {
    ep->news_ns[peer] = INT64_MAX;
    if (ep->is_dead || ep->lost[peer])
        return;
    world_trace(n->config.world, "endpoint %d hears that endpoint %d is lost", (int)ep->base.self, (int)peer);
    ep->lost[peer] = true;
    drop_messages(&ep->arrived, peer, ep->base.self);
    drop_messages(&n->flying, peer, ep->base.self);
    for (int32_t i = 0; i < MAX_REQUESTS; i++) {
        request *r = &ep->table[i];
        if (r->state != REQUEST_POSTED || r->peer != peer)
            continue;
        if (r->message)
            take_back(n, r->message);
        request_finish(ep, r, MR_E_PEER_LOST, 0);
    }
    world_notify(n->config.world, ep->base.self);
}

/* --- What comes next --------------------------------------------------------------------------------------------- */

static message *next_message(const net *n) {
    message *next = NULL;
    for (message *m = n->flying.first; m; m = m->next)
        if (!next || m->due_ns < next->due_ns)
            next = m;
    return next;
}

static int64_t next_news(net *n, endpoint **out_to, int32_t *out_peer) {
    int64_t next = INT64_MAX;
    for (int32_t i = 0; i < n_endpoints(n); i++)
        for (int32_t k = 0; k < n_endpoints(n); k++)
            if (n->endpoints[i].news_ns[k] < next) {
                next = n->endpoints[i].news_ns[k];
                *out_to = &n->endpoints[i];
                *out_peer = k;
            }
    return next;
}

static int64_t network_next_ns(void *ctx) {
    net *n = ctx;
    endpoint *to;
    int32_t peer;
    const message *m = next_message(n);
    int64_t news_ns = next_news(n, &to, &peer), message_ns = m ? m->due_ns : INT64_MAX;
    return news_ns < message_ns ? news_ns : message_ns;
}

static void network_arrive(void *ctx) {
    net *n = ctx;
    endpoint *to = NULL;
    int32_t peer = 0;
    message *m = next_message(n);
    if (next_news(n, &to, &peer) < (m ? m->due_ns : INT64_MAX)) {
        take_news(n, to, peer);
        return;
    }
    world_trace(n->config.world, "%zu bytes of %d come to %d with tag %u", m->bytes, (int)m->from, (int)m->to,
                (unsigned)m->tag);
    list_remove(&n->flying, m);
    m->due_ns = 0;
    arrive(n, m);
}

/* --- Life -------------------------------------------------------------------------------------------------------- */

/* The process has ended, killed or not. What it sent before arrives. */
static void net_channel_destroy(mr_channel *ch) {
    endpoint *ep = endpoint_of(ch);
    net *n = ep->net;
    ep->is_open = false;
    drop_messages(&ep->arrived, ALL, ch->self);
    for (int32_t i = 0; i < MAX_REQUESTS; i++) {
        request *r = &ep->table[i];
        if (r->message && !ep->is_dead)
            take_back(n, r->message);
        if (r->state != REQUEST_FREE && !r->is_send)
            unpost_receive(ep, r);
        if (r->state != REQUEST_FREE)
            request_free(ep, r);
    }
    if (!ep->is_dead && ch->self == n->config.world->n_ranks)
        draw_news(n, ch->self);
}

net *net_create(const net_config *config) {
    static const mr_channel_ops OPS = {.name = "simulated",
                                       .post_send = net_post_send,
                                       .post_recv = net_post_recv,
                                       .test = net_test,
                                       .cancel = net_cancel,
                                       .wait = net_wait,
                                       .progress = net_progress,
                                       .wake = net_wake,
                                       .destroy = net_channel_destroy};
    static const size_t EAGER[] = {100, 1000, 4096, SIZE_MAX};
    static const int32_t USUAL_NS[] = {5000, 50000, 400000};
    net *n = calloc(1, sizeof *n);
    if (!n)
        abort();
    n->config = *config;
    n->draws = world_rng(config->seed, 2);
    n->eager_bytes = config->is_calm ? SIZE_MAX : EAGER[rng_below(&n->draws, 4)];
    n->usual_ns = USUAL_NS[rng_below(&n->draws, 3)];
    n->n_rare = 200 << rng_below(&n->draws, 5);
    for (int32_t i = 0; i < n_endpoints(n); i++) {
        endpoint *ep = &n->endpoints[i];
        ep->base = (mr_channel){.ops = &OPS, .self = i, .n_peers = n_endpoints(n), .secret = config->secret};
        ep->net = n;
        n->wrong_to[i] = n->more_to[i] = -1;
        n->lifeline_ns[i] = INT64_MAX;
        for (int32_t k = 0; k < WORLD_MAX_ACTORS; k++)
            ep->news_ns[k] = INT64_MAX;
        for (int32_t k = MAX_REQUESTS; k-- > 0;) {
            ep->table[k].next = ep->free;
            ep->free = &ep->table[k];
        }
    }
    return n;
}

void net_attach(net *n) {
    n->config.world->network = (world_network){.next_ns = network_next_ns, .arrive = network_arrive, .ctx = n};
}

mr_channel *net_open(net *n, int32_t idx) {
    n->endpoints[idx].is_open = true;
    return &n->endpoints[idx].base;
}

void net_destroy(net *n) {
    drop_messages(&n->flying, ALL, ALL);
    free(n);
}

net_counts net_get_counts(const net *n) {
    return n->counts;
}
