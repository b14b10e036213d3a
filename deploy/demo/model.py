# SPDX-License-Identifier: Apache-2.0
"""The llama architecture in PyTorch, with the names and the conventions of a GGUF file."""
from dataclasses import dataclass

import gguf
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab_size: int = 1024
    context: int = 512
    layers: int = 8
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 512
    eps: float = 1e-5
    rope_base: float = 10000.0


class Norm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(c.width)), c.eps

    def forward(self, x):
        x = x if x.dtype == torch.float64 else x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope(x, cos, sin):
    """Rotates the interleaved pairs (2i, 2i+1), as GGUF's llama does. x: [rows, heads, tokens, head_dim]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.attn_norm, self.ffn_norm = Norm(c), Norm(c)
        self.attn_q = nn.Linear(c.width, c.heads * c.head_dim, bias=False)
        self.attn_k = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=False)
        self.attn_v = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=False)
        self.attn_output = nn.Linear(c.heads * c.head_dim, c.width, bias=False)
        self.ffn_gate = nn.Linear(c.width, c.ffn, bias=False)
        self.ffn_up = nn.Linear(c.width, c.ffn, bias=False)
        self.ffn_down = nn.Linear(c.ffn, c.width, bias=False)

    def forward(self, x, cos, sin):
        c, (rows, tokens, _) = self.c, x.shape
        h = self.attn_norm(x)
        q = self.attn_q(h).view(rows, tokens, c.heads, c.head_dim).transpose(1, 2)
        k = self.attn_k(h).view(rows, tokens, c.kv_heads, c.head_dim).transpose(1, 2)
        v = self.attn_v(h).view(rows, tokens, c.kv_heads, c.head_dim).transpose(1, 2)
        q, k = rope(q, cos, sin).to(v.dtype), rope(k, cos, sin).to(v.dtype)
        k, v = (t.repeat_interleave(c.heads // c.kv_heads, 1) for t in (k, v))  # query head i reads KV head i / 2
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(o.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(self.unit(self.ffn_gate(h), self.ffn_up(h)))

    def unit(self, gate, up):
        return F.silu(gate) * up


class Llama(nn.Module):
    def __init__(self, c, block=Block):
        super().__init__()
        self.c = c
        self.token_embd = nn.Embedding(c.vocab_size, c.width)
        self.blk = nn.ModuleList(block(c) for _ in range(c.layers))
        self.output_norm = Norm(c)
        freq = c.rope_base ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angle = torch.outer(torch.arange(c.context, dtype=torch.float64), freq)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * c.layers) ** 0.5 if deep else 0.02)

    def forward(self, ids):
        """ids: [rows, tokens]; returns logits [rows, tokens, vocabulary]. The embedding is the output matrix too."""
        x = self.token_embd(ids)
        cos, sin = (t[:ids.shape[1]].to(x.dtype) for t in (self.cos, self.sin))
        for block in self.blk:
            x = block(x, cos, sin)
        return F.linear(self.output_norm(x), self.token_embd.weight)


def load_gguf(path, dtype=torch.float32):
    """The model with the dequantised weights of a file that export.py wrote, and the file's reader."""
    reader = gguf.GGUFReader(path)
    state = {t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    model = Llama(Config()).to(dtype)
    model.load_state_dict(state, strict=True)
    return model.eval(), reader
