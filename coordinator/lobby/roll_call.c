// SPDX-License-Identifier: Apache-2.0
#include "coordinator/lobby/roll_call_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "proto/messages.h"

enum {
    MAX_NAMED = 8, /* ranks in one error text */
    N_PINGS = 4,
};
static const int64_t PATIENCE_NS = 5 * MR_NS_PER_S, LOOK_NS = 100 * MR_NS_PER_MS;

mr_status mr_roll_call_create(mr_channel *ch, int32_t n_ranks, mr_roll_call **out, mr_err *err) {
    const mr_msg_limits none = {0};
    size_t n = (size_t)n_ranks, arena_bytes = mr_msg_arena_bytes(&none);
    mr_roll_call *r = mr_alloc(sizeof *r);
    if (r) {
        *r = (mr_roll_call){.channel = ch, .n_ranks = n_ranks};
        r->hello = mr_alloc_array(n, sizeof(mr_inbox *));
        r->control = mr_alloc_array(n, sizeof(mr_outbox *));
        r->infos = mr_alloc_array(n, sizeof *r->infos);
        r->gone = mr_alloc_array(n, sizeof *r->gone);
    }
    mr_status status = r && r->hello && r->control && r->infos && r->gone
                           ? mr_arena_create(arena_bytes, arena_bytes, &r->arena, err)
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the lobby of %zu ranks", n);
    for (int32_t i = 0; i < n_ranks && status == MR_OK; i++) {
        status = mr_inbox_create(ch, i, MR_LINK_REPORT, 0, MR_LOBBY_SLOTS, MR_MAX_HELLO_BYTES, &r->hello[i], err);
        if (status == MR_OK)
            status =
                mr_outbox_create(ch, i, MR_LINK_CONTROL, 0, MR_LOBBY_SLOTS, MR_MAX_LOBBY_BYTES, &r->control[i], err);
    }
    if (status != MR_OK) {
        mr_roll_call_destroy(r);
        return status;
    }
    *out = r;
    return MR_OK;
}

void mr_roll_call_destroy(mr_roll_call *r) {
    if (!r)
        return;
    for (int32_t i = 0; i < r->n_ranks; i++) {
        if (r->hello)
            mr_inbox_destroy(r->hello[i]);
        if (r->control)
            mr_outbox_destroy(r->control[i]);
    }
    for (int32_t i = 0; i < r->n_ranks && r->infos; i++)
        mr_free(r->infos[i].parts);
    mr_arena_destroy(r->arena);
    mr_free(r->parts);
    mr_free(r->gone);
    mr_free(r->hello);
    mr_free(r->control);
    mr_free(r->infos);
    mr_free(r);
}

const mr_rank_info *mr_roll_call_info(const mr_roll_call *r, int32_t rank) {
    return &r->infos[rank];
}

/* --- Hello ------------------------------------------------------------------------------------------------------- */

static void note(mr_rank_info *info, const Millrace__Hello *h) {
    size_t path_len = strlen(h->model_path), cut = path_len < sizeof info->model_path ? 0 : path_len + 1;
    cut = cut ? cut - sizeof info->model_path : 0;
    *info = (mr_rank_info){.here = true,
                           .status = (mr_status)h->status,
                           .numerics = h->numerics,
                           .cores = (int32_t)h->cores,
                           .threads = (int32_t)h->threads,
                           .memory_bytes = h->memory_bytes,
                           .memory_group = h->memory_group,
                           .links = {.has_device = h->n_device_uuid > 0,
                                     .nccl_version = h->nccl_version,
                                     .device_pointers = h->device_pointers}};
    for (size_t i = 0; i < h->n_device_uuid; i++)
        info->links.uuid[i] = h->device_uuid[i];
    for (size_t i = 0; i < h->n_digest_of; i++)
        info->digest.parts[info->digest.n++] =
            (mr_digest_part){(int32_t)(h->digest_of[i] >> 8), (int32_t)(h->digest_of[i] & 255), h->digest_bits[i]};
    snprintf(info->version, sizeof info->version, "%s", h->version);
    snprintf(info->host, sizeof info->host, "%s", h->host);
    snprintf(info->isa, sizeof info->isa, "%s", h->isa);
    snprintf(info->model_path, sizeof info->model_path, "%s", h->model_path + cut);
    snprintf(info->problem, sizeof info->problem, "%s", h->text);
}

