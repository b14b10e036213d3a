/* cmd_bench.c - `millrace bench`: measures the tokens per second of prefill and decode, and compares them with the
 * limits of the machine. bench.h defines the tests. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "coordinator/cli/bench/bench.h"
#include "coordinator/cli/cmd.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/session/session.h"
#include "engine/base/mem.h"

enum {
    WARM_UP_PREFILL = 64,
    WARM_UP_DECODE = 4, /* tokens; a few are enough, because all graphs are built when the model is loaded */
};

/* All tests, and the session for one number of threads. */
typedef struct bench {
    mr_options options; /* the options of the user, with that number of threads; the lists are borrowed */
    mr_session session;
    bench_work work;
    mr_cpu_limits limits; /* zeros: not known */
    bench_test *tests;
    int32_t n, n_done; /* tests of all sessions so far */
    int32_t *ids;      /* a buffer for the longest prompt of the session */
    bench_sample *samples;
    int32_t repeats;
    bench_run run;
} bench;

/* --- A test ------------------------------------------------------------------------------------------------------ */

static int compare_rates(const void *a, const void *b) {
    double x = ((const bench_sample *)a)->rate, y = ((const bench_sample *)b)->rate;
    return (x > y) - (x < y);
}

static void summarise(const bench *b, bench_test *t) {
    size_t n = (size_t)b->repeats;
    qsort(b->samples, n, sizeof *b->samples, compare_rates);
    const bench_sample *x = &b->samples[(n - 1) / 2], *y = &b->samples[n / 2];
    t->low = b->samples[0].rate;
    t->high = b->samples[n - 1].rate;
    t->median = (bench_sample){(x->rate + y->rate) / 2, (x->share + y->share) / 2};
}

static void note(const bench_test *t) {
    char at[48] = "", expected[64] = "", rate[OUTPUT_ROUNDED_TEXT];
    (void)mr_output_rounded(t->median.rate, rate);
    if (t->expected > 0)
        snprintf(expected, sizeof expected, ", expected were %s",
                 mr_output_rounded(t->expected, (char[OUTPUT_ROUNDED_TEXT]){0}));
    if (t->depth > 0)
        snprintf(at, sizeof at, " at depth %" PRId32, t->depth);
    if (t->decode)
        mr_output_note("decode of %" PRId32 " tokens, %" PRId32 " at once%s: %s tokens/s%s", t->rows, t->sequences, at,
                       rate, expected);
    else
        mr_output_note("prefill of %" PRId32 " tokens%s: %s tokens/s%s", t->rows, at, rate, expected);
}

static mr_status run_once(bench *b, const bench_test *t, mr_err *err) {
    return bench_run_once(b->session.job, b->session.info.vocab_size, b->ids, t, &b->run, err);
}

static mr_status run_test(bench *b, bench_test *t, mr_err *err) {
    bench_test warm_up = *t;
    int32_t most = t->decode ? WARM_UP_DECODE : WARM_UP_PREFILL;
    warm_up.depth = warm_up.extra = 0;
    warm_up.rows = t->rows < most ? t->rows : most;
    mr_status status = run_once(b, &warm_up, err);
    for (int32_t i = 0; i < b->repeats && status == MR_OK; i++) {
        status = run_once(b, t, err);
        if (status == MR_OK)
            status = bench_run_rate(&b->run, &b->work, &b->samples[i], err);
    }
    if (status != MR_OK)
        return status;
    summarise(b, t);
    t->expected = t->decode ? mr_session_facts_decode_rate(&b->session, t->sequences, t->depth + t->rows / 2)
                            : mr_session_facts_prefill_rate(&b->session, t->rows, t->depth);
    note(t);
    b->n_done++;
    return MR_OK;
}

/* --- Options ----------------------------------------------------------------------------------------------------- */

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t largest(const mr_option_value *list) {
    int32_t most = 0;
    for (int32_t i = 0; i < list->n; i++)
        most = larger(most, list->ints[i]);
    return most;
}

/* The most decode steps that the first sequence may take until all prompts are computed. A step takes its decode rows
 * first, and fills up with prompt rows, so at worst the prompts are computed one after the other. Steps that are
 * already under way add a few. */
