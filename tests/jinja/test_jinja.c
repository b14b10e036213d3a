/* coordinator/serving/jinja alone: the output of templates, errors, limits, threads, failed allocations. */
// SPDX-License-Identifier: Apache-2.0
// clang-format off
// clang-format on
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "coordinator/serving/jinja/jinja.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static const char variables_text[] =
    "{\"s\": \" H\\u00e4llo \", \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": [true, null, 2.5]}, \"n\": 7,"
    " \"u\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": \"b\"}]}";

static mr_status render(const char *source, const mr_jinja_limits *limits, mr_text_buf *out, mr_err *err) {
    json_error_t error;
    json_t *variables = json_loads(variables_text, 0, &error);
    mr_jinja *template = NULL;
    assert_non_null(variables);
    mr_status status = mr_jinja_parse(mr_str_from(source), &template, err);
    if (status == MR_OK)
        status = mr_jinja_render(template, variables, limits, 86400, out, err);
    mr_jinja_destroy(template);
    json_decref(variables);
    return status;
}

static void check(const char *source, const char *want) {
    mr_text_buf out = {0};
    mr_err err = {0};
    mr_status status = render(source, NULL, &out, &err);
    if (status != MR_OK)
        print_error("%s: %s\n", source, err.text);
    assert_int_equal(status, MR_OK);
    if (strcmp(out.data, want) != 0)
        print_error("%s\nwant %s\ngot  %s\n", source, want, out.data);
    assert_string_equal(out.data, want);
    mr_text_buf_deinit(&out);
}

/* It fails with that status, and the text has `part` in it; nothing is written. */
static void check_fails(const char *source, const mr_jinja_limits *limits, mr_status want, const char *part) {
    mr_text_buf out = {0};
    mr_err err = {0};
    mr_status status = render(source, limits, &out, &err);
    if (status != want || !strstr(err.text, part))
        print_error("%.80s: status %d, %s\n", source, status, err.text);
    assert_int_equal(status, want);
    expect_says(err.text, part);
    assert_int_equal(out.len, 0);
    mr_text_buf_deinit(&out);
}

static void test_expressions(void **state) {
    (void)state;
    check("{{ 1 + 2 * 3 ** 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ -2 ** 2 }}", "19 -4 2 3.5 4");
    check("{{ 1e16 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 2.0 }}", "1e+16 0.30000000000000004 1e-05 2.0");
    check("{{ true }} {{ none }} {{ [1, 'a', none] }} {{ (1,) }} {{ d }}",
          "True None [1, 'a', None] (1,) {'b': 1, 'a': [True, None, 2.5]}");
    check("{{ 'a' ~ 1 ~ none }} {{ 'x' if n > 3 else 'y' }} {{ 1 < 2 < 3 }} {{ 1 in l and 9 not in l }}",
          "a1None x True True");
    check("{{ l[1:] }} {{ l[::-1] }} {{ s[1:3] }} {{ l[-1] }} {{ d.a[2] }} {{ d['b'] }} {{ d.zz }}|",
          "[1, 2] [2, 1, 3] Hä 2 2.5 1 |");
    check("{{ 'a\\n\\x41\\u00e4' \"b\" }}", "a\nAäb");
    check("{{ missing }}{{ missing is defined }}{{ (missing.x is defined) if n > 9 }}", "False");
    check("{{ \"it's\" ~ ['it\\'s'] }}", "it's[\"it's\"]");
}

static void test_calls(void **state) {
    (void)state;
    check("{{ s.strip().upper() }} {{ 'a,b'.split(',') }} {{ ', '.join(d) }} {{ 'x'.startswith(('y', 'x')) }}",
          "HÄLLO ['a', 'b'] b, a True");
    check("{{ d|tojson }} {{ [1, {}]|tojson(indent=1) }} {{ 'ä\"'|tojson }}",
          "{\"b\": 1, \"a\": [true, null, 2.5]} [\n 1,\n {}\n] \"ä\\\"\"");
    check("{{ u|selectattr('role', 'equalto', 'tool')|map(attribute='content')|join }} {{ l|sort|first }} {{ "
          "s|trim|length }}",
          "b 1 5");
    check("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }} {% call m(2, b=3) %}x{% "
          "endcall %}",
          "11 23x");
    check("{{ '%s-%03d' % ('a', 7) }} {{ '{}:{b:>3}'.format(1, b=2) }} {{ strftime_now('%Y-%m-%d') }}",
          "a-007 1:  2 1970-01-02");
    check("{{ 1 is odd }} {{ 'a' is string }} {{ d is mapping }} {{ 3 is divisibleby 3 }} {{ none is not none }}",
          "True True True True False");
    check("{{ ('<' | safe) + '>' }}", "<&gt;");
}

