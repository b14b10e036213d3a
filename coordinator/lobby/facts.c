/* coordinator/lobby/facts.c - asks the ranks for the times of their layers, shares the memory of each host among its
 * ranks, and times messages. facts_links.c measures the links. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/lobby/facts_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/facts_message.h"

enum { N_PINGS = 8 };
static const int64_t PATIENCE_NS = 300 * MR_NS_PER_S, /* for each phase; a slow disk may delay the layers */
    LOOK_NS = 100 * MR_NS_PER_MS;

mr_status mr_facts_init(mr_facts *f, const mr_gguf *gguf, const mr_model_info *info, int32_t n_ranks, mr_err *err) {
    size_t n = (size_t)n_ranks;
    *f = (mr_facts){.kind = mr_alloc((size_t)info->n_layers),
                    .ranks = mr_alloc_array(n, sizeof *f->ranks),
                    .links = mr_alloc_array(n * n, sizeof *f->links)};
    f->view = (mr_cluster_facts){.n_ranks = n_ranks,
                                 .n_layers = info->n_layers,
                                 .row_bytes = info->d_model * (int32_t)sizeof(float),
                                 .kind = f->kind,
                                 .ranks = f->ranks,
                                 .links = f->links};
    mr_status status = f->kind && f->ranks && f->links
                           ? mr_model_layer_kinds(gguf, info, MR_MAX_LAYER_KINDS, f->kind, &f->view.n_kinds, err)
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for what is known of %d ranks", (int)n_ranks);
    if (status == MR_OK)
        mr_cluster_facts_set_model(&f->view, info);
    else
        mr_facts_deinit(f);
    return status;
}

void mr_facts_deinit(mr_facts *f) {
    mr_free(f->kind);
    mr_free(f->ranks);
    mr_free(f->links);
    mr_free(f->ways);
    *f = (mr_facts){0};
}

/* --- Waiting ----------------------------------------------------------------------------------------------------- */

void facts_begin_phase(facts_round *f) {
    f->deadline_ns = mr_clock_now_ns() + PATIENCE_NS;
}

mr_status facts_wait(facts_round *f, const char *what, int32_t n_done, int32_t n, int32_t late, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    int64_t now = mr_clock_now_ns(), look = now + LOOK_NS;
    if (now >= f->deadline_ns)
        return mr_err_set(err, MR_E_TIMEOUT, "%s: no word from %s", what,
                          mr_channel_peer_name(f->roll->channel, late, name));
    if (f->wish->progress && !f->wish->progress(f->wish->ctx, what, n_done, n))
        return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    return mr_channel_wait(f->roll->channel, look < f->deadline_ns ? look : f->deadline_ns, err);
}

mr_status facts_rank_failed(const facts_round *f, int32_t rank, uint32_t status, const char *text, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    return mr_err_set(err, (mr_status)status, "%s: %s", mr_channel_peer_name(f->roll->channel, rank, name), text);
}

/* --- Layers ------------------------------------------------------------------------------------------------------ */

static void number_hosts(facts_round *f) {
    for (int32_t i = 0; i < f->roll->n_ranks; i++) {
        int32_t k = 0;
        while (strcmp(f->roll->infos[k].host, f->roll->infos[i].host) != 0)
            k++;
        f->host[i] = k < i ? f->host[k] : f->n_hosts++;
    }
}

/* How many ranks share memory with this one: ranks of the same host, with the same limits. */
static uint32_t ranks_that_share(const facts_round *f, int32_t rank) {
    const mr_rank_info *infos = f->roll->infos;
    uint32_t n = 0;
    for (int32_t i = 0; i < f->roll->n_ranks; i++)
        n += f->host[i] == f->host[rank] && infos[i].memory_group == infos[rank].memory_group;
    return n;
}

static mr_status ask(facts_round *f, int32_t rank, bool anew, mr_err *err) {
    Millrace__Measure measure = MILLRACE__MEASURE__INIT;
    measure.kv_type = (uint32_t)f->wish->kv_type;
    measure.max_rows = (uint32_t)f->wish->max_rows;
    measure.map_weights = f->wish->map_weights;
    measure.fast_numerics = f->wish->fast_numerics;
    measure.n_together = ranks_that_share(f, rank);
    measure.anew = anew;
    return roll_call_send(f->roll, rank, &measure.base, err);
}

/* Takes the answer of a rank. *out_known: the rank has results. */
static mr_status note(facts_round *f, int32_t rank, const Millrace__Facts *message, bool *out_known, mr_err *err) {
    mr_rank_facts *out = &f->facts->ranks[rank];
    const mr_rank_info *info = &f->roll->infos[rank];
    mr_measured m;
    if (message->status != MR_OK)
        return facts_rank_failed(f, rank, message->status, message->text, err);
    *out_known = message->n_layers > 0;
    if (!*out_known)
        return MR_OK;
    mr_facts_message_read(message, &m);
    if (m.n_kinds != f->facts->view.n_kinds) {
        char text[96];
        snprintf(text, sizeof text, "it has measured %d kinds of layers, the model has %d", (int)m.n_kinds,
                 (int)f->facts->view.n_kinds);
        return facts_rank_failed(f, rank, MR_E_PROTOCOL, text, err);
    }
    *out =
        (mr_rank_facts){.threads = info->threads, .output = m.output, .core_share = m.core_share, .device = m.device};
    snprintf(out->host, sizeof out->host, "%s", info->host);
    memcpy(out->layer, m.layer, sizeof out->layer);
    memcpy(out->position_s, m.position_s, sizeof out->position_s);
    return MR_OK;
}

