/* coordinator/session/session_spares.c - chooses the spares, and what they hold. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_spares.h"

#include <inttypes.h>
#include <string.h>

#include "coordinator/console/output.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_replan.h"
#include "engine/base/mem.h"

enum { FREE_PART = 8 }; /* one part in FREE_PART of a host's free memory is left free */

int32_t session_spares_wanted(const mr_session *s) {
    return s->cluster.n_ranks > 1 ? (int32_t)mr_options_number(s->options, MR_OPTION_SPARES) : 0;
}

mr_status session_spares_check(const mr_session *s, mr_err *err) {
    int32_t n = session_spares_wanted(s);
    if (n > 0 && mr_options_number(s->options, MR_OPTION_RECOVER) == 0)
        return mr_err_set(err, MR_E_INVALID, "--spares without --recover has no use; hint: give both");
    if (n >= s->cluster.n_ranks && n > 0)
        return mr_err_set(err, MR_E_INVALID, "%" PRId32 " spares of %" PRId32 " ranks; hint: at most %" PRId32, n,
                          s->cluster.n_ranks, s->cluster.n_ranks - 1);
    return MR_OK;
}

/* --- Who is a spare ---------------------------------------------------------------------------------------------- */

static int32_t layers_in_plan(const mr_session *s, int32_t rank) {
    const mr_plan_stage *stage = session_layers_stage(s, rank);
    return stage ? stage->last - stage->first : 0;
}

static int32_t layers_held(const mr_session *s, int32_t rank) {
    const bool *row = session_layers_row(s, rank);
    int32_t n = 0;
    for (int32_t l = 0; l <= s->info.n_layers; l++)
        n += row[l];
    return n;
}

uint64_t session_spares_memory_of(const mr_session *s, int32_t rank) {
    uint64_t bytes = mr_session_cluster_rank(&s->cluster, rank)->memory_bytes;
    return bytes > 0 ? bytes : UINT64_MAX;
}

static bool has_fewer_layers(const mr_session *s, int32_t a, int32_t b) {
    return layers_in_plan(s, a) <= layers_in_plan(s, b);
}

/* Ranks with a stage keep one. Of the others, those are wanted that hold many layers, then those with much memory. */
static bool is_less_wanted(const mr_session *s, int32_t a, int32_t b) {
    bool stage_a = layers_in_plan(s, a) > 0, stage_b = layers_in_plan(s, b) > 0;
    int32_t held_a = layers_held(s, a), held_b = layers_held(s, b);
    if (stage_a != stage_b)
        return stage_b;
    if (!stage_a && held_a != held_b)
        return held_a < held_b;
    return stage_a || session_spares_memory_of(s, a) <= session_spares_memory_of(s, b);
}

/* Removes one rank: the last one of those that are less than the others. */
static int32_t remove_least(const mr_session *s, int32_t *ranks, int32_t n,
                            bool (*is_less)(const mr_session *s, int32_t a, int32_t b)) {
    int32_t least = 0;
    for (int32_t i = 1; i < n; i++)
        if (is_less(s, ranks[i], ranks[least]))
            least = i;
    memmove(ranks + least, ranks + least + 1, (size_t)(n - least - 1) * sizeof *ranks);
    return n - 1;
}

mr_status session_spares_solve(mr_session *s, mr_err *err) {
    int32_t n = s->cluster.n_ranks, most = n - session_spares_wanted(s);
    mr_plan plan;
    if (session_spares_wanted(s) == 0 || s->plan.n_stages <= most) /* facts may be of more ranks than this job has */
        return MR_OK;
    int32_t *ranks = mr_alloc_array((size_t)n, sizeof *ranks);
    if (!ranks)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " ranks", n);
    for (int32_t i = 0; i < n; i++)
        ranks[i] = i;
    while (n > most)
        n = remove_least(s, ranks, n, has_fewer_layers);
    mr_status status = session_replan_solve(s, ranks, n, s->facts.planner.kv_tokens, &plan, err);
    if (status == MR_OK)
        s->plan = plan;
    mr_free(ranks);
    return status == MR_OK ? MR_OK : mr_err_prefix(err, "without the spares");
}

