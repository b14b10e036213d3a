/* From step plans to rows: plans that agree with earlier messages, and plans that contradict them. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "tests/support/prefix_log.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"
#include "worker/stage/step.h"

enum { MAX_ROWS = 24, MAX_OUT = 6, MAX_RUNS = 4, NOTED_ID = 42 };

static const mr_msg_limits LIMITS = {
    .n_stages = 1,
    .max_rows = MAX_ROWS,
    .max_sequences = 4,
    .max_context = 100, /* 7 blocks, of which the last is not full */
    .n_kv_blocks = 12,
    .n_vocab = 90,
};

typedef struct fixture {
    tiny_model *model;
    mr_backend *backend;
    mr_stage *stage;
    mr_sequences *all;
    prefix_log log; /* of the slots that were opened */
} fixture;

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    mr_err err = {0};
    f->model = tiny_model_create(&d);
    const mr_stage_config config = {
        .gguf = f->model->gguf,
        .info = &f->model->info,
        .range = {0, 2},
        .max_rows = MAX_ROWS,
        .max_out_rows = MAX_OUT,
        .max_sequences = (int32_t)LIMITS.max_sequences,
        .max_context = (int32_t)LIMITS.max_context,
        .n_kv_blocks = (int32_t)LIMITS.n_kv_blocks,
        .kv_type = MR_TYPE_F16,
    };
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &f->backend, &err), &err);
    expect_ok(mr_stage_create(&config, f->backend, NULL, NULL, &f->stage, &err), &err);
    expect_ok(mr_sequences_create(&LIMITS, true, &f->all, &err), &err);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    mr_sequences_destroy(f->all);
    mr_stage_destroy(f->stage);
    mr_backend_destroy(f->backend);
    tiny_model_destroy(f->model);
    free(f);
    return 0;
}

static void open_with_blocks(fixture *f, uint32_t slot, uint32_t generation, uint32_t *blocks, size_t n) {
    Millrace__OpenSequence open = MILLRACE__OPEN_SEQUENCE__INIT;
    open.slot = slot;
    open.generation = generation;
    open.blocks = blocks;
    open.n_blocks = n;
    prefix_log_open(&f->log, &open);
    assert_int_equal(mr_sequences_open(f->all, &open, NULL), MR_OK);
}

static void open_slot(fixture *f, uint32_t slot, uint32_t generation) {
    open_with_blocks(f, slot, generation, NULL, 0);
}

/* A run in short: its ids are 10, 11, 12 ... and its new blocks those given. */
typedef struct short_run {
    uint32_t slot, generation, first_position, n_rows;
    bool without_ids;
    uint32_t first_block_idx, n_blocks, blocks[7];
    Millrace__Want want;
} short_run;

typedef struct plan {
    Millrace__StepPlan step;
    Millrace__Run run[MAX_RUNS], *runs[MAX_RUNS];
    uint32_t ids[MAX_ROWS], blocks[MAX_RUNS][7];
} plan;

static void plan_make(plan *p, uint64_t step, const short_run *runs, size_t n) {
    p->step = (Millrace__StepPlan)MILLRACE__STEP_PLAN__INIT;
    p->step.step = step;
    p->step.n_runs = n;
    p->step.runs = p->runs;
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        p->ids[i] = 10 + i;
    for (size_t i = 0; i < n; i++) {
        Millrace__Run *r = p->runs[i] = &p->run[i];
        *r = (Millrace__Run)MILLRACE__RUN__INIT;
        r->slot = runs[i].slot;
        r->generation = runs[i].generation;
        r->first_position = runs[i].first_position;
        r->n_rows = runs[i].n_rows;
        r->n_ids = runs[i].without_ids ? 0 : runs[i].n_rows;
        r->ids = p->ids;
        r->first_block_idx = runs[i].first_block_idx;
        r->n_blocks = runs[i].n_blocks;
        memcpy(p->blocks[i], runs[i].blocks, sizeof p->blocks[i]);
        r->blocks = p->blocks[i];
        r->want = runs[i].want;
    }
    /* The step passes the checks of messages. Only the memory of this stage can show that it is wrong. */
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    control.body_case = MILLRACE__CONTROL__BODY_STEP;
    control.step = &p->step;
    mr_err err = {0};
    expect_ok(mr_msg_check_control(&control, &LIMITS, &err), &err);
}

