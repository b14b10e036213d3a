/* engine/tensor/type.c - the table of the element types, and sizes that follow from it. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/type.h"

#include "engine/base/mem.h"

static const mr_type_info TYPES[] = {
    [MR_TYPE_F32] = {"F32", 1, 4, true},
    [MR_TYPE_F16] = {"F16", 1, 2, true},
    [MR_TYPE_Q4_0] = {"Q4_0", 32, 18, true},
    [MR_TYPE_Q4_1] = {"Q4_1", 32, 20, true},
    [MR_TYPE_Q5_0] = {"Q5_0", 32, 22, true},
    [MR_TYPE_Q5_1] = {"Q5_1", 32, 24, true},
    [MR_TYPE_Q8_0] = {"Q8_0", 32, 34, true},
    [MR_TYPE_Q8_1] = {"Q8_1", 32, 36, false},
    [MR_TYPE_Q2_K] = {"Q2_K", 256, 84, true},
    [MR_TYPE_Q3_K] = {"Q3_K", 256, 110, true},
    [MR_TYPE_Q4_K] = {"Q4_K", 256, 144, true},
    [MR_TYPE_Q5_K] = {"Q5_K", 256, 176, true},
    [MR_TYPE_Q6_K] = {"Q6_K", 256, 210, true},
    [MR_TYPE_Q8_K] = {"Q8_K", 256, 292, false},
    [MR_TYPE_IQ2_XXS] = {"IQ2_XXS", 256, 66, true},
    [MR_TYPE_IQ2_XS] = {"IQ2_XS", 256, 74, true},
    [MR_TYPE_IQ3_XXS] = {"IQ3_XXS", 256, 98, true},
    [MR_TYPE_IQ1_S] = {"IQ1_S", 256, 50, true},
    [MR_TYPE_IQ4_NL] = {"IQ4_NL", 32, 18, true},
    [MR_TYPE_IQ3_S] = {"IQ3_S", 256, 110, true},
    [MR_TYPE_IQ2_S] = {"IQ2_S", 256, 82, true},
    [MR_TYPE_IQ4_XS] = {"IQ4_XS", 256, 136, true},
    [MR_TYPE_I8] = {"I8", 1, 1, false},
    [MR_TYPE_I16] = {"I16", 1, 2, false},
    [MR_TYPE_I32] = {"I32", 1, 4, false},
    [MR_TYPE_I64] = {"I64", 1, 8, false},
    [MR_TYPE_F64] = {"F64", 1, 8, false},
    [MR_TYPE_IQ1_M] = {"IQ1_M", 256, 56, true},
    [MR_TYPE_BF16] = {"BF16", 1, 2, true},
    [MR_TYPE_TQ1_0] = {"TQ1_0", 256, 54, true},
    [MR_TYPE_TQ2_0] = {"TQ2_0", 256, 66, true},
    [MR_TYPE_MXFP4] = {"MXFP4", 32, 17, true},
    [MR_TYPE_A8] = {"A8", 32, 40, false},
};

const mr_type_info *mr_type_get(int32_t type) {
    if (type < 0 || type >= (int32_t)(sizeof TYPES / sizeof TYPES[0]) || !TYPES[type].name)
        return NULL;
    return &TYPES[type];
}

const char *mr_type_name(int32_t type) {
    const mr_type_info *info = mr_type_get(type);
    return info ? info->name : "?";
}

mr_type mr_type_activation(mr_type weight) {
    if (weight == MR_TYPE_F32 || weight == MR_TYPE_F16)
        return MR_TYPE_F32;
    return weight == MR_TYPE_BF16 ? MR_TYPE_BF16 : MR_TYPE_A8;
}

bool mr_type_bytes(int32_t type, int64_t n_elems, size_t *out) {
    const mr_type_info *info = mr_type_get(type);
    if (!info || n_elems < 0 || n_elems % info->block_elems != 0)
        return false;
    return mr_mul_size((size_t)(n_elems / info->block_elems), (size_t)info->block_bytes, out);
}
