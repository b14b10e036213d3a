/* worker/stage/stage_state.c - shares the state of a stage out to its backends, and sends the changes of a step. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/stage_state.h"

#include <string.h>

#include "backends/pinned.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "worker/stage/state_program.h"

/* Areas of the host's memory that the queues of backends read: a record for each step under way, and the mirror. */
enum { RECORDS = 2, MIRROR = RECORDS, AREAS };

/* What one backend holds. No layers: nothing. */
typedef struct backend_state {
    mr_kv_desc desc;
    size_t kv_bytes;
    mr_kv_store *kv;
    state_program program;
    bool is_host;         /* host_addressable: calls are done when they return */
    mr_fence read[AREAS]; /* when the backend has read the area */
} backend_state;

struct mr_stage_state {
    const mr_model_info *info;
    mr_layer_range range;
    mr_backends backends;
    int32_t n_layers, n_kv_blocks;
    mr_type kv_type;
    backend_state at[MR_MAX_BACKENDS];
    int32_t *home;         /* [layers] index of the backend that holds keys and values */
    mr_kv_shape *shapes;   /* [layers], sorted by backend */
    mr_tensor *kv_tensors; /* [2 * layers]: keys of all layers, then values */
    mr_state_tensors tensors;
    mr_tensor table; /* shape of the block tables */
    state_limits limits;
    mr_pinned memory;      /* of mirror and records */
    int32_t *mirror;       /* [sequence slots][row_ints]: all block tables, with the collected changes */
    int32_t row_ints;      /* of a row of a block table */
    int32_t *changed;      /* [n_changed] slots with collected entries: [first[slot], last[slot]) */
    int32_t *first, *last; /* [sequence slots]; 0 without such entries */
    bool *is_sent;         /* [sequence slots]: the slot's row of the mirror was sent as it is */
    int32_t n_changed;
    int32_t *from, *to; /* [n_copies] collected copies */
    int32_t n_copies;
    int32_t *records;        /* [RECORDS] as state_program.h says */
    int32_t record_idx;      /* of the next update */
    mr_kept_kv *kept;        /* of the config */
    bool has_kept;           /* the store came from there */
    unsigned readers[AREAS]; /* bit b: backend b may read the area until at[b].read[area] is reached */
};

/* --- Which backend holds what ------------------------------------------------------------------------------------ */

static mr_kv_shape shape_of(const mr_stage_state *s, int32_t layer) {
    const mr_layer_info *l = mr_model_layer(s->info, s->range.first + layer);
    return (mr_kv_shape){l->n_kv_heads, l->k_dim, l->v_dim};
}

/* A graph with the attention node of one layer, to find out which backend supports attention. */
static mr_status make_attention(const mr_stage_state *s, int32_t layer, mr_graph **out, mr_err *err) {
    const mr_layer_info *m = mr_model_layer(s->info, s->range.first + layer);
    const mr_kv_shape shape = shape_of(s, layer);
    const mr_kv_desc desc = {.n_layers = 1, .n_blocks = s->n_kv_blocks, .shapes = &shape, .type = s->kv_type};
    mr_tensor k, v, table;
    mr_status status = mr_kv_layer_describe(&desc, 0, &k, &v, err);
    if (status == MR_OK)
        status = mr_graph_create(1, 1, out, err);
    if (status != MR_OK)
        return status;
    mr_graph *g = *out;
    if (!mr_tensor_init(&table, "block_table", MR_TYPE_I32, 1, 1, MR_STORAGE_STATE, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_INTERNAL, "a block table of one entry");
    mr_attention_desc attention = {
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .k_dim = m->k_dim,
        .v_dim = m->v_dim,
        .k_state = mr_graph_use(g, &k),
        .v_state = mr_graph_use(g, &v),
        .slots = mr_graph_input(g, "slots", MR_TYPE_I32, 1, MR_ROWS_STEP),
        .row_seq = mr_graph_input(g, "row_seq", MR_TYPE_I32, 1, MR_ROWS_STEP),
        .row_position = mr_graph_input(g, "positions", MR_TYPE_I32, 1, MR_ROWS_STEP),
        .block_table = mr_graph_use(g, &table),
        .window = m->window,
        .temperature = s->info->temperature,
        .sinks = MR_NO_TENSOR,
    };
    int32_t q = mr_graph_input(g, "q", MR_TYPE_F32, m->n_heads * m->k_dim, MR_ROWS_STEP);
    int32_t keys = mr_graph_input(g, "k", MR_TYPE_F32, m->n_kv_heads * m->k_dim, MR_ROWS_STEP);
    int32_t values = mr_graph_input(g, "v", MR_TYPE_F32, m->n_kv_heads * m->v_dim, MR_ROWS_STEP);
    mr_graph_attention(g, q, keys, values, &attention);
    return MR_OK;
}

/* MR_E_UNSUPPORTED: the backend does not support the attention of a layer. */
static mr_status try_attention(const mr_stage_state *s, mr_backend *be, int32_t layer, mr_err *err) {
    mr_graph *g = NULL;
    mr_graph_stats stats;
    mr_status status = make_attention(s, layer, &g, err);
    if (status == MR_OK)
        status = mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, err);
    mr_graph_destroy(g);
    return status;
}

