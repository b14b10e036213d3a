/* engine/text/buffers.c - buffers that double their room when they are full. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/buffers.h"

#include <string.h>

#include "engine/base/mem.h"

enum { FIRST_CAP = 64 };

/* Grows *p, which has room for *cap items and holds n, to room for n + more items. */
static bool grow(void **p, size_t *cap, size_t n, size_t more, size_t item_bytes) {
    size_t need, bytes;
    if (!mr_add_size(n, more, &need))
        return false;
    if (need <= *cap)
        return true;
    size_t want = *cap < FIRST_CAP ? FIRST_CAP : *cap;
    while (want < need)
        if (!mr_mul_size(want, 2, &want))
            return false;
    if (!mr_mul_size(want, item_bytes, &bytes))
        return false;
    void *grown = mr_realloc(*p, bytes);
    if (!grown)
        return false;
    *p = grown;
    *cap = want;
    return true;
}

bool mr_token_buf_reserve(mr_token_buf *b, size_t n) {
    void *p = b->ids;
    bool ok = grow(&p, &b->cap, b->n, n, sizeof *b->ids);
    b->ids = p;
    return ok;
}

bool mr_token_buf_push(mr_token_buf *b, int32_t id) {
    if (b->n == b->cap && !mr_token_buf_reserve(b, 1))
        return false;
    b->ids[b->n++] = id;
    return true;
}

void mr_token_buf_clear(mr_token_buf *b) {
    b->n = 0;
}

void mr_token_buf_deinit(mr_token_buf *b) {
    mr_free(b->ids);
    *b = (mr_token_buf){0};
}

bool mr_text_buf_reserve(mr_text_buf *b, size_t n) {
    size_t with_zero;
    if (!mr_add_size(n, 1, &with_zero))
        return false;
    void *p = b->data;
    bool ok = grow(&p, &b->cap, b->len, with_zero, 1);
    b->data = p;
    if (ok)
        b->data[b->len] = 0;
    return ok;
}

bool mr_text_buf_append(mr_text_buf *b, const char *bytes, size_t n) {
    if (!mr_text_buf_reserve(b, n))
        return false;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
    return true;
}

void mr_text_buf_clear(mr_text_buf *b) {
    b->len = 0;
    if (b->data)
        b->data[0] = 0;
}

void mr_text_buf_deinit(mr_text_buf *b) {
    mr_free(b->data);
    *b = (mr_text_buf){0};
}
