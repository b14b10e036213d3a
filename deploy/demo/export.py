#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the trained model as a GGUF file: matrices as Q8_0, norms as F32, the tokenizer inside."""
import argparse
import os

import gguf
import sentencepiece as spm
import torch

from model import Config


def add_tokenizer(w, sp):
    def kind(i):
        if sp.is_unknown(i):
            return gguf.TokenType.UNKNOWN
        if sp.is_control(i):
            return gguf.TokenType.CONTROL
        return gguf.TokenType.BYTE if sp.is_byte(i) else gguf.TokenType.NORMAL

    ids = range(sp.vocab_size())
    w.add_tokenizer_model("llama")
    w.add_token_list([sp.id_to_piece(i).encode() for i in ids])
    w.add_token_scores([sp.get_score(i) for i in ids])
    w.add_token_types([kind(i) for i in ids])
    w.add_unk_token_id(sp.unk_id())
    w.add_bos_token_id(sp.bos_id())
    w.add_eos_token_id(sp.eos_id())
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("trained", help="the folder that train.py wrote")
    ap.add_argument("out", nargs="?", default=os.path.join(here, "millrace-demo.gguf"))
    a = ap.parse_args()
    c = Config()
    sp = spm.SentencePieceProcessor(model_file=os.path.join(a.trained, "tokenizer.model"))
    state = torch.load(os.path.join(a.trained, "model.pt"), map_location="cpu", weights_only=True)

    w = gguf.GGUFWriter(a.out, "llama")
    w.add_name("Millrace demo")
    w.add_description("A very small story teller, trained on generated stories")
    w.add_license("Apache-2.0")
    w.add_languages(["en"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_vocab_size(c.vocab_size)
    w.add_context_length(c.context)
    w.add_block_count(c.layers)
    w.add_embedding_length(c.width)
    w.add_feed_forward_length(c.ffn)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(c.rope_base)
    add_tokenizer(w, sp)
    for name, t in state.items():  # the names are those of GGUF already; no output.weight: it is the embedding
        data = t.float().numpy()
        if data.ndim == 2:
            q8 = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(name, gguf.quants.quantize(data, q8), raw_dtype=q8)
        else:
            w.add_tensor(name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{a.out}: {os.path.getsize(a.out)} bytes")


if __name__ == "__main__":
    main()
