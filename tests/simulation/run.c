/* tests/simulation/run.c - a run from the first hello to its checks: ranks, coordinator, clients. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/run_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/job/job_internal.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recover.h"
#include "coordinator/session/session_recut.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/simulation/session_stand_in.h"
#include "tests/simulation/slow_rank.h"
#include "worker/stage/grammars.h"

enum {
    MOST_REQUESTS = 220, /* of one endpoint at once */
    MOST_WAITING = 60,   /* messages that no receive is posted for, at one endpoint */
    MAX_STAGES = 3,      /* the model has so many layers */
    STAGE_MESSAGES = 80, /* of a usual run, for each stage */
    SWEEP_RANKS = 3,
    SWEEP_STAGES = 2,
};

static const mr_secret SECRET = {.is_set = true, .bytes = {1, 2, 3}};
static world the_world;
static scenario_heard undisturbed[N_SCENARIOS][SCENARIO_REQUESTS];
static mr_backend *backends[WORLD_MAX_RANKS]; /* kept from run to run */
static int64_t room_ns[WORLD_MAX_RANKS];      /* before this time a rank has no room for grammars */

/* --- Memory ------------------------------------------------------------------------------------------------------ */

uint64_t __wrap_mr_mem_available(void);

/* Each rank has another amount of free memory, always the same. */
uint64_t __wrap_mr_mem_available(void) {
    return (uint64_t)(1 + the_world.current * 3 % WORLD_MAX_RANKS) << 30;
}

mr_status __real_mr_grammars_open(mr_grammars *all, const uint8_t *packed, size_t n, mr_grammar_use **out, mr_err *err);
mr_status __wrap_mr_grammars_open(mr_grammars *all, const uint8_t *packed, size_t n, mr_grammar_use **out, mr_err *err);

mr_status __wrap_mr_grammars_open(mr_grammars *all, const uint8_t *packed, size_t n, mr_grammar_use **out,
                                  mr_err *err) {
    if (the_world.now_ns < room_ns[the_world.current])
        return mr_err_set(err, MR_E_NO_MEMORY, "no room for a grammar");
    return __real_mr_grammars_open(all, packed, n, out, err);
}

/* --- Ranks ------------------------------------------------------------------------------------------------------- */

static void turn_begins(void *ctx, int32_t actor) {
    run_arm(ctx, actor);
}

static void job_pauses(run *r) {
    mr_mem_fail_at(-1);
    r->job_fails_at -= (int64_t)(mr_mem_get_stats().n_allocs - r->n_job_allocs);
    if (r->job_fails_at >= 0)
        return;
    world_note(r->world, "an allocation of the coordinator has failed");
    r->job_may_lack_memory = true;
    for (int32_t i = 0; i < SCENARIO_REQUESTS; i++)
        r->clients[i].may_lack_memory = true;
}

static void turn_pauses(void *ctx, int32_t actor) {
    run *r = ctx;
    if (actor == r->world->n_ranks && r->job_fails_at >= 0)
        job_pauses(r);
    if (actor >= r->world->n_ranks || r->ranks[actor].fails_at < 0)
        return;
    rank *k = &r->ranks[actor];
    mr_mem_fail_at(-1);
    k->fails_at -= (int64_t)(mr_mem_get_stats().n_allocs - k->n_allocs);
    if (k->fails_at >= 0)
        return;
    world_note(r->world, "an allocation of rank %d has failed", (int)actor);
}

static void run_rank(void *ctx) {
    rank *k = ctx;
    run *r = k->run;
    mr_err err;
    bool abandoned;
    mr_status status = mr_lobby_run(&k->config, &abandoned, &err);
    if (status != MR_OK && !net_is_gone(r->net, k->idx) && !r->is_over) {
        world_note(r->world, "the process ends: %s", err.text);
        if (!k->is_hurt)
            world_fail(r->world, "a rank that no fault has met ends: %s", err.text);
        net_kill(r->net, k->idx);
    }
    mr_channel_destroy(k->config.channel);
}

