/* The rules of the ring (ARCHITECTURE.md) as properties of every step, over random arrivals, lengths, early ends and
 * delays. The test plays the job: the test admits sequences, returns tokens, and ends sequences. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/scheduler.h"
#include "coordinator/job/step_budget.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"

enum { N_SEQUENCES = 40, MAX_SLOTS = 8, MAX_STAGES = 4, MAX_RING = 12, CONTEXT = 96, MAX_RUNS = 64 };

/* The results that a step under way will bring. */
typedef struct flight {
    mr_entry *tokens[MAX_RUNS];
    int32_t n_tokens;
    mr_logits_runs logits;
} flight;

typedef struct sim {
    mr_scheduler_config config;
    int32_t n_slots, n_blocks, ring;
    mr_journal *journal;
    mr_ledger *ledger;
    mr_scheduler *scheduler;
    mr_entry *slots[MAX_SLOTS];
    uint64_t joined_at[MAX_SLOTS]; /* number of steps that were issued before the sequence joined */
    int32_t n_opened[MAX_SLOTS];   /* blocks of the table that were sent in the message that opens the sequence */
    int32_t n_admitted, n_done;
    int32_t n_delivered[N_SEQUENCES]; /* rows of logits that came back */
    flight flights[MAX_RING];
    uint64_t n_issued, n_back; /* numbers of steps */
    mr_step_times curves[MAX_STAGES];
    mr_pipeline_times times;
    uint64_t seed, counter;
} sim;

static uint32_t draw(sim *s, uint32_t below) {
    return (uint32_t)(mr_rng_u64(s->seed, 0, s->counter++) % below);
}

static void on_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    (void)ctx;
    (void)first_position;
    (void)n_rows;
    (void)logits;
}

/* --- The job ----------------------------------------------------------------------------------------------------- */

static int32_t prompt_id(int64_t sequence, int32_t position) {
    return (int32_t)sequence * CONTEXT + position;
}

static int32_t generated_id(int32_t position) {
    return N_SEQUENCES * CONTEXT + position;
}

static void sim_init(sim *s, uint64_t seed, int32_t n_stages, int32_t max_rows) {
    mr_err err;
    *s = (sim){.seed = seed, .n_slots = MAX_SLOTS, .n_blocks = 14, .ring = mr_scheduler_ring_slots(n_stages)};
    s->config = (mr_scheduler_config){
        .n_stages = n_stages, .max_rows = max_rows, .max_out_rows = 1 + max_rows / 2, .max_sequences = MAX_SLOTS};
    expect_ok(mr_journal_create(&(mr_prefix_key){{0}}, &s->journal, &err), &err);
    expect_ok(mr_ledger_create(s->n_blocks, MAX_SLOTS, CONTEXT / MR_WIRE_BLOCK_TOKENS, &s->ledger, &err), &err);
    expect_ok(mr_scheduler_create(&s->config, s->ledger, &s->scheduler, &err), &err);
    for (int32_t i = 0; i < N_SEQUENCES; i++) {
        int32_t ids[CONTEXT];
        int64_t sequence;
        for (int32_t k = 0; k < CONTEXT; k++)
            ids[k] = prompt_id(i, k);
        bool logits = draw(s, 5) == 0;
        int32_t n_prompt = 1 + (int32_t)draw(s, draw(s, 4) ? 12 : 60);
        int32_t max_ids = n_prompt + (logits ? 0 : 1 + (int32_t)draw(s, 30));
        mr_sequence_desc desc = {.prompt_ids = ids,
                                 .n_prompt = n_prompt,
                                 .on_logits = logits ? on_logits : NULL,
                                 .priority = (int32_t)draw(s, 6) / 5};
        expect_ok(mr_journal_append(s->journal, &desc, max_ids, &sequence, &err), &err);
    }
}

static void sim_deinit(sim *s) {
    mr_scheduler_destroy(s->scheduler);
    mr_ledger_destroy(s->ledger);
    mr_journal_destroy(s->journal);
}

/* Other times are learned, or all are forgotten. */
static void change_times(sim *s) {
    if (draw(s, 4) == 0) {
        mr_scheduler_set_times(s->scheduler, NULL);
        return;
    }
    for (int32_t i = 0; i < s->config.n_stages; i++)
        s->curves[i] = (mr_step_times){
            .n = 3, .rows = {1, 4, 64}, .seconds = {1e-3, 1e-3 * (1 + draw(s, 4)), 1e-3 * (10 + draw(s, 60))}};
    s->times =
        (mr_pipeline_times){.n_stages = s->config.n_stages, .stages = s->curves, .hops_s = 1e-3 * (double)draw(s, 12)};
    mr_scheduler_set_times(s->scheduler, &s->times);
}

