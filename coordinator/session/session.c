/* coordinator/session/session.c - opens a session, chooses plan and sizes by the options, and starts and stops the
 * job. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recover.h"
#include "coordinator/session/session_recut.h"
#include "coordinator/session/session_spares.h"
#include "coordinator/session/synthetic_plan.h"
#include "engine/base/clock.h"
#include "engine/base/cores.h"
#include "engine/base/mem.h"
#include "engine/gguf/gguf_digest.h"

enum {
    DEFAULT_CONTEXT = 4096,
    MAX_CHUNK = 512, /* without --chunk */
};

/* --- Choices ----------------------------------------------------------------------------------------------------- */

static const char *plural(int32_t n, const char *one, const char *many) {
    return n == 1 ? one : many;
}

const mr_rank_info *mr_session_rank(const mr_session *s, int32_t stage) {
    return mr_session_cluster_rank(&s->cluster, s->plan.stages[stage].rank);
}

/* Warns if ranks of a --plan file run on other hosts than when the plan was made. Such a plan runs, but its times were
 * not measured there. */
static void warn_of_hosts(const mr_session *s, const char *path) {
    int32_t n_others = 0, first = 0;
    for (int32_t i = s->plan.n_stages - 1; i >= 0; i--) {
        const mr_rank_info *rank = mr_session_rank(s, i);
        const char *then = s->facts.plan_from.hosts[i].name;
        if (!rank || !*then || strcmp(rank->host, then) == 0)
            continue;
        n_others++;
        first = i;
    }
    if (n_others > 0)
        mr_output_warning("%.160s: stage %" PRId32 " was planned for %.64s, but rank %" PRId32 " is on %.64s (%" PRId32
                          " of %" PRId32 " stages are elsewhere): it may be slow there; hint: "
                          "ranks in the same order, or a new plan",
                          path, first, s->facts.plan_from.hosts[first].name, s->plan.stages[first].rank,
                          mr_session_rank(s, first)->host, n_others, s->plan.n_stages);
}

/* Takes the plan of --plan. In a single process the stages are threads, whatever ranks the plan names. */
static mr_status take_plan(mr_session *s, mr_err *err) {
    const char *path = mr_options_text(s->options, MR_OPTION_PLAN_FILE);
    int32_t n_ranks = mr_session_facts_n_ranks(s);
    bool threads = n_ranks == 1 && !s->facts.known;
    s->plan = s->facts.plan_from.plan;
    for (int32_t i = 0; i < s->plan.n_stages && threads; i++)
        s->plan.stages[i].rank = i;
    mr_plan_weigh(s->gguf, &s->info, &s->plan);
    mr_status status = threads ? MR_OK : plan_file_check_ranks(&s->facts.plan_from, path, n_ranks, err);
    if (status == MR_OK)
        warn_of_hosts(s, path);
    return status;
}

static mr_status solve_plan(mr_session *s, mr_err *err) {
    mr_status status = mr_session_facts_solve(s, &s->plan, err);
    if (status == MR_OK)
        status = session_spares_solve(s, err);
    if (status == MR_OK)
        mr_plan_weigh(s->gguf, &s->info, &s->plan);
    return status;
}

static mr_status too_many_stages(const mr_session *s, int32_t n, mr_err *err) {
    int32_t n_ranks = mr_session_facts_n_ranks(s);
    if (s->facts.read.has_facts)
        return mr_err_set(err, MR_E_INVALID, "%" PRId32 " stages need as many ranks, but %.160s knows of %" PRId32, n,
                          mr_options_text(s->options, MR_OPTION_FACTS), n_ranks);
    return mr_err_set(err, MR_E_INVALID, "%" PRId32 " stages need as many ranks, but %" PRId32 " were started", n,
                      n_ranks);
}

