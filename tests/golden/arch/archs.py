# SPDX-License-Identifier: Apache-2.0
"""The tiny models that make_arch_reference.py makes: for each file its class, its tokenizer and its configuration."""

from typing import NamedTuple

VOCAB_SIZE = 288
N_LAYERS = 5

# Of all models. Most classes take a head size of their own: 4 heads of 16 are wider than the model. The epsilon is large
# enough to be seen in the logits.
BASE = dict(vocab_size=VOCAB_SIZE, num_hidden_layers=N_LAYERS, hidden_size=32, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, intermediate_size=48, max_position_embeddings=512,
            tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=None, rms_norm_eps=1e-2)
# Of classes whose heads divide the width.
WIDE = dict(hidden_size=64, head_dim=None)
SMALL = dict(hidden_size=32, num_hidden_layers=2, tie_word_embeddings=True)
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16)
ROUTED = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1)
# transformers computes the two inner norms with an epsilon of 1e-6, llama.cpp with that of the file.
MLA = dict(rms_norm_eps=1e-6, hidden_size=64, head_dim=None, num_key_value_heads=4, qk_nope_head_dim=16,
           qk_rope_head_dim=16, v_head_dim=16, kv_lora_rank=32)


def rope(theta, **more):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=theta) | more)


def yarn(theta, factor, original, **more):
    parameters = rope(theta, rope_type="yarn", factor=float(factor), original_max_position_embeddings=original, **more)
    return parameters | dict(max_position_embeddings=factor * original)


def longrope(original, longest):
    parameters = rope(1e4, rope_type="longrope", partial_rotary_factor=0.75, original_max_position_embeddings=original,
                      short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], long_factor=[1.0, 1.5, 2.5, 4.0, 7.0, 12.0])
    return parameters | dict(original_max_position_embeddings=original, max_position_embeddings=longest,
                             tie_word_embeddings=True)


class Arch(NamedTuple):
    cls: str               # of transformers
    pre: str               # the pre-tokenizer that published files name, or "spm" for SentencePiece
    config: dict
    extra: dict = {}       # entries of published config.json files that the class drops and the converter reads
    scale: dict = {}       # factors of the random values, by a part of the tensor's name
    is_mxfp4: bool = False  # experts in MXFP4
    has_mtp: bool = False   # a layer behind the last
    is_pooled: bool = False  # results are the last id's embedding
    no_rope: bool = False    # no layer has RoPE
    as_arch: str = ""        # of the GGUF file, where the converter names another
    keys: dict = {}          # of the GGUF file that the converter does not write
    betas: tuple = ()        # YaRN's; llama.cpp is told, as it does not read the keys
    n_witnessed: int = 0     # positions that llama.cpp computes alike; 0: all
    noise: float = 5e-4      # part of the weights that may change without a jump of the logits
    agreement: float = 5e-6  # largest difference between transformers and llama.cpp, of the largest logit


DSV3_ROPE = yarn(1e4, 40, 4096, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)
DSV2_ROPE = yarn(1e4, 40, 4096, beta_fast=32.0, beta_slow=1.0, mscale=0.707, mscale_all_dim=0.707)
DSA = MLA | ROUTED | rope(1e6) | dict(q_lora_rank=16, v_head_dim=32, first_k_dense_replace=1, index_head_dim=64,
                                      routed_scaling_factor=2.5, num_nextn_predict_layers=0)
# Published files have "truncate": false, which GGUF has no key for; llama.cpp rounds the range as with true.
GPT_OSS = yarn(1.5e5, 32, 4096, beta_fast=32.0, beta_slow=1.0) | dict(
    num_local_experts=8, num_experts_per_tok=3, intermediate_size=32, sliding_window=16)
# transformers normalises q and k of the delta rule with an epsilon of 1e-6, llama.cpp with that of the file.
DELTA = EXPERTS | rope(1e7, partial_rotary_factor=0.25) | dict(
    rms_norm_eps=1e-6, head_dim=32, norm_topk_prob=True, shared_expert_intermediate_size=16, linear_key_head_dim=16,
    linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4)

