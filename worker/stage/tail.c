/* worker/stage/tail.c - samples the out rows of a step and sends the results. Ids go to the head first, because the
 * next step of these rows waits for them; log-probabilities are computed after that. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/tail.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* What a token was sampled from. */
typedef struct token_source {
    const mr_sequence *sequence;
    int32_t out_row;
} token_source;

struct mr_tail {
    mr_tail_config config;
    mr_sampler_scratch *scratch;
    uint64_t *mask; /* [vocabulary / 64]: a bit for each token that the grammar of this row allows */
    Millrace__Token *tokens;
    Millrace__Token **token_ptrs; /* [max_out_rows], into tokens */
    token_source *sources;        /* [max_out_rows]: source of each token */
    mr_logprobs *logprobs;        /* [max_out_rows] */
    mr_outbox *to_coordinator, *to_head, *logits_out;
};

static mr_status open_links(mr_tail *t, mr_err *err) {
    const mr_tail_config *c = &t->config;
    mr_status status = mr_outbox_create(c->channel, c->coordinator, MR_LINK_TOKENS, c->epoch, c->n_slots,
                                        mr_tokens_message_bytes(c->limits.max_rows), &t->to_coordinator, err);
    if (status == MR_OK && c->head != c->channel->self)
        status = mr_outbox_create(c->channel, c->head, MR_LINK_TOKENS, c->epoch, c->n_slots,
                                  mr_tokens_message_bytes(c->limits.max_rows), &t->to_head, err);
    if (status == MR_OK)
        status = mr_outbox_create(c->channel, c->coordinator, MR_LINK_LOGITS, c->epoch, MR_LOGITS_SLOTS,
                                  mr_logits_message_bytes(c->limits.n_vocab, c->n_embd), &t->logits_out, err);
    return status;
}

mr_status mr_tail_create(const mr_tail_config *config, mr_tail **out, mr_err *err) {
    mr_tail *t = mr_alloc(sizeof *t);
    if (!t)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the sampling stage");
    t->config = *config;
    t->mask = mr_alloc_array((config->limits.n_vocab + 63) / 64, sizeof *t->mask);
    t->tokens = mr_alloc_array(config->max_out_rows, sizeof *t->tokens);
    t->token_ptrs = mr_alloc_array(config->max_out_rows, sizeof(Millrace__Token *));
    t->sources = mr_alloc_array(config->max_out_rows, sizeof *t->sources);
    t->logprobs = mr_alloc_array(config->max_out_rows, sizeof *t->logprobs);
    mr_status status = t->mask && t->tokens && t->token_ptrs && t->sources && t->logprobs
                           ? mr_sampler_scratch_create((int32_t)config->limits.n_vocab, &t->scratch, err)
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the sampling stage");
    if (status == MR_OK)
        status = open_links(t, err);
    if (status != MR_OK) {
        mr_tail_destroy(t);
        return status;
    }
    for (uint32_t i = 0; i < config->max_out_rows; i++)
        t->token_ptrs[i] = &t->tokens[i];
    *out = t;
    return MR_OK;
}

void mr_tail_destroy(mr_tail *t) {
    if (!t)
        return;
    mr_outbox_destroy(t->to_coordinator);
    mr_outbox_destroy(t->to_head);
    mr_outbox_destroy(t->logits_out);
    mr_sampler_scratch_destroy(t->scratch);
    mr_free(t->mask);
    mr_free(t->tokens);
    mr_free(t->token_ptrs);
    mr_free(t->sources);
    mr_free(t->logprobs);
    mr_free(t);
}

/* Waits until a send buffer is free. */
static mr_status reserve(mr_tail *t, mr_outbox *out, uint8_t **payload, mr_err *err) {
    for (;;) {
        mr_status status = mr_outbox_reserve(out, payload, err);
        if (status != MR_OK || *payload)
            return status;
        if (t->config.told_to_end && t->config.told_to_end(t->config.told_to_end_ctx))
            return mr_err_set(err, MR_E_CANCELLED, "told to end");
        mr_stage_clock_enter(t->config.clock, MR_PHASE_WAIT_OUT);
        status = mr_channel_wait(t->config.channel, MR_NEVER, err);
        if (status != MR_OK)
            return status;
    }
}

