// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_recover.h"

#include <inttypes.h>
#include <string.h>

#include "coordinator/console/output.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/session_kv.h"
#include "coordinator/session/session_kv_ahead.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recovered.h"
#include "coordinator/session/session_recut.h"
#include "coordinator/session/session_replan.h"
#include "coordinator/session/session_spares.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/link.h"

/* LOSS_NS: how long the lifeline may be later than the channel with the news of a loss. */
enum { MUCH_LEFT = 16 << 20 };
static const int64_t LOSS_NS = 2 * MR_NS_PER_S, LOOK_NS = 10 * MR_NS_PER_MS, HEAR_NS = 100 * MR_NS_PER_MS;

mr_status session_recovery_init(mr_session *s, mr_err *err) {
    mr_session_recovery *r = &s->recovery;
    size_t n = (size_t)s->cluster.n_ranks;
    r->n_first_stages = s->plan.n_stages;
    r->n_first_kv_blocks = s->n_kv_blocks;
    if (n < 2 || s->plan.synthetic || s->counts_uses || /* counts of a lost stage are lost */
        mr_options_number(s->options, MR_OPTION_RECOVER) == 0)
        return MR_OK;
    r->has_failed = mr_alloc_array(n, sizeof *r->has_failed);
    r->is_drained = mr_alloc_array(n, sizeof *r->is_drained);
    r->wishes = mr_alloc_array(n, sizeof *r->wishes);
    r->lacks_memory = mr_alloc_array(n, sizeof *r->lacks_memory);
    r->n_signals = mr_alloc_array(n, sizeof *r->n_signals);
    if (!r->has_failed || !r->is_drained || !r->wishes || !r->lacks_memory || !r->n_signals)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu ranks", n);
    mr_mutex_init(&r->lock);
    r->is_on = true;
    mr_status status = session_layers_init(s, err);
    return status == MR_OK ? session_recut_init(s, err) : status;
}

void session_recovery_deinit(mr_session *s) {
    session_recut_deinit(s);
    session_layers_deinit(s);
    session_kv_ahead_end(s);
    mr_free(s->recovery.has_failed);
    mr_free(s->recovery.is_drained);
    mr_free(s->recovery.wishes);
    mr_free(s->recovery.lacks_memory);
    mr_free(s->recovery.n_signals);
    if (s->recovery.is_on)
        mr_mutex_deinit(&s->recovery.lock);
}

/* --- Who takes part ---------------------------------------------------------------------------------------------- */

static bool takes_part(const mr_session *s, int32_t rank) {
    return !mr_session_cluster_is_lost(&s->cluster, rank) && !s->recovery.has_failed[rank] &&
           !s->recovery.is_drained[rank] && !session_recut_leaves_out(s, rank);
}

int32_t session_recovery_ranks(const mr_session *s, int32_t *out) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        if (takes_part(s, i))
            out[n++] = i;
    return n;
}

static int32_t count_lost(const mr_session *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        n += mr_session_cluster_is_lost(&s->cluster, i);
    return n;
}

static bool has_lost_stage(const mr_session *s) {
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (mr_session_cluster_is_lost(&s->cluster, s->plan.stages[i].rank))
            return true;
    return false;
}

/* Whether a stage of the plan is on a lost rank, or a rank was lost since the last look: it may have had a stage of the
 * plan before, or a message to send for this one. The end of a connection may be known before the rank counts as lost,
 * so this waits a while. */
static bool has_new_loss(const mr_session *s, mr_job *job) {
    int64_t deadline_ns = mr_clock_now_ns() + LOSS_NS;
    mr_err ignored;
    for (;;) {
        if (has_lost_stage(s) || count_lost(s) > s->recovery.n_lost)
            return true;
        if (mr_clock_now_ns() >= deadline_ns || mr_session_cluster_ended() ||
            mr_channel_wait(mr_job_channel(job), mr_clock_now_ns() + LOOK_NS, &ignored) != MR_OK)
            return false;
    }
}

