/* engine/text/detok.h - token ids to text, one id at a time. The output always consists of whole characters.
 * Invalid UTF-8 comes out as U+FFFD: one for each maximal part of a character that is cut short, and one for each byte
 * that cannot start a character. The U+FFFD comes out as soon as the next byte shows the error, at the latest at the
 * end.
 * Owns:    nothing; an mr_detok may be copied and dropped at any time. Borrows: the tokenizer, which outlives it.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_DETOK_H
#define MR_ENGINE_TEXT_DETOK_H

#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

typedef struct mr_detok {
    const mr_tokenizer *tok;
    unsigned flags;  /* MR_DECODE_* */
    bool drop_space; /* no text has come out yet, and the space that encoding adds in front must be dropped */
    mr_utf8_decoder utf8;
} mr_detok;

void mr_detok_init(mr_detok *d, const mr_tokenizer *tok, unsigned flags);
/* Appends the characters that this id completes: often none, never a part of one. On failure d and out_text are as they
 * were. MR_E_INVALID: no such id. */
MR_MUST_USE mr_status mr_detok_push(mr_detok *d, int32_t id, mr_text_buf *out_text, mr_err *err);
/* Ends the text. An incomplete character becomes U+FFFD. */
MR_MUST_USE mr_status mr_detok_finish(mr_detok *d, mr_text_buf *out_text, mr_err *err);

#endif
