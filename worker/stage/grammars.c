/* worker/stage/grammars.c - a list of compiled grammars, the most recently used first. Grammars that no sequence uses
 * are evicted from the end of the list. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/grammars.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/vocab/vocab.h"

enum {
    MAX_UNUSED = 16,    /* kept grammars that no sequence uses */
    MAX_KEPT_USES = 32, /* kept uses, about 1 MiB each */
};

typedef struct mr_grammars_entry {
    mr_grammar *grammar;
    uint8_t *packed;
    size_t n;
    int32_t n_users;
    mr_grammar_use *kept;
    struct mr_grammars_entry *next; /* the most recently used entry comes first */
} entry;

struct mr_grammars {
    mr_tokenizer *tok;
    mr_grammar_vocab *vocab;
    entry *first;
    int32_t n_kept_uses;
};

mr_status mr_grammars_create(const mr_gguf *gguf, int32_t n_vocab, mr_grammars **out, mr_err *err) {
    mr_grammars *all = mr_alloc(sizeof *all);
    mr_status status = all ? mr_vocab_load(gguf, &all->tok, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory");
    if (status == MR_OK)
        status = mr_grammar_vocab_create(all->tok, n_vocab, &all->vocab, err);
    if (status != MR_OK) {
        mr_grammars_destroy(all);
        return status;
    }
    *out = all;
    return MR_OK;
}

static void use_destroy(mr_grammar_use *use) {
    if (use)
        mr_grammar_state_destroy(use->state);
    mr_free(use);
}

static void drop_kept_uses(mr_grammars *all, entry *e) {
    for (mr_grammar_use *use; (use = e->kept); all->n_kept_uses--) {
        e->kept = use->next;
        use_destroy(use);
    }
}

static void entry_destroy(mr_grammars *all, entry *e) {
    drop_kept_uses(all, e);
    mr_grammar_destroy(e->grammar);
    mr_free(e->packed);
    mr_free(e);
}

void mr_grammars_destroy(mr_grammars *all) {
    if (!all)
        return;
    for (entry *e = all->first, *next; e; e = next) {
        next = e->next;
        entry_destroy(all, e);
    }
    mr_grammar_vocab_destroy(all->vocab);
    mr_tokenizer_destroy(all->tok);
    mr_free(all);
}

/* Evicts the least recently used grammars without a user, beyond the first `most` of them. Returns whether there were
 * such grammars. */
static bool drop_unused(mr_grammars *all, int32_t most) {
    int32_t n = 0;
    for (entry **at = &all->first; *at;) {
        entry *e = *at;
        n += e->n_users == 0;
        if (e->n_users > 0 || n <= most) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        entry_destroy(all, e);
    }
    return n > most;
}

/* The entry of a known grammar, moved to the front of the list; NULL: the grammar is new. */
static entry *find(mr_grammars *all, const uint8_t *packed, size_t n) {
    for (entry **at = &all->first; *at; at = &(*at)->next) {
        entry *e = *at;
        if (e->n != n || memcmp(e->packed, packed, n) != 0)
            continue;
        *at = e->next;
        e->next = all->first;
        all->first = e;
        return e;
    }
    return NULL;
}

static mr_status add(mr_grammars *all, const uint8_t *packed, size_t n, entry **out, mr_err *err) {
    entry *e = mr_alloc(sizeof *e);
    uint8_t *copy = mr_alloc(n);
    mr_status status = e && copy ? mr_grammar_unpack(packed, n, &e->grammar, err)
                                 : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar of %zu bytes", n);
    if (status != MR_OK) {
        mr_free(copy);
        mr_free(e);
        return status;
    }
    memcpy(copy, packed, n);
    e->packed = copy;
    e->n = n;
    e->next = all->first;
    all->first = e;
    *out = e;
    return MR_OK;
}

static mr_status open_use(mr_grammars *all, const uint8_t *packed, size_t n, mr_grammar_use **out, mr_err *err) {
    entry *e = find(all, packed, n);
    mr_status status = e ? MR_OK : add(all, packed, n, &e, err);
    if (status != MR_OK)
        return status;
    mr_grammar_use *use = e->kept;
    if (use) {
        e->kept = use->next;
        all->n_kept_uses--;
        mr_grammar_state_reset(use->state);
    } else {
        use = mr_alloc(sizeof *use);
        status = use ? mr_grammar_state_create(e->grammar, all->vocab, &use->state, err)
                     : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar's state");
        if (status != MR_OK) {
            mr_free(use);
            (void)drop_unused(all, MAX_UNUSED);
            return status;
        }
    }
    use->entry = e;
    use->next = NULL;
    e->n_users++;
    *out = use;
    return MR_OK;
}

/* Frees all that no sequence uses. false: there was nothing. */
static bool drop_kept(mr_grammars *all) {
    bool any = drop_unused(all, 0) || all->n_kept_uses > 0;
    for (entry *e = all->first; e; e = e->next)
        drop_kept_uses(all, e);
    return any;
}

mr_status mr_grammars_open(mr_grammars *all, const uint8_t *packed, size_t n, mr_grammar_use **out, mr_err *err) {
    mr_status status = open_use(all, packed, n, out, err);
    return status == MR_E_NO_MEMORY && drop_kept(all) ? open_use(all, packed, n, out, err) : status;
}

void mr_grammars_close(mr_grammars *all, mr_grammar_use *use) {
    if (!use)
        return;
    entry *e = use->entry;
    e->n_users--;
    if (all->n_kept_uses < MAX_KEPT_USES) {
        use->next = e->kept;
        e->kept = use;
        all->n_kept_uses++;
    } else {
        use_destroy(use);
    }
    (void)drop_unused(all, MAX_UNUSED);
}
