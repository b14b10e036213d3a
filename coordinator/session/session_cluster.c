// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_cluster.h"

#include <string.h>
#include <unistd.h>

#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/console/progress.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "worker/lobby/lobby.h"

/* VERIFY_S: how much longer a hello may take that has hashes of a whole file. A rank that is lost ends the wait. */
enum { VERIFY_S = 24 * 3600, DEFAULT_PATIENCE_S = 60, LATE_S = 6 };
static const int64_t END_PATIENCE_NS = MR_NS_PER_S / 2;

bool mr_session_cluster_ended(void) {
    return mr_interrupt_seen() || mr_rank_loss_reported();
}

mr_status mr_session_cluster_devices(const mr_options *o, mr_devices_config *out, mr_err *err) {
    bool is_fast = mr_options_number(o, MR_OPTION_NUMERICS) == 1;
    *out = (mr_devices_config){0};
    mr_status status = mr_devices_choose(mr_options_text(o, MR_OPTION_BACKEND), is_fast, out, err);
    out->blas_threads = (int32_t)mr_options_number(o, MR_OPTION_BLAS_THREADS);
    out->one_device = mr_options_given(o, MR_OPTION_DEVICE) ? 1 + (int32_t)mr_options_number(o, MR_OPTION_DEVICE) : 0;
    out->memory_bytes = (uint64_t)mr_options_number(o, MR_OPTION_GPU_MEM);
    return status;
}

mr_rank_config mr_session_cluster_rank_config(const mr_options *options, const char *model_path) {
    const mr_option_value *list = &options->values[MR_OPTION_BENCH_THREADS];
    int32_t n_threads = list->n > 0 ? list->ints[0] : (int32_t)mr_options_number(options, MR_OPTION_THREADS);
    mr_devices_config devices;
    mr_err ignored; /* rank 0 reports contradictions */
    (void)!mr_session_cluster_devices(options, &devices, &ignored);
    int64_t seconds = mr_options_number(options, MR_OPTION_START_TIMEOUT); /* 0: the command line cannot be read */
    bool chosen = seconds != 0 && mr_options_given(options, MR_OPTION_START_TIMEOUT);
    if (seconds == 0)
        seconds = DEFAULT_PATIENCE_S;
    mr_rank_place place = mr_rank_place_get();
    devices.seat = place.local_rank;
    devices.n_seats = place.n_local;
    return (mr_rank_config){.place = place,
                            .model_path = model_path,
                            .cache_dir = mr_options_text(options, MR_OPTION_CACHE_DIR),
                            .n_threads = n_threads,
                            .devices = devices,
                            .serves = options->command == MR_COMMAND_SERVE,
                            .verifies_weights = mr_options_number(options, MR_OPTION_VERIFY_WEIGHTS) != 0,
                            .recovers = mr_options_number(options, MR_OPTION_RECOVER) != 0,
                            .patience_ns = seconds * MR_NS_PER_S,
                            .late_ns = (chosen ? seconds : LATE_S) * MR_NS_PER_S};
}

/* Shows the ranks that have not called yet. */
static bool note_missing(void *ctx, const char *ranks) {
    char text[PROGRESS_TEXT];
    if (mr_progress_is_due(ctx)) {
        snprintf(text, sizeof text, "waiting for %.180s", ranks);
        mr_progress_show(ctx, text);
    }
    return !mr_session_cluster_ended();
}

/* A rank that is lost while it hashes ends the wait at once. */
static int64_t hello_deadline(const mr_rank_config *config) {
    return mr_clock_now_ns() + config->patience_ns + (config->verifies_weights ? VERIFY_S * MR_NS_PER_S : 0);
}

static mr_status call_roll(mr_session_cluster *c, const mr_rank_config *config, mr_err *err) {
    mr_progress bar;
    mr_progress_begin(&bar);
    mr_status status = mr_roll_call_create(rank_channel(c->rank), c->n_ranks, &c->roll, err);
    if (status == MR_OK)
        status = mr_roll_call_wait(c->roll, hello_deadline(config), note_missing, &bar, err);
    mr_progress_end(&bar);
    if (status == MR_OK)
        status = mr_roll_call_check(c->roll, err);
    return status == MR_OK ? mr_roll_call_share_file(c->roll, &c->n_without_file, err) : status;
}

static bool goes_on(void) {
    return !mr_session_cluster_ended();
}

static bool met; /* rank_start has been called */

void mr_session_cluster_dismiss_unmet(void) {
    if (!met && mr_rank_place_get().n_ranks > 1)
        rank_dismiss();
}

mr_status mr_session_cluster_open(const mr_options *options, const char *model_path, mr_session_cluster *c,
                                  mr_err *err) {
    *c = (mr_session_cluster){0};
    mr_rank_config config = mr_session_cluster_rank_config(options, model_path);
    c->devices = config.devices;
    c->threads_adapt = config.n_threads == 0;
    if (config.place.n_ranks == 1) {
        rank_share share;
        rank_place_share(&config.place, &share); /* undoes a default binding: mpirun -n 1 binds to one core */
        return MR_OK;
    }
    mr_interrupt_catch();
    met = true;
    c->n_ranks = config.place.n_ranks;
    mr_status status = rank_start(&config, &c->rank, err);
    if (status != MR_OK)
        return status;
    c->threads = rank_threads(c->rank);
    return call_roll(c, &config, err);
}