static mr_status choose_plan(mr_session *s, mr_err *err) {
    const mr_option_value *cut = &s->options->values[MR_OPTION_CUT];
    const mr_option_value *stages = &s->options->values[MR_OPTION_STAGES];
    if (cut->given && stages->given && stages->number != cut->n + 1)
        return mr_err_set(err, MR_E_INVALID,
                          "--cut names the first layers of %" PRId32 " stages, --stages is %" PRId64
                          "; hint: one of the two is enough",
                          cut->n + 1, stages->number);
    mr_status fits = session_spares_check(s, err);
    if (fits == MR_OK)
        fits = session_recut_check(s, err);
    if (fits != MR_OK)
        return fits;
    if (s->facts.plan_from.has_plan)
        return take_plan(s, err);
    int32_t n_ranks = mr_session_facts_n_ranks(s), n = mr_session_facts_usual_stages(s);
    n -= session_spares_wanted(s);
    n = n < s->info.n_layers ? n : s->info.n_layers;
    if (cut->given || stages->given)
        n = cut->given ? cut->n + 1 : (int32_t)stages->number;
    const char *synthetic = mr_options_text(s->options, MR_OPTION_SYNTHETIC_STAGE);
    if (synthetic) /* there may be more stages than layers */
        n = stages->given ? (int32_t)stages->number : n_ranks > 1 ? n_ranks : synthetic_plan_count(synthetic);
    if ((n_ranks > 1 || s->facts.known) && n > n_ranks) /* known facts are of ranks here: threads are measured later */
        return too_many_stages(s, n, err);
    if (n > n_ranks - session_spares_wanted(s) && n_ranks > 1)
        return mr_err_set(err, MR_E_INVALID,
                          "%" PRId32 " stages and %" PRId32 " spares need as many ranks, but there are %" PRId32, n,
                          session_spares_wanted(s), n_ranks);
    if (synthetic)
        return cut->given ? mr_err_set(err, MR_E_INVALID, "both --cut and --synthetic-stage were given; hint: --stages")
                          : synthetic_plan_make(synthetic, s->info.n_layers, n, &s->plan, err);
    /* With one rank there is one plan, and solving says whether it fits the rank that a file describes. */
    if (s->facts.known && (n_ranks > 1 || s->options->command == MR_COMMAND_PLAN) && !cut->given && !stages->given)
        return solve_plan(s, err);
    mr_status status = cut->given ? mr_plan_cut(s->gguf, &s->info, cut->ints, cut->n, &s->plan, err)
                                  : mr_plan_balance(s->gguf, &s->info, n, &s->plan, err);
    if (status != MR_OK)
        return cut->given || stages->given ? mr_err_prefix(err, cut->given ? "--cut" : "--stages") : status;
    if (n < n_ranks && !s->facts.known)
        mr_output_note("%" PRId32 " of %" PRId32 " ranks %s left out: the model is cut into %" PRId32, n_ranks - n,
                       n_ranks, plural(n_ranks - n, "is", "are"), n);
    return MR_OK;
}

static mr_status check_context(const mr_session *s, mr_err *err) {
    int32_t top_k = s->info.indexer_top_k;
    if (top_k > 0 && s->ctx > top_k)
        return mr_err_set(err, MR_E_INVALID,
                          "--ctx is %" PRId32 ", but this version runs %s models up to %" PRId32
                          " positions; hint: --ctx %" PRId32,
                          s->ctx, s->info.arch, top_k, top_k);
    if (s->ctx > s->info.context_length)
        mr_output_warning("--ctx is %" PRId32 ", but the model was made for %" PRId32 " tokens: it may write nonsense",
                          s->ctx, s->info.context_length);
    return MR_OK;
}

/* Chooses the sizes that do not depend on the plan. */
static mr_status choose_sizes(mr_session *s, mr_err *err) {
    const mr_options *o = s->options;
    int32_t model_ctx = s->info.context_length < MR_MAX_CONTEXT ? s->info.context_length : MR_MAX_CONTEXT;
    s->ctx = model_ctx < DEFAULT_CONTEXT ? model_ctx : DEFAULT_CONTEXT;
    if (mr_options_given(o, MR_OPTION_CTX))
        s->ctx = (int32_t)mr_options_number(o, MR_OPTION_CTX);
    static const mr_type KV_TYPES[] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0}; /* in the order of the option */
    s->kv_type = KV_TYPES[(int)mr_options_number(o, MR_OPTION_KV_TYPE)];
    s->chunk = mr_options_given(o, MR_OPTION_CHUNK) ? (int32_t)mr_options_number(o, MR_OPTION_CHUNK) : MAX_CHUNK;
    return check_context(s, err);
}

