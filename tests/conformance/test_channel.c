// SPDX-License-Identifier: Apache-2.0
#include "test_channel.h"

#include <stdio.h>

#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "tests/support/channel_delay.h"
#include "tests/support/test.h"

enum { MAX_ENDPOINTS = 8, MAX_TESTS = 64 };

static mr_status local_create(int32_t n_endpoints, int32_t max_requests, void **out_world, mr_err *err) {
    mr_local_hub *hub = NULL;
    mr_status status = mr_local_hub_create(n_endpoints, max_requests, &hub, err);
    if (status == MR_OK)
        *out_world = hub;
    return status;
}

static mr_status local_open(void *world, int32_t self, mr_channel **out, mr_err *err) {
    return mr_local_channel_open(world, self, out, err);
}

static void local_destroy(void *world) {
    mr_local_hub_destroy(world);
}

/* The same endpoints, with messages that take time and overtake each other. */
static mr_status delayed_open(void *world, int32_t self, mr_channel **out, mr_err *err) {
    mr_channel *inner = NULL;
    const channel_delay_config config = {.latency_ns = 50000,
                                         .jitter_ns = 400000,
                                         .bytes_per_second = 4e9,
                                         .seed = suite_seed(),
                                         .max_requests = MAX_REQUESTS};
    mr_status status = mr_local_channel_open(world, self, &inner, err);
    if (status == MR_OK)
        status = channel_delay_create(inner, &config, out, err);
    if (status != MR_OK)
        mr_channel_destroy(inner);
    return status;
}

static const channel_factory factories[] = {
    {"local", local_create, local_open, local_destroy},
    {"delayed", local_create, delayed_open, local_destroy},
};

/* One endpoint's thread. */
typedef struct runner {
    const channel_factory *factory;
    const channel_test *test;
    void *world;
    endpoint end;
    mr_thread *thread;
    bool passed;
} runner;

static void runner_main(void *ctx) {
    runner *r = ctx;
    r->passed = r->factory->open(r->world, r->end.self, &r->end.ch, NULL) == MR_OK && r->test->body(&r->end);
}

typedef struct suite_case {
    const channel_factory *factory;
    const channel_test *test;
} suite_case;

static void run_case(void **state) {
    const suite_case *c = *state;
    runner runners[MAX_ENDPOINTS] = {0};
    void *world = NULL;
    bool passed = true;
    int32_t n = c->test->n_endpoints;
    assert_int_equal(c->factory->create(n, MAX_REQUESTS, &world, NULL), MR_OK);
    for (int32_t i = 0; i < n; i++) {
        runners[i] = (runner){.factory = c->factory, .test = c->test, .world = world};
        runners[i].end = (endpoint){.self = i, .n = n, .seed = suite_seed()};
        assert_int_equal(mr_thread_create("endpoint", 0, runner_main, &runners[i], &runners[i].thread, NULL), MR_OK);
    }
    for (int32_t i = 0; i < n; i++)
        mr_thread_join(runners[i].thread);
    /* Only now: an endpoint that is done first must not be lost to the others. */
    for (int32_t i = 0; i < n; i++) {
        mr_channel_destroy(runners[i].end.ch);
        passed = passed && runners[i].passed;
    }
    c->factory->destroy(world);
    assert_true(passed);
}

static size_t add_tests(const channel_factory *f, const channel_test *tests, suite_case *cases, struct CMUnitTest *out,
                        size_t n) {
    static char names[MAX_TESTS][96];
    for (; tests->name; tests++, n++) {
        assert_true(n < MAX_TESTS);
        snprintf(names[n], sizeof names[n], "%s: %s", f->name, tests->name);
        cases[n] = (suite_case){f, tests};
        out[n] = (struct CMUnitTest){.name = names[n], .test_func = run_case, .initial_state = &cases[n]};
    }
    return n;
}

int main(void) {
    static suite_case cases[MAX_TESTS];
    static struct CMUnitTest tests[MAX_TESTS];
    size_t n = 0;
    printf("MILLRACE_TEST_SEED=%llu\n", (unsigned long long)suite_seed());
    for (size_t i = 0; i < sizeof factories / sizeof factories[0]; i++) {
        n = add_tests(&factories[i], channel_basic_tests, cases, tests, n);
        n = add_tests(&factories[i], channel_cancel_tests, cases, tests, n);
        n = add_tests(&factories[i], channel_lost_tests, cases, tests, n);
        n = add_tests(&factories[i], channel_load_tests, cases, tests, n);
    }
    /* The group's size is not known to the compiler, so cmocka's macro cannot count it. */
    return _cmocka_run_group_tests("channels", tests, n, NULL, NULL);
}