static int32_t steps_until_all_decode(const bench *b, int32_t sequences, int32_t depth) {
    double steps = 3;
    if (depth == 0 || sequences == 1)
        return 0;
    for (int32_t n = 1; n < sequences; n++)
        steps += (double)(depth + 1) / larger(b->session.chunk - n, 1);
    return steps < MR_MAX_CONTEXT ? (int32_t)steps : MR_MAX_CONTEXT;
}

/* Where --chunk and --ctx are not given, makes chunk and context large enough for the tests, within the model's
 * limits. */
static void choose_sizes(bench *b) {
    const mr_option_value *v = b->options.values;
    mr_session *s = &b->session;
    int32_t batch = largest(&v[MR_OPTION_BENCH_BATCH]), depth = largest(&v[MR_OPTION_BENCH_DEPTH]);
    mr_session_widen_chunk(s, batch);
    if (v[MR_OPTION_CTX].given || depth == 0)
        return;
    int32_t most = s->info.context_length < MR_MAX_CONTEXT ? s->info.context_length : MR_MAX_CONTEXT;
    int64_t rows = larger(largest(&v[MR_OPTION_BENCH_PREFILL]),
                          largest(&v[MR_OPTION_BENCH_DECODE]) + 1 + steps_until_all_decode(b, batch, depth));
    int64_t wanted = depth + s->chunk + rows + 1;
    s->ctx = larger(s->ctx, wanted < most ? (int32_t)wanted : most);
}

/* Checks that a length fits the context beside `more` tokens. A length that the user gave is refused where it does not
 * fit; a default is made smaller. */
static mr_status fit(const bench *b, mr_option_id id, int32_t wanted, int32_t more, int32_t *out, mr_err *err) {
    const mr_session *s = &b->session;
    int32_t room = s->ctx > more ? s->ctx - more : 0;
    if (wanted > room && mr_options_given(&b->options, id))
        return mr_err_set(err, MR_E_INVALID,
                          "-%c: %" PRId32 " tokens and %" PRId32 " more do not fit the context of %" PRId32 " tokens%s",
                          mr_option_spec_of(id)->letter, wanted, more, s->ctx,
                          s->ctx < s->info.context_length ? "; hint: a larger --ctx" : "");
    *out = wanted < room ? wanted : room;
    return MR_OK;
}

static void add_test(bench *b, bench_test t) {
    t.threads = b->session.threads;
    t.n_stages = b->session.plan.n_stages;
    t.is_synthetic = b->work.synthetic != NULL;
    t.products = b->work.is_int8 ? "int8" : "f32";
    if (t.rows > 0)
        b->tests[b->n++] = t;
}

static mr_status list_prefill(bench *b, int32_t depth, mr_err *err) {
    const mr_option_value *p = &b->options.values[MR_OPTION_BENCH_PREFILL];
    int32_t chunk = b->session.chunk;
    for (int32_t i = 0; i < p->n; i++) {
        bench_test t = {.sequences = 1, .depth = (depth + chunk - 1) / chunk * chunk};
        mr_status status = fit(b, MR_OPTION_BENCH_PREFILL, p->ints[i], t.depth + 1, &t.rows, err);
        if (status != MR_OK)
            return status;
        add_test(b, t);
    }
    return MR_OK;
}

static mr_status list_decode(bench *b, int32_t depth, mr_err *err) {
    const mr_option_value *n = &b->options.values[MR_OPTION_BENCH_DECODE];
    const mr_option_value *batch = &b->options.values[MR_OPTION_BENCH_BATCH];
    for (int32_t i = 0; i < n->n * batch->n; i++) {
        int32_t sequences = batch->ints[i % batch->n];
        bench_test t = {.decode = true,
                        .sequences = sequences,
                        .depth = depth,
                        .extra = steps_until_all_decode(b, sequences, depth)};
        mr_status status = fit(b, MR_OPTION_BENCH_DECODE, n->ints[i / batch->n], depth + t.extra + 2, &t.rows, err);
        if (status != MR_OK)
            return status;
        add_test(b, t);
    }
    return MR_OK;
}

