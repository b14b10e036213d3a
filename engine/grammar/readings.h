/* engine/grammar/readings.h - reads a text with an automaton. A reading is one way to read the text so far: a state,
 * and the rules to return to as a linked list of frames. Readings share frames.
 * Owns:    its tables, allocated once.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_READINGS_H
#define MR_ENGINE_GRAMMAR_READINGS_H

#include "engine/grammar/dfa.h"

enum {
    READINGS_FRAMES = 8192,
    READINGS_SLOTS = 8192,  /* of the hash table of frames; a power of two */
    READINGS_ITEMS = 16384, /* readings of all sets that exist at once */
    READINGS_VISITED = 768, /* states that one byte may lead to, also through calls and ends */
    READINGS_BOTTOM = 0,    /* the frame below all others; when the rule in it ends, the text is complete */
};

/* A state to return to after a rule. Equal frames exist once. */
typedef struct frame {
    uint32_t state, parent;
    uint32_t chain; /* next frame with the same hash; parents have lower indices than children */
    uint32_t depth;
} frame;

typedef struct reading {
    uint32_t state; /* a state that has bytes */
    uint32_t frame;
} reading;

/* The readings items[first .. first + n) of the reader. A set without readings that is not complete is dead. */
typedef struct readings {
    uint32_t first, n;
    bool complete;
} readings;

typedef struct text_reader {
    const dfa *d;
    frame *frames;
    uint32_t *slots;
    reading *items;
    uint32_t n_frames;
    reading *visited;    /* work space for one byte */
    uint64_t work;       /* steps so far */
    const char *problem; /* why the last call failed; NULL if it did not */
} text_reader;

/* Returns false without memory. deinit accepts {0}. */
bool text_reader_init(text_reader *r, const dfa *d);
void text_reader_deinit(text_reader *r);

/* Makes the set of readings that begins at state inside frame, at items[first ..]. Returns false on failure and sets
 * problem. */
bool readings_start(text_reader *r, uint32_t state, uint32_t frame, uint32_t first, readings *out);
/* Makes the set of readings after a byte, at items[first ..], which must be behind the items of from. Returns false on
 * failure and sets problem. */
bool readings_step(text_reader *r, const readings *from, uint8_t byte, uint32_t first, readings *out);
/* Drops the frames from n_frames on. */
void readings_rewind(text_reader *r, uint32_t n_frames);
/* Drops the frames that none of n readings needs, and renumbers the others. */
void readings_collect(text_reader *r, reading *items, uint32_t n);

#endif
