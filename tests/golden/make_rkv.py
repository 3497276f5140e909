#!/usr/bin/env python3
"""Kept sets of R-KV's own class by its redundancy (https://github.com/Zefan-Cai/R-KV).

    git clone https://github.com/Zefan-Cai/R-KV CLONE
    python3 tests/golden/make_rkv.py CLONE data/sample.h5 -o tests/golden/rkv.json.gz

R1KV compresses the prompt with mix_lambda=0, so that similarity alone ranks what is older than the
window. With attention beside it the sets differ, as tests/golden/README.md says. Values are their
own positions. Keys are given in double precision, so that cosines lie on the right side of 0.5.
"""
import golden_file as golden
import trace_tensors as trace

WINDOW = 8


def import_code(clone):
    """Two files of the package, whose __init__ patches models."""
    trace.import_without_init(clone, "rkv")
    from rkv import utils
    trace.stand_in("rkv.compression", __path__=[f"{clone}/rkv/compression"],
                   cal_similarity=utils.cal_similarity,
                   compute_attention_scores=utils.compute_attention_scores)
    from rkv.compression.r1_kv import R1KV
    return R1KV, utils.cal_similarity


def main():
    source = "https://github.com/Zefan-Cai/R-KV"
    args = trace.arguments(__doc__.splitlines()[0], source)
    R1KV, cal_similarity = import_code(args.repository)
    layers = trace.read_layers(args.trace, args.layers)
    n, entries = layers[0].n, []
    for budget in trace.BUDGETS:
        size = trace.count(budget, n)
        press = R1KV(budget=size, window_size=WINDOW, mix_lambda=0.0)
        facts = {}
        for layer in layers:
            keys = layer.k.double()
            _, kept = press.update_kv(keys, layer.q.double(), layer.indices(layer.kv_heads))
            score = -cal_similarity(keys)[:, :-WINDOW]
            near = [golden.near_threshold(row, size - WINDOW) for row in score]
            facts[str(layer.index)] = trace.layer_entry(n, kept[0, :, :, 0].sort().values.tolist(),
                                                        near)
        entries.append({"form": "R1KV, mix_lambda=0", "budget": budget, "owner": "kv_head",
                        "record": f"snapkv,window={WINDOW},redundancy=key-cosine,redundancy_mix=0",
                        "counts": "equal", "layers": facts})
    trace.write(args, source, entries)


if __name__ == "__main__":
    main()
