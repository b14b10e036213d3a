/* The fields of requests, and the page for users about them: every field stands on the page, and the values that turn a
 * refused field off are those of the page. What `thinking` gives to templates. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "coordinator/serving/api/api_fields.h"
#include "coordinator/serving/api/api_request.h"
#include "tests/support/test.h"
#include "tests/unit/coordinator/serving/test_api_support.h"

static char page[1 << 16];

static int setup(void **state) {
    (void)state;
    FILE *file = fopen(MILLRACE_SOURCE_DIR "/coordinator/serving/api/FIELDS.md", "rb");
    bool ok = file && fread(page, 1, sizeof page - 1, file) > 0;
    if (file)
        fclose(file);
    return ok ? 0 : -1;
}

/* The part of FIELDS.md under a heading. */
static mr_str section_of(const char *heading) {
    const char *begin = strstr(page, heading);
    assert_non_null(begin);
    const char *end = strstr(begin + 1, "\n## ");
    return (mr_str){begin, end ? (size_t)(end - begin) : strlen(begin)};
}

static const char *const headings[] = {"\n## Read\n", "\n## Taken and ignored\n", "\n## Refused\n"};

static int kind_of(const api_field *f) {
    return f->type == API_FIELD_REFUSED ? 2 : f->type == API_FIELD_IGNORED;
}

static bool is_of_kind(const char *name, size_t n, int kind) {
    for (int endpoint = 0; endpoint < API_ENDPOINTS; endpoint++)
        for (size_t i = 0; i < API_FIELD_TABLES; i++) {
            api_field_table t = api_request_fields((mr_api_endpoint)endpoint, i);
            for (size_t k = 0; k < t.n; k++)
                if (kind_of(&t.fields[k]) == kind && strlen(t.fields[k].name) == n &&
                    memcmp(t.fields[k].name, name, n) == 0)
                    return true;
        }
    return false;
}

/* Every field stands on the page under what is done with it, and nothing else does. */
static void test_page_of_fields(void **state) {
    (void)state;
    for (int endpoint = 0; endpoint < API_ENDPOINTS; endpoint++)
        for (size_t i = 0; i < API_FIELD_TABLES; i++) {
            api_field_table t = api_request_fields((mr_api_endpoint)endpoint, i);
            for (size_t k = 0; k < t.n; k++) {
                char quoted[64];
                mr_str section = section_of(headings[kind_of(&t.fields[k])]);
                int n = snprintf(quoted, sizeof quoted, "`%s`", t.fields[k].name);
                if (!memmem(section.data, section.len, quoted, (size_t)n))
                    fail_msg("%s does not stand under%s", quoted, headings[kind_of(&t.fields[k])]);
            }
        }
    for (int kind = 0; kind < 3; kind++) {
        mr_str section = section_of(headings[kind]);
        const char *end = section.data + section.len;
        for (const char *row = strstr(section.data, "\n| `"); row && row < end; row = strstr(row + 1, "\n| `")) {
            const char *cell_end = strstr(row + 3, " |");
            for (const char *at = strchr(row, '`'); at && at < cell_end; at = strchr(at, '`')) {
                size_t n = strcspn(at + 1, "`");
                if (!is_of_kind(at + 1, n, kind))
                    fail_msg("%.*s stands under%s", (int)n, at + 1, headings[kind]);
                at += n + 2;
            }
        }
    }
}

/* --- Values that turn a field off -------------------------------------------------------------------------------- */

/* A request with this field to an endpoint, and what becomes of it: 200, or 400 that names the field. */
static void expect_status(api_scene *s, mr_api_endpoint endpoint, mr_str name, mr_str value, int status) {
    static const char *const begin[] = {
        [API_COMPLETIONS] = "{\"prompt\": \"ab\"",
        [API_CHAT_COMPLETIONS] = "{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}]",
        [API_EMBEDDINGS] = "{\"input\": \"ab\"",
        [API_RERANK] = "{\"query\": \"a\", \"documents\": [\"b\"]",
        [API_APPLY_TEMPLATE] = "{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}]",
    };
    char body[512];
    snprintf(body, sizeof body, "%s, \"%.*s\": %.*s}", begin[endpoint], (int)name.len, name.data, (int)value.len,
             value.data);
    api_result r = api_scene_ask(s, endpoint, body);
    if (r.status != status || (status != 200 && !mr_str_is(name, api_text_at(r.json, "error.param"))))
        fail_msg("%s: %d, %s", body, r.status, r.bytes.data);
    api_result_deinit(&r);
}

static void expect_everywhere(api_scene *s, mr_str name, mr_str value, int status) {
    int n = 0;
    for (int endpoint = 0; endpoint < API_ENDPOINTS; endpoint++)
        for (size_t i = 0; i < API_FIELD_TABLES; i++) {
            api_field_table t = api_request_fields((mr_api_endpoint)endpoint, i);
            for (size_t k = 0; k < t.n; k++)
                if (t.fields[k].type == API_FIELD_REFUSED && mr_str_is(name, t.fields[k].name)) {
                    expect_status(s, (mr_api_endpoint)endpoint, name, value, status);
                    n++;
                }
        }
    assert_true(n > 0);
}

