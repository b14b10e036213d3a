// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler.h"

#include "engine/base/mem.h"

struct mr_scheduler {
    mr_scheduler_config config;
    mr_ledger *ledger;
    mr_entry **live;  /* [max_sequences], those whose last row is oldest first */
    mr_entry **spare; /* for reordering live */
    int32_t n_live;
    Millrace__StepPlan plan;
    Millrace__Run *runs;
    Millrace__Run **run_ptrs;
    int32_t n_rows, n_out;
    bool starved;
};

mr_status mr_scheduler_create(const mr_scheduler_config *config, mr_ledger *ledger, mr_scheduler **out, mr_err *err) {
    mr_scheduler *s = mr_alloc(sizeof *s);
    size_t n = (size_t)config->max_sequences;
    if (s) {
        s->config = *config;
        s->ledger = ledger;
        s->live = mr_alloc_array(n, sizeof(mr_entry *));
        s->spare = mr_alloc_array(n, sizeof(mr_entry *));
        s->runs = mr_alloc_array(n, sizeof *s->runs);
        s->run_ptrs = mr_alloc_array(n, sizeof(Millrace__Run *));
    }
    if (!s || !s->live || !s->spare || !s->runs || !s->run_ptrs) {
        mr_scheduler_destroy(s);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a scheduler of %zu sequences", n);
    }
    for (size_t i = 0; i < n; i++)
        s->run_ptrs[i] = &s->runs[i];
    millrace__step_plan__init(&s->plan);
    s->plan.runs = s->run_ptrs;
    *out = s;
    return MR_OK;
}

void mr_scheduler_destroy(mr_scheduler *s) {
    if (!s)
        return;
    mr_free(s->live);
    mr_free(s->spare);
    mr_free(s->runs);
    mr_free(s->run_ptrs);
    mr_free(s);
}

void mr_scheduler_join(mr_scheduler *s, mr_entry *e) {
    MR_ASSERT(s->n_live < s->config.max_sequences);
    s->live[s->n_live++] = e;
}

void mr_scheduler_leave(mr_scheduler *s, mr_entry *e) {
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n_live; i++)
        if (s->live[i] != e)
            s->live[kept++] = s->live[i];
    s->n_live = kept;
}

static bool is_decoding(const mr_entry *e) {
    return e->n_issued >= e->n_prefill;
}

/* Whether the next decode row may be issued: its id is known or under way, and the token it brings is inside the limit. */
static bool may_decode(const mr_entry *e) {
    return e->n_issued <= e->n_ids && e->n_issued + 1 < e->max_ids;
}

/* Adds rows [n_issued, n_issued + n) of e as a run; NULL when it needs a KV block and none is free. */
static Millrace__Run *add_run(mr_scheduler *s, mr_entry *e, int32_t n) {
    int32_t end = e->n_issued + n;
    int32_t n_blocks = (end + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    if (!mr_ledger_grow(s->ledger, e->slot, n_blocks)) {
        s->starved = true;
        return NULL;
    }
    Millrace__Run *run = &s->runs[s->plan.n_runs++];
    millrace__run__init(run);
    run->slot = (uint32_t)e->slot;
    run->generation = e->generation;
    run->first_position = (uint32_t)e->n_issued;
    run->n_rows = (uint32_t)n;
    run->first_block_idx = (uint32_t)e->n_sent;
    run->n_blocks = (size_t)(n_blocks - e->n_sent);
    /* protobuf-c wants pointers to what it only reads. */
    run->blocks = (uint32_t *)(uintptr_t)(mr_ledger_table(s->ledger, e->slot) + e->n_sent);
    e->n_sent = n_blocks;
    if (end <= e->n_ids) {
        run->ids = (uint32_t *)(e->ids + e->n_issued);
        run->n_ids = (size_t)n;
    }
    e->n_issued = end;
    s->n_rows += n;
    return run;
}

static void add_decode_rows(mr_scheduler *s, uint64_t step) {
    int32_t n_decoding = 0;
    for (int32_t i = 0; i < s->n_live; i++)
        n_decoding += is_decoding(s->live[i]);
    int32_t most = (n_decoding + s->config.n_stages - 1) / s->config.n_stages;
    for (int32_t i = 0; i < s->n_live && most > 0; i++) {
        mr_entry *e = s->live[i];
        if (!is_decoding(e) || !may_decode(e) || s->n_rows >= s->config.max_rows || s->n_out >= s->config.max_out_rows)
            continue;
        Millrace__Run *run = add_run(s, e, 1);
        if (!run)
            continue;
        run->want = MILLRACE__WANT__WANT_TOKEN;
        s->n_out++;
        e->last_step = step;
        most--;
    }
}

/* One run of a step at most brings the logits of all its rows. */
static void add_prefill_rows(mr_scheduler *s, uint64_t step, mr_logits_run *out_logits) {
    for (int32_t i = 0; i < s->n_live; i++) {
        mr_entry *e = s->live[i];
        int32_t room = s->config.max_rows - s->n_rows, out_room = s->config.max_out_rows - s->n_out;
        int32_t n = e->n_prefill - e->n_issued;
        bool wants_logits = e->desc.on_logits != NULL;
        if (n <= 0 || room <= 0 || out_room <= 0 || (wants_logits && out_logits->entry))
            continue;
        n = n < room ? n : room;
        if (wants_logits)
            n = n < out_room ? n : out_room;
        Millrace__Run *run = add_run(s, e, n);
        if (!run)
            continue;
        e->last_step = step;
        if (wants_logits) {
            run->want = MILLRACE__WANT__WANT_ALL_LOGITS;
            *out_logits = (mr_logits_run){.entry = e, .first_position = e->n_issued - n, .n_rows = n};
            s->n_out += n;
        } else if (e->n_issued == e->n_prefill) {
            run->want = MILLRACE__WANT__WANT_TOKEN;
            s->n_out++;
        }
    }
}

/* Moves the sequences of this step behind the others, in their order. */
static void rotate(mr_scheduler *s, uint64_t step) {
    int32_t n = 0;
    for (int in_step = 0; in_step < 2; in_step++)
        for (int32_t i = 0; i < s->n_live; i++)
            if ((s->live[i]->last_step == step) == in_step)
                s->spare[n++] = s->live[i];
    mr_entry **live = s->live;
    s->live = s->spare;
    s->spare = live;
}

const Millrace__StepPlan *mr_scheduler_next(mr_scheduler *s, uint64_t step, mr_logits_run *out_logits) {
    *out_logits = (mr_logits_run){0};
    s->plan.step = step;
    s->plan.n_runs = 0;
    s->n_rows = s->n_out = 0;
    s->starved = false;
    add_decode_rows(s, step);
    add_prefill_rows(s, step, out_logits);
    if (s->plan.n_runs == 0)
        return NULL;
    rotate(s, step);
    return &s->plan;
}

bool mr_scheduler_starved(const mr_scheduler *s) {
    return s->starved;
}
