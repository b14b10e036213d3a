/* coordinator/lobby/roll_call_again.c - tells ranks without a stage to measure again, and hears what they have
 * measured. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/lobby/roll_call_internal.h"
#include "proto/facts_message.h"
#include "proto/messages.h"

mr_status mr_roll_call_measure_again(mr_roll_call *r, int32_t rank, const mr_again_wish *wish, mr_err *err) {
    mr_rank_again *again = &r->infos[rank].again;
    Millrace__Measure measure = MILLRACE__MEASURE__INIT;
    MR_ASSERT(!r->infos[rank].held.is_due);
    again->is_new = false;
    measure.kv_type = (uint32_t)wish->kv_type;
    measure.max_rows = (uint32_t)wish->max_rows;
    measure.fast_numerics = wish->fast_numerics;
    measure.n_together = 1; /* the other ranks of its host have their memory already */
    measure.again = ++again->number;
    const Millrace__Control message = mr_msg_control_of(&measure.base);
    return mr_outbox_send_message(r->control[rank], &message.base, &again->is_due, err);
}

void roll_call_note_measured(mr_roll_call *r, int32_t rank, const Millrace__MeasuredAgain *m) {
    mr_rank_again *again = &r->infos[rank].again;
    if (m->again != again->number)
        return;
    again->is_due = false;
    again->is_new = true;
    again->status = (mr_status)m->status;
    if (again->status == MR_OK)
        mr_times_message_read(m->layer, &again->layer);
}

bool mr_roll_call_take_again(mr_roll_call *r, int32_t rank, mr_rank_again *out) {
    mr_rank_again *again = &r->infos[rank].again;
    bool is_new = again->is_new;
    again->is_new = false;
    *out = *again;
    return is_new;
}
