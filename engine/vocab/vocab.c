/* engine/vocab/vocab.c - reads the tokenizer.ggml.* keys of a model file into a description, and creates the
 * tokenizer. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/vocab/vocab.h"

#include "engine/base/mem.h"

#define KEY(name) "tokenizer.ggml." name

/* Copies of the arrays, kept until the tokenizer is created. */
typedef struct vocab_arrays {
    mr_str *tokens, *merges;
    float *scores;
    int32_t *types;
} vocab_arrays;

/* The key may be missing: status becomes MR_OK and the value stays as it was. */
static mr_status optional(mr_status status) {
    return status == MR_E_NOT_FOUND ? MR_OK : status;
}

/* Reads the array of a key, with at most max elements. n is 0 if the key is missing. */
static mr_status read_array(const mr_gguf *g, const char *key, mr_gguf_elems elems, int32_t max, mr_gguf_array *out,
                            mr_err *err) {
    *out = (mr_gguf_array){0};
    mr_status status = optional(mr_gguf_get_array(g, key, elems, out, err));
    if (status == MR_OK && out->n > (size_t)max)
        return mr_err_set(err, MR_E_FORMAT, "key %s has %zu elements; at most %d are allowed", key, out->n, max);
    return status;
}

static mr_status no_memory(const char *key, size_t n, mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the %zu elements of %s", n, key);
}

static mr_status read_strings(const mr_gguf *g, const char *key, int32_t max, mr_str **out, int32_t *out_n,
                              mr_err *err) {
    mr_gguf_array a;
    mr_status status = read_array(g, key, MR_GGUF_ELEMS_STRINGS, max, &a, err);
    if (status != MR_OK || a.n == 0)
        return status;
    *out = mr_alloc_array(a.n, sizeof **out);
    if (!*out)
        return no_memory(key, a.n, err);
    for (size_t i = 0; i < a.n; i++)
        (*out)[i] = mr_gguf_array_str(&a, i);
    *out_n = (int32_t)a.n;
    return MR_OK;
}

static mr_status read_scores(const mr_gguf *g, vocab_arrays *arrays, int32_t *out_n, mr_err *err) {
    mr_gguf_array a;
    mr_status status = read_array(g, KEY("scores"), MR_GGUF_ELEMS_FLOATS, MR_VOCAB_MAX_TOKENS, &a, err);
    if (status != MR_OK || a.n == 0)
        return status;
    arrays->scores = mr_alloc_array(a.n, sizeof *arrays->scores);
    if (!arrays->scores)
        return no_memory(KEY("scores"), a.n, err);
    for (size_t i = 0; i < a.n; i++)
        arrays->scores[i] = mr_gguf_array_f32(&a, i);
    *out_n = (int32_t)a.n;
    return MR_OK;
}

static mr_status read_types(const mr_gguf *g, vocab_arrays *arrays, int32_t *out_n, mr_err *err) {
    mr_gguf_array a;
    mr_status status = read_array(g, KEY("token_type"), MR_GGUF_ELEMS_INTEGERS, MR_VOCAB_MAX_TOKENS, &a, err);
    if (status != MR_OK || a.n == 0)
        return status;
    arrays->types = mr_alloc_array(a.n, sizeof *arrays->types);
    if (!arrays->types)
        return no_memory(KEY("token_type"), a.n, err);
    for (size_t i = 0; i < a.n; i++)
        arrays->types[i] = mr_gguf_array_i32(&a, i);
    *out_n = (int32_t)a.n;
    return MR_OK;
}

/* Reads the id of a special token; -1 if the key is missing. Some files write "none" as -1, or as the same 32 bits
 * unsigned. */
