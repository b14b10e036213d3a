/* cmd_bench.c - `millrace bench`: tokens per second of prefill and decode.
 * A prefill test is one prompt of `rows` tokens, timed until its first token is there. A decode test is sequences with a
 * prompt of one token; its clock runs from the step that brings the last of them its first token to the step that ends
 * the first of them, and the tokens of all sequences after the one step and up to the other count. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>

#include "coordinator/cmd.h"
#include "coordinator/cmd_session.h"
#include "coordinator/interrupt.h"
#include "coordinator/output.h"
#include "coordinator/output_json.h"
#include "coordinator/output_table.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum {
    SEED = 1, /* of the prompts' ids */
    WARM_UP_PREFILL = 64,
    WARM_UP_DECODE = 4, /* tokens: all graphs are built with the model, so a few do */
};

typedef struct bench_test {
    bool decode;
    int32_t rows;             /* tokens of the prompt, or tokens that each sequence generates after its first */
    int32_t sequences;        /* 1 in prefill */
    double median, low, high; /* tokens per second */
} bench_test;

typedef struct bench {
    cmd_session session;
    const mr_options *options;
    bench_test *tests;
    int32_t n, n_done;
    int32_t *ids; /* room for the longest prompt */
    double *rates;
    int32_t repeats;
} bench;

/* One run of a test. */
typedef struct bench_run {
    int32_t n_sequences, n_begun;
    int64_t start_ns, begun_ns, end_ns; /* of the run; of the step with the last first token; of the first end, or 0 */
    int64_t n_tokens;                   /* after begun_ns, up to end_ns */
    mr_err err;                         /* of the first sequence that failed; status MR_OK until then */
} bench_run;

/* --- One run ------------------------------------------------------------------------------------------------------ */

static bool on_token(void *ctx, const mr_token_event *event) {
    bench_run *r = ctx;
    if (event->finish == MR_FINISH_ERROR) {
        if (r->err.status == MR_OK)
            (void)mr_err_set(&r->err, event->status, "%s", event->text);
        return true;
    }
    if (event->n_generated == 1) {
        r->n_begun++;
        r->begun_ns = event->time_ns;
    } else if (r->n_begun == r->n_sequences && event->time_ns > r->begun_ns &&
               (r->end_ns == 0 || event->time_ns == r->end_ns)) {
        r->n_tokens++;
    }
    if (event->finish == MR_FINISH_LENGTH && r->end_ns == 0)
        r->end_ns = event->time_ns;
    return interrupt_seen();
}

static mr_status submit(bench *b, int32_t sequence, int32_t n_prompt, int32_t n_generate, bench_run *r, mr_err *err) {
    uint64_t n_vocab = (uint64_t)b->session.info.vocab_size;
    int32_t number;
    for (int32_t i = 0; i < n_prompt; i++)
        b->ids[i] = (int32_t)(mr_rng_u64(SEED, (uint64_t)sequence, (uint64_t)i) % n_vocab);
    mr_sequence_desc desc = {.prompt_ids = b->ids,
                             .n_prompt = n_prompt,
                             .max_tokens = n_generate,
                             .top_p = 1,
                             .repeat_penalty = 1,
                             .on_token = on_token,
                             .ctx = r};
    return mr_job_submit(b->session.job, &desc, &number, err);
}

static mr_status run_once(bench *b, const bench_test *t, int32_t rows, bench_run *r, mr_err *err) {
    mr_status status = interrupt_seen() ? mr_err_set(err, MR_E_CANCELLED, "%s", "") : MR_OK;
    *r = (bench_run){.n_sequences = t->sequences};
    for (int32_t i = 0; i < t->sequences && status == MR_OK; i++)
        status = t->decode ? submit(b, i, 1, rows + 1, r, err) : submit(b, i, rows, 1, r, err);
    r->start_ns = mr_clock_now_ns();
    if (status == MR_OK)
        status = mr_job_run(b->session.job, err);
    if (status == MR_OK && interrupt_seen())
        status = mr_err_set(err, MR_E_CANCELLED, "%s", "");
    if (status == MR_OK && r->err.status != MR_OK) {
        *err = r->err;
        status = err->status;
    }
    return status;
}

/* Tokens per second. */
static mr_status measure_once(bench *b, const bench_test *t, double *out_rate, mr_err *err) {
    bench_run r;
    mr_status status = run_once(b, t, t->rows, &r, err);
    if (status != MR_OK)
        return status;
    if (t->decode && r.n_tokens == 0)
        return mr_err_set(err, MR_E_INVALID,
                          "-n: with %" PRId32 " tokens the first of %" PRId32
                          " sequences ended before the last one began; hint: a larger -n",
                          t->rows, t->sequences);
    int64_t ns = t->decode ? r.end_ns - r.begun_ns : r.begun_ns - r.start_ns;
    double n = t->decode ? (double)r.n_tokens : (double)t->rows;
    *out_rate = n * (double)MR_NS_PER_S / (double)(ns > 0 ? ns : 1);
    return MR_OK;
}

