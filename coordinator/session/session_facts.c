// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_facts.h"

#include <inttypes.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/console/output.h"
#include "coordinator/session/host_list.h"
#include "coordinator/session/local_facts.h"
#include "coordinator/session/profile_file.h"
#include "coordinator/session/session.h"
#include "engine/base/bytes_text.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"

enum {
    LEAST_CHUNK = 32,
    MOST_DEPTH = 512,     /* the planner assumes at most this many positions before a row */
    LEAST_SEQUENCES = 32, /* a plan is made for at least this many sequences */
    RANK_SEQUENCES = 16,  /* and for at least this many for each rank: with fewer, some ranks would idle */
    MEASURE_OFF = 1,      /* values of --measure, in its order */
    MEASURE_ANEW = 2,
};

/* --- Files ------------------------------------------------------------------------------------------------------- */

/* Checks that a file that has been read fits the model. */
static mr_status check_file(mr_session *s, const char *path, plan_file *out, mr_err *err) {
    mr_status status = plan_file_check_model(out, path, s->facts.model_digest, s->info.n_layers, err);
    if (status == MR_OK)
        status = plan_file_check_devices(out, path, &s->info, err);
    if (status == MR_OK && out->has_facts)
        mr_cluster_facts_set_model(&out->facts, &s->info);
    out->facts.expert_shares = s->facts.expert_shares;
    return status;
}

static mr_status read_plan(mr_session *s, plan_file *out, mr_err *err) {
    const char *path = mr_options_text(s->options, MR_OPTION_PLAN_FILE);
    mr_status status = path ? plan_file_read(path, out, err) : MR_OK;
    return path && status == MR_OK ? check_file(s, path, out, err) : status;
}

/* --facts: a file from --save, or a list of hosts. */
static mr_status read_facts(mr_session *s, plan_file *out, mr_err *err) {
    const char *path = mr_options_text(s->options, MR_OPTION_FACTS);
    mr_text_buf buf = {0};
    if (!path)
        return MR_OK;
    mr_status status = mr_text_file_read(path, PLAN_FILE_MAX_BYTES, &buf, err);
    mr_str text = {buf.data, buf.len};
    if (status == MR_OK && host_list_is(text)) {
        status = host_list_parse(text, path, s->gguf, &s->info, s->kv_type, out, err);
    } else if (status == MR_OK) {
        status = plan_file_parse(text, path, out, err);
        if (status == MR_OK)
            status = check_file(s, path, out, err);
    }
    mr_text_buf_deinit(&buf);
    return status;
}

/* Looks for the profile of a model whose experts may be shared between a device and the CPU. */
static mr_status find_profile(mr_session *s, mr_err *err) {
    mr_session_facts *f = &s->facts;
    /* Other ranks may have devices. */
    bool may_share = mr_devices_may_hold_layers(&s->devices) || s->cluster.n_ranks > 1;
    if (s->info.n_experts == 0 || !may_share ||
        !mr_profile_find(mr_options_text(s->options, MR_OPTION_CACHE_DIR), mr_session_model_digest(s), &s->info,
                         &f->profile) ||
        f->profile.n_layers == 0) /* the model has experts, and no layer has them */
        return MR_OK;
    f->expert_shares = mr_alloc_array((size_t)s->info.n_experts + 1, sizeof *f->expert_shares);
    return f->expert_shares ? mr_profile_shares(&f->profile, f->expert_shares, err)
                            : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a profile");
}

