/* engine/text/end_tokens.c - collects the tokens that end generation: the ones that the model file names, and
 * well-known ones by their text. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/end_tokens.h"

#include <string.h>

/* Files often name only one of several end tokens, for example the end of text of the base model but not the end of a
 * chat turn. A control token of any of these texts ends. Some files give a name with a bar the user-defined type,
 * although the token is a control token. Without a bar, a user-defined token is a piece of text: Gemma 3 has the HTML
 * tag "</s>". */
static const char *const WELL_KNOWN[] = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
};

static bool has_bar(const char *name) {
    return strstr(name, "<|") || strstr(name, "|>") || strstr(name, "<｜");
}

/* Returns the id of a token that the model writes as a mark and not as text, or -1. */
static int32_t find(const vocab *v, const char *name) {
    mr_str text = mr_str_from(name);
    int32_t id = token_index_find(&v->by_text, text.data, text.len);
    bool is_mark =
        id >= 0 && (v->types[id] == MR_TOKEN_CONTROL || (v->types[id] == MR_TOKEN_USER_DEFINED && has_bar(name)));
    return is_mark ? id : -1;
}

static void add(end_tokens *ends, int32_t id) {
    if (id < 0 || ends->n == END_TOKENS_MAX || end_tokens_contain(ends, id))
        return;
    int32_t i = ends->n++;
    for (; i > 0 && ends->ids[i - 1] > id; i--)
        ends->ids[i] = ends->ids[i - 1];
    ends->ids[i] = id;
}

void end_tokens_collect(const vocab *v, const mr_vocab_desc *desc, end_tokens *out_ends) {
    *out_ends = (end_tokens){0};
    /* Where calls of tools have an end token of their own (gpt-oss, Solar Open), "<|end|>" stands between the reasoning
     * and the answer of one turn, even if the file calls it the end of a turn. */
    int32_t not_end = find(v, "<|call|>") >= 0 || find(v, "<|calls|>") >= 0 ? find(v, "<|end|>") : -1;
    const int32_t named[] = {desc->eot_id, desc->eom_id};
    add(out_ends, desc->eos_id);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (named[i] != not_end)
            add(out_ends, named[i]);
    for (size_t i = 0; i < sizeof WELL_KNOWN / sizeof *WELL_KNOWN; i++) {
        int32_t id = find(v, WELL_KNOWN[i]);
        if (id != not_end)
            add(out_ends, id);
    }
}

bool end_tokens_contain(const end_tokens *ends, int32_t id) {
    for (int32_t i = 0; i < ends->n; i++)
        if (ends->ids[i] == id)
            return true;
    return false;
}
