/* engine/grammar/mask.c - follows a text through a grammar and finds the tokens that may come next. This runs for every
 * token of a constrained sequence, so the next comment says how the code avoids trying every token. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/grammar_internal.h"
#include "engine/grammar/plain.h"
#include "engine/grammar/readings.h"

/* How a mask is found. A token is allowed if at least one reading takes all its bytes, so the mask of a set of readings
 * is the union of the masks of its readings. The mask of one reading depends on its state and, for tokens that lead out
 * of the rule, on the frames. The first part (view) is found once for each state, by a walk over the tree of tokens,
 * and kept. A view has the tokens that stay inside the rule or end with it, and the exits: the nodes of the tree at
 * which the rule ends and tokens continue. For each mask the walk continues from the exits with the frames; these are
 * few tokens. The idea to split masks like this is XGrammar's (Dong and others, "XGrammar: flexible and efficient
 * structured generation", 2024). */
enum {
    N_VIEWS = 32,
    MAX_EXITS = 4096,   /* of a kept view */
    KEPT_COST = 1024,   /* steps that finding a view must have taken for the view to be kept */
    WORK_PER_NODE = 16, /* steps that a mask may take for each node of the tree */
    WORK_AT_LEAST = 1 << 16,
};

typedef struct view {
    uint32_t state; /* DFA_DEAD: no view */
    uint32_t n_exits;
    uint64_t *bits;
    uint32_t *exits;        /* nodes of the tree */
    const vocab_tree *tree; /* the tree that was walked: all tokens, or the tokens that are not plain */
    uint64_t used_at;       /* number of the last mask that used the view */
    bool cut;               /* there were more exits than MAX_EXITS */
} view;

struct mr_grammar_state {
    const mr_grammar *g;
    const mr_grammar_vocab *v;
    text_reader reader;
    readings now; /* the current readings, at the start of the reader's items */
    bool ended;   /* an end token was taken */
    uint64_t n_masks;
    size_t n_words;
    uint64_t *all_bits;                              /* [N_VIEWS, n_words] */
    uint32_t *all_exits;                             /* [N_VIEWS, MAX_EXITS] */
    view views[N_VIEWS];                             /* the last one is work space */
    readings levels[MR_GRAMMAR_MAX_TOKEN_BYTES + 2]; /* the readings after each byte of the walk */
};

static mr_status set_start(mr_grammar_state *s, mr_err *err) {
    readings_rewind(&s->reader, 1);
    s->ended = false;
    if (!readings_start(&s->reader, s->g->automaton.start, READINGS_BOTTOM, 0, &s->now))
        return mr_err_set(err, MR_E_TOO_LONG, "%s", s->reader.problem);
    return MR_OK;
}

mr_status mr_grammar_state_create(const mr_grammar *g, const mr_grammar_vocab *v, mr_grammar_state **out, mr_err *err) {
    mr_status status = MR_OK;
    mr_grammar_state *s = mr_alloc(sizeof *s);
    if (!s)
        goto no_memory;
    s->g = g;
    s->v = v;
    s->n_words = mr_grammar_vocab_mask_words(v);
    s->all_bits = mr_alloc_array(N_VIEWS, s->n_words * sizeof *s->all_bits);
    s->all_exits = mr_alloc_array(N_VIEWS, MAX_EXITS * sizeof *s->all_exits);
    if (!text_reader_init(&s->reader, &g->automaton) || !s->all_bits || !s->all_exits)
        goto no_memory;
    for (size_t i = 0; i < N_VIEWS; i++) {
        s->views[i].bits = s->all_bits + i * s->n_words;
        s->views[i].exits = s->all_exits + i * MAX_EXITS;
    }
    status = set_start(s, err);
    if (status)
        goto out;
    *out = s;
    return MR_OK;
no_memory:
    status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the state of a grammar");
out:
    mr_grammar_state_destroy(s);
    return status;
}

void mr_grammar_state_destroy(mr_grammar_state *s) {
    if (!s)
        return;
    text_reader_deinit(&s->reader);
    mr_free(s->all_bits);
    mr_free(s->all_exits);
    mr_free(s);
}

void mr_grammar_state_reset(mr_grammar_state *s) {
    mr_status status = set_start(s, NULL);
    MR_ASSERT(status == MR_OK); /* the same start worked when the state was created */
}

