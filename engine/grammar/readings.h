/* engine/grammar/readings.h - reading a text with an automaton: all ways to read it so far, each a state and the
 * rules to go back to, as a linked list of frames that ways share.
 * Owns:    its tables, allocated once.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_READINGS_H
#define MR_ENGINE_GRAMMAR_READINGS_H

#include "engine/grammar/dfa.h"

enum {
    READINGS_FRAMES = 8192,
    READINGS_SLOTS = 8192,  /* of the hash table of frames; a power of two */
    READINGS_ITEMS = 16384, /* readings of all sets that are kept at once */
    READINGS_VISITED = 768, /* states that one byte may lead to, with those in which nothing is read */
    READINGS_BOTTOM = 0,    /* the frame under all others: the text is complete where a reading comes back to it */
};

/* Where to go on after a rule. Equal frames are one. */
typedef struct frame {
    uint32_t state, parent;
    uint32_t chain; /* next of the same hash; parents stand before children */
    uint32_t depth;
} frame;

typedef struct reading {
    uint32_t state; /* it has bytes */
    uint32_t frame;
} reading;

/* items[first .. first + n) of the reader. A set with neither readings nor completeness is dead. */
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
    reading *visited;    /* work space of one byte */
    uint64_t work;       /* steps so far */
    const char *problem; /* why the last step failed; NULL: it did not */
} text_reader;

/* false: no memory. deinit takes {0} too. */
bool text_reader_init(text_reader *r, const dfa *d);
void text_reader_deinit(text_reader *r);

/* The set with one reading that stands at state inside frame, at items[first ..]; false: problem is set. */
bool readings_start(text_reader *r, uint32_t state, uint32_t frame, uint32_t first, readings *out);
/* What is left of a set after a byte, at items[first ..], behind the set itself; false: problem is set. */
bool readings_step(text_reader *r, const readings *from, uint8_t byte, uint32_t first, readings *out);
/* Forgets the frames from n_frames on. */
void readings_rewind(text_reader *r, uint32_t n_frames);
/* Forgets the frames that none of n readings needs, and numbers the others anew. */
void readings_collect(text_reader *r, reading *items, uint32_t n);

#endif
