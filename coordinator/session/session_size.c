/* coordinator/session/session_size.c - computes what memory the stages of a session need, and fits them into --mem and
 * the memory of each host. First the number of KV blocks is reduced, then matrices stay in the mapped file. If the
 * stages still do not fit, there is an error or a warning. What devices hold is not counted here: the planner has
 * fitted it to their memory. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/console/output.h"
#include "coordinator/job/scheduler.h"
#include "coordinator/session/session.h"
#include "coordinator/session/synthetic_plan.h"
#include "engine/base/mem.h"

enum {
    SERVER_SEQUENCES = 64, /* without --sequences */
    PROMPT_PART = 4,       /* a step has room for 1/4 of the usual chunk beside a decode row of each sequence */
    SPARE_PART = 16,       /* 1/16 of the free memory is left free */
};

static mr_status measure(mr_session *s, mr_err *err) {
    mr_backend *backend = NULL;
    mr_cpu_options cpu = {.n_threads = s->threads};
    mr_devices_config alone = s->devices;
    mr_devices devices = {0};
    alone.blas_threads = 1; /* nothing is computed */
    mr_status status = mr_cpu_backend_create(&cpu, &backend, err);
    if (status == MR_OK)
        status = mr_devices_create(&alone, 1, NULL, &devices, err);
    for (int32_t i = 0; i < s->plan.n_stages && status == MR_OK; i++) {
        const mr_plan_stage *stage = &s->plan.stages[i];
        int32_t end = stage->first + stage->device_layers;
        /* The last layers on the device that have a part in the host's memory. */
        int32_t n_shared = stage->cold_partitions > 0 ? stage->device_layers : stage->host_experts;
        mr_stage_config config = {
            .gguf = s->gguf,
            .info = &s->info,
            .range = {end - n_shared, stage->last},
            .max_rows = s->max_rows,
            .max_out_rows = s->max_out_rows,
            .max_sequences = s->max_sequences,
            .max_context = s->ctx,
            .n_kv_blocks = s->n_kv_blocks,
            .kv_type = s->kv_type,
            .map_weights = s->map_weights,
            .renews = mr_expert_rules_usual((int32_t)mr_options_number(s->options, MR_OPTION_RENEW_EXPERTS)),
            .counts_uses = s->counts_uses,
            .devices = devices.list,
            .measures_products = devices.is_measured};
        s->sizes[i] = (mr_stage_sizes){0};
        if (n_shared > 0 && mr_devices_holder(&config.devices) >= 0)
            mr_devices_hold(&config.devices, (mr_devices_share){.n_layers = n_shared,
                                                                .n_host_experts = stage->host_experts,
                                                                .n_device_experts = stage->device_experts,
                                                                .n_cold_partitions = stage->cold_partitions});
        if (config.range.first < config.range.last) /* else a device of the rank holds all layers */
            status = mr_stage_measure(&config, backend, &s->sizes[i], err);
        if (status != MR_OK)
            mr_err_prefix(err, "%.160s", s->model_path);
    }
    mr_devices_destroy(&devices);
    mr_backend_destroy(backend);
    return status;
}

mr_stage_sizes mr_session_total_sizes(const mr_session *s) {
    mr_stage_sizes total = {0};
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        total.weight_bytes += s->sizes[i].weight_bytes;
        total.kv_bytes += s->sizes[i].kv_bytes;
        total.work_bytes += s->sizes[i].work_bytes;
    }
    return total;
}

size_t mr_session_file_bytes(const mr_session *s, int32_t stage) {
    const mr_plan_stage *p = &s->plan.stages[stage];
    size_t held = s->sizes[stage].weight_bytes;
    /* Of the embedding matrix a step reads only one row for each token. */
    size_t all = p->weight_bytes - (p->first == 0 ? mr_model_embedding_bytes(s->gguf) : 0);
    return s->map_weights && all > held ? all - held : 0;
}

/* Bytes that a process would allocate with n_blocks KV blocks: all stages if they share a process, else the largest
 * stage. Each buffer takes whole pages. */
