/* engine/text/tokenizer.c - the tokenizer: finds special tokens in a text, and passes the text between them to SPM or
 * BPE. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/tokenizer.h"

#include "engine/base/mem.h"
#include "engine/text/bpe.h"
#include "engine/text/detok.h"
#include "engine/text/end_tokens.h"
#include "engine/text/special_tokens.h"
#include "engine/text/spm.h"

struct mr_tokenizer {
    vocab v;
    spm spm; /* used with VOCAB_SPM */
    bpe bpe; /* used with VOCAB_BPE */
    special_tokens specials;
    end_tokens ends;
    int32_t bos_id, eos_id;
    bool adds_bos, adds_eos, adds_space_prefix;
};

mr_vocab_desc mr_vocab_desc_empty(void) {
    return (mr_vocab_desc){.bos_id = -1, .eos_id = -1, .unk_id = -1, .eot_id = -1, .eom_id = -1};
}

static mr_status find_kind(mr_str model, vocab_kind *out_kind, mr_err *err) {
    char name[64];
    *out_kind = mr_str_is(model, "gpt2") ? VOCAB_BPE : VOCAB_SPM;
    if (mr_str_is(model, "llama") || mr_str_is(model, "gpt2") || mr_str_is(model, "gemma4"))
        return MR_OK;
    if (model.len == 0)
        return mr_err_set(err, MR_E_FORMAT, "tokenizer.ggml.model is missing");
    mr_utf8_printable(model, name, sizeof name);
    return mr_err_set(err, MR_E_UNSUPPORTED, "unknown tokenizer model \"%s\"; known are llama, gpt2, gemma4", name);
}

