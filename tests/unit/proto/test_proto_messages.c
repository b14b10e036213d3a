// SPDX-License-Identifier: Apache-2.0
/* Messages are the same after packing and unpacking. Bytes that are no message, and messages that are too large, are
 * refused. */
#include "tests/unit/proto/test_proto_samples.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

static void test_round_trip(void **state) {
    (void)state;
    samples s;
    Millrace__Control *c = NULL;
    Millrace__Tokens *t = NULL;
    samples_init(&s, MILLRACE__CONTROL__BODY_STEP, 1);
    pack(&s, CONTROL);
    assert_int_equal(unpack(&s, CONTROL, &sample_limits, sample_arena(), &c, NULL), MR_OK);
    assert_int_equal(c->body_case, MILLRACE__CONTROL__BODY_STEP);
    assert_true(c->step->step == UINT64_MAX);
    assert_int_equal(c->step->n_runs, 3);
    assert_int_equal(c->step->runs[1]->n_ids, 14);
    assert_memory_equal(c->step->runs[1]->ids, s.ids, 14 * sizeof s.ids[0]);
    assert_memory_equal(c->step->runs[1]->blocks, s.blocks, sizeof s.blocks[0]);
    assert_int_equal(c->step->runs[2]->want, MILLRACE__WANT__WANT_ALL_LOGITS);
    samples_init(&s, MILLRACE__CONTROL__BODY_OPEN, 1);
    pack(&s, CONTROL);
    assert_int_equal(unpack(&s, CONTROL, &sample_limits, sample_arena(), &c, NULL), MR_OK);
    assert_true(c->open->sampling->seed == UINT64_MAX && c->open->sampling->temperature == 0.8f);
    assert_true(c->open->sampling->biases[1] == -INFINITY && c->open->sampling->dry_breakers[4] == 999);
    assert_true(c->open->sampling->late_ids[4] == 999 && c->open->sampling->bad_words[1] == 999);
    assert_memory_equal(c->open->grammar.data, s.packed_grammar, sizeof s.packed_grammar);
    assert_int_equal(c->open->generation, UINT32_MAX);
    assert_int_equal(c->open->n_blocks, 7);
    assert_memory_equal(c->open->blocks, s.blocks, 7 * sizeof s.blocks[0]);
    pack(&s, TOKENS);
    assert_int_equal(unpack(&s, TOKENS, &sample_limits, sample_arena(), &t, NULL), MR_OK);
    assert_int_equal(t->tokens[1]->position, CONTEXT);
    assert_int_equal(t->tokens[1]->status, MR_E_NUMERICS);
    assert_int_equal(t->tokens[1]->top_ids[19], 999);
    assert_true(t->tokens[1]->top_logprobs[19] == -INFINITY && t->tokens[0]->mirostat_mu == 1e12);
}

/* A failure's text is what ends up in logs and terminals. */
static void test_text_is_cleaned(void **state) {
    (void)state;
    samples s;
    Millrace__Report *r = NULL;
    samples_init(&s, 1, MILLRACE__REPORT__BODY_FAILURE);
    snprintf(s.text, sizeof s.text, "a\x1b[31m\n\x7f\xc3\xa9~ z");
    pack(&s, REPORT);
    assert_int_equal(unpack(&s, REPORT, &sample_limits, sample_arena(), &r, NULL), MR_OK);
    assert_string_equal(r->failure->text, "a?[31m????~ z");
    memset(s.text, 'x', sizeof s.text - 1);
    pack(&s, REPORT);
    assert_int_equal(unpack(&s, REPORT, &sample_limits, sample_arena(), &r, NULL), MR_OK);
    assert_int_equal(strlen(r->failure->text), MR_MAX_ERROR_TEXT - 1);
    s.text[0] = 0;
    pack(&s, REPORT);
    assert_int_equal(unpack(&s, REPORT, &sample_limits, sample_arena(), &r, NULL), MR_OK);
    assert_string_equal(r->failure->text, "");
}