static mr_status read_id(const mr_gguf *g, const char *key, int32_t n_tokens, int32_t *out, mr_err *err) {
    int64_t id = -1;
    mr_status status = optional(mr_gguf_get_i64(g, key, &id, err));
    if (status != MR_OK)
        return status;
    if (id == UINT32_MAX)
        id = -1;
    if (id < -1 || id >= n_tokens)
        return mr_err_set(err, MR_E_FORMAT, "key %s: %lld is no id of the %d tokens", key, (long long)id, n_tokens);
    *out = (int32_t)id;
    return MR_OK;
}

static mr_status read_setting(const mr_gguf *g, const char *key, mr_setting *out, mr_err *err) {
    bool on = false;
    mr_status status = mr_gguf_get_bool(g, key, &on, err);
    if (status == MR_OK)
        *out = on ? MR_SETTING_ON : MR_SETTING_OFF;
    return optional(status);
}

static mr_status read_names(const mr_gguf *g, mr_vocab_desc *d, mr_err *err) {
    mr_status status = mr_gguf_get_str(g, KEY("model"), &d->model, err);
    if (status == MR_E_NOT_FOUND)
        return mr_err_set(err, status, "the file has no tokenizer: key %s is missing", KEY("model"));
    if (status == MR_OK)
        status = optional(mr_gguf_get_str(g, "general.architecture", &d->architecture, err));
    if (status == MR_OK)
        status = optional(mr_gguf_get_str(g, KEY("pre"), &d->pre, err));
    return status;
}

static mr_status read_arrays(const mr_gguf *g, vocab_arrays *arrays, mr_vocab_desc *d, mr_err *err) {
    mr_status status = read_strings(g, KEY("tokens"), MR_VOCAB_MAX_TOKENS, &arrays->tokens, &d->n_tokens, err);
    if (status == MR_OK && d->n_tokens == 0)
        status = mr_err_set(err, MR_E_FORMAT, "key %s is missing or empty", KEY("tokens"));
    if (status == MR_OK)
        status = read_strings(g, KEY("merges"), MR_VOCAB_MAX_MERGES, &arrays->merges, &d->n_merges, err);
    if (status == MR_OK && mr_str_is(d->model, "llama")) /* the other models have no use for scores */
        status = read_scores(g, arrays, &d->n_scores, err);
    if (status == MR_OK)
        status = read_types(g, arrays, &d->n_types, err);
    d->tokens = arrays->tokens;
    d->merges = arrays->merges;
    d->scores = arrays->scores;
    d->types = arrays->types;
    return status;
}

static mr_status read_specials(const mr_gguf *g, mr_vocab_desc *d, mr_err *err) {
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        {KEY("bos_token_id"), &d->bos_id}, {KEY("eos_token_id"), &d->eos_id}, {KEY("unknown_token_id"), &d->unk_id},
        {KEY("eot_token_id"), &d->eot_id}, {KEY("eom_token_id"), &d->eom_id},
    };
    const struct {
        const char *key;
        mr_setting *setting;
    } settings[] = {
        {KEY("add_bos_token"), &d->add_bos},
        {KEY("add_eos_token"), &d->add_eos},
        {KEY("add_space_prefix"), &d->add_space_prefix},
    };
    mr_status status = MR_OK;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0] && status == MR_OK; i++)
        status = read_id(g, ids[i].key, d->n_tokens, ids[i].id, err);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && status == MR_OK; i++)
        status = read_setting(g, settings[i].key, settings[i].setting, err);
    return status;
}

mr_status mr_vocab_load(const mr_gguf *g, mr_tokenizer **out, mr_err *err) {
    vocab_arrays arrays = {0};
    mr_vocab_desc desc = mr_vocab_desc_empty();
    mr_status status = read_names(g, &desc, err);
    if (status == MR_OK)
        status = read_arrays(g, &arrays, &desc, err);
    if (status == MR_OK)
        status = read_specials(g, &desc, err);
    if (status == MR_OK)
        status = mr_tokenizer_create(&desc, out, err);
    mr_free(arrays.tokens);
    mr_free(arrays.merges);
    mr_free(arrays.scores);
    mr_free(arrays.types);
    return status;
}
