/* Prints the output of `millrace generate`: the texts while they are generated, the JSON object, and the statistics. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "coordinator/cli/cmd_generate.h"
#include "coordinator/console/output.h"
#include "coordinator/session/output_json.h"
#include "engine/base/clock.h"

static void put(generation *g, const char *bytes, size_t n) {
    if (g->out_err.status == MR_OK && n > 0 && mr_output_write(bytes, n, &g->out_err) != MR_OK)
        g->printing = g->n; /* nothing more can be printed */
}

static void begin(generation *g, const gen_sequence *s) {
    char header[64];
    int n = 0;
    if (g->n_choices > 1)
        n = snprintf(header, sizeof header, "== prompt %" PRId32 ", choice %" PRId32 "\n", s->prompt_idx + 1,
                     s->choice + 1);
    else if (g->n > 1)
        n = snprintf(header, sizeof header, "== prompt %" PRId32 "\n", s->prompt_idx + 1);
    put(g, header, (size_t)n);
    if (g->echo)
        put(g, s->prompt.data, s->prompt.len);
    g->begun = true;
}

void gen_print(generation *g) {
    while (!g->json && g->printing < g->n) {
        gen_sequence *s = &g->sequences[g->printing];
        bool nothing = s->finish == GEN_ERROR && s->text.text.len == 0;
        if (!g->begun && !(nothing && g->n == 1))
            begin(g, s);
        size_t ready = mr_output_text_ready(&s->text);
        if (ready > s->n_printed)
            put(g, s->text.text.data + s->n_printed, ready - s->n_printed);
        s->n_printed = ready;
        if (s->finish == GEN_RUNNING)
            return;
        if (g->begun)
            put(g, "\n", 1);
        g->begun = false;
        g->printing++;
    }
}

static const char *finish_name(gen_finish finish) {
    static const char *const NAMES[] = {[GEN_RUNNING] = "interrupted",
                                        [GEN_STOP] = "stop",
                                        [GEN_LENGTH] = "length",
                                        [GEN_INTERRUPTED] = "interrupted",
                                        [GEN_ERROR] = "error"};
    return NAMES[finish];
}

/* The log-probability as JSON. JSON has no infinities, so a token with probability 0 gets null. */
static json_t *logprob_json(float logprob) {
    return logprob == -INFINITY ? json_null() : json_real((double)logprob);
}

static json_t *logprobs_json(const gen_sequence *s) {
    json_t *all = json_array();
    for (size_t i = 0; i < s->ids.n && all; i++) {
        const mr_logprobs *l = &s->logprobs[i];
        json_t *top = json_array();
        for (int32_t k = 0; k < l->n_top; k++)
            json_array_append_new(top,
                                  json_pack("{s:i, s:o}", "id", l->top_ids[k], "logprob", logprob_json(l->top[k])));
        json_t *o = json_pack("{s:i, s:o, s:o}", "id", s->ids.ids[i], "logprob", logprob_json(l->logprob), "top", top);
        if (json_array_append_new(all, o) != 0)
            return json_decref(all), NULL;
    }
    return all;
}

static json_t *sequence_json(const gen_sequence *s) {
    json_t *ids = json_array();
    for (size_t i = 0; i < s->ids.n; i++)
        if (json_array_append_new(ids, json_integer(s->ids.ids[i])) != 0)
            return json_decref(ids), NULL;
    json_t *o = json_pack("{s:o, s:o, s:o, s:s}", "prompt", mr_output_json_text(s->prompt), "ids", ids, "text",
                          mr_output_json_text((mr_str){s->text.text.data, s->text.text.len}), "finish_reason",
                          finish_name(s->finish));
    if (o && s->all->n_choices > 1 && json_object_set_new(o, "choice", json_integer(s->choice)) != 0)
        return json_decref(o), NULL;
    if (o && s->all->logprobs && json_object_set_new(o, "logprobs", logprobs_json(s)) != 0)
        return json_decref(o), NULL;
    if (o && s->finish == GEN_ERROR && json_object_set_new(o, "error", json_string(s->err.text)) != 0)
        return json_decref(o), NULL;
    return o;
}