mr_status mr_session_facts_open(mr_session *s, mr_err *err) {
    mr_session_facts *f = &s->facts;
    const mr_options *o = s->options;
    const bool wants = mr_options_given(o, MR_OPTION_PLAN_FILE) || mr_options_given(o, MR_OPTION_FACTS) ||
                       mr_options_given(o, MR_OPTION_SAVE);
    if (mr_options_given(o, MR_OPTION_PLAN_FILE) &&
        (mr_options_given(o, MR_OPTION_CUT) || mr_options_given(o, MR_OPTION_STAGES) ||
         mr_options_given(o, MR_OPTION_SYNTHETIC_STAGE)))
        return mr_err_set(err, MR_E_INVALID, "--plan sets the stages, so it cannot be combined with %s",
                          mr_options_given(o, MR_OPTION_CUT)      ? "--cut"
                          : mr_options_given(o, MR_OPTION_STAGES) ? "--stages"
                                                                  : "--synthetic-stage");
    if (mr_options_given(o, MR_OPTION_PLAN_FILE) && mr_options_given(o, MR_OPTION_GPU_INDEX))
        return mr_err_set(err, MR_E_INVALID,
                          "--plan sets the neurons on devices (cold_partitions), so it cannot be combined with "
                          "--gpu-index");
    f->model_digest = wants ? mr_session_model_digest(s) : 0;
    mr_status status = find_profile(s, err);
    if (status == MR_OK)
        status = read_plan(s, &f->plan_from, err);
    if (status == MR_OK)
        status = read_facts(s, &f->read, err);
    if (status == MR_OK && mr_options_given(o, MR_OPTION_PLAN_FILE) && !f->plan_from.has_plan)
        status = mr_err_set(err, MR_E_FORMAT, "%.160s: stages is missing; hint: --facts takes a file without a plan",
                            mr_options_text(o, MR_OPTION_PLAN_FILE));
    if (status == MR_OK && mr_options_given(o, MR_OPTION_FACTS) && !f->read.has_facts)
        status = mr_err_set(err, MR_E_FORMAT, "%.160s: facts is missing; hint: `millrace plan --save` writes it",
                            mr_options_text(o, MR_OPTION_FACTS));
    if (status != MR_OK)
        return status;
    if (f->read.has_facts)
        f->known = &f->read.facts;
    else if (f->plan_from.has_facts && o->command == MR_COMMAND_PLAN && s->cluster.n_ranks == 0)
        f->known = &f->plan_from.facts;
    return MR_OK;
}

void mr_session_facts_deinit(mr_session_facts *f) {
    plan_file_deinit(&f->plan_from);
    plan_file_deinit(&f->read);
    mr_facts_deinit(&f->measured);
    mr_free(f->prediction);
    mr_profile_deinit(&f->profile);
    mr_free(f->expert_shares);
    *f = (mr_session_facts){0};
}

bool mr_session_facts_is_here(const mr_session *s) {
    return s->cluster.n_ranks == 0 && s->facts.known == &s->facts.measured.view;
}

int32_t mr_session_facts_n_ranks(const mr_session *s) {
    if (s->cluster.n_ranks > 0)
        return s->cluster.n_ranks;
    return s->facts.known && !mr_session_facts_is_here(s) ? s->facts.known->n_ranks : 1;
}

const char *mr_session_facts_host(const mr_session *s, int32_t stage) {
    int32_t rank = s->plan.stages[stage].rank;
    const mr_rank_info *info = mr_session_cluster_rank(&s->cluster, rank);
    if (info)
        return info->host;
    return mr_session_facts_n_ranks(s) > 1 ? s->facts.known->ranks[rank].host : NULL;
}

/* --- Measured curves --------------------------------------------------------------------------------------------- */

/* More rows cannot take less time than fewer. Points that contradict this were disturbed, and are set to their mean. */
static void straighten(mr_step_times *t) {
    for (int32_t i = 1; i < t->n; i++) {
        double sum = t->seconds[i];
        int32_t first = i;
        while (first > 0 && t->seconds[first - 1] > sum / (i - first + 1))
            sum += t->seconds[--first];
        for (int32_t k = first; k <= i; k++)
            t->seconds[k] = sum / (i - first + 1);
    }
}