int32_t session_spares_leave_out(const mr_session *s, const int32_t *living, int32_t n, int32_t most, int32_t *out) {
    bool leaves_out = session_spares_wanted(s) > 0 || !s->facts.is_solved;
    memcpy(out, living, (size_t)n * sizeof *out);
    while (leaves_out && n > most)
        n = remove_least(s, out, n, is_less_wanted);
    return n;
}

bool session_spares_is_one(const mr_session *s, int32_t rank) {
    const mr_session_recovery *r = &s->recovery;
    return r->is_on && session_spares_wanted(s) > 0 && !session_layers_stage(s, rank) && !r->has_failed[rank] &&
           !r->is_drained[rank] && !mr_session_cluster_is_lost(&s->cluster, rank);
}

/* --- What spares hold -------------------------------------------------------------------------------------------- */

static bool share_memory(const mr_rank_info *a, const mr_rank_info *b) {
    return strcmp(a->host, b->host) == 0 && a->memory_group == b->memory_group;
}

/* Bytes that the stages on the host of a rank leave in the session's plan; UINT64_MAX: not known. */
static uint64_t room_at(const mr_session *s, int32_t rank) {
    const mr_rank_info *info = mr_session_cluster_rank(&s->cluster, rank);
    uint64_t room = info->memory_bytes - info->memory_bytes / FREE_PART;
    uint64_t limit = (uint64_t)mr_options_number(s->options, MR_OPTION_MEM);
    if (info->memory_bytes == 0)
        return limit > 0 ? limit : UINT64_MAX;
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        const mr_stage_sizes *z = &s->sizes[i];
        uint64_t used = z->weight_bytes + z->kv_bytes + z->work_bytes;
        if (share_memory(info, mr_session_cluster_rank(&s->cluster, s->plan.stages[i].rank)))
            room -= used < room ? used : room;
    }
    return limit > 0 && limit < room ? limit : room;
}

/* Bytes that a spare was told to hold. */
static uint64_t ordered_by(const mr_session *s, int32_t rank) {
    size_t n = (size_t)s->info.n_layers + 1;
    const bool *row = s->recovery.ordered + (size_t)rank * n;
    uint64_t bytes = row[n - 1] ? mr_model_output_bytes(s->gguf) : 0;
    for (int32_t l = 0; l < s->info.n_layers; l++)
        bytes += row[l] ? mr_model_layer_bytes(s->gguf, &s->info, l) : 0;
    return bytes;
}

/* The same of the spares below `before`, but not of this one, on the host of this one. */
static uint64_t ordered_by_others(const mr_session *s, int32_t rank, int32_t before) {
    const mr_rank_info *info = mr_session_cluster_rank(&s->cluster, rank);
    uint64_t bytes = 0;
    for (int32_t other = 0; other < before; other++)
        if (other != rank && session_spares_is_one(s, other) &&
            share_memory(mr_session_cluster_rank(&s->cluster, other), info))
            bytes += ordered_by(s, other);
    return bytes;
}

/* Writes the stages that a spare has room for to out, in the order of their layers. Spares begin at different stages.
 * Returns how many there are. */
static int32_t choose_stages(const mr_session *s, int32_t rank, int32_t number, mr_plan_stage *out) {
    bool takes[MR_MAX_STAGES] = {false};
    uint64_t room = room_at(s, rank), before = ordered_by_others(s, rank, rank);
    bool is_known = room != UINT64_MAX;
    int32_t n = 0, n_stages = s->plan.n_stages;
    room -= before < room ? before : room;
    for (int32_t i = 0; i < n_stages && (is_known || i == 0); i++) { /* without knowledge: one stage */
        int32_t stage = (number + i) % n_stages;
        uint64_t bytes = s->sizes[stage].weight_bytes;
        takes[stage] = bytes <= room;
        room -= takes[stage] ? bytes : 0;
    }
    for (int32_t i = 0; i < n_stages; i++) {
        if (!takes[i])
            continue;
        out[n] = s->plan.stages[i];
        out[n++].rank = rank;
    }
    return n;
}

/* Chooses the layers for the device of the spare, as a plan with it would. */
static mr_status place(const mr_session *s, mr_plan *wanted, mr_err *err) {
    for (int32_t i = 0; i < wanted->n_stages; i++) {
        mr_plan_stage *stage = &wanted->stages[i];
        stage->device_layers = stage->host_experts = stage->device_experts = stage->cold_partitions = 0;
    }
    return s->facts.known ? mr_planner_use_devices(&s->facts.planner, wanted, err) : MR_OK;
}

