// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"

enum { MAX_LINE = 1024 };

static bool log_json;

void mr_output_set_log_json(bool json) {
    log_json = json;
    mr_log_set_json(json);
}

/* Writes a line with one write call, so that lines of several processes do not mix. Control characters in the line
 * become spaces. */
static void put_line(mr_log_level level, const char *prefix, const char *fmt, va_list args) {
    char text[MAX_LINE], line[MAX_LINE + 64];
    if (vsnprintf(text, sizeof text, fmt, args) < 0)
        return;
    if (log_json) {
        mr_log_write(level, "millrace", "%s", text);
        return;
    }
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    int n = snprintf(line, sizeof line, "%s%s\n", prefix, text);
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

static void put_format(mr_log_level level, const char *prefix, const char *fmt, ...) MR_PRINTF(3, 4);
static void put_format(mr_log_level level, const char *prefix, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    put_line(level, prefix, fmt, args);
    va_end(args);
}

void mr_output_error(const mr_err *err) {
    if (err->text[0])
        put_format(MR_LOG_ERROR, "millrace: error: ", "%s", err->text);
}

void mr_output_warning(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    if (mr_log_enabled(MR_LOG_WARN))
        put_line(MR_LOG_WARN, "millrace: warning: ", fmt, args);
    va_end(args);
}

void mr_output_note(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    if (mr_log_enabled(MR_LOG_INFO))
        put_line(MR_LOG_INFO, "", fmt, args);
    va_end(args);
}

/* Writes all lines as one message. The log takes messages that differ only in their numbers for repeats, and would drop
 * lines of a table. */
static void note_joined(const char *lines) {
    char joined[MAX_LINE];
    snprintf(joined, sizeof joined, "%s", lines);
    for (char *c = joined; *c; c++)
        if (*c == '\n')
            *c = c[1] ? ';' : 0;
    mr_output_note("%s", joined);
}

void mr_output_note_lines(const char *lines) {
    if (log_json) {
        note_joined(lines);
        return;
    }
    while (*lines) {
        size_t len = strcspn(lines, "\n");
        mr_output_note("%.*s", (int)len, lines);
        lines += len + (lines[len] == '\n');
    }
}

bool mr_output_notes_are_json(void) {
    return log_json;
}

bool output_notes_on_terminal(void) {
    const char *term = getenv("TERM");
    return !log_json && mr_log_enabled(MR_LOG_INFO) && term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
}

mr_status mr_output_write(const char *bytes, size_t n, mr_err *err) {
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, bytes, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EPIPE)
            return mr_err_set(err, MR_E_IO, "%s", "");
        if (done < 0)
            return mr_err_set(err, MR_E_IO, "standard output cannot be written: %s", strerror(errno));
        bytes += done;
        n -= (size_t)done;
    }
    return MR_OK;
}

bool mr_output_printf(mr_text_buf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    bool ok = n >= 0 && mr_text_buf_reserve(b, (size_t)n);
    if (ok) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    va_end(args);
    return ok;
}

const char *mr_output_rounded(double v, char out[OUTPUT_ROUNDED_TEXT]) {
    snprintf(out, OUTPUT_ROUNDED_TEXT, "%.2e", v); /* rounds: 9.996 becomes 1.00e+01 */
    double rounded = strtod(out, NULL), limit = 100;
    int decimals = 0;
    for (; decimals < 6 && rounded < limit; limit /= 10)
        decimals++;
    snprintf(out, OUTPUT_ROUNDED_TEXT, "%.*f", rounded > 0 && rounded < 1e15 ? decimals : 0, rounded);
    return out;
}

void mr_output_bytes_text(size_t bytes, char out[OUTPUT_BYTES_TEXT]) {
    mr_bytes_text(bytes, out);
}