static void straighten_all(mr_facts *f) {
    for (int32_t r = 0; r < f->view.n_ranks; r++) {
        mr_measured_device *d = &f->ranks[r].device;
        for (int32_t k = 0; k < f->view.n_kinds; k++) {
            straighten(&f->ranks[r].layer[k]);
            straighten(&d->layer[k]);
            straighten(&d->trunk[k]);
        }
        straighten(&f->ranks[r].output);
        straighten(&d->output);
        straighten(&d->crossing);
    }
}

/* --- Measuring --------------------------------------------------------------------------------------------------- */

static bool wants_measuring(const mr_session *s) {
    return !s->facts.known && !mr_options_given(s->options, MR_OPTION_SYNTHETIC_STAGE) &&
           s->options->command != MR_COMMAND_SIMULATE &&
           mr_options_number(s->options, MR_OPTION_MEASURE) != MEASURE_OFF;
}

/* Without times and bytes of its layers, a device gets none. A plan file says itself which layers it has. */
static void warn_of_idle_devices(const mr_session *s) {
    if ((s->gpu_layers > 0 || mr_devices_must_hold_layers(&s->devices)) &&
        mr_options_number(s->options, MR_OPTION_MEASURE) == MEASURE_OFF &&
        !mr_options_given(s->options, MR_OPTION_PLAN_FILE))
        mr_output_warning("all layers stay on the CPU, because --measure is off");
}

int32_t mr_session_facts_usual_stages(const mr_session *s) {
    int32_t n_ranks = mr_session_facts_n_ranks(s);
    bool uses_devices = s->cluster.n_ranks == 0 && wants_measuring(s) && s->gpu_layers != 0;
    int32_t n_devices = uses_devices ? mr_devices_count(&s->devices) : 0;
    return n_devices > n_ranks ? n_devices : n_ranks;
}

static bool note_measuring(void *ctx, const char *what, int32_t n_done, int32_t n) {
    char text[PROGRESS_TEXT];
    if (mr_progress_is_due(ctx)) {
        snprintf(text, sizeof text, "%s: %" PRId32 " of %" PRId32, what, n_done, n);
        mr_progress_show(ctx, text);
    }
    return !mr_session_cluster_ended();
}

static bool chooses_chunk(const mr_session *s) {
    return s->info.n_experts > 0 && !mr_options_given(s->options, MR_OPTION_CHUNK);
}

static mr_facts_wish wish_of(mr_session *s) {
    const mr_options *o = s->options;
    mr_progress_begin(&s->bar);
    return (mr_facts_wish){.kv_type = (int32_t)s->kv_type,
                           .max_rows = chooses_chunk(s) ? MR_CHUNK_MOST : s->chunk,
                           .map_weights = mr_options_number(o, MR_OPTION_NO_REPACK) != 0,
                           .fast_numerics = s->devices.is_fast,
                           .anew = mr_options_number(o, MR_OPTION_MEASURE) == MEASURE_ANEW,
                           .ways = mr_session_ways_to_measure(s),
                           .memory_limit = (uint64_t)mr_options_number(o, MR_OPTION_MEM),
                           .progress = note_measuring,
                           .ctx = &s->bar};
}

/* --- Measuring in this process ----------------------------------------------------------------------------------- */

