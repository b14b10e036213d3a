// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/scheduler.h"

#include <math.h>
#include <string.h>

#include "coordinator/job/step_budget.h"
#include "engine/base/mem.h"

enum {
    READY_STEPS = MR_MICRO_BATCHES_READY, /* steps whose plans lie ready beside the steps that the stages run */
    UNKNOWN_PREFILL = 32,                 /* rows of prompts in a step with decode rows, while no times are known */
    LEAST_PREFILL = 4,                    /* the least of these rows, even if tokens come later than wanted */
    LEAST_SHARE = 16,                     /* least rows of one prompt in a step that has several prompts */
    FEW_ROWS = 16,                        /* so few rows of prompts are not cut any further */
};
/* Another number of micro-batches has to be this much better to be chosen, because measured times are noisy. */
static const double SAME = 1.03;
static const double SAME_PROMPTS = 1.25; /* numbers of prompt rows within this factor keep the same cut */
/* If the user sets no time between tokens: tokens may take this many times what they would take if all prompts but one
 * were prefilled already. So one prompt slows decoding sequences by less than a factor of two, which few users mind
 * (1.8 instead of 2 because some steps take longer than others). With many waiting prompts, a few decoding sequences do
 * not slow the prefill. */
static const double SLOWER = 1.8;

/* The inputs of the choice of a cut, in short. If they have hardly changed, the cut stays. */
typedef struct cut_ground {
    double seconds[2][3]; /* of a step of most and of few rows: sum over the stages, slowest stage, sum by position */
    int64_t n_rows;
} cut_ground;

struct mr_scheduler {
    mr_scheduler_config config;
    mr_ledger *ledger;
    const mr_pipeline_times *times; /* NULL: not known */
    mr_entry **live;                /* [max_sequences], the sequence whose last row is oldest stands first */
    mr_entry **spare;               /* [max_sequences], scratch */
    int32_t *shares;                /* [max_sequences], scratch */
    int32_t n_live;
    /* Micro-batches take turns. A turn is a step, or is skipped without a step. */
    uint64_t turn;                      /* of the last step */
    int32_t in_turn[MR_MAX_RING_SLOTS]; /* at turn % MR_MAX_RING_SLOTS: rows of that turn that bring a token */
    int32_t m, m_decode;                /* micro-batches at the last step; chosen without regard to prompts */
    int32_t m_decode_for;               /* number of sequences that m_decode was chosen for; -1: choose anew */
    mr_prefill_cut cut;                 /* how rows of prompts are cut into chunks */
    cut_ground cut_for;                 /* the inputs that cut was chosen for; n_rows 0: choose anew */
    cut_ground now;                     /* the inputs by the present times; n_rows is not in use */
    int64_t n_prefilled;                /* rows of prompts issued since there last were no prompts */
    uint64_t step;
    Millrace__StepPlan plan;
    Millrace__Run *runs;
    Millrace__Run **run_ptrs;
    int32_t *ids; /* [max_rows], of the runs */
    int32_t n_rows, n_out;
    bool starved;
};

int32_t mr_scheduler_ring_slots(int32_t n_stages) {
    return mr_micro_batches_most(n_stages) + (n_stages == 1 ? 1 : READY_STEPS);
}

/* The number of micro-batches while no times are known. */
static int32_t one_for_each_stage(const mr_scheduler *s) {
    int32_t most = s->config.ring_slots > READY_STEPS ? s->config.ring_slots - READY_STEPS : 1;
    return s->config.n_stages < most ? s->config.n_stages : most;
}