/* Whether this error can be the fault of one host, so that the others may do without it. Errors of the model or of the
 * options meet every rank. Before the first plan has run, memory may be too little everywhere. */
static bool is_of_host(mr_status status, bool has_run) {
    return status == MR_E_IO || status == MR_E_NOT_FOUND || status == MR_E_FORMAT ||
           (has_run && (status == MR_E_DEVICE || status == MR_E_NO_MEMORY || status == MR_E_NUMERICS ||
                        status == MR_E_TIMEOUT || status == MR_E_UNSUPPORTED));
}

/* Whether another epoch may succeed after this error. */
static bool may_go_on(mr_session *s, mr_job *job, mr_status status, const mr_err *err) {
    int32_t failed = mr_job_take_failed_rank(job);
    /* A timeout that no stage has reported: a rank lives and does not take its messages. */
    bool may_pass = status == MR_E_PROTOCOL || (status == MR_E_TIMEOUT && failed < 0);
    if (may_pass && mr_restart_limit_take(&s->recovery.restarts, mr_clock_now_ns())) {
        mr_output_warning("%s; the stages begin again", err->text);
        return true;
    }
    /* The failure of a stage may follow from the loss of another one, but for a lack of memory. */
    bool is_of_one = is_of_host(status, s->is_loaded || mr_session_is_starved(s));
    if (status != MR_E_NO_MEMORY && (status == MR_E_PEER_LOST || is_of_one) && has_new_loss(s, job))
        return true;
    if (!is_of_one || failed < 0 || s->recovery.has_failed[failed])
        return false;
    mr_output_warning("%s; the other ranks take over its layers", err->text);
    s->recovery.has_failed[failed] = true;
    s->recovery.lacks_memory[failed] = status == MR_E_NO_MEMORY;
    return true;
}

/* --- Wishes ------------------------------------------------------------------------------------------------------ */

/* false: no other rank would be left. Of two drains at the same moment, the later one sees the first. */
static bool note_wish(mr_session *s, int32_t rank, bool drains) {
    mr_session_recovery *r = &s->recovery;
    int32_t n_left = 0;
    mr_mutex_lock(&r->lock);
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        n_left += i != rank && !atomic_load(&r->wishes[i]) && !mr_session_cluster_is_lost(&s->cluster, i);
    bool may = !drains || n_left > 0;
    if (may) {
        atomic_store(&r->wishes[rank], drains);
        atomic_fetch_add(&r->n_wishes, 1);
    }
    mr_mutex_unlock(&r->lock);
    return may;
}

mr_status mr_session_drain(mr_session *s, int32_t rank, bool drains, mr_err *err) {
    mr_session_recovery *r = &s->recovery;
    if (!r->is_on)
        return mr_err_set(err, MR_E_UNSUPPORTED, "this server cannot move layers; hint: --recover, under mpirun");
    if (rank < 0 || rank >= s->cluster.n_ranks || mr_session_cluster_is_lost(&s->cluster, rank))
        return mr_err_set(err, MR_E_INVALID, "rank %" PRId32 " is lost, or there is no such rank", rank);
    if (!note_wish(s, rank, drains))
        return mr_err_set(err, MR_E_INVALID, "rank %" PRId32 " is the last one that may hold layers", rank);
    mr_channel_wake(mr_session_cluster_channel(&s->cluster));
    return MR_OK;
}

