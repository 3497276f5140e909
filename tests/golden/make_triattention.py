#!/usr/bin/env python3
"""Kept sets of TriAttention on the tensors of a trace.

    git clone https://github.com/WeianMao/triattention CLONE
    python3 tests/golden/make_triattention.py CLONE data/sample.h5 \\
        -o tests/golden/triattention.json.gz

The repository's functions score the keys of every query head at the end of the prompt, in double
precision. Its centres of queries come from a calibration text; here they are those of the prompt.
What the repository does with scores inside a method that holds a model (standardise them per head,
take the largest of a group, keep the best) is three lines below.
"""
import sys
import types

import torch

import golden_file as golden
import trace_tensors as trace


def import_scoring(clone):
    """methods/pruning_utils.py alone: the package itself wants a GPU's libraries."""
    trace.import_without_init(clone, "triattention")
    methods = types.ModuleType("triattention.methods")
    methods.__path__ = [f"{clone}/triattention/methods"]
    sys.modules["triattention.methods"] = methods
    from triattention.methods import pruning_utils
    return pruning_utils


def head_scores(code, layer, head, reach):
    queries = layer.unrotated(layer.q.double())[0, head]
    keys = layer.unrotated(layer.k.double())[0, head // layer.groups]
    pairs = code.to_complex_pairs(queries)
    amplitude, phase, extra = code.compute_frequency_statistics_from_means(
        pairs.mean(0), pairs.abs().mean(0), keys)
    return code.score_keys_for_round(
        torch.arange(layer.n), layer.n, amplitude, phase, layer.rotary.inv_freq, extra,
        code.build_geometric_offsets(reach, torch.device("cpu")), "mean",
        torch.ones(layer.head_dim // 2))


def kept_sets(code, layer, budget, reach):
    scores = torch.stack([head_scores(code, layer, h, reach) for h in range(layer.heads)])
    scores = (scores - scores.mean(1, keepdim=True)) / scores.std(1, unbiased=False, keepdim=True)
    best = scores.view(layer.kv_heads, layer.groups, layer.n).max(1).values
    count = trace.count(budget, layer.n)
    kept = best.topk(count, dim=1).indices.sort(dim=1).values.tolist()
    return kept, [golden.near_threshold(row, count) for row in best], best


# kvsim's record, distances up to
FORMS = [("triattention", 65536), ("triattention,trigonometric_reach=16", 16)]


def main():
    args = trace.arguments(__doc__.splitlines()[0], "TriAttention's repository")
    code = import_scoring(args.repository)
    layers = trace.read_layers(args.trace, args.layers)
    entries = []
    for record, reach in FORMS:
        for budget in trace.BUDGETS:
            facts = {}
            for layer in layers:
                kept, near, scores = kept_sets(code, layer, budget, reach)
                first = budget == trace.BUDGETS[0]
                facts[str(layer.index)] = trace.layer_entry(layer.n, kept, near,
                                                            scores if first else None)
            entries.append({"form": f"score_keys_for_round, offsets to {reach}", "record": record,
                            "budget": budget, "owner": "kv_head", "counts": "equal",
                            "layers": facts})
    trace.write(args, "triattention", entries)


if __name__ == "__main__":
    main()