int32_t mr_session_usual_chunk(int32_t n_stages) {
    return n_stages == 1 ? MAX_CHUNK : n_stages == 2 ? MAX_CHUNK / 2 : MAX_CHUNK / 4;
}

static void choose_numbers(mr_session *s) {
    const mr_options *o = s->options;
    mr_cores cores;
    mr_cores_get(&cores);
    int32_t shared = mr_cores_usable(&cores) / s->plan.n_stages;
    s->threads = shared < 1 ? 1 : shared;
    if (mr_options_given(o, MR_OPTION_THREADS))
        s->threads = (int32_t)mr_options_number(o, MR_OPTION_THREADS);
    else if (s->cluster.n_ranks > 0)
        s->threads = s->cluster.threads;
    /* The chunks of one prompt fill the pipeline. With more chunks, less of the pipeline idles at both ends. The
     * scheduler takes smaller chunks if the times of the stages say so. Until it knows the times, it uses this size. */
    if (!mr_options_given(o, MR_OPTION_CHUNK))
        s->chunk = mr_session_usual_chunk(s->plan.n_stages);
}

static mr_status hint_at_rank_0(mr_err *err) {
    const mr_err why = *err;
    return mr_err_set(err, why.status,
                      "%.380s; hint: rank 0 needs the model file, or the first of its parts; a rank that has none gets "
                      "its layers from others",
                      why.text);
}

static mr_status read_model(mr_session *s, mr_err *err) {
    mr_status status = mr_model_info_read(s->gguf, &s->info, err);
    if (status != MR_OK)
        return mr_err_prefix(err, "%.160s", s->model_path);
    if (s->info.n_nextn_layers > 0)
        mr_output_note("the last %" PRId32 " layers of the file are left out: they predict further tokens",
                       s->info.n_nextn_layers);
    if (s->info.indexer_top_k > 0)
        mr_output_note("the indexers of the file are left out: up to %" PRId32
                       " positions they change nothing, and this version runs no more",
                       s->info.indexer_top_k);
    if (mr_model_encoder_bytes(s->gguf) > 0)
        mr_output_note("the encoders of pictures and sounds in the file are left out: this version reads text alone");
    return choose_sizes(s, err);
}

/* Meets the other ranks, and reads the model: before, so that a bad file needs no other rank; or after, where other
 * ranks have parts of it. */
static mr_status meet(mr_session *s, mr_err *err) {
    const mr_options *o = s->options;
    int32_t n_ranks = mr_rank_place_get().n_ranks, own;
    bool meets = o->command != MR_COMMAND_SIMULATE && !mr_options_given(o, MR_OPTION_FACTS);
    mr_status status = mr_session_model_open(o, &s->model_path, &s->gguf, err);
    bool in_parts = status == MR_E_NOT_FOUND && s->model_path && mr_part_files_count(s->model_path, &own) > 1 &&
                    mr_part_files_exists(s->model_path, 0);
    bool lacks_parts = in_parts && meets && n_ranks > 1;
    if (status == MR_OK)
        status = read_model(s, err);
    else if (status == MR_E_NOT_FOUND && n_ranks > 1 && !lacks_parts)
        status = hint_at_rank_0(err);
    if ((status == MR_OK && meets) || lacks_parts)
        status = mr_session_cluster_open(o, s->model_path, &s->cluster, err);
    if (status == MR_OK && lacks_parts)
        status = mr_session_cluster_open_file(&s->cluster, o, s->model_path, &s->gguf, err);
    return status == MR_OK && lacks_parts ? read_model(s, err) : status;
}