static void expect_bytes_refused(const uint8_t *data, size_t bytes, const char *words) {
    mr_err err = {0};
    Millrace__Control *c = NULL;
    assert_int_equal(mr_msg_unpack_control(data, bytes, &sample_limits, sample_arena(), &c, &err), MR_E_PROTOCOL);
    expect_error_text(&err, words);
    assert_null(c);
}

static void test_unknown_and_malformed(void **state) {
    (void)state;
    static const uint8_t body_15[] = {15 << 3 | 2, 0}, varint_15[] = {15 << 3, 1},
                         in_step[] = {4 << 3 | 2, 2, 14 << 3, 1};
    static const uint8_t cut[] = {4 << 3 | 2, 5, 0}, group[] = {1 << 3 | 3}, number_zero[] = {0};
    expect_bytes_refused((const uint8_t *)"", 0, "body is 0");
    expect_bytes_refused(body_15, sizeof body_15, "control message: unknown field 15");
    expect_bytes_refused(varint_15, sizeof varint_15, "unknown field 15");
    expect_bytes_refused(in_step, sizeof in_step, "step plan: unknown field 14");
    expect_bytes_refused(cut, sizeof cut, "Control message of 3 bytes is malformed");
    expect_bytes_refused(group, sizeof group, "malformed");
    expect_bytes_refused(number_zero, sizeof number_zero, "malformed");
    size_t most = mr_msg_control_bytes(&sample_limits);
    char words[64];
    snprintf(words, sizeof words, "%zu bytes, more than %zu", most + 1, most);
    expect_bytes_refused(NULL, most + 1, words);
}

static void test_pack_that_does_not_fit(void **state) {
    (void)state;
    samples s;
    mr_err err = {0};
    size_t bytes = 77;
    samples_init(&s, MILLRACE__CONTROL__BODY_PLAN, 1);
    pack(&s, CONTROL);
    uint8_t *exact = mr_alloc(s.bytes);
    assert_non_null(exact);
    for (size_t capacity = 0; capacity < s.bytes; capacity++)
        assert_int_equal(mr_msg_pack(&s.control.base, exact, capacity, &bytes, &err), MR_E_TOO_LONG);
    expect_error_text(&err, "Control message of ");
    assert_int_equal(bytes, 77);
    assert_int_equal(exact[0], 0);
    assert_int_equal(mr_msg_pack(&s.control.base, exact, s.bytes, &bytes, NULL), MR_OK);
    assert_int_equal(bytes, s.bytes);
    assert_memory_equal(exact, s.packed, bytes);
    mr_free(exact);
}

/* Arenas of every size from nothing to enough: the message is refused with a reason, or valid. */
static void test_every_arena_size(void **state) {
    (void)state;
    static uint64_t arena_memory[512];
    samples s;
    bool fitted = false;
    samples_init(&s, MILLRACE__CONTROL__BODY_STEP, 1);
    pack(&s, CONTROL);
    for (size_t size = 128; size <= sizeof arena_memory; size += 8) {
        mr_err err = {0};
        Millrace__Control *c = NULL;
        mr_arena *a = mr_arena_create_fixed(arena_memory, size);
        if (!a)
            continue;
        mr_status status = unpack(&s, CONTROL, &sample_limits, a, &c, &err);
        if (status == MR_OK) {
            fitted = true;
            assert_memory_equal(c->step->runs[1]->ids, s.ids, 14 * sizeof s.ids[0]);
        } else {
            assert_false(fitted);
            assert_int_equal(status, MR_E_PROTOCOL);
            expect_error_text(&err, "needs more than ");
        }
    }
    assert_true(fitted);
}

/* The largest messages within limits fit the bytes and the arena that were promised to be enough. */
static void expect_fits(const mr_msg_limits *l, const ProtobufCMessage *m, bool tokens) {
    size_t room = mr_msg_arena_bytes(l), bytes = 0;
    size_t packed_bytes = tokens ? mr_tokens_message_bytes(l->max_rows) : mr_msg_control_bytes(l);
    assert_true(packed_bytes <= (tokens ? MR_MAX_TOKENS_BYTES : MR_MAX_CONTROL_BYTES));
    uint8_t *packed = mr_alloc(packed_bytes);
    void *buffer = mr_alloc(room), *out = NULL;
    mr_err err = {0};
    assert_true(packed && buffer);
    assert_int_equal(mr_msg_pack(m, packed, packed_bytes, &bytes, NULL), MR_OK);
    mr_arena *a = mr_arena_create_fixed(buffer, room);
    mr_status status = tokens ? mr_msg_unpack_tokens(packed, bytes, l, a, (Millrace__Tokens **)&out, &err)
                              : mr_msg_unpack_control(packed, bytes, l, a, (Millrace__Control **)&out, &err);
    if (status != MR_OK)
        fail_msg("%s", err.text);
    mr_free(buffer);
    mr_free(packed);
}