/* Each SIGUSR1 that a rank has got drains it, or ends its drain. */
static void take_signals(mr_session *s) {
    mr_session_recovery *r = &s->recovery;
    int64_t now_ns = mr_clock_now_ns();
    mr_err err;
    if (now_ns < r->hear_ns)
        return;
    r->hear_ns = now_ns + HEAR_NS;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        if (mr_session_cluster_is_lost(&s->cluster, i) || mr_roll_call_hear(s->cluster.roll, i, &err) != MR_OK)
            continue; /* the rank is being lost */
        uint32_t n = mr_session_cluster_rank(&s->cluster, i)->n_signals, n_new = n - r->n_signals[i];
        r->n_signals[i] = n;
        if (n_new % 2 == 0)
            continue;
        bool drains = !atomic_load(&r->wishes[i]);
        if (mr_session_drain(s, i, drains, &err) == MR_OK)
            mr_output_note("rank %" PRId32 " %s, as a signal asks", i, drains ? "is drained" : "may hold layers again");
        else
            mr_output_warning("a signal asks to drain rank %" PRId32 ", in vain: %s", i, err.text);
    }
    session_recovered_note_lost(s, count_lost(s));
}

/* A sequence waits for memory at the last stage: another rank may have it. Without another plan this one stays. */
static void drain_lacking(mr_session *s) {
    int32_t rank = mr_job_take_lacking_rank(s->job);
    mr_err ignored;
    if (rank >= 0 && !atomic_load(&s->recovery.wishes[rank]) && mr_session_drain(s, rank, true, &ignored) == MR_OK)
        mr_output_warning("rank %" PRId32 " is drained: it has no memory for the grammar of a sequence", rank);
}

bool session_wants_restart(void *ctx) {
    mr_session *s = ctx;
    session_recovered_note_again(s);
    take_signals(s);
    drain_lacking(s);
    session_spares_hear(s);
    return atomic_load(&s->recovery.n_wishes) != s->recovery.n_granted || session_starve_is_due(s) ||
           session_kv_ahead_is_due(s, s->job) || session_recut_is_due(s);
}

/* Takes over what was asked for; returns whether that changes who takes part. */
static bool take_wishes(mr_session *s) {
    mr_session_recovery *r = &s->recovery;
    bool changes = false;
    r->n_granted = atomic_load(&r->n_wishes);
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        changes = changes || r->is_drained[i] != atomic_load(&r->wishes[i]);
        r->is_drained[i] = atomic_load(&r->wishes[i]);
    }
    return changes;
}

/* --- Recovery ---------------------------------------------------------------------------------------------------- */

/* Ends the stages that live, and begins another epoch with the session's plan. kv: what goes on; NULL: nothing.
 * MR_E_PEER_LOST: another rank is lost. */
static mr_status begin_again(mr_session *s, mr_job *job, const session_kv *kv, mr_err *err) {
    bool keeps_kv = kv && kv->is_kept;
    if (!keeps_kv)
        s->recovery.n_ahead_blocks = 0;
    mr_err ignored;
    mr_status status = MR_OK;
    s->recovery.n_lost = count_lost(s);
    s->recovery.planned_ns = mr_clock_now_ns();
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        if (mr_session_cluster_is_lost(&s->cluster, i))
            mr_roll_call_note_gone(s->cluster.roll, i);
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) /* a rank that is lost now is found when it is to start */
        if (!mr_session_cluster_is_lost(&s->cluster, i))
            (void)!mr_roll_call_abort(s->cluster.roll, i, keeps_kv && session_kv_concerns(s, kv, i), &ignored);
    mr_session_set_clocks(s);
    if (s->cluster.n_without_file > 0) /* a lost rank gives no parts any more */
        status = mr_session_cluster_share_file(&s->cluster, err);
    do /* the low bits of the lobby, which is epoch 0, are in the tags of its messages */
        s->epoch++;
    while (mr_link_tag(MR_LINK_CONTROL, s->epoch) == mr_link_tag(MR_LINK_CONTROL, 0));
    session_layers_begin(s);
    if (status == MR_OK)
        status = mr_session_cluster_start(&s->cluster, s->model_path, &s->plan, s->threads, s->epoch, err);
    if (status == MR_OK && keeps_kv)
        session_kv_send(s, kv);
    const mr_epoch_config epoch = {.plan = &s->plan,
                                   .number = s->epoch,
                                   .kv = keeps_kv ? &kv->blocks : NULL,
                                   .n_kv_blocks = s->n_kv_blocks,
                                   .times = s->facts.prediction ? &s->facts.prediction->times : NULL};
    if (status == MR_OK)
        status = mr_job_restart(job, &epoch, err);
    if (status == MR_OK && mr_session_is_starved(s))
        session_starve_end(s);
    if (status == MR_OK) {
        mr_session_cluster_set_idle(&s->cluster, &s->plan);
        session_layers_loaded(s);
    }
    if (status == MR_OK)
        session_recut_note_epoch(s);
    session_kv_ahead_end(s);
    return status;
}