static mr_status read_gpu_layers(const mr_options *o, int32_t *out, mr_err *err) {
    const char *text = mr_options_text(o, MR_OPTION_GPU_LAYERS);
    char *end = NULL;
    *out = -1;
    if (!text || strcmp(text, "auto") == 0)
        return MR_OK;
    long n = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : -1;
    if (n < 0 || n > INT32_MAX || *end)
        return mr_err_set(err, MR_E_INVALID, "--gpu-layers: \"%.80s\" is neither a number nor auto", text);
    *out = (int32_t)n;
    return MR_OK;
}

/* Whether there is a stage for each device, and by the measured times no device gets a layer. The CPU alone is faster
 * with one stage. */
static bool has_idle_stages(const mr_session *s) {
    const mr_options *o = s->options;
    bool is_chosen = mr_options_given(o, MR_OPTION_STAGES) || mr_options_given(o, MR_OPTION_CUT) ||
                     mr_options_given(o, MR_OPTION_PLAN_FILE);
    bool uses_devices = is_chosen || !mr_session_facts_is_here(s) || s->plan.n_stages == 1;
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        uses_devices = uses_devices || s->plan.stages[i].device_layers > 0;
    return !uses_devices;
}

static mr_status measure_plan(mr_session *s, mr_err *err) {
    choose_numbers(s);
    mr_status status = mr_session_facts_measure_here(s, err);
    if (status == MR_OK && !s->facts.known)
        return mr_session_choose_ways(s, err);
    return status == MR_OK ? mr_session_facts_predict(s, err) : status;
}

mr_status mr_session_open(const mr_options *options, mr_session *s, mr_err *err) {
    *s = (mr_session){.options = options};
    if (mr_rank_place_get().n_ranks > 1)
        mr_interrupt_catch(); /* from here on an interrupt must be passed on to the other ranks */
    mr_status status = mr_session_cluster_devices(options, &s->devices, err);
    if (status == MR_OK)
        status = read_gpu_layers(options, &s->gpu_layers, err);
    if (status == MR_OK)
        status = meet(s, err);
    if (status == MR_OK)
        status = mr_session_read_gpu_index(s, err);
    if (status == MR_OK)
        status = mr_session_facts_open(s, err);
    if (status == MR_OK)
        status = mr_session_facts_measure_ranks(s, err);
    if (status == MR_OK)
        status = choose_plan(s, err);
    if (status != MR_OK)
        return status;
    status = measure_plan(s, err);
    if (status == MR_OK && has_idle_stages(s)) {
        mr_session_facts_deinit(&s->facts);
        s->gpu_layers = 0;
        status = choose_plan(s, err);
        if (status == MR_OK)
            status = measure_plan(s, err);
    }
    return status == MR_OK ? mr_session_facts_choose_chunk(s, err) : status;
}

uint64_t mr_session_model_digest(const mr_session *s) {
    const mr_rank_part *parts;
    uint64_t digest;
    if (!s->cluster.roll)
        return mr_gguf_digest(s->gguf);
    (void)mr_roll_call_file(s->cluster.roll, &parts, &digest);
    return digest;
}

void mr_session_close(mr_session *s) {
    mr_err ignored;
    mr_session_cluster_tell_of_interrupt(&s->cluster);
    mr_job_destroy(s->job);
    if (mr_trace_file_close(&s->trace, &ignored) != MR_OK)
        mr_output_warning("%s", ignored.text);
    mr_free(s->clock_offset_ns);
    session_recovery_deinit(s);
    mr_session_facts_deinit(&s->facts);
    mr_session_cluster_close(&s->cluster);
    mr_gguf_close(s->gguf);
    mr_free(s->sizes);
    mr_free(s->model_path);
    *s = (mr_session){0};
}

mr_status mr_session_check_length(const mr_session *s, int64_t n_tokens, int32_t more, mr_err *err) {
    if (n_tokens + more <= s->ctx)
        return MR_OK;
    const char *hint = s->ctx < s->info.context_length ? "; hint: a larger --ctx" : "";
    return mr_err_set(err, MR_E_TOO_LONG,
                      "the prompt has %" PRId64 " tokens%s, but the context has %" PRId32 " (the model's: %" PRId32
                      ")%s",
                      n_tokens, more ? " and needs room for one more" : "", s->ctx, s->info.context_length, hint);
}

