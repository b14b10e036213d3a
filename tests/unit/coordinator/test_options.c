/* The table of options, and the command lines and environments that it accepts. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/console/options.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

enum { MAX_ARGS = 24 };

/* Parses the words of line, which spaces separate; "_" inside a word stands for a space. */
static mr_status parse_env(const char *line, char *const *environ, mr_options *out, mr_err *err) {
    static char words[1024];
    char *argv[MAX_ARGS] = {(char *)(uintptr_t) "millrace"};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w && argc < MAX_ARGS; w = strtok(NULL, " ")) {
        for (char *c = w; *c; c++)
            if (*c == '_')
                *c = ' ';
        argv[argc++] = w;
    }
    err->text[0] = 0;
    return mr_options_parse(argc, argv, environ, out, err);
}

static mr_status parse(const char *line, mr_options *out, mr_err *err) {
    char *none[] = {NULL};
    return parse_env(line, none, out, err);
}

static void accept(const char *line, mr_options *out) {
    mr_err err;
    if (parse(line, out, &err) != MR_OK)
        fail_msg("%s: %s", line, err.text);
}

/* line is refused, and the text of the error holds all of the words wanted. */
static void refuse(const char *line, const char *wanted1, const char *wanted2) {
    mr_options o;
    mr_err err;
    mr_status status = parse(line, &o, &err);
    mr_options_deinit(&o);
    if (status != MR_E_INVALID || !strstr(err.text, wanted1) || !strstr(err.text, wanted2))
        fail_msg("%s: status %d, text \"%s\"", line, (int)status, err.text);
}

static void test_table_is_sound(void **state) {
    (void)state;
    for (int i = 0; i < MR_OPTION_COUNT; i++) {
        const mr_option_spec *a = mr_option_spec_of((mr_option_id)i);
        mr_option_value value = {0};
        mr_err err;
        assert_true(a->commands != 0 && a->commands < 1u << MR_COMMAND_COUNT);
        assert_true(a->help[0] && strlen(a->help) < 256);
        assert_true((a->value == NULL) == (a->type == MR_OPTION_TYPE_FLAG));
        assert_true(a->min <= a->max);
        if (a->environment)
            assert_memory_equal(a->environment, "MILLRACE_", 9);
        if (a->def && option_value_parse(a, a->flag, a->def, &value, &err) != MR_OK)
            fail_msg("default of --%s: %s", a->flag, err.text);
        mr_free(value.ints);
        for (int j = 0; j < i; j++) {
            const mr_option_spec *b = mr_option_spec_of((mr_option_id)j);
            if (!(a->commands & b->commands))
                continue;
            if (a->environment && b->environment)
                assert_string_not_equal(a->environment, b->environment);
            assert_string_not_equal(a->flag, b->flag);
            assert_true(!a->letter || a->letter != b->letter);
        }
    }
}

static void test_values_of_every_type(void **state) {
    (void)state;
    mr_options o;
    accept("generate m.gguf -p Once_upon --prompt=a=b -n5 -n -1 --temp 0.5 --top-k=7 --kv-type f32 --cut 8,14 "
           "--mem 1.5G --json --seed 9007199254740991",
           &o);
    assert_int_equal(o.command, MR_COMMAND_GENERATE);
    assert_int_equal(o.n_arguments, 1);
    assert_string_equal(o.arguments[0], "m.gguf");
    assert_int_equal(o.values[MR_OPTION_PROMPT].n, 2);
    assert_string_equal(o.values[MR_OPTION_PROMPT].list[0], "Once upon");
    assert_string_equal(o.values[MR_OPTION_PROMPT].list[1], "a=b");
    assert_int_equal(mr_options_number(&o, MR_OPTION_N_PREDICT), -1);
    assert_float_equal(mr_options_real(&o, MR_OPTION_TEMP), 0.5, 0);
    assert_int_equal(mr_options_number(&o, MR_OPTION_TOP_K), 7);
    assert_int_equal(mr_options_number(&o, MR_OPTION_KV_TYPE), 1);
    assert_string_equal(mr_options_text(&o, MR_OPTION_KV_TYPE), "f32");
    assert_int_equal(o.values[MR_OPTION_CUT].n, 2);
    assert_int_equal(o.values[MR_OPTION_CUT].ints[0], 8);
    assert_int_equal(o.values[MR_OPTION_CUT].ints[1], 14);
    assert_int_equal(mr_options_number(&o, MR_OPTION_MEM), 1536 << 20);
    assert_int_equal(mr_options_number(&o, MR_OPTION_JSON), 1);
    assert_int_equal(mr_options_number(&o, MR_OPTION_SEED), 9007199254740991);
    mr_options_deinit(&o);
}

