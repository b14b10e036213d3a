/* coordinator/serving/text/output_text.h - the text of one sequence: token ids in, whole characters out, ended by stop
 * texts. The text ends in front of the first complete stop text. Where two stop texts end at the same byte, the longer
 * one counts. The result does not depend on how tokens divide the text. An end of the text that may become a stop text
 * is held back.
 * Owns:    the text. Borrows: tokenizer and stop texts, which outlive the mr_output_text.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_TEXT_OUTPUT_TEXT_H
#define MR_COORDINATOR_SERVING_TEXT_OUTPUT_TEXT_H

#include "engine/text/detok.h"

typedef struct mr_output_text {
    mr_detok detok;
    const char *const *stops; /* none is empty */
    int32_t n_stops;
    mr_text_buf text; /* once stopped: without the stop text */
    bool stopped;     /* a stop text has ended the text */
    bool ended;       /* mr_output_text_end was called */
} mr_output_text;

/* flags: MR_DECODE_*. */
void mr_output_text_init(mr_output_text *t, const mr_tokenizer *tok, unsigned flags, const char *const *stops,
                         int32_t n_stops);
void mr_output_text_deinit(mr_output_text *t);
/* Adds one token. An id outside the vocabulary (a row that pads the output matrix) has no text. Sets stopped where a
 * stop text is complete. */
MR_MUST_USE mr_status mr_output_text_push(mr_output_text *t, int32_t id, mr_err *err);
/* Says that there are no more tokens: an incomplete character becomes U+FFFD. */
MR_MUST_USE mr_status mr_output_text_end(mr_output_text *t, mr_err *err);
/* The number of bytes of text that may be shown: all that is not held back. */
size_t mr_output_text_ready(const mr_output_text *t);

#endif
