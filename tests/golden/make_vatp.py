#!/usr/bin/env python3
"""Kept sets of VATP's own code on H2O (https://github.com/guozhiyu/vatp).

    git clone https://github.com/guozhiyu/vatp CLONE
    python3 tests/golden/make_vatp.py CLONE data/sample.h5 -o tests/golden/vatp.json.gz

Its attention runs once over the prompt, one query head per KV head, as in the models that it is
written for; what it then hides from the next token is evicted.
"""
import types

import torch

import golden_file as golden
import trace_tensors as trace

SINKS = 20


def attention_class(repository):
    """The class; what its module takes from a copy of transformers is stood in for."""
    trace.import_without_init(repository, "utils_hh")
    trace.stand_in("utils_hh.modeling_llama", LlamaRotaryEmbedding=None, LlamaAttention=None,
                   LlamaLinearScalingRotaryEmbedding=None, LlamaDynamicNTKScalingRotaryEmbedding=None,
                   apply_rotary_pos_emb=lambda q, k, cos, sin, positions: (q, k))
    from utils_hh.modify_llama import LlamaAttention_heavy_hitter
    return LlamaAttention_heavy_hitter


def run(attention, layer, heavy, recent):
    """(kept [heads][n], scores [heads][n]) after the prompt."""
    as_hidden = lambda tensor: tensor[0].transpose(0, 1).reshape(1, layer.n, -1)
    own = attention.__new__(attention)
    torch.nn.Module.__init__(own)
    own._reset_masks()
    vars(own).update(
        num_heads=layer.heads, head_dim=layer.head_dim, hidden_size=layer.heads * layer.head_dim,
        q_proj=lambda _: layer.hidden, k_proj=lambda _: as_hidden(layer.repeated(layer.k)),
        v_proj=lambda _: as_hidden(layer.repeated(layer.v)), o_proj=lambda hidden: hidden,
        rotary_emb=lambda values, seq_len: (None, None), applyval=True, h2o=True, sink_len=SINKS,
        # it rounds down: half an entry more gives the count itself
        heavy_budget_ratio=(heavy + 0.5) / layer.n, recent_budget_ratio=(recent + 0.5) / layer.n,
        cache_budget_records=[], input_length=[], layerid=layer.index,
        config=types.SimpleNamespace())
    least = torch.finfo(torch.float32).min
    own(layer.hidden, torch.full((1, 1, layer.n, layer.n), least).triu(1))
    weights = layer.attention[0].sum(1) * layer.repeated(layer.v)[0].norm(p=1, dim=-1)
    return own.attention_masks_next[0, :, 0, :layer.n] > 0, weights


def main():
    source = "https://github.com/guozhiyu/vatp"
    args = trace.arguments(__doc__.splitlines()[0], source)
    attention = attention_class(args.repository)
    layers = trace.read_layers(args.trace, args.layers)
    n, entries = layers[0].n, []
    for budget in trace.BUDGETS:
        size = trace.count(budget, n)
        recent = size // 2
        heavy = size - recent
        facts = {}
        for layer in layers:
            masks, scores = run(attention, layer, heavy, recent)
            near = [golden.near_threshold(row[SINKS:n - recent], heavy - SINKS) + SINKS
                    for row in scores]
            kept = [mask.nonzero()[:, 0].tolist() for mask in masks]
            facts[str(layer.index)] = trace.layer_entry(n, kept, near)
        entries.append({"form": "LlamaAttention_heavy_hitter, h2o, applyval",
                        "record": "vatp:official,granularity=query,group=none", "budget": budget,
                        "owner": "query_head", "counts": "equal", "layers": facts})
    trace.write(args, source, entries)


if __name__ == "__main__":
    main()