/* The next report of one rank, in the arena; NULL: none has come. */
static mr_status peek(mr_roll_call *r, int32_t rank, Millrace__Report **out, mr_err *err) {
    const mr_msg_limits none = {0};
    mr_frame frame;
    const uint8_t *payload = NULL;
    *out = NULL;
    mr_status status = mr_inbox_peek(r->hello[rank], &frame, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    return mr_msg_unpack_report(payload, frame.payload_bytes, &none, r->arena, out, err);
}

static void note_state(mr_rank_info *info, const Millrace__RankState *state) {
    info->n_signals = state->n_signals;
    if (state->question == 0)
        return;
    info->answered = state->question;
    info->memory_bytes = state->memory_bytes;
}

static void note_took(mr_rank_info *info, const Millrace__TookKv *took) {
    info->took_epoch = took->epoch;
    info->took_all = took->has_all;
}

/* Notes a report that comes when nobody waits for it. false: the report is none of these. */
static bool note_unasked(mr_roll_call *r, int32_t rank, const Millrace__Report *report) {
    if (report->body_case == MILLRACE__REPORT__BODY_STATE)
        note_state(&r->infos[rank], report->state);
    else if (report->body_case == MILLRACE__REPORT__BODY_HELD)
        roll_call_note_held(r, rank, report->held);
    else if (report->body_case == MILLRACE__REPORT__BODY_MEASURED)
        roll_call_note_measured(r, rank, report->measured);
    else if (report->body_case == MILLRACE__REPORT__BODY_TOOK_KV)
        note_took(&r->infos[rank], report->took_kv);
    else
        return false;
    return true;
}

mr_status roll_call_take(mr_roll_call *r, int32_t rank, Millrace__Report__BodyCase due, Millrace__Report **out,
                         mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    mr_status status = peek(r, rank, out, err);
    while (status == MR_OK && *out && note_unasked(r, rank, *out)) {
        status = mr_inbox_release(r->hello[rank], err);
        if (status == MR_OK)
            status = peek(r, rank, out, err);
    }
    if (status == MR_OK && !*out)
        return MR_OK;
    if (status == MR_OK && (*out)->body_case != due)
        status = mr_err_set(err, MR_E_PROTOCOL, "it sent report %d where report %d was due", (int)(*out)->body_case,
                            (int)due);
    if (status != MR_OK)
        return mr_err_prefix(err, "%s", mr_channel_peer_name(r->channel, rank, name));
    return mr_inbox_release(r->hello[rank], err);
}

static mr_status take_hello(mr_roll_call *r, int32_t rank, mr_err *err) {
    Millrace__Report *report;
    mr_status status = roll_call_take(r, rank, MILLRACE__REPORT__BODY_HELLO, &report, err);
    if (status != MR_OK || !report)
        return status;
    note(&r->infos[rank], report->hello);
    return roll_call_note_parts(r, rank, report->hello, err);
}

/* Writes the names of the ranks whose hello has come (here) or is missing. Returns how many there are. */
static int32_t name_ranks(const mr_roll_call *r, bool here, char *out, size_t size) {
    char name[MR_CHANNEL_NAME_BYTES];
    int32_t n = 0;
    size_t used = 0;
    out[0] = 0;
    for (int32_t i = 0; i < r->n_ranks; i++) {
        if (r->infos[i].here != here || ++n > MAX_NAMED)
            continue;
        int len =
            snprintf(out + used, size - used, "%s%s", used ? ", " : "", mr_channel_peer_name(r->channel, i, name));
        used = len < 0 || used + (size_t)len >= size ? size - 1 : used + (size_t)len;
    }
    if (n > MAX_NAMED && used < size)
        snprintf(out + used, size - used, " and %" PRId32 " more", n - MAX_NAMED);
    return n;
}

mr_status mr_roll_call_wait(mr_roll_call *r, int64_t deadline_ns, bool (*missing)(void *ctx, const char *ranks),
                            void *ctx, mr_err *err) {
    char names[MR_ERR_TEXT_BYTES / 2];
    for (;;) {
        mr_status status = MR_OK;
        for (int32_t i = 0; i < r->n_ranks && status == MR_OK; i++)
            if (!r->infos[i].here)
                status = take_hello(r, i, err);
        if (status != MR_OK || name_ranks(r, false, names, sizeof names) == 0)
            return status;
        int64_t now = mr_clock_now_ns(), look = now + LOOK_NS;
        if (now >= deadline_ns)
            return mr_err_set(
                err, MR_E_TIMEOUT,
                "no word from %s; hint: does the program run there, and does its network let MPI through?", names);
        if (missing && !missing(ctx, names))
            return mr_err_set(err, MR_E_CANCELLED, "%s", "");
        status = mr_channel_wait(r->channel, look < deadline_ns ? look : deadline_ns, err);
        if (status != MR_OK)
            return status;
    }
}

/* --- Checks ------------------------------------------------------------------------------------------------------ */

/* Checks that the CPUs of a rank (b) and of rank 0 (a) compute the same bits. */
static mr_status check_bits(const mr_rank_info *a, const mr_rank_info *b, mr_err *err) {
    char differ[MR_ERR_TEXT_BYTES / 2];
    if (mr_digest_compare(&a->digest, &b->digest, differ, sizeof differ) > 0)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "its CPU (%s) computes other bits than that of rank 0 (%s) in: %s; hint: another build, or a "
                          "fault of its hardware",
                          b->isa, a->isa, differ);
    if (a->digest.n != b->digest.n && b->status == MR_OK)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "it says what its CPU computes in %" PRId32 " parts, rank 0 in %" PRId32
                          "; hint: install the same version on every host",
                          b->digest.n, a->digest.n);
    return MR_OK;
}