static void admit(sim *s) {
    int32_t slot = 0;
    if (s->n_admitted == N_SEQUENCES)
        return;
    mr_entry *e = mr_journal_entry(s->journal, s->n_admitted);
    while (slot < s->n_slots && s->slots[slot])
        slot++;
    int32_t n_blocks = (e->max_ids + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    if (slot == s->n_slots || n_blocks > mr_ledger_n_free(s->ledger) || !mr_ledger_grow(s->ledger, slot, n_blocks))
        return;
    e->slot = slot;
    e->n_prefill = e->n_ids;
    e->n_sent = draw(s, 2) ? (e->n_ids + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS : 0;
    s->n_opened[slot] = e->n_sent;
    e->state = MR_ENTRY_LIVE;
    s->slots[slot] = e;
    s->joined_at[slot] = s->n_issued;
    s->n_admitted++;
    mr_scheduler_join(s->scheduler, e);
}

static void finish(sim *s, mr_entry *e) {
    mr_scheduler_leave(s->scheduler, e);
    mr_ledger_release(s->ledger, e->slot);
    s->slots[e->slot] = NULL;
    e->state = MR_ENTRY_DONE;
    s->n_done++;
}

/* The oldest step comes back. */
static void land(sim *s) {
    if (s->n_back == s->n_issued)
        return;
    flight *f = &s->flights[++s->n_back % (uint64_t)s->ring];
    for (int32_t i = 0; i < f->n_tokens; i++) {
        mr_entry *e = f->tokens[i];
        if (e->state == MR_ENTRY_DONE)
            continue;
        mr_entry_add_id(e, generated_id(e->n_ids));
        if (e->n_ids == e->max_ids)
            assert_int_equal(e->n_issued, e->max_ids - 1); /* all rows were issued, and none too many */
        if (e->n_ids == e->max_ids || draw(s, 20) == 0)
            finish(s, e);
    }
    mr_entry *e = f->logits.n ? f->logits.at[0].entry : NULL;
    if (!e)
        return;
    assert_int_equal(f->logits.at[0].first_position, s->n_delivered[e->sequence]);
    s->n_delivered[e->sequence] += f->logits.n_rows;
    if (s->n_delivered[e->sequence] == e->n_prompt)
        finish(s, e);
}

/* --- The properties ---------------------------------------------------------------------------------------------- */

/* A live sequence before the step was made. */
typedef struct before {
    mr_entry *entry;
    int32_t n_issued;
    uint64_t waits_since; /* the step before the wait began */
    uint64_t last_turn;
    int32_t n_opened; /* blocks of its table that were sent in the opening message */
    /* Has rows of its prompt left; has decode rows left; its next decode row may be issued. */
    bool prompt, decoding, eligible;
    bool chosen;
} before;

static int32_t look(const sim *s, before live[MAX_SLOTS]) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_slots; i++) {
        mr_entry *e = s->slots[i];
        if (!e)
            continue;
        bool prompt = e->n_issued < e->n_prompt;
        /* A decode row may run one row ahead of the known ids. Its token must be inside the limit. */
        bool decoding = !prompt && e->n_issued + 2 <= e->max_ids;
        bool eligible = decoding && e->n_issued <= e->n_ids;
        uint64_t since = e->last_step > s->joined_at[i] ? e->last_step : s->joined_at[i];
        live[n++] = (before){e, e->n_issued, since, e->last_turn, s->n_opened[i], prompt, decoding, eligible, false};
    }
    return n;
}

static before *of_run(const sim *s, before *live, int32_t n, const Millrace__Run *run) {
    for (int32_t i = 0; i < n; i++)
        if (live[i].entry == s->slots[run->slot])
            return &live[i];
    fail_msg("a run of slot %u, which nobody is in", run->slot);
    return NULL;
}

static void check_run(const sim *s, before *b, const Millrace__Run *run) {
    const mr_entry *e = b->entry;
    int32_t end = b->n_issued + (int32_t)run->n_rows;
    assert_false(b->chosen); /* a step has at most one run of a sequence */
    b->chosen = true;
    assert_int_equal(run->first_position, b->n_issued);
    assert_true(run->n_rows >= 1);
    assert_int_equal(e->n_issued, end);
    assert_int_equal(e->last_step, s->n_issued + 1);
    if (b->decoding) {
        assert_true(b->eligible);
        assert_true(b->last_turn + (uint64_t)mr_scheduler_micro_batches(s->scheduler) <= e->last_turn);
        assert_int_equal(run->n_rows, 1);
        assert_int_equal(run->want, MILLRACE__WANT__WANT_TOKEN);
    } else {
        assert_true(end <= e->n_prompt);
        Millrace__Want last = end == e->n_prompt ? MILLRACE__WANT__WANT_TOKEN : MILLRACE__WANT__WANT_NOTHING;
        assert_int_equal(run->want, e->desc.on_logits ? MILLRACE__WANT__WANT_ALL_LOGITS : last);
    }
    assert_int_equal(run->n_ids, end <= e->n_ids ? run->n_rows : 0);
    for (int32_t k = b->n_issued; run->n_ids && k < end; k++)
        assert_int_equal(run->ids[k - b->n_issued], k < e->n_prompt ? prompt_id(e->sequence, k) : generated_id(k));
    /* The blocks that were sent reach to the last row, and no block is sent twice. */
    int32_t had = (b->n_issued + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    int32_t needed = (end + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    had = had > b->n_opened ? had : b->n_opened;
    assert_int_equal(run->n_blocks, needed > had ? needed - had : 0);
    if (run->n_blocks > 0)
        assert_int_equal(run->first_block_idx, had);
}

/* The sequence that has waited longest comes first: no eligible sequence waits while one that has waited less gets a
 * row. */
static void check_order(const before *live, int32_t n, bool decoding) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n; k++) {
            bool same = decoding ? live[i].eligible && live[k].eligible : live[i].prompt && live[k].prompt;
            same = same && live[i].entry->desc.priority >= live[k].entry->desc.priority;
            bool waits = !live[i].chosen && !live[i].entry->desc.on_logits;
            if (same && waits && live[k].chosen)
                assert_true(live[k].waits_since <= live[i].waits_since);
        }
}

