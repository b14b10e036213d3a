/* engine/base/le.h - loads and stores little-endian numbers at any address, on machines of either byte order.
 * Threads: pure functions. The caller makes sure that p points to enough bytes; reader.h checks bounds. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_LE_H
#define MR_ENGINE_BASE_LE_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define MR_LE16(v) __builtin_bswap16(v)
#define MR_LE32(v) __builtin_bswap32(v)
#define MR_LE64(v) __builtin_bswap64(v)
#else
#define MR_LE16(v) (v)
#define MR_LE32(v) (v)
#define MR_LE64(v) (v)
#endif

static inline uint16_t mr_load_le16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return MR_LE16(v);
}
static inline uint32_t mr_load_le32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return MR_LE32(v);
}
static inline uint64_t mr_load_le64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return MR_LE64(v);
}
static inline float mr_load_le_f32(const void *p) {
    uint32_t u = mr_load_le32(p);
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}
static inline double mr_load_le_f64(const void *p) {
    uint64_t u = mr_load_le64(p);
    double v;
    memcpy(&v, &u, sizeof v);
    return v;
}

static inline void mr_store_le16(void *p, uint16_t v) {
    v = MR_LE16(v);
    memcpy(p, &v, sizeof v);
}
static inline void mr_store_le32(void *p, uint32_t v) {
    v = MR_LE32(v);
    memcpy(p, &v, sizeof v);
}
static inline void mr_store_le64(void *p, uint64_t v) {
    v = MR_LE64(v);
    memcpy(p, &v, sizeof v);
}
static inline void mr_store_le_f32(void *p, float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    mr_store_le32(p, u);
}
static inline void mr_store_le_f64(void *p, double v) {
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    mr_store_le64(p, u);
}

#endif
