/* coordinator/lobby/facts_links.c - chooses the links that are measured, lets pairs of ranks measure them, and derives
 * the others. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/lobby/facts_internal.h"
#include "engine/base/mem.h"

typedef struct links {
    facts_round *round;
    int32_t n; /* ranks */
    facts_pair *pairs;
    int32_t n_pairs;
    bool *known;      /* [n][n] */
    mr_status status; /* the first error of a rank; the other answers are awaited all the same */
    mr_err err;
} links;

static const mr_link_facts SELF = {.latency_s = 0, .bytes_per_second = 1e15};

/* Chooses all neighbours, and rank 0 with the first rank of each other host, unless that is rank 1. */
static void choose_pairs(links *l) {
    const facts_round *f = l->round;
    for (int32_t i = 0; i + 1 < l->n; i++)
        l->pairs[l->n_pairs++] = (facts_pair){.rank = {i, i + 1}};
    for (int32_t i = 2; i < l->n; i++) {
        bool is_new = f->host[i] != f->host[0];
        for (int32_t k = 0; k < i && is_new; k++)
            is_new = f->host[k] != f->host[i];
        if (is_new)
            l->pairs[l->n_pairs++] = (facts_pair){.rank = {0, i}};
    }
}

/* The epoch of a probe is far from those of jobs, and its low bits, which are in tags, are not those of the lobby. */
static uint32_t epoch_of(ptrdiff_t idx) {
    uint32_t most = MR_LINK_EPOCHS - 1;
    return UINT32_MAX - (uint32_t)(idx / most) * MR_LINK_EPOCHS - (uint32_t)(idx % most);
}

static mr_status start_pair(facts_pairs *p, facts_pair *pair, mr_err *err) {
    mr_status status = MR_OK;
    for (int k = 0; k < 2 && status == MR_OK; k++) {
        Millrace__Probe probe = MILLRACE__PROBE__INIT;
        probe.peer = (uint32_t)pair->rank[1 - k];
        probe.answers_first = k == 1;
        probe.way = pair->way;
        probe.epoch = epoch_of(pair - p->at);
        p->busy[pair->rank[k]] = true;
        status = roll_call_send(p->round->roll, pair->rank[k], &probe.base, err);
    }
    pair->state = PAIR_RUNS;
    return status;
}

/* Takes the reports of the two ranks. */
static mr_status look_at_pair(facts_pairs *p, facts_pair *pair, bool *heard, mr_err *err) {
    for (int k = 0; k < 2; k++) {
        Millrace__Report *report = NULL;
        mr_status status =
            pair->heard[k] ? MR_OK
                           : roll_call_take(p->round->roll, pair->rank[k], MILLRACE__REPORT__BODY_LINK, &report, err);
        if (status == MR_OK && report &&
            (report->link->peer != (uint32_t)pair->rank[1 - k] || report->link->way != pair->way))
            status = facts_rank_failed(p->round, pair->rank[k], MR_E_PROTOCOL,
                                       "it has measured a link that it was not asked for", err);
        if (status == MR_OK && report)
            status = p->note(p->ctx, pair, k, report->link, err);
        if (status != MR_OK)
            return status;
        pair->heard[k] = pair->heard[k] || report;
        *heard = *heard || report;
    }
    if (!pair->heard[0] || !pair->heard[1])
        return MR_OK;
    pair->state = PAIR_DONE;
    p->busy[pair->rank[0]] = p->busy[pair->rank[1]] = false;
    p->n_done++;
    return MR_OK;
}

mr_status facts_run_pairs(facts_pairs *p, mr_err *err) {
    mr_status status = MR_OK;
    p->round->facts->all_answered = false;
    facts_begin_phase(p->round);
    while (status == MR_OK && p->n_done < p->n) {
        bool heard = false;
        int32_t late = 0;
        for (int32_t i = 0; i < p->n && status == MR_OK; i++) {
            facts_pair *pair = &p->at[i];
            if (pair->state == PAIR_WAITS && !p->busy[pair->rank[0]] && !p->busy[pair->rank[1]])
                status = start_pair(p, pair, err);
            else if (pair->state == PAIR_RUNS)
                status = look_at_pair(p, pair, &heard, err);
            if (pair->state == PAIR_RUNS)
                late = pair->rank[pair->heard[0]];
        }
        if (heard) /* each pair has its time, because one rank may be in many */
            facts_begin_phase(p->round);
        else if (status == MR_OK)
            status = facts_wait(p->round, p->what, p->n_done, p->n, late, err);
    }
    p->round->facts->all_answered = status == MR_OK;
    return status;
}

