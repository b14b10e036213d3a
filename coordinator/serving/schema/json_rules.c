/* coordinator/serving/schema/json_rules.c - the rules of JSON values as one text. Each grammar gets a copy with its own
 * prefix. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/schema/json_rules.h"

#include <string.h>

/* The grammar of RFC 8259, with @ for the prefix. Escaped surrogates are allowed in pairs only, so every string is
 * valid Unicode. */
static const char rules[] =
    "@value ::= @object | @array | @string | @number | \"true\" | \"false\" | \"null\"\n"
    "@object ::= \"{\" @ws (@member (\",\" @ws @member)* @ws)? \"}\"\n"
    "@member ::= @string \":\" @sp @value\n"
    "@array ::= \"[\" @ws (@value (\",\" @ws @value)* @ws)? \"]\"\n"
    "@string ::= \"\\\"\" @char* \"\\\"\"\n"
    "@char ::= @plain | @escape\n"
    "@plain ::= [^\"\\\\\\x00-\\x1F\\x7F]\n"
    "@escape ::= \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9A-CE-Fa-ce-f] [0-9A-Fa-f]{3} | [Dd] [0-7] [0-9A-Fa-f]{2} | "
    "[Dd] [89ABab] [0-9A-Fa-f]{2} \"\\\\u\" [Dd] [C-Fc-f] [0-9A-Fa-f]{2}))\n"
    "@number ::= @integer (\".\" [0-9]{1,16})? ([eE] [+-]? [0-9]{1,2})?\n"
    "@integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17} | [1-8] [0-9]{18})\n"
    "@ws ::= (\" \" | \"\\n\" (\" \"{0,32} | \"\\t\"{1,8}))?\n"
    "@sp ::= \" \"?\n";

mr_status json_rules_write(const char *prefix, mr_text_buf *out, mr_err *err) {
    size_t len = out->len;
    for (const char *at = rules; *at;) {
        size_t n = strcspn(at, "@");
        bool ok = mr_text_buf_append(out, at, n) && (!at[n] || mr_text_buf_append(out, prefix, strlen(prefix)));
        if (!ok) {
            out->len = len;
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the rules of JSON");
        }
        at += n + (at[n] == '@');
    }
    return MR_OK;
}
