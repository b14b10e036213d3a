/* tests/fuzz/fuzz_schema.c - fuzzes JSON schemas. The rules that are written for an accepted schema must parse as a
 * grammar. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/schema/schema.h"
#include "engine/grammar/grammar.h"
#include "tests/fuzz/fuzz.h"

int mr_fuzz_schema(const uint8_t *data, size_t size) {
    mr_text_buf text = {0};
    mr_grammar *g = NULL;
    mr_err err = {0};
    mr_status s = mr_grammar_schema_to_gbnf((mr_str){(const char *)data, size}, false, "root", &text, &err);
    MR_ASSERT(s == MR_OK || (err.status >= MR_E_INVALID && err.status <= MR_E_NO_MEMORY && err.text[0]));
    if (s == MR_OK) {
        s = mr_grammar_parse((mr_str){text.data, text.len}, &g, &err);
        /* The schema may allow no text, may be its own alternative, or may need an automaton that is too large. */
        MR_ASSERT(s == MR_OK || s == MR_E_INVALID || s == MR_E_UNSUPPORTED || s == MR_E_TOO_LONG);
    }
    mr_grammar_destroy(g);
    mr_text_buf_deinit(&text);
    return 0;
}