static size_t allocated_bytes(const mr_session *s, int32_t n_blocks) {
    size_t sum = 0, most = 0;
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        const mr_stage_sizes *z = &s->sizes[i];
        size_t block = z->kv_bytes / (size_t)s->n_kv_blocks;
        size_t stage = z->page_bytes + mr_pages_bytes(block * (size_t)n_blocks);
        sum += stage;
        most = stage > most ? stage : most;
    }
    return mr_session_facts_n_ranks(s) > 1 ? most : sum;
}

static mr_status over_budget(const mr_session *s, int32_t least_blocks, size_t budget, mr_err *err) {
    char all[OUTPUT_BYTES_TEXT], weights[OUTPUT_BYTES_TEXT], kv[OUTPUT_BYTES_TEXT], work[OUTPUT_BYTES_TEXT],
        allowed[OUTPUT_BYTES_TEXT];
    mr_stage_sizes total = mr_session_total_sizes(s);
    mr_output_bytes_text(allocated_bytes(s, least_blocks), all);
    mr_output_bytes_text(total.weight_bytes, weights);
    mr_output_bytes_text(total.kv_bytes / (size_t)s->n_kv_blocks * (size_t)least_blocks, kv);
    mr_output_bytes_text(total.work_bytes, work);
    mr_output_bytes_text(budget, allowed);
    return mr_err_set(err, MR_E_NO_MEMORY,
                      "not enough memory: weights need %s, the KV cache %s, buffers %s, together %s in whole pages; "
                      "--mem allows %s",
                      weights, kv, work, all, allowed);
}

/* KV blocks without which the command cannot run. */
static int32_t least_blocks(const mr_session_needs *needs) {
    return (int32_t)(mr_session_whole_blocks(needs->min_kv_tokens) / MR_WIRE_BLOCK_TOKENS);
}

/* Reduces the KV blocks until all fits into --mem. Sequences then wait for each other. */
static mr_status fit_budget(mr_session *s, const mr_session_needs *needs, mr_err *err) {
    size_t budget = (size_t)mr_options_number(s->options, MR_OPTION_MEM);
    if (budget == 0 || allocated_bytes(s, s->n_kv_blocks) <= budget)
        return MR_OK;
    int32_t low = least_blocks(needs);
    int32_t high = s->n_kv_blocks;
    if (allocated_bytes(s, low) > budget)
        return over_budget(s, low, budget, err);
    /* Bisection: low fits, high does not. */
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (allocated_bytes(s, mid) <= budget)
            low = mid;
        else
            high = mid;
    }
    mr_output_note("the KV cache has room for %" PRId64 " tokens instead of %" PRId64 ": --mem allows no more",
                   (int64_t)low * MR_WIRE_BLOCK_TOKENS, (int64_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS);
    s->n_kv_blocks = low;
    return measure(s, err);
}

/* Reduces the KV blocks until every stage fits the memory of its rank. Changes nothing if these blocks are too few for
 * the command. */