mr_status mr_session_facts_measure_here(mr_session *s, mr_err *err) {
    const bool wanted = s->options->command == MR_COMMAND_PLAN || mr_options_given(s->options, MR_OPTION_MEASURE) ||
                        mr_devices_may_hold_layers(&s->devices);
    if (s->cluster.n_ranks > 0 || !wanted || !wants_measuring(s))
        return MR_OK;
    mr_facts *f = &s->facts.measured;
    const mr_facts_wish wish = wish_of(s);
    const mr_local_cluster_config cluster = {.model_path = s->model_path,
                                             .n_stages = s->plan.n_stages,
                                             .threads_per_stage = s->threads,
                                             .threads_adapt = s->cluster.threads_adapt,
                                             .devices = s->devices};
    mr_status status = mr_facts_init(f, s->gguf, &s->info, s->plan.n_stages, err);
    if (status == MR_OK)
        status = local_facts_measure(&cluster, mr_options_text(s->options, MR_OPTION_CACHE_DIR), &wish, f, err);
    mr_progress_end(&s->bar);
    if (status == MR_E_CANCELLED || (status != MR_OK && mr_devices_must_hold_layers(&s->devices)))
        return status;
    if (status != MR_OK) {
        mr_output_warning("no times are predicted, because measuring failed: %s", err->text);
        return MR_OK;
    }
    straighten_all(f);
    f->view.expert_shares = s->facts.expert_shares;
    s->facts.known = &f->view;
    return MR_OK;
}

/* --- Measuring at ranks ------------------------------------------------------------------------------------------ */

/* Whether the plan or the layers of devices depend on measured times, or the user wants to see a prediction. */
static bool wants_ranks(const mr_session *s) {
    const mr_options *o = s->options;
    bool is_given = mr_options_given(o, MR_OPTION_CUT) || mr_options_given(o, MR_OPTION_STAGES);
    bool shows =
        o->command == MR_COMMAND_PLAN || o->command == MR_COMMAND_BENCH || mr_options_given(o, MR_OPTION_MEASURE);
    shows = shows || mr_devices_may_hold_layers(&s->devices);
    return s->cluster.n_ranks > 1 && wants_measuring(s) && (!is_given || shows);
}

mr_status mr_session_facts_measure_ranks(mr_session *s, mr_err *err) {
    mr_facts *f = &s->facts.measured;
    warn_of_idle_devices(s);
    if (!wants_ranks(s))
        return MR_OK;
    const mr_facts_wish wish = wish_of(s);
    mr_status status = mr_facts_init(f, s->gguf, &s->info, s->cluster.n_ranks, err);
    if (status == MR_OK)
        status = mr_facts_measure(f, s->cluster.roll, &wish, err);
    mr_progress_end(&s->bar);
    if (status == MR_OK) {
        straighten_all(f);
        f->view.expert_shares = s->facts.expert_shares;
        s->facts.known = &f->view;
        return MR_OK;
    }
    if (status == MR_E_CANCELLED || (f->view.n_ranks > 0 && !f->all_answered) ||
        mr_devices_must_hold_layers(&s->devices))
        return status;
    mr_output_warning("stages are balanced by bytes, because measuring failed: %s", err->text);
    return MR_OK;
}

/* --- Input of the planner ---------------------------------------------------------------------------------------- */

/* What a stage of a plan that is not made yet holds of the rows that come and go. */
static size_t hop_bytes(const mr_session *s) {
    int32_t n_ranks = mr_session_facts_n_ranks(s);
    bool is_known = s->plan.n_stages > 0 || mr_options_given(s->options, MR_OPTION_CHUNK);
    return mr_session_hop_bytes(s, n_ranks, is_known ? s->chunk : mr_session_usual_chunk(n_ranks));
}

static mr_status stage_sizes(mr_session *s, mr_backend *backend, int32_t layer, mr_stage_sizes *out, mr_err *err) {
    int32_t rows = s->chunk > 0 ? s->chunk : MR_MAX_STEP_ROWS / 8;
    mr_stage_config config = {.gguf = s->gguf,
                              .info = &s->info,
                              .range = {layer, layer + 1},
                              .max_rows = rows,
                              .max_out_rows = rows < LEAST_SEQUENCES ? rows : LEAST_SEQUENCES,
                              .max_sequences = LEAST_SEQUENCES,
                              .max_context = s->ctx,
                              .n_kv_blocks = 1,
                              .kv_type = s->kv_type,
                              .map_weights = mr_options_number(s->options, MR_OPTION_NO_REPACK) != 0};
    return mr_stage_measure(&config, backend, out, err);
}