/* Waits for the answers of the ranks in asked[]. Clears their asked[], and sets known[] by the answers. */
static mr_status take_answers(facts_round *f, const char *what, bool *asked, bool *known, mr_err *err) {
    int32_t n = 0, n_left = 0, late = 0;
    mr_status first = MR_OK; /* the first error of a rank; the other answers are awaited all the same */
    mr_err first_err;
    for (int32_t i = 0; i < f->roll->n_ranks; i++)
        n += asked[i];
    facts_begin_phase(f);
    for (n_left = n; n_left > 0;) {
        bool heard = false;
        for (int32_t i = 0; i < f->roll->n_ranks; i++) {
            Millrace__Report *report = NULL;
            mr_status status =
                asked[i] ? roll_call_take(f->roll, i, MILLRACE__REPORT__BODY_FACTS, &report, err) : MR_OK;
            if (status != MR_OK)
                return status;
            late = asked[i] && !report ? i : late;
            if (!report)
                continue;
            asked[i] = false;
            heard = true;
            n_left--;
            status = note(f, i, report->facts, &known[i], err);
            if (status != MR_OK && first == MR_OK) {
                first = status;
                first_err = *err;
            }
        }
        mr_status status = heard ? MR_OK : facts_wait(f, what, n - n_left, n, late, err);
        if (status != MR_OK)
            return status;
    }
    f->facts->all_answered = true;
    if (first != MR_OK)
        *err = first_err;
    return first;
}

/* Whether a rank of the same host has no results: then all ranks of the host measure. */
static bool host_lacks(const facts_round *f, int32_t rank, const bool *known) {
    for (int32_t i = 0; i < f->roll->n_ranks; i++)
        if (f->host[i] == f->host[rank] && !known[i])
            return true;
    return false;
}

/* Asks all ranks for the results that they have kept; or, with anew, lets the ranks measure on every host that lacks
 * results. */
static mr_status ask_ranks(facts_round *f, bool anew, bool *known, mr_err *err) {
    bool *asked = mr_alloc_array((size_t)f->roll->n_ranks, sizeof *asked);
    mr_status status = asked ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory to ask the ranks");
    for (int32_t i = 0; i < f->roll->n_ranks && status == MR_OK; i++)
        asked[i] = !anew || host_lacks(f, i, known);
    for (int32_t i = 0; i < f->roll->n_ranks && status == MR_OK; i++)
        if (asked[i])
            status = ask(f, i, anew, err);
    f->facts->all_answered = false;
    if (status == MR_OK)
        status = take_answers(f, anew ? "measuring ranks" : "looking for earlier measurements", asked, known, err);
    mr_free(asked);
    return status;
}

static mr_status measure_layers(facts_round *f, mr_err *err) {
    bool *known = mr_alloc_array((size_t)f->roll->n_ranks, sizeof *known);
    mr_status status = known ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory to ask the ranks");
    if (status == MR_OK && !f->wish->anew)
        status = ask_ranks(f, false, known, err);
    if (status == MR_OK)
        status = ask_ranks(f, true, known, err);
    for (int32_t i = 0; i < f->roll->n_ranks && status == MR_OK; i++)
        if (!known[i])
            status = facts_rank_failed(f, i, MR_E_PROTOCOL, "it was to measure its layers, and has not", err);
    mr_free(known);
    return status;
}

/* --- Memory, messages -------------------------------------------------------------------------------------------- */

static void share_memory(facts_round *f) {
    for (int32_t i = 0; i < f->roll->n_ranks; i++) {
        uint64_t bytes = f->roll->infos[i].memory_bytes / ranks_that_share(f, i), limit = f->wish->memory_limit;
        f->facts->ranks[i].memory_bytes = limit > 0 && (bytes == 0 || limit < bytes) ? limit : bytes;
    }
}

/* A step costs each stage the receipt and the sending of a message, as a ping does. Half of a ping's time belongs to
 * the coordinator and to the way. */
static mr_status measure_messages(facts_round *f, mr_err *err) {
    mr_status status = MR_OK;
    f->facts->all_answered = false;
    for (int32_t i = 0; i < f->roll->n_ranks && status == MR_OK; i++) {
        int64_t best_ns = INT64_MAX, offset_ns, trip_ns = 0;
        for (int k = 0; k < N_PINGS && status == MR_OK; k++) {
            status = roll_call_ping(f->roll, i, &offset_ns, &trip_ns, err);
            best_ns = trip_ns < best_ns ? trip_ns : best_ns;
        }
        f->facts->ranks[i].step_s = (double)best_ns / 2 / (double)MR_NS_PER_S;
    }
    f->facts->all_answered = status == MR_OK;
    return status;
}

mr_status mr_facts_measure(mr_facts *facts, mr_roll_call *r, const mr_facts_wish *wish, mr_err *err) {
    MR_ASSERT(facts->view.n_ranks == r->n_ranks);
    facts->all_answered = true;
    size_t n = (size_t)r->n_ranks;
    facts_round f = {.facts = facts, .roll = r, .wish = wish, .host = mr_alloc_array(n, sizeof *f.host)};
    mr_status status = f.host ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory to measure %zu ranks", n);
    if (status == MR_OK) {
        number_hosts(&f);
        status = measure_layers(&f, err);
    }
    if (status == MR_OK) {
        share_memory(&f);
        status = measure_messages(&f, err);
    }
    if (status == MR_OK)
        status = facts_measure_links(&f, err);
    mr_free(f.host);
    return status;
}
