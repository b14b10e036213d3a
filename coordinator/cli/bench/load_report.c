/* load_report.c - prints the results of a load as tables or as JSON. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/bench/load.h"

#include <inttypes.h>

#include "coordinator/console/output.h"
#include "coordinator/console/output_table.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/trace_file.h"

static double rate_of(const mr_load_summary *s) {
    return s->seconds > 0 ? (double)s->n_tokens / s->seconds : 0;
}

/* --- Tables ------------------------------------------------------------------------------------------------------ */

static void add_percentiles(mr_output_table *t, const char *name, const mr_percentiles *p) {
    const double seconds[] = {p->p50, p->p90, p->p99, p->max};
    mr_output_table_cell(t, "%s", name);
    for (size_t i = 0; i < sizeof seconds / sizeof seconds[0]; i++)
        if (p->n > 0)
            mr_output_table_cell(t, "%.1f ms", 1e3 * seconds[i]);
        else
            mr_output_table_cell(t, "-");
}

mr_status load_report_print_tables(const mr_load *load, const mr_load_summary *s, const mr_job *job, int32_t n_stages,
                                   mr_err *err) {
    mr_output_table t = {.align = "lrrrr"};
    mr_text_buf text = {0};
    mr_output_table_cell(&t, "%s", "");
    mr_output_table_cell(&t, "p50");
    mr_output_table_cell(&t, "p90");
    mr_output_table_cell(&t, "p99");
    mr_output_table_cell(&t, "max");
    add_percentiles(&t, "time to first token", &s->first_token);
    add_percentiles(&t, "between tokens", &s->between_tokens);
    t.failed |= !mr_output_printf(&text,
                                  "%" PRId32 " of %" PRId32 " requests done, %" PRId32 " failed; %" PRId64
                                  " tokens in %.2f s, %.1f tokens/s\n",
                                  s->n_done, load->n, s->n_failed, s->n_tokens, s->seconds, rate_of(s));
    if (s->sustained > 0)
        t.failed |=
            !mr_output_printf(&text,
                              "overloaded: %.3g requests arrive in a second, but at most %.3g can be answered, so "
                              "waiting times keep growing\n",
                              s->arrived, s->sustained);
    mr_status status = mr_output_table_print(&t, &text, err);
    mr_output_table_deinit(&t);
    if (status == MR_OK && !mr_output_printf(&text, "\n"))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
    if (status == MR_OK)
        status = mr_trace_shares_print(job, n_stages, &text, err);
    if (status == MR_OK)
        status = mr_output_write(text.data, text.len, err);
    mr_text_buf_deinit(&text);
    return status;
}

/* --- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *percentiles(const mr_percentiles *p) {
    return p->n == 0 ? json_null()
                     : json_pack("{s:f, s:f, s:f, s:f}", "p50", 1e3 * p->p50, "p90", 1e3 * p->p90, "p99", 1e3 * p->p99,
                                 "max", 1e3 * p->max);
}

static json_t *stages(const mr_job *job, int32_t n_stages) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n_stages; i++) {
        const mr_stage_seconds *s = mr_job_stage_seconds(job, i);
        json_t *stage = json_pack("{s:i, s:I}", "stage", i, "steps", (json_int_t)s->n_steps);
        for (int k = 0; k < MR_PHASE_COUNT && s->known; k++)
            if (json_object_set_new(stage, mr_phase_name((mr_phase)k), json_real(1e-9 * (double)s->ns[k])) != 0) {
                json_decref(stage);
                stage = NULL;
            }
        if (json_array_append_new(list, stage) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *times(const mr_load_request *r) {
    json_t *list = json_array();
    for (int32_t i = 0; i < r->n_come; i++)
        if (json_array_append_new(list, json_real(1e-6 * (double)r->token_ns[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *requests(const mr_load *load) {
    json_t *list = json_array();
    for (int32_t i = 0; i < load->n; i++) {
        const mr_load_request *r = &load->requests[i];
        json_t *o = json_pack("{s:f, s:i, s:i, s:b, s:o}", "at_ms", 1e-6 * (double)r->at_ns, "prompt_tokens",
                              r->n_prompt, "new_tokens", r->n_tokens, "failed", r->failed, "token_ms", times(r));
        if (json_array_append_new(list, o) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

mr_status load_report_print_json(const mr_load *load, const mr_load_summary *s, const mr_job *job, int32_t n_stages,
                                 mr_err *err) {
    json_t *root = json_pack("{s:i, s:i, s:i, s:I, s:f, s:f, s:b, s:o, s:o, s:o, s:o, s:o}", "requests", load->n,
                             "done", s->n_done, "failed", s->n_failed, "tokens", (json_int_t)s->n_tokens, "seconds",
                             s->seconds, "tokens_per_second", rate_of(s), "overloaded", s->sustained > 0,
                             "sustained_requests_per_second", s->sustained > 0 ? json_real(s->sustained) : json_null(),
                             "time_to_first_token_ms", percentiles(&s->first_token), "time_between_tokens_ms",
                             percentiles(&s->between_tokens), "stages", stages(job, n_stages), "each", requests(load));
    return mr_output_json_print(root, err);
}
