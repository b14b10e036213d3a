/* engine/text/text_file.c - reads a file as a whole, and checks that it is text in UTF-8. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/utf8.h"

/* PROBE_BYTES: so much text shows what it is if it has no byte order mark. */
enum { PIECE_BYTES = 64 << 10, PROBE_BYTES = 64 };
#define SAVE_AS_UTF8 "hint: save it as UTF-8 (PowerShell: Out-File -Encoding utf8)"

static bool begins_with(mr_str bytes, const char *mark, size_t n) {
    return bytes.len >= n && memcmp(bytes.data, mark, n) == 0;
}

/* Whether most units of the text are characters of ASCII: one byte, the first or the last, that is not zero. */
static bool has_units_of(mr_str bytes, size_t unit_bytes) {
    static const char ZEROS[4] = {0};
    size_t n = bytes.len < PROBE_BYTES ? bytes.len : PROBE_BYTES, n_units = n / unit_bytes, n_little = 0, n_big = 0;
    if (n_units == 0 || n % unit_bytes != 0)
        return false;
    for (size_t i = 0; i < n_units; i++) {
        const char *unit = bytes.data + i * unit_bytes;
        n_little += unit[0] && memcmp(unit + 1, ZEROS, unit_bytes - 1) == 0;
        n_big += unit[unit_bytes - 1] && memcmp(unit, ZEROS, unit_bytes - 1) == 0;
    }
    return 4 * n_little >= 3 * n_units || 4 * n_big >= 3 * n_units;
}

const char *mr_text_other_encoding(mr_str bytes) {
    if (begins_with(bytes, "\xFF\xFE\0\0", 4) || begins_with(bytes, "\0\0\xFE\xFF", 4))
        return "UTF-32";
    if (begins_with(bytes, "\xFF\xFE", 2) || begins_with(bytes, "\xFE\xFF", 2))
        return "UTF-16";
    return has_units_of(bytes, 4) ? "UTF-32" : has_units_of(bytes, 2) ? "UTF-16" : NULL;
}

mr_str mr_text_skip_mark(mr_str bytes) {
    enum { MARK_BYTES = 3 };
    return begins_with(bytes, "\xEF\xBB\xBF", MARK_BYTES) ? (mr_str){bytes.data + MARK_BYTES, bytes.len - MARK_BYTES}
                                                          : bytes;
}

/* Names the first byte that no text has, with its line. */
static mr_status check_bytes(mr_str text, const char *name, mr_err *err) {
    size_t line = 1;
    for (size_t i = 0; i < text.len;) {
        uint8_t byte = (uint8_t)text.data[i];
        size_t n = byte ? mr_utf8_char_len(text.data + i, text.len - i) : 0;
        if (!byte)
            return mr_err_set(err, MR_E_FORMAT, "%.160s, line %zu: there is a NUL byte, so it is no text", name, line);
        if (n == 0)
            return mr_err_set(err, MR_E_FORMAT, "%.160s, line %zu: byte 0x%02X is not UTF-8; " SAVE_AS_UTF8, name, line,
                              byte);
        line += byte == '\n';
        i += n;
    }
    return MR_OK;
}

mr_status mr_text_check(mr_str bytes, const char *name, mr_str *out, mr_err *err) {
    const char *other = mr_text_other_encoding(bytes);
    if (other)
        return mr_err_set(err, MR_E_FORMAT, "%.160s is text in %s; " SAVE_AS_UTF8, name, other);
    mr_str text = mr_text_skip_mark(bytes);
    mr_status status = check_bytes(text, name, err);
    if (status == MR_OK)
        *out = text;
    return status;
}

static mr_status read_error(const char *name, mr_err *err) {
    return mr_err_set(err, errno == ENOENT ? MR_E_NOT_FOUND : MR_E_IO, "%.160s cannot be read: %s", name,
                      errno == EISDIR ? "it is a folder" : strerror(errno));
}

/* Appends all bytes. */
static mr_status read_bytes(int fd, const char *name, size_t max_bytes, mr_text_buf *out, mr_err *err) {
    const size_t before = out->len;
    for (;;) {
        if (!mr_text_buf_reserve(out, PIECE_BYTES))
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the %zu bytes of %.160s",
                              out->len - before + PIECE_BYTES, name);
        ssize_t n = read(fd, out->data + out->len, PIECE_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return read_error(name, err);
        if (n == 0)
            return MR_OK;
        out->len += (size_t)n;
        if (out->len - before > max_bytes)
            return mr_err_set(err, MR_E_TOO_LONG, "%.160s has more than %zu bytes", name, max_bytes);
    }
}

mr_status mr_text_file_read(const char *path, size_t max_bytes, mr_text_buf *out, mr_err *err) {
    const bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    const size_t before = out->len;
    mr_str text = {0};
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return read_error(name, err);
    mr_status status = read_bytes(fd, name, max_bytes, out, err);
    if (!is_stdin)
        close(fd);
    if (status == MR_OK)
        status = mr_text_check((mr_str){out->data + before, out->len - before}, name, &text, err);
    if (status == MR_OK)
        memmove(out->data + before, text.data, text.len); /* without the mark */
    out->len = before + text.len;
    if (out->data)
        out->data[out->len] = 0;
    return status;
}
