/* worker/stage/stage_run.c - starts steps and says when they have ended. Steps end in the order in which they were
 * started. Results that lie in the host's memory are read where they are; those on a device are copied behind the
 * step, on the device's queue. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/clock.h"
#include "worker/stage/stage_internal.h"

enum { PROGRESS_NS = 100000 }; /* longest time of a wait for a device without a call of progress */

static size_t row_bytes(const mr_stage *s) {
    return (size_t)s->config.info->d_model * sizeof(float);
}

static stage_slot *slot_of(mr_stage *s, uint64_t step) {
    return &s->slots[step % MR_STAGE_STEPS];
}

static const stage_slot *last_ended(const mr_stage *s) {
    MR_ASSERT(s->n_ended > 0);
    return &s->slots[(s->n_ended - 1) % MR_STAGE_STEPS];
}

mr_step_rows *mr_stage_rows(mr_stage *s) {
    return &slot_of(s, s->n_started)->rows;
}

int32_t mr_stage_max_top(const mr_stage *s) {
    return s->n_buckets > 0 && s->buckets[0].io.top != MR_NO_TENSOR ? MR_GRAPH_TOP_ROWS : 0;
}

bool mr_stage_runs_on_device(const mr_stage *s) {
    return !s->needs_host;
}

/* The device of the input or output rows of every bucket; NULL: there is not one. */
static mr_backend *device_of_rows(const mr_stage *s, bool is_out) {
    mr_backend *device = NULL;
    for (int32_t i = 0; i < s->n_buckets; i++) {
        int32_t tensor = is_out ? s->buckets[i].io.x_out : s->buckets[i].io.x_in;
        mr_backend *be = tensor == MR_NO_TENSOR ? NULL : mr_graph_device(s->buckets[i].graph, tensor);
        if (!be || (device && be != device))
            return NULL;
        device = be;
    }
    return device;
}

mr_backend *mr_stage_in_device(const mr_stage *s) {
    return device_of_rows(s, false);
}

mr_backend *mr_stage_out_device(const mr_stage *s) {
    return device_of_rows(s, true);
}

bool mr_stage_has_room(const mr_stage *s) {
    return s->n_started - s->n_ended < (s->needs_host ? 1 : MR_STAGE_STEPS);
}

mr_status mr_stage_set_blocks(mr_stage *s, int32_t slot, int32_t first, const int32_t *blocks, int32_t n, mr_err *err) {
    return s->config.synthetic ? MR_OK : mr_stage_state_set_blocks(s->state, slot, first, blocks, n, err);
}

void mr_stage_copy_block(mr_stage *s, int32_t from, int32_t to) {
    if (!s->config.synthetic)
        mr_stage_state_copy_block(s->state, from, to);
}

/* Chooses the rows of the graph for the out rows, and writes their list to the record. */
static void place_out_rows(const mr_stage *s, stage_slot *slot) {
    const mr_step_rows *r = &slot->rows;
    int32_t n_top = 0, next_top = 0, tensor = slot->bucket->io.out_rows;
    for (int32_t i = 0; i < r->n_out; i++)
        n_top += r->only_top[i];
    MR_ASSERT(n_top <= mr_stage_max_top(s));
    slot->n_top = n_top;
    if (r->n_out == 0 || tensor == MR_NO_TENSOR)
        return;
    int32_t *list = (int32_t *)(void *)(slot->record + mr_graph_record_offset(slot->bucket->graph, tensor));
    for (int32_t i = 0; i < r->n_out; i++) {
        slot->out_place[i] = r->only_top[i] ? next_top++ : n_top++;
        list[slot->out_place[i]] = r->out_rows[i];
    }
}

