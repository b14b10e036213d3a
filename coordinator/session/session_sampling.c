// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_sampling.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "coordinator/console/output.h"
#include "coordinator/serving/text/dry_breakers.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

static uint64_t random_seed(void) {
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint32_t)mr_clock_now_ns();
    return seed;
}

static float real(const mr_options *o, mr_option_id id) {
    return (float)mr_options_real(o, id);
}

static int32_t number(const mr_options *o, mr_option_id id) {
    return (int32_t)mr_options_number(o, id);
}

/* "ID=BIAS"; the bias may be -inf. */
static bool parse_bias(const char *text, int32_t *out_id, float *out_bias) {
    char *end = NULL;
    long id = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || id > INT32_MAX || *end != '=')
        return false;
    const char *value = end + 1;
    *out_id = (int32_t)id;
    if (strcmp(value, "-inf") == 0) {
        *out_bias = -INFINITY;
        return true;
    }
    *out_bias = strtof(value, &end);
    return *value && strspn(value, "0123456789.+-eE") == strlen(value) && !*end && isfinite(*out_bias);
}

static mr_status read_biases(mr_session_sampling *s, const mr_option_value *list, mr_err *err) {
    s->biases = mr_alloc_array((size_t)list->n, sizeof *s->biases);
    if (!s->biases)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d logit biases", list->n);
    for (int32_t i = 0; i < list->n; i++) {
        int32_t id;
        if (!parse_bias(list->list[i], &id, &s->biases[i]))
            return mr_err_set(err, MR_E_INVALID,
                              "--logit-bias: \"%.80s\" is not a token id and a bias, such as 29=-1.5", list->list[i]);
        if (!mr_token_buf_push(&s->bias_ids, id))
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d logit biases", list->n);
    }
    s->params.bias_ids = s->bias_ids.ids;
    s->params.biases = s->biases;
    s->params.n_biases = list->n;
    return MR_OK;
}

mr_status mr_session_sampling_init(mr_session_sampling *s, const mr_options *o, mr_err *err) {
    int64_t seed = mr_options_number(o, MR_OPTION_SEED);
    *s = (mr_session_sampling){.params = {.seed = seed < 0 ? random_seed() : (uint64_t)seed}};
#define MR_SAMPLING(type, name, option, ...)                                                                           \
    s->params.name = _Generic((type)0, int32_t : number, float : real)(o, MR_OPTION_##option);
#include "engine/sample/params.def"
#undef MR_SAMPLING
    mr_status status = read_biases(s, &o->values[MR_OPTION_LOGIT_BIAS], err);
    return status == MR_OK ? mr_sampling_params_check(&s->params, err) : status;
}

mr_status mr_session_sampling_set_tokenizer(mr_session_sampling *s, const mr_options *o, const mr_tokenizer *tok,
                                            mr_err *err) {
    const mr_option_value *given = &o->values[MR_OPTION_DRY_SEQUENCE_BREAKER];
    for (size_t i = 0; i < s->bias_ids.n; i++)
        if (s->bias_ids.ids[i] >= mr_tokenizer_n_tokens(tok))
            return mr_err_set(err, MR_E_INVALID, "--logit-bias: the model has no token %d, only %d", s->bias_ids.ids[i],
                              mr_tokenizer_n_tokens(tok));
    if (s->params.dry_multiplier == 0.0f)
        return MR_OK;
    const char *const *texts = given->n > 0 ? given->list : mr_dry_default_breakers;
    mr_status status =
        mr_dry_breakers_find(tok, texts, given->n > 0 ? given->n : MR_DRY_N_DEFAULT_BREAKERS, &s->breakers, err);
    s->params.dry_breakers = s->breakers.ids;
    s->params.n_dry_breakers = (int32_t)s->breakers.n;
    return status;
}

void mr_session_sampling_deinit(mr_session_sampling *s) {
    mr_token_buf_deinit(&s->bias_ids);
    mr_token_buf_deinit(&s->breakers);
    mr_free(s->biases);
    *s = (mr_session_sampling){0};
}

void mr_session_sampling_note(const mr_sampling_params *p) {
    char more[256] = "";
    size_t n = 0;
    const struct {
        const char *name;
        double value;
        bool on;
    } parts[] = {
        {"typical", (double)p->typical_p, p->typical_p > 0 && p->typical_p < 1},
        {"top-n-sigma", (double)p->top_n_sigma, p->top_n_sigma > 0},
        {"xtc-probability", (double)p->xtc_probability, p->xtc_probability > 0},
        {"presence-penalty", (double)p->presence_penalty, p->presence_penalty != 0},
        {"frequency-penalty", (double)p->frequency_penalty, p->frequency_penalty != 0},
        {"dry-multiplier", (double)p->dry_multiplier, p->dry_multiplier > 0},
        {"mirostat", p->mirostat, p->mirostat > 0},
        {"logit biases", p->n_biases, p->n_biases > 0},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].on)
            n += (size_t)snprintf(more + n, sizeof more - n, ", %s %g", parts[i].name, parts[i].value);
    mr_output_note("sampling: temp %g, top-k %" PRId32 ", top-p %g, min-p %g, repeat-penalty %g%s, seed %" PRIu64,
                   (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, (double)p->repeat_penalty,
                   more, p->seed);
}