static void test_defaults(void **state) {
    (void)state;
    mr_options o;
    accept("generate m.gguf", &o);
    assert_int_equal(mr_options_number(&o, MR_OPTION_N_PREDICT), 128);
    assert_float_equal(mr_options_real(&o, MR_OPTION_TEMP), 0.8, 0);
    assert_float_equal(mr_options_real(&o, MR_OPTION_MIN_P), 0.05, 0);
    assert_false(mr_options_given(&o, MR_OPTION_CHUNK));
    assert_null(mr_options_text(&o, MR_OPTION_IDS_FILE));
    assert_int_equal(o.values[MR_OPTION_PROMPT].n, 0);
    mr_options_deinit(&o);
}

static void test_places_of_options(void **state) {
    (void)state;
    mr_options o;
    accept("tokenize --bos m.gguf --no-special some_text", &o);
    assert_int_equal(o.n_arguments, 2);
    assert_string_equal(o.arguments[1], "some text");
    mr_options_deinit(&o);
    accept("tokenize m.gguf -- --bos", &o);
    assert_int_equal(o.n_arguments, 2);
    assert_string_equal(o.arguments[1], "--bos");
    assert_int_equal(mr_options_number(&o, MR_OPTION_BOS), 0);
    mr_options_deinit(&o);
    /* A value may look like an option, and the value "-" is a file. */
    accept("generate m.gguf -p --temp -f -", &o);
    assert_string_equal(o.values[MR_OPTION_PROMPT].list[0], "--temp");
    assert_string_equal(o.values[MR_OPTION_PROMPT_FILE].list[0], "-");
    mr_options_deinit(&o);
    accept("plan m.gguf --save ./- --facts /dev/stdin", &o);
    assert_string_equal(mr_options_text(&o, MR_OPTION_SAVE), "./-");
    mr_options_deinit(&o);
    accept("inspect m.gguf --json=off", &o);
    assert_int_equal(mr_options_number(&o, MR_OPTION_JSON), 0);
    mr_options_deinit(&o);
}

static void test_help_comes_first(void **state) {
    (void)state;
    mr_options o;
    accept("generate --nonsense --help", &o);
    assert_int_equal(mr_options_number(&o, MR_OPTION_HELP), 1);
    assert_int_equal(o.command, MR_COMMAND_GENERATE);
    mr_options_deinit(&o);
    accept("plan -h", &o);
    assert_int_equal(mr_options_number(&o, MR_OPTION_HELP), 1);
    mr_options_deinit(&o);
    accept("help bench", &o);
    assert_int_equal(o.command, MR_COMMAND_BENCH);
    assert_int_equal(mr_options_number(&o, MR_OPTION_HELP), 1);
    mr_options_deinit(&o);
    accept("--help", &o);
    assert_int_equal(o.command, MR_COMMAND_COUNT);
    assert_int_equal(mr_options_number(&o, MR_OPTION_HELP), 1);
    mr_options_deinit(&o);
    accept("--version", &o);
    assert_true(o.version);
    mr_options_deinit(&o);
}

static void test_wrong_usage(void **state) {
    (void)state;
    refuse("", "no command", "--help");
    refuse("genrate m", "genrate", "did you mean generate?");
    refuse("qqqqqq m", "qqqqqq", "--help");
    refuse("--temp 1", "--temp", "command");
    refuse("generate m --tmep 1", "--tmep", "did you mean --temp?");
    refuse("generate m --repeat-penalti=1", "--repeat-penalti", "did you mean --repeat-penalty?");
    refuse("generate m --nothing-like-it", "--nothing-like-it", "generate --help");
    refuse("generate m -q", "-q", "generate --help");
    refuse("generate -m m", "without an option", "millrace generate FILE");
    refuse("serve -mm", "without an option", "millrace serve FILE");
    refuse("plan --model=m", "without an option", "millrace plan FILE");
    refuse("help genrate", "genrate", "did you mean generate");
    refuse("inspect m --temp 1", "inspect", "--temp");
    refuse("generate m -p", "-p", "TEXT");
    refuse("generate m --temp", "--temp", "value");
    refuse("generate a b c", "\"c\"", "too many");
    refuse("generate m -hx", "-hx", "--help");
    refuse("logits m --ids-file i -o -", "-o: - is neither standard input nor standard output", "./-");
    refuse("plan m --facts=-", "--facts: - is neither", "/dev/stdin");
}

