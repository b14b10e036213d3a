/* A job restarts on purpose and KV blocks go along, also while steps run and between devices and CPUs: what sequences
 * hear is what they hear in the undisturbed run. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "tests/cluster/restart_rig.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"

enum {
    KV_BYTES = 1, /* of their bits */
    DEVICE_DELAY_US = 20,
};

/* What the rank that gets stage 1 has of it before. */
typedef struct kv_copy {
    uint8_t bits[KV_BYTES];
    uint32_t versions[N_KV_BLOCKS];
} kv_copy;

/* Whole blocks of stage 1 go to the next rank while steps run. */
static void copy_while_steps_run(restart_rig *r, kv_copy *out) {
    int32_t from = r->plan.stages[1].rank, to = from % (N_RANKS - 1) + 1,
            n = mr_job_mark_whole_blocks(r->job, out->bits);
    uint64_t step = mr_job_issued_step(r->job);
    memcpy(out->versions, mr_job_block_versions(r->job), sizeof out->versions);
    while (mr_job_done_step(r->job) < step)
        expect_ok(mr_job_turn(r->job, mr_clock_now_ns() + MR_NS_PER_MS, &r->err), &r->err);
    const mr_plan_stage *stage = &r->plan.stages[1];
    const mr_kv_demand demand = {r->epoch, r->epoch + 1, from, stage->first, stage->last, N_KV_BLOCKS, MR_TYPE_F16, n};
    const mr_kv_order order = {r->epoch, r->epoch + 1, to, out->bits, KV_BYTES, true};
    expect_ok(mr_roll_call_take_kv(r->roll, to, &demand, &r->err), &r->err);
    expect_ok(mr_roll_call_give_kv(r->roll, from, &order, &r->err), &r->err);
    const mr_rank_info *info = mr_roll_call_info(r->roll, to);
    while (info->took_epoch != demand.epoch) {
        expect_ok(mr_job_turn(r->job, mr_clock_now_ns() + MR_NS_PER_MS / 10, &r->err), &r->err);
        expect_ok(mr_roll_call_hear(r->roll, to, &r->err), &r->err);
    }
    assert_true(info->took_all);
}

/* Removes what the next rank has from the bits. Returns how many blocks are left. */
static int32_t subtract(const restart_rig *r, const kv_copy *copy, uint8_t *bits, int32_t n) {
    const uint32_t *versions = mr_job_block_versions(r->job);
    for (int32_t i = 0; i < N_KV_BLOCKS; i++) {
        if (!(bits[i / 8] & copy->bits[i / 8] & 1 << i % 8) || versions[i] != copy->versions[i])
            continue;
        bits[i / 8] &= (uint8_t) ~(1 << i % 8);
        n--;
    }
    return n;
}

/* Restarts on purpose: stage 0 stays where it is, and stage 1 moves to the next rank. kv gets what goes on; its bits
 * are static. copy: NULL: nothing was copied before. */
static mr_epoch_config next_epoch_with_kv(restart_rig *r, const kv_copy *copy, mr_epoch_kv *kv) {
    static uint8_t kept[KV_BYTES], sent[KV_BYTES];
    int32_t from = r->plan.stages[1].rank, to = from % (N_RANKS - 1) + 1;
    memset(kept, 0, sizeof kept);
    int32_t n = mr_job_mark_blocks(r->job, kept);
    memcpy(sent, kept, sizeof sent);
    *kv = (mr_epoch_kv){.from = {-1, from}, .has_ahead = {false, copy != NULL}, .kept = kept};
    kv->n_sent = copy ? subtract(r, copy, sent, n) : n;
    const mr_kv_order order = {r->epoch, r->epoch + 1, to, sent, sizeof sent, false};
    for (int32_t i = 0; i < N_RANKS; i++)
        expect_ok(mr_roll_call_abort(r->roll, i, true, &r->err), &r->err);
    restart_rig_give_stage(r, &r->plan.stages[1], to);
    expect_ok(mr_roll_call_start(r->roll, 0, r->epoch + 1, &r->err), &r->err);
    expect_ok(mr_roll_call_start(r->roll, to, r->epoch + 1, &r->err), &r->err);
    expect_ok(mr_roll_call_give_kv(r->roll, from, &order, &r->err), &r->err);
    return (mr_epoch_config){.plan = &r->plan, .number = ++r->epoch, .n_kv_blocks = N_KV_BLOCKS, .kv = kv};
}

/* KV blocks go along, so that of each text at most its last, partial block is computed again. Rank i has a device with
 * memory of its own if bit i of devices is set. */
static int32_t keep_blocks(unsigned devices) {
    static heard h;
    restart_rig r;
    mr_epoch_kv kv;
    int32_t n_kept = 0, n_ahead = 0;
    mr_backend *list[N_RANKS] = {NULL};
    h = (heard){0};
    for (int32_t i = 0; i < N_RANKS; i++) {
        const test_device_options options = {
            .ops = TEST_DEVICE_ALL_OPS, .seed = (uint64_t)i, .max_delay_us = DEVICE_DELAY_US};
        if (devices >> i & 1)
            expect_ok(test_device_create(&options, &list[i], &r.err), &r.err);
    }
    restart_rig_start_with(&r, NULL, list);
    restart_rig_create_job(&r);
    restart_rig_submit_all(r.job, &h);
    for (int i = 0; i < 8; i++) {
        for (int turn = 0; turn < 60; turn++)
            expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
        kv_copy copy = {.bits = {0}};
        if (i % 2)
            copy_while_steps_run(&r, &copy);
        expect_ok(mr_job_settle(r.job, MR_NEVER, &r.err), &r.err);
        assert_int_equal(mr_job_get_stats(r.job).n_open_steps, 0);
        const mr_epoch_config epoch = next_epoch_with_kv(&r, i % 2 ? &copy : NULL, &kv);
        expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
        expect_ok(mr_ledger_check(r.job->epoch.ledger, &r.err), &r.err);
        int32_t n = mr_job_get_stats(r.job).n_kept_blocks;
        assert_true(i % 2 ? n >= kv.n_sent : n == kv.n_sent);
        n_kept += n;
        n_ahead += n - kv.n_sent;
    }
    (void)restart_rig_run_to_end(&r);
    assert_memory_equal(&h, &restart_rig_undisturbed, sizeof h);
    print_message("devices %x: %d KV blocks went along, %d of them before the pause\n", devices, (int)n_kept,
                  (int)n_ahead);
    assert_true(n_kept > 0);
    restart_rig_stop(&r);
    return n_ahead;
}

/* From CPU to CPU, from device to device, and between a device and a CPU. How many steps run before a copy depends on
 * the machine, but not so much that no block is whole in any of the runs. */
static void test_kept_blocks(void **state) {
    (void)state;
    assert_true(keep_blocks(0) + keep_blocks(~0u) + keep_blocks(0xa) + keep_blocks(0x4) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restart_rig_test_undisturbed), /* first: the others compare with its results */
        cmocka_unit_test(test_kept_blocks),
    };
    return cmocka_run_group_tests(tests, restart_rig_setup, restart_rig_teardown);
}
