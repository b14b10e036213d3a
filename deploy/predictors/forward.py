# SPDX-License-Identifier: Apache-2.0
"""The layers of llama and bamboo models with ReLU units, in numpy: float32, a window of tokens at a time."""
import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Rope:
    """Rotates the pairs (2i, 2i + 1) of the first columns of each head by their positions."""

    def __init__(self, shape, length):
        freq = shape.rope_base ** (-np.arange(0, shape.rotated, 2) / shape.rotated)
        angle = np.outer(np.arange(length), freq)
        self.cos, self.sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        self.rotated = shape.rotated

    def __call__(self, x):
        """x: [heads, tokens, head_dim]."""
        out = x.copy()
        a, b = x[..., 0:self.rotated:2], x[..., 1:self.rotated:2]
        out[..., 0:self.rotated:2] = a * self.cos - b * self.sin
        out[..., 1:self.rotated:2] = a * self.sin + b * self.cos
        return out


class Layer:
    def __init__(self, shape, weights, rope):
        self.shape, self.w, self.rope = shape, weights, rope

    def _heads(self, h, name, n):
        return (h @ self.w[name].T).reshape(len(h), n, self.shape.head_dim).transpose(1, 0, 2)

    def attention(self, x):
        """x plus the attention of one window. x: [tokens, width]."""
        s, h = self.shape, rms_norm(x, self.w["attn_norm"], self.shape.eps)
        q, k = self.rope(self._heads(h, "attn_q", s.heads)), self.rope(self._heads(h, "attn_k", s.kv_heads))
        v = self._heads(h, "attn_v", s.kv_heads)
        k, v = (np.repeat(t, s.heads // s.kv_heads, axis=0) for t in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(s.head_dim))
        scores += np.triu(np.full((len(x), len(x)), -np.inf, np.float32), 1)
        o = (softmax(scores) @ v).transpose(1, 0, 2).reshape(len(x), s.heads * s.head_dim)
        return x + o @ self.w["attn_output"].T

    def units(self, x):
        """What the neurons give for rows x, the input of the feed-forward part before its norm: [rows, neurons]."""
        h = rms_norm(x, self.w["ffn_norm"], self.shape.eps)
        up = h @ self.w["ffn_up"].T
        if self.shape.arch == "bamboo":
            up = np.maximum(up, 0)
        return np.maximum(h @ self.w["ffn_gate"].T, 0) * up

    def down(self, x, units):
        return x + units @ self.w["ffn_down_t"]


    def run(self, x, fc1, fc2, threshold):
        """The layer with the active neurons only. Returns the rows, and which neurons are active: [tokens, neurons]."""
        x = self.attention(x)
        active = scores_of(fc1, fc2, x) >= threshold
        return self.down(x, self.units(x) * active), active


def scores_of(fc1, fc2, x):
    return np.maximum(x @ fc1.T, 0) @ fc2.T


def perplexity(model, rows, ids):
    """Of the second half of each window, as `millrace perplexity` scores it. rows: [windows, tokens, width]."""
    s, half = model.shape, ids.shape[1] // 2
    name = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
    matrix, norm = model.values(name, None, s.width), model.values("output_norm.weight", s.width)
    total = 0.0
    for x, window in zip(rows, ids):
        logits = rms_norm(x[half:-1], norm, s.eps) @ matrix.T
        top = logits.max(axis=-1)
        right = logits[np.arange(len(logits)), window[half + 1:]]
        total += float(np.sum(np.log(np.exp(logits - top[:, None]).sum(axis=-1)) + top - right))
    return float(np.exp(total / (len(ids) * (ids.shape[1] - 1 - half))))
