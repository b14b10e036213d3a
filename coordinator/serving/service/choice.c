/* coordinator/serving/service/choice.c - turns the tokens of a request's sequences into pieces for the reader of the
 * request: the text and tokens of each choice, and log-probabilities of the prompt. The main thread runs this code. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "coordinator/serving/service/service_internal.h"
#include "engine/base/mem.h"

/* --- Pieces ------------------------------------------------------------------------------------------------------ */

/* The number of held tokens whose text has been given out; of an ended choice, all. */
static size_t tokens_out(const request_choice *c, size_t n_ready) {
    const output_part *held = &c->held;
    size_t n = 0;
    for (; n < held->n_tokens; n++) {
        bool is_last = n + 1 == held->n_tokens;
        size_t end = is_last ? c->text.text.len : held->tokens[n + 1].text_offset;
        if (!c->ended && end > n_ready)
            break;
    }
    return n;
}

/* Puts the tokens that are not in the text of an ended choice at its end. */
static void cut_tokens(request_choice *c) {
    for (size_t i = 0; i < c->held.n_tokens; i++) {
        mr_piece_token *token = &c->held.tokens[i];
        token->is_cut |= c->text.stopped && token->text_offset >= c->text.text.len;
        if (token->is_cut)
            token->text_offset = c->text.text.len;
    }
}

/* Gives the reader the text that is not held back, and its tokens. false: no memory. */
static bool pass_on(request_choice *c) {
    mr_request *r = c->request;
    size_t n_ready = r->tok ? mr_output_text_ready(&c->text) : 0;
    size_t n_bytes = n_ready > c->n_text ? n_ready - c->n_text : 0, n_tokens = tokens_out(c, n_ready);
    if (n_bytes == 0 && n_tokens == 0)
        return true;
    mr_mutex_lock(&r->lock);
    bool ok = (n_bytes == 0 || mr_text_buf_append(&c->part.text, c->text.text.data + c->n_text, n_bytes)) &&
              output_part_move(&c->held, n_tokens, &c->part);
    c->has_news = true;
    mr_mutex_unlock(&r->lock);
    c->n_text += ok ? n_bytes : 0;
    service_mark_dirty(r);
    return ok;
}

void choice_finish(request_choice *c, mr_finish how, mr_status status, const char *text) {
    mr_request *r = c->request;
    mr_err err = {0};
    if (c->ended)
        return;
    if (how != MR_FINISH_ERROR && r->tok && mr_output_text_end(&c->text, &err) != MR_OK)
        how = MR_FINISH_ERROR, status = err.status, text = err.text;
    if (how != MR_FINISH_ERROR && c->text.stopped)
        how = MR_FINISH_STOP; /* the end of a character completed a stop text */
    c->ended = true;
    c->sequence = -1;
    cut_tokens(c);
    if (!pass_on(c) && how != MR_FINISH_ERROR)
        how = MR_FINISH_ERROR, status = MR_E_NO_MEMORY, text = "no memory for the answer";
    mr_mutex_lock(&r->lock);
    c->head.finish = how;
    c->head.status = how == MR_FINISH_ERROR ? status : MR_OK;
    c->error = how == MR_FINISH_ERROR ? mr_strdup(text) : NULL; /* without memory the status has to do */
    c->has_news = true;
    mr_mutex_unlock(&r->lock);
    mr_output_text_deinit(&c->text);
    service_mark_dirty(r);
}

void request_fail(mr_request *r, mr_status status, const char *text) {
    for (int32_t i = 0; i < r->n_choices; i++)
        choice_finish(&r->choices[i], MR_FINISH_ERROR, status, text);
}

/* --- Tokens ------------------------------------------------------------------------------------------------------ */

