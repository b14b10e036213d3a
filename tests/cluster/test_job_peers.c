/* A job whose stages send invalid messages or disconnect. Each case must end with the status and the text that say
 * what was wrong. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/job/job.h"
#include "tests/cluster/test_job_cast.h"
#include "tests/support/test.h"

enum { N_PROMPT = 3 };

static void all_ready(cast *c) {
    for (int i = 0; i < N_STAGES; i++)
        cast_send_ready(c, i, (uint32_t)i);
}

/* --- The job ----------------------------------------------------------------------------------------------------- */

static bool on_token(void *ctx, const mr_token_event *event) {
    (void)ctx;
    (void)event;
    return false;
}

static void on_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    (void)ctx;
    (void)logits;
    assert_true(first_position >= 0 && n_rows > 0 && first_position + n_rows <= N_PROMPT);
}

/* Slot 0 wants logits, slot 1 a few tokens; steps 1 (both prompts) and 2 (the first token's row) are under way soon. */
static void submit(mr_job *job) {
    int32_t *ids = malloc(N_PROMPT * sizeof *ids);
    int64_t sequence;
    mr_err err;
    assert_non_null(ids);
    memset(ids, 0, N_PROMPT * sizeof *ids);
    mr_sequence_desc desc = {
        .prompt_ids = ids, .n_prompt = N_PROMPT, .sampling.repeat_penalty = 1, .on_logits = on_logits};
    expect_ok(mr_job_submit(job, &desc, &sequence, &err), &err);
    desc.on_logits = NULL;
    desc.on_token = on_token;
    desc.max_tokens = 4;
    desc.fresh = true; /* otherwise the sequence would wait for the step of the other one */
    expect_ok(mr_job_submit(job, &desc, &sequence, &err), &err);
    free(ids);
}

static bool counts_uses; /* the job asks for counts of uses instead of running sequences */
static mr_profile profile;

static mr_status play(cast *c, mr_err *err) {
    static mr_plan plan;
    mr_model_info info = {.n_layers = 4, .vocab_size = VOCAB};
    mr_job *job = NULL;
    plan = (mr_plan){.n_stages = N_STAGES, .stages = {{.first = 0, .last = 1}, {.first = 1, .last = 4, .rank = 1}}};
    mr_job_config config = {.info = &info,
                            .plan = &plan,
                            .channel = &c->base,
                            .epoch = EPOCH,
                            .max_rows = 8,
                            .max_out_rows = 8,
                            .counts_uses = counts_uses,
                            .max_sequences = 2,
                            .max_context = 32,
                            .n_kv_blocks = 4};
    *err = (mr_err){0};
    cast_create(c);
    mr_status status = mr_job_create(&config, &job, err);
    if (status == MR_OK && counts_uses) {
        status = mr_job_collect_profile(job, &profile, err);
    } else if (status == MR_OK) {
        submit(job);
        status = mr_job_run(job, err);
    }
    mr_job_destroy(job);
    cast_destroy(c);
    return status;
}

static void expect(cast *c, mr_status want, const char *text) {
    mr_err err;
    mr_status status = play(c, &err);
    if (status != want || err.status != want || !strstr(err.text, text))
        fail_msg("%s: \"%s\"; expected %s: \"%s\"", mr_status_name(status), err.text, mr_status_name(want), text);
}

/* Plays all_ready, then the act. */
static void expect_of_act(act second, mr_status want, const char *text) {
    const act acts[] = {all_ready, second};
    expect(&(cast){.acts = acts, .n_acts = 2}, want, text);
}

/* --- Tokens ------------------------------------------------------------------------------------------------------ */

static void token_for_logits(cast *c) {
    cast_send_token(c, 1, 0, N_PROMPT);
}
static void tokens_of_step_0(cast *c) {
    cast_send_token(c, 0, 1, N_PROMPT);
}
static void tokens_of_step_3(cast *c) {
    cast_send_token(c, 3, 1, N_PROMPT);
}
static void tokens_of_step_5(cast *c) {
    cast_send_token(c, 5, 1, N_PROMPT); /* uses the same place in the ring as step 1 */
}
static void tokens_twice(cast *c) {
    cast_send_token(c, 1, 1, N_PROMPT);
    cast_send_token(c, 1, 1, N_PROMPT + 1);
}
static void token_of_another_position(cast *c) {
    cast_send_token(c, 1, 1, N_PROMPT + 1);
}
static void token_of_no_slot(cast *c) {
    cast_send_token(c, 1, 2, N_PROMPT);
}
static void broken_tokens(cast *c) {
    mr_frame frame = {.payload_bytes = 5};
    cast_send_frame(c->tokens, frame, "\xff\xff\xff\xff\xff");
}

