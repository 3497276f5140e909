#!/usr/bin/env python3
"""Kept sets of DefensiveKV's own code (https://github.com/FFY0/DefensiveKV) on a trace's tensors.

    git clone https://github.com/FFY0/DefensiveKV CLONE
    python3 tests/golden/make_defensivekv.py CLONE data/sample.h5 \
        -o tests/golden/defensivekv.json.gz

The presses compute their own attention from hidden states: those are the trace's queries, sent
through an identity projection and a rotation by zero. The projected norms come from `vwl1norm`,
the repository's formula in plain torch, as its fused kernel `vwl1norm_triton` needs a GPU. The
layers of the run play the layers of the model, as in `kvsim replay --layers`.
"""
import contextlib
import dataclasses
import io
import types

import torch

import golden_file as golden
import trace_tensors as trace


def cache_of(layers):
    """The flattened cache that head-wise presses cut: rows of every head one after the other."""
    meta = []
    for layer in layers:
        meta.append(types.SimpleNamespace(
            head_lens=torch.full((layer.kv_heads,), layer.n, dtype=torch.int32), bsz=1,
            num_key_value_heads=layer.kv_heads,
            _update_metadata_while_compressing=lambda *_: None))
    rows = [torch.arange(layer.kv_heads * layer.n)[:, None].expand(-1, layer.head_dim).clone()
            for layer in layers]
    return types.SimpleNamespace(metadata_list=meta, layer_scores=[], key_cache=list(rows),
                                 value_cache=list(rows))


def flat_scores(press, layer, cache):
    keys, values = (x[0].reshape(-1, layer.head_dim) for x in (layer.k, layer.v))
    press.vwl1norm_triton = press.vwl1norm
    return press.score(layer.module, layer.hidden, keys, values, None,
                       {"metadata": cache.metadata_list[layer.module.layer_idx],
                        "position_embeddings": layer.no_rotation})


def split_heads(rows, layer):
    """Rows of the flattened cache -> positions per KV head."""
    rows = rows.flatten()
    return [(rows[rows // layer.n == head] % layer.n).tolist() for head in range(layer.kv_heads)]


def near_over_layers(scores, count, n):
    """Boundary of one ranking over everything in `scores` [layer][head * n]."""
    flat = torch.stack(scores).flatten()
    close = golden.near_threshold(flat, count)
    place, rest = close // scores[0].numel(), close % scores[0].numel()
    heads = scores[0].numel() // n
    return [[rest[(place == i) & (rest // n == h)] % n for h in range(heads)]
            for i in range(len(scores))]


def head_wise(presses, layers, ratio):
    """DefensiveKV: one competition per layer."""
    cache, facts = cache_of(layers), []
    for layer in layers:
        press = presses.EfficientDefensiveKVPress(compression_ratio=ratio)
        scores = flat_scores(press, layer, cache)
        press.score = lambda *_: scores
        rows = cache.key_cache[layer.module.layer_idx]
        kept, _ = press.compress(layer.module, layer.hidden, rows, rows, None,
                                 {"past_key_values": cache})
        near = near_over_layers([scores], len(kept), layer.n)[0]
        facts.append((split_heads(kept[:, 0], layer), near, scores.view(layer.kv_heads, -1)))
    return facts


def over_layers(presses, layers, ratio):
    """Layer-DefensiveKV: one competition over all layers."""
    cache, all_scores = cache_of(layers), []
    for layer in layers:
        press = presses.EfficientLayerDefensiveKVPress(compression_ratio=ratio)
        scores = flat_scores(press, layer, cache)
        all_scores.append(scores)
        press.score = lambda *_: scores
        rows = cache.key_cache[layer.module.layer_idx]
        with contextlib.redirect_stdout(io.StringIO()):    # it warns of its use of memory
            press.compress(layer.module, layer.hidden, rows, rows, None,
                           {"past_key_values": cache})
    kept = [split_heads(rows[:, 0], layer) for rows, layer in zip(cache.key_cache, layers)]
    near = near_over_layers(all_scores, sum(len(x) for heads in kept for x in heads),
                            layers[0].n)
    return [(x, y, s.view(layers[0].kv_heads, -1)) for x, y, s in zip(kept, near, all_scores)]


def cake(presses, layers, ratio):
    """The repository's copy of CAKE: budgets per layer, the same in every head."""
    cache = types.SimpleNamespace(layers=[
        types.SimpleNamespace(keys=layer.indices(layer.kv_heads),
                              values=layer.indices(layer.kv_heads)) for layer in layers])
    press = presses.CakeGlobalPress(compression_ratio=ratio)
    press.hh_scores, press.pref_scores = [], []    # the class's own lists outlive an instance
    scored = [press.score(layer.module, layer.hidden, layer.k, layer.v, None,
                          {"position_embeddings": layer.no_rotation}) for layer in layers]
    for layer, result in zip(layers, scored):
        press.score = lambda *_: result
        rows = layer.indices(layer.kv_heads)
        press.compress(layer.module, layer.hidden, rows, rows, None, {"past_key_values": cache})
    facts = []
    for stored, (scores, _) in zip(cache.layers, scored):
        kept = stored.keys[0, :, :, 0]
        near = [golden.near_threshold(row, kept.shape[1] - press.window_size) for row in scores[0]]
        facts.append((kept.tolist(), near, scores[0]))
    return facts


# published class, record of kvsim, how to run it, whether its budgets are rounded as ours
FORMS = [
    ("EfficientDefensiveKVPress()", "defensivekv:code", head_wise, "equal"),
    ("EfficientLayerDefensiveKVPress()", "layer-defensivekv:code", over_layers, "equal"),
    ("CakeGlobalPress()", "cake", cake, "nested"),
]

# At this budget the code's cap on forced entries is -1, which Python slices as "all but one": every
# entry is forced, all tie, and topk picks any. kvsim's cap stops at 0.
NEGATIVE_CAP = "0.077"


def main():
    args = trace.arguments(__doc__.splitlines()[0], "https://github.com/FFY0/DefensiveKV")
    trace.import_without_init(args.repository, "kvpress")
    trace.stand_in("attr", dataclass=dataclasses.dataclass)   # for a cache that is not used here
    from kvpress.presses import (cake_global_press, efficient_defensivekv_press,
                                 efficient_layer_defensivekv_press)
    presses = types.SimpleNamespace(**vars(cake_global_press))
    vars(presses).update(vars(efficient_layer_defensivekv_press))
    vars(presses).update(vars(efficient_defensivekv_press))
    layers = trace.read_layers(args.trace, args.layers, range(len(args.layers)))
    for layer in layers:
        layer.module.config.num_hidden_layers = len(layers)
    entries = []
    for form, record, run, counts in FORMS:
        extra = [NEGATIVE_CAP] if record.endswith(":code") else []
        for budget in trace.BUDGETS + extra:
            facts = {}
            for layer, (kept, near, scores) in zip(
                    layers, run(presses, layers, trace.dropped_share(budget))):
                # forced entries depend on the budget, the scores of all others do not
                first = budget == trace.BUDGETS[0]
                facts[str(layer.index)] = trace.layer_entry(layer.n, kept, near,
                                                            scores if first else None)
            entry = {"form": form, "record": record, "budget": budget, "owner": "kv_head",
                     "counts": counts, "layers": facts}
            if budget == NEGATIVE_CAP:
                entry["differs"] = "a negative count of forced entries, which kvsim takes as 0"
            entries.append(entry)
    trace.write(args, "https://github.com/FFY0/DefensiveKV", entries)


if __name__ == "__main__":
    main()
