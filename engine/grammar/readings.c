/* engine/grammar/readings.c - moves a set of readings forward by one byte. Frames lie in a hash table, so that equal
 * frames exist only once. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/readings.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"

bool text_reader_init(text_reader *r, const dfa *d) {
    *r = (text_reader){.d = d, .n_frames = 1};
    r->frames = mr_alloc_array(READINGS_FRAMES, sizeof *r->frames);
    r->slots = mr_alloc_array(READINGS_SLOTS, sizeof *r->slots);
    r->items = mr_alloc_array(READINGS_ITEMS, sizeof *r->items);
    r->visited = mr_alloc_array(READINGS_VISITED, sizeof *r->visited);
    return r->frames && r->slots && r->items && r->visited;
}

void text_reader_deinit(text_reader *r) {
    mr_free(r->frames);
    mr_free(r->slots);
    mr_free(r->items);
    mr_free(r->visited);
    *r = (text_reader){0};
}

static uint32_t *slot_of(text_reader *r, uint32_t state, uint32_t parent) {
    uint64_t h = (state * UINT64_C(0x9E3779B97F4A7C15)) ^ (parent * UINT64_C(0xC2B2AE3D27D4EB4F));
    return &r->slots[(h ^ h >> 32) & (READINGS_SLOTS - 1)];
}

static bool push_frame(text_reader *r, uint32_t state, uint32_t parent, uint32_t *out) {
    uint32_t *slot = slot_of(r, state, parent);
    for (uint32_t i = *slot; i != READINGS_BOTTOM; i = r->frames[i].chain, r->work++) {
        if (r->frames[i].state == state && r->frames[i].parent == parent) {
            *out = i;
            return true;
        }
    }
    uint32_t depth = r->frames[parent].depth + 1;
    if (r->n_frames == READINGS_FRAMES || depth > MR_GRAMMAR_MAX_DEPTH) {
        r->problem = "the text is nested too deep for its grammar";
        return false;
    }
    r->frames[r->n_frames] = (frame){.state = state, .parent = parent, .chain = *slot, .depth = depth};
    *slot = *out = r->n_frames++;
    return true;
}

void readings_rewind(text_reader *r, uint32_t n_frames) {
    while (r->n_frames > n_frames) {
        const frame *f = &r->frames[--r->n_frames];
        *slot_of(r, f->state, f->parent) = f->chain; /* the newest frame of a chain is its first */
    }
}

void readings_collect(text_reader *r, reading *items, uint32_t n) {
    uint32_t *new_index = r->slots; /* the table is filled again below */
    uint32_t kept = 1;
    _Static_assert((int)READINGS_SLOTS >= (int)READINGS_FRAMES, "a slot for each frame");
    memset(r->slots, 0, READINGS_SLOTS * sizeof *r->slots);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t f = items[i].frame; f != READINGS_BOTTOM && !new_index[f]; f = r->frames[f].parent)
            new_index[f] = 1;
    for (uint32_t f = 1; f < r->n_frames; f++) {
        if (!new_index[f])
            continue;
        new_index[f] = kept;
        r->frames[kept] = r->frames[f];
        r->frames[kept].parent = new_index[r->frames[f].parent];
        kept++;
    }
    for (uint32_t i = 0; i < n; i++)
        items[i].frame = new_index[items[i].frame];
    r->n_frames = kept;
    memset(r->slots, 0, READINGS_SLOTS * sizeof *r->slots);
    for (uint32_t f = 1; f < kept; f++) {
        uint32_t *slot = slot_of(r, r->frames[f].state, r->frames[f].parent);
        r->frames[f].chain = *slot;
        *slot = f;
    }
}

static bool visit(text_reader *r, uint32_t *n_visited, uint32_t state, uint32_t frame_index) {
    r->work += 1 + *n_visited / 8;
    for (uint32_t i = 0; i < *n_visited; i++)
        if (r->visited[i].state == state && r->visited[i].frame == frame_index)
            return true;
    if (*n_visited == READINGS_VISITED) {
        r->problem = "the grammar has too many readings of the text";
        return false;
    }
    r->visited[(*n_visited)++] = (reading){state, frame_index};
    return true;
}

/* Follows calls and ends from the visited states, and collects the states that have bytes. */
static bool close_readings(text_reader *r, uint32_t n_visited, readings *out) {
    const dfa *d = r->d;
    for (uint32_t k = 0; k < n_visited; k++) {
        reading at = r->visited[k];
        uint8_t flags = d->flags[at.state];
        if (flags & DFA_BYTES) {
            if (out->n == MR_GRAMMAR_MAX_READINGS || out->first + out->n == READINGS_ITEMS) {
                r->problem = "the grammar has too many readings of the text";
                return false;
            }
            r->items[out->first + out->n++] = at;
        }
        if (flags & DFA_END) {
            if (at.frame == READINGS_BOTTOM)
                out->complete = true;
            else if (!visit(r, &n_visited, r->frames[at.frame].state, r->frames[at.frame].parent))
                return false;
        }
        if (!(flags & DFA_CALLS))
            continue;
        for (uint32_t i = d->first_call[at.state]; i < d->first_call[at.state + 1]; i++) {
            const dfa_call *call = &d->calls[i];
            uint32_t inner = at.frame;
            /* If only the end follows the call, the call need not return here. A list that recurs at its end thus does
             * not nest. */
            if (d->flags[call->back] != DFA_END && !push_frame(r, call->back, at.frame, &inner))
                return false;
            if (!visit(r, &n_visited, call->start, inner))
                return false;
        }
    }
    return true;
}

bool readings_start(text_reader *r, uint32_t state, uint32_t frame_index, uint32_t first, readings *out) {
    uint32_t n_visited = 0;
    *out = (readings){.first = first};
    r->problem = NULL;
    return visit(r, &n_visited, state, frame_index) && close_readings(r, n_visited, out);
}

bool readings_step(text_reader *r, const readings *from, uint8_t byte, uint32_t first, readings *out) {
    const dfa *d = r->d;
    *out = (readings){.first = first};
    r->work++;
    if (from->n == 1) {
        /* Nearly always there is one reading, which stays inside its rule. */
        reading at = r->items[from->first];
        uint32_t to = dfa_next(d, at.state, byte);
        if (to == DFA_DEAD)
            return true;
        if (d->flags[to] == DFA_BYTES && first < READINGS_ITEMS) {
            r->items[first] = (reading){to, at.frame};
            out->n = 1;
            return true;
        }
    }
    uint32_t n_visited = 0;
    r->problem = NULL;
    for (uint32_t i = 0; i < from->n; i++) {
        reading at = r->items[from->first + i];
        uint32_t to = dfa_next(d, at.state, byte);
        if (to != DFA_DEAD && !visit(r, &n_visited, to, at.frame))
            return false;
    }
    return close_readings(r, n_visited, out);
}