/* Writes the inputs: the record by one set for each memory that holds any of it, and the rows of the stage before. */
static mr_status set_inputs(const mr_stage *s, stage_slot *slot, mr_err *err) {
    const stage_bucket *b = slot->bucket;
    const mr_step_rows *r = &slot->rows;
    const struct {
        int32_t tensor;
        const int32_t *values;
        int32_t n;
    } inputs[] = {
        {b->io.ids, r->ids, r->n_rows},
        {b->io.positions, r->positions, r->n_rows},
        {b->io.slots, r->slots, r->n_rows},
        {b->io.row_seq, r->row_seq, r->n_rows},
        {b->io.hidden_rows, r->hidden_rows, r->n_hidden},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].tensor != MR_NO_TENSOR && inputs[i].n > 0)
            memcpy(slot->record + mr_graph_record_offset(b->graph, inputs[i].tensor), inputs[i].values,
                   (size_t)inputs[i].n * sizeof(int32_t));
    place_out_rows(s, slot);
    mr_status status = mr_graph_set_record(b->graph, slot->record, err);
    if (status == MR_OK && b->io.x_in != MR_NO_TENSOR && slot->step.in_buffer)
        status = mr_graph_copy_rows(b->graph, b->io.x_in, slot->step.in_buffer, slot->step.in_offset, row_bytes(s),
                                    r->n_rows, err);
    else if (status == MR_OK && b->io.x_in != MR_NO_TENSOR)
        status = mr_graph_set_rows(b->graph, b->io.x_in, slot->step.x_in, row_bytes(s), r->n_rows, err);
    return status;
}

/* Rows [first, last) of a tensor. */
typedef struct wanted_rows {
    int32_t tensor, first, last;
} wanted_rows;

/* Says where the host will read these rows of a result, and adds a read for those on a device. Only the tail has
 * results. */
static void expect_rows(const stage_bucket *b, wanted_rows want, stage_result *result, mr_graph_read *reads,
                        int32_t *n_reads) {
    int32_t tensor = want.tensor, n = want.last - want.first;
    if (tensor == MR_NO_TENSOR || n == 0)
        return;
    result->row_bytes = mr_graph_tensor(b->graph, tensor)->row_bytes;
    result->first = mr_graph_rows(b->graph, tensor, 0);
    if (result->first)
        return;
    result->first = result->copy;
    reads[(*n_reads)++] = (mr_graph_read){.tensor = tensor,
                                          .first_row = want.first,
                                          .n_rows = n,
                                          .dst = result->copy + (size_t)want.first * result->row_bytes,
                                          .row_bytes = result->row_bytes};
}

static mr_status run_synthetic(const mr_stage *s, stage_slot *slot, mr_err *err) {
    if (!mr_synthetic_run(s->config.synthetic, slot->rows.n_rows, slot->step.progress, slot->step.progress_ctx))
        return mr_err_set(err, MR_E_CANCELLED, "told to end");
    if (slot->step.x_out)
        memset(slot->step.x_out, 0, (size_t)slot->rows.n_rows * row_bytes(s));
    slot->n_top = 0;
    slot->logits = slot->hidden = (stage_result){.first = (const uint8_t *)s->zeros};
    return MR_OK;
}

static mr_status start_graph(mr_stage *s, stage_slot *slot, mr_err *err) {
    const mr_step_rows *r = &slot->rows;
    stage_bucket *b = s->buckets;
    while (b->max_rows < r->n_rows)
        b++;
    slot->bucket = b;
    mr_status status = mr_stage_state_update(s->state, err);
    if (status == MR_OK && !s->reuses_graphs)
        status = stage_rebuild_bucket(s, b, err);
    if (status == MR_OK)
        status = set_inputs(s, slot, err);
    if (status != MR_OK)
        return status;
    mr_run run = {.n_rows = {[MR_ROWS_STEP] = r->n_rows,
                             [MR_ROWS_OUT] = r->n_out,
                             [MR_ROWS_TOP] = slot->n_top,
                             [MR_ROWS_HIDDEN] = r->n_hidden},
                  .progress = slot->step.progress,
                  .progress_ctx = slot->step.progress_ctx,
                  .stop = slot->step.stop};
    mr_graph_read reads[MR_GRAPH_MAX_READS];
    int32_t n_reads = 0;
    if (slot->step.x_out || slot->step.out_buffer)
        reads[n_reads++] = (mr_graph_read){.tensor = b->io.x_out,
                                           .n_rows = r->n_rows,
                                           .dst = slot->step.x_out,
                                           .row_bytes = row_bytes(s),
                                           .buffer = slot->step.out_buffer,
                                           .offset = slot->step.out_offset};
    expect_rows(b, (wanted_rows){b->io.top, 0, slot->n_top}, &slot->top, reads, &n_reads);
    expect_rows(b, (wanted_rows){b->io.logits, slot->n_top, r->n_out}, &slot->logits, reads, &n_reads);
    expect_rows(b, (wanted_rows){b->io.hidden, 0, r->n_hidden}, &slot->hidden, reads, &n_reads);
    return mr_graph_start(b->graph, &run, reads, n_reads, slot->flight, err);
}