/* The next text between back quotes before the end; *at moves behind it. {0}: none. */
static mr_str next_quoted(const char **at, const char *end) {
    const char *begin = memchr(*at, '`', (size_t)(end - *at));
    if (!begin)
        return (mr_str){0};
    size_t n = strcspn(begin + 1, "`");
    *at = begin + n + 2;
    return (mr_str){begin + 1, n};
}

static void check_row(api_scene *s, const char *names, const char *off, const char *off_end) {
    const bool only = memmem(off, (size_t)(off_end - off), "only", 4);
    mr_str name, value;
    while ((name = next_quoted(&names, off)).data) {
        const char *at = off;
        int n = 0;
        for (; (value = next_quoted(&at, off_end)).data; n++)
            expect_everywhere(s, name, value, 200);
        for (int i = 0; i < 2 && n == 0; i++)
            expect_everywhere(s, name, mr_str_from(i ? "false" : "0"), 200);
        expect_everywhere(s, name, mr_str_from("null"), 200);
        static const char *const empty[] = {"\"\"", "[]", "{}"}, *const others[] = {"\"x\"", "[7]", "{\"x\": 1}", "7"};
        for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
            expect_everywhere(s, name, mr_str_from(empty[i]), only ? 400 : 200);
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            expect_everywhere(s, name, mr_str_from(others[i]), 400);
        for (int i = 0; i < 2 && only; i++)
            expect_everywhere(s, name, mr_str_from(i ? "true" : "0"), 400);
    }
}

static void test_off_values(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    mr_str section = section_of(headings[2]);
    int n = 0;
    for (const char *row = strstr(section.data, "\n| `"); row && row < section.data + section.len; n++) {
        const char *off = strstr(row + 3, " |");
        check_row(&s, row, off, strstr(off + 2, "|"));
        row = strstr(row + 1, "\n| `");
    }
    assert_true(n > 20);
    api_scene_close(&s);
}

/* --- thinking ---------------------------------------------------------------------------------------------------- */

static void test_thinking(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "--"},
        {", \"thinking\": {\"type\": \"disabled\"}", "FF"},
        {", \"thinking\": {\"type\": \"enabled\"}", "TT"},
        {", \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": null, \"clear_thinking\": false}", "TT keeps"},
        {", \"thinking\": {\"type\": \"auto\"}", "--"},
        {", \"thinking\": {\"type\": \"adaptive\"}, \"reasoning\": {}", "--"},
        {", \"thinking\": {}", "--"},
        {", \"thinking\": null, \"reasoning\": \"\"", "--"},
        {", \"thinking\": false", "FF"},
        {", \"thinking\": true", "TT"},
        {", \"thinking\": \"disabled\"", "FF"},
        {", \"reasoning\": {\"enabled\": false}", "FF"},
        {", \"reasoning\": {\"enabled\": true, \"exclude\": false}", "TT"},
        {", \"reasoning\": {\"effort\": \"low\"}", "--low"},
        {", \"reasoning\": {\"effort\": \"none\"}", "FFnone"},
        {", \"reasoning_effort\": \"none\"", "FFnone"},
        {", \"reasoning_effort\": \"high\", \"reasoning\": {\"effort\": \"low\"}", "--high"},
        {", \"thinking\": {\"type\": \"enabled\"}, \"chat_template_kwargs\": {\"enable_thinking\": false}", "FT"},
    };
    static const char *const bad[][2] = {
        {", \"thinking\": {\"type\": \"often\"}", "thinking.type"},
        {", \"thinking\": {\"type\": 5}", "thinking.type"},
        {", \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 100}", "thinking.budget_tokens"},
        {", \"thinking\": 5", "thinking"},
        {", \"thinking\": [5]", "thinking"},
        {", \"reasoning\": {\"exclude\": true}", "reasoning.exclude"},
        {", \"reasoning\": {\"max_tokens\": 9}", "reasoning.max_tokens"},
        {", \"reasoning\": {\"enabled\": \"no\"}", "reasoning.enabled"},
    };
    api_scene s;
    api_scene_open_with(&s, "ab",
                        "{% for v in [enable_thinking, thinking] %}{{ '-' if v is undefined else 'T' if v else 'F' }}"
                        "{% endfor %}{{ reasoning_effort }}{% if clear_thinking is false %} keeps{% endif %}"
                        "|{{ messages[0].content }}");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] + sizeof bad / sizeof bad[0]; i++) {
        bool is_good = i < sizeof cases / sizeof cases[0];
        const char *const *c = is_good ? cases[i] : bad[i - sizeof cases / sizeof cases[0]];
        char body[256];
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}]%s}", c[0]);
        api_result r = api_scene_ask(&s, API_APPLY_TEMPLATE, body);
        const char *text = api_text_at(r.json, is_good ? "prompt" : "error.param");
        size_t n = is_good ? strcspn(text, "|") : strlen(text);
        if (n != strlen(c[1]) || strncmp(text, c[1], n) != 0)
            fail_msg("%s: %s", body, r.bytes.data);
        api_result_deinit(&r);
    }
    api_scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_page_of_fields), cmocka_unit_test(test_off_values),
                                       cmocka_unit_test(test_thinking)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
