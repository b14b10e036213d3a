/* coordinator/session/session_plan.c - prints the plan of a session as a table. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "coordinator/console/output_table.h"
#include "coordinator/session/session_ways.h"
#include "engine/gguf/gguf.h"

static const char *plural(int32_t n, const char *one, const char *many) {
    return n == 1 ? one : many;
}

/* " of 2 threads", or " of 2 to 8 threads" if ranks differ. Empty for hosts that a file describes. */
static void threads_text(const mr_session *s, char out[48]) {
    int32_t least = s->threads, most = s->threads;
    for (int32_t i = 0; i < s->plan.n_stages && s->cluster.n_ranks > 0; i++) {
        int32_t n = mr_session_rank(s, i)->threads;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    out[0] = 0;
    if (s->facts.read.has_facts)
        return;
    if (least == most)
        snprintf(out, 48, " of %" PRId32 " %s", most, plural(most, "thread", "threads"));
    else
        snprintf(out, 48, " of %" PRId32 " to %" PRId32 " threads", least, most);
}

static bool print_heading(const mr_session *s, mr_text_buf *out) {
    int32_t n_stages = s->plan.n_stages;
    int32_t n_parts = mr_gguf_n_parts(s->gguf);
    char threads[48], parts[32] = "";
    threads_text(s, threads);
    if (n_parts > 1)
        snprintf(parts, sizeof parts, " (file in %" PRId32 " parts)", n_parts);
    return mr_output_printf(out,
                            "%s%s%s%s: %" PRId32 " layers in %" PRId32 " %s%s; context %" PRId32 ", at most %" PRId32
                            " rows at once, KV cache of %" PRId64 " tokens in %s%s\n",
                            s->info.arch, s->info.name[0] ? " " : "", s->info.name, parts, s->info.n_layers, n_stages,
                            plural(n_stages, "stage", "stages"), threads, s->ctx, s->max_rows,
                            (int64_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS,
                            mr_options_text(s->options, MR_OPTION_KV_TYPE),
                            s->map_weights ? ", matrices in the model file" : "");
}

/* in_file: bytes that are read from the mapped model file; a column of its own if matrices stay in the file. */
static void add_row(const mr_session *s, const mr_stage_sizes *sizes, size_t in_file, mr_output_table *t) {
    mr_output_table_bytes_cell(t, sizes->weight_bytes);
    if (s->map_weights)
        mr_output_table_bytes_cell(t, in_file);
    mr_output_table_bytes_cell(t, sizes->kv_bytes);
    mr_output_table_bytes_cell(t, sizes->work_bytes);
    mr_output_table_bytes_cell(t, sizes->weight_bytes + sizes->kv_bytes + sizes->work_bytes);
}

/* The rows of the step whose time the table shows: the step that the plan was chosen for. */
static double rows_of_step(const mr_session *s) {
    const mr_planner_config *planner = &s->facts.planner;
    int32_t m, n = planner->objective == MR_OBJECTIVE_LATENCY ? 1 : planner->n_sequences;
    (void)mr_plan_decode_rate(s->facts.prediction, n, &m);
    return (double)n / m;
}

static void add_heads(const mr_session *s, bool ranks, mr_output_table *t) {
    static const char *const HEADS[] = {"stage", "layers", "weights", "in the file", "KV cache", "buffers", "together"};
    enum { IN_FILE = 3 };
    for (size_t i = 0; i < sizeof HEADS / sizeof HEADS[0]; i++)
        if (i != IN_FILE || s->map_weights)
            mr_output_table_cell(t, "%s", HEADS[i]);
    if (s->facts.prediction)
        mr_output_table_cell(t, "step of %.0f", rows_of_step(s));
    if (ranks) {
        mr_output_table_cell(t, "rank");
        mr_output_table_cell(t, "host");
    }
}

static void add_stage(const mr_session *s, int32_t i, mr_output_table *t) {
    const mr_plan_stage *stage = &s->plan.stages[i];
    const char *host = mr_session_facts_host(s, i);
    mr_output_table_cell(t, "%" PRId32, i);
    if (s->plan.synthetic)
        mr_output_table_cell(t, "sleeps");
    else
        mr_output_table_cell(t, "%" PRId32 "-%" PRId32, stage->first, stage->last - 1);
    add_row(s, &s->sizes[i], mr_session_file_bytes(s, i), t);
    if (s->facts.prediction)
        mr_output_table_cell(t, "%s ms",
                             mr_output_rounded(1e3 * mr_plan_step_seconds(s->facts.prediction, i, rows_of_step(s)),
                                               (char[OUTPUT_ROUNDED_TEXT]){0}));
    if (host) {
        mr_output_table_cell(t, "%" PRId32, stage->rank);
        mr_output_table_cell(t, "%s", host);
    }
}

/* Says which layers devices hold. */
static bool print_devices(const mr_session *s, mr_text_buf *out) {
    bool ok = true;
    for (int32_t i = 0; i < s->plan.n_stages && ok; i++) {
        const mr_plan_stage *stage = &s->plan.stages[i];
        char experts[96] = "", held[48] = "", neurons[96] = "", on_cpu[64] = "";
        char of[OUTPUT_BYTES_TEXT] = "", bytes[OUTPUT_BYTES_TEXT];
        if (stage->device_layers == 0 || !s->facts.known || !s->facts.known->ranks[stage->rank].device.is_known)
            continue;
        const mr_measured_device *d = &s->facts.known->ranks[stage->rank].device;
        int64_t tokens = (int64_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS;
        int32_t end = stage->first + stage->device_layers;
        mr_output_bytes_text((size_t)mr_planner_device_bytes(s->facts.known, stage, tokens), bytes);
        if (d->memory_bytes > 0)
            mr_output_bytes_text((size_t)d->memory_bytes, of);
        if (stage->device_experts > 0)
            snprintf(held, sizeof held, " but for %" PRId32 " of each", stage->device_experts);
        if (stage->host_experts > 0)
            snprintf(experts, sizeof experts, ", the experts of layers %" PRId32 "-%" PRId32 "%s on the CPU",
                     end - stage->host_experts, end - 1, held);
        if (stage->cold_partitions > 0)
            snprintf(neurons, sizeof neurons, ", the last %" PRId32 " of %" PRId32 " partitions of neurons on the CPU",
                     stage->cold_partitions, mr_model_partitions(&s->info));
        if (end < stage->last)
            snprintf(on_cpu, sizeof on_cpu, ", layers %" PRId32 "-%" PRId32 " on the CPU", end, stage->last - 1);
        ok = mr_output_printf(out, "stage %" PRId32 ": layers %" PRId32 "-%" PRId32 " on '%s' (%s%s%s)%s%s%s\n", i,
                              stage->first, end - 1, d->name, bytes, of[0] ? " of " : "", of, experts, neurons, on_cpu);
    }
    return ok;
}

mr_status mr_session_print_plan(const mr_session *s, mr_text_buf *out, mr_err *err) {
    mr_stage_sizes total = mr_session_total_sizes(s);
    bool ranks = mr_session_facts_host(s, 0) != NULL, foretold = s->facts.prediction != NULL;
    char align[OUTPUT_TABLE_MAX_COLUMNS];
    size_t in_file = 0;
    snprintf(align, sizeof align, "rrrrrr%s%s%s", s->map_weights ? "r" : "", foretold ? "r" : "", ranks ? "rl" : "");
    mr_output_table t = {.align = align};
    add_heads(s, ranks, &t);
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        add_stage(s, i, &t);
        in_file += mr_session_file_bytes(s, i);
    }
    mr_output_table_cell(&t, "all");
    mr_output_table_cell(&t, "%" PRId32, s->info.n_layers);
    add_row(s, &total, in_file, &t);
    for (int i = 0; i < foretold + 2 * ranks; i++)
        mr_output_table_cell(&t, "%s", "");
    t.failed |= !print_heading(s, out);
    mr_status status = mr_output_table_print(&t, out, err);
    mr_output_table_deinit(&t);
    if (status == MR_OK && !(print_devices(s, out) && mr_session_print_ways(s, out)))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
    return status;
}
