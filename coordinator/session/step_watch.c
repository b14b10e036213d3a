// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/step_watch.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static int32_t idle_limit(const step_watch *w, const step_look *now) {
    if (!now->runs_steps)
        return STEP_LOADING_BEATS;
    return w->n_idle >= STEP_IDLE_BEATS && now->waits_for_disk() ? STEP_DISK_BEATS : STEP_IDLE_BEATS;
}

bool step_watch_hangs(step_watch *w, const step_look *now) {
    bool has_looked = !now->may_look || now->n_looks != w->last.n_looks;
    w->n_blind = has_looked || !now->runs_steps ? 0 : w->n_blind + 1;
    w->n_idle = has_looked || now->cpu_ns != w->last.cpu_ns ? 0 : w->n_idle + 1;
    w->last = *now;
    return w->n_blind >= STEP_BLIND_BEATS || w->n_idle >= idle_limit(w, now);
}

/* The state of a thread; 0: it has ended. The name before the state may contain anything. */
static char state_of(const char *thread) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", thread);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    const char *end = n > 0 ? strrchr(text, ')') : NULL;
    return end && end[1] == ' ' ? end[2] : 0;
}

bool step_watch_waits_for_disk(void) {
    DIR *threads = opendir("/proc/self/task");
    bool waits = false;
    if (!threads)
        return false;
    for (const struct dirent *e; !waits && (e = readdir(threads));)
        waits = e->d_name[0] != '.' && state_of(e->d_name) == 'D';
    (void)closedir(threads);
    return waits;
}