enum { MOST_BLOCKS = MR_MAX_CONTEXT / MR_WIRE_BLOCK_TOKENS };

/* Numbers are the largest that there are, so that they take the most bytes. */
static uint32_t last_ids[MR_MAX_CONTEXT], last_blocks[MOST_BLOCKS];

static void largest_step(samples *s, const mr_msg_limits *l) {
    static Millrace__Run items[MR_MAX_STEP_ROWS], *list[MR_MAX_STEP_ROWS];
    samples_init(s, MILLRACE__CONTROL__BODY_STEP, 1);
    for (uint32_t i = 0; i < l->max_rows; i++) {
        items[i] = (Millrace__Run)MILLRACE__RUN__INIT;
        items[i].slot = l->max_sequences - 1;
        items[i].generation = UINT32_MAX;
        items[i].first_position = l->max_context - 1;
        items[i].n_rows = items[i].n_ids = items[i].n_blocks = 1;
        items[i].ids = last_ids;
        items[i].first_block_idx = mr_msg_table_entries(l) - 1;
        items[i].blocks = last_blocks;
        items[i].want = MILLRACE__WANT__WANT_ALL_HIDDEN;
        list[i] = &items[i];
    }
    s->step.step = UINT64_MAX;
    s->step.n_runs = l->max_rows;
    s->step.runs = list;
    s->step.n_copy_from = s->step.n_copy_to = l->max_sequences;
    s->step.copy_from = s->step.copy_to = last_blocks;
}

static void largest_tokens(samples *s, const mr_msg_limits *l) {
    static Millrace__Token items[MR_MAX_STEP_ROWS], *list[MR_MAX_STEP_ROWS];
    samples_init(s, MILLRACE__CONTROL__BODY_STEP, 1);
    for (uint32_t i = 0; i < l->max_rows; i++) {
        items[i] = (Millrace__Token)MILLRACE__TOKEN__INIT;
        items[i].slot = l->max_sequences - 1;
        items[i].generation = UINT32_MAX;
        items[i].position = l->max_context;
        items[i].id = l->n_vocab - 1;
        items[i].status = MR_E_NUMERICS;
        items[i].mirostat_mu = items[i].logprob = -1;
        items[i].n_top_ids = items[i].n_top_logprobs = MR_MAX_TOP_LOGPROBS;
        items[i].top_ids = last_ids;
        items[i].top_logprobs = s->top_logprobs;
        list[i] = &items[i];
    }
    s->tokens.step = UINT64_MAX;
    s->tokens.n_tokens = l->max_rows;
    s->tokens.tokens = list;
}

static void largest_open(samples *s, const mr_msg_limits *l) {
    static float biases[MR_MAX_LOGIT_BIASES];
    static uint32_t bad_words[MR_MAX_BAD_WORDS];
    static uint8_t grammar[MR_MAX_GRAMMAR_BYTES];
    samples_init(s, MILLRACE__CONTROL__BODY_OPEN, 1);
    s->open.slot = l->max_sequences - 1;
    s->open.ids = last_ids;
    s->open.n_ids = s->open.n_generated = l->max_context;
    s->open.blocks = last_blocks;
    s->open.n_blocks = mr_msg_table_entries(l);
    s->sampling.top_k = s->sampling.dry_allowed_length = INT32_MAX;
    s->sampling.repeat_last_n = s->sampling.dry_last_n = -1;
    s->sampling.dry_breakers = s->sampling.bias_ids = last_ids;
    s->sampling.n_dry_breakers = MR_MAX_DRY_BREAKERS;
    s->sampling.min_tokens = MR_MAX_CONTEXT;
    s->sampling.late_ids = last_ids;
    s->sampling.n_late_ids = MR_MAX_LATE_IDS;
    bad_words[0] = MR_MAX_BAD_WORDS - 1; /* a single bad word of that many ids */
    for (int i = 1; i < MR_MAX_BAD_WORDS; i++)
        bad_words[i] = l->n_vocab - 1;
    s->sampling.bad_words = bad_words;
    s->sampling.n_bad_words = MR_MAX_BAD_WORDS;
    s->sampling.biases = biases;
    s->sampling.n_bias_ids = s->sampling.n_biases = MR_MAX_LOGIT_BIASES;
    s->open.grammar.data = grammar;
    s->open.grammar.len = sizeof grammar;
}

