/* engine/text/special_tokens.c - finds special tokens in a text by a sorted table: the entries that agree with the text
 * are narrowed byte by byte. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/special_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/utf8.h"

/* Returns the text that stands for the token in a text. Files write spaces in user-defined tokens of SentencePiece as
 * spaces or as U+2581. */
static mr_str text_of(const vocab *v, int32_t id) {
    return v->types[id] == MR_TOKEN_USER_DEFINED ? vocab_piece(v, id) : vocab_text(v, id);
}

static bool is_candidate(const vocab *v, int32_t id) {
    size_t len = text_of(v, id).len;
    return (vocab_is_special(v, id) || v->types[id] == MR_TOKEN_USER_DEFINED) && len > 0 && len <= MR_SPECIAL_MAX_BYTES;
}

static int compare_entries(const void *pa, const void *pb) {
    const special_entry *a = pa, *b = pb;
    int order = mr_str_compare((mr_str){a->text, a->len}, (mr_str){b->text, b->len});
    return order ? order : (a->id > b->id) - (a->id < b->id);
}

/* Of sorted entries with the same text, keeps the first control token and the first user-defined one, so that a file
 * with many equal tokens does not slow the search down. Returns the number of entries kept. */
static int32_t drop_repeated(special_entry *e, int32_t n) {
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        bool repeated = false;
        for (int32_t k = kept - 1; k >= 0 && k >= kept - 2; k--)
            repeated |= e[k].is_control == e[i].is_control && e[k].len == e[i].len &&
                        memcmp(e[k].text, e[i].text, e[i].len) == 0;
        if (!repeated)
            e[kept++] = e[i];
    }
    return kept;
}

/* In the tokenizer files of the phi-3 family every special token strips white space, except for these. */
static bool never_strips(mr_str text) {
    return mr_str_is(text, "<unk>") || mr_str_is(text, "<s>") || mr_str_is(text, "<|endoftext|>");
}

mr_status special_tokens_init(special_tokens *st, const vocab *v, bool strips_right, mr_err *err) {
    int32_t n = 0;
    for (int32_t id = 0; id < v->n_tokens; id++)
        n += is_candidate(v, id);
    *st = (special_tokens){.entries = mr_alloc_array((size_t)n, sizeof *st->entries)};
    if (!st->entries)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d special tokens", n);
    for (int32_t id = 0; id < v->n_tokens; id++) {
        if (!is_candidate(v, id))
            continue;
        mr_str text = text_of(v, id);
        st->entries[st->n++] = (special_entry){
            .text = text.data,
            .len = (uint32_t)text.len,
            .id = id,
            .is_control = vocab_is_special(v, id),
            .strips_right = strips_right && !never_strips(text),
        };
    }
    qsort(st->entries, (size_t)n, sizeof *st->entries, compare_entries);
    st->n = n = drop_repeated(st->entries, n);
    for (int32_t i = 0, b = 0; b <= 256; b++) {
        while (i < n && (uint8_t)st->entries[i].text[0] < b)
            i++;
        st->first[b] = i;
    }
    return MR_OK;
}

void special_tokens_deinit(special_tokens *st) {
    mr_free(st->entries);
    *st = (special_tokens){0};
}

/* Returns the first entry in [lo, hi) whose byte at depth is at least value. All these entries agree in the bytes
 * before, and entries that end at depth come first. */
static int32_t lower_bound(const special_tokens *st, int32_t lo, int32_t hi, uint32_t depth, int value) {
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        const special_entry *e = &st->entries[mid];
        if (e->len <= depth || (uint8_t)e->text[depth] < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Returns the longest entry that text starts with, or NULL. The range of entries that agree with text shrinks byte by
 * byte. */
static const special_entry *longest_at(const special_tokens *st, const char *text, size_t len, bool with_control) {
    const special_entry *best = NULL;
    int32_t lo = st->first[(uint8_t)text[0]], hi = st->first[(uint8_t)text[0] + 1];
    for (uint32_t depth = 1; lo < hi; depth++) {
        for (int32_t i = lo; i < hi && st->entries[i].len == depth; i++)
            if (with_control || !st->entries[i].is_control) {
                best = &st->entries[i];
                break;
            }
        if (depth >= len)
            break;
        int byte = (uint8_t)text[depth];
        lo = lower_bound(st, lo, hi, depth, byte);
        hi = lower_bound(st, lo, hi, depth, byte + 1);
    }
    return best;
}

bool special_tokens_find(const special_tokens *st, mr_str text, size_t from, bool with_control, special_match *out) {
    if (st->n == 0)
        return false;
    for (size_t i = from; i < text.len; i++) {
        uint8_t b = (uint8_t)text.data[i];
        if (st->first[b] == st->first[b + 1])
            continue;
        const special_entry *e = longest_at(st, text.data + i, text.len - i, with_control);
        if (!e)
            continue;
        *out = (special_match){.start = i, .end = i + e->len, .resume = i + e->len, .id = e->id};
        size_t n = 1;
        while (e->strips_right && out->resume < text.len && n > 0) {
            n = mr_utf8_space_len(text.data + out->resume, text.len - out->resume);
            out->resume += n;
        }
        return true;
    }
    return false;
}