/* Stages accept the message of every plan, and the message fits its buffer. */
static void check_message(const sim *s, const Millrace__StepPlan *plan) {
    const mr_msg_limits limits = {.n_stages = (uint32_t)s->config.n_stages,
                                  .max_rows = (uint32_t)s->config.max_rows,
                                  .max_sequences = MAX_SLOTS,
                                  .max_context = CONTEXT,
                                  .n_kv_blocks = (uint32_t)s->n_blocks,
                                  .n_vocab = (N_SEQUENCES + 1) * CONTEXT};
    Millrace__StepPlan step = *plan;
    Millrace__Control message = MILLRACE__CONTROL__INIT;
    mr_err err;
    message.body_case = MILLRACE__CONTROL__BODY_STEP;
    message.step = &step;
    expect_ok(mr_msg_check_control(&message, &limits, &err), &err);
    assert_true(protobuf_c_message_get_packed_size(&message.base) <= mr_msg_control_bytes(&limits));
}

static void check_step(const sim *s, const Millrace__StepPlan *plan, const mr_logits_runs *logits, before *live,
                       int32_t n) {
    int32_t n_rows = 0, n_out = 0, n_decoded = 0, n_decoding = 0, n_logits = 0;
    for (size_t i = 0; i < plan->n_runs; i++) {
        const Millrace__Run *run = plan->runs[i];
        before *b = of_run(s, live, n, run);
        check_run(s, b, run);
        n_rows += (int32_t)run->n_rows;
        n_decoded += b->decoding;
        n_out += run->want == MILLRACE__WANT__WANT_TOKEN;
        if (run->want == MILLRACE__WANT__WANT_ALL_LOGITS) {
            n_out += (int32_t)run->n_rows;
            n_logits++;
            assert_ptr_equal(logits->at[0].entry, b->entry);
            assert_int_equal(logits->at[0].first_position, run->first_position);
            assert_int_equal(logits->n_rows, run->n_rows);
            assert_int_equal(logits->at[0].n_rows, run->n_rows);
        }
    }
    for (int32_t i = 0; i < n; i++)
        n_decoding += live[i].decoding;
    assert_true(n_rows >= 1 && n_rows <= s->config.max_rows);
    assert_true(n_out <= s->config.max_out_rows);
    check_message(s, plan);
    int32_t m = mr_scheduler_micro_batches(s->scheduler);
    assert_in_range(m, 1, s->ring);
    assert_true(n_decoded <= (n_decoding + m - 1) / m);
    assert_true(n_logits <= 1 && (n_logits == 1) == (logits->n == 1));
    check_order(live, n, true);
    if (n_rows == s->config.max_rows && n_out < s->config.max_out_rows)
        check_order(live, n, false); /* at the limit of output rows, decode rows may be skipped */
}

static void issue(sim *s) {
    before live[MAX_SLOTS];
    mr_logits_runs logits;
    int32_t most = mr_scheduler_most_steps(s->scheduler), n_waiting = 0, n_prompts = 0;
    assert_in_range(most, s->config.n_stages + 1, s->ring);
    if (s->n_issued - s->n_back >= (uint64_t)most)
        return;
    int32_t n = look(s, live);
    uint64_t allocs = mr_mem_thread_allocs();
    const Millrace__StepPlan *plan = mr_scheduler_next(s->scheduler, s->n_issued + 1, &logits);
    assert_int_equal(mr_mem_thread_allocs(), allocs);
    if (!plan) {
        for (int32_t i = 0; i < n; i++) {
            n_waiting += live[i].decoding && !live[i].eligible;
            n_prompts += live[i].prompt || live[i].eligible;
        }
        /* No row can be issued, or the ids that are on their way will make a row eligible. */
        assert_true(n_prompts == 0 || n_waiting > 0);
        assert_true(n_prompts == 0 || s->n_issued > s->n_back);
        return;
    }
    assert_false(mr_scheduler_starved(s->scheduler)); /* admit() gives each sequence all its blocks */
    assert_int_equal(plan->step, s->n_issued + 1);
    check_step(s, plan, &logits, live, n);
    flight *f = &s->flights[++s->n_issued % (uint64_t)s->ring];
    *f = (flight){.logits = logits};
    for (size_t i = 0; i < plan->n_runs; i++)
        if (plan->runs[i]->want == MILLRACE__WANT__WANT_TOKEN)
            f->tokens[f->n_tokens++] = s->slots[plan->runs[i]->slot];
}