static mr_status fill(fixture *f, const short_run *runs, size_t n, mr_err *err) {
    plan p;
    plan_make(&p, 9, runs, n);
    prefix_log before = f->log;
    for (size_t i = 0; i < n; i++)
        prefix_log_run(&f->log, &p.run[i], NOTED_ID);
    uint64_t allocs = mr_mem_get_stats().n_allocs;
    mr_status status = mr_step_fill(f->stage, f->all, &p.step, MAX_OUT, err);
    assert_int_equal(mr_mem_get_stats().n_allocs, allocs);
    if (status != MR_OK)
        f->log = before;
    return status;
}

static void expect_filled(fixture *f, const short_run *runs, size_t n) {
    mr_err err = {0};
    expect_ok(fill(f, runs, n, &err), &err);
}

static void expect_refused(fixture *f, const short_run *runs, size_t n, const char *text) {
    mr_err err = {0};
    mr_status status = fill(f, runs, n, &err);
    if (status != MR_E_PROTOCOL || !strstr(err.text, text))
        fail_msg("%s: '%s', expected '%s'", mr_status_name(status), err.text, text);
}

/* The stage still runs a good plan. */
static void expect_usable(fixture *f) {
    open_slot(f, 3, 77);
    expect_filled(f, &(short_run){3, 77, 0, 2, .n_blocks = 1, .blocks = {11}, .want = MILLRACE__WANT__WANT_TOKEN}, 1);
    assert_int_equal(mr_stage_run(f->stage, &(mr_stage_step){0}, NULL), MR_OK);
}

/* --- Good plans -------------------------------------------------------------------------------------------------- */

/* Two prompts in one step: rows, slots in blocks out of order, and which rows want logits. */
static void test_rows_of_two_prompts(void **state) {
    fixture *f = *state;
    open_slot(f, 2, 5);
    open_slot(f, 0, 1);
    const short_run runs[] = {
        {2, 5, 0, 18, .n_blocks = 2, .blocks = {7, 3}, .want = MILLRACE__WANT__WANT_TOKEN},
        {0, 1, 0, 3, .n_blocks = 1, .blocks = {0}, .want = MILLRACE__WANT__WANT_ALL_LOGITS},
    };
    expect_filled(f, runs, 2);
    const mr_step_rows *rows = mr_stage_rows(f->stage);
    assert_int_equal(rows->n_rows, 21);
    for (int32_t r = 0; r < 21; r++) {
        int32_t position = r < 18 ? r : r - 18, block = r >= 18 ? 0 : position < 16 ? 7 : 3;
        assert_int_equal(rows->ids[r], 10 + position);
        assert_int_equal(rows->positions[r], position);
        assert_int_equal(rows->slots[r], block * 16 + position % 16);
        assert_int_equal(rows->row_seq[r], r < 18 ? 2 : 0);
    }
    assert_int_equal(rows->n_out, 4);
    assert_int_equal(rows->out_rows[0], 17);
    assert_int_equal(rows->out_rows[1], 18);
    assert_int_equal(rows->out_rows[3], 20);
    assert_int_equal(mr_stage_run(f->stage, &(mr_stage_step){0}, NULL), MR_OK);
}

/* All rows of one prompt, and the last row of another, want their hidden rows. */
static void test_hidden_rows(void **state) {
    fixture *f = *state;
    open_slot(f, 2, 5);
    open_slot(f, 0, 1);
    const short_run runs[] = {
        {2, 5, 0, 18, .n_blocks = 2, .blocks = {7, 3}, .want = MILLRACE__WANT__WANT_LAST_HIDDEN},
        {0, 1, 0, 3, .n_blocks = 1, .blocks = {0}, .want = MILLRACE__WANT__WANT_ALL_HIDDEN},
    };
    expect_filled(f, runs, 2);
    const mr_step_rows *rows = mr_stage_rows(f->stage);
    assert_int_equal(rows->n_out, 0);
    assert_int_equal(rows->n_hidden, 4);
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(rows->hidden_rows[i], 17 + i);
    assert_int_equal(mr_stage_run(f->stage, &(mr_stage_step){0}, NULL), MR_OK);
}