/* --- Start ------------------------------------------------------------------------------------------------------- */

static void note_silent(const char *stages) {
    mr_output_note("still loading: %s", stages);
}

void mr_session_name_tracks(const mr_session *s, mr_trace_file *trace) {
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        char title[160];
        const mr_rank_info *rank = mr_session_rank(s, i);
        snprintf(title, sizeof title, "stage %" PRId32 ", layers %" PRId32 " to %" PRId32 "%s%s", i,
                 s->plan.stages[i].first, s->plan.stages[i].last - 1, rank ? ", on " : "", rank ? rank->host : "");
        trace_file_name(trace, i, title);
        if (s->plan.stages[i].device_layers > 0)
            trace_file_name_works(trace, i);
    }
}

void mr_session_set_clocks(mr_session *s) {
    for (int32_t i = 0; i < s->plan.n_stages && s->clock_offset_ns; i++)
        s->clock_offset_ns[i] = mr_session_cluster_clock_offset_ns(&s->cluster, s->plan.stages[i].rank);
}

/* Opens the file of --trace. */
static mr_status open_trace(mr_session *s, mr_err *err) {
    const char *path = mr_options_text(s->options, MR_OPTION_TRACE);
    if (!path && !s->on_spans)
        return MR_OK;
    int32_t most = s->plan.n_stages > s->cluster.n_ranks ? s->plan.n_stages : s->cluster.n_ranks;
    s->clock_offset_ns = mr_alloc_array((size_t)most, sizeof *s->clock_offset_ns);
    if (!s->clock_offset_ns)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a trace of %" PRId32 " stages", s->plan.n_stages);
    mr_status status = mr_session_cluster_compare_clocks(&s->cluster, err);
    if (status == MR_OK)
        mr_session_set_clocks(s);
    if (status == MR_OK && path)
        status = trace_file_open(&s->trace, path, s->clock_offset_ns, err);
    if (status == MR_OK && path)
        mr_session_name_tracks(s, &s->trace);
    return status;
}

mr_status mr_session_stop(mr_session *s, mr_err *err) {
    mr_text_buf table = {0};
    s->cluster.well = true;
    mr_session_cluster_tell_of_interrupt(&s->cluster);
    mr_session_facts_note_steps(s);
    if (!s->trace.file)
        return MR_OK;
    mr_job_stop(s->job);
    mr_status status = mr_trace_file_close(&s->trace, err);
    if (status == MR_OK)
        status = mr_trace_shares_print(s->job, s->plan.n_stages, &table, err);
    if (status == MR_OK)
        mr_output_note_lines(table.data);
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (mr_job_stage_seconds(s->job, i)->n_dropped_spans > 0)
            mr_output_warning("%s has gaps: stage %" PRId32 " could not send %" PRIu64 " spans", s->trace.path, i,
                              mr_job_stage_seconds(s->job, i)->n_dropped_spans);
    mr_text_buf_deinit(&table);
    return status;
}

static void pass_spans(void *ctx, int32_t stage, const mr_span *spans, int32_t n) {
    mr_session *s = ctx;
    if (s->trace.file)
        mr_trace_file_spans(&s->trace, stage, spans, n);
    if (s->on_spans)
        s->on_spans(s->on_spans_ctx, stage, spans, n);
}

static void pass_progress(void *ctx, size_t done_bytes, size_t total_bytes) {
    mr_session *s = ctx;
    mr_progress_update(&s->bar, done_bytes, total_bytes);
    if (s->on_loaded)
        s->on_loaded(s->on_loaded_ctx, done_bytes, total_bytes);
}

static mr_weights_root weights_root(const mr_session *s) {
    mr_weights_root root = {{0}};
    if (s->cluster.roll)
        (void)mr_roll_call_weights_root(s->cluster.roll, &root);
    return root;
}

