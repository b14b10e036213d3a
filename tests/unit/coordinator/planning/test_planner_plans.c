/* tests/unit/coordinator/planning/test_planner_plans.c - the times of a plan by the formulas alone, without sums that
 * were made before. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/coordinator/planning/test_planner_plans.h"

#include <math.h>
#include <stdio.h>

#include "coordinator/planning/micro_batches.h"
#include "engine/base/rng.h"

static uint64_t counter;

double random_in(double low, double high) {
    return low + (high - low) * (double)(mr_rng_u64(11, 0, counter++) % 1000000) / 1e6;
}

int32_t random_int(int32_t low, int32_t high) {
    return low + (int32_t)(mr_rng_u64(11, 0, counter++) % (uint64_t)(high - low + 1));
}

mr_step_times curve(double fixed, double row) {
    mr_step_times t = {.n = 7};
    for (int i = 0; i < t.n; i++) {
        t.rows[i] = 1 << i;
        t.seconds[i] = fixed + row * t.rows[i];
    }
    return t;
}

static mr_step_times random_curve(double scale) {
    return curve(scale * random_in(0.5, 2), scale * random_in(0.01, 0.3));
}

void cluster_random(cluster *c, int32_t n_ranks, int32_t n_layers, bool equal) {
    *c = (cluster){0};
    c->facts = (mr_cluster_facts){.n_ranks = n_ranks,
                                  .n_layers = n_layers,
                                  .n_kinds = 2,
                                  .row_bytes = 4096,
                                  .kind = c->kind,
                                  .window = {0, random_int(0, 1) ? random_int(1, 150) : 0},
                                  .ranks = c->ranks,
                                  .links = c->links};
    for (int32_t l = 0; l < n_layers; l++)
        c->kind[l] = (uint8_t)random_int(0, 1);
    for (int32_t r = 0; r < n_ranks; r++) {
        mr_rank_facts *f = &c->ranks[r];
        *f = (mr_rank_facts){.layer = {random_curve(1e-3), random_curve(2e-3)},
                             .output = random_curve(1e-3),
                             .position_s = {random_in(0, 1e-6), random_in(0, 1e-6)},
                             .step_s = random_in(1e-5, 1e-3),
                             .memory_bytes = (uint64_t)random_in(300, 1200)};
        if (equal && r > 0 && r % 2)
            *f = c->ranks[r - 1];
        snprintf(f->host, sizeof f->host, "node%d", (int)r);
    }
    for (int32_t i = 0; i < n_ranks * n_ranks; i++)
        c->links[i] = equal ? (mr_link_facts){1e-4, 1e9}
                            : (mr_link_facts){random_in(1e-5, 3e-3), random_in(1, 10) * (i % 7 ? 1e8 : 1e7)};
    c->config = (mr_planner_config){.facts = &c->facts,
                                    .memory = {.layer_bytes = {100, 150},
                                               .stage_bytes = 20,
                                               .head_bytes = 90,
                                               .tail_bytes = 60,
                                               .token_bytes = {1, 3}},
                                    .n_sequences = random_int(1, 24),
                                    .depth = 100,
                                    .kv_tokens = random_int(1, 20)};
}

static mr_step_times scaled(const mr_step_times *t, double factor) {
    mr_step_times out = *t;
    for (int32_t i = 0; i < out.n; i++)
        out.seconds[i] *= factor;
    return out;
}

void add_devices(cluster *c) {
    for (int32_t r = 0; r < c->facts.n_ranks; r += 1 + random_int(0, 1)) {
        mr_rank_facts *f = &c->ranks[r];
        mr_measured_device *d = &f->device;
        *d = (mr_measured_device){.is_known = true,
                                  .memory_bytes = (uint64_t)random_in(100, 900),
                                  .output = scaled(&f->output, random_in(0.1, 0.8)),
                                  .crossing = random_curve(5e-4),
                                  .layer_bytes = {110, 160},
                                  .token_bytes = {1, 4},
                                  .stage_bytes = 10,
                                  .head_bytes = 60,
                                  .tail_bytes = 40};
        for (int k = 0; k < 2; k++) {
            d->layer[k] = scaled(&f->layer[k], random_in(0.1, 0.8));
            d->position_s[k] = f->position_s[k] * random_in(0.1, 1);
        }
    }
}

void add_trunks(cluster *c) {
    for (int32_t r = 0; r < c->facts.n_ranks; r++) {
        mr_measured_device *d = &c->ranks[r].device;
        double share = random_in(0, 1); /* of what the device saves */
        if (!d->is_known)
            continue;
        d->trunk[1] = d->layer[1];
        for (int32_t i = 0; i < d->trunk[1].n; i++)
            d->trunk[1].seconds[i] += share * (c->ranks[r].layer[1].seconds[i] - d->layer[1].seconds[i]);
        d->trunk_bytes[1] = (uint64_t)random_in(5, 150);
    }
}

/* Layer l of a stage on the device without its experts. */
static bool is_trunk(const cluster *c, const mr_plan_stage *s, int32_t l) {
    int32_t end = s->first + s->device_layers;
    return l >= end - s->host_experts && l < end && c->ranks[s->rank].device.trunk[c->kind[l]].n > 0;
}

/* Of a layer that leaves its experts to the host but for some. */
static double bytes_of_experts(const cluster *c, const mr_plan_stage *s, int32_t k) {
    const mr_measured_device *d = &c->ranks[s->rank].device;
    double all = (double)d->layer_bytes[k] - (double)d->trunk_bytes[k];
    return all > 0 && c->facts.n_experts > 0 ? all * s->device_experts / c->facts.n_experts : 0;
}