static void simulate(uint64_t seed, int32_t n_stages, int32_t max_rows) {
    sim s;
    sim_init(&s, seed, n_stages, max_rows);
    for (int32_t turn = 0; s.n_done < N_SEQUENCES; turn++) {
        assert_true(turn < 100000); /* every sequence ends */
        switch (draw(&s, 12)) {
        case 0:
        case 1:
            admit(&s);
            break;
        case 2:
        case 3:
        case 4:
            land(&s);
            break;
        case 5:
            change_times(&s);
            break;
        default:
            issue(&s);
        }
    }
    assert_int_equal(mr_ledger_n_free(s.ledger), s.n_blocks);
    sim_deinit(&s);
}

static void test_rules_of_the_ring(void **state) {
    (void)state;
    const int32_t rows[] = {1, 2, 5, 16, 64};
    for (int32_t n_stages = 1; n_stages <= MAX_STAGES; n_stages++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (uint64_t seed = 0; seed < 12; seed++)
                simulate(seed, n_stages, rows[r]);
}

static mr_entry *join(mr_scheduler *scheduler, mr_journal *journal, int32_t n_prompt, int32_t slot) {
    int32_t ids[CONTEXT] = {0};
    int64_t sequence;
    mr_sequence_desc desc = {.prompt_ids = ids, .n_prompt = n_prompt};
    mr_err err;
    expect_ok(mr_journal_append(journal, &desc, CONTEXT, &sequence, &err), &err);
    mr_entry *e = mr_journal_entry(journal, sequence);
    e->slot = slot;
    e->n_prefill = n_prompt;
    mr_scheduler_join(scheduler, e);
    return e;
}

/* Without a free block, a row that needs one is not issued. Other rows are issued meanwhile, and the row follows
 * later. */
static void test_rows_that_starve(void **state) {
    (void)state;
    const mr_scheduler_config config = {.n_stages = 1, .max_rows = 32, .max_out_rows = 32, .max_sequences = 3};
    mr_scheduler *s;
    mr_ledger *l;
    mr_journal *j;
    mr_logits_runs logits;
    mr_err err;
    expect_ok(mr_journal_create(&(mr_prefix_key){{0}}, &j, &err), &err);
    expect_ok(mr_ledger_create(2, 3, 4, &l, &err), &err);
    expect_ok(mr_scheduler_create(&config, l, &s, &err), &err);
    mr_entry *a = join(s, j, 16, 0), *b = join(s, j, 5, 1), *c = join(s, j, 7, 2);
    const Millrace__StepPlan *plan = mr_scheduler_next(s, 1, &logits);
    assert_non_null(plan);
    assert_int_equal(plan->n_runs, 2);
    assert_true(mr_scheduler_starved(s));
    assert_int_equal(c->n_issued, 0);
    plan = mr_scheduler_next(s, 2, &logits); /* a needs a new block, b continues in its first block */
    assert_non_null(plan);
    assert_int_equal(plan->n_runs, 1);
    assert_int_equal(plan->runs[0]->slot, b->slot);
    assert_true(mr_scheduler_starved(s));
    assert_int_equal(a->n_issued, 16);
    assert_int_equal(a->n_sent, 1);
    b->n_ids = 7;
    mr_scheduler_leave(s, b);
    mr_ledger_release(l, 1);
    plan = mr_scheduler_next(s, 3, &logits);
    assert_non_null(plan);
    assert_int_equal(plan->n_runs, 1); /* decode rows come first */
    assert_int_equal(plan->runs[0]->slot, a->slot);
    assert_int_equal(plan->runs[0]->first_block_idx, 1);
    assert_int_equal(plan->runs[0]->n_blocks, 1);
    mr_scheduler_leave(s, a);
    mr_ledger_release(l, 0);
    plan = mr_scheduler_next(s, 4, &logits);
    assert_non_null(plan);
    assert_int_equal(plan->runs[0]->slot, c->slot);
    assert_false(mr_scheduler_starved(s));
    mr_scheduler_destroy(s);
    mr_ledger_destroy(l);
    mr_journal_destroy(j);
}

/* --- What a step has, in small scenes ---------------------------------------------------------------------------- */

/* A scheduler with a ledger and a journal of its own; steps come back when the scene says so. */
typedef struct scene {
    mr_scheduler *scheduler;
    mr_ledger *ledger;
    mr_journal *journal;
    mr_step_times curves[MAX_STAGES];
    mr_pipeline_times times;
    int32_t n_slots;
    uint64_t step;
} scene;

enum { SCENE_SLOTS = 64, SCENE_CONTEXT = 8192, SCENE_ROWS = 512 };

static void scene_init_rows(scene *c, int32_t n_stages, double token_s, int32_t max_rows) {
    mr_err err;
    *c = (scene){0};
    const mr_scheduler_config config = {.n_stages = n_stages,
                                        .max_rows = max_rows,
                                        .max_out_rows = max_rows < SCENE_SLOTS ? max_rows : SCENE_SLOTS,
                                        .max_sequences = SCENE_SLOTS,
                                        .token_s = token_s};
    int32_t blocks = SCENE_CONTEXT / MR_WIRE_BLOCK_TOKENS;
    expect_ok(mr_journal_create(&(mr_prefix_key){{0}}, &c->journal, &err), &err);
    expect_ok(mr_ledger_create(SCENE_SLOTS * blocks, SCENE_SLOTS, blocks, &c->ledger, &err), &err);
    expect_ok(mr_scheduler_create(&config, c->ledger, &c->scheduler, &err), &err);
}

static void scene_init(scene *c, int32_t n_stages, double token_s) {
    scene_init_rows(c, n_stages, token_s, SCENE_ROWS);
}

static void scene_deinit(scene *c) {
    mr_scheduler_destroy(c->scheduler);
    mr_ledger_destroy(c->ledger);
    mr_journal_destroy(c->journal);
}

/* Every stage takes fixed + rows * row seconds. */
static void scene_times(scene *c, int32_t n_stages, double fixed, double row, double hops) {
    for (int32_t i = 0; i < n_stages; i++)
        c->curves[i] = (mr_step_times){.n = 2, .rows = {1, 1001}, .seconds = {fixed + row, fixed + 1001 * row}};
    c->times = (mr_pipeline_times){.n_stages = n_stages, .stages = c->curves, .hops_s = hops};
    mr_scheduler_set_times(c->scheduler, &c->times);
}

static mr_entry *scene_join(scene *c, int32_t n_prompt, int32_t priority) {
    static int32_t ids[SCENE_CONTEXT];
    int64_t sequence;
    mr_sequence_desc desc = {.prompt_ids = ids, .n_prompt = n_prompt, .priority = priority};
    mr_err err;
    expect_ok(mr_journal_append(c->journal, &desc, SCENE_CONTEXT, &sequence, &err), &err);
    mr_entry *e = mr_journal_entry(c->journal, sequence);
    e->slot = c->n_slots++;
    e->n_prefill = n_prompt;
    mr_scheduler_join(c->scheduler, e);
    return e;
}

/* Issues one step, which must be possible, and brings its tokens back at once. */
static const Millrace__StepPlan *scene_step(scene *c) {
    mr_logits_runs logits;
    const Millrace__StepPlan *plan = mr_scheduler_next(c->scheduler, ++c->step, &logits);
    assert_non_null(plan);
    for (int32_t i = 0; i < mr_journal_count(c->journal); i++) {
        mr_entry *e = mr_journal_entry(c->journal, i);
        if (e->last_step == c->step && e->n_issued >= e->n_prefill)
            e->n_ids = e->n_issued + 1;
    }
    return plan;
}

static int32_t rows_of(const Millrace__StepPlan *plan) {
    int32_t n = 0;
    for (size_t i = 0; i < plan->n_runs; i++)
        n += (int32_t)plan->runs[i]->n_rows;
    return n;
}

static int32_t rows_for(const Millrace__StepPlan *plan, const mr_entry *e) {
    for (size_t i = 0; i < plan->n_runs; i++)
        if (plan->runs[i]->slot == (uint32_t)e->slot)
            return (int32_t)plan->runs[i]->n_rows;
    return 0;
}

/* In any m steps that follow each other every one of n sequences has one row, and the steps differ by a row at most. */
static void check_balance(scene *c, int32_t n, int32_t m) {
    for (int32_t round = 0; round < 3; round++) {
        int32_t least = INT32_MAX, most = 0, sum = 0;
        uint64_t first = c->step + 1;
        for (int32_t k = 0; k < m && k < n; k++) {
            int32_t rows = rows_of(scene_step(c));
            least = rows < least ? rows : least;
            most = rows > most ? rows : most;
            sum += rows;
        }
        assert_int_equal(mr_scheduler_micro_batches(c->scheduler), m);
        assert_int_equal(sum, n);
        assert_true(most - least <= 1);
        for (int32_t i = 0; i < mr_journal_count(c->journal); i++) {
            const mr_entry *e = mr_journal_entry(c->journal, i);
            assert_true(e->slot < 0 || e->last_step >= first);
        }
    }
}

static void end(scene *c, mr_entry *e) {
    mr_scheduler_leave(c->scheduler, e);
    mr_ledger_release(c->ledger, e->slot);
    e->slot = -1;
}

/* Micro-batches are equal again soon after sequences have come and gone, and after their number has changed. */
static void test_balance(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 33; n++) {
        scene c;
        scene_init(&c, 2, 0);
        for (int32_t i = 0; i < n; i++)
            scene_join(&c, 1, 0);
        for (int i = 0; i < 8; i++)
            scene_step(&c);
        check_balance(&c, n, 2);
        scene_times(&c, 2, 1e-3, 1e-3, n * 2e-3); /* the way back takes so long that more micro-batches are faster */
        for (int i = 0; i < 16; i++)
            scene_step(&c);
        int32_t m = mr_scheduler_micro_batches(c.scheduler);
        assert_true(n < 3 || m > 2);
        check_balance(&c, n, m);
        for (int32_t i = 0; i < n / 2; i++)
            end(&c, mr_journal_entry(c.journal, i));
        mr_scheduler_set_times(c.scheduler, NULL);
        for (int i = 0; i < 16; i++)
            scene_step(&c);
        check_balance(&c, n - n / 2, 2);
        scene_deinit(&c);
    }
}

