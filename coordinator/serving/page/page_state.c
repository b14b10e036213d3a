/* coordinator/serving/page/page_state.c - the data that the page draws, as JSON:
 *   {"state": "ready", "error": null, "loaded": 1, "version": "0.1.0", "model": "…", "description": "…", "layers": 8,
 *    "context": 512, "start": 123456789, "time_s": 12.5,
 *    "sequences": {"live", "waiting", "limit"}, "blocks": {"held", "cached", "free", "total", "tokens"},
 *    "totals": {"prompt_tokens", "cached_tokens", "generated", "preempted", "steps"}, "steps_open", "micro_batches",
 *    "latency": {"bounds_s": […], "first_token": […], "next_token": […]},
 *    "stages": [{"first", "last", "rank", "host", "bytes": {"weights", "kv", "work"}, "seconds": {"compute": …},
 *                "steps", "rows", "in_bytes", "out_bytes", "step": {"rows", "measured_s", "predicted_s"}}, …]}
 * time_s is the time since the start of the server. start identifies the server: another value means that another
 * server answers. All counts are totals since the start, and the page takes differences. first and last are both layers
 * of the stage; in a stage without layers, last is less than first. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "coordinator/serving/page/page.h"
#include "engine/text/utf8.h"

static const char *const STATES[] = {
    [MR_PAGE_LOADING] = "loading", [MR_PAGE_READY] = "ready", [MR_PAGE_ENDING] = "ending", [MR_PAGE_FAILED] = "failed"};

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

/* A text as JSON; null for NULL. Bytes that are not UTF-8 become U+FFFD. */
static json_t *text_or_null(const char *text) {
    mr_text_buf clean = {0};
    bool ok = true;
    json_t *out = NULL;
    if (!text)
        return json_null();
    for (size_t n; ok && *text; text += n ? n : 1) {
        n = mr_utf8_char_len(text, strlen(text));
        ok = n ? mr_text_buf_append(&clean, text, n)
               : mr_text_buf_append(&clean, MR_UTF8_REPLACEMENT, MR_UTF8_REPLACEMENT_BYTES);
    }
    if (ok)
        out = json_stringn(clean.data ? clean.data : "", clean.len);
    mr_text_buf_deinit(&clean);
    return out;
}

/* A positive time as JSON; null where the time is not known. */
static json_t *time_or_null(double s) {
    return s > 0 && isfinite(s) ? json_real(s) : json_null();
}

static json_t *stage_json(const mr_page_stage *s) {
    json_t *phases = json_object();
    for (int i = 0; i < MR_PHASE_COUNT; i++)
        if (json_object_set_new(phases, mr_phase_name((mr_phase)i), json_real(seconds(s->ns[i]))) != 0) {
            json_decref(phases);
            return NULL;
        }
    return json_pack("{s:i, s:i, s:i, s:o, s:{s:I, s:I, s:I}, s:o, s:I, s:I, s:I, s:I, s:{s:f, s:o, s:o}}", "first",
                     s->first_layer, "last", s->last_layer - 1, "rank", s->rank, "host", text_or_null(s->host), "bytes",
                     "weights", (json_int_t)s->weight_bytes, "kv", (json_int_t)s->kv_bytes, "work",
                     (json_int_t)s->work_bytes, "seconds", phases, "steps", (json_int_t)s->n_steps, "rows",
                     (json_int_t)s->n_rows, "in_bytes", (json_int_t)s->in_bytes, "out_bytes", (json_int_t)s->out_bytes,
                     "step", "rows", s->step_rows, "measured_s", time_or_null(s->step_s), "predicted_s",
                     time_or_null(s->predicted_s));
}

static json_t *stages_json(const mr_page_stats *stats) {
    json_t *stages = json_array();
    for (int32_t i = 0; i < stats->n_stages; i++)
        if (json_array_append_new(stages, stage_json(&stats->stages[i])) != 0) {
            json_decref(stages);
            return NULL;
        }
    return stages;
}

static json_t *bounds_json(void) {
    json_t *bounds = json_array();
    bool ok = bounds != NULL;
    for (int i = 0; i < MR_HISTOGRAM_BUCKETS && ok; i++)
        ok = json_array_append_new(bounds, json_real(mr_histogram_bounds[i])) == 0;
    if (ok)
        return bounds;
    json_decref(bounds);
    return NULL;
}

static json_t *histogram_json(const mr_metrics *m, mr_metric_id id) {
    mr_histogram h;
    json_t *counts = json_array();
    bool ok = counts != NULL;
    mr_metrics_read_histogram(m, id, (mr_labels){{0}}, &h);
    for (int i = 0; i <= MR_HISTOGRAM_BUCKETS && ok; i++)
        ok = json_array_append_new(counts, json_integer((json_int_t)h.n[i])) == 0;
    if (ok)
        return counts;
    json_decref(counts);
    return NULL;
}

static json_t *state_json(const mr_page_stats *f, const mr_metrics *m) {
    json_t *sequences =
        json_pack("{s:i, s:i, s:i}", "live", f->n_live, "waiting", f->n_waiting, "limit", f->max_sequences);
    json_t *blocks = json_pack("{s:i, s:i, s:i, s:i, s:i}", "held", f->n_held_blocks, "cached", f->n_cached_blocks,
                               "free", f->n_free_blocks, "total", f->n_blocks, "tokens", f->block_tokens);
    json_t *totals = json_pack("{s:I, s:I, s:I, s:I, s:I}", "prompt_tokens", (json_int_t)f->n_prompt_tokens,
                               "cached_tokens", (json_int_t)f->n_cached_tokens, "generated", (json_int_t)f->n_generated,
                               "preempted", (json_int_t)f->n_preempted, "steps", (json_int_t)f->n_steps);
    json_t *latency = json_pack("{s:o, s:o, s:o}", "bounds_s", bounds_json(), "first_token",
                                histogram_json(m, MR_METRIC_FIRST_TOKEN_SECONDS), "next_token",
                                histogram_json(m, MR_METRIC_NEXT_TOKEN_SECONDS));
    return json_pack("{s:s, s:o, s:f, s:o, s:o, s:o, s:i, s:i, s:I, s:f, s:o, s:o, s:o, s:i, s:i, s:o, s:o}", "state",
                     STATES[f->state], "error", text_or_null(f->error), "loaded", f->loaded, "version",
                     text_or_null(f->version), "model", text_or_null(f->model), "description",
                     text_or_null(f->description), "layers", f->n_layers, "context", f->n_context, "start",
                     (json_int_t)(f->start_ns / 1000), "time_s", seconds(f->now_ns - f->start_ns), "sequences",
                     sequences, "blocks", blocks, "totals", totals, "steps_open", f->n_open_steps, "micro_batches",
                     f->n_micro_batches, "latency", latency, "stages", stages_json(f));
}

static int append(const char *bytes, size_t n, void *out) {
    return mr_text_buf_append(out, bytes, n) ? 0 : -1;
}

mr_status mr_page_write_state(const mr_page_stats *stats, const mr_metrics *m, mr_text_buf *out, mr_err *err) {
    json_t *root = state_json(stats, m);
    int failed = root ? json_dump_callback(root, append, out, JSON_COMPACT | JSON_REAL_PRECISION(15)) : -1;
    json_decref(root);
    return failed ? mr_err_set(err, MR_E_NO_MEMORY, "no memory for the state of the server") : MR_OK;
}