/* Checks a rank (b) against rank 0 (a). */
static mr_status check_rank(const mr_roll_call *r, int32_t rank, mr_err *err) {
    const mr_rank_info *a = &r->infos[0], *b = &r->infos[rank];
    if (strcmp(a->version, b->version) != 0)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "it runs millrace %s, rank 0 runs %s; hint: install the same version on every host",
                          b->version, a->version);
    if (a->numerics != b->numerics)
        return mr_err_set(err, MR_E_UNSUPPORTED, "it follows numerics %" PRIu32 ", rank 0 numerics %" PRIu32,
                          b->numerics, a->numerics);
    mr_status status = check_bits(a, b, err); /* first: bits of a device that differ from those of a wrong CPU */
    if (status != MR_OK)
        return status;
    if (b->status != MR_OK)
        return mr_err_set(err, b->status, "%s", b->problem);
    return roll_call_check_parts(r, rank, err);
}

mr_status mr_roll_call_check(mr_roll_call *r, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    int32_t n_bad = 0;
    mr_status first = MR_OK;
    for (int32_t i = 0; i < r->n_ranks; i++) {
        mr_err text;
        mr_status status = check_rank(r, i, &text);
        if (status == MR_OK || n_bad++ > 0)
            continue;
        first = mr_err_set(err, status, "%s: %s", mr_channel_peer_name(r->channel, i, name), text.text);
        if (i == 0)
            return first; /* all other ranks are compared with rank 0 */
    }
    if (n_bad > 1)
        mr_err_prefix(err, "%" PRId32 " ranks cannot take part, the first is", n_bad);
    return n_bad > 0 ? first : roll_call_join_parts(r, err);
}

/* --- Messages to the ranks --------------------------------------------------------------------------------------- */

mr_status roll_call_send(mr_roll_call *r, int32_t rank, ProtobufCMessage *body, mr_err *err) {
    const Millrace__Control message = mr_msg_control_of(body);
    char name[MR_CHANNEL_NAME_BYTES];
    bool sent = false;
    int64_t deadline = mr_clock_now_ns() + PATIENCE_NS;
    r->infos[rank].held.is_due = r->infos[rank].again.is_due = false;
    mr_status status = mr_outbox_send_message(r->control[rank], &message.base, &sent, err);
    while (status == MR_OK && !sent && mr_clock_now_ns() < deadline) {
        status = mr_channel_wait(r->channel, deadline, err);
        if (status == MR_OK)
            status = mr_outbox_send_message(r->control[rank], &message.base, &sent, err);
    }
    if (status == MR_OK && !sent)
        return mr_err_set(err, MR_E_TIMEOUT, "%s does not take its messages",
                          mr_channel_peer_name(r->channel, rank, name));
    return status;
}

/* The answer's clock is compared with the middle of the round trip. */
mr_status roll_call_ping(mr_roll_call *r, int32_t rank, int64_t *out_offset_ns, int64_t *out_trip_ns, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    Millrace__Ping ping = MILLRACE__PING__INIT;
    Millrace__Report *report = NULL;
    int64_t start = mr_clock_now_ns(), deadline = start + PATIENCE_NS;
    mr_status status = roll_call_send(r, rank, &ping.base, err);
    while (status == MR_OK && !report) {
        status = roll_call_take(r, rank, MILLRACE__REPORT__BODY_PONG, &report, err);
        if (status == MR_OK && !report && mr_clock_now_ns() >= deadline)
            return mr_err_set(err, MR_E_TIMEOUT, "no answer from %s", mr_channel_peer_name(r->channel, rank, name));
        if (status == MR_OK && !report)
            status = mr_channel_wait(r->channel, deadline, err);
    }
    if (status != MR_OK)
        return status;
    int64_t end = mr_clock_now_ns();
    *out_trip_ns = end - start;
    *out_offset_ns = report->pong->clock_ns - (start + (end - start) / 2);
    return MR_OK;
}