/* Adds the tests of this session after those of earlier sessions. */
static mr_status list_tests(bench *b, mr_err *err) {
    const mr_option_value *v = b->options.values, *depth = &v[MR_OPTION_BENCH_DEPTH];
    int32_t before = b->n, most = before + depth->n * (v[MR_OPTION_BENCH_PREFILL].n +
                                                       v[MR_OPTION_BENCH_DECODE].n * v[MR_OPTION_BENCH_BATCH].n);
    bench_test *tests = mr_realloc(b->tests, (size_t)most * sizeof *tests);
    if (!tests)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " tests", most);
    b->tests = tests;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < depth->n && status == MR_OK; i++) {
        status = list_prefill(b, depth->ints[i], err);
        if (status == MR_OK)
            status = list_decode(b, depth->ints[i], err);
    }
    if (status == MR_OK && b->n == before)
        status = mr_err_set(err, MR_E_INVALID, "there is no test to run; hint: a larger -p or -n");
    return status;
}

/* --- The session ------------------------------------------------------------------------------------------------- */

/* Sizes chunk, KV cache and prompt buffer for the tests of the session. All sequences of a test run at the same time,
 * so the KV cache cannot be smaller. */
static mr_status size(bench *b, mr_err *err) {
    mr_session_needs needs = {.max_sequences = 1};
    int32_t longest = 1;
    int64_t chunk = b->session.chunk;
    for (int32_t i = b->n_done; i < b->n; i++) {
        const bench_test *t = &b->tests[i];
        int32_t n_prompt = bench_prompt_tokens(t);
        int64_t rows = (int64_t)n_prompt * t->sequences,
                kv = t->sequences * mr_session_whole_blocks(n_prompt + bench_new_tokens(t));
        if (t->sequences > chunk && mr_options_given(&b->options, MR_OPTION_CHUNK))
            return mr_err_set(err, MR_E_INVALID,
                              "-b: %" PRId32 " sequences need as many rows in a step, but --chunk allows %" PRId64
                              "; hint: a larger --chunk",
                              t->sequences, chunk);
        longest = larger(longest, n_prompt);
        needs.max_rows = rows > needs.max_rows ? rows : needs.max_rows;
        needs.max_sequences = larger(needs.max_sequences, t->sequences);
        needs.kv_tokens = kv > needs.kv_tokens ? kv : needs.kv_tokens;
    }
    needs.min_kv_tokens = needs.kv_tokens;
    b->ids = mr_alloc_array((size_t)longest, sizeof *b->ids);
    if (!b->ids)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a prompt of %" PRId32 " tokens", longest);
    return mr_session_size(&b->session, &needs, err);
}

static const double QUIET_SHARE = 0.85; /* least mr_cpu_limits.core_share of an idle machine */

/* Measures the limits of the machine, with as many threads as all stages have together. */
static mr_status read_limits(bench *b, mr_err *err) {
    mr_cpu_options cpu = {.n_threads = b->session.threads * b->session.plan.n_stages};
    mr_cpu_limits limits = {0};
    mr_mem_set_budget(0); /* the memory budget of an earlier session does not apply to the loops */
    bool read = b->session.cluster.n_ranks == 0 && !b->session.plan.synthetic;
    mr_status status = !read ? MR_OK : mr_cpu_limits_measure(&cpu, &limits, err);
    for (int32_t i = b->n_done; i < b->n; i++)
        b->tests[i].limits = limits;
    if (limits.core_share > 0 && limits.core_share < QUIET_SHARE)
        mr_output_note(
            "this machine is busy with other programs: the loops had a core for only %.0f %% of the time, so limits, "
            "shares and rates are not reliable",
            1e2 * limits.core_share);
    return status;
}

static mr_status run_tests(bench *b, mr_err *err) {
    mr_status status = MR_OK;
    while (b->n_done < b->n && status == MR_OK)
        status = run_test(b, &b->tests[b->n_done], err);
    return status;
}