static void test_statements(void **state) {
    (void)state;
    check("{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% else %}none{% endfor %}",
          "13,22");
    check("{% for m in u %}{{ loop.nextitem.role if loop.first }}>{{ m.role }}{% if loop.first %}{% continue %}{% "
          "endif %};{% break "
          "%}{% endfor %}",
          "tool>user>tool;");
    check("{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{% set y = x %}{% endfor %}{{ ns.n "
          "}}{{ y is defined }}",
          "6False");
    check("{% set x %}a{{ n }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}{% set a, b = 1, 2 %}{{ b }}",
          "a7B2");
    check("a\n  {% if true %}\n  b\n  {% endif %}\nc {{- 1 -}} \n d\n", "a\n  b\nc1d");
    check("{% raw %}{{ x }}{% endraw %}{# no #}{% generation %}g{% endgeneration %}", "{{ x }}g");
}

static void test_failures(void **state) {
    (void)state;
    check_fails("a\n{{ raise_exception('no ' ~ n) }}", NULL, MR_E_INVALID, "template line 2: the template says: no 7");
    check_fails("{{ missing.x }}", NULL, MR_E_INVALID, "'missing' is undefined");
    check_fails("{{ d.y.z }}", NULL, MR_E_INVALID, "'dict' object has no attribute 'y'");
    check_fails("\n\n{{ 1 + 'a' }}", NULL, MR_E_INVALID, "line 3: unsupported operand types for +: 'int' and 'str'");
    check_fails("{{ 1 // 0 }}", NULL, MR_E_INVALID, "division by zero");
    check_fails("{{ 9223372036854775807 + 1 }}", NULL, MR_E_INVALID, "64 bits");
    check_fails("{% for x in 5 %}{% endfor %}", NULL, MR_E_INVALID, "'int' object is not iterable");
    check_fails("{{ x|nope }}", NULL, MR_E_INVALID, "no filter named 'nope'");
    check_fails("{% if 1 %}\n{{ 2 }", NULL, MR_E_FORMAT, "template line 2: a bracket");
    check_fails("{% if 1 %}", NULL, MR_E_FORMAT, "expected 'elif' at the end of the template");
    check_fails("{{ a b }}", NULL, MR_E_FORMAT, "expected the end of the print statement at 'b'");
    check_fails("{% include 'x' %}", NULL, MR_E_FORMAT, "unknown tag at 'include'");
    check_fails("{{ 'abc", NULL, MR_E_FORMAT, "a string does not end");
    check_fails("\xff", NULL, MR_E_FORMAT, "not UTF-8");
}

/* n times `part`, with `end` behind it. */
static char *repeated(const char *part, size_t n, const char *end) {
    size_t len = strlen(part);
    char *text = malloc(n * len + strlen(end) + 1);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * len, part, len);
    strcpy(text + n * len, end);
    return text;
}

static void check_repeated_fails(const char *part, size_t n, const char *end, mr_status want, const char *text) {
    char *source = repeated(part, n, end);
    check_fails(source, NULL, want, text);
    free(source);
}

/* {{ and n times `part`, then 1 }}. */
static void check_between_fails(const char *part, size_t n, mr_status want, const char *text) {
    char *middle = repeated(part, n, "1"), *whole = malloc(strlen(middle) + 8);
    assert_non_null(whole);
    sprintf(whole, "{{ %s }}", middle);
    check_fails(whole, NULL, want, text);
    free(whole);
    free(middle);
}

static void test_limits(void **state) {
    (void)state;
    static const mr_jinja_limits few_steps = {.max_steps = 10000}, short_text = {.max_output_bytes = 100},
                                 little_memory = {.max_memory_bytes = 1 << 20}, shallow = {.max_depth = 40};
    check_fails("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", &few_steps,
                MR_E_TOO_LONG, "more steps");
    /* Where every place is nearly the one that is looked for. */
    check_fails("{% set s = 'a' * 1000000 %}{{ s.rfind('a' * 400000 ~ 'b' ~ 'a' * 99999) }}", NULL, MR_E_TOO_LONG,
                "more steps");
    check_fails("{% for i in range(9999) %}{% set s = ('y' * 9999).strip('x' * 999 ~ 'y') %}{% endfor %}", NULL,
                MR_E_TOO_LONG, "more steps");
    /* Whatever reads a long text counts its bytes. */
    static const mr_jinja_limits some_steps = {.max_steps = 30000};
    static const char *const readers[] = {"s in {}",
                                          "(s,) in {}",
                                          "s is upper",
                                          "s|int",
                                          "s|float",
                                          "s|wordcount",
                                          "s.removeprefix(s)",
                                          "s.endswith((s, s, s, s))",
                                          "s|truncate(9000, true, '')"};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        char source[160];
        snprintf(source, sizeof source,
                 "{%% set s = '   '.ljust(9999) %%}{%% for i in range(99) %%}{%% set x = %s %%}{%% endfor %%}",
                 readers[i]);
        check_fails(source, &some_steps, MR_E_TOO_LONG, "more steps");
    }
    check_fails("{{ 'ab' * 51 }}", &short_text, MR_E_TOO_LONG, "longer than 100 bytes");
    check_fails("{{ 'ab' * 1000000000000 }}", NULL, MR_E_TOO_LONG, "longer than");
    check_fails("{% for a in range(51) %}ab{% endfor %}", &short_text, MR_E_TOO_LONG, "longer than 100 bytes");
    check_fails("{{ [[1] * 1000] * 1000000 }}", &little_memory, MR_E_TOO_LONG, "more memory");
    check_fails("{{ '%9999d' % 1 * 100000 }}", NULL, MR_E_TOO_LONG, "longer than");
    check_fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, MR_E_TOO_LONG, "nested too deeply");
    check_fails("{% set ns = namespace(a=[]) %}{% for x in range(50) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
                &shallow, MR_E_TOO_LONG, "nested too deeply");
    check_fails("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", NULL, MR_E_TOO_LONG, "nested too deeply");
}

