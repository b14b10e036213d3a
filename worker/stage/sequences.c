/* worker/stage/sequences.c - opens and closes the sequence slots of a stage, and turns the sampling parameters of a
 * message into a sampler. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/sequences.h"

#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/tensor/tensor.h"

struct mr_sequences {
    mr_msg_limits limits;
    bool is_tail;
    mr_sequence *slots; /* [limits.max_sequences] */
    int32_t *blocks;    /* memory of the block tables of all slots */
    mr_grammars *grammars;
};

static size_t table_entries(const mr_msg_limits *limits) {
    return ((size_t)limits->max_context + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
}

mr_status mr_sequences_create(const mr_msg_limits *limits, bool is_tail, mr_sequences **out, mr_err *err) {
    mr_sequences *all = mr_alloc(sizeof *all);
    size_t n_slots = limits->max_sequences, n_entries = 0;
    if (all && mr_mul_size(n_slots, table_entries(limits), &n_entries)) {
        all->limits = *limits;
        all->is_tail = is_tail;
        all->slots = mr_alloc_array(n_slots, sizeof *all->slots);
        all->blocks = mr_alloc_array(n_entries, sizeof *all->blocks);
    }
    if (!all || !all->slots || !all->blocks) {
        mr_sequences_destroy(all);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu sequence slots of %u tokens", n_slots,
                          limits->max_context);
    }
    for (size_t i = 0; i < n_slots; i++)
        all->slots[i].blocks = all->blocks + i * table_entries(limits);
    *out = all;
    return MR_OK;
}

void mr_sequences_set_grammars(mr_sequences *all, mr_grammars *grammars) {
    all->grammars = grammars;
}

/* Frees the sampler and the grammar state. */
static void drop_state(mr_sequences *all, mr_sequence *s) {
    mr_sampler_destroy(s->sampler);
    mr_grammars_close(all->grammars, s->grammar);
    s->sampler = NULL;
    s->grammar = NULL;
}

void mr_sequences_destroy(mr_sequences *all) {
    if (!all)
        return;
    for (uint32_t i = 0; all->slots && i < all->limits.max_sequences; i++)
        drop_state(all, &all->slots[i]);
    mr_free(all->slots);
    mr_free(all->blocks);
    mr_free(all);
}

/* The message checks have made sure that all ids are below the vocabulary size, so the ids fit int32. */
static mr_sampling_params params_of(const Millrace__Sampling *p) {
    return (mr_sampling_params){
#define MR_SAMPLING(type, name, ...) .name = (type)p->name,
#include "engine/sample/params.def"
#undef MR_SAMPLING
        .seed = p->seed,
        .bias_ids = (const int32_t *)p->bias_ids,
        .biases = p->biases,
        .n_biases = (int32_t)p->n_bias_ids,
        .dry_breakers = (const int32_t *)p->dry_breakers,
        .n_dry_breakers = (int32_t)p->n_dry_breakers,
        .min_tokens = (int32_t)p->min_tokens,
        .late_ids = (const int32_t *)p->late_ids,
        .n_late_ids = (int32_t)p->n_late_ids,
        .bad_words = (const int32_t *)p->bad_words,
        .n_bad_words = (int32_t)p->n_bad_words};
}

static mr_status create_sampler(const mr_sequences *all, const Millrace__OpenSequence *open, mr_sampler **out,
                                mr_err *err) {
    const Millrace__Sampling *p = open->sampling;
    if (!p)
        return MR_OK; /* the sequence wants logits only */
    mr_sampler_config config = {.n_vocab = (int32_t)all->limits.n_vocab,
                                .params = params_of(p),
                                .choice = p->choice,
                                .prompt_ids = (const int32_t *)open->ids,
                                .n_prompt = (int32_t)open->n_ids,
                                .n_generated = (int32_t)open->n_generated,
                                .max_context = (int32_t)all->limits.max_context,
                                .mirostat_mu = p->mirostat_mu};
    return mr_sampler_create(&config, out, err);
}

/* Opens the grammar of a sequence and advances its state over the ids that were generated before. */
static mr_status open_grammar(mr_sequences *all, const Millrace__OpenSequence *open, mr_grammar_use **out) {
    mr_err err;
    if (open->grammar.len == 0)
        return MR_OK;
    if (!all->grammars)
        return MR_E_UNSUPPORTED;
    mr_status status = mr_grammars_open(all->grammars, open->grammar.data, open->grammar.len, out, &err);
    for (size_t i = open->n_ids - open->n_generated; i < open->n_ids && status == MR_OK; i++)
        status = mr_grammar_state_accept((*out)->state, (int32_t)open->ids[i], &err);
    if (status != MR_OK)
        mr_log_write(MR_LOG_WARN, "worker", "the grammar of slot %u: %s", open->slot, err.text);
    return status;
}

/* The sums of a sequence as it is opened. The coordinator's sum of the table has to be that of the blocks. */
static mr_status open_sums(const Millrace__OpenSequence *open, mr_prefix_sums *out, mr_err *err) {
    const mr_prefix_sums told = mr_prefix_unpack(open->prefix);
    mr_prefix_sums own = {.ids = told.ids};
    for (size_t i = 0; i < open->n_blocks; i++)
        mr_prefix_add_block(&own, (uint32_t)i, open->blocks[i]);
    if (own.table != told.table)
        return mr_err_set(err, MR_E_PROTOCOL,
                          "slot %u, generation %u: the block table has sum %08x, the coordinator says %08x", open->slot,
                          open->generation, own.table, told.table);
    *out = own;
    return MR_OK;
}

