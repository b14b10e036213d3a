/* coordinator/lobby/facts_links.c - chooses the links that are measured, lets pairs of ranks measure them, and derives
 * the others. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/lobby/facts_internal.h"
#include "engine/base/mem.h"

typedef enum pair_state { PAIR_WAITS, PAIR_RUNS, PAIR_DONE } pair_state;

/* Two ranks that measure their links in both directions. */
typedef struct pair {
    int32_t rank[2];
    pair_state state;
    bool heard[2];
} pair;

typedef struct links {
    facts_round *round;
    int32_t n; /* ranks */
    pair *pairs;
    int32_t n_pairs, n_done;
    bool *busy;       /* [n] */
    bool *known;      /* [n][n] */
    mr_status status; /* the first error of a rank; the other answers are awaited all the same */
    mr_err err;
} links;

static const mr_link_facts SELF = {.latency_s = 0, .bytes_per_second = 1e15};

/* Chooses all neighbours, and rank 0 with the first rank of each other host, unless that is rank 1. */
static void choose_pairs(links *l) {
    const facts_round *f = l->round;
    for (int32_t i = 0; i + 1 < l->n; i++)
        l->pairs[l->n_pairs++] = (pair){.rank = {i, i + 1}};
    for (int32_t i = 2; i < l->n; i++) {
        bool is_new = f->host[i] != f->host[0];
        for (int32_t k = 0; k < i && is_new; k++)
            is_new = f->host[k] != f->host[i];
        if (is_new)
            l->pairs[l->n_pairs++] = (pair){.rank = {0, i}};
    }
}

static mr_status start_pair(links *l, pair *p, mr_err *err) {
    mr_status status = MR_OK;
    for (int k = 0; k < 2 && status == MR_OK; k++) {
        Millrace__Probe probe = MILLRACE__PROBE__INIT;
        probe.peer = (uint32_t)p->rank[1 - k];
        probe.answers_first = k == 1;
        l->busy[p->rank[k]] = true;
        status = roll_call_send(l->round->roll, p->rank[k], &probe.base, err);
    }
    p->state = PAIR_RUNS;
    return status;
}

static mr_status note(links *l, int32_t from, int32_t to, const Millrace__LinkFacts *message, mr_err *err) {
    const facts_round *f = l->round;
    if (message->peer != (uint32_t)to)
        return facts_rank_failed(f, from, MR_E_PROTOCOL, "it has measured a link that it was not asked for", err);
    if (message->status != MR_OK) {
        mr_err text;
        mr_status status = facts_rank_failed(f, from, message->status, message->text, &text);
        if (l->status == MR_OK) {
            l->status = status;
            l->err = text;
        }
        return MR_OK;
    }
    f->facts->links[from * l->n + to] =
        (mr_link_facts){.latency_s = message->latency_s, .bytes_per_second = message->second_bytes};
    l->known[from * l->n + to] = true;
    return MR_OK;
}

/* Takes the reports of the two ranks. */
static mr_status look_at_pair(links *l, pair *p, bool *heard, mr_err *err) {
    for (int k = 0; k < 2; k++) {
        Millrace__Report *report = NULL;
        mr_status status =
            p->heard[k] ? MR_OK : roll_call_take(l->round->roll, p->rank[k], MILLRACE__REPORT__BODY_LINK, &report, err);
        if (status == MR_OK && report)
            status = note(l, p->rank[k], p->rank[1 - k], report->link, err);
        if (status != MR_OK)
            return status;
        p->heard[k] = p->heard[k] || report;
        *heard = *heard || report;
    }
    if (!p->heard[0] || !p->heard[1])
        return MR_OK;
    p->state = PAIR_DONE;
    l->busy[p->rank[0]] = l->busy[p->rank[1]] = false;
    l->n_done++;
    return MR_OK;
}

/* Runs all pairs. Pairs without a common rank run at the same time. */
static mr_status run_pairs(links *l, mr_err *err) {
    mr_status status = MR_OK;
    l->round->facts->all_answered = false;
    facts_begin_phase(l->round);
    while (status == MR_OK && l->n_done < l->n_pairs) {
        bool heard = false;
        int32_t late = 0;
        for (int32_t i = 0; i < l->n_pairs && status == MR_OK; i++) {
            pair *p = &l->pairs[i];
            if (p->state == PAIR_WAITS && !l->busy[p->rank[0]] && !l->busy[p->rank[1]])
                status = start_pair(l, p, err);
            else if (p->state == PAIR_RUNS)
                status = look_at_pair(l, p, &heard, err);
            if (p->state == PAIR_RUNS)
                late = p->rank[p->heard[0]];
        }
        if (status == MR_OK && !heard)
            status = facts_wait(l->round, "measuring links", l->n_done, l->n_pairs, late, err);
    }
    l->round->facts->all_answered = status == MR_OK;
    return status;
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
               .busy = mr_alloc_array(n, sizeof *l.busy),
               .known = mr_alloc_array(n * n, sizeof *l.known)};
    mr_link_facts *between = mr_alloc_array((size_t)f->n_hosts * (size_t)f->n_hosts, sizeof *between);
    mr_status status = l.pairs && l.busy && l.known && between
                           ? MR_OK
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the links of %zu ranks", n);
    if (status == MR_OK) {
        choose_pairs(&l);
        status = run_pairs(&l, err);
    }
    if (status == MR_OK && l.status != MR_OK)
        status = mr_err_set(err, l.status, "%s", l.err.text);
    if (status == MR_OK)
        fill_in(&l, between);
    mr_free(between);
    mr_free(l.pairs);
    mr_free(l.busy);
    mr_free(l.known);
    return status;
}
