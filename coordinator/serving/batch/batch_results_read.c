/* coordinator/serving/batch/batch_results_read.c - reads a file of results line by line, and tells a whole result from
 * a damaged or foreign line. The file is read, not mapped: another program may cut it, and a mapped page that is gone
 * would end the process. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_results.h"

#include <errno.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 18, MAX_RESULT_BYTES = 1 << 30, HASH_DIGITS = BATCH_HASH_DIGITS };

/* Reads the next piece of the file behind the bytes that are not yet returned. *out_n: 0 at the end. */
static mr_status read_piece(batch_results_reader *r, size_t *out_n, mr_err *err) {
    mr_text_buf *b = &r->read;
    if (r->at) {
        memmove(b->data, b->data + r->at, b->len - r->at);
        b->len -= r->at;
        r->at = 0;
    }
    if (b->len > MAX_RESULT_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG, "a result has more than %d bytes", MAX_RESULT_BYTES);
    if (!mr_text_buf_reserve(b, PIECE_BYTES))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a result of %zu bytes and more", b->len);
    ssize_t n;
    do
        n = pread(r->fd, b->data + b->len, PIECE_BYTES, (off_t)(r->n_good_bytes + b->len));
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return mr_err_set(err, MR_E_IO, "the results cannot be read: %s", strerror(errno));
    b->len += (size_t)n;
    b->data[b->len] = 0;
    *out_n = (size_t)n;
    return MR_OK;
}

mr_status batch_results_read(batch_results_reader *r, mr_str *out_line, mr_err *err) {
    *out_line = (mr_str){0};
    for (size_t n_seen = 0;;) {
        size_t n = r->read.len - r->at;
        const char *line = n ? r->read.data + r->at : "";
        const char *end = memchr(line + n_seen, '\n', n - n_seen);
        size_t len = end ? (size_t)(end - line) : n;
        if (memchr(line + n_seen, 0, len - n_seen))
            return MR_OK; /* on some file systems a lost write leaves zeros */
        if (end) {
            *out_line = (mr_str){line, len};
            r->at += len + 1;
            r->n_good_bytes += len + 1;
            return MR_OK;
        }
        n_seen = n;
        mr_status status = read_piece(r, &n, err);
        if (status != MR_OK || !n)
            return status;
    }
}

/* Reads an underscore and HASH_DIGITS digits at *at, and moves *at behind them. */
static bool parse_hash(mr_str text, size_t *at, uint64_t *out) {
    uint64_t hash = 0;
    size_t i = *at, end = i + 1 + HASH_DIGITS;
    if (end >= text.len || text.data[i++] != '_')
        return false;
    for (; i < end; i++) {
        char c = text.data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        hash = hash << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *at = i;
    *out = hash;
    return true;
}

/* Whether the line has no answer with status 200. The first member of this name is that of the result: quotes in a
 * custom_id are escaped. */
static bool has_failed(mr_str text) {
    static const char RESPONSE[] = "\"response\": ", GOOD[] = "{\"status_code\": 200,";
    const char *response = memmem(text.data, text.len, RESPONSE, sizeof RESPONSE - 1);
    if (!response)
        return true;
    response += sizeof RESPONSE - 1;
    return (size_t)(text.data + text.len - response) < sizeof GOOD - 1 || memcmp(response, GOOD, sizeof GOOD - 1) != 0;
}

/* The id of a result is BATCH_RESULT_HEAD NUMBER_HASH_CHECKSUM. Earlier versions wrote no checksum. */
bool batch_result_parse(mr_str text, batch_result *out) {
    size_t n = sizeof BATCH_RESULT_HEAD - 1, i = n;
    uint64_t number = 0, sum = 0;
    if (text.len < n || memcmp(text.data, BATCH_RESULT_HEAD, n) != 0)
        return false;
    for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9' && number <= BATCH_MAX_LINES; i++)
        number = 10 * number + (uint64_t)(text.data[i] - '0');
    if (i == n || number > BATCH_MAX_LINES || !parse_hash(text, &i, &out->hash))
        return false;
    bool has_sum = text.data[i] == '_';
    if ((has_sum && !parse_hash(text, &i, &sum)) || text.data[i] != '"')
        return false;
    out->number = (uint32_t)number;
    out->is_whole = !has_sum || sum == batch_hash((mr_str){text.data + i, text.len - i});
    out->has_failed = has_failed(text);
    return text.data[text.len - 1] == '}';
}
