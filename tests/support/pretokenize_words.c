/* tests/support/pretokenize_words.c - `pretokenize_words PRE` reads texts and writes where the pre-tokenizer cuts them.
 * A text comes as its number of bytes and its bytes; the answer is the number of words and the ends of the words, in
 * bytes. All numbers have 32 bits and the byte order of the machine. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "engine/base/mem.h"
#include "engine/text/pretokenize.h"

enum { MAX_BYTES = 1 << 24 };

static mr_status answer(const pretokenizer *p, pretok_work *w, uint32_t n_bytes, mr_err *err) {
    char *text = mr_alloc(n_bytes + 1);
    mr_status s = MR_OK;
    if (!text)
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text of %u bytes", n_bytes);
    else if (fread(text, 1, n_bytes, stdin) != n_bytes)
        s = mr_err_set(err, MR_E_IO, "a text ends too early");
    else
        s = pretokenizer_split(p, w, (mr_str){text, n_bytes}, err);
    uint32_t n_words = (uint32_t)w->n;
    if (!s && (fwrite(&n_words, sizeof n_words, 1, stdout) != 1 ||
               (n_words > 0 && fwrite(w->ends, sizeof *w->ends, n_words, stdout) != n_words) || fflush(stdout)))
        s = mr_err_set(err, MR_E_IO, "the words cannot be written");
    mr_free(text);
    return s;
}

int main(int argc, char **argv) {
    mr_err err;
    pretokenizer *p = NULL;
    pretok_work w = {0};
    uint32_t n_bytes;
    mr_status s = pretokenizer_create(mr_str_from(argc > 1 ? argv[1] : ""), PRETOK_JIT_IF_POSSIBLE, &p, &err);
    while (!s && fread(&n_bytes, sizeof n_bytes, 1, stdin) == 1)
        s = n_bytes <= MAX_BYTES ? answer(p, &w, n_bytes, &err)
                                 : mr_err_set(&err, MR_E_TOO_LONG, "a text of %u bytes", n_bytes);
    if (s)
        fprintf(stderr, "pretokenize_words: %s\n", err.text);
    pretok_work_deinit(&w);
    pretokenizer_destroy(p);
    return s != MR_OK;
}
