// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/bench/load.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/text/text_file.h"

enum { ARRIVALS = 1 << 20 }; /* the random stream of the arrivals; lower streams are of the prompts */
static const double MAX_SECONDS = 1e6;

/* --- Making one -------------------------------------------------------------------------------------------------- */

static mr_status no_memory(mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the requests of a load");
}

/* Allocates the array for the times of all tokens. */
static mr_status take_times(mr_load *l, mr_err *err) {
    size_t n = 0;
    for (int32_t i = 0; i < l->n; i++)
        n += (size_t)l->requests[i].n_tokens;
    l->times = mr_alloc_array(n, sizeof *l->times);
    if (!l->times)
        return no_memory(err);
    n = 0;
    for (int32_t i = 0; i < l->n; i++) {
        l->requests[i].token_ns = l->times + n;
        n += (size_t)l->requests[i].n_tokens;
    }
    return MR_OK;
}

/* A random number in (0, 1], so that its logarithm is finite. */
static double uniform(uint64_t seed, uint64_t counter) {
    return ((double)(mr_rng_u64(seed, ARRIVALS, counter) >> 11) + 1) * 0x1p-53;
}

mr_status mr_load_make(const mr_load_poisson *p, mr_load *out, mr_err *err) {
    /* Six standard deviations above the mean: the list practically never becomes full. */
    double mean = p->rate * p->seconds, most = mean + 6 * sqrt(mean) + 16;
    if (!(most <= MR_LOAD_MAX_REQUESTS))
        return mr_err_set(err, MR_E_INVALID, "%.9g requests a second for %.9g seconds may be more than %d", p->rate,
                          p->seconds, MR_LOAD_MAX_REQUESTS);
    mr_load l = {.requests = mr_alloc_array((size_t)most, sizeof *l.requests)};
    if (!l.requests)
        return no_memory(err);
    double at = 0;
    while (l.n < (int32_t)most && (at -= log(uniform(p->seed, (uint64_t)l.n)) / p->rate) < p->seconds)
        l.requests[l.n++] =
            (mr_load_request){.at_ns = (int64_t)(at * 1e9), .n_prompt = p->n_prompt, .n_tokens = p->n_tokens};
    mr_status status = l.n > 0 ? take_times(&l, err)
                               : mr_err_set(err, MR_E_INVALID,
                                            "no request arrives within %.9g seconds at %.9g requests a second; hint: "
                                            "a larger --load or --load-seconds, or another --load-seed",
                                            p->seconds, p->rate);
    if (status != MR_OK) {
        mr_load_end(&l);
        return status;
    }
    *out = l;
    return MR_OK;
}

/* Parses one line, which ends with a byte that strtod and strtol stop at. */
static bool parse_line(const char *line, mr_load_request *out) {
    char *p;
    double at = strtod(line, &p);
    if (p == line || memchr(line, 'x', (size_t)(p - line)) || memchr(line, 'X', (size_t)(p - line)) ||
        !(at >= 0 && at <= MAX_SECONDS) || *p++ != ',')
        return false;
    char *number = p;
    long n_prompt = strtol(number, &p, 10);
    if (p == number || n_prompt < 1 || n_prompt > MR_MAX_CONTEXT || *p++ != ',')
        return false;
    number = p;
    long n_tokens = strtol(number, &p, 10);
    if (p == number || n_tokens < 1 || n_tokens > MR_MAX_CONTEXT || p[strspn(p, " \t\r")])
        return false;
    *out =
        (mr_load_request){.at_ns = (int64_t)(at * 1e9), .n_prompt = (int32_t)n_prompt, .n_tokens = (int32_t)n_tokens};
    return true;
}

/* Parses all lines. Overwrites the end of each line in text with a zero byte. */
static mr_status parse_lines(char *text, const char *name, mr_load *l, mr_err *err) {
    int32_t number = 0;
    for (char *line = text, *next; line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : NULL;
        number++;
        if (end)
            *end = 0;
        if (line[0] == '#' || !line[strspn(line, " \t\r")])
            continue;
        mr_load_request *r = &l->requests[l->n];
        if (l->n == MR_LOAD_MAX_REQUESTS)
            return mr_err_set(err, MR_E_FORMAT, "%s, line %" PRId32 ": there are more than %d requests", name, number,
                              MR_LOAD_MAX_REQUESTS);
        if (!parse_line(line, r))
            return mr_err_set(err, MR_E_FORMAT,
                              "%s, line %" PRId32 ": \"%.60s\" is not seconds,prompt tokens,new tokens", name, number,
                              line);
        if (l->n > 0 && r->at_ns < r[-1].at_ns)
            return mr_err_set(err, MR_E_FORMAT, "%s, line %" PRId32 ": \"%.60s\" is earlier than the line before it",
                              name, number, line);
        l->n++;
    }
    return l->n > 0 ? MR_OK : mr_err_set(err, MR_E_FORMAT, "%s has no requests", name);
}