/* Measures a stage of one layer of each kind, without the last layer, which also has the output. out_buffers: the
 * largest buffers; they do not depend on the number of layers. Raises the bytes of layers to what repacked matrices
 * take. A kind that only the first layer is of keeps its bytes, because that stage also has the embedding. */
static mr_status measure_kinds(mr_session *s, mr_backend *backend, mr_model_memory *m, size_t *out_buffers,
                               mr_err *err) {
    const mr_cluster_facts *f = s->facts.known;
    bool seen[MR_MAX_LAYER_KINDS] = {false};
    mr_status status = MR_OK;
    *out_buffers = 0;
    for (int32_t i = 1; i < f->n_layers && status == MR_OK; i++) {
        int32_t l = i + 1 < f->n_layers ? i : 0; /* the first layer comes last */
        mr_stage_sizes sizes = {0};
        if (seen[f->kind[l]])
            continue;
        seen[f->kind[l]] = true;
        status = stage_sizes(s, backend, l, &sizes, err);
        *out_buffers = sizes.work_bytes > *out_buffers ? sizes.work_bytes : *out_buffers;
        size_t *layer = &m->layer_bytes[f->kind[l]], others = mr_model_shared_bytes(s->gguf);
        if (l > 0 && sizes.weight_bytes > *layer + others)
            *layer = sizes.weight_bytes - others;
    }
    return status;
}

/* The memory that the planner counts for the parts of the model. */
static mr_status model_memory(mr_session *s, mr_model_memory *out, mr_err *err) {
    mr_model_memory m = {.stage_bytes = mr_model_shared_bytes(s->gguf) + hop_bytes(s),
                         .head_bytes = mr_model_embedding_bytes(s->gguf),
                         .tail_bytes = mr_model_output_bytes(s->gguf)};
    for (int32_t l = 0; l < s->info.n_layers; l++) {
        uint8_t kind = s->facts.known->kind[l];
        m.layer_bytes[kind] = mr_model_layer_bytes(s->gguf, &s->info, l);
        m.token_bytes[kind] = mr_model_kv_bytes(&s->info, l, s->kv_type);
    }
    mr_stage_sizes tail = {0};
    size_t buffers = 0;
    mr_backend *backend = NULL;
    mr_cpu_options cpu = {.n_threads = 1};
    mr_status status = mr_cpu_backend_create(&cpu, &backend, err);
    if (status == MR_OK)
        status = measure_kinds(s, backend, &m, &buffers, err);
    if (status == MR_OK)
        status = stage_sizes(s, backend, s->info.n_layers - 1, &tail, err);
    mr_backend_destroy(backend);
    if (status != MR_OK)
        return status;
    m.stage_bytes += buffers;
    m.tail_bytes += tail.work_bytes > buffers ? tail.work_bytes - buffers : 0;
    *out = m;
    return MR_OK;
}

static int32_t sequences_to_plan_for(const mr_session *s) {
    if (mr_options_given(s->options, MR_OPTION_SEQUENCES))
        return (int32_t)mr_options_number(s->options, MR_OPTION_SEQUENCES);
    int32_t n = RANK_SEQUENCES * mr_session_facts_n_ranks(s);
    return n > LEAST_SEQUENCES ? n : LEAST_SEQUENCES;
}

static mr_status tell_planner(mr_session *s, mr_err *err) {
    mr_session_facts *f = &s->facts;
    const mr_options *o = s->options;
    if (f->planner.facts)
        return MR_OK;
    f->planner = (mr_planner_config){
        .rank_bytes = !mr_session_facts_is_here(s) ? (uint64_t)mr_options_number(o, MR_OPTION_MEM) : 0,
        .objective = mr_options_number(o, MR_OPTION_OBJECTIVE) == 1 ? MR_OBJECTIVE_LATENCY : MR_OBJECTIVE_THROUGHPUT,
        .n_sequences = sequences_to_plan_for(s),
        .depth = s->ctx / 2 < MOST_DEPTH ? s->ctx / 2 : MOST_DEPTH,
        .kv_tokens = s->ctx,
        .fills_devices = s->gpu_layers > 0 || mr_devices_must_hold_layers(&s->devices),
        .limits_devices = s->gpu_layers >= 0,
        .most_device_layers = s->gpu_layers,
        .limits_neurons = s->hot_partitions >= 0,
        .most_hot_partitions = s->hot_partitions};
    mr_status status = model_memory(s, &f->planner.memory, err);
    f->planner.facts = f->known;
    return status;
}

