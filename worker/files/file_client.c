/* worker/files/file_client.c - the loop of a fetch. Each block goes through the states idle, no hash, hash asked,
 * known, missing, asked, here. A round looks for some blocks in the cache, takes the answers of every source, then
 * sends requests up to a limit for each source. A source that fails is dropped, and its open requests go to other
 * sources. Where the root of a part is known, one source first gives the hashes of all blocks of the part, which have
 * to make the root. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/files/file_client_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "proto/link.h"

_Static_assert((int)MR_GGUF_PART_ALIGN == (int)MR_FILE_BLOCK_BYTES, "a part begins with a block");

enum {
    MAX_HASHES_DUE = 48,    /* so many hashes are due from a source before no more are requested: three requests */
    MAX_BLOCK_REQUESTS = 8, /* open requests to one source */
    MAX_REFUSAL_BYTES = 400,
    /* After 1 / EARLY_SHARE of patience_ns a warning comes, and where other sources are left, they get the requests. */
    EARLY_SHARE = 10,
};
static const int64_t LOOK_NS = 100 * MR_NS_PER_MS, DISK_LOOK_NS = 5 * MR_NS_PER_MS,
                     DEFAULT_PATIENCE_NS = 300 * MR_NS_PER_S, FLUSH_NS = MR_NS_PER_S;

/* Lays the parts out, and marks the blocks of those that are on this host. */
static mr_status lay_out(mr_file_client *c, mr_err *err) {
    int32_t n = c->config.n_parts;
    mr_part_place *places = mr_alloc_array((size_t)n, sizeof *places);
    uint64_t *at = mr_alloc_array((size_t)n, sizeof *at);
    mr_status status = places && at ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " parts", n);
    for (int32_t i = 0; i < n && status == MR_OK; i++)
        places[i].bytes = c->parts[i].bytes;
    if (status == MR_OK) {
        c->file_bytes = mr_part_files_layout(places, n, at);
        c->n_blocks = mr_file_n_blocks(c->file_bytes);
        c->blocks = mr_alloc_array((size_t)c->n_blocks, sizeof *c->blocks);
        if (!c->blocks)
            status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRIu64 " blocks", c->n_blocks);
    }
    for (int32_t i = 0; i < n && status == MR_OK; i++) {
        c->parts[i].first_block = at[i] / MR_FILE_BLOCK_BYTES;
        c->parts[i].end_block = c->parts[i].first_block + mr_file_n_blocks(c->parts[i].bytes);
        for (uint64_t k = c->parts[i].first_block; k < c->parts[i].end_block && c->parts[i].n_sources == 0; k++)
            c->blocks[k].state = BLOCK_HERE;
    }
    mr_free(places);
    mr_free(at);
    return status;
}

