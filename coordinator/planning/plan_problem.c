// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/plan_problem.h"

#include <inttypes.h>
#include <math.h>

#include "engine/base/mem.h"

static const double DEVICE_SPARE = 1.0 / 64; /* of a device's memory, that a plan leaves free */
/* Of a layer that the device had no memory to measure: too large and too slow for any plan. */
static const double NOT_MEASURED_BYTES = 1e15, NOT_MEASURED_S = 1e6;

static uint64_t limit_of(const mr_planner_config *config, int32_t rank) {
    uint64_t have = config->facts->ranks[rank].memory_bytes, limit = have > 0 ? have : UINT64_MAX;
    return config->rank_bytes > 0 && config->rank_bytes < limit ? config->rank_bytes : limit;
}

/* Bytes of layer l and its keys and values on the device of a rank. A layer that was not measured is too large. */
static double device_layer_bytes(const mr_cluster_facts *f, int32_t rank, int32_t l, bool host_experts,
                                 int64_t kv_tokens) {
    const mr_measured_device *d = &f->ranks[rank].device;
    const int32_t k = f->kind[l];
    bool is_trunk = host_experts && d->trunk[k].n > 0;
    double weights = is_trunk            ? (double)d->trunk_bytes[k]
                     : d->layer[k].n > 0 ? (double)d->layer_bytes[k]
                                         : NOT_MEASURED_BYTES;
    return weights + (double)kv_tokens * (double)d->token_bytes[k];
}

static double device_layer_seconds(const plan_problem *p, int32_t rank, int32_t k, bool host_experts) {
    const mr_cluster_facts *f = p->config->facts;
    const mr_rank_facts *r = &f->ranks[rank];
    if (host_experts && r->device.trunk[k].n > 0)
        return mr_cluster_facts_trunk_seconds(f, r, k, p->rows, p->config->depth);
    return r->device.layer[k].n > 0 ? mr_cluster_facts_device_seconds(f, r, k, p->rows, p->config->depth)
                                    : NOT_MEASURED_S;
}

/* The bytes of layer l less than device_layer_bytes says, if a plan leaves neurons to the host. */
static double cold_bytes(const mr_cluster_facts *f, const mr_plan_stage *s, int32_t l) {
    const mr_measured_device *d = &f->ranks[s->rank].device;
    const int32_t k = f->kind[l];
    if (s->cold_partitions == 0 || f->n_partitions == 0 || d->trunk[k].n == 0)
        return 0;
    double hot = 1 - fmin(1, (double)s->cold_partitions / f->n_partitions);
    double neurons = (double)d->layer_bytes[k] - (double)d->trunk_bytes[k];
    return device_layer_bytes(f, s->rank, l, false, 0) - (double)d->trunk_bytes[k] - hot * neurons;
}

double mr_planner_device_bytes(const mr_cluster_facts *f, const mr_plan_stage *s, int64_t kv_tokens) {
    const mr_measured_device *d = &f->ranks[s->rank].device;
    int32_t end = s->first + s->device_layers;
    double bytes = (double)d->stage_bytes + (s->first == 0 ? (double)d->head_bytes : 0) +
                   (end == f->n_layers ? (double)d->tail_bytes : 0);
    for (int32_t l = s->first; l < end; l++)
        bytes += device_layer_bytes(f, s->rank, l, l >= end - s->host_experts, kv_tokens) - cold_bytes(f, s, l);
    for (int32_t l = end - s->host_experts; l < end; l++)
        bytes += s->device_experts * mr_cluster_facts_expert_bytes(f, &f->ranks[s->rank], f->kind[l]);
    return s->device_layers > 0 ? bytes : 0;
}

/* Bytes for layers, if the stage begins with the layer. */
static double room_of(const plan_problem *p, int32_t rank, int32_t first) {
    const mr_measured_device *d = &p->config->facts->ranks[rank].device;
    return p->device[rank].limit - (double)d->stage_bytes - (first == 0 ? (double)d->head_bytes : 0);
}