mr_status mr_scheduler_create(const mr_scheduler_config *config, mr_ledger *ledger, mr_scheduler **out, mr_err *err) {
    mr_scheduler *s = mr_alloc(sizeof *s);
    size_t n = (size_t)config->max_sequences;
    if (s) {
        s->config = *config;
        s->config.ring_slots = config->ring_slots ? config->ring_slots : mr_scheduler_ring_slots(config->n_stages);
        s->ledger = ledger;
        s->turn = MR_MAX_RING_SLOTS;
        s->m = s->m_decode = one_for_each_stage(s);
        s->m_decode_for = -1;
        s->live = mr_alloc_array(n, sizeof(mr_entry *));
        s->spare = mr_alloc_array(n, sizeof(mr_entry *));
        s->shares = mr_alloc_array(n, sizeof *s->shares);
        s->runs = mr_alloc_array(n, sizeof *s->runs);
        s->run_ptrs = mr_alloc_array(n, sizeof(Millrace__Run *));
        s->ids = mr_alloc_array((size_t)config->max_rows, sizeof *s->ids);
    }
    if (!s || !s->live || !s->spare || !s->shares || !s->runs || !s->run_ptrs || !s->ids) {
        mr_scheduler_destroy(s);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a scheduler of %zu sequences", n);
    }
    for (size_t i = 0; i < n; i++)
        s->run_ptrs[i] = &s->runs[i];
    millrace__step_plan__init(&s->plan);
    s->plan.runs = s->run_ptrs;
    *out = s;
    return MR_OK;
}

void mr_scheduler_destroy(mr_scheduler *s) {
    if (!s)
        return;
    mr_free(s->live);
    mr_free(s->spare);
    mr_free(s->shares);
    mr_free(s->runs);
    mr_free(s->run_ptrs);
    mr_free(s->ids);
    mr_free(s);
}

void mr_scheduler_set_times(mr_scheduler *s, const mr_pipeline_times *times) {
    s->times = times;
    s->m_decode_for = -1;
    if (!times)
        return;
    s->now = (cut_ground){0};
    for (int few = 0; few < 2; few++)
        for (int32_t i = 0; i < times->n_stages; i++) {
            double *sums = s->now.seconds[few];
            double stage_s = mr_step_times_at(&times->stages[i], few ? FEW_ROWS : s->config.max_rows);
            sums[0] += stage_s;
            sums[1] = stage_s > sums[1] ? stage_s : sums[1];
            sums[2] += (i + 1) * stage_s;
        }
}

void mr_scheduler_join(mr_scheduler *s, mr_entry *e) {
    MR_ASSERT(s->n_live < s->config.max_sequences);
    e->last_step = s->step; /* the wait begins now */
    e->last_turn = 0;
    s->live[s->n_live++] = e;
}

void mr_scheduler_leave(mr_scheduler *s, mr_entry *e) {
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n_live; i++)
        if (s->live[i] != e)
            s->live[kept++] = s->live[i];
    s->n_live = kept;
}

int32_t mr_scheduler_micro_batches(const mr_scheduler *s) {
    return s->m;
}

int32_t mr_scheduler_most_steps(const mr_scheduler *s) {
    int32_t n_stages = s->config.n_stages, ready = n_stages == 1 ? 1 : READY_STEPS;
    int32_t n = (s->m > n_stages ? s->m : n_stages) + ready;
    return n < s->config.ring_slots ? n : s->config.ring_slots;
}

/* --- The work at hand -------------------------------------------------------------------------------------------- */

/* Whether the prompt of e is issued and decode rows are still to come. */
static bool is_decoding(const mr_entry *e) {
    return e->n_issued >= e->n_prefill && e->n_issued + 1 < e->max_ids;
}

/* Whether the next decode row of e may be issued: its id is known, or is under way. */
static bool may_decode(const mr_entry *e) {
    return e->n_issued <= e->n_ids;
}

static int32_t prefill_rows(const mr_entry *e) {
    return e->n_issued < e->n_prefill ? e->n_prefill - e->n_issued : 0;
}

/* The work of all live sequences. */
typedef struct work {
    int32_t n_decoding, n_prompts;
    int64_t n_prefill;  /* rows of prompts that are not issued yet */
    uint64_t last_turn; /* the oldest last_turn of the decoding sequences; UINT64_MAX: no sequence decodes */
} work;

static work look(const mr_scheduler *s) {
    work w = {.last_turn = UINT64_MAX};
    for (int32_t i = 0; i < s->n_live; i++) {
        const mr_entry *e = s->live[i];
        w.n_prefill += prefill_rows(e);
        w.n_prompts += prefill_rows(e) > 0;
        if (!is_decoding(e))
            continue;
        w.n_decoding++;
        w.last_turn = e->last_turn < w.last_turn ? e->last_turn : w.last_turn;
    }
    return w;
}

