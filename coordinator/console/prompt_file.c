// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/prompt_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 64 << 10, MAX_SHOWN = 40 };

static mr_status read_fd(int fd, const char *name, size_t max_bytes, mr_text_buf *out, mr_err *err) {
    size_t n_before = out->len;
    for (;;) {
        if (!mr_text_buf_reserve(out, PIECE_BYTES))
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the %zu bytes of %s", out->len + PIECE_BYTES, name);
        ssize_t n = read(fd, out->data + out->len, PIECE_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return mr_err_set(err, MR_E_IO, "%s cannot be read: %s", name, strerror(errno));
        if (n == 0)
            return MR_OK;
        out->len += (size_t)n;
        out->data[out->len] = 0;
        if (out->len - n_before > max_bytes)
            return mr_err_set(err, MR_E_TOO_LONG, "%s has more than %zu bytes", name, max_bytes);
    }
}

mr_status mr_prompt_file_read(const char *path, size_t max_bytes, mr_text_buf *out, mr_err *err) {
    if (strcmp(path, "-") == 0)
        return read_fd(STDIN_FILENO, "standard input", max_bytes, out, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mr_err_set(err, errno == ENOENT ? MR_E_NOT_FOUND : MR_E_IO, "%.160s cannot be opened: %s", path,
                          strerror(errno));
    mr_status status = read_fd(fd, path, max_bytes, out, err);
    close(fd);
    return status;
}

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
