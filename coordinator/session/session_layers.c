/* coordinator/session/session_layers.c - notes which layers each rank has in memory. Where the notes are wrong, because
 * a load was stopped, the next plan takes a little longer: a stage that lacks a layer loads it. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_layers.h"

#include <string.h>

#include "coordinator/planning/plan_keep.h"
#include "coordinator/session/session_spares.h"
#include "engine/base/mem.h"

/* A layer each, and the output. */
static size_t n_columns(const mr_session *s) {
    return (size_t)s->info.n_layers + 1;
}

bool *session_layers_row(const mr_session *s, int32_t rank) {
    return s->recovery.holds + (size_t)rank * n_columns(s);
}

mr_status session_layers_init(mr_session *s, mr_err *err) {
    mr_session_recovery *r = &s->recovery;
    r->holds = mr_alloc_array((size_t)s->cluster.n_ranks * n_columns(s), sizeof *r->holds);
    r->ordered = mr_alloc_array((size_t)s->cluster.n_ranks * n_columns(s), sizeof *r->ordered);
    return r->holds && r->ordered ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the layers of the ranks");
}

void session_layers_deinit(mr_session *s) {
    mr_free(s->recovery.holds);
    mr_free(s->recovery.ordered);
}

/* --- A plan that loads little ------------------------------------------------------------------------------------ */

/* Fills the bytes of each layer and of the output. */
static void fill_bytes(const mr_session *s, size_t *load, size_t *read) {
    int32_t n = s->info.n_layers;
    for (int32_t l = 0; l < n; l++) {
        load[l] = mr_model_layer_bytes(s->gguf, &s->info, l);
        read[l] = mr_model_layer_read_bytes(s->gguf, &s->info, l);
    }
    load[n] = read[n] = mr_model_output_bytes(s->gguf);
}

mr_status session_layers_keep(mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens, mr_plan *plan,
                              mr_err *err) {
    mr_planner_config planner = s->facts.planner;
    planner.kv_tokens = kv_tokens;
    size_t *bytes = mr_alloc_array(2 * n_columns(s), sizeof *bytes);
    bool *takes_part = mr_alloc_array((size_t)s->cluster.n_ranks, sizeof *takes_part);
    uint64_t *memory = mr_alloc_array((size_t)s->cluster.n_ranks, sizeof *memory);
    mr_status status = bytes && takes_part && memory ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a plan");
    for (int32_t i = 0; i < n && status == MR_OK; i++) {
        takes_part[living[i]] = true;
        memory[living[i]] = session_spares_memory_of(s, living[i]);
    }
    if (status == MR_OK) {
        const mr_keep_wish wish = {.planner = s->facts.is_solved ? &planner : NULL,
                                   .n_layers = s->info.n_layers,
                                   .n_ranks = s->cluster.n_ranks,
                                   .load_bytes = bytes,
                                   .read_bytes = bytes + n_columns(s),
                                   .holds = s->recovery.holds,
                                   .takes_part = takes_part,
                                   .memory_bytes = memory,
                                   .former = &s->plan};
        fill_bytes(s, bytes, bytes + n_columns(s));
        status = mr_plan_keep(&wish, plan, err);
    }
    mr_free(bytes);
    mr_free(takes_part);
    mr_free(memory);
    return status;
}

/* --- What the ranks have ----------------------------------------------------------------------------------------- */

const mr_plan_stage *session_layers_stage(const mr_session *s, int32_t rank) {
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (s->plan.stages[i].rank == rank)
            return &s->plan.stages[i];
    return NULL;
}

/* Whether column l is a part of the stage. */
static bool is_of(const mr_session *s, const mr_plan_stage *stage, int32_t l) {
    return l >= stage->first && (l < stage->last || stage->last == s->info.n_layers);
}

/* Tells a rank without a stage to free its layers. It may have some that nobody knows of: those of a stage that has
 * failed, or of a load that was stopped. An error is one of its link: the rank is found lost elsewhere. */
static void free_layers(mr_session *s, int32_t rank) {
    const mr_prepare_order none = {0};
    mr_err ignored;
    if (!mr_session_cluster_is_lost(&s->cluster, rank))
        (void)!mr_roll_call_prepare(s->cluster.roll, rank, &none, &ignored);
    memset(session_layers_row(s, rank), 0, n_columns(s) * sizeof(bool));
}

/* Ranks that hold layers for nobody free them. */
static void free_idle(mr_session *s) {
    for (int32_t rank = 0; rank < s->cluster.n_ranks; rank++)
        if (!session_layers_stage(s, rank) && !session_spares_is_one(s, rank))
            free_layers(s, rank);
}

void session_layers_stay(mr_session *s) {
    free_idle(s);
    session_spares_prepare(s);
}

void session_layers_begin(mr_session *s) {
    free_idle(s);
    for (int32_t rank = 0; rank < s->cluster.n_ranks; rank++) {
        const mr_plan_stage *stage = session_layers_stage(s, rank);
        bool *row = session_layers_row(s, rank);
        for (int32_t l = 0; l <= s->info.n_layers && stage; l++)
            row[l] = row[l] && is_of(s, stage, l);
    }
}

void session_layers_forget(mr_session *s) {
    memset(s->recovery.holds, 0, (size_t)s->cluster.n_ranks * n_columns(s) * sizeof(bool));
}

void session_layers_loaded(mr_session *s) {
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        for (int32_t l = 0; l <= s->info.n_layers; l++)
            session_layers_row(s, s->plan.stages[i].rank)[l] = is_of(s, &s->plan.stages[i], l);
    session_spares_prepare(s);
}

int32_t session_layers_n_kept(const mr_session *s, const mr_job *job) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        n += mr_job_stage_report(job, i)->kept_layers;
    return n;
}