/* Copies the logits of out rows [first, first + n), or hidden rows [first, first + n). */
static void copy_rows(const mr_stage *stage, bool hidden, int32_t first, int32_t n, uint8_t *to, uint32_t row_bytes) {
    for (int32_t i = first; i < first + n; i++, to += row_bytes)
        memcpy(to, hidden ? mr_stage_hidden(stage, i) : mr_stage_logits(stage, i), row_bytes);
}

/* Sends the rows of copy_rows in messages of bounded size. */
static mr_status send_rows(mr_tail *t, const mr_stage *stage, uint64_t step, bool hidden, int32_t first, int32_t n,
                           mr_err *err) {
    uint32_t columns = hidden ? t->config.n_embd : t->config.limits.n_vocab;
    uint32_t row_bytes = columns * (uint32_t)sizeof(float);
    int32_t at_once = (int32_t)mr_logits_message_rows(columns);
    mr_status status = MR_OK;
    for (int32_t done = 0; done < n && status == MR_OK;) {
        int32_t rows = n - done < at_once ? n - done : at_once;
        uint8_t *payload;
        status = reserve(t, t->logits_out, &payload, err);
        mr_stage_clock_enter(t->config.clock, MR_PHASE_WIRE);
        if (status == MR_OK)
            copy_rows(stage, hidden, first + done, rows, payload, row_bytes);
        mr_frame frame = {.step = step,
                          .rows = (uint32_t)rows,
                          .type = MR_TYPE_F32,
                          .row_bytes = row_bytes,
                          .payload_bytes = (uint64_t)rows * row_bytes};
        if (status == MR_OK)
            status = mr_outbox_send(t->logits_out, &frame, err);
        done += rows;
    }
    return status;
}

/* Samples an id and adds the id to the history of the sequence. An error fails the sequence. */
static mr_status choose(mr_tail *t, mr_sequence *s, const mr_stage *stage, int32_t out_row, int64_t position,
                        int32_t *out_id, mr_err *err) {
    mr_grammar_state *grammar = s->grammar ? s->grammar->state : NULL;
    mr_sampler_row row = {.top = mr_stage_top(stage, out_row), .mask = grammar ? t->mask : NULL, .position = position};
    if (!row.top)
        row.logits = mr_stage_logits(stage, out_row);
    int32_t id;
    mr_status status = s->grammar_status;
    if (status == MR_OK && grammar)
        status = mr_grammar_state_mask(grammar, t->mask, err);
    if (status == MR_OK)
        status = mr_sampler_sample(s->sampler, t->scratch, &row, &id, err);
    if (status == MR_OK)
        status = mr_sampler_accept(s->sampler, id, err);
    if (status == MR_OK && grammar)
        status = mr_grammar_state_accept(grammar, id, err);
    if (status == MR_OK)
        *out_id = id;
    return status;
}

/* Samples from one out row into token. An error of the row goes into token->status. */
static mr_status sample(mr_tail *t, const mr_stage *stage, mr_sequence *s, const Millrace__Run *run, int32_t out_row,
                        Millrace__Token *token, mr_err *err) {
    int32_t id = 0;
    int64_t position = (int64_t)run->first_position + run->n_rows;
    mr_stage_clock_enter(t->config.clock, MR_PHASE_SAMPLING);
    if (!s->sampler)
        return mr_err_set(err, MR_E_PROTOCOL, "slot %u was opened without sampling parameters", run->slot);
    mr_status row_status = MR_OK;
    if (mr_stage_is_synthetic(stage))
        id = mr_synthetic_id(position, (int32_t)t->config.limits.n_vocab);
    else
        row_status = choose(t, s, stage, out_row, position, &id, err);
    millrace__token__init(token);
    token->slot = run->slot;
    token->generation = run->generation;
    token->position = (uint32_t)position;
    token->id = (uint32_t)id;
    token->status = (uint32_t)row_status;
    token->mirostat_mu = mr_sampler_mirostat_mu(s->sampler);
    return MR_OK;
}

