/* tests/kernels/simde/immintrin.h - found before the compiler's header of the same name. It maps the names of the
 * intrinsics that the kernels use to SIMDe's portable versions, and adds the few intrinsics that SIMDe 0.7.4 lacks.
 * These handle only the arguments that the kernels pass.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_KERNELS_SIMDE_IMMINTRIN_H
#define MR_TESTS_KERNELS_SIMDE_IMMINTRIN_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <math.h>
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <string.h>
#pragma GCC diagnostic pop

#include "engine/tensor/f16.h"

/* The kernels force many small pieces to be inlined into one function. With emulated instructions that function would
 * take minutes to compile. */
#define always_inline unused

#ifndef _MM_FROUND_NO_EXC
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC
#endif
typedef simde__mmask16 __mmask16;
typedef simde__mmask64 __mmask64;

typedef union lanes512 {
    simde__m512 ps;
    simde__m512i si;
    simde__m256 half_ps[2];
    simde__m256i half_si[2];
    simde__m128 quarter_ps[4];
    simde__m128i quarter_si[4];
    float f[16];
    int32_t i[16];
    uint16_t h[32];
    uint8_t b[64];
} lanes512;

static inline lanes512 lanes_of_512(simde__m512 a) {
    return (lanes512){.ps = a};
}
static inline lanes512 lanes_of_256(simde__m256 a) {
    lanes512 r = {.b = {0}};
    r.half_ps[0] = a;
    return r;
}

/* --- Loads and stores of the first lanes ------------------------------------------------------------------------- */

/* Loads the lanes of n bytes whose bits in mask are set; the others are 0. */
static inline lanes512 lanes_load(uint64_t mask, const void *p, int n) {
    lanes512 r = {.b = {0}};
    for (int k = 0; k < 64 / n; k++)
        if (mask >> k & 1)
            memcpy(r.b + k * n, (const uint8_t *)p + k * n, (size_t)n);
    return r;
}
#define _mm512_maskz_loadu_ps(mask, p) (lanes_load(mask, p, 4).ps)
#define _mm512_maskz_loadu_epi32(mask, p) (lanes_load(mask, p, 4).si)
#define _mm512_maskz_loadu_epi8(mask, p) (lanes_load(mask, p, 1).si)

static inline void _mm512_mask_storeu_ps(float *p, simde__mmask16 mask, simde__m512 a) {
    lanes512 x = {.ps = a};
    for (int k = 0; k < 16; k++)
        if (mask >> k & 1)
            p[k] = x.f[k];
}

/* --- Conversions ------------------------------------------------------------------------------------------------- */

static inline simde__m512 _mm512_cvtph_ps(simde__m256i a) {
    lanes512 r = {.half_ps = {simde_mm256_cvtph_ps(simde_mm256_castsi256_si128(a)),
                              simde_mm256_cvtph_ps(simde_mm256_extracti128_si256(a, 1))}};
    return r.ps;
}
/* SIMDe 0.7.4 truncates when it converts to f16. The kernels round to the nearest value. */
static inline simde__m256i _mm512_cvtps_ph(simde__m512 a, int rounding) {
    lanes512 x = {.ps = a}, r = {.b = {0}};
    (void)rounding;
    for (int k = 0; k < 16; k++)
        r.h[k] = mr_f32_to_f16(x.f[k]);
    return r.half_si[0];
}
#undef _mm256_cvtps_ph
#define _mm256_cvtps_ph(a, rounding) simde_mm256_castsi256_si128(_mm512_cvtps_ph(lanes_of_256(a).ps, rounding))

static inline simde__m512 _mm512_cvtepi32_ps(simde__m512i a) {
    lanes512 x = {.si = a};
    for (int k = 0; k < 4; k++)
        x.quarter_ps[k] = simde_mm_cvtepi32_ps(x.quarter_si[k]);
    return x.ps;
}
static inline simde__m512i _mm512_cvtps_epi32(simde__m512 a) {
    lanes512 x = {.ps = a};
    for (int k = 0; k < 4; k++)
        x.quarter_si[k] = simde_mm_cvtps_epi32(x.quarter_ps[k]);
    return x.si;
}
static inline simde__m512i _mm512_cvtepu8_epi32(simde__m128i a) {
    lanes512 x, r;
    x.quarter_si[0] = a;
    for (int k = 0; k < 16; k++)
        r.i[k] = x.b[k];
    return r.si;
}
static inline simde__m512i _mm512_cvtepi8_epi32(simde__m128i a) {
    lanes512 x, r;
    x.quarter_si[0] = a;
    for (int k = 0; k < 16; k++)
        r.i[k] = (int8_t)x.b[k];
    return r.si;
}
static inline simde__m128i _mm512_cvtepi32_epi8(simde__m512i a) {
    lanes512 x = {.si = a}, r;
    for (int k = 0; k < 16; k++)
        r.b[k] = (uint8_t)x.i[k];
    return r.quarter_si[0];
}