/* Keys and values live where their layer lives, if this backend supports attention; else on the last one. Layers like
 * the one before are not tried. */
static mr_status choose_homes(mr_stage_state *s, mr_err *err) {
    int32_t last = s->backends.n - 1;
    mr_status status = MR_OK;
    for (int32_t l = 0, past = -1; l < s->n_layers && (status == MR_OK || status == MR_E_UNSUPPORTED); l++) {
        int32_t b = mr_backends_of_layer(&s->backends, l), at = s->range.first + l;
        bool is_like_past = b == past && s->info->shape_of[at] == s->info->shape_of[at - 1];
        if (!is_like_past)
            status = b == last ? MR_OK : try_attention(s, s->backends.at[b], l, err);
        s->home[l] = status == MR_OK ? b : last;
        past = b;
    }
    return status == MR_E_UNSUPPORTED ? MR_OK : status;
}

/* Describes the state of backend b, whose shapes are the next ones of s->shapes. */
static mr_status describe_backend(mr_stage_state *s, int32_t b, mr_kv_shape *shapes, mr_err *err) {
    backend_state *at = &s->at[b];
    mr_device_info device;
    s->backends.at[b]->ops->describe(s->backends.at[b], &device);
    *at = (backend_state){.desc = {.n_blocks = s->n_kv_blocks, .shapes = shapes, .type = s->kv_type},
                          .is_host = device.host_addressable};
    for (int32_t l = 0; l < s->n_layers; l++)
        if (s->home[l] == b)
            shapes[at->desc.n_layers++] = shape_of(s, l);
    if (at->desc.n_layers == 0)
        return MR_OK;
    mr_status status = mr_kv_store_bytes(&at->desc, &at->kv_bytes, err);
    return status == MR_OK
               ? state_program_describe(&at->program, s->backends.at[b], &s->table, &at->desc, &s->limits, err)
               : status;
}

/* Describes what each backend holds. A device that cannot change its state holds none: the last backend gets it. */
static mr_status describe_backends(mr_stage_state *s, mr_err *err) {
    int32_t last = s->backends.n - 1, n_shapes = 0;
    mr_status status = MR_OK;
    for (int32_t b = 0; b <= last && status == MR_OK; b++) {
        status = describe_backend(s, b, s->shapes + n_shapes, err);
        bool holds = status == MR_OK && s->at[b].desc.n_layers > 0;
        if (holds && b < last && !state_program_is_supported(&s->at[b].program)) {
            for (int32_t l = 0; l < s->n_layers; l++)
                s->home[l] = s->home[l] == b ? last : s->home[l];
            state_program_deinit(&s->at[b].program);
            s->at[b] = (backend_state){0};
        }
        n_shapes += s->at[b].desc.n_layers;
        s->tensors.block_tables[b] = s->at[b].desc.n_layers > 0 ? &s->at[b].program.tensors[STATE_TABLE] : NULL;
    }
    return status;
}

/* Describes the keys and values of all layers without memory behind them. */
static mr_status describe_layers(mr_stage_state *s, mr_err *err) {
    int32_t n_of[MR_MAX_BACKENDS] = {0};
    mr_status status = MR_OK;
    for (int32_t l = 0; l < s->n_layers && status == MR_OK; l++) {
        int32_t b = s->home[l];
        mr_tensor *k = &s->kv_tensors[l], *v = &s->kv_tensors[s->n_layers + l];
        status = mr_kv_layer_describe(&s->at[b].desc, n_of[b]++, k, v, err);
        k->home = v->home = s->backends.at[b];
    }
    s->tensors.k = s->kv_tensors;
    s->tensors.v = s->kv_tensors + s->n_layers;
    s->tensors.home = s->home;
    return status;
}

