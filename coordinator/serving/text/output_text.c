/* coordinator/serving/text/output_text.c - makes text of token ids and looks for stop texts after every token. The
 * server, `generate` and `chat` share this code, so that all of them end at the same byte. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/text/output_text.h"

#include <string.h>

void mr_output_text_init(mr_output_text *t, const mr_tokenizer *tok, unsigned flags, const char *const *stops,
                         int32_t n_stops) {
    *t = (mr_output_text){.stops = stops, .n_stops = n_stops};
    mr_detok_init(&t->detok, tok, flags);
}

void mr_output_text_deinit(mr_output_text *t) {
    mr_text_buf_deinit(&t->text);
}

/* Bytes of the longest stop text that ends in front of text[end]; 0: none does. */
static size_t stop_ending_at(const mr_output_text *t, size_t end) {
    size_t longest = 0;
    for (int32_t i = 0; i < t->n_stops; i++) {
        size_t len = strlen(t->stops[i]);
        if (len > longest && len <= end && memcmp(t->text.data + end - len, t->stops[i], len) == 0)
            longest = len;
    }
    return longest;
}

/* Looks for stop texts that end after the first n_before bytes. */
static void cut_at_stop(mr_output_text *t, size_t n_before) {
    for (size_t end = n_before + 1; end <= t->text.len && !t->stopped; end++) {
        size_t len = stop_ending_at(t, end);
        if (len == 0)
            continue;
        t->text.len = end - len;
        t->text.data[t->text.len] = 0;
        t->stopped = true;
    }
}

mr_status mr_output_text_push(mr_output_text *t, int32_t id, mr_err *err) {
    size_t n_before = t->text.len;
    if (t->stopped || t->ended || id < 0 || id >= mr_tokenizer_n_tokens(t->detok.tok))
        return MR_OK;
    mr_status status = mr_detok_push(&t->detok, id, &t->text, err);
    if (status == MR_OK)
        cut_at_stop(t, n_before);
    return status;
}

mr_status mr_output_text_end(mr_output_text *t, mr_err *err) {
    size_t n_before = t->text.len;
    mr_status status = MR_OK;
    if (!t->stopped && !t->ended)
        status = mr_detok_finish(&t->detok, &t->text, err);
    if (status == MR_OK && !t->ended)
        cut_at_stop(t, n_before);
    t->ended = true;
    return status;
}

size_t mr_output_text_ready(const mr_output_text *t) {
    size_t held = 0, len = t->text.len;
    for (int32_t i = 0; i < t->n_stops && !t->stopped && !t->ended; i++) {
        size_t stop_len = strlen(t->stops[i]), n = stop_len - 1 < len ? stop_len - 1 : len;
        /* The longest end of the text that is the beginning of a stop text. */
        while (n > held && memcmp(t->text.data + len - n, t->stops[i], n) != 0)
            n--;
        held = n > held ? n : held;
    }
    return len - held;
}