mr_status mr_file_client_create(const mr_file_client_config *config, mr_file_client **out, mr_err *err) {
    int32_t n_sources = 0;
    for (int32_t i = 0; i < config->n_parts; i++)
        n_sources = config->parts[i].n_sources > n_sources ? config->parts[i].n_sources : n_sources;
    if (n_sources < 1 || n_sources > MR_MAX_PART_SOURCES)
        return mr_err_set(err, MR_E_INVALID, "%" PRId32 " sources of a file", n_sources);
    mr_file_client *c = mr_alloc(sizeof *c);
    if (!c)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to fetch a file");
    *c = (mr_file_client){.config = *config};
    if (c->config.patience_ns == 0)
        c->config.patience_ns = DEFAULT_PATIENCE_NS;
    c->config.cache_folder = NULL; /* borrowed for this call only */
    c->parts = mr_alloc_array((size_t)config->n_parts, sizeof *c->parts);
    if (c->parts)
        c->config.parts = memcpy(c->parts, config->parts, (size_t)config->n_parts * sizeof *c->parts);
    mr_status status = c->parts ? lay_out(c, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory to fetch a file");
    if (status == MR_OK)
        status = mr_file_cache_open(config->cache_folder, c->file_bytes, config->digest, &c->cache, err);
    if (status != MR_OK) {
        mr_file_client_destroy(c);
        return status;
    }
    *out = c;
    return MR_OK;
}

void mr_file_client_destroy(mr_file_client *c) {
    if (!c)
        return;
    mr_file_cache_close(c->cache);
    mr_free(c->blocks);
    mr_free(c->parts);
    mr_free(c);
}

const char *mr_file_client_path(const mr_file_client *c) {
    return mr_file_cache_path(c->cache);
}

const mr_file_client_config *mr_file_client_get_config(const mr_file_client *c) {
    return &c->config;
}

uint64_t mr_file_client_moved_bytes(const mr_file_client *c) {
    return c->moved_bytes;
}

size_t file_client_block_bytes(const mr_file_client *c, uint64_t idx) {
    return mr_file_block_bytes(c->file_bytes, idx);
}

/* --- Sources ----------------------------------------------------------------------------------------------------- */

static void close_source(mr_file_client *c, source *s) {
    mr_inbox_destroy(s->in);
    mr_outbox_destroy(s->out);
    c->n_live -= s->in != NULL;
    s->in = NULL;
    s->out = NULL;
}

/* Opens links with the sources of a part. */
static mr_status open_sources(mr_file_client *c, const mr_file_part *part, mr_err *err) {
    mr_status status = MR_OK;
    c->n_live = 0;
    c->n_sources = part->n_sources;
    memset(c->sources, 0, sizeof c->sources);
    c->fetch = (uint32_t)mr_clock_now_ns();
    for (int32_t i = 0; i < part->n_sources && status == MR_OK; i++) {
        source *s = &c->sources[i];
        *s = (source){.rank = part->sources[i], .next_hash = c->first, .next_block = c->first};
        status = mr_inbox_create(c->config.channel, s->rank, MR_LINK_FILE_ANSWERS, 0, MR_FILE_ANSWER_SLOTS,
                                 MR_FILE_BLOCK_BYTES, &s->in, err);
        c->n_live += status == MR_OK;
        if (status == MR_OK)
            status = mr_outbox_create(c->config.channel, s->rank, MR_LINK_FILE, 0, MR_FILE_REQUEST_SLOTS,
                                      MR_MAX_FILE_REQUEST_BYTES, &s->out, err);
    }
    return status;
}

mr_status file_client_send_request(mr_file_client *c, source *s, Millrace__FileRequest__What what, uint64_t first,
                                   uint32_t n, bool *out_sent, mr_err *err) {
    Millrace__FileRequest request = MILLRACE__FILE_REQUEST__INIT;
    request.what = what;
    request.first_block = first;
    request.n_blocks = n;
    request.fetch = c->fetch;
    return mr_outbox_send_message(s->out, &request.base, out_sent, err);
}

/* Tells the sources that the fetch is over, so that the sources free their buffers. */
static void close_sources(mr_file_client *c) {
    mr_err ignored;
    bool sent = false;
    int64_t deadline = mr_clock_now_ns() + FLUSH_NS;
    for (int32_t i = 0; i < c->n_sources; i++) {
        source *s = &c->sources[i];
        if (s->out &&
            file_client_send_request(c, s, MILLRACE__FILE_REQUEST__WHAT__NO_MORE, 0, 0, &sent, &ignored) == MR_OK)
            mr_outbox_flush(s->out, deadline);
        close_source(c, s);
    }
}

void file_client_look_again(mr_file_client *c, uint64_t first) {
    for (int32_t i = 0; i < c->n_sources; i++)
        c->sources[i].next_block = c->sources[i].next_block < first ? c->sources[i].next_block : first;
}

/* Asks the rank for no further part that other ranks have, too. */
static void leave_out(mr_file_client *c, int32_t rank) {
    for (int32_t i = 0; i < c->config.n_parts; i++) {
        mr_file_part *part = &c->parts[i];
        for (int32_t k = part->n_sources - 1; k >= 0 && part->n_sources > 1; k--)
            if (part->sources[k] == rank)
                part->sources[k] = part->sources[--part->n_sources];
    }
}

/* Closes a source. Its open requests go to other sources. */
static void drop_source(mr_file_client *c, int32_t idx, mr_status status, const mr_err *why) {
    char name[MR_CHANNEL_NAME_BYTES];
    c->lost = mr_err_set(&c->lost_text, status, "%.400s", why->text);
    if (status != MR_E_PEER_LOST) /* the text of MR_E_PEER_LOST has the name already */
        mr_err_prefix(&c->lost_text, "%s", mr_channel_peer_name(c->config.channel, c->sources[idx].rank, name));
    mr_log_write(MR_LOG_DEBUG, "worker", "the fetch of the model file goes on without a source: %s", c->lost_text.text);
    if (c->n_unknown > 0 && idx == file_client_first_live(c))
        file_client_begin_proof(c);
    close_source(c, &c->sources[idx]);
    leave_out(c, c->sources[idx].rank);
    for (uint64_t i = c->first; i < c->end; i++) {
        block *b = &c->blocks[i];
        b->failed = 0; /* sources with a mismatch may be the only sources left: ask them again, for the error text */
        if (b->asked != idx || (b->state != BLOCK_HASH_ASKED && b->state != BLOCK_ASKED))
            continue;
        b->state = b->state == BLOCK_ASKED ? BLOCK_MISSING : BLOCK_NO_HASH;
    }
    file_client_look_again(c, c->first);
    for (int32_t i = 0; i < c->n_sources; i++)
        c->sources[i].next_hash = c->first;
}

/* --- Answers ----------------------------------------------------------------------------------------------------- */

mr_status file_client_unexpected(const mr_frame *f, mr_err *err) {
    return mr_err_set(err, MR_E_PROTOCOL,
                      "an answer of kind %" PRIu32 " with %" PRIu64 " bytes for block %" PRIu64
                      ", which was not asked for",
                      f->type, f->payload_bytes, f->step);
}

void file_client_note_here(mr_file_client *c, block *b) {
    b->state = BLOCK_HERE;
    c->n_missing--;
}

/* Notes a block that does not match its hash. MR_OK: another source can be asked for the block. */
static mr_status note_damaged(mr_file_client *c, int32_t idx, uint64_t block_idx, const mr_file_hash *found,
                              mr_err *err) {
    block *b = &c->blocks[block_idx];
    char giver[MR_CHANNEL_NAME_BYTES], hasher[MR_CHANNEL_NAME_BYTES], is[MR_FILE_HASH_TEXT], should[MR_FILE_HASH_TEXT];
    bool others = false;
    b->failed |= (uint8_t)(1u << idx);
    b->state = BLOCK_MISSING;
    for (int32_t i = 0; i < c->n_sources; i++)
        others = others || (c->sources[i].in && !(b->failed >> i & 1));
    file_client_look_again(c, block_idx);
    mr_channel_peer_name(c->config.channel, c->sources[idx].rank, giver);
    const char *of = "the one that it announced", *hint = "its file was changed meanwhile";
    if (b->hashed_by == NOBODY) {
        of = "that of the file that the job wants";
    } else if (b->hashed_by != idx) {
        mr_channel_peer_name(c->config.channel, c->sources[b->hashed_by].rank, hasher);
        of = hasher;
        hint = "their files differ: copy the same one to both";
    }
    mr_status status = mr_err_set(
        err, MR_E_FORMAT, "block %" PRIu64 " of the model file (SHA-256 %s...) from %s is not %s%s (%s...); hint: %s",
        block_idx, mr_file_hash_text(found, is), giver, of == hasher ? "that of " : "", of,
        mr_file_hash_text(&b->hash, should), hint);
    if (!others)
        return status;
    mr_log_write(MR_LOG_WARN, "worker", "%s", err->text);
    return MR_OK;
}

/* *out_fatal: dropping the source does not help, so the error ends the fetch. */
static mr_status take_block(mr_file_client *c, int32_t idx, const mr_frame *f, const uint8_t *payload, bool *out_fatal,
                            mr_err *err) {
    mr_file_hash found;
    if (f->step >= c->n_blocks)
        return file_client_unexpected(f, err);
    block *b = &c->blocks[f->step];
    if (b->state != BLOCK_ASKED || b->asked != idx || f->payload_bytes != file_client_block_bytes(c, f->step))
        return file_client_unexpected(f, err);
    c->sources[idx].n_block_requests--;
    c->moved_bytes += f->payload_bytes;
    *out_fatal = true;
    mr_file_hash_of(payload, (size_t)f->payload_bytes, &found);
    if (!mr_file_hash_equal(&found, &b->hash))
        return note_damaged(c, idx, f->step, &found, err);
    mr_status status = mr_file_cache_put(c->cache, f->step, payload, &b->hash, err);
    if (status != MR_OK)
        return status;
    c->done_bytes += f->payload_bytes;
    file_client_note_here(c, b);
    return MR_OK;
}

/* Turns the text of a refusal into an error. Bytes that cannot be printed become '?'. */
static mr_status refused(const mr_frame *f, const uint8_t *payload, mr_err *err) {
    char text[MAX_REFUSAL_BYTES + 1];
    size_t n = f->payload_bytes < MAX_REFUSAL_BYTES ? (size_t)f->payload_bytes : MAX_REFUSAL_BYTES;
    for (size_t i = 0; i < n; i++)
        text[i] = payload[i] >= 0x20 && payload[i] <= 0x7e ? (char)payload[i] : '?';
    text[n] = 0;
    return mr_err_set(err, MR_E_IO, "%s", text);
}

/* Takes all answers that have come from a source. An error without *out_fatal concerns this source only. */
static mr_status take_answers(mr_file_client *c, int32_t idx, bool *did, bool *out_fatal, mr_err *err) {
    for (;;) {
        mr_frame f;
        const uint8_t *payload;
        mr_status status = mr_inbox_peek(c->sources[idx].in, &f, &payload, err);
        if (status != MR_OK || !payload)
            return status;
        *did = true;
        if (f.row_bytes != c->fetch)
            status = MR_OK;
        else if (f.type == MR_FILE_ANSWER_HASHES)
            status = file_client_take_hashes(c, idx, &f, payload, err);
        else if (f.type == MR_FILE_ANSWER_BLOCK)
            status = take_block(c, idx, &f, payload, out_fatal, err);
        else
            status = f.type == MR_FILE_ANSWER_REFUSAL ? refused(&f, payload, err) : file_client_unexpected(&f, err);
        if (status != MR_OK)
            return status;
        *out_fatal = false;
        if (f.row_bytes == c->fetch)
            c->sources[idx].heard_ns = mr_clock_now_ns();
        status = mr_inbox_release(c->sources[idx].in, err);
        if (status != MR_OK)
            return status;
    }
}

/* --- Requests ---------------------------------------------------------------------------------------------------- */

/* Whether to request a missing block from this source. Not if the source has sent a wrong block before, and not if the
 * hash came from the same source while another source can be asked. */
static bool may_give(const mr_file_client *c, const block *b, int32_t idx) {
    if (b->state != BLOCK_MISSING || b->failed >> idx & 1)
        return false;
    for (int32_t i = 0; b->hashed_by == idx && i < c->n_sources; i++)
        if (i != idx && c->sources[i].in && !(b->failed >> i & 1))
            return false;
    return true;
}

static mr_status ask_for_block(mr_file_client *c, int32_t idx, bool *out_sent, mr_err *err) {
    source *s = &c->sources[idx];
    while (s->next_block < c->end && !may_give(c, &c->blocks[s->next_block], idx))
        s->next_block++;
    if (s->next_block == c->end)
        return MR_OK;
    mr_status status =
        file_client_send_request(c, s, MILLRACE__FILE_REQUEST__WHAT__BLOCK, s->next_block, 1, out_sent, err);
    if (*out_sent) {
        c->blocks[s->next_block].state = BLOCK_ASKED;
        c->blocks[s->next_block].asked = (int8_t)idx;
        s->n_block_requests++;
    }
    return status;
}

/* Whether the source has open requests. */
static bool owes(const source *s) {
    return s->n_hashes_due > 0 || s->n_block_requests > 0;
}

static mr_status ask(mr_file_client *c, int32_t idx, mr_err *err) {
    source *s = &c->sources[idx];
    bool sent = true;
    mr_status status = MR_OK;
    if (!owes(s))
        s->heard_ns = mr_clock_now_ns();
    while (status == MR_OK && sent) {
        sent = false;
        if (s->n_hashes_due < MAX_HASHES_DUE)
            status = file_client_ask_for_hashes(c, idx, &sent, err);
        if (status == MR_OK && !sent && s->n_block_requests < MAX_BLOCK_REQUESTS)
            status = ask_for_block(c, idx, &sent, err);
    }
    return status;
}

/* --- Fetch ------------------------------------------------------------------------------------------------------- */

/* Marks the blocks of the ranges, and checks that the file system has room for them. */
static mr_status note_needs(mr_file_client *c, const mr_file_range *ranges, int32_t n, mr_err *err) {
    c->done_bytes = c->total_bytes = 0;
    for (uint64_t i = 0; i < c->n_blocks; i++) {
        c->blocks[i].is_due = false;
        if (c->blocks[i].state != BLOCK_HERE)
            c->blocks[i].state = BLOCK_IDLE; /* a failed fetch leaves other states behind */
    }
    for (int32_t r = 0; r < n; r++) {
        if (ranges[r].bytes == 0)
            continue;
        if (ranges[r].at >= c->file_bytes || ranges[r].bytes > c->file_bytes - ranges[r].at)
            return mr_err_set(err, MR_E_INVALID, "a range of the model file that lies outside of it");
        uint64_t last = (ranges[r].at + ranges[r].bytes - 1) / MR_FILE_BLOCK_BYTES;
        for (uint64_t i = ranges[r].at / MR_FILE_BLOCK_BYTES; i <= last; i++) {
            if (c->blocks[i].state != BLOCK_IDLE)
                continue;
            c->blocks[i] = (block){.hash = c->blocks[i].hash, /* of a part that is proven, it stays known */
                                   .state = BLOCK_NO_HASH,
                                   .asked = NOBODY,
                                   .hashed_by = NOBODY,
                                   .is_due = true};
            if (!mr_file_cache_lists(c->cache, i))
                c->total_bytes += file_client_block_bytes(c, i);
        }
    }
    return mr_file_cache_check_room(c->cache, c->total_bytes, err);
}

/* MR_E_TIMEOUT for a source that hangs, on its disk for example. Its process may also be dead: only rank 0 hears of
 * that. The last source is given more time than others, and a warning comes long before its timeout. */
static mr_status check_heard(const mr_file_client *c, source *s, mr_err *err) {
    int64_t early_ns = c->config.patience_ns / EARLY_SHARE, patience_ns = c->config.patience_ns;
    int64_t silent_ns = mr_clock_now_ns() - s->heard_ns;
    char name[MR_CHANNEL_NAME_BYTES], next[64] = "other ranks are asked for the rest";
    if (!owes(s) || silent_ns <= early_ns)
        return MR_OK;
    if (c->n_live > 1)
        patience_ns = early_ns;
    double patience_s = (double)patience_ns / (double)MR_NS_PER_S, silent_s = (double)silent_ns / (double)MR_NS_PER_S;
    if (c->n_live == 1)
        snprintf(next, sizeof next, "it is given up after %.0f s", patience_s);
    if (!s->warned)
        mr_log_write(MR_LOG_WARN, "worker", "%s has sent nothing of the model file %.300s for %.0f s; %s",
                     mr_channel_peer_name(c->config.channel, s->rank, name), c->config.model_path, silent_s, next);
    s->warned = true;
    return silent_ns <= patience_ns
               ? MR_OK
               : mr_err_set(err, MR_E_TIMEOUT, "nothing of the model file %.300s has come for %.0f s",
                            c->config.model_path, patience_s);
}

/* One round with all sources. *did: at least one answer has come, or the cache was asked for blocks. */
static mr_status turn(mr_file_client *c, bool *did, mr_err *err) {
    *did = c->n_known > 0;
    file_client_look_up(c);
    for (int32_t i = 0; i < c->n_sources; i++) {
        bool fatal = false;
        if (!c->sources[i].in)
            continue;
        mr_status status = take_answers(c, i, did, &fatal, err);
        if (status == MR_OK)
            status = ask(c, i, err);
        if (status == MR_OK)
            status = check_heard(c, &c->sources[i], err);
        if (status != MR_OK && fatal)
            return status;
        if (status != MR_OK)
            drop_source(c, i, status, err);
    }
    return c->n_live > 0 || c->n_known > 0 || c->n_missing == 0
               ? MR_OK
               : mr_err_set(err, c->lost, "no rank is left to fetch the model file from: %s", c->lost_text.text);
}

/* What goes on between two rounds. *did becomes true if the server has sent something. */
static mr_status between_rounds(mr_file_client *c, const mr_file_wait *wait, bool *did, mr_err *err) {
    mr_channel_progress(c->config.channel); /* where a round has only hashed, no wait has moved messages */
    *did = mr_file_server_serve(c->config.server, 0) || *did;
    if (wait->progress)
        wait->progress(wait->ctx, (size_t)c->done_bytes, (size_t)c->total_bytes);
    if (wait->told_to_end && wait->told_to_end(wait->ctx))
        return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    return MR_OK;
}

/* Looks for the blocks in the cache whose hashes are known before any source is asked. */
static mr_status look_first(mr_file_client *c, const mr_file_wait *wait, mr_err *err) {
    mr_status status = MR_OK;
    bool did = false;
    c->n_sources = 0;
    while (status == MR_OK && c->n_known > 0) {
        file_client_look_up(c);
        status = between_rounds(c, wait, &did, err);
    }
    return status;
}

static mr_status run(mr_file_client *c, const mr_file_wait *wait, mr_err *err) {
    mr_status status = MR_OK;
    while (status == MR_OK && c->n_missing > 0) {
        bool did = false;
        status = turn(c, &did, err);
        int64_t now = mr_clock_now_ns();
        if (status == MR_OK)
            status = between_rounds(c, wait, &did, err);
        if (status == MR_OK && !did && c->n_missing > 0)
            status = mr_channel_wait(c->config.channel, now + LOOK_NS, err);
    }
    return status;
}

/* Fetches the marked blocks of a part. *any: there were some. */
static mr_status fetch_part(mr_file_client *c, mr_file_part *part, const mr_file_wait *wait, bool *any, mr_err *err) {
    c->part = part;
    c->first = part->first_block;
    c->end = part->end_block;
    c->n_missing = c->n_known = c->n_unknown = 0;
    c->next_known = c->end;
    for (uint64_t i = c->first; i < c->end; i++)
        c->n_missing += c->blocks[i].is_due;
    for (uint64_t i = c->first; i < c->end && part->is_proven; i++)
        if (c->blocks[i].is_due)
            file_client_note_hash(c, i);
    if (c->n_missing == 0)
        return MR_OK;
    *any = true;
    if (mr_file_hash_known(&part->root) && !part->is_proven)
        file_client_begin_proof(c);
    mr_status status = look_first(c, wait, err);
    if (status != MR_OK || c->n_missing == 0)
        return status;
    status = open_sources(c, part, err);
    if (status == MR_OK)
        status = run(c, wait, err);
    close_sources(c);
    return status;
}

mr_status mr_file_client_fetch(mr_file_client *c, const mr_file_range *ranges, int32_t n, const mr_file_wait *wait,
                               mr_err *err) {
    mr_err text;
    bool any = false;
    mr_status status = note_needs(c, ranges, n, &text);
    for (int32_t i = 0; i < c->config.n_parts && status == MR_OK; i++)
        status = fetch_part(c, &c->parts[i], wait, &any, &text);
    if (status == MR_OK && any)
        status = mr_file_cache_seal(c->cache, &text);
    if (status != MR_OK)
        mr_err_set(err, status, "%s", text.text);
    return status;
}

mr_status mr_file_client_settle(mr_file_client *c, const mr_file_wait *wait, mr_err *err) {
    for (;;) {
        bool done = false;
        mr_status status = mr_file_cache_sealed(c->cache, &done, err);
        if (status == MR_OK && !done && wait->told_to_end && wait->told_to_end(wait->ctx))
            status = mr_err_set(err, MR_E_CANCELLED, "%s", "");
        bool did = mr_file_server_serve(c->config.server, 0);
        if (status == MR_OK && !done && !did)
            status = mr_channel_wait(c->config.channel, mr_clock_now_ns() + DISK_LOOK_NS, err);
        if (status != MR_OK || done)
            return status;
    }
}
