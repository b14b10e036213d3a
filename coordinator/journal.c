// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journal.h"

#include <string.h>

#include "engine/base/mem.h"
#include "proto/limits.h"

struct mr_journal {
    mr_entry **entries;
    int32_t n, cap;
};

mr_status mr_journal_create(mr_journal **out, mr_err *err) {
    *out = mr_alloc(sizeof **out);
    return *out ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the journal");
}

static void entry_destroy(mr_entry *e) {
    if (e) {
        mr_free(e->ids);
        mr_free(e->keys);
    }
    mr_free(e);
}

void mr_journal_destroy(mr_journal *j) {
    if (!j)
        return;
    for (int32_t i = 0; i < j->n; i++)
        entry_destroy(j->entries[i]);
    mr_free(j->entries);
    mr_free(j);
}

static bool make_room(mr_journal *j) {
    if (j->n < j->cap)
        return true;
    int32_t cap = j->cap ? j->cap * 2 : 16;
    mr_entry **entries = mr_realloc(j->entries, (size_t)cap * sizeof(mr_entry *));
    if (!entries)
        return false;
    j->entries = entries;
    j->cap = cap;
    return true;
}

mr_status mr_journal_append(mr_journal *j, const mr_sequence_desc *desc, int32_t max_ids, int32_t *out_sequence,
                            mr_err *err) {
    mr_entry *e = make_room(j) ? mr_alloc(sizeof *e) : NULL;
    if (e) {
        e->ids = mr_alloc_array((size_t)max_ids, sizeof *e->ids);
        e->keys = mr_alloc_array((size_t)max_ids / MR_WIRE_BLOCK_TOKENS + 1, sizeof *e->keys);
    }
    if (!e || !e->ids || !e->keys) {
        entry_destroy(e);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a sequence of %d tokens", max_ids);
    }
    e->desc = *desc;
    e->desc.prompt_ids = NULL;
    memcpy(e->ids, desc->prompt_ids, (size_t)desc->n_prompt * sizeof *e->ids);
    e->n_prompt = e->n_ids = desc->n_prompt;
    e->max_ids = max_ids;
    e->slot = -1;
    e->sequence = j->n;
    *out_sequence = j->n;
    j->entries[j->n++] = e;
    return MR_OK;
}

int32_t mr_journal_count(const mr_journal *j) {
    return j->n;
}

mr_entry *mr_journal_entry(mr_journal *j, int32_t sequence) {
    MR_ASSERT(sequence >= 0 && sequence < j->n);
    return j->entries[sequence];
}
