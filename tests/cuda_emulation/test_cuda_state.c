/* tests/cuda_emulation/test_cuda_state.c - entries of block tables and copies of KV blocks on a device. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/node_case.h"
#include "tests/support/test.h"

static rng numbers = {.state = 4};

/* Few places for many entries: later ones replace earlier ones, near and far. */
static void test_table_write(void **state) {
    (void)state;
    static const int32_t ENTRIES[] = {0, 1, 2, 31, 32, 33, 64, 100};
    for (int i = 0; i < 64; i++) {
        node_case c;
        int32_t n = ENTRIES[i % 8], columns = i / 8 % 2 ? 3 : 20;
        node_case_begin(&c, MR_OP_TABLE_WRITE, (node_rows){.bucket = n + 3, .real = n});
        c.node.in[0] = node_case_ints(&c, &numbers, 5);
        c.node.in[1] = node_case_ints(&c, &numbers, columns);
        c.node.in[2] = node_case_ints(&c, &numbers, 1 << 30);
        c.node.in[3] = node_case_tensor(&c, MR_TYPE_I32, columns, 5, MR_STORAGE_STATE, MR_ROWS_FIXED);
        node_case_check(&c);
    }
}

enum { BLOCKS = 9, COPIES = 7 };

static void check_kv_copy(const int32_t *parts, int32_t n_parts, int32_t n_copies) {
    node_case c;
    int32_t block_bytes = 0;
    for (int32_t p = 0; p < n_parts; p++)
        block_bytes += parts[p];
    node_case_begin(&c, MR_OP_KV_COPY, (node_rows){.bucket = COPIES, .real = n_copies});
    c.node.in[0] = node_case_ints(&c, &numbers, BLOCKS);
    c.node.in[1] = node_case_ints(&c, &numbers, BLOCKS);
    c.node.in[2] = node_case_tensor(&c, MR_TYPE_I8, block_bytes, BLOCKS, MR_STORAGE_STATE, MR_ROWS_FIXED);
    c.node.in[3] = node_case_tensor(&c, MR_TYPE_I32, n_parts, 1, MR_STORAGE_CONSTANT, MR_ROWS_FIXED);
    memcpy(node_case_row(&c, c.node.in[3], 0), parts, (size_t)n_parts * sizeof *parts);
    for (int i = 0; i < 2; i++)
        c.tensors[c.node.in[i]].row_count = MR_ROWS_OUT;
    if (n_copies == COPIES) { /* copied on, and onto itself */
        static const int32_t FROM[COPIES] = {0, 1, 2, 8, 4, 1, 3}, TO[COPIES] = {1, 2, 3, 8, 0, 5, 1};
        memcpy(node_case_row(&c, c.node.in[0], 0), FROM, sizeof FROM);
        memcpy(node_case_row(&c, c.node.in[1], 0), TO, sizeof TO);
    }
    node_case_check(&c);
}

/* Parts of whole pieces of 16 bytes and others; parts of several blocks of threads, some longer than the others. */
static void test_kv_copy(void **state) {
    (void)state;
    static const int32_t PARTS[][3] = {{64, 192, 128}, {16, 16, 16},    {7, 33, 1},
                                       {48, 20, 64},   {16, 30000, 32}, {4096, 4112, 8192}};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        for (int32_t n_copies = 0; n_copies <= COPIES; n_copies++)
            check_kv_copy(PARTS[i], 1 + (n_copies + 2) % 3, n_copies);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table_write), cmocka_unit_test(test_kv_copy)};
    return cmocka_run_group_tests(tests, NULL, node_case_teardown);
}