mr_status mr_session_facts_solve_anyway(const mr_session *s, const mr_planner_config *with, mr_plan *out,
                                        mr_err *out_why, mr_err *err) {
    mr_status status = mr_planner_solve(with, out, err);
    *out_why = (mr_err){0};
    if (status != MR_E_NO_MEMORY || mr_options_given(s->options, MR_OPTION_MEM)) /* --mem is a hard limit */
        return status;
    /* No rank has enough memory. Matrices may still stay in the mapped file: the system drops its pages and reads them
     * again as needed. So the planner tries again without limits of memory. */
    mr_err text = *err;
    mr_planner_config config = *with;
    mr_cluster_facts facts = *with->facts;
    mr_rank_facts *ranks = mr_alloc_array((size_t)facts.n_ranks, sizeof *ranks);
    if (!ranks)
        return status;
    memcpy(ranks, facts.ranks, (size_t)facts.n_ranks * sizeof *ranks);
    for (int32_t i = 0; i < facts.n_ranks; i++)
        ranks[i].memory_bytes = 0;
    facts.ranks = ranks;
    config.rank_bytes = 0;
    config.facts = &facts;
    status = mr_planner_solve(&config, out, err);
    mr_free(ranks);
    if (status == MR_OK)
        *out_why = text;
    return status;
}

mr_status mr_session_facts_solve_with(const mr_session *s, const mr_planner_config *with, mr_plan *out, mr_err *err) {
    mr_err why;
    mr_status status = mr_session_facts_solve_anyway(s, with, out, &why, err);
    if (status == MR_OK && why.text[0])
        mr_output_warning("%s", why.text);
    return status;
}

/* Whether the plan is for ranks that a file describes: nobody runs it now. */
static bool is_described(const mr_session *s) {
    return s->options->command == MR_COMMAND_PLAN && s->facts.known != &s->facts.measured.view;
}

static void note_misfit(mr_session *s, const mr_err *why) {
    mr_output_warning("%s", why->text);
    s->facts.is_misfit = is_described(s);
}

mr_status mr_session_facts_solve(mr_session *s, mr_plan *out, mr_err *err) {
    mr_status status = tell_planner(s, err);
    if (status != MR_OK)
        return status;
    s->facts.is_solved = true;
    mr_err why;
    status = mr_session_facts_solve_anyway(s, &s->facts.planner, out, &why, err);
    if (status == MR_OK && why.text[0])
        note_misfit(s, &why);
    return status;
}

/* --- Prediction -------------------------------------------------------------------------------------------------- */

/* Whether a plan that the planner did not make fits the memory of its ranks. A plan file that does not is refused. */
static mr_status check_memory(mr_session *s, mr_err *err) {
    mr_session_facts *f = &s->facts;
    const char *path = mr_options_text(s->options, MR_OPTION_PLAN_FILE);
    if (!path && (f->is_solved || !is_described(s)))
        return MR_OK;
    mr_status status = mr_planner_check_memory(&f->planner, &s->plan, err);
    if (status != MR_OK && path)
        return mr_err_prefix(err, "%.160s", path);
    if (status != MR_E_NO_MEMORY)
        return status;
    note_misfit(s, err);
    return MR_OK;
}

