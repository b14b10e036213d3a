// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/what_if.h"

#include <string.h>

#include "coordinator/planning/quantities.h"
#include "engine/base/mem.h"
#include "proto/limits.h"

static const double LINK_LATENCY_S = 50e-6, LINK_SPEED = 1.25e9; /* if there is no link whose times could be taken */

typedef struct wish {
    double mem, bw, speed, link; /* 0: not given */
} wish;

static mr_status read_wish(const char *text, wish *out, mr_err *err) {
    const mr_quantity known[] = {{"mem", MR_UNIT_BYTES, &out->mem},
                                 {"bw", MR_UNIT_BYTES_PER_SECOND, &out->bw},
                                 {"speed", MR_UNIT_NONE, &out->speed},
                                 {"link", MR_UNIT_BYTES_PER_SECOND, &out->link}};
    const char *bad;
    int32_t len;
    if (!mr_quantities_read(text, known, sizeof known / sizeof known[0], &bad, &len))
        return mr_err_set(err, MR_E_INVALID, "--what-if: %.*s is none of mem=64GB, bw=80GB/s, speed=2 and link=1GB/s",
                          len, bad);
    if (out->mem + out->bw + out->speed + out->link > 0)
        return MR_OK;
    return mr_err_set(err, MR_E_INVALID, "--what-if is empty; hint: mem=64GB,bw=80GB/s,speed=2");
}

/* The mean over all ranks: of speeds, not of seconds. kind -1: the output. */
static void mean_curve(const mr_cluster_facts *f, int32_t kind, mr_step_times *out) {
    *out = kind < 0 ? f->ranks[0].output : f->ranks[0].layer[kind];
    for (int32_t i = 0; i < out->n; i++) {
        double rate = 0;
        for (int32_t r = 0; r < f->n_ranks; r++) {
            const mr_step_times *t = kind < 0 ? &f->ranks[r].output : &f->ranks[r].layer[kind];
            double seconds = mr_step_times_at(t, out->rows[i]);
            rate += seconds > 0 ? 1 / seconds : 0;
        }
        out->seconds[i] = rate > 0 ? f->n_ranks / rate : 0;
    }
}

/* Makes a curve faster. first_s: seconds of one row; 0: by speed. Further rows are faster by speed. */
static void change_curve(mr_step_times *t, double speed, double first_s) {
    double before = t->seconds[0], first = first_s > 0 ? first_s : before / speed;
    for (int32_t i = 0; i < t->n; i++)
        t->seconds[i] = first + (t->seconds[i] > before ? (t->seconds[i] - before) / speed : 0);
}

static mr_rank_facts new_rank(const mr_cluster_facts *f, const size_t *layer_bytes, const wish *w) {
    mr_rank_facts out = {.host = "the new rank", .threads = f->ranks[0].threads};
    double speed = w->speed > 0 ? w->speed : 1, memory = 0, faster = 1;
    for (int32_t r = 0; r < f->n_ranks; r++) {
        memory += (double)f->ranks[r].memory_bytes / f->n_ranks;
        for (int32_t k = 0; k < f->n_kinds; k++)
            out.position_s[k] += f->ranks[r].position_s[k] / f->n_ranks / speed;
        out.step_s += f->ranks[r].step_s / f->n_ranks;
    }
    out.memory_bytes = (uint64_t)(w->mem > 0 ? w->mem : memory);
    for (int32_t k = 0; k < f->n_kinds; k++) {
        mean_curve(f, k, &out.layer[k]);
        double first = w->bw > 0 ? (double)layer_bytes[k] / w->bw : 0;
        faster = first > 0 ? out.layer[k].seconds[0] / first : speed;
        change_curve(&out.layer[k], speed, first);
    }
    mean_curve(f, -1, &out.output); /* memory reads the output matrix as fast as those of layers */
    change_curve(&out.output, speed, w->bw > 0 ? out.output.seconds[0] / faster : 0);
    return out;
}

static mr_link_facts new_link(const mr_cluster_facts *f, const wish *w) {
    mr_link_facts mean = {LINK_LATENCY_S, LINK_SPEED};
    double seconds = 0, latency = 0;
    int32_t n = 0;
    for (int32_t a = 0; a < f->n_ranks; a++)
        for (int32_t b = 0; b < f->n_ranks; b++) {
            const mr_link_facts *link = &f->links[(size_t)a * (size_t)f->n_ranks + (size_t)b];
            if (a == b || link->bytes_per_second <= 0)
                continue;
            seconds += 1 / link->bytes_per_second;
            latency += link->latency_s;
            n++;
        }
    if (n > 0)
        mean = (mr_link_facts){latency / n, n / seconds};
    if (w->link > 0)
        mean.bytes_per_second = w->link;
    return mean;
}

mr_status mr_what_if_make(const char *text, const mr_cluster_facts *facts, const size_t *layer_bytes, mr_what_if *out,
                          mr_err *err) {
    wish w = {0};
    const size_t before = (size_t)facts->n_ranks, n = before + 1;
    *out = (mr_what_if){0};
    mr_status status = read_wish(text, &w, err);
    if (status != MR_OK)
        return status;
    if (n > MR_MAX_STAGES)
        return mr_err_set(err, MR_E_INVALID, "--what-if: there are %zu ranks, and no more are possible", before);
    out->ranks = mr_alloc_array(n, sizeof *out->ranks);
    out->links = mr_alloc_array(n * n, sizeof *out->links);
    if (!out->ranks || !out->links) {
        mr_what_if_deinit(out);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu ranks", n);
    }
    memcpy(out->ranks, facts->ranks, before * sizeof *out->ranks);
    out->ranks[before] = new_rank(facts, layer_bytes, &w);
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < n; b++)
            out->links[a * n + b] = a < before && b < before ? facts->links[a * before + b] : new_link(facts, &w);
    out->facts = *facts;
    out->facts.n_ranks = (int32_t)n;
    out->facts.ranks = out->ranks;
    out->facts.links = out->links;
    return MR_OK;
}

void mr_what_if_deinit(mr_what_if *w) {
    mr_free(w->ranks);
    mr_free(w->links);
    *w = (mr_what_if){0};
}