static mr_status check_ids(const mr_vocab_desc *d, mr_err *err) {
    const struct {
        const char *name;
        int32_t id;
    } named[] = {
        {"bos", d->bos_id}, {"eos", d->eos_id}, {"unknown", d->unk_id}, {"eot", d->eot_id}, {"eom", d->eom_id}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (named[i].id < -1 || named[i].id >= d->n_tokens)
            return mr_err_set(err, MR_E_FORMAT, "the %s token's id is %d, but there are %d tokens", named[i].name,
                              named[i].id, d->n_tokens);
    if (d->add_bos == MR_SETTING_ON && d->bos_id < 0)
        return mr_err_set(err, MR_E_FORMAT, "add_bos_token is set, but there is no bos token");
    if (d->add_eos == MR_SETTING_ON && d->eos_id < 0)
        return mr_err_set(err, MR_E_FORMAT, "add_eos_token is set, but there is no eos token");
    return MR_OK;
}

static bool setting(mr_setting s, bool by_default) {
    return s == MR_SETTING_DEFAULT ? by_default : s == MR_SETTING_ON;
}

static mr_status init(mr_tokenizer *t, vocab_kind kind, const mr_vocab_desc *desc, mr_err *err) {
    bool is_spm = kind == VOCAB_SPM, is_gemma4 = mr_str_is(desc->model, "gemma4");
    mr_status s = vocab_init(&t->v, kind, desc, err);
    if (!s)
        s = check_ids(desc, err);
    if (!s)
        s = is_spm ? spm_init(&t->spm, &t->v, is_gemma4, desc, err) : bpe_init(&t->bpe, &t->v, desc, err);
    if (!s)
        s = special_tokens_init(&t->specials, &t->v, is_spm && mr_str_is(desc->architecture, "phi3"), err);
    if (s)
        return s;
    end_tokens_collect(&t->v, desc, &t->ends);
    t->bos_id = desc->bos_id;
    t->eos_id = desc->eos_id;
    t->adds_bos = t->bos_id >= 0 && setting(desc->add_bos, is_spm || pretokenizer_adds_bos(t->bpe.pre));
    t->adds_eos = t->eos_id >= 0 && setting(desc->add_eos, false);
    t->adds_space_prefix = is_spm && setting(desc->add_space_prefix, !is_gemma4);
    return MR_OK;
}

mr_status mr_tokenizer_create(const mr_vocab_desc *desc, mr_tokenizer **out_tok, mr_err *err) {
    vocab_kind kind;
    mr_tokenizer *t = NULL;
    mr_status s = find_kind(desc->model, &kind, err);
    if (s)
        return s;
    t = mr_alloc(sizeof *t);
    s = t ? init(t, kind, desc, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a tokenizer");
    if (s)
        goto out;
    *out_tok = t;
    t = NULL;
out:
    mr_tokenizer_destroy(t);
    return s;
}

void mr_tokenizer_destroy(mr_tokenizer *t) {
    if (!t)
        return;
    special_tokens_deinit(&t->specials);
    spm_deinit(&t->spm);
    bpe_deinit(&t->bpe);
    vocab_deinit(&t->v);
    mr_free(t);
}

/* Work memory of one call. */
typedef struct encode_work {
    merge_work merge;
    pretok_work pieces;
} encode_work;

/* Encodes text without special tokens. */
static mr_status encode_plain(const mr_tokenizer *t, encode_work *work, mr_str text, bool add_space, mr_token_buf *out,
                              mr_err *err) {
    if (text.len == 0)
        return MR_OK;
    if (t->v.kind == VOCAB_SPM)
        return spm_encode(&t->spm, &work->merge, text, add_space, out, err);
    return bpe_encode(&t->bpe, &work->merge, &work->pieces, text, out, err);
}

static mr_status encode_all(const mr_tokenizer *t, encode_work *work, mr_str text, unsigned flags, mr_token_buf *out,
                            mr_err *err) {
    mr_status s = MR_OK;
    bool parse = flags & MR_ENCODE_PARSE_SPECIAL;
    /* A space is added at the start of the text and after each special token, as llama's first tokenizer did. */
    bool add_space = t->adds_space_prefix && !(flags & MR_ENCODE_CONTINUES);
    special_match m = {0};
    bool found = special_tokens_find(&t->specials, text, 0, parse, &m);
    bool spelt_bos = found && m.start == 0 && m.id == t->bos_id;
    if ((flags & MR_ENCODE_BOS) && t->adds_bos && !spelt_bos && !mr_token_buf_push(out, t->bos_id))
        goto no_memory;
    for (size_t at = 0; at < text.len;) {
        size_t end = found ? m.start : text.len;
        if ((s = encode_plain(t, work, (mr_str){text.data + at, end - at}, add_space, out, err)))
            return s;
        if (!found)
            break;
        if (!mr_token_buf_push(out, m.id))
            goto no_memory;
        add_space = t->adds_space_prefix;
        at = m.resume;
        found = special_tokens_find(&t->specials, text, at, parse, &m);
    }
    if ((flags & MR_ENCODE_EOS) && t->adds_eos && !mr_token_buf_push(out, t->eos_id))
        goto no_memory;
    return MR_OK;
no_memory:
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu token ids", out->n);
}

mr_status mr_tokenizer_encode(const mr_tokenizer *t, mr_str text, unsigned flags, mr_token_buf *out_ids, mr_err *err) {
    if (text.len > MR_ENCODE_MAX_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG, "the text has %zu bytes; at most %d can be tokenised at once", text.len,
                          MR_ENCODE_MAX_BYTES);
    encode_work work = {0};
    size_t n_before = out_ids->n;
    mr_status s = encode_all(t, &work, text, flags, out_ids, err);
    if (s)
        out_ids->n = n_before;
    merge_work_deinit(&work.merge);
    pretok_work_deinit(&work.pieces);
    return s;
}

mr_status mr_tokenizer_decode(const mr_tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                              mr_text_buf *out_text, mr_err *err) {
    mr_status s = MR_OK;
    size_t len_before = out_text->len;
    mr_detok d;
    mr_detok_init(&d, t, flags);
    for (size_t i = 0; i < n && !s; i++)
        s = mr_detok_push(&d, ids[i], out_text, err);
    if (!s)
        s = mr_detok_finish(&d, out_text, err);
    if (s && out_text->data) {
        out_text->len = len_before;
        out_text->data[len_before] = 0;
    }
    return s;
}

static bool has(const mr_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->v.n_tokens;
}

bool mr_tokenizer_piece(const mr_tokenizer *t, int32_t id, mr_str *out_bytes) {
    if (!has(t, id))
        return false;
    *out_bytes = vocab_piece(&t->v, id);
    return true;
}

mr_str mr_tokenizer_text(const mr_tokenizer *t, int32_t id) {
    return has(t, id) ? vocab_text(&t->v, id) : (mr_str){NULL, 0};
}

int32_t mr_tokenizer_find(const mr_tokenizer *t, mr_str text) {
    return text.len ? token_index_find(&t->v.by_text, text.data, text.len) : -1;
}

mr_token_type mr_tokenizer_type(const mr_tokenizer *t, int32_t id) {
    return has(t, id) ? (mr_token_type)t->v.types[id] : MR_TOKEN_UNDEFINED;
}

bool mr_tokenizer_is_control(const mr_tokenizer *t, int32_t id) {
    return mr_tokenizer_type(t, id) == MR_TOKEN_CONTROL;
}

bool mr_tokenizer_is_end(const mr_tokenizer *t, int32_t id) {
    return end_tokens_contain(&t->ends, id);
}

void mr_tokenizer_ends(const mr_tokenizer *t, const int32_t **out_ids, int32_t *out_n) {
    *out_ids = t->ends.ids;
    *out_n = t->ends.n;
}

int32_t mr_tokenizer_n_tokens(const mr_tokenizer *t) {
    return t->v.n_tokens;
}

int32_t mr_tokenizer_bos_id(const mr_tokenizer *t) {
    return t->bos_id;
}

int32_t mr_tokenizer_eos_id(const mr_tokenizer *t) {
    return t->eos_id;
}

int32_t mr_tokenizer_unk_id(const mr_tokenizer *t) {
    return t->v.unk_id;
}

bool mr_tokenizer_adds_bos(const mr_tokenizer *t) {
    return t->adds_bos;
}

bool mr_tokenizer_adds_eos(const mr_tokenizer *t) {
    return t->adds_eos;
}

bool mr_tokenizer_adds_space_prefix(const mr_tokenizer *t) {
    return t->adds_space_prefix;
}

int32_t mr_tokenizer_n_skipped_merges(const mr_tokenizer *t) {
    return t->bpe.merges.n_skipped + t->spm.merges.n_skipped;
}
