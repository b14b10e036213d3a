/* coordinator/console/output_table.h - aligned columns of text.
 * Owns:    its cells. {0} with align set is an empty table; deinit leaves it empty.
 * Threads: caller serialises.
 * Errors:  a cell that finds no memory makes print fail. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_OUTPUT_TABLE_H
#define MR_COORDINATOR_CONSOLE_OUTPUT_TABLE_H

#include "coordinator/console/output.h"

enum { OUTPUT_TABLE_MAX_COLUMNS = 16 };

typedef struct mr_output_table {
    const char *align; /* one letter for each column: l left, r right */
    mr_text_buf cells; /* each ended by a zero, row by row */
    size_t n_cells;
    bool failed;
} mr_output_table;

void mr_output_table_deinit(mr_output_table *t);
/* The next cell; rows are filled one after the other. */
void mr_output_table_cell(mr_output_table *t, const char *fmt, ...) MR_PRINTF(2, 3);
void mr_output_table_bytes_cell(mr_output_table *t, size_t bytes);
/* Appends the table, each line indented by two spaces. MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_output_table_print(const mr_output_table *t, mr_text_buf *out, mr_err *err);

#endif
