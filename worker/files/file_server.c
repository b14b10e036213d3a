/* worker/files/file_server.c - answers the requests of the peers in turns. A peer needs an outbox to get answers, and
 * at most MAX_SERVED peers have an outbox at a time. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/files/file_server.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/arena.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "proto/link.h"
#include "worker/files/file_hashes.h"

enum {
    POSTED_REQUESTS = 4, /* receive slots for each peer; more requests wait in the channel */
    SEND_SLOTS = 2,
    MAX_SERVED = 32,   /* most peers with an outbox at a time */
    TURN_ANSWERS = 16, /* answers after which a peer gives its outbox up if other peers wait */
    ARENA_BYTES = 1024,
};

/* A request without an answer yet. */
typedef struct request {
    Millrace__FileRequest__What what;
    uint64_t first;
    uint32_t n, fetch;
} request;

typedef struct peer {
    int32_t rank;
    mr_inbox *in;      /* NULL: the peer was dropped */
    mr_outbox *out;    /* NULL while the peer has no request, or waits for its turn */
    int32_t n_answers; /* sent in this turn */
    request requests[MR_FILE_REQUEST_SLOTS];
    int32_t n_requests;
    bool done; /* the peer has said that no more requests of this fetch follow */
} peer;

struct mr_file_server {
    mr_channel *channel;
    uint64_t file_bytes;    /* of the virtual file */
    mr_file_hashes *hashes; /* NULL: problem says why there is no file */
    mr_err problem;
    peer *peers;
    /* open: peers not dropped; served: peers with an outbox; waiting: peers without an outbox in the last round */
    int32_t n_peers, n_open, n_served, n_waiting;
    mr_arena *arena; /* memory of one unpacked request */
};

static void wake(void *ctx) {
    mr_channel_wake(ctx);
}

static void end_turn(mr_file_server *s, peer *p) {
    mr_outbox_destroy(p->out);
    s->n_served -= p->out != NULL;
    p->out = NULL;
    p->n_answers = 0;
}

static void close_peer(mr_file_server *s, peer *p) {
    end_turn(s, p);
    mr_inbox_destroy(p->in);
    s->n_open -= p->in != NULL;
    p->in = NULL;
    p->n_requests = 0;
}

mr_status mr_file_server_create(const mr_file_server_config *config, mr_file_server **out, mr_err *err) {
    mr_file_server *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a file server");
    uint64_t at[MR_GGUF_MAX_PARTS];
    *s = (mr_file_server){.channel = config->channel,
                          .file_bytes = mr_part_files_layout(config->parts, config->n_parts, at)};
    s->peers = mr_alloc_array((size_t)config->n_peers, sizeof *s->peers);
    s->arena = mr_arena_create_whole(ARENA_BYTES);
    const mr_file_hashes_config hashes = {.path = config->path,
                                          .parts = config->parts,
                                          .n_parts = config->n_parts,
                                          .folder = config->cache_folder,
                                          .n_threads = config->n_threads,
                                          .ready = wake,
                                          .ctx = config->channel};
    mr_status status = s->peers && s->arena
                           ? MR_OK
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a file server of %d", config->n_peers);
    if (config->problem)
        s->problem = *config->problem;
    else if (status == MR_OK)
        status = mr_file_hashes_open(&hashes, &s->hashes, err);
    for (int32_t i = 0; i < config->n_peers && status == MR_OK; i++) {
        peer *p = &s->peers[s->n_peers++];
        p->rank = (int32_t)config->peers[i];
        status = mr_inbox_create(s->channel, p->rank, MR_LINK_FILE, 0, POSTED_REQUESTS, MR_MAX_FILE_REQUEST_BYTES,
                                 &p->in, err);
        s->n_open += status == MR_OK;
    }
    if (status != MR_OK) {
        mr_file_server_destroy(s);
        return status;
    }
    *out = s;
    return MR_OK;
}

void mr_file_server_destroy(mr_file_server *s) {
    if (!s)
        return;
    for (int32_t i = 0; s->peers && i < s->n_peers; i++)
        close_peer(s, &s->peers[i]);
    mr_file_hashes_close(s->hashes);
    mr_arena_destroy(s->arena);
    mr_free(s->peers);
    mr_free(s);
}

/* --- Requests ---------------------------------------------------------------------------------------------------- */

