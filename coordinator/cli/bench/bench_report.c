/* bench_report.c - the results of `millrace bench` as a table, CSV or JSON. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "coordinator/cli/bench/bench.h"
#include "coordinator/console/output.h"
#include "coordinator/console/output_table.h"
#include "coordinator/session/output_json.h"

static const char *test_name(const bench_test *t) {
    return t->decode ? "decode" : "prefill";
}

static bool has_first_token_ms(const bench_test *t) {
    return !t->decode && t->depth == 0;
}

static double first_token_ms(const bench_test *t) {
    return 1e3 * t->rows / t->median.rate;
}

/* --- Table ------------------------------------------------------------------------------------------------------- */

/* foretold: the table has a column for predicted rates. */
static void add_row(const bench_test *t, bool foretold, mr_output_table *table) {
    mr_output_table_cell(table, "%s", test_name(t));
    mr_output_table_cell(table, "%" PRId32, t->rows);
    mr_output_table_cell(table, "%" PRId32, t->depth);
    mr_output_table_cell(table, "%" PRId32, t->sequences);
    mr_output_table_cell(table, "%" PRId32, t->threads);
    mr_output_table_cell(table, "%" PRId32, t->n_stages);
    mr_output_table_cell(table, "%s", mr_output_rounded(t->median.rate, (char[OUTPUT_ROUNDED_TEXT]){0}));
    mr_output_table_cell(table, "%s to %s", mr_output_rounded(t->low, (char[OUTPUT_ROUNDED_TEXT]){0}),
                         mr_output_rounded(t->high, (char[OUTPUT_ROUNDED_TEXT]){0}));
    if (t->median.share < 0)
        mr_output_table_cell(table, "-");
    else if (t->is_synthetic)
        mr_output_table_cell(table, "%.1f %% busy", 1e2 * t->median.share);
    else
        mr_output_table_cell(table, "%.1f %% of %s", 1e2 * t->median.share, t->decode ? "read" : t->products);
    if (has_first_token_ms(t))
        mr_output_table_cell(table, "%s ms", mr_output_rounded(first_token_ms(t), (char[OUTPUT_ROUNDED_TEXT]){0}));
    else
        mr_output_table_cell(table, "-");
    if (foretold)
        mr_output_table_cell(table, "%s", mr_output_rounded(t->expected, (char[OUTPUT_ROUNDED_TEXT]){0}));
}

/* Appends the measured limits of the machine, one line for each number of threads. */
static bool add_limits(const bench_test *tests, int32_t n, mr_text_buf *out) {
    bool ok = true;
    for (int32_t i = 0; i < n && ok; i++) {
        const mr_cpu_limits *l = &tests[i].limits;
        int32_t threads = tests[i].threads * tests[i].n_stages;
        if (l->read_bytes <= 0 || (i > 0 && tests[i - 1].threads == tests[i].threads))
            continue;
        ok = mr_output_printf(
            out, "%slimits of %" PRId32 " %s: read loop %.1f GB/s; %.0f G products/s of int8, %.0f G of f32\n",
            i == 0 ? "\n" : "", threads, threads == 1 ? "thread" : "threads", 1e-9 * l->read_bytes,
            1e-9 * l->int8_products, 1e-9 * l->f32_products);
    }
    return ok;
}

mr_status bench_print_table(const bench_test *tests, int32_t n, mr_err *err) {
    static const char *const HEADS[] = {"test",   "rows",     "depth",  "sequences", "threads",
                                        "stages", "tokens/s", "spread", "share",     "first token"};
    bool foretold = n > 0 && tests[0].expected > 0;
    mr_output_table table = {.align = foretold ? "lrrrrrrrrrr" : "lrrrrrrrrr"};
    mr_text_buf text = {0};
    for (size_t i = 0; i < sizeof HEADS / sizeof HEADS[0]; i++)
        mr_output_table_cell(&table, "%s", HEADS[i]);
    if (foretold)
        mr_output_table_cell(&table, "expected");
    for (int32_t i = 0; i < n; i++)
        add_row(&tests[i], foretold, &table);
    mr_status status = mr_output_table_print(&table, &text, err);
    if (status == MR_OK && !add_limits(tests, n, &text))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
    if (status == MR_OK)
        status = mr_output_write(text.data, text.len, err);
    mr_text_buf_deinit(&text);
    mr_output_table_deinit(&table);
    return status;
}

