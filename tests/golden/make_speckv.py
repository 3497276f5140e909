#!/usr/bin/env python3
"""Kept sets of SpecKV's own function (https://github.com/furiosa-ai/draft-based-approx-llm).

    git clone https://github.com/furiosa-ai/draft-based-approx-llm CLONE
    python3 tests/golden/make_speckv.py CLONE data/sample.h5 -o tests/golden/speckv.json.gz

compress_kv takes the prompt with a draft behind it; the newest tokens of the prompt and the draft
observe. The draft is what followed in the trace, which check_golden.py gives kvsim as a probe.
"""
import types

import h5py
import numpy as np
import torch

import golden_file as golden
import trace_tensors as trace

WINDOW, DRAFT = 32, 64
FORMS = [("max", "max", 7, "speckv"),
         ("mean", "mean", 5, "speckv,aggregate=mean,group=mean,smooth=avg,kernel=5,window=64,"
                             "join=power-mean,power=1")]


def import_function(clone):
    trace.stand_in("draft_approx_llm", __path__=[f"{clone}/draft_approx_llm"])
    trace.stand_in("draft_approx_llm.speckv", __path__=[f"{clone}/draft_approx_llm/speckv"])
    from draft_approx_llm.speckv import util
    return util.compress_kv


def read(path, index):
    with h5py.File(path) as file:
        group, n = file[f"layers/{index}"], int(file.attrs["prompt_len"])
        q, k = (torch.from_numpy(group[x][...].astype(np.float32))[None, :, :n + DRAFT]
                for x in "qk")
    return types.SimpleNamespace(q=q, k=k, n=n)


def main():
    source = "https://github.com/furiosa-ai/draft-based-approx-llm"
    args = trace.arguments(__doc__.splitlines()[0], source)
    compress_kv = import_function(args.repository)
    layers = {index: read(args.trace, index) for index in args.layers}
    entries = []
    for reduction, pool, kernel, record in FORMS:
        window = 64 if reduction == "mean" else WINDOW
        for budget in trace.BUDGETS:
            facts = {}
            for index, layer in layers.items():
                size, heads = trace.count(budget, layer.n), layer.k.shape[1]
                if size <= window:
                    continue
                rows = trace.numbered(range(layer.n + DRAFT), heads).expand_as(layer.k).clone()
                with trace.recorded_topk() as calls:
                    _, kept, _ = compress_kv(layer.k, layer.q, rows, window + DRAFT, size + DRAFT,
                                             0, reduction, pool, kernel)
                scores, count, _ = calls[-1]
                near = [golden.near_threshold(row, count) for row in scores[0]]
                kept = trace.of_prompt(kept[0, :, :, 0].long().tolist(), layer.n)
                facts[str(index)] = trace.layer_entry(layer.n, kept, near)
            if facts:
                entries.append({"form": f"compress_kv, {reduction}, {pool} pooling of {kernel}",
                                "record": record, "budget": budget, "owner": "kv_head",
                                "counts": "equal", "later_as_probe": DRAFT, "layers": facts})
    trace.write(args, source, entries)


if __name__ == "__main__":
    main()