static mr_status note(void *ctx, const facts_pair *pair, int k, const Millrace__LinkFacts *message, mr_err *err) {
    links *l = ctx;
    const facts_round *f = l->round;
    int32_t from = pair->rank[k], to = pair->rank[1 - k];
    if (message->status != MR_OK) {
        mr_err text;
        mr_status status = facts_rank_failed(f, from, message->status, message->text, &text);
        if (l->status == MR_OK) {
            l->status = status;
            l->err = text;
        }
        return MR_OK;
    }
    (void)err;
    f->facts->links[from * l->n + to] =
        (mr_link_facts){.latency_s = message->latency_s, .bytes_per_second = message->second_bytes};
    l->known[from * l->n + to] = true;
    return MR_OK;
}

static void take_worse(mr_link_facts *worst, const mr_link_facts *link) {
    worst->latency_s = link->latency_s > worst->latency_s ? link->latency_s : worst->latency_s;
    worst->bytes_per_second =
        link->bytes_per_second < worst->bytes_per_second ? link->bytes_per_second : worst->bytes_per_second;
}

/* Sets the links that were not measured. between[n_hosts][n_hosts] is scratch: the worst link from host to host, or
 * SELF if none was measured. */
static void fill_in(links *l, mr_link_facts *between) {
    const facts_round *f = l->round;
    int32_t h = f->n_hosts;
    mr_link_facts worst = SELF;
    for (int32_t i = 0; i < h * h; i++)
        between[i] = SELF;
    for (int32_t i = 0; i < l->n * l->n; i++)
        if (l->known[i]) {
            take_worse(&worst, &f->facts->links[i]);
            take_worse(&between[f->host[i / l->n] * h + f->host[i % l->n]], &f->facts->links[i]);
        }
    for (int32_t i = 0; i < l->n * l->n; i++) {
        const mr_link_facts *same = &between[f->host[i / l->n] * h + f->host[i % l->n]];
        if (i / l->n == i % l->n)
            f->facts->links[i] = SELF;
        else if (!l->known[i])
            f->facts->links[i] = same->bytes_per_second < SELF.bytes_per_second ? *same : worst;
    }
}

mr_status facts_measure_links(facts_round *f, mr_err *err) {
    size_t n = (size_t)f->roll->n_ranks;
    links l = {.round = f,
               .n = f->roll->n_ranks,
               .pairs = mr_alloc_array(2 * n, sizeof *l.pairs),
               .known = mr_alloc_array(n * n, sizeof *l.known)};
    facts_pairs run = {.round = f,
                       .what = "measuring links",
                       .at = l.pairs,
                       .busy = mr_alloc_array(n, sizeof *run.busy),
                       .note = note,
                       .ctx = &l};
    mr_link_facts *between = mr_alloc_array((size_t)f->n_hosts * (size_t)f->n_hosts, sizeof *between);
    mr_status status = l.pairs && run.busy && l.known && between
                           ? MR_OK
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the links of %zu ranks", n);
    if (status == MR_OK) {
        choose_pairs(&l);
        run.n = l.n_pairs;
        status = facts_run_pairs(&run, err);
    }
    if (status == MR_OK && l.status != MR_OK)
        status = mr_err_set(err, l.status, "%s", l.err.text);
    if (status == MR_OK)
        fill_in(&l, between);
    if (status == MR_OK)
        status = facts_measure_ways(f, l.pairs, l.n_pairs, err);
    mr_free(between);
    mr_free(l.pairs);
    mr_free(run.busy);
    mr_free(l.known);
    return status;
}
