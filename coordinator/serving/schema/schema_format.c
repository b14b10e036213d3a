/* The formats of JSON Schema as regular expressions, each with all forms of its RFC. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/schema/schema_regex.h"
#include "engine/text/buffers.h"

/* RFC 3339, section 5.6. A leap year can be divided by 4, and by 400 if it ends with 00. */
#define LEAP "(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|"  \
    "2[0-8]))|" LEAP "-02-29)"
#define HOUR "(?:[01]\\d|2[0-3])"
#define FRACTION "(?:\\.\\d+)?"

/* RFC 3339, appendix A. */
#define SECONDS "\\d+S"
#define MINUTES "\\d+M(?:" SECONDS ")?"
#define HOURS "\\d+H(?:" MINUTES ")?"
#define TIMES "T(?:" HOURS "|" MINUTES "|" SECONDS ")"
#define DAYS "\\d+D"
#define MONTHS "\\d+M(?:" DAYS ")?"
#define YEARS "\\d+Y(?:" MONTHS ")?"
#define DURATION "P(?:(?:" YEARS "|" MONTHS "|" DAYS ")(?:" TIMES ")?|" TIMES "|\\d+W)"

/* RFC 3986, section 3.2.2; RFC 4291, section 2.2. */
#define BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 BYTE "(?:\\." BYTE "){3}"
#define HEX "[0-9A-Fa-f]"
#define H16 HEX "{1,4}"
#define H16S(n) "(?:" H16 ":){" #n "}"
#define LEFT(n) "(?:(?:" H16 ":){0," #n "}" H16 ")?::"
#define LAST32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
    "(?:" H16S(6) LAST32 "|::" H16S(5) LAST32 "|" LEFT(0) H16S(4) LAST32 "|" LEFT(1) H16S(3) LAST32 "|" LEFT(2)        \
        H16S(2) LAST32 "|" LEFT(3) H16S(1) LAST32 "|" LEFT(4) LAST32 "|" LEFT(5) H16 "|" LEFT(6) ")"

/* RFC 1123, section 2.1; RFC 5321, sections 4.1.2 and 4.5.3.1. A label has at most 63 characters, and what stands
 * before @ 64. The loose forms leave these limits out, and addresses in place of a host's name. */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define LOOSE_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
#define HOST(label) label "(?:\\." label ")*"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define QUOTED(most) "\"(?:[ !#-\\[\\]-~]|\\\\[ -~]){0," most "}\""
#define EMAIL(ahead, most, host) "(?:" ahead ATOM "(?:\\." ATOM ")*|" QUOTED(most) ")@(?:" host ")"
#define MAIL_HOST HOST(LABEL) "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\]"

/* RFC 3986, appendix A. */
#define ESCAPED "%" HEX "{2}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" ESCAPED ")"
#define PATH "(?:\\/" PCHAR "*)*"
#define AUTHORITY                                                                                                      \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" ESCAPED ")*@)?(?:\\[(?:" IPV6 "|[Vv]" HEX "+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)" \
    "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|" ESCAPED ")*)(?::\\d*)?"
#define ABSOLUTE "\\/\\/" AUTHORITY PATH "|\\/(?:" PCHAR "+" PATH ")?"
#define TAIL "(?:\\?(?:" PCHAR "|[\\/?])*)?(?:#(?:" PCHAR "|[\\/?])*)?"
#define SEGMENT_NC "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" ESCAPED ")+"

#define UUID(third, fourth) HEX "{8}-" HEX "{4}-" third HEX "{3}-" fourth HEX "{3}-" HEX "{12}"

typedef struct format {
    const char *name, *pattern;
    const char *loose; /* without the lengths of parts; NULL: there are none */
} format;

static const format formats[] = {
    {"date", DATE, NULL},
    {"duration", DURATION, NULL},
    {"uuid", UUID(HEX, HEX), NULL},
    {"uuid1", UUID("1", "[89ABab]"), NULL},
    {"uuid3", UUID("3", "[89ABab]"), NULL},
    {"uuid4", UUID("4", "[89ABab]"), NULL},
    {"uuid5", UUID("5", "[89ABab]"), NULL},
    {"ipv4", IPV4, NULL},
    {"ipv6", IPV6, NULL},
    {"hostname", HOST(LABEL), HOST(LOOSE_LABEL)},
    {"email", EMAIL("(?=[^@]{1,64}@)", "62", MAIL_HOST), EMAIL("", "", HOST(LOOSE_LABEL))},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*:(?:" ABSOLUTE "|" PCHAR "+" PATH ")?" TAIL, NULL},
    {"uri-reference",
     "(?:[A-Za-z][A-Za-z0-9+.-]*:(?:" ABSOLUTE "|" PCHAR "+" PATH ")?|(?:" ABSOLUTE "|" SEGMENT_NC PATH ")?)" TAIL,
     NULL},
    {"json-pointer", "(?:\\/(?:[^~\\/]|~[01])*)*", NULL},
};

/* Appends the times with second 60: those that are 23:59:60 in UTC, with offsets of whole quarters of an hour. */
static bool put_leap_seconds(mr_text_buf *out) {
    static const struct {
        int minute, after, before; /* of the time, of an offset with +, of an offset with - */
    } quarters[] = {{59, 0, 0}, {29, 30, 30}, {14, 15, 45}, {44, 45, 15}};
    bool ok = true;
    for (int i = 0; ok && i < 24 * 4; i++) {
        int hour = i / 4, q = i % 4;
        char text[96];
        int n = snprintf(text, sizeof text, "|%02d:%d:60" FRACTION "(?:\\+%02d:%02d|-%02d:%02d%s)", hour,
                         quarters[q].minute, q ? hour : (hour + 1) % 24, quarters[q].after, 23 - hour,
                         quarters[q].before, q == 0 && hour == 23 ? "|[Zz]" : "");
        ok = mr_text_buf_append(out, text, (size_t)n);
    }
    return ok;
}

static bool put(mr_text_buf *out, const char *text) {
    return mr_text_buf_append(out, text, strlen(text));
}

static bool put_time(mr_text_buf *out, const char *before) {
    return put(out, before) && put(out, "(?:" HOUR ":[0-5]\\d:[0-5]\\d" FRACTION "(?:[Zz]|[+-]" HOUR ":[0-5]\\d)") &&
           put_leap_seconds(out) && put(out, ")");
}

bool schema_read_format(text_sets *p, const char *name, bool loose, text_set *out) {
    mr_text_buf pattern = {0};
    const char *why;
    bool ok = true, known = true;
    if (strcmp(name, "time") == 0) {
        ok = put_time(&pattern, "");
    } else if (strcmp(name, "date-time") == 0) {
        ok = put_time(&pattern, DATE "[Tt]");
    } else {
        size_t i = 0;
        while (i < sizeof formats / sizeof *formats && strcmp(formats[i].name, name) != 0)
            i++;
        known = i < sizeof formats / sizeof *formats;
        ok = !known || put(&pattern, loose && formats[i].loose ? formats[i].loose : formats[i].pattern);
    }
    if (!ok)
        text_fail(p, TEXT_NO_MEMORY);
    ok = ok && known && schema_read_regex(p, (mr_str){pattern.data, pattern.len}, true, out, &why);
    mr_text_buf_deinit(&pattern);
    return ok;
}
