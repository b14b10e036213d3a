/* coordinator/serving/server/serve_keys.c - reads API keys. The texts of all sources are measured before the first key
 * is stored, so that the memory of the keys never grows: growing would leave copies of keys in freed memory. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/server/serve_keys.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/text_file.h"
#include "engine/text/utf8.h"

/* What a key is read from, for errors. */
typedef struct source {
    char name[MR_ERR_TEXT_BYTES / 2]; /* "--api-key" */
    bool is_file;
    bool has_key;
} source;

/* The part of text up to the first byte of ends; *text becomes the rest behind this byte. */
static mr_str take_part(mr_str *text, const char *ends) {
    size_t n = 0;
    while (n < text->len && !strchr(ends, text->data[n]))
        n++;
    mr_str part = {text->data, n};
    size_t behind = n < text->len ? n + 1 : n;
    *text = (mr_str){text->data + behind, text->len - behind};
    return part;
}

/* The place of the first white space; s.len: there is none. */
static size_t find_space(mr_str s) {
    for (size_t i = 0; i < s.len;) {
        size_t n = mr_utf8_char_len(s.data + i, s.len - i);
        if (mr_utf8_space_len(s.data + i, s.len - i) > 0)
            return i;
        i += n ? n : 1;
    }
    return s.len;
}

static mr_str without_spaces_around(mr_str s) {
    size_t last = 0, n;
    while ((n = mr_utf8_space_len(s.data, s.len)) > 0)
        s = (mr_str){s.data + n, s.len - n};
    for (size_t i = 0; i < s.len; i += n) { /* last: behind the last character that is no white space */
        n = mr_utf8_char_len(s.data + i, s.len - i);
        n = n ? n : 1;
        last = mr_utf8_space_len(s.data + i, s.len - i) > 0 ? last : i + n;
    }
    return (mr_str){s.data, last};
}

static bool is_quoted(mr_str s) {
    return s.len >= 2 && (s.data[0] == '"' || s.data[0] == '\'') && s.data[s.len - 1] == s.data[0];
}

/* Stores a key, for which texts has room. The list gets its pointers at the end. */
static mr_status store(serve_keys *k, mr_str key, mr_err *err) {
    if (k->n == INT32_MAX || !mr_text_buf_append(&k->texts, key.data, key.len) || !mr_text_buf_append(&k->texts, "", 1))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for keys");
    k->n++;
    return MR_OK;
}

static mr_status take_key(serve_keys *k, mr_str key, source *from, size_t line, mr_err *err) {
    if (key.len == 0)
        return MR_OK;
    if (find_space(key) < key.len)
        return mr_err_set(
            err, MR_E_INVALID,
            "%s, line %zu: the key has white space inside; hint: a comment needs a line of its own, which "
            "begins with #",
            from->name, line);
    if (is_quoted(key))
        return mr_err_set(err, MR_E_INVALID, "%s, line %zu: the key stands in quotes; hint: leave them out", from->name,
                          line);
    for (size_t i = 0; i < key.len; i++)
        if ((unsigned char)key.data[i] < ' ' || key.data[i] == 0x7F)
            return mr_err_set(err, MR_E_INVALID, "%s, line %zu: the key has a control character", from->name, line);
    from->has_key = true;
    return store(k, key, err);
}

/* Reads the keys of a text. */
static mr_status take_text(serve_keys *k, mr_str text, source *from, mr_err *err) {
    mr_status status = MR_OK;
    for (size_t number = 1; text.len > 0 && status == MR_OK; number++) {
        mr_str line = without_spaces_around(take_part(&text, "\n"));
        if (line.len > 0 && line.data[0] == '#')
            continue;
        do
            status = take_key(k, without_spaces_around(take_part(&line, from->is_file ? "" : ",")), from, number, err);
        while (line.len > 0 && status == MR_OK);
    }
    if (status == MR_OK && !from->has_key)
        status = mr_err_set(err, MR_E_INVALID, "%s has no key; hint: %s", from->name,
                            from->is_file ? "one key on each line" : "leave it out to serve without keys");
    return status;
}

static mr_status take_texts(serve_keys *k, const mr_options *o, mr_str file, mr_err *err) {
    const mr_option_value *given = &o->values[MR_OPTION_API_KEY];
    const mr_option_spec *spec = mr_option_spec_of(MR_OPTION_API_KEY);
    const char *path = mr_options_text(o, MR_OPTION_API_KEY_FILE);
    size_t bytes = file.len + 2;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < given->n; i++)
        bytes += strlen(given->list[i]) + 2;
    if (!mr_text_buf_reserve(&k->texts, bytes))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for keys");
    for (int32_t i = 0; i < given->n && status == MR_OK; i++) {
        source from = {.is_file = false};
        snprintf(from.name, sizeof from.name, "%s%s", given->is_argument ? "--" : "",
                 given->is_argument ? spec->flag : spec->environment);
        mr_str text = mr_str_from(given->list[i]);
        if (mr_text_check(text, from.name, &text, err) != MR_OK)
            status = mr_err_set(err, MR_E_INVALID, "%s is not UTF-8", from.name); /* shows no part of a key */
        else
            status = take_text(k, text, &from, err);
    }
    if (path && status == MR_OK) {
        source from = {.is_file = true};
        snprintf(from.name, sizeof from.name, "--api-key-file: %.160s", path);
        status = take_text(k, file, &from, err);
    }
    return status;
}

static mr_status make_list(serve_keys *k, mr_err *err) {
    k->list = k->n > 0 ? mr_alloc_array((size_t)k->n, sizeof *k->list) : NULL;
    if (k->n > 0 && !k->list)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for keys");
    const char *key = k->texts.data;
    for (int32_t i = 0; i < k->n; i++, key += strlen(key) + 1)
        k->list[i] = key;
    return MR_OK;
}

static void erase(mr_text_buf *b) {
    if (b->data)
        explicit_bzero(b->data, b->cap);
    mr_text_buf_deinit(b);
}

mr_status serve_keys_read(serve_keys *k, const mr_options *o, mr_err *err) {
    const char *path = mr_options_text(o, MR_OPTION_API_KEY_FILE);
    mr_text_buf file = {0};
    mr_status status = path ? mr_text_file_read(path, SERVE_KEY_FILE_MAX_BYTES, &file, err) : MR_OK;
    if (status != MR_OK) {
        err->status = status == MR_E_NO_MEMORY ? status : MR_E_INVALID; /* a wrong value of the option */
        status = mr_err_prefix(err, "--api-key-file");
    }
    if (status == MR_OK)
        status = take_texts(k, o, (mr_str){file.data, file.len}, err);
    if (status == MR_OK)
        status = make_list(k, err);
    erase(&file);
    return status;
}

void serve_keys_deinit(serve_keys *k) {
    erase(&k->texts);
    mr_free(k->list);
    *k = (serve_keys){0};
}
