// SPDX-License-Identifier: Apache-2.0
/* Arrival times, percentiles, and the statistics that are computed from the times of tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/cli/bench/load.h"
#include "tests/support/test.h"

static mr_load make(mr_load_poisson p) {
    mr_load l;
    mr_err err;
    expect_ok(mr_load_make(&p, &l, &err), &err);
    return l;
}

static void test_poisson(void **state) {
    (void)state;
    const mr_load_poisson p = {.rate = 200, .seconds = 50, .n_prompt = 7, .n_tokens = 3, .seed = 5};
    mr_load a = make(p), b = make(p);
    /* 10,000 are expected, with a standard deviation of 100. */
    assert_in_range(a.n, 9500, 10500);
    assert_int_equal(a.n, b.n);
    double square = 0;
    for (int32_t i = 0; i < a.n; i++) {
        const mr_load_request *r = &a.requests[i];
        int64_t gap = r->at_ns - (i ? r[-1].at_ns : 0);
        assert_true(gap >= 0 && r->at_ns < 50 * INT64_C(1000000000));
        assert_int_equal(r->at_ns, b.requests[i].at_ns);
        assert_int_equal(r->n_prompt, 7);
        assert_int_equal(r->n_tokens, 3);
        assert_ptr_equal(r->token_ns, a.times + 3 * i);
        square += 1e-18 * (double)gap * (double)gap;
    }
    /* The gaps of a Poisson process have the mean square 2 / rate^2. Equal gaps would have half of it. */
    double ratio = square / a.n * 200 * 200;
    assert_true(ratio > 1.8 && ratio < 2.2);
    mr_load_poisson other = p;
    other.seed = 6;
    mr_load c = make(other);
    assert_int_not_equal(a.requests[0].at_ns, c.requests[0].at_ns);
    mr_load_end(&a);
    mr_load_end(&b);
    mr_load_end(&c);
}

static void test_no_load(void **state) {
    (void)state;
    mr_load l;
    mr_err err;
    mr_load_poisson many = {.rate = 1e6, .seconds = 1e6, .n_prompt = 1, .n_tokens = 1};
    expect_fails(mr_load_make(&many, &l, &err), MR_E_INVALID, &err, "more than 1048576");
    mr_load_poisson none = {.rate = 0.001, .seconds = 0.001, .n_prompt = 1, .n_tokens = 1};
    expect_fails(mr_load_make(&none, &l, &err), MR_E_INVALID, &err, "no request arrives");
}

static void test_parse(void **state) {
    (void)state;
    mr_load l;
    mr_err err;
    expect_ok(mr_load_parse(mr_str_from("# a day\n0,3,2\n\n0.25,1,9 \r\n0.25,100,1"), "day.csv", &l, &err), &err);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.requests[0].at_ns, 0);
    assert_int_equal(l.requests[1].at_ns, 250000000);
    assert_int_equal(l.requests[1].n_prompt, 1);
    assert_int_equal(l.requests[1].n_tokens, 9);
    assert_ptr_equal(l.requests[2].token_ns, l.times + 11);
    int32_t prompt, together;
    mr_load_longest(&l, &prompt, &together);
    assert_int_equal(prompt, 100);
    assert_int_equal(together, 101);
    mr_load_end(&l);
    mr_load_end(&l);
}

static void test_parse_refuses(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } CASES[] = {
        {"", "day.csv has no requests"},
        {"# nothing\n\n", "has no requests"},
        {"1,2,3\n0.5,2,3\n", "line 2: \"0.5,2,3\" is earlier"},
        {"0,1,1\nhello\n", "line 2: \"hello\" is not seconds"},
        {"0,1\n", "line 1"},
        {"0,1,1,1\n", "line 1"},
        {"0,0,1\n", "line 1"},
        {"0,1,0\n", "line 1"},
        {"-1,1,1\n", "line 1"},
        {"nan,1,1\n", "line 1"},
        {"0x1,1,1\n", "line 1"},
        {"0,1048577,1\n", "line 1"},
        {"0,99999999999999999999,1\n", "line 1"},
        {"1e9,1,1\n", "line 1"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        mr_load l;
        mr_err err;
        assert_int_equal(mr_load_parse(mr_str_from(CASES[i].text), "day.csv", &l, &err), MR_E_FORMAT);
        if (!strstr(err.text, CASES[i].words))
            fail_msg("\"%s\": %s", CASES[i].text, err.text);
    }
}

static void test_parse_refuses_what_is_no_text(void **state) {
    (void)state;
    static const char TEXT[] = "0,1,1\n\0"
                               "1,1,1\n";
    mr_load l;
    mr_err err;
    expect_fails(mr_load_parse((mr_str){TEXT, sizeof TEXT - 1}, "day.csv", &l, &err), MR_E_FORMAT, &err,
                 "day.csv, line 2: there is a NUL byte");
}

