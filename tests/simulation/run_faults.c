/* tests/simulation/run_faults.c - what each fault does to the ranks and messages of a run. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_recover.h"
#include "engine/base/mem.h"
#include "tests/simulation/run_internal.h"
#include "tests/simulation/session_stand_in.h"
#include "tests/simulation/slow_rank.h"

/* Only allocations of the actor whose turn it is may fail. */
void run_arm(run *r, int32_t actor) {
    bool is_job = actor == r->world->n_ranks;
    int64_t fails_at = is_job ? r->job_fails_at : r->ranks[actor].fails_at;
    if (fails_at < 0)
        return;
    *(is_job ? &r->n_job_allocs : &r->ranks[actor].n_allocs) = mr_mem_get_stats().n_allocs;
    mr_mem_fail_at(fails_at);
}

static bool spares(const run *r, int32_t idx) {
    return idx == r->faults.spared;
}

/* A message with a wrong byte may not go to the lobby of the spared rank; net_corrupt_next leaves out all lobbies. */
static void corrupt(run *r, const fault *f) {
    int32_t from = f->to == f->rank ? r->world->n_ranks : f->rank;
    net_corrupt_next(r->net, from, f->to);
}

/* Amounts 0 and 1: of any link; 2 and 3: of the lobby, from and to the coordinator. */
static void forge(run *r, const fault *f) {
    int32_t job = r->world->n_ranks, to = f->to == f->rank || f->amount == 2 ? job : f->to;
    if (f->amount == 3)
        net_forge_next(r->net, job, f->rank, true, f->kind == FAULT_FORGE);
    else
        net_forge_next(r->net, f->rank, to, f->amount == 2, f->kind == FAULT_FORGE);
}

/* Where ranks only move, most drains are of ranks that have a stage. */
static void drain(run *r, int32_t idx, bool drains) {
    mr_err err;
    if (drains && faults_only_move(r->config->seed) && r->faults.n % 4 > 0)
        idx = r->session.plan.stages[idx % r->session.plan.n_stages].rank;
    if (mr_session_drain(&r->session, idx, drains, &err) != MR_OK)
        world_note(r->world, "refused: %s", err.text);
}

/* Whether a process may end of the fault. */
static bool hurts(fault_kind kind) {
    return kind < FAULT_DRAIN || kind == FAULT_TIMEOUT;
}

/* Notes which processes may end of the fault. */
static void note_hurt(run *r, const fault *f) {
    if (hurts(f->kind) && !spares(r, f->rank))
        r->ranks[f->rank].is_hurt = true;
    if (f->kind == FAULT_CORRUPT && f->to < r->world->n_ranks && !spares(r, f->to))
        r->ranks[f->to].is_hurt = true;
}

/* Before a plan has run, memory may be too little everywhere, and the job ends. */
static void lack_memory(run *r, const fault *f) {
    bool is_job = f->kind == FAULT_JOB_NO_MEMORY;
    int32_t actor = is_job ? r->world->n_ranks : f->rank;
    if (r->session.is_loaded)
        *(is_job ? &r->job_fails_at : &r->ranks[f->rank].fails_at) = f->amount;
    if (r->world->current == actor)
        run_arm(r, actor);
}

static void apply(run *r, const fault *f) {
    world_actor *a = &r->world->actors[f->rank];
    note_hurt(r, f);
    world_note(r->world, "fault: %s, rank %d, to %d, amount %lld", fault_name(f->kind), (int)f->rank, (int)f->to,
               (long long)f->amount);
    switch ((int)f->kind) {
    case FAULT_KILL:
        net_kill(r->net, f->rank);
        break;
    case FAULT_CUT:
        net_cut(r->net, f->rank);
        break;
    case FAULT_STOP:
        a->not_before_ns = r->world->now_ns + f->amount;
        break;
    case FAULT_SLOW:
        a->slice_ns = f->amount;
        break;
    case FAULT_CORRUPT:
        corrupt(r, f);
        break;
    case FAULT_NO_MEMORY:
    case FAULT_JOB_NO_MEMORY:
        lack_memory(r, f);
        break;
    case FAULT_NO_FILE:
        r->ranks[f->rank].config.model_path = "/nonexistent/model.gguf";
        break;
    case FAULT_DRAIN:
    case FAULT_UNDRAIN:
        drain(r, f->rank, f->kind == FAULT_DRAIN);
        break;
    case FAULT_FORGE:
    case FAULT_REPEAT:
        forge(r, f);
        break;
    case FAULT_TIMEOUT:
        if (r->session.is_loaded)
            slow_rank_time_out(r->world, f->rank);
        break;
    case FAULT_END:
        if (r->session.is_loaded)
            session_stand_in_interrupt();
        world_notify(r->world, r->world->n_ranks);
        break;
    default:
        r->gives_up[f->to] = true;
        world_notify(r->world, r->world->n_ranks);
    }
}

static bool is_due(const run *r, const fault *f) {
    if (f->is_done)
        return false;
    if (f->recovery == 0)
        return r->n_messages >= f->message;
    return r->result.n_recoveries >= f->recovery && r->n_since_recovery >= f->message;
}

void run_note_send(void *ctx, int32_t from, int32_t to, uint32_t tag) {
    run *r = ctx;
    (void)to;
    (void)tag;
    if (!r->is_armed || r->is_over) /* the session is gone, and takes no wishes */
        return;
    r->n_messages++;
    r->n_since_recovery++;
    if (from == r->config->victim)
        r->result.n_sent_by_victim++;
    if (r->config->kill_at > 0 && from == r->config->victim && r->result.n_sent_by_victim == r->config->kill_at) {
        r->result.n_faults[FAULT_KILL]++;
        world_note(r->world, "fault: kill, rank %d, at its message %lld", (int)from, (long long)r->config->kill_at);
        net_kill(r->net, from);
    }
    for (int32_t i = 0; i < r->faults.n; i++) {
        fault *f = &r->faults.at[i];
        if (!is_due(r, f))
            continue;
        f->is_done = true;
        r->result.n_faults[f->kind]++;
        apply(r, f);
    }
}
