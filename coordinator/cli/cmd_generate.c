/* cmd_generate.c - `millrace generate`: continues prompts. This file checks the options and runs the sequences.
 * cmd_generate_prompts.c reads the prompts, cmd_generate_report.c prints the results. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/cli/cmd_generate.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/text/text_file.h"
#include "engine/vocab/vocab.h"

enum { MAX_LIVE = 256 };

/* --- Options ----------------------------------------------------------------------------------------------------- */

static mr_status check_options(generation *g, mr_err *err) {
    const mr_options *o = g->options;
    const mr_option_value *stops = &o->values[MR_OPTION_STOP];
    for (int32_t i = 0; i < stops->n; i++)
        if (!stops->list[i][0])
            return mr_err_set(err, MR_E_INVALID, "--stop: the text is empty");
    if (mr_options_number(o, MR_OPTION_N_PREDICT) == 0)
        return mr_err_set(err, MR_E_INVALID,
                          "--n-predict: 0 tokens are not allowed; hint: -1 generates until the context is full");
    g->json = mr_options_number(o, MR_OPTION_JSON) != 0;
    g->echo = mr_options_number(o, MR_OPTION_ECHO) != 0;
    g->ignore_eos = mr_options_number(o, MR_OPTION_IGNORE_EOS) != 0;
    g->logprobs = mr_options_given(o, MR_OPTION_LOGPROBS);
    if (g->logprobs && !g->json)
        return mr_err_set(err, MR_E_INVALID, "--logprobs works only with --json");
    return mr_session_sampling_init(&g->sampling, o, err);
}

static mr_status load_vocab(generation *g, mr_err *err) {
    const mr_session *s = &g->session;
    mr_status status = mr_vocab_load(s->gguf, &g->tok, err);
    if (status == MR_OK && mr_tokenizer_n_tokens(g->tok) > s->info.vocab_size)
        status = mr_err_set(err, MR_E_FORMAT,
                            "the tokenizer has %" PRId32 " tokens, but token_embd.weight has only %" PRId32 " rows",
                            mr_tokenizer_n_tokens(g->tok), s->info.vocab_size);
    if (status != MR_OK)
        mr_err_prefix(err, "%.160s", s->model_path);
    else
        status = mr_session_sampling_set_tokenizer(&g->sampling, g->options, g->tok, err);
    return status;
}

/* Reads and compiles the grammar of --grammar. Called before the model is loaded, so that errors show early. */
static mr_status read_grammar(generation *g, mr_err *err) {
    const char *path = mr_options_text(g->options, MR_OPTION_GRAMMAR);
    mr_text_buf text = {0};
    mr_grammar *grammar = NULL;
    if (!path)
        return MR_OK;
    mr_status status = mr_text_file_read(path, MR_GRAMMAR_MAX_TEXT_BYTES, &text, err);
    if (status == MR_OK) {
        status = mr_grammar_parse((mr_str){text.data, text.len}, &grammar, err);
        if (status == MR_OK)
            status = mr_grammar_pack(grammar, &g->grammar, &g->grammar_bytes, err);
        if (status != MR_OK)
            mr_err_prefix(err, "%.160s", path);
    }
    g->session.grammars = status == MR_OK;
    mr_grammar_destroy(grammar);
    mr_text_buf_deinit(&text);
    return status;
}

/* --- Tokens ------------------------------------------------------------------------------------------------------ */

static bool keep_logprobs(gen_sequence *s, const mr_token_event *event) {
    size_t at = s->ids.n - 1;
    if ((at & (at - 1)) == 0) { /* full at every power of two, and at the start */
        mr_logprobs *more = mr_realloc(s->logprobs, (at > 0 ? 2 * at : 1) * sizeof *more);
        if (!more)
            return false;
        s->logprobs = more;
    }
    mr_logprobs *l = &s->logprobs[at];
    *l = (mr_logprobs){.logprob = event->logprob, .n_top = event->n_top};
    for (int32_t i = 0; i < event->n_top; i++) {
        l->top_ids[i] = event->top_ids[i];
        l->top[i] = event->top_logprobs[i];
    }
    return true;
}

/* Adds a token to the sequence. Returns the new state of the sequence. */
static gen_finish take_token(gen_sequence *s, const mr_token_event *event, mr_err *err) {
    const generation *g = s->all;
    if (!mr_token_buf_push(&s->ids, event->id)) {
        (void)mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu token ids", s->ids.n);
        return GEN_ERROR;
    }
    if (g->logprobs && !keep_logprobs(s, event)) {
        (void)mr_err_set(err, MR_E_NO_MEMORY, "no memory for the log-probabilities of %zu tokens", s->ids.n);
        return GEN_ERROR;
    }
    if ((!g->ignore_eos || g->grammar) && mr_tokenizer_is_end(g->tok, event->id))
        return GEN_STOP;
    if (mr_output_text_push(&s->text, event->id, err) != MR_OK)
        return GEN_ERROR;
    if (s->text.stopped)
        return GEN_STOP;
    if (event->finish == MR_FINISH_LENGTH)
        return GEN_LENGTH;
    return mr_interrupt_seen() || g->out_err.status != MR_OK ? GEN_INTERRUPTED : GEN_RUNNING;
}

static void end_sequence(gen_sequence *s, gen_finish finish, const mr_err *why) {
    mr_err err;
    s->finish = finish;
    if (mr_output_text_end(&s->text, &err) != MR_OK && finish != GEN_ERROR)
        gen_fail(s, &err);
    if (s->text.stopped && s->finish != GEN_ERROR)
        s->finish = GEN_STOP; /* the end of a character completed a stop text */
    if (finish == GEN_ERROR)
        gen_fail(s, why);
}