static double token_seconds(const mr_scheduler *s, int32_t n, int32_t m) {
    return mr_micro_batches_seconds(s->times, n, m < n ? m : n);
}

/* Chooses the number of micro-batches for n sequences. Keeps m_decode if it is nearly as good as the best. */
static int32_t choose_micro_batches(const mr_scheduler *s, int32_t n) {
    if (s->config.n_stages == 1 || !s->times || n == 0)
        return one_for_each_stage(s);
    int32_t best = mr_micro_batches_best(s->times, n, s->config.ring_slots - READY_STEPS);
    double cost = mr_micro_batches_cost(s->times, n, s->m_decode < n ? s->m_decode : n);
    return cost <= SAME * mr_micro_batches_cost(s->times, n, best) ? s->m_decode : best;
}

/* Rows of the step, decode rows included, with n_decoding > 0: as many as let the tokens come in time. */
static int32_t rows_with_decoding(const mr_scheduler *s, const work *w) {
    if (!s->times)
        return s->n_rows + UNKNOWN_PREFILL;
    double wanted = s->config.token_s;
    if (wanted <= 0) {
        int32_t n_read = w->n_decoding + w->n_prompts - 1;
        wanted = SLOWER * token_seconds(s, n_read, n_read > w->n_decoding ? s->m : s->m_decode);
    }
    int32_t rows = mr_step_rows_within(s->times, w->n_decoding, s->m, wanted, s->config.max_rows);
    return rows > s->n_rows + LEAST_PREFILL ? rows : s->n_rows + LEAST_PREFILL;
}

static bool is_near(double a, double b, double factor) {
    return a <= factor * b && b <= factor * a;
}

/* Chooses the cut of n rows of prompts. The search takes a while with many stages, so the cut stays while its inputs
 * are nearly the same. */
static void choose_cut(mr_scheduler *s, int64_t n) {
    bool stays = is_near((double)n, (double)s->cut_for.n_rows, SAME_PROMPTS) ||
                 (n <= FEW_ROWS && s->cut_for.n_rows > 0 && s->cut_for.n_rows <= FEW_ROWS);
    for (int i = 0; i < 6 && stays; i++)
        stays = is_near(s->now.seconds[i / 3][i % 3], s->cut_for.seconds[i / 3][i % 3], SAME);
    if (stays)
        return;
    s->cut = mr_prefill_cut_best(s->times, n, s->config.max_rows);
    s->cut_for = s->now;
    s->cut_for.n_rows = n;
}

/* How many of the `most` rows or logits of a step decode rows leave to prompts. Of a single row: 1 in every second
 * step. */
static int32_t left_to_prompts(const mr_scheduler *s, int32_t most) {
    int32_t half = (most + (int32_t)(s->plan.step % 2)) / 2;
    return half < LEAST_PREFILL ? half : LEAST_PREFILL;
}

/* Rows of prompts in the step at hand. n_held decode rows are still to be added to the step if there is room. */
static int32_t prefill_budget(mr_scheduler *s, const work *w, int32_t n_held) {
    int32_t most = s->config.max_rows - s->n_rows, least = left_to_prompts(s, s->config.max_rows), rows = most;
    bool in_no_hurry = w->n_decoding > 0 && isinf(s->config.token_s);
    if (s->times && !in_no_hurry) {
        choose_cut(s, s->n_prefilled + w->n_prefill);
        rows = mr_prefill_chunk(s->times, s->cut, s->n_prefilled, w->n_prefill, s->config.max_rows);
    }
    if (w->n_decoding > 0 && !in_no_hurry) {
        int32_t in_time = rows_with_decoding(s, w) - s->n_rows;
        most = in_time < most ? in_time : most;
    }
    if (n_held > 0)
        most = most - n_held > least ? most - n_held : least;
    return rows < most ? rows : most;
}

/* --- Rows -------------------------------------------------------------------------------------------------------- */

