/* worker/stage/expert_renewal.c - counts that decay, and the search for exchanges. A look settles the counts of all
 * layers; from then on the layers take turns, one exchange each, until none of them wants a further one or the bytes of
 * the step are used up. The next step goes on where this one has stopped. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/expert_renewal.h"

#include <string.h>

#include "engine/base/mem.h"

typedef struct layer_counts {
    mr_renewed_layer at;
    const mr_use_counts *uses;
    uint64_t *recent; /* [n]: uses with decay */
    uint64_t *seen;   /* [n]: uses that are settled */
    bool *is_held;    /* [n] */
} layer_counts;

struct mr_expert_renewal {
    mr_expert_rules rules;
    layer_counts *layers; /* [n_layers] */
    int32_t n_layers;
    uint64_t *counts;                /* memory of recent and seen of all layers */
    bool *flags;                     /* memory of is_held of all layers */
    uint64_t look_rows, decay_rows;  /* rows of the layers at the last look, and at the last decay */
    size_t credit_bytes, most_bytes; /* that this step may load, and that may be saved up */
    int32_t turn;                    /* the layer that is looked at next */
    int32_t n_calm;                  /* so many layers in a row want no exchange; n_layers: all of them */
    mr_expert_share share;
};

/* Points the layers into the memory of counts and flags. */
static void place_layers(mr_expert_renewal *r, const mr_renewed_layer *layers) {
    size_t at = 0;
    for (int32_t i = 0; i < r->n_layers; i++) {
        layer_counts *l = &r->layers[i];
        *l = (layer_counts){.at = layers[i]};
        l->recent = r->counts + 2 * at;
        l->seen = l->recent + l->at.n;
        l->is_held = r->flags + at;
        for (int32_t k = 0; k < l->at.n_held; k++)
            l->is_held[l->at.held[k]] = true;
        r->most_bytes = l->at.expert_bytes > r->most_bytes ? l->at.expert_bytes : r->most_bytes;
        at += (size_t)l->at.n;
    }
}

mr_status mr_expert_renewal_create(const mr_expert_rules *rules, const mr_renewed_layer *layers, int32_t n_layers,
                                   mr_expert_renewal **out, mr_err *err) {
    size_t n = 0;
    for (int32_t i = 0; i < n_layers; i++)
        n += (size_t)layers[i].n;
    mr_expert_renewal *r = mr_alloc(sizeof *r);
    if (r) {
        *r = (mr_expert_renewal){.rules = *rules, .n_layers = n_layers, .n_calm = n_layers};
        r->most_bytes = rules->bytes_per_step;
        r->layers = mr_alloc_array((size_t)n_layers, sizeof *r->layers);
        r->counts = mr_alloc_array(2 * n, sizeof *r->counts);
        r->flags = mr_alloc_array(n, sizeof *r->flags);
    }
    if (!r || !r->layers || !r->counts || !r->flags) {
        mr_expert_renewal_destroy(r);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the counts of %zu experts", n);
    }
    memset(r->counts, 0, 2 * n * sizeof *r->counts);
    memset(r->flags, 0, n * sizeof *r->flags);
    place_layers(r, layers);
    *out = r;
    return MR_OK;
}

void mr_expert_renewal_destroy(mr_expert_renewal *r) {
    if (!r)
        return;
    mr_free(r->layers);
    mr_free(r->counts);
    mr_free(r->flags);
    mr_free(r);
}

/* Adds the uses of an expert since it was settled last. It was on the same side for all of them. */
static void settle(mr_expert_renewal *r, layer_counts *l, int32_t expert) {
    uint64_t n = l->uses->counts[expert] - l->seen[expert];
    l->seen[expert] += n;
    l->recent[expert] += n;
    r->share.n_uses += n;
    r->share.n_device_uses += l->is_held[expert] ? n : 0;
}

/* Halves the counts so many times, then settles them. */
static void look(mr_expert_renewal *r, uint32_t halvings) {
    for (int32_t i = 0; i < r->n_layers; i++) {
        layer_counts *l = &r->layers[i];
        for (int32_t e = 0; e < l->at.n; e++) {
            l->recent[e] >>= halvings;
            settle(r, l, e);
        }
    }
}

void mr_expert_renewal_begin(mr_expert_renewal *r, const mr_use_counts *const *uses) {
    for (int32_t i = 0; i < r->n_layers; i++)
        r->layers[i].uses = uses[i];
    uint64_t n_rows = r->n_layers > 0 ? uses[0]->n_rows : 0; /* the same for all layers */
    size_t credit = r->credit_bytes + r->rules.bytes_per_step;
    r->credit_bytes = credit < r->most_bytes ? credit : r->most_bytes;
    if (n_rows - r->look_rows < (uint64_t)r->rules.rows)
        return;
    uint64_t halvings = (n_rows - r->decay_rows) / (uint64_t)r->rules.half_life_rows;
    look(r, halvings < 63 ? (uint32_t)halvings : 63);
    r->decay_rows += halvings * (uint64_t)r->rules.half_life_rows;
    r->look_rows = n_rows;
    r->n_calm = 0;
}

/* Whether expert `hot` is used clearly more often than expert `cold`: by a quarter, and by more than so many standard
 * deviations of the difference of two counts (of Poisson variables, the sum of the counts is the variance). */
static bool is_clearly_above(uint64_t hot, uint64_t cold, uint64_t deviations) {
    return hot > cold && 4 * hot > 5 * cold && (hot - cold) * (hot - cold) > deviations * deviations * (hot + cold);
}

/* The best exchange of a layer, if it has one. */
static bool find_swap(const layer_counts *l, int32_t deviations, mr_expert_swap *out) {
    int32_t expert = -1, place = -1;
    for (int32_t e = 0; e < l->at.n; e++)
        if (!l->is_held[e] && (expert < 0 || l->recent[e] > l->recent[expert]))
            expert = e;
    for (int32_t k = 0; k < l->at.n_held; k++)
        if (place < 0 || l->recent[l->at.held[k]] < l->recent[l->at.held[place]])
            place = k;
    if (expert < 0 || place < 0 ||
        !is_clearly_above(l->recent[expert], l->recent[l->at.held[place]], (uint64_t)deviations))
        return false;
    *out = (mr_expert_swap){.layer = l->at.layer, .place = place, .expert = expert};
    return true;
}

/* Notes an exchange that the caller is going to make. */
static void note_swap(mr_expert_renewal *r, layer_counts *l, const mr_expert_swap *swap) {
    int32_t old = l->at.held[swap->place];
    settle(r, l, old);
    settle(r, l, swap->expert);
    l->is_held[old] = false;
    l->is_held[swap->expert] = true;
    r->credit_bytes -= l->at.expert_bytes;
    r->share.n_swaps++;
}

bool mr_expert_renewal_next(mr_expert_renewal *r, mr_expert_swap *out) {
    for (; r->n_calm < r->n_layers; r->turn = (r->turn + 1) % r->n_layers) {
        layer_counts *l = &r->layers[r->turn];
        if (!find_swap(l, r->rules.deviations, out)) {
            r->n_calm++;
            continue;
        }
        r->n_calm = 0;
        if (l->at.expert_bytes > r->credit_bytes)
            return false;
        note_swap(r, l, out);
        r->turn = (r->turn + 1) % r->n_layers;
        return true;
    }
    return false;
}

mr_expert_share mr_expert_renewal_share(const mr_expert_renewal *r) {
    return r->share;
}
