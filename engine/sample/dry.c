/* engine/sample/dry.c - DRY: finds the tokens that would continue a repetition of the end of the history, and the
 * length of that end. Read backwards, the history is a text, and its beginning is searched for at all places of the
 * text. Gusfield's Z-algorithm does this in one pass, no matter how often a hostile text repeats itself. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/processors.h"

static const double MAX_PENALTY = 1e30; /* larger penalties are cut to this; no logit survives it */

/* Writes lengths[i], 0 < i < n: how many entries from i on equal the entries from 0 on. */
static void match_lengths(const mr_sampler *s, int32_t n, int32_t *lengths) {
    int32_t left = 0, right = 0; /* the match that reaches farthest: [left, right) */
    for (int32_t i = 1; i < n; i++) {
        int32_t len = 0;
        if (i < right)
            len = lengths[i - left] < right - i ? lengths[i - left] : right - i;
        while (i + len < n && history_entry(s, len) == history_entry(s, i + len))
            len++;
        lengths[i] = len;
        if (i + len > right) {
            left = i;
            right = i + len;
        }
    }
}

static float penalty_of(const mr_sampling_params *p, int32_t length) {
    double penalty = (double)p->dry_multiplier * mr_pow((double)p->dry_base, length - p->dry_allowed_length);
    return (float)(penalty < MAX_PENALTY ? penalty : MAX_PENALTY);
}

void process_dry(const mr_sampler *s, candidates *c) {
    const mr_sampling_params *p = &s->params;
    int32_t n = history_count(s, s->dry_capacity), *longest = c->scratch->counts, limit = 0;
    while (limit < n && !(history_entry(s, limit) & SAMPLE_BREAKER))
        limit++;
    if (limit == 0 || limit < p->dry_allowed_length)
        return;
    float *changed = candidates_changed(c);
    match_lengths(s, n, s->dry_lengths);
    for (int32_t i = 1; i < n; i++) {
        int32_t length = s->dry_lengths[i] < limit ? s->dry_lengths[i] : limit, next = history_id(s, i - 1);
        if (length > 0 && length >= p->dry_allowed_length && length > longest[next])
            longest[next] = length;
    }
    for (int32_t i = 1; i < n; i++) {
        int32_t next = history_id(s, i - 1), at = candidates_find(c, next);
        if (longest[next] > 0 && at >= 0)
            changed[at] -= penalty_of(p, longest[next]);
        longest[next] = 0;
    }
}