/* The number follows the times, but not for a little. */
static void test_micro_batches_follow(void **state) {
    (void)state;
    scene c;
    scene_init(&c, 2, 0);
    for (int32_t i = 0; i < 32; i++)
        scene_join(&c, 1, 0);
    scene_step(&c);
    scene_times(&c, 2, 4e-3, 1e-3, 0);
    scene_step(&c);
    assert_int_equal(mr_scheduler_micro_batches(c.scheduler), 2);
    scene_times(&c, 2, 4e-3, 1e-3, 3e-3); /* 3 micro-batches would be faster by only 2.6 % */
    scene_step(&c);
    assert_int_equal(mr_scheduler_micro_batches(c.scheduler), 2);
    scene_times(&c, 2, 4e-3, 1e-3, 1e-2);
    scene_step(&c);
    assert_int_equal(mr_scheduler_micro_batches(c.scheduler), 3);
    scene_times(&c, 2, 20e-3, 1e-5,
                0); /* steps cost the same for any number of rows: one micro-batch is enough, and two do no harm */
    scene_step(&c);
    assert_in_range(mr_scheduler_micro_batches(c.scheduler), 1, 2);
    scene_deinit(&c);
}

/* While sequences decode, steps have at most the rows that the time between tokens allows, and the prompt makes
 * progress. */
