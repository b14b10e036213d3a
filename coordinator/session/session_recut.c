/* coordinator/session/session_recut.c - compares the present plan with the best one every few seconds, by the facts of
 * the ranks and by how far their steps differ from them. The decisions are in planning/recut.c. A look solves a plan,
 * which takes milliseconds with some ten ranks; looks get 2 % of the time at most. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_recut.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "coordinator/console/output.h"
#include "coordinator/planning/recut.h"
#include "coordinator/session/session_idle.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recover.h"
#include "coordinator/session/session_replan.h"
#include "coordinator/session/session_spares.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum { FIRST_STEPS = 8 }; /* of a stage in an epoch: they may wait for pages and for other stages that begin */
static const double NEAR_SHARE = 0.1, NEAR_DEPTH = 32; /* within so many positions, a prediction counts as the same */
static const double ASKED_GAIN = 1.02;                 /* a plan that somebody asks for is this many times as fast */
static const int64_t REST_NS = MR_NS_PER_S;

/* What is known of a rank beside its pace. */
typedef struct rank_notes {
    mr_suspicion suspicion;
    bool stays;      /* it is suspected, and keeps its layers: no other rank can take them */
    double lately;   /* measured over predicted seconds of the latest report; 0: none in this epoch */
    int64_t n_steps; /* reported in this epoch */
} rank_notes;

struct session_recut {
    mr_rank_paces *paces;
    rank_notes *notes;           /* [n_ranks] */
    mr_rank_facts *learned;      /* [n_ranks]: the facts, scaled */
    mr_cluster_facts view;       /* the known facts, but for the ranks */
    mr_plan_prediction *present; /* of the present plan by learned facts; scratch */
    mr_plan_prediction *other;   /* of another one; scratch */
    mr_plan_prediction *flat;    /* of the present plan, for rows without positions before them */
    mr_plan_prediction *now;     /* the same with `depth` positions */
    double depth;                /* -1: there is neither */
    bool is_paused;              /* the session has the next plan already, and stages report the last steps */
    mr_recut policy;
    session_idle idle;
    bool looks;     /* --recut, and the planner chose the plan */
    bool is_wanted; /* a look has found a better plan */
    bool is_taken;  /* and recovery makes it */
    int64_t rest_ns;
    atomic_bool is_asked; /* somebody asks for a better plan */
    /* What the latest look has found; under recovery.lock. */
    mr_recut_offer offer;
};

static struct session_recut *recut_of(const mr_session *s) {
    return s->recovery.recut;
}

mr_status session_recut_check(const mr_session *s, mr_err *err) {
    if (mr_options_number(s->options, MR_OPTION_RECUT) > 0 && mr_options_number(s->options, MR_OPTION_RECOVER) == 0)
        return mr_err_set(err, MR_E_INVALID, "--recut without --recover has no use; hint: give both");
    return MR_OK;
}

mr_status session_recut_init(mr_session *s, mr_err *err) {
    int64_t look_s = mr_options_number(s->options, MR_OPTION_RECUT);
    size_t n = (size_t)s->cluster.n_ranks;
    if (look_s > 0 && (!s->facts.is_solved || s->map_weights))
        mr_output_warning(
            "--recut has no use: the plan was not made from measured times, or matrices stay in the model "
            "file; hint: leave out --cut, --stages, --plan, --no-repack and --measure off");
    if (!s->facts.prediction || s->facts.known->n_ranks != s->cluster.n_ranks)
        return MR_OK;
    struct session_recut *r = s->recovery.recut = mr_alloc(sizeof *r);
    if (!r)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for what is learned of %zu ranks", n);
    r->notes = mr_alloc_array(n, sizeof *r->notes);
    r->learned = mr_alloc_array(n, sizeof *r->learned);
    r->present = mr_alloc(sizeof *r->present);
    r->other = mr_alloc(sizeof *r->other);
    r->flat = mr_alloc(sizeof *r->flat);
    r->now = mr_alloc(sizeof *r->now);
    r->depth = -1;
    if (!r->notes || !r->learned || !r->present || !r->other || !r->flat || !r->now)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for what is learned of %zu ranks", n);
    /* Where matrices stay in the file, the disk decides, and was not measured. */
    r->looks = look_s > 0 && s->facts.is_solved && !s->map_weights;
    r->policy = mr_recut_begin((look_s > 0 ? look_s : 1) * MR_NS_PER_S, mr_clock_now_ns());
    mr_status status = mr_rank_paces_create(s->cluster.n_ranks, &r->paces, err);
    if (status == MR_OK)
        status = session_idle_init(&r->idle, s->cluster.n_ranks, err);
    if (status != MR_OK)
        return status;
    session_recut_learn(s);
    s->facts.planner.facts = &r->view;
    return MR_OK;
}

