#!/usr/bin/env python3
"""Kept sets of CAKE's own code (https://github.com/antgroup/cakekv) on a trace's tensors.

    git clone https://github.com/antgroup/cakekv CLONE
    python3 tests/golden/make_cake.py CLONE data/sample.h5 -o tests/golden/cake.json.gz

Its attention function scores a layer on the way to flash attention: it runs up to there, with
the trace's queries, keys and values behind identity projections and a rotation by zero. Then its
prefill cache divides the budget over the layers of the run and cuts a cache of positions.
"""
import sys
import types
import typing

import transformers.cache_utils
from transformers.models.llama import modeling_llama

import golden_file as golden
import trace_tensors as trace

WINDOW = 32
TOO_LARGE = "0.95"   # budget and window together hold the prompt: the code evicts nothing


class Scored(Exception):
    """Raised where flash attention would run: the scores are complete by then."""


def stop(*_, **__):
    raise Scored


def score(llama, layer, cache, prefill):
    flat = lambda tensor: tensor[0].transpose(0, 1).reshape(1, layer.n, -1)
    config = types.SimpleNamespace(
        window_size={layer.module.layer_idx: WINDOW}, prefill={layer.module.layer_idx: True},
        decoding_evict={layer.module.layer_idx: None}, tau1=1.0, tau2=1.0, gamma=200.0,
        prefill_cake_evict={layer.module.layer_idx: prefill},
        key_size={layer.module.layer_idx: 0})
    module = types.SimpleNamespace(
        config=config, layer_idx=layer.module.layer_idx, num_heads=layer.heads,
        num_key_value_heads=layer.kv_heads, num_key_value_groups=layer.groups,
        head_dim=layer.head_dim, attention_dropout=0.0, training=False, is_causal=True,
        q_proj=lambda _: flat(layer.q), k_proj=lambda _: flat(layer.k),
        v_proj=lambda _: flat(layer.v), _flash_attn_uses_top_left_mask=False)
    module.q_proj.weight = layer.q    # only its type is looked at
    try:
        llama.llama_attn_forward_cake(module, layer.hidden, past_key_value=cache,
                                      position_embeddings=layer.no_rotation)
    except Scored:
        return
    raise SystemExit("the attention function ended before flash attention")


def run(cake_cache, llama, layers, size):
    class NoPrefill:
        """Scores are collected first, layers are cut afterwards."""
        num_layers = -1

        def __call__(self, cache, _):
            return cache

    cache = cake_cache.CakeCache()
    for layer in layers:
        score(llama, layer, cache, NoPrefill())
    scores = [x.clone() for x in cache.evict_scores]
    cache.key_cache = [layer.indices(layer.kv_heads) for layer in layers]
    cache.value_cache = [layer.indices(layer.kv_heads) for layer in layers]
    prefill = cake_cache.CakeprefillKVCache(
        cache_size=size, window_size=WINDOW, num_heads=layers[0].heads, num_layers=len(layers))
    prefill(cache, layers[0].n)
    for keys, result in zip(cache.key_cache, scores):
        kept = keys[0, :, :, 0]
        near = [golden.near_threshold(row, kept.shape[1] - WINDOW) for row in result[0]]
        yield kept.tolist(), near, result[0]


def main():
    args = trace.arguments(__doc__.splitlines()[0], "https://github.com/antgroup/cakekv")
    sys.path.insert(0, args.repository)
    # it imports * from a module of transformers that exports less and imports less by now
    vars(transformers.cache_utils).setdefault("HybridCache", None)
    vars(modeling_llama).pop("__all__", None)
    vars(modeling_llama).update(Union=typing.Union, List=typing.List)
    trace.import_without_init(args.repository, "cake")
    from cake import cake_cache
    from cake.model import modify_llama
    modify_llama._flash_attention_forward = stop
    layers = trace.read_layers(args.trace, args.layers, range(len(args.layers)))
    entries = []
    for budget in trace.BUDGETS + [TOO_LARGE]:
        facts = {}
        for layer, (kept, near, scores) in zip(
                layers, run(cake_cache, modify_llama, layers, trace.count(budget, layers[0].n))):
            first = budget == trace.BUDGETS[0]
            facts[str(layer.index)] = trace.layer_entry(layer.n, kept, near,
                                                        scores if first else None)
        entry = {"form": "CakeprefillKVCache", "record": "cake:official", "budget": budget,
                 "owner": "kv_head", "counts": "nested", "layers": facts}
        if budget == TOO_LARGE:
            entry["differs"] = "evicts nothing when the prompt is no longer than budget and window"
        entries.append(entry)
    trace.write(args, "https://github.com/antgroup/cakekv", entries)


if __name__ == "__main__":
    main()