static void test_token_budget(void **state) {
    (void)state;
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++)
        for (int wish = 0; wish < 2; wish++) {
            scene c;
            double wanted = wish ? 0.05 : 0;
            scene_init(&c, n_stages, wanted);
            scene_times(&c, n_stages, 5e-3, 1e-3, 0);
            for (int32_t i = 0; i < 8; i++)
                scene_join(&c, 1, 0);
            for (int i = 0; i < 8; i++)
                scene_step(&c);
            int32_t m = mr_scheduler_micro_batches(c.scheduler);
            double alone = mr_micro_batches_seconds(&c.times, 8, m);
            mr_entry *e = scene_join(&c, 2000, 0);
            int64_t n_prompt = 0;
            while (e->n_issued < e->n_prompt) {
                const Millrace__StepPlan *plan = scene_step(&c);
                int32_t rows = rows_of(plan), more = rows_for(plan, e);
                m = mr_scheduler_micro_batches(c.scheduler);
                assert_true(m >= n_stages && more > 0);
                assert_true(rows - more <= (8 + m - 1) / m);
                double with = mr_micro_batches_seconds(&c.times, rows * m, m);
                assert_true(more == 4 || with <= (wish ? wanted : 2 * alone));
                n_prompt += more;
            }
            assert_int_equal(n_prompt, 2000);
            /* The first token comes in less than three times the time that the prompt takes alone. */
            mr_prefill_cut cut = mr_prefill_cut_best(&c.times, 2000, SCENE_ROWS);
            double first_s = (double)(c.step - 8) * (wish ? wanted : 2 * alone) / m;
            assert_true(wish || first_s < 3 * mr_prefill_cut_seconds(&c.times, cut, 2000, SCENE_ROWS));
            scene_deinit(&c);
        }
}

/* Where many prompts wait, those who decode are not slower than twice what they will be when all of these decode too;
 * and the prompts are read in at most the share of the time that this leaves them. */
static void test_token_budget_of_many(void **state) {
    (void)state;
    enum { N_PROMPTS = 32, N_PROMPT = 64 };
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
        scene c;
        scene_init(&c, n_stages, 0);
        scene_times(&c, n_stages, 5e-3, 1e-3, 0);
        scene_join(&c, 1, 0);
        for (int i = 0; i < 4; i++)
            scene_step(&c);
        for (int32_t i = 0; i < N_PROMPTS; i++)
            scene_join(&c, N_PROMPT, 0);
        mr_entry *last = mr_journal_entry(c.journal, N_PROMPTS);
        int32_t m = n_stages, n_steps = 0, most = 0;
        for (; last->n_issued < N_PROMPT; n_steps++) {
            int32_t rows = rows_of(scene_step(&c));
            most = rows > most ? rows : most;
            m = mr_scheduler_micro_batches(c.scheduler);
        }
        double all = mr_micro_batches_seconds(&c.times, 1 + N_PROMPTS, m);
        assert_true(mr_micro_batches_seconds(&c.times, most * m, m) <= 2 * all);
        assert_true(most > (1 + N_PROMPTS) / m);
        /* A step has at most (1 + N_PROMPTS) / m decode rows, of the prompts that are complete. The other rows are
         * prompt rows. */
        assert_in_range(n_steps, N_PROMPTS * N_PROMPT / most, 2 * N_PROMPTS * N_PROMPT / (most - (1 + N_PROMPTS) / m));
        scene_deinit(&c);
    }
}

