/* coordinator/console/prompt_file.c - reads token ids, and names the line of a word that is none. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/prompt_file.h"

#include <string.h>

enum { MAX_SHOWN = 40 };

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The number in word, at most 9 digits; -1 for anything else. */
static int32_t parse_id(mr_str word) {
    int32_t id = 0;
    if (word.len > 9)
        return -1;
    for (size_t i = 0; i < word.len; i++) {
        if (word.data[i] < '0' || word.data[i] > '9')
            return -1;
        id = 10 * id + (word.data[i] - '0');
    }
    return id;
}

static bool is_number(mr_str word) {
    for (size_t i = word.len > 1 && word.data[0] == '-'; i < word.len; i++)
        if (word.data[i] < '0' || word.data[i] > '9')
            return false;
    return true;
}

static mr_status bad_word(mr_str word, const char *name, size_t line, int32_t n_vocab, mr_err *err) {
    char shown[MAX_SHOWN + 1];
    size_t n = word.len < MAX_SHOWN ? word.len : MAX_SHOWN;
    for (size_t i = 0; i < n; i++)
        shown[i] = word.data[i] > ' ' && word.data[i] <= '~' ? word.data[i] : '?';
    shown[n] = 0;
    if (is_number(word))
        return mr_err_set(err, MR_E_FORMAT, "%.160s, line %zu: id %s is outside the vocabulary; ids are 0 to %d", name,
                          line, shown, n_vocab - 1);
    return mr_err_set(err, MR_E_FORMAT, "%.160s, line %zu: \"%s\" is not a token id", name, line, shown);
}

mr_status mr_prompt_ids_parse(mr_str text, const char *name, int32_t n_vocab, mr_token_buf *out, mr_err *err) {
    size_t line = 1, n_before = out->n;
    for (size_t i = 0; i < text.len;) {
        if (is_space(text.data[i])) {
            line += text.data[i++] == '\n';
            continue;
        }
        size_t start = i;
        while (i < text.len && !is_space(text.data[i]))
            i++;
        mr_str word = {text.data + start, i - start};
        int32_t id = parse_id(word);
        if (id < 0 || id >= n_vocab)
            return bad_word(word, name, line, n_vocab, err);
        if (!mr_token_buf_push(out, id))
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu token ids", out->n);
    }
    if (out->n == n_before)
        return mr_err_set(err, MR_E_FORMAT, "%.160s holds no token ids", name);
    return MR_OK;
}