static void begin_rank(run *r, int32_t i) {
    rank *k = &r->ranks[i];
    mr_err err;
    *k = (rank){.run = r, .idx = i, .fails_at = -1};
    if (!backends[i] && mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &backends[i], &err) != MR_OK)
        world_fail(r->world, "%s", err.text);
    k->config = (mr_lobby_config){.model_path = scenarios_path(),
                                  .channel = net_open(r->net, i),
                                  .coordinator = r->world->n_ranks,
                                  .backend = backends[i],
                                  .n_threads = 1};
    r->world->actors[i].slice_ns = 2000;
    world_begin(r->world, i, run_rank, k);
}

/* --- The coordinator --------------------------------------------------------------------------------------------- */

static void must(run *r, mr_status status, const mr_err *err) {
    if (status != MR_OK)
        world_fail(r->world, "%s: %s", mr_status_name(status), err->text);
}

/* Without measured times, the ranks of the former plan that can go on keep a stage: spares are slower. */
static void check_who_stays(const run *r) {
    const mr_session *s = &r->session;
    bool has_little = faults_with_little_memory(r->config->seed);
    for (int32_t i = 0; i < r->former.n_stages && !s->facts.is_solved && !has_little; i++) {
        int32_t at = r->former.stages[i].rank;
        bool may = !net_is_gone(r->net, at) && !net_lifeline_has_ended(r->net, at) && !s->recovery.has_failed[at] &&
                   !s->recovery.is_drained[at] && !r->was_to_leave[at];
        if (may && !session_layers_stage(s, at))
            world_fail(r->world, "rank %d has lost its stage without a reason", (int)at);
    }
}

static void note_recovery(void *ctx, bool begins) {
    run *r = ctx;
    if (begins) {
        r->former = r->session.plan;
        for (int32_t i = 0; i < r->world->n_ranks; i++)
            r->was_to_leave[i] = r->session.recovery.is_on && atomic_load(&r->session.recovery.wishes[i]);
    } else if (r->session.job && mr_job_has_epoch(r->session.job))
        check_who_stays(r);
    if (!begins && r->session.job && mr_job_has_epoch(r->session.job)) {
        if (mr_job_get_stats(r->session.job).n_kept_blocks > 0) {
            r->result.n_kv_kept++;
            r->result.n_kv_ahead += r->session.recovery.n_ahead_blocks > 0;
        }
    }
    if (!begins)
        return;
    r->result.n_recoveries++;
    r->n_since_recovery = 0;
    world_note(r->world, "recovery %d begins", (int)r->result.n_recoveries);
}

static bool has_drawn_faults(const run_config *c) {
    return !c->is_calm && c->kill_at == 0 && c->slow_times == 0;
}

static void draw_room(const run_config *c) {
    rng draws = world_rng(c->seed, 8);
    bool is_little = has_drawn_faults(c) && faults_with_little_room(c->seed);
    for (int32_t i = 0; i < WORLD_MAX_RANKS; i++)
        room_ns[i] = is_little && rng_below(&draws, 4) ? WORLD_START_NS + rng_below(&draws, 20) * MR_NS_PER_S : 0;
}

/* Messages are forged with a slow rank, too. */
static bool has_secret(const run_config *c) {
    bool draws = has_drawn_faults(c) || (c->slow_times > 0 && c->has_faults);
    return draws && faults_with_secret(c->seed);
}

/* Enough for the first plan. */
static void give_little_memory(run *r, rng *draws) {
    const mr_plan *plan = &r->session.plan;
    int32_t budgets[WORLD_MAX_RANKS];
    for (int32_t i = 0; i < WORLD_MAX_RANKS; i++)
        budgets[i] = rng_below(draws, 3);
    for (int32_t i = 0; i < plan->n_stages; i++) {
        int32_t n = plan->stages[i].last - plan->stages[i].first;
        int32_t *budget = &budgets[plan->stages[i].rank];
        *budget = *budget > n ? *budget : n;
    }
    session_stand_in_memory(budgets, (int64_t)rng_below(draws, 20) * MR_NS_PER_S);
}