void session_recut_deinit(mr_session *s) {
    struct session_recut *r = recut_of(s);
    if (!r)
        return;
    if (s->facts.planner.facts == &r->view)
        s->facts.planner.facts = s->facts.known;
    mr_rank_paces_destroy(r->paces);
    session_idle_deinit(&r->idle);
    mr_free(r->notes);
    mr_free(r->learned);
    mr_free(r->present);
    mr_free(r->other);
    mr_free(r->flat);
    mr_free(r->now);
    mr_free(r);
    s->recovery.recut = NULL;
}

/* --- Learning ---------------------------------------------------------------------------------------------------- */

/* The lobbies may have said anew how much memory is free, so all facts are copied again. */
void session_recut_learn(mr_session *s) {
    struct session_recut *r = recut_of(s);
    if (!r)
        return;
    mr_rank_paces_apply(r->paces, s->facts.known, mr_clock_now_ns(), r->learned);
    r->view = *s->facts.known;
    r->view.ranks = r->learned;
}

/* Predicts the present plan for rows with as many positions before them as those of the latest steps. */
static void predict_now(const mr_session *s) {
    struct session_recut *r = recut_of(s);
    double depth = s->job ? mr_job_row_depth(s->job) : 0;
    if (r->depth >= 0 && fabs(depth - r->depth) <= NEAR_SHARE * r->depth + NEAR_DEPTH)
        return;
    r->depth = depth;
    mr_plan_predict(s->facts.known, &s->plan, 0, r->flat);
    mr_plan_predict(s->facts.known, &s->plan, (int32_t)depth, r->now);
}

/* How many times as long a step takes with the positions before its rows as without them. That of the stage that grows
 * most counts for all: what a position adds is measured as a small difference, which a busy host hides. */
static double growth(const mr_session *s, double rows) {
    const struct session_recut *r = recut_of(s);
    double most = 1;
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        double flat = mr_step_times_at(&r->flat->stages[i], rows), now = mr_step_times_at(&r->now->stages[i], rows);
        most = flat > 0 && now > most * flat ? now / flat : most;
    }
    return most;
}

/* Rows of prompts bring no token but the last one, so a step has a token for each live sequence at most, unless clients
 * want the logits of all rows. */
static double output_rows(const mr_session *s, double rows) {
    if (!s->job)
        return rows;
    double n_live = mr_job_get_stats(s->job).n_live, wanted = mr_job_output_share(s->job) * rows;
    double most = n_live > wanted ? n_live : wanted;
    return most < rows ? most : rows;
}

static double predicted_s(const mr_session *s, int32_t stage, double rows) {
    const mr_plan_prediction *p = recut_of(s)->flat;
    double output = stage + 1 < s->plan.n_stages ? 0 : mr_step_times_at(&p->times.output, output_rows(s, rows));
    return mr_step_times_at(&p->stages[stage], rows) * growth(s, rows) + output;
}

static mr_paced_steps add_up(const mr_session *s, const Millrace__StepSums *sums) {
    mr_paced_steps steps = {0};
    predict_now(s);
    for (size_t i = 0; i < sums->n_steps; i++) {
        double n = sums->steps[i];
        if (n == 0)
            continue;
        steps.n += sums->steps[i];
        steps.seconds += (double)sums->ns[i] * 1e-9;
        steps.predicted_s += n * predicted_s(s, (int32_t)sums->stage, (double)sums->rows[i] / n);
    }
    return steps;
}