static void test_wrong_values(void **state) {
    (void)state;
    refuse("generate m --temp 500", "--temp", "500 is out of range; allowed are 0 to 100");
    refuse("generate m --temp nan", "--temp", "\"nan\"");
    refuse("generate m --temp 1x", "--temp", "\"1x\"");
    refuse("generate m --temp=", "--temp", "\"\"");
    refuse("generate m -n -2", "-n", "-1 to 1048576");
    refuse("generate m -n 99999999999999999999", "-n", "out of range");
    refuse("generate m -n 1.5", "-n", "\"1.5\"");
    refuse("generate m --kv-type q8_1", "--kv-type", "f16|f32|q8_0");
    refuse("generate m --kv-type f1", "--kv-type", "f16|f32|q8_0");
    refuse("generate m --numerics quick", "--numerics", "exact|fast");
    refuse("generate m --json=maybe", "--json", "maybe");
    refuse("generate m --mem 4X", "--mem", "4X");
    refuse("generate m --mem -4G", "--mem", "-4G");
    refuse("generate m --mem 0", "--mem", "1 and more");
    refuse("generate m --mem 999999999999T", "--mem", "out of range");
    refuse("generate m --cut 8,", "--cut", "8,");
    refuse("generate m --cut 8;9", "--cut", "8;9");
    refuse("generate m --cut 0,9", "--cut", "0 is out of range");
    refuse("generate m --cut=", "--cut", "\"\"");
    refuse("generate m --log-level loud", "--log-level", "error|warn");
    refuse("logits m --last 0", "--last", "1 to");
}

static void test_sizes(void **state) {
    (void)state;
    const struct {
        const char *line;
        int64_t bytes;
    } cases[] = {{"plan m --mem 1", 1},         {"plan m --mem 3k", 3072},        {"plan m --mem 3KiB", 3072},
                 {"plan m --mem 2MB", 2 << 20}, {"plan m --mem 0.5G", 512 << 20}, {"plan m --mem 2T", INT64_C(2) << 40},
                 {"plan m --mem 100B", 100}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mr_options o;
        accept(cases[i].line, &o);
        assert_int_equal(mr_options_number(&o, MR_OPTION_MEM), cases[i].bytes);
        mr_options_deinit(&o);
    }
}

static void test_environment(void **state) {
    (void)state;
    char *environ[] = {(char *)(uintptr_t) "MILLRACE_TEMP=0.25",
                       (char *)(uintptr_t) "MILLRACE_TOP_K=", (char *)(uintptr_t) "MILLRACE_LOG_JSON=1",
                       (char *)(uintptr_t) "MILLRACE_STAGES=3", NULL};
    mr_options o;
    mr_err err;
    expect_ok(parse_env("generate m --stages 2", environ, &o, &err), &err);
    assert_float_equal(mr_options_real(&o, MR_OPTION_TEMP), 0.25, 0);
    assert_true(mr_options_given(&o, MR_OPTION_TEMP));
    assert_int_equal(mr_options_number(&o, MR_OPTION_TOP_K), 40); /* an empty variable counts as not set */
    assert_int_equal(mr_options_number(&o, MR_OPTION_LOG_JSON), 1);
    assert_int_equal(mr_options_number(&o, MR_OPTION_STAGES), 2); /* the command line overrides the variable */
    mr_options_deinit(&o);

    char *bad[] = {(char *)(uintptr_t) "MILLRACE_TEMP=hot", NULL};
    expect_fails(parse_env("generate m", bad, &o, &err), MR_E_INVALID, &err, "MILLRACE_TEMP: \"hot\"");
    mr_options_deinit(&o);
    /* Commands without the option ignore the variable, and --help works in any case. */
    expect_ok(parse_env("inspect m", bad, &o, &err), &err);
    mr_options_deinit(&o);
    expect_ok(parse_env("generate --help", bad, &o, &err), &err);
    mr_options_deinit(&o);
}

