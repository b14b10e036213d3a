// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/plan_predict.h"

#include "coordinator/planning/hop_ways.h"
#include "engine/base/status.h"

/* Whether the whole stage is on the rank's device. */
static bool is_on_device(const mr_plan_stage *s) {
    return s->device_layers > 0 && s->device_layers == s->last - s->first;
}

/* Which part of the neurons of sparse layers on the device stays in the host's memory. */
static double cold_share(const mr_cluster_facts *f, const mr_plan_stage *s) {
    double share = f->n_partitions > 0 ? (double)s->cold_partitions / f->n_partitions : 0;
    return share < 1 ? share : 1;
}

/* Seconds of a layer on the device with all of its experts, and of its neurons but the cold ones. */
static double device_seconds(const mr_cluster_facts *f, const mr_plan_stage *s, int32_t k, double rows, int32_t depth) {
    const mr_rank_facts *rank = &f->ranks[s->rank];
    double cold = rank->device.trunk[k].n > 0 ? cold_share(f, s) : 0;
    double hot_s = cold < 1 ? mr_cluster_facts_device_seconds(f, rank, k, rows, depth) : 0;
    double cold_s = cold > 0 ? mr_cluster_facts_trunk_seconds(f, rank, k, rows, depth) : 0;
    return rank->device.layer[k].n > 0 || cold == 0 ? (1 - cold) * hot_s + cold * cold_s : cold_s;
}

/* Which part of the time counts in which rows go to the device of a stage and come back. What was measured of the hop
 * from or to another device has it already. */
static double crossing_share(const mr_cluster_facts *f, const mr_plan *plan, int32_t i) {
    if (plan->stages[i].device_layers == 0)
        return 0;
    double in = i > 0 && mr_hop_measured(plan, f, i - 1) ? 0 : 0.5;
    return in + (mr_hop_measured(plan, f, i) ? 0 : 0.5);
}

/* The times of all layers of a stage together, at the row counts of the curve with the most points. */
static mr_step_times stage_times(const mr_cluster_facts *f, const mr_plan *plan, int32_t idx, int32_t depth) {
    const mr_plan_stage *s = &plan->stages[idx];
    MR_ASSERT(s->rank < f->n_ranks);
    const double crossing = crossing_share(f, plan, idx);
    const mr_rank_facts *rank = &f->ranks[s->rank];
    mr_step_times out = {0};
    int32_t n_cpu[MR_MAX_LAYER_KINDS] = {0}, n_device[MR_MAX_LAYER_KINDS] = {0}, n_trunks[MR_MAX_LAYER_KINDS] = {0};
    int32_t end = s->first + s->device_layers;
    double share = mr_cluster_facts_expert_share(f, s->device_experts);
    for (int32_t l = s->first; l < s->last; l++) {
        const int32_t k = f->kind[l];
        bool is_trunk = l < end && l >= end - s->host_experts && rank->device.trunk[k].n > 0;
        const mr_step_times *layer = is_trunk  ? &rank->device.trunk[k]
                                     : l < end ? &rank->device.layer[k]
                                               : &rank->layer[k];
        (is_trunk ? n_trunks : l < end ? n_device : n_cpu)[k]++;
        out = layer->n > out.n ? *layer : out;
    }
    for (int32_t i = 0; i < out.n; i++) {
        double rows = out.rows[i];
        out.seconds[i] = rank->step_s + (crossing > 0 ? crossing * mr_step_times_at(&rank->device.crossing, rows) : 0);
        for (int32_t k = 0; k < f->n_kinds; k++) {
            out.seconds[i] += n_cpu[k] * mr_cluster_facts_layer_seconds(f, rank, k, rows, depth);
            if (n_device[k] > 0)
                out.seconds[i] += n_device[k] * device_seconds(f, s, k, rows, depth);
            if (n_trunks[k] > 0)
                out.seconds[i] += n_trunks[k] * (mr_cluster_facts_trunk_seconds(f, rank, k, rows, depth) -
                                                 share * mr_cluster_facts_experts_seconds(rank, k, rows));
        }
    }
    return out;
}

static const mr_link_facts *link_of(const mr_cluster_facts *f, int32_t from, int32_t to) {
    static const mr_link_facts FREE = {0};
    return f->links && from != to ? &f->links[(size_t)from * (size_t)f->n_ranks + (size_t)to] : &FREE;
}

