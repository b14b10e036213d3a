// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/progress.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/console/output.h"
#include "engine/base/clock.h"

#define TERMINAL_INTERVAL_NS (100 * MR_NS_PER_MS)
#define PLAIN_INTERVAL_NS (5 * MR_NS_PER_S)

void mr_progress_begin(mr_progress *p) {
    *p = (mr_progress){.on_terminal = output_notes_on_terminal()};
    p->next_ns = mr_clock_now_ns() + (p->on_terminal ? TERMINAL_INTERVAL_NS : PLAIN_INTERVAL_NS);
}

bool mr_progress_is_due(mr_progress *p) {
    int64_t now = mr_clock_now_ns();
    if (now < p->next_ns)
        return false;
    p->next_ns = now + (p->on_terminal ? TERMINAL_INTERVAL_NS : PLAIN_INTERVAL_NS);
    return true;
}

void mr_progress_show(mr_progress *p, const char *text) {
    if (p->on_terminal)
        fprintf(stderr, "\r%s\033[K", text);
    else if (strcmp(p->last, text) != 0)
        mr_output_note("%s", text);
    snprintf(p->last, sizeof p->last, "%s", text);
    p->shown = p->on_terminal;
}

void mr_progress_update(void *ctx, size_t done_bytes, size_t total_bytes) {
    mr_progress *p = ctx;
    char total[OUTPUT_BYTES_TEXT], text[PROGRESS_TEXT];
    if (total_bytes == 0 || !mr_progress_is_due(p))
        return;
    mr_output_bytes_text(total_bytes, total);
    snprintf(text, sizeof text, "%s %.0f %% of %s",
             p->on_terminal ? "loading" : "loading:", 100 * (double)done_bytes / (double)total_bytes, total);
    mr_progress_show(p, text);
}

void mr_progress_end(mr_progress *p) {
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
}