/* --- JSON and CSV: one list of fields ---------------------------------------------------------------------------- */

enum { MAX_FIELDS = 20 };

typedef struct field {
    const char *name;
    json_t *value; /* JSON's null, which needs no release: not known, or not a field of this type of test */
} field;

static json_t *known(bool is_known, double value) {
    return is_known ? json_real(value) : json_null();
}

static int list_fields(const bench_test *t, int32_t repeats, field out[MAX_FIELDS]) {
    bool limits = t->limits.read_bytes > 0, share = t->median.share >= 0;
    const field fields[] = {{"test", json_string(test_name(t))},
                            {"rows", json_integer(t->rows)},
                            {"depth", json_integer(t->depth)},
                            {"sequences", json_integer(t->sequences)},
                            {"threads", json_integer(t->threads)},
                            {"stages", json_integer(t->n_stages)},
                            {"tokens_per_second", json_real(t->median.rate)},
                            {"min", json_real(t->low)},
                            {"max", json_real(t->high)},
                            {"repeats", json_integer(repeats)},
                            {"time_to_first_token_ms", known(has_first_token_ms(t), first_token_ms(t))},
                            {"bandwidth_share", known(share && t->decode && !t->is_synthetic, t->median.share)},
                            {"peak_share", known(share && !t->decode, t->median.share)},
                            {"busy_share", known(share && t->is_synthetic, t->median.share)},
                            {"products", json_string(t->products)},
                            {"read_bytes_per_second", known(limits, t->limits.read_bytes)},
                            {"int8_products_per_second", known(limits, t->limits.int8_products)},
                            {"f32_products_per_second", known(limits, t->limits.f32_products)},
                            {"expected_tokens_per_second", known(t->expected > 0, t->expected)}};
    int n = (int)(sizeof fields / sizeof fields[0]);
    for (int i = 0; i < n; i++)
        out[i] = fields[i];
    return n;
}

mr_status bench_print_json(const bench_test *tests, int32_t n, int32_t repeats, mr_err *err) {
    json_t *root = json_array();
    for (int32_t i = 0; i < n; i++) {
        field fields[MAX_FIELDS];
        json_t *o = json_object();
        int n_fields = list_fields(&tests[i], repeats, fields);
        bool ok = true;
        for (int f = 0; f < n_fields; f++) { /* json_object_set_new releases the value also on failure */
            if (!json_is_null(fields[f].value))
                ok = json_object_set_new(o, fields[f].name, fields[f].value) == 0 && ok;
        }
        if (!ok) {
            json_decref(o);
            o = NULL;
        }
        if (json_array_append_new(root, o) != 0) {
            json_decref(root);
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the results");
        }
    }
    return mr_output_json_print(root, err);
}

/* Prints the fields as CSV. Unknown fields are empty. Quotes are not needed: no name and no text has a comma. */
static bool csv_value(mr_text_buf *out, const json_t *v) {
    if (json_is_string(v))
        return mr_output_printf(out, "%s", json_string_value(v));
    if (json_is_integer(v))
        return mr_output_printf(out, "%lld", (long long)json_integer_value(v));
    return v && (json_is_null(v) || mr_output_printf(out, "%.9g", json_real_value(v)));
}

mr_status bench_print_csv(const bench_test *tests, int32_t n, int32_t repeats, mr_err *err) {
    mr_text_buf text = {0};
    bool ok = true;
    for (int32_t i = 0; i < n; i++) {
        field fields[MAX_FIELDS];
        int n_fields = list_fields(&tests[i], repeats, fields);
        for (int f = 0; f < n_fields && i == 0; f++)
            ok = ok && mr_output_printf(&text, "%s%s", f ? "," : "", fields[f].name);
        ok = ok && (i > 0 || mr_output_printf(&text, "\n"));
        for (int f = 0; f < n_fields; f++) {
            ok = ok && (f == 0 || mr_output_printf(&text, ",")) && csv_value(&text, fields[f].value);
            json_decref(fields[f].value);
        }
        ok = ok && mr_output_printf(&text, "\n");
    }
    mr_status status = ok ? mr_output_write(text.data ? text.data : "", text.len, err)
                          : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the results");
    mr_text_buf_deinit(&text);
    return status;
}
