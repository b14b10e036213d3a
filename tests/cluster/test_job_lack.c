/* The last stage has no memory for the grammar of a sequence. The sequence waits and is tried again, others go on
 * meanwhile, and a grammar that never fits fails after a bounded number of tries. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "tests/cluster/test_job_cast.h"
#include "tests/support/test.h"

enum { N_PROMPT = 20, N_TOKENS = 4, MOST_OPENS = 20, N_ACTS = 200, ARENA_BYTES = 256 << 10, TRIES = 12, TAIL_RANK = 1 };
static const int64_t START_NS = 1000 * MR_NS_PER_S, FIRST_PAUSE_NS = 100 * MR_NS_PER_MS,
                     LONGEST_PAUSE_NS = 10 * MR_NS_PER_S;
static const mr_msg_limits LIMITS = {
    .n_stages = N_STAGES, .max_rows = 32, .max_sequences = 2, .max_context = 64, .n_kv_blocks = 8, .n_vocab = VOCAB};

typedef struct client {
    int32_t n_tokens;
    int64_t ended_ns;
    mr_finish finish;
    mr_status status;
    char text[64];
    int64_t cancels; /* this sequence, with the last token; -1: none */
} client;

/* What happens to the sequence beside the lack. */
typedef enum extra { NOTHING, CANCELLED, PREEMPTED } extra;

/* What the last stage knows, and what became of it. */
static struct {
    mr_arena *arena;
    int32_t n_lacks; /* so many grammars find no memory */
    bool lacks[2];   /* by slot: there was no memory for the grammar */
    int32_t n_opens; /* of sequences with a grammar */
    int64_t opened_ns[MOST_OPENS];
    bool preempts;   /* the sequence with a grammar, soon */
    int32_t n_named; /* how often the job has named the rank of the last stage */
} tail;

static mr_job *job;

/* --- The stages -------------------------------------------------------------------------------------------------- */

static void take_open(const Millrace__OpenSequence *open) {
    tail.lacks[open->slot] = open->grammar.len > 0 && tail.n_opens < tail.n_lacks;
    if (open->grammar.len == 0)
        return;
    assert_true(tail.n_opens < MOST_OPENS);
    tail.opened_ns[tail.n_opens++] = mr_clock_now_ns();
}

/* Answers each run that wants a token, also those that were issued before the lack was known. */
static void take_step(cast *c, const Millrace__StepPlan *plan) {
    Millrace__Token all[2], *ptrs[2] = {&all[0], &all[1]};
    Millrace__Tokens tokens = MILLRACE__TOKENS__INIT;
    bool was_sent;
    mr_err err;
    tokens.step = plan->step;
    tokens.tokens = ptrs;
    for (size_t i = 0; i < plan->n_runs; i++) {
        const Millrace__Run *run = plan->runs[i];
        if (run->want != MILLRACE__WANT__WANT_TOKEN)
            continue;
        Millrace__Token *token = &all[tokens.n_tokens++];
        millrace__token__init(token);
        token->slot = run->slot;
        token->generation = run->generation;
        token->position = run->first_position + run->n_rows;
        token->id = 5;
        token->status = tail.lacks[run->slot] ? MR_E_NO_MEMORY : MR_OK;
    }
    expect_ok(mr_outbox_send_message(c->tokens, &tokens.base, &was_sent, &err), &err);
    assert_true(was_sent);
}

/* Takes the messages for a stage. Returns how many there were. */
static int32_t take_messages(cast *c, int stage, bool has_plan) {
    mr_err err;
    for (int32_t n = 0;; n++) {
        mr_frame frame;
        const uint8_t *payload = NULL;
        Millrace__Control *message = NULL;
        expect_ok(mr_inbox_peek(c->control[stage], &frame, &payload, &err), &err);
        if (!payload)
            return n;
        if (has_plan && stage == N_STAGES - 1) {
            expect_ok(mr_msg_unpack_control(payload, frame.payload_bytes, &LIMITS, tail.arena, &message, &err), &err);
            if (message->body_case == MILLRACE__CONTROL__BODY_OPEN)
                take_open(message->open);
            else if (message->body_case == MILLRACE__CONTROL__BODY_STEP)
                take_step(c, message->step);
        }
        expect_ok(mr_inbox_release(c->control[stage], &err), &err);
    }
}