mr_status mr_session_facts_predict(mr_session *s, mr_err *err) {
    mr_session_facts *f = &s->facts;
    if (!f->known)
        return MR_OK;
    mr_status status = tell_planner(s, err);
    if (status != MR_OK)
        return status;
    f->prediction = mr_alloc(sizeof *f->prediction);
    if (!f->prediction)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to predict a plan");
    if (!f->is_solved && !mr_options_given(s->options, MR_OPTION_PLAN_FILE))
        status = mr_planner_use_devices(&f->planner, &s->plan, err);
    if (status == MR_OK)
        status = mr_session_choose_ways(s, err);
    if (status != MR_OK)
        return status;
    mr_plan_predict(f->known, &s->plan, f->planner.depth, f->prediction);
    if (!mr_session_facts_is_here(s)) /* stages of one process have no ranks with memory of their own */
        status = check_memory(s, err);
    return status == MR_OK ? session_facts_note(s, err) : status;
}

mr_status mr_session_facts_choose_chunk(mr_session *s, mr_err *err) {
    mr_session_facts *f = &s->facts;
    mr_planner_config config = f->planner;
    mr_status status = MR_OK, fits = MR_E_NO_MEMORY;
    mr_err ignored;
    if (!f->prediction || s->plan.synthetic || !chooses_chunk(s))
        return MR_OK;
    mr_chunk_choose(&f->prediction->times, s->chunk, &f->chunk);
    for (; status == MR_OK && f->chunk.chosen > 0; f->chunk.chosen--) {
        s->chunk = f->chunk.rows[f->chunk.chosen];
        status = model_memory(s, &config.memory, err);
        if (status == MR_OK)
            fits = mr_planner_check_memory(&config, &s->plan, &ignored);
        if (fits == MR_OK) {
            f->planner.memory = config.memory;
            return MR_OK;
        }
        f->chunk.reason = MR_CHUNK_FILLS_MEMORY;
    }
    s->chunk = f->chunk.rows[0];
    return status;
}

/* Predicts a rate for another depth than the planner's. */
static double rate_at(const mr_session *s, int32_t n, int32_t depth, bool prefill) {
    const mr_session_facts *f = &s->facts;
    double rate = 0;
    mr_plan_prediction *p = f->prediction ? mr_alloc(sizeof *p) : NULL;
    if (!p)
        return 0;
    mr_plan_predict(f->known, &s->plan, depth, p);
    if (!prefill)
        rate = mr_plan_decode_rate(p, n, NULL);
    /* The scheduler chooses a good chunk, so the rate is the best over all sizes. */
    for (int32_t chunk = s->chunk; prefill && (chunk == s->chunk || chunk >= LEAST_CHUNK); chunk /= 2) {
        double with = mr_plan_prefill_rate(p, n, chunk);
        rate = with > rate ? with : rate;
    }
    mr_free(p);
    return rate;
}

double mr_session_facts_decode_rate(const mr_session *s, int32_t n_sequences, int32_t depth) {
    return rate_at(s, n_sequences, depth, false);
}

double mr_session_facts_prefill_rate(const mr_session *s, int32_t n_tokens, int32_t depth) {
    return rate_at(s, n_tokens, depth + n_tokens / 2, true);
}

void mr_session_facts_note_steps(const mr_session *s) {
    mr_learned_step step;
    for (int32_t i = 0; s->job && s->facts.prediction && i < s->plan.n_stages; i++)
        if (mr_job_usual_step(s->job, i, &step))
            mr_output_note("stage %" PRId32 ": a step of %.0f %s took %s ms, expected were %s ms", i, step.rows,
                           step.rows < 1.5 ? "row" : "rows",
                           mr_output_rounded(1e3 * step.seconds, (char[OUTPUT_ROUNDED_TEXT]){0}),
                           mr_output_rounded(1e3 * mr_plan_step_seconds(s->facts.prediction, i, step.rows),
                                             (char[OUTPUT_ROUNDED_TEXT]){0}));
}