mr_status mr_load_parse(mr_str text, const char *name, mr_load *out, mr_err *err) {
    size_t n_lines = 1;
    mr_status status = mr_text_check(text, name, &text, err);
    if (status != MR_OK)
        return status;
    for (size_t i = 0; i < text.len; i++)
        n_lines += text.data[i] == '\n';
    n_lines = n_lines < MR_LOAD_MAX_REQUESTS ? n_lines : MR_LOAD_MAX_REQUESTS;
    mr_load l = {.requests = mr_alloc_array(n_lines, sizeof *l.requests)};
    char *copy = mr_alloc(text.len + 1);
    status = l.requests && copy ? MR_OK : no_memory(err);
    if (status == MR_OK) {
        memcpy(copy, text.data, text.len);
        copy[text.len] = 0;
        status = parse_lines(copy, name, &l, err);
    }
    if (status == MR_OK)
        status = take_times(&l, err);
    mr_free(copy);
    if (status != MR_OK) {
        mr_load_end(&l);
        return status;
    }
    *out = l;
    return MR_OK;
}

void mr_load_end(mr_load *l) {
    mr_free(l->requests);
    mr_free(l->times);
    *l = (mr_load){0};
}

void mr_load_longest(const mr_load *l, int32_t *out_prompt, int32_t *out_together) {
    *out_prompt = *out_together = 0;
    for (int32_t i = 0; i < l->n; i++) {
        const mr_load_request *r = &l->requests[i];
        *out_prompt = r->n_prompt > *out_prompt ? r->n_prompt : *out_prompt;
        *out_together = r->n_prompt + r->n_tokens > *out_together ? r->n_prompt + r->n_tokens : *out_together;
    }
}

/* --- Running ----------------------------------------------------------------------------------------------------- */

typedef struct run {
    mr_load *load;
    int64_t start_ns;
    int64_t first; /* sequence number of the first request; -1: not submitted yet */
    int32_t n_live;
} run;

static bool on_token(void *ctx, const mr_token_event *event) {
    run *r = ctx;
    mr_load_request *q = &r->load->requests[event->sequence - r->first];
    if (event->finish == MR_FINISH_ERROR)
        q->failed = true;
    else if (q->n_come < q->n_tokens)
        q->token_ns[q->n_come++] = event->time_ns - r->start_ns;
    r->n_live -= event->finish != MR_FINISH_NONE;
    return false;
}

static mr_status submit(run *r, mr_job *job, int32_t idx, int32_t n_vocab, int32_t *ids, mr_err *err) {
    const mr_load_request *q = &r->load->requests[idx];
    int64_t number;
    for (int32_t i = 0; i < q->n_prompt; i++)
        ids[i] = (int32_t)(mr_rng_u64(1, (uint64_t)idx, (uint64_t)i) % (uint64_t)n_vocab);
    mr_sequence_desc desc = {.prompt_ids = ids,
                             .n_prompt = q->n_prompt,
                             .max_tokens = q->n_tokens,
                             .sampling = {.top_p = 1, .repeat_penalty = 1},
                             .fresh = true,
                             .on_token = on_token,
                             .ctx = r};
    mr_status status = mr_job_submit(job, &desc, &number, err);
    if (status != MR_OK)
        return status;
    r->first = idx == 0 ? number : r->first;
    r->n_live++;
    return MR_OK;
}

