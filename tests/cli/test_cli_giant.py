#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model with the shape of DeepSeek-V3 (671 thousand million weights) is planned for a list of hosts. The weights are
holes in sparse files. The forecast is compared with plain arithmetic: bytes that steps read, divided by bandwidth."""
import json
import unittest

import cli
import sparse_gguf
from sparse_gguf import F32, Q4_K, Q6_K, Q8_0, BOOL, FLOAT, STRING, U32

LAYERS, DENSE, WIDTH, HEADS, EXPERTS, USED = 61, 3, 7168, 128, 256, 8
HOSTS, BANDWIDTH, MEMORY_GB = 8, 140e9, 80
HOP_S = 50e-6
FACTOR = 1.15  # between forecast and arithmetic: layers are whole, and messages, keys and values take some time, too


def keys():
    own = [("block_count", U32, LAYERS), ("context_length", U32, 163840), ("embedding_length", U32, WIDTH),
           ("feed_forward_length", U32, 18432), ("attention.head_count", U32, HEADS),
           ("attention.head_count_kv", U32, 1), ("attention.layer_norm_rms_epsilon", FLOAT, 1e-6),
           ("attention.q_lora_rank", U32, 1536), ("attention.kv_lora_rank", U32, 512),
           ("attention.key_length", U32, 576), ("attention.value_length", U32, 512),
           ("attention.key_length_mla", U32, 192), ("attention.value_length_mla", U32, 128),
           ("rope.dimension_count", U32, 64), ("leading_dense_block_count", U32, DENSE),
           ("expert_count", U32, EXPERTS), ("expert_used_count", U32, USED), ("expert_group_count", U32, 8),
           ("expert_group_used_count", U32, 4), ("expert_gating_func", U32, 2), ("expert_shared_count", U32, 1),
           ("expert_feed_forward_length", U32, 2048), ("expert_weights_scale", FLOAT, 2.5),
           ("expert_weights_norm", BOOL, True), ("vocab_size", U32, 129280)]
    return [("general.architecture", STRING, "deepseek2"), ("general.name", STRING, "giant")] + [
        (f"deepseek2.{name}", kind, value) for name, kind, value in own]


def layer(i):
    found = [("attn_norm.weight", (WIDTH,), F32), ("ffn_norm.weight", (WIDTH,), F32),
             ("attn_q_a.weight", (WIDTH, 1536), Q4_K), ("attn_q_a_norm.weight", (1536,), F32),
             ("attn_q_b.weight", (1536, HEADS * 192), Q4_K), ("attn_kv_a_mqa.weight", (WIDTH, 576), Q4_K),
             ("attn_kv_a_norm.weight", (512,), F32), ("attn_k_b.weight", (128, 512, HEADS), Q8_0),
             ("attn_v_b.weight", (512, 128, HEADS), Q4_K), ("attn_output.weight", (HEADS * 128, WIDTH), Q4_K)]
    if i < DENSE:
        found += [("ffn_gate.weight", (WIDTH, 18432), Q4_K), ("ffn_up.weight", (WIDTH, 18432), Q4_K),
                  ("ffn_down.weight", (18432, WIDTH), Q4_K)]
    else:
        found += [("ffn_gate_inp.weight", (WIDTH, EXPERTS), F32), ("exp_probs_b.bias", (EXPERTS,), F32),
                  ("ffn_gate_exps.weight", (WIDTH, 2048, EXPERTS), Q4_K),
                  ("ffn_up_exps.weight", (WIDTH, 2048, EXPERTS), Q4_K),
                  ("ffn_down_exps.weight", (2048, WIDTH, EXPERTS), Q4_K),
                  ("ffn_gate_shexp.weight", (WIDTH, 2048), Q4_K), ("ffn_up_shexp.weight", (WIDTH, 2048), Q4_K),
                  ("ffn_down_shexp.weight", (2048, WIDTH), Q4_K)]
    return [(f"blk.{i}.{name}", shape, kind) for name, shape, kind in found]


def tensors():
    return ([("token_embd.weight", (WIDTH, 129280), Q4_K)] + [t for i in range(LAYERS) for t in layer(i)]
            + [("output_norm.weight", (WIDTH,), F32), ("output.weight", (WIDTH, 129280), Q6_K)])


def step_bytes(all_tensors, rows):
    """What a step of so many rows reads in all layers. Each row takes USED experts at random."""
    read = 1 - (1 - USED / EXPERTS) ** rows
    return sum(sparse_gguf.n_bytes(shape, kind) * (read if "_exps." in name else 1)
               for name, shape, kind in all_tensors if not name.startswith("token_embd."))


def arithmetic(all_tensors, n):
    """Tokens per second of n streams, with the best number of micro-batches and layers that can be divided."""
    best = 0
    for m in range(1, min(n, 2 * HOSTS + 2) + 1):
        way = step_bytes(all_tensors, n / m) / BANDWIDTH
        best = max(best, n / max(way + HOSTS * HOP_S, m * way / HOSTS))
    return best


class Giant(cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tensors = tensors()
        cls.giant = sparse_gguf.write(cls.path("giant"), keys(), cls.tensors, 9)
        with open(cls.path("hosts"), "w", encoding="utf-8") as f:
            f.write("# eight equal hosts\n\n")
            for i in range(HOSTS):
                f.write(f"node{i} mem={MEMORY_GB}GB bw={BANDWIDTH / 1e9}GB/s link=1.25GB/s latency=50us\n")

    def test_plan_for_eight_hosts(self):
        done = self.run_bin("plan", self.giant, "--facts", self.path("hosts"), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        stages = found["plan"]
        weights = sum(sparse_gguf.n_bytes(shape, kind) for _, shape, kind in self.tensors)
        print(f"\n{weights / 1e9:.0f} GB of weights, {step_bytes(self.tensors, 1) / 1e9:.1f} GB read for a token; planned "
              f"in {done.seconds:.1f} s:", [s["last_layer"] - s["first_layer"] + 1 for s in stages])
        self.assertLess(done.seconds, 60)  # against a search without an end
        self.assertEqual(sorted(s["rank"] for s in stages), list(range(HOSTS)))
        for s in stages:
            self.assertLess(s["weight_bytes"] + s["kv_bytes"] + s["buffer_bytes"], MEMORY_GB << 30, s)
        steps = found["predicted"]["step_of_1_row_s"]
        self.assertLess(max(steps) * HOSTS / sum(steps), 1.2)  # the last stage has the output matrix, too
        self.assertTrue(all(7 <= s["last_layer"] - s["first_layer"] + 1 <= 9 for s in stages), stages)
        for rate in found["predicted"]["decode"]:
            want, got = arithmetic(self.tensors, rate["sequences"]), rate["tokens_per_second"]
            print(f"{rate['sequences']:3} streams: forecast {got:6.2f} tokens/s, arithmetic {want:6.2f}")
            self.assertLess(got, 1.01 * want, rate)
            self.assertGreater(got, want / FACTOR, rate)

    def test_chunk_of_prompts(self):
        """A chunk is worth more rows until products take longer than reading: a row has 37 thousand million products."""
        chunks = {}
        for ops, args in (("4T", ()), ("20T", ()), ("80T", ()), ("20T", ("--chunk", "64")), ("80T", ("--mem", "53400M"))):
            path = self.file("fast", "".join(f"node{i} mem=80GB bw=140GB/s ops={ops}\n" for i in range(HOSTS)))
            found = json.loads(self.good("plan", self.giant, "--facts", path, "--json", *args))
            choice = found["predicted"].get("chunks")
            self.assertEqual(choice is None, "--chunk" in args)
            chunks[ops, *args] = found["chunk"], choice and choice["reason"]
        little = "larger chunks would be less than 10 % faster"
        self.assertEqual(chunks["4T",], (256, little))   # 8 of 61 layers: 8 / 61 * 74e9 * 256 / 4e12 = 0.6 s beside 0.4
        self.assertEqual(chunks["20T",], (1024, little))
        self.assertEqual(chunks["80T",][0], 2048)
        self.assertEqual(chunks["20T", "--chunk", "64"], (64, None))
        self.assertEqual(chunks["80T", "--mem", "53400M"],
                         (1024, "there is no memory for the buffers of a larger chunk"))

    def test_hosts_that_differ(self):
        """The faster host gets more layers, the small host no more than fit."""
        lines = [f"node{i} mem={MEMORY_GB}GB bw=140GB/s" for i in range(HOSTS - 2)]
        path = self.file("uneven", "\n".join(lines + ["fast mem=160GB bw=280GB/s", "small mem=24GB bw=140GB/s"]))
        found = json.loads(self.good("plan", self.giant, "--facts", path, "--json"))
        sizes = {s["host"]: s["last_layer"] - s["first_layer"] + 1 for s in found["plan"]}
        need = {s["host"]: s["weight_bytes"] + s["kv_bytes"] + s["buffer_bytes"] for s in found["plan"]}
        self.assertGreater(sizes["fast"], 1.5 * sizes["node3"])
        self.assertLess(need["small"], 24 << 30)

    def test_too_few_hosts(self):
        path = self.file("few", "a mem=64GB bw=140GB/s\nb mem=64GB bw=140GB/s\n")
        done = self.run_bin("plan", self.giant, "--facts", path, "--mem", "64G")
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not fit the memory of 2 ranks: weights take", done.stderr.decode())

    def test_wrong_lists(self):
        def refused(text, words):
            self.bad(1, words, "plan", self.model, "--facts", self.file("wrong", text))
        refused("# nothing\n", "there is no host in it")
        refused("node1 mem=64GB\n", "line 1: node1 has no bw")
        refused("# a\nnode1 bw=64GB/s\n", "line 2: node1 has no mem")
        refused("node1 mem=64GB bw=8GB/s\nnode1 mem=64GB bw=8GB/s\n", "line 2: node1 is there twice")
        refused("n/1 mem=64GB bw=8GB/s\n", "n/1 is no name of a host")
        refused("n" * 64 + " mem=64GB bw=8GB/s\n", "is no name of a host")
        refused("n" * 600, "line 1: it has more than 511 bytes")
        for word in ("mem=64GB/s", "bw=", "bw=-1", "bw=nan", "bw=0", "bw=1e30", "bw=8GB/m", "ops=2TB", "latency=50", "latency=1h", "link", "x=1"):
            refused(f"n mem=64GB bw=8GB/s {word}\n", f"line 1: {word} is none of mem=64GB")


if __name__ == "__main__":
    unittest.main()
