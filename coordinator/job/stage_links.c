// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/stage_links.h"

#include <string.h>

#include "engine/base/mem.h"

struct mr_stage_links {
    mr_stage_links_config config;
    size_t control_bytes;
    mr_outbox **control; /* [n_stages] */
    mr_inbox **report;   /* [n_stages] */
    mr_inbox *tokens, *logits;
    int32_t asked; /* the stage whose reports were looked at last */
    mr_arena *arena;
};

/* Adds the stage to the text of err, with its rank and host if the channel knows them. */
static mr_status of_stage(const mr_stage_links *l, int32_t stage, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    if (!l->config.channel->ops->peer_name)
        return mr_err_prefix(err, "stage %d", stage);
    return mr_err_prefix(err, "stage %d, %s", stage,
                         mr_channel_peer_name(l->config.channel, l->config.plan->stages[stage].rank, name));
}

static mr_status open_all(mr_stage_links *l, mr_err *err) {
    const mr_stage_links_config *c = &l->config;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < c->plan->n_stages && status == MR_OK; i++) {
        int32_t rank = c->plan->stages[i].rank;
        status = mr_inbox_create(c->channel, rank, MR_LINK_REPORT, c->epoch, MR_REPORT_SLOTS, MR_MAX_REPORT_BYTES,
                                 &l->report[i], err);
        if (status == MR_OK)
            status = mr_outbox_create(c->channel, rank, MR_LINK_CONTROL, c->epoch, MR_CONTROL_SLOTS, l->control_bytes,
                                      &l->control[i], err);
        if (status != MR_OK)
            of_stage(l, i, err);
    }
    return status;
}

mr_status mr_stage_links_create(const mr_stage_links_config *config, mr_stage_links **out, mr_err *err) {
    size_t n = (size_t)config->plan->n_stages, arena_bytes = mr_msg_arena_bytes(&config->limits);
    size_t control_bytes = config->control_bytes ? config->control_bytes : mr_msg_control_bytes(&config->limits);
    if (control_bytes > MR_MAX_CONTROL_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG,
                          "a sequence of %u tokens of a vocabulary of %u takes a message of %zu bytes, allowed are %d; "
                          "hint: a smaller --ctx",
                          config->limits.max_context, config->limits.n_vocab, control_bytes, MR_MAX_CONTROL_BYTES);
    mr_stage_links *l = mr_alloc(sizeof *l);
    if (l) {
        l->config = *config;
        l->control_bytes = control_bytes;
        l->control = mr_alloc_array(n, sizeof(mr_outbox *));
        l->report = mr_alloc_array(n, sizeof(mr_inbox *));
        l->arena = mr_arena_create_whole(arena_bytes);
    }
    mr_status status = l && l->control && l->report && l->arena
                           ? open_all(l, err)
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the links to %zu stages", n);
    if (status != MR_OK) {
        mr_stage_links_destroy(l);
        return status;
    }
    *out = l;
    return MR_OK;
}

mr_status mr_stage_links_of_tail(const mr_stage_links *l, mr_status status, mr_err *err) {
    return status == MR_OK ? MR_OK : of_stage(l, l->config.plan->n_stages - 1, err);
}

mr_status mr_stage_links_open_results(mr_stage_links *l, mr_err *err) {
    const mr_stage_links_config *c = &l->config;
    int32_t tail = c->plan->stages[c->plan->n_stages - 1].rank;
    mr_status status = mr_inbox_create(c->channel, tail, MR_LINK_TOKENS, c->epoch, c->ring_slots,
                                       mr_tokens_message_bytes(c->limits.max_rows), &l->tokens, err);
    if (status == MR_OK)
        status = mr_inbox_create(c->channel, tail, MR_LINK_LOGITS, c->epoch, MR_LOGITS_SLOTS,
                                 mr_logits_message_bytes(c->limits.n_vocab, c->n_embd), &l->logits, err);
    return mr_stage_links_of_tail(l, status, err);
}

void mr_stage_links_destroy(mr_stage_links *l) {
    if (!l)
        return;
    for (int32_t i = 0; i < l->config.plan->n_stages; i++) {
        if (l->control)
            mr_outbox_destroy(l->control[i]);
        if (l->report)
            mr_inbox_destroy(l->report[i]);
    }
    mr_inbox_destroy(l->tokens);
    mr_inbox_destroy(l->logits);
    mr_arena_destroy(l->arena);
    mr_free(l->control);
    mr_free(l->report);
    mr_free(l);
}

mr_status mr_stage_links_ready(mr_stage_links *l, bool *out_ready, mr_err *err) {
    bool ready = true;
    for (int32_t i = 0; i < l->config.plan->n_stages && ready; i++) {
        uint8_t *payload = NULL;
        mr_status status = mr_outbox_reserve(l->control[i], &payload, err);
        if (status != MR_OK) {
            of_stage(l, i, err);
            return status;
        }
        ready = payload != NULL;
    }
    *out_ready = ready;
    return MR_OK;
}

