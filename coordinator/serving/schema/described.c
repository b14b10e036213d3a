/* Makes grammars of texts that are not JSON: the texts that a regular expression matches, and the texts of a list. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/schema/schema.h"
#include "coordinator/serving/schema/schema_internal.h"
#include "coordinator/serving/schema/schema_regex.h"
#include "engine/grammar/gbnf.h"

enum { MAX_RULE_BYTES_OF_BYTE = 64 }; /* upper bound of the GBNF bytes for one byte of an expression */

static bool put(mr_text_buf *buf, const char *text) {
    return mr_text_buf_append(buf, text, strlen(text));
}

/* Compiles the text and frees it. complete: false if memory ran out while the text was written. */
static mr_status parse(mr_text_buf *text, bool complete, mr_grammar **out, mr_err *err) {
    mr_status status = complete ? mr_grammar_parse((mr_str){text->data, text->len}, out, err)
                                : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar");
    mr_text_buf_deinit(text);
    return status;
}

mr_status mr_grammar_from_regex(mr_str pattern, mr_grammar **out, mr_err *err) {
    mr_text_buf text = {0}, root = {0};
    schema_writer w = {.name = "root", .out = &text, .err = err};
    text_set set = TEXT_NONE;
    const char *why = "";
    if (pattern.len > MR_GRAMMAR_MAX_TEXT_BYTES / MAX_RULE_BYTES_OF_BYTE)
        return mr_err_set(err, MR_E_TOO_LONG, "a regular expression of %zu bytes; at most %d are allowed", pattern.len,
                          MR_GRAMMAR_MAX_TEXT_BYTES / MAX_RULE_BYTES_OF_BYTE);
    if (!text_sets_init(&w.texts))
        schema_no_memory(&w);
    else if (!schema_read_regex(&w.texts, pattern, true, &set, &why) && *why && w.texts.problem != TEXT_NO_MEMORY)
        schema_fail(&w, MR_E_UNSUPPORTED, "regular expression: %s", why);
    if (!schema_write_set(&w, &root, set, TEXT_BARE, "") && w.status == MR_OK)
        schema_fail(&w, w.texts.problem == TEXT_NO_MEMORY ? MR_E_NO_MEMORY : MR_E_TOO_LONG,
                    "regular expression: its automaton is too large");
    schema_put(&w, &text, "root ::= ");
    schema_put_bytes(&w, &text, (mr_str){root.data, root.len});
    schema_put(&w, &text, "\n");
    mr_text_buf_deinit(&root);
    text_sets_deinit(&w.texts);
    if (w.status) {
        mr_text_buf_deinit(&text);
        return w.status;
    }
    return parse(&text, true, out, err);
}

mr_status mr_grammar_from_choice(const mr_str *texts, size_t n, mr_grammar **out, mr_err *err) {
    mr_text_buf text = {0};
    bool ok = put(&text, "root ::= ");
    for (size_t i = 0; i < n && ok; i++) {
        char escaped[8];
        ok = put(&text, i ? " | \"" : "\"");
        for (size_t k = 0; k < texts[i].len && ok; k++)
            ok = mr_text_buf_append(&text, escaped, mr_gbnf_escape(texts[i].data[k], escaped));
        ok = ok && put(&text, "\"");
    }
    return parse(&text, ok && put(&text, "\n"), out, err);
}