static void session_begin(run *r, rng *draws) {
    mr_session *s = &r->session;
    const tiny_model *model = scenarios_model();
    mr_err err;
    int32_t most = r->world->n_ranks < MAX_STAGES ? r->world->n_ranks : MAX_STAGES;
    s->gguf = model->gguf;
    s->info = model->info;
    s->cluster.n_ranks = r->world->n_ranks;
    s->n_kv_blocks = scenario_at(r->config->scenario)->n_kv_blocks;
    s->ctx = SCENARIO_CONTEXT;
    s->kv_type = MR_TYPE_F16;
    s->on_recovery = note_recovery;
    s->on_recovery_ctx = r;
    int32_t n_drawn = 1 + rng_below(draws, most), n_stages = r->config->kill_at > 0 ? SWEEP_STAGES : n_drawn;
    must(r, mr_plan_balance(s->gguf, &s->info, n_stages, &s->plan, &err), &err);
    if (has_drawn_faults(r->config) && faults_with_little_memory(r->config->seed))
        give_little_memory(r, draws);
    if (r->config->slow_times > 0) {
        slow_rank_plan();
        r->result.slow_layers_first = slow_rank_layers();
    }
    must(r, mr_session_size_again(s, &err), &err);
    if (faults_with_spares(r->config->seed))
        session_stand_in_spares(s->cluster.n_ranks - s->plan.n_stages);
    must(r, session_recovery_init(s, &err), &err);
    must(r, mr_roll_call_create(mr_session_cluster_channel(&s->cluster), s->cluster.n_ranks, &s->cluster.roll, &err),
         &err);
    must(r, mr_roll_call_wait(s->cluster.roll, r->world->now_ns + 5 * MR_NS_PER_S, NULL, NULL, &err), &err);
}

static void job_begin_with(run *r) {
    mr_session *s = &r->session;
    const scenario *sc = scenario_at(r->config->scenario);
    mr_err err;
    r->is_armed = true;
    s->epoch = 1;
    must(r, mr_session_cluster_start(&s->cluster, NULL, &s->plan, 1, s->epoch, &err), &err);
    const mr_job_config config = {.info = &s->info,
                                  .channel = mr_session_cluster_channel(&s->cluster),
                                  .epoch = {.plan = &s->plan, .number = s->epoch, .n_kv_blocks = s->n_kv_blocks},
                                  .max_rows = sc->max_rows,
                                  .max_out_rows = sc->max_rows,
                                  .max_sequences = sc->max_sequences,
                                  .max_context = SCENARIO_CONTEXT,
                                  .kv_type = (int32_t)s->kv_type,
                                  .grammars = sc->grammars,
                                  .recover = s->recovery.is_on ? session_recover : NULL,
                                  .wants_restart = s->recovery.is_on ? session_wants_restart : NULL,
                                  .on_step_sums = s->recovery.recut ? session_recut_add : NULL,
                                  .recover_ctx = s,
                                  .interrupted = session_stand_in_interrupted};
    must(r, mr_job_create(&config, &s->job, &err), &err);
    s->is_loaded = true;
    if (s->recovery.is_on && s->epoch == 1) /* as the session does */
        session_layers_loaded(s);
}

/* Submits the requests whose time has come, and cancels those of clients that have given up. Returns when the next
 * request comes. */
static int64_t serve_clients(run *r, bool *out_all) {
    int64_t next_ns = MR_NEVER;
    *out_all = true;
    for (int32_t i = 0; i < scenario_at(r->config->scenario)->n_clients; i++) {
        scenario_client *c = &r->clients[i];
        if (c->sequence < 0 && r->submit_ns[i] <= r->world->now_ns)
            scenario_submit(r->config->scenario, i, r->session.job, c);
        if (c->sequence < 0)
            next_ns = r->submit_ns[i] < next_ns ? r->submit_ns[i] : next_ns;
        if (r->gives_up[i] && c->sequence >= 0 && !scenario_has_ended(c)) {
            c->is_cancelled = true;
            mr_job_cancel(r->session.job, c->sequence);
        }
        *out_all = *out_all && c->sequence >= 0 && scenario_has_ended(c);
    }
    return next_ns;
}

static void check_ledger(run *r) {
    mr_err err;
    bool waits = mr_session_is_starved(&r->session);
    r->result.has_waited = r->result.has_waited || waits;
    if (waits)
        return;
    if (!r->session.job->epoch.links)
        world_fail(r->world, "a turn has ended without an epoch");
    must(r, mr_ledger_check(r->session.job->epoch.ledger, &err), &err);
}

