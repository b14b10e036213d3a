/* coordinator/serving/api/api_call.c - the life of a call: reads the request, submits its prompts to the service, at
 * most MAX_OPEN at a time, and passes the pieces that come back to the answer. */
// SPDX-License-Identifier: Apache-2.0
#include <sys/random.h>
#include <time.h>

#include "coordinator/serving/api/api_internal.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum {
    MAX_OPEN = 64, /* open requests of the service for one call: one for each prompt */
    MAX_END_IDS = MR_SAMPLER_MAX_LATE - API_MAX_STOP_IDS,
    BUSY_RETRY_S = 1,
    UNAVAILABLE_RETRY_S = 5,
};

static mr_status read_vocabulary(mr_api *a, mr_err *err) {
    const mr_tokenizer *tok = a->config.tokenizer;
    a->longest_token_bytes = 1;
    for (int32_t id = 0; id < mr_tokenizer_n_tokens(tok); id++) {
        mr_str piece = {0};
        if (mr_tokenizer_piece(tok, id, &piece) && piece.len > a->longest_token_bytes)
            a->longest_token_bytes = piece.len;
        bool is_end = mr_tokenizer_is_end(tok, id) && id < a->config.n_vocab;
        if (is_end && a->end_ids.n < MAX_END_IDS && !mr_token_buf_push(&a->end_ids, id))
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the api");
    }
    return MR_OK;
}

mr_status mr_api_create(const mr_api_config *config, mr_api **out, mr_err *err) {
    mr_api *a = mr_alloc(sizeof *a);
    if (!a)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the api");
    a->config = *config;
    mr_status status = read_vocabulary(a, err);
    if (status == MR_OK)
        status = api_chat_open(a, err);
    if (status == MR_OK)
        *out = a;
    else
        mr_api_destroy(a);
    return status;
}

void mr_api_destroy(mr_api *a) {
    if (a)
        mr_token_buf_deinit(&a->end_ids);
    mr_free(a);
}

bool mr_api_endpoint_of(mr_str path, mr_api_endpoint *out) {
    static const struct {
        const char *path;
        mr_api_endpoint endpoint;
    } known[] = {
        {"/completions", API_COMPLETIONS}, {"/chat/completions", API_CHAT_COMPLETIONS},
        {"/embeddings", API_EMBEDDINGS},   {"/tokenize", API_TOKENIZE},
        {"/detokenize", API_DETOKENIZE},   {"/apply-template", API_APPLY_TEMPLATE},
        {"/rerank", API_RERANK},           {"/reranking", API_RERANK},
    };
    if (path.len > 3 && memcmp(path.data, "/v1", 3) == 0)
        path = (mr_str){path.data + 3, path.len - 3};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (mr_str_is(path, known[i].path)) {
            *out = known[i].endpoint;
            return true;
        }
    return false;
}

/* A prefix such as "chatcmpl-" and random letters; where there are no random bytes, letters made from the time. */
static void make_id(mr_api_call *call, const char *prefix) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    uint8_t random[API_ID_LETTERS] = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        memcpy(random, &call->begun_ns, sizeof call->begun_ns);
    size_t n = strlen(prefix);
    memcpy(call->id, prefix, n);
    for (size_t i = 0; i < API_ID_LETTERS; i++)
        call->id[n + i] = letters[random[i] & 63];
}

static void choose_seed(mr_api_call *call) {
    call->seed = (uint64_t)call->request.seed;
    if (call->request.seed == -1 && getrandom(&call->seed, sizeof call->seed, 0) != (ssize_t)sizeof call->seed)
        call->seed = (uint64_t)call->begun_ns;
}

/* Puts the prompt in front of the text of a choice, where the request has echo: as the client wrote the prompt, or
 * decoded from its ids. */
