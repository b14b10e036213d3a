/* engine/model/weight_store.c - a list of buffers with loaded weights. Models have some hundred layers at most, so a
 * walk over the list is quick beside the load of one layer. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/weight_store.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/model/weights_internal.h"

struct mr_weight_store {
    weight_buffer *first; /* linked by next */
};

void weight_buffer_destroy(weight_buffer *b) {
    if (!b)
        return;
    b->home->ops->buffer_destroy(b->home, b->buffer);
    mr_free(b);
}

mr_status mr_weight_store_create(mr_weight_store **out, mr_err *err) {
    mr_weight_store *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a store of weights");
    *out = s;
    return MR_OK;
}

void mr_weight_store_clear(mr_weight_store *s) {
    while (s && s->first) {
        weight_buffer *b = s->first;
        s->first = b->next;
        weight_buffer_destroy(b);
    }
}

void mr_weight_store_destroy(mr_weight_store *s) {
    mr_weight_store_clear(s);
    mr_free(s);
}

size_t mr_weight_store_bytes(const mr_weight_store *s) {
    size_t bytes = 0;
    for (const weight_buffer *b = s->first; b; b = b->next)
        bytes += b->bytes;
    return bytes;
}

static bool is_same(const weight_buffer *a, const weight_buffer *b) {
    return a->home == b->home && a->part == b->part && a->bytes == b->bytes && a->file_bytes == b->file_bytes &&
           a->n_tensors == b->n_tensors &&
           memcmp(a->tensors, b->tensors, (size_t)a->n_tensors * sizeof *a->tensors) == 0;
}

mr_buffer *weight_store_take(mr_weight_store *s, const weight_buffer *like) {
    for (weight_buffer **at = s ? &s->first : NULL; at && *at; at = &(*at)->next) {
        weight_buffer *b = *at;
        if (!is_same(b, like))
            continue;
        mr_buffer *buffer = b->buffer;
        *at = b->next;
        mr_free(b);
        return buffer;
    }
    return NULL;
}

void weight_store_give(mr_weight_store *s, weight_buffer *b) {
    b->next = s->first;
    s->first = b;
}