/* Decoding sequences that could fill every step leave a part of it to a prompt, and no row of it empty. */
static void test_prompt_beside_full_steps(void **state) {
    (void)state;
    enum { N_PROMPT = 200 };
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++)
        for (int32_t max_rows = 1; max_rows <= 20; max_rows++)
            for (int known = 0; known < 2; known++) {
                scene c;
                int32_t n = n_stages * max_rows < SCENE_SLOTS ? n_stages * max_rows : SCENE_SLOTS - 1, least = 0;
                scene_init_rows(&c, n_stages, 0, max_rows);
                if (known)
                    scene_times(&c, n_stages, 5e-3, 1e-3, 0);
                for (int32_t i = 0; i < n; i++)
                    scene_join(&c, 1, 0);
                while (mr_journal_entry(c.journal, n - 1)->n_issued == 0)
                    scene_step(&c);
                mr_entry *e = scene_join(&c, N_PROMPT, 0);
                for (int32_t steps = 1; e->n_issued < N_PROMPT; steps++) {
                    assert_in_range(rows_of(scene_step(&c)), 1, max_rows);
                    least = max_rows < 8 ? steps * max_rows / 2 : 4 * steps; /* half of the rows, or 4 */
                    assert_true(e->n_issued >= (least < N_PROMPT ? least : N_PROMPT));
                }
                int32_t issued = mr_journal_entry(c.journal, 0)->n_issued;
                for (int32_t i = 0; i < n; i++) /* the other sequences made as much progress */
                    assert_in_range(mr_journal_entry(c.journal, i)->n_issued, issued > 2 ? issued - 2 : 1, issued + 2);
                scene_deinit(&c);
            }
}

/* Nor does a prompt take rows that decoding sequences could have. */
static void test_full_steps_beside_a_prompt(void **state) {
    (void)state;
    scene c;
    scene_init(&c, 1, 10); /* no limit of the time of a step */
    scene_times(&c, 1, 5e-3, 1e-3, 0);
    for (int32_t i = 0; i < SCENE_SLOTS - 1; i++)
        scene_join(&c, 1, 0);
    for (int i = 0; i < 4; i++)
        scene_step(&c);
    mr_entry *e = scene_join(&c, 4 * SCENE_ROWS, 0);
    for (int i = 0; i < 4; i++) {
        const Millrace__StepPlan *plan = scene_step(&c);
        assert_int_equal(plan->n_runs, SCENE_SLOTS);
        assert_int_equal(rows_of(plan), SCENE_ROWS);
        assert_int_equal(rows_for(plan, e), SCENE_ROWS - (SCENE_SLOTS - 1));
    }
    scene_deinit(&c);
}

/* A long prompt does not hold up short ones, and they do not stop it. */
static void test_shares(void **state) {
    (void)state;
    scene c;
    scene_init(&c, 1, 0);
    mr_entry *first = scene_join(&c, 4000, 0), *others[5];
    const Millrace__StepPlan *plan = scene_step(&c);
    assert_int_equal(rows_for(plan, first), SCENE_ROWS);
    for (int i = 0; i < 5; i++)
        others[i] = scene_join(&c, i < 2 ? 20 : 1000, 0);
    /* The first prompt has half of the rows; the others share the rest, none gets more than it has left. */
    plan = scene_step(&c);
    assert_int_equal(rows_for(plan, others[0]), 20);
    assert_int_equal(rows_for(plan, others[1]), 20);
    assert_int_equal(rows_of(plan), SCENE_ROWS);
    for (int i = 2; i < 5; i++)
        assert_int_equal(rows_for(plan, others[i]), (SCENE_ROWS / 2 - 2 * 20) / 3);
    assert_int_equal(rows_for(plan, first), SCENE_ROWS / 2);
    /* All prompts have the same rank: each gets to its first token, in the order of submission. */
    for (int i = 0; i < 200; i++)
        scene_step(&c);
    for (int i = 0; i < 5; i++)
        assert_true(others[i]->n_issued > others[i]->n_prompt);
    assert_true(first->n_issued > first->n_prompt);
    scene_deinit(&c);
}

/* After a recovery: one sequence after the other, the shortest first, however long that takes, and new prompts behind
 * them. */
static void test_again(void **state) {
    (void)state;
    enum { ROWS = 16, N = 4, N_LONG = 60 * MR_SCHEDULER_AGING_STEPS };
    const int32_t lengths[N] = {ROWS, 3 * ROWS + 7, N_LONG, N_LONG + ROWS}, arrivals[N] = {3, 1, 0, 2};
    mr_entry *again[N];
    scene c;
    scene_init_rows(&c, 1, 0, ROWS);
    for (int i = 0; i < N; i++) {
        again[arrivals[i]] = scene_join(&c, lengths[arrivals[i]], 0);
        again[arrivals[i]]->is_again = true;
    }
    mr_entry *fresh = scene_join(&c, 10, 0);
    for (int k = 0; k < N; k++) {
        while (again[k]->n_issued < lengths[k]) {
            assert_int_equal(fresh->n_issued, 0);
            for (int i = k + 1; i < N; i++)
                assert_true(again[i]->n_issued < ROWS); /* what the last step of the one before left over */
            scene_step(&c);
        }
        again[k]->is_again = false;
    }
    scene_step(&c);
    assert_true(fresh->n_issued > 0);
    scene_deinit(&c);
}

