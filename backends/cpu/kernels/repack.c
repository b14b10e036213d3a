/* backends/cpu/kernels/repack.c - rows of a file become panels of 16 rows (layouts: kernels.h, matmul_panels.h).
 * A pure rearrangement of bits. Sources may lie at any address. Four values of one row move as one 32-bit word. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"

typedef const uint8_t *row_ptrs[MR_PANEL]; /* NULL: past the matrix */

static uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static void store32(uint8_t *p, uint32_t v) {
    memcpy(p, &v, 4);
}
static uint16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static void repack_f32(uint8_t *dst, const row_ptrs rows, int32_t k) {
    for (int r = 0; r < MR_PANEL; r++)
        if (rows[r])
            for (size_t i = 0; i < (size_t)k; i++)
                memcpy(dst + (i * MR_PANEL + (size_t)r) * 4, rows[r] + i * 4, 4);
}

static void repack_f16(uint8_t *dst, const row_ptrs rows, int32_t k) {
    for (int r = 0; r < MR_PANEL; r++)
        if (rows[r])
            for (size_t i = 0; i < (size_t)k; i++)
                memcpy(dst + (i * MR_PANEL + (size_t)r) * 2, rows[r] + i * 2, 2);
}

static void block_q8_0(mr_panel_q8_0 *p, int r, const uint8_t *src) {
    p->d[r] = load16(src);
    for (int g = 0; g < 8; g++)
        store32(p->q[g][r], load32(src + offsetof(mr_block_q8_0, q) + 4 * g) ^ 0x80808080u);
}

static void block_q4_k(mr_panel_q4_k *p, int r, const uint8_t *src) {
    mr_block_q4_k b;
    memcpy(&b, src, sizeof b);
    p->d[r] = b.d;
    p->dmin[r] = b.dmin;
    for (int j = 0; j < 8; j++)
        mr_q4_k_scale(b.scales, j, &p->scale[j].sc[r], &p->scale[j].m[r]);
    for (int pair = 0; pair < 4; pair++)
        for (int g = 0; g < 4; g++) {
            uint32_t lo = load32(b.q + pair * 32 + g * 4), hi = load32(b.q + pair * 32 + g * 4 + 16);
            store32(p->q[2 * pair][g][r], (lo & 0x0f0f0f0fu) | (hi & 0x0f0f0f0fu) << 4);
            store32(p->q[2 * pair + 1][g][r], (lo >> 4 & 0x0f0f0f0fu) | (hi & 0xf0f0f0f0u));
        }
}

/* Values i..i+3 of 6 bits, one in each byte; i a multiple of 4. */
static uint32_t q6_k_values(const mr_block_q6_k *b, int i) {
    int half = i / 128, part = i % 128 / 32, l = i % 32;
    uint32_t low = load32(b->ql + half * 64 + (part & 1) * 32 + l) >> (part / 2 * 4) & 0x0f0f0f0fu;
    uint32_t high = load32(b->qh + half * 32 + l) >> (part * 2) & 0x03030303u;
    return low | high << 4;
}

static void block_q6_k(mr_panel_q6_k *p, int r, const uint8_t *src) {
    mr_block_q6_k b;
    memcpy(&b, src, sizeof b);
    p->d[r] = b.d;
    for (int j = 0; j < 16; j++) {
        p->sc[j][r] = b.sc[j];
        uint32_t v[4];
        for (int g = 0; g < 4; g++)
            v[g] = q6_k_values(&b, j * 16 + g * 4);
        store32(p->q[j][0][r], v[0] | (v[3] & 0x30303030u) << 2);
        store32(p->q[j][1][r], v[1] | (v[3] & 0x0c0c0c0cu) << 4);
        store32(p->q[j][2][r], v[2] | (v[3] & 0x03030303u) << 6);
    }
}

static void repack_q8_0(uint8_t *dst, const row_ptrs rows, int32_t k) {
    mr_panel_q8_0 *p = (mr_panel_q8_0 *)(void *)dst;
    for (size_t b = 0; b < (size_t)k / MR_Q8_0_BLOCK; b++, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            if (rows[r])
                block_q8_0(p, r, rows[r] + b * sizeof(mr_block_q8_0));
            else
                for (int g = 0; g < 8; g++)
                    store32(p->q[g][r], 0x80808080u);
        }
}

static void repack_q4_k(uint8_t *dst, const row_ptrs rows, int32_t k) {
    mr_panel_q4_k *p = (mr_panel_q4_k *)(void *)dst;
    for (size_t b = 0; b < (size_t)k / MR_QK_BLOCK; b++, p++)
        for (int r = 0; r < MR_PANEL; r++)
            if (rows[r])
                block_q4_k(p, r, rows[r] + b * sizeof(mr_block_q4_k));
}

static void repack_q6_k(uint8_t *dst, const row_ptrs rows, int32_t k) {
    mr_panel_q6_k *p = (mr_panel_q6_k *)(void *)dst;
    for (size_t b = 0; b < (size_t)k / MR_QK_BLOCK; b++, p++)
        for (int r = 0; r < MR_PANEL; r++)
            if (rows[r])
                block_q6_k(p, r, rows[r] + b * sizeof(mr_block_q6_k));
}

size_t mr_panel_bytes(mr_type type, int32_t k) {
    if (k <= 0)
        return 0;
    size_t n = (size_t)k;
    switch (type) {
    case MR_TYPE_F32:
        return n * MR_PANEL * 4;
    case MR_TYPE_F16:
        return n * MR_PANEL * 2;
    case MR_TYPE_Q8_0:
        return n % MR_Q8_0_BLOCK ? 0 : n / MR_Q8_0_BLOCK * sizeof(mr_panel_q8_0);
    case MR_TYPE_Q4_K:
        return n % MR_QK_BLOCK ? 0 : n / MR_QK_BLOCK * sizeof(mr_panel_q4_k);
    case MR_TYPE_Q6_K:
        return n % MR_QK_BLOCK ? 0 : n / MR_QK_BLOCK * sizeof(mr_panel_q6_k);
    default:
        return 0;
    }
}

void mr_repack(const mr_repack_args *args, int32_t panel_first, int32_t panel_last) {
    size_t panel_bytes = mr_panel_bytes(args->type, args->k);
    for (int32_t p = panel_first; p < panel_last; p++) {
        row_ptrs rows;
        for (int r = 0; r < MR_PANEL; r++) {
            int64_t row = (int64_t)p * MR_PANEL + r;
            rows[r] = row < args->n ? args->src + (size_t)row * args->src_row_bytes : NULL;
        }
        uint8_t *dst = args->dst + (size_t)p * panel_bytes;
        if (!rows[MR_PANEL - 1])
            memset(dst, 0, panel_bytes); /* zero scales make absent rows zero */
        if (args->type == MR_TYPE_F32)
            repack_f32(dst, rows, args->k);
        else if (args->type == MR_TYPE_F16)
            repack_f16(dst, rows, args->k);
        else if (args->type == MR_TYPE_Q8_0)
            repack_q8_0(dst, rows, args->k);
        else if (args->type == MR_TYPE_Q4_K)
            repack_q4_k(dst, rows, args->k);
        else if (args->type == MR_TYPE_Q6_K)
            repack_q6_k(dst, rows, args->k);
    }
}
