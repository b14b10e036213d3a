/* engine/base/rng.c - the generator Philox4x32-10, and numbers made of its output. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/rng.h"

mr_philox mr_philox4x32(mr_philox counter, uint32_t key0, uint32_t key1) {
    uint32_t a = counter.word[0], b = counter.word[1], c = counter.word[2], d = counter.word[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)UINT32_C(0xd2511f53) * a, p1 = (uint64_t)UINT32_C(0xcd9e8d57) * c;
        a = (uint32_t)(p1 >> 32) ^ b ^ key0;
        b = (uint32_t)p1;
        c = (uint32_t)(p0 >> 32) ^ d ^ key1;
        d = (uint32_t)p0;
        key0 += UINT32_C(0x9e3779b9);
        key1 += UINT32_C(0xbb67ae85);
    }
    return (mr_philox){{a, b, c, d}};
}

uint64_t mr_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter) {
    mr_philox in = {{(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    mr_philox out = mr_philox4x32(in, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (uint64_t)out.word[0] << 32 | out.word[1];
}

float mr_rng_f32(uint64_t seed, uint64_t stream, uint64_t counter) {
    return (float)(mr_rng_u64(seed, stream, counter) >> 40) * 0x1p-24f;
}
