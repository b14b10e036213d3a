/* cmd_load.c - `millrace bench --load` and `millrace simulate`: run requests that arrive over time, on real or on
 * simulated stages. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "coordinator/cli/bench/load.h"
#include "coordinator/cli/cmd.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/console/prompt_file.h"
#include "coordinator/session/session.h"
#include "engine/text/text_file.h"

enum { DEFAULT_SEQUENCES = 64 };

/* --- The load ---------------------------------------------------------------------------------------------------- */

static mr_status refuse(const mr_options *o, const mr_option_id *ids, size_t n, const char *why, mr_err *err) {
    for (size_t i = 0; i < n; i++)
        if (mr_options_given(o, ids[i]))
            return mr_err_set(err, MR_E_INVALID, "--%s %s", mr_option_spec_of(ids[i])->flag, why);
    return MR_OK;
}

static mr_status check_options(const mr_options *o, mr_err *err) {
    static const mr_option_id OF_TESTS[] = {MR_OPTION_BENCH_PREFILL, MR_OPTION_BENCH_DECODE, MR_OPTION_BENCH_BATCH,
                                            MR_OPTION_BENCH_DEPTH, MR_OPTION_REPEAT},
                              OF_RATES[] = {MR_OPTION_LOAD_SECONDS, MR_OPTION_LOAD_PROMPT, MR_OPTION_LOAD_TOKENS,
                                            MR_OPTION_LOAD_SEED};
    bool load = mr_options_given(o, MR_OPTION_LOAD), trace = mr_options_given(o, MR_OPTION_LOAD_TRACE);
    const char *command = mr_command_spec_of(o->command)->name;
    if (load == trace)
        return mr_err_set(err, MR_E_INVALID, "%s: %s; hint: give either --load or --load-trace", command,
                          load ? "both --load and --load-trace were given" : "no requests were given");
    if (mr_options_number(o, MR_OPTION_BENCH_CSV))
        return mr_err_set(err, MR_E_INVALID, "--csv works only without --load and --load-trace; hint: --json");
    if (o->values[MR_OPTION_BENCH_THREADS].n > 1)
        return mr_err_set(err, MR_E_INVALID,
                          "-t: %" PRId32 " numbers of threads, but a load has one; hint: give one number",
                          o->values[MR_OPTION_BENCH_THREADS].n);
    if (o->command == MR_COMMAND_SIMULATE && !mr_options_given(o, MR_OPTION_SYNTHETIC_STAGE))
        return mr_err_set(err, MR_E_INVALID,
                          "simulate needs the times of its stages; hint: --synthetic-stage MS,MS_PER_ROW");
    mr_status status = refuse(o, OF_TESTS, sizeof OF_TESTS / sizeof OF_TESTS[0],
                              "works only without --load and --load-trace, which run no tests", err);
    if (status == MR_OK && trace)
        status = refuse(o, OF_RATES, sizeof OF_RATES / sizeof OF_RATES[0],
                        "needs --load; with --load-trace, the file says which requests arrive", err);
    return status;
}

static mr_status make_load(const mr_options *o, mr_load *out, mr_err *err) {
    const char *path = mr_options_text(o, MR_OPTION_LOAD_TRACE);
    mr_load_poisson poisson = {.rate = mr_options_real(o, MR_OPTION_LOAD),
                               .seconds = mr_options_real(o, MR_OPTION_LOAD_SECONDS),
                               .n_prompt = (int32_t)mr_options_number(o, MR_OPTION_LOAD_PROMPT),
                               .n_tokens = (int32_t)mr_options_number(o, MR_OPTION_LOAD_TOKENS),
                               .seed = (uint64_t)mr_options_number(o, MR_OPTION_LOAD_SEED)};
    if (!path)
        return mr_load_make(&poisson, out, err);
    mr_text_buf text = {0};
    mr_status status = mr_text_file_read(path, PROMPT_FILE_MAX_BYTES, &text, err);
    if (status == MR_OK)
        status = mr_load_parse((mr_str){text.data, text.len}, path, out, err);
    mr_text_buf_deinit(&text);
    return status;
}

/* --- The session ------------------------------------------------------------------------------------------------- */

/* Where --ctx is not given, makes the context large enough for the load, within the model's limits. Then sizes the KV
 * cache. */
