// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/slow_rank.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/simulation/scenario.h"
#include "worker/lobby/measure.h"
#include "worker/stage/stage.h"

enum { MOST_LAYERS = 8, SEQUENCES = 4, CHUNK = 16 };
static const double LAYER_S = 0.1; /* of one row in one layer, on a rank as measured */
static const int64_t LIMIT_NS = 36000 * MR_NS_PER_S;
/* Of a measurement while others run, and of one of its steps. */
static const int64_t MEASURE_NS = 200 * MR_NS_PER_MS, PIECE_NS = 20 * MR_NS_PER_MS;

static struct {
    world *world;
    mr_session *session;
    int32_t rank, times, wrong_times;
    uint8_t kind[MOST_LAYERS];
    mr_rank_facts ranks[WORLD_MAX_RANKS];
    mr_link_facts links[WORLD_MAX_RANKS * WORLD_MAX_RANKS];
    mr_cluster_facts facts;
} slow;

static struct {
    const world *world;
    bool is_late[WORLD_MAX_RANKS];
} timeouts;

void slow_rank_begin(world *w, mr_session *s, int32_t rank, int32_t times, int32_t wrong_times) {
    slow.world = w;
    slow.session = s;
    slow.rank = rank;
    slow.times = times;
    slow.wrong_times = wrong_times;
    w->limit_ns = WORLD_START_NS + LIMIT_NS; /* steps are long here */
}

static mr_step_times layer_times(int32_t times) {
    double seconds = LAYER_S * times;
    return (mr_step_times){.n = 2, .rows = {1, 64}, .seconds = {seconds, 64 * seconds}};
}

void slow_rank_plan(void) {
    mr_session *s = slow.session;
    mr_session_facts *f = &s->facts;
    mr_err err;
    for (int32_t i = 0; i < WORLD_MAX_RANKS; i++) {
        slow.ranks[i].layer[0] = layer_times(i == slow.rank ? slow.wrong_times : 1);
        slow.ranks[i].output = (mr_step_times){.n = 1, .rows = {1}, .seconds = {LAYER_S / 1000}};
        slow.ranks[i].host[0] = (char)('a' + i);
    }
    for (int32_t i = 0; i < WORLD_MAX_RANKS * WORLD_MAX_RANKS; i++)
        slow.links[i] = (mr_link_facts){.latency_s = 1e-5, .bytes_per_second = 1e9};
    slow.facts = (mr_cluster_facts){.n_ranks = s->cluster.n_ranks,
                                    .n_layers = s->info.n_layers,
                                    .n_kinds = 1,
                                    .row_bytes = 256,
                                    .kind = slow.kind,
                                    .ranks = slow.ranks,
                                    .links = slow.links};
    s->chunk = CHUNK;
    f->known = &slow.facts;
    f->is_solved = true;
    f->planner =
        (mr_planner_config){.facts = &slow.facts, .n_sequences = SEQUENCES, .kv_tokens = SCENARIO_CONTEXT, .depth = 0};
    f->prediction = mr_alloc(sizeof *f->prediction);
    if (!f->prediction || s->info.n_layers > MOST_LAYERS || mr_planner_solve(&f->planner, &s->plan, &err) != MR_OK)
        world_fail(slow.world, "no plan for measured ranks");
    mr_plan_predict(f->known, &s->plan, 0, f->prediction);
}

void slow_rank_end(void) {
    if (slow.session) {
        mr_free(slow.session->facts.prediction);
        slow.session->facts.prediction = NULL;
    }
    slow.session = NULL;
    memset(&timeouts, 0, sizeof timeouts);
}

int64_t slow_rank_look_s(void) {
    return slow.session ? 1 : 0;
}

static int32_t layers_of(int32_t rank) {
    const mr_plan *plan = &slow.session->plan;
    for (int32_t i = 0; i < plan->n_stages; i++)
        if (plan->stages[i].rank == rank)
            return plan->stages[i].last - plan->stages[i].first;
    return 0;
}

int32_t slow_rank_layers(void) {
    return layers_of(slow.rank);
}

void slow_rank_time_out(const world *w, int32_t rank) {
    timeouts.world = w;
    timeouts.is_late[rank] = true;
}

static int32_t times_of(int32_t rank) {
    return rank == slow.rank ? slow.times : 1;
}

mr_status __real_mr_stage_start(mr_stage *s, const mr_stage_step *step, mr_err *err);
mr_status __wrap_mr_stage_start(mr_stage *s, const mr_stage_step *step, mr_err *err);

/* The time of the step passes when it starts. */
mr_status __wrap_mr_stage_start(mr_stage *s, const mr_stage_step *step, mr_err *err) {
    if (slow.session) {
        int32_t rank = slow.world->current;
        double seconds = LAYER_S * layers_of(rank) * mr_stage_rows(s)->n_rows * times_of(rank);
        world_spend(slow.world, (int64_t)(seconds * (double)MR_NS_PER_S));
    }
    if (timeouts.world && timeouts.is_late[timeouts.world->current]) {
        timeouts.is_late[timeouts.world->current] = false;
        return mr_err_set(err, MR_E_TIMEOUT, "something was not there in time");
    }
    return __real_mr_stage_start(s, step, err);
}

mr_status __wrap_mr_measure_again(const mr_measure_config *config, mr_step_times *out, mr_err *err);

/* Time passes while others run, and messages may come. */
mr_status __wrap_mr_measure_again(const mr_measure_config *config, mr_step_times *out, mr_err *err) {
    world *w = slow.world;
    int64_t end_ns = w->now_ns + MEASURE_NS;
    while (w->now_ns < end_ns) {
        if (config->told_to_end(config->ctx))
            return mr_err_set(err, MR_E_CANCELLED, "told to end");
        world_wait(w, w->current, w->now_ns + PIECE_NS);
    }
    *out = layer_times(times_of(w->current));
    return MR_OK;
}
