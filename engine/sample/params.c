// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampler.h"

mr_sampling_params mr_sampling_params_default(void) {
    return (mr_sampling_params){
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .repeat_penalty = 1.0f,
        .repeat_last_n = 64,
    };
}

/* Comparisons are written so that NaN fails them. */
mr_status mr_sampling_params_check(const mr_sampling_params *p, mr_err *err) {
    if (!(p->temperature >= 0.0f && p->temperature <= 100.0f))
        return mr_err_set(err, MR_E_INVALID, "temperature %g is not in [0, 100]", (double)p->temperature);
    if (p->top_k < 0)
        return mr_err_set(err, MR_E_INVALID, "top_k %d is negative; hint: 0 turns it off", p->top_k);
    if (!(p->top_p >= 0.0f && p->top_p <= 1.0f))
        return mr_err_set(err, MR_E_INVALID, "top_p %g is not in [0, 1]", (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return mr_err_set(err, MR_E_INVALID, "min_p %g is not in [0, 1]", (double)p->min_p);
    if (!(p->repeat_penalty > 0.0f && p->repeat_penalty <= 100.0f))
        return mr_err_set(err, MR_E_INVALID, "repeat_penalty %g is not in (0, 100]; hint: 1 turns it off",
                          (double)p->repeat_penalty);
    if (p->repeat_last_n < -1)
        return mr_err_set(err, MR_E_INVALID, "repeat_last_n %d is below -1; hint: -1 is the whole context",
                          p->repeat_last_n);
    return MR_OK;
}