static double seconds_of_experts(const cluster *c, const mr_plan_stage *s, int32_t k, double rows) {
    const mr_measured_device *d = &c->ranks[s->rank].device;
    const double *shares = c->facts.expert_shares;
    if (s->device_experts == 0)
        return 0;
    double share = shares ? shares[s->device_experts] : (double)s->device_experts / c->facts.n_experts;
    return share * (mr_step_times_at(&d->trunk[k], rows) - mr_step_times_at(&d->layer[k], rows));
}

bool stage_fits(const cluster *c, const mr_plan_stage *s) {
    const int32_t n = s->device_layers;
    const mr_model_memory *m = &c->config.memory;
    const mr_measured_device *d = &c->ranks[s->rank].device;
    bool is_tail = s->last == c->facts.n_layers;
    uint64_t need = m->stage_bytes + (s->first == 0 && n == 0 ? m->head_bytes : 0) +
                    (is_tail && n < s->last - s->first ? m->tail_bytes : 0);
    double on_device = (double)d->stage_bytes + (double)(s->first == 0 ? d->head_bytes : 0) +
                       (double)(is_tail && n == s->last - s->first ? d->tail_bytes : 0);
    for (int32_t l = s->first; l < s->last; l++) {
        int32_t k = c->kind[l];
        if (l < s->first + n)
            on_device += (double)(is_trunk(c, s, l) ? d->trunk_bytes[k] : d->layer_bytes[k]) +
                         (is_trunk(c, s, l) ? bytes_of_experts(c, s, k) : 0) +
                         (double)c->config.kv_tokens * (double)d->token_bytes[k];
        if (l < s->first + n && l >= s->first + n - s->host_experts)
            need += m->layer_bytes[k];
        else if (l >= s->first + n)
            need += m->layer_bytes[k] + (uint64_t)c->config.kv_tokens * m->token_bytes[k];
    }
    return need <= c->ranks[s->rank].memory_bytes && (n == 0 || on_device <= (double)d->memory_bytes * 63 / 64);
}

double stage_seconds(const cluster *c, const mr_plan_stage *s, double rows) {
    const int32_t n = s->device_layers;
    const mr_rank_facts *f = &c->ranks[s->rank];
    bool is_tail = s->last == c->facts.n_layers, all = n == s->last - s->first;
    double t = f->step_s + (n > 0 ? mr_step_times_at(&f->device.crossing, rows) : 0) +
               (is_tail ? mr_step_times_at(all ? &f->device.output : &f->output, rows) : 0);
    for (int32_t l = s->first; l < s->last; l++) {
        int32_t k = c->kind[l], window = c->facts.window[k];
        double attended = window ? fmin(c->config.depth, window - 1) : c->config.depth;
        bool here = l >= s->first + n;
        const mr_measured_device *d = &f->device;
        t -= is_trunk(c, s, l) ? seconds_of_experts(c, s, k, rows) : 0;
        t += mr_step_times_at(here                ? &f->layer[k]
                              : is_trunk(c, s, l) ? &d->trunk[k]
                                                  : &d->layer[k],
                              rows) +
             (here ? f->position_s[k] : f->device.position_s[k]) * rows * attended;
    }
    return t;
}

/* Of any number of layers on the device; INFINITY: none fits. */
static double least_stage_seconds(const cluster *c, const mr_plan_stage *s, double rows) {
    double least = INFINITY;
    mr_plan_stage with = *s;
    with.host_experts = 0;
    for (int32_t n = 0; n <= (c->ranks[s->rank].device.is_known ? s->last - s->first : 0); n++) {
        with.device_layers = n;
        if (stage_fits(c, &with))
            least = fmin(least, stage_seconds(c, &with, rows));
    }
    return least;
}

bool fits(const cluster *c, const mr_plan *plan) {
    for (int32_t i = 0; i < plan->n_stages; i++)
        if (!stage_fits(c, &plan->stages[i]))
            return false;
    return true;
}

double seconds_with(const cluster *c, const mr_plan *plan, double n, int32_t m, bool best) {
    double rows = n / m, slowest = 0, sum = 0;
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        bool is_tail = i == plan->n_stages - 1;
        double t = best ? least_stage_seconds(c, s, rows) : stage_seconds(c, s, rows);
        const mr_link_facts *next = &c->links[s->rank * c->facts.n_ranks + plan->stages[is_tail ? 0 : i + 1].rank];
        double wire = is_tail ? 0 : rows * c->facts.row_bytes / next->bytes_per_second;
        sum += t + wire + (plan->n_stages > 1 ? next->latency_s : 0);
        slowest = fmax(slowest, fmax(t, wire));
    }
    return fmax(m * slowest, sum);
}

double seconds_of(const cluster *c, const mr_plan *plan, bool best) {
    int32_t n = c->config.objective == MR_OBJECTIVE_LATENCY ? 1 : c->config.n_sequences;
    double least = INFINITY;
    for (int32_t m = 1; m <= n && m <= mr_micro_batches_most(plan->n_stages); m++)
        least = fmin(least, seconds_with(c, plan, n, m, best));
    return least;
}

double try_all(const cluster *c, mr_plan *plan) {
    const int32_t n = plan->n_stages, first = n ? plan->stages[n - 1].last : 0;
    double least = INFINITY;
    if (first == c->facts.n_layers)
        return seconds_of(c, plan, true);
    for (int32_t r = 0; r < c->facts.n_ranks; r++) {
        bool used = false;
        for (int32_t i = 0; i < n; i++)
            used = used || plan->stages[i].rank == r;
        for (int32_t last = first + 1; last <= c->facts.n_layers && !used; last++) {
            plan->stages[n] = (mr_plan_stage){.first = first, .last = last, .rank = r};
            plan->n_stages = n + 1;
            least = fmin(least, try_all(c, plan));
            plan->n_stages = n;
        }
    }
    return least;
}