/* How slow the other ranks were lately. false: some have reported too little. */
static bool look_at_others(const mr_session *s, int32_t rank, mr_other_ranks *out) {
    const char *host = s->facts.known->ranks[rank].host;
    *out = (mr_other_ranks){0};
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        int32_t other = s->plan.stages[i].rank;
        double lately = recut_of(s)->notes[other].lately;
        if (other == rank)
            continue;
        if (lately == 0)
            return false;
        out->fastest = out->fastest == 0 || lately < out->fastest ? lately : out->fastest;
        if (strcmp(s->facts.known->ranks[other].host, host) == 0)
            out->of_host = lately > out->of_host ? lately : out->of_host;
    }
    return true;
}

static void say_suspicion(mr_session *s, int32_t rank, const mr_paced_steps *steps, double fastest) {
    const char *host = s->facts.known->ranks[rank].host;
    double n = (double)steps->n;
    if (recut_of(s)->notes[rank].suspicion.is_on)
        mr_output_warning(
            "rank %" PRId32 " on %s is suspected: a step at position %.0f takes %.0f ms, where %.1f ms were "
            "predicted (the fastest other rank: %.1f times as long as predicted)",
            rank, host, recut_of(s)->depth, 1e3 * steps->seconds / n, 1e3 * steps->predicted_s / n, fastest);
    else
        mr_output_note("rank %" PRId32 " on %s is not suspected any more: a step takes %.1f ms", rank, host,
                       1e3 * steps->seconds / n);
    if (s->on_spares) /* what /plan says has changed */
        s->on_spares(s->on_recovery_ctx);
}

void session_recut_add(void *ctx, const Millrace__StepSums *sums) {
    mr_session *s = ctx;
    struct session_recut *r = recut_of(s);
    mr_other_ranks others;
    if (!r || r->is_paused || (int32_t)sums->stage >= s->plan.n_stages)
        return;
    int32_t rank = s->plan.stages[sums->stage].rank;
    rank_notes *notes = &r->notes[rank];
    const mr_paced_steps steps = add_up(s, sums);
    int64_t now_ns = mr_clock_now_ns(), n_before = notes->n_steps;
    notes->n_steps += steps.n;
    if (n_before < FIRST_STEPS || !(steps.predicted_s > 0))
        return;
    mr_rank_paces_add(r->paces, rank, &steps, now_ns);
    notes->lately = steps.seconds / steps.predicted_s;
    if (!look_at_others(s, rank, &others) || !mr_suspicion_add(&notes->suspicion, &steps, &others, now_ns))
        return;
    notes->stays = false;
    say_suspicion(s, rank, &steps, others.fastest);
}

void session_recut_pause(mr_session *s, bool is_paused) {
    if (recut_of(s))
        recut_of(s)->is_paused = is_paused;
}

/* --- Suspected ranks --------------------------------------------------------------------------------------------- */

bool session_recut_suspects(const mr_session *s, int32_t rank) {
    return recut_of(s) && recut_of(s)->notes[rank].suspicion.is_on;
}

/* Whether some spare has all layers of a rank's stage in memory. */
static bool has_substitute(const mr_session *s, int32_t rank) {
    const mr_plan_stage *stage = session_layers_stage(s, rank);
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        bool holds = stage && session_spares_is_one(s, i) && !session_recut_suspects(s, i);
        const bool *row = session_layers_row(s, i);
        for (int32_t l = stage ? stage->first : 0; holds && l < stage->last; l++)
            holds = row[l];
        if (holds && (stage->last < s->info.n_layers || row[stage->last]))
            return true;
    }
    return false;
}

bool session_recut_leaves_out(const mr_session *s, int32_t rank) {
    const struct session_recut *r = recut_of(s);
    if (!session_recut_suspects(s, rank) || r->notes[rank].stays)
        return false;
    return r->looks || !session_layers_stage(s, rank) || has_substitute(s, rank);
}