mr_status mr_load_run(mr_load *l, mr_job *job, int32_t n_vocab, mr_err *err) {
    int32_t longest, together, next = 0;
    mr_load_longest(l, &longest, &together);
    int32_t *ids = mr_alloc_array((size_t)longest, sizeof *ids);
    run r = {.load = l, .start_ns = mr_clock_now_ns()};
    mr_status status = ids ? MR_OK : no_memory(err);
    while (status == MR_OK && (next < l->n || r.n_live > 0)) {
        while (status == MR_OK && next < l->n && r.start_ns + l->requests[next].at_ns <= mr_clock_now_ns())
            status = submit(&r, job, next++, n_vocab, ids, err);
        if (status == MR_OK)
            status = mr_job_turn(job, next < l->n ? r.start_ns + l->requests[next].at_ns : MR_NEVER, err);
    }
    mr_free(ids);
    return status;
}

/* --- What became of it ------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double rank(const double *values, int64_t n, int64_t percent) {
    return values[(n * percent + 99) / 100 - 1];
}

mr_percentiles mr_percentiles_of(double *values, int64_t n) {
    if (n == 0)
        return (mr_percentiles){0};
    qsort(values, (size_t)n, sizeof *values, compare);
    return (mr_percentiles){.n = n,
                            .p50 = rank(values, n, 50),
                            .p90 = rank(values, n, 90),
                            .p99 = rank(values, n, 99),
                            .max = values[n - 1]};
}

/* Finds out whether requests arrive faster than they are completed, and at which rate they are completed. If the rate
 * of arrivals A is larger than the rate of completions D, a queue grows, and the request that arrives at time t waits
 * (A / D - 1) t. So D follows from the slope of the waits over the arrival times, by least squares. The first half of
 * the requests is left out, because no request waits until all slots are taken. */
static void judge(const mr_load *l, mr_load_summary *s) {
    enum { LEAST = 20 };
    double n = 0, t_sum = 0, w_sum = 0, tt = 0, tw = 0, ww = 0;
    int32_t begin = l->n / 2;
    double from = l->n > 0 ? 1e-9 * (double)l->requests[begin].at_ns : 0, until = from;
    for (int32_t i = begin; i < l->n; i++) {
        const mr_load_request *r = &l->requests[i];
        if (r->n_come == 0)
            continue;
        double t = 1e-9 * (double)r->at_ns - from, w = 1e-9 * (double)(r->token_ns[0] - r->at_ns);
        n++;
        t_sum += t;
        w_sum += w;
        tt += t * t;
        tw += t * w;
        ww += w * w;
        until = from + t;
    }
    double varied = n > 0 ? tt - t_sum * t_sum / n : 0, together = n > 0 ? tw - t_sum * w_sum / n : 0;
    if (n < LEAST || varied <= 0)
        return;
    double slope = together / varied, rest = ww - w_sum * w_sum / n - slope * together;
    double growth = slope * (until - from), scatter = sqrt(rest > 0 ? rest / n : 0);
    s->arrived = (n - 1) / (until - from);
    if (slope > 0.05 && growth > 2 * scatter) /* a smaller growth may be chance */
        s->sustained = s->arrived / (1 + slope);
}

mr_status mr_load_summarise(const mr_load *l, mr_load_summary *out, mr_err *err) {
    mr_load_summary s = {0};
    int64_t n_first = 0, n_between = 0, last_ns = 0;
    for (int32_t i = 0; i < l->n; i++)
        s.n_tokens += l->requests[i].n_come;
    double *first = mr_alloc_array((size_t)l->n, sizeof *first);
    double *between = mr_alloc_array((size_t)s.n_tokens + 1, sizeof *between);
    if (!first || !between) {
        mr_free(first);
        mr_free(between);
        return no_memory(err);
    }
    for (int32_t i = 0; i < l->n; i++) {
        const mr_load_request *r = &l->requests[i];
        s.n_failed += r->failed;
        s.n_done += !r->failed && r->n_come == r->n_tokens;
        for (int32_t k = 0; k < r->n_come; k++) {
            if (k == 0)
                first[n_first++] = 1e-9 * (double)(r->token_ns[0] - r->at_ns);
            else
                between[n_between++] = 1e-9 * (double)(r->token_ns[k] - r->token_ns[k - 1]);
            last_ns = r->token_ns[k] > last_ns ? r->token_ns[k] : last_ns;
        }
    }
    s.seconds = 1e-9 * (double)last_ns;
    s.first_token = mr_percentiles_of(first, n_first);
    s.between_tokens = mr_percentiles_of(between, n_between);
    judge(l, &s);
    mr_free(first);
    mr_free(between);
    *out = s;
    return MR_OK;
}