static void test_unknown_variables(void **state) {
    (void)state;
    char *environ[] = {(char *)(uintptr_t) "PATH=/bin",
                       (char *)(uintptr_t) "MILLRACE_CPU_ISA=avx2",
                       (char *)(uintptr_t) "MILLRACE_TEST_VECTORS=x",
                       (char *)(uintptr_t) "MILLRACE_TMEP=1",
                       (char *)(uintptr_t) "MILLRACE_SEED=1",
                       (char *)(uintptr_t) "MILLRACE_ZZZZZZZZZZZZZZZ=1",
                       NULL};
    size_t pos = 0;
    mr_err w;
    mr_options o;
    accept("generate m", &o);
    assert_true(mr_options_next_warning(&o, environ, &pos, &w));
    assert_string_equal(w.text, "unknown environment variable MILLRACE_TMEP; hint: did you mean MILLRACE_TEMP?");
    assert_true(mr_options_next_warning(&o, environ, &pos, &w));
    assert_string_equal(w.text, "unknown environment variable MILLRACE_ZZZZZZZZZZZZZZZ");
    assert_false(mr_options_next_warning(&o, environ, &pos, &w));
    mr_options_deinit(&o);
}

/* A variable whose option stands on the command line is not read: not even a wrong value of it. Lists are replaced. */
static void test_options_replace_variables(void **state) {
    (void)state;
    char *environ[] = {(char *)(uintptr_t) "MILLRACE_TEMP=hot",      (char *)(uintptr_t) "MILLRACE_CUT=x",
                       (char *)(uintptr_t) "MILLRACE_KV_TYPE=f",     (char *)(uintptr_t) "MILLRACE_MEM=much",
                       (char *)(uintptr_t) "MILLRACE_LOG_JSON=x",    (char *)(uintptr_t) "MILLRACE_THREADS=two",
                       (char *)(uintptr_t) "MILLRACE_API_KEY=other", NULL};
    mr_options o;
    mr_err err;
    expect_ok(parse_env("serve m --temp 0.5 --cut 3 --kv-type f32 --mem 1G --log-json -t 2 --api-key a --api-key b",
                        environ, &o, &err),
              &err);
    assert_float_equal(mr_options_real(&o, MR_OPTION_TEMP), 0.5, 0);
    assert_int_equal(o.values[MR_OPTION_CUT].n, 1);
    assert_int_equal(mr_options_number(&o, MR_OPTION_LOG_JSON), 1);
    assert_int_equal(o.values[MR_OPTION_API_KEY].n, 2);
    assert_string_equal(o.values[MR_OPTION_API_KEY].list[0], "a");
    mr_options_deinit(&o);
}

/* What Kubernetes sets for the services millrace, millrace-v2 and millrace-env, and Docker for a link. */
static void test_variables_of_services(void **state) {
    (void)state;
    char *environ[] = {(char *)(uintptr_t) "MILLRACE_SERVICE_HOST=10.96.12.4",
                       (char *)(uintptr_t) "MILLRACE_SERVICE_PORT=8080",
                       (char *)(uintptr_t) "MILLRACE_SERVICE_PORT_HTTP=8080",
                       (char *)(uintptr_t) "MILLRACE_PORT=udp://[fd00::4]:8080",
                       (char *)(uintptr_t) "MILLRACE_PORT_8080_TCP=tcp://10.96.12.4:8080",
                       (char *)(uintptr_t) "MILLRACE_PORT_8080_TCP_PROTO=tcp",
                       (char *)(uintptr_t) "MILLRACE_PORT_8080_UDP_PORT=8080",
                       (char *)(uintptr_t) "MILLRACE_PORT_8080_SCTP_ADDR=10.96.12.4",
                       (char *)(uintptr_t) "MILLRACE_PORT_8080_TCP_START=tcp://172.17.0.5:8080",
                       (char *)(uintptr_t) "MILLRACE_V2_SERVICE_HOST=10.96.12.5",
                       (char *)(uintptr_t) "MILLRACE_V2_PORT=tcp://10.96.12.5:80",
                       (char *)(uintptr_t) "MILLRACE_V2_PORT_80_TCP_ADDR=10.96.12.5",
                       (char *)(uintptr_t) "MILLRACE_NAME=/app/millrace",
                       (char *)(uintptr_t) "MILLRACE_ENV_PATH=/bin",
                       NULL};
    size_t pos = 0;
    mr_options o;
    mr_err err;
    expect_ok(parse_env("serve m", environ, &o, &err), &err);
    assert_int_equal(mr_options_number(&o, MR_OPTION_PORT), 8080);
    assert_false(mr_options_given(&o, MR_OPTION_PORT));
    assert_true(mr_options_next_warning(&o, environ, &pos, &err));
    assert_non_null(strstr(err.text, "MILLRACE_PORT=udp://[fd00::4]:8080 is the address of the service \"millrace\""));
    assert_false(mr_options_next_warning(&o, environ, &pos, &err));
    mr_options_deinit(&o);
    expect_ok(parse_env("serve m --port 9000", environ, &o, &err), &err);
    pos = 0;
    assert_false(mr_options_next_warning(&o, environ, &pos, &err));
    mr_options_deinit(&o);
    /* What no service sets stays an error. */
    char *wrong[] = {(char *)(uintptr_t) "MILLRACE_PORT=tcp://10.96.12.4", NULL};
    expect_fails(parse_env("serve m", wrong, &o, &err), MR_E_INVALID, &err, "MILLRACE_PORT: \"tcp://10.96.12.4\"");
    mr_options_deinit(&o);
    char *unknown[] = {(char *)(uintptr_t) "MILLRACE_PORT_TCP=8080", (char *)(uintptr_t) "MILLRACE_HTTP_PORT=8080",
                       NULL};
    accept("serve m", &o);
    pos = 0;
    assert_true(mr_options_next_warning(&o, unknown, &pos, &err));
    assert_true(mr_options_next_warning(&o, unknown, &pos, &err));
    mr_options_deinit(&o);
}