/* Adds rows [n_issued, n_issued + n) of e as a run. NULL: the rows need a KV block and none is free. */
static Millrace__Run *add_run(mr_scheduler *s, mr_entry *e, int32_t n) {
    int32_t end = e->n_issued + n;
    int32_t n_blocks = (end + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    if (!mr_ledger_grow(s->ledger, e->slot, n_blocks)) {
        s->starved = true;
        return NULL;
    }
    Millrace__Run *run = &s->runs[s->plan.n_runs++];
    millrace__run__init(run);
    run->slot = (uint32_t)e->slot;
    run->generation = e->generation;
    run->first_position = (uint32_t)e->n_issued;
    run->n_rows = (uint32_t)n;
    run->prefix = mr_entry_prefix(e);
    if (n_blocks > e->n_sent) { /* at most one block for each MR_WIRE_BLOCK_TOKENS rows begun: earlier ones were sent */
        run->first_block_idx = (uint32_t)e->n_sent;
        run->n_blocks = (size_t)(n_blocks - e->n_sent);
        /* protobuf-c wants pointers to non-const, though it only reads. */
        run->blocks = (uint32_t *)(uintptr_t)(mr_ledger_table(s->ledger, e->slot) + e->n_sent);
        for (size_t i = 0; i < run->n_blocks; i++)
            mr_prefix_add_block(&e->sums, (uint32_t)e->n_sent + (uint32_t)i, run->blocks[i]);
        e->n_sent = n_blocks;
    }
    if (end <= e->n_ids) {
        MR_ASSERT(s->n_rows + n <= s->config.max_rows);
        mr_entry_copy_ids(e, e->n_issued, n, s->ids + s->n_rows);
        run->ids = (uint32_t *)(s->ids + s->n_rows);
        run->n_ids = (size_t)n;
    }
    e->n_issued = end;
    e->last_step = s->plan.step;
    s->n_rows += n;
    return run;
}

/* How many of n decoding sequences one micro-batch takes in this turn. */
static int32_t decode_share(const mr_scheduler *s, uint64_t turn, int32_t n) {
    int32_t least = n / s->m, share = (n + s->m - 1) / s->m;
    for (int32_t k = 1; k < s->m; k++)
        if (s->in_turn[(turn - (uint64_t)k) % MR_MAX_RING_SLOTS] < least)
            share = least > 0 ? least : 1; /* the surplus goes to the next turns until the shares are even */
    return share;
}

/* Adds decode rows, n at most, while the step has fewer than max_rows rows and max_out_rows outputs. Returns how many
 * were added. */
static int32_t add_decode_rows(mr_scheduler *s, uint64_t turn, int32_t n, int32_t max_rows, int32_t max_out_rows) {
    int32_t added = 0;
    for (int32_t i = 0; i < s->n_live && added < n; i++) {
        mr_entry *e = s->live[i];
        if (s->n_rows >= max_rows || s->n_out >= max_out_rows)
            break;
        if (!is_decoding(e) || !may_decode(e) || e->last_turn + (uint64_t)s->m > turn)
            continue;
        Millrace__Run *run = add_run(s, e, 1);
        if (!run)
            continue;
        run->want = MILLRACE__WANT__WANT_TOKEN;
        s->n_out++;
        e->last_turn = turn;
        added++;
    }
    return added;
}

/* Says which rows of a run the tail sends back, the last n rows that were issued of e. */
static void want_rows(mr_entry *e, int32_t n, Millrace__Run *run, mr_logits_runs *out_logits) {
    run->want = e->desc.on_logits ? MILLRACE__WANT__WANT_ALL_LOGITS : MILLRACE__WANT__WANT_ALL_HIDDEN;
    if (e->desc.last_hidden) {
        n = e->n_issued == e->n_prefill ? 1 : 0;
        run->want = n > 0 ? MILLRACE__WANT__WANT_LAST_HIDDEN : MILLRACE__WANT__WANT_NOTHING;
    }
    if (n == 0)
        return;
    out_logits->at[out_logits->n++] = (mr_logits_run){.entry = e, .first_position = e->n_issued - n, .n_rows = n};
    out_logits->n_rows += n;
}

static void add_prompt(mr_scheduler *s, mr_entry *e, int32_t n, uint64_t turn, mr_logits_runs *out_logits) {
    int32_t out_room = s->config.max_out_rows - s->n_out;
    bool wants_logits = e->desc.on_logits != NULL;
    if (wants_logits)
        n = n < out_room ? n : out_room;
    if (mr_entry_wants_rows(e) && out_logits->n == MR_MAX_LOGITS_RUNS)
        return;
    if (e->desc.on_hidden)
        out_room = n; /* hidden rows take no room among the rows of logits */
    if (n <= 0 || out_room <= 0)
        return;
    Millrace__Run *run = add_run(s, e, n);
    if (!run)
        return;
    e->last_turn = turn;
    if (mr_entry_wants_rows(e)) {
        want_rows(e, n, run, out_logits);
        s->n_out += wants_logits ? n : 0;
    } else if (e->n_issued == e->n_prefill) {
        run->want = MILLRACE__WANT__WANT_TOKEN;
        s->n_out++;
    }
}

/* The priority of e, raised by the time that e has waited. So no prompt starves. Sequences that are computed again have
 * all waited since the epoch began. */
static int64_t priority_of(const mr_scheduler *s, const mr_entry *e) {
    uint64_t since = e->is_again ? 0 : e->last_step;
    return e->desc.priority + (int64_t)((s->plan.step - since) / MR_SCHEDULER_AGING_STEPS);
}

static bool brings_logits(const mr_logits_runs *runs) {
    for (int32_t i = 0; i < runs->n; i++)
        if (runs->at[i].entry->desc.on_logits)
            return true;
    return false;
}

/* Writes to spare the prompts of the highest priority that have no rows in this step yet, longest wait first. Returns
 * how many. At most one run of a step brings logits of all its rows. */
static int32_t find_prompts(mr_scheduler *s, const mr_logits_runs *logits) {
    int64_t highest = INT64_MIN;
    int32_t n = 0;
    bool in_step = brings_logits(logits), has_logits = in_step;
    for (int32_t i = 0; i < s->n_live; i++) {
        mr_entry *e = s->live[i];
        bool wants_logits = e->desc.on_logits != NULL;
        if (prefill_rows(e) == 0 || e->last_step == s->plan.step || (wants_logits && in_step))
            continue;
        int64_t priority = priority_of(s, e);
        if (priority < highest)
            continue;
        if (priority > highest) {
            highest = priority;
            n = 0;
            has_logits = in_step;
        }
        if (wants_logits && has_logits)
            continue;
        has_logits = has_logits || wants_logits;
        s->spare[n++] = e;
    }
    return n;
}

/* Whether a sequence is computed again, and with fewer rows than other, which may be NULL. */
static bool is_shorter_again(const mr_entry *e, const mr_entry *other) {
    return e->is_again && (!other || prefill_rows(e) < prefill_rows(other));
}

/* If some of the n prompts in spare are computed again, keeps only the shortest of these. Their clients have seen a
 * part of the answer and wait for the rest: one after the other, shortest first, ends the wait of most clients
 * soonest. Equal shares would let all wait until the last one is done. */
static int32_t prefer_again(mr_scheduler *s, int32_t n) {
    mr_entry *shortest = NULL;
    for (int32_t i = 0; i < n; i++)
        if (is_shorter_again(s->spare[i], shortest))
            shortest = s->spare[i];
    if (!shortest)
        return n;
    s->spare[0] = shortest;
    return 1;
}

/* Divides rows among the n prompts in spare. The first prompt gets half of the rows, and what the others leave over. */
static void share_out(mr_scheduler *s, int32_t n, int32_t rows) {
    int32_t want = prefill_rows(s->spare[0]), half = (rows + 1) / 2, left = rows - (want < half ? want : half);
    for (int32_t i = 1; i < n; i++) {
        int32_t share = left / (n - i);
        want = prefill_rows(s->spare[i]);
        share = share > LEAST_SHARE ? share : LEAST_SHARE;
        share = share < left ? share : left;
        s->shares[i] = want < share ? want : share;
        left -= s->shares[i];
        rows -= s->shares[i];
    }
    want = prefill_rows(s->spare[0]);
    s->shares[0] = want < rows ? want : rows;
}

static void add_prefill_rows(mr_scheduler *s, uint64_t turn, int32_t budget, mr_logits_runs *out_logits) {
    int32_t most = s->n_rows + budget, before = -1;
    while (s->n_rows < most && s->n_rows > before) {
        int32_t n = prefer_again(s, find_prompts(s, out_logits));
        before = s->n_rows;
        if (n == 0)
            break;
        share_out(s, n, most - s->n_rows);
        for (int32_t i = 0; i < n; i++)
            add_prompt(s, s->spare[i], s->shares[i], turn, out_logits);
    }
}

/* Moves the sequences of this step behind the others. Both groups keep their order. */
static void rotate(mr_scheduler *s) {
    int32_t n = 0;
    for (int in_step = 0; in_step < 2; in_step++)
        for (int32_t i = 0; i < s->n_live; i++)
            if ((s->live[i]->last_step == s->plan.step) == in_step)
                s->spare[n++] = s->live[i];
    mr_entry **live = s->live;
    s->live = s->spare;
    s->spare = live;
}

/* Records the finished step plan. Turns that were skipped before this turn had no rows. */
static void commit(mr_scheduler *s, uint64_t turn) {
    int32_t n_tokens = 0;
    for (size_t i = 0; i < s->plan.n_runs; i++)
        n_tokens += s->runs[i].want == MILLRACE__WANT__WANT_TOKEN;
    for (uint64_t t = s->turn + 1; t < turn; t++)
        s->in_turn[t % MR_MAX_RING_SLOTS] = 0;
    s->in_turn[turn % MR_MAX_RING_SLOTS] = n_tokens;
    s->turn = turn;
    s->step = s->plan.step;
    rotate(s);
}

/* Adds the rows of this turn. If there are prompts, decode rows leave a few rows of the step to them. Otherwise prompts
 * would starve while enough sequences decode. */
static void add_rows(mr_scheduler *s, uint64_t turn, bool decode_is_due, const work *w, mr_logits_runs *out_logits) {
    const mr_scheduler_config *c = &s->config;
    int32_t decode = decode_is_due ? decode_share(s, turn, w->n_decoding) : 0;
    int32_t max_rows = c->max_rows, max_out_rows = c->max_out_rows;
    if (w->n_prefill > 0 && decode > 0) {
        max_rows -= left_to_prompts(s, c->max_rows);
        max_out_rows -= left_to_prompts(s, c->max_out_rows);
    }
    int32_t n_decoded = add_decode_rows(s, turn, decode, max_rows, max_out_rows), before = s->n_rows;
    /* If the ids of all decode rows that are due are under way, no step of prompts alone is issued: it would run before
     * these rows. A starved row does not count as due, because it may wait for these very prompts to end. */
    bool ids_under_way = decode_is_due && n_decoded == 0 && !s->starved && max_rows > 0 && max_out_rows > 0;
    if (w->n_prefill == 0 || ids_under_way)
        return;
    add_prefill_rows(s, turn, prefill_budget(s, w, decode - n_decoded), out_logits);
    s->n_prefilled += s->n_rows - before;
    add_decode_rows(s, turn, decode - n_decoded, c->max_rows, c->max_out_rows); /* in the room that prompts leave */
}

const Millrace__StepPlan *mr_scheduler_next(mr_scheduler *s, uint64_t step, mr_logits_runs *out_logits) {
    out_logits->n = out_logits->n_rows = 0;
    s->plan.step = step;
    s->plan.n_runs = 0;
    s->n_rows = s->n_out = 0;
    s->starved = false;
    work w = look(s);
    if (w.n_decoding != s->m_decode_for) {
        s->m_decode = choose_micro_batches(s, w.n_decoding);
        s->m_decode_for = w.n_decoding;
    }
    s->n_prefilled = w.n_prefill > 0 ? s->n_prefilled : 0;
    /* Rows of prompts fill the turns that decode rows leave empty, so that each stage has a turn to work on. */
    int32_t filling = w.n_prefill > 0 ? one_for_each_stage(s) : 1;
    s->m = s->m_decode > filling ? s->m_decode : filling;
    uint64_t turn = s->turn + 1, due = w.n_decoding > 0 ? w.last_turn + (uint64_t)s->m : UINT64_MAX;
    if (w.n_prefill == 0 && w.n_decoding > 0 && due > turn)
        turn = due;
    add_rows(s, turn, due <= turn, &w, out_logits);
    if (s->plan.n_runs == 0)
        return NULL;
    commit(s, turn);
    return &s->plan;
}

bool mr_scheduler_starved(const mr_scheduler *s) {
    return s->starved;
}
