/* cmd_plan.c - `millrace plan`: shows which stage would hold which layers, how fast the plan would be, and what one
 * more rank would bring. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/cli/devices_text.h"
#include "coordinator/console/output.h"
#include "coordinator/console/output_table.h"
#include "coordinator/planning/what_if.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/session.h"
#include "coordinator/session/session_ways.h"
#include "engine/base/mem.h"

enum { N_SEQUENCES = 7, PROMPT = 512 };
static const int32_t SEQUENCES[N_SEQUENCES] = {1, 2, 4, 8, 16, 32, 64};

/* The prediction with one more rank, for --what-if. */
typedef struct further {
    bool wanted;
    int32_t n_stages; /* stages of the new plan */
    bool used;        /* the new plan uses the new rank */
    bool fits;        /* the new plan fits the memory of its ranks */
    double rates[N_SEQUENCES];
} further;

static mr_status predict_further(const mr_session *s, further *out, mr_err *err) {
    const char *text = mr_options_text(s->options, MR_OPTION_WHAT_IF);
    mr_what_if w = {0};
    *out = (further){.wanted = text != NULL};
    if (!text)
        return MR_OK;
    if (!s->facts.known)
        return mr_err_set(err, MR_E_INVALID, "--what-if needs measurements; hint: use --measure auto, or --facts FILE");
    mr_plan *plan = mr_alloc(sizeof *plan);
    mr_plan_prediction *p = mr_alloc(sizeof *p);
    mr_planner_config config = s->facts.planner;
    mr_status status = plan && p ? mr_what_if_make(text, s->facts.known, config.memory.layer_bytes, &w, err)
                                 : mr_err_set(err, MR_E_NO_MEMORY, "no memory for another plan");
    mr_err why = {0};
    config.facts = &w.facts;
    if (status == MR_OK)
        status = mr_session_facts_solve_anyway(s, &config, plan, &why, err);
    if (status == MR_OK) {
        int32_t n = config.objective == MR_OBJECTIVE_LATENCY ? 1 : config.n_sequences;
        mr_plan_predict(&w.facts, plan, config.depth, p);
        out->fits = !why.text[0];
        if (!out->fits)
            mr_output_warning("with the new rank, too, %s", why.text);
        bool is_comparable = !s->facts.is_misfit || !out->fits; /* else the new rank is needed, fast or not */
        if (is_comparable && mr_plan_decode_rate(p, n, NULL) < mr_plan_decode_rate(s->facts.prediction, n, NULL)) {
            *plan = s->plan; /* the plan without the new rank is faster */
            mr_plan_predict(&w.facts, plan, config.depth, p);
        }
        for (int i = 0; i < N_SEQUENCES; i++)
            out->rates[i] = mr_plan_decode_rate(p, SEQUENCES[i], NULL);
        out->n_stages = plan->n_stages;
        for (int32_t i = 0; i < plan->n_stages; i++)
            out->used = out->used || plan->stages[i].rank == w.facts.n_ranks - 1;
    }
    mr_what_if_deinit(&w);
    mr_free(plan);
    mr_free(p);
    return status;
}

/* Why the chunk is no larger. */
static const char *chunk_reason(mr_chunk_reason reason) {
    switch (reason) {
    case MR_CHUNK_GAINS_LITTLE:
        return "larger chunks would be less than 10 % faster";
    case MR_CHUNK_TAKES_LONG:
        return "a stage would work on a larger chunk for more than a second, and running sequences would wait";
    case MR_CHUNK_LARGEST:
        return "no larger chunk was measured";
    case MR_CHUNK_FILLS_MEMORY:
        return "there is no memory for the buffers of a larger chunk";
    }
    return "";
}

/* Whether stages of this session may have devices of the kind, so that it matters what these cannot multiply. */
static bool may_use(const mr_session *s, const mr_backend_kind *kind) {
    return kind->multiplies && mr_devices_may_hold_layers(&s->devices) && devices_text_has(kind);
}

