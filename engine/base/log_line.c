/* engine/base/log_line.c - formats a log line as plain text or as JSON. Text from outside can neither forge a line nor
 * send commands to a terminal. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/log_line.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TIME_BYTES = 32, TAIL_BYTES = 64, COMPONENT_BYTES = 32 };

const char *log_level_name(mr_log_level level) {
    static const char *const names[] = {"error", "warn", "info", "debug", "data"};
    return (unsigned)level < sizeof names / sizeof *names ? names[level] : "?";
}

/* Formats UTC as in ISO 8601, with milliseconds. */
static void format_time(int64_t unix_ms, char out[TIME_BYTES]) {
    time_t s = (time_t)(unix_ms / 1000);
    struct tm tm;
    gmtime_r(&s, &tm);
    size_t n = strftime(out, TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, TIME_BYTES - n, ".%03dZ", (int)(unix_ms % 1000));
}

/* The length of the UTF-8 sequence at s (RFC 3629: no overlong forms, no surrogates); 0 if the bytes are not valid. */
static size_t utf8_len(const unsigned char *s) {
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return n;
}

/* Appends s at out[n], up to limit and only whole characters. A byte that is not valid UTF-8 becomes '?', a control
 * character a space. Text from outside thus cannot forge lines or send commands to a terminal. */
static size_t append_text(char *out, size_t n, size_t limit, const char *s, bool json) {
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t len = utf8_len(p);
        const char *bytes = (const char *)p;
        if (len == 0)
            bytes = "?";
        else if (*p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0))
            bytes = " ";
        p += len ? len : 1;
        len = bytes == (const char *)p - len ? len : 1;
        size_t escape = json && len == 1 && (*bytes == '"' || *bytes == '\\');
        if (n + escape + len > limit)
            break;
        if (escape)
            out[n++] = '\\';
        memcpy(out + n, bytes, len);
        n += len;
    }
    return n;
}

static size_t append(char *out, size_t n, size_t bytes, const char *s) {
    size_t len = strlen(s);
    len = len < bytes - n ? len : bytes - n;
    memcpy(out + n, s, len);
    return n + len;
}

static size_t log_line_write(const log_line *line, char *out, size_t bytes, bool json) {
    char time[TIME_BYTES], head[128], rank[16], tail[TAIL_BYTES] = "";
    format_time(line->unix_ms, time);
    snprintf(rank, sizeof rank, line->rank < 0 ? (json ? "null" : "-") : "%d", line->rank);
    const char *level = log_level_name(line->level);
    if (json)
        snprintf(head, sizeof head, "{\"time\":\"%s\",\"level\":\"%s\",\"rank\":%s,\"component\":\"", time, level,
                 rank);
    else
        snprintf(head, sizeof head, "%s %-5s %s ", time, level, rank);
    if (json && line->n_left_out)
        snprintf(tail, sizeof tail, "\",\"left_out\":%u}\n", line->n_left_out);
    else if (json)
        snprintf(tail, sizeof tail, "\"}\n");
    else if (line->n_left_out)
        snprintf(tail, sizeof tail, " (%u alike left out)\n", line->n_left_out);
    else
        snprintf(tail, sizeof tail, "\n");

    size_t n = append(out, 0, bytes, head);
    n = append_text(out, n, n + COMPONENT_BYTES, line->component, json);
    n = append(out, n, bytes, json ? "\",\"text\":\"" : ": ");
    size_t n_fields = json && line->fields ? strlen(line->fields) + 2 : 0; /* and a quote and a comma */
    if (n + n_fields + strlen(tail) >= bytes)
        n_fields = 0;
    n = append_text(out, n, bytes - strlen(tail) - n_fields, line->text, json);
    if (n_fields > 0) {
        n = append(out, n, bytes, "\",");
        n = append(out, n, bytes, line->fields);
        return append(out, n, bytes, "}\n");
    }
    return append(out, n, bytes, tail);
}

size_t log_line_plain(const log_line *line, char *out, size_t bytes) {
    return log_line_write(line, out, bytes, false);
}

size_t log_line_json(const log_line *line, char *out, size_t bytes) {
    return log_line_write(line, out, bytes, true);
}