/* Which layers fit the device of a rank. */
static void fill_layers(const plan_problem *p, int32_t rank, bool host_experts, plan_device_layers *out) {
    const mr_cluster_facts *f = p->config->facts;
    int32_t last = 0;
    out->bytes[0] = 0;
    for (int32_t l = 0; l < p->n_layers; l++)
        out->bytes[l + 1] = out->bytes[l] + device_layer_bytes(f, rank, l, host_experts, p->config->kv_tokens);
    out->tail_from = p->n_layers;
    for (int32_t first = 0; first < p->n_layers; first++) {
        double room = room_of(p, rank, first);
        last = last < first ? first : last;
        while (last < p->n_layers && out->bytes[last + 1] - out->bytes[first] <= room)
            last++;
        out->end[first] = last;
        if (last == p->n_layers && out->tail_from == p->n_layers &&
            out->bytes[last] - out->bytes[first] + (double)f->ranks[rank].device.tail_bytes <= room)
            out->tail_from = first;
    }
}

static bool create_layers(const plan_problem *p, plan_device_layers *out) {
    size_t n = (size_t)p->n_layers + 1;
    out->bytes = mr_alloc_array(n, sizeof *out->bytes);
    out->end = mr_alloc_array(n, sizeof *out->end);
    out->s = mr_alloc_array(n, sizeof *out->s);
    return out->bytes && out->end && out->s;
}

static void destroy_layers(plan_device_layers *x) {
    mr_free(x->bytes);
    mr_free(x->end);
    mr_free(x->s);
}

/* False: no memory. */
static bool fill_device(plan_problem *p, int32_t rank) {
    const mr_cluster_facts *f = p->config->facts;
    const mr_measured_device *d = &f->ranks[rank].device;
    plan_device *out = &p->device[rank];
    out->is_known = true;
    out->limit = d->memory_bytes > 0 ? (double)d->memory_bytes * (1 - DEVICE_SPARE) : INFINITY;
    for (int32_t k = 0; k < f->n_kinds; k++)
        out->has_trunks = out->has_trunks || d->trunk[k].n > 0;
    if (!create_layers(p, &out->whole) || (out->has_trunks && !create_layers(p, &out->trunk)))
        return false;
    fill_layers(p, rank, false, &out->whole);
    if (!out->has_trunks)
        return true;
    fill_layers(p, rank, true, &out->trunk);
    out->expert_bytes = mr_alloc_array((size_t)p->n_layers + 1, sizeof *out->expert_bytes);
    out->experts_s = mr_alloc_array((size_t)p->n_layers + 1, sizeof *out->experts_s);
    if (!out->expert_bytes || !out->experts_s)
        return false;
    for (int32_t l = 0; l < p->n_layers; l++)
        out->expert_bytes[l + 1] = out->expert_bytes[l] + mr_cluster_facts_expert_bytes(f, &f->ranks[rank], f->kind[l]);
    return true;
}

static mr_status no_memory(plan_problem *p, mr_err *err) {
    int32_t n_ranks = p->n_ranks;
    plan_problem_deinit(p);
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %" PRId32 " ranks", n_ranks);
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
    if (!p->limit || !p->weight_bytes || !p->token_bytes || !p->layer_s || !p->output_s || !p->rest_s || !p->device)
        return no_memory(p, err);
    for (int32_t r = 0; r < f->n_ranks; r++)
        p->limit[r] = limit_of(config, r);
    for (size_t l = 0; l < n_layers; l++) {
        p->weight_bytes[l + 1] = p->weight_bytes[l] + config->memory.layer_bytes[f->kind[l]];
        p->token_bytes[l + 1] = p->token_bytes[l] + config->memory.token_bytes[f->kind[l]];
    }
    for (int32_t r = 0; r < f->n_ranks; r++)
        if (f->ranks[r].device.is_known && !fill_device(p, r))
            return no_memory(p, err);
    return MR_OK;
}

