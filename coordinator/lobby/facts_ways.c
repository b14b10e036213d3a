/* coordinator/lobby/facts_ways.c - lets pairs of ranks with devices measure the ways between these: each way that both
 * can have, in both directions. Other ways are not tried, so that ranks without devices lose no time. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "coordinator/lobby/facts_internal.h"
#include "engine/base/mem.h"

enum { DIRECTIONS = 2 };

static mr_way_facts *entry_of(mr_facts *facts, const facts_pair *pair) {
    for (int32_t i = 0; i < facts->view.n_ways; i++) {
        mr_way_facts *w = &facts->ways[i];
        if (w->from == pair->rank[0] && w->to == pair->rank[1] && w->way == (mr_way)(pair->way - 1))
            return w;
    }
    return NULL;
}

/* The first reason stays: the other end only says that its peer could not go on. */
static mr_status note(void *ctx, const facts_pair *pair, int k, const Millrace__LinkFacts *message, mr_err *err) {
    const facts_round *f = ctx;
    mr_way_facts *w = entry_of(f->facts, pair);
    bool has_figures = message->latency_s > 0 && message->second_bytes > 0;
    MR_ASSERT(w);
    if (message->status == MR_OK && k == 0 && !has_figures)
        return facts_rank_failed(f, pair->rank[k], MR_E_PROTOCOL, "it has measured nothing", err);
    if (message->status != MR_OK && w->why[0] == 0)
        snprintf(w->why, sizeof w->why, "%.150s", message->text[0] ? message->text : "it failed");
    if (message->status == MR_OK && k == 0)
        w->link = (mr_link_facts){message->latency_s, message->second_bytes};
    return MR_OK;
}

/* Adds the ways of a pair, from a to b, that both can have. */
static void add_ways(const facts_round *f, int32_t a, int32_t b, facts_pairs *run) {
    const mr_rank_links *from = &f->roll->infos[a].links, *to = &f->roll->infos[b].links;
    for (uint32_t way = 0; way < MR_WAYS && from->has_device && to->has_device; way++) {
        if ((f->wish->ways >> way & 1) == 0 || !mr_way_is_possible((mr_way)way, from, to))
            continue;
        f->facts->ways[run->n] = (mr_way_facts){.from = a, .to = b, .way = (mr_way)way};
        run->at[run->n++] = (facts_pair){.rank = {a, b}, .way = way + 1};
    }
}

/* A way whose other end has failed has not worked, whatever this end has measured. */
static void drop_failed(mr_facts *facts) {
    for (int32_t i = 0; i < facts->view.n_ways; i++)
        if (facts->ways[i].why[0])
            facts->ways[i].link = (mr_link_facts){0};
}

mr_status facts_measure_ways(facts_round *f, const facts_pair *pairs, int32_t n, mr_err *err) {
    size_t most = (size_t)n * DIRECTIONS * MR_WAYS;
    mr_facts *facts = f->facts;
    facts_pairs run = {.round = f, .what = "measuring links between devices", .note = note, .ctx = f};
    mr_free(facts->ways);
    facts->view.ways = NULL;
    facts->view.n_ways = 0;
    facts->ways = mr_alloc_array(most > 0 ? most : 1, sizeof *facts->ways);
    run.at = mr_alloc_array(most > 0 ? most : 1, sizeof *run.at);
    run.busy = mr_alloc_array((size_t)f->roll->n_ranks, sizeof *run.busy);
    mr_status status = facts->ways && run.at && run.busy
                           ? MR_OK
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the links between devices");
    for (int32_t i = 0; i < n && status == MR_OK; i++) {
        add_ways(f, pairs[i].rank[0], pairs[i].rank[1], &run);
        add_ways(f, pairs[i].rank[1], pairs[i].rank[0], &run);
    }
    if (status == MR_OK) {
        facts->view.ways = facts->ways;
        facts->view.n_ways = run.n;
        status = facts_run_pairs(&run, err);
    }
    if (status == MR_OK)
        drop_failed(facts);
    mr_free(run.at);
    mr_free(run.busy);
    return status;
}