/* A decode row takes the id that came back; a chunk of a prompt wants nothing. */
static void test_a_row_takes_the_last_id(void **state) {
    fixture *f = *state;
    open_slot(f, 1, 4);
    expect_filled(f, &(short_run){1, 4, 0, 16, .n_blocks = 1, .blocks = {9}}, 1);
    assert_int_equal(mr_stage_rows(f->stage)->n_out, 0);
    Millrace__Token token = MILLRACE__TOKEN__INIT;
    token.slot = 1;
    token.generation = 4;
    token.position = 16;
    token.id = NOTED_ID;
    mr_sequences_note_token(f->all, &token);
    short_run next = {1, 4, 16, 1, .without_ids = true, .first_block_idx = 1, .n_blocks = 1, .blocks = {4}};
    next.want = MILLRACE__WANT__WANT_TOKEN;
    expect_filled(f, &next, 1);
    const mr_step_rows *rows = mr_stage_rows(f->stage);
    assert_int_equal(rows->n_rows, 1);
    assert_int_equal(rows->ids[0], NOTED_ID);
    assert_int_equal(rows->slots[0], 4 * 16);
    assert_int_equal(rows->n_out, 1);
}

static void test_the_last_position_of_the_context(void **state) {
    fixture *f = *state;
    open_with_blocks(f, 0, 0, (uint32_t[]){0, 1, 2, 3, 4, 5}, 6);
    expect_filled(f, &(short_run){0, 0, 99, 1, .first_block_idx = 6, .n_blocks = 1, .blocks = {6}}, 1);
    assert_int_equal(mr_stage_rows(f->stage)->slots[0], 6 * 16 + 3);
}

/* --- Whether ids are there --------------------------------------------------------------------------------------- */

static mr_status ids_ready(fixture *f, const short_run *run, bool *out_ready, mr_err *err) {
    plan p;
    plan_make(&p, 9, run, 1);
    return mr_step_ids_ready(f->all, &p.step, out_ready, err);
}

static void note(fixture *f, uint32_t slot, uint32_t generation, uint32_t position, mr_status status) {
    Millrace__Token token = MILLRACE__TOKEN__INIT;
    token.slot = slot;
    token.generation = generation;
    token.position = position;
    token.id = 33;
    token.status = (uint32_t)status;
    mr_sequences_note_token(f->all, &token);
}

static void test_rows_wait_for_their_id(void **state) {
    fixture *f = *state;
    const short_run run = {1, 4, 6, 1, .without_ids = true};
    mr_err err = {0};
    bool ready = false;
    open_slot(f, 1, 4);
    for (uint32_t position = 0; position <= 6; position++) {
        expect_ok(ids_ready(f, &run, &ready, &err), &err);
        assert_false(ready);
        note(f, 1, 4, position, MR_OK);
    }
    expect_ok(ids_ready(f, &run, &ready, &err), &err);
    assert_true(ready);
    note(f, 1, 3, 9, MR_OK); /* the generation before: ignored */
    note(f, 2, 0, 9, MR_OK); /* a slot that is not open: ignored */
    expect_ok(ids_ready(f, &run, &ready, &err), &err);
    assert_true(ready);
    /* Rows whose ids are in the step do not wait for tokens. */
    ready = false;
    expect_ok(ids_ready(f, &(short_run){3, 99, 6, 1, .n_blocks = 0}, &ready, &err), &err);
    assert_true(ready);
}

static void test_ids_that_can_never_come(void **state) {
    fixture *f = *state;
    mr_err err = {0};
    bool ready = true;
    open_slot(f, 1, 4);
    note(f, 1, 4, 7, MR_OK);
    expect_fails(ids_ready(f, &(short_run){1, 4, 6, 1, .without_ids = true}, &ready, &err), MR_E_PROTOCOL, &err,
                 "slot 1: step 9 wants the id of position 6");
    expect_fails(ids_ready(f, &(short_run){1, 3, 7, 1, .without_ids = true}, &ready, &err), MR_E_PROTOCOL, &err,
                 "slot 1 is not open in generation 3");
    expect_fails(ids_ready(f, &(short_run){2, 0, 7, 1, .without_ids = true}, &ready, &err), MR_E_PROTOCOL, &err,
                 "slot 2 is not open");
}

