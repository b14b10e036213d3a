// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_service.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/detok.h"

struct mr_request {
    mr_service *service;
    mr_generate_desc desc;
    int32_t *prompt;
    int32_t choice, next; /* the next piece is id `next` of this choice; -1: the piece of the prompt */
    mr_detok detok;
    mr_text_buf text; /* text of the latest piece */
    size_t text_bytes;
    mr_piece_token tokens[FAKE_MAX_TOKENS];
    mr_piece_logprob top[FAKE_MAX_TOKENS][MR_SERVICE_MAX_LOGPROBS];
    float embedding[FAKE_EMBEDDING];
};

static void copy_list(int32_t to[FAKE_MAX_LIST], const int32_t *from, int32_t n) {
    for (int32_t i = 0; i < n && i < FAKE_MAX_LIST; i++)
        to[i] = from[i];
}

mr_status mr_service_submit(mr_service *s, const mr_generate_desc *desc, mr_request **out, mr_err *err) {
    if (s->max_open > 0 && s->n_open >= s->max_open)
        return mr_err_set(err, MR_E_BUSY, "%d are waiting", s->n_open);
    bool lets_in = s->submit_status == MR_OK || (s->submit_status == MR_E_BUSY && desc->goes_on);
    if (!lets_in && s->n_submitted >= s->n_submit_ok)
        return mr_err_set(err, s->submit_status, "refused by the test");
    mr_request *r = calloc(1, sizeof *r);
    r->service = s;
    r->desc = *desc;
    r->prompt = malloc((size_t)desc->sequence.n_prompt * sizeof *r->prompt);
    memcpy(r->prompt, desc->sequence.prompt_ids, (size_t)desc->sequence.n_prompt * sizeof *r->prompt);
    r->next = desc->prompt_logprobs ? -1 : 0;
    mr_detok_init(&r->detok, s->tok, MR_DECODE_CONTINUES | (desc->with_special ? (unsigned)MR_DECODE_SPECIAL : 0U));
    s->n_submitted++;
    s->n_open++;
    s->desc = *desc;
    for (int32_t i = 0; i < desc->n_stops && i < FAKE_MAX_STOPS; i++)
        snprintf(s->stops[i], FAKE_STOP_BYTES, "%s", desc->stops[i]);
    const mr_sampling_params *p = &desc->sequence.sampling;
    for (int32_t i = 0; i < p->n_biases && i < FAKE_MAX_LIST; i++) {
        s->bias_ids[i] = p->bias_ids[i];
        s->biases[i] = p->biases[i];
    }
    copy_list(s->breakers, p->dry_breakers, p->n_dry_breakers);
    copy_list(s->stop_ids, desc->stop_ids, desc->n_stop_ids);
    copy_list(s->late_ids, p->late_ids, p->n_late_ids);
    copy_list(s->bad_words, p->bad_words, p->n_bad_words);
    snprintf(s->grammar, sizeof s->grammar, "%.*s", (int)desc->sequence.grammar_bytes,
             (const char *)desc->sequence.grammar);
    for (int32_t i = 0; i < desc->sequence.n_prompt && i < FAKE_MAX_TOKENS; i++)
        s->prompt[i] = desc->sequence.prompt_ids[i];
    *out = r;
    return MR_OK;
}

static void add_token(mr_request *r, mr_piece *out, int32_t id, float logprob) {
    if (out->n_tokens == FAKE_MAX_TOKENS)
        abort();
    mr_piece_logprob *top = r->top[out->n_tokens];
    int32_t n_top = r->desc.n_logprobs < 0 ? 0 : r->desc.n_logprobs;
    for (int32_t i = 0; i < n_top; i++)
        top[i] = (mr_piece_logprob){i == 0 ? id : i + 3, i == 0 ? logprob : -(float)INFINITY};
    r->tokens[out->n_tokens++] =
        (mr_piece_token){.id = id, .logprob = logprob, .n_top = n_top, .top = top, .text_offset = r->text_bytes};
    out->tokens = r->tokens;
}

static void take_prompt(mr_request *r, mr_piece *out) {
    out->is_prompt = true;
    for (int32_t i = 0; i < r->desc.sequence.n_prompt; i++)
        add_token(r, out, r->prompt[i], i == 0 ? (float)NAN : -0.25F);
}

/* The ids of choice k, then the end. */
static void take_id(mr_request *r, mr_piece *out) {
    const mr_service *s = r->service;
    int32_t n = s->n_ids + r->choice;
    if (r->next < n) {
        int32_t id = s->ids[r->next < s->n_ids ? r->next : s->n_ids - 1];
        r->text.len = 0;
        if (mr_detok_push(&r->detok, id, &r->text, NULL) != MR_OK) {
            out->finish = MR_FINISH_ERROR;
            out->status = MR_E_NO_MEMORY;
            return;
        }
        if (r->desc.n_logprobs >= 0)
            add_token(r, out, id, -0.5F);
        out->text = (mr_str){r->text.data ? r->text.data : "", r->text.len};
        r->text_bytes += r->text.len;
        out->n_generated = r->next + 1;
        return;
    }
    out->finish = s->finish;
    out->status = s->error;
    out->error = "broken by the test";
    out->n_generated = n;
}

static void take_embedding(mr_request *r, mr_piece *out) {
    for (int32_t i = 0; i < FAKE_EMBEDDING; i++)
        r->embedding[i] = (float)r->prompt[0] + (float)i / 8;
    out->embedding = r->embedding;
    out->n_embedding = r->desc.n_embedding > 0 ? r->desc.n_embedding : FAKE_EMBEDDING;
    out->finish = MR_FINISH_LENGTH;
}

bool mr_request_take(mr_request *r, mr_piece *out) {
    if (mr_request_ended(r) || r->service->n_takes == 0)
        return false;
    if (r->service->n_takes > 0)
        r->service->n_takes--;
    *out = (mr_piece){.choice = r->choice, .n_prompt = r->desc.sequence.n_prompt, .n_cached = 1, .submit_ns = 1000000};
    out->begin_ns = 2000000;
    out->first_token_ns = 4000000;
    out->token_ns = 9000000;
    if (r->desc.pooling != MR_POOLING_NONE)
        take_embedding(r, out);
    else if (r->next < 0)
        take_prompt(r, out);
    else
        take_id(r, out);
    r->next++;
    if (out->finish != MR_FINISH_NONE) {
        r->choice++;
        r->next = 0;
        r->text_bytes = 0;
        mr_detok_init(&r->detok, r->service->tok, r->detok.flags);
    }
    return true;
}

bool mr_request_ended(mr_request *r) {
    return r->choice == r->desc.n_choices;
}

int32_t mr_service_max_ids(mr_service *s) {
    return s->max_ids;
}

void mr_request_release(mr_request *r) {
    if (!r)
        return;
    r->service->n_open--;
    mr_text_buf_deinit(&r->text);
    free(r->prompt);
    free(r);
}
