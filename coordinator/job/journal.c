// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/journal.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/limits.h"

enum { LEAST_BUCKETS = 64 };

struct mr_kept {
    atomic_int n_refs;
    mr_prefix_key keys[]; /* [mr_prefix_n_keys], then 32-bit ids and lists, then the grammar: all are aligned */
};

struct mr_journal {
    mr_prefix_key base;
    mr_entry **buckets; /* [n_buckets], a power of two: lists of entries, by number */
    int64_t n_buckets;
    int64_t n_appended; /* the number of the next entry */
    int32_t n;
};

/* --- Kept descriptions ------------------------------------------------------------------------------------------- */

/* Copies n bytes to *at and moves *at behind them. Returns the copy, or NULL if there is nothing to copy. */
static void *put(uint8_t **at, const void *from, size_t n) {
    void *to = *at;
    if (!from || n == 0)
        return NULL;
    memcpy(to, from, n);
    *at += n;
    return to;
}

bool mr_sequence_desc_keep(const mr_sequence_desc *desc, const mr_prefix_key *base, mr_sequence_desc *out) {
    mr_kept *kept = desc->kept;
    mr_sampling_params p = desc->sampling;
    if (kept) {
        atomic_fetch_add(&kept->n_refs, 1);
        *out = *desc;
        return true;
    }
    size_t n_keys = mr_prefix_n_keys(desc->n_prompt), n_prompt = (size_t)desc->n_prompt;
    size_t n_biases = (size_t)p.n_biases, n_breakers = (size_t)p.n_dry_breakers;
    size_t n_late = (size_t)p.n_late_ids, n_bad = (size_t)p.n_bad_words;
    size_t n_words = n_prompt + 2 * n_biases + n_breakers + n_late + n_bad;
    kept = mr_alloc(sizeof *kept + n_keys * sizeof kept->keys[0] + n_words * sizeof(int32_t) + desc->grammar_bytes);
    if (!kept)
        return false;
    atomic_init(&kept->n_refs, 1);
    mr_prefix_keys_of_prompt(base, desc->prompt_ids, desc->n_prompt, kept->keys);
    uint8_t *at = (uint8_t *)(kept->keys + n_keys);
    *out = *desc;
    out->kept = kept;
    out->prompt_ids = put(&at, desc->prompt_ids, n_prompt * sizeof *desc->prompt_ids);
    out->sampling.bias_ids = put(&at, p.bias_ids, n_biases * sizeof *p.bias_ids);
    out->sampling.biases = put(&at, p.biases, n_biases * sizeof *p.biases);
    out->sampling.dry_breakers = put(&at, p.dry_breakers, n_breakers * sizeof *p.dry_breakers);
    out->sampling.late_ids = put(&at, p.late_ids, n_late * sizeof *p.late_ids);
    out->sampling.bad_words = put(&at, p.bad_words, n_bad * sizeof *p.bad_words);
    out->grammar = put(&at, desc->grammar, desc->grammar_bytes);
    return true;
}

void mr_sequence_desc_drop(mr_sequence_desc *desc) {
    if (desc->kept && atomic_fetch_sub(&desc->kept->n_refs, 1) == 1)
        mr_free(desc->kept);
    *desc = (mr_sequence_desc){0};
}

/* --- Entries ----------------------------------------------------------------------------------------------------- */

mr_status mr_journal_create(const mr_prefix_key *base, mr_journal **out, mr_err *err) {
    *out = mr_alloc(sizeof **out);
    if (!*out)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the journal");
    (*out)->base = *base;
    return MR_OK;
}

static void entry_destroy(mr_entry *e) {
    if (e) {
        mr_sequence_desc_drop(&e->desc);
        mr_free(e->generated);
        mr_free(e->keys.behind);
    }
    mr_free(e);
}

void mr_entry_copy_ids(const mr_entry *e, int32_t first, int32_t n, int32_t *out) {
    int32_t of_prompt = first < e->n_prompt ? e->n_prompt - first : 0;
    of_prompt = of_prompt < n ? of_prompt : n;
    if (of_prompt > 0)
        memcpy(out, e->desc.prompt_ids + first, (size_t)of_prompt * sizeof *out);
    if (n > of_prompt)
        memcpy(out + of_prompt, e->generated + (first + of_prompt - e->n_prompt),
               (size_t)(n - of_prompt) * sizeof *out);
}

