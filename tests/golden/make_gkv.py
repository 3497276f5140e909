#!/usr/bin/env python3
"""Kept sets of G-KV's own class (https://github.com/microsoft/G-KV) on a trace's tensors.

    git clone https://github.com/microsoft/G-KV CLONE
    python3 tests/golden/make_gkv.py CLONE data/sample.h5 -o tests/golden/gkv.json.gz

ScoreBasedKV compresses whenever a head is over its budget while the trace's later tokens come, with
settings of its script. Its kernel of similarities needs a GPU and an older Triton; what it computes
is a few lines below. Budgets are counts above the prompt, so that all queries of a window have run
since the compression before: the code gives them today's slots.
"""
import sys

import torch

import golden_file as golden
import trace_tensors as trace

WINDOW = 16
BUDGETS = ["433", "440", "470"]


def import_class(clone):
    trace.import_without_init(clone, "gkv")
    trace.stand_in("gkv.model", __path__=[f"{clone}/gkv/model"])
    trace.stand_in("gkv.model.compression", __path__=[f"{clone}/gkv/model/compression"])
    trace.stand_in("gkv.utils", __path__=[f"{clone}/gkv/utils"])
    trace.stand_in("gkv.model.sparse_mask", expand_sparse_mask=None)
    from gkv.model.compression import score_based
    score_based.cal_similarity_triton = similarity
    return score_based.ScoreBasedKV


def similarity(keys, attention_mask, threshold=0.5):
    """Softmax over keys of the mean cosine with the others; of every column the newest row above the
    threshold is left out."""
    unit = keys / (keys.norm(dim=-1, keepdim=True) + 1e-6)
    cosine = unit @ unit.transpose(2, 3)
    count = cosine.shape[-1]
    cosine[..., range(count), range(count)] = 0
    rows = torch.arange(count).view(1, 1, -1, 1)
    newest = torch.where(cosine > threshold, rows, -1).amax(2, keepdim=True)
    cosine[(rows == newest) & (cosine > threshold)] = 0
    return torch.softmax(cosine.sum(3) / count, dim=-1)


class Heads:
    """One layer's slots: what the class is given and gives back."""

    def __init__(self, make, layer, budget):
        self.make, self.layer, self.budget = make, layer, budget
        self.positions = torch.arange(layer.n).expand(1, layer.kv_heads, -1).clone()
        self.remembered, self.near = None, [set() for _ in range(layer.kv_heads)]

    def compress(self, left):
        held = self.positions.shape[2]
        keys = torch.take_along_dim(self.layer.k[None], self.positions[..., None], 2).float()
        newest = int(self.positions.max())
        queries = self.layer.q[None, :, newest + 1 - WINDOW:newest + 1].float()
        press = self.make(budget=left, window_size=WINDOW, mix_lambda=0.5, alpha=0.8,
                          suppressing_redundancy=True, enable_score_cache=True)
        with trace.recorded_topk() as calls:
            _, _, self.positions, self.remembered = press.update_kv(
                keys, queries, keys.clone(), self.positions,
                attention_mask=torch.ones(1, held, dtype=torch.long), score_cache=self.remembered)
        scores, count, _ = calls[-1]
        for head, row in enumerate(scores[0]):
            self.near[head].update(golden.near_threshold(row, count).tolist())

    def run(self):
        for step in range(self.layer.n, self.layer.total):
            new = torch.full((1, self.layer.kv_heads, 1), step)
            self.positions = torch.cat([self.positions, new], dim=2)
            if self.positions.shape[2] > self.budget:
                self.compress(self.budget + 1 - self.budget // 4)
        return trace.of_prompt(self.positions[0].tolist(), self.layer.n)


def main():
    source = "https://github.com/microsoft/G-KV"
    args = trace.arguments(__doc__.splitlines()[0], source)
    make = import_class(args.repository)
    layers = trace.read_steps(args.trace, args.layers)
    entries = []
    for budget in BUDGETS:
        size = int(budget)
        facts = {}
        for layer in layers:
            heads = Heads(make, layer, size)
            kept = heads.run()
            if any(heads.near):
                print(f"{budget}, layer {layer.index}: near {heads.near}", file=sys.stderr)
            facts[str(layer.index)] = trace.layer_entry(layer.n, kept)
        entries.append({"form": "ScoreBasedKV, redundancy, score cache", "record": "g-kv",
                        "budget": budget, "owner": "kv_head", "counts": "equal", "layers": facts})
    trace.write(args, source, entries)


if __name__ == "__main__":
    main()