static bool begin_echo(mr_api_call *call, api_choice *c, const api_prompt *prompt) {
    if (!call->request.echo)
        return true;
    bool ok = prompt->text.data
                  ? mr_text_buf_append(&c->text, prompt->text.data, prompt->text.len)
                  : mr_tokenizer_decode(c->tokenizer, prompt->ids.ids, prompt->ids.n, 0, &c->text, NULL) == MR_OK;
    c->echo_bytes = c->text.len;
    return ok || api_no_memory(&call->error);
}

static bool make_choices(mr_api_call *call) {
    const api_request *r = &call->request;
    call->n_choices = r->n_prompts * r->n;
    call->service_requests = mr_alloc_array((size_t)r->n_prompts, sizeof *call->service_requests);
    call->choices = mr_alloc_array((size_t)call->n_choices, sizeof *call->choices);
    if (!call->service_requests || !call->choices)
        return api_no_memory(&call->error);
    for (int32_t i = 0; i < call->n_choices; i++) {
        api_choice *c = &call->choices[i];
        c->tokenizer = call->a->config.tokenizer;
        c->index = i;
        c->is_chat = r->endpoint == API_CHAT_COMPLETIONS;
        c->n_top_logprobs = r->n_logprobs;
        if (!begin_echo(call, c, &r->prompts[i / r->n]))
            return false;
    }
    return true;
}

/* Makes the error of a submit or of a sequence of this prompt the error of the call. Returns false. */
static bool fail(mr_api_call *call, int32_t prompt, mr_status status, const char *text) {
    mr_err err = {0};
    if (status == MR_E_TOO_LONG)
        return mr_api_error_too_long(&call->error, NULL, call->request.prompts[prompt].ids.n, false,
                                     mr_service_max_ids(call->a->config.service));
    mr_err_set(&err, status, "%s", text && *text ? text : mr_status_name(status));
    return mr_api_error_from(&call->error, status, &err);
}

static bool submit_one(mr_api_call *call) {
    const api_request *r = &call->request;
    const api_prompt *prompt = &r->prompts[call->n_submitted];
    mr_err err = {0};
    mr_generate_desc desc = {
        .sequence = {.prompt_ids = prompt->ids.ids,
                     .n_prompt = (int32_t)prompt->ids.n,
                     .max_tokens = r->max_tokens,
                     .sampling = r->sampling,
                     .grammar = r->grammar,
                     .grammar_bytes = r->n_grammar_bytes,
                     .priority = r->priority},
        .n_choices = r->n,
        .stops = r->stops,
        .n_stops = r->n_stops,
        .stop_ids = r->stop_ids.ids,
        .n_stop_ids = (int32_t)r->stop_ids.n,
        .ignore_end = r->ignore_end,
        .with_special = r->with_special,
        .n_logprobs = r->n_logprobs,
        .prompt_logprobs = r->echo && r->n_logprobs >= 0,
        /* After the first prompt a full queue must not refuse the rest, or the results so far would be lost. Only one
         * request of a call goes past the bound of the queue at a time. */
        .goes_on = call->n_submitted > 0 && call->n_open == 0,
        .pooling = r->pooling,
        .n_embedding = r->dimensions,
        .wake = call->wake,
        .ctx = call->ctx,
    };
    desc.sequence.sampling.seed = call->seed;
    mr_status status =
        mr_service_submit(call->a->config.service, &desc, &call->service_requests[call->n_submitted], &err);
    if (status == MR_E_BUSY && call->n_open > 0)
        return true; /* submitted later, when another request of this call has ended */
    if (status != MR_OK)
        return fail(call, call->n_submitted, status, err.text);
    call->n_submitted++;
    call->n_open++;
    return true;
}

static bool submit_some(mr_api_call *call) {
    int32_t before = -1;
    while (call->n_submitted < call->request.n_prompts && call->n_open < MAX_OPEN && call->n_submitted != before) {
        before = call->n_submitted;
        if (!submit_one(call))
            return false;
    }
    return true;
}

