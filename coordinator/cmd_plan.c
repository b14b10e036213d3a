/* cmd_plan.c - `millrace plan`: who would hold what. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cmd.h"
#include "coordinator/cmd_session.h"
#include "coordinator/output.h"
#include "coordinator/output_json.h"

static mr_status print_json(const cmd_session *s, mr_err *err) {
    json_t *plan = output_json_plan(&s->plan, s->sizes, &s->cluster);
    json_t *root = json_pack("{s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:b, s:o}", "model",
                             output_json_text(mr_str_from(s->model_path)), "architecture", s->info.arch, "layers",
                             s->info.n_layers, "threads", s->threads, "context", s->ctx, "chunk", s->max_rows,
                             "sequences", s->max_sequences, "kv_type", mr_options_text(s->options, MR_OPTION_KV_TYPE),
                             "repacked", !s->map_weights, "plan", plan);
    return output_json_print(root, err);
}

static mr_status print_table(const cmd_session *s, mr_err *err) {
    mr_text_buf table = {0};
    mr_status status = cmd_session_print_plan(s, &table, err);
    if (status == MR_OK)
        status = output_write(table.data, table.len, err);
    mr_text_buf_deinit(&table);
    return status;
}

mr_status cmd_plan(const mr_options *options, mr_err *err) {
    cmd_session s;
    mr_status status = cmd_session_open(options, &s, err);
    if (status == MR_OK) {
        bool given = mr_options_given(options, MR_OPTION_SEQUENCES);
        int64_t n = given ? mr_options_number(options, MR_OPTION_SEQUENCES) : 1;
        cmd_session_needs needs = {.max_rows = n * s.ctx,
                                   .max_sequences = (int32_t)n,
                                   .kv_tokens = n * cmd_session_whole_blocks(s.ctx),
                                   .min_kv_tokens = s.ctx};
        status = cmd_session_size(&s, &needs, err);
    }
    if (status == MR_OK)
        status = mr_options_number(options, MR_OPTION_JSON) ? print_json(&s, err) : print_table(&s, err);
    cmd_session_close(&s);
    return status;
}
