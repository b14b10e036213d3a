// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/session_stand_in.h"

#include <stdarg.h>
#include <stdio.h>

#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/session/output_json.h"
#include "engine/base/mem.h"
#include "tests/simulation/slow_rank.h"

static world *the_world;
static net *the_net;
static mr_channel *coordinator;
static int32_t n_spares;
static bool is_interrupted;
static struct {
    bool is_little;
    int32_t budgets[WORLD_MAX_RANKS]; /* layers */
    int64_t wait_ns, comes_ns;        /* comes_ns: when there is enough; 0: nothing was refused yet */
} memory;

void session_stand_in(world *w, net *n) {
    the_world = w;
    the_net = n;
    coordinator = n ? net_open(n, w->n_ranks) : NULL;
    n_spares = 0;
    is_interrupted = false;
    memory.is_little = false;
}

void session_stand_in_spares(int32_t n) {
    n_spares = n;
}

void session_stand_in_memory(const int32_t budgets[WORLD_MAX_RANKS], int64_t wait_ns) {
    memory.is_little = true;
    memory.wait_ns = wait_ns;
    memory.comes_ns = 0;
    for (int32_t i = 0; i < WORLD_MAX_RANKS; i++)
        memory.budgets[i] = budgets[i];
}

void session_stand_in_interrupt(void) {
    is_interrupted = true;
}

bool session_stand_in_interrupted(void) {
    return is_interrupted;
}

/* --- Ranks ------------------------------------------------------------------------------------------------------- */

bool mr_session_cluster_is_lost(const mr_session_cluster *c, int32_t rank) {
    (void)c;
    return net_lifeline_has_ended(the_net, rank);
}

int64_t mr_session_cluster_take_silence_ns(mr_session_cluster *c) {
    (void)c;
    return 0;
}

bool mr_session_cluster_ended(void) {
    return false;
}

const mr_rank_info *mr_session_cluster_rank(const mr_session_cluster *c, int32_t rank) {
    return mr_roll_call_info(c->roll, rank);
}

bool mr_interrupt_seen(void) {
    return is_interrupted;
}

mr_channel *mr_session_cluster_channel(mr_session_cluster *c) {
    (void)c;
    return coordinator;
}

mr_status mr_session_cluster_share_file(mr_session_cluster *c, mr_err *err) {
    (void)c;
    return mr_err_set(err, MR_E_INTERNAL, "every simulated rank has the file");
}

mr_status mr_session_cluster_start(mr_session_cluster *c, const char *model_path, const mr_plan *plan, int32_t threads,
                                   uint32_t epoch, mr_err *err) {
    (void)model_path;
    (void)threads;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < plan->n_stages && status == MR_OK; i++)
        status = mr_roll_call_start(c->roll, plan->stages[i].rank, epoch, err);
    return status;
}

/* --- Plans ------------------------------------------------------------------------------------------------------- */

/* No rank was measured, so plans are balanced by bytes. */
mr_status mr_session_facts_solve_with(const mr_session *s, const mr_planner_config *with, mr_plan *out, mr_err *err) {
    (void)s;
    (void)with;
    (void)out;
    return mr_err_set(err, MR_E_INTERNAL, "simulated ranks are not measured");
}

mr_status mr_session_choose_ways(mr_session *s, mr_err *err) {
    (void)s;
    (void)err;
    return MR_OK;
}

void mr_session_take_ways(mr_session *s, const mr_job *job) {
    (void)s;
    (void)job;
}

mr_status mr_session_check_memory(const mr_session *s, uint64_t *out_missing_bytes, mr_err *err) {
    *out_missing_bytes = 0;
    if (!memory.is_little || (memory.comes_ns != 0 && the_world->now_ns >= memory.comes_ns))
        return MR_OK;
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        const mr_plan_stage *stage = &s->plan.stages[i];
        int32_t missing = stage->last - stage->first - memory.budgets[stage->rank];
        *out_missing_bytes += missing > 0 ? (uint64_t)missing : 0;
    }
    if (*out_missing_bytes == 0)
        return MR_OK;
    memory.comes_ns = memory.comes_ns ? memory.comes_ns : the_world->now_ns + memory.wait_ns;
    return mr_err_set(err, MR_E_NO_MEMORY, "simulated ranks lack memory for %d layers", (int)*out_missing_bytes);
}

/* Stages of no bytes: a spare has room for all of them. */
mr_status mr_session_size_again(mr_session *s, mr_err *err) {
    mr_free(s->sizes);
    s->sizes = mr_alloc_array((size_t)s->plan.n_stages, sizeof *s->sizes);
    return s->sizes ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for sizes");
}

void mr_session_cluster_set_idle(mr_session_cluster *c, const mr_plan *plan) {
    (void)c;
    (void)plan;
}

void mr_session_set_clocks(mr_session *s) {
    (void)s;
}

mr_status mr_session_print_plan(const mr_session *s, mr_text_buf *out, mr_err *err) {
    (void)s;
    (void)out;
    return mr_err_set(err, MR_E_UNSUPPORTED, "a simulated session prints no table");
}

/* --- Options and output ------------------------------------------------------------------------------------------ */

int64_t mr_options_number(const mr_options *o, mr_option_id id) {
    (void)o;
    if (id == MR_OPTION_SPARES)
        return n_spares;
    return id == MR_OPTION_RECUT ? slow_rank_look_s() : id == MR_OPTION_RECOVER;
}

static void note(const char *format, va_list args) {
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    world_note(the_world, "%s", text);
}

void mr_output_warning(const char *format, ...) {
    va_list args;
    va_start(args, format);
    note(format, args);
    va_end(args);
}

void mr_output_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    note(format, args);
    va_end(args);
}

void mr_output_bytes_text(size_t bytes, char out[OUTPUT_BYTES_TEXT]) {
    snprintf(out, OUTPUT_BYTES_TEXT, "%zu B", bytes);
}

void output_json_note_plan(const char *table, const mr_plan *plan, const mr_stage_sizes *sizes,
                           const mr_session_cluster *cluster) {
    (void)table, (void)plan, (void)sizes, (void)cluster;
}