/* --- Arithmetic -------------------------------------------------------------------------------------------------- */

static inline simde__m512i _mm512_srai_epi32(simde__m512i a, int n) {
    lanes512 x = {.si = a};
    for (int k = 0; k < 16; k++)
        x.i[k] >>= n;
    return x.si;
}
/* SIMDe rounds between multiplication and addition if the machine has no fused operation. */
static inline lanes512 lanes_fma(lanes512 x, lanes512 y, lanes512 z, int n) {
    for (int k = 0; k < n; k++)
        x.f[k] = fmaf(x.f[k], y.f[k], z.f[k]);
    return x;
}
static inline lanes512 lanes_negate(lanes512 x, int step) {
    for (int k = 0; k < 16; k += step)
        x.f[k] = -x.f[k];
    return x;
}
#undef _mm256_fmadd_ps
#undef _mm256_fmaddsub_ps
#undef _mm512_fmadd_ps
#define _mm256_fmadd_ps(a, b, c) (lanes_fma(lanes_of_256(a), lanes_of_256(b), lanes_of_256(c), 8).half_ps[0])
#define _mm256_fmaddsub_ps(a, b, c)                                                                                    \
    (lanes_fma(lanes_of_256(a), lanes_of_256(b), lanes_negate(lanes_of_256(c), 2), 8).half_ps[0])
#define _mm512_fmadd_ps(a, b, c) (lanes_fma(lanes_of_512(a), lanes_of_512(b), lanes_of_512(c), 16).ps)
#define _mm512_fmaddsub_ps(a, b, c)                                                                                    \
    (lanes_fma(lanes_of_512(a), lanes_of_512(b), lanes_negate(lanes_of_512(c), 2), 16).ps)

static inline simde__m512i _mm512_maskz_slli_epi32(simde__mmask16 mask, simde__m512i a, unsigned n) {
    lanes512 x = {.si = a};
    for (int k = 0; k < 16; k++)
        x.i[k] = mask >> k & 1 ? (int32_t)((uint32_t)x.i[k] << n) : 0;
    return x.si;
}
static inline int32_t _mm512_reduce_add_epi32(simde__m512i a) {
    lanes512 x = {.si = a};
    uint32_t sum = 0;
    for (int k = 0; k < 16; k++)
        sum += (uint32_t)x.i[k];
    return (int32_t)sum;
}
static inline int32_t _mm512_reduce_max_epi32(simde__m512i a) {
    lanes512 x = {.si = a};
    for (int k = 1; k < 16; k++)
        x.i[0] = x.i[k] > x.i[0] ? x.i[k] : x.i[0];
    return x.i[0];
}
static inline float _mm512_reduce_max_ps(simde__m512 a) {
    lanes512 x = {.ps = a};
    for (int n = 8; n > 0; n /= 2)
        for (int k = 0; k < n; k++)
            x.f[k] = x.f[k] > x.f[k + n] ? x.f[k] : x.f[k + n];
    return x.f[0];
}
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32

/* --- Lanes elsewhere --------------------------------------------------------------------------------------------- */

static inline simde__m512 _mm512_moveldup_ps(simde__m512 a) {
    lanes512 x = {.ps = a};
    for (int k = 0; k < 16; k += 2)
        x.f[k + 1] = x.f[k];
    return x.ps;
}
static inline simde__m512 _mm512_movehdup_ps(simde__m512 a) {
    lanes512 x = {.ps = a};
    for (int k = 0; k < 16; k += 2)
        x.f[k] = x.f[k + 1];
    return x.ps;
}
static inline simde__m256 _mm512_extractf32x8_ps(simde__m512 a, int half) {
    lanes512 x = {.ps = a};
    return x.half_ps[half];
}

#endif