/* Says why a known device holds no layers: none fits, the options or the plan say so, or the CPU is faster. */
static bool add_unused_device(const mr_session *s, int32_t i, mr_text_buf *out) {
    mr_plan_stage one = s->plan.stages[i];
    const mr_measured_device *d = &s->facts.known->ranks[one.rank].device;
    char bytes[OUTPUT_BYTES_TEXT], of[OUTPUT_BYTES_TEXT];
    one.device_layers = 1;
    double needed = mr_planner_device_bytes(s->facts.known, &one, (int64_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS);
    mr_output_bytes_text((size_t)needed, bytes);
    mr_output_bytes_text((size_t)d->memory_bytes, of);
    const char *why = s->gpu_layers == 0                                  ? "--gpu-layers is 0"
                      : mr_options_given(s->options, MR_OPTION_PLAN_FILE) ? "the file of --plan has none there"
                                                                          : "the CPU is faster by measured times";
    bool is_full = needed > (double)d->memory_bytes || mr_devices_must_hold_layers(&s->devices);
    if (d->memory_bytes > 0 && is_full && s->gpu_layers != 0 && !mr_options_given(s->options, MR_OPTION_PLAN_FILE))
        return mr_output_printf(
            out, "stage %" PRId32 ": no layer on '%s': one takes %s of its %s, a part of which must stay free\n", i,
            d->name, bytes, of);
    return mr_output_printf(out, "stage %" PRId32 ": no layer on '%s': %s\n", i, d->name, why);
}

/* What the plan does not say of devices: why some hold no layers, and which matrices stay on the CPU. */
static bool add_devices(const mr_session *s, mr_text_buf *out) {
    bool ok = true;
    for (int32_t i = 0; i < s->plan.n_stages && s->facts.known && ok; i++) {
        const mr_plan_stage *stage = &s->plan.stages[i];
        if (stage->device_layers == 0 && s->facts.known->ranks[stage->rank].device.is_known)
            ok = add_unused_device(s, i, out);
    }
    for (const mr_backend_kind *const *k = mr_backend_kinds; *k && ok; k++)
        if (may_use(s, *k))
            ok = devices_text_add_left(out, *k, "", s->gguf);
    return ok;
}

/* --- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *rate_json(int32_t n, double rate) {
    return json_pack("{s:i, s:f}", "sequences", n, "tokens_per_second", rate);
}

static json_t *chunks_json(const mr_chunk_choice *c, int32_t chosen) {
    json_t *sizes = json_array();
    for (int32_t i = 0; i < c->n; i++)
        json_array_append_new(sizes, json_pack("{s:i, s:f, s:f}", "rows", c->rows[i], "tokens_per_second", c->rate[i],
                                               "slowest_step_s", c->step_s[i]));
    return json_pack("{s:i, s:s, s:o}", "chosen", chosen, "reason", chunk_reason(c->reason), "sizes", sizes);
}

static json_t *predicted_json(const mr_session *s, const further *more) {
    const mr_plan_prediction *p = s->facts.prediction;
    json_t *decode = json_array(), *steps = json_array(), *further_rates = json_array();
    for (int i = 0; i < N_SEQUENCES; i++) {
        int32_t m;
        json_t *rate = rate_json(SEQUENCES[i], mr_plan_decode_rate(p, SEQUENCES[i], &m));
        json_object_set_new(rate, "micro_batches", json_integer(m));
        json_array_append_new(decode, rate);
        json_array_append_new(further_rates, rate_json(SEQUENCES[i], more->rates[i]));
    }
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        json_array_append_new(steps, json_real(mr_plan_step_seconds(p, i, 1)));
    json_t *o =
        json_pack("{s:i, s:o, s:f, s:o}", "depth", s->facts.planner.depth, "decode", decode,
                  "prefill_tokens_per_second", mr_session_facts_prefill_rate(s, PROMPT, 0), "step_of_1_row_s", steps);
    if (o && more->wanted)
        json_object_set_new(o, "what_if",
                            json_pack("{s:i, s:b, s:b, s:O}", "stages", more->n_stages, "used", more->used, "fits",
                                      more->fits, "decode", further_rates));
    if (o && s->facts.chunk.n > 0)
        json_object_set_new(o, "chunks", chunks_json(&s->facts.chunk, s->chunk));
    json_decref(further_rates);
    return o;
}

/* What the device of a stage's rank holds. */
static json_t *device_json(const mr_session *s, const mr_plan_stage *stage) {
    const mr_measured_device *d = &s->facts.known->ranks[stage->rank].device;
    int64_t tokens = (int64_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS;
    return json_pack("{s:o, s:i, s:I, s:I}", "name", mr_output_json_text(mr_str_from(d->name)), "layers",
                     stage->device_layers, "bytes", (json_int_t)mr_planner_device_bytes(s->facts.known, stage, tokens),
                     "memory_bytes", (json_int_t)d->memory_bytes);
}

static mr_status print_json(const mr_session *s, const further *more, mr_err *err) {
    json_t *plan = mr_output_json_plan(&s->plan, s->sizes, &s->cluster);
    json_t *root =
        json_pack("{s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:b, s:I, s:o}", "model",
                  mr_output_json_text(mr_str_from(s->model_path)), "architecture", s->info.arch, "layers",
                  s->info.n_layers, "threads", s->threads, "context", s->ctx, "chunk", s->max_rows, "sequences",
                  s->max_sequences, "kv_type", mr_options_text(s->options, MR_OPTION_KV_TYPE), "repacked",
                  !s->map_weights, "kv_tokens", (json_int_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS, "plan", plan);
    for (size_t i = 0; plan && i < json_array_size(plan);
         i++) { /* ranks of --facts are not running, so their hosts come from the facts */
        const char *host = mr_session_facts_host(s, (int32_t)i);
        json_t *stage = json_array_get(plan, i);
        json_object_set_new(stage, "file_bytes", json_integer((json_int_t)mr_session_file_bytes(s, (int32_t)i)));
        if (s->facts.known && s->plan.stages[i].device_layers > 0)
            json_object_set_new(stage, "device", device_json(s, &s->plan.stages[i]));
        json_t *ways = mr_session_ways_json(s, (int32_t)i);
        if (ways)
            json_object_set_new(stage, "links", ways);
        if (!host)
            continue;
        json_object_set_new(stage, "rank", json_integer(s->plan.stages[i].rank));
        json_object_set_new(stage, "host", mr_output_json_text(mr_str_from(host)));
    }
    if (root && s->facts.prediction)
        json_object_set_new(root, "predicted", predicted_json(s, more));
    for (const mr_backend_kind *const *k = mr_backend_kinds; *k && root; k++)
        if (may_use(s, *k))
            json_object_set_new(root, "without_kernel", devices_json_left(*k, s->gguf));
    return mr_output_json_print(root, err);
}

/* --- Table ------------------------------------------------------------------------------------------------------- */

static mr_status add_rates(const mr_session *s, const further *more, mr_text_buf *out, mr_err *err) {
    const mr_plan_prediction *p = s->facts.prediction;
    mr_output_table t = {.align = "lrrrrrrr"};
    mr_output_table_cell(&t, "sequences");
    for (int i = 0; i < N_SEQUENCES; i++)
        mr_output_table_cell(&t, "%" PRId32, SEQUENCES[i]);
    mr_output_table_cell(&t, "tokens/s");
    for (int i = 0; i < N_SEQUENCES; i++)
        mr_output_table_cell(
            &t, "%s", mr_output_rounded(mr_plan_decode_rate(p, SEQUENCES[i], NULL), (char[OUTPUT_ROUNDED_TEXT]){0}));
    mr_output_table_cell(&t, "micro-batches");
    for (int i = 0; i < N_SEQUENCES; i++) {
        int32_t m;
        (void)mr_plan_decode_rate(p, SEQUENCES[i], &m);
        mr_output_table_cell(&t, "%" PRId32, m);
    }
    if (more->wanted) {
        mr_output_table_cell(&t, "with the new rank");
        for (int i = 0; i < N_SEQUENCES; i++)
            mr_output_table_cell(&t, "%s", mr_output_rounded(more->rates[i], (char[OUTPUT_ROUNDED_TEXT]){0}));
    }
    t.failed |= !mr_output_printf(
        out, "\nexpected, after %" PRId32 " tokens of context; prefill of %d tokens: %s tokens/s\n",
        s->facts.planner.depth, PROMPT,
        mr_output_rounded(mr_session_facts_prefill_rate(s, PROMPT, 0), (char[OUTPUT_ROUNDED_TEXT]){0}));
    mr_status status = mr_output_table_print(&t, out, err);
    mr_output_table_deinit(&t);
    const char *verdict = !more->used                        ? "the fastest plan with the new rank leaves it out\n"
                          : s->facts.is_misfit && more->fits ? "with the new rank the model fits the memory\n"
                                                             : "";
    if (status == MR_OK && more->wanted && !mr_output_printf(out, "%s", verdict))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
    return status;
}

static mr_status add_chunks(const mr_chunk_choice *c, int32_t chosen, mr_text_buf *out, mr_err *err) {
    char align[MR_CHUNK_SIZES + 2] = "l";
    if (c->n == 0)
        return MR_OK;
    memset(align + 1, 'r', (size_t)c->n);
    mr_output_table t = {.align = align};
    mr_output_table_cell(&t, "rows of a chunk");
    for (int32_t i = 0; i < c->n; i++)
        mr_output_table_cell(&t, "%" PRId32, c->rows[i]);
    mr_output_table_cell(&t, "prompt tokens/s");
    for (int32_t i = 0; i < c->n; i++)
        mr_output_table_cell(&t, "%s", mr_output_rounded(c->rate[i], (char[OUTPUT_ROUNDED_TEXT]){0}));
    mr_output_table_cell(&t, "slowest step, ms");
    for (int32_t i = 0; i < c->n; i++)
        mr_output_table_cell(&t, "%s", mr_output_rounded(1e3 * c->step_s[i], (char[OUTPUT_ROUNDED_TEXT]){0}));
    t.failed |= !mr_output_printf(out, "\nprompts in chunks of at most %" PRId32 " rows: %s\n", chosen,
                                  chunk_reason(c->reason));
    mr_status status = mr_output_table_print(&t, out, err);
    mr_output_table_deinit(&t);
    return status;
}

static mr_status print_table(const mr_session *s, const further *more, mr_err *err) {
    mr_text_buf table = {0};
    mr_status status = mr_session_print_plan(s, &table, err);
    if (status == MR_OK && !add_devices(s, &table))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
    if (status == MR_OK && s->facts.prediction)
        status = add_rates(s, more, &table, err);
    if (status == MR_OK)
        status = add_chunks(&s->facts.chunk, s->chunk, &table, err);
    if (status == MR_OK)
        status = mr_output_write(table.data, table.len, err);
    mr_text_buf_deinit(&table);
    return status;
}

static mr_status save(const mr_session *s, mr_err *err) {
    const char *path = mr_options_text(s->options, MR_OPTION_SAVE);
    return path ? mr_plan_file_write(path, s->info.arch, s->facts.model_digest, s->info.n_layers, &s->plan,
                                     s->facts.known, err)
                : MR_OK;
}

mr_status cmd_plan(const mr_options *options, mr_err *err) {
    mr_session s;
    further more;
    mr_status status = mr_session_open(options, &s, err);
    if (status == MR_OK) {
        bool given = mr_options_given(options, MR_OPTION_SEQUENCES);
        int64_t n = given ? mr_options_number(options, MR_OPTION_SEQUENCES) : 1;
        mr_session_needs needs = {.max_rows = n * s.ctx,
                                  .max_sequences = (int32_t)n,
                                  .kv_tokens = n * mr_session_whole_blocks(s.ctx),
                                  .min_kv_tokens = s.ctx};
        status = mr_session_size(&s, &needs, err);
    }
    if (status == MR_OK)
        status = predict_further(&s, &more, err);
    if (status == MR_OK)
        status = mr_options_number(options, MR_OPTION_JSON) ? print_json(&s, &more, err) : print_table(&s, &more, err);
    if (status == MR_OK)
        status = save(&s, err);
    if (status == MR_OK && s.facts.is_misfit) /* it is shown all the same, because matrices can stay in the file */
        status = mr_err_set(err, MR_E_NO_MEMORY, "the ranks of %.160s have too little memory for this plan",
                            mr_options_text(options, MR_OPTION_FACTS));
    s.cluster.well = status == MR_OK;
    mr_session_close(&s);
    return status;
}