/* Whether the job ends early, in order: clients hear no more. */
static bool ends_job(run *r, mr_status status) {
    if (r->job_fails_at >= 0) /* the failed allocation may be one of this turn */
        job_pauses(r);
    if (!(status == MR_E_CANCELLED && session_stand_in_interrupted()) &&
        !(status != MR_OK && r->job_may_lack_memory)) /* what it met before may be its error */
        return false;
    for (int32_t i = 0; i < SCENARIO_REQUESTS; i++)
        r->clients[i].is_cancelled = r->clients[i].is_cancelled || !scenario_has_ended(&r->clients[i]);
    r->result.has_ended_early = true;
    return true;
}

/* Unless a wish has just come, or KV blocks are still copied: a drained rank has no stage while others may have it. */
static void check_drains(const run *r) {
    const mr_session *s = &r->session;
    const mr_session_recovery *c = &s->recovery;
    int32_t ranks[WORLD_MAX_RANKS];
    if (!c->is_on || c->kv_ahead || atomic_load(&c->n_wishes) != c->n_granted || mr_session_is_starved(s))
        return;
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (c->is_drained[s->plan.stages[i].rank] && session_recovery_ranks(s, ranks) > 0)
            world_fail(r->world, "rank %d is drained, and has a stage", (int)s->plan.stages[i].rank);
}

/* Turns until nothing is under way; the last steps may still be, and ranks may be lost meanwhile. */
static void run_turns(run *r) {
    mr_job *job = r->session.job;
    bool all;
    mr_err err;
    for (;;) {
        int64_t next_ns = serve_clients(r, &all);
        if (all && mr_journal_count(job->journal) == 0)
            break;
        mr_status status = mr_job_turn(job, all ? r->world->now_ns + MR_NS_PER_MS : next_ns, &err);
        if (ends_job(r, status))
            return;
        must(r, status, &err);
        check_ledger(r);
    }
    check_drains(r);
    mr_job_stats stats = mr_job_get_stats(job);
    if (stats.n_held_blocks != 0 || stats.n_waiting != 0 || stats.n_live != 0)
        world_fail(r->world, "all sequences have ended, and %d blocks are held, %d wait, %d are live",
                   (int)stats.n_held_blocks, (int)stats.n_waiting, (int)stats.n_live);
}

static void run_coordinator(void *ctx) {
    run *r = ctx;
    mr_session *s = &r->session;
    rng draws = world_rng(r->config->seed, 4);
    session_begin(r, &draws);
    job_begin_with(r);
    run_turns(r);
    r->is_over = true;
    if (r->config->slow_times > 0)
        r->result.slow_layers_last = slow_rank_layers();
    mr_job_destroy(s->job);
    mr_roll_call_dismiss(s->cluster.roll, true, r->world->now_ns + MR_NS_PER_S);
    mr_roll_call_destroy(s->cluster.roll);
    mr_channel_destroy(mr_session_cluster_channel(&s->cluster));
    session_recovery_deinit(s);
    mr_free(s->sizes);
}

/* --- A run ------------------------------------------------------------------------------------------------------- */

static void draw_clients(run *r) {
    rng draws = world_rng(r->config->seed, 5);
    int32_t n = scenario_at(r->config->scenario)->n_clients;
    bool at_once = r->config->is_calm || r->config->kill_at > 0 || rng_below(&draws, 2);
    for (int32_t i = 0; i < n; i++) {
        scenario_client *c = &r->clients[i];
        c->world = r->world;
        c->sequence = -1;
        c->other = &r->clients[rng_below(&draws, n)];
        if (!r->config->is_calm && r->config->kill_at == 0 && rng_below(&draws, 16) == 0)
            c->cancels_at = 1 + rng_below(&draws, 12);
        r->submit_ns[i] = at_once ? 0 : WORLD_START_NS + rng_below(&draws, 20000000);
    }
}

static void check_run(run *r) {
    const run_config *c = r->config;
    const net_counts counts = net_get_counts(r->net);
    r->result.most_requests = counts.most_requests;
    r->result.most_waiting = counts.most_waiting;
    r->result.n_stuck = counts.n_stuck;
    for (int32_t i = 0; i < scenario_at(c->scenario)->n_clients; i++)
        scenario_check(r->world, i, &r->clients[i], c->is_calm ? &r->clients[i].heard : &undisturbed[c->scenario][i]);
    if (r->result.most_requests > MOST_REQUESTS || r->result.most_waiting > MOST_WAITING)
        world_fail(r->world, "%d requests of one endpoint, %d messages without a receive", (int)r->result.most_requests,
                   (int)r->result.most_waiting);
}