static mr_status get_logprobs(mr_tail *t, const mr_stage *stage, const token_source *from, int32_t id,
                              mr_logprobs *out) {
    const mr_top *top = mr_stage_top(stage, from->out_row);
    int32_t n_top = from->sequence->n_top_logprobs;
    if (top)
        return mr_logprobs_get_top(t->scratch, top, id, n_top, out);
    return mr_logprobs_get(t->scratch, mr_stage_logits(stage, from->out_row), (int32_t)t->config.limits.n_vocab, id,
                           n_top, out);
}

/* Adds log-probabilities to those of the n tokens whose sequences want them. */
static void add_logprobs(mr_tail *t, const mr_stage *stage, size_t n) {
    mr_stage_clock_enter(t->config.clock, MR_PHASE_SAMPLING);
    for (size_t i = 0; i < n; i++) {
        Millrace__Token *token = &t->tokens[i];
        const token_source *from = &t->sources[i];
        mr_logprobs *l = &t->logprobs[i];
        if (!from->sequence->logprobs || token->status != MR_OK || mr_stage_is_synthetic(stage))
            continue;
        if (get_logprobs(t, stage, from, (int32_t)token->id, l) == MR_OK) {
            token->logprob = l->logprob;
            token->top_ids = (uint32_t *)l->top_ids;
            token->top_logprobs = l->top;
            token->n_top_ids = token->n_top_logprobs = (size_t)l->n_top;
        }
    }
}

static mr_status send_tokens(mr_tail *t, mr_outbox *out, const Millrace__Tokens *tokens, mr_err *err) {
    uint8_t *payload;
    size_t bytes;
    mr_status status = reserve(t, out, &payload, err);
    mr_stage_clock_enter(t->config.clock, MR_PHASE_WIRE);
    if (status == MR_OK)
        status = mr_msg_pack(&tokens->base, payload, mr_tokens_message_bytes(t->config.limits.max_rows), &bytes, err);
    if (status != MR_OK)
        return status;
    mr_frame frame = {.step = tokens->step, .payload_bytes = bytes};
    return mr_outbox_send(out, &frame, err);
}

mr_status mr_tail_finish_step(mr_tail *t, const mr_stage *stage, mr_sequences *all, const Millrace__StepPlan *plan,
                              mr_err *err) {
    Millrace__Tokens tokens = MILLRACE__TOKENS__INIT;
    tokens.step = plan->step;
    tokens.tokens = t->token_ptrs;
    int32_t out_row = 0, hidden_row = 0;
    mr_status status = MR_OK;
    for (size_t i = 0; i < plan->n_runs && status == MR_OK; i++) {
        const Millrace__Run *run = plan->runs[i];
        mr_sequence *s = NULL;
        if (run->want == MILLRACE__WANT__WANT_ALL_LOGITS) {
            status = send_rows(t, stage, plan->step, false, out_row, (int32_t)run->n_rows, err);
            out_row += (int32_t)run->n_rows;
        } else if (run->want == MILLRACE__WANT__WANT_ALL_HIDDEN || run->want == MILLRACE__WANT__WANT_LAST_HIDDEN) {
            int32_t n = run->want == MILLRACE__WANT__WANT_ALL_HIDDEN ? (int32_t)run->n_rows : 1;
            status = send_rows(t, stage, plan->step, true, hidden_row, n, err);
            hidden_row += n;
        } else if (run->want == MILLRACE__WANT__WANT_TOKEN) {
            int32_t row = out_row++;
            if (mr_sequences_find(all, run->slot, run->generation, &s, NULL) != MR_OK)
                continue; /* it was closed while the step was under way, and nobody waits for the token */
            t->sources[tokens.n_tokens] = (token_source){s, row};
            Millrace__Token *token = &t->tokens[tokens.n_tokens++];
            status = sample(t, stage, s, run, row, token, err);
            if (status == MR_OK)
                mr_sequences_note_token(all, token);
        }
    }
    /* To the head first: the next step of these rows waits for the ids. */
    if (status == MR_OK && t->to_head)
        status = send_tokens(t, t->to_head, &tokens, err);
    if (status != MR_OK)
        return status;
    add_logprobs(t, stage, tokens.n_tokens);
    return send_tokens(t, t->to_coordinator, &tokens, err);
}