static void note_times(request_choice *c, const mr_token_event *event) {
    mr_piece *head = &c->head;
    bool is_first = head->token_ns == 0; /* without the lock: only this thread writes head */
    int64_t before_ns = is_first ? head->submit_ns : head->token_ns;
    mr_mutex_lock(&c->request->lock);
    head->begin_ns = event->begin_ns;
    /* With prompt_logprobs, the request itself has computed the cached tokens of its choices, so none counts. */
    head->n_cached = c->request->desc.prompt_logprobs ? 0 : event->n_cached;
    if (event->finish != MR_FINISH_ERROR) {
        head->n_generated = event->n_generated;
        head->first_token_ns = head->first_token_ns ? head->first_token_ns : event->time_ns;
        head->token_ns = event->time_ns;
    }
    mr_mutex_unlock(&c->request->lock);
    if (event->finish != MR_FINISH_ERROR)
        service_note_latency(c->request->service, is_first, event->time_ns - before_ns);
}

static bool hold_token(request_choice *c, const mr_token_event *event, bool ends) {
    mr_piece_logprob top[MR_SERVICE_MAX_LOGPROBS];
    mr_piece_token token = {.id = event->id, .logprob = NAN, .text_offset = c->text.text.len, .is_cut = ends};
    if (c->request->desc.n_logprobs >= 0) {
        token.logprob = event->logprob;
        token.n_top = event->n_top;
        token.top = top;
        for (int32_t i = 0; i < event->n_top; i++)
            top[i] = (mr_piece_logprob){event->top_ids[i], event->top_logprobs[i]};
    }
    return output_part_add_token(&c->held, token);
}

/* ends: the token ends the text and is not in it. */
static mr_status push(request_choice *c, const mr_token_event *event, bool ends, mr_err *err) {
    if (!hold_token(c, event, ends))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the answer");
    if (ends)
        return MR_OK;
    mr_status status = c->request->tok ? mr_output_text_push(&c->text, event->id, err) : MR_OK;
    if (status == MR_OK && !c->text.stopped && event->finish == MR_FINISH_NONE && !pass_on(c))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the answer");
    return status;
}

static bool ends_text(const mr_request *r, int32_t id) {
    for (int32_t i = 0; i < r->desc.n_stop_ids; i++)
        if (r->desc.stop_ids[i] == id)
            return true;
    return r->tok && !r->desc.ignore_end && mr_tokenizer_is_end(r->tok, id);
}

static bool on_token(void *ctx, const mr_token_event *event) {
    request_choice *c = ctx;
    mr_err err = {0};
    note_times(c, event);
    if (event->finish == MR_FINISH_ERROR) {
        choice_finish(c, MR_FINISH_ERROR, event->status, event->text);
        return true;
    }
    bool ends = ends_text(c->request, event->id);
    if (push(c, event, ends, &err) != MR_OK)
        choice_finish(c, MR_FINISH_ERROR, err.status, err.text);
    else if (ends || c->text.stopped || event->finish != MR_FINISH_NONE)
        choice_finish(c, ends || c->text.stopped ? MR_FINISH_STOP : MR_FINISH_LENGTH, MR_OK, NULL);
    return c->ended;
}

/* --- Start and end ----------------------------------------------------------------------------------------------- */

/* The output continues the prompt. After a bos token alone, the output begins a text. */
static unsigned decode_flags(const mr_request *r) {
    bool begins = r->n_prompt == 1 && r->desc.sequence.prompt_ids[0] == mr_tokenizer_bos_id(r->tok);
    return (begins ? 0 : MR_DECODE_CONTINUES) | (r->desc.with_special ? MR_DECODE_SPECIAL : 0);
}

/* max_tokens, bounded by the room in the context. */
static int32_t most_tokens(const mr_request *r) {
    int32_t room = mr_service_max_ids(r->service) - r->n_prompt, wanted = r->desc.sequence.max_tokens;
    return wanted < 0 || wanted > room ? room : wanted;
}

static void start_choice(request_choice *c) {
    mr_request *r = c->request;
    mr_sequence_desc desc = r->desc.sequence;
    mr_err err = {0};
    desc.max_tokens = most_tokens(r);
    desc.choice = (uint32_t)c->idx;
    desc.logprobs = r->desc.n_logprobs >= 0;
    desc.n_top_logprobs = r->desc.n_logprobs > 0 ? r->desc.n_logprobs : 0;
    desc.on_token = on_token;
    desc.ctx = c;
    if (r->tok)
        mr_output_text_init(&c->text, r->tok, decode_flags(r), r->desc.stops, r->desc.n_stops);
    if (r->desc.sequence.max_tokens == 0)
        choice_finish(c, MR_FINISH_LENGTH, MR_OK, NULL);
    else if (mr_job_submit(r->job, &desc, &c->sequence, &err) != MR_OK)
        choice_finish(c, MR_FINISH_ERROR, err.status, err.text);
}

