/* tests/cuda_emulation/emulator_traffic.cpp - sectors and banks (CUDA C++ Programming Guide, "Compute Capability 5.x":
 * global and shared memory). */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/emulator_traffic.h"

#include <vector>

namespace {

enum { MAX_THREADS = 1024, LANES = 32, SECTOR_BYTES = 32, BANKS = 32, BANK_BYTES = 4, TURN_BYTES = BANKS * BANK_BYTES };

struct read {
    uintptr_t at;
    int line;
    uint8_t bytes, memory;
    bool taken;
};

std::vector<read> reads[MAX_THREADS];

/* At most LANES different numbers. */
struct distinct {
    uintptr_t numbers[LANES];
    int n = 0;
    bool add(uintptr_t number) {
        for (int i = n - 1; i >= 0; i--)
            if (numbers[i] == number)
                return false;
        numbers[n++] = number;
        return true;
    }
};

/* An instruction of a warp: the addresses of the lanes that take part; 0: the lane does not. */
struct instruction {
    uintptr_t at[LANES];
    size_t bytes;
};

uint64_t count_sectors(const instruction &x) {
    distinct sectors;
    for (uintptr_t at : x.at)
        if (at)
            sectors.add(at / SECTOR_BYTES);
    return (uint64_t)sectors.n;
}

/* In a turn, each bank gives one word. Lanes that together read more than TURN_BYTES come in several turns at least: 16
 * and 16 lanes, or four times 8. */
void count_turns(const instruction &x, emulator_counts *counts) {
    uint32_t group = x.bytes <= BANK_BYTES ? (uint32_t)LANES : (uint32_t)(TURN_BYTES / x.bytes);
    for (uint32_t first = 0; first < LANES; first += group) {
        distinct words;
        uint64_t of_bank[BANKS] = {}, turns = 0;
        for (uint32_t l = first; l < first + group; l++)
            for (size_t b = 0; x.at[l] && b < x.bytes; b += BANK_BYTES) {
                uintptr_t word = (x.at[l] + b) / BANK_BYTES;
                uint64_t *n = &of_bank[word % BANKS];
                *n += words.add(word);
                turns = *n > turns ? *n : turns;
            }
        counts->n_shared_turns += turns;
        counts->n_bank_conflicts += turns > 1 ? turns - 1 : 0;
    }
}

} // namespace

void traffic_add(uint32_t thread, traffic_memory memory, const void *at, size_t bytes, int line) {
    reads[thread].push_back({(uintptr_t)at, line, (uint8_t)bytes, (uint8_t)memory, false});
}

/* Takes the first read of the lane that is like the other one; 0: there is none. All reads before begin are taken. */
static uintptr_t take(std::vector<read> &lane, size_t &begin, const read &like) {
    while (begin < lane.size() && lane[begin].taken)
        begin++;
    for (size_t i = begin; i < lane.size(); i++)
        if (!lane[i].taken && lane[i].line == like.line && lane[i].memory == like.memory &&
            lane[i].bytes == like.bytes) {
            lane[i].taken = true;
            return lane[i].at;
        }
    return 0;
}

void traffic_count(uint32_t warp, emulator_counts *counts) {
    std::vector<read> *lanes = &reads[warp * LANES];
    size_t begin[LANES] = {};
    for (uint32_t first = 0; first < LANES; first++)
        for (size_t i = 0; i < lanes[first].size(); i++) {
            const read like = lanes[first][i];
            if (like.taken)
                continue;
            instruction x = {{}, like.bytes};
            for (uint32_t l = first; l < LANES; l++)
                x.at[l] = take(lanes[l], begin[l], like);
            if (like.memory == TRAFFIC_DEVICE)
                counts->n_sectors += count_sectors(x);
            else
                count_turns(x, counts);
        }
    for (uint32_t l = 0; l < LANES; l++)
        lanes[l].clear();
}