static void say_plan(const mr_session *s, const mr_job *job, double seconds) {
    mr_job_stats stats = mr_job_get_stats(job);
    int32_t n_sequences = stats.n_waiting;
    mr_text_buf table = {0};
    mr_err ignored;
    if (mr_session_print_plan(s, &table, &ignored) == MR_OK)
        output_json_note_plan(table.data, &s->plan, s->sizes, &s->cluster);
    mr_text_buf_deinit(&table);
    mr_output_note("epoch %" PRIu32 ": a new plan runs after %.2f s, %" PRId32 " of %" PRId32
                   " layers were kept, and %" PRId32 " %s on",
                   s->epoch, seconds, session_layers_n_kept(s, job), s->info.n_layers, n_sequences,
                   n_sequences == 1 ? "sequence goes" : "sequences go");
    if (stats.n_kept_blocks > 0)
        mr_output_note("epoch %" PRIu32 ": the keys and values of %" PRId64 " tokens go on, too; those of %" PRId64
                       " were copied before the pause",
                       s->epoch, (int64_t)stats.n_kept_blocks * MR_WIRE_BLOCK_TOKENS,
                       (int64_t)s->recovery.n_ahead_blocks * MR_WIRE_BLOCK_TOKENS);
}

/* Says how much memory the messages of former epochs hold, if they hold much. */
static void say_left(const mr_session *s, const mr_job *job) {
    /* The coordinator and a stage on rank 0 share one channel to MPI. */
    size_t bytes = session_layers_stage(s, 0) ? 0 : mr_channel_left_bytes(mr_job_channel(job));
    char text[OUTPUT_BYTES_TEXT];
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        bytes += mr_job_stage_report(job, i)->left_bytes;
    if (bytes < MUCH_LEFT)
        return;
    mr_output_bytes_text(bytes, text);
    mr_output_note("%s of buffers wait for messages of former epochs that MPI cannot cancel", text);
}

/* A wish that has come since the last take_wishes stays. */
static void end_drain(mr_session *s, int32_t rank) {
    mr_session_recovery *r = &s->recovery;
    r->is_drained[rank] = false;
    mr_mutex_lock(&r->lock);
    if (atomic_load(&r->n_wishes) == r->n_granted)
        atomic_store(&r->wishes[rank], false);
    mr_mutex_unlock(&r->lock);
}

/* The present plan goes on. A drain whose KV blocks are being copied was possible alone, and goes on, too. */
static mr_status refuse_wishes(mr_session *s, const mr_err *why) {
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        bool holds_layers = false;
        for (int32_t k = 0; k < s->plan.n_stages; k++)
            holds_layers = holds_layers || s->plan.stages[k].rank == i;
        if (s->recovery.is_drained[i] && holds_layers && i != session_kv_ahead_from(s)) {
            end_drain(s, i);
            mr_output_warning("rank %" PRId32 " keeps its layers: %s", i, why->text);
        }
    }
    return MR_OK;
}

/* Where no other rank is left, drained and suspected ranks get layers again. ranks: memory for all of them. */
static void undrain_the_last(mr_session *s, int32_t *ranks) {
    if (session_recovery_ranks(s, ranks) > 0)
        return;
    (void)session_recut_forgive(s);
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        end_drain(s, i);
    if (session_recovery_ranks(s, ranks) > 0)
        mr_output_warning("no other rank is left: drained ranks get layers again");
}

