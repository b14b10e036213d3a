// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_kinds.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"
#include "tests/support/wrong_bits.h"

static const test_device_options *chosen;
static int n_chosen;
static atomic_int n_created;
static mr_op wrong_op = MR_OP_COUNT; /* MR_OP_COUNT: none */

void test_kinds_set(const test_device_options *options, int n) {
    chosen = options;
    n_chosen = n;
    n_created = 0;
}

int test_kinds_n_created(void) {
    return n_created;
}

/* Reads the word "wrong=OP". */
static bool read_wrong(const char *word, size_t len) {
    size_t n = strlen("wrong=");
    if (len < n || memcmp(word, "wrong=", n) != 0)
        return false;
    for (wrong_op = 0; wrong_op < MR_OP_COUNT; wrong_op++)
        if (strlen(mr_op_name(wrong_op)) == len - n && memcmp(mr_op_name(wrong_op), word + n, len - n) == 0)
            return true;
    return false;
}

/* Reads one word. False: there is no such option. */
static bool read_word(const char *word, size_t len, test_device_options *o) {
    const char *value = memchr(word, '=', len);
    double number = value ? strtod(value + 1, NULL) : 1;
    size_t n = value ? (size_t)(value - word) : len;
    int32_t n_devices; /* count reads it */
    const struct {
        const char *name;
        int32_t *int32;
        int64_t *int64;
        size_t *size;
        bool *flag;
    } names[] = {
        {"max_delay_us", .int32 = &o->max_delay_us}, {"n_good", .int32 = &o->n_good},
        {"fail_at", .int32 = &o->fail_at},           {"min_rows", .int32 = &o->min_rows},
        {"call_ns", .int64 = &o->costs.call_ns},     {"node_ns", .int64 = &o->costs.node_ns},
        {"row_ns", .int64 = &o->costs.row_ns},       {"memory_bytes", .size = &o->memory_bytes},
        {"is_inexact", .flag = &o->is_inexact},      {"devices", .int32 = &n_devices},
    };
    if (n == strlen("byte_ns") && memcmp(word, "byte_ns", n) == 0) {
        o->costs.byte_ns = number;
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (n != strlen(names[i].name) || memcmp(word, names[i].name, n) != 0)
            continue;
        if (names[i].int32)
            *names[i].int32 = (int32_t)number;
        else if (names[i].int64)
            *names[i].int64 = (int64_t)number;
        else if (names[i].size)
            *names[i].size = (size_t)number;
        else
            *names[i].flag = number != 0;
        return true;
    }
    return false;
}

static mr_status read_environment(test_device_options *out, mr_err *err) {
    const char *text = getenv("TEST_DEVICE");
    *out = (test_device_options){.ops = TEST_DEVICE_ALL_OPS};
    if (text && strcmp(text, "none") == 0)
        return mr_err_set(err, MR_E_UNSUPPORTED, "there is no test device");
    for (const char *word = text; word && *word;) {
        size_t len = strcspn(word, " ");
        if (len > 0 && !read_wrong(word, len) && !read_word(word, len, out))
            return mr_err_set(err, MR_E_INVALID, "TEST_DEVICE: there is no option \"%.*s\"", (int)len, word);
        word += len + (word[len] == ' ');
    }
    return MR_OK;
}

/* The word "devices=N" of the environment. */
static int32_t count(void) {
    const char *text = getenv("TEST_DEVICE"), *word = text && n_chosen == 0 ? strstr(text, "devices=") : NULL;
    return word ? (int32_t)strtol(word + strlen("devices="), NULL, 10) : INT32_MAX;
}

/* The part of the memory that this backend gets. */
static void share_memory(const mr_backend_options *wish, test_device_options *o) {
    static const char *const names[] = {"test device 0", "test device 1", "test device 2", "test device 3"};
    if (wish->n_sharers > 1)
        o->memory_bytes /= (size_t)wish->n_sharers;
    if (wish->memory_bytes > 0 && (o->memory_bytes == 0 || wish->memory_bytes < o->memory_bytes))
        o->memory_bytes = wish->memory_bytes;
    if (count() < INT32_MAX)
        o->name = names[wish->device % 4];
}

static mr_status create(const mr_backend_options *wish, mr_backend **out, mr_err *err) {
    int i = n_created++;
    test_device_options o;
    mr_status status = MR_OK;
    if (n_chosen > 0)
        o = chosen[i < n_chosen ? i : n_chosen - 1];
    else
        status = read_environment(&o, err);
    if (status == MR_OK)
        share_memory(wish, &o);
    if (status == MR_OK)
        status = test_device_create(&o, out, err);
    if (status == MR_OK && wrong_op != MR_OP_COUNT)
        wrong_bits_begin(*out, wrong_op, MR_TYPE_FILE_COUNT);
    return status;
}

static const mr_backend_kind TEST = {
    .name = "test", .about = "a device that makes mistakes show", .create = create, .count = count, .exact = true};

const mr_backend_kind *const mr_backend_kinds[] = {&mr_backend_kind_cpu, &TEST, &mr_backend_kind_blas, NULL};