static void prepare(mr_session *s, int32_t rank, int32_t number, mr_plan *wanted) {
    size_t n = (size_t)s->info.n_layers + 1;
    bool *row = s->recovery.ordered + (size_t)rank * n;
    mr_err err;
    wanted->n_stages = choose_stages(s, rank, number, wanted->stages);
    memset(row, 0, n * sizeof *row);
    for (int32_t i = 0; i < wanted->n_stages; i++)
        for (int32_t l = wanted->stages[i].first; l < (int32_t)n; l++)
            row[l] = row[l] || l < wanted->stages[i].last || wanted->stages[i].last == s->info.n_layers;
    mr_status status = place(s, wanted, &err);
    const mr_prepare_order order = {.n_stages = wanted->n_stages,
                                    .stages = wanted->stages,
                                    .map_weights = s->map_weights,
                                    .fast_numerics = s->devices.is_fast};
    if (status == MR_OK)
        status = mr_roll_call_prepare(s->cluster.roll, rank, &order, &err);
    if (status != MR_OK)
        mr_output_warning("rank %" PRId32 " holds no layers as a spare: %s", rank, err.text);
}

/* Bytes of the layers that a rank holds beside those of its stage. */
static uint64_t held_beside(const mr_session *s, int32_t rank) {
    const mr_plan_stage *stage = session_layers_stage(s, rank);
    const bool *row = session_layers_row(s, rank);
    uint64_t bytes = row[s->info.n_layers] && stage->last < s->info.n_layers ? mr_model_output_bytes(s->gguf) : 0;
    for (int32_t l = 0; l < s->info.n_layers; l++)
        bytes += row[l] && (l < stage->first || l >= stage->last) ? mr_model_layer_bytes(s->gguf, &s->info, l) : 0;
    return bytes;
}

bool session_spares_has_room(const mr_session *s, int32_t rank, int32_t from) {
    const mr_rank_info *info = mr_session_cluster_rank(&s->cluster, rank);
    const mr_stage_sizes *z = &s->sizes[session_layers_stage(s, rank) - s->plan.stages];
    uint64_t own = z->weight_bytes + z->kv_bytes + z->work_bytes, beside = held_beside(s, rank);
    uint64_t limit = (uint64_t)mr_options_number(s->options, MR_OPTION_MEM);
    bool is_from_here = share_memory(info, mr_session_cluster_rank(&s->cluster, from)); /* its stage still runs */
    uint64_t others = beside + ordered_by_others(s, rank, s->cluster.n_ranks) + (is_from_here ? own : 0);
    return others <= room_at(s, rank) && (limit == 0 || own + beside <= limit);
}

void session_spares_prepare(mr_session *s) {
    mr_plan *wanted = mr_alloc(sizeof *wanted);
    for (int32_t rank = 0, number = 0; rank < s->cluster.n_ranks && wanted; rank++)
        if (session_spares_is_one(s, rank))
            prepare(s, rank, number++, wanted);
    mr_free(wanted);
}

void session_spares_hear(mr_session *s) {
    size_t n = (size_t)s->info.n_layers + 1;
    mr_err err;
    mr_rank_held held;
    for (int32_t rank = 0; rank < s->cluster.n_ranks; rank++) {
        bool *row = s->recovery.ordered + (size_t)rank * n;
        if (!session_spares_is_one(s, rank) || mr_roll_call_hear(s->cluster.roll, rank, &err) != MR_OK ||
            !mr_roll_call_take_held(s->cluster.roll, rank, &held))
            continue;
        char bytes[OUTPUT_BYTES_TEXT];
        mr_output_bytes_text((size_t)held.bytes, bytes);
        if (held.status == MR_OK) {
            memcpy(session_layers_row(s, rank), row, n * sizeof *row);
            mr_output_note("rank %" PRId32 " is a spare, and holds %s of weights", rank, bytes);
        } else {
            mr_output_warning("rank %" PRId32 " is a spare, and holds %s of weights only: its load has failed", rank,
                              bytes);
        }
        if (s->on_spares)
            s->on_spares(s->on_recovery_ctx);
    }
}