static void test_tokens(void **state) {
    (void)state;
    expect_of_act(token_for_logits, MR_E_PROTOCOL, "slot 0");
    expect_of_act(tokens_of_step_0, MR_E_PROTOCOL, "tokens of step 0, which is not under way");
    expect_of_act(tokens_of_step_3, MR_E_PROTOCOL, "tokens of step 3, which is not under way");
    expect_of_act(tokens_of_step_5, MR_E_PROTOCOL, "tokens of step 5, which is not under way");
    expect_of_act(tokens_twice, MR_E_PROTOCOL, "tokens of step 1, which is not under way");
    expect_of_act(token_of_another_position, MR_E_PROTOCOL, "position 4");
    expect_of_act(token_of_no_slot, MR_E_PROTOCOL, "slot is 2");
    expect_of_act(broken_tokens, MR_E_PROTOCOL, "");
}

/* --- Counts of uses ---------------------------------------------------------------------------------------------- */

static void counts_of_layer_0(cast *c) {
    cast_send_use_count(c, 1, 0);
}
static void counts_of_layer_4(cast *c) {
    cast_send_use_count(c, 1, 4);
}
static void counts_twice(cast *c) {
    cast_send_use_count(c, 1, 3);
    cast_send_use_count(c, 1, 3);
}
static void counts_behind_the_end(cast *c) {
    cast_send_use_count(c, 1, CAST_END_OF_COUNTS);
    cast_send_use_count(c, 1, 3);
}
static void stage_1_leaves_before_its_counts(cast *c) {
    cast_send_use_count(c, 0, CAST_END_OF_COUNTS);
    cast_leave(c, 1);
}
static void all_counts(cast *c) {
    cast_send_use_count(c, 1, 3);
    cast_send_use_count(c, 0, CAST_END_OF_COUNTS);
    cast_send_use_count(c, 1, 2);
    cast_send_use_count(c, 1, CAST_END_OF_COUNTS);
}

static void test_use_counts(void **state) {
    (void)state;
    const act good[] = {all_ready, all_counts};
    mr_err err;
    expect_of_act(counts_twice, MR_E_PROTOCOL, "stage 1: counts of uses, which nobody has asked for");
    counts_uses = true;
    expect_of_act(counts_of_layer_0, MR_E_PROTOCOL, "stage 1 (layers 1 to 3): counts of layer 0");
    expect_of_act(counts_of_layer_4, MR_E_PROTOCOL, "stage 1 (layers 1 to 3): counts of layer 4");
    expect_of_act(counts_twice, MR_E_PROTOCOL, "stage 1: layer 3: counts 0 to 0 of 8 do not follow the 1 before");
    expect_of_act(counts_behind_the_end, MR_E_PROTOCOL, "stage 1: counts of uses, which nobody has asked for");
    expect_of_act(stage_1_leaves_before_its_counts, MR_E_PEER_LOST, "stage 1");
    expect_ok(play(&(cast){.acts = good, .n_acts = 2}, &err), &err);
    assert_true(profile.n_layers == 2 && profile.layers[0].layer == 2 && profile.layers[1].counts[0] == 2);
    mr_profile_deinit(&profile);
    counts_uses = false;
}

/* --- Logits ------------------------------------------------------------------------------------------------------ */

static void logits_of_step_0(cast *c) {
    cast_send_logits(c, 0, 1, VOCAB * 4);
}
static void no_logits_of_step_0(cast *c) {
    cast_send_logits(c, 0, 0, VOCAB * 4);
}
static void no_logits_of_step_1(cast *c) {
    cast_send_logits(c, 1, 0, VOCAB * 4);
}
static void logits_of_step_2(cast *c) {
    cast_send_logits(c, 2, 1, VOCAB * 4);
}
static void no_logits_of_step_2(cast *c) {
    cast_send_logits(c, 2, 0, VOCAB * 4);
}
static void too_many_logits(cast *c) {
    cast_send_logits(c, 1, N_PROMPT + 1, VOCAB * 4);
}
static void too_many_logits_later(cast *c) {
    cast_send_logits(c, 1, N_PROMPT - 1, VOCAB * 4);
    cast_send_logits(c, 1, 2, VOCAB * 4);
}
static void short_logits(cast *c) {
    cast_send_logits(c, 1, 1, VOCAB * 4 - 4);
}