bool session_recut_forgive(mr_session *s) {
    bool any = false;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        if (session_recut_leaves_out(s, i))
            any = recut_of(s)->notes[i].stays = true;
    return any;
}

/* Whether a suspected rank has layers that others are to take. */
static bool must_move(const mr_session *s) {
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (session_recut_leaves_out(s, s->plan.stages[i].rank))
            return true;
    return false;
}

/* Ends the suspicion of ranks that have run no steps for long. */
static void end_old_suspicions(mr_session *s, int64_t now_ns) {
    struct session_recut *r = recut_of(s);
    if (now_ns < r->rest_ns)
        return;
    r->rest_ns = now_ns + REST_NS;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        if (session_layers_stage(s, i) || !mr_suspicion_rest(&r->notes[i].suspicion, now_ns))
            continue;
        mr_output_note("rank %" PRId32 " on %s is not suspected any more: it has had no layers for long", i,
                       s->facts.known->ranks[i].host);
        if (s->on_spares)
            s->on_spares(s->on_recovery_ctx);
    }
}

/* --- Looks ------------------------------------------------------------------------------------------------------- */

/* Whether all ranks of the plan are known well enough. */
static bool all_known(const mr_session *s, int64_t now_ns) {
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (!mr_rank_paces_is_known(recut_of(s)->paces, s->plan.stages[i].rank, now_ns))
            return false;
    return true;
}

/* Seconds for a change: as long as the first load took, and to compute the live sequences again. */
static double cost_s(const mr_session *s) {
    mr_job_slot slots[64];
    int32_t most = sizeof slots / sizeof slots[0], n = mr_job_get_slots(s->job, slots, most);
    double n_tokens = 0;
    for (int32_t i = 0; i < n && i < most; i++)
        n_tokens += slots[i].n_issued;
    n_tokens *= n > most ? (double)n / most : 1;
    double rate = mr_plan_prefill_rate(recut_of(s)->other, n_tokens < 1 ? 1 : (int32_t)n_tokens, s->chunk);
    return (double)s->load_ns / (double)MR_NS_PER_S + (rate > 0 ? n_tokens / rate : 0);
}

/* Rates of the present and of another plan: for as many sequences as the plan is made for, or as run now, whatever
 * gains less. */
static mr_recut_offer compare(mr_session *s, const mr_plan *other) {
    struct session_recut *r = recut_of(s);
    const mr_planner_config *c = &s->facts.planner;
    int32_t n_live = mr_job_get_stats(s->job).n_live;
    int32_t counts[] = {c->objective == MR_OBJECTIVE_LATENCY ? 1 : c->n_sequences, n_live > 0 ? n_live : 1};
    mr_recut_offer least = {0};
    mr_plan_predict(&r->view, &s->plan, c->depth, r->present);
    mr_plan_predict(&r->view, other, c->depth, r->other);
    for (int i = 0; i < 2; i++) {
        mr_recut_offer o = {.present_rate = mr_plan_decode_rate(r->present, counts[i], NULL),
                            .best_rate = mr_plan_decode_rate(r->other, counts[i], NULL)};
        if (i == 0 || o.best_rate * least.present_rate < least.best_rate * o.present_rate)
            least = o;
    }
    least.cost_s = cost_s(s);
    return least;
}

/* Finds the best plan by what was learned. The offer is {0} where nothing is known. */
static mr_recut_offer look(mr_session *s) {
    struct session_recut *r = recut_of(s);
    mr_plan *plan = mr_alloc(sizeof *plan);
    int32_t *ranks = mr_alloc_array((size_t)s->cluster.n_ranks, sizeof *ranks);
    mr_recut_offer offer = {0};
    mr_err ignored;
    if (plan && ranks && all_known(s, mr_clock_now_ns())) {
        session_recut_learn(s);
        int32_t n = session_recovery_ranks(s, ranks);
        session_idle_ask(&r->idle, s, ranks, n);
        mr_status status =
            n > 0 ? session_replan_propose(s, ranks, n, s->facts.planner.kv_tokens, plan, &ignored) : MR_E_NO_MEMORY;
        offer = compare(s, status == MR_OK && !mr_plan_is_same(plan, &s->plan) ? plan : &s->plan);
    }
    mr_free(plan);
    mr_free(ranks);
    return offer;
}