mr_status mr_grammar_state_accept_bytes(mr_grammar_state *s, mr_str bytes, mr_err *err) {
    text_reader *r = &s->reader;
    if (s->ended && bytes.len)
        return mr_err_set(err, MR_E_INVALID, "the text has ended");
    if (r->n_frames > READINGS_FRAMES / 2)
        readings_collect(r, r->items, s->now.n);
    uint32_t n_frames = r->n_frames;
    readings at = s->now, next;
    for (size_t i = 0; i < bytes.len; i++) {
        uint32_t base = s->now.n;
        if (!readings_step(r, &at, (uint8_t)bytes.data[i], base + MR_GRAMMAR_MAX_READINGS * (1 + i % 2), &next)) {
            readings_rewind(r, n_frames);
            return mr_err_set(err, MR_E_TOO_LONG, "%s", r->problem);
        }
        if (next.n == 0 && !next.complete) {
            readings_rewind(r, n_frames);
            return mr_err_set(err, MR_E_INVALID, "the grammar does not allow byte %zu of %zu here", i + 1, bytes.len);
        }
        at = next;
    }
    memmove(r->items, r->items + at.first, at.n * sizeof *r->items);
    at.first = 0;
    s->now = at;
    return MR_OK;
}

mr_status mr_grammar_state_accept(mr_grammar_state *s, int32_t id, mr_err *err) {
    mr_str bytes;
    if (id >= 0 && id < s->v->n_vocab && mr_tokenizer_is_end(s->v->tok, id)) {
        if (!s->now.complete)
            return mr_err_set(err, MR_E_INVALID, "end token %d comes before the text of the grammar is complete", id);
        s->ended = true;
        return MR_OK;
    }
    if (!grammar_vocab_bytes(s->v, id, &bytes))
        return mr_err_set(err, MR_E_INVALID, "token %d stands for no text", id);
    return mr_grammar_state_accept_bytes(s, bytes, err);
}

static void set_bit(uint64_t *bits, int32_t id) {
    bits[id >> 6] |= UINT64_C(1) << (id & 63);
}

/* A walk over the nodes [begin, end) of a tree. These nodes are below a node `depth` bytes into the tokens, and start
 * is the set of readings after these bytes. */
typedef struct walk {
    const vocab_tree *tree;
    readings start;
    uint32_t begin, end, depth;
    uint64_t *bits; /* gets the tokens that the readings take */
    view *exits;    /* gets the nodes at which the readings end and tokens continue; NULL: not wanted */
    uint64_t work_limit;
} walk;

static bool walk_tree(mr_grammar_state *s, const walk *w) {
    text_reader *r = &s->reader;
    const dfa *d = r->d;
    const vocab_node *nodes = w->tree->nodes;
    uint32_t i = w->begin;
    s->levels[0] = w->start;
    while (i < w->end && r->work <= w->work_limit) {
        const vocab_node *node = &nodes[i];
        const readings *at = &s->levels[node->depth - w->depth - 1];
        readings *to = &s->levels[node->depth - w->depth];
        if (at->n == 1 && at->first + 1 < READINGS_ITEMS) {
            /* The first case of readings_step, repeated here because it covers nearly all nodes. */
            reading one = r->items[at->first];
            uint32_t next = dfa_next(d, one.state, node->byte);
            if (next == DFA_DEAD || d->flags[next] == DFA_BYTES) {
                r->work++;
                i = next == DFA_DEAD ? node->skip : i + 1;
                if (next != DFA_DEAD && node->token >= 0)
                    set_bit(w->bits, node->token);
                r->items[at->first + 1] = (reading){next, one.frame};
                *to = (readings){.first = at->first + 1, .n = 1};
                continue;
            }
        }
        if (!readings_step(r, at, node->byte, at->first + at->n, to))
            return false;
        if (to->n == 0 && !to->complete) {
            i = node->skip;
            continue;
        }
        if (node->token >= 0)
            set_bit(w->bits, node->token);
        if (to->complete && w->exits && node->skip > i + 1) {
            if (w->exits->n_exits == MAX_EXITS)
                w->exits->cut = true;
            else
                w->exits->exits[w->exits->n_exits++] = i;
        }
        i = to->n ? i + 1 : node->skip;
    }
    if (i < w->end)
        r->problem = "the mask of the grammar takes too long";
    return i >= w->end;
}

/* Returns the view of a state: a kept one, or a new one in the work space. NULL on failure; the reader has the
 * problem. */