static void test_logits(void **state) {
    (void)state;
    expect_of_act(logits_of_step_0, MR_E_PROTOCOL, "1 rows of logits of step 0");
    expect_of_act(no_logits_of_step_0, MR_E_PROTOCOL, "0 rows of logits of step 0");
    expect_of_act(no_logits_of_step_1, MR_E_PROTOCOL, "0 rows of logits of step 1");
    expect_of_act(logits_of_step_2, MR_E_PROTOCOL, "1 rows of logits of step 2");
    expect_of_act(no_logits_of_step_2, MR_E_PROTOCOL, "0 rows of logits of step 2");
    expect_of_act(too_many_logits, MR_E_PROTOCOL, "4 rows of logits of step 1");
    expect_of_act(too_many_logits_later, MR_E_PROTOCOL, "2 rows of logits of step 1");
    expect_of_act(short_logits, MR_E_PROTOCOL, "rows of 356 bytes where 90 columns are due");
}

/* --- Reports and losses ------------------------------------------------------------------------------------------ */

static void failure_of_1(cast *c) {
    cast_send_failure(c, 1, 1, MR_E_DEVICE, "the fan fell off");
}
static void nothing(cast *c) {
    (void)c;
}
static void stage_0_leaves(cast *c) {
    cast_leave(c, 0);
}
static void stage_1_leaves(cast *c) {
    cast_leave(c, 1);
}
/* Stage 1 fails, and stage 0 goes after it. */
static void one_after_the_other(cast *c) {
    failure_of_1(c);
    cast_leave(c, 1);
    cast_leave(c, 0);
}
/* Stage 0 tells of the loss, too. */
static void both_tell(cast *c) {
    failure_of_1(c);
    cast_leave(c, 1);
    cast_send_failure(c, 0, 0, MR_E_PEER_LOST, "endpoint 1 is gone");
    cast_leave(c, 0);
}
/* Before there is a plan a stage does not know its number. */
static void failure_without_number(cast *c) {
    cast_send_failure(c, 1, 0, MR_E_FORMAT, "the file is torn");
}
static void failure_and_gone(cast *c) {
    failure_without_number(c);
    cast_leave(c, 1);
}
static void ready_of_another(cast *c) {
    cast_send_ready(c, 0, 1);
}
static void broken_report(cast *c) {
    mr_frame frame = {.payload_bytes = 3};
    cast_send_frame(c->report[1], frame, "\xff\xff\xff");
}

static void test_reports_while_steps_run(void **state) {
    (void)state;
    expect_of_act(failure_of_1, MR_E_DEVICE, "stage 1 (layers 1 to 3): the fan fell off");
    expect_of_act(nothing, MR_E_PEER_LOST, "stage");
    expect_of_act(stage_0_leaves, MR_E_PEER_LOST, "stage 0");
    expect_of_act(stage_1_leaves, MR_E_PEER_LOST, "stage 1");
    expect_of_act(one_after_the_other, MR_E_DEVICE, "stage 1 (layers 1 to 3): the fan fell off");
    expect_of_act(both_tell, MR_E_DEVICE, "stage 1 (layers 1 to 3): the fan fell off");
    expect_of_act(ready_of_another, MR_E_PROTOCOL, "stage 0");
    expect_of_act(broken_report, MR_E_PROTOCOL, "stage 1");
}

static void expect_at_create(act first, mr_status want, const char *text) {
    const act acts[] = {first};
    expect(&(cast){.acts = acts, .n_acts = 1}, want, text);
}

static void test_reports_while_stages_load(void **state) {
    (void)state;
    expect_at_create(failure_of_1, MR_E_DEVICE, "stage 1 (layers 1 to 3): the fan fell off");
    expect_at_create(failure_without_number, MR_E_FORMAT, "stage 1 (layers 1 to 3): the file is torn");
    expect_at_create(one_after_the_other, MR_E_DEVICE, "stage 1 (layers 1 to 3): the fan fell off");
    expect_at_create(nothing, MR_E_PEER_LOST, "stage");
    expect_at_create(stage_0_leaves, MR_E_PEER_LOST, "stage 0");
    expect_at_create(ready_of_another, MR_E_PROTOCOL, "stage 0");
    expect_at_create(broken_report, MR_E_PROTOCOL, "stage 1");
    /* The stage left before the plan was sent. The error still has the reason of the stage. */
    expect(&(cast){.on_first_send = failure_and_gone}, MR_E_FORMAT, "stage 1 (layers 1 to 3): the file is torn");
    expect(&(cast){.on_first_send = stage_0_leaves}, MR_E_PEER_LOST, "stage 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_use_counts),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_reports_while_steps_run),
        cmocka_unit_test(test_reports_while_stages_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