static mr_status size(mr_session *s, const mr_load *load, mr_err *err) {
    int32_t prompt, longest;
    mr_load_longest(load, &prompt, &longest);
    int32_t most = s->info.context_length < MR_MAX_CONTEXT ? s->info.context_length : MR_MAX_CONTEXT;
    if (!mr_options_given(s->options, MR_OPTION_CTX) && longest > s->ctx)
        s->ctx = longest < most ? longest : most;
    if (longest > s->ctx)
        return mr_err_set(err, MR_E_INVALID,
                          "a request has %" PRId32 " tokens with its prompt, but the context only %" PRId32
                          "; hint: a larger --ctx",
                          longest, s->ctx);
    int64_t n = DEFAULT_SEQUENCES;
    if (mr_options_given(s->options, MR_OPTION_SEQUENCES))
        n = mr_options_number(s->options, MR_OPTION_SEQUENCES);
    n = n < load->n ? n : load->n;
    mr_session_needs needs = {.max_rows = n * longest,
                              .max_sequences = (int32_t)n,
                              .kv_tokens = n * mr_session_whole_blocks(longest),
                              .min_kv_tokens = mr_session_whole_blocks(longest)};
    return mr_session_size(s, &needs, err);
}

/* How long a simulated stage takes for a step. ctx: the mr_plan. */
static int64_t synthetic_ns(void *ctx, int32_t stage, const mr_virtual_work *work) {
    const mr_plan_stage *s = &((const mr_plan *)ctx)->stages[stage];
    return s->synthetic_fixed_ns + work->n_rows * s->synthetic_row_ns;
}

static mr_status make_virtual(mr_session *s, mr_err *err) {
    double gbps =
        mr_options_given(s->options, MR_OPTION_HOP_GBPS) ? mr_options_real(s->options, MR_OPTION_HOP_GBPS) : 0;
    mr_virtual_cluster_config config = {
        .n_stages = s->plan.n_stages,
        .compute_ns = synthetic_ns,
        .compute_ctx = &s->plan,
        .latency_ns = (int64_t)(1e6 * mr_options_real(s->options, MR_OPTION_HOP_MS) + 0.5),
        .bytes_per_second = gbps * 1e9 / 8,
        .row_bytes = s->info.d_model * (int32_t)sizeof(float),
        .n_vocab = s->info.vocab_size,
    };
    return mr_virtual_cluster_create(&config, &s->cluster.simulated, err);
}

static mr_status print_report(mr_session *s, const mr_load *load, mr_err *err) {
    mr_load_summary summary;
    mr_job_stop(s->job);
    mr_status status = mr_session_stop(s, err);
    if (status == MR_OK)
        status = mr_load_summarise(load, &summary, err);
    if (status != MR_OK)
        return status;
    if (mr_options_number(s->options, MR_OPTION_BENCH_JSON))
        return load_report_print_json(load, &summary, s->job, s->plan.n_stages, err);
    return load_report_print_tables(load, &summary, s->job, s->plan.n_stages, err);
}

/* A load that is interrupted prints a report of the tokens so far. */
static mr_status run(mr_session *s, mr_load *load, mr_err *err) {
    mr_status status = s->options->command == MR_COMMAND_SIMULATE ? make_virtual(s, err) : MR_OK;
    if (status == MR_OK)
        status = mr_session_start(s, err);
    if (status != MR_OK)
        return status;
    mr_status ran = mr_load_run(load, s->job, s->info.vocab_size, err);
    if (ran != MR_OK && !(ran == MR_E_CANCELLED && mr_interrupt_seen()))
        return ran;
    status = print_report(s, load, err);
    return status == MR_OK ? ran : status;
}

mr_status cmd_load(const mr_options *options, mr_err *err) {
    mr_options own = *options; /* its lists are borrowed */
    mr_session s = {0};
    mr_load load = {0};
    const mr_option_value *threads = &options->values[MR_OPTION_BENCH_THREADS];
    if (threads->n == 1)
        own.values[MR_OPTION_THREADS] = (mr_option_value){.given = true, .number = threads->ints[0]};
    mr_status status = check_options(options, err);
    if (status == MR_OK)
        status = make_load(options, &load, err);
    if (status == MR_OK)
        status = mr_session_open(&own, &s, err);
    if (status == MR_OK)
        status = size(&s, &load, err);
    if (status == MR_OK)
        status = run(&s, &load, err);
    mr_session_close(&s);
    mr_load_end(&load);
    return status;
}
