#!/usr/bin/env python3
"""Kept sets of kvpress's presses on the tensors of a trace.

    pip install kvpress==0.5.5
    python3 tests/golden/make_kvpress.py data/sample.h5 -o tests/golden/kvpress.json.gz

A press scores the trace's own tensors; then the press's own selection is run on a tensor whose
rows are their positions, so that what it gathers are the kept indices. Attention weights are
given (kvpress uses them when the model returns them), so queries need not be made anew.
"""
from importlib.metadata import version

import torch
from kvpress.presses.adakv_press import AdaKVPress
from kvpress.presses.compactor_press import CompactorPress
from kvpress.presses.criticalkv_press import CriticalAdaKVPress, CriticalKVPress
from kvpress.presses.cur_press import CURPress
from kvpress.presses.expected_attention_press import ExpectedAttentionPress
from kvpress.presses.keydiff_press import KeyDiffPress
from kvpress.presses.knorm_press import KnormPress
from kvpress.presses.lagkv_press import LagKVPress
from kvpress.presses.observed_attention_press import ObservedAttentionPress
from kvpress.presses.pyramidkv_press import PyramidKVPress
from kvpress.presses.snapkv_press import SnapKVPress
from kvpress.presses.streaming_llm_press import StreamingLLMPress
from kvpress.presses.tova_press import TOVAPress

import golden_file as golden
import trace_tensors as trace


def uniform_heads(press, layer, scores):
    """Presses that keep as many entries in every head: read what `compress` gathers."""
    press.score = lambda *_: scores
    rows = layer.indices(layer.kv_heads)
    kept, _ = press.compress(layer.module, layer.hidden, rows, rows, None, {})
    kept = kept[0, :, :, 0]
    near = [golden.near_threshold(row, kept.shape[1]) for row in scores[0]]
    return kept.tolist(), near


def masked_heads(press, layer):
    """Presses that leave a list of masked (head, position) pairs on the module."""
    press.compress(layer.module, layer.hidden, layer.k, layer.v, layer.attention, {})
    _, heads, positions = layer.module.masked_key_indices
    mask = torch.ones(layer.kv_heads, layer.n, dtype=torch.bool)
    mask[heads, positions] = False
    return [row.nonzero().flatten().tolist() for row in mask]


