#!/usr/bin/env python3
"""Kept sets of Knorm's own code (https://github.com/alessiodevoto/l2compress).

    git clone https://github.com/alessiodevoto/l2compress CLONE
    python3 tests/golden/make_knorm.py CLONE data/sample.h5 -o tests/golden/knorm.json.gz

Its function cuts the keys of all layers at once; the model's first two are skipped. Values are
their own positions.
"""
import sys

import golden_file as golden
import trace_tensors as trace

SKIPPED = (0, 1)   # layers of the model


def main():
    source = "https://github.com/alessiodevoto/l2compress"
    args = trace.arguments(__doc__.splitlines()[0], source)
    sys.path.insert(0, args.repository)
    from cache import l2_compress
    layers = trace.read_layers(args.trace, args.layers)
    n, entries = layers[0].n, []
    skipped = [place for place, layer in enumerate(layers) if layer.index in SKIPPED]
    for budget in trace.BUDGETS:
        size = trace.count(budget, n)
        # it rounds up: half an entry less gives the count itself
        cut = l2_compress([(layer.k, layer.indices(layer.kv_heads)) for layer in layers],
                          keep_ratio=(size - 0.5) / n, prune_after=0, skip_layers=skipped)
        facts = {}
        for place, (layer, (_, values)) in enumerate(zip(layers, cut)):
            norms = layer.k[0].norm(p=2, dim=-1)
            near = [] if place in skipped else [golden.near_threshold(-row, size) for row in norms]
            facts[str(layer.index)] = trace.layer_entry(n, values[0, :, :, 0].tolist(), near)
        entries.append({"form": "l2_compress", "record": "knorm:official", "budget": budget,
                        "owner": "kv_head", "counts": "equal", "layers": facts})
    trace.write(args, source, entries)


if __name__ == "__main__":
    main()
