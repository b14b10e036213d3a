/* engine/text/buffers.h - growable buffers of token ids and of text, which the functions of this room append to.
 * Owns:    its memory. {0} is an empty buffer, and so is a buffer after deinit. clear keeps the memory.
 * Threads: caller serialises.
 * Errors:  false when there is no memory; the buffer is then as it was. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_BUFFERS_H
#define MR_ENGINE_TEXT_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_token_buf {
    int32_t *ids;
    size_t n, cap;
} mr_token_buf;

/* Makes room for n more ids. */
MR_MUST_USE bool mr_token_buf_reserve(mr_token_buf *b, size_t n);
MR_MUST_USE bool mr_token_buf_push(mr_token_buf *b, int32_t id);
void mr_token_buf_clear(mr_token_buf *b);
void mr_token_buf_deinit(mr_token_buf *b);

typedef struct mr_text_buf {
    char *data; /* data[len] is 0; NULL until the first reserve or append */
    size_t len, cap;
} mr_text_buf;

/* Makes room for n more bytes and the terminating zero. */
MR_MUST_USE bool mr_text_buf_reserve(mr_text_buf *b, size_t n);
MR_MUST_USE bool mr_text_buf_append(mr_text_buf *b, const char *bytes, size_t n);
void mr_text_buf_clear(mr_text_buf *b);
void mr_text_buf_deinit(mr_text_buf *b);

#endif