mr_status mr_sequences_open(mr_sequences *all, const Millrace__OpenSequence *open, mr_err *err) {
    MR_ASSERT(open->slot < all->limits.max_sequences);
    mr_sequence *s = &all->slots[open->slot];
    mr_sampler *sampler = NULL;
    mr_prefix_sums sums;
    mr_status status = open_sums(open, &sums, err);
    if (status == MR_OK && all->is_tail)
        status = create_sampler(all, open, &sampler, err);
    if (status != MR_OK)
        return status;
    drop_state(all, s);
    *s = (mr_sequence){
        .is_open = true, .generation = open->generation, .blocks = s->blocks, .last_position = -1, .sampler = sampler};
    s->sums = sums;
    s->knows_ids = true;
    s->n_blocks = (int32_t)open->n_blocks;
    if (open->n_blocks > 0)
        memcpy(s->blocks, open->blocks, open->n_blocks * sizeof *s->blocks);
    if (sampler) {
        s->logprobs = open->sampling->logprobs;
        s->n_top_logprobs = (int32_t)open->sampling->n_top_logprobs;
        s->grammar_status = open_grammar(all, open, &s->grammar);
    }
    return MR_OK;
}

mr_status mr_sequences_close(mr_sequences *all, const Millrace__CloseSequence *close, mr_err *err) {
    mr_sequence *s = NULL;
    mr_status status = mr_sequences_find(all, close->slot, close->generation, &s, err);
    if (status != MR_OK)
        return status;
    drop_state(all, s);
    s->is_open = false;
    return MR_OK;
}

mr_status mr_sequences_find(mr_sequences *all, uint32_t slot, uint32_t generation, mr_sequence **out, mr_err *err) {
    MR_ASSERT(slot < all->limits.max_sequences);
    mr_sequence *s = &all->slots[slot];
    if (!s->is_open || s->generation != generation)
        return mr_err_set(err, MR_E_PROTOCOL, "sequence slot %u is not open in generation %u", slot, generation);
    *out = s;
    return MR_OK;
}

/* Compares the sums of a run with those of this stage. */
static mr_status check_prefix(const mr_sequence *s, const Millrace__Run *run, mr_err *err) {
    const mr_prefix_sums told = mr_prefix_unpack(run->prefix);
    if (s->sums.table != told.table)
        return mr_err_set(
            err, MR_E_PROTOCOL,
            "slot %u, generation %u, position %u: the block table of this stage has sum %08x, that of the "
            "coordinator %08x",
            run->slot, run->generation, run->first_position, s->sums.table, told.table);
    if (s->knows_ids && s->sums.ids != told.ids)
        return mr_err_set(err, MR_E_PROTOCOL,
                          "slot %u, generation %u, position %u: the ids before it have sum %08x at this stage and %08x "
                          "at the coordinator",
                          run->slot, run->generation, run->first_position, s->sums.ids, told.ids);
    return MR_OK;
}

/* Adds the ids of a run to the sum. */
static void sum_ids(mr_sequence *s, const Millrace__Run *run) {
    bool has_sampled = run->n_ids == 0 && s->last_position == (int64_t)run->first_position;
    s->sums.ids = mr_prefix_unpack(run->prefix).ids;
    s->knows_ids = run->n_ids > 0 || has_sampled;
    for (uint32_t i = 0; i < run->n_ids; i++)
        mr_prefix_add_id(&s->sums, run->first_position + i, (int32_t)run->ids[i]);
    if (has_sampled)
        mr_prefix_add_id(&s->sums, run->first_position, s->last_id);
}

/* Appends the new entries of the block table, which are its last ones. */
static mr_status take_blocks(mr_sequence *s, const Millrace__Run *run, mr_err *err) {
    if (run->first_block_idx > (uint32_t)s->n_blocks)
        return mr_err_set(err, MR_E_PROTOCOL, "slot %u: block table entries from %u on, but only %d are known",
                          run->slot, run->first_block_idx, s->n_blocks);
    for (uint32_t i = run->first_block_idx; i < (uint32_t)s->n_blocks && run->n_blocks > 0; i++)
        mr_prefix_remove_block(&s->sums, i, (uint32_t)s->blocks[i]);
    for (uint32_t i = 0; i < run->n_blocks; i++) {
        mr_prefix_add_block(&s->sums, run->first_block_idx + i, run->blocks[i]);
        s->blocks[run->first_block_idx + i] = (int32_t)run->blocks[i];
    }
    int32_t end = (int32_t)(run->first_block_idx + run->n_blocks);
    s->n_blocks = run->n_blocks > 0 ? end : s->n_blocks;
    uint32_t last_position = run->first_position + run->n_rows - 1;
    if (last_position / MR_KV_BLOCK >= (uint32_t)s->n_blocks)
        return mr_err_set(err, MR_E_PROTOCOL, "slot %u: position %u lies in no KV block: the table has %d", run->slot,
                          last_position, s->n_blocks);
    return MR_OK;
}

mr_status mr_sequence_take_run(mr_sequence *s, const Millrace__Run *run, mr_err *err) {
    mr_status status = check_prefix(s, run, err);
    if (status == MR_OK)
        status = take_blocks(s, run, err);
    if (status == MR_OK)
        sum_ids(s, run);
    return status;
}

void mr_sequences_note_token(mr_sequences *all, const Millrace__Token *token) {
    mr_sequence *s = &all->slots[token->slot];
    if (!s->is_open || s->generation != token->generation)
        return;
    /* After a failure the next row of the sequence may be planned already. It takes id 0, and its result is unused. */
    s->last_id = token->status == MR_OK ? (int32_t)token->id : 0;
    s->last_position = token->position;
}