static view *find_view(mr_grammar_state *s, uint32_t state, uint32_t first_item, uint64_t work_limit) {
    view *oldest = &s->views[0], *fresh = &s->views[N_VIEWS - 1];
    for (size_t i = 0; i + 1 < N_VIEWS; i++) {
        view *v = &s->views[i];
        if (v->state == state) {
            v->used_at = s->n_masks;
            return v;
        }
        oldest = v->used_at < oldest->used_at ? v : oldest;
    }
    uint64_t before = s->reader.work;
    bool none_more;
    size_t n_plain = plain_run(s->reader.d, state, &none_more);
    bool by_plain = none_more || n_plain == PLAIN_MAX_CHARS;
    const vocab_tree *tree = by_plain ? &s->v->odd : &s->v->all;
    memcpy(fresh->bits, s->v->plain + (by_plain ? n_plain : 0) * s->n_words, s->n_words * sizeof *fresh->bits);
    fresh->tree = tree;
    fresh->n_exits = 0;
    fresh->cut = false;
    walk w = {.tree = tree, .end = tree->n, .bits = fresh->bits, .exits = fresh, .work_limit = work_limit};
    w.start = (readings){.first = first_item, .n = 1};
    s->reader.items[first_item] = (reading){state, READINGS_BOTTOM};
    if (!walk_tree(s, &w))
        return NULL;
    if (s->reader.work - before < KEPT_COST)
        return fresh;
    view kept = *fresh;
    *fresh = *oldest;
    *oldest = kept;
    fresh->state = DFA_DEAD;
    oldest->state = state;
    oldest->used_at = s->n_masks;
    return oldest;
}

/* Adds the tokens that one reading takes to bits. */
static bool add_reading(mr_grammar_state *s, reading at, uint64_t *bits, uint64_t work_limit) {
    text_reader *r = &s->reader;
    uint32_t first = s->now.n;
    walk w = {.bits = bits, .work_limit = work_limit};
    const view *v = find_view(s, at.state, first, work_limit);
    if (!v)
        return false;
    if (v->cut) {
        w.tree = &s->v->all;
        w.end = w.tree->n;
        w.start = (readings){.first = first, .n = 1};
        r->items[first] = at;
        return walk_tree(s, &w);
    }
    for (size_t i = 0; i < s->n_words; i++)
        bits[i] |= v->bits[i];
    if (v->n_exits == 0 || at.frame == READINGS_BOTTOM)
        return true;
    frame back = r->frames[at.frame];
    if (!readings_start(r, back.state, back.parent, first, &w.start))
        return false;
    w.tree = v->tree;
    for (uint32_t i = 0; w.start.n && i < v->n_exits; i++) {
        const vocab_node *node = &w.tree->nodes[v->exits[i]];
        w.begin = v->exits[i] + 1;
        w.end = node->skip;
        w.depth = node->depth;
        if (!walk_tree(s, &w))
            return false;
    }
    return true;
}

mr_status mr_grammar_state_mask(mr_grammar_state *s, uint64_t *bits, mr_err *err) {
    text_reader *r = &s->reader;
    uint32_t n_frames = r->n_frames;
    uint64_t work_limit = r->work + WORK_AT_LEAST + (uint64_t)WORK_PER_NODE * s->v->all.n;
    bool ok = true;
    s->n_masks++;
    memset(bits, 0, s->n_words * sizeof *bits);
    for (uint32_t i = 0; ok && !s->ended && i < s->now.n; i++) {
        ok = add_reading(s, r->items[i], bits, work_limit);
        readings_rewind(r, n_frames);
    }
    if (!ok) {
        memset(bits, 0, s->n_words * sizeof *bits);
        return mr_err_set(err, MR_E_TOO_LONG, "%s", r->problem);
    }
    for (size_t i = 0; i < s->v->n_twins; i++)
        if (bits[s->v->twins[i].first >> 6] >> (s->v->twins[i].first & 63) & 1)
            set_bit(bits, s->v->twins[i].other);
    const int32_t *ends;
    int32_t n_ends;
    mr_tokenizer_ends(s->v->tok, &ends, &n_ends);
    for (int32_t i = 0; s->now.complete && i < n_ends; i++)
        if (ends[i] < s->v->n_vocab)
            set_bit(bits, ends[i]);
    return MR_OK;
}

bool mr_grammar_state_is_complete(const mr_grammar_state *s) {
    return s->now.complete;
}

bool mr_grammar_state_is_finished(const mr_grammar_state *s) {
    return s->ended || (s->now.complete && s->now.n == 0);
}