static void name_run(const run_config *c, char out[96]) {
    if (c->slow_times > 0)
        snprintf(out, 96, "--seed %llu --scenario %s --slow %d --wrong %d%s", (unsigned long long)c->seed,
                 scenario_at(c->scenario)->name, (int)c->slow_times, (int)c->wrong_times,
                 c->has_faults ? " --faults" : "");
    else if (c->kill_at > 0)
        snprintf(out, 96, "--kill %d,%lld --scenario %s", (int)c->victim, (long long)c->kill_at,
                 scenario_at(c->scenario)->name);
    else
        snprintf(out, 96, "--seed %llu --scenario %s", (unsigned long long)c->seed, scenario_at(c->scenario)->name);
}

run_result run_one(const run_config *config) {
    char name[96];
    rng draws = world_rng(config->seed, 6);
    size_t held_bytes = mr_mem_get_stats().live_bytes;
    int32_t n_drawn = 2 + rng_below(&draws, WORLD_MAX_RANKS - 1);
    int32_t n_ranks = config->is_calm ? 1 : config->kill_at > 0 ? SWEEP_RANKS : n_drawn;
    run *r = calloc(1, sizeof *r);
    if (!r)
        exit(1);
    r->config = config;
    r->job_fails_at = -1;
    r->world = &the_world;
    name_run(config, name);
    world_init(r->world, name, config->seed, n_ranks, config->traces, config->digests);
    r->net = net_create(&(net_config){.world = r->world,
                                      .seed = config->seed,
                                      .is_calm = config->is_calm,
                                      .secret = has_secret(config) ? &SECRET : NULL,
                                      .ranks_hear = rng_below(&draws, 2) == 0,
                                      .sends_may_stick = rng_below(&draws, 4) == 0,
                                      .on_send = run_note_send,
                                      .ctx = r});
    net_attach(r->net);
    r->world->turns = (world_turns){.begins = turn_begins, .pauses = turn_pauses, .ctx = r};
    session_stand_in(r->world, r->net);
    draw_clients(r);
    draw_room(config);
    int32_t n_messages = STAGE_MESSAGES * (n_ranks < MAX_STAGES ? n_ranks : MAX_STAGES);
    if (config->slow_times > 0)
        slow_rank_begin(r->world, &r->session, (int32_t)(config->seed % (uint64_t)n_ranks), config->slow_times,
                        config->wrong_times);
    bool has_faults = config->slow_times == 0 || config->has_faults;
    if (!config->is_calm && config->kill_at == 0 && has_faults)
        r->faults = faults_draw(config->seed, n_ranks, scenario_at(config->scenario)->n_clients, n_messages);
    else
        r->faults.spared = config->kill_at > 0 && config->victim == 0;
    for (int32_t i = 0; i < n_ranks; i++)
        begin_rank(r, i);
    r->world->actors[n_ranks].slice_ns = 2000;
    world_begin(r->world, n_ranks, run_coordinator, r);
    world_run(r->world);
    slow_rank_end();
    check_run(r);
    if (mr_mem_get_stats().live_bytes != held_bytes)
        world_fail(r->world, "%zu bytes of pages are held after the run, %zu before", mr_mem_get_stats().live_bytes,
                   held_bytes);
    if (config->is_calm)
        for (int32_t i = 0; i < SCENARIO_REQUESTS; i++)
            undisturbed[config->scenario][i] = r->clients[i].heard;
    run_result result = r->result;
    result.n_ranks = n_ranks;
    result.digest = r->world->digest;
    result.n_events = r->world->n_events;
    result.n_messages = r->n_messages;
    net_destroy(r->net);
    world_deinit(r->world);
    session_stand_in(NULL, NULL);
    free(r);
    return result;
}

void run_undisturbed(void) {
    for (int32_t i = 0; i < N_SCENARIOS; i++)
        (void)run_one(&(run_config){.scenario = i, .is_calm = true, .victim = -1});
}

void run_end(void) {
    for (int32_t i = 0; i < WORLD_MAX_RANKS; i++)
        mr_backend_destroy(backends[i]);
    world_end(&the_world);
}