static void test_failing_allocations(void **state) {
    (void)state;
    mr_status status = MR_E_NO_MEMORY;
    int64_t n = 0;
    for (; status != MR_OK; n++) {
        mr_options o;
        mr_err err;
        mr_mem_fail_at(n);
        status = parse("generate m -p a -p b -p c --cut 1,2 --stop x", &o, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        mr_options_deinit(&o);
    }
    assert_true(n > 3);
}

/* Every option stands in the help of its commands, with its default. */
static void test_help_is_complete(void **state) {
    (void)state;
    for (int c = 0; c < MR_COMMAND_COUNT; c++) {
        char *text = NULL;
        size_t len = 0;
        FILE *f = open_memstream(&text, &len);
        assert_non_null(f);
        mr_options_command_help(f, (mr_command)c);
        assert_int_equal(fclose(f), 0);
        expect_says(text, "examples:");
        for (int i = 0; i < MR_OPTION_COUNT; i++) {
            const mr_option_spec *spec = mr_option_spec_of((mr_option_id)i);
            char flag[64];
            snprintf(flag, sizeof flag, "--%s%s%s", spec->flag, spec->value ? " " : "", spec->value ? spec->value : "");
            bool own = spec->commands & 1u << c;
            if (own && !strstr(text, flag))
                fail_msg("help of %s lacks %s", mr_command_spec_of((mr_command)c)->name, flag);
            if (own && spec->environment && !strstr(text, spec->environment))
                fail_msg("help of %s lacks %s", mr_command_spec_of((mr_command)c)->name, spec->environment);
        }
        free(text);
    }
}

static void check_width(const char *text, const char *what) {
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 80)
            fail_msg("the help of %s is wider than 80 columns: %.*s", what, (int)strcspn(line, "\n"), line);
}

/* How often line stands in text. */
static int count_lines(const char *text, const char *line) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, line)); at += strlen(line))
        n++;
    return n;
}

/* Options stand under the headings of their groups, within the width of a terminal; each once. */
static void test_help_is_laid_out(void **state) {
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    mr_options_help(f);
    assert_int_equal(fclose(f), 0);
    check_width(text, "millrace");
    free(text);
    for (int c = 0; c < MR_COMMAND_COUNT; c++) {
        f = open_memstream(&text, &len);
        mr_options_command_help(f, (mr_command)c);
        assert_int_equal(fclose(f), 0);
        check_width(text, mr_command_spec_of((mr_command)c)->name);
        int n = 0;
        for (int i = 0; i < MR_OPTION_COUNT; i++)
            n += (mr_option_spec_of((mr_option_id)i)->commands >> c & 1);
        assert_int_equal(count_lines(text, "\n      --") + count_lines(text, "\n  -"), n);
        assert_int_equal(count_lines(text, "\ninput and output:\n"), 1);
        assert_int_equal(count_lines(text, "\nserver:\n"), c == MR_COMMAND_SERVE);
        assert_int_equal(count_lines(text, "\nruns and messages:\n"), 1);
        assert_true(strstr(text, "\ninput and output:\n") < strstr(text, "\nruns and messages:\n"));
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_sound),
        cmocka_unit_test(test_values_of_every_type),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_places_of_options),
        cmocka_unit_test(test_help_comes_first),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_unknown_variables),
        cmocka_unit_test(test_options_replace_variables),
        cmocka_unit_test(test_variables_of_services),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_help_is_complete),
        cmocka_unit_test(test_help_is_laid_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
