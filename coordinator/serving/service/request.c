/* coordinator/serving/service/request.c - creates and destroys requests, and lets a reader take their output
 * while the main thread adds more. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/service/service_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* --- Parts of the output ----------------------------------------------------------------------------------------- */

static void part_deinit(output_part *p) {
    mr_text_buf_deinit(&p->text);
    mr_free(p->tokens);
    mr_free(p->top);
    *p = (output_part){0};
}

static void part_clear(output_part *p) {
    mr_text_buf_clear(&p->text);
    p->n_tokens = p->n_top = 0;
}

/* Grows *array so that it holds n items of this size. */
static bool reserve(void *array, size_t *cap, size_t n, size_t size) {
    void **at = array;
    if (n <= *cap)
        return true;
    size_t wider = *cap * 2 > n ? *cap * 2 : n + 8, bytes;
    void *p = mr_mul_size(wider, size, &bytes) ? mr_realloc(*at, bytes) : NULL;
    if (!p)
        return false;
    *at = p;
    *cap = wider;
    return true;
}

bool output_part_add_token(output_part *p, mr_piece_token token) {
    size_t n_top = (size_t)token.n_top;
    if (!reserve(&p->tokens, &p->cap_tokens, p->n_tokens + 1, sizeof *p->tokens) ||
        (n_top > 0 && !reserve(&p->top, &p->cap_top, p->n_top + n_top, sizeof *p->top)))
        return false;
    if (n_top > 0)
        memcpy(p->top + p->n_top, token.top, n_top * sizeof *p->top);
    token.top = NULL; /* set when the part is taken, because p->top may move until then */
    p->tokens[p->n_tokens++] = token;
    p->n_top += n_top;
    return true;
}

bool output_part_move(output_part *from, size_t n, output_part *to) {
    size_t n_top = 0;
    for (size_t i = 0; i < n; i++) {
        mr_piece_token token = from->tokens[i];
        token.top = token.n_top > 0 ? from->top + n_top : NULL;
        n_top += (size_t)token.n_top;
        if (!output_part_add_token(to, token))
            return false;
    }
    from->n_tokens -= n;
    from->n_top -= n_top;
    if (from->n_tokens > 0)
        memmove(from->tokens, from->tokens + n, from->n_tokens * sizeof *from->tokens);
    if (from->n_top > 0)
        memmove(from->top, from->top + n_top, from->n_top * sizeof *from->top);
    return true;
}

/* --- Create and destroy ------------------------------------------------------------------------------------------ */

/* Copies stop ids and stop texts; false: no memory, and out owns what was copied. */
static bool copy_stops(const mr_generate_desc *desc, mr_generate_desc *out) {
    int32_t *ids = mr_alloc_array((size_t)desc->n_stop_ids, sizeof *ids);
    char **stops = mr_alloc_array((size_t)desc->n_stops, sizeof *stops);
    bool ok = ids && stops;
    out->stop_ids = ids;
    out->stops = (const char *const *)stops;
    for (int32_t i = 0; i < desc->n_stop_ids && ids; i++)
        ids[i] = desc->stop_ids[i];
    for (int32_t i = 0; i < desc->n_stops && ok; i++)
        ok = (stops[i] = mr_strdup(desc->stops[i])) != NULL;
    return ok;
}

static void choice_init(mr_request *r, int32_t idx) {
    request_choice *c = &r->choices[idx];
    c->request = r;
    c->idx = idx;
    c->sequence = -1;
    c->head = (mr_piece){.choice = idx, .n_prompt = r->n_prompt, .submit_ns = mr_clock_now_ns()};
}

