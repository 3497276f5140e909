#!/usr/bin/env python3
"""Kept sets of ReST-KV's own code (https://github.com/an-yongqi/rest-kv) on a trace's tensors.

    git clone https://github.com/an-yongqi/rest-kv CLONE
    python3 tests/golden/make_restkv.py CLONE data/sample.h5 -o tests/golden/restkv.json.gz

Its clusters take keys and values repeated for every query head and keep a set per query head.
The scores they rank and the indices they take are read from their one call of topk; settings are
those of its scripts/longbench.
"""
import sys

import torch

import golden_file as golden
import trace_tensors as trace

WINDOW = 32
PAPER = {"use_wo": True, "use_ema": True, "alpha": 0.3, "metric_mode": "after",
         "pooling": "adaptive", "scale": 2000, "kernel_size": 5}


def output_change(**settings):
    settings = {**PAPER, **settings}

    def run(utils, layer, size):
        cluster = utils.RestKVCluster(window_size=WINDOW, max_capacity_prompt=size, **settings)
        return cluster.update_kv, layer.module.o_proj.weight
    return run


def ablation(ss, ts, indicator):
    def run(utils, layer, size):
        cluster = utils.AblationCluster(window_size=WINDOW, max_capacity_prompt=size, ss=ss, ts=ts,
                                        indicator=indicator)
        return cluster.update_kv, layer.module.o_proj.weight
    return run


def snap(utils, layer, size):
    return utils.SnapKVCluster(window_size=WINDOW, max_capacity_prompt=size).update_kv, None


def pyramid(utils, layer, size):
    cluster = utils.PyramidKVCluster(num_hidden_layers=layer.module.config.num_hidden_layers,
                                     layer_idx=layer.index, window_size=WINDOW,
                                     max_capacity_prompt=size)
    return cluster.update_kv, None


# published form, record of kvsim, how to run it
FORMS = [
    ("RestKVCluster", "restkv:code", output_change()),
    ("RestKVCluster(scale=20)", "restkv:code,aws_beta=20", output_change(scale=20)),
    ("RestKVCluster(scale=20, kernel_size=21)", "restkv:code,aws_beta=20,aws_min=21",
     output_change(scale=20, kernel_size=21)),
    ("RestKVCluster(use_ema=False, pooling='avgpool')",
     "restkv:code,aggregate=mean,smooth=avg", output_change(use_ema=False, pooling="avgpool")),
    ("RestKVCluster(metric_mode='before')", "restkv:code,indicator=output-change",
     output_change(metric_mode="before")),
    ("RestKVCluster(metric_mode='before', scale=20)",
     "restkv:code,indicator=output-change,aws_beta=20",
     output_change(metric_mode="before", scale=20)),
    ("AblationCluster(ss='none', ts='inv-ema', indicator='reconstruction')",
     "restkv:code,aggregate=ema-inverse,smooth=none", ablation("none", "inv-ema",
                                                               "reconstruction")),
    ("AblationCluster(ss='maxpool', ts='none', indicator='reconstruction')",
     "restkv:code,aggregate=last,smooth=max", ablation("maxpool", "none", "reconstruction")),
    ("AblationCluster(indicator='attn-v')", "snapkv:official,indicator=attention-value",
     ablation(None, None, "attn-v")),
    ("SnapKVCluster", "snapkv:official", snap),
    ("PyramidKVCluster", "pyramidkv,granularity=query,group=none", pyramid),
]


def run_form(make, utils, layer, budget):
    update, weight = make(utils, layer, trace.count(budget, layer.n))
    k, v = layer.repeated(layer.k), layer.repeated(layer.v)
    extra = () if weight is None else (weight.contiguous(),)
    with trace.recorded_topk() as calls:
        update(k, layer.q, v, None, layer.groups, *extra)
    (scores, size, indices), = calls
    window = torch.arange(layer.n - WINDOW, layer.n).expand(layer.heads, -1)
    kept = torch.cat([indices[0], window], 1).tolist()
    return kept, [golden.near_threshold(row, size) for row in scores[0]], scores[0]


def main():
    args = trace.arguments(__doc__.splitlines()[0], "https://github.com/an-yongqi/rest-kv")
    sys.path.insert(0, args.repository)
    from restkv import restkv_utils
    layers = trace.read_layers(args.trace, args.layers)
    entries = []
    for form, record, make in FORMS:
        for budget in trace.BUDGETS:
            facts = {}
            for layer in layers:
                kept, near, scores = run_form(make, restkv_utils, layer, budget)
                stored = scores if (record, budget) == ("restkv:code", "0.5") else None
                facts[str(layer.index)] = trace.layer_entry(layer.n, kept, near, stored)
            entries.append({"form": form, "record": record, "budget": budget,
                            "owner": "query_head", "counts": "equal", "layers": facts})
    trace.write(args, "https://github.com/an-yongqi/rest-kv", entries)


if __name__ == "__main__":
    main()
