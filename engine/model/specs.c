/* engine/model/specs.c - tables of tensors that architectures share. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/arch.h"

const tensor_spec SPEC_NORMS[] = {
    {W_ATTN_NORM, "attn_norm.weight", SIZE_D, SIZE_ONE, 0},
    {W_FFN_NORM, "ffn_norm.weight", SIZE_D, SIZE_ONE, 0},
    {0},
};

const tensor_spec SPEC_GQA[] = {
    {W_Q, "attn_q.weight", SIZE_D, SIZE_Q, 0},
    {W_K, "attn_k.weight", SIZE_D, SIZE_K, 0},
    {W_V, "attn_v.weight", SIZE_D, SIZE_V, 0},
    {W_O, "attn_output.weight", SIZE_A, SIZE_D, 0},
    {0},
};

const tensor_spec SPEC_LATENT[] = {
    {W_KV_A, "attn_kv_a_mqa.weight", SIZE_D, SIZE_K, 0},
    {W_KV_A_NORM, "attn_kv_a_norm.weight", SIZE_V_HEAD, SIZE_ONE, 0},
    {W_K_B, "attn_k_b.weight", SIZE_LATENT_K_HEAD, SIZE_V_HEAD, OF_HEADS},
    {W_V_B, "attn_v_b.weight", SIZE_V_HEAD, SIZE_LATENT_V_HEAD, OF_HEADS},
    {W_O, "attn_output.weight", SIZE_LATENT_A, SIZE_D, 0},
    {W_Q_A, "attn_q_a.weight", SIZE_D, SIZE_LATENT_Q_RANK, IN_LATENT_Q},
    {W_Q_A_NORM, "attn_q_a_norm.weight", SIZE_LATENT_Q_RANK, SIZE_ONE, IN_LATENT_Q},
    {W_Q, "attn_q_b.weight", SIZE_LATENT_Q_RANK, SIZE_LATENT_Q, IN_LATENT_Q},
    {W_Q, "attn_q.weight", SIZE_D, SIZE_LATENT_Q, IN_PLAIN_Q},
    {0},
};

const tensor_spec SPEC_QKV_BIASES[] = {
    {W_Q_BIAS, "attn_q.bias", SIZE_Q, SIZE_ONE, 0},
    {W_K_BIAS, "attn_k.bias", SIZE_K, SIZE_ONE, 0},
    {W_V_BIAS, "attn_v.bias", SIZE_V, SIZE_ONE, 0},
    {0},
};

const tensor_spec SPEC_ANY_BIASES[] = {
    {W_Q_BIAS, "attn_q.bias", SIZE_Q, SIZE_ONE, OPTIONAL},
    {W_K_BIAS, "attn_k.bias", SIZE_K, SIZE_ONE, OPTIONAL},
    {W_V_BIAS, "attn_v.bias", SIZE_V, SIZE_ONE, OPTIONAL},
    {W_O_BIAS, "attn_output.bias", SIZE_D, SIZE_ONE, OPTIONAL},
    {0},
};

const tensor_spec SPEC_HEAD_NORMS[] = {
    {W_Q_NORM, "attn_q_norm.weight", SIZE_K_HEAD, SIZE_ONE, 0},
    {W_K_NORM, "attn_k_norm.weight", SIZE_K_HEAD, SIZE_ONE, 0},
    {0},
};

const tensor_spec SPEC_WIDE_NORMS[] = {
    {W_Q_NORM, "attn_q_norm.weight", SIZE_Q, SIZE_ONE, 0},
    {W_K_NORM, "attn_k_norm.weight", SIZE_K, SIZE_ONE, 0},
    {0},
};

const tensor_spec SPEC_GLU[] = {
    {W_GATE, "ffn_gate.weight", SIZE_D, SIZE_FF, IN_DENSE | OF_NEURONS},
    {W_UP, "ffn_up.weight", SIZE_D, SIZE_FF, IN_DENSE | OF_NEURONS},
    {W_DOWN, "ffn_down.weight", SIZE_FF, SIZE_D, IN_DENSE | NOT_SPARSE},
    {0},
};

const tensor_spec SPEC_GLU_BIASES[] = {
    {W_GATE_BIAS, "ffn_gate.bias", SIZE_FF, SIZE_ONE, IN_DENSE | NOT_SPARSE | OPTIONAL},
    {W_UP_BIAS, "ffn_up.bias", SIZE_FF, SIZE_ONE, IN_DENSE | NOT_SPARSE | OPTIONAL},
    {W_DOWN_BIAS, "ffn_down.bias", SIZE_D, SIZE_ONE, IN_DENSE | NOT_SPARSE | OPTIONAL},
    {0},
};

const tensor_spec SPEC_SPARSE[] = {
    {W_DOWN_ROWS, "ffn_down_t.weight", SIZE_D, SIZE_FF, IN_SPARSE | OF_NEURONS},
    {W_PREDICT_IN, "fc1.weight", SIZE_D, SIZE_PREDICTOR, IN_SPARSE},
    {W_PREDICT_OUT, "fc2.weight", SIZE_PREDICTOR, SIZE_FF, IN_SPARSE},
    {0},
};

const tensor_spec SPEC_MOE[] = {
    {W_ROUTER, "ffn_gate_inp.weight", SIZE_D, SIZE_EXPERTS, IN_EXPERTS},
    {W_GATE_EXPERTS, "ffn_gate_exps.weight", SIZE_D, SIZE_FF, IN_EXPERTS | OF_EXPERTS},
    {W_UP_EXPERTS, "ffn_up_exps.weight", SIZE_D, SIZE_FF, IN_EXPERTS | OF_EXPERTS},
    {W_DOWN_EXPERTS, "ffn_down_exps.weight", SIZE_FF, SIZE_D, IN_EXPERTS | OF_EXPERTS},
    {0},
};

const tensor_spec SPEC_CHOICE_BIAS[] = {
    {W_CHOICE_BIAS, "exp_probs_b.bias", SIZE_EXPERTS, SIZE_ONE, IN_EXPERTS},
    {0},
};

const tensor_spec SPEC_SHARED[] = {
    {W_GATE_SHARED, "ffn_gate_shexp.weight", SIZE_D, SIZE_SHARED, IN_SHARED},
    {W_UP_SHARED, "ffn_up_shexp.weight", SIZE_D, SIZE_SHARED, IN_SHARED},
    {W_DOWN_SHARED, "ffn_down_shexp.weight", SIZE_SHARED, SIZE_D, IN_SHARED},
    {0},
};
