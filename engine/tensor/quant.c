/* engine/tensor/quant.c - the table of the quantised types, and the functions that work on any of them. quant_32.c,
 * quant_k.c and quant_iq.c unpack the single types. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/quant.h"

#include <string.h>

#include "engine/base/status.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant_internal.h"

enum { NONE = -1 };

/* How a type is unpacked, and where its scale and minimum are in a block. */
typedef struct quant_type {
    unpack_fn *unpack;
    bool has_min;
    int d_at, min_at; /* offsets of f16 numbers; NONE: a block has none, or not in one piece */
} quant_type;

#define AT(block, field) ((int)offsetof(mr_block_##block, field))

static const quant_type TYPES[MR_TYPE_FILE_COUNT] = {
    [MR_TYPE_Q4_0] = {unpack_q4_0, false, AT(q4_0, d), NONE},
    [MR_TYPE_Q4_1] = {unpack_q4_1, true, AT(q4_1, d), AT(q4_1, m)},
    [MR_TYPE_Q5_0] = {unpack_q5_0, false, AT(q5_0, d), NONE},
    [MR_TYPE_Q5_1] = {unpack_q5_1, true, AT(q5_1, d), AT(q5_1, m)},
    [MR_TYPE_Q8_0] = {unpack_q8_0, false, AT(q8_0, d), NONE},
    [MR_TYPE_Q2_K] = {unpack_q2_k, true, AT(q2_k, d), AT(q2_k, dmin)},
    [MR_TYPE_Q3_K] = {unpack_q3_k, false, AT(q3_k, d), NONE},
    [MR_TYPE_Q4_K] = {unpack_q4_k, true, AT(q4_k, d), AT(q4_k, dmin)},
    [MR_TYPE_Q5_K] = {unpack_q5_k, true, AT(q5_k, d), AT(q5_k, dmin)},
    [MR_TYPE_Q6_K] = {unpack_q6_k, false, AT(q6_k, d), NONE},
    [MR_TYPE_IQ2_XXS] = {unpack_iq2_xxs, false, AT(iq2_xxs, d), NONE},
    [MR_TYPE_IQ2_XS] = {unpack_iq2_xs, false, AT(iq2_xs, d), NONE},
    [MR_TYPE_IQ3_XXS] = {unpack_iq3_xxs, false, AT(iq3_xxs, d), NONE},
    [MR_TYPE_IQ1_S] = {unpack_iq1_s, false, AT(iq1_s, d), NONE},
    [MR_TYPE_IQ4_NL] = {unpack_iq4_nl, false, AT(q4_0, d), NONE},
    [MR_TYPE_IQ3_S] = {unpack_iq3_s, false, AT(iq3_s, d), NONE},
    [MR_TYPE_IQ2_S] = {unpack_iq2_s, false, AT(iq2_s, d), NONE},
    [MR_TYPE_IQ4_XS] = {unpack_iq4_xs, false, AT(iq4_xs, d), NONE},
    [MR_TYPE_IQ1_M] = {unpack_iq1_m, false, NONE, NONE},
    [MR_TYPE_TQ1_0] = {unpack_tq1_0, false, AT(tq1_0, d), NONE},
    [MR_TYPE_TQ2_0] = {unpack_tq2_0, false, AT(tq2_0, d), NONE},
    [MR_TYPE_MXFP4] = {unpack_mxfp4, false, NONE, NONE},
};

void mr_unpack(mr_type type, const uint8_t *block, mr_quants *out) {
    TYPES[type].unpack(block, out);
}

bool mr_has_min(mr_type type) {
    return TYPES[type].has_min;
}

static void dequantize_block(mr_type type, const uint8_t *block, float *out, int32_t n) {
    mr_quants u;
    mr_unpack(type, block, &u);
    for (int32_t i = 0; i < n; i++)
        out[i] = u.scale[i / 16] * (float)u.q[i];
    for (int32_t i = 0; i < n && mr_has_min(type); i++)
        out[i] += u.min[i / 16];
}

void mr_dequantize(mr_type type, const void *src, float *out, int64_t n) {
    const mr_type_info *info = mr_type_get(type);
    const uint8_t *p = src;
    MR_ASSERT(info && info->is_weight);
    if (type == MR_TYPE_F32)
        memcpy(out, src, (size_t)n * sizeof(float));
    else if (type == MR_TYPE_F16)
        for (int64_t i = 0; i < n; i++)
            out[i] = mr_f16_to_f32(mr_load_le16(p + 2 * i));
    else if (type == MR_TYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            out[i] = mr_bf16_to_f32(mr_load_le16(p + 2 * i));
    else
        for (; n > 0; n -= info->block_elems, p += info->block_bytes, out += info->block_elems)
            dequantize_block(type, p, out, info->block_elems);
}

void mr_block_set_scale(mr_type type, uint8_t *block, uint16_t d, uint16_t min) {
    if (type == MR_TYPE_F16)
        mr_store_le16(block, d);
    else if (type == MR_TYPE_BF16)
        mr_store_le16(block, mr_f32_to_bf16(mr_f16_to_f32(d)));
    else if (type == MR_TYPE_MXFP4)
        block[0] = (uint8_t)((d >> 10 & 31) + 112); /* exponent bias of single minus that of half precision */
    else if (type == MR_TYPE_IQ1_M)
        for (size_t i = 0; i < 4; i++) {
            uint8_t *p = block + offsetof(mr_block_iq1_m, scales) + 2 * i;
            mr_store_le16(p, (uint16_t)((mr_load_le16(p) & 0x0fff) | (d >> (4 * i) & 15) << 12));
        }
    else
        mr_store_le16(block + TYPES[type].d_at, d);
    if (type < MR_TYPE_FILE_COUNT && TYPES[type].has_min)
        mr_store_le16(block + TYPES[type].min_at, min);
}
