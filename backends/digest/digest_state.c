/* backends/digest/digest_state.c - the ops that change state between steps: block tables, and copies of KV blocks. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/digest/digest_case.h"

enum {
    SEQUENCES = 5,
    TABLE_COLUMNS = 40,
    ENTRIES = 70,
    BLOCKS = 9,
    PARTS = 3, /* of a store */
    COPIES = 6,
};

/* Entries in every row of the table. The last ones replace the first ones. */
static void run_table_writes(trial *t) {
    int32_t slots[ENTRIES], indices[ENTRIES], blocks[ENTRIES];
    for (int32_t i = 0; i < ENTRIES; i++) {
        slots[i] = i * 3 % SEQUENCES;
        indices[i] = i < ENTRIES - 5 ? i * 7 % TABLE_COLUMNS : (i - ENTRIES + 5) * 7 % TABLE_COLUMNS;
        blocks[i] = 1000 + i;
    }
    case_part(t, MR_OP_TABLE_WRITE, MR_DIGEST_NO_TYPE);
    for (int32_t n_rows = 1; n_rows <= ENTRIES; n_rows += ENTRIES - 1) {
        mr_node n = case_begin(t, MR_OP_TABLE_WRITE, n_rows);
        n.in[0] = case_ints(t, slots);
        n.in[1] = case_ints(t, indices);
        n.in[2] = case_ints(t, blocks);
        n.in[3] = case_tensor(t, MR_TYPE_I32, TABLE_COLUMNS, SEQUENCES, MR_STORAGE_STATE, MR_ROWS_FIXED);
        memset(case_row(t, n.in[3], 0), 0xff, t->tensors[n.in[3]].bytes);
        if (case_execute(t, &n))
            case_add_rows(t, n.in[3], SEQUENCES);
    }
}

/* Blocks are copied on, onto themselves, and over blocks that were copied before. */
static void run_copies(trial *t) {
    static const int32_t PART_BYTES[PARTS] = {64, 192, 128}, BLOCK_FLOATS = (64 + 192 + 128) / 4;
    static const int32_t FROM[COPIES] = {0, 1, 8, 1, 4, 2}, TO[COPIES] = {1, 2, 8, 7, 0, 1};
    case_part(t, MR_OP_KV_COPY, MR_DIGEST_NO_TYPE);
    for (int32_t n_rows = 1; n_rows <= COPIES; n_rows += COPIES - 1) {
        mr_node n = case_begin(t, MR_OP_KV_COPY, n_rows);
        n.in[0] = case_ints(t, FROM);
        n.in[1] = case_ints(t, TO);
        n.in[2] = case_tensor(t, MR_TYPE_F32, BLOCK_FLOATS, BLOCKS, MR_STORAGE_STATE, MR_ROWS_FIXED);
        n.in[3] = case_tensor(t, MR_TYPE_I32, PARTS, 1, MR_STORAGE_CONSTANT, MR_ROWS_FIXED);
        memcpy(case_row(t, n.in[2], 0), t->pool, t->tensors[n.in[2]].bytes);
        memcpy(case_row(t, n.in[3], 0), PART_BYTES, sizeof PART_BYTES);
        if (case_execute(t, &n))
            case_add_rows(t, n.in[2], BLOCKS);
    }
}

void digest_state(trial *t) {
    case_forget(t);
    run_table_writes(t);
    run_copies(t);
}