static void take_plan(cast *c) {
    for (int i = 0; i < N_STAGES; i++) {
        (void)take_messages(c, i, false);
        cast_send_ready(c, i, (uint32_t)i);
    }
}

/* Where the job only waits, time goes on to the end of its wait. */
static void answer(cast *c) {
    int32_t n = 0;
    for (int i = 0; i < N_STAGES; i++)
        n += take_messages(c, i, true);
    if (n > 0)
        return;
    if (c->deadline_ns == MR_NEVER)
        fail_msg("the job waits for ever");
    mr_clock_freeze(c->deadline_ns);
}

/* --- The job ----------------------------------------------------------------------------------------------------- */

static bool hear(void *ctx, const mr_token_event *event) {
    client *c = ctx;
    assert_int_equal(c->finish, MR_FINISH_NONE);
    c->finish = event->finish;
    c->status = event->status;
    c->ended_ns = mr_clock_now_ns();
    if (event->status == MR_OK)
        assert_int_equal(event->n_generated, ++c->n_tokens);
    else
        strncpy(c->text, event->text, sizeof c->text - 1);
    if (c->n_tokens == N_TOKENS && c->cancels >= 0)
        mr_job_cancel(job, c->cancels);
    return false;
}

/* Between two turns. */
static bool look(void *ctx) {
    (void)ctx;
    if (tail.preempts && mr_job_get_stats(job).n_live == 2) { /* while the first token is under way */
        assert_true(job_preempt(job));
        tail.preempts = false;
    }
    int32_t rank = mr_job_take_lacking_rank(job);
    assert_true(rank == -1 || rank == TAIL_RANK);
    tail.n_named += rank == TAIL_RANK;
    return false;
}

static int64_t submit(client *c, bool follows, int64_t cancels) {
    static const int32_t ids[N_PROMPT] = {1, 2, 3};
    static const uint8_t grammar[] = {1}; /* nobody reads it */
    int64_t sequence;
    mr_err err;
    *c = (client){.cancels = cancels};
    const mr_sequence_desc desc = {.prompt_ids = ids,
                                   .n_prompt = N_PROMPT,
                                   .max_tokens = N_TOKENS,
                                   .sampling = mr_sampling_params_default(),
                                   .grammar = follows ? grammar : NULL,
                                   .grammar_bytes = follows ? sizeof grammar : 0,
                                   .fresh = true,
                                   .on_token = hear,
                                   .ctx = c};
    expect_ok(mr_job_submit(job, &desc, &sequence, &err), &err);
    return sequence;
}

/* A sequence without a grammar and one with a grammar, which does not fit for the first n_lacks times. */
static void play(int32_t n_lacks, extra with, client *constrained, client *free) {
    static mr_plan plan = {.n_stages = N_STAGES,
                           .stages = {{.first = 0, .last = 1}, {.first = 1, .last = 4, .rank = TAIL_RANK}}};
    act acts[N_ACTS] = {take_plan};
    cast c = {.acts = acts, .n_acts = N_ACTS};
    const mr_model_info info = {.n_layers = 4, .vocab_size = VOCAB};
    mr_job_config config = {.info = &info,
                            .epoch = {.plan = &plan, .number = EPOCH, .n_kv_blocks = (int32_t)LIMITS.n_kv_blocks},
                            .channel = &c.base,
                            .max_rows = (int32_t)LIMITS.max_rows,
                            .max_out_rows = (int32_t)LIMITS.max_rows,
                            .max_sequences = (int32_t)LIMITS.max_sequences,
                            .max_context = (int32_t)LIMITS.max_context,
                            .grammars = true,
                            .wants_restart = look};
    mr_err err;
    for (int i = 1; i < N_ACTS; i++)
        acts[i] = answer;
    memset(&tail, 0, sizeof tail);
    tail.n_lacks = n_lacks;
    tail.preempts = with == PREEMPTED;
    expect_ok(mr_arena_create(ARENA_BYTES, ARENA_BYTES, &tail.arena, &err), &err);
    mr_clock_freeze(START_NS);
    cast_create(&c);
    expect_ok(mr_job_create(&config, &job, &err), &err);
    (void)submit(free, false, with == CANCELLED ? 1 : -1);
    assert_int_equal(submit(constrained, true, -1), 1);
    expect_ok(mr_job_run(job, &err), &err);
    mr_job_stats stats = mr_job_get_stats(job);
    assert_true(stats.n_live == 0 && stats.n_waiting == 0 && stats.n_held_blocks == 0);
    assert_int_equal(stats.n_preempted, with == PREEMPTED);
    mr_job_destroy(job);
    cast_destroy(&c);
    mr_clock_freeze(-1);
    mr_arena_destroy(tail.arena);
}