static mr_status fit_ranks(mr_session *s, const mr_session_needs *needs, mr_err *err) {
    if (!s->facts.known || s->map_weights || mr_session_facts_is_here(s))
        return MR_OK;
    int64_t tokens = mr_planner_kv_tokens(&s->facts.planner, &s->plan), blocks = tokens / MR_WIRE_BLOCK_TOKENS;
    if (blocks >= s->n_kv_blocks || blocks < least_blocks(needs))
        return MR_OK;
    mr_output_note("the KV cache has room for %" PRId64 " tokens instead of %" PRId64 ": the ranks have no more memory",
                   blocks * MR_WIRE_BLOCK_TOKENS, (int64_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS);
    s->n_kv_blocks = (int32_t)blocks;
    return measure(s, err);
}

static int32_t at_most(int64_t v, int64_t limit) {
    return (int32_t)(v < limit ? v : limit);
}

size_t mr_session_hop_bytes(const mr_session *s, int32_t n_stages, int32_t max_rows) {
    int32_t slots = mr_scheduler_ring_slots(n_stages);
    slots = slots < MR_MAX_HOP_SLOTS ? slots : MR_MAX_HOP_SLOTS;
    return n_stages > 1 ? 2 * (size_t)slots * (size_t)max_rows * (size_t)s->info.d_model * sizeof(float) : 0;
}

/* Memory of the stages on one host that share its limits: need (kv included), kv, file (read from the mapped file, in
 * addition to need), and have, which the stages may take. */
typedef struct host_sizes {
    uint64_t need, kv, file, have;
} host_sizes;

/* Sums the memory of the host of stage i. false: an earlier stage is on the same host, or the free memory is not
 * known. */
static bool host_memory(const mr_session *s, int32_t i, host_sizes *out) {
    const mr_rank_info *rank = mr_session_rank(s, i);
    host_sizes sum = {0};
    for (int32_t k = 0; k < s->plan.n_stages; k++) {
        const mr_rank_info *other = mr_session_rank(s, k);
        if (rank && (strcmp(other->host, rank->host) != 0 || other->memory_group != rank->memory_group))
            continue;
        if (k < i)
            return false;
        sum.need += s->sizes[k].weight_bytes + s->sizes[k].kv_bytes + s->sizes[k].work_bytes +
                    mr_session_hop_bytes(s, s->plan.n_stages, s->max_rows);
        sum.kv += s->sizes[k].kv_bytes;
        sum.file += mr_session_file_bytes(s, k);
    }
    sum.have = rank ? rank->memory_bytes : mr_mem_available();
    *out = sum;
    return sum.have > 0;
}

/* The free memory of a host without the part that is left free. */
static uint64_t most_to_take(const host_sizes *h) {
    return h->have - h->have / SPARE_PART;
}

/* Likewise; with half_of_free, only half of what the KV cache could take. */
static uint64_t most_for_needs(const host_sizes *h, const mr_session_needs *needs) {
    uint64_t most = most_to_take(h), rest = h->need - h->kv;
    return needs->half_of_free && most > rest ? rest + (most - rest) / 2 : most;
}

/* Reduces the KV blocks until the stages of each host fit its memory, but not below what the command needs. If the
 * blocks run out while sequences run, sequences are preempted. */
static mr_status fit_hosts(mr_session *s, const mr_session_needs *needs, mr_err *err) {
    int32_t n = s->n_kv_blocks, least = least_blocks(needs);
    host_sizes h;
    for (int32_t i = 0; i < s->plan.n_stages && s->options->command != MR_COMMAND_PLAN; i++) {
        if (!host_memory(s, i, &h) || h.need <= most_for_needs(&h, needs))
            continue;
        uint64_t block = h.kv / (uint64_t)s->n_kv_blocks, rest = h.need - h.kv;
        /* Leaves SPARE_PART once more, because the free memory changes from one look to the next. */
        uint64_t room = most_for_needs(&h, needs) - h.have / SPARE_PART;
        int32_t fit = room > rest ? at_most((int64_t)((room - rest) / block), n) : 0;
        n = fit > least ? fit : least;
    }
    if (n >= s->n_kv_blocks)
        return MR_OK;
    mr_output_note("the KV cache has room for %" PRId64 " tokens: there is no memory for the %" PRId64
                   " of all sequences at their longest",
                   (int64_t)n * MR_WIRE_BLOCK_TOKENS, (int64_t)s->n_kv_blocks * MR_WIRE_BLOCK_TOKENS);
    s->n_kv_blocks = n;
    return measure(s, err);
}

static void warn_of_file(const host_sizes *h, const char *who) {
    char file_text[OUTPUT_BYTES_TEXT], need_text[OUTPUT_BYTES_TEXT], have_text[OUTPUT_BYTES_TEXT];
    mr_output_bytes_text((size_t)h->file, file_text);
    mr_output_bytes_text((size_t)h->need, need_text);
    mr_output_bytes_text((size_t)h->have, have_text);
    mr_output_warning(
        "%s of weights stay in the model file and are read again for every step, which is slow: beside %s of "
        "other memory they do not fit into the %s of %s; hint: more memory, or more hosts",
        file_text, need_text, have_text, who);
}

/* Warns of hosts whose stages take more memory than is free, alone or together with what they read from the mapped
 * file. Also warns if --mem is too small for what the stages read from the mapped file. */
static void warn_of_memory(const mr_session *s) {
    char need_text[OUTPUT_BYTES_TEXT], have_text[OUTPUT_BYTES_TEXT];
    uint64_t allowed = (uint64_t)mr_options_number(s->options, MR_OPTION_MEM);
    bool warned = false;
    host_sizes h;
    for (int32_t i = 0; i < s->plan.n_stages && !mr_options_given(s->options, MR_OPTION_FACTS); i++) {
        const mr_rank_info *rank = mr_session_rank(s, i);
        bool is_known = host_memory(s, i, &h);
        if (is_known && h.need > h.have) {
            mr_output_bytes_text((size_t)h.need, need_text);
            mr_output_bytes_text((size_t)h.have, have_text);
            mr_output_warning("%s has %s of memory free, its stages take %s: the system may kill them; hint: %s",
                              rank ? rank->host : "this machine", have_text, need_text,
                              rank ? "more hosts, or fewer layers there (--cut)"
                                   : "fewer --sequences, or a smaller --ctx");
        } else if (is_known && h.file > 0 && h.need + h.file > h.have) {
            warn_of_file(&h, rank ? rank->host : "this machine");
            warned = true;
        }
    }
    h = (host_sizes){.need = allocated_bytes(s, s->n_kv_blocks), .have = allowed};
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        h.file += mr_session_file_bytes(s, i);
    if (!warned && allowed > 0 && h.file > 0 && h.need + h.file > allowed)
        warn_of_file(&h, "--mem");
}

/* Whether stages with repacked matrices do not fit --mem even with the fewest KV blocks, or do not fit a host. If so,
 * writes a note. */
static bool is_short_of_memory(const mr_session *s, int32_t least_blocks) {
    char need_text[OUTPUT_BYTES_TEXT], have_text[OUTPUT_BYTES_TEXT];
    host_sizes h = {.need = allocated_bytes(s, least_blocks),
                    .have = (uint64_t)mr_options_number(s->options, MR_OPTION_MEM)};
    const char *where = "--mem";
    bool is_short = h.have > 0 && h.need > h.have;
    for (int32_t i = 0; i < s->plan.n_stages && !is_short && s->options->command != MR_COMMAND_PLAN; i++) {
        const mr_rank_info *rank = mr_session_rank(s, i);
        where = rank ? rank->host : "this machine";
        is_short = host_memory(s, i, &h) && h.need > most_to_take(&h);
    }
    if (!is_short)
        return false;
    mr_output_bytes_text((size_t)h.need, need_text);
    mr_output_bytes_text((size_t)h.have, have_text);
    mr_output_note(
        "matrices stay in the model file, as with --no-repack: %s has %s of memory, repacked they would need %s", where,
        have_text, need_text);
    return true;
}

/* Decides whether the matrices stay in the mapped file, and measures the stages. */
static mr_status place_weights(mr_session *s, const mr_session_needs *needs, mr_err *err) {
    /* BLAS reads the rows of the file, so repacked panels would not be used, except those of experts, which BLAS does
     * not multiply. */
    s->map_weights = mr_options_number(s->options, MR_OPTION_NO_REPACK) != 0 ||
                     (mr_devices_only_multiply(&s->devices) && s->info.n_experts == 0);
    mr_status status = measure(s, err);
    if (status == MR_OK)
        status = fit_hosts(s, needs, err);
    if (status != MR_OK || s->map_weights || !is_short_of_memory(s, least_blocks(needs)))
        return status;
    s->map_weights = true;
    return measure(s, err);
}

void mr_session_widen_chunk(mr_session *s, int32_t n_sequences) {
    int32_t least =
        at_most((int64_t)n_sequences + mr_session_usual_chunk(s->plan.n_stages) / PROMPT_PART, MR_MAX_STEP_ROWS);
    if (!mr_options_given(s->options, MR_OPTION_CHUNK) && s->chunk < least)
        s->chunk = least;
}

mr_status mr_session_size(mr_session *s, const mr_session_needs *needs, mr_err *err) {
    s->max_sequences = needs->max_sequences;
    mr_session_widen_chunk(s, needs->max_sequences);
    s->max_rows = at_most(needs->max_rows, s->chunk);
    s->max_out_rows = needs->all_logits ? s->max_rows : at_most(needs->max_sequences, s->max_rows);
    s->n_kv_blocks = at_most(needs->kv_tokens / MR_WIRE_BLOCK_TOKENS, MR_MAX_KV_BLOCKS);
    s->sizes = mr_alloc_array((size_t)s->plan.n_stages, sizeof *s->sizes);
    if (!s->sizes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a plan of %" PRId32 " stages", s->plan.n_stages);
    if (s->plan.synthetic) /* synthetic stages hold no weights and no KV cache */
        return synthetic_plan_check(&s->plan, s->max_rows, err);
    mr_status status = place_weights(s, needs, err);
    if (status == MR_OK)
        status = fit_budget(s, needs, err);
    if (status == MR_OK)
        status = fit_ranks(s, needs, err);
    if (status == MR_OK)
        warn_of_memory(s);
    return status;
}

mr_status mr_session_size_again(mr_session *s, mr_err *err) {
    mr_stage_sizes *former = s->sizes, *sizes = mr_alloc_array((size_t)s->plan.n_stages, sizeof *sizes);
    if (!sizes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a plan of %" PRId32 " stages", s->plan.n_stages);
    s->sizes = sizes;
    mr_status status = measure(s, err);
    s->sizes = status == MR_OK ? sizes : former;
    mr_free(status == MR_OK ? former : sizes);
    return status;
}

mr_status mr_session_check_memory(const mr_session *s, uint64_t *out_missing_bytes, mr_err *err) {
    char need_text[OUTPUT_BYTES_TEXT], have_text[OUTPUT_BYTES_TEXT];
    size_t budget = (size_t)mr_options_number(s->options, MR_OPTION_MEM), need = allocated_bytes(s, s->n_kv_blocks);
    uint64_t missing = budget > 0 && need > budget ? need - budget : 0;
    mr_status status = missing > 0 ? over_budget(s, s->n_kv_blocks, budget, err) : MR_OK;
    host_sizes h;
    for (int32_t i = 0; i < s->plan.n_stages && status == MR_OK; i++) {
        const mr_rank_info *rank = mr_session_rank(s, i);
        if (!host_memory(s, i, &h) || h.need <= h.have)
            continue;
        missing = h.need - h.have;
        mr_output_bytes_text((size_t)h.need, need_text);
        mr_output_bytes_text((size_t)h.have, have_text);
        status = mr_err_set(err, MR_E_NO_MEMORY, "the stages on %s take %s of memory, %s is free there",
                            rank ? rank->host : "this machine", need_text, have_text);
    }
    *out_missing_bytes = missing;
    return status;
}

mr_status mr_session_size_for_server(mr_session *s, mr_err *err) {
    bool given = mr_options_given(s->options, MR_OPTION_SEQUENCES);
    int64_t longest = mr_session_whole_blocks(s->ctx);
    mr_session_needs needs = {.max_sequences = given ? (int32_t)mr_options_number(s->options, MR_OPTION_SEQUENCES)
                                                     : SERVER_SEQUENCES,
                              .min_kv_tokens = longest,
                              .half_of_free = true};
    needs.kv_tokens = needs.max_rows = longest * needs.max_sequences;
    s->grammars = true;
    return mr_session_size(s, &needs, err);
}
