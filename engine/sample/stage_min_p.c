/* engine/sample/stage_min_p.c - min-p: keeps the tokens whose probability is at least a share of the best one's. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

/* exp(l - max) >= min_p is l >= max + log(min_p), which is rounded once, to float. */
void stage_min_p(const mr_sampler *s, candidates *c) {
    if (s->params.min_p > 0.0f)
        candidates_keep(c, (cut){(float)((double)c->max_logit + s->log_min_p), INT32_MAX});
}