static mr_status create_job(mr_session *s, mr_err *err) {
    mr_job_config config = {.info = &s->info,
                            .epoch.plan = &s->plan,
                            .channel = mr_session_cluster_channel(&s->cluster),
                            .epoch.number = s->epoch,
                            .max_rows = s->max_rows,
                            .max_out_rows = s->max_out_rows,
                            .max_sequences = s->max_sequences,
                            .max_context = s->ctx,
                            .epoch.n_kv_blocks = s->n_kv_blocks,
                            .kv_type = (int32_t)s->kv_type,
                            .model_digest = mr_session_model_digest(s),
                            .weights_root = weights_root(s),
                            .map_weights = s->map_weights,
                            .fast_numerics = s->devices.is_fast,
                            .epoch.times = s->facts.prediction ? &s->facts.prediction->times : NULL,
                            .grammars = s->grammars,
                            .token_s =
                                s->token_s > 0 ? s->token_s : mr_options_real(s->options, MR_OPTION_TBT_MS) / 1e3,
                            .progress = pass_progress,
                            .progress_ctx = s,
                            .silent = note_silent,
                            .on_spans = s->trace.file || s->on_spans ? pass_spans : NULL,
                            .on_spans_ctx = s,
                            .profile = s->facts.profile.n_layers > 0 ? &s->facts.profile : NULL,
                            .renew_rows = (int32_t)mr_options_number(s->options, MR_OPTION_RENEW_EXPERTS),
                            .counts_uses = s->counts_uses,
                            .on_step = s->on_step,
                            .on_step_ctx = s->on_step_ctx,
                            .recover = s->recovery.is_on ? session_recover : NULL,
                            .on_step_sums = s->recovery.recut ? session_recut_add : NULL,
                            .wants_restart = s->recovery.is_on ? session_wants_restart : NULL,
                            .recover_ctx = s,
                            .interrupted = s->interrupted ? s->interrupted : mr_session_cluster_ended};
    mr_progress_begin(&s->bar);
    mr_status status = mr_job_create(&config, &s->job, err);
    mr_progress_end(&s->bar);
    return status;
}

mr_status mr_session_start(mr_session *s, mr_err *err) {
    mr_text_buf table = {0};
    char bytes[OUTPUT_BYTES_TEXT];
    int64_t start_ns = mr_clock_now_ns();
    mr_status status = session_recovery_init(s, err);
    if (status == MR_OK)
        status = mr_session_print_plan(s, &table, err);
    if (status == MR_OK)
        output_json_note_plan(table.data, &s->plan, s->sizes, &s->cluster);
    mr_text_buf_deinit(&table);
    mr_interrupt_catch();
    mr_mem_set_budget((size_t)mr_options_number(s->options, MR_OPTION_MEM));
    if (status == MR_OK)
        status = open_trace(s, err);
    if (status == MR_OK)
        status = mr_session_cluster_start(&s->cluster, s->model_path, &s->plan, s->threads, ++s->epoch, err);
    if (status == MR_OK && s->recovery.is_on)
        rank_allow_losses(s->cluster.rank);
    if (status == MR_OK)
        status = create_job(s, err);
    if (status != MR_OK)
        return status;
    if (!mr_job_has_epoch(s->job)) /* the job waits for memory */
        return MR_OK;
    s->is_loaded = true;
    mr_session_take_ways(s, s->job);
    if (s->recovery.is_on && s->epoch == 1) /* recovery has done so for later plans */
        session_layers_loaded(s);
    mr_session_cluster_set_idle(&s->cluster, &s->plan);
    s->load_ns = mr_clock_now_ns() - start_ns;
    mr_output_bytes_text(mr_session_total_sizes(s).weight_bytes, bytes);
    if (s->cluster.n_without_file == 0) {
        mr_output_note("loaded %s in %.2f s", bytes, (double)s->load_ns / (double)MR_NS_PER_S);
        return MR_OK;
    }
    uint64_t fetched_bytes = 0;
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        fetched_bytes += mr_job_stage_report(s->job, i)->fetched_bytes;
    mr_output_note("loaded %s in %.2f s; %" PRIu64 " bytes of the model file went to %" PRId32 " %s that lacked them",
                   bytes, (double)s->load_ns / (double)MR_NS_PER_S, fetched_bytes, s->cluster.n_without_file,
                   plural(s->cluster.n_without_file, "rank", "ranks"));
    return MR_OK;
}
