// SPDX-License-Identifier: Apache-2.0
#include "coordinator/progress.h"

#include <stdio.h>

#include "coordinator/output.h"
#include "engine/base/clock.h"

#define TERMINAL_INTERVAL_NS (100 * MR_NS_PER_MS)
#define PLAIN_INTERVAL_NS (5 * MR_NS_PER_S)

void progress_begin(progress *p) {
    *p = (progress){.on_terminal = output_notes_on_terminal()};
    p->next_ns = mr_clock_now_ns() + (p->on_terminal ? TERMINAL_INTERVAL_NS : PLAIN_INTERVAL_NS);
}

void progress_update(void *ctx, size_t done_bytes, size_t total_bytes) {
    progress *p = ctx;
    char total[OUTPUT_BYTES_TEXT];
    int64_t now = mr_clock_now_ns();
    if (now < p->next_ns || total_bytes == 0)
        return;
    p->next_ns = now + (p->on_terminal ? TERMINAL_INTERVAL_NS : PLAIN_INTERVAL_NS);
    output_bytes_text(total_bytes, total);
    double percent = 100 * (double)done_bytes / (double)total_bytes;
    if (p->on_terminal) {
        fprintf(stderr, "\rloading %3.0f %% of %s\033[K", percent, total);
        p->shown = true;
    } else {
        output_note("loading: %.0f %% of %s", percent, total);
    }
}

void progress_end(progress *p) {
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
}
