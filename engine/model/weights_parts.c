/* engine/model/weights_parts.c - the buffers of the parts of a stage: a buffer for each layer and backend, so that a
 * later stage with some of the same layers can take those over. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/model/weights_internal.h"

static int32_t count_parts(const mr_weights *ws) {
    return PARTS_OUTSIDE_LAYERS + ws->range.last - ws->range.first;
}

/* The number of a part that does not depend on the range. */
static int32_t name_of(const mr_weights *ws, int32_t part) {
    return part < PARTS_OUTSIDE_LAYERS ? PART_CONSTANTS + part : ws->range.first + part - PARTS_OUTSIDE_LAYERS;
}

static mr_device_info describe(const mr_weights *ws, int32_t b) {
    mr_device_info device;
    ws->backends.at[b]->ops->describe(ws->backends.at[b], &device);
    return device;
}

/* Part 0 has what does not outlive the stage: constants, which depend on the context, and addresses in the mapped file
 * (part_on). */
static bool may_keep(const mr_weights *ws, int32_t part) {
    return ws->store && part != 0;
}

int32_t part_on(const mr_weights *ws, int32_t part, int32_t b) {
    return describe(ws, b).keeps_source ? 0 : part;
}

typedef struct marks {
    int32_t part, b; /* whose tensors are noted */
    weight_buffer *out;
} marks;

static mr_status note_mark(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    const marks *m = ctx;
    (void)err;
    if (part_on(ws, w->part, m->b) != m->part || !w->at[m->b].is_used)
        return MR_OK;
    m->out->tensors[m->out->n_tensors++] =
        (weight_mark){.file_offset = w->source ? (uint64_t)(w->data - mr_gguf_file_data(ws->gguf)) : 0,
                      .file_bytes = w->data_bytes,
                      .offset = w->at[m->b].offset,
                      .bytes = w->at[m->b].bytes,
                      .type = w->tensor.type,
                      .storage = w->tensor.storage,
                      .op = w->op,
                      .n_matrices = w->n_matrices,
                      .ne = {w->tensor.ne[0], w->tensor.ne[1]}};
    return MR_OK;
}

/* Describes the buffer of a part, without memory behind it. */
static mr_status describe_buffer(mr_weights *ws, int32_t part, int32_t b, mr_err *err) {
    weight_part *p = &ws->parts[part];
    weight_buffer *out = mr_alloc(sizeof *out + (size_t)p->n_on[b] * sizeof out->tensors[0]);
    if (!out)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the weights' table");
    out->home = ws->backends.at[b];
    out->part = name_of(ws, part);
    out->bytes = p->bytes[b];
    out->file_bytes = mr_gguf_file_bytes(ws->gguf);
    p->at[b] = out;
    return weights_visit(ws, note_mark, &(marks){part, b, out}, err);
}

mr_status mr_weights_take_kept(mr_weights *ws, mr_err *err) {
    mr_status status = MR_OK;
    ws->has_taken = true;
    for (int32_t i = 0; i < count_parts(ws); i++)
        for (int32_t b = 0; b < ws->backends.n && status == MR_OK; b++) {
            weight_part *p = &ws->parts[i];
            if (p->bytes[b] == 0)
                continue;
            status = describe_buffer(ws, i, b, err);
            if (status == MR_OK && may_keep(ws, i))
                p->at[b]->buffer = weight_store_take(ws->store, p->at[b]);
            p->is_kept[b] = status == MR_OK && p->at[b]->buffer;
        }
    return status;
}

mr_status parts_create(mr_weights *ws, mr_err *err) {
    mr_status status = ws->has_taken ? MR_OK : mr_weights_take_kept(ws, err);
    mr_weight_store_clear(ws->store); /* before memory for others is taken */
    for (int32_t i = 0; i < count_parts(ws); i++)
        for (int32_t b = 0; b < ws->backends.n && status == MR_OK; b++) {
            weight_buffer *at = ws->parts[i].at[b];
            if (at && !at->buffer)
                status = at->home->ops->buffer_create(at->home, at->bytes, &at->buffer, err);
        }
    return status;
}

void parts_destroy(mr_weights *ws) {
    for (int32_t i = 0; ws->parts && i < count_parts(ws); i++) {
        weight_part *p = &ws->parts[i];
        for (int32_t b = 0; b < ws->backends.n; b++) {
            bool is_whole = p->is_kept[b] || p->n_loaded == p->n_tensors;
            if (p->at[b] && p->at[b]->buffer && is_whole && may_keep(ws, i))
                weight_store_give(ws->store, p->at[b]);
            else
                weight_buffer_destroy(p->at[b]);
        }
    }
    mr_free(ws->parts);
}

void parts_forget_loads(mr_weights *ws) {
    for (int32_t i = 0; i < count_parts(ws); i++)
        ws->parts[i].n_loaded = -1;
}

mr_buffer *part_buffer(const mr_weights *ws, int32_t part, int32_t b) {
    const weight_buffer *at = ws->parts[part_on(ws, part, b)].at[b];
    return at ? at->buffer : NULL;
}

bool part_wants_load(const mr_weights *ws, const weight *w, int32_t b) {
    return w->at[b].is_used && !ws->parts[part_on(ws, w->part, b)].is_kept[b];
}

size_t mr_weights_page_bytes(const mr_weights *ws, int32_t b) {
    size_t bytes = 0;
    for (int32_t i = 0; i < count_parts(ws); i++)
        bytes += ws->parts[i].bytes[b] > 0 ? mr_pages_bytes(ws->parts[i].bytes[b]) : 0;
    return bytes;
}

int32_t mr_weights_kept_layers(const mr_weights *ws) {
    int32_t n = 0;
    for (int32_t i = PARTS_OUTSIDE_LAYERS; i < count_parts(ws); i++) {
        bool is_kept = false, is_loaded = false;
        for (int32_t b = 0; b < ws->backends.n; b++) {
            is_kept = is_kept || ws->parts[i].is_kept[b];
            is_loaded = is_loaded || (ws->parts[i].at[b] && may_keep(ws, i) && !ws->parts[i].is_kept[b]);
        }
        n += is_kept && !is_loaded;
    }
    return n;
}

size_t mr_weights_kept_bytes(const mr_weights *ws) {
    size_t bytes = 0;
    for (int32_t i = 0; i < count_parts(ws); i++)
        for (int32_t b = 0; b < ws->backends.n; b++)
            bytes += ws->parts[i].is_kept[b] ? ws->parts[i].bytes[b] : 0;
    return bytes;
}