mr_status mr_stage_links_send(mr_stage_links *l, const Millrace__Control *message, const Millrace__Control *for_tail,
                              mr_err *err) {
    /* Each of the two messages is packed once. Further stages get a copy of the first stage's payload. */
    uint8_t *first = NULL;
    size_t bytes = 0;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < l->config.plan->n_stages && status == MR_OK; i++) {
        bool is_tail = i == l->config.plan->n_stages - 1;
        const Millrace__Control *m = is_tail && for_tail ? for_tail : message;
        uint8_t *payload = NULL;
        status = mr_outbox_reserve(l->control[i], &payload, err);
        MR_ASSERT(status != MR_OK || payload);
        if (status == MR_OK && first && m == message)
            memcpy(payload, first, bytes);
        else if (status == MR_OK)
            status = mr_msg_pack(&m->base, payload, l->control_bytes, &bytes, err);
        first = first || m != message ? first : payload;
        mr_frame frame = {.payload_bytes = bytes};
        if (status == MR_OK)
            status = mr_outbox_send(l->control[i], &frame, err);
        if (status != MR_OK)
            of_stage(l, i, err);
    }
    return status;
}

void mr_stage_links_flush(mr_stage_links *l, int64_t deadline_ns) {
    for (int32_t i = 0; i < l->config.plan->n_stages; i++)
        mr_outbox_flush(l->control[i], deadline_ns);
}

/* A stage may report about itself only. A failure is an exception: its sender may have failed before it knew its number
 * from the plan, so the number is filled in here. */
static mr_status check_sender(Millrace__Report *report, uint32_t stage, mr_err *err) {
    uint32_t named = stage;
    if (report->body_case == MILLRACE__REPORT__BODY_FAILURE)
        report->failure->stage = stage;
    else if (report->body_case == MILLRACE__REPORT__BODY_READY)
        named = report->ready->stage;
    else if (report->body_case == MILLRACE__REPORT__BODY_PROGRESS)
        named = report->progress->stage;
    else if (report->body_case == MILLRACE__REPORT__BODY_SPANS)
        named = report->spans->stage;
    else if (report->body_case == MILLRACE__REPORT__BODY_SECONDS)
        named = report->seconds->stage;
    else if (report->body_case == MILLRACE__REPORT__BODY_STEP_SUMS)
        named = report->step_sums->stage;
    else if (report->body_case == MILLRACE__REPORT__BODY_USE_COUNTS)
        named = report->use_counts->stage;
    else if (report->body_case == MILLRACE__REPORT__BODY_EXPERT_SHARE)
        named = report->expert_share->stage;
    return named == stage ? MR_OK : mr_err_set(err, MR_E_PROTOCOL, "a report in the name of stage %u", named);
}

/* The next report of one stage, NULL when there is none. */
static mr_status take_report(mr_stage_links *l, int32_t stage, Millrace__Report **out, mr_err *err) {
    mr_frame frame;
    const uint8_t *payload = NULL;
    Millrace__Report *report = NULL;
    mr_status status = mr_inbox_peek(l->report[stage], &frame, &payload, err);
    if (status == MR_OK && !payload)
        return MR_OK;
    if (status == MR_OK)
        status = mr_msg_unpack_report(payload, frame.payload_bytes, &l->config.limits, l->arena, &report, err);
    if (status == MR_OK)
        status = check_sender(report, (uint32_t)stage, err);
    if (status == MR_OK)
        status = mr_inbox_release(l->report[stage], err);
    if (status != MR_OK)
        return of_stage(l, stage, err);
    *out = report;
    return MR_OK;
}

mr_status mr_stage_links_next_report(mr_stage_links *l, Millrace__Report **out, mr_err *err) {
    mr_status lost = MR_OK;
    *out = NULL;
    for (int32_t i = 0; i < l->config.plan->n_stages && !*out; i++) {
        mr_err text;
        /* Continues after the stage of the last report, so that all stages take turns. */
        l->asked = l->asked + 1 < l->config.plan->n_stages ? l->asked + 1 : 0;
        mr_status status = take_report(l, l->asked, out, &text);
        if (status != MR_OK)
            mr_err_set(err, status, "%s", text.text);
        if (status != MR_OK && status != MR_E_PEER_LOST)
            return status;
        lost = status == MR_OK ? lost : status;
    }
    return *out ? MR_OK : lost;
}

mr_status mr_stage_links_next_tokens(mr_stage_links *l, Millrace__Tokens **out, mr_err *err) {
    mr_frame frame;
    const uint8_t *payload = NULL;
    *out = NULL;
    mr_status status = mr_inbox_peek(l->tokens, &frame, &payload, err);
    if (status == MR_OK && payload)
        status = mr_msg_unpack_tokens(payload, frame.payload_bytes, &l->config.limits, l->arena, out, err);
    if (status == MR_OK && payload)
        status = mr_inbox_release(l->tokens, err);
    return mr_stage_links_of_tail(l, status, err);
}

mr_status mr_stage_links_peek_logits(mr_stage_links *l, mr_frame *out, const float **out_logits, mr_err *err) {
    const uint8_t *payload = NULL;
    mr_status status = mr_inbox_peek(l->logits, out, &payload, err);
    *out_logits = status == MR_OK ? (const float *)payload : NULL;
    return mr_stage_links_of_tail(l, status, err);
}

mr_status mr_stage_links_release_logits(mr_stage_links *l, mr_err *err) {
    return mr_inbox_release(l->logits, err);
}
