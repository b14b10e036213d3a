// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/plan_problem.h"

#include <inttypes.h>
#include <math.h>

#include "engine/base/mem.h"

static const double DEVICE_SPARE = 1.0 / 64; /* of a device's memory, that a plan leaves free */

static uint64_t limit_of(const mr_planner_config *config, int32_t rank) {
    uint64_t have = config->facts->ranks[rank].memory_bytes, limit = have > 0 ? have : UINT64_MAX;
    return config->rank_bytes > 0 && config->rank_bytes < limit ? config->rank_bytes : limit;
}

/* Bytes of layer l and its keys and values on the device of a rank. */
static double device_layer_bytes(const mr_cluster_facts *f, int32_t rank, int32_t l, int64_t kv_tokens) {
    const mr_measured_device *d = &f->ranks[rank].device;
    return (double)d->layer_bytes[f->kind[l]] + (double)kv_tokens * (double)d->token_bytes[f->kind[l]];
}

double mr_planner_device_bytes(const mr_cluster_facts *f, const mr_plan_stage *s, int64_t kv_tokens) {
    const mr_measured_device *d = &f->ranks[s->rank].device;
    bool has_tail = s->first + s->device_layers == f->n_layers;
    double bytes =
        (double)d->stage_bytes + (s->first == 0 ? (double)d->head_bytes : 0) + (has_tail ? (double)d->tail_bytes : 0);
    for (int32_t l = s->first; l < s->first + s->device_layers; l++)
        bytes += device_layer_bytes(f, s->rank, l, kv_tokens);
    return s->device_layers > 0 ? bytes : 0;
}

/* Which layers fit the device of a rank. */
static void fill_device(plan_problem *p, int32_t rank) {
    const mr_cluster_facts *f = p->config->facts;
    const mr_measured_device *d = &f->ranks[rank].device;
    const int64_t tokens = p->config->kv_tokens;
    plan_device *out = &p->device[rank];
    int32_t *end = p->device_end + (size_t)rank * ((size_t)p->n_layers + 1), last = 0;
    double sum = 0; /* of the layers [first, last) */
    *out = (plan_device){.is_known = true,
                         .limit = d->memory_bytes > 0 ? (double)d->memory_bytes * (1 - DEVICE_SPARE) : INFINITY,
                         .tail_from = p->n_layers};
    for (int32_t first = 0; first < p->n_layers; first++) {
        double room = out->limit - (double)d->stage_bytes - (first == 0 ? (double)d->head_bytes : 0);
        if (last < first) {
            last = first;
            sum = 0;
        }
        for (; last < p->n_layers && sum + device_layer_bytes(f, rank, last, tokens) <= room; last++)
            sum += device_layer_bytes(f, rank, last, tokens);
        end[first] = last;
        if (last == p->n_layers && sum + (double)d->tail_bytes <= room && out->tail_from == p->n_layers)
            out->tail_from = first;
        sum -= last > first ? device_layer_bytes(f, rank, first, tokens) : 0;
    }
}

mr_status plan_problem_init(plan_problem *p, const mr_planner_config *config, mr_err *err) {
    const mr_cluster_facts *f = config->facts;
    size_t n_ranks = (size_t)f->n_ranks, n_layers = (size_t)f->n_layers;
    *p = (plan_problem){.config = config, .n_ranks = f->n_ranks, .n_layers = f->n_layers};
    if (f->n_ranks < 1 || f->n_layers < 1)
        return mr_err_set(err, MR_E_INVALID, "no plan for %" PRId32 " layers on %" PRId32 " ranks", f->n_layers,
                          f->n_ranks);
    p->limit = mr_alloc_array(n_ranks, sizeof *p->limit);
    p->weight_bytes = mr_alloc_array(n_layers + 1, sizeof *p->weight_bytes);
    p->token_bytes = mr_alloc_array(n_layers + 1, sizeof *p->token_bytes);
    p->layer_s = mr_alloc_array(n_ranks * (n_layers + 1), sizeof *p->layer_s);
    p->output_s = mr_alloc_array(n_ranks, sizeof *p->output_s);
    p->rest_s = mr_alloc_array(n_layers + 1, sizeof *p->rest_s);
    p->device = mr_alloc_array(n_ranks, sizeof *p->device);
    p->device_s = mr_alloc_array(n_ranks * (n_layers + 1), sizeof *p->device_s);
    p->device_end = mr_alloc_array(n_ranks * (n_layers + 1), sizeof *p->device_end);
    if (!p->limit || !p->weight_bytes || !p->token_bytes || !p->layer_s || !p->output_s || !p->rest_s || !p->device ||
        !p->device_s || !p->device_end) {
        plan_problem_deinit(p);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %zu ranks", n_ranks);
    }
    for (int32_t r = 0; r < f->n_ranks; r++)
        p->limit[r] = limit_of(config, r);
    for (size_t l = 0; l < n_layers; l++) {
        p->weight_bytes[l + 1] = p->weight_bytes[l] + config->memory.layer_bytes[f->kind[l]];
        p->token_bytes[l + 1] = p->token_bytes[l] + config->memory.token_bytes[f->kind[l]];
    }
    for (int32_t r = 0; r < f->n_ranks; r++)
        if (f->ranks[r].device.is_known)
            fill_device(p, r);
    return MR_OK;
}

