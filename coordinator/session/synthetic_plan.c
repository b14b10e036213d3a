// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/synthetic_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int32_t synthetic_plan_count(const char *text) {
    int32_t n = 1;
    for (const char *p = text; n < MR_MAX_STAGES && (p = strchr(p, ';')); p++)
        n++;
    return n;
}

/* Reads milliseconds at *text, followed by the character end, and moves *text behind them. */
static bool scan_ms(const char **text, char end, int64_t *out_ns) {
    char *after = NULL;
    bool is_number = **text >= '0' && **text <= '9' && (*text)[1] != 'x' && (*text)[1] != 'X'; /* strtod takes hex */
    double ms = is_number ? strtod(*text, &after) : -1;
    if (!(ms >= 0 && ms <= MR_MAX_SYNTHETIC_MS) || *after != end)
        return false;
    *out_ns = (int64_t)(ms * 1e6 + 0.5);
    *text = after + (end != 0);
    return true;
}

mr_status synthetic_plan_make(const char *text, int32_t n_layers, int32_t n_stages, mr_plan *out, mr_err *err) {
    int32_t n_pairs = synthetic_plan_count(text);
    const char *p = text;
    if (n_stages < 1 || n_stages > MR_MAX_STAGES || (n_pairs > 1 && n_pairs != n_stages))
        return mr_err_set(err, MR_E_INVALID,
                          "--synthetic-stage has the times of %" PRId32 " stages, but there are %" PRId32
                          "; hint: one pair for all, or one for each",
                          n_pairs, n_stages);
    *out = (mr_plan){.n_stages = n_stages, .synthetic = true};
    for (int32_t i = 0; i < n_stages; i++) {
        mr_plan_stage *s = &out->stages[i];
        s->rank = i;
        s->first = (int32_t)((int64_t)n_layers * i / n_stages);
        s->last = (int32_t)((int64_t)n_layers * (i + 1) / n_stages);
        if (i >= n_pairs) {
            s->synthetic_fixed_ns = out->stages[0].synthetic_fixed_ns;
            s->synthetic_row_ns = out->stages[0].synthetic_row_ns;
        } else if (!scan_ms(&p, ',', &s->synthetic_fixed_ns) ||
                   !scan_ms(&p, i + 1 < n_pairs ? ';' : 0, &s->synthetic_row_ns)) {
            return mr_err_set(
                err, MR_E_INVALID,
                "--synthetic-stage: \"%.80s\" is not MS,MS_PER_ROW with 0 to %d each, or several such pairs "
                "with semicolons between",
                text, MR_MAX_SYNTHETIC_MS);
        }
    }
    return MR_OK;
}

mr_status synthetic_plan_check(const mr_plan *plan, int32_t max_rows, mr_err *err) {
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        int64_t ns = s->synthetic_fixed_ns + max_rows * s->synthetic_row_ns;
        if (ns > (int64_t)MR_MAX_SYNTHETIC_STEP_MS * 1000000)
            return mr_err_set(err, MR_E_INVALID,
                              "--synthetic-stage: stage %" PRId32 " would sleep %.0f s in a step of %" PRId32
                              " rows, allowed are %d; hint: a smaller --chunk",
                              i, 1e-9 * (double)ns, max_rows, MR_MAX_SYNTHETIC_STEP_MS / 1000);
    }
    return MR_OK;
}
