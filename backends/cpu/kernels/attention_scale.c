/* backends/cpu/kernels/attention_scale.c - the factor of a row's scores in rule T, in double. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"

float mr_attention_scale(const mr_attention_args *args, int32_t row) {
    mr_temperature t = args->temperature;
    int32_t position = args->row_position[row];
    if (t.length == 0 || position < t.length)
        return args->scale;
    return args->scale * (float)(1.0 + (double)t.growth * mr_log(1.0 + (double)(position / t.length)));
}
