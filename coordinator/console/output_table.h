/* coordinator/console/output_table.h - a table of text cells with aligned columns.
 * Owns:    a table owns its cells. Begin with {.align = "lrr"}; after deinit the table is empty.
 * Threads: caller serialises.
 * Errors:  if there is no memory for a cell, print returns MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_OUTPUT_TABLE_H
#define MR_COORDINATOR_CONSOLE_OUTPUT_TABLE_H

#include "coordinator/console/output.h"

enum { OUTPUT_TABLE_MAX_COLUMNS = 16 };

typedef struct mr_output_table {
    const char *align; /* one letter for each column: l left, r right */
    mr_text_buf cells; /* row by row; each cell ends with a zero byte */
    size_t n_cells;
    bool failed; /* a cell is missing, for lack of memory */
} mr_output_table;

void mr_output_table_deinit(mr_output_table *t);
/* Adds the next cell. Rows are filled from left to right, one after the other. */
void mr_output_table_cell(mr_output_table *t, const char *fmt, ...) MR_PRINTF(2, 3);
void mr_output_table_bytes_cell(mr_output_table *t, size_t bytes);
/* Appends the table to out, each line indented by two spaces. */
MR_MUST_USE mr_status mr_output_table_print(const mr_output_table *t, mr_text_buf *out, mr_err *err);

#endif
