#!/usr/bin/env python3
"""Kept sets of AdaKV's own code (https://github.com/FFY0/AdaKV) on a trace's tensors.

    git clone https://github.com/FFY0/AdaKV CLONE
    python3 tests/golden/make_adakv.py CLONE data/sample.h5 -o tests/golden/adakv.json.gz

Its clusters only gather values, so a tensor of positions in their place comes back as the kept
indices. Grouped-query support is on, with the mean over a group, and `normalize` is off.
"""
import sys

import golden_file as golden
import trace_tensors as trace

WINDOW = 32


def main():
    args = trace.arguments(__doc__.splitlines()[0], "https://github.com/FFY0/AdaKV")
    sys.path.insert(0, args.repository + "/adaptive_snapkv/monkeypatch")
    trace.stand_in("flash_attn", flash_attn_func=None)   # for forward functions not used here
    import snapkv_utils
    layers = trace.read_layers(args.trace, args.layers)
    entries = []
    for budget in trace.BUDGETS:
        facts = {}
        for layer in layers:
            cluster = snapkv_utils.AdaptiveSnapKVCluster(
                window_size=WINDOW, kernel_size=7, pooling="maxpool", floor_alpha=0.2, skip=0,
                base_capacity=trace.count(budget, layer.n), normalize=False,
                layer_idx=layer.index, gqa_support=True, num_key_value_groups=layer.groups,
                gqa_func="mean")
            scores = cluster.calcul_attn_sore(layer.repeated(layer.k), layer.q)
            _, rows = cluster.update_kv(layer.k, layer.q, layer.indices(layer.kv_heads))
            kept = [x[:, 0].tolist() for x in rows.split(cluster.head_lens.tolist())]
            near = [golden.near_threshold(row, len(x) - WINDOW)
                    for row, x in zip(scores[0], kept)]
            first = budget == trace.BUDGETS[0]
            facts[str(layer.index)] = trace.layer_entry(layer.n, kept, near,
                                                        scores[0] if first else None)
        entries.append({"form": "AdaptiveSnapKVCluster", "record": "adakv:official",
                        "budget": budget, "owner": "kv_head", "counts": "equal", "layers": facts})
    trace.write(args, "https://github.com/FFY0/AdaKV", entries)


if __name__ == "__main__":
    main()