mr_status mr_session_cluster_open_file(mr_session_cluster *c, const mr_options *options, const char *model_path,
                                       mr_gguf **out, mr_err *err) {
    mr_part_place places[MR_GGUF_MAX_PARTS];
    const mr_rank_part *parts;
    const mr_rank_info *self = mr_roll_call_info(c->roll, 0);
    uint64_t digest;
    int32_t n = mr_roll_call_file(c->roll, &parts, &digest);
    for (int32_t i = 0; i < n; i++)
        places[i] = (mr_part_place){parts[i].bytes, self->parts[i].bytes > 0};
    mr_status status = mr_roll_call_fetch_headers(c->roll, goes_on, err);
    const char *cache_dir = mr_options_text(options, MR_OPTION_CACHE_DIR);
    return status == MR_OK ? mr_lobby_open_file(model_path, cache_dir, places, n, digest, out, err) : status;
}

mr_status mr_session_cluster_compare_clocks(mr_session_cluster *c, mr_err *err) {
    mr_status status = MR_OK;
    if (!c->roll || c->clock_offset_ns)
        return MR_OK;
    c->clock_offset_ns = mr_alloc_array((size_t)c->n_ranks, sizeof *c->clock_offset_ns);
    if (!c->clock_offset_ns)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the clocks of %d ranks", (int)c->n_ranks);
    for (int32_t i = 0; i < c->n_ranks && status == MR_OK; i++)
        status = mr_roll_call_compare_clocks(c->roll, i, &c->clock_offset_ns[i], err);
    return status;
}

int64_t mr_session_cluster_clock_offset_ns(const mr_session_cluster *c, int32_t rank) {
    return c->clock_offset_ns ? c->clock_offset_ns[rank] : 0;
}

mr_status mr_session_cluster_share_file(mr_session_cluster *c, mr_err *err) {
    int32_t n_without_file;
    for (int32_t i = 0; i < c->n_ranks; i++)
        if (mr_session_cluster_is_lost(c, i))
            mr_roll_call_lose(c->roll, i);
    return mr_roll_call_share_file(c->roll, &n_without_file, err);
}

bool mr_session_cluster_is_lost(const mr_session_cluster *c, int32_t rank) {
    return c->rank && rank_is_lost(c->rank, rank);
}

int64_t mr_session_cluster_take_silence_ns(mr_session_cluster *c) {
    return c->rank ? rank_take_silence_ns(c->rank) : 0;
}

void mr_session_cluster_set_idle(mr_session_cluster *c, const mr_plan *plan) {
    for (int32_t rank = 1; rank < c->n_ranks; rank++) {
        bool has_stage = false;
        for (int32_t i = 0; i < plan->n_stages; i++)
            has_stage |= plan->stages[i].rank == rank;
        rank_set_idle(c->rank, rank, !has_stage);
    }
}

mr_status mr_session_cluster_start(mr_session_cluster *c, const char *model_path, const mr_plan *plan, int32_t threads,
                                   uint32_t epoch, mr_err *err) {
    mr_status status = MR_OK;
    if (c->simulated)
        return MR_OK;
    for (int32_t i = 0; i < plan->n_stages && c->roll && status == MR_OK; i++)
        status = mr_roll_call_start(c->roll, plan->stages[i].rank, epoch, err);
    if (c->roll)
        return status;
    mr_local_cluster_config local = {.model_path = model_path,
                                     .n_stages = plan->n_stages,
                                     .threads_per_stage = threads,
                                     .threads_adapt = c->threads_adapt,
                                     .devices = c->devices,
                                     .epoch = epoch};
    return mr_local_cluster_create(&local, &c->local, err);
}

mr_channel *mr_session_cluster_channel(mr_session_cluster *c) {
    if (c->simulated)
        return mr_virtual_cluster_channel(c->simulated);
    return c->rank ? rank_channel(c->rank) : mr_local_cluster_channel(c->local);
}

const mr_rank_info *mr_session_cluster_rank(const mr_session_cluster *c, int32_t rank) {
    return c->roll ? mr_roll_call_info(c->roll, rank) : NULL;
}

/* Does not name the signal, because mpirun turns Ctrl-C into another signal. */
void mr_session_cluster_tell_of_interrupt(mr_session_cluster *c) {
    char host[64] = "?";
    if (c->n_ranks == 0 || c->told || !mr_interrupt_seen() || mr_rank_loss_reported())
        return;
    c->told = true;
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    mr_output_warning("rank 0 on %s was interrupted", host);
}

void mr_session_cluster_close(mr_session_cluster *c) {
    mr_free(c->clock_offset_ns);
    if (c->roll)
        mr_roll_call_dismiss(c->roll, rank_any_lost(), mr_clock_now_ns() + END_PATIENCE_NS);
    mr_roll_call_destroy(c->roll);
    rank_end(c->rank, c->well);
    mr_local_cluster_destroy(c->local);
    mr_virtual_cluster_destroy(c->simulated);
    *c = (mr_session_cluster){0};
}