void plan_problem_deinit(plan_problem *p) {
    mr_free(p->limit);
    mr_free(p->weight_bytes);
    mr_free(p->token_bytes);
    mr_free(p->layer_s);
    mr_free(p->output_s);
    mr_free(p->rest_s);
    mr_free(p->device);
    mr_free(p->device_s);
    mr_free(p->device_end);
    *p = (plan_problem){0};
}

static double mean_latency(const mr_cluster_facts *f) {
    double sum = 0;
    for (int32_t a = 0; a < f->n_ranks; a++)
        for (int32_t b = 0; b < f->n_ranks; b++)
            sum += a != b && f->links ? f->links[(size_t)a * (size_t)f->n_ranks + (size_t)b].latency_s : 0;
    return f->n_ranks > 1 ? sum / ((double)f->n_ranks * (f->n_ranks - 1)) : 0;
}

static double less(double a, double b) {
    return a < b ? a : b;
}

/* Writes the seconds of a rank. Lowers the least seconds of each kind of layers and of the output. */
static void time_rank(plan_problem *p, int32_t r, double least[MR_MAX_LAYER_KINDS], double *least_output) {
    const mr_cluster_facts *f = p->config->facts;
    const mr_rank_facts *rank = &f->ranks[r];
    plan_device *device = &p->device[r];
    double *before = p->layer_s + (size_t)r * ((size_t)p->n_layers + 1), of_kind[MR_MAX_LAYER_KINDS];
    double *on_device = p->device_s + (size_t)r * ((size_t)p->n_layers + 1), of_device[MR_MAX_LAYER_KINDS] = {0};
    for (int32_t k = 0; k < f->n_kinds; k++) {
        of_kind[k] = mr_cluster_facts_layer_seconds(f, rank, k, p->rows, p->config->depth);
        least[k] = less(least[k], of_kind[k]);
        if (device->is_known) {
            of_device[k] = mr_cluster_facts_device_seconds(f, rank, k, p->rows, p->config->depth);
            least[k] = less(least[k], of_device[k]);
        }
    }
    before[0] = on_device[0] = 0;
    for (int32_t l = 0; l < p->n_layers; l++) {
        before[l + 1] = before[l] + of_kind[f->kind[l]];
        on_device[l + 1] = on_device[l] + of_device[f->kind[l]];
    }
    p->output_s[r] = mr_step_times_at(&rank->output, p->rows);
    *least_output = less(*least_output, p->output_s[r]);
    if (!device->is_known)
        return;
    device->crossing_s = mr_step_times_at(&rank->device.crossing, p->rows);
    device->output_s = mr_step_times_at(&rank->device.output, p->rows);
    *least_output = less(*least_output, device->output_s);
}

void plan_problem_set_rows(plan_problem *p, double rows) {
    const mr_cluster_facts *f = p->config->facts;
    p->rows = rows;
    p->return_s = mean_latency(f);
    double least[MR_MAX_LAYER_KINDS], least_output = INFINITY;
    for (int32_t k = 0; k < f->n_kinds; k++)
        least[k] = INFINITY;
    for (int32_t r = 0; r < p->n_ranks; r++)
        time_rank(p, r, least, &least_output);
    p->rest_s[p->n_layers] = 0;
    for (int32_t l = p->n_layers - 1; l >= 0; l--)
        p->rest_s[l] = p->rest_s[l + 1] + least[f->kind[l]] + (l == p->n_layers - 1 ? least_output : 0);
}

