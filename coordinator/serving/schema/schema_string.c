/* coordinator/serving/schema/schema_string.c - writes the rules for JSON strings with lengths, patterns and formats.
 * Each format of JSON Schema is a regular expression. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "engine/grammar/grammar.h"

/* Formats as regular expressions. Each expression matches valid texts only, and leaves out rare forms of the format. */
#define YEAR "(?:\\d{3}[1-9]|\\d{2}[1-9]\\d|\\d[1-9]\\d{2}|[1-9]\\d{3})"
#define LEAP "(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(?:" YEAR                                                                                                         \
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|"           \
    "2[0-8]))|" LEAP "-02-29)"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define DAYS "\\d{1,4}D"
#define SECONDS "\\d{1,4}S"
#define PATH "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})*"

typedef struct format {
    const char *name, *pattern;
} format;

static const format formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(?:(?:\\d{1,4}Y(?:\\d{1,4}M(?:" DAYS ")?)?|\\d{1,4}M(?:" DAYS ")?|" DAYS
                 ")(?:T(?:\\d{1,4}H(?:\\d{1,4}M(?:" SECONDS ")?)?|\\d{1,4}M(?:" SECONDS ")?|" SECONDS
                 "))?|T(?:\\d{1,4}H(?:\\d{1,4}M(?:" SECONDS ")?)?|\\d{1,4}M(?:" SECONDS ")?|" SECONDS ")|\\d{1,4}W)$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"ipv4", "^" BYTE "(?:\\." BYTE "){3}$"},
    {"ipv6", "^(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}$"},
    {"hostname", "^" LABEL "(?:\\." LABEL "){0,3}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,15}){0,2}@" LABEL "(?:\\." LABEL "){1,3}$"},
    {"uri",
     "^https?:\\/\\/" LABEL "(?:\\." LABEL "){0,3}(?::[1-9]\\d{0,3})?(?:\\/" PATH ")*(?:\\?" PATH ")?(?:#" PATH ")?$"},
};

static bool get_length(const json_t *keywords, const char *key, uint32_t *out) {
    const json_t *v = json_object_get(keywords, key);
    double length = json_number_value(v);
    if (v)
        *out = length < UINT32_MAX ? (uint32_t)length : UINT32_MAX - 1;
    return v != NULL;
}

static const char *pattern_of(schema_writer *w, const json_t *keywords, const char **out_keyword) {
    const char *pattern = json_string_value(json_object_get(keywords, "pattern"));
    const char *name = json_string_value(json_object_get(keywords, "format"));
    *out_keyword = pattern ? "pattern" : "format";
    if (pattern && name)
        schema_refuse(w, "format", "it stands beside \"pattern\"");
    for (size_t i = 0; name && !pattern && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].pattern;
    if (name && !pattern)
        schema_refuse(w, "format", "this format is not supported");
    return pattern;
}

void schema_write_string(schema_writer *w, const json_t *keywords) {
    uint32_t min = 0, max = UINT32_MAX;
    const char *keyword, *pattern = pattern_of(w, keywords, &keyword), *why = "";
    bool has_min = get_length(keywords, "minLength", &min), has_max = get_length(keywords, "maxLength", &max);
    if (!pattern && !has_min && !has_max) {
        schema_put(w, &w->body, "%s-string", w->name);
        return;
    }
    if (max < min) {
        schema_put(w, &w->body, "[]");
        return;
    }
    schema_put(w, &w->body, "\"\\\"\" ");
    if (pattern && w->status == MR_OK) {
        char any[96];
        schema_lengths lengths = {0};
        snprintf(any, sizeof any, "%s-char", w->name);
        if (w->body.len + strlen(pattern) * 64 > MR_GRAMMAR_MAX_TEXT_BYTES)
            schema_refuse(w, keyword, "too long");
        else if (!schema_write_regex(mr_str_from(pattern), any, &w->body, &lengths, &why))
            schema_refuse(w, keyword, why);
        if (lengths.min < min)
            schema_refuse(w, "minLength", "it is more than what the pattern or format beside it asks for");
        if (lengths.max > max)
            schema_refuse(w, "maxLength", "it is less than what the pattern or format beside it allows");
    } else if (!has_max) {
        if (min > MR_GRAMMAR_MAX_REPEAT)
            schema_refuse(w, "minLength", "more than 32768");
        schema_put(w, &w->body, "%s-char{%u,}", w->name, min);
    } else {
        if (max > MR_GRAMMAR_MAX_REPEAT)
            schema_refuse(w, "maxLength", "more than 32768");
        schema_put(w, &w->body, "%s-char{%u,%u}", w->name, min, max);
    }
    schema_put(w, &w->body, " \"\\\"\"");
}
