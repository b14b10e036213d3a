// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/trace_file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/console/output_table.h"
#include "engine/base/clock.h"

static mr_status io_error(const mr_trace_file *t, mr_err *err) {
    return mr_err_set(err, MR_E_IO, "%.160s cannot be written: %s", t->path, strerror(errno));
}

void mr_trace_file_begin(mr_trace_file *t, FILE *file, const int64_t *offset_ns) {
    *t = (mr_trace_file){.file = file, .path = "the trace", .offset_ns = offset_ns, .zero_ns = mr_clock_now_ns()};
    fputs("[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"millrace\"}}", t->file);
}

mr_status trace_file_open(mr_trace_file *t, const char *path, const int64_t *offset_ns, mr_err *err) {
    FILE *file = fopen(path, "we");
    *t = (mr_trace_file){.path = path};
    if (!file)
        return io_error(t, err);
    mr_trace_file_begin(t, file, offset_ns);
    t->path = path;
    return MR_OK;
}

/* The track of a stage's phases, or of the works of its CPU or device. */
static int32_t track_of(int32_t stage, mr_phase phase) {
    return phase < MR_PHASE_COUNT ? stage : stage + MR_MAX_STAGES * (1 + (int32_t)phase - MR_PHASE_COUNT);
}

static void name_track(mr_trace_file *t, int32_t track, const char *name) {
    json_t *event = json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", "thread_name", "ph", "M", "pid", 0, "tid",
                              (int)track, "args", "name", name);
    char *text = event ? json_dumps(event, JSON_ENSURE_ASCII | JSON_COMPACT) : NULL;
    if (text)
        fprintf(t->file, ",\n%s", text);
    free(text);
    json_decref(event);
}

void trace_file_name(mr_trace_file *t, int32_t stage, const char *name) {
    name_track(t, stage, name);
}

void trace_file_name_works(mr_trace_file *t, int32_t stage) {
    for (mr_phase kind = MR_SPAN_CPU; kind < MR_SPAN_KINDS; kind++) {
        char name[64];
        snprintf(name, sizeof name, "stage %" PRId32 ": %s", stage, kind == MR_SPAN_CPU ? "CPU" : "device");
        name_track(t, track_of(stage, kind), name);
    }
}

void mr_trace_file_spans(void *ctx, int32_t stage, const mr_span *spans, int32_t n) {
    mr_trace_file *t = ctx;
    int64_t zero = t->zero_ns + t->offset_ns[stage];
    for (int32_t i = 0; i < n; i++) {
        const mr_span *s = &spans[i];
        if (s->end_ns < zero)
            continue;
        fprintf(t->file,
                ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%" PRId32
                ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"step\":%" PRIu64 ",\"rows\":%" PRIu32 "}}",
                mr_phase_name(s->phase), track_of(stage, s->phase), (double)(s->start_ns - zero) / 1e3,
                (double)(s->end_ns - s->start_ns) / 1e3, s->step, s->rows);
    }
}

mr_status mr_trace_file_close(mr_trace_file *t, mr_err *err) {
    if (!t->file)
        return MR_OK;
    fputs("]\n", t->file);
    bool failed = ferror(t->file) != 0;
    failed = fclose(t->file) != 0 || failed;
    t->file = NULL;
    return failed ? io_error(t, err) : MR_OK;
}

mr_status mr_trace_shares_print(const mr_job *job, int32_t n_stages, mr_text_buf *out, mr_err *err) {
    static const mr_phase ORDER[] = {MR_PHASE_COMPUTE, MR_PHASE_WAIT_IN,  MR_PHASE_WAIT_OUT,
                                     MR_PHASE_WIRE,    MR_PHASE_SAMPLING, MR_PHASE_NO_WORK};
    enum { N = sizeof ORDER / sizeof ORDER[0] };
    mr_output_table t = {.align = "rrrrrrrrr"};
    mr_output_table_cell(&t, "stage");
    for (int k = 0; k < N; k++)
        mr_output_table_cell(&t, "%s", mr_phase_name(ORDER[k]));
    mr_output_table_cell(&t, "seconds");
    mr_output_table_cell(&t, "steps");
    for (int32_t i = 0; i < n_stages; i++) {
        const mr_stage_seconds *s = mr_job_stage_seconds(job, i);
        int64_t all = 0;
        for (int k = 0; k < N; k++)
            all += s->ns[k];
        mr_output_table_cell(&t, "%" PRId32, i);
        for (int k = 0; k < N; k++)
            if (all > 0)
                mr_output_table_cell(&t, "%.1f %%", 100.0 * (double)s->ns[ORDER[k]] / (double)all);
            else
                mr_output_table_cell(&t, "-"); /* the stage ended without a last report */
        mr_output_table_cell(&t, "%.2f", (double)all / (double)MR_NS_PER_S);
        mr_output_table_cell(&t, "%" PRIu64, s->n_steps);
    }
    mr_status status = mr_output_table_print(&t, out, err);
    mr_output_table_deinit(&t);
    return status;
}
