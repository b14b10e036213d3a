// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/output_table.h"

#include <stdio.h>
#include <string.h>

void mr_output_table_deinit(mr_output_table *t) {
    mr_text_buf_deinit(&t->cells);
    t->n_cells = 0;
}

void mr_output_table_cell(mr_output_table *t, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    text[len] = 0;
    if (mr_text_buf_append(&t->cells, text, len + 1))
        t->n_cells++;
    else
        t->failed = true;
}

void mr_output_table_bytes_cell(mr_output_table *t, size_t bytes) {
    char text[OUTPUT_BYTES_TEXT];
    mr_output_bytes_text(bytes, text);
    mr_output_table_cell(t, "%s", text);
}

/* Cells are printable ASCII, as names of tensors and keys are, so each byte is one column wide. */
mr_status mr_output_table_print(const mr_output_table *t, mr_text_buf *out, mr_err *err) {
    MR_ASSERT(strlen(t->align) <= OUTPUT_TABLE_MAX_COLUMNS);
    size_t n_columns = strlen(t->align), width[OUTPUT_TABLE_MAX_COLUMNS] = {0};
    bool ok = !t->failed;
    const char *cell = t->cells.data;
    for (size_t i = 0; i < t->n_cells; i++, cell += strlen(cell) + 1) {
        size_t len = strlen(cell);
        if (len > width[i % n_columns])
            width[i % n_columns] = len;
    }
    cell = t->cells.data;
    for (size_t i = 0; i < t->n_cells && ok; i++, cell += strlen(cell) + 1) {
        size_t column = i % n_columns;
        bool last = column == n_columns - 1;
        int pad = (int)(width[column] - strlen(cell));
        bool left = t->align[column] == 'l';
        ok = mr_output_printf(out, "  %*s%s%*s%s", left ? 0 : pad, "", cell, left && !last ? pad : 0, "",
                              last ? "\n" : "");
    }
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a table of %zu cells", t->n_cells);
}
