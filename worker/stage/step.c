/* worker/stage/step.c - checks a step plan against the open sequences and expands its runs into rows. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/step.h"

mr_status mr_step_ids_ready(mr_sequences *all, const Millrace__StepPlan *plan, bool *out_ready, mr_err *err) {
    bool ready = true;
    for (size_t i = 0; i < plan->n_runs; i++) {
        const Millrace__Run *run = plan->runs[i];
        if (run->n_ids > 0)
            continue;
        mr_sequence *s = NULL;
        mr_status status = mr_sequences_find(all, run->slot, run->generation, &s, err);
        if (status != MR_OK)
            return status;
        if (s->last_position > (int64_t)run->first_position)
            return mr_err_set(err, MR_E_PROTOCOL, "slot %u: step %llu wants the id of position %u, which is past",
                              run->slot, (unsigned long long)plan->step, run->first_position);
        ready = ready && s->last_position == (int64_t)run->first_position;
    }
    *out_ready = ready;
    return MR_OK;
}

/* Whether the first tokens of the run's out row are enough to sample from. */
static bool needs_only_top(const mr_stage *stage, const mr_sequence *s, const Millrace__Run *run) {
    return run->want == MILLRACE__WANT__WANT_TOKEN && mr_stage_max_top(stage) > 0 && s->sampler && !s->grammar &&
           mr_sampler_can_use_top(s->sampler);
}

/* Takes all logits of the rows for whose first tokens the stage has no room. */
static void limit_top(mr_step_rows *rows, int32_t max_top) {
    int32_t n_top = 0;
    for (int32_t i = 0; i < rows->n_out; i++) {
        rows->only_top[i] = rows->only_top[i] && n_top < max_top;
        n_top += rows->only_top[i];
    }
}

static void fill_run(mr_stage *stage, const mr_sequence *s, const Millrace__Run *run) {
    mr_step_rows *rows = mr_stage_rows(stage);
    for (uint32_t i = 0; i < run->n_rows; i++) {
        int32_t row = rows->n_rows++, position = (int32_t)(run->first_position + i);
        rows->ids[row] = run->n_ids > 0 ? (int32_t)run->ids[i] : s->last_id;
        rows->positions[row] = position;
        rows->slots[row] = s->blocks[position / MR_KV_BLOCK] * MR_KV_BLOCK + position % MR_KV_BLOCK;
        rows->row_seq[row] = (int32_t)run->slot;
        bool is_last = i + 1 == run->n_rows;
        if (run->want == MILLRACE__WANT__WANT_ALL_LOGITS || (run->want == MILLRACE__WANT__WANT_TOKEN && is_last)) {
            rows->only_top[rows->n_out] = needs_only_top(stage, s, run);
            rows->out_rows[rows->n_out++] = row;
        }
        if (run->want == MILLRACE__WANT__WANT_ALL_HIDDEN || (run->want == MILLRACE__WANT__WANT_LAST_HIDDEN && is_last))
            rows->hidden_rows[rows->n_hidden++] = row;
    }
}

static uint32_t count_out_rows(const Millrace__StepPlan *plan) {
    uint32_t n = 0;
    for (size_t i = 0; i < plan->n_runs; i++) {
        if (plan->runs[i]->want == MILLRACE__WANT__WANT_ALL_LOGITS)
            n += plan->runs[i]->n_rows;
        else if (plan->runs[i]->want == MILLRACE__WANT__WANT_TOKEN)
            n++;
    }
    return n;
}

mr_status mr_step_fill(mr_stage *stage, mr_sequences *all, const Millrace__StepPlan *plan, uint32_t max_out_rows,
                       mr_err *err) {
    mr_step_rows *rows = mr_stage_rows(stage);
    rows->n_rows = rows->n_out = rows->n_hidden = 0;
    uint32_t n_out = count_out_rows(plan);
    if (n_out > max_out_rows)
        return mr_err_set(err, MR_E_PROTOCOL, "step %llu wants logits of %u rows, the plan allows %u",
                          (unsigned long long)plan->step, n_out, max_out_rows);
    for (size_t i = 0; i < plan->n_runs; i++) {
        const Millrace__Run *run = plan->runs[i];
        mr_sequence *s = NULL;
        mr_status status = mr_sequences_find(all, run->slot, run->generation, &s, err);
        if (status == MR_OK)
            status = mr_sequence_take_run(s, run, err);
        if (status == MR_OK)
            status = mr_stage_set_blocks(stage, (int32_t)run->slot, (int32_t)run->first_block_idx,
                                         (const int32_t *)run->blocks, (int32_t)run->n_blocks, err);
        if (status != MR_OK)
            return status;
        fill_run(stage, s, run);
    }
    limit_top(rows, mr_stage_max_top(stage));
    for (size_t i = 0; i < plan->n_copy_from; i++)
        mr_stage_copy_block(stage, (int32_t)plan->copy_from[i], (int32_t)plan->copy_to[i]);
    return MR_OK;
}
