#!/usr/bin/env python3
"""Kept sets of H2O's own cache (https://github.com/FMInference/H2O) on a trace's tensors.

    git clone https://github.com/FMInference/H2O CLONE
    python3 tests/golden/make_h2o.py CLONE data/sample.h5 -o tests/golden/h2o.json.gz

Its layer-wise cache is called with the attention of the prompt and then of every later query over
what it still holds, one query head per KV head, as in the models that it is written for.
"""
import sys

import torch

import trace_tensors as trace


def run(cache_class, layer, size):
    """Positions [heads][entries] held after the last query."""
    recent = size // 2
    cache = cache_class(hh_size=size - recent, recent_size=recent)
    held = trace.numbered(range(layer.n), layer.heads)
    queries = list(range(layer.n))
    for step in range(layer.n, layer.total + 1):
        attention = layer.attention(queries, held[0, :, :, 0].long())
        held, _ = cache((held, held), attention)
        queries = [step]
        held = torch.cat([held, trace.numbered(queries, layer.heads)], dim=2)
    return held[0, :, :-1, 0].long()


def main():
    args = trace.arguments(__doc__.splitlines()[0], "https://github.com/FMInference/H2O")
    sys.path.insert(0, f"{args.repository}/h2o_hf")
    trace.import_without_init(f"{args.repository}/h2o_hf", "utils_real_drop")
    from utils_real_drop.modify_llama import H2OKVCache_LayerWise
    layers = trace.read_steps(args.trace, args.layers)
    entries = []
    for budget in trace.BUDGETS:
        size = trace.count(budget, layers[0].n)
        facts = {str(layer.index): trace.layer_entry(
            layer.n, trace.of_prompt(run(H2OKVCache_LayerWise, layer, size), layer.n))
            for layer in layers}
        entries.append({"form": "H2OKVCache_LayerWise", "record": "h2o:official",
                        "budget": budget, "owner": "query_head", "counts": "equal",
                        "layers": facts})
    trace.write(args, "https://github.com/FMInference/H2O", entries)


if __name__ == "__main__":
    main()