uint64_t mr_entry_prefix(mr_entry *e) {
    MR_ASSERT(e->n_issued <= e->n_ids);
    for (; e->n_summed < e->n_issued; e->n_summed++) {
        int32_t id;
        mr_entry_copy_ids(e, e->n_summed, 1, &id);
        mr_prefix_add_id(&e->sums, (uint32_t)e->n_summed, id);
    }
    return mr_prefix_pack(e->sums);
}

void mr_journal_destroy(mr_journal *j) {
    if (!j)
        return;
    for (int64_t i = 0; i < j->n_buckets; i++)
        for (mr_entry *e = j->buckets[i], *next; e; e = next) {
            next = e->next;
            entry_destroy(e);
        }
    mr_free(j->buckets);
    mr_free(j);
}

/* Numbers are given in order, so that entries spread evenly over the buckets. */
static mr_entry **bucket_of(const mr_journal *j, int64_t sequence) {
    return &j->buckets[sequence & (j->n_buckets - 1)];
}

static bool make_room(mr_journal *j) {
    if (j->n < j->n_buckets)
        return true;
    mr_journal wider = {.n_buckets = j->n_buckets ? j->n_buckets * 2 : LEAST_BUCKETS};
    wider.buckets = mr_alloc_array((size_t)wider.n_buckets, sizeof(mr_entry *));
    if (!wider.buckets)
        return false;
    for (int64_t i = 0; i < j->n_buckets; i++)
        for (mr_entry *e = j->buckets[i], *next; e; e = next) {
            mr_entry **bucket = bucket_of(&wider, e->sequence);
            next = e->next;
            e->next = *bucket;
            *bucket = e;
        }
    mr_free(j->buckets);
    j->buckets = wider.buckets;
    j->n_buckets = wider.n_buckets;
    return true;
}

mr_status mr_journal_append(mr_journal *j, const mr_sequence_desc *desc, int32_t max_ids, int64_t *out_sequence,
                            mr_err *err) {
    mr_sequence_desc bare = *desc;
    if (bare.on_logits || bare.on_hidden) { /* nothing is sampled, so these parameters were not checked */
        bare.sampling = (mr_sampling_params){0};
        bare.grammar = NULL;
        bare.grammar_bytes = 0;
    }
    int32_t n_keys = desc->n_prompt / MR_WIRE_BLOCK_TOKENS;
    mr_entry *e = make_room(j) ? mr_alloc(sizeof *e) : NULL;
    if (e) {
        e->generated = mr_alloc_array((size_t)(max_ids - desc->n_prompt), sizeof *e->generated);
        e->keys.behind = mr_alloc_array((size_t)(max_ids / MR_WIRE_BLOCK_TOKENS - n_keys), sizeof *e->keys.behind);
    }
    if (!e || !e->generated || !e->keys.behind || !mr_sequence_desc_keep(&bare, &j->base, &e->desc)) {
        entry_destroy(e);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a sequence of %d tokens", max_ids);
    }
    e->n_prompt = e->n_ids = desc->n_prompt;
    e->keys.prompt = e->desc.kept->keys;
    e->keys.n_prompt = e->n_keys = n_keys;
    e->begin_key = &e->desc.kept->keys[n_keys];
    e->max_ids = max_ids;
    e->slot = -1;
    e->sequence = j->n_appended++;
    mr_entry **bucket = bucket_of(j, e->sequence);
    e->next = *bucket;
    *bucket = e;
    j->n++;
    *out_sequence = e->sequence;
    return MR_OK;
}

void mr_journal_forget(mr_journal *j, mr_entry *e) {
    mr_entry **at = bucket_of(j, e->sequence);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    j->n--;
    entry_destroy(e);
}

void mr_journal_visit(mr_journal *j, void (*visit)(void *ctx, mr_entry *e), void *ctx) {
    for (int64_t i = 0; i < j->n_buckets; i++)
        for (mr_entry *e = j->buckets[i]; e; e = e->next)
            visit(ctx, e);
}

int32_t mr_journal_count(const mr_journal *j) {
    return j->n;
}

mr_entry *mr_journal_entry(const mr_journal *j, int64_t sequence) {
    mr_entry *e = sequence >= 0 && j->n > 0 ? *bucket_of(j, sequence) : NULL;
    while (e && e->sequence != sequence)
        e = e->next;
    return e;
}