mr_status request_create(mr_service *service, const mr_generate_desc *desc, const mr_prefix_key *base, mr_request **out,
                         mr_err *err) {
    mr_request *r = mr_alloc(sizeof *r + (size_t)desc->n_choices * sizeof r->choices[0]);
    if (!r)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a request");
    r->service = service;
    r->desc = *desc;
    r->desc.ignore_end = desc->ignore_end && !desc->sequence.grammar; /* a grammar allows nothing after its end */
    bool kept = mr_sequence_desc_keep(&desc->sequence, base, &r->desc.sequence);
    bool copied = copy_stops(desc, &r->desc);
    r->n_prompt = desc->sequence.n_prompt;
    r->prompt_sequence = -1;
    r->n_choices = desc->n_choices;
    r->last_choice = desc->n_choices - 1;
    mr_mutex_init(&r->lock);
    mr_mutex_init(&r->wake_lock);
    for (int32_t i = 0; i < r->n_choices; i++)
        choice_init(r, i);
    if (!kept || !copied) {
        request_destroy(r);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a request of %d tokens", desc->sequence.n_prompt);
    }
    *out = r;
    return MR_OK;
}

void request_destroy(mr_request *r) {
    for (int32_t i = 0; i < r->n_choices; i++) {
        request_choice *c = &r->choices[i];
        mr_output_text_deinit(&c->text);
        part_deinit(&c->held);
        part_deinit(&c->part);
        mr_free(c->embedding);
        mr_free(c->embedding_sum);
        mr_free(c->error);
    }
    part_deinit(&r->prompt_part);
    part_deinit(&r->taken);
    mr_sequence_desc_drop(&r->desc.sequence);
    for (int32_t i = 0; i < r->desc.n_stops && r->desc.stops; i++)
        mr_free((void *)r->desc.stops[i]);
    mr_free((void *)r->desc.stops);
    mr_free((void *)r->desc.stop_ids);
    mr_mutex_deinit(&r->lock);
    mr_mutex_deinit(&r->wake_lock);
    mr_free(r);
}

/* --- The reader -------------------------------------------------------------------------------------------------- */

/* Takes the content of a part, and gives the part the memory of what was taken before. */
static void swap_parts(mr_request *r, output_part *part) {
    output_part taken = *part;
    *part = r->taken;
    r->taken = taken;
    part_clear(part);
}

static void point_at_taken(mr_request *r, mr_piece *out) {
    size_t n_top = 0;
    for (size_t i = 0; i < r->taken.n_tokens; i++) {
        mr_piece_token *token = &r->taken.tokens[i];
        token->top = token->n_top > 0 ? r->taken.top + n_top : NULL;
        n_top += (size_t)token->n_top;
    }
    out->tokens = r->taken.tokens;
    out->n_tokens = (int32_t)r->taken.n_tokens;
    out->text = (mr_str){r->taken.text.data, r->taken.text.len};
}

static request_choice *next_with_news(mr_request *r) {
    for (int32_t i = 1; i <= r->n_choices; i++) {
        request_choice *c = &r->choices[(r->last_choice + i) % r->n_choices];
        if (c->has_news)
            return c;
    }
    return NULL;
}

bool mr_request_take(mr_request *r, mr_piece *out) {
    mr_mutex_lock(&r->lock);
    request_choice *c = r->has_prompt_news ? NULL : next_with_news(r);
    bool found = r->has_prompt_news || c;
    if (r->has_prompt_news) {
        r->has_prompt_news = false;
        *out = (mr_piece){.is_prompt = true, .n_prompt = r->n_prompt, .submit_ns = r->choices[0].head.submit_ns};
        swap_parts(r, &r->prompt_part);
    } else if (c) {
        c->has_news = false;
        *out = c->head;
        out->error = c->error;
        swap_parts(r, &c->part);
        r->last_choice = c->idx;
        r->n_taken_ends += c->head.finish != MR_FINISH_NONE;
    }
    mr_mutex_unlock(&r->lock);
    if (found)
        point_at_taken(r, out);
    return found;
}

bool mr_request_ended(mr_request *r) {
    return r->n_taken_ends == r->n_choices;
}
