/* cmd_logits.c - `millrace logits`: writes the logits of given token ids as raw float32. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/console/output.h"
#include "coordinator/console/output_file.h"
#include "coordinator/console/prompt_file.h"
#include "coordinator/session/session.h"
#include "engine/base/clock.h"
#include "engine/text/text_file.h"

typedef struct logits_run {
    mr_session session;
    mr_token_buf ids;
    int32_t first; /* the first position whose logits are written */
    mr_output_file out;
    mr_err out_err; /* the error of the first write that failed */
} logits_run;

static mr_status read_ids(logits_run *r, const mr_options *options, mr_err *err) {
    const char *path = mr_options_text(options, MR_OPTION_IDS_FILE);
    mr_text_buf text = {0};
    mr_status status = mr_text_file_read(path, PROMPT_FILE_MAX_BYTES, &text, err);
    if (status == MR_OK)
        status = mr_prompt_ids_parse((mr_str){text.data, text.len}, path, r->session.info.vocab_size, &r->ids, err);
    if (status == MR_OK)
        status = mr_session_check_length(&r->session, (int64_t)r->ids.n, 0, err);
    mr_text_buf_deinit(&text);
    if (status != MR_OK || !mr_options_given(options, MR_OPTION_LAST))
        return status;
    int64_t last = mr_options_number(options, MR_OPTION_LAST);
    if (last > (int64_t)r->ids.n)
        return mr_err_set(err, MR_E_INVALID, "--last: %" PRId64 " positions, but there are only %zu ids", last,
                          r->ids.n);
    r->first = (int32_t)((int64_t)r->ids.n - last);
    return MR_OK;
}

static size_t row_bytes(const logits_run *r) {
    return (size_t)r->session.info.vocab_size * sizeof(float);
}

/* Writes logits of the job. A callback cannot stop the job, so logits after a failed write are dropped. */
static void on_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    logits_run *r = ctx;
    int32_t skip = r->first > first_position ? r->first - first_position : 0;
    if (skip >= n_rows || r->out_err.status != MR_OK)
        return;
    const float *rows = logits + (size_t)skip * (size_t)r->session.info.vocab_size;
    mr_err err;
    if (mr_output_file_write(&r->out, rows, (size_t)(n_rows - skip) * row_bytes(r), &err) != MR_OK)
        r->out_err = err;
}

static mr_status load(logits_run *r, mr_err *err) {
    int64_t n = (int64_t)r->ids.n, kv = mr_session_whole_blocks(n);
    mr_session_needs needs = {
        .max_rows = n, .max_sequences = 1, .all_logits = true, .kv_tokens = kv, .min_kv_tokens = kv};
    mr_status status = mr_session_size(&r->session, &needs, err);
    return status == MR_OK ? mr_session_start(&r->session, err) : status;
}

static mr_status run(logits_run *r, mr_err *err) {
    int64_t sequence;
    mr_sequence_desc desc = {.prompt_ids = r->ids.ids, .n_prompt = (int32_t)r->ids.n, .on_logits = on_logits, .ctx = r};
    int64_t start_ns = mr_clock_now_ns();
    mr_status status = mr_job_submit(r->session.job, &desc, &sequence, err);
    if (status == MR_OK)
        status = mr_job_run(r->session.job, err);
    if (status == MR_OK && r->out_err.status != MR_OK) {
        *err = r->out_err;
        status = err->status;
    }
    double seconds = (double)(mr_clock_now_ns() - start_ns) / (double)MR_NS_PER_S;
    if (status == MR_OK)
        mr_output_note("%zu positions in %.2f s, %.1f tokens/s", r->ids.n, seconds, (double)r->ids.n / seconds);
    return status;
}

static mr_status check_options(const mr_options *options, mr_err *err) {
    if (!mr_options_text(options, MR_OPTION_IDS_FILE))
        return mr_err_set(err, MR_E_INVALID, "logits needs --ids-file FILE");
    if (!mr_options_text(options, MR_OPTION_OUT))
        return mr_err_set(err, MR_E_INVALID, "logits needs -o FILE");
    return MR_OK;
}

mr_status cmd_logits(const mr_options *options, mr_err *err) {
    logits_run r = {0};
    mr_status status = check_options(options, err);
    if (status == MR_OK)
        status = mr_session_open(options, &r.session, err);
    if (status == MR_OK)
        status = read_ids(&r, options, err);
    if (status == MR_OK)
        status = mr_output_file_open(&r.out, mr_options_text(options, MR_OPTION_OUT),
                                     (r.ids.n - (size_t)r.first) * row_bytes(&r), err);
    if (status == MR_OK)
        status = load(&r, err);
    if (status == MR_OK)
        status = run(&r, err);
    if (status == MR_OK)
        status = mr_session_stop(&r.session, err);
    if (status == MR_OK)
        status = mr_output_file_commit(&r.out, err);
    mr_output_file_abort(&r.out);
    mr_session_close(&r.session);
    mr_token_buf_deinit(&r.ids);
    return status;
}
