#!/usr/bin/env python3
"""Kept sets of StreamingLLM's own cache (https://github.com/mit-han-lab/streaming-llm).

    git clone https://github.com/mit-han-lab/streaming-llm CLONE
    python3 tests/golden/make_streaming.py CLONE data/sample.h5 -o tests/golden/streaming.json.gz

Its cache is cut after the prompt and after every later token, with four sinks.
"""
import sys

import torch

import trace_tensors as trace

SINKS = 4


def run(cache_class, layer, size):
    cache = cache_class(start_size=SINKS, recent_size=size - SINKS)
    held = trace.numbered(range(layer.n), layer.kv_heads)
    for step in range(layer.n, layer.total + 1):
        (held, _), = cache([(held, held)])
        held = torch.cat([held, trace.numbered([step], layer.kv_heads)], dim=2)
    return held[0, :, :-1, 0].long()


def main():
    source = "https://github.com/mit-han-lab/streaming-llm"
    args = trace.arguments(__doc__.splitlines()[0], source)
    trace.import_without_init(args.repository, "streaming_llm")
    sys.path.insert(0, args.repository)
    from streaming_llm.kv_cache import StartRecentKVCache
    layers = trace.read_steps(args.trace, args.layers)
    entries = []
    for budget in trace.BUDGETS:
        size = trace.count(budget, layers[0].n)
        facts = {str(layer.index): trace.layer_entry(
            layer.n, trace.of_prompt(run(StartRecentKVCache, layer, size), layer.n))
            for layer in layers}
        entries.append({"form": "StartRecentKVCache", "record": "streaming:official",
                        "budget": budget, "owner": "kv_head", "counts": "equal", "layers": facts})
    trace.write(args, source, entries)


if __name__ == "__main__":
    main()