static void expect_tries(int32_t n) {
    int64_t pause_ns = FIRST_PAUSE_NS;
    assert_int_equal(tail.n_opens, n);
    for (int32_t i = 1; i < n; i++) {
        assert_int_equal(tail.opened_ns[i] - tail.opened_ns[i - 1], pause_ns);
        pause_ns = 2 * pause_ns < LONGEST_PAUSE_NS ? 2 * pause_ns : LONGEST_PAUSE_NS;
    }
}

/* The other sequence has its text before the first pause is over. */
static void expect_goes_on(const client *free) {
    assert_int_equal(free->finish, MR_FINISH_LENGTH);
    assert_int_equal(free->n_tokens, N_TOKENS);
    assert_true(free->ended_ns < START_NS + FIRST_PAUSE_NS);
}

/* --- Tests ------------------------------------------------------------------------------------------------------- */

static void test_memory_comes_free(void **state) {
    (void)state;
    client constrained, free;
    for (int32_t n_lacks = 0; n_lacks < TRIES; n_lacks++) {
        play(n_lacks, NOTHING, &constrained, &free);
        assert_int_equal(constrained.status, MR_OK);
        assert_int_equal(constrained.finish, MR_FINISH_LENGTH);
        assert_int_equal(constrained.n_tokens, N_TOKENS);
        expect_tries(n_lacks + 1);
        expect_goes_on(&free);
        assert_int_equal(tail.n_named, n_lacks / 4);
    }
}

static void test_grammar_that_never_fits(void **state) {
    (void)state;
    client constrained, free;
    play(MOST_OPENS, NOTHING, &constrained, &free);
    assert_int_equal(constrained.status, MR_E_NO_MEMORY);
    assert_int_equal(constrained.finish, MR_FINISH_ERROR);
    assert_int_equal(constrained.n_tokens, 0);
    expect_says(constrained.text, "no memory to follow the grammar");
    expect_tries(TRIES);
    expect_goes_on(&free);
    assert_int_equal(tail.n_named, 2);
    assert_true(constrained.ended_ns - START_NS > 50 * MR_NS_PER_S);
}

/* A client that gives up while its sequence waits. */
static void test_cancel(void **state) {
    (void)state;
    client constrained, free;
    play(MOST_OPENS, CANCELLED, &constrained, &free);
    assert_int_equal(constrained.finish, MR_FINISH_NONE);
    expect_tries(1);
    expect_goes_on(&free);
}

/* The sequence is preempted before the job hears of the lack. */
static void test_preempted(void **state) {
    (void)state;
    client constrained, free;
    play(3, PREEMPTED, &constrained, &free);
    assert_int_equal(constrained.finish, MR_FINISH_LENGTH);
    assert_int_equal(constrained.n_tokens, N_TOKENS);
    expect_tries(4);
    expect_goes_on(&free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_comes_free),
        cmocka_unit_test(test_grammar_that_never_fits),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_preempted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