plan_stage_cost plan_stage_on_device(const plan_problem *p, int32_t rank, int32_t first, int32_t last) {
    const plan_device *device = &p->device[rank];
    const size_t row = (size_t)rank * ((size_t)p->n_layers + 1);
    const double *before = p->layer_s + row, *on_device = p->device_s + row;
    int32_t end = p->device_end[row + (size_t)first] < last ? p->device_end[row + (size_t)first] : last;
    if (end == p->n_layers && first < device->tail_from)
        end--; /* the output would not fit */
    if (p->config->limits_devices && end - first > p->config->most_device_layers)
        end = first + p->config->most_device_layers;
    int32_t n = end > first ? end - first : 0;
    const plan_stage_cost cpu = {plan_host_fits(p, rank, first, last, 0), 0, plan_cpu_seconds(p, rank, first, last)};
    if (n == 0)
        return cpu;
    double output_s = end == p->n_layers ? device->output_s : p->output_s[rank];
    const plan_stage_cost both = {plan_host_fits(p, rank, first, last, n), n,
                                  p->config->facts->ranks[rank].step_s + device->crossing_s + on_device[end] -
                                      on_device[first] + before[last] - before[end] +
                                      (last == p->n_layers ? output_s : 0)};
    bool is_slower = cpu.seconds <= both.seconds && !p->config->fills_devices;
    return cpu.fits && (!both.fits || is_slower) ? cpu : both;
}

int32_t plan_most_layers(const plan_problem *p, int32_t rank, double slowest_s) {
    int32_t most = 0;
    for (int32_t first = 0, last = 1; last <= p->n_layers; last++) {
        for (; first < last; first++) {
            plan_stage_cost cost = plan_stage(p, rank, first, last);
            if (cost.fits && cost.seconds <= slowest_s)
                break;
        }
        most = last - first > most ? last - first : most;
    }
    return most;
}

uint64_t plan_stage_bytes(const plan_problem *p, int32_t rank, int32_t first, int32_t last, int32_t device_layers) {
    const mr_model_memory *m = &p->config->memory;
    const mr_measured_device *d = &p->config->facts->ranks[rank].device;
    int32_t on_cpu = first + device_layers; /* the first layer on the CPU */
    bool has_head = first == 0 && !(device_layers > 0 && d->head_bytes > 0);
    bool has_tail = last == p->n_layers && !(device_layers > 0 && on_cpu == last && d->tail_bytes > 0);
    uint64_t token = p->token_bytes[last] - p->token_bytes[on_cpu];
    return p->weight_bytes[last] - p->weight_bytes[on_cpu] + (uint64_t)p->config->kv_tokens * token + m->stage_bytes +
           (has_head ? m->head_bytes : 0) + (has_tail ? m->tail_bytes : 0);
}

static const mr_link_facts *link_of(const plan_problem *p, int32_t from, int32_t to) {
    static const mr_link_facts FREE = {0};
    const mr_cluster_facts *f = p->config->facts;
    return f->links && from != to ? &f->links[(size_t)from * (size_t)f->n_ranks + (size_t)to] : &FREE;
}

double plan_link_seconds(const plan_problem *p, int32_t from, int32_t to) {
    double speed = link_of(p, from, to)->bytes_per_second;
    return speed > 0 ? p->rows * p->config->facts->row_bytes / speed : 0;
}

double plan_hop_seconds(const plan_problem *p, int32_t from, int32_t to) {
    return link_of(p, from, to)->latency_s + plan_link_seconds(p, from, to);
}

void plan_candidate_time(const plan_problem *p, plan_candidate *c) {
    c->slowest_s = 0;
    c->sum_s = c->n_stages > 1 ? link_of(p, c->stages[c->n_stages - 1].rank, c->stages[0].rank)->latency_s : 0;
    for (int32_t i = 0; i < c->n_stages; i++) {
        mr_plan_stage *s = &c->stages[i];
        const plan_stage_cost cost = plan_stage(p, s->rank, s->first, s->last);
        double wire = i > 0 ? plan_link_seconds(p, s[-1].rank, s->rank) : 0;
        s->device_layers = cost.device_layers;
        c->sum_s += cost.seconds + (i > 0 ? plan_hop_seconds(p, s[-1].rank, s->rank) : 0);
        c->slowest_s = cost.seconds > c->slowest_s ? cost.seconds : c->slowest_s;
        c->slowest_s = wire > c->slowest_s ? wire : c->slowest_s;
    }
}