/* The link of the hop from a stage to the next one, or from the last one to the first. */
static const mr_link_facts *hop_of(const mr_cluster_facts *f, const mr_plan *plan, int32_t i) {
    const mr_link_facts *measured = mr_hop_measured(plan, f, i);
    return measured ? measured : link_of(f, plan->stages[i].rank, plan->stages[(i + 1) % plan->n_stages].rank);
}

static double row_seconds(const mr_cluster_facts *f, const mr_link_facts *link) {
    return link->bytes_per_second > 0 ? f->row_bytes / link->bytes_per_second : 0;
}

void mr_plan_predict(const mr_cluster_facts *facts, const mr_plan *plan, int32_t depth, mr_plan_prediction *out) {
    const mr_plan_stage *stages = plan->stages, *tail = &stages[plan->n_stages - 1];
    const mr_rank_facts *last = &facts->ranks[tail->rank];
    out->times = (mr_pipeline_times){.n_stages = plan->n_stages,
                                     .stages = out->stages,
                                     .output = is_on_device(tail) ? last->device.output : last->output};
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_link_facts *link = hop_of(facts, plan, i);
        double row_s = i + 1 < plan->n_stages ? row_seconds(facts, link) : 0; /* ids are small */
        out->stages[i] = stage_times(facts, plan, i, depth);
        out->times.hops_s += link->latency_s;
        out->times.hops_row_s += row_s;
        out->times.link_row_s = row_s > out->times.link_row_s ? row_s : out->times.link_row_s;
    }
}

double mr_plan_decode_rate(const mr_plan_prediction *p, int32_t n, int32_t *out_micro_batches) {
    int32_t m = mr_micro_batches_best(&p->times, n, mr_micro_batches_most(p->times.n_stages));
    double seconds = mr_micro_batches_seconds(&p->times, n, m);
    if (out_micro_batches)
        *out_micro_batches = m;
    return seconds > 0 ? n / seconds : 0;
}

double mr_plan_prefill_rate(const mr_plan_prediction *p, int32_t n, int32_t chunk) {
    double seconds = mr_prefill_seconds(&p->times, n, chunk);
    return seconds > 0 ? n / seconds : 0;
}

double mr_plan_step_seconds(const mr_plan_prediction *p, int32_t stage, double rows) {
    return mr_step_times_at(&p->stages[stage], rows) +
           (stage == p->times.n_stages - 1 ? mr_step_times_at(&p->times.output, rows) : 0);
}

bool mr_plan_slowest_link(const mr_cluster_facts *facts, const mr_plan *plan, const mr_plan_prediction *p, int32_t n,
                          mr_plan_link *out) {
    int32_t m;
    double rate = mr_plan_decode_rate(p, n, &m), rows = (double)n / m, longest = 0, other_row_s = 0;
    int32_t slowest = -1;
    for (int32_t i = 0; i + 1 < plan->n_stages; i++) {
        const mr_link_facts *link = hop_of(facts, plan, i);
        double seconds = link->latency_s + rows * row_seconds(facts, link);
        if (seconds > longest) {
            longest = seconds;
            slowest = i;
        }
    }
    if (slowest < 0)
        return false;
    for (int32_t i = 0; i + 1 < plan->n_stages; i++) {
        double row_s = row_seconds(facts, hop_of(facts, plan, i));
        other_row_s = i != slowest && row_s > other_row_s ? row_s : other_row_s;
    }
    const mr_plan_stage *from = &plan->stages[slowest];
    *out = (mr_plan_link){.from = from->rank, .to = from[1].rank, .facts = *hop_of(facts, plan, slowest)};
    /* The same pipeline, as if the slowest link took no time. */
    mr_pipeline_times without = p->times;
    without.hops_s -= out->facts.latency_s;
    without.hops_row_s -= row_seconds(facts, &out->facts);
    without.link_row_s = other_row_s;
    m = mr_micro_batches_best(&without, n, mr_micro_batches_most(plan->n_stages));
    out->cost = 1 - rate * mr_micro_batches_seconds(&without, n, m) / n;
    out->cost = out->cost > 0 ? out->cost : 0;
    return true;
}