/* A sequence that failed still runs the row that was planned ahead: on id 0. */
static void test_a_failed_sequence_goes_on_with_id_0(void **state) {
    fixture *f = *state;
    bool ready = false;
    open_slot(f, 1, 4);
    note(f, 1, 4, 1, MR_E_NUMERICS);
    const short_run run = {1, 4, 1, 1, .without_ids = true, .n_blocks = 1, .blocks = {2}};
    assert_int_equal(ids_ready(f, &run, &ready, NULL), MR_OK);
    assert_true(ready);
    expect_filled(f, &run, 1);
    assert_int_equal(mr_stage_rows(f->stage)->ids[0], 0);
}

/* --- Plans that contradict --------------------------------------------------------------------------------------- */

static void test_slots_that_are_not_open(void **state) {
    fixture *f = *state;
    const short_run run = {2, 0, 0, 1, .n_blocks = 1, .blocks = {1}};
    expect_refused(f, &run, 1, "slot 2 is not open in generation 0");
    open_slot(f, 2, 7);
    expect_refused(f, &run, 1, "slot 2 is not open in generation 0");
    expect_refused(f, &(short_run){2, 8, 0, 1, .n_blocks = 1, .blocks = {1}}, 1, "slot 2 is not open in generation 8");
    Millrace__CloseSequence close = MILLRACE__CLOSE_SEQUENCE__INIT;
    mr_err err = {0};
    close.slot = 2;
    close.generation = 6;
    expect_fails(mr_sequences_close(f->all, &close, &err), MR_E_PROTOCOL, &err, "slot 2");
    close.generation = 7;
    expect_ok(mr_sequences_close(f->all, &close, &err), &err);
    assert_int_equal(mr_sequences_close(f->all, &close, &err), MR_E_PROTOCOL);
    expect_refused(f, &(short_run){2, 7, 0, 1, .n_blocks = 1, .blocks = {1}}, 1, "slot 2 is not open in generation 7");
    expect_usable(f);
}

/* The old sequence's blocks are forgotten when its slot is opened anew. */
static void test_blocks_that_are_not_known(void **state) {
    fixture *f = *state;
    open_slot(f, 1, 0);
    expect_refused(f, &(short_run){1, 0, 0, 1, .n_blocks = 0}, 1,
                   "slot 1: position 0 lies in no KV block: the table has 0");
    expect_refused(f, &(short_run){1, 0, 0, 1, .first_block_idx = 1, .n_blocks = 1, .blocks = {1}}, 1,
                   "slot 1: block table entries from 1 on, but only 0 are known");
    expect_refused(f, &(short_run){1, 0, 0, 1, .first_block_idx = 7}, 1, "slot 1: block table entries from 7 on");
    open_with_blocks(f, 1, 0, (uint32_t[]){1}, 1);
    expect_filled(f, &(short_run){1, 0, 0, 1, .n_blocks = 0}, 1);
    expect_filled(f, &(short_run){1, 0, 31, 1, .first_block_idx = 1, .n_blocks = 1, .blocks = {5}}, 1);
    assert_int_equal(mr_stage_rows(f->stage)->slots[0], 5 * 16 + 15);
    expect_refused(f, &(short_run){1, 0, 32, 1, .n_blocks = 0}, 1,
                   "slot 1: position 32 lies in no KV block: the table has 2");
    expect_refused(f, &(short_run){1, 0, 30, 3, .n_blocks = 0}, 1, "slot 1: position 32 lies in no KV block");
    open_slot(f, 1, 1);
    expect_refused(f, &(short_run){1, 1, 0, 1, .n_blocks = 0}, 1,
                   "slot 1: position 0 lies in no KV block: the table has 0");
    expect_usable(f);
}

/* The second run of a plan is looked at as closely as the first. */
static void test_a_bad_second_run(void **state) {
    fixture *f = *state;
    open_slot(f, 0, 0);
    const short_run runs[] = {{0, 0, 0, 4, .n_blocks = 1, .blocks = {1}}, {3, 0, 0, 4, .n_blocks = 1, .blocks = {2}}};
    expect_refused(f, runs, 2, "slot 3 is not open");
    expect_usable(f);
}

