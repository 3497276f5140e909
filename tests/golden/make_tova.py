#!/usr/bin/env python3
"""Kept sets of TOVA's own cache (https://github.com/schwartz-lab-NLP/TOVA) on a trace's tensors.

    git clone https://github.com/schwartz-lab-NLP/TOVA CLONE
    python3 tests/golden/make_tova.py CLONE data/sample.h5 -o tests/golden/tova.json.gz

Its cache is cut after the prompt and after every later query, by the attention of that query over
what the cache still holds.
"""
import sys

import torch
from transformers import cache_utils

import trace_tensors as trace


class Rows:
    """What the cache is derived from: lists of keys and values per layer, as transformers had."""

    def __init__(self):
        self.key_cache, self.value_cache = [], []


def run(cache_class, layer, size):
    cache = cache_class(size)
    cache.key_cache = [trace.numbered(range(layer.n), layer.kv_heads)]
    cache.value_cache = [cache.key_cache[0].clone()]
    query = layer.n - 1
    for step in range(layer.n, layer.total + 1):
        held = cache.key_cache[0][0, :, :, 0].long().repeat_interleave(layer.groups, 0)
        cache.reduce(0, layer.attention([query], held))
        query = step
        new = trace.numbered([step], layer.kv_heads)
        cache.key_cache[0] = torch.cat([cache.key_cache[0], new], dim=2)
        cache.value_cache[0] = torch.cat([cache.value_cache[0], new], dim=2)
    return cache.key_cache[0][0, :, :-1, 0].long()


def main():
    args = trace.arguments(__doc__.splitlines()[0], "https://github.com/schwartz-lab-NLP/TOVA")
    cache_utils.DynamicCache = Rows
    sys.path.insert(0, f"{args.repository}/src")
    from tova_cache import TOVACache
    layers = trace.read_steps(args.trace, args.layers)
    entries = []
    for budget in trace.BUDGETS:
        size = trace.count(budget, layers[0].n)
        facts = {str(layer.index): trace.layer_entry(
            layer.n, trace.of_prompt(run(TOVACache, layer, size), layer.n)) for layer in layers}
        entries.append({"form": "TOVACache", "record": "tova:official", "budget": budget,
                        "owner": "kv_head", "counts": "equal", "layers": facts})
    trace.write(args, "https://github.com/schwartz-lab-NLP/TOVA", entries)


if __name__ == "__main__":
    main()