/* The job waits because of a lack of memory, and no error is left. */
static mr_status starve(mr_session *s, mr_job *job, const int32_t *ranks, int32_t n, const mr_err *why) {
    uint64_t missing = s->recovery.missing_bytes, more;
    int64_t longest = mr_job_longest(job);
    if (s->facts.is_solved) {
        more = session_starve_missing(s, ranks, n, longest > 0 ? longest : MR_WIRE_BLOCK_TOKENS);
        missing = missing > more ? missing : more;
    }
    session_starve_begin(s, job, missing, why);
    return MR_OK;
}

static mr_status plan_for_some(mr_session *s, const mr_job *job, int32_t *ranks, int32_t *out_n, int32_t least,
                               mr_err *err) {
    *out_n = session_recovery_ranks(s, ranks);
    return *out_n > 0 ? session_replan(s, job, ranks, *out_n, least, err)
                      : mr_err_set(err, MR_E_NO_MEMORY, "no other rank may hold layers and has memory for them");
}

/* Makes a plan of the ranks that may hold layers. If there is too little memory, looks what is free when all stages
 * have ended. *out_n: how many ranks there are; 0: none. */
static mr_status plan_for_living(mr_session *s, mr_job *job, int32_t *ranks, int32_t *out_n, mr_err *err) {
    undrain_the_last(s, ranks);
    mr_status status = plan_for_some(s, job, ranks, out_n, 0, err);
    if (*out_n > 0 && status == MR_E_NO_MEMORY && session_recut_forgive(s))
        status = plan_for_some(s, job, ranks, out_n, 0, err);
    if (*out_n == 0 || status != MR_E_NO_MEMORY)
        return status;
    session_starve_ask(s, job);
    undrain_the_last(s, ranks); /* others may be lost meanwhile */
    return plan_for_some(s, job, ranks, out_n, 0, err);
}

/* Whether a living rank has failed for lack of memory: it may have enough later. */
static bool lacks_memory(const mr_session *s) {
    bool any = false;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        any = any || (s->recovery.lacks_memory[i] && !mr_session_cluster_is_lost(&s->cluster, i));
    return any;
}

/* Where the job waits: looks whether a plan can run now. *out_goes_on: it waits on. */
static mr_status end_wait(mr_session *s, mr_job *job, int32_t *ranks, bool *out_goes_on, mr_err *err) {
    int32_t n;
    session_kv_ahead_give_up(s);
    session_starve_forgive(s);
    session_starve_ask(s, job);
    undrain_the_last(s, ranks);
    mr_status status = plan_for_some(s, job, ranks, &n, 0, err);
    *out_goes_on = status == MR_E_NO_MEMORY && (n > 0 || lacks_memory(s));
    return *out_goes_on ? starve(s, job, ranks, n, err) : status;
}

/* Where a plan runs: grants the wishes. *out_goes_on: the present plan goes on, also with KV blocks that are being
 * copied for the next one. *out_recuts: the plan changes for the sake of speed. */
static mr_status change_plan(mr_session *s, mr_job *job, int32_t *ranks, bool *out_goes_on, bool *out_recuts,
                             mr_err *err) {
    bool changes = take_wishes(s) || session_kv_ahead_is_over(s), moves = session_recut_take(s);
    int32_t n, full = session_replan_blocks_for(s->ctx);
    *out_recuts = moves;
    if (mr_session_is_starved(s))
        return end_wait(s, job, ranks, out_goes_on, err);
    *out_goes_on = true;
    if (!changes && !moves)
        return MR_OK;
    int32_t least = changes ? 0 : s->n_kv_blocks < full ? s->n_kv_blocks : full;
    mr_status status = plan_for_some(s, job, ranks, &n, least, err);
    *out_goes_on = status != MR_OK;
    if (status == MR_OK)
        return MR_OK;
    if (session_kv_ahead_is_over(s))
        session_kv_ahead_give_up(s);
    session_recut_refuse(s);
    return refuse_wishes(s, err);
}