static void test_limits_of_parsing(void **state) {
    (void)state;
    check_repeated_fails("{% if 1 %}", 1000, "", MR_E_TOO_LONG, "nested too deeply");
    check_between_fails("(", 240, MR_E_TOO_LONG, "nested too deeply");
    check_between_fails("(", 1000, MR_E_TOO_LONG, "nested too deeply");
    check_between_fails("-", 1000, MR_E_TOO_LONG, "nested too deeply");
    check_between_fails("1+", 5000, MR_E_TOO_LONG, "nested too deeply");
    check_between_fails("not ", 5000, MR_E_TOO_LONG, "nested too deeply");
    check_repeated_fails("x", MR_JINJA_MAX_SOURCE_BYTES, "y", MR_E_TOO_LONG, "the template has");
}

/* Long texts that grow piece by piece stay cheap: they take their place over again. */
static void test_growing_text(void **state) {
    (void)state;
    static const mr_jinja_limits limits = {.max_memory_bytes = 16 << 20};
    mr_text_buf out = {0};
    mr_err err = {0};
    expect_ok(render("{% set ns = namespace(t='') %}{% for i in range(20000) %}{% set ns.t = ns.t + 'abcdefghij' %}"
                     "{% endfor %}{{ ns.t|length }}",
                     &limits, &out, &err),
              &err);
    assert_string_equal(out.data, "200000");
    mr_text_buf_deinit(&out);
    /* Two texts with one beginning do not write into each other. */
    check("{% set a = 'x' * 100 %}{% set b = a + '1' %}{% set c = b + '2' %}{% set e = b + '3' %}{{ c[-2:] }}{{ e[-2:] "
          "}}{{ b[-1] }}",
          "12131");
}

typedef struct shared {
    const mr_jinja *template;
    const json_t *variables;
    bool ok;
} shared;

static void *render_often(void *arg) {
    shared *s = arg;
    s->ok = true;
    for (int i = 0; i < 200; i++) {
        mr_text_buf out = {0};
        mr_err err = {0};
        s->ok &= mr_jinja_render(s->template, s->variables, NULL, 0, &out, &err) == MR_OK &&
                 strcmp(out.data, "äö3[1, 2, 3]user") == 0;
        mr_text_buf_deinit(&out);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    enum { N = 4 };
    shared s[N];
    pthread_t threads[N];
    json_error_t error;
    mr_err err;
    mr_jinja *template = NULL;
    json_t *variables = json_loads(variables_text, 0, &error);
    expect_ok(
        mr_jinja_parse(mr_str_from("{{ 'äöü'[:2] ~ 'äöü'|length }}{{ l|sort }}{{ u[0]['role'] }}"), &template, &err),
        &err);
    for (int i = 0; i < N; i++) {
        s[i] = (shared){template, variables, false};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &s[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_true(s[i].ok);
    }
    mr_jinja_destroy(template);
    json_decref(variables);
}

/* Each allocation fails once: an error and no leak. */
static void test_no_memory(void **state) {
    (void)state;
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_text_buf out = {0};
        mr_err err = {0};
        assert_true(n < 1000);
        mr_mem_fail_at(n);
        status = render("{% for x in l %}{{ 'abc' * 100 }}{{ d|tojson }}{% endfor %}", NULL, &out, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY || status == MR_E_TOO_LONG);
        assert_true(status != MR_OK || out.len > 900);
        mr_text_buf_deinit(&out);
    }
}

int main(void) {
    setenv("TZ", "UTC", 1);
    tzset();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions),  cmocka_unit_test(test_calls),   cmocka_unit_test(test_statements),
        cmocka_unit_test(test_failures),     cmocka_unit_test(test_limits),  cmocka_unit_test(test_limits_of_parsing),
        cmocka_unit_test(test_growing_text), cmocka_unit_test(test_threads), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