/* Higher priorities go first, and what waits long gets its turn all the same. */
static void test_priorities(void **state) {
    (void)state;
    scene c;
    scene_init(&c, 1, 0);
    mr_entry *low = scene_join(&c, SCENE_ROWS + 100, 0), *high = NULL;
    int32_t n_high = 0;
    uint64_t n_waited = 0, longest = 0;
    while (low->n_issued < low->n_prompt) {
        if (!high || high->n_issued >= high->n_prompt) {
            if (high)
                end(&c, high);
            assert_true(++n_high < 1000);
            c.n_slots = 1 + n_high % 8;
            high = scene_join(&c, 2 * SCENE_ROWS, 2);
        }
        const Millrace__StepPlan *plan = scene_step(&c);
        int32_t rows = rows_for(plan, low);
        /* Before it has aged, it has only the rows that the other one leaves. */
        assert_true(rows == 0 || n_waited >= 2 * MR_SCHEDULER_AGING_STEPS - 1 || high->n_issued == high->n_prompt);
        n_waited = rows > 0 ? 0 : n_waited + 1;
        longest = n_waited > longest ? n_waited : longest;
    }
    assert_in_range(longest, 2 * MR_SCHEDULER_AGING_STEPS - 1, 4 * MR_SCHEDULER_AGING_STEPS);
    scene_deinit(&c);
}

/* If no sequence decodes, the chunks of a prompt follow each other without a wait. */
static void test_consecutive_chunks(void **state) {
    (void)state;
    scene c;
    mr_logits_runs logits;
    scene_init(&c, 3, 0);
    scene_times(&c, 3, 5e-3, 1e-3, 0);
    mr_entry *e = scene_join(&c, 2000, 0);
    int32_t n = 0;
    while (e->n_issued < e->n_prompt) {
        const Millrace__StepPlan *plan = mr_scheduler_next(c.scheduler, ++c.step, &logits);
        assert_non_null(plan);
        assert_int_equal(plan->n_runs, 1);
        assert_in_range(plan->runs[0]->n_rows, e->n_issued < e->n_prompt ? 16 : 1,
                        256); /* the three stages work at the same time */
        n++;
    }
    assert_in_range(n, 8, 125);
    /* The first decode row, issued ahead of the sampled id. */
    assert_non_null(mr_scheduler_next(c.scheduler, ++c.step, &logits));
    assert_null(mr_scheduler_next(c.scheduler, ++c.step, &logits));
    scene_deinit(&c);
}

/* How prompts are cut is chosen anew where times change by much, or how long the prompts are; not for a little. */
static void test_cut_follows(void **state) {
    (void)state;
    static const struct {
        double fixed;
        int32_t n_prompt;
        bool is_kept;
    } SCENES[] = {
        {1e-3, 2000, false}, {1.01e-3, 2000, true}, {0.2, 2000, false}, {0.2, 8000, false}, {0.2, 7900, true}};
    scene c;
    mr_prefill_cut cut = {0};
    scene_init(&c, 3, 0);
    for (size_t i = 0; i < sizeof SCENES / sizeof SCENES[0]; i++) {
        scene_times(&c, 3, SCENES[i].fixed, 1e-3, 0);
        int32_t n = SCENES[i].n_prompt;
        if (!SCENES[i].is_kept)
            cut = mr_prefill_cut_best(&c.times, n, SCENE_ROWS);
        mr_entry *e = scene_join(&c, n, 0);
        assert_int_equal(rows_for(scene_step(&c), e), mr_prefill_chunk(&c.times, cut, 0, n, SCENE_ROWS));
        end(&c, e);
    }
    scene_deinit(&c);
}

static void test_failing_allocations(void **state) {
    (void)state;
    const mr_scheduler_config config = {.n_stages = 2, .max_rows = 8, .max_out_rows = 8, .max_sequences = 77};
    mr_scheduler *s = NULL;
    mr_err err;
    int n_failed = 0;
    for (;; n_failed++) {
        mr_mem_fail_at(n_failed);
        mr_status status = mr_scheduler_create(&config, NULL, &s, &err);
        mr_mem_fail_at(-1);
        if (status == MR_OK)
            break;
        assert_int_equal(status, MR_E_NO_MEMORY);
        expect_says(err.text, "77 sequences");
    }
    assert_true(n_failed >= 5);
    mr_scheduler_destroy(s);
    mr_scheduler_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_of_the_ring),
        cmocka_unit_test(test_rows_that_starve),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_micro_batches_follow),
        cmocka_unit_test(test_token_budget),
        cmocka_unit_test(test_token_budget_of_many),
        cmocka_unit_test(test_prompt_beside_full_steps),
        cmocka_unit_test(test_full_steps_beside_a_prompt),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_consecutive_chunks),
        cmocka_unit_test(test_cut_follows),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