mr_status mr_roll_call_compare_clocks(mr_roll_call *r, int32_t rank, int64_t *out_offset_ns, mr_err *err) {
    int64_t least = INT64_MAX, offset = 0, trip = 0;
    mr_status status = MR_OK;
    for (int k = 0; k < N_PINGS && status == MR_OK; k++) {
        status = roll_call_ping(r, rank, &offset, &trip, err);
        if (status == MR_OK && trip < least) {
            least = trip;
            *out_offset_ns = offset;
        }
    }
    return status;
}

mr_status mr_roll_call_start(mr_roll_call *r, int32_t rank, uint32_t epoch, mr_err *err) {
    Millrace__Start start = MILLRACE__START__INIT;
    start.epoch = epoch;
    return roll_call_send(r, rank, &start.base, err);
}

void mr_roll_call_note_gone(mr_roll_call *r, int32_t rank) {
    for (int32_t i = 0; i < r->n_gone; i++)
        if (r->gone[i] == (uint32_t)rank)
            return;
    r->gone[r->n_gone++] = (uint32_t)rank;
}

mr_status mr_roll_call_abort(mr_roll_call *r, int32_t rank, bool keeps_kv, mr_err *err) {
    Millrace__Abort abort = MILLRACE__ABORT__INIT;
    abort.keep_kv = keeps_kv;
    abort.gone = r->gone;
    abort.n_gone = (size_t)r->n_gone;
    return roll_call_send(r, rank, &abort.base, err);
}

mr_status mr_roll_call_give_kv(mr_roll_call *r, int32_t rank, const mr_kv_order *order, mr_err *err) {
    Millrace__GiveKv give = MILLRACE__GIVE_KV__INIT;
    give.kv_epoch = order->kv_epoch;
    give.epoch = order->epoch;
    give.to = (uint32_t)order->to;
    give.blocks.data = (uint8_t *)(uintptr_t)order->blocks;
    give.blocks.len = order->n_bytes;
    give.ahead = order->ahead;
    return roll_call_send(r, rank, &give.base, err);
}

mr_status mr_roll_call_take_kv(mr_roll_call *r, int32_t rank, const mr_kv_demand *demand, mr_err *err) {
    Millrace__TakeKv take = MILLRACE__TAKE_KV__INIT;
    take.kv_epoch = demand->kv_epoch;
    take.epoch = demand->epoch;
    take.from = (uint32_t)demand->from;
    take.first_layer = (uint32_t)demand->first;
    take.last_layer = (uint32_t)demand->last;
    take.n_kv_blocks = (uint32_t)demand->n_kv_blocks;
    take.kv_type = (uint32_t)demand->kv_type;
    take.n_sent_blocks = (uint32_t)demand->n_sent_blocks;
    return roll_call_send(r, rank, &take.base, err);
}

mr_status mr_roll_call_ask(mr_roll_call *r, int32_t rank, uint32_t question, mr_err *err) {
    Millrace__Abort abort = MILLRACE__ABORT__INIT;
    abort.question = question;
    r->infos[rank].held.number++; /* the rank frees its weights, so an answer under way is not true any more */
    return roll_call_send(r, rank, &abort.base, err);
}

mr_status mr_roll_call_hear(mr_roll_call *r, int32_t rank, mr_err *err) {
    Millrace__Report *report;
    for (;;) {
        mr_status status = peek(r, rank, &report, err);
        if (status != MR_OK || !report)
            return status;
        (void)note_unasked(r, rank, report);
        status = mr_inbox_release(r->hello[rank], err); /* any other report is an answer that came too late */
        if (status != MR_OK)
            return status;
    }
}

void mr_roll_call_dismiss(mr_roll_call *r, bool abandon, int64_t deadline_ns) {
    Millrace__Shutdown shutdown = MILLRACE__SHUTDOWN__INIT;
    const Millrace__Control message = mr_msg_control_of(&shutdown.base);
    mr_err ignored;
    shutdown.abandon = abandon;
    bool sent;
    for (int32_t i = 0; i < r->n_ranks; i++)
        if (mr_outbox_send_message(r->control[i], &message.base, &sent, &ignored) != MR_OK || !sent)
            continue; /* the rank is lost, or does not receive */
    for (int32_t i = 0; i < r->n_ranks; i++)
        mr_outbox_flush(r->control[i], deadline_ns);
}
