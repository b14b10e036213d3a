// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_scratch.h"

#include <string.h>

#include "engine/base/mem.h"

mr_status cuda_scratch_init(cuda_scratch_layout *s, int32_t n_nodes, mr_err *err) {
    *s = (cuda_scratch_layout){.address = CUDA_ALIGNMENT};
    s->nodes = mr_alloc_array((size_t)n_nodes + 1, sizeof *s->nodes);
    s->pieces = mr_alloc_array((size_t)n_nodes * CUDA_MAX_SHARED + 1, sizeof *s->pieces);
    if (!s->nodes || !s->pieces)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a program of %d nodes", n_nodes);
    return MR_OK;
}

void cuda_scratch_deinit(cuda_scratch_layout *s) {
    mr_free(s->nodes);
    mr_free(s->pieces);
}

void cuda_scratch_begin(cuda_scratch_layout *s, int32_t node, bool is_new_group) {
    s->node = node;
    if (is_new_group)
        s->end = 0;
    if (s->is_placed)
        s->end = s->nodes[node].first;
    else
        s->nodes[node].first = s->end;
}

static mr_status too_long(size_t bytes, mr_err *err) {
    return mr_err_set(err, MR_E_TOO_LONG, "scratch memory of %zu bytes", bytes);
}

/* Adds bytes, rounded up to the alignment, to *end. */
static bool grow(size_t *end, size_t bytes) {
    size_t sum = 0;
    if (!mr_add_size(*end, bytes, &sum) || sum > SIZE_MAX - CUDA_ALIGNMENT)
        return false;
    *end = mr_round_up(sum, CUDA_ALIGNMENT);
    return true;
}

static void *at(const cuda_scratch_layout *s, size_t offset) {
    return (void *)(uintptr_t)(s->address + offset);
}

mr_status cuda_scratch_take(cuda_scratch_layout *s, size_t bytes, void **out, mr_err *err) {
    size_t first = s->end;
    cuda_node_scratch *n = &s->nodes[s->node];
    if (!grow(&s->end, bytes))
        return too_long(bytes, err);
    if (!s->is_placed)
        n->bytes = s->end - n->first;
    s->most_bytes = s->end > s->most_bytes ? s->end : s->most_bytes;
    *out = at(s, first);
    return MR_OK;
}

/* The piece with this key, or a new one. */
static int32_t find_piece(cuda_scratch_layout *s, const cuda_shared_key *key) {
    for (int32_t i = 0; i < s->n_pieces; i++)
        if (memcmp(&s->pieces[i].key, key, sizeof *key) == 0)
            return i;
    MR_ASSERT(!s->is_placed);
    s->pieces[s->n_pieces] = (cuda_shared_piece){.key = *key, .user = s->node};
    return s->n_pieces++;
}

mr_status cuda_scratch_share(cuda_scratch_layout *s, const cuda_shared_key *key, size_t bytes, void **out,
                             bool *out_is_first, mr_err *err) {
    cuda_node_scratch *n = &s->nodes[s->node];
    int32_t i = find_piece(s, key);
    cuda_shared_piece *piece = &s->pieces[i];
    size_t rounded = 0;
    if (!grow(&rounded, bytes))
        return too_long(bytes, err);
    if (!s->is_placed) {
        MR_ASSERT(n->n_shared < CUDA_MAX_SHARED);
        n->shared[n->n_shared++] = i;
        piece->bytes = rounded > piece->bytes ? rounded : piece->bytes;
    }
    *out = at(s, piece->first);
    *out_is_first = piece->user == s->node;
    return MR_OK;
}

mr_status cuda_scratch_bytes(cuda_scratch_layout *s, size_t *out, mr_err *err) {
    size_t end = s->most_bytes;
    for (int32_t i = 0; i < s->n_pieces; i++) {
        s->pieces[i].first = end;
        if (!grow(&end, s->pieces[i].bytes))
            return too_long(s->pieces[i].bytes, err);
    }
    *out = end;
    return MR_OK;
}

void cuda_scratch_place(cuda_scratch_layout *s, cuda_address address) {
    s->address = address;
    s->is_placed = true;
}

int32_t cuda_scratch_uses(const cuda_scratch_layout *s, int32_t node, cuda_use *out) {
    const cuda_node_scratch *n = &s->nodes[node];
    int32_t n_uses = 0;
    if (n->bytes > 0)
        out[n_uses++] = (cuda_use){s->address + n->first, n->bytes, true};
    for (int32_t i = 0; i < n->n_shared; i++) {
        const cuda_shared_piece *piece = &s->pieces[n->shared[i]];
        out[n_uses++] = (cuda_use){s->address + piece->first, piece->bytes, true};
    }
    return n_uses;
}
