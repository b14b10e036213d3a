/* Queues between threads: order, deadlines, closing, and no lost or repeated item with many threads. */
// SPDX-License-Identifier: Apache-2.0
#include <stdatomic.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/queue.h"
#include "tests/support/test.h"

static void test_first_in_first_out(void **state) {
    (void)state;
    struct {
        int a;
        char b[5];
    } item = {0}, got;
    mr_queue *q = NULL;
    assert_int_equal(mr_queue_create(sizeof item, 3, &q, NULL), MR_OK);
    uint64_t n_allocs = mr_mem_thread_allocs();
    assert_int_equal(mr_queue_try_pop(q, &got), MR_E_TIMEOUT);
    int pushed = 0, popped = 0;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 3; i++) {
            item.a = pushed++;
            assert_int_equal(mr_queue_try_push(q, &item), MR_OK);
        }
        assert_int_equal(mr_queue_try_push(q, &item), MR_E_TIMEOUT);
        assert_int_equal(mr_queue_count(q), 3);
        for (int i = 0; i < 3 - round % 2; i++) {
            assert_int_equal(mr_queue_try_pop(q, &got), MR_OK);
            assert_int_equal(got.a, popped++);
        }
        while (mr_queue_try_pop(q, &got) == MR_OK)
            assert_int_equal(got.a, popped++);
    }
    assert_int_equal(popped, pushed);
    assert_int_equal(mr_mem_thread_allocs(), n_allocs);
    mr_queue_destroy(q);
}

static void test_deadlines(void **state) {
    (void)state;
    int item = 1;
    mr_queue *q = NULL;
    assert_int_equal(mr_queue_create(sizeof item, 1, &q, NULL), MR_OK);
    int64_t start = mr_clock_now_ns();
    assert_int_equal(mr_queue_pop(q, &item, start + 5 * MR_NS_PER_MS), MR_E_TIMEOUT);
    assert_true(mr_clock_now_ns() >= start + 5 * MR_NS_PER_MS);
    assert_int_equal(mr_queue_push(q, &item, MR_NEVER), MR_OK);
    start = mr_clock_now_ns();
    assert_int_equal(mr_queue_push(q, &item, start + 5 * MR_NS_PER_MS), MR_E_TIMEOUT);
    assert_true(mr_clock_now_ns() >= start + 5 * MR_NS_PER_MS);
    assert_int_equal(mr_queue_push(q, &item, start - 1), MR_E_TIMEOUT);
    /* An item that is there is returned even if the deadline has passed. */
    assert_int_equal(mr_queue_pop(q, &item, start - 1), MR_OK);
    mr_queue_destroy(q);
}

static void test_close_lets_the_rest_out(void **state) {
    (void)state;
    int item = 7;
    mr_queue *q = NULL;
    assert_int_equal(mr_queue_create(sizeof item, 2, &q, NULL), MR_OK);
    assert_int_equal(mr_queue_try_push(q, &item), MR_OK);
    assert_int_equal(mr_queue_try_push(q, &item), MR_OK);
    mr_queue_close(q);
    mr_queue_close(q);
    assert_int_equal(mr_queue_push(q, &item, MR_NEVER), MR_E_CANCELLED);
    assert_int_equal(mr_queue_pop(q, &item, MR_NEVER), MR_OK);
    assert_int_equal(mr_queue_try_push(q, &item), MR_E_CANCELLED);
    assert_int_equal(mr_queue_try_pop(q, &item), MR_OK);
    assert_int_equal(mr_queue_try_pop(q, &item), MR_E_CANCELLED);
    assert_int_equal(mr_queue_pop(q, &item, MR_NEVER), MR_E_CANCELLED);
    mr_queue_destroy(q);
}

enum { N_SIDES = 3, N_ITEMS = 2000 };

typedef struct traffic {
    mr_queue *q;
    atomic_int next; /* number of the next item; producers publish nothing else with it */
    int n_errors[2 * N_SIDES];
    uint8_t seen[N_SIDES][N_ITEMS];
} traffic;

typedef struct side {
    traffic *t;
    int idx;
} side;

static void produce(void *ctx) {
    side *s = ctx;
    for (int id; (id = atomic_fetch_add(&s->t->next, 1)) < N_ITEMS;)
        if (mr_queue_push(s->t->q, &id, MR_NEVER) != MR_OK)
            s->t->n_errors[s->idx]++;
}

static void consume(void *ctx) {
    side *s = ctx;
    mr_status status;
    for (int id; (status = mr_queue_pop(s->t->q, &id, MR_NEVER)) == MR_OK;)
        s->t->seen[s->idx][id]++;
    if (status != MR_E_CANCELLED)
        s->t->n_errors[N_SIDES + s->idx]++;
}

static void test_many_threads_lose_and_repeat_nothing(void **state) {
    (void)state;
    static traffic t;
    side sides[N_SIDES];
    mr_thread *producers[N_SIDES], *consumers[N_SIDES];
    assert_int_equal(mr_queue_create(sizeof(int), 4, &t.q, NULL), MR_OK);
    for (int i = 0; i < N_SIDES; i++) {
        sides[i] = (side){&t, i};
        assert_int_equal(mr_thread_create("consumer", 0, consume, &sides[i], &consumers[i], NULL), MR_OK);
        assert_int_equal(mr_thread_create("producer", 0, produce, &sides[i], &producers[i], NULL), MR_OK);
    }
    for (int i = 0; i < N_SIDES; i++)
        mr_thread_join(producers[i]);
    mr_queue_close(t.q);
    for (int i = 0; i < N_SIDES; i++)
        mr_thread_join(consumers[i]);
    for (int id = 0; id < N_ITEMS; id++) {
        int n = 0;
        for (int i = 0; i < N_SIDES; i++)
            n += t.seen[i][id];
        assert_int_equal(n, 1);
    }
    for (int i = 0; i < 2 * N_SIDES; i++)
        assert_int_equal(t.n_errors[i], 0);
    mr_queue_destroy(t.q);
}

static void test_failures(void **state) {
    (void)state;
    mr_queue *q = NULL;
    mr_err err;
    assert_int_equal(mr_queue_create(0, 1, &q, &err), MR_E_INVALID);
    assert_int_equal(mr_queue_create(1, 0, &q, &err), MR_E_INVALID);
    assert_int_equal(mr_queue_create(SIZE_MAX, SIZE_MAX, &q, &err), MR_E_NO_MEMORY);
    for (int64_t n = 0; n < 2; n++) {
        mr_mem_fail_at(n);
        assert_int_equal(mr_queue_create(8, 8, &q, &err), MR_E_NO_MEMORY);
        mr_mem_fail_at(-1);
    }
    assert_null(q);
    mr_queue_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_in_first_out),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_close_lets_the_rest_out),
        cmocka_unit_test(test_many_threads_lose_and_repeat_nothing),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