/* Moves requests from the inbox to the list of the peer while the list has room. */
static mr_status take_requests(mr_file_server *s, peer *p, bool *did, mr_err *err) {
    while (p->n_requests < MR_FILE_REQUEST_SLOTS && !p->done) {
        mr_frame frame;
        const uint8_t *payload;
        Millrace__FileRequest *m;
        mr_status status = mr_inbox_peek(p->in, &frame, &payload, err);
        if (status != MR_OK || !payload)
            return status;
        status = mr_msg_unpack_file_request(payload, frame.payload_bytes, mr_file_n_blocks(s->file_bytes), s->arena, &m,
                                            err);
        if (status != MR_OK)
            return status;
        *did = true;
        p->done = m->what == MILLRACE__FILE_REQUEST__WHAT__NO_MORE;
        if (!p->done)
            p->requests[p->n_requests++] = (request){m->what, m->first_block, m->n_blocks, m->fetch};
        status = mr_inbox_release(p->in, err);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

/* Writes the answer into payload. *out_known is false while the hashes are not computed. An error becomes a refusal. */
static mr_frame make_answer(mr_file_server *s, const request *r, uint8_t *payload, bool *out_known) {
    mr_frame frame = {.step = r->first, .row_bytes = r->fetch};
    mr_status status;
    mr_err err;
    *out_known = true;
    if (!s->hashes) {
        status = mr_err_set(&err, s->problem.status, "%s", s->problem.text);
    } else if (r->what == MILLRACE__FILE_REQUEST__WHAT__HASHES) {
        frame.type = MR_FILE_ANSWER_HASHES;
        frame.rows = r->n;
        frame.payload_bytes = (uint64_t)r->n * sizeof(mr_file_hash);
        status = mr_file_hashes_get(s->hashes, r->first, r->n, (mr_file_hash *)payload, out_known, &err);
    } else {
        frame.type = MR_FILE_ANSWER_BLOCK;
        frame.payload_bytes = mr_file_block_bytes(s->file_bytes, r->first);
        status = mr_file_hashes_read(s->hashes, r->first, payload, &err);
    }
    if (status == MR_OK)
        return frame;
    *out_known = true;
    size_t n = strlen(err.text);
    memcpy(payload, err.text, n);
    frame.type = MR_FILE_ANSWER_REFUSAL;
    frame.rows = 0;
    frame.payload_bytes = n;
    return frame;
}

/* Answers the oldest request whose answer is known. */
static mr_status answer(mr_file_server *s, peer *p, bool *did, mr_err *err) {
    uint8_t *payload = NULL;
    mr_status status = mr_outbox_reserve(p->out, &payload, err);
    for (int32_t i = 0; status == MR_OK && payload && i < p->n_requests; i++) {
        bool known = false;
        mr_frame frame = make_answer(s, &p->requests[i], payload, &known);
        if (!known)
            continue;
        *did = true;
        memmove(&p->requests[i], &p->requests[i + 1], (size_t)(p->n_requests - i - 1) * sizeof p->requests[0]);
        p->n_requests--;
        p->n_answers++;
        return mr_outbox_send(p->out, &frame, err);
    }
    return status;
}

/* Gives the peer an outbox if one is free. */
static mr_status begin_turn(mr_file_server *s, peer *p, mr_err *err) {
    if (s->n_served == MAX_SERVED)
        return MR_OK;
    mr_status status =
        mr_outbox_create(s->channel, p->rank, MR_LINK_FILE_ANSWERS, 0, SEND_SLOTS, MR_FILE_BLOCK_BYTES, &p->out, err);
    s->n_served += status == MR_OK;
    return status;
}

/* Whether a peer with an outbox keeps it. */
static bool keeps_turn(const mr_file_server *s, const peer *p) {
    if (p->n_requests == 0)
        return !p->done && s->n_waiting == 0;
    return p->n_answers < TURN_ANSWERS || s->n_waiting == 0;
}

/* Sends one answer, or ends the turn of the peer. */
static mr_status go_on(mr_file_server *s, peer *p, bool *did, mr_err *err) {
    bool flushed = true;
    mr_status status = MR_OK;
    if (p->n_requests > 0 && !p->out)
        status = begin_turn(s, p, err);
    if (status != MR_OK || (p->n_requests > 0 && !p->out))
        return status;
    if (keeps_turn(s, p))
        return p->n_requests > 0 ? answer(s, p, did, err) : MR_OK;
    if (p->out)
        status = mr_outbox_flushed(p->out, &flushed, err);
    if (status != MR_OK || !flushed)
        return status;
    *did = *did || p->out || p->done; /* more requests may have come in the meantime */
    end_turn(s, p);
    p->done = p->done && p->n_requests > 0;
    return MR_OK;
}

/* One round with a peer: takes all requests, sends one answer. */
static bool serve_peer(mr_file_server *s, peer *p) {
    char name[MR_CHANNEL_NAME_BYTES];
    bool did = false;
    mr_err err;
    mr_status status = take_requests(s, p, &did, &err);
    if (status == MR_OK)
        status = go_on(s, p, &did, &err);
    if (status != MR_OK && status != MR_E_PEER_LOST)
        mr_log_write(MR_LOG_WARN, "worker", "%s gets no more of the model file: %s",
                     mr_channel_peer_name(s->channel, p->rank, name), err.text);
    if (status != MR_OK)
        close_peer(s, p);
    return did;
}

bool mr_file_server_serve(mr_file_server *s, int64_t budget_ns) {
    if (!s || s->n_open == 0)
        return false;
    mr_err ignored;
    int64_t end = mr_clock_now_ns() + budget_ns;
    bool any = false;
    for (;;) {
        bool did = false, waits = false;
        int32_t n_waiting = 0;
        for (int32_t i = 0; i < s->n_peers; i++) {
            peer *p = &s->peers[i];
            did = (p->in && serve_peer(s, p)) || did;
            waits = waits || p->n_requests > 0;
            n_waiting += p->n_requests > 0 && !p->out;
        }
        s->n_waiting = n_waiting;
        any = any || did;
        if (mr_clock_now_ns() >= end || (!did && !waits))
            return any;
        if (!did && mr_channel_wait(s->channel, end, &ignored) != MR_OK)
            return any;
    }
}