/* --- The prompt's log-probabilities ------------------------------------------------------------------------------ */

/* Adds the prompt token at position. logits: those of the position before it; NULL for the first token. */
static mr_status add_prompt_token(mr_request *r, int32_t position, const float *logits, mr_err *err) {
    mr_piece_token token = {.id = r->desc.sequence.prompt_ids[position], .logprob = NAN};
    mr_piece_logprob top[MR_SERVICE_MAX_LOGPROBS];
    mr_sampler_scratch *scratch = service_scratch(r->service, err);
    mr_logprobs all = {0};
    mr_status status = scratch ? MR_OK : MR_E_NO_MEMORY;
    if (status == MR_OK && logits)
        status = mr_logprobs_get(scratch, logits, mr_job_get_stats(r->job).n_vocab, token.id,
                                 r->desc.n_logprobs > 0 ? r->desc.n_logprobs : 0, &all);
    if (status != MR_OK)
        return mr_err_set(err, status, "%s", scratch ? "the model computed values that are not numbers" : "no memory");
    token.logprob = logits ? all.logprob : NAN;
    token.n_top = all.n_top;
    token.top = top;
    for (int32_t i = 0; i < all.n_top; i++)
        top[i] = (mr_piece_logprob){all.top_ids[i], all.top[i]};
    mr_mutex_lock(&r->lock);
    bool added = output_part_add_token(&r->prompt_part, token);
    mr_mutex_unlock(&r->lock);
    return added ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the answer");
}

/* After the last logits of the prompt, the choices start. They find the prompt in the prefix cache. */
static void on_prompt_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    mr_request *r = ctx;
    size_t n_vocab = (size_t)mr_job_get_stats(r->job).n_vocab;
    mr_err err = {0};
    mr_status status = first_position == 0 ? add_prompt_token(r, 0, NULL, &err) : MR_OK;
    for (int32_t i = 0; i < n_rows && status == MR_OK && first_position + i + 1 < r->n_prompt; i++)
        status = add_prompt_token(r, first_position + i + 1, logits + (size_t)i * n_vocab, &err);
    if (status != MR_OK) {
        request_cancel(r);
        request_fail(r, status, err.text);
    } else if (first_position + n_rows == r->n_prompt) {
        r->prompt_sequence = -1;
        r->has_prompt = true;
        mr_mutex_lock(&r->lock);
        r->has_prompt_news = true;
        mr_mutex_unlock(&r->lock);
        service_mark_dirty(r);
        service_start(r);
    }
}

static void start_prompt(mr_request *r) {
    mr_sequence_desc desc = r->desc.sequence;
    mr_err err = {0};
    desc.on_logits = on_prompt_logits;
    desc.ctx = r;
    if (mr_job_submit(r->job, &desc, &r->prompt_sequence, &err) != MR_OK)
        request_fail(r, err.status, err.text);
}

bool request_start_next(mr_request *r) {
    if (r->desc.pooling != MR_POOLING_NONE)
        request_start_embedding(r);
    else if (r->desc.prompt_logprobs && !r->has_prompt)
        start_prompt(r);
    else
        start_choice(&r->choices[r->n_started++]);
    if (r->n_started == r->n_choices)
        mr_sequence_desc_drop(&r->desc.sequence);
    return r->n_started > 0 && r->n_started < r->n_choices;
}

void request_cancel(mr_request *r) {
    if (r->prompt_sequence >= 0)
        mr_job_cancel(r->job, r->prompt_sequence);
    r->prompt_sequence = -1;
    for (int32_t i = 0; i < r->n_choices; i++) {
        if (r->choices[i].sequence >= 0)
            mr_job_cancel(r->job, r->choices[i].sequence);
        r->choices[i].sequence = -1;
    }
}
