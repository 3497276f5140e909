#!/usr/bin/env python3
"""Pages that Quest's own attention (https://github.com/mit-han-lab/Quest) reads at the last step.

    git clone https://github.com/mit-han-lab/Quest CLONE
    python3 tests/golden/make_quest.py CLONE data/sample.h5 -o tests/golden/quest.json.gz

Its attention runs for the trace's last query over the keys of the prompt alone, until it has chosen.
Budgets are those of three pages or more: it never reads fewer.
"""
import sys
import types

import torch

import trace_tensors as trace

PAGE = 16


class Chosen(Exception):
    """Carries the mask of what is read, [heads][entries]."""


def read_by(quest, layer, budget):
    """Entries that each head of a layer reads."""
    def mask(weights, tokens, page):
        raise Chosen(choose(weights, tokens, page)[0, :, 0])

    choose, quest.local_heavy_hitter_mask = quest.local_heavy_hitter_mask, mask
    flat = lambda rows: rows.float().reshape(1, 1, -1)
    past = layer.k[None, :, :layer.n - 1].float()
    attention = types.SimpleNamespace(
        layer_id=2, num_heads=layer.heads, num_key_value_heads=layer.kv_heads,
        num_key_value_groups=layer.groups, head_dim=layer.k.shape[2], chunk_size=PAGE,
        token_budget=budget, q_proj=lambda _: flat(layer.q[:, -1]),
        k_proj=lambda _: flat(layer.k[:, layer.n - 1]), rotary_emb=lambda *_: (None, None))
    attention.v_proj = attention.k_proj
    try:
        quest.forward(attention, torch.zeros(1, 1, 1), position_ids=torch.tensor([[layer.n - 1]]),
                      past_key_value=(past, past))
    except Chosen as chosen:
        return [row.nonzero().flatten().tolist() for row in chosen.args[0]]
    finally:
        quest.local_heavy_hitter_mask = choose


def main():
    source = "https://github.com/mit-han-lab/Quest"
    args = trace.arguments(__doc__.splitlines()[0], source)
    sys.path.insert(0, f"{args.repository}/evaluation")
    import quest_attention as quest
    quest.apply_rotary_pos_emb = lambda q, k, *_: (q, k)   # the trace's are turned already
    layers = trace.read_steps(args.trace, args.layers)
    entries = []
    for budget in trace.BUDGETS:
        size = trace.count(budget, layers[0].n)
        if size < 3 * PAGE:
            continue
        facts = {str(layer.index): trace.layer_entry(layer.n, read_by(quest, layer, size))
                 for layer in layers}
        entries.append({"form": "quest_attention.forward, the last step",
                        "record": "quest,skip_layers=none", "budget": budget,
                        "owner": "query_head", "counts": "equal", "layers": facts})
    trace.write(args, source, entries)


if __name__ == "__main__":
    main()
