// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_starve.h"

#include <string.h>

#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/session/session_layers.h"
#include "engine/base/clock.h"

/* ANSWER_NS: how long ranks may take to end their stages and to answer. ASK_NS: between two questions. RETRY_NS: after
 * which a rank whose stage has failed for lack of memory is tried again; the pause doubles up to MOST_RETRY_NS. */
static const int64_t ANSWER_NS = MR_NS_PER_S, LOOK_NS = 5 * MR_NS_PER_MS, ASK_NS = 2 * MR_NS_PER_S,
                     RETRY_NS = 5 * MR_NS_PER_S, MOST_RETRY_NS = 60 * MR_NS_PER_S;

static bool lives(const mr_session *s, int32_t rank) {
    return !mr_session_cluster_is_lost(&s->cluster, rank);
}

/* --- Questions --------------------------------------------------------------------------------------------------- */

/* Whether every living rank has answered the latest question. */
static bool all_answered(mr_session *s) {
    mr_err ignored;
    bool all = true;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        if (!lives(s, i) || mr_roll_call_hear(s->cluster.roll, i, &ignored) != MR_OK)
            continue; /* the rank is being lost */
        all = all && mr_session_cluster_rank(&s->cluster, i)->answered == s->recovery.question;
    }
    return all;
}

/* How many living ranks share the memory of this one. */
static uint64_t ranks_that_share(const mr_session *s, int32_t rank) {
    const mr_rank_info *a = mr_session_cluster_rank(&s->cluster, rank);
    uint64_t n = 0;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        const mr_rank_info *b = mr_session_cluster_rank(&s->cluster, i);
        n += lives(s, i) && strcmp(a->host, b->host) == 0 && a->memory_group == b->memory_group;
    }
    return n;
}

/* Facts from a file stay as they are. */
static void note_memory(mr_session *s) {
    uint64_t limit = (uint64_t)mr_options_number(s->options, MR_OPTION_MEM);
    if (s->facts.known != &s->facts.measured.view)
        return;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        if (!lives(s, i))
            continue;
        uint64_t bytes = mr_session_cluster_rank(&s->cluster, i)->memory_bytes / ranks_that_share(s, i);
        s->facts.measured.ranks[i].memory_bytes = limit > 0 && (bytes == 0 || limit < bytes) ? limit : bytes;
    }
}

/* Asks all ranks, and waits for their answers. */
static void ask_all(mr_session *s, mr_job *job) {
    int64_t deadline_ns = mr_clock_now_ns() + ANSWER_NS;
    mr_err ignored;
    s->recovery.question++;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        if (lives(s, i)) /* a rank that is lost now does not answer */
            (void)!mr_roll_call_ask(s->cluster.roll, i, s->recovery.question, &ignored);
    mr_job_pause(job);
    while (!all_answered(s) && mr_clock_now_ns() < deadline_ns && !mr_interrupt_seen())
        if (mr_channel_wait(mr_job_channel(job), mr_clock_now_ns() + LOOK_NS, &ignored) != MR_OK)
            break;
}

void session_starve_ask(mr_session *s, mr_job *job) {
    session_layers_forget(s);
    ask_all(s, job);
    ask_all(s, job); /* the first answers of ranks that share a host may count memory that others freed later */
    note_memory(s);
}

uint64_t session_starve_missing(const mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens) {
    const mr_model_memory *m = &s->facts.planner.memory;
    if (!s->facts.known)
        return 1;
    uint64_t need = m->head_bytes + m->tail_bytes + (uint64_t)n * m->stage_bytes, have = 0;
    for (int32_t l = 0; l < s->facts.known->n_layers; l++) {
        uint8_t kind = s->facts.known->kind[l];
        need += m->layer_bytes[kind] + (uint64_t)kv_tokens * m->token_bytes[kind];
    }
    for (int32_t i = 0; i < n; i++)
        have += s->facts.known->ranks[living[i]].memory_bytes;
    /* Where the sum is enough, a part of it is of no use: it is less than one layer takes. */
    return need > have ? need - have : 1;
}

/* --- The state --------------------------------------------------------------------------------------------------- */

bool mr_session_is_starved(const mr_session *s) {
    return s->recovery.starvation.is_on;
}

void mr_session_get_starvation(mr_session *s, mr_session_starvation *out) {
    *out = (mr_session_starvation){0};
    if (!s->recovery.is_on)
        return;
    mr_mutex_lock(&s->recovery.lock);
    *out = s->recovery.starvation;
    mr_mutex_unlock(&s->recovery.lock);
}

static void set_state(mr_session *s, const mr_session_starvation *state) {
    mr_mutex_lock(&s->recovery.lock);
    s->recovery.starvation = *state;
    mr_mutex_unlock(&s->recovery.lock);
}

void session_starve_begin(mr_session *s, mr_job *job, uint64_t missing_bytes, const mr_err *why) {
    mr_session_recovery *r = &s->recovery;
    char missing[OUTPUT_BYTES_TEXT];
    mr_session_starvation state = {.is_on = true, .missing_bytes = missing_bytes > 0 ? missing_bytes : 1};
    memcpy(state.why, why->text, sizeof state.why);
    int64_t now_ns = mr_clock_now_ns();
    mr_job_pause(job);
    mr_output_bytes_text((size_t)state.missing_bytes, missing);
    if (!r->starvation.is_on) {
        mr_output_warning("the job waits for memory, %s at least are missing; no request is lost: %s", missing,
                          why->text);
        r->retry_pause_ns = RETRY_NS;
        r->retry_ns = now_ns + RETRY_NS;
    }
    r->ask_ns = now_ns + ASK_NS;
    set_state(s, &state);
}

void session_starve_end(mr_session *s) {
    const mr_session_starvation none = {0};
    if (s->recovery.starvation.is_on)
        mr_output_note("there is memory for all layers again");
    set_state(s, &none);
}

bool session_starve_is_due(const mr_session *s) {
    return s->recovery.starvation.is_on && mr_clock_now_ns() >= s->recovery.ask_ns;
}

void session_starve_forgive(mr_session *s) {
    mr_session_recovery *r = &s->recovery;
    int64_t now_ns = mr_clock_now_ns();
    if (now_ns < r->retry_ns)
        return;
    r->retry_pause_ns = 2 * r->retry_pause_ns < MOST_RETRY_NS ? 2 * r->retry_pause_ns : MOST_RETRY_NS;
    r->retry_ns = now_ns + r->retry_pause_ns;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) {
        r->has_failed[i] = r->has_failed[i] && !r->lacks_memory[i];
        r->lacks_memory[i] = false;
    }
}