static bool on_token(void *ctx, const mr_token_event *event) {
    gen_sequence *s = ctx;
    mr_err err = {0};
    gen_finish finish = GEN_ERROR;
    if (s->finish != GEN_RUNNING)
        return true;
    if (event->finish == MR_FINISH_ERROR)
        (void)mr_err_set(&err, event->status, "%s", event->text);
    else
        finish = take_token(s, event, &err);
    if (finish != GEN_RUNNING)
        end_sequence(s, finish, &err);
    gen_print(s->all);
    return finish != GEN_RUNNING;
}

/* --- Run --------------------------------------------------------------------------------------------------------- */

static mr_status size_session(generation *g, int32_t n_good, mr_err *err) {
    mr_session_needs needs = {0};
    int64_t limit = mr_options_given(g->options, MR_OPTION_SEQUENCES)
                        ? mr_options_number(g->options, MR_OPTION_SEQUENCES)
                        : MAX_LIVE;
    needs.max_sequences = n_good < limit ? n_good : (int32_t)limit;
    for (int32_t i = 0; i < g->n; i++) {
        const gen_sequence *s = &g->sequences[i];
        if (s->finish == GEN_ERROR)
            continue;
        int64_t tokens = mr_session_whole_blocks((int64_t)s->prompt_ids.n + s->max_tokens);
        needs.max_rows += (int64_t)s->prompt_ids.n;
        needs.kv_tokens += tokens;
        needs.min_kv_tokens = tokens > needs.min_kv_tokens ? tokens : needs.min_kv_tokens;
    }
    /* Those that wait for a place need no memory yet. */
    if (needs.kv_tokens > needs.max_sequences * needs.min_kv_tokens)
        needs.kv_tokens = needs.max_sequences * needs.min_kv_tokens;
    return mr_session_size(&g->session, &needs, err);
}

static void submit_all(generation *g) {
    for (int32_t i = 0; i < g->n; i++) {
        gen_sequence *s = &g->sequences[i];
        mr_sequence_desc desc = {.prompt_ids = s->prompt_ids.ids,
                                 .n_prompt = (int32_t)s->prompt_ids.n,
                                 .max_tokens = s->max_tokens,
                                 .sampling = g->sampling.params,
                                 .grammar = g->grammar,
                                 .grammar_bytes = g->grammar_bytes,
                                 .logprobs = g->logprobs,
                                 .n_top_logprobs =
                                     g->logprobs ? (int32_t)mr_options_number(g->options, MR_OPTION_LOGPROBS) : 0,
                                 .choice = (uint32_t)s->choice,
                                 .on_token = on_token,
                                 .ctx = s};
        mr_err err;
        int64_t sequence;
        if (s->finish == GEN_RUNNING && mr_job_submit(g->session.job, &desc, &sequence, &err) != MR_OK)
            gen_fail(s, &err);
    }
}

/* Loads the model and runs all sequences that can run. */
static mr_status run(generation *g, int32_t n_good, mr_err *err) {
    mr_status status = size_session(g, n_good, err);
    if (status == MR_OK)
        status = mr_session_start(&g->session, err);
    if (status != MR_OK)
        return status;
    mr_session_sampling_note(&g->sampling.params);
    submit_all(g);
    gen_print(g);
    status = mr_job_run(g->session.job, err);
    for (int32_t i = 0; i < g->n; i++)
        if (g->sequences[i].finish == GEN_RUNNING)
            g->sequences[i].finish = GEN_INTERRUPTED; /* by the error or the signal that ended the run */
    gen_print(g);
    return status == MR_E_CANCELLED && mr_interrupt_seen()
               ? MR_OK
               : status; /* what there is counts; outcome() says how it ended */
}

static mr_status outcome(const generation *g, mr_err *err) {
    if (g->out_err.status != MR_OK) {
        *err = g->out_err;
        return err->status;
    }
    if (mr_interrupt_seen())
        return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    for (int32_t i = 0; i < g->n; i++)
        if (g->sequences[i].finish == GEN_ERROR)
            return mr_err_set(err, MR_E_IO, "%s", ""); /* reported by gen_fail */
    return MR_OK;
}

mr_status cmd_generate(const mr_options *options, mr_err *err) {
    generation g = {.options = options};
    mr_status status = check_options(&g, err);
    if (status == MR_OK)
        status = gen_prompts_read(&g, err);
    if (status == MR_OK)
        status = mr_session_open(options, &g.session, err);
    if (status == MR_OK)
        status = load_vocab(&g, err);
    if (status == MR_OK)
        status = read_grammar(&g, err);
    if (status != MR_OK)
        goto out;
    int32_t n_good = gen_prompts_encode(&g);
    if (n_good > 0)
        status = run(&g, n_good, err);
    if (status == MR_OK && g.json)
        status = gen_print_json(&g, err);
    if (status == MR_OK && n_good > 0 && g.out_err.status == MR_OK)
        gen_note_statistics(&g);
    if (status == MR_OK && n_good > 0)
        status = mr_session_stop(&g.session, err);
    if (status == MR_OK)
        status = outcome(&g, err);
out:
    mr_session_close(&g.session);
    gen_prompts_deinit(&g);
    mr_session_sampling_deinit(&g.sampling);
    mr_free(g.grammar);
    mr_tokenizer_destroy(g.tok);
    return status;
}