# By the name of the files.
ARCHS = {
    "qwen3moe": Arch("Qwen3MoeForCausalLM", "qwen2", EXPERTS | rope(1e6) | dict(norm_topk_prob=True)),
    "qwen2moe": Arch("Qwen2MoeForCausalLM", "qwen2",
                     WIDE | EXPERTS | rope(1e6) | dict(shared_expert_intermediate_size=8)),
    "olmo2": Arch("Olmo2ForCausalLM", "dbrx", WIDE | rope(5e5)),
    "smollm3": Arch("SmolLM3ForCausalLM", "llama-bpe", WIDE | rope(5e6) | dict(tie_word_embeddings=True)),
    "granite": Arch("GraniteForCausalLM", "refact",
                    WIDE | rope(1e7) | dict(embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
                                            attention_multiplier=0.2),
                    scale={"embed_tokens": 0.1}),
    # Frequencies of zero turn nothing.
    "granite-nope": Arch("GraniteForCausalLM", "refact",
                         rope(1e7) | dict(hidden_size=32, head_dim=None, num_attention_heads=2, num_key_value_heads=1,
                                          embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
                                          attention_multiplier=0.2),
                         scale={"embed_tokens": 0.1}, no_rope=True),
    # Every sixth layer is global, so there have to be more than five.
    "gemma3": Arch("Gemma3ForCausalLM", "spm",
                   dict(num_hidden_layers=7, sliding_window=16, query_pre_attn_scalar=16, tie_word_embeddings=True,
                        rope_parameters={
                            "full_attention": dict(rope_type="linear", factor=2.0, rope_theta=1e5),
                            "sliding_attention": dict(rope_type="default", rope_theta=1e4)}),
                   agreement=2e-4),  # llama.cpp's GELU is a table of float16
    # llama.cpp knows the model of 27B by its 62 layers. There the heads are wider than their share of the width.
    "gemma3-27b": Arch("Gemma3ForCausalLM", "spm",
                       dict(num_hidden_layers=62, hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                            intermediate_size=16, sliding_window=16, query_pre_attn_scalar=8, tie_word_embeddings=True,
                            rope_parameters={
                                "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                "sliding_attention": dict(rope_type="default", rope_theta=1e4)}),
                       agreement=2e-3),  # llama.cpp's GELU, in more layers
    "phi3": Arch("Phi3ForCausalLM", "spm", WIDE | rope(1e4) | dict(original_max_position_embeddings=512)),
    # llama.cpp leaves the window out.
    "phi3-window": Arch("Phi3ForCausalLM", "spm",
                        WIDE | rope(1e4) | dict(original_max_position_embeddings=512, hidden_size=32,
                                                num_attention_heads=2, num_key_value_heads=1, sliding_window=16),
                        n_witnessed=16),
    # The texts and contexts are longer than 32 positions, so both programs take the long factors.
    "phi3-longrope": Arch("Phi3ForCausalLM", "gpt-4o", WIDE | longrope(32, 512)),
    # They are not longer than 512 positions.
    "phi3-longrope-short": Arch("Phi3ForCausalLM", "gpt-4o",
                                WIDE | longrope(512, 1024) | dict(hidden_size=32, num_attention_heads=2,
                                                                  num_key_value_heads=1)),
    # Attention is scaled by the position from the 17th on, and the two betas differ from the usual 32 and 1.
    "mistral3": Arch("Ministral3ForCausalLM", "tekken",
                     yarn(1e4, 32, 16, beta_fast=0.6, beta_slow=0.06, mscale=1.0, mscale_all_dim=1.0,
                          llama_4_scaling_beta=0.1)),
    # llama.cpp knows the form without q_lora_rank by its 27 layers.
    "deepseek2-lite": Arch("DeepseekV2ForCausalLM", "deepseek-llm",
                           MLA | ROUTED | DSV2_ROPE | dict(
                               num_hidden_layers=27, hidden_size=24, num_attention_heads=2, num_key_value_heads=2,
                               q_lora_rank=None, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2,
                               moe_intermediate_size=6, first_k_dense_replace=1, routed_scaling_factor=1.0),
                           dict(scoring_func="softmax")),
    "deepseek2": Arch("DeepseekV3ForCausalLM", "deepseek-v3",
                      MLA | ROUTED | DSV3_ROPE | dict(q_lora_rank=24, n_group=4, topk_group=2, norm_topk_prob=True,
                                                      first_k_dense_replace=1, routed_scaling_factor=2.5,
                                                      num_nextn_predict_layers=0),
                      dict(scoring_func="sigmoid")),
    # Experts in one group, and other betas than 32 and 1.
    "kimi-k2": Arch("DeepseekV3ForCausalLM", "kimi-k2",
                    MLA | ROUTED | yarn(5e4, 32, 4096, beta_fast=1.0, beta_slow=1.0, mscale=1.0,
                                        mscale_all_dim=1.0) | dict(
                        q_lora_rank=24, n_group=1, topk_group=1, norm_topk_prob=True, first_k_dense_replace=1,
                        routed_scaling_factor=2.827, num_nextn_predict_layers=0),
                    dict(scoring_func="sigmoid"), betas=(1.0, 1.0)),
    # Scores grow by the position from the 17th on. Published files are made of another format, which transformers does
    # not read; its class for the next model has the same layers.
    "mistral-large3": Arch("Mistral4ForCausalLM", "tekken",
                           MLA | ROUTED | yarn(1e4, 32, 16, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                                               mscale_all_dim=1.0, llama_4_scaling_beta=0.1) | dict(
                               q_lora_rank=24, n_group=1, topk_group=1, norm_topk_prob=True, first_k_dense_replace=1,
                               routed_scaling_factor=1.0),
                           dict(scoring_func="softmax"), as_arch="deepseek2",
                           keys={"attention.temperature_scale": 0.1, "attention.temperature_length": 16}),
    "glm4moe": Arch("Glm4MoeForCausalLM", "glm4",
                    ROUTED | rope(1e6, partial_rotary_factor=0.5) | dict(
                        attention_bias=True, use_qk_norm=True, first_k_dense_replace=1, norm_topk_prob=True,
                        routed_scaling_factor=2.5, num_nextn_predict_layers=0),
                    dict(num_nextn_predict_layers=1), has_mtp=True),
    # Wide values of the gate and up projections reach the clamp of 7.
    "gpt-oss": Arch("GptOssForCausalLM", "gpt-4o", GPT_OSS, scale={"gate_up_proj": 4.0}),
    "gpt-oss-mxfp4": Arch("GptOssForCausalLM", "gpt-4o", GPT_OSS, is_mxfp4=True, scale={"router.weight": 4.0},
                          noise=5e-3, extra=dict(quantization_config=dict(quant_method="mxfp4"))),
    "minimax-m2": Arch("MiniMaxM2ForCausalLM", "minimax-m2",
                       rope(5e6, partial_rotary_factor=0.5) | dict(
                           num_local_experts=8, num_experts_per_tok=3, intermediate_size=16),
                       dict(rotary_dim=8, scoring_func="sigmoid")),
    "hunyuan-moe": Arch("HunYuanMoEV1ForCausalLM", "hunyuan",
                        rope(1e4) | dict(num_experts=8, moe_topk=[3] * N_LAYERS, intermediate_size=16),
                        dict(moe_intermediate_size=[16] * N_LAYERS, num_shared_expert=[1] * N_LAYERS)),
    # llama.cpp reads as many KV heads as heads, as the published model has them.
    "dots1": Arch("Dots1ForCausalLM", "qwen2",
                  ROUTED | rope(1e7) | dict(num_key_value_heads=4, n_shared_experts=2, norm_topk_prob=True,
                                            first_k_dense_replace=1, routed_scaling_factor=2.5),
                  dict(scoring_func="sigmoid")),
    "ernie4_5-moe": Arch("Ernie4_5_MoeForCausalLM", "spm",
                         rope(5e5) | dict(intermediate_size=64, moe_intermediate_size=16, moe_k=3, moe_num_experts=8,
                                          moe_num_shared_experts=2, moe_layer_start_index=1)),
    # Up to 2,048 positions the indexer leaves none out.
    "glm-dsa": Arch("GlmMoeDsaForCausalLM", "glm4", DSA | dict(hidden_size=48, index_n_heads=4), dict(scoring_func="sigmoid")),
    # As Granite Code has them.
    "llama-biases": Arch("LlamaForCausalLM", "refact",
                         SMALL | rope(1e4) | dict(attention_bias=True, mlp_bias=True)),
    # Heads whose size is no multiple of 16. llama has the shape of the smallest models that are published.
    "llama-heads8": Arch("LlamaForCausalLM", "spm",
                         SMALL | rope(1e4) | dict(hidden_size=64, head_dim=8, num_attention_heads=8,
                                                  num_key_value_heads=4)),
    "qwen3-heads24": Arch("Qwen3ForCausalLM", "qwen2", SMALL | rope(1e6) | dict(head_dim=24)),
    "phi3-heads40": Arch("Phi3ForCausalLM", "spm",
                         SMALL | rope(1e4, partial_rotary_factor=0.75) | dict(
                             original_max_position_embeddings=512, hidden_size=80, head_dim=None,
                             num_attention_heads=2, num_key_value_heads=1)),
    # Values are latents of 24, keys are 34 wide, and the last 10 of these rotate.
    "deepseek2-heads34": Arch("DeepseekV3ForCausalLM", "deepseek-v3",
                              MLA | ROUTED | DSV3_ROPE | SMALL | dict(
                                  qk_nope_head_dim=14, qk_rope_head_dim=10, v_head_dim=12, kv_lora_rank=24,
                                  q_lora_rank=24, n_group=4, topk_group=2, norm_topk_prob=True,
                                  first_k_dense_replace=1, routed_scaling_factor=2.5, num_nextn_predict_layers=0,
                                  tie_word_embeddings=False),
                              dict(scoring_func="sigmoid")),
    "qwen3-embedding": Arch("Qwen3ForCausalLM", "qwen2", rope(1e6) | dict(tie_word_embeddings=True), is_pooled=True),
    "qwen3next": Arch("Qwen3NextForCausalLM", "qwen2", DELTA),
    "qwen35moe": Arch("Qwen3_5MoeForCausalLM", "qwen35", DELTA),
}