/* --- A test ------------------------------------------------------------------------------------------------------- */

static int compare_rates(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(const bench *b, bench_test *t) {
    size_t n = (size_t)b->repeats;
    qsort(b->rates, n, sizeof *b->rates, compare_rates);
    t->low = b->rates[0];
    t->high = b->rates[n - 1];
    t->median = (b->rates[(n - 1) / 2] + b->rates[n / 2]) / 2;
}

static void note(const bench_test *t) {
    if (t->decode)
        output_note("decode of %" PRId32 " tokens, %" PRId32 " at once: %.1f tokens/s", t->rows, t->sequences,
                    t->median);
    else
        output_note("prefill of %" PRId32 " tokens: %.1f tokens/s", t->rows, t->median);
}

static mr_status run_test(bench *b, bench_test *t, mr_err *err) {
    int32_t warm_up = t->decode ? WARM_UP_DECODE : WARM_UP_PREFILL;
    bench_run r;
    mr_status status = run_once(b, t, t->rows < warm_up ? t->rows : warm_up, &r, err);
    for (int32_t i = 0; i < b->repeats && status == MR_OK; i++)
        status = measure_once(b, t, &b->rates[i], err);
    if (status != MR_OK)
        return status;
    summarise(b, t);
    note(t);
    b->n_done++;
    return MR_OK;
}

/* --- Options ------------------------------------------------------------------------------------------------------ */

/* The length that a list asks for; a default shrinks to what the context holds beside `more` tokens. */
static mr_status fit(const bench *b, mr_option_id id, int32_t wanted, int32_t more, int32_t *out, mr_err *err) {
    const cmd_session *s = &b->session;
    int32_t room = s->ctx > more ? s->ctx - more : 0;
    if (wanted > room && mr_options_given(b->options, id))
        return mr_err_set(err, MR_E_INVALID,
                          "-%c: %" PRId32 " tokens and %" PRId32 " more do not fit the context of %" PRId32 "%s",
                          mr_option_spec_of(id)->letter, wanted, more, s->ctx,
                          s->ctx < s->info.context_length ? "; hint: a larger --ctx" : "");
    *out = wanted < room ? wanted : room;
    return MR_OK;
}

static mr_status list_prefill(bench *b, mr_err *err) {
    const mr_option_value *p = &b->options->values[MR_OPTION_BENCH_PREFILL];
    for (int32_t i = 0; i < p->n; i++) {
        bench_test *t = &b->tests[b->n];
        *t = (bench_test){.sequences = 1};
        mr_status status = fit(b, MR_OPTION_BENCH_PREFILL, p->ints[i], 1, &t->rows, err);
        if (status != MR_OK)
            return status;
        b->n += t->rows > 0;
    }
    return MR_OK;
}

static mr_status list_decode(bench *b, mr_err *err) {
    const mr_option_value *n = &b->options->values[MR_OPTION_BENCH_DECODE];
    const mr_option_value *batch = &b->options->values[MR_OPTION_BENCH_BATCH];
    for (int32_t i = 0; i < n->n * batch->n; i++) {
        bench_test *t = &b->tests[b->n];
        *t = (bench_test){.decode = true, .sequences = batch->ints[i % batch->n]};
        mr_status status = fit(b, MR_OPTION_BENCH_DECODE, n->ints[i / batch->n], 2, &t->rows, err);
        if (status != MR_OK)
            return status;
        b->n += t->rows > 0;
    }
    return MR_OK;
}

static mr_status list_tests(bench *b, mr_err *err) {
    const mr_option_value *v = b->options->values;
    int32_t most = v[MR_OPTION_BENCH_PREFILL].n + v[MR_OPTION_BENCH_DECODE].n * v[MR_OPTION_BENCH_BATCH].n;
    b->repeats = (int32_t)mr_options_number(b->options, MR_OPTION_REPEAT);
    b->tests = mr_alloc_array((size_t)most, sizeof *b->tests);
    b->rates = mr_alloc_array((size_t)b->repeats, sizeof *b->rates);
    if (!b->tests || !b->rates)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " tests", most);
    mr_status status = list_prefill(b, err);
    if (status == MR_OK)
        status = list_decode(b, err);
    if (status == MR_OK && b->n == 0)
        status = mr_err_set(err, MR_E_INVALID, "-p and -n leave no test to run");
    return status;
}