static void test_too_many_rows_with_logits(void **state) {
    fixture *f = *state;
    open_slot(f, 0, 0);
    short_run run = {0, 0, 0, MAX_OUT, .n_blocks = 1, .blocks = {1}, .want = MILLRACE__WANT__WANT_ALL_LOGITS};
    expect_filled(f, &run, 1);
    run.n_rows++;
    expect_refused(f, &run, 1, "step 9 wants logits of 7 rows, the plan allows 6");
    open_slot(f, 1, 0);
    short_run runs[2] = {run, {1, 0, 0, 1, .n_blocks = 1, .blocks = {2}, .want = MILLRACE__WANT__WANT_TOKEN}};
    runs[0].n_rows = MAX_OUT;
    expect_refused(f, runs, 2, "step 9 wants logits of 7 rows");
    expect_usable(f);
}

/* --- Sums of prefixes -------------------------------------------------------------------------------------------- */

/* Fills a step of one run whose prefix has some bits flipped. */
static mr_status fill_flipped(fixture *f, const short_run *run, uint64_t bits, mr_err *err) {
    plan p;
    prefix_log copy = f->log;
    plan_make(&p, 9, run, 1);
    prefix_log_run(&copy, &p.run[0], NOTED_ID);
    p.run[0].prefix ^= bits;
    return mr_step_fill(f->stage, f->all, &p.step, MAX_OUT, err);
}

/* A slot with 16 rows of a prompt. */
static void begin_slot(fixture *f) {
    open_slot(f, 1, 4);
    expect_filled(f, &(short_run){1, 4, 0, 16, .n_blocks = 1, .blocks = {9}}, 1);
}

static void test_other_ids_are_found(void **state) {
    fixture *f = *state;
    const short_run run = {1, 4, 16, 2, .first_block_idx = 1, .n_blocks = 1, .blocks = {3}};
    mr_err err = {0};
    begin_slot(f);
    expect_fails(fill_flipped(f, &run, 1, &err), MR_E_PROTOCOL, &err,
                 "slot 1, generation 4, position 16: the ids before it");
    expect_filled(f, &run, 1);
}

static void test_another_table_is_found(void **state) {
    fixture *f = *state;
    const short_run run = {1, 4, 16, 2, .first_block_idx = 1, .n_blocks = 1, .blocks = {3}};
    mr_err err = {0};
    begin_slot(f);
    expect_fails(fill_flipped(f, &run, UINT64_C(1) << 32, &err), MR_E_PROTOCOL, &err,
                 "slot 1, generation 4, position 16: the block table");
    expect_filled(f, &run, 1);
    Millrace__OpenSequence open = MILLRACE__OPEN_SEQUENCE__INIT;
    open.blocks = (uint32_t[]){5};
    open.n_blocks = 1;
    open.generation = 7;
    open.prefix = mr_prefix_pack((mr_prefix_sums){.table = 1});
    expect_fails(mr_sequences_open(f->all, &open, &err), MR_E_PROTOCOL, &err, "slot 0, generation 7: the block table");
}

/* Another sampled id came back than the coordinator has. */
static void test_another_sampled_id_is_found(void **state) {
    fixture *f = *state;
    const short_run run = {1, 4, 16, 1, .without_ids = true, .first_block_idx = 1, .n_blocks = 1, .blocks = {3}};
    const short_run next = {1, 4, 17, 1, .n_blocks = 0};
    mr_err err = {0};
    for (uint32_t id = NOTED_ID; id < NOTED_ID + 2; id++) {
        Millrace__Token token = MILLRACE__TOKEN__INIT;
        begin_slot(f);
        token.slot = 1;
        token.generation = 4;
        token.position = 16;
        token.id = id;
        mr_sequences_note_token(f->all, &token);
        expect_filled(f, &run, 1);
        if (id == NOTED_ID)
            expect_filled(f, &next, 1);
        else
            expect_fails(fill(f, &next, 1, &err), MR_E_PROTOCOL, &err, "slot 1, generation 4, position 17: the ids");
    }
}

