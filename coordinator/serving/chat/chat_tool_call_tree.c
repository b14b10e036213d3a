/* coordinator/serving/chat/chat_tool_call_tree.c - turns a value that a model wrote as elements in elements into JSON.
 * Elements with children are objects, or lists where their first child is called "item" and the schema has no such
 * property. The schema says which texts are numbers, words or strings. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

#include <string.h>

#include "coordinator/serving/chat/chat_schema.h"

enum { MAX_TREE_DEPTH = 32 };

/* An open element. */
typedef struct element {
    const json_t *schema; /* of its value; NULL: unknown */
    int n_children;
    bool is_list;
    size_t begin; /* of its text */
} element;

typedef struct tree {
    mr_str text;
    const char *mark;
    size_t n_mark;
    mr_text_buf *to;
    element open[MAX_TREE_DEPTH];
    int depth;
} tree;

static bool put(tree *t, const char *text) {
    return mr_text_buf_append(t->to, text, strlen(text));
}

/* Writes what stands in front of a child of the innermost element, and opens the child. */
static bool begin_child(tree *t, mr_str name, size_t begin) {
    element *e = &t->open[t->depth - 1];
    const json_t *properties = json_object_get(e->schema, "properties");
    char key[MAX_KEY_BYTES + 1];
    if (t->depth == MAX_TREE_DEPTH || !name.len || name.len > MAX_KEY_BYTES || memchr(name.data, 0, name.len))
        return false;
    memcpy(key, name.data, name.len);
    key[name.len] = 0;
    if (!e->n_children)
        e->is_list = strcmp(key, "item") == 0 && !json_object_get(properties, key);
    const char *before = e->n_children ? ", " : e->is_list ? "[" : "{";
    const json_t *schema = e->is_list ? json_object_get(e->schema, "items") : json_object_get(properties, key);
    e->n_children++;
    t->open[t->depth++] = (element){.schema = schema, .begin = begin};
    return put(t, before) && (e->is_list || (put(t, "\"") && chat_escape(t->to, key, strlen(key)) && put(t, "\": ")));
}

/* Closes the innermost element, whose text ends at end. */
static bool end_child(tree *t, size_t end) {
    const element *e = &t->open[--t->depth];
    if (e->n_children)
        return put(t, e->is_list ? "]" : "}");
    unsigned types = e->schema ? chat_schema_types(e->schema) : CHAT_TYPE_ANY;
    mr_str text = {t->text.data + e->begin, end - e->begin};
    if (!text.len && !(types & CHAT_TYPE_STRING))
        return put(t, types & CHAT_TYPE_ARRAY ? "[]" : types & CHAT_TYPE_OBJECT ? "{}" : "null");
    return chat_value_to_json(text, types, false, t->to);
}

bool chat_tree_to_json(mr_str text, const char *mark, size_t n_mark, const json_t *schema, mr_text_buf *to) {
    tree t = {.text = text, .mark = mark, .n_mark = n_mark, .to = to, .depth = 1};
    t.open[0].schema = schema;
    for (size_t at = 0; at < text.len;) {
        const char *found = memmem(text.data + at, text.len - at, mark, n_mark);
        if (!found)
            break;
        size_t begin = (size_t)(found - text.data), name = begin + n_mark;
        bool ends = name < text.len && text.data[name] == '/';
        const char *close = memchr(text.data + name, '>', text.len - name);
        if (!close)
            return false;
        at = (size_t)(close - text.data) + 1;
        if (ends ? t.depth < 2 || !end_child(&t, begin)
                 : !begin_child(&t, (mr_str){text.data + name, at - 1 - name}, at))
            return false;
    }
    return t.depth == 1 && end_child(&t, text.len);
}