static bool prepare_chat(mr_api_call *call) {
    mr_text_buf prompt = {0};
    bool ok = api_chat_prepare(call, &prompt) && make_choices(call) &&
              api_chat_open_parsers(call, (mr_str){prompt.data, prompt.len});
    mr_text_buf_deinit(&prompt);
    return ok;
}

static bool prepare(mr_api_call *call) {
    const mr_api *a = call->a;
    api_request *r = &call->request;
    mr_api_error *e = &call->error;
    if (r->endpoint == API_EMBEDDINGS)
        return api_read_prompts(a, r, r->prompt, "input", e) && api_embeddings_prepare(call) && make_choices(call);
    if (r->endpoint == API_RERANK)
        return api_rerank_prepare(call) && make_choices(call);
    if (!api_read_stops(r, e) || !api_read_stop_ids(a, r, e) || !api_read_bad_words(a, r, e) ||
        !api_read_biases(a, r, e) || !api_read_breakers(a, r, e) || !api_read_constraint(r, e))
        return false;
    if (r->endpoint == API_CHAT_COMPLETIONS)
        return prepare_chat(call);
    return api_read_prompts(a, r, r->prompt, "prompt", e) && make_choices(call);
}

static bool start(mr_api_call *call, mr_str body) {
    static const char *const prefixes[] = {
        [API_COMPLETIONS] = "cmpl-", [API_CHAT_COMPLETIONS] = "chatcmpl-", [API_EMBEDDINGS] = "embd-",
        [API_TOKENIZE] = "tok-",     [API_DETOKENIZE] = "detok-",          [API_APPLY_TEMPLATE] = "templ-",
        [API_RERANK] = "rerank-",
    };
    api_request *r = &call->request;
    mr_api_endpoint endpoint = r->endpoint;
    make_id(call, prefixes[endpoint]);
    if (!api_request_read(call->a, endpoint, body, r, &call->error))
        return false;
    if (endpoint == API_TOKENIZE || endpoint == API_DETOKENIZE || endpoint == API_APPLY_TEMPLATE) {
        call->is_ready = true;
        return api_text_answer(call);
    }
    choose_seed(call);
    return prepare(call) && submit_some(call);
}

mr_api_call *mr_api_call_begin(const mr_api *a, mr_api_endpoint endpoint, mr_str body, void (*wake)(void *ctx),
                               void *ctx) {
    mr_api_call *call = mr_alloc(sizeof *call);
    if (!call)
        return NULL;
    call->a = a;
    call->wake = wake;
    call->ctx = ctx;
    call->begun_ns = mr_clock_now_ns();
    call->created_s = (int64_t)time(NULL);
    call->request.endpoint = endpoint;
    call->streams = start(call, body) && call->request.stream;
    return call;
}

static void release_all(mr_api_call *call) {
    for (int32_t i = 0; i < call->n_submitted; i++) {
        mr_request_release(call->service_requests[i]);
        call->service_requests[i] = NULL;
    }
    call->n_open = 0;
}

/* Gives the log-probabilities of a prompt to all its choices. */
static bool take_prompt(mr_api_call *call, int32_t prompt, const mr_piece *piece) {
    for (int32_t k = 0; k < call->request.n; k++)
        if (!api_choice_take_prompt(&call->choices[prompt * call->request.n + k], piece))
            return api_no_memory(&call->error);
    return true;
}

static bool take_piece(mr_api_call *call, int32_t prompt, const mr_piece *piece, mr_text_buf *out) {
    if (piece->finish == MR_FINISH_ERROR)
        return fail(call, prompt, piece->status, piece->error);
    if (piece->is_prompt)
        return take_prompt(call, prompt, piece);
    api_choice *c = &call->choices[prompt * call->request.n + piece->choice];
    if ((call->streams && !api_answer_role(call, c, out)) || !api_choice_take(c, piece))
        return api_no_memory(&call->error);
    if (call->request.endpoint == API_EMBEDDINGS)
        return api_embeddings_take(call, prompt, piece);
    if (call->request.endpoint == API_RERANK)
        api_rerank_take(call, prompt, piece);
    return !call->streams || api_answer_events(call, c, out) || api_no_memory(&call->error);
}