static void test_bytes_are_enough(void **state) {
    (void)state;
    static const uint32_t row_counts[] = {1, 2, 16, 17, 33, 512, MR_MAX_STEP_ROWS};
    static Millrace__StageRange stage_items[MR_MAX_STAGES], *stage_list[MR_MAX_STAGES];
    samples s;
    for (int i = 0; i < MOST_BLOCKS; i++)
        last_blocks[i] = MR_MAX_KV_BLOCKS - 1;
    for (size_t n = 0; n < sizeof row_counts / sizeof row_counts[0]; n++)
        for (uint32_t half = 0; half < 2; half++) {
            /* With a vocabulary twice as large, ids take one byte more, and the same message has room for less
             * context. */
            const mr_msg_limits l = {4,
                                     row_counts[n],
                                     MR_MAX_SEQUENCES,
                                     (uint32_t)MR_MAX_CONTEXT >> half,
                                     MR_MAX_KV_BLOCKS,
                                     (uint32_t)1 << (21 + half)};
            for (int i = 0; i < MR_MAX_CONTEXT; i++)
                last_ids[i] = l.n_vocab - 1;
            largest_step(&s, &l);
            expect_fits(&l, &s.control.base, false);
            largest_tokens(&s, &l);
            expect_fits(&l, &s.tokens.base, true);
            largest_open(&s, &l);
            expect_fits(&l, &s.control.base, false);
        }
    /* A plan has to fit into the space of a message before the other limits are known. */
    static const mr_msg_limits none = {0};
    samples_init(&s, MILLRACE__CONTROL__BODY_PLAN, 1);
    for (uint32_t i = 0; i < MR_MAX_STAGES; i++) {
        stage_items[i] = (Millrace__StageRange)MILLRACE__STAGE_RANGE__INIT;
        stage_items[i].first_layer = i;
        stage_items[i].last_layer = i + 1;
        stage_list[i] = &stage_items[i];
    }
    s.plan.n_stages = MR_MAX_STAGES;
    s.plan.stages = stage_list;
    expect_fits(&none, &s.control.base, false);
}

/* Few bytes that unpack into very many objects meet the end of the arena. */
static void test_amplification_is_bounded(void **state) {
    (void)state;
    enum { RUNS = 100000 };
    size_t body = 2 * RUNS, at = 0;
    uint8_t *data = mr_alloc(body + 8);
    assert_non_null(data);
    data[at++] = 4 << 3 | 2; /* the field "step", with a length in three bytes */
    data[at++] = (uint8_t)(body & 0x7f) | 0x80;
    data[at++] = (uint8_t)(body >> 7 & 0x7f) | 0x80;
    data[at++] = (uint8_t)(body >> 14);
    for (size_t i = 0; i < RUNS; i++) {
        data[at++] = 2 << 3 | 2; /* a run without fields */
        data[at++] = 0;
    }
    expect_bytes_refused(data, at, "needs more than 262144 bytes of memory");
    mr_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_text_is_cleaned),
        cmocka_unit_test(test_unknown_and_malformed),
        cmocka_unit_test(test_pack_that_does_not_fit),
        cmocka_unit_test(test_every_arena_size),
        cmocka_unit_test(test_bytes_are_enough),
        cmocka_unit_test(test_amplification_is_bounded),
    };
    return cmocka_run_group_tests_name("proto_messages", tests, NULL, NULL);
}