void plan_problem_deinit(plan_problem *p) {
    for (int32_t r = 0; p->device && r < p->n_ranks; r++) {
        destroy_layers(&p->device[r].whole);
        destroy_layers(&p->device[r].trunk);
        mr_free(p->device[r].expert_bytes);
        mr_free(p->device[r].experts_s);
    }
    mr_free(p->limit);
    mr_free(p->weight_bytes);
    mr_free(p->token_bytes);
    mr_free(p->layer_s);
    mr_free(p->output_s);
    mr_free(p->rest_s);
    mr_free(p->device);
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

/* Writes the seconds of layers on the device of a rank. Lowers the least seconds of each kind. */
static void time_device(const plan_problem *p, int32_t r, bool host_experts, double *before,
                        double least[MR_MAX_LAYER_KINDS]) {
    const mr_cluster_facts *f = p->config->facts;
    double of_kind[MR_MAX_LAYER_KINDS];
    for (int32_t k = 0; k < f->n_kinds; k++) {
        of_kind[k] = device_layer_seconds(p, r, k, host_experts);
        least[k] = less(least[k], of_kind[k]);
    }
    before[0] = 0;
    for (int32_t l = 0; l < p->n_layers; l++)
        before[l + 1] = before[l] + of_kind[f->kind[l]];
}

/* Writes the seconds of a rank. Lowers the least seconds of each kind of layers and of the output. */
static void time_rank(plan_problem *p, int32_t r, double least[MR_MAX_LAYER_KINDS], double *least_output) {
    const mr_cluster_facts *f = p->config->facts;
    const mr_rank_facts *rank = &f->ranks[r];
    plan_device *device = &p->device[r];
    double *before = p->layer_s + (size_t)r * ((size_t)p->n_layers + 1), of_kind[MR_MAX_LAYER_KINDS];
    for (int32_t k = 0; k < f->n_kinds; k++) {
        of_kind[k] = mr_cluster_facts_layer_seconds(f, rank, k, p->rows, p->config->depth);
        least[k] = less(least[k], of_kind[k]);
    }
    before[0] = 0;
    for (int32_t l = 0; l < p->n_layers; l++)
        before[l + 1] = before[l] + of_kind[f->kind[l]];
    p->output_s[r] = mr_step_times_at(&rank->output, p->rows);
    *least_output = less(*least_output, p->output_s[r]);
    if (!device->is_known)
        return;
    time_device(p, r, false, device->whole.s, least);
    if (device->has_trunks)
        time_device(p, r, true, device->trunk.s, least);
    for (int32_t l = 0; device->has_trunks && l < p->n_layers; l++)
        device->experts_s[l + 1] = device->experts_s[l] + mr_cluster_facts_experts_seconds(rank, f->kind[l], p->rows);
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

/* How many layers from first on the device holds. */
static int32_t count_layers(const plan_problem *p, const plan_device_layers *x, int32_t first, int32_t last) {
    int32_t end = x->end[first] < last ? x->end[first] : last;
    if (end == p->n_layers && first < x->tail_from)
        end--; /* the output would not fit */
    if (p->config->limits_devices && end - first > p->config->most_device_layers)
        end = first + p->config->most_device_layers;
    return end > first ? end - first : 0;
}

/* How many layers from first on the device holds if none of the first n leaves its experts to the host. */
static int32_t count_further(const plan_problem *p, int32_t rank, int32_t first, int32_t n, int32_t most) {
    const plan_device *d = &p->device[rank];
    const double room = room_of(p, rank, first) - d->whole.bytes[first + n] + d->whole.bytes[first];
    int32_t low = n, high = most;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        double tail = first + middle == p->n_layers ? (double)p->config->facts->ranks[rank].device.tail_bytes : 0;
        if (d->trunk.bytes[first + middle] - d->trunk.bytes[first + n] + tail <= room)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* How many of the layers [first, end) on the device leave their experts to the host. All fit without any experts. */
static int32_t count_host_experts(const plan_problem *p, int32_t rank, int32_t first, int32_t end) {
    const plan_device *d = &p->device[rank];
    const double tail = end == p->n_layers ? (double)p->config->facts->ranks[rank].device.tail_bytes : 0;
    const double room = room_of(p, rank, first) - tail + d->whole.bytes[first] - d->trunk.bytes[end];
    int32_t low = first, high = end; /* the experts of layers before low fit; those of all layers before high + 1 not */
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (d->whole.bytes[middle] - d->trunk.bytes[middle] <= room)
            low = middle;
        else
            high = middle - 1;
    }
    return end - low;
}

/* The placement with no more neurons on the device than config allows: the others count as layers whose neurons are in
 * the host's memory. */
static plan_placement limit_neurons(const plan_problem *p, int32_t rank, plan_placement on) {
    int32_t n = p->config->facts->n_partitions, cold = n - p->config->most_hot_partitions;
    if (!p->config->limits_neurons || !p->device[rank].has_trunks || cold <= 0)
        return on;
    int64_t least = ((int64_t)on.layers * cold + n - 1) / n;
    on.host_experts = on.host_experts > least ? on.host_experts : (int32_t)least;
    return on;
}

static plan_stage_cost place(const plan_problem *p, int32_t rank, int32_t first, int32_t last, plan_placement wish) {
    const plan_placement on = limit_neurons(p, rank, wish);
    const plan_device *d = &p->device[rank];
    const double *before = p->layer_s + (size_t)rank * ((size_t)p->n_layers + 1);
    int32_t end = first + on.layers, whole_end = end - on.host_experts;
    double output_s = end == p->n_layers ? d->output_s : p->output_s[rank];
    double seconds = p->config->facts->ranks[rank].step_s + d->crossing_s + d->whole.s[whole_end] - d->whole.s[first] +
                     before[last] - before[end] + (last == p->n_layers ? output_s : 0);
    if (on.host_experts > 0)
        seconds += d->trunk.s[end] - d->trunk.s[whole_end];
    if (on.device_experts > 0)
        seconds -= mr_cluster_facts_expert_share(p->config->facts, on.device_experts) *
                   (d->experts_s[end] - d->experts_s[whole_end]);
    return (plan_stage_cost){plan_host_fits(p, rank, first, last, on), on, seconds};
}

/* The placement with as many experts as fit for each layer that leaves its experts to the host. None where the device
 * is slower: only whole layers are given to a device that is to be filled. */
static plan_placement add_experts(const plan_problem *p, int32_t rank, int32_t first, plan_placement on) {
    const plan_device *d = &p->device[rank];
    int32_t end = first + on.layers, whole_end = end - on.host_experts, n_experts = p->config->facts->n_experts;
    if (on.host_experts == 0 || d->experts_s[end] < d->experts_s[whole_end])
        return on;
    const double tail = end == p->n_layers ? (double)p->config->facts->ranks[rank].device.tail_bytes : 0;
    double each = d->expert_bytes[end] - d->expert_bytes[whole_end];
    double room = room_of(p, rank, first) - tail - (d->whole.bytes[whole_end] - d->whole.bytes[first]) -
                  (d->trunk.bytes[end] - d->trunk.bytes[whole_end]);
    if (each <= 0 || room < each)
        return on;
    on.device_experts = room / each < n_experts ? (int32_t)(room / each) : n_experts;
    return on;
}

/* Layers on the device, without the experts of host_experts layers but for those that fit. */
static plan_stage_cost place_trunks(const plan_problem *p, int32_t rank, int32_t first, int32_t last,
                                    plan_placement on) {
    return place(p, rank, first, last, add_experts(p, rank, first, on));
}

static plan_stage_cost better(plan_stage_cost a, plan_stage_cost b) {
    bool is_better = a.fits != b.fits ? b.fits : b.seconds < a.seconds;
    return is_better ? b : a;
}

/* Layers that are alike save time in proportion to their bytes. So it is best to take whole layers first and trunks for
 * what is left, or trunks first and experts for what is left, and nothing between. Experts that are used more than
 * others save more, so that some experts of each layer may be better than all experts of some. */
plan_stage_cost plan_stage_on_device(const plan_problem *p, int32_t rank, int32_t first, int32_t last) {
    const plan_device *d = &p->device[rank];
    const plan_stage_cost cpu = plan_stage_on_cpu(p, rank, first, last);
    int32_t n = count_layers(p, &d->whole, first, last), most = n;
    plan_stage_cost best = place(p, rank, first, last, (plan_placement){n, 0, 0});
    if (d->has_trunks && n < last - first)
        most = count_layers(p, &d->trunk, first, last);
    if (most > n) {
        int32_t further = count_further(p, rank, first, n, most);
        int32_t host_experts = count_host_experts(p, rank, first, first + most);
        const plan_stage_cost trunks = place_trunks(p, rank, first, last, (plan_placement){most, host_experts, 0});
        best = n > 0 ? better(best, trunks) : trunks;
        best = better(best, place_trunks(p, rank, first, last, (plan_placement){most, most, 0}));
        best = better(best, place_trunks(p, rank, first, last, (plan_placement){further, further - n, 0}));
    }
    if (best.on_device.layers == 0)
        return cpu;
    bool is_slower = cpu.seconds <= best.seconds && !p->config->fills_devices;
    return cpu.fits && (!best.fits || is_slower) ? cpu : best;
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

uint64_t plan_stage_bytes(const plan_problem *p, int32_t rank, int32_t first, int32_t last, plan_placement on) {
    const mr_model_memory *m = &p->config->memory;
    const mr_measured_device *d = &p->config->facts->ranks[rank].device;
    int32_t on_cpu = first + on.layers; /* the first layer on the CPU */
    bool has_head = first == 0 && !(on.layers > 0 && d->head_bytes > 0);
    bool has_tail = last == p->n_layers && !(on.layers > 0 && on_cpu == last && d->tail_bytes > 0);
    uint64_t token = p->token_bytes[last] - p->token_bytes[on_cpu];
    return p->weight_bytes[last] - p->weight_bytes[on_cpu - on.host_experts] + (uint64_t)p->config->kv_tokens * token +
           m->stage_bytes + (has_head ? m->head_bytes : 0) + (has_tail ? m->tail_bytes : 0);
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

/* The search counts the neurons that stay in the host's memory by layers, as experts. But each layer needs its first
 * neurons the most. */
void plan_place(const plan_problem *p, plan_placement on_device, mr_plan_stage *s) {
    const mr_cluster_facts *f = p->config->facts;
    s->device_layers = on_device.layers;
    s->host_experts = on_device.host_experts;
    s->device_experts = on_device.device_experts;
    s->cold_partitions = 0;
    int32_t most = f->n_partitions;
    if (p->config->limits_neurons && p->config->most_hot_partitions < most)
        most = p->config->most_hot_partitions;
    bool has_all = on_device.host_experts == 0 && most == f->n_partitions;
    if (f->n_partitions == 0 || on_device.layers == 0 || has_all)
        return;
    s->host_experts = 0;
    s->cold_partitions = f->n_partitions;
    double trunks = mr_planner_device_bytes(f, s, p->config->kv_tokens), neurons = 0;
    for (int32_t l = s->first; l < s->first + s->device_layers; l++)
        neurons += (double)f->ranks[s->rank].device.layer_bytes[f->kind[l]] -
                   (double)f->ranks[s->rank].device.trunk_bytes[f->kind[l]];
    double hot = floor((p->device[s->rank].limit - trunks) / neurons * f->n_partitions);
    s->cold_partitions -= (int32_t)fmin(fmax(hot, 0), most);
}

plan_placement plan_placement_of(const plan_problem *p, const mr_plan_stage *s) {
    int32_t most = p->config->facts->n_partitions, cold = s->cold_partitions < most ? s->cold_partitions : most;
    int64_t parts = (int64_t)cold * s->device_layers;
    return (plan_placement){s->device_layers, most > 0 ? (int32_t)((parts + most - 1) / most) : s->host_experts,
                            s->device_experts};
}

void plan_candidate_time(const plan_problem *p, plan_candidate *c) {
    c->slowest_s = 0;
    c->sum_s = c->n_stages > 1 ? link_of(p, c->stages[c->n_stages - 1].rank, c->stages[0].rank)->latency_s : 0;
    for (int32_t i = 0; i < c->n_stages; i++) {
        mr_plan_stage *s = &c->stages[i];
        const plan_stage_cost cost = plan_stage(p, s->rank, s->first, s->last);
        double wire = i > 0 ? plan_link_seconds(p, s[-1].rank, s->rank) : 0;
        plan_place(p, cost.on_device, s);
        c->sum_s += cost.seconds + (i > 0 ? plan_hop_seconds(p, s[-1].rank, s->rank) : 0);
        c->slowest_s = cost.seconds > c->slowest_s ? cost.seconds : c->slowest_s;
        c->slowest_s = wire > c->slowest_s ? wire : c->slowest_s;
    }
}