/* Changes the plan, and begins another epoch if there is a new plan. *out_goes_on: there is none, or an error that no
 * other epoch mends. */
static mr_status move_on_purpose(mr_session *s, mr_job *job, int32_t *ranks, bool *out_goes_on, mr_err *err) {
    const mr_plan former = s->plan;
    int32_t former_blocks = s->n_kv_blocks;
    session_kv kv;
    bool recuts;
    mr_status status = change_plan(s, job, ranks, out_goes_on, &recuts, err);
    *out_goes_on = *out_goes_on || status != MR_OK;
    if (*out_goes_on)
        return status;
    if (mr_job_has_epoch(job) && mr_plan_is_same(&former, &s->plan) && former_blocks == s->n_kv_blocks) {
        s->plan = former; /* with the ways that its stages have agreed on */
        session_kv_ahead_give_up(s);
        session_recut_refuse(s);
        session_layers_stay(s);
        *out_goes_on = true;
        return MR_OK;
    }
    if (!recuts && session_kv_ahead_begin(s, job, &former, former_blocks)) {
        *out_goes_on = true;
        return MR_OK;
    }
    status = session_kv_choose(s, job, &former, former_blocks, &kv, err);
    if (status == MR_OK)
        status = begin_again(s, job, &kv, err);
    session_kv_deinit(&kv);
    return status;
}

/* Begins other epochs until one runs, or the job waits for memory. */
static mr_status recover(mr_session *s, mr_job *job, mr_status status, int32_t *ranks, mr_err *err) {
    int32_t n = 0;
    if (status == MR_OK) { /* on purpose: where there is no other plan, the present one goes on */
        bool goes_on;
        status = move_on_purpose(s, job, ranks, &goes_on, err);
        if (goes_on)
            return status;
    }
    while (status != MR_OK && may_go_on(s, job, status, err)) {
        const mr_err why = *err;
        mr_status cause = status;
        status = plan_for_living(s, job, ranks, &n, err);
        if (n == 0) {
            *err = why;
            return lacks_memory(s) ? starve(s, job, ranks, n, err) : cause;
        }
        if (status == MR_E_NO_MEMORY)
            return starve(s, job, ranks, n, err);
        if (status != MR_OK)
            return status;
        status = begin_again(s, job, NULL, err);
    }
    return status;
}

mr_status session_recover(void *ctx, mr_job *job, mr_status status, mr_err *err) {
    mr_session *s = ctx;
    int64_t start_ns = mr_clock_now_ns();
    uint32_t epoch = s->epoch;
    int32_t *ranks = mr_alloc_array((size_t)s->cluster.n_ranks, sizeof *ranks);
    if (!ranks)
        return status;
    if (s->on_recovery)
        s->on_recovery(s->on_recovery_ctx, true);
    status = recover(s, job, status, ranks, err);
    mr_free(ranks);
    if (status != MR_OK)
        return status == MR_E_CANCELLED ? status : mr_err_prefix(err, "the ranks that are left cannot go on");
    if (mr_job_has_epoch(job))
        mr_session_take_ways(s, job);
    if (s->epoch != epoch && !mr_session_is_starved(s))
        session_recovered_note(s, start_ns);
    if (s->on_recovery)
        s->on_recovery(s->on_recovery_ctx, false);
    if (mr_session_is_starved(s))
        return MR_OK;
    s->is_loaded = true;
    if (s->epoch != epoch) {
        s->recovery.computes_again = true;
        say_left(s, job);
        say_plan(s, job, (double)(mr_clock_now_ns() - start_ns) / (double)MR_NS_PER_S);
    }
    return MR_OK;
}