/* Runs all tests with one number of threads. n_threads 0: the session chooses. */
static mr_status run_session(bench *b, int32_t n_threads, mr_err *err) {
    mr_session *s = &b->session;
    b->options.values[MR_OPTION_THREADS] = (mr_option_value){.given = n_threads > 0, .number = n_threads};
    mr_status status = mr_session_open(&b->options, s, err);
    if (status == MR_OK) {
        b->work = bench_work_of(s->gguf, &s->info, s->kv_type);
        b->work.synthetic = s->plan.synthetic ? &s->plan : NULL;
        choose_sizes(b);
        status = list_tests(b, err);
    }
    if (status == MR_OK)
        status = size(b, err);
    if (status == MR_OK)
        status = read_limits(b, err);
    if (!mr_options_given(&b->options, MR_OPTION_TBT_MS))
        s->token_s = INFINITY; /* the prompts of a decode test are computed before its clock starts */
    s->on_step = bench_run_on_step;
    s->on_step_ctx = &b->run;
    if (status == MR_OK)
        status = mr_session_start(s, err);
    if (status == MR_OK)
        status = run_tests(b, err);
    if (status == MR_OK)
        status = mr_session_stop(s, err);
    mr_session_close(s);
    mr_free(b->ids);
    b->ids = NULL;
    return status;
}

static mr_status print_results(const bench *b, mr_err *err) {
    if (mr_options_number(&b->options, MR_OPTION_BENCH_JSON))
        return bench_print_json(b->tests, b->n_done, b->repeats, err);
    if (mr_options_number(&b->options, MR_OPTION_BENCH_CSV))
        return bench_print_csv(b->tests, b->n_done, b->repeats, err);
    return bench_print_table(b->tests, b->n_done, err);
}

static mr_status check_options(const mr_options *o, mr_err *err) {
    static const mr_option_id OF_LOADS[] = {MR_OPTION_LOAD_SECONDS, MR_OPTION_LOAD_PROMPT, MR_OPTION_LOAD_TOKENS,
                                            MR_OPTION_LOAD_SEED};
    int32_t n = o->values[MR_OPTION_BENCH_THREADS].n;
    if (mr_options_number(o, MR_OPTION_BENCH_JSON) && mr_options_number(o, MR_OPTION_BENCH_CSV))
        return mr_err_set(err, MR_E_INVALID, "--json and --csv exclude each other; hint: give one of the two");
    if (mr_options_given(o, MR_OPTION_SEQUENCES))
        return mr_err_set(err, MR_E_INVALID, "bench: --sequences needs --load or --load-trace; hint: use -b for tests");
    for (size_t i = 0; i < sizeof OF_LOADS / sizeof OF_LOADS[0]; i++)
        if (mr_options_given(o, OF_LOADS[i]))
            return mr_err_set(err, MR_E_INVALID, "--%s needs --load, which was not given",
                              mr_option_spec_of(OF_LOADS[i])->flag);
    if (n > 1 && (mr_rank_place_get().n_ranks > 1 || mr_options_given(o, MR_OPTION_TRACE)))
        return mr_err_set(err, MR_E_INVALID, "-t: %" PRId32 " numbers of threads, but %s; hint: give one number", n,
                          mr_rank_place_get().n_ranks > 1 ? "under mpirun only one is possible"
                                                          : "--trace writes one file for one number");
    return MR_OK;
}

/* A benchmark that is interrupted prints the complete tests. */
mr_status cmd_bench(const mr_options *options, mr_err *err) {
    const mr_option_value *threads = &options->values[MR_OPTION_BENCH_THREADS];
    bench b = {.options = *options, .repeats = (int32_t)mr_options_number(options, MR_OPTION_REPEAT)};
    if (mr_options_given(options, MR_OPTION_LOAD) || mr_options_given(options, MR_OPTION_LOAD_TRACE))
        return cmd_load(options, err);
    mr_status status = check_options(options, err);
    b.samples = mr_alloc_array((size_t)b.repeats, sizeof *b.samples);
    if (status == MR_OK && !b.samples)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " runs", b.repeats);
    for (int32_t i = 0; i < (threads->n > 0 ? threads->n : 1) && status == MR_OK; i++)
        status = run_session(&b, threads->n > 0 ? threads->ints[i] : 0, err);
    if (status == MR_OK || (status == MR_E_CANCELLED && b.n_done > 0)) {
        mr_status printed = print_results(&b, err);
        status = printed == MR_OK ? status : printed;
    }
    mr_free(b.tests);
    mr_free(b.samples);
    return status;
}