static double milliseconds(int64_t ns) {
    return (double)ns / (double)MR_NS_PER_MS;
}

static double rate(int64_t n, int64_t ns) {
    return ns > 0 ? (double)n * (double)MR_NS_PER_S / (double)ns : 0;
}

static mr_job_timings timings_of(const generation *g) {
    return g->session.job ? mr_job_get_timings(g->session.job) : (mr_job_timings){0};
}

mr_status gen_print_json(const generation *g, mr_err *err) {
    mr_job_timings t = timings_of(g);
    json_t *sequences = json_array();
    for (int32_t i = 0; i < g->n && sequences; i++) {
        if (json_array_append_new(sequences, sequence_json(&g->sequences[i])) != 0) {
            json_decref(sequences);
            sequences = NULL;
        }
    }
    json_t *prefill = t.waited ? json_null() : json_real(rate(t.prefill_tokens, t.prefill_ns));
    json_t *root = json_pack("{s:o, s:{s:f, s:f, s:o, s:f}, s:I, s:o}", "sequences", sequences, "timings", "load_ms",
                             milliseconds(g->session.load_ns), "time_to_first_token_ms", milliseconds(t.first_token_ns),
                             "prefill_tokens_per_second", prefill, "decode_tokens_per_second",
                             rate(t.decode_tokens, t.decode_ns), "seed", (json_int_t)g->sampling.params.seed, "plan",
                             mr_output_json_plan(&g->session.plan, g->session.sizes, &g->session.cluster));
    return mr_output_json_print(root, err);
}

/* The predicted tokens per second, as if all sequences decoded together to their end; 0: not known. */
static double expected_rate(const generation *g) {
    int32_t n = g->n < g->session.max_sequences ? g->n : g->session.max_sequences;
    mr_job_timings t = mr_job_get_timings(g->session.job);
    int64_t tokens = (t.prefill_tokens + t.cached_tokens) / (g->n > 0 ? g->n : 1);
    for (int32_t i = 0; i < g->n; i++)
        tokens += (int64_t)g->sequences[i].ids.n / 2 / g->n;
    return g->n > 0 ? mr_session_facts_decode_rate(&g->session, n, (int32_t)tokens) : 0;
}

void gen_note_statistics(const generation *g) {
    mr_job_timings t = timings_of(g);
    size_t n_generated = 0;
    for (int32_t i = 0; i < g->n; i++)
        n_generated += g->sequences[i].ids.n;
    if (t.first_token_ns == 0) /* the run ended before its first token */
        return;
    if (t.waited) /* sequences waited for a slot, so the time to their first token is not only prefill */
        mr_output_note("prefill: %" PRId64 " tokens; first token after %.0f ms", t.prefill_tokens,
                       milliseconds(t.first_token_ns));
    else
        mr_output_note("prefill: %" PRId64 " tokens, %s tokens/s; first token after %.0f ms", t.prefill_tokens,
                       mr_output_rounded(rate(t.prefill_tokens, t.prefill_ns), (char[OUTPUT_ROUNDED_TEXT]){0}),
                       milliseconds(t.first_token_ns));
    if (t.cached_tokens > 0)
        mr_output_note("shared: %" PRId64 " prompt tokens, computed once for prompts that begin alike",
                       t.cached_tokens);
    double expected = expected_rate(g);
    char decoded[OUTPUT_ROUNDED_TEXT], wanted[OUTPUT_ROUNDED_TEXT];
    if (t.decode_ns == 0 || t.decode_tokens == 0)
        mr_output_note("decode: %zu tokens", n_generated);
    else if (expected > 0)
        mr_output_note("decode: %zu tokens, %s tokens/s, expected were %s", n_generated,
                       mr_output_rounded(rate(t.decode_tokens, t.decode_ns), decoded),
                       mr_output_rounded(expected, wanted));
    else
        mr_output_note("decode: %zu tokens, %s tokens/s", n_generated,
                       mr_output_rounded(rate(t.decode_tokens, t.decode_ns), decoded));
}
