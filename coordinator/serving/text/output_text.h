/* coordinator/serving/text/output_text.h - the text of one generation: token ids in, whole characters out, ended by
 * stop texts. A text ends in front of the first stop text that is complete (of two that end at the same byte, the
 * longer one), however the tokens cut it. What could still become a stop text is held back.
 * Owns:    the text. Borrows: tokenizer and stop texts, which outlive it.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_TEXT_OUTPUT_TEXT_H
#define MR_COORDINATOR_SERVING_TEXT_OUTPUT_TEXT_H

#include "engine/text/detok.h"

typedef struct mr_output_text {
    mr_detok detok;
    const char *const *stops; /* none is empty */
    int32_t n_stops;
    mr_text_buf text; /* without the stop text, once stopped */
    bool stopped;     /* by a stop text */
    bool ended;       /* nothing more comes */
} mr_output_text;

/* flags: MR_DECODE_*. */
void mr_output_text_init(mr_output_text *t, const mr_tokenizer *tok, unsigned flags, const char *const *stops,
                         int32_t n_stops);
void mr_output_text_deinit(mr_output_text *t);
/* One more token; one outside the vocabulary (rows that pad the output matrix) has no text. Sets stopped. */
MR_MUST_USE mr_status mr_output_text_push(mr_output_text *t, int32_t id, mr_err *err);
/* No more tokens: a character that is not complete becomes U+FFFD. */
MR_MUST_USE mr_status mr_output_text_end(mr_output_text *t, mr_err *err);
/* Bytes of text that may be shown. */
size_t mr_output_text_ready(const mr_output_text *t);

#endif
