// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/recut.h"

#include "engine/base/clock.h"

enum {
    AGREE = 3,         /* looks in a row */
    HOLD_LOOKS = 12,   /* a changed plan runs for so many looks at least */
    MOST_DOUBLED = 64, /* and for so many times this at most */
    QUIET_HOLDS = 4,   /* after so many holds without a change, the next hold is half as long */
    LOOK_SHARE = 50,   /* looks take one part of this of the time */
    SLOW_STEPS = 4,    /* in a row, for a suspicion */
    SLOW_REPORTS = 2,  /* in a row: a single long step may make one of them slow */
    USUAL_STEPS = 16,  /* in a row, for its end */
};
static const double GAIN = 1.15;       /* so many times as fast is clearly faster */
static const double EARN_BACK_S = 120; /* in so much time, a change earns its cost back */
/* Steps are slow if they take SLOW_TIMES as long as is usual, and SLOW_S more. */
static const double SLOW_TIMES = 4, SLOW_S = 0.25;
/* Ranks of one host are just as slow within this factor. */
static const double AS_SLOW = 0.5;
static const int64_t SUSPECT_NS = 60 * MR_NS_PER_S, MOST_SUSPECT_NS = 1920 * MR_NS_PER_S;

mr_recut mr_recut_begin(int64_t look_ns, int64_t now_ns) {
    return (mr_recut){.look_ns = look_ns, .hold_ns = HOLD_LOOKS * look_ns, .next_ns = now_ns + look_ns};
}

bool mr_recut_is_worth(const mr_recut_offer *offer) {
    if (!(offer->present_rate > 0) || !(offer->best_rate >= GAIN * offer->present_rate))
        return false;
    return EARN_BACK_S * (1 - offer->present_rate / offer->best_rate) > offer->cost_s;
}

/* The hold of a plan that has run for long is shorter. */
static void calm_down(mr_recut *r, int64_t now_ns) {
    if (r->since_ns == 0 || now_ns - r->since_ns < QUIET_HOLDS * r->hold_ns || r->hold_ns <= HOLD_LOOKS * r->look_ns)
        return;
    r->hold_ns /= 2;
    r->since_ns = now_ns;
}

bool mr_recut_weigh(mr_recut *r, const mr_recut_offer *offer, int64_t took_ns, int64_t now_ns) {
    int64_t pause_ns = LOOK_SHARE * took_ns;
    r->next_ns = now_ns + (pause_ns > r->look_ns ? pause_ns : r->look_ns);
    calm_down(r, now_ns);
    r->n_agree = mr_recut_is_worth(offer) ? r->n_agree + 1 : 0;
    return r->n_agree >= AGREE && now_ns >= r->until_ns;
}

void mr_recut_note_epoch(mr_recut *r, bool by_recut, int64_t now_ns) {
    r->n_agree = 0;
    r->next_ns = now_ns + r->look_ns;
    if (!by_recut)
        return;
    r->since_ns = now_ns;
    r->until_ns = now_ns + r->hold_ns;
    if (r->hold_ns < MOST_DOUBLED * HOLD_LOOKS * r->look_ns)
        r->hold_ns *= 2;
}

bool mr_suspicion_add(mr_suspicion *s, const mr_paced_steps *steps, const mr_other_ranks *others, int64_t now_ns) {
    if (steps->n <= 0)
        return false;
    bool was_on = s->is_on;
    double usual_s = steps->predicted_s * (others->fastest > 1 ? others->fastest : 1);
    bool is_slow = steps->seconds > SLOW_TIMES * usual_s + SLOW_S * (double)steps->n;
    bool is_of_host = others->of_host >= AS_SLOW * steps->seconds / steps->predicted_s;
    s->n_slow = is_slow && !is_of_host ? s->n_slow + steps->n : 0;
    s->n_slow_reports = is_slow && !is_of_host ? s->n_slow_reports + 1 : 0;
    s->n_usual = is_slow ? 0 : s->n_usual + steps->n;
    if (!s->is_on && s->n_slow >= SLOW_STEPS && s->n_slow_reports >= SLOW_REPORTS) {
        s->is_on = true;
        s->hold_ns = s->hold_ns == 0 ? SUSPECT_NS : 2 * s->hold_ns < MOST_SUSPECT_NS ? 2 * s->hold_ns : MOST_SUSPECT_NS;
        s->until_ns = now_ns + s->hold_ns;
    }
    if (s->is_on && s->n_usual >= USUAL_STEPS)
        s->is_on = false;
    return s->is_on != was_on;
}

bool mr_suspicion_rest(mr_suspicion *s, int64_t now_ns) {
    s->n_slow = s->n_usual = 0;
    s->n_slow_reports = 0;
    if (!s->is_on || now_ns < s->until_ns)
        return false;
    s->is_on = false;
    return true;
}