static bool take_request(mr_api_call *call, int32_t prompt, mr_text_buf *out) {
    mr_piece piece;
    while (mr_request_take(call->service_requests[prompt], &piece))
        if (!take_piece(call, prompt, &piece, out))
            return false;
    if (mr_request_ended(call->service_requests[prompt])) {
        mr_request_release(call->service_requests[prompt]);
        call->service_requests[prompt] = NULL;
        call->n_open--;
    }
    return true;
}

static bool take_all(mr_api_call *call, mr_text_buf *out) {
    int32_t n_submitted = 0;
    do {
        n_submitted = call->n_submitted;
        for (int32_t prompt = 0; prompt < n_submitted; prompt++)
            if (call->service_requests[prompt] && !take_request(call, prompt, out))
                return false;
        if (!submit_some(call))
            return false;
    } while (call->n_submitted > n_submitted);
    return true;
}

static void say_last(mr_api_call *call, mr_text_buf *out) {
    call->ended = true;
    if (call->streams)
        call->broken = !api_answer_last(call, out);
    else if (call->error.status)
        call->broken = !mr_api_json_write_error(&call->error, out);
    else if (call->is_ready)
        call->broken = !mr_text_buf_append(out, call->ready.data, call->ready.len);
    else if (!api_answer_whole(call, out) && api_no_memory(&call->error) == false)
        call->broken = !mr_api_json_write_error(&call->error, out);
}

mr_api_state mr_api_call_next(mr_api_call *call, mr_text_buf *out) {
    size_t before = out->len;
    if (call->ended)
        return API_END;
    if (!call->error.status && !call->is_ready && !take_all(call, out))
        release_all(call);
    if (call->error.status || call->is_ready || call->n_open == 0)
        say_last(call, out);
    return out->len > before ? API_MORE : call->ended ? API_END : API_WAIT;
}

bool mr_api_call_streams(const mr_api_call *call) {
    return call->streams;
}

int mr_api_call_status(const mr_api_call *call) {
    return call->streams || !call->error.status ? 200 : call->error.status;
}

int mr_api_call_retry_after_s(const mr_api_call *call) {
    return call->error.status == 429 ? BUSY_RETRY_S : call->error.status == 503 ? UNAVAILABLE_RETRY_S : 0;
}

bool mr_api_call_broken(const mr_api_call *call) {
    return call->broken;
}

mr_api_call_stats mr_api_call_get_stats(const mr_api_call *call) {
    mr_api_call_stats f = {.n_choices = call->n_choices,
                           .begun_ns = call->begun_ns,
                           .failed = call->error.status != 0 || call->broken,
                           .code = call->error.code};
    for (int32_t i = 0; call->choices && i < call->n_choices; i++) {
        const api_choice *c = &call->choices[i];
        if (i % call->request.n == 0) { /* choices share their prompt */
            f.prompt_tokens += (int64_t)call->request.prompts[i / call->request.n].ids.n;
            f.cached_tokens += c->n_cached;
        }
        f.generated_tokens += c->n_generated;
        if (c->first_token_ns > 0 && (f.first_token_ns == 0 || c->first_token_ns < f.first_token_ns))
            f.first_token_ns = c->first_token_ns;
    }
    return f;
}

void mr_api_call_end(mr_api_call *call) {
    if (!call)
        return;
    release_all(call);
    for (int32_t i = 0; call->choices && i < call->n_choices; i++)
        api_choice_deinit(&call->choices[i]);
    mr_free(call->choices);
    mr_free(call->service_requests);
    mr_free(call->scores);
    json_decref(call->embeddings);
    mr_text_buf_deinit(&call->ready);
    api_request_deinit(&call->request);
    mr_free(call);
}
