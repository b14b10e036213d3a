/* coordinator/serving/schema/schema_keys.c - writes the rule for the name of an additional property: any string except
 * the names that the schema describes. GBNF has no subtraction, so the rule is a prefix tree of the described names. A
 * new name leaves the tree at the first character that differs. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "engine/base/mem.h"
#include "engine/grammar/gbnf.h"
#include "engine/text/utf8.h"

enum { MAX_KEY_BYTES = 200 };

static int compare_names(const void *a, const void *b) {
    return mr_str_compare(*(const mr_str *)a, *(const mr_str *)b);
}

/* The character of a name at byte depth. */
static mr_str char_at(mr_str name, size_t depth) {
    return (mr_str){name.data + depth, mr_utf8_char_len(name.data + depth, name.len - depth)};
}

/* Appends a character to a class. */
static void put_class_char(schema_writer *w, mr_text_buf *buf, mr_str c) {
    size_t at = 0;
    uint32_t code = 0;
    if (mr_gbnf_char(c, &at, &code))
        schema_put(w, buf, "\\U%08X", code);
}

/* A node of the tree: names [begin, end) share the first `depth` bytes. */
typedef struct branch {
    size_t begin, end, depth, next;
    bool whole; /* the shared bytes are a described name, so at least one more character has to follow */
} branch;

/* Opens the group of a branch. Writes the first alternative: a character with which no name continues, then any
 * characters. */
static branch open_branch(schema_writer *w, mr_text_buf *buf, const mr_str *names, size_t begin, size_t end,
                          size_t depth) {
    branch b = {.begin = begin, .end = end, .depth = depth};
    b.whole = names[begin].len == depth;
    b.next = begin + b.whole;
    schema_put(w, buf, "([^\\x00-\\x1F\\x7F\"\\\\");
    for (size_t i = b.next, last = end; i < end; last = i++)
        if (last == end || !mr_str_equal(char_at(names[i], depth), char_at(names[last], depth)))
            put_class_char(w, buf, char_at(names[i], depth));
    schema_put(w, buf, "] %s-plain*", w->name);
    return b;
}

/* Writes the tree of the sorted names. Each node is a group: a character of a name leads to the group of the longer
 * prefix, any other character leaves the tree. open: the stack of open groups. */
static void put_tree(schema_writer *w, mr_text_buf *buf, const mr_str *names, size_t n, branch *open) {
    size_t n_open = 0;
    open[n_open++] = open_branch(w, buf, names, 0, n, 0);
    while (n_open && w->status == MR_OK) {
        branch *b = &open[n_open - 1];
        if (b->next == b->end) {
            schema_put(w, buf, ")%s", b->whole ? "" : "?");
            n_open--;
            continue;
        }
        size_t begin = b->next, end = begin;
        mr_str c = char_at(names[begin], b->depth);
        while (end < b->end && mr_str_equal(char_at(names[end], b->depth), c))
            end++;
        b->next = end;
        schema_put(w, buf, " | ");
        schema_put_literal(w, buf, c);
        schema_put(w, buf, " ");
        size_t depth = b->depth + c.len;
        open[n_open++] = open_branch(w, buf, names, begin, end, depth);
    }
}

void schema_write_other_keys(schema_writer *w, mr_text_buf *buf, const mr_str *names, size_t n) {
    size_t n_kept = 0;
    mr_str *kept = mr_alloc_array(n, sizeof *kept);
    branch *open = mr_alloc_array(MAX_KEY_BYTES + 2, sizeof *open);
    if (!kept || !open)
        schema_no_memory(w);
    for (size_t i = 0; w->status == MR_OK && i < n; i++) {
        bool plain = true; /* the rule writes no escapes, so a name that needs one cannot appear anyway */
        for (size_t k = 0; k < names[i].len; k++)
            plain = plain && (uint8_t)names[i].data[k] >= 0x20 && !strchr("\"\\\x7F", names[i].data[k]);
        if (names[i].len > MAX_KEY_BYTES)
            schema_refuse(w, "additionalProperties",
                          "a property's name is longer than 200 bytes; hint: set it to false");
        if (plain)
            kept[n_kept++] = names[i];
    }
    if (w->status == MR_OK) {
        if (n_kept)
            qsort(kept, n_kept, sizeof *kept, compare_names);
        size_t n_unique = 0;
        for (size_t i = 0; i < n_kept; i++)
            if (n_unique == 0 || !mr_str_equal(kept[n_unique - 1], kept[i]))
                kept[n_unique++] = kept[i];
        if (n_unique)
            put_tree(w, buf, kept, n_unique, open);
        else
            schema_put(w, buf, "%s-plain*", w->name);
    }
    mr_free(kept);
    mr_free(open);
}
