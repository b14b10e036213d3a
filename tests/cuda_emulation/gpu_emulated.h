/* tests/cuda_emulation/gpu_emulated.h - the GPU of backends/cuda/kernels/gpu.h for compilers without CUDA: a thread is
 * a fibre that runs until it has to wait for others (emulator.cpp).
 * Threads: the lanes of all kernels run on the thread that called emulator_launch. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_GPU_EMULATED_H
#define MR_TESTS_CUDA_EMULATION_GPU_EMULATED_H

#include <stdint.h>
#include <string.h>

#include "engine/tensor/f16.h"
#include "tests/cuda_emulation/emulator.h"

#define MR_SHARED static
#define MR_CONSTANT static const
#define MR_UNROLL
#define MR_NO_UNROLL
#define MR_KERNEL(name, args_t, max_threads, ...)                                                                      \
    static void name##_body(const args_t &a);                                                                          \
    static const emulator_kernel name##_kernel(#name, max_threads, sizeof(args_t),                                     \
                                               [](const void *args) { name##_body(*(const args_t *)args); });          \
    static void name##_body(const args_t &a)

/* A kernel enters its name into the list of emulator_find before main begins. */
struct emulator_kernel {
    const char *name;
    uint32_t max_threads;
    size_t args_bytes;
    void (*body)(const void *args);
    const emulator_kernel *next;
    emulator_kernel(const char *kernel_name, uint32_t threads, size_t bytes, void (*function)(const void *));
};

struct emulator_place {
    uint32_t thread, block, block_y, blocks;
};
extern emulator_place emulator_here; /* of the fibre that runs */
extern uint8_t *emulator_dynamic_shared;
/* Waits for all threads of the block. */
void emulator_sync(int line);
/* Waits for all lanes of the warp; the last one to come calls meet(slots), slots in the order of lanes. */
void emulator_meet(void *mine, void (*meet)(void **slots), int line);
/* Copies of the fibre that runs: the bytes arrive when their group is waited for, rubbish until then. */
void emulator_copy16(void *shared, const void *global, int line);
void emulator_copy_commit();
void emulator_copy_wait(int n_groups);
/* A lane reads bytes of the device's memory, or of shared memory, in this line. note: the address is not aligned, or
 * traffic is counted. */
extern emulator_counts emulator_counted;
extern bool emulator_counts_traffic;
void emulator_note_read(const void *at, size_t bytes, int line);
void emulator_note_shared(const void *at, size_t bytes, int line);
static inline void emulator_count_read(const void *at, size_t bytes, int line) {
    emulator_counted.read_bytes += bytes;
    if (emulator_counts_traffic || (uintptr_t)at % bytes)
        emulator_note_read(at, bytes, line);
}
static inline void emulator_count_shared(const void *at, size_t bytes, int line) {
    if (emulator_counts_traffic || (uintptr_t)at % bytes)
        emulator_note_shared(at, bytes, line);
}

static inline uint32_t gpu_thread() {
    return emulator_here.thread;
}
static inline uint32_t gpu_block() {
    return emulator_here.block;
}
static inline uint32_t gpu_block_y() {
    return emulator_here.block_y;
}
static inline uint32_t gpu_blocks() {
    return emulator_here.blocks;
}
static inline uint8_t *gpu_dynamic_shared() {
    return emulator_dynamic_shared;
}
static inline void gpu_sync(int line = __builtin_LINE()) {
    emulator_sync(line);
}
static inline void gpu_sync_warp(int line = __builtin_LINE()) {
    emulator_meet(
        nullptr, [](void **) {}, line);
}
static inline void gpu_fence() {}

