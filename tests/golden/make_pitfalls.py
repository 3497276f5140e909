#!/usr/bin/env python3
"""Kept sets of the fair presses of "The Pitfalls of KV Cache Compression" on a trace's tensors.

    git clone https://github.com/Itisalex2/pitfalls-of-kv-cache-compression CLONE
    python3 tests/golden/make_pitfalls.py CLONE data/sample.h5 -o tests/golden/pitfalls.json.gz

The presses take two spans that touch; they are given the two parts of the whole prompt, cut where
the trace's second span begins. (With shorter spans the H2O form leaves out only some of the pairs
across the cut, see policies on `fair_scores`.)
"""
import h5py

import golden_file as golden
import trace_tensors as trace


def main():
    args = trace.arguments(__doc__.splitlines()[0],
                           "https://github.com/Itisalex2/pitfalls-of-kv-cache-compression")
    trace.import_without_init(args.repository + "/kvpress", "kvpress")
    from kvpress.presses.knorm_fair_eviction_press import KnormFairEvictionPress
    from kvpress.presses.observed_attention_fair_eviction_press import (
        ObservedAttentionFairEvictionPress)
    from kvpress.presses.snapkv_fair_eviction_press import SnapKVFairEvictionPress
    from kvpress.presses.streamingllm_fair_eviction_press import StreamingLLMFairEvictionPress
    from kvpress.presses.tova_fair_eviction_press import TOVAFairEvictionPress

    fair = ",constrain=fair"
    forms = [   # class, settings, record of kvsim, whether counts per segment are rounded as ours
        (StreamingLLMFairEvictionPress, {}, "streaming,rounding=kvpress" + fair, "off by one"),
        (KnormFairEvictionPress, {}, "knorm,rounding=kvpress" + fair, "equal"),
        (ObservedAttentionFairEvictionPress, {}, "h2o,rounding=kvpress" + fair, "equal"),
        (TOVAFairEvictionPress, {}, "tova,rounding=kvpress" + fair, "equal"),
        (SnapKVFairEvictionPress, {}, "snapkv,rounding=kvpress,window=64" + fair, "equal"),
        (SnapKVFairEvictionPress, {"window_size": 16}, "snapkv,rounding=kvpress,window=16" + fair, "equal"),
    ]
    layers = trace.read_layers(args.trace, args.layers)
    with h5py.File(args.trace) as file:
        cut = int(file["spans/begin"][1])
    n = layers[0].n
    spans = {"defense_span": (0, cut), "sys_instr_span": (cut, n)}
    entries = []
    for cls, settings, record, counts in forms:
        for budget in trace.BUDGETS:
            facts = {}
            for layer in layers:
                press = cls(compression_ratio=trace.dropped_share(budget), **settings, **spans)
                scores = press.score(layer.module, layer.hidden, layer.k, layer.v,
                                     layer.attention, {})
                press.score = lambda *_: scores
                rows = layer.indices(layer.kv_heads)
                kept = press.compress(layer.module, layer.hidden, rows, rows, None, {})[0]
                kept = kept[0, :, :, 0]
                near = []
                for head, row in zip(kept, scores[0]):
                    early = int((head < cut).sum())
                    near.append(golden.near_threshold(row[:cut], early).tolist() + [
                        cut + int(i)
                        for i in golden.near_threshold(row[cut:], len(head) - early)])
                first = budget == trace.BUDGETS[0]
                facts[str(layer.index)] = trace.layer_entry(n, kept.tolist(), near,
                                                            scores[0] if first else None)
            name = cls.__name__ + "(" + ", ".join(f"{k}={v}" for k, v in settings.items()) + ")"
            entries.append({"form": name, "record": record, "budget": budget, "owner": "kv_head",
                            "counts": counts, "layers": facts})
    trace.write(args, "https://github.com/Itisalex2/pitfalls-of-kv-cache-compression", entries)


if __name__ == "__main__":
    main()
