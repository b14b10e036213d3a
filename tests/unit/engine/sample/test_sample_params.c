/* Ranges of the sampling parameters. A sampler refuses values out of range. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "engine/sample/sampler.h"
#include "tests/support/test.h"

/* The defaults with one field changed. */
static void refuse(mr_sampling_params p, const char *text) {
    mr_err err;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    assert_int_equal(err.status, MR_E_INVALID);
    expect_says(err.text, text);
}

static void accept(mr_sampling_params p) {
    assert_int_equal(mr_sampling_params_check(&p, NULL), MR_OK);
}

/* The default parameters with one field changed are accepted, or refused with the text. */
#define ACCEPT(field, value)                                                                                           \
    do {                                                                                                               \
        mr_sampling_params changed = mr_sampling_params_default();                                                     \
        changed.field = (value);                                                                                       \
        accept(changed);                                                                                               \
    } while (0)
#define REFUSE(field, value, text)                                                                                     \
    do {                                                                                                               \
        mr_sampling_params changed = mr_sampling_params_default();                                                     \
        changed.field = (value);                                                                                       \
        refuse(changed, text);                                                                                         \
    } while (0)

static void test_ranges(void **state) {
    (void)state;
    accept(mr_sampling_params_default());
    ACCEPT(temperature, 0.0f);
    ACCEPT(temperature, 100.0f);
    REFUSE(temperature, -0.1f, "temperature -0.1 is not in [0, 100]");
    REFUSE(temperature, 100.5f, "temperature 100.5");
    REFUSE(temperature, NAN, "temperature");
    REFUSE(temperature, INFINITY, "temperature inf");
    ACCEPT(top_k, 0);
    ACCEPT(top_k, INT32_MAX);
    REFUSE(top_k, -1, "top_k -1");
    ACCEPT(top_p, 0.0f);
    ACCEPT(top_p, 1.0f);
    REFUSE(top_p, 1.01f, "top_p 1.01 is not in [0, 1]");
    REFUSE(top_p, NAN, "top_p");
    ACCEPT(min_p, 0.0f);
    ACCEPT(min_p, 1.0f);
    REFUSE(min_p, -1.0f, "min_p -1 is not in [0, 1]");
    REFUSE(min_p, NAN, "min_p");
    ACCEPT(repeat_penalty, 0.5f);
    REFUSE(repeat_penalty, 0.0f, "repeat_penalty 0 is not in (0, 100]");
    REFUSE(repeat_penalty, NAN, "repeat_penalty");
    ACCEPT(repeat_last_n, -1);
    ACCEPT(repeat_last_n, 0);
    REFUSE(repeat_last_n, -2, "repeat_last_n -2");
}

static void test_create_refuses_what_is_out_of_range(void **state) {
    (void)state;
    static const int32_t prompt[] = {0, 9, 3};
    mr_sampler_config good = {
        .n_vocab = 10, .params = mr_sampling_params_default(), .prompt_ids = prompt, .n_prompt = 3, .max_context = 100};
    mr_sampler *s = NULL;
    mr_err err;
    expect_ok(mr_sampler_create(&good, &s, &err), &err);
    expect_ok(mr_sampler_accept(s, 9, &err), &err);
    expect_fails(mr_sampler_accept(s, 10, &err), MR_E_INVALID, &err, "token 10");
    assert_int_equal(mr_sampler_accept(s, -1, &err), MR_E_INVALID);
    mr_sampler_destroy(s);
    s = NULL;

    mr_sampler_config c = good;
    c.n_vocab = 9;
    expect_fails(mr_sampler_create(&c, &s, &err), MR_E_INVALID, &err, "token 9");
    c = good;
    c.n_vocab = 0;
    assert_int_equal(mr_sampler_create(&c, &s, &err), MR_E_INVALID);
    c.n_vocab = MR_SAMPLER_MAX_VOCAB + 1;
    assert_int_equal(mr_sampler_create(&c, &s, &err), MR_E_INVALID);
    c = good;
    c.max_context = 0;
    assert_int_equal(mr_sampler_create(&c, &s, &err), MR_E_INVALID);
    c = good;
    c.n_prompt = -1;
    assert_int_equal(mr_sampler_create(&c, &s, &err), MR_E_INVALID);
    c = good;
    c.params.top_p = 2;
    assert_int_equal(mr_sampler_create(&c, &s, &err), MR_E_INVALID);
    assert_null(s);
    mr_sampler_destroy(NULL);

    mr_sampler_scratch *scratch = NULL;
    assert_int_equal(mr_sampler_scratch_create(0, &scratch, &err), MR_E_INVALID);
    assert_null(scratch);
    mr_sampler_scratch_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_create_refuses_what_is_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