/* --- Life -------------------------------------------------------------------------------------------------------- */

static mr_status describe_table(mr_stage_state *s, const mr_stage_config *c, mr_err *err) {
    int32_t n_blocks = (c->max_context + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    if (!mr_tensor_init(&s->table, "block_table", MR_TYPE_I32, n_blocks, c->max_sequences, MR_STORAGE_STATE,
                        MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_TOO_LONG, "block tables of %d tokens for %d sequences", c->max_context,
                          c->max_sequences);
    s->row_ints = (int32_t)(s->table.row_bytes / sizeof(int32_t));
    /* Room for a step whose rows are the next ones of every sequence. */
    s->limits =
        (state_limits){.n_entries = c->max_rows / MR_KV_BLOCK + 2 * c->max_sequences, .n_copies = c->max_sequences};
    return MR_OK;
}

static mr_status allocate_host(mr_stage_state *s, mr_err *err) {
    size_t n_layers = (size_t)s->n_layers, n_slots = (size_t)s->table.ne[1];
    s->shapes = mr_alloc_array(n_layers, sizeof *s->shapes);
    s->home = mr_alloc_array(n_layers, sizeof *s->home);
    s->kv_tensors = mr_alloc_array(2 * n_layers, sizeof *s->kv_tensors);
    s->changed = mr_alloc_array(3 * n_slots, sizeof *s->changed);
    s->is_sent = mr_alloc_array(n_slots, sizeof *s->is_sent);
    s->from = mr_alloc_array(2 * (size_t)s->limits.n_copies, sizeof *s->from);
    if (!s->shapes || !s->home || !s->kv_tensors || !s->changed || !s->is_sent || !s->from)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the state of a stage");
    s->first = s->changed + n_slots;
    s->last = s->first + n_slots;
    s->to = s->from + s->limits.n_copies;
    size_t record_bytes = RECORDS * state_record_ints(&s->limits) * sizeof *s->records;
    mr_status status = mr_pinned_create(&s->backends, s->table.bytes + record_bytes, &s->memory, err);
    if (status == MR_OK) {
        s->mirror = (int32_t *)(void *)s->memory.data;
        s->records = s->mirror + s->table.bytes / sizeof *s->mirror;
    }
    return status;
}

mr_status mr_stage_state_create(const mr_stage_config *c, const mr_backends *backends, mr_stage_state **out,
                                mr_err *err) {
    mr_stage_state *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the state of a stage");
    s->info = c->info;
    s->range = c->range;
    s->backends = *backends;
    s->n_layers = c->range.last - c->range.first;
    s->n_kv_blocks = c->n_kv_blocks;
    s->kv_type = c->kv_type;
    s->kept = c->kept_kv;
    mr_status status = describe_table(s, c, err);
    if (status == MR_OK)
        status = allocate_host(s, err);
    if (status == MR_OK)
        status = choose_homes(s, err);
    if (status == MR_OK)
        status = describe_backends(s, err);
    if (status == MR_OK)
        status = describe_layers(s, err);
    if (status != MR_OK) {
        mr_stage_state_destroy(s);
        return status;
    }
    *out = s;
    return MR_OK;
}

/* Waits until no backend reads the area. */
static mr_status settle(mr_stage_state *s, int area, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t b = 0; s->readers[area]; b++) {
        mr_backend *be = s->backends.at[b];
        if (!(s->readers[area] >> b & 1))
            continue;
        s->readers[area] &= ~(1u << b);
        mr_status end = be->ops->wait(be, s->at[b].read[area], MR_NEVER, status == MR_OK ? err : NULL);
        status = status == MR_OK ? end : status;
    }
    return status;
}

bool mr_stage_state_has_kept_kv(const mr_stage_state *s) {
    return s->has_kept;
}

/* Index of the backend that holds the keys and values of all layers; -1: they lie on several backends. */
static int32_t only_home(const mr_stage_state *s) {
    int32_t b = 0;
    while (b < s->backends.n && s->at[b].desc.n_layers < s->n_layers)
        b++;
    return b < s->backends.n ? b : -1;
}

mr_kv_store *mr_stage_state_kv_store(const mr_stage_state *s) {
    int32_t b = only_home(s);
    return b >= 0 ? s->at[b].kv : NULL;
}

/* Leaves the KV store to later stages. */
static void keep_kv(mr_stage_state *s) {
    mr_kv_store *store = mr_stage_state_kv_store(s);
    if (s->kept)
        s->kept->used = NULL;
    if (!s->kept || !store)
        return;
    mr_kv_store_destroy(s->kept->store);
    s->kept->store = store;
    s->kept->range = s->range;
    s->at[only_home(s)].kv = NULL;
}

void mr_stage_state_destroy(mr_stage_state *s) {
    if (!s)
        return;
    for (int area = 0; area < AREAS; area++)
        (void)!settle(s, area, NULL);
    keep_kv(s);
    for (int32_t b = 0; b < s->backends.n; b++) {
        state_program_deinit(&s->at[b].program);
        mr_kv_store_destroy(s->at[b].kv);
    }
    mr_free(s->shapes);
    mr_free(s->home);
    mr_free(s->kv_tensors);
    mr_pinned_destroy(&s->memory);
    mr_free(s->changed);
    mr_free(s->is_sent);
    mr_free(s->from);
    mr_free(s);
}

/* Takes the store of an earlier stage, if it has what this stage needs; blocks that have come to the host are copied to
 * the device that needs them. Frees the store otherwise, before there is another one. */
static mr_status take_kept(mr_stage_state *s, mr_err *err) {
    mr_kept_kv *kept = s->kept;
    int32_t b = only_home(s);
    if (!kept || !kept->store)
        return MR_OK;
    mr_backend *from = mr_kv_store_backend(kept->store), *host = s->backends.at[s->backends.n - 1];
    bool fits = b >= 0 && kept->range.first == s->range.first && kept->range.last == s->range.last &&
                mr_kv_store_is(kept->store, &s->at[b].desc);
    if (!fits || (from != s->backends.at[b] && from != host)) {
        mr_kept_kv_drop(kept);
        return MR_OK;
    }
    s->has_kept = true;
    if (from == s->backends.at[b]) {
        s->at[b].kv = kept->store;
        kept->store = NULL;
        return MR_OK;
    }
    mr_status status = mr_kv_store_create(s->backends.at[b], &s->at[b].desc, &s->at[b].kv, err);
    if (status == MR_OK)
        status = mr_kv_store_move(s->at[b].kv, kept->store, err);
    mr_kept_kv_drop(kept);
    return status;
}

mr_status mr_stage_state_allocate(mr_stage_state *s, mr_err *err) {
    mr_status status = take_kept(s, err);
    for (int32_t b = 0; b < s->backends.n && status == MR_OK; b++) {
        backend_state *at = &s->at[b];
        mr_tensor keys, values;
        if (at->desc.n_layers == 0)
            continue;
        if (!at->kv)
            status = mr_kv_store_create(s->backends.at[b], &at->desc, &at->kv, err);
        if (status != MR_OK)
            return status;
        for (int32_t l = 0, n = 0; l < s->n_layers; l++)
            if (s->home[l] == b)
                mr_kv_store_layer(at->kv, n++, &s->kv_tensors[l], &s->kv_tensors[s->n_layers + l]);
        mr_kv_store_layer(at->kv, 0, &keys, &values);
        status = state_program_place(&at->program, &keys, err);
    }
    if (status == MR_OK && s->kept)
        s->kept->used = mr_stage_state_kv_store(s);
    return status;
}

const mr_state_tensors *mr_stage_state_tensors(const mr_stage_state *s) {
    return &s->tensors;
}

size_t mr_stage_state_kv_bytes(const mr_stage_state *s, int32_t b) {
    return s->at[b].kv_bytes;
}

size_t mr_stage_state_table_bytes(const mr_stage_state *s, int32_t b) {
    return s->at[b].desc.n_layers > 0 ? state_program_bytes(&s->at[b].program) : 0;
}

/* --- Changes ----------------------------------------------------------------------------------------------------- */

mr_status mr_stage_state_set_blocks(mr_stage_state *s, int32_t slot, int32_t first, const int32_t *blocks, int32_t n,
                                    mr_err *err) {
    MR_ASSERT(slot >= 0 && slot < s->table.ne[1] && first >= 0 && n >= 0 && n <= s->table.ne[0] - first);
    mr_status status = s->is_sent[slot] ? settle(s, MIRROR, err) : MR_OK;
    if (n == 0 || status != MR_OK)
        return status;
    s->is_sent[slot] = false;
    memcpy(s->mirror + (size_t)slot * s->row_ints + first, blocks, (size_t)n * sizeof *blocks);
    int32_t last = first + n;
    if (s->last[slot] == 0) {
        s->changed[s->n_changed++] = slot;
        s->first[slot] = first;
    }
    s->first[slot] = first < s->first[slot] ? first : s->first[slot];
    s->last[slot] = last > s->last[slot] ? last : s->last[slot];
    return MR_OK;
}

void mr_stage_state_copy_block(mr_stage_state *s, int32_t from, int32_t to) {
    MR_ASSERT(from >= 0 && from < s->n_kv_blocks && to >= 0 && to < s->n_kv_blocks && s->n_copies < s->limits.n_copies);
    s->from[s->n_copies] = from;
    s->to[s->n_copies++] = to;
}

/* Fills the record. Slots whose entries find room in it come first in s->changed. Returns their number. */
static int32_t fill_record(mr_stage_state *s, int32_t *record, state_limits *out_counts) {
    int32_t *slots = record, *indices = slots + s->limits.n_entries, *blocks = indices + s->limits.n_entries;
    int32_t *from = blocks + s->limits.n_entries, n_entries = 0, n_slots = 0;
    for (int32_t i = 0; i < s->n_changed; i++) {
        int32_t slot = s->changed[i];
        if (s->last[slot] - s->first[slot] > s->limits.n_entries - n_entries)
            continue;
        for (int32_t idx = s->first[slot]; idx < s->last[slot]; idx++, n_entries++) {
            slots[n_entries] = slot;
            indices[n_entries] = idx;
            blocks[n_entries] = s->mirror[(size_t)slot * s->row_ints + idx];
        }
        s->changed[i] = s->changed[n_slots];
        s->changed[n_slots++] = slot;
    }
    memcpy(from, s->from, (size_t)s->n_copies * sizeof *from);
    memcpy(from + s->limits.n_copies, s->to, (size_t)s->n_copies * sizeof *from);
    *out_counts = (state_limits){n_entries, s->n_copies};
    return n_slots;
}

/* Sends the changes to backend b. Where a call is done when it returns, all entries go straight into the table; on a
 * device only those of the slots from n_slots on, which found no room in the record. */
static mr_status send_changes(mr_stage_state *s, int32_t b, int32_t record, int32_t n_slots, const state_limits *counts,
                              mr_err *err) {
    backend_state *at = &s->at[b];
    state_limits rest = {at->is_host ? 0 : counts->n_entries, counts->n_copies};
    mr_status status = MR_OK;
    for (int32_t i = at->is_host ? 0 : n_slots; i < s->n_changed && status == MR_OK; i++) {
        int32_t slot = s->changed[i], first = s->first[slot];
        status = state_program_set(&at->program, slot, first, s->mirror + (size_t)slot * s->row_ints + first,
                                   s->last[slot] - first, &at->read[MIRROR], err);
        s->readers[MIRROR] |= (unsigned)(status == MR_OK && !at->is_host) << b;
        s->is_sent[slot] = s->is_sent[slot] || !at->is_host;
    }
    if (status != MR_OK || rest.n_entries + rest.n_copies == 0)
        return status;
    status = state_program_run(&at->program, s->records + (size_t)record * state_record_ints(&s->limits), &rest,
                               &at->read[record], err);
    s->readers[record] |= (unsigned)!at->is_host << b;
    return status;
}

mr_status mr_stage_state_update(mr_stage_state *s, mr_err *err) {
    int32_t record = s->record_idx;
    state_limits counts;
    if (s->n_changed == 0 && s->n_copies == 0)
        return MR_OK;
    mr_status status = settle(s, record, err);
    if (status != MR_OK)
        return status;
    int32_t n_slots = fill_record(s, s->records + (size_t)record * state_record_ints(&s->limits), &counts);
    for (int32_t b = 0; b < s->backends.n && status == MR_OK; b++)
        if (s->at[b].desc.n_layers > 0)
            status = send_changes(s, b, record, n_slots, &counts, err);
    for (int32_t i = 0; i < s->n_changed; i++)
        s->first[s->changed[i]] = s->last[s->changed[i]] = 0;
    s->n_changed = s->n_copies = 0;
    s->record_idx = (record + 1) % RECORDS;
    return status;
}