def near_in_layer(scores, kept):
    """Boundary of a ranking over all heads of a layer, as positions per head."""
    n = scores.shape[-1]
    close = golden.near_threshold(scores.reshape(-1), sum(len(x) for x in kept))
    return [close[close // n == head] % n for head in range(scores.shape[1])]


def plain(make):
    def run(layer, ratio):
        press = make(compression_ratio=ratio)
        scores = press.score(layer.module, layer.hidden, layer.k, layer.v, layer.attention, {})
        return *uniform_heads(press, layer, scores), scores
    return run


def ada(**settings):
    def run(layer, ratio):
        press = AdaKVPress(SnapKVPress(compression_ratio=ratio, **settings))
        scores = press.press.score(layer.module, layer.hidden, layer.k, layer.v,
                                   layer.attention, {})
        seen = scores.clone()
        press.press.score = lambda *_: seen      # the press marks safeguarded entries in place
        kept = masked_heads(press, layer)
        return kept, near_in_layer(seen, kept), scores
    return run


def critical(**settings):
    def run(layer, ratio):
        base = SnapKVPress(compression_ratio=ratio, **settings)
        press = CriticalKVPress(base)
        arguments = (layer.module, layer.hidden, layer.k, layer.v, layer.attention, {})
        first = base.score(*arguments)
        stage1 = max(1, int((1 - ratio) * layer.n * press.first_stage_ratio))
        scores = press.score(*arguments)
        kept, near = uniform_heads(press, layer, scores)
        near = [sorted({*golden.near_threshold(first[0, head], stage1).tolist(), *x.tolist()})
                for head, x in enumerate(near)]
        return kept, near, scores
    return run


def critical_ada(**settings):
    def run(layer, ratio):
        base = SnapKVPress(compression_ratio=ratio, **settings)
        press = CriticalAdaKVPress(base)
        first = base.score(layer.module, layer.hidden, layer.k, layer.v, layer.attention, {})
        kept = masked_heads(press, layer)
        near = [set(x.tolist()) for x in near_in_layer(first, kept)]
        norms = CriticalKVPress.vwl1norm(layer.v, layer.module)
        final = (first + press.epsilon) * norms
        for head, chosen in enumerate(kept):
            stage1 = int(len(chosen) * press.first_stage_ratio)
            near[head].update(golden.near_threshold(first[0, head], stage1).tolist())
            rest = final[0, head].clone()
            rest[first[0, head].topk(stage1).indices] = torch.inf
            near[head].update(golden.near_threshold(rest, len(chosen)).tolist())
        return kept, [sorted(x) for x in near], final
    return run


def expected(**settings):
    """The press projects hidden states to queries without rotation: it is given those."""
    def run(layer, ratio):
        press = ExpectedAttentionPress(compression_ratio=ratio, **settings)
        scores = expected_scores(press, layer)
        return *uniform_heads(press, layer, scores), scores
    return run


def expected_scores(press, layer):
    layer.module.rotary_emb = layer.rotary
    plain = layer.unrotated(layer.q.double())[0].transpose(0, 1).reshape(1, layer.n, -1)
    return press.score(layer.module, plain, layer.k.double(), layer.v.double(), None, {})


def compactor(**settings):
    """Without the sketch: what would be random directions are the keys' own."""
    def run(layer, ratio):
        press = CompactorPress(compression_ratio=ratio, sketch_dimension=layer.head_dim, **settings)
        size = layer.heads * layer.head_dim
        layer.module.q_proj = lambda hidden: hidden[..., :size]
        layer.module.k_proj = lambda hidden: hidden[..., size:]
        plain = [layer.unrotated(x.double())[0].transpose(0, 1).reshape(1, layer.n, -1)
                 for x in (layer.q, layer.k)]
        embedding = layer.rotary(layer.k.double(), torch.arange(layer.n)[None])
        drawn = torch.randn
        torch.randn = lambda *_, **options: torch.eye(
            layer.head_dim, dtype=options["dtype"]) * layer.head_dim ** 0.5
        try:
            scores = press.score(layer.module, torch.cat(plain, -1), layer.k.double(),
                                 layer.v.double(), None, {"position_embeddings": embedding})
        finally:
            torch.randn = drawn
            layer.module.q_proj = lambda hidden: hidden
        return *uniform_heads(press, layer, scores), scores
    return run


def expected_ada(**settings):
    def run(layer, ratio):
        press = AdaKVPress(ExpectedAttentionPress(compression_ratio=ratio, **settings))
        seen = expected_scores(press.press, layer)
        press.press.score = lambda *_: seen.clone()   # the press marks entries in place
        kept = masked_heads(press, layer)
        return kept, near_in_layer(seen, kept), seen
    return run


# form, record of kvsim, how to run it, whether scores are the same at every budget
FORMS = [
    ("StreamingLLMPress()", "streaming,rounding=kvpress", plain(StreamingLLMPress), False),
    ("KnormPress()", "knorm,rounding=kvpress", plain(KnormPress), True),
    ("ObservedAttentionPress()", "h2o,rounding=kvpress", plain(ObservedAttentionPress), True),
    ("TOVAPress()", "tova,rounding=kvpress", plain(TOVAPress), True),
    ("SnapKVPress()", "snapkv,rounding=kvpress,window=64", plain(SnapKVPress), True),
    ("SnapKVPress(window_size=32)", "snapkv,rounding=kvpress",
     plain(lambda **x: SnapKVPress(window_size=32, **x)), True),
    ("SnapKVPress(window_size=16, kernel_size=7)", "snapkv,rounding=kvpress,window=16,kernel=7",
     plain(lambda **x: SnapKVPress(window_size=16, kernel_size=7, **x)), True),
    ("PyramidKVPress()", "pyramidkv,rounding=kvpress,window=64,allocate=pyramid-kvpress", plain(PyramidKVPress), False),
    ("PyramidKVPress(window_size=8, beta=4)", "pyramidkv,rounding=kvpress,window=8,allocate=pyramid-kvpress,pyramid_beta=4",
     plain(lambda **x: PyramidKVPress(window_size=8, beta=4, **x)), False),
    ("AdaKVPress(SnapKVPress())", "adakv,rounding=kvpress,window=64", ada(), False),
    ("AdaKVPress(SnapKVPress(window_size=32))", "adakv,rounding=kvpress",
     ada(window_size=32), False),
    ("CriticalKVPress(SnapKVPress())", "criticalkv,rounding=kvpress,window=64", critical(), False),
    ("CriticalKVPress(SnapKVPress(window_size=32))", "criticalkv,rounding=kvpress",
     critical(window_size=32), False),
    ("CriticalAdaKVPress(SnapKVPress())",
     "criticalkv,rounding=kvpress,window=64,allocate=ada,allocate_score=unweighted", critical_ada(), False),
    ("CriticalAdaKVPress(SnapKVPress(window_size=32))", "criticalkv:ada,rounding=kvpress",
     critical_ada(window_size=32), False),
    ("KeyDiffPress()", "keydiff,rounding=kvpress", plain(KeyDiffPress), True),
    ("LagKVPress()", "lagkv,rounding=kvpress", plain(LagKVPress), True),
    ("ExpectedAttentionPress()", "expected-attention,rounding=kvpress", expected(), True),
    ("ExpectedAttentionPress(n_future_positions=64, n_sink=0, epsilon=0.01)",
     "expected-attention,rounding=kvpress,expected_steps=64,sinks=0,weight_epsilon=0.01",
     expected(n_future_positions=64, n_sink=0, epsilon=0.01), True),
    ("ExpectedAttentionPress(use_covariance=False, use_vnorm=False)",
     "expected-attention,rounding=kvpress,expected_variance=no,weight=none",
     expected(use_covariance=False, use_vnorm=False), True),
    ("AdaKVPress(ExpectedAttentionPress(epsilon=0.01))", "expected-attention:ada,rounding=kvpress",
     expected_ada(epsilon=0.01), False),
    ("CompactorPress(sketch_dimension=head_dim), directions its own",
     "compactor,rounding=kvpress,compactor_sketch=0", compactor(), False),
    ("CompactorPress(chunk_size=64, blending=0.35), directions its own",
     "compactor,rounding=kvpress,compactor_sketch=0,compactor_chunk=64,compactor_blend=0.35",
     compactor(chunk_size=64, blending=0.35), True),
    ("CURPress()", "cur,rounding=kvpress", plain(CURPress), True),
    ("LagKVPress(lag_size=32)", "lagkv,rounding=kvpress,lag_block=32",
     plain(lambda **x: LagKVPress(lag_size=32, **x)), True),
]

# With a budget below the window all window entries tie at the top and topk picks among them, over
# the heads of a layer where heads compete; kvsim keeps the newest of each head.
WINDOW = 64
BELOW_WINDOW = "budget below the window: kvpress leaves the heads' shares to topk"
DIFFERS = {("adakv,rounding=kvpress,window=64", "0.1"),
           ("criticalkv,rounding=kvpress,window=64,allocate=ada,allocate_score=unweighted", "0.1")}


def main():
    args = trace.arguments(__doc__.splitlines()[0])
    layers = trace.read_layers(args.trace, args.layers)
    entries = []
    for form, record, run, store_scores in FORMS:
        for budget in trace.BUDGETS:
            facts = {}
            for layer in layers:
                kept, near, scores = run(layer, trace.dropped_share(budget))
                first = store_scores and budget == trace.BUDGETS[0]
                facts[str(layer.index)] = trace.layer_entry(layer.n, kept, near,
                                                            scores[0] if first else None)
            entry = {"form": form, "record": record, "budget": budget, "owner": "kv_head",
                     "counts": "equal", "layers": facts}
            if (record, budget) in DIFFERS and trace.count(budget, layers[0].n) < WINDOW:
                entry["differs"] = BELOW_WINDOW
            entries.append(entry)
    trace.write(args, "kvpress", entries, version("kvpress"))


if __name__ == "__main__":
    main()