/* --- The session -------------------------------------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* One session for all tests. Every sequence of a test has to be live at once, so the KV cache cannot be smaller. */
static mr_status start(bench *b, mr_err *err) {
    cmd_session_needs needs = {.max_sequences = 1};
    int32_t longest = 1;
    int64_t chunk = b->session.chunk;
    for (int32_t i = 0; i < b->n; i++) {
        const bench_test *t = &b->tests[i];
        int32_t n_prompt = t->decode ? 1 : t->rows, n_tokens = t->decode ? t->rows + 2 : t->rows + 1;
        if (t->sequences > chunk && mr_options_given(b->options, MR_OPTION_CHUNK))
            return mr_err_set(err, MR_E_INVALID,
                              "-b: %" PRId32 " sequences are more than the %" PRId64
                              " rows of a step; hint: a larger --chunk",
                              t->sequences, chunk);
        longest = (int32_t)larger(longest, n_prompt);
        needs.max_rows = larger(needs.max_rows, (int64_t)n_prompt * t->sequences);
        needs.max_sequences = (int32_t)larger(needs.max_sequences, t->sequences);
        needs.kv_tokens = larger(needs.kv_tokens, t->sequences * cmd_session_whole_blocks(n_tokens));
    }
    needs.min_kv_tokens = needs.kv_tokens;
    b->ids = mr_alloc_array((size_t)longest, sizeof *b->ids);
    if (!b->ids)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a prompt of %" PRId32 " tokens", longest);
    mr_status status = cmd_session_size(&b->session, &needs, err);
    return status == MR_OK ? cmd_session_start(&b->session, err) : status;
}

/* --- Results ------------------------------------------------------------------------------------------------------ */

static const char *test_name(const bench_test *t) {
    return t->decode ? "decode" : "prefill";
}

static double first_token_ms(const bench_test *t) {
    return 1e3 * t->rows / t->median;
}

static json_t *test_json(const bench *b, const bench_test *t) {
    json_t *o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:i}", "test", test_name(t), "rows", t->rows,
                          "sequences", t->sequences, "threads", b->session.threads, "stages", b->session.plan.n_stages,
                          "tokens_per_second", t->median, "min", t->low, "max", t->high, "repeats", b->repeats);
    if (o && !t->decode && json_object_set_new(o, "time_to_first_token_ms", json_real(first_token_ms(t))) != 0)
        return json_decref(o), NULL;
    return o;
}

static mr_status print_json(const bench *b, mr_err *err) {
    json_t *root = json_array();
    for (int32_t i = 0; i < b->n_done && root; i++) {
        if (json_array_append_new(root, test_json(b, &b->tests[i])) != 0) {
            json_decref(root);
            root = NULL;
        }
    }
    return output_json_print(root, err);
}

static void add_row(const bench *b, const bench_test *t, output_table *table) {
    output_table_cell(table, "%s", test_name(t));
    output_table_cell(table, "%" PRId32, t->rows);
    output_table_cell(table, "%" PRId32, t->sequences);
    output_table_cell(table, "%" PRId32, b->session.threads);
    output_table_cell(table, "%" PRId32, b->session.plan.n_stages);
    output_table_cell(table, "%.1f", t->median);
    output_table_cell(table, "%.1f to %.1f", t->low, t->high);
    if (t->decode)
        output_table_cell(table, "-");
    else
        output_table_cell(table, "%.1f ms", first_token_ms(t));
}

static mr_status print_table(const bench *b, mr_err *err) {
    static const char *const HEADS[] = {"test",   "rows",     "sequences", "threads",
                                        "stages", "tokens/s", "spread",    "first token"};
    output_table table = {.align = "lrrrrrrr"};
    mr_text_buf text = {0};
    for (size_t i = 0; i < sizeof HEADS / sizeof HEADS[0]; i++)
        output_table_cell(&table, "%s", HEADS[i]);
    for (int32_t i = 0; i < b->n_done; i++)
        add_row(b, &b->tests[i], &table);
    mr_status status = output_table_print(&table, &text, err);
    if (status == MR_OK)
        status = output_write(text.data, text.len, err);
    mr_text_buf_deinit(&text);
    output_table_deinit(&table);
    return status;
}

/* An interrupted benchmark prints the tests that it has done. */
static mr_status run_all(bench *b, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < b->n && status == MR_OK; i++)
        status = run_test(b, &b->tests[i], err);
    if (status != MR_OK && status != MR_E_CANCELLED)
        return status;
    mr_status printed = mr_options_number(b->options, MR_OPTION_BENCH_JSON) ? print_json(b, err) : print_table(b, err);
    return printed == MR_OK ? status : printed;
}

mr_status cmd_bench(const mr_options *options, mr_err *err) {
    bench b = {.options = options};
    mr_status status = cmd_session_open(options, &b.session, err);
    if (status == MR_OK)
        status = list_tests(&b, err);
    if (status == MR_OK)
        status = start(&b, err);
    if (status == MR_OK)
        status = run_all(&b, err);
    if (status == MR_OK)
        status = cmd_session_stop(&b.session, err);
    cmd_session_close(&b.session);
    mr_free(b.tests);
    mr_free(b.rates);
    mr_free(b.ids);
    return status;
}
