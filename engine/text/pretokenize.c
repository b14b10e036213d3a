/* engine/text/pretokenize.c - cuts text into words with PCRE2, by the patterns of pretokenize_patterns.c. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/base/mem.h"
#include "engine/text/pretokenize_patterns.h"
#include "engine/text/utf8.h"

struct pretokenizer {
    const pretok_kind *kind;
    pcre2_general_context *general;
    pcre2_code *codes[PRETOK_MAX_STEPS];
    int n_codes;
};

static void *pcre_alloc(size_t bytes, void *data) {
    (void)data;
    return mr_alloc(bytes);
}

static void pcre_free(void *p, void *data) {
    (void)data;
    mr_free(p);
}

/* Converts an error of PCRE2. */
static mr_status pcre_error(int code, const char *what, mr_err *err) {
    PCRE2_UCHAR text[128];
    if (code == PCRE2_ERROR_NOMEMORY)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %s a regular expression", what);
    if (code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_DEPTHLIMIT || code == PCRE2_ERROR_HEAPLIMIT ||
        code == PCRE2_ERROR_JIT_STACKLIMIT)
        return mr_err_set(err, MR_E_TOO_LONG, "cutting the text into words takes too many steps (pcre2 error %d)",
                          code);
    if (pcre2_get_error_message(code, text, sizeof text) < 0)
        text[0] = 0;
    return mr_err_set(err, MR_E_INTERNAL, "%s a regular expression failed: %s (pcre2 error %d)", what,
                      (const char *)text, code);
}

static mr_status compile_step(pretokenizer *p, const char *pattern, pretok_jit jit, mr_err *err) {
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(p->general);
    if (!context)
        return pcre_error(PCRE2_ERROR_NOMEMORY, "compiling", err);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!re)
        return pcre_error(code == PCRE2_ERROR_HEAP_FAILED ? PCRE2_ERROR_NOMEMORY : code, "compiling", err);
    p->codes[p->n_codes++] = re;
    /* Without a JIT compiler for this machine, or without executable memory, matching is only slower. */
    if (jit == PRETOK_JIT_IF_POSSIBLE)
        (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    return MR_OK;
}

mr_status pretokenizer_create(mr_str pre, pretok_jit jit, pretokenizer **out_pre, mr_err *err) {
    const pretok_kind *kind = pretok_kind_find(pre);
    if (!kind) {
        char name[64], known[256];
        mr_utf8_printable(pre, name, sizeof name);
        pretok_kind_list(known, sizeof known);
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "unknown pre-tokenizer \"%s\"; known are %s and some of the same kinds", name, known);
    }
    mr_status s = MR_OK;
    pretokenizer *p = mr_alloc(sizeof *p);
    if (p)
        p->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (!p || !p->general) {
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a pre-tokenizer");
        goto out;
    }
    p->kind = kind;
    for (int i = 0; i < PRETOK_MAX_STEPS && kind->steps[i]; i++)
        if ((s = compile_step(p, kind->steps[i], jit, err)))
            goto out;
    *out_pre = p;
    p = NULL;
out:
    pretokenizer_destroy(p);
    return s;
}

void pretokenizer_destroy(pretokenizer *p) {
    if (!p)
        return;
    for (int i = 0; i < p->n_codes; i++)
        pcre2_code_free(p->codes[i]);
    pcre2_general_context_free(p->general);
    mr_free(p);
}

bool pretokenizer_ignores_merges(const pretokenizer *p) {
    return p->kind->ignores_merges;
}

bool pretokenizer_adds_bos(const pretokenizer *p) {
    return p->kind->adds_bos;
}

bool pretokenizer_ids_are_ranks(const pretokenizer *p) {
    return p->kind->ids_are_ranks;
}

void pretok_work_deinit(pretok_work *w) {
    mr_free(w->ends);
    mr_free(w->spare);
    *w = (pretok_work){0};
}

/* Appends the end of a word. Returns false without memory. */
static bool push_end(pretok_work *w, size_t end) {
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        uint32_t *ends = mr_realloc(w->ends, cap * sizeof *ends);
        if (!ends)
            return false;
        w->ends = ends;
        w->cap = cap;
    }
    w->ends[w->n++] = (uint32_t)end;
    return true;
}

typedef struct matcher {
    const pcre2_code *re;
    pcre2_match_data *data;
    pcre2_match_context *context;
} matcher;

/* Cuts text[from, to) by the matches in it and appends the ends of the words. The subject of the match is this word
 * alone, so patterns see nothing outside of it. Returns 0 or an error of PCRE2. */
static int cut_word(const matcher *m, const char *text, size_t from, size_t to, pretok_work *w) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text + from;
    size_t len = to - from, at = 0;
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
    /* No pattern matches the empty text, so each match moves on. The steps of a match grow in proportion to the text;
     * the limit stops a match whose steps do not. */
    pcre2_set_match_limit(m->context, (uint32_t)(len * 4 + 100000));
    while (at < len) {
        int rc = pcre2_match(m->re, subject, len, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return rc;
        if (span[0] > at && !push_end(w, from + span[0]))
            return PCRE2_ERROR_NOMEMORY;
        if (!push_end(w, from + span[1]))
            return PCRE2_ERROR_NOMEMORY;
        at = span[1];
    }
    return at == len || push_end(w, to) ? 0 : PCRE2_ERROR_NOMEMORY;
}

/* Cuts every word in w again, by one pattern. */
static int run_step(const matcher *m, mr_str text, pretok_work *w) {
    uint32_t *words = w->ends;
    size_t n_words = w->n, words_cap = w->cap, from = 0;
    w->ends = w->spare;
    w->cap = w->spare_cap;
    w->n = 0;
    w->spare = words;
    w->spare_cap = words_cap;
    for (size_t i = 0; i < n_words; i++) {
        int rc = cut_word(m, text.data, from, words[i], w);
        if (rc)
            return rc;
        from = words[i];
    }
    return 0;
}

mr_status pretokenizer_split(const pretokenizer *p, pretok_work *w, mr_str text, mr_err *err) {
    int rc = PCRE2_ERROR_NOMEMORY;
    matcher m = {.data = pcre2_match_data_create(1, p->general), .context = pcre2_match_context_create(p->general)};
    w->n = 0;
    if (!m.data || !m.context || (text.len && !push_end(w, text.len)))
        goto out;
    rc = 0;
    for (int i = 0; i < p->n_codes && rc == 0; i++) {
        m.re = p->codes[i];
        rc = run_step(&m, text, w);
    }
out:
    pcre2_match_data_free(m.data);
    pcre2_match_context_free(m.context);
    return rc ? pcre_error(rc, "matching", err) : MR_OK;
}