mr_status mr_stage_start(mr_stage *s, const mr_stage_step *step, mr_err *err) {
    stage_slot *slot = slot_of(s, s->n_started);
    const mr_step_rows *r = &slot->rows;
    MR_ASSERT(mr_stage_has_room(s) && r->n_rows >= 1 && r->n_rows <= s->config.max_rows && r->n_out >= 0 &&
              r->n_out <= s->config.max_out_rows && r->n_hidden >= 0 && r->n_hidden <= r->n_rows);
    slot->step = *step;
    mr_status status = s->config.synthetic ? run_synthetic(s, slot, err) : start_graph(s, slot, err);
    s->n_started += status == MR_OK;
    return status;
}

bool mr_stage_has_read(const mr_stage *s) {
    bool read = true;
    for (uint64_t i = s->n_ended; i < s->n_started; i++)
        read = read && (s->config.synthetic || mr_graph_flight_has_begun(s->slots[i % MR_STAGE_STEPS].flight));
    return read;
}

static mr_status count_uses(mr_stage *s, const stage_slot *slot, mr_err *err) {
    const stage_bucket *b = slot->bucket;
    return use_counts_add(s->uses, (int32_t)(b - s->buckets), b->graph, slot->rows.n_rows, err);
}

mr_status mr_stage_poll(mr_stage *s, int64_t deadline_ns, bool *out_ended, mr_err *err) {
    bool ended = s->n_started > s->n_ended;
    mr_status status = MR_OK;
    if (ended && !s->config.synthetic)
        status = mr_graph_poll(slot_of(s, s->n_ended)->flight, deadline_ns, &ended, err);
    if (ended && status == MR_OK && s->uses)
        status = count_uses(s, slot_of(s, s->n_ended), err);
    s->n_ended += status != MR_OK || ended;
    if (status == MR_OK)
        *out_ended = ended;
    return status;
}

mr_status mr_stage_run(mr_stage *s, const mr_stage_step *step, mr_err *err) {
    bool ended = false;
    mr_status status = mr_stage_start(s, step, err);
    while (status == MR_OK && !ended) {
        status = mr_stage_poll(s, step->progress ? mr_clock_now_ns() + PROGRESS_NS : MR_NEVER, &ended, err);
        if (step->progress && !ended)
            step->progress(step->progress_ctx);
    }
    return status;
}

int64_t mr_stage_device_ns(const mr_stage *s) {
    return s->needs_host ? 0 : mr_graph_flight_ns(last_ended(s)->flight);
}

const mr_graph_work *mr_stage_works(const mr_stage *s, int32_t *out_n) {
    *out_n = 0;
    return s->notes_works ? mr_graph_works(last_ended(s)->bucket->graph, out_n) : NULL;
}

const mr_use_counts *mr_stage_use_counts(const mr_stage *s, int32_t *out_n) {
    return use_counts_layers(s->uses, out_n);
}

static const void *row_of(const stage_result *r, int32_t row) {
    return r->first + (size_t)row * r->row_bytes;
}

const float *mr_stage_logits(const mr_stage *s, int32_t out_row) {
    const stage_slot *slot = last_ended(s);
    MR_ASSERT(out_row >= 0 && out_row < slot->rows.n_out && !slot->rows.only_top[out_row]);
    return row_of(&slot->logits, slot->out_place[out_row]);
}

const mr_top *mr_stage_top(const mr_stage *s, int32_t out_row) {
    const stage_slot *slot = last_ended(s);
    MR_ASSERT(out_row >= 0 && out_row < slot->rows.n_out);
    return slot->rows.only_top[out_row] ? row_of(&slot->top, slot->out_place[out_row]) : NULL;
}

const float *mr_stage_hidden(const mr_stage *s, int32_t i) {
    const stage_slot *slot = last_ended(s);
    MR_ASSERT(i >= 0 && i < slot->rows.n_hidden);
    return row_of(&slot->hidden, i);
}
