/* Reads the RoPE of a model: one for all layers, or a second one for the layers with a sliding window. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/fmath.h"
#include "engine/gguf/layer_info.h"

/* Older converters wrote a factor without a scaling type, and meant linear scaling. */
static mr_rope_scaling read_scaling_type(model_keys *s, bool has_factor) {
    mr_str type = {0};
    if (!keys_has(s, "rope.scaling.type"))
        return has_factor ? MR_ROPE_SCALING_LINEAR : MR_ROPE_SCALING_NONE;
    s->status = mr_gguf_get_str(s->g, s->key, &type, s->err);
    if (s->status || mr_str_is(type, "none"))
        return MR_ROPE_SCALING_NONE;
    if (mr_str_is(type, "linear"))
        return MR_ROPE_SCALING_LINEAR;
    if (mr_str_is(type, "yarn"))
        return MR_ROPE_SCALING_YARN;
    if (mr_str_is(type, "longrope"))
        return MR_ROPE_SCALING_LONGROPE;
    char text[24] = {0};
    for (size_t i = 0; i < type.len && i + 1 < sizeof text; i++)
        text[i] = type.data[i] >= 0x20 && type.data[i] < 0x7f ? type.data[i] : '?';
    s->status = mr_err_set(s->err, MR_E_UNSUPPORTED, "key '%s': '%s'; none, linear, yarn and longrope are supported",
                           s->key, text);
    return MR_ROPE_SCALING_NONE;
}

static void read_rope(model_keys *s, const mr_model_info *m, int32_t k_dim, mr_model_rope *r) {
    static const char FACTOR[] = "rope.scaling.factor", LINEAR[] = "rope.scale_linear";
    const float least = 1e-3f, most = 1e6f;
    r->n_rot = keys_opt_int(s, "rope.dimension_count", 2, k_dim, k_dim);
    if (!s->status && r->n_rot % 2 != 0)
        s->status =
            mr_err_set(s->err, MR_E_FORMAT, "key '%s': %d is odd", keys_name(s, "rope.dimension_count"), r->n_rot);
    r->freq_base = keys_opt_float(s, "rope.freq_base", 1, 1e15f, 10000);
    /* Some converters wrote a factor of 0 for no scaling. */
    float factor = keys_has(s, FACTOR) ? keys_need_float(s, FACTOR, 0, most) : keys_opt_float(s, LINEAR, 0, most, 0);
    r->scaling = read_scaling_type(s, factor != 0 && factor != 1);
    r->factor = r->scaling == MR_ROPE_SCALING_NONE || factor == 0 ? 1 : factor;
    if (!s->status && r->factor < least)
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %g is out of the range %g to %g", keys_name(s, FACTOR),
                               (double)r->factor, (double)least, (double)most);
    r->original_context =
        keys_opt_int(s, "rope.scaling.original_context_length", 1, MR_MODEL_MAX_CONTEXT, m->context_length);
    r->attn_factor = keys_opt_float(s, "rope.scaling.attn_factor", least, most, 1) *
                     keys_opt_float(s, "rope.scaling.yarn_attn_factor", least, most, 1);
    r->ext_factor =
        keys_opt_float(s, "rope.scaling.yarn_ext_factor", 0, most, r->scaling == MR_ROPE_SCALING_YARN ? 1 : 0);
    r->beta_fast = keys_opt_float(s, "rope.scaling.yarn_beta_fast", least, most, 32);
    r->score_factor = 1;
    r->beta_slow = keys_opt_float(s, "rope.scaling.yarn_beta_slow", least, most, 1);
}

/* The converters of llama.cpp write a tenth of the factor in front of the logarithm. */
static void move_yarn_size(model_keys *s, mr_model_rope *r) {
    float m = keys_opt_float(s, "rope.scaling.yarn_log_multiplier", 0, 1e3f, 0);
    if (s->status || r->scaling != MR_ROPE_SCALING_YARN || m == 0)
        return;
    double log_factor = mr_log((double)r->factor), size = 1.0 + (double)m * log_factor;
    r->attn_factor /= (float)(1.0 + 0.1 * log_factor);
    r->score_factor = (float)(size * size);
}

static void divide_yarn_size(model_keys *s, mr_model_rope *r) {
    float m = keys_opt_float(s, "rope.scaling.yarn_log_multiplier", 0, 1e3f, 1);
    if (!s->status && r->scaling == MR_ROPE_SCALING_YARN)
        r->attn_factor /= (float)(1.0 + 0.1 * (double)m * mr_log((double)r->factor));
}

/* The same frequencies without scaling, from A.rope.freq_base_swa where the file has it. */
static mr_model_rope window_rope(model_keys *s, const arch_habits *habits, const mr_model_rope *all) {
    float base = habits->window_freq_base > 0 ? habits->window_freq_base : all->freq_base;
    return (mr_model_rope){
        .n_rot = all->n_rot,
        .freq_base = keys_opt_float(s, "rope.freq_base_swa", 1, 1e15f, base),
        .factor = 1,
        .original_context = all->original_context,
        .attn_factor = 1,
        .score_factor = 1,
        .beta_fast = all->beta_fast,
        .beta_slow = all->beta_slow,
    };
}

void rope_info_read(model_keys *s, const arch_habits *habits, int32_t k_dim, mr_model_info *m) {
    read_rope(s, m, k_dim, &m->ropes[0]);
    if (habits->yarn_scales_scores)
        move_yarn_size(s, &m->ropes[0]);
    if (habits->yarn_keeps_size)
        divide_yarn_size(s, &m->ropes[0]);
    m->n_ropes = 1;
    if (habits->plain_window_rope || keys_has(s, "rope.freq_base_swa"))
        m->ropes[m->n_ropes++] = window_rope(s, habits, &m->ropes[0]);
}

static const char FIXED[] = "rope_freqs.weight", SHORT[] = "rope_factors_short.weight",
                  LONG[] = "rope_factors_long.weight";

static mr_status check_factors(const mr_gguf *g, const char *name, const mr_model_rope *r, mr_err *err) {
    const mr_gguf_tensor *t = mr_gguf_find_tensor(g, name);
    if (!t)
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s' is missing; hint: LongRoPE needs '%s' and '%s'", name, SHORT,
                          LONG);
    if (t->type != MR_TYPE_F32)
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s': the type is %s, not F32", name, mr_type_name(t->type));
    return model_info_check_shape(t, r->n_rot / 2, 1, err);
}

mr_status rope_info_read_factors(const mr_gguf *g, mr_model_rope *r, mr_err *err) {
    if (mr_gguf_find_tensor(g, FIXED)) {
        r->factors = MR_ROPE_FACTORS_FIXED;
        return check_factors(g, FIXED, r, err);
    }
    if (r->scaling != MR_ROPE_SCALING_LONGROPE && !mr_gguf_find_tensor(g, LONG) && !mr_gguf_find_tensor(g, SHORT))
        return MR_OK;
    r->factors = MR_ROPE_FACTORS_BY_CONTEXT;
    mr_status status = check_factors(g, SHORT, r, err);
    return status == MR_OK ? check_factors(g, LONG, r, err) : status;
}

const char *mr_model_rope_factors(const mr_model_rope *rope, int32_t max_context) {
    switch (rope->factors) {
    case MR_ROPE_FACTORS_FIXED:
        return FIXED;
    case MR_ROPE_FACTORS_BY_CONTEXT:
        return max_context > rope->original_context ? LONG : SHORT;
    default:
        return NULL;
    }
}
