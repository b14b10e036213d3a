/* Formats metadata values as one line of text, for `inspect` and logs. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>

#include "engine/gguf/gguf_internal.h"

enum {
    MAX_TEXT_BYTES = 120, /* shown of a string */
    MAX_ITEMS = 6,        /* shown of an array */
    MAX_ITEM_BYTES = 24,  /* shown of a string in an array */
};

typedef struct line {
    char *out;
    size_t size, used; /* used < size */
} line;

static void line_add(line *l, const char *fmt, ...) MR_PRINTF(2, 3);
static void line_add(line *l, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(l->out + l->used, l->size - l->used, fmt, args);
    va_end(args);
    size_t room = l->size - l->used - 1;
    l->used += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room;
}

/* Writes control characters and bytes outside of ASCII as \xNN, so that a value cannot send commands to a terminal. */
static void line_add_text(line *l, mr_str s, size_t max_bytes) {
    size_t n = s.len < max_bytes ? s.len : max_bytes;
    line_add(l, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.data[i];
        if (c == '\n')
            line_add(l, "\\n");
        else if (c == '"' || c == '\\')
            line_add(l, "\\%c", c);
        else if (c < 0x20 || c > 0x7e)
            line_add(l, "\\x%02x", c);
        else
            line_add(l, "%c", c);
    }
    line_add(l, "\"");
    if (n < s.len)
        line_add(l, "... (%zu bytes)", s.len);
}

static void line_add_item(line *l, const mr_gguf_array *a, size_t idx, size_t max_bytes) {
    switch (a->type) {
    case MR_GGUF_STRING:
        line_add_text(l, mr_gguf_array_str(a, idx), max_bytes);
        break;
    case MR_GGUF_F32:
        line_add(l, "%.9g", (double)mr_gguf_array_f32(a, idx));
        break;
    case MR_GGUF_F64:
        line_add(l, "%.17g", mr_load_le_f64(a->data + 8 * idx));
        break;
    case MR_GGUF_BOOL:
        line_add(l, "%s", mr_gguf_array_i64(a, idx) ? "true" : "false");
        break;
    case MR_GGUF_U64:
        line_add(l, "%" PRIu64, (uint64_t)mr_gguf_array_i64(a, idx));
        break;
    default:
        line_add(l, "%" PRId64, mr_gguf_array_i64(a, idx));
        break;
    }
}

void mr_gguf_key_format(const mr_gguf *g, int32_t idx, char *out_text, size_t size) {
    MR_ASSERT(idx >= 0 && idx < g->n_keys && size > 0);
    const gguf_key *key = &g->keys[idx];
    line l = {out_text, size, 0};
    out_text[0] = 0;
    if (key->type != MR_GGUF_ARRAY) {
        line_add_item(&l, &key->value, 0, MAX_TEXT_BYTES);
        return;
    }
    line_add(&l, "[");
    for (size_t i = 0; i < key->value.n && i < MAX_ITEMS; i++) {
        line_add(&l, "%s", i ? ", " : "");
        line_add_item(&l, &key->value, i, MAX_ITEM_BYTES);
    }
    line_add(&l, key->value.n > MAX_ITEMS ? ", ...] (%zu items)" : "]", key->value.n);
}