/* A look, where one is due or asked for. */
static void look_again(mr_session *s, int64_t now_ns) {
    struct session_recut *r = recut_of(s);
    bool is_asked = atomic_load(&r->is_asked);
    if (!r->looks || mr_session_is_starved(s) || (!is_asked && !mr_recut_is_due(&r->policy, now_ns)))
        return;
    atomic_store(&r->is_asked, false);
    mr_recut_offer offer = look(s);
    mr_mutex_lock(&s->recovery.lock);
    r->offer = offer;
    mr_mutex_unlock(&s->recovery.lock);
    int64_t end_ns = mr_clock_now_ns();
    bool is_better = mr_recut_weigh(&r->policy, &offer, end_ns - now_ns, end_ns);
    r->is_wanted = is_better || (is_asked && offer.best_rate > ASKED_GAIN * offer.present_rate);
    if (r->is_wanted)
        mr_output_note("by what the ranks do now, another plan has %.1f tokens/s, this one %.1f: layers move",
                       offer.best_rate, offer.present_rate);
}

bool session_recut_is_due(mr_session *s) {
    struct session_recut *r = recut_of(s);
    int64_t now_ns = mr_clock_now_ns();
    if (!r)
        return false;
    end_old_suspicions(s, now_ns);
    session_idle_hear(&r->idle, s, r->paces);
    if (!r->is_wanted)
        look_again(s, now_ns);
    return !mr_session_is_starved(s) && (r->is_wanted || must_move(s));
}

bool session_recut_take(mr_session *s) {
    struct session_recut *r = recut_of(s);
    if (!r)
        return false;
    r->is_taken = r->is_wanted || must_move(s);
    r->is_wanted = false;
    return r->is_taken;
}

void session_recut_refuse(mr_session *s) {
    struct session_recut *r = recut_of(s);
    if (!r)
        return;
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (session_recut_leaves_out(s, s->plan.stages[i].rank))
            r->notes[s->plan.stages[i].rank].stays = true;
    if (r->is_taken)
        mr_recut_note_epoch(&r->policy, true, mr_clock_now_ns());
    r->is_taken = false;
}

void session_recut_note_epoch(mr_session *s) {
    struct session_recut *r = recut_of(s);
    if (!r)
        return;
    mr_recut_note_epoch(&r->policy, r->is_taken, mr_clock_now_ns());
    r->is_taken = r->is_wanted = r->is_paused = false;
    r->depth = -1;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        r->notes[i].n_steps = 0;
        r->notes[i].lately = 0;
    }
}

mr_status mr_session_recut(mr_session *s, char text[MR_ERR_TEXT_BYTES], mr_err *err) {
    struct session_recut *r = recut_of(s);
    if (!r || !r->looks)
        return mr_err_set(
            err, MR_E_UNSUPPORTED,
            "this server does not look for better plans; hint: --recover --recut 5, under mpirun, without "
            "--cut and --stages");
    mr_mutex_lock(&s->recovery.lock);
    mr_recut_offer offer = r->offer;
    mr_mutex_unlock(&s->recovery.lock);
    atomic_store(&r->is_asked, true);
    mr_channel_wake(mr_session_cluster_channel(&s->cluster));
    if (offer.present_rate > 0)
        snprintf(
            text, MR_ERR_TEXT_BYTES,
            "the server looks now; before, the best plan had %.1f tokens/s by what was learned, and the present one "
            "%.1f",
            offer.best_rate, offer.present_rate);
    else
        snprintf(text, MR_ERR_TEXT_BYTES,
                 "the server looks now; before, too little was known: it learns while requests "
                 "run");
    return MR_OK;
}
