/* coordinator/serving/api/api_samplers.c - reads "samplers", a field of llama-server that names the samplers to run and
 * their order. The order here is fixed, as llama.cpp has it by default, so the field can only turn samplers off. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/wire/api_json.h"

typedef enum chain_part {
    PENALTIES,
    DRY,
    TOP_N_SIGMA,
    TOP_K,
    TYPICAL,
    TOP_P,
    MIN_P,
    XTC,
    TEMPERATURE,
    N_PARTS
} chain_part;

static const char *const names[N_PARTS][3] = {
    [PENALTIES] = {"penalties"},
    [DRY] = {"dry"},
    [TOP_N_SIGMA] = {"top_n_sigma"},
    [TOP_K] = {"top_k"},
    [TYPICAL] = {"typ_p", "typical_p", "typical"},
    [TOP_P] = {"top_p"},
    [MIN_P] = {"min_p"},
    [XTC] = {"xtc"},
    [TEMPERATURE] = {"temperature", "temp"},
};

static int part_of(const json_t *name) {
    const char *text = json_string_value(name);
    for (int i = 0; i < N_PARTS && text; i++)
        for (int k = 0; k < 3 && names[i][k]; k++)
            if (strcmp(names[i][k], text) == 0)
                return i;
    return -1;
}

static void turn_off(chain_part part, mr_sampling_params *p) {
    switch (part) {
    case PENALTIES:
        p->repeat_penalty = 1;
        p->presence_penalty = p->frequency_penalty = 0;
        break;
    case DRY:
        p->dry_multiplier = 0;
        break;
    case TOP_N_SIGMA:
        p->top_n_sigma = 0;
        break;
    case TOP_K:
        p->top_k = 0;
        break;
    case TYPICAL:
        p->typical_p = 1;
        break;
    case TOP_P:
        p->top_p = 1;
        break;
    case MIN_P:
        p->min_p = 0;
        break;
    case XTC:
        p->xtc_probability = 0;
        break;
    case TEMPERATURE:
        p->temperature = 1;
        break;
    case N_PARTS:
        break;
    }
}

bool api_read_samplers(api_request *r, mr_api_error *e) {
    bool named[N_PARTS] = {false};
    const json_t *name;
    size_t i;
    int last = -1;
    if (!r->samplers || (json_is_string(r->samplers) && json_string_length(r->samplers) == 0))
        return true;
    if (!json_is_array(r->samplers))
        return mr_api_error_set(e, 400, "invalid_type", "samplers",
                                "samplers is %s, where an array of names is expected", mr_api_json_kind(r->samplers));
    json_array_foreach(r->samplers, i, name) {
        int part = part_of(name);
        if (part < 0)
            return mr_api_error_set(
                e, 400, "unsupported_parameter", "samplers",
                "samplers[%zu] is none of penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, "
                "temperature",
                i);
        if (part <= last)
            return mr_api_error_set(e, 400, "unsupported_parameter", "samplers",
                                    "samplers[%zu] (%s) stands behind %s, and the order cannot be changed", i,
                                    names[part][0], names[last][0]);
        named[last = part] = true;
    }
    for (int part = 0; part < N_PARTS; part++)
        if (!named[part])
            turn_off((chain_part)part, &r->sampling);
    return true;
}