static void test_parse_refuses_too_many(void **state) {
    (void)state;
    static const char LINE[] = "0,1,1\n";
    enum { BYTES = sizeof LINE - 1, N = MR_LOAD_MAX_REQUESTS + 1 };
    char *text = malloc((size_t)N * BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < N; i++)
        memcpy(text + i * BYTES, LINE, BYTES);
    mr_load l;
    mr_err err;
    expect_ok(mr_load_parse((mr_str){text, (size_t)(N - 1) * BYTES}, "day.csv", &l, &err), &err);
    assert_int_equal(l.n, N - 1);
    mr_load_end(&l);
    expect_fails(mr_load_parse((mr_str){text, (size_t)N * BYTES}, "day.csv", &l, &err), MR_E_FORMAT, &err,
                 "line 1048577: there are more than 1048576 requests");
    free(text);
}

/* Nearest ranks: of n values the one number ceil(n p / 100). */
static void test_percentiles(void **state) {
    (void)state;
    double one[] = {7}, four[] = {4, 1, 3, 2}, hundred[100], more[101];
    mr_percentiles p = mr_percentiles_of(one, 1);
    assert_true(p.p50 == 7 && p.p90 == 7 && p.p99 == 7 && p.max == 7 && p.n == 1);
    p = mr_percentiles_of(four, 4);
    assert_true(p.p50 == 2 && p.p90 == 4 && p.p99 == 4 && p.max == 4);
    for (int i = 0; i < 101; i++)
        more[i] = 101 - i;
    memcpy(hundred, more + 1, sizeof hundred);
    p = mr_percentiles_of(hundred, 100);
    assert_true(p.p50 == 50 && p.p90 == 90 && p.p99 == 99 && p.max == 100);
    p = mr_percentiles_of(more, 101);
    assert_true(p.p50 == 51 && p.p90 == 91 && p.p99 == 100 && p.max == 101);
    assert_int_equal(mr_percentiles_of(NULL, 0).n, 0);
}

static void test_summary(void **state) {
    (void)state;
    mr_load l;
    mr_err err;
    mr_load_summary s;
    expect_ok(mr_load_parse(mr_str_from("0,3,2\n1,1,3\n2,1,4\n"), "x", &l, &err), &err);
    const int64_t ms = 1000000, times[] = {100 * ms, 150 * ms, 1300 * ms, 1310 * ms, 1330 * ms, 2500 * ms};
    memcpy(l.times, times, sizeof times);
    l.requests[0].n_come = 2;
    l.requests[1].n_come = 3;
    l.requests[2].n_come = 1;
    l.requests[2].failed = true;
    expect_ok(mr_load_summarise(&l, &s, &err), &err);
    assert_int_equal(s.n_done, 2);
    assert_int_equal(s.n_failed, 1);
    assert_int_equal(s.n_tokens, 6);
    assert_true(fabs(s.seconds - 2.5) < 1e-12);
    assert_int_equal(s.first_token.n, 3);
    assert_true(fabs(s.first_token.p50 - 0.3) < 1e-12 && fabs(s.first_token.max - 0.5) < 1e-12);
    assert_int_equal(s.between_tokens.n, 3);
    assert_true(fabs(s.between_tokens.p50 - 0.02) < 1e-12 && fabs(s.between_tokens.max - 0.05) < 1e-12);
    mr_load_end(&l);
}

/* What the summary says of n requests that arrive ten in a second, where the first token of each comes wait(i) seconds
 * after its arrival. */
static double sustained(int n, double (*wait)(int i)) {
    mr_load l = {.n = n, .requests = calloc((size_t)n, sizeof *l.requests)};
    int64_t *times = calloc((size_t)n, sizeof *times);
    mr_load_summary s;
    mr_err err;
    for (int i = 0; i < n; i++) {
        int64_t at_ns = 100000000 * (int64_t)i;
        times[i] = at_ns + (int64_t)(1e9 * wait(i));
        l.requests[i] =
            (mr_load_request){.at_ns = at_ns, .n_prompt = 1, .n_tokens = 1, .n_come = 1, .token_ns = &times[i]};
    }
    expect_ok(mr_load_summarise(&l, &s, &err), &err);
    free(l.requests);
    free(times);
    return s.sustained;
}

static double wait_none(int i) {
    return 0.01 * (i % 2);
}

static double wait_growing(int i) {
    return 0.1 * i + 0.05 * (i % 3); /* the wait grows by one second in each second */
}

static double wait_jumping(int i) {
    return (i * 7919 % 101) * 0.05 + 0.006 * i; /* the wait varies more by chance than it grows */
}

static void test_overload(void **state) {
    (void)state;
    assert_true(sustained(200, wait_none) == 0);
    assert_true(fabs(sustained(200, wait_growing) - 5) < 0.1);
    assert_true(sustained(200, wait_jumping) == 0);
    assert_true(sustained(30, wait_growing) == 0); /* too few requests to tell */
    assert_true(sustained(1, wait_none) == 0);
    assert_true(sustained(0, wait_none) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poisson),
        cmocka_unit_test(test_no_load),
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_overload),
        cmocka_unit_test(test_parse_refuses_what_is_no_text),
        cmocka_unit_test(test_parse_refuses_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
