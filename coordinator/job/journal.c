// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/journal.h"

#include <string.h>

#include "engine/base/mem.h"
#include "proto/limits.h"

enum { LEAST_BUCKETS = 64 };

struct mr_journal {
    mr_entry **buckets; /* [n_buckets], a power of two: entries by number */
    int64_t n_buckets;
    int64_t n_appended; /* the next number */
    int32_t n;
};

mr_status mr_journal_create(mr_journal **out, mr_err *err) {
    *out = mr_alloc(sizeof **out);
    return *out ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the journal");
}

static void entry_destroy(mr_entry *e) {
    if (e) {
        mr_free(e->ids);
        mr_free(e->keys);
        mr_free(e->lists);
    }
    mr_free(e);
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

/* Numbers are given in order, so that entries spread evenly. */
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

/* Puts n bytes behind those that are there; NULL stays NULL. */
static void *put(uint8_t **at, const void *from, size_t n) {
    void *to = *at;
    if (!from || n == 0)
        return NULL;
    memcpy(to, from, n);
    *at += n;
    return to;
}

/* Copies what the pointers of the description name; those to int32 and float stand first, so that all are aligned. */
static bool take_lists(mr_entry *e, const mr_sequence_desc *desc) {
    mr_sampling_params *p = &e->desc.sampling;
    if (mr_entry_wants_rows(e)) { /* nothing is sampled, and nothing was checked */
        *p = (mr_sampling_params){0};
        e->desc.grammar = NULL;
        e->desc.grammar_bytes = 0;
        return true;
    }
    size_t n_biases = (size_t)p->n_biases, n_breakers = (size_t)p->n_dry_breakers;
    size_t n_late = (size_t)p->n_late_ids, n_bad = (size_t)p->n_bad_words;
    size_t bytes = (2 * n_biases + n_breakers + n_late + n_bad) * sizeof(int32_t);
    uint8_t *at = e->lists = mr_alloc(bytes + desc->grammar_bytes);
    if (!at)
        return false;
    p->bias_ids = put(&at, p->bias_ids, n_biases * sizeof *p->bias_ids);
    p->biases = put(&at, p->biases, n_biases * sizeof *p->biases);
    p->dry_breakers = put(&at, p->dry_breakers, n_breakers * sizeof *p->dry_breakers);
    p->late_ids = put(&at, p->late_ids, n_late * sizeof *p->late_ids);
    p->bad_words = put(&at, p->bad_words, n_bad * sizeof *p->bad_words);
    e->desc.grammar = put(&at, desc->grammar, desc->grammar_bytes);
    return true;
}

mr_status mr_journal_append(mr_journal *j, const mr_sequence_desc *desc, int32_t max_ids, int64_t *out_sequence,
                            mr_err *err) {
    mr_entry *e = make_room(j) ? mr_alloc(sizeof *e) : NULL;
    if (e) {
        e->desc = *desc;
        e->desc.prompt_ids = NULL;
        e->desc.keys = NULL;
        e->ids = mr_alloc_array((size_t)max_ids, sizeof *e->ids);
        e->keys = mr_alloc_array((size_t)max_ids / MR_WIRE_BLOCK_TOKENS + 1, sizeof *e->keys);
    }
    if (!e || !e->ids || !e->keys || !take_lists(e, desc)) {
        entry_destroy(e);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a sequence of %d tokens", max_ids);
    }
    memcpy(e->ids, desc->prompt_ids, (size_t)desc->n_prompt * sizeof *e->ids);
    e->n_prompt = e->n_ids = desc->n_prompt;
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

int32_t mr_journal_count(const mr_journal *j) {
    return j->n;
}

mr_entry *mr_journal_entry(const mr_journal *j, int64_t sequence) {
    mr_entry *e = sequence >= 0 && j->n > 0 ? *bucket_of(j, sequence) : NULL;
    while (e && e->sequence != sequence)
        e = e->next;
    return e;
}