struct emulator_shuffle {
    uint64_t v, out;
    int mask, lane; /* the lane to read is own ^ mask, or lane */
};
static inline uint64_t emulator_shuffle_bits(uint64_t v, int mask, int lane, int line) {
    emulator_shuffle s = {v, 0, mask, lane};
    emulator_meet(
        &s,
        [](void **slots) {
            for (int i = 0; i < 32; i++) {
                emulator_shuffle *own = (emulator_shuffle *)slots[i];
                int from = own->lane < 0 ? i ^ own->mask : own->lane % 32;
                own->out = ((emulator_shuffle *)slots[from])->v;
            }
        },
        line);
    return s.out;
}
template <class T> static inline T gpu_shuffle_xor(T v, int mask, int line = __builtin_LINE()) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emulator_shuffle_bits(bits, mask, -1, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> static inline T gpu_shuffle(T v, int lane, int line = __builtin_LINE()) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emulator_shuffle_bits(bits, 0, lane, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}
/* Every lane gets what join makes of the numbers of all lanes, from 0 on. */
static inline uint32_t emulator_join(uint32_t v, void (*meet)(void **slots), int line) {
    emulator_meet(&v, meet, line);
    return v;
}
template <class Join> static inline void emulator_join_lanes(void **slots, Join join) {
    uint32_t all = 0;
    for (uint32_t i = 0; i < 32; i++)
        all = join(all, *(uint32_t *)slots[i], i);
    for (int i = 0; i < 32; i++)
        *(uint32_t *)slots[i] = all;
}
static inline uint32_t gpu_ballot(bool v, int line = __builtin_LINE()) {
    return emulator_join(
        v,
        [](void **slots) {
            emulator_join_lanes(slots, [](uint32_t all, uint32_t bit, uint32_t lane) { return all | bit << lane; });
        },
        line);
}
static inline uint32_t gpu_warp_max(uint32_t v, int line = __builtin_LINE()) {
    return emulator_join(
        v,
        [](void **slots) {
            emulator_join_lanes(slots, [](uint32_t all, uint32_t x, uint32_t) { return x > all ? x : all; });
        },
        line);
}
static inline uint32_t gpu_warp_sum(uint32_t v, int line = __builtin_LINE()) {
    return emulator_join(
        v, [](void **slots) { emulator_join_lanes(slots, [](uint32_t all, uint32_t x, uint32_t) { return all + x; }); },
        line);
}
static inline int gpu_atomic_add(int *at, int v) {
    int before = *at;
    *at = before + v;
    return before;
}

static inline int gpu_permute(int a, int b, int selector) {
    uint64_t bytes = (uint64_t)(uint32_t)b << 32 | (uint32_t)a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return (int)d;
}

static inline int gpu_dot4(int a, int b, int c) {
    for (int i = 0; i < 4; i++)
        c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}

struct emulator_mma {
    int *c;
    const int *a, *b;
    bool unsigned_a;
};
void emulator_multiply(void **slots); /* of emulator_mma; emulator_mma.cpp */
static inline void gpu_mma_s8_add(int c[4], const int a[4], const int b[2], int line = __builtin_LINE()) {
    emulator_mma own = {c, a, b, false};
    emulator_meet(&own, emulator_multiply, line);
}
static inline void gpu_mma_s8(int c[4], const int a[4], const int b[2], const int start[4],
                              int line = __builtin_LINE()) {
    memcpy(c, start, 4 * sizeof *c);
    gpu_mma_s8_add(c, a, b, line);
}
static inline void gpu_mma_u8(int c[4], const int a[4], const int b[2], const int start[4],
                              int line = __builtin_LINE()) {
    memcpy(c, start, 4 * sizeof *c);
    emulator_mma own = {c, a, b, true};
    emulator_meet(&own, emulator_multiply, line);
}

static inline void gpu_copy16(void *shared, const void *global, int line = __builtin_LINE()) {
    emulator_copy16(shared, global, line);
}
static inline void gpu_copy_commit() {
    emulator_copy_commit();
}
template <int N> static inline void gpu_copy_wait() {
    emulator_copy_wait(N);
}
template <class T> static inline T gpu_read(const T *at, int line = __builtin_LINE()) {
    emulator_count_read(at, sizeof(T), line);
    return *at;
}
template <class T> static inline T gpu_read_shared(const T *at, int line = __builtin_LINE()) {
    emulator_count_shared(at, sizeof(T), line);
    return *at;
}
static inline float gpu_half(uint16_t h) {
    return mr_f16_to_f32(h);
}
static inline uint32_t gpu_opaque(uint32_t v) {
    return v;
}
typedef struct alignas(16) gpu_int4 {
    int x, y, z, w;
} gpu_int4;
typedef struct alignas(8) gpu_int2 {
    int x, y;
} gpu_int2;

#endif