/* A stage in the middle gets no sampled ids. It takes over the sum, and checks again what follows. */
static void test_a_stage_without_sampled_ids(void **state) {
    fixture *f = *state;
    const short_run decode = {1, 4, 16, 1, .without_ids = true, .first_block_idx = 1, .n_blocks = 1, .blocks = {3}};
    const short_run known = {1, 4, 17, 1, .n_blocks = 0}, next = {1, 4, 18, 1, .n_blocks = 0};
    mr_err err = {0};
    begin_slot(f);
    expect_filled(f, &decode, 1);
    expect_filled(f, &known, 1);
    expect_fails(fill_flipped(f, &next, 4, &err), MR_E_PROTOCOL, &err, "position 18: the ids");
    expect_filled(f, &next, 1);
}

/* The sums depend on each position, id and block. */
static void test_sums(void **state) {
    (void)state;
    mr_prefix_sums a = {0}, b = {0}, swapped = {0};
    for (uint32_t i = 0; i < 100; i++) {
        mr_prefix_add_id(&a, i, (int32_t)(7 * i));
        mr_prefix_add_id(&b, i, (int32_t)(7 * i + (i == 63)));
        mr_prefix_add_id(&swapped, i, (int32_t)(i == 3 ? 28 : i == 4 ? 21 : 7 * i));
        mr_prefix_add_block(&a, i, i);
    }
    assert_true(a.ids != b.ids && a.ids != swapped.ids && a.table != a.ids);
    assert_int_equal(mr_prefix_unpack(mr_prefix_pack(a)).ids, a.ids);
    assert_int_equal(mr_prefix_unpack(mr_prefix_pack(a)).table, a.table);
    for (uint32_t i = 0; i < 100; i++)
        mr_prefix_remove_block(&a, i, i);
    assert_int_equal(a.table, 0);
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

/* If memory runs out while a slot is opened, the sequence that was in the slot stays. */
static void test_failing_allocations(void **state) {
    (void)state;
    Millrace__Sampling sampling = MILLRACE__SAMPLING__INIT;
    Millrace__OpenSequence open = MILLRACE__OPEN_SEQUENCE__INIT;
    uint32_t ids[3] = {1, 2, 3};
    mr_status status = MR_E_NO_MEMORY;
    sampling.temperature = 0.8f;
    sampling.top_p = sampling.repeat_penalty = 1.0f;
    sampling.repeat_last_n = 64;
    open.sampling = &sampling;
    open.ids = ids;
    open.n_ids = 3;
    int n = 0;
    for (; status != MR_OK; n++) {
        mr_sequences *all = NULL;
        mr_sequence *s = NULL;
        mr_err err = {0};
        assert_true(n < 50);
        mr_mem_fail_at(n);
        status = mr_sequences_create(&LIMITS, true, &all, &err);
        for (open.generation = 0; open.generation < 3 && status == MR_OK; open.generation++)
            status = mr_sequences_open(all, &open, &err);
        mr_mem_fail_at(-1);
        if (status != MR_OK && (status != MR_E_NO_MEMORY || err.text[0] == 0))
            fail_msg("allocation %d: %s: '%s'", n, mr_status_name(status), err.text);
        if (all && status != MR_OK && open.generation > 1) /* the loop also counts the call that failed */
            expect_ok(mr_sequences_find(all, 0, open.generation - 2, &s, &err), &err);
        mr_sequences_destroy(all);
    }
    print_message("%d allocations\n", n - 1);
    mr_sequences_destroy(NULL);
}

#define step_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        step_test(test_rows_of_two_prompts),
        step_test(test_hidden_rows),
        step_test(test_a_row_takes_the_last_id),
        step_test(test_the_last_position_of_the_context),
        step_test(test_other_ids_are_found),
        step_test(test_another_table_is_found),
        step_test(test_another_sampled_id_is_found),
        step_test(test_a_stage_without_sampled_ids),
        step_test(test_sums),
        step_test(test_rows_wait_for_their_id),
        step_test(test_ids_that_can_never_come),
        step_test(test_a_failed_sequence_goes_on_with_id_0),
        step_test(test_slots_that_are_not_open),
        step_test(test_blocks_that_are_not_known),
        step_test(test_a_bad_second_run),
        step_test(test_too_many_rows_with_logits),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests_name("step", tests, NULL, NULL);
}
